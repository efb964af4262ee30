"""Alignments for Praat: a TextGrid with one interval tier for words and one for phones, written by praatio.

Praat shows it beside the recording, on the same time axis (File, Read from file; then select both, View & Edit).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from fsachain.decode.ctm import CtmEntry
from fsachain.errors import DataError, require

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
