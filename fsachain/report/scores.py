"""Word errors: tables of a decoding, the confusions, and the utterances worth a look."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsachain.data.kaldi_dir import DataDir, Utterance
from fsachain.decode.wer import EPSILON, ErrorCounts, UtteranceScore, WerReport, read_text, score
from fsachain.errors import DataError
from fsachain.report.events import number


@dataclass(frozen=True)
class Tuned:
    """What was chosen on the development set."""

    wer: float | None
    lm_weight: float | None
    word_insertion_penalty: float | None


@dataclass(frozen=True)
class Confusion:
    """One error and how often it was made; `<eps>` stands for no word."""

    reference: str
    hypothesis: str
    count: int

    @property
    def kind(self) -> str:
        """Of the error: substitution, insertion or deletion."""
        return error_kind(self.reference, self.hypothesis)


def error_kind(reference: str, hypothesis: str) -> str:
    """What one pair of an alignment is: same, substitution, insertion or deletion."""
    if reference == hypothesis:
        return "same"
    if reference == EPSILON:
        return "insertion"
    return "deletion" if hypothesis == EPSILON else "substitution"


def score_decoding(data: DataDir, hypotheses: Path) -> WerReport:
    """Score the decoder's hyp.txt against the transcripts of the data directory.

    Raises:
        DataError: the file cannot be read or does not match the data.
    """
    references = {utterance.id: utterance.words for utterance in data}
    speakers = {utterance.id: utterance.speaker for utterance in data}
    return score(references, read_text(hypotheses), speakers=speakers)


def read_totals(path: Path) -> ErrorCounts:
    """The counts over all utterances in wer.json.

    Raises:
        DataError: the file cannot be read, or holds something else.
    """
    total = read_table(path).get("total")
    names = ("insertions", "deletions", "substitutions", "words", "utterances", "wrong_utterances")
    counts = [number(total, name) for name in names]
    if any(count is None for count in counts):
        raise DataError(f"{path}: expected a table 'total' with the numbers {', '.join(names)}")
    return ErrorCounts(*(int(count) for count in counts if count is not None))


def read_tuned(path: Path) -> Tuned:
    """The best point of tuning.json; errors as `read_totals`."""
    best = read_table(path).get("best")
    if not isinstance(best, dict):
        raise DataError(f"{path}: expected a table 'best'")
    return Tuned(number(best, "wer"), number(best, "lm_weight"), number(best, "word_insertion_penalty"))


def read_table(path: Path) -> dict[str, Any]:
    """The table in a JSON file.

    Raises:
        DataError: the file cannot be read, is no JSON (or half of it), or holds no table.
    """
    try:
        table = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"{path}: is not complete JSON: {error}") from error
    if not isinstance(table, dict):
        raise DataError(f"{path}: expected a table")
    return table


def confusions(report: WerReport, most: int) -> tuple[Confusion, ...]:
    """The most frequent errors, at most so many; equally frequent ones in alphabetical order."""
    pairs = Counter(pair for one in report.utterances for pair in one.alignment if pair[0] != pair[1])
    ordered = sorted(pairs.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Confusion(ref, hyp, count) for (ref, hyp), count in ordered[:most])


def error_rate(counts: ErrorCounts) -> float:
    """Errors per reference word; infinite for words where none were said, 0 for nothing where nothing was."""
    if counts.num_words:
        return counts.errors / counts.num_words
    return math.inf if counts.errors else 0.0


def worst_first(report: WerReport) -> list[UtteranceScore]:
    """The utterances by error rate, then by number of errors, then by id."""
    return sorted(report.utterances, key=lambda one: (-error_rate(one.counts), -one.counts.errors, one.id))


def worst(report: WerReport, most: int) -> list[UtteranceScore]:
    """The utterances of the highest error rate, at most so many; none without an error."""
    return [one for one in worst_first(report)[:most] if one.counts.errors]


def best(report: WerReport, most: int) -> list[UtteranceScore]:
    """The utterances of the lowest error rate, of these the longest, at most so many; none that is among the worst."""
    taken = {one.id for one in worst(report, most)}
    ordered = sorted(
        report.utterances, key=lambda one: (error_rate(one.counts), -one.counts.num_words, one.id)
    )
    return [one for one in ordered if one.id not in taken][:most]


def by_id(data: DataDir) -> dict[str, Utterance]:
    """The utterances by their ids."""
    return {utterance.id: utterance for utterance in data}
