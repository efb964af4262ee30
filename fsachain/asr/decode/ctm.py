"""CTM files: when each word or phone of each utterance is said, one line for each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fsachain.errors import DataError, require
from fsachain.files import naming, text_lines

_LONGEST_LINE = 1 << 14  # bytes
_SLACK = 1e-4  # seconds: times of CTM files are rounded
_UNSAFE = re.compile(r'[/\\:*?"<>|%\x00-\x1f]')


class CtmEntry(NamedTuple):
    """One word or phone; start and duration are in seconds, the confidence is from 0 to 1 where it is known."""

    utterance: str
    start: float
    duration: float
    label: str
    confidence: float | None = None

    def __str__(self) -> str:
        sure = "" if self.confidence is None else f" {self.confidence:.3f}"
        # Both ends are rounded: neighbours that touch still do.
        duration = round(self.start + self.duration, 3) - round(self.start, 3)
        return f"{self.utterance} 1 {self.start:.3f} {duration:.3f} {self.label}{sure}"


def write_ctm(path: str | Path, entries: Iterable[CtmEntry]) -> None:
    """Lines `utterance 1 start duration label [confidence]` in the order given; folders are made if need be."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with naming(path), Path(path).open("w", encoding="utf-8") as file:
        file.writelines(f"{entry}\n" for entry in entries)


def read_ctm(path: str | Path) -> list[CtmEntry]:
    """Read the entries of a CTM; lines that begin with `;;` are comments, channel and confidence are dropped.

    Raises:
        DataError: a line without a start and a duration.
    """
    entries = []
    for number, fields in text_lines(path, longest=_LONGEST_LINE):
        if fields[0].startswith(";;"):
            continue
        try:
            utterance, _, start, duration, label = fields[:5]
            entries.append(CtmEntry(utterance, float(start), float(duration), label))
        except ValueError as error:
            came = " ".join(fields[:5])[:100]
            raise DataError(
                f"{path}:{number}: expected utterance, channel, start, duration, label, got {came!r}"
            ) from error
    return entries


def by_utterance(entries: Iterable[CtmEntry]) -> dict[str, list[CtmEntry]]:
    """In order of time; utterances in the order of their first entries."""
    found: dict[str, list[CtmEntry]] = {}
    for entry in entries:
        found.setdefault(entry.utterance, []).append(entry)
    for one in found.values():
        one.sort(key=lambda entry: entry.start)
    return found


def write_textgrid(path: str | Path, tiers: Mapping[str, Sequence[CtmEntry]], duration: float) -> None:
    """Write a TextGrid for Praat; folders are made if need be. Stretches without an entry become empty intervals.

    `tiers` are entries by the tier's name, such as {"words": ..., "phones": ...}. `duration` is that of the recording in
    seconds: an entry that goes on behind it, as the network's last frame may, ends there; one that begins there extends it.
    DataError where entries of a tier overlap by more than 0.1 ms, are out of order, begin before 0, or have no duration.
    """
    textgrid = require("praatio.textgrid", extra="recipes")
    rows: dict[str, list[tuple[float, float, str]]] = {}  # start, end at most where the next begins, label
    whole = round(duration, 6)
    for name, entries in tiers.items():
        rows[name] = []
        last = 0.0
        for entry in entries:
            start, end = round(entry.start, 6), round(entry.start + entry.duration, 6)
            if start < last - _SLACK or end <= max(start, last):
                raise DataError(
                    f"utterance {entry.utterance!r}: {entry.label!r} of tier {name!r} lasts from {start:g} to {end:g} s; "
                    f"expected some time at or after {last:g} s"
                )
            if max(start, last) < whole:
                end = min(end, whole)
            rows[name].append((max(start, last), end, entry.label))
            last = end
    end = max([whole, *(row[-1][1] for row in rows.values() if row)])
    grid = textgrid.Textgrid(0.0, end)
    for name, row in rows.items():
        grid.addTier(textgrid.IntervalTier(name, row, 0.0, end))
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with naming(path):
        grid.save(str(path), "long_textgrid", includeBlankSpaces=True, minimumIntervalLength=None)


def textgrid_name(utterance: str) -> str:
    """Characters that are not safe in a file name become %XX, so that no utterance id leaves the folder."""
    return _UNSAFE.sub(lambda match: f"%{ord(match[0]):02X}", utterance) + ".TextGrid"
