"""Word error rate with its parts, per corpus, per speaker and per utterance.

Text files are Kaldi's (`utterance word word ...`). The word alignment comes from kaldialign (Levenshtein distance, each
error costs one).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import add
from pathlib import Path
from typing import Any

from fsachain.errors import DataError, counted, require
from fsachain.files import naming, text_lines
from fsachain.files import write_text as write_file

EPSILON = "<eps>"


@dataclass(frozen=True)
class ErrorCounts:
    """Errors of one or many utterances; counts of several add up with `+`."""

    insertions: int = 0  # words of the hypothesis that no reference word stands against
    deletions: int = 0  # reference words that are missing
    substitutions: int = 0  # reference words recognised as another word
    num_words: int = 0  # of the references
    num_utterances: int = 0
    num_wrong_utterances: int = 0  # with at least one error

    def __add__(self, other: ErrorCounts) -> ErrorCounts:
        return ErrorCounts(*map(add, vars(self).values(), vars(other).values()))

    @property
    def errors(self) -> int:
        return self.insertions + self.deletions + self.substitutions

    @property
    def wer(self) -> float:
        """Errors per hundred reference words; NaN when there are no reference words."""
        return 100.0 * self.errors / self.num_words if self.num_words else math.nan

    def to_dict(self) -> dict[str, Any]:
        """Counts and rate for JSON; the rate is None where it does not exist."""
        return {
            "wer": round(self.wer, 4) if self.num_words else None,
            "errors": self.errors,
            "insertions": self.insertions,
            "deletions": self.deletions,
            "substitutions": self.substitutions,
            "words": self.num_words,
            "utterances": self.num_utterances,
            "wrong_utterances": self.num_wrong_utterances,
        }

    @classmethod
    def from_dict(cls, table: Any, where: str) -> ErrorCounts:
        """What `to_dict` gave; `where` begins the message of a DataError."""
        names = ("insertions", "deletions", "substitutions", "words", "utterances")
        try:
            counts = [table[name] for name in names] + [table.get("wrong_utterances", 0)]
            return cls(*map(int, counts))
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise DataError(
                f"{where}: expected a table with the numbers {', '.join(names)}, {error!r} is wrong in it"
            ) from error

    def __str__(self) -> str:
        return (
            f"WER {self.wer:.2f} % [ {self.errors} / {self.num_words}, {self.insertions} ins, "
            f"{self.deletions} del, {self.substitutions} sub ]"
        )


@dataclass(frozen=True)
class UtteranceScore:
    """Counts and the pairs (reference, hypothesis), `<eps>` where one side is empty."""

    id: str
    speaker: str
    counts: ErrorCounts
    alignment: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class WerReport:
    """Result of `score`."""

    total: ErrorCounts
    by_speaker: Mapping[str, ErrorCounts]  # in alphabetical order; empty when no speakers were given
    utterances: tuple[UtteranceScore, ...]  # in the order of the references
    missing: tuple[str, ...]  # utterances without a hypothesis; all their words count as deleted

    def to_dict(self) -> dict[str, Any]:
        """The report without the alignments, for JSON."""
        return {
            "total": self.total.to_dict(),
            "speakers": {name: counts.to_dict() for name, counts in self.by_speaker.items()},
            "missing": list(self.missing),
        }

    def to_text(self) -> str:
        """The rate, the per-speaker table, and every utterance that has an error, aligned word by word."""
        lines = [str(self.total)]
        if self.missing:
            lines.append(
                f"no hypothesis for {counted(len(self.missing), 'utterance')}: {' '.join(self.missing)}"
            )
        if self.by_speaker:
            lines += ["", *_speaker_table({**self.by_speaker, "all": self.total})]
        for utterance in self.utterances:
            if utterance.counts.errors:
                lines += ["", *_aligned_lines(utterance)]
        return "\n".join(lines) + "\n"

    def write(self, directory: str | Path) -> None:
        """Write `wer.txt` and `wer.json` into `directory`, which is made if need be."""
        write_file(Path(directory, "wer.txt"), self.to_text())
        write_file(Path(directory, "wer.json"), json.dumps(self.to_dict(), indent=2) + "\n")


def score(
    references: Mapping[str, Sequence[str]],
    hypotheses: Mapping[str, Sequence[str]],
    *,
    speakers: Mapping[str, str] | None = None,
) -> WerReport:
    """Count the word errors of `hypotheses` against `references`, words by utterance id.

    A reference without words is legal: what was recognised is inserted. One without hypothesis is scored as an empty one and
    named in the report; a hypothesis without reference is a DataError. `speakers`, by utterance id, are for the per-speaker
    table; if they are given, a missing one is a DataError.
    """
    unknown = [name for name in hypotheses if name not in references]
    no_speaker = [name for name in references if speakers is not None and name not in speakers]
    for names, side, other in ((unknown, "hypotheses", "reference"), (no_speaker, "speakers", "speaker")):
        if names:
            raise DataError(
                f"{side}: {counted(len(names), 'utterance')} without {other}, the first is {names[0]!r}"
            )
    total = ErrorCounts()
    by_speaker: dict[str, ErrorCounts] = {}
    utterances = []
    for name, reference in references.items():
        alignment = align_words(reference, hypotheses.get(name, ()))
        counts = _counts(alignment)
        total = total + counts
        speaker = "" if speakers is None else speakers[name]
        if speakers is not None:
            by_speaker[speaker] = by_speaker.get(speaker, ErrorCounts()) + counts
        utterances.append(UtteranceScore(name, speaker, counts, alignment))
    missing = tuple(name for name in references if name not in hypotheses)
    return WerReport(total, dict(sorted(by_speaker.items())), tuple(utterances), missing)


def count_errors(reference: Sequence[str], hypothesis: Sequence[str]) -> ErrorCounts:
    """The errors of one utterance."""
    return _counts(align_words(reference, hypothesis))


def align_words(reference: Sequence[str], hypothesis: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Pairs (reference, hypothesis) of fewest errors, `<eps>` where one side is empty."""
    for side, words in (("reference", reference), ("hypothesis", hypothesis)):
        if words and isinstance(words, str):
            raise DataError(f"{side} {words!r} is one string; expected words, such as text.split()")
        if EPSILON in words:
            raise DataError(f"{side}: the word {EPSILON!r} is reserved for empty places of the alignment")
    kaldialign = require("kaldialign", extra="recipes")
    return tuple(map(tuple, kaldialign.align(list(reference), list(hypothesis), EPSILON)))


def error_kind(reference: str, hypothesis: str) -> str:
    """What a pair of aligned words is: "same", "insertion", "deletion" or "substitution"."""
    if reference == hypothesis:
        return "same"
    if reference == EPSILON:
        return "insertion"
    return "deletion" if hypothesis == EPSILON else "substitution"


def _counts(alignment: Sequence[tuple[str, str]]) -> ErrorCounts:
    kinds = Counter(error_kind(*pair) for pair in alignment)
    errors = kinds["insertion"], kinds["deletion"], kinds["substitution"]
    return ErrorCounts(*errors, len(alignment) - kinds["insertion"], 1, int(any(errors)))


def read_text(path: str | Path) -> dict[str, tuple[str, ...]]:
    """Lines `utterance word word ...`; an id alone is an empty transcript. DataError where an utterance stands twice."""
    transcripts: dict[str, tuple[str, ...]] = {}
    for number, (name, *words) in text_lines(path):
        if name in transcripts:
            raise DataError(f"{path}:{number}: utterance {name!r} stands in the file twice")
        transcripts[name] = tuple(words)
    return transcripts


def write_text(path: str | Path, transcripts: Mapping[str, Sequence[str]]) -> None:
    """Kaldi's text format, sorted by utterance id; folders are made if need be."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    lines = [" ".join((name, *transcripts[name])) + "\n" for name in sorted(transcripts)]
    with naming(target):
        target.write_text("".join(lines), encoding="utf-8")


def _speaker_table(rows: Mapping[str, ErrorCounts]) -> list[str]:
    width = max(map(len, ("speaker", *rows)))
    return [
        f"{'speaker':<{width}} {'utts':>6} {'words':>7} {'ins':>5} {'del':>5} {'sub':>5} {'WER %':>7}"
    ] + [
        f"{name:<{width}} {counts.num_utterances:>6} {counts.num_words:>7} {counts.insertions:>5} "
        f"{counts.deletions:>5} {counts.substitutions:>5} {counts.wer:>7.2f}"
        for name, counts in rows.items()
    ]


def _aligned_lines(utterance: UtteranceScore) -> list[str]:
    rows = ["  ref ", "  hyp ", "      "]
    for ref, hyp in utterance.alignment:
        mark = "" if ref == hyp else error_kind(ref, hyp)[0].upper()
        cells = ["*" if word == EPSILON else word for word in (ref, hyp)] + [mark]
        width = max(map(len, cells))
        rows = [f"{row} {cell:<{width}}" for row, cell in zip(rows, cells, strict=True)]
    return [f"{utterance.id}:"] + [row.rstrip() for row in rows]
