"""Word and character error rates with their parts, per corpus, per speaker and per utterance.

Text files are Kaldi's (`utterance word word ...`); `nist` reads trn, stm and ctm. The alignment is kaldialign's (Levenshtein
distance, each error costs one) unless `Scoring` asks for sclite's.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import add
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from fsachain.asr.decode.alternatives import (
    CLOSE,
    EVEN,
    NOTHING,
    OPEN,
    OR,
    SCLITE,
    Step,
    WordGraph,
    align_graphs,
    is_optional,
)
from fsachain.asr.decode.equivalence import Equivalences, fold_case
from fsachain.errors import ConfigError, DataError, check_choices, counted, listed, require
from fsachain.files import naming, text_lines
from fsachain.files import write_text as write_file
from fsachain.notebook import html_table

EPSILON = "<eps>"
SAMPLES = 10_000  # of the bootstrap, as many as Bisani and Ney draw
_MOST_SAMPLES = 10_000_000

Costs = Literal["kaldi", "sclite"]
Unit = Literal["words", "characters"]


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
    def correct(self) -> int:
        """Reference words that were recognised."""
        return self.num_words - self.deletions - self.substitutions

    @property
    def wer(self) -> float:
        """Errors per hundred reference words; NaN when there are no reference words."""
        return 100.0 * self.errors / self.num_words if self.num_words else math.nan

    @property
    def percent_correct(self) -> float:
        """Recognised words per hundred reference words; NaN when there are no reference words."""
        return 100.0 * self.correct / self.num_words if self.num_words else math.nan

    @property
    def sentence_error_rate(self) -> float:
        """Utterances with an error per hundred; NaN when there are no utterances."""
        return 100.0 * self.num_wrong_utterances / self.num_utterances if self.num_utterances else math.nan

    def to_dict(self) -> dict[str, Any]:
        """Counts and rate for JSON; the rate is None where it does not exist."""
        return {
            "wer": round(self.wer, 4) if self.num_words else None,
            "errors": self.errors,
            "insertions": self.insertions,
            "deletions": self.deletions,
            "substitutions": self.substitutions,
            "words": self.num_words,
            "correct": self.correct,
            "utterances": self.num_utterances,
            "wrong_utterances": self.num_wrong_utterances,
            "sentence_error_rate": round(self.sentence_error_rate, 4) if self.num_utterances else None,
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


class Interval(NamedTuple):
    """Confidence interval of an error rate, in percent, by the bootstrap."""

    low: float
    high: float
    level: float  # such as 0.95
    samples: int
    unit: str  # what was drawn: "speakers" or "utterances"
    num_units: int

    def __str__(self) -> str:
        drawn = counted(self.num_units, self.unit.removesuffix("s"))
        return (
            f"{100 * self.level:g} % interval {self.low:.2f} to {self.high:.2f} % "
            f"({counted(self.samples, 'bootstrap sample')} of {drawn})"
        )


@dataclass(frozen=True)
class Scoring:
    """How words are compared.

    Attributes:
        costs: "kaldi": each error costs 1. "sclite": a substitution costs 4, an insertion or a deletion 3, and the counts
            are sclite's.
        unit: what is counted; the characters of a transcript are those of its words, without spaces.
        markup: whether braces, `@` and parentheses mean alternatives and optional words, as in NIST's files.
        optional: with `markup`, whether a word in parentheses may be missing without an error (sclite's option -D).
        fragments: whether `th-` and `-ing` match words that begin or end so (sclite's option -F).
        fold_case: whether words are equal that differ in case alone.
        rules: spellings that count as equal; they imply `markup`.
        formats: of references and hypotheses, for sections of the rules: "trn", "stm", "ctm" or "txt".
    """

    costs: Costs = "kaldi"
    unit: Unit = "words"
    markup: bool = False
    optional: bool = True
    fragments: bool = False
    fold_case: bool = False
    rules: Equivalences | None = None
    formats: tuple[str, str] = ("txt", "txt")

    def __post_init__(self) -> None:
        check_choices(self, costs=("kaldi", "sclite"), unit=("words", "characters"))
        if self.rules is not None and not self.markup:
            object.__setattr__(self, "markup", True)

    def prepared(self, words: Sequence[str], side: str, name: str = "") -> list[str]:
        """The words of one side ("ref" or "hyp") as they are aligned: rules applied, characters apart."""
        prepared = [fold_case(word) for word in words] if self.fold_case else list(words)
        if self.rules is not None:
            format_of = dict(zip(("ref", "hyp"), self.formats, strict=True))
            prepared = self.rules.apply(prepared, side, format_of[side], name=name)
            prepared = [fold_case(word) for word in prepared] if self.fold_case else prepared
        if self.unit == "words":
            return prepared
        return [one for word in prepared for one in self._characters(word)]

    def _characters(self, word: str) -> Sequence[str]:
        if self.markup and word in (OPEN, OR, CLOSE, NOTHING):
            return [word]
        if self.markup and self.optional and is_optional(word):
            return [f"({one})" for one in word[1:-1]]
        return word


@dataclass(frozen=True)
class UtteranceScore:
    """Counts of one utterance and its words side by side.

    Attributes:
        alignment: pairs (reference, hypothesis), `<eps>` where one side has no word.
        kinds: of each pair: "same", "insertion", "deletion" or "substitution".
    """

    id: str
    speaker: str
    counts: ErrorCounts
    alignment: tuple[tuple[str, str], ...]
    kinds: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.kinds) != len(self.alignment):
            object.__setattr__(self, "kinds", tuple(error_kind(*pair) for pair in self.alignment))

    def __repr__(self) -> str:
        speaker = f", speaker {self.speaker}" if self.speaker else ""
        return f"UtteranceScore({self.id}{speaker}: {self.counts})"


@dataclass(frozen=True)
class WerReport:
    """Result of `score`.

    Attributes:
        total: counts of all utterances.
        by_speaker: counts of each speaker, in alphabetical order; empty when no speakers were given.
        utterances: in the order of the references.
        missing: utterances without a hypothesis; all their words count as deleted.
        unit: what is counted, "words" or "characters".
        characters: the same utterances counted in characters, if that was asked for.
    """

    total: ErrorCounts
    by_speaker: Mapping[str, ErrorCounts]
    utterances: tuple[UtteranceScore, ...]
    missing: tuple[str, ...]
    unit: Unit = "words"
    characters: WerReport | None = None

    def __repr__(self) -> str:
        parts = [str(self.total), counted(self.total.num_utterances, "utterance")]
        if self.by_speaker:
            parts.append(counted(len(self.by_speaker), "speaker"))
        if self.missing:
            parts.append(f"{len(self.missing)} without a hypothesis")
        return f"WerReport({', '.join(parts)})"

    def _repr_html_(self) -> str:
        rows = {"all": self.total, **self.by_speaker}
        return html_table(_SPEAKER_COLUMNS, [_speaker_row(name, counts) for name, counts in rows.items()])

    def interval(self, *, level: float = 0.95, samples: int = SAMPLES, seed: int = 1) -> Interval | None:
        """Estimate how far the error rate would vary with another test set of the same kind.

        Speakers are drawn with replacement where they are known, since the errors of one speaker go together; else
        utterances are. Source: Bisani and Ney, Bootstrap estimates for confidence intervals in ASR performance
        evaluation, ICASSP 2004.

        Args:
            level: share of the samples whose error rate lies inside, above 0 and below 1.
            samples: number of test sets that are drawn, at most ten million.
            seed: of the draws; the same seed gives the same interval.

        Returns:
            The interval, or None when there are fewer than two speakers or utterances, or no reference words.

        Raises:
            ConfigError: a level or a number of samples out of range.
        """
        if not 0 < level < 1:
            raise ConfigError(f"level is {level!r}; expected a number between 0 and 1")
        if not 1 <= samples <= _MOST_SAMPLES:
            raise ConfigError(f"samples is {samples!r}; expected 1 to {_MOST_SAMPLES}")
        unit, groups = "utterances", [one.counts for one in self.utterances]
        if len(self.by_speaker) > 1:
            unit, groups = "speakers", list(self.by_speaker.values())
        if len(groups) < 2 or not self.total.num_words:
            return None
        # Utterances with the same counts are drawn together, so that many of them take no longer.
        same = Counter((counts.errors, counts.num_words) for counts in groups)
        counts = np.asarray(list(same), dtype=np.float64)  # [K, 2]
        shares = np.asarray(list(same.values()), dtype=np.float64) / len(groups)
        rng = np.random.default_rng(seed)
        rates: list[float] = []
        block = max(1, (1 << 22) // len(same))
        while len(rates) < samples:
            drawn = rng.multinomial(len(groups), shares, size=min(block, samples - len(rates)))
            errors, words = (drawn @ counts).T
            rates += (100.0 * errors[words > 0] / words[words > 0]).tolist()
            if not words.all():  # a draw of empty transcripts alone has no rate
                samples -= int(np.count_nonzero(words == 0))
        if not rates:
            return None
        low, high = np.quantile(rates, [(1 - level) / 2, (1 + level) / 2]).tolist()
        return Interval(low, high, level, len(rates), unit, len(groups))

    def to_dict(self, **bootstrap: Any) -> dict[str, Any]:
        """The report without the alignments, for JSON.

        Args:
            bootstrap: options of `interval`.
        """
        interval = self.interval(**bootstrap)
        table = {
            "total": self.total.to_dict(),
            "interval": None if interval is None else interval._asdict(),
            "speakers": {name: counts.to_dict() for name, counts in self.by_speaker.items()},
            "missing": list(self.missing),
        }
        if self.characters is not None:
            table["characters"] = self.characters.to_dict(**bootstrap)
        return table

    def summary(self, **bootstrap: Any) -> str:
        """The rate, the words that are correct, the sentences with errors, and the interval; two lines.

        Args:
            bootstrap: options of `interval`.
        """
        total = self.total
        rate = str(total) if self.unit == "words" else str(total).replace("WER", "CER", 1)
        words = "word" if self.unit == "words" else "character"
        facts = [
            f"correct {total.percent_correct:.2f} % [ {total.correct} / {counted(total.num_words, words)} ]",
            f"sentence errors {total.sentence_error_rate:.2f} % "
            f"[ {total.num_wrong_utterances} / {counted(total.num_utterances, 'utterance')} ]",
        ]
        if (interval := self.interval(**bootstrap)) is not None:
            facts.append(str(interval))
        lines = [rate, ", ".join(facts)]
        if self.characters is not None:
            lines.append(self.characters.summary(**bootstrap))
        return "\n".join(lines)

    def to_text(self, **bootstrap: Any) -> str:
        """The summary, the per-speaker table, and every utterance that has an error, aligned word by word.

        Args:
            bootstrap: options of `interval`.
        """
        lines = [self.summary(**bootstrap)]
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

    def write(self, directory: str | Path, **bootstrap: Any) -> None:
        """Write `wer.txt` and `wer.json` into `directory`, which is made if need be.

        Args:
            bootstrap: options of `interval`.
        """
        write_file(Path(directory, "wer.txt"), self.to_text(**bootstrap))
        write_file(Path(directory, "wer.json"), json.dumps(self.to_dict(**bootstrap), indent=2) + "\n")


def score(
    references: Mapping[str, Sequence[str]],
    hypotheses: Mapping[str, Sequence[str]],
    *,
    speakers: Mapping[str, str] | None = None,
    scoring: Scoring | None = None,
    characters: bool = False,
) -> WerReport:
    """Count the word errors of `hypotheses` against `references`, words by utterance id.

    A reference without words is legal: what was recognised is inserted. One without hypothesis is scored as an empty one and
    named in the report.

    Args:
        speakers: by utterance id, for the per-speaker table and the interval.
        scoring: how words are compared; by default as they are, each error costs 1.
        characters: whether character errors are counted as well.

    Raises:
        DataError: a hypothesis without reference, an utterance without a speaker when speakers are given, a reserved word,
            or alternatives that cannot be read.
    """
    how = Scoring() if scoring is None else scoring
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
        steps = align_transcripts(reference, hypotheses.get(name, ()), how, name)
        counts = _counts(step.kind for step in steps)
        total = total + counts
        speaker = "" if speakers is None else speakers[name]
        if speakers is not None:
            by_speaker[speaker] = by_speaker.get(speaker, ErrorCounts()) + counts
        pairs = tuple((step.reference or EPSILON, step.hypothesis or EPSILON) for step in steps)
        utterances.append(UtteranceScore(name, speaker, counts, pairs, tuple(step.kind for step in steps)))
    missing = tuple(name for name in references if name not in hypotheses)
    in_characters = None
    if characters:
        by_character = replace(how, unit="characters")
        in_characters = score(references, hypotheses, speakers=speakers, scoring=by_character)
    return WerReport(
        total, dict(sorted(by_speaker.items())), tuple(utterances), missing, how.unit, in_characters
    )


def align_transcripts(
    reference: Sequence[str], hypothesis: Sequence[str], scoring: Scoring, name: str = ""
) -> list[Step]:
    """Align one utterance as `scoring` says; each step has its kind.

    Raises:
        DataError: a string where words are expected, the reserved word `<eps>`, or alternatives that cannot be read.
    """
    for side, words in (("reference", reference), ("hypothesis", hypothesis)):
        _check_words(side, words)
    ref = scoring.prepared(reference, "ref", name)
    hyp = scoring.prepared(hypothesis, "hyp", name)
    if not scoring.markup and not scoring.fragments and scoring.costs == "kaldi":
        return [_step(*pair) for pair in align_words(ref, hyp)]
    make = _graph_with_markup if scoring.markup else _plain_graph
    return align_graphs(
        make(ref, name),
        make(hyp, name),
        costs=SCLITE if scoring.costs == "sclite" else EVEN,
        markup=scoring.markup,
        optional=scoring.optional,
        fragments=scoring.fragments,
        name=name,
    )


def _graph_with_markup(words: Sequence[str], name: str) -> WordGraph:
    return WordGraph.parse(words, name)


def _plain_graph(words: Sequence[str], name: str) -> WordGraph:
    return WordGraph.of_words(words)


def _step(reference: str, hypothesis: str) -> Step:
    ref_word = None if reference == EPSILON else reference
    hyp_word = None if hypothesis == EPSILON else hypothesis
    return Step(ref_word, hyp_word, error_kind(reference, hypothesis))


def count_errors(reference: Sequence[str], hypothesis: Sequence[str]) -> ErrorCounts:
    """Count the errors of one utterance; each costs 1."""
    return _counts(error_kind(*pair) for pair in align_words(reference, hypothesis))


def align_words(reference: Sequence[str], hypothesis: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Pair up words with the fewest errors: (reference, hypothesis), `<eps>` where one side is empty."""
    for side, words in (("reference", reference), ("hypothesis", hypothesis)):
        _check_words(side, words)
    kaldialign = require("kaldialign", extra="recipes")
    return tuple(map(tuple, kaldialign.align(list(reference), list(hypothesis), EPSILON)))


def _check_words(side: str, words: Sequence[str]) -> None:
    if words and isinstance(words, str):
        raise DataError(f"{side} {words!r} is one string; expected words, such as text.split()")
    if EPSILON in words:
        raise DataError(f"{side}: the word {EPSILON!r} is reserved for empty places of the alignment")


def error_kind(reference: str, hypothesis: str) -> str:
    """Name what a pair of aligned words is: "same", "insertion", "deletion" or "substitution"."""
    if reference == hypothesis:
        return "same"
    if reference == EPSILON:
        return "insertion"
    return "deletion" if hypothesis == EPSILON else "substitution"


def _counts(kinds: Iterable[str]) -> ErrorCounts:
    each = Counter(kinds)
    errors = each["insertion"], each["deletion"], each["substitution"]
    num_words = each["same"] + each["deletion"] + each["substitution"]
    return ErrorCounts(*errors, num_words, 1, int(any(errors)))


def read_text(path: str | Path) -> dict[str, tuple[str, ...]]:
    """Lines `utterance word word ...`; an id alone is an empty transcript. DataError where an utterance stands twice."""
    transcripts: dict[str, tuple[str, ...]] = {}
    repeated: list[str] = []
    for number, (name, *words) in text_lines(path):
        if name in transcripts:
            repeated.append(f"{Path(path).name}:{number}: {name!r:.80}")
        transcripts[name] = tuple(words)
    if repeated:
        raise DataError(
            f"{path}: utterances that the file has already: {listed(repeated)}; expected one line for each utterance"
        )
    return transcripts


def write_text(path: str | Path, transcripts: Mapping[str, Sequence[str]]) -> None:
    """Kaldi's text format, sorted by utterance id; folders are made if need be."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    lines = [" ".join((name, *transcripts[name])) + "\n" for name in sorted(transcripts)]
    with naming(target):
        target.write_text("".join(lines), encoding="utf-8")


_SPEAKER_COLUMNS = (
    "speaker",
    "utts",
    "words",
    "ins",
    "del",
    "sub",
    "WER %",
    "correct %",
    "sentence errors %",
)


def _speaker_row(name: str, counts: ErrorCounts) -> tuple[str, ...]:
    numbers = (
        counts.num_utterances,
        counts.num_words,
        counts.insertions,
        counts.deletions,
        counts.substitutions,
    )
    rates = counts.wer, counts.percent_correct, counts.sentence_error_rate
    return (name, *map(str, numbers), *(f"{rate:.2f}" for rate in rates))


def _speaker_table(rows: Mapping[str, ErrorCounts]) -> list[str]:
    cells = [_SPEAKER_COLUMNS, *(_speaker_row(name, counts) for name, counts in rows.items())]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [" ".join((row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:]))) for row in cells]


def _aligned_lines(utterance: UtteranceScore) -> list[str]:
    rows = ["  ref ", "  hyp ", "      "]
    for pair, kind in zip(utterance.alignment, utterance.kinds, strict=True):
        mark = "" if kind == "same" else kind[0].upper()
        cells = ["*" if word == EPSILON else word for word in pair] + [mark]
        width = max(map(len, cells))
        rows = [f"{row} {cell:<{width}}" for row, cell in zip(rows, cells, strict=True)]
    return [f"{utterance.id}:"] + [row.rstrip() for row in rows]
