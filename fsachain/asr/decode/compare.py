"""How far the times of one alignment are from those of another: TextGrids, CTM files, or folders of them."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fsachain.asr.decode.ctm import CtmEntry, by_utterance, read_ctm
from fsachain.asr.decode.textgrid import read_textgrid
from fsachain.errors import DataError, brief, counted, require
from fsachain.fsa import Floats
from fsachain.graph.lexicon import bare

LIMITS = (0.010, 0.020, 0.050)  # seconds
WORST = 10
_GAP = "\0"  # stands for nothing in a sequence of labels
_CTM, _TEXTGRID = ".ctm", ".textgrid"
Tiers = Mapping[str, Mapping[str, Sequence[CtmEntry]]]  # entries by tier and recording, in order of time


class TimeDifference(NamedTuple):
    """One entry that both alignments have.

    Attributes:
        recording: the name of its recording in the reference.
        label: the word or phone as the reference has it.
        reference: start and end in the reference, in seconds.
        hypothesis: start and end in the hypothesis, in seconds.
    """

    recording: str
    label: str
    reference: tuple[float, float]
    hypothesis: tuple[float, float]

    @property
    def start_error(self) -> float:
        """The hypothesis's start minus that of the reference, in seconds."""
        return self.hypothesis[0] - self.reference[0]

    @property
    def end_error(self) -> float:
        """The hypothesis's end minus that of the reference, in seconds."""
        return self.hypothesis[1] - self.reference[1]

    @property
    def size(self) -> float:
        """The larger of both errors, without sign."""
        return max(abs(self.start_error), abs(self.end_error))


@dataclass(frozen=True)
class TierTimes:
    """The differences of one tier.

    Attributes:
        tier: its name in the reference.
        pairs: the entries that both alignments have.
        num_reference: how many entries with a label the reference has, in recordings that both have.
        num_hypothesis: how many the hypothesis has there.
    """

    tier: str
    pairs: tuple[TimeDifference, ...]
    num_reference: int
    num_hypothesis: int

    __repr__ = brief

    @property
    def starts(self) -> Floats:
        """Errors of the starts in seconds, one for each pair."""
        return np.array([pair.start_error for pair in self.pairs])

    @property
    def ends(self) -> Floats:
        """Errors of the ends in seconds, one for each pair."""
        return np.array([pair.end_error for pair in self.pairs])

    @property
    def sizes(self) -> Floats:
        """Errors of all boundaries in seconds, without sign: first those of the starts."""
        return np.abs(np.concatenate([self.starts, self.ends]))

    def worst(self, count: int = WORST) -> list[TimeDifference]:
        """The pairs with the largest errors, largest first."""
        return sorted(self.pairs, key=lambda pair: -pair.size)[:count]

    def to_dict(self, count: int = WORST) -> dict[str, Any]:
        """Numbers for JSON, in seconds; None where there are no pairs. `count` is that of the worst pairs."""
        own: dict[str, Any] = {
            "tier": self.tier,
            "matched": len(self.pairs),
            "reference": self.num_reference,
            "hypothesis": self.num_hypothesis,
        }
        has = bool(self.pairs)
        numbers = {
            "mean": self.sizes.mean() if has else None,
            "median": np.median(self.sizes) if has else None,
            "bias_start": self.starts.mean() if has else None,
            "bias_end": self.ends.mean() if has else None,
        }
        for limit in LIMITS:
            numbers[f"within_{1000 * limit:.0f}_ms"] = np.mean(self.sizes <= limit + 5e-7) if has else None
        own |= {name: None if value is None else round(float(value), 6) for name, value in numbers.items()}
        own["worst"] = [
            {
                "recording": pair.recording,
                "label": pair.label,
                "start": pair.reference[0],
                "end": pair.reference[1],
                "start_error": round(pair.start_error, 6),
                "end_error": round(pair.end_error, 6),
            }
            for pair in self.worst(count)
        ]
        return own


@dataclass(frozen=True)
class TimesReport:
    """What `compare_times` found.

    Attributes:
        tiers: the differences by the tier's name in the reference.
        only_reference: recordings that the hypothesis lacks.
        only_hypothesis: recordings that the reference lacks.
    """

    tiers: Mapping[str, TierTimes]
    only_reference: tuple[str, ...] = ()
    only_hypothesis: tuple[str, ...] = ()

    __repr__ = brief

    def to_dict(self, count: int = WORST) -> dict[str, Any]:
        """The report for JSON; see `TierTimes.to_dict`."""
        return {
            "tiers": [tier.to_dict(count) for tier in self.tiers.values()],
            "only_reference": list(self.only_reference),
            "only_hypothesis": list(self.only_hypothesis),
        }

    def to_text(self, count: int = WORST) -> str:
        """A table with a line for each tier, then the worst `count` pairs of each, with recording and time."""
        within = "  ".join(f"<={1000 * limit:.0f} ms" for limit in LIMITS)
        width = max([4, *map(len, self.tiers)])
        lines = [f"{'tier':<{width}}   mean  median   start     end  {within}  matched"]
        lines += [f"{'':<{width}}     ms      ms  bias ms bias ms        %        %        %"]
        for name, tier in self.tiers.items():
            matched = f"{len(tier.pairs)} of {tier.num_reference} and {tier.num_hypothesis}"
            if not tier.pairs:
                lines.append(f"{name:<{width}}  {'none to compare':<57}  {matched}")
                continue
            shares = "  ".join(f"{100 * np.mean(tier.sizes <= limit + 5e-7):7.1f}" for limit in LIMITS)
            numbers = (tier.sizes.mean(), np.median(tier.sizes), tier.starts.mean(), tier.ends.mean())
            mean, median, start, end = (1000 * float(number) for number in numbers)
            lines.append(
                f"{name:<{width}} {mean:6.1f}  {median:6.1f}  {start:+7.1f} {end:+7.1f}  {shares}  {matched}"
            )
        for name, tier in self.tiers.items():
            if tier.pairs and count:
                lines += ["", f"{name}: the largest differences"]
            for pair in tier.worst(count):
                lines.append(
                    f"  {pair.reference[0]:10.3f} s  start {1000 * pair.start_error:+8.1f} ms  "
                    f"end {1000 * pair.end_error:+8.1f} ms  {pair.label}  {pair.recording}"
                )
        for names, which in (
            (self.only_reference, "the reference"),
            (self.only_hypothesis, "the hypothesis"),
        ):
            if names:
                shown = ", ".join([*names[:5], *(["..."] if len(names) > 5 else [])])
                lines += ["", f"{counted(len(names), 'recording')} in {which} alone: {shown}"]
        return "\n".join(lines) + "\n"


def compare_times(reference: str | Path | Tiers, hypothesis: str | Path | Tiers) -> TimesReport:
    """Compare the times of two alignments of the same recordings.

    Entries are paired in their order, by label. Case and punctuation around words do not count; phones have to be equal. If
    the labels of a tier differ, the alignment with the fewest edits says which entries stand for each other, and only those
    with equal labels are compared.

    Args:
        reference: a TextGrid, a CTM file, a folder of TextGrids in any tree or of CTM files, or entries by tier and
            recording. A folder with both is read as TextGrids.
        hypothesis: the same. Recordings go by their path within the folder without its ending, in CTM files by the
            utterance's name; those of one recording each are compared whatever their names.

    Returns:
        The report: a `TierTimes` for each tier that both have.

    Raises:
        DataError: a file cannot be read, or there is no tier or no recording that both have.
    """
    own, other = (
        read_times(side) if isinstance(side, str | Path) else _in_order(side)
        for side in (reference, hypothesis)
    )
    tiers = _tiers_of_both(own, other)
    names, other_names = (dict.fromkeys(chain.from_iterable(side.values())) for side in (own, other))
    partner = _recordings_of_both(list(names), list(other_names))
    found = {}
    for tier, theirs in tiers.items():
        pairs: list[TimeDifference] = []
        counts = [0, 0]
        for name, other_name in partner.items():
            left, right = own[tier].get(name, ()), other[theirs].get(other_name, ())
            counts[0] += len(left)
            counts[1] += len(right)
            pairs += [
                TimeDifference(name, a.label, (a.start, a.end), (b.start, b.end))
                for a, b in _paired(left, right, is_phones="phone" in tier.lower())
            ]
        found[tier] = TierTimes(tier, tuple(pairs), *counts)
    met = set(partner.values())
    return TimesReport(
        found,
        tuple(name for name in names if name not in partner),
        tuple(name for name in other_names if name not in met),
    )


def read_times(path: str | Path) -> dict[str, dict[str, list[CtmEntry]]]:
    """Entries with a label by tier and recording, from what `compare_times` takes; errors as there."""
    path = Path(path)
    if not path.is_dir():
        if not path.is_file():
            raise DataError(f"{path}: no such file or folder")
        return _of_file(path, path.stem)
    files = sorted(one for one in path.rglob("*") if one.is_file())
    grids = [one for one in files if one.suffix.lower() == _TEXTGRID]
    chosen = grids or [one for one in files if one.suffix.lower() == _CTM and one.parent == path]
    if not chosen:
        raise DataError(f"{path}: no TextGrids, and no CTM files in the folder itself; expected either")
    found: dict[str, dict[str, list[CtmEntry]]] = {}
    for one in chosen:
        name = one.relative_to(path).with_suffix("").as_posix()
        for tier, recordings in _of_file(one, name).items():
            found.setdefault(tier, {}).update(recordings)
    return found


def _of_file(path: Path, name: str) -> dict[str, dict[str, list[CtmEntry]]]:
    if path.suffix.lower() == _CTM:
        entries = read_ctm(path)
        return {"phones" if "phone" in path.stem.lower() else "words": by_utterance(entries)}
    found: dict[str, dict[str, list[CtmEntry]]] = {}
    for tier in read_textgrid(path):
        if not tier.is_points:
            row = [CtmEntry.between(name, one.start, one.end, one.text.strip()) for one in tier.spoken]
            found.setdefault(tier.name, {}).setdefault(name, []).extend(row)
    return found


def _in_order(tiers: Tiers) -> dict[str, dict[str, list[CtmEntry]]]:
    return {
        tier: {name: sorted(entries, key=lambda entry: entry.start) for name, entries in recordings.items()}
        for tier, recordings in tiers.items()
    }


def _tiers_of_both(own: Tiers, other: Tiers) -> dict[str, str]:
    """The hypothesis's name of each tier that both have; one tier each goes together whatever its name."""
    by_name = {name.strip().lower(): name for name in other}
    found = {name: by_name[name.strip().lower()] for name in own if name.strip().lower() in by_name}
    if not found and len(own) == len(other) == 1:
        found = dict(zip(own, other, strict=True))
    if not found:
        named, others = (", ".join(map(repr, side)) or "none" for side in (own, other))
        raise DataError(f"no tier that both have: the reference has {named}, the hypothesis {others}")
    return found


def _recordings_of_both(names: Sequence[str], others: Sequence[str]) -> dict[str, str]:
    """The hypothesis's name of each recording that both have.

    Names are equal as they stand, or as `align-corpus` makes one of a path, or else as the last part of the path alone.
    """
    if len(names) == len(others) == 1:
        return {names[0]: others[0]}
    found: dict[str, str] = {}
    met: set[str] = set()
    keys: tuple[Callable[[str], str], ...] = (str, _joined, lambda name: name.rpartition("/")[2])
    for key in keys:
        left = _by_key([name for name in names if name not in found], key)
        right = _by_key([name for name in others if name not in met], key)
        found |= {left[one]: right[one] for one in left if one in right}
        met = set(found.values())
    if not found:
        shown = [", ".join(map(repr, side[:3])) or "none" for side in (names, others)]
        raise DataError(
            f"no recording that both have: the reference has {shown[0]} ..., the hypothesis {shown[1]} ..."
        )
    return {name: found[name] for name in names if name in found}


def _joined(name: str) -> str:
    return "-".join("_".join(part.split()) for part in name.split("/"))


def _by_key(names: Sequence[str], key: Callable[[str], str]) -> dict[str, str]:
    """Names by keys that only one of them has."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(key(name), []).append(name)
    return {one: some[0] for one, some in found.items() if len(some) == 1}


def _paired(
    left: Sequence[CtmEntry], right: Sequence[CtmEntry], *, is_phones: bool
) -> Iterator[tuple[CtmEntry, CtmEntry]]:
    """Entries of equal labels that stand for each other. Phones have to be equal as they stand: S and s may be two."""
    labels, others = (
        [entry.label if is_phones else _plain(entry.label) for entry in side] for side in (left, right)
    )
    if labels == others:
        yield from zip(left, right, strict=True)
        return
    kaldialign = require("kaldialign", extra="recipes")
    first, second = iter(left), iter(right)
    for label, other in kaldialign.align(labels, others, _GAP):
        a = None if label == _GAP else next(first)
        b = None if other == _GAP else next(second)
        if a is not None and b is not None and label == other:
            yield a, b


def _plain(label: str) -> str:
    """A word without case and punctuation around it."""
    return unicodedata.normalize("NFC", (bare(label) or label).casefold())
