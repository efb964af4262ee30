"""Data sets: which recordings there are, who speaks and what is said, as Kaldi data directories say it.

Manifests of lhotse (`fsachain.data.cuts`) give the same utterances.

A directory holds `text` and `wav.scp` or `feats.scp`, and may hold `utt2spk` and `segments`. Every line of
every table is `key value...`; keys are unique. Nothing is read but these small tables: audio is opened in
`fsachain.data.audio`.

Paths inside `wav.scp` and `feats.scp` are relative to the folder of the file that names them, so that a
corpus can be moved. An entry with a `|` at either end is a shell command. Commands run with the rights of the
reader, hence they are refused unless the caller asks for them with `allow_commands=True`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from fsachain.data.cuts import holds_cuts, read_cuts
from fsachain.data.faults import Fault, UtteranceError
from fsachain.data.utterance import Report, Utterance, is_command
from fsachain.errors import DataError
from fsachain.files import binary_lines, line_text

__all__ = ["DataDir", "Report", "Utterance", "is_command", "read_table"]


@dataclass(frozen=True)
class DataDir:
    """Utterances in the order of their recordings' table, with unique ids."""

    utterances: tuple[Utterance, ...]

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for utterance in self.utterances:
            if utterance.id in seen:
                raise DataError(
                    f"utterance {utterance.id!r} occurs twice; ids are unique within joined directories"
                )
            seen.add(utterance.id)

    def __len__(self) -> int:
        return len(self.utterances)

    def __iter__(self) -> Iterator[Utterance]:
        return iter(self.utterances)

    @classmethod
    def read(cls, path: str | Path, *, allow_commands: bool = False) -> DataDir:
        """Read one Kaldi data directory, lhotse manifest of cuts (`.jsonl`, `.jsonl.gz`) or folder of Shar shards.

        Args:
            path: the directory or file.
            allow_commands: accept recordings that are shell commands (or, in manifests, URLs). They are run
                later, by whoever loads the audio; do this only with data whose author you trust.

        Raises:
            DataError: a table is missing, malformed, or does not fit the others; the message names file and
                line.
        """
        return cls(tuple(_read(Path(path), allow_commands, _refuse)))

    @classmethod
    def check(cls, path: str | Path, *, allow_commands: bool = False) -> tuple[DataDir, list[Fault]]:
        """What `read` reads, without stopping at faults.

        Args:
            path: as for `read`.
            allow_commands: as for `read`.

        Returns:
            The utterances that the tables agree on, and what is wrong with each of the others: the first fault.

        Raises:
            DataError: there is no such directory or file, or it lacks the tables themselves.
        """
        faults: dict[str, Fault] = {}

        def report(kind: str, name: str, message: str) -> None:
            faults.setdefault(name, Fault(name, message, kind))

        utterances = list(_read(Path(path), allow_commands, report))
        return cls(tuple(one for one in utterances if one.id not in faults)), list(faults.values())

    @classmethod
    def join(cls, parts: Iterable[DataDir]) -> DataDir:
        """All utterances of several directories, in their order.

        Raises:
            DataError: an utterance id occurs twice.
        """
        return cls(tuple(utterance for part in parts for utterance in part.utterances))

    def select(self, keep: Callable[[Utterance], bool]) -> DataDir:
        """The utterances for which `keep` is true, in the same order."""
        return DataDir(tuple(utterance for utterance in self.utterances if keep(utterance)))


def _refuse(kind: str, name: str, message: str) -> None:
    raise UtteranceError(kind, name, message)


def _read(path: Path, allow_commands: bool, report: Report) -> Iterator[Utterance]:
    if holds_cuts(path):
        return read_cuts(path, allow_commands, report)
    return _read_folder(path, allow_commands, report)


def _read_folder(folder: Path, allow_commands: bool, report: Report) -> Iterator[Utterance]:
    if not folder.is_dir():
        raise DataError(f"data directory {str(folder)!r} does not exist")
    if not (folder / "text").is_file():
        raise DataError(f"{str(folder / 'text')!r} does not exist; a data directory needs the transcripts")
    recordings = _read_locations(folder / "wav.scp", allow_commands, report)
    features = _read_locations(folder / "feats.scp", allow_commands, report)
    if not any(
        (folder / name).is_file() and (folder / name).stat().st_size for name in ("wav.scp", "feats.scp")
    ):
        raise DataError(
            f"data directory {str(folder)!r} has neither wav.scp nor feats.scp, or they are empty"
        )
    if (folder / "segments").is_file() and recordings:
        utterances = _from_segments(folder / "segments", recordings, report)
    else:
        utterances = {key: Utterance(key, key, (), audio) for key, audio in recordings.items()}
    for key, address in features.items():
        utterances[key] = replace(utterances.get(key, Utterance(key, key, (), None)), feats=address)
    return _with_speaker_and_words(folder, utterances, report)


def read_table(path: str | Path, report: Report = _refuse) -> dict[str, tuple[int, str]]:
    """Read a `key value...` table.

    Args:
        path: the file.
        report: told of a line that is not UTF-8 or has a byte order mark or zero byte, and of a key that occurs twice;
            these lines are left out then.

    Returns:
        The line number (from 1) and the stripped rest of the line for each key, in file order; empty lines
        are skipped.

    Raises:
        DataError: the file cannot be read; and, unless `report` does otherwise, what it is told of.
    """
    table: dict[str, tuple[int, str]] = {}
    repeated = set()
    for number, line in binary_lines(path):
        try:
            fields = line_text(line, f"{path}:{number}").split(maxsplit=1)
        except DataError as error:
            report("table", f"{path}:{number}", str(error))
            continue
        if not fields:
            continue
        if fields[0] in table:
            first = table[fields[0]][0]
            repeated.add(fields[0])
            report(
                "duplicate id",
                fields[0],
                f"{path}:{number}: key {fields[0]!r} occurs twice, first on line {first}",
            )
            continue
        table[fields[0]] = (number, fields[1].strip() if len(fields) > 1 else "")
    for key in repeated:
        del table[key]
    return table


def _read_locations(path: Path, allow_commands: bool, report: Report) -> dict[str, str]:
    """Paths (joined to the table's folder) or commands by key; empty if there is no such table."""
    if not path.is_file():
        return {}
    locations: dict[str, str] = {}
    for key, (number, value) in read_table(path, report).items():
        if not value:
            report("no recording", key, f"{path}:{number}: {key!r} has no path")
        elif is_command(value) and not allow_commands:
            message = (
                f"{path}:{number}: {key!r} is a shell command ({value!r}); pass allow_commands=True "
                "(--allow-commands) to run it, if you trust this directory"
            )
            report("shell command", key, message)
        else:
            locations[key] = value if is_command(value) else str(path.parent / value)
    return locations


def _from_segments(path: Path, recordings: dict[str, str], report: Report) -> dict[str, Utterance]:
    """Utterances from lines `utterance recording start end`, in seconds; -1 is the recording's end."""
    utterances: dict[str, Utterance] = {}
    for key, (number, value) in read_table(path, report).items():
        fields = value.split()
        try:
            recording, (start, end) = fields[0], (float(field) for field in fields[1:])
        except (IndexError, ValueError):
            entry = f"{key} {value}"
            report(
                "segment", key, f"{path}:{number}: expected 'utterance recording start end', got {entry!r}"
            )
            continue
        if recording not in recordings:
            report(
                "no recording", key, f"{path}:{number}: recording {recording!r} of {key!r} is not in wav.scp"
            )
            continue
        open_end = end == -1.0
        if not (0.0 <= start < float("inf")) or not (open_end or start < end < float("inf")):
            message = f"{path}:{number}: {key!r} needs 0 <= start < end, got start {start} and end {end}"
            report("segment", key, message)
            continue
        utterances[key] = Utterance(key, key, (), recordings[recording], start, None if open_end else end)
    return utterances


def _with_speaker_and_words(
    folder: Path, utterances: dict[str, Utterance], report: Report
) -> Iterator[Utterance]:
    """The utterances completed from `text` and `utt2spk`, which must name every one of them."""
    text = read_table(folder / "text", report)
    for key, (number, _) in text.items():
        if key not in utterances:
            message = f"{folder / 'text'}:{number}: utterance {key!r} has neither a recording nor features"
            report("no recording", key, message)
    speakers_path = folder / "utt2spk"
    speakers = read_table(speakers_path, report) if speakers_path.is_file() else None
    known: dict[str, str] = {}  # each word and speaker is kept once, and what is used up is given back
    for key in tuple(utterances):
        utterance = utterances.pop(key)
        number, said = text.pop(key, (0, ""))
        if not number:
            report("no transcript", key, f"{folder / 'text'}: no transcript for utterance {key!r}")
            continue
        speaker = key
        if speakers is not None:
            number, speaker = speakers.pop(key, (0, ""))
            if not number:
                report("no speaker", key, f"{speakers_path}: no speaker for utterance {key!r}")
            elif len(speaker.split()) != 1:
                message = f"{speakers_path}:{number}: expected 'utterance speaker', got '{key} {speaker}'"
                report("no speaker", key, message)
        words = tuple(known.setdefault(word, word) for word in said.split())
        yield replace(utterance, speaker=known.setdefault(speaker, speaker), words=words)
