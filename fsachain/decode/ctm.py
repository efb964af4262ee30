"""CTM files: when each word or phone of each utterance is said, one line for each."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fsachain.errors import DataError, require
from fsachain.files import text_lines
from fsachain.names import ByName, Names, Strings
from fsachain.on_access import OnAccess

_LONGEST_LINE = 1 << 14  # bytes


class CtmEntry(NamedTuple):
    """One word or phone: start and duration in seconds."""

    utterance: str
    start: float
    duration: float
    label: str

    def __str__(self) -> str:
        return f"{self.utterance} 1 {self.start:.3f} {self.duration:.3f} {self.label}"


class Ctm(OnAccess[CtmEntry]):
    """Entries as columns."""

    def __init__(self) -> None:
        self._utterances, self._labels = Strings(), Strings()
        self._times = array("d")  # start and duration of the first, of the second, ...

    def append(self, entry: CtmEntry) -> None:
        """One more entry."""
        self._utterances.append(entry.utterance)
        self._labels.append(entry.label)
        self._times.append(entry.start)
        self._times.append(entry.duration)

    def __len__(self) -> int:
        return len(self._labels)

    def at(self, place: int) -> CtmEntry:
        """The entry at a place in [0, len)."""
        start, duration = self._times[2 * place : 2 * place + 2]
        return CtmEntry(self._utterances.at(place), start, duration, self._labels.at(place))

    def some(self, places: range) -> list[CtmEntry]:
        """The entries of a slice: a list."""
        return list(map(self.at, places))

    def __iter__(self) -> Iterator[CtmEntry]:
        times = iter(self._times)
        return map(CtmEntry, self._utterances, times, times, self._labels)

    def __repr__(self) -> str:
        return f"Ctm({len(self)} entries)"


def write_ctm(path: str | Path, entries: Iterable[CtmEntry]) -> None:
    """Write `utterance 1 start duration label` lines in the order given; folders are made if need be."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("w", encoding="utf-8") as file:
        file.writelines(f"{entry}\n" for entry in entries)


def read_ctm(path: str | Path) -> Ctm:
    """Read a CTM file; the channel and a confidence at the end of a line are dropped.

    Raises:
        DataError: the file cannot be read, or a line has no start and duration.
    """
    entries = Ctm()
    for number, fields in text_lines(path, longest=_LONGEST_LINE):
        try:
            utterance, _, start, duration, label = fields[:5]
            entries.append(CtmEntry(utterance, float(start), float(duration), label))
        except ValueError as error:
            came = " ".join(fields[:5])[:100]
            raise DataError(
                f"{path}:{number}: expected utterance, channel, start, duration, label, got {came!r}"
            ) from error
    return entries


class ByUtterance(ByName[list[CtmEntry]]):
    """The entries of each utterance, in order of time; utterances in the order of their first entries."""

    def __init__(self, entries: Sequence[CtmEntry]) -> None:
        super().__init__(Names())
        self._entries = entries
        numbers, starts = array("i"), array("d")
        for entry in entries:
            numbers.append(self.names.add(entry.utterance))
            starts.append(entry.start)
        of = np.frombuffer(numbers, dtype=np.int32)
        self._places = np.lexsort((np.frombuffer(starts), of))
        self._ends = list(accumulate(np.bincount(of, minlength=len(self.names)).tolist()))

    def at(self, place: int) -> list[CtmEntry]:
        """The entries of an utterance."""
        begin = self._ends[place - 1] if place else 0
        return [self._entries[one] for one in self._places[begin : self._ends[place]].tolist()]


# Alignments for Praat: a TextGrid with one interval tier for words and one for phones, written by praatio.
#
# Praat shows it beside the recording, on the same time axis (File, Read from file; then select both, View &
# Edit).

_SLACK = 1e-4  # seconds: times of CTM files are rounded
_UNSAFE = re.compile(r'[/\\:*?"<>|%\x00-\x1f]')


def write_textgrid(path: str | Path, tiers: Mapping[str, Sequence[CtmEntry]], duration: float) -> None:
    """Write a TextGrid; folders are made if need be. Stretches without an entry become empty intervals.

    Args:
        path: ends in .TextGrid by custom.
        tiers: entries by the tier's name, for example {"words": ..., "phones": ...}.
        duration: seconds of the recording; a longer last entry makes it longer.

    Raises:
        DataError: entries of a tier overlap by more than 0.1 ms, are out of order, begin before 0, or last no time.
        MissingExtraError: praatio is not installed.
    """
    textgrid = require("praatio.textgrid", extra="recipes")
    rows = {name: _intervals(name, entries) for name, entries in tiers.items()}
    end = max([round(duration, 6), *(row[-1][1] for row in rows.values() if row)])
    grid = textgrid.Textgrid(0.0, end)
    for name, row in rows.items():
        grid.addTier(textgrid.IntervalTier(name, row, 0.0, end))
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    grid.save(str(target), "long_textgrid", includeBlankSpaces=True, minimumIntervalLength=None)


def textgrid_name(utterance: str) -> str:
    """The file name of an utterance; characters that no file name may have become %XX, so that none leaves its folder."""
    return _UNSAFE.sub(lambda match: f"%{ord(match[0]):02X}", utterance) + ".TextGrid"


def _intervals(tier: str, entries: Sequence[CtmEntry]) -> list[tuple[float, float, str]]:
    """(start, end, label), each ending at most where the next begins."""
    found: list[tuple[float, float, str]] = []
    for entry in entries:
        start, end = round(entry.start, 6), round(entry.start + entry.duration, 6)
        last = found[-1][1] if found else 0.0
        if start < last - _SLACK or end <= max(start, last):
            raise DataError(
                f"utterance {entry.utterance!r}: {entry.label!r} of tier {tier!r} lasts from {start:g} to {end:g} s; "
                f"expected some time at or after {last:g} s"
            )
        found.append((max(start, last), end, entry.label))
    return found
