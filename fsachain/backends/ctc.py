"""CTC problems: checked arguments of a batch, and the columns that a backend works on.

The graphs of a batch have one shape; a target decides only which class stands for its k-th label, which arcs are missing
between equal labels, and where it ends. So sequences with different targets run side by side, each with columns of its own:

    column 0           the blank
    column k           the k-th label, 1 <= k <= U

Where a target may be wrong (`fsachain.graph.forgive`), column 1 is the star, the log-mean or log-sum over the units of a
frame, and those of labels follow it.

With a delay penalty the first frame of a label has a score of its own: columns 2 k - 1 and 2 k are then the first and the
further frames of the k-th label. The score of a column at frame t is y[t, class] - log_prior[class], for a first frame
+ delay_penalty x ((T_n - 1) / 2 - t): late labels cost, and the mean over t is zero (Yao et al., ICASSP 2023).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.errors import ConfigError, DataError, ShapeError, check_finite, counted, integer
from fsachain.fsa import Floats, Fsa
from fsachain.graph.ctc import CtcTopology, check_topology, differs_from_previous, target_graph
from fsachain.graph.forgive import NOTHING, Forgiveness

Integers = npt.NDArray[np.int64]

STAR = 1  # its column


class Rows(NamedTuple):
    """Arrays [N, T, C] whose classes lie side by side, in any order of sequences and frames.

    flat: all numbers; entry (n, t, p) stands at n stride_n + t stride_t + p.
    """

    flat: npt.NDArray[np.floating]
    strides: tuple[int, int]
    shape: tuple[int, int, int]

    def sequence(self, n: int) -> npt.NDArray[np.floating]:
        """[T, C], a view."""
        size = self.flat.itemsize
        strides = self.strides[1] * size, size
        return np.lib.stride_tricks.as_strided(
            self.flat[n * self.strides[0] :], self.shape[1:], strides, writeable=True
        )


class Checks(NamedTuple):
    """Of which rows the probabilities are added up: of frames t for which `every` divides t + phase."""

    every: int = 1
    phase: int = 0


class CtcProblem(NamedTuple):
    """N targets and how they are spelled; made by `make_problem`.

    labels: int64 [N, U], U the largest target; entries beyond a target are 0, C stands for any class. log_prior: float64
    [C]; empty for none. delay_penalty: in nats for each frame. names: of the utterances, one in a line; empty for numbers.
    """

    labels: Integers
    label_counts: Integers
    frame_counts: Integers
    blank: int
    num_classes: int
    topology: CtcTopology
    log_prior: Floats
    delay_penalty: float
    forgive: Forgiveness = NOTHING
    names: str = ""

    def differs(self, n: int) -> npt.NDArray[np.bool_]:
        """bool [U + 1] of target n, see `fsachain.graph.ctc.differs_from_previous`; any class differs from all."""
        found, is_any = differs_from_previous(self.labels[n]), self.labels[n] == self.num_classes
        found[1:] |= is_any
        found[2:] |= is_any[:-1]
        return found

    @property
    def repeats_apart(self) -> bool:
        """Further frames of a label have columns of their own; only some topologies have such frames."""
        return self.delay_penalty != 0.0 and self.topology in ("standard", "compact")

    @property
    def is_probability(self) -> bool:
        """Scores that are normalised give at most one; under "compact" only if no label follows itself."""
        return not self.log_prior.size and self.delay_penalty == 0.0

    @property
    def unit_shifts(self) -> Floats:
        """[C]: what is added to the scores of which the star is the log-sum; -inf for the blank."""
        shifts = 0.0 - self.log_prior if self.log_prior.size else np.zeros(self.num_classes)
        shifts[self.blank] = -np.inf
        return shifts

    @property
    def star_offset(self) -> float:
        """What is taken off that log-sum."""
        return math.log(max(1, self.num_classes - 1)) if self.forgive.star == "mean" else 0.0


def column_labels(num_labels: int, repeats_apart: bool, has_star: bool) -> Integers:
    """[K]: the label of each column, counted from 1, 0 for the blank and the star."""
    labels = np.arange(num_labels + 1)
    labels = np.repeat(labels, 2)[1:] if repeats_apart else labels
    return np.append(0, labels) if has_star else labels


def _classes(problem: CtcProblem, n: int) -> tuple[Integers, Integers]:
    """[K]: the label of each column of sequence n, see `column_labels`, and the class that it reads."""
    count = int(problem.label_counts[n])
    label = column_labels(count, problem.repeats_apart, problem.forgive.has_star)
    return label, np.append(problem.blank, problem.labels[n, :count])[label]


def column_shape(labels: Integers, topology: CtcTopology, repeats_apart: bool, forgive: Forgiveness) -> Fsa:
    """The graph of the target `labels` [U], of which only matters which are equal; pdfs are columns."""
    column_of = column_labels(len(labels), repeats_apart, forgive.has_star)
    numbers = np.arange(1, len(labels) + 1)
    firsts = np.append(0, np.searchsorted(column_of, numbers))
    repeats = np.append(0, np.searchsorted(column_of, numbers, "right") - 1)
    return target_graph(labels, firsts, repeats, STAR, topology, forgive)


def column_graph(problem: CtcProblem, n: int) -> Fsa:
    """The graph of sequence n, pdfs are its columns."""
    labels = problem.labels[n, : problem.label_counts[n]]
    # A star, which stands for any class, differs from all labels and from other stars.
    apart = np.where(labels == problem.num_classes, -1 - np.arange(len(labels)), labels)
    return column_shape(apart, problem.topology, problem.repeats_apart, problem.forgive)


def column_scores(problem: CtcProblem, scores: Rows, n: int) -> Floats:
    """[T_n, K]: what the graph of sequence n reads, float64."""
    frames = int(problem.frame_counts[n])
    label, classes = _classes(problem, n)
    offset = problem.log_prior[classes] if problem.log_prior.size else np.zeros(len(classes))
    slope = np.where(np.diff(label, prepend=0) > 0, problem.delay_penalty, 0.0)
    late = (frames - 1) / 2.0 - np.arange(frames)[:, None]
    own = scores.sequence(n)[:frames, classes].astype(np.float64)
    found = own - offset + slope * late
    if problem.forgive.has_star:
        _, log_sum = _units(problem, scores, n, frames)
        found[:, STAR] = log_sum - problem.star_offset
    return np.asarray(found)


def _units(problem: CtcProblem, scores: Rows, n: int, frames: int) -> tuple[Floats, Floats]:
    """What the star of sequence n reads, [T_n, C] float64, and its log-sum [T_n]."""
    shifted = scores.sequence(n)[:frames].astype(np.float64) + problem.unit_shifts
    return shifted, np.logaddexp.reduce(shifted, axis=1, initial=-np.inf)


def write_gradient(
    problem: CtcProblem, scores: Rows, statistics: Floats, n: int, occupancy: Floats, weight: float, out: Rows
) -> None:
    """Sequence n of out = weight x (softmax - occupancy [T_n, K] by column), 0 beyond T_n or for a weight of 0.

    Without statistics 0 is the softmax.
    """
    frames, into = len(occupancy) if weight else 0, out.sequence(n)
    into[frames:] = 0.0
    if not frames:
        return
    _, classes = _classes(problem, n)
    gradient = np.zeros((frames, problem.num_classes))
    if statistics.size:
        top, total = statistics[:, n, :frames, None]
        gradient = np.exp(scores.sequence(n)[:frames] - top) / total
    if problem.forgive.has_star:
        shifted, log_sum = _units(problem, scores, n, frames)
        shares = np.exp(shifted - np.where(log_sum > -np.inf, log_sum, np.inf)[:, None])
        gradient -= occupancy[:, [STAR]] * shares
        classes, occupancy = np.delete(classes, STAR), np.delete(occupancy, STAR, axis=1)
    np.subtract.at(gradient.T, classes, occupancy.T)
    into[:frames] = weight * gradient


def log_sum(statistics: Floats, n: int, frames: int) -> float:
    """Of the rows of sequence n, one frame after another; 0 without statistics."""
    if not statistics.size:
        return 0.0
    with np.errstate(divide="ignore", invalid="ignore"):  # a frame of -inf alone has no softmax: NaN
        return float(sum((statistics[0, n, :frames] + np.log(statistics[1, n, :frames])).tolist()))


def joined_names(names: Sequence[str] | None, size: int) -> str:
    """Names as an operator can take them: lines of a text, empty for none. ShapeError: not `size` of them."""
    if names is None:
        return ""
    if len(names) != size:
        raise ShapeError(f"names has {counted(len(names), 'entry')}; expected {size}, one for each sequence")
    return "\n".join(" ".join(str(name).split()) for name in names)


def name_of(names: str, n: int) -> str:
    return names.split("\n")[n] if names else f"sequence {n}"


def make_problem(
    targets: npt.NDArray[Any],
    frame_counts: npt.NDArray[Any],
    label_counts: npt.NDArray[Any],
    shape: tuple[int, int, int],
    blank: int,
    topology: CtcTopology,
    log_prior: Floats,
    delay_penalty: float,
    names: str = "",
    forgive: Forgiveness = NOTHING,
    scores: str = "log_probs [T, N, C]",
) -> CtcProblem:
    """Check the arguments of `fsachain.loss.ctc.ctc_loss`, whose errors these are; but the labels, see `check_labels`.

    shape: N, T, C. names: of the utterances, one in a line; empty for numbers. scores: name and layout, for messages.
    """
    size, num_frames, num_classes = shape
    if not size:
        raise ShapeError("log_probs has no sequences; expected at least one")
    expected = f"a class of log_probs, 0 to {num_classes - 1}"
    blank = integer("blank", blank, expected=expected)
    if not 0 <= blank < num_classes:
        raise ConfigError(f"blank = {blank}; expected {expected}")
    frames = _check_counts("input_lengths", frame_counts, size, num_frames, f"the frames of {scores}", names)
    check_topology(topology)
    if log_prior.size and (log_prior.shape != (num_classes,) or not np.isfinite(log_prior).all()):
        raise ShapeError(
            f"log_priors has shape {list(log_prior.shape)}; expected {counted(num_classes, 'finite number')}"
        )
    check_finite("delay_penalty", delay_penalty)
    labels, counts = _padded_labels(targets, label_counts, size, names)
    if min(counts.tolist()) < labels.shape[1]:
        labels = np.where(np.arange(labels.shape[1]) < counts[:, None], labels, 0)
    return CtcProblem(
        labels,
        counts,
        frames,
        blank,
        num_classes,
        topology,
        log_prior,
        float(delay_penalty),
        forgive,
        names,
    )


def check_labels(problem: CtcProblem) -> None:
    """DataError with the first label that is no class or the blank."""
    labels, num_classes, blank = problem.labels, problem.num_classes, problem.blank
    wrong = (labels < 0) | (labels >= num_classes) | (labels == blank)
    wrong &= np.arange(labels.shape[1]) < problem.label_counts[:, None]
    for n, k in np.argwhere(wrong):
        raise DataError(
            f"{name_of(problem.names, n)}: targets[{n}][{k}] = {labels[n, k]}; expected a class in [0, {num_classes}) other "
            f"than the blank, {blank}: log_probs has {counted(num_classes, 'class')}, and its network must "
            "have as many outputs as "
            "there are labels with the blank"
        )


def _check_counts(
    argument: str, counts: npt.NDArray[Any], size: int, most: int, what: str, names: str
) -> Integers:
    if counts.shape != (size,) or counts.dtype.kind not in "iu":
        raise ShapeError(
            f"{argument} has shape {list(counts.shape)} and dtype {counts.dtype}; expected "
            f"{counted(size, 'integer')}, for each "
            f"sequence {what}"
        )
    values = counts.tolist()
    if min(values) < 0 or max(values) > most:
        n = next(n for n, value in enumerate(values) if not 0 <= value <= most)
        raise ShapeError(f"{name_of(names, n)}: {argument}[{n}] = {counts[n]}; expected 0 to {most}, {what}")
    return np.asarray(counts, np.int64)


def _padded_labels(
    targets: npt.NDArray[Any], label_counts: npt.NDArray[Any], size: int, names: str
) -> tuple[Integers, Integers]:
    """Labels [N, U] and their counts, from [N, S] or one after another."""
    if targets.dtype.kind not in "iu" and targets.size:
        raise ShapeError(f"targets has dtype {targets.dtype}; expected integers")
    padded = targets.ndim == 2 and len(targets) == size
    if not padded and targets.ndim != 1:
        raise ShapeError(
            f"targets has shape {list(targets.shape)}; expected [{size}, S], or all labels one after another"
        )
    most = targets.shape[-1]
    counts = _check_counts("target_lengths", label_counts, size, most, "the labels of targets", names)
    if padded:
        return np.ascontiguousarray(targets[:, : max(counts.tolist())], np.int64), counts
    if counts.sum() != len(targets):
        raise ShapeError(
            f"target_lengths add up to {counts.sum()}; expected {len(targets)}, as many labels as targets has"
        )
    labels = np.zeros((size, int(counts.max())), np.int64)
    labels[np.arange(labels.shape[1]) < counts[:, None]] = targets
    return labels, counts
