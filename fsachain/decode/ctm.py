"""CTM files: when each word or phone of each utterance is said, one line for each."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, overload

import numpy as np

from fsachain.errors import DataError
from fsachain.files import text_lines
from fsachain.names import Names, Strings

_LONGEST_LINE = 1 << 14  # bytes


class CtmEntry(NamedTuple):
    """One word or phone: start and duration in seconds."""

    utterance: str
    start: float
    duration: float
    label: str

    def __str__(self) -> str:
        return f"{self.utterance} 1 {self.start:.3f} {self.duration:.3f} {self.label}"


class Ctm(Sequence[CtmEntry]):
    """Entries as columns; equal to any sequence of the same entries. Those made on access are not kept."""

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

    @overload
    def __getitem__(self, place: int) -> CtmEntry: ...

    @overload
    def __getitem__(self, place: slice) -> list[CtmEntry]: ...

    def __getitem__(self, place: int | slice) -> CtmEntry | list[CtmEntry]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        one = range(len(self))[place]
        start, duration = self._times[2 * one : 2 * one + 2]
        return CtmEntry(self._utterances[one], start, duration, self._labels[one])

    def __iter__(self) -> Iterator[CtmEntry]:
        times = iter(self._times)
        return map(CtmEntry, self._utterances, times, times, self._labels)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(map(CtmEntry.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]

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


class ByUtterance(Mapping[str, list[CtmEntry]]):
    """The entries of each utterance, in order of time; utterances in the order of their first entries."""

    def __init__(self, entries: Sequence[CtmEntry]) -> None:
        self._entries, self._names = entries, Names()
        numbers, starts = array("i"), array("d")
        for entry in entries:
            numbers.append(self._names.add(entry.utterance))
            starts.append(entry.start)
        of = np.frombuffer(numbers, dtype=np.int32)
        self._places = np.lexsort((np.frombuffer(starts), of))
        self._ends = list(accumulate(np.bincount(of, minlength=len(self._names)).tolist()))

    def __getitem__(self, name: str) -> list[CtmEntry]:
        number = self._names.place(name)
        if number is None:
            raise KeyError(name)
        begin = self._ends[number - 1] if number else 0
        return [self._entries[place] for place in self._places[begin : self._ends[number]].tolist()]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
