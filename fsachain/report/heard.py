"""The utterances that a report shows: words against words, the recording, when each word is said, pictures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fsachain.data.kaldi_dir import Utterance
from fsachain.decode.ctm import CtmEntry, read_ctm
from fsachain.decode.wer import ErrorCounts, UtteranceScore, WerReport
from fsachain.report.collect import Clip, Findings, Picture, bitmap, clip, samples_of

if TYPE_CHECKING:
    from fsachain.plot import TrellisPair


@dataclass(frozen=True)
class Seen:
    """Occupancies of one utterance by phone; `frame_seconds` is the length of an output frame."""

    occupancies: TrellisPair
    frame_seconds: float


# From utterances to their occupancies, and to the reason where there are none; both by id.
Look = Callable[[Sequence[Utterance]], tuple[Mapping[str, Seen], Mapping[str, str]]]


@dataclass
class Heard:
    """One utterance on the page."""

    score: UtteranceScore
    clip: Clip | None = None
    words: list[CtmEntry] = field(default_factory=list)
    phones: list[CtmEntry] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)


def error_rate(counts: ErrorCounts) -> float:
    """Errors per reference word; with an empty reference 0 without errors, else infinite."""
    if counts.num_words:
        return counts.errors / counts.num_words
    return math.inf if counts.errors else 0.0


def worst_first(report: WerReport) -> list[UtteranceScore]:
    """Sorted by error rate, then by number of errors, then by id."""
    return sorted(report.utterances, key=lambda one: (-error_rate(one.counts), -one.counts.errors, one.id))


def choose(found: Findings, most: int) -> dict[str, list[Heard]]:
    """At most so many of the worst, with an error each, and of the others the best, the longest first."""
    if found.wer is None:
        return {"worst": [], "best": []}
    worst = [one for one in worst_first(found.wer)[:most] if one.counts.errors]
    taken = {one.id for one in worst}
    others = [one for one in found.wer.utterances if one.id not in taken]
    others.sort(key=lambda one: (error_rate(one.counts), -one.counts.num_words, one.id))
    return {"worst": [Heard(one) for one in worst], "best": [Heard(one) for one in others[:most]]}


def add_times(found: Findings, chosen: Sequence[Heard]) -> None:
    """Times of words and phones, where the utterances were aligned."""
    wanted = {one.score.id: one for one in chosen}
    for tier in ("words", "phones"):
        path = found.layout.aligned / f"{tier}.ctm"
        if not found.expect("utterances", path, "`fsachain align` writes it"):
            continue
        for entry in found.attempt("utterances", read_ctm, path) or ():
            if entry.utterance in wanted:
                getattr(wanted[entry.utterance], tier).append(entry)


def add_recordings(
    found: Findings, chosen: Sequence[Heard], pictured: set[str], *, allow_commands: bool
) -> None:
    """Recordings of all, and of those in `pictured` a spectrogram with words and phones."""
    utterances = {utterance.id: utterance for utterance in found.data or ()}
    for one in chosen:
        given = utterances[one.score.id], found.sample_rate
        read = found.attempt("utterances", samples_of, *given, allow_commands=allow_commands)
        if read is None:
            continue
        one.clip = found.attempt("utterances", clip, *read)
        if one.score.id in pictured:
            picture = found.attempt("utterances", _draw_alignment, one, *read)
            one.pictures += [] if picture is None else [picture]


def add_lattices(found: Findings, chosen: Sequence[Heard], pictured: set[str], look: Look) -> None:
    """Pictures of the occupancies in numerator and denominator, for the utterances of `pictured`."""
    utterances = {utterance.id: utterance for utterance in found.data or ()}
    wanted = [utterances[name] for name in sorted(pictured) if name in utterances]
    seen, reasons = (found.attempt("utterances", look, wanted) if wanted else None) or ({}, {})
    for reason in reasons.values():
        found.note("utterances", f"Without a lattice: {reason}")
    for one in chosen:
        if one.score.id in seen:
            picture = found.attempt("utterances", _draw_lattice, one.score.id, seen[one.score.id])
            one.pictures += [] if picture is None else [picture]


def _draw_alignment(one: Heard, samples: NDArray[np.float32], rate: int) -> Picture:
    from fsachain.plot import plot_alignment, spectrogram

    tiers = {name: tier for name, tier in (("words", one.words), ("phones", one.phones)) if tier}
    said = " ".join(entry.label for entry in one.words)
    alt = f"Spectrogram of {one.score.id}" + (f"; the words below it: {said}" if said else "")
    caption = "Spectrogram; below it the words and phones of the transcript." if tiers else "Spectrogram."
    return bitmap(plot_alignment(spectrogram(samples, rate), tiers), alt, caption)


def _draw_lattice(name: str, seen: Seen) -> Picture:
    from fsachain.plot import plot_trellis

    alt = f"Occupancy of the phones over time for {name}, in the numerator and in the denominator, and their difference"
    caption = (
        "Which phone the numerator (the words of the transcript) and the denominator (any words) are in. "
        "Their difference is the gradient."
    )
    return bitmap(plot_trellis(seen.occupancies, frame_seconds=seen.frame_seconds), alt, caption)
