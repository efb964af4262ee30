"""Kaldi data directories: which recordings there are, who speaks and what is said.

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

from fsachain.data.faults import Fault, UtteranceError
from fsachain.errors import DataError

# Told of a kind of fault, the utterance (or file) and the message; raises, or keeps it and returns.
Report = Callable[[str, str, str], None]


@dataclass(frozen=True)
class Utterance:
    """One stretch of speech by one speaker.

    Attributes:
        id: unique name of the utterance.
        speaker: the speaker's name; the utterance's own id where the directory has no `utt2spk`.
        words: the transcript, split at white space; empty where nothing is said or known.
        audio: path of the recording, or a shell command that ends in `|`; None when only features exist.
        start: first second of the utterance in its recording.
        end: second where it ends, exclusive; None for the end of the recording.
        feats: a Kaldi matrix address `file.ark:offset`, or None when features are computed from the audio.
    """

    id: str
    speaker: str
    words: tuple[str, ...]
    audio: str | None
    start: float = 0.0
    end: float | None = None
    feats: str | None = None


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
        """Read one Kaldi data directory.

        Args:
            path: the directory.
            allow_commands: accept `wav.scp` and `feats.scp` entries that are shell commands. They are run
                later, by whoever loads the audio; do this only with directories whose author you trust.

        Raises:
            DataError: a table is missing, malformed, or does not fit the others; the message names file and
                line.
        """
        return cls(tuple(_read_folder(Path(path), allow_commands, _refuse)))

    @classmethod
    def check(cls, path: str | Path, *, allow_commands: bool = False) -> tuple[DataDir, list[Fault]]:
        """Read one Kaldi data directory without stopping at faults.

        Args:
            path: the directory.
            allow_commands: as for `read`.

        Returns:
            The utterances that the tables agree on, and what is wrong with each of the others: the first fault.

        Raises:
            DataError: there is no such directory, or it lacks the tables themselves.
        """
        faults: dict[str, Fault] = {}

        def report(kind: str, name: str, message: str) -> None:
            faults.setdefault(name, Fault(name, message, kind))

        utterances = list(_read_folder(Path(path), allow_commands, report))
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
        report: told of a line that is not UTF-8 and of a key that occurs twice; both lines are left out then.

    Returns:
        The line number (from 1) and the stripped rest of the line for each key, in file order; empty lines
        are skipped.

    Raises:
        DataError: the file cannot be read; and, unless `report` does otherwise, what it is told of.
    """
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        raise DataError(f"cannot read {str(path)!r}: {error}") from error
    table: dict[str, tuple[int, str]] = {}
    repeated = set()
    for number, line in enumerate(lines, start=1):
        try:
            fields = line.decode("utf-8").split(maxsplit=1)
        except UnicodeDecodeError as error:
            report("table", f"{path}:{number}", f"{path}:{number}: not a line of UTF-8 text ({error})")
            continue
        if not fields:
            continue
        if fields[0].startswith("\ufeff"):
            report("table", f"{path}:{number}", f"{path}:{number}: a byte order mark; save the file without")
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
    return {key: value for key, value in table.items() if key not in repeated}


def is_command(location: str) -> bool:
    """Whether a `wav.scp` or `feats.scp` value is a shell command rather than a path."""
    return location.endswith("|") or location.startswith("|")


def _read_locations(path: Path, allow_commands: bool, report: Report) -> dict[str, str]:
    """Paths (joined to the table's folder) or commands by key; empty if there is no such table."""
    if not path.is_file():
        return {}
    locations: dict[str, str] = {}
    for key, (number, value) in read_table(path, report).items():
        if not value:
            report("no recording", key, f"{path}:{number}: {key!r} has no path")
        elif "\0" in value:
            report("no recording", key, f"{path}:{number}: the path of {key!r} has a zero byte")
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
    for key, utterance in utterances.items():
        if key not in text:
            report("no transcript", key, f"{folder / 'text'}: no transcript for utterance {key!r}")
            continue
        speaker = key
        if speakers is not None:
            number, speaker = speakers.get(key, (0, ""))
            if not number:
                report("no speaker", key, f"{speakers_path}: no speaker for utterance {key!r}")
            elif len(speaker.split()) != 1:
                message = f"{speakers_path}:{number}: expected 'utterance speaker', got '{key} {speaker}'"
                report("no speaker", key, message)
        yield replace(utterance, speaker=speaker, words=tuple(text[key][1].split()))
