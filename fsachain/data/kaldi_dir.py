"""Data sets: which recordings there are, who speaks and what is said, as Kaldi data directories say it.

A directory holds `text` and `wav.scp` or `feats.scp`, and may hold `utt2spk` and `segments`. Every line of every table is
`key value...`; keys are unique. Paths in `wav.scp` and `feats.scp` are relative to the folder of the file that names
them, so that a corpus can be moved. An entry with a `|` at either end is a shell command. Commands run with the rights of
the reader, hence they are refused unless the caller asks for them with `allow_commands=True`.

Manifests of lhotse (`fsachain.data.cuts`) give the same utterances. Audio is opened in `fsachain.data.audio`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fsachain.data.cuts import holds_cuts, read_cuts
from fsachain.data.utterance import Fault, Faults, Utterance, is_command, shortened
from fsachain.errors import DataError
from fsachain.files import binary_lines, line_text

__all__ = ["DataDir", "Utterance", "is_command", "read_table"]

LONGEST_KEY = 4096  # letters
_OPEN_END = -1.0  # seconds, in segments: the utterance ends where its recording does


def raise_fault(path: str | Path, number: int, why: str) -> None:
    """`refuse` for `table_lines`: stops at the first fault."""
    raise DataError(f"{path}:{number}: {why}")


def table_lines(
    path: str | Path, refuse: Callable[[str | Path, int, str], None] = raise_fault
) -> Iterator[tuple[int, str, str]]:
    """(number from 1, key, stripped rest) of each line of a table that is not blank.

    `refuse` gets file, line number and fault of a line that is not UTF-8, has a byte order mark or zero byte, or a key of
    more than `LONGEST_KEY` letters. If it returns, the line is left out.
    """
    for number, line in binary_lines(path):
        try:
            if not line.isascii() or b"\0" in line:
                line_text(line, "")
            key, *rest = line.decode("utf-8").split(None, 1) or [""]
            if len(key) > LONGEST_KEY:
                raise DataError(f": no key in its first {LONGEST_KEY} letters")
        except DataError as error:
            refuse(path, number, str(error).removeprefix(": "))
            continue
        if key:
            yield number, key, rest[0].rstrip() if rest else ""


def read_table(path: str | Path) -> dict[str, tuple[int, str]]:
    """Line number (from 1) and stripped rest of the line by key, in file order; a key that occurs twice is a DataError."""
    table: dict[str, tuple[int, str]] = {}
    for number, key, rest in table_lines(path):
        first, _ = table.setdefault(key, (number, rest))
        if first != number:
            raise DataError(f"{path}:{number}: key {key!r} occurs twice, first on line {first}")
    return table


class _Segment(NamedTuple):
    audio: str
    start: float = 0.0
    end: float | None = None


class _Folder:
    """Reads the tables of a directory; `faults` is told of lines that are left out."""

    def __init__(self, folder: Path, allow_commands: bool, faults: Faults) -> None:
        self.folder, self.allow_commands, self.faults = folder, allow_commands, faults

    def read(self) -> list[Utterance]:
        """The utterances without faults, in the order of segments (or wav.scp) and feats.scp."""
        self._check_files()
        recordings = self._locations("wav.scp")
        if recordings and (self.folder / "segments").is_file():
            audio = self._segments(recordings)
        elif (self.folder / "segments").is_file():
            audio = {}
        else:
            audio = {name: _Segment(place) for name, place in recordings.items()}
        feats = self._locations("feats.scp")
        ids = dict.fromkeys([*audio, *feats])
        texts = self._texts(ids)
        speakers = self._speakers(ids)
        faults, silence = self.faults.by_id, _Segment("")
        found = []
        for name in ids:
            if name not in faults:
                place, start, end = audio.get(name, silence)
                words = tuple(texts[name].split())
                found.append(
                    Utterance(
                        name, speakers.get(name, name), words, place or None, start, end, feats.get(name)
                    )
                )
        return found

    def _check_files(self) -> None:
        folder = self.folder
        if not folder.is_dir():
            raise DataError(f"data directory {str(folder)!r} does not exist")
        if not (folder / "text").is_file():
            raise DataError(
                f"{str(folder / 'text')!r} does not exist; a data directory needs the transcripts"
            )
        sources = (folder / "wav.scp", folder / "feats.scp")
        if not any(path.is_file() and path.stat().st_size for path in sources):
            raise DataError(
                f"data directory {str(folder)!r} has neither wav.scp nor feats.scp, or they are empty"
            )

    def _lines(self, path: Path, found: dict[str, Any]) -> Iterator[tuple[int, str, str]]:
        """The lines of a table whose key has no fault; a key that comes again is a fault and is removed from `found`."""
        first: dict[str, int] = {}
        report, faults = self.faults.report, self.faults.by_id
        for number, key, rest in table_lines(path, partial(report, "table", "")):
            if key in faults:
                continue
            if first.setdefault(key, number) != number:
                message = f"key {key!r} occurs twice, first on line {first[key]}"
                report("duplicate id", key, path, number, message)
                found.pop(key, None)
                continue
            yield number, key, rest

    def _locations(self, name: str) -> dict[str, str]:
        """Paths, joined to the table's folder, or commands, by key."""
        path, found = self.folder / name, dict[str, str]()
        if not path.is_file():
            return {}
        folder = str(self.folder)
        for number, key, value in self._lines(path, found):
            if not value:
                self.faults.report("no recording", key, path, number, f"{key!r} has no path")
            elif is_command(value) and not self.allow_commands:
                message = (
                    f"{key!r} is a shell command ({shortened(value)!r}); pass allow_commands=True "
                    "(--allow-commands) to run it, if you trust this directory"
                )
                self.faults.report("shell command", key, path, number, message)
            elif is_command(value):
                found[key] = value
            elif "|" in value and is_command(str(Path(value))):  # such as `file|/`
                message = (
                    f"the path {shortened(value)!r} of {key!r} would be taken for a command; rename the file"
                )
                self.faults.report("shell command", key, path, number, message)
            else:
                found[key] = os.path.join(folder, value)  # noqa: PTH118  pathlib takes ten times as long
        return found

    def _segments(self, recordings: dict[str, str]) -> dict[str, _Segment]:
        """Utterances from lines `utterance recording start end`, in seconds; -1 is the recording's end."""
        path, found = self.folder / "segments", dict[str, _Segment]()
        for number, key, value in self._lines(path, found):
            fields = value.split(maxsplit=3)
            try:
                recording, (start, end) = fields[0], (float(field) for field in fields[1:])
            except (IndexError, ValueError):
                message = f"expected 'utterance recording start end', got '{key} {shortened(value)}'"
                self.faults.report("segment", key, path, number, message)
                continue
            open_end = end == _OPEN_END
            if recording not in recordings:
                message = f"recording {shortened(recording)!r} of {key!r} is not in wav.scp"
                self.faults.report("no recording", key, path, number, message)
            elif not (0.0 <= start < math.inf and (open_end or start < end < math.inf)):
                message = f"{key!r} needs 0 <= start < end, got start {start} and end {end}"
                self.faults.report("segment", key, path, number, message)
            else:
                found[key] = _Segment(recordings[recording], start, None if open_end else end)
        return found

    def _texts(self, ids: dict[str, None]) -> dict[str, str]:
        path, found = self.folder / "text", dict[str, str]()
        for number, key, text in self._lines(path, found):
            if key in ids:
                found[key] = text
            else:
                message = f"utterance {key!r} has neither a recording nor features"
                self.faults.report("no recording", key, path, number, message)
        self._require(ids, found, path, "no transcript")
        return found

    def _speakers(self, ids: dict[str, None]) -> dict[str, str]:
        """Speakers, one word each; the table may name other utterances, too."""
        path, found = self.folder / "utt2spk", dict[str, str]()
        if not path.is_file():
            return {}
        for number, key, speaker in self._lines(path, found):
            if len(speaker.split(maxsplit=1)) == 1:
                found[key] = speaker
            elif key in ids:
                message = f"expected 'utterance speaker', got '{key} {shortened(speaker)}'"
                self.faults.report("no speaker", key, path, number, message)
        self._require(ids, found, path, "no speaker")
        return found

    def _require(self, ids: Iterable[str], found: dict[str, str], path: Path, kind: str) -> None:
        for name in ids:
            if name not in found:
                self.faults.report(kind, name, path, 0, f"{kind} for utterance {name!r}")


@dataclass(frozen=True)
class DataDir:
    """Utterances with unique ids.

    Attributes:
        utterances: in the order of their recordings' table.
    """

    utterances: Sequence[Utterance]

    def __post_init__(self) -> None:
        seen = set()
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
        return cls(_read(Path(path), allow_commands, Faults(stop=True)))

    @classmethod
    def check(cls, path: str | Path, *, allow_commands: bool = False) -> tuple[DataDir, list[Fault]]:
        """What `read` reads, without stopping at faults.

        Args:
            path: as for `read`.
            allow_commands: as for `read`.

        Returns:
            The utterances that the tables agree on, and what is wrong with each of the others: the first fault.

        Raises:
            DataError: there is no such directory or file, or it lacks the tables themselves, or hundreds of lines
                are none of such a table.
        """
        faults = Faults(stop=False)
        return cls(_read(Path(path), allow_commands, faults)), faults.all()

    @classmethod
    def join(cls, parts: Iterable[DataDir]) -> DataDir:
        """All utterances of several directories, in their order.

        Raises:
            DataError: an utterance id occurs twice.
        """
        return cls(tuple(utterance for part in parts for utterance in part))

    def select(self, keep: Callable[[Utterance], bool]) -> DataDir:
        """The utterances for which `keep` is true, in the same order."""
        return DataDir(tuple(filter(keep, self.utterances)))


def _read(path: Path, allow_commands: bool, faults: Faults) -> tuple[Utterance, ...]:
    if holds_cuts(path):
        return tuple(read_cuts(path, allow_commands, faults))
    return tuple(_Folder(path, allow_commands, faults).read())
