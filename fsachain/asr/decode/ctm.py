"""CTM files: when each word or phone of each utterance is said, one line for each; and TextGrids with the same.

Times are rounded on boundaries, once: a start and the end before it that are equal stay equal. What is written has no gap,
overlap or entry shorter than a millisecond, which is no observation but the rounding of two numbers, and which Praat's
editor cannot show.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fsachain.errors import DataError, require
from fsachain.files import naming, text_lines

_LONGEST_LINE = 1 << 14  # bytes
_MICROSECONDS = 1_000_000  # in a second: the grid of all times
_RESOLUTION = 1_000  # microseconds: nothing that is written is shorter, be it an entry, a gap or an overlap
_UNSAFE = re.compile(r'[/\\:*?"<>|%\x00-\x1f]')


class CtmEntry(NamedTuple):
    """One word or phone; start and duration are in seconds, the confidence is from 0 to 1 where it is known."""

    utterance: str
    start: float
    duration: float
    label: str
    confidence: float | None = None

    @classmethod
    def between(
        cls, utterance: str, start: float, end: float, label: str, confidence: float | None = None
    ) -> CtmEntry:
        """An entry from `start` to `end` seconds, both rounded to microseconds: entries that touch still do."""
        start, end = round(start, 6), round(end, 6)
        return cls(utterance, start, round(end - start, 6), label, confidence)

    @property
    def end(self) -> float:
        """Where it ends, in seconds."""
        return round(self.start + self.duration, 6)

    def __str__(self) -> str:
        return _ctm_line(self, round(1000 * self.start), round(1000 * self.end))


def _ctm_line(entry: CtmEntry, start: int, end: int) -> str:
    """The line of an entry from `start` to `end`, in milliseconds; it lasts one at least."""
    duration = max(1, end - start)
    sure = "" if entry.confidence is None else f" {entry.confidence:.3f}"
    return f"{entry.utterance} 1 {start / 1000:.3f} {duration / 1000:.3f} {entry.label}{sure}"


def ctm_lines(entries: Iterable[CtmEntry]) -> Iterator[str]:
    """Lines `utterance 1 start duration label [confidence]` in the order given, without line ends.

    An entry that begins where the one before it ends, or less than a millisecond before, begins there in milliseconds too.
    """
    before: CtmEntry | None = None
    last = 0  # milliseconds, where the line before ends
    for entry in entries:
        start, end = round(1000 * entry.start), round(1000 * entry.end)
        follows = before is not None and before.utterance == entry.utterance
        if follows and before is not None and entry.start >= before.end - _RESOLUTION / _MICROSECONDS:
            start = max(start, last)
        last = max(end, start + 1)
        before = entry
        yield _ctm_line(entry, start, last)


def write_ctm(path: str | Path, entries: Iterable[CtmEntry]) -> None:
    """Write `ctm_lines`; folders are made if need be."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with naming(path), Path(path).open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in ctm_lines(entries))


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

    Intervals of a tier follow each other from 0 to the end without gaps; each lasts a millisecond or more, unless the
    recording is too short for so many. Gaps and overlaps of less than that are closed.

    Args:
        path: the file.
        tiers: entries by the tier's name, such as {"words": ..., "phones": ...}.
        duration: of the recording, in seconds. An entry that goes on after it, as the network's last frame may, ends there;
            one that begins there extends it.

    Raises:
        DataError: entries of a tier overlap by a millisecond or more, are out of order, begin before 0, or have no duration.
    """
    textgrid = require("praatio.textgrid", extra="recipes")
    whole = round(duration * _MICROSECONDS)
    late = [e.end for entries in tiers.values() for e in entries if round(e.start * _MICROSECONDS) >= whole]
    end = max([whole, *(round(time * _MICROSECONDS) for time in late)])
    grid = textgrid.Textgrid(0.0, end / _MICROSECONDS)
    for name, entries in tiers.items():
        spans = _spans(entries, whole, end, name)
        row = [
            (start / _MICROSECONDS, stop / _MICROSECONDS, entry.label)
            for (start, stop), entry in zip(spans, entries, strict=True)
        ]
        grid.addTier(textgrid.IntervalTier(name, row, 0.0, end / _MICROSECONDS))
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with naming(path):
        grid.save(str(path), "long_textgrid", includeBlankSpaces=True, minimumIntervalLength=None)


def _spans(entries: Sequence[CtmEntry], whole: int, end: int, tier: str) -> list[list[int]]:
    """Where each entry of a tier starts and stops, in microseconds from 0 to `end`; see `write_textgrid`."""
    spans: list[list[int]] = []
    last = 0
    for entry in entries:
        start, stop = round(entry.start * _MICROSECONDS), round(entry.end * _MICROSECONDS)
        if start <= last - _RESOLUTION or start < 0 or stop <= start:
            raise DataError(
                f"utterance {entry.utterance!r}: {entry.label!r} of tier {tier!r} lasts from {entry.start:g} to "
                f"{entry.end:g} s; expected some time at or after {last / _MICROSECONDS:g} s"
            )
        last = stop if start >= whole else min(stop, whole)
        spans.append([start, last])
    shortest = min(_RESOLUTION, end // max(1, len(spans)))
    # From the left, each begins no earlier than the one before it ends and lasts long enough; then the same from the right.
    last = 0
    for span in spans:
        if span[0] - last < shortest:
            span[0] = last
        span[1] = max(span[1], span[0] + shortest)
        last = span[1]
    following = end
    for span in reversed(spans):
        if following - span[1] < shortest:
            span[1] = following
        span[0] = min(span[0], span[1] - shortest)
        following = span[0]
    if spans and spans[0][0] < shortest:
        spans[0][0] = 0
    return spans


def textgrid_name(utterance: str) -> str:
    """Characters that are not safe in a file name become %XX, so that no utterance id leaves the folder."""
    return _UNSAFE.sub(lambda match: f"%{ord(match[0]):02X}", utterance) + ".TextGrid"
