"""Forward-backward over the (t, u) grid of transducers: the page with its equations, numbered on from `recursion`.

Nodes (t, u), t = 0..T frames passed, u = 0..U labels emitted. An arc of kind k leads from (t, u) to (t + d_k, u + l_k), l_k
0 (a blank) or 1 (a label), and has the score s_k(t, u), a natural log, at its source; -inf is legal. It exists if it ends
within the grid and t + d_k <= T - gap_k: with gap 1 a label cannot end at T, so that the last arc of a path is a blank.

    (20) alpha(0, 0) = 0,   alpha(t, u) = logsum over k of  alpha(t - d_k, u - l_k) + s_k(t - d_k, u - l_k)
    (21) log Z       = alpha(T, U)
    (22) n(T, U)     = 1,   n(t, u) = sum_k g_k(t, u)                                                 occupancy of a node
         g_k(t, u)   = n(t + d_k, u + l_k) exp(alpha(t, u) + s_k(t, u) - alpha(t + d_k, u + l_k)) = d log Z / d s_k(t, u)
    (23) best path   : max for logsum in (20); among equals the arc of the lowest k wins

(22) is (20) differentiated. With beta(t, u), the log-sum over the paths from (t, u) to (T, U), it is the same as
g_k(t, u) = exp(alpha(t, u) + s_k(t, u) + beta(t + d_k, u + l_k) - log Z).

    arcs (d, l, gap)        blanks                    labels
    regular                 (1, 0, 0)                 (0, 1, 1)                           Graves, 2012
    modified                (1, 0, 0)                 (1, 1, 0)                           at most one label a frame
    constrained             (1, 0, 0)                 (1, 1, 0), (26)                     Kuang et al., Interspeech 2022
    multi-blank             (1, 0, 0), (m, 0, 0)...   (0, 1, 1)                           Xu et al., ICASSP 2023
    token-and-duration      (d, 0, 0), d > 0          (d, 1, 1), d >= 0                   Xu et al., ICML 2023

Scores from logits x(t, u, v) with a softmax over v, c_k the class of arc k (the blank's, or target u):

    (24) s_k(t, u)   = x(t, u, c_k) - logsum_v x(t, u, v) + delay_k ((T - 1) / 2 - t) - sigma
    (25) d -log Z / d x(t, u, v) = p_v sum_k g_k(t, u) - sum_k g_k(t, u) [v = c_k],   p = softmax of x;   the sum over v is 0
    (26) constrained: s_label(t, u) += s_blank(t, u + 1); hence the blank's g(t, u + 1) in (25) has g_label(t, u) added
    (27) FastEmit    : g of labels counts 1 + lambda times in (25), log Z is not changed    (Yu et al., ICASSP 2021)
    (28) HAT         : s_blank = log sigma(x_b), s_label = log sigma(-x_b) + log softmax of the other classes
                                                                                      (Variani et al., ICASSP 2020)
    (29) durations   : a row holds a second softmax, of durations; s_k adds its entry d_k, log softmax of these, to (24)

    (30) forgiving   : s_label = log((exp s_label + e^-s star + e^-i) / c),  s_blank = log((exp s_blank + e^-d star) / c),
                       star = (1 - exp s_blank) w,  c = 1 + e^-s + e^-i + e^-d,  w = 1 or 1 / (V - 1);
                       star = 0 of a row of nothing but -inf

(30) lets another label stand for a target (penalty s), leaves a target out (i), or takes a frame with a label that the
targets lack (d); the weights of what leaves a node sum to one at most, so log Z <= 0. (28) and (29) are differentiated
factor by factor: each softmax as in (25), with the g of the kinds that it is a factor of, and the sigmoid as a softmax of
two classes, x_b and 0.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
RnntType = Literal["regular", "modified", "constrained"]


class GridArc(NamedTuple):
    """One kind of arc: frames d and labels l that it passes; it ends at frame T - gap or before."""

    frames: int
    labels: int
    gap: int


BLANK = GridArc(1, 0, 0)
REGULAR = (BLANK, GridArc(0, 1, 1))
MODIFIED = (BLANK, GridArc(1, 1, 0))
# The label arcs of `mutual_information_recursion`, which has scores for them at t = T too.
FREE = (BLANK, GridArc(0, 1, 0))
TOPOLOGIES: dict[str, tuple[GridArc, ...]] = {
    "regular": REGULAR,
    "modified": MODIFIED,
    "constrained": MODIFIED,
}


class GridBatch(NamedTuple):
    """Where N grids and the scores of their arcs lie; all int64.

    arcs [K, 3]: a `GridArc` for each kind.
    sizes [N, 4]: the first frame and label within the boxes, T and U.
    boxes [N, K, 5]: of the scores of arcs k: position of the box's first entry in a flat array, strides over t and u,
        numbers of t and u. What the box holds beyond the grid is padding.
    """

    arcs: Ints
    sizes: Ints
    boxes: Ints


class Rows(NamedTuple):
    """Where the rows of each node lie and which of their entries are scores of arcs.

    sequences [N, 8]: the number of the first row, rows from a frame to the next, frames that have rows, rows of a frame,
        T, U, the first cell, cells from a frame to the next. Row j of frame t is node (t, first[n, t] + j); its scores are
        written to the same cell of each kind.
    first [N, T]: the label of a frame's first row, 0 but for pruned grids.
    targets [N, U]: the classes of the labels.
    classes [K]: the class of each kind of arc, -1 for the targets'.
    charges [2, K]: delay and sigma of (24).
    heads [2]: V, the classes, which are the first entries of a row; what follows are the durations of (29). And the class
        that has a sigmoid of its own and is left out of the softmax, as in (28), or -1.
    durations [K]: the entry of a row, V or more, that is the duration of each kind; -1 where there is none.
    """

    sequences: Ints
    first: Ints
    targets: Ints
    classes: Ints
    charges: npt.NDArray[np.float64]
    heads: Ints
    durations: Ints


def dense_boxes(num_sequences: int, num_kinds: int, frames: int, labels: int) -> Ints:
    """Boxes for scores [K, N, frames, labels], C-contiguous."""
    boxes = np.empty((num_sequences, num_kinds, 5), np.int64)
    cells = frames * labels
    n, k = np.ogrid[:num_sequences, :num_kinds]
    boxes[:, :, 0] = (k * num_sequences + n) * cells
    boxes[:, :, 1:] = labels, 1, frames, labels
    return boxes


def grid_sizes(frames: npt.ArrayLike, labels: npt.ArrayLike) -> Ints:
    """Sizes [N, 4] of grids that begin where their boxes begin."""
    t, u = np.asarray(frames, np.int64), np.asarray(labels, np.int64)
    return np.stack([np.zeros_like(t), np.zeros_like(t), t, u], axis=1)


def usable_extent(arc: Ints, box: Ints, size: Ints) -> tuple[int, int]:
    """An arc exists at (t, u) with t, u below these: its end lies within the grid, its score within the box."""
    frames = min(size[2] - max(arc[0], 0) - arc[2] + 1, box[3] - size[0])
    return max(int(frames), 0), max(int(min(size[3] - arc[1] + 1, box[4] - size[1])), 0)


def num_cells(rows: Rows) -> int:
    _, _, frames, _, _, _, first, labels = rows.sequences[-1].tolist()  # cells lie sequence after sequence
    return int(first + frames * labels)


def num_softmaxes(rows: Rows) -> int:
    """How many sums of exponentials a row has: 2 with durations."""
    return 1 + (max(rows.durations.tolist()) >= 0)


def _frames_of(rows: Rows, n: int, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Scores [K, T, U + 1] of sequence n, a view."""
    _, _, _, _, frames, labels, first, step = rows.sequences[n].tolist()
    cells = values[:, first : first + frames * step]
    return cells.reshape(len(values), frames, step)[:, :, : labels + 1]


def constrain(rows: Rows, scores: npt.NDArray[np.float64]) -> None:
    """Equation (26) on scores [2, cells] of blanks and labels."""
    for n in range(len(rows.sequences)):
        blank, label = _frames_of(rows, n, scores)
        label[:, :-1] += blank[:, 1:]


def release(rows: Rows, occupancy: npt.NDArray[np.float64]) -> None:
    """The chain rule of (26) on occupancies [2, cells]: blanks get those of the labels that they are a part of."""
    for n in range(len(rows.sequences)):
        blank, label = _frames_of(rows, n, occupancy)
        blank[:, 1:] += label[:, :-1]
