"""Transcripts that may be wrong: an acceptor over labels that takes them as they stand, and what they may stand for.

A transcript is read as what a careless writer made of what was said. At each label the writer may have

    substituted   another label was said: the star, any unit, in its place
    inserted      nothing was said: the label is left out
    deleted       more was said before it, or at the end: the star, any number of times, each paid for

An edit script says for each label which of these, and how often the star before it. With s, i and d the penalties in nats
of a substitution, an insertion and a deletion, a script with n_s, n_i and n_d of them has the weight

    exp(-(n_s s + n_i i + n_d d)) c,     c = (1 - exp(-d))^(U + 1) / (1 + exp(-s) + exp(-i))^U

for U labels. c is the same for all scripts: it moves no gradient, and makes the weights of all scripts sum to one at most.
A script spells one sequence of labels and stars; the weight of a sequence of labels is the sum over the scripts that it
matches, so it is at most one as well, whichever units a star stands for. That is all that keeps log Z of a numerator at most
that of a denominator whose normalization is composed in, and a CTC loss at 0 or above. A penalty of infinity forbids, and
leaves no trace: with three of them every weight is that of the acceptor alone, to the bit.

Two scripts that differ in order alone, such as a star and then a label left out, or the other way round, spell the same: of
these the one with the star first is kept. In a row at most `most_left_out` labels are left out, so that the size of the
result is linear in that of the acceptor.

Of words for LF-MMI (`fsachain.graph.spelling.transcript_acceptor`) a star is any sequence of phones, so that one is enough
between two words that are kept, whatever is missing there: some of the scripts above, and in place of several words that are
substituted one star instead of one for each. No script comes about in two ways, so that all together weigh one at most. With
one star at most at a place (1 + exp(-d))^-(U + 1) normalises, for any d.

Labels missing: Pratap et al., 2022 (star temporal classification); labels wrong or too many: Gao et al., Interspeech 2023
(bypass); all three: Gao et al., ASRU 2023 (omni-temporal). docs/weak_transcripts.md says which settings these are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from fsachain.errors import ConfigError, GraphError, as_number
from fsachain.fsa import Fsa
from fsachain.openfst import rows

Star = Literal["mean", "sum", "frames"]


@dataclass(frozen=True)
class Forgiveness:
    """What a transcript may be wrong in. Penalties are nats; infinity: it is not.

    Attributes:
        substitution: of a label in whose place another was said, at least 0.
        insertion: of a label that was not said, at least 0.
        deletion: of a star that the transcript lacks; above 0 but for words in LF-MMI and targets of transducers.
        star: "mean": a star's score is the log-mean over the units; "sum": their log-sum; "frames", of words in LF-MMI:
            one frame or more, each at the score that `LFMMILoss` makes for a `DenominatorGraph.with_star`; what
            commands take there where a configuration gives no star.
        most_left_out: labels in a row that may be left out, at least 1.
    """

    substitution: float = math.inf
    insertion: float = math.inf
    deletion: float = math.inf
    star: Star = "mean"
    most_left_out: int = 3

    def __post_init__(self) -> None:
        as_number("deletion", self.deletion)
        as_number("most_left_out", self.most_left_out)
        for name in ("substitution", "insertion"):
            value = getattr(self, name)
            if not as_number(name, value) >= 0:
                raise ConfigError(
                    f"{name} = {value}: expected a penalty of at least 0, in nats; infinity forbids"
                )
        if not self.deletion > -math.inf:
            raise ConfigError(f"deletion = {self.deletion}: expected a penalty in nats; infinity forbids")
        if self.star not in get_args(Star):
            raise ConfigError(f"star = {self.star!r}: expected one of {', '.join(get_args(Star))}")
        if self.most_left_out < 1 or self.most_left_out % 1:
            raise ConfigError(f"most_left_out = {self.most_left_out}: expected an integer of at least 1")

    @cached_property
    def has_star(self) -> bool:
        return min(self.substitution, self.deletion) < math.inf

    @property
    def has_star_of_frames(self) -> bool:
        """Whether graphs have a pdf more than the tree: that of stars."""
        return self.has_star and self.star == "frames"

    @property
    def longest_gap(self) -> int:
        """How many labels in a row may be left out."""
        return 0 if self.insertion == math.inf else self.most_left_out

    @cached_property
    def kinds(self) -> Forgiveness:
        """The same for all that have penalties for the same kinds of errors, of whatever size."""
        wrong, too_many, missing = (
            1.0 if penalty < math.inf else penalty
            for penalty in (self.substitution, self.insertion, self.deletion)
        )
        return Forgiveness(wrong, too_many, missing, most_left_out=max(1, self.longest_gap))

    @property
    def label_log_prob(self) -> float:
        """What each label weighs that is not paid for by a penalty: the share of c that falls to it."""
        return -math.log1p(math.exp(-self.substitution) + math.exp(-self.insertion))

    @property
    def stop_log_prob(self) -> float:
        """The share of c that falls to each place between labels, and to both ends, where stars may be repeated."""
        if not self.deletion > 0:
            raise ConfigError(
                f"deletion = {self.deletion}: expected a penalty above 0 where any number of stars may stand at a place"
            )
        return math.log(-math.expm1(-self.deletion))

    def constant(self, num_labels: int) -> float:
        """log c where there is one star at most at each place."""
        place = -float(np.logaddexp(0.0, -self.deletion))
        return num_labels * self.label_log_prob + (num_labels + 1) * place

    def scripts_between(self, star: bool, left_out: int) -> list[tuple[float, tuple[int, int, int]]]:
        """What may stand between two labels that are kept: (-penalty, (n_s, n_i, n_d)) of each, if it is not forbidden.

        `left_out` labels are not said, in place of which there is one star or none. A star is one deletion before
        labels that are inserted, or stands for the first of them, one or more, which are then substituted.
        """
        found = [(j, left_out - j, 0) for j in range(1, left_out + 1)] if star else []
        found.append((0, left_out, int(star)))
        penalties = self.substitution, self.insertion, self.deletion
        paid = [
            (-sum(n * p for n, p in zip(counts, penalties, strict=True) if n), counts) for counts in found
        ]
        return [one for one in paid if one[0] > -math.inf]

    def between(self, star: bool, left_out: int) -> float:
        """The log-sum of `scripts_between`."""
        weights = [weight for weight, _ in self.scripts_between(star, left_out)]
        return float(np.logaddexp.reduce(weights)) if weights else -math.inf

    def prices(self) -> npt.NDArray[np.float64]:
        """`between` for [no star, star] and [0 .. most_left_out] labels, [2, most_left_out + 1]."""
        return np.array(
            [
                [self.between(star, left_out) for left_out in range(self.most_left_out + 1)]
                for star in (False, True)
            ]
        )

    def edits(self) -> npt.NDArray[np.float64]:
        """The expected (n_s, n_i, n_d) of each of `prices`, [2, most_left_out + 1, 3]."""
        found = np.zeros((2, self.most_left_out + 1, 3))
        for star, left_out in np.ndindex(found.shape[:2]):
            scripts = self.scripts_between(bool(star), left_out)
            total = self.between(bool(star), left_out)
            found[star, left_out] = sum(
                math.exp(weight - total) * np.array(counts) for weight, counts in scripts
            )
        return found


NOTHING = Forgiveness()


UNITS: tuple[Star, ...] = ("mean", "sum")  # stars of units, as all have them but words in LF-MMI


def check_forgiveness(value: object, stars: Sequence[Star] = UNITS) -> None:
    if not isinstance(value, Forgiveness):
        raise ConfigError(f"forgive is a {type(value).__name__}; expected a Forgiveness, or None")
    if value.star not in stars:
        raise ConfigError(f"star = {value.star!r}: expected one of {', '.join(stars)} here")


def _with_star(labels: Fsa, star: int, forgive: Forgiveness) -> Fsa:
    """The scripts of this page over an acceptor, epsilon-free, with states of the same numbers and the label `star`."""
    stop, label = forgive.stop_log_prob, forgive.label_log_prob
    leaving: list[list[tuple[int, int, float]]] = [[] for _ in range(labels.num_states)]
    for state, following, unit, log_prob in rows(labels.src, labels.dst, labels.pdf, labels.log_prob):
        leaving[state].append((following, unit, log_prob + label + stop))
    arcs: list[tuple[int, int, int, float]] = []  # src, dst, label, log_prob
    final = np.full(labels.num_states, -math.inf)
    for state in range(labels.num_states):
        if forgive.deletion < math.inf:
            arcs.append((state, state, star, -forgive.deletion))
        if forgive.substitution < math.inf:
            arcs += [
                (state, dst, star, log_prob - forgive.substitution) for dst, _, log_prob in leaving[state]
            ]
        for reached, weight in _left_out(state, leaving, forgive):
            final[state] = np.logaddexp(final[state], weight + labels.final_log_prob[reached] + stop)
            arcs += [(state, dst, pdf, weight + log_prob) for dst, pdf, log_prob in leaving[reached]]
    columns = list(zip(*arcs, strict=True)) or [()] * 4
    src, dst, pdf = (np.array(column, dtype=np.int32) for column in columns[:3])
    return Fsa(labels.num_states, src, dst, pdf, np.array(columns[3], dtype=float), final, labels.start)


def _left_out(
    state: int, leaving: list[list[tuple[int, int, float]]], forgive: Forgiveness
) -> list[tuple[int, float]]:
    """States within reach by leaving out labels, itself first, with the log-sum over the ways."""
    total = front = {state: 0.0}
    if forgive.insertion < math.inf:
        for _ in range(forgive.most_left_out):
            following: dict[int, float] = {}
            for here, weight in front.items():
                for dst, _, log_prob in leaving[here]:
                    paid = weight + log_prob - forgive.insertion
                    following[dst] = float(np.logaddexp(following.get(dst, -math.inf), paid))
            total = total | {q: float(np.logaddexp(total.get(q, -math.inf), w)) for q, w in following.items()}
            front = following
    return list(total.items())


def forgive(
    labels: Fsa | Sequence[int],
    units: Sequence[int],
    *,
    substitution: float = math.inf,
    insertion: float = math.inf,
    deletion: float = math.inf,
    star: Star = "mean",
    most_left_out: int = 3,
) -> Fsa:
    """The acceptor of what may have been said where `labels` was written.

    Args:
        labels: an acceptor over labels (of words, phones, units: its pdfs), or one sequence of labels, which may be empty.
        units: the labels that a star stands for, all different.
        substitution, insertion, deletion: penalties in nats, see `Forgiveness`.
        star: each unit in place of a star weighs one over their number ("mean"), or one ("sum").
        most_left_out: see `Forgiveness`.

    Returns:
        An acceptor over labels, with the states of `labels`: what each of its paths means is said at the top of
        `fsachain.graph.forgive`. Parallel arcs stand for the ways in which one label can come about.

    Raises:
        ConfigError: a penalty out of range.
        GraphError: labels that are no sequence of integers of at least 0, no units, or one twice.
    """
    options = Forgiveness(substitution, insertion, deletion, star, most_left_out)
    check_forgiveness(options)
    ids = np.asarray(units)
    is_integer = ids.ndim == 1 and ids.size and ids.dtype.kind in "iu"
    if not is_integer or ids.min() < 0 or len(np.unique(ids)) < len(ids):
        raise GraphError(f"units = {units!r}: expected distinct labels, integers of at least 0, one or more")
    graph = labels if isinstance(labels, Fsa) else linear(labels)
    mark = max(int(graph.pdf.max(initial=0)), int(ids.max())) + 1
    fsa = _with_star(graph, mark, options)
    is_star = fsa.pdf == mark
    copies = np.where(is_star, len(ids), 1)
    each = math.log(len(ids)) if star == "mean" else 0.0
    pdf = np.repeat(fsa.pdf, copies)
    pdf[np.repeat(is_star, copies)] = np.tile(ids, int(is_star.sum()))
    src, dst, log_prob = (
        np.repeat(c, copies) for c in (fsa.src, fsa.dst, np.where(is_star, fsa.log_prob - each, fsa.log_prob))
    )
    return Fsa(fsa.num_states, src, dst, pdf, log_prob, fsa.final_log_prob, fsa.start)


def linear(labels: Any) -> Fsa:
    """The acceptor of one sequence of labels."""
    given = np.asarray(labels)
    if given.ndim != 1 or (given.size and (given.dtype.kind not in "iu" or given.min() < 0)):
        raise GraphError(
            f"labels has shape {list(given.shape)} and dtype {given.dtype}; expected integers of at least 0"
        )
    count = len(given)
    final = np.full(count + 1, -math.inf)
    final[count] = 0.0
    states = np.arange(count + 1)
    return Fsa(count + 1, states[:-1], states[1:], given.astype(np.int64), np.zeros(count), final)
