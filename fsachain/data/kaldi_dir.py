"""Data sets: which recordings there are, who speaks and what is said, as Kaldi data directories say it.

Manifests of lhotse (`fsachain.data.cuts`) give the same utterances.

Nothing is read but their small tables (`fsachain.data.kaldi_dir`): audio is opened in `fsachain.data.audio`.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import filterfalse
from pathlib import Path
from typing import Any

from fsachain.data.cuts import holds_cuts, read_cuts
from fsachain.data.faults import Fault, Faults, NoFaults
from fsachain.data.utterance import (
    OPEN_END,
    ByRow,
    Chosen,
    Column,
    Joined,
    Utterance,
    Utterances,
    is_command,
    joined,
)
from fsachain.errors import DataError
from fsachain.files import binary_lines, check_text
from fsachain.names import ByName, Names, Strings

__all__ = ["DataDir", "Table", "Utterance", "is_command", "read_table"]


# Tables of lines `key value...`, the text files of which Kaldi's data directories consist.

LONGEST_KEY = 4096  # letters
_HEAD = 4 * (LONGEST_KEY + 1)  # bytes that a key is looked for in
_KEY = re.compile(r"\s*(\S+)")


class Table(ByName[tuple[int, str]]):
    """Line number (from 1) and stripped rest of the line by key, in file order; pairs are made on access."""

    def __init__(self) -> None:
        super().__init__(Names())
        self._numbers = array("I")
        self._rests = Strings()

    def add(self, number: int, key: str, rest: bytes) -> int:
        """One more line, with its rest as UTF-8; returns the number of the line that has the key first."""
        place = self.names.add(key)
        if place == len(self._numbers):
            self._numbers.append(number)
            self._rests.append_utf8(rest)
        return self._numbers[place]

    def at(self, place: int) -> tuple[int, str]:
        """Line number and rest of the line of a key."""
        return self._numbers[place], self._rests.at(place).strip()


def read_table(path: str | Path) -> Table:
    """Read a `key value...` table; empty lines are skipped.

    Raises:
        DataError: the file cannot be read, a line is no text, or a key occurs twice.
    """
    table = Table()
    for number, key, rest in table_lines(path, raise_fault):
        first = table.add(number, key, rest)
        if first != number:
            raise DataError(f"{path}:{number}: key {key!r} occurs twice, first on line {first}")
    return table


def table_lines(
    path: str | Path, refuse: Callable[[str | Path, int, str], None]
) -> Iterator[tuple[int, str, bytes]]:
    """(number from 1, key, the rest of the line as UTF-8 without spaces at its ends) of each line that is not blank.

    Args:
        path: the file.
        refuse: told of a line that is not UTF-8, has a byte order mark or zero byte, or a key of more than `LONGEST_KEY`
            letters: the file, the line number and what is wrong. If it returns, the line is left out.

    Raises:
        DataError: the file cannot be read.
    """
    for number, line in binary_lines(path):
        where = f"{path}:{number}"
        try:
            check_text(line, where)
            key, begin = _key(line)
        except DataError as error:
            refuse(path, number, str(error).removeprefix(f"{where}: "))
            continue
        if key:
            yield number, key, line[begin:].strip()


def raise_fault(path: str | Path, number: int, why: str) -> None:
    """The `refuse` of readers that stop at the first fault."""
    raise DataError(f"{path}:{number}: {why}")


def _key(line: bytes) -> tuple[str, int]:
    """The key of a line and how many bytes it ends after; the rest, which may be long, stays in bytes."""
    text = line[:_HEAD].decode("utf-8", "ignore")
    found = _KEY.match(text)
    if found is None and len(line) <= _HEAD:
        return "", 0
    if found is None or found.end() > LONGEST_KEY:
        raise DataError(f"no key in its first {LONGEST_KEY} letters")
    return found[1], len(text[: found.end()].encode("utf-8"))


# The tables of a Kaldi data directory, line by line into columns.
#
# A directory holds `text` and `wav.scp` or `feats.scp`, and may hold `utt2spk` and `segments`. Every line of
# every table is `key value...`; keys are unique.
#
# Paths inside `wav.scp` and `feats.scp` are relative to the folder of the file that names them, so that a
# corpus can be moved. An entry with a `|` at either end is a shell command. Commands run with the rights of
# the reader, hence they are refused unless the caller asks for them with `allow_commands=True`.


def read_folder(folder: Path, allow_commands: bool, faults: Faults) -> Chosen:
    """The utterances of a directory, in the order of segments (or wav.scp) and feats.scp.

    Args:
        folder: the directory.
        allow_commands: accept locations that are shell commands.
        faults: told of every utterance that is left out.

    Raises:
        DataError: the directory or a table that it needs is missing; and what `faults` raises.
    """
    _check_files(folder)
    utterances = Utterances(faults.ids, str(folder))  # with rows for recordings, too
    segments = folder / "segments"
    recordings = Column(utterances.audio.values) if segments.is_file() else utterances.audio
    _read_locations(folder / "wav.scp", recordings, allow_commands, faults)
    cuts = array("I")
    if segments.is_file() and any(row in recordings for row in range(len(faults.ids))):
        cuts = _read_segments(segments, recordings, utterances, faults)
    _read_locations(folder / "feats.scp", utterances.feats, allow_commands, faults)

    def rows() -> Iterator[int]:
        """Of utterances, sound or not."""
        every = range(len(faults.ids))
        yield from cuts if segments.is_file() else filter(utterances.audio.__contains__, every)
        yield from (row for row in every if row in utterances.feats and row not in utterances.audio)

    text = folder / "text"
    _read_words(text, utterances, faults)
    _require(rows(), utterances.transcripts, text, "no transcript", faults)
    speakers = folder / "utt2spk"
    if speakers.is_file():
        _read_speakers(speakers, utterances, faults)
        _require(rows(), utterances.speakers, speakers, "no speaker", faults)
    return Chosen(utterances, array("I", filterfalse(faults.holds, rows())))


def _check_files(folder: Path) -> None:
    if not folder.is_dir():
        raise DataError(f"data directory {str(folder)!r} does not exist")
    if not (folder / "text").is_file():
        raise DataError(f"{str(folder / 'text')!r} does not exist; a data directory needs the transcripts")
    sources = (folder / "wav.scp", folder / "feats.scp")
    if not any(path.is_file() and path.stat().st_size for path in sources):
        raise DataError(
            f"data directory {str(folder)!r} has neither wav.scp nor feats.scp, or they are empty"
        )


def _lines(path: Path, column: Column[Any], faults: Faults) -> Iterator[tuple[int, str, int, bytes]]:
    """(number, key, row, rest of the line) of the lines of a table; a key that occurs twice loses what the column has."""
    first = ByRow()  # line
    row = -1
    for number, key, rest in table_lines(path, partial(faults.report, "table", "")):
        row = _row(faults.ids, key, row + 1)
        if faults.holds(row):
            continue
        if first[row]:
            message = "key {name!r} occurs twice, first on line {detail}"
            faults.report("duplicate id", key, path, number, message, first[row])
            column.remove(row)
            continue
        yield number, key, row, rest
        if not faults.holds(row):
            first[row] = number


def _row(ids: Names, key: str, likely: int) -> int:
    """The row of a key, which is added if it is new; tables have the same order, as a rule."""
    return likely if likely < len(ids) and ids[likely] == key else ids.add(key)


def _read_locations(path: Path, locations: Column[str], allow_commands: bool, faults: Faults) -> None:
    """Paths (joined to the table's folder) or commands into a column, if there is such a table."""
    if not path.is_file():
        return
    folder = str(path.parent)
    for number, key, row, rest in _lines(path, locations, faults):
        value = rest.decode("utf-8").strip()
        place = value if is_command(value) else joined(folder, value)
        if not value:
            faults.report("no recording", key, path, number, "{name!r} has no path")
        elif is_command(value) and not allow_commands:
            message = (
                "{name!r} is a shell command ({detail!r}); pass allow_commands=True "
                "(--allow-commands) to run it, if you trust this directory"
            )
            faults.report("shell command", key, path, number, message, value)
        elif is_command(place) and not is_command(value):  # such as `file|/`
            message = "the path {detail!r} of {name!r} would be taken for a command; rename the file"
            faults.report("shell command", key, path, number, message, value)
        else:
            locations.put(row, place)


def _read_segments(path: Path, recordings: Column[str], utterances: Utterances, faults: Faults) -> array[int]:
    """Utterances from lines `utterance recording start end`, in seconds; -1 is the recording's end. Returns their rows."""
    rows = array("I")
    for number, key, row, rest in _lines(path, utterances.audio, faults):
        value = rest.decode("utf-8").strip()
        fields = value.split(maxsplit=3)
        try:
            recording, (start, end) = fields[0], (float(field) for field in fields[1:])
        except (IndexError, ValueError):
            message = "expected 'utterance recording start end', got '{name} {detail}'"
            faults.report("segment", key, path, number, message, value)
            continue
        found = faults.ids.place(recording)
        open_end = end == OPEN_END
        if found is None or found not in recordings:
            message = "recording {detail!r} of {name!r} is not in wav.scp"
            faults.report("no recording", key, path, number, message, recording)
        elif not (0.0 <= start < math.inf and (open_end or start < end < math.inf)):
            message = "{name!r} needs 0 <= start < end, got {detail}"
            faults.report("segment", key, path, number, message, f"start {start} and end {end}")
        else:
            utterances.audio.link(row, recordings.place(found))
            utterances.spans.put(row, (start, end))
            rows.append(row)
    return rows


def _read_words(path: Path, utterances: Utterances, faults: Faults) -> None:
    """Transcripts, each of an utterance that has a recording or features."""
    for number, key, row, rest in _lines(path, utterances.transcripts, faults):
        if row in utterances.audio or row in utterances.feats:
            utterances.transcripts.put_utf8(row, rest)
        else:
            message = "utterance {name!r} has neither a recording nor features"
            faults.report("no recording", key, path, number, message)


def _read_speakers(path: Path, utterances: Utterances, faults: Faults) -> None:
    """Speakers of utterances, one word each; others may be named, too."""
    for number, key, row, rest in _lines(path, utterances.speakers, faults):
        speaker = rest.decode("utf-8").strip()
        if len(speaker.split(maxsplit=1)) == 1:
            utterances.speakers.share(row, speaker)
        elif row in utterances.audio or row in utterances.feats:
            message = "expected 'utterance speaker', got '{name} {detail}'"
            faults.report("no speaker", key, path, number, message, speaker)


def _require(rows: Iterable[int], column: Column[Any], path: Path, kind: str, faults: Faults) -> None:
    """Tell the faults of the utterances that a table should name and does not."""
    for row in rows:
        if row not in column and not faults.holds(row):
            faults.report(kind, faults.ids[row], path, 0, f"{kind} for utterance {{name!r}}")


@dataclass(frozen=True)
class DataDir:
    """Utterances with unique ids.

    Attributes:
        utterances: in the order of their recordings' table. Those that were read are made when they are asked for;
            slices are tuples.
    """

    utterances: Sequence[Utterance]

    def __post_init__(self) -> None:
        if isinstance(self.utterances, Chosen):  # from what is unique
            return
        seen = Names()
        for number, utterance in enumerate(self.utterances):
            if seen.add(utterance.id) < number:
                raise DataError(
                    f"utterance {utterance.id!r} occurs twice; ids are unique within joined directories"
                )

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
        return cls(_read(Path(path), allow_commands, NoFaults(Names())))

    @classmethod
    def check(cls, path: str | Path, *, allow_commands: bool = False) -> tuple[DataDir, Sequence[Fault]]:
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
        faults = Faults(Names())
        return cls(_read(Path(path), allow_commands, faults)), faults

    @classmethod
    def join(cls, parts: Iterable[DataDir]) -> DataDir:
        """All utterances of several directories, in their order.

        Raises:
            DataError: an utterance id occurs twice.
        """
        return cls(Joined(part.utterances for part in parts))

    def select(self, keep: Callable[[Utterance], bool]) -> DataDir:
        """The utterances for which `keep` is true, in the same order."""
        places = array("I", (place for place, one in enumerate(self.utterances) if keep(one)))
        return DataDir(Chosen(self.utterances, places))


def _read(path: Path, allow_commands: bool, faults: Faults) -> Chosen:
    return (read_cuts if holds_cuts(path) else read_folder)(path, allow_commands, faults)
