"""State-level minimum Bayes risk in numpy float64.

A(path) is the sum over frames of a(t, pdf), a given accuracy of each pdf in each frame; a leak adds nothing to it. With
alpha, alpha', beta, beta' and gamma of `fsachain.recursion` and "mean of x weighted by w" for sum w x / sum w:

    (M1) u(0, i)       = 0
         u(t+1, j)     = mean over arcs i->j of u'(t, i) + a(t, pdf), weighted by the exp of the terms of (2)
    (M2) u'(t, i)      = mean of u(t, i) and m(t), weighted by the exp of the two terms of (3);
                         m(t) = mean over k of u(t, k), weighted by exp alpha(t, k)
    (M3) E[A]          = mean over i of u'(T, i), weighted by exp(alpha'(T, i) + final(i))
    (M4) v'(T, i)      = 0
         v(t, i)       = mean of v'(t, i) and of mean over k of v'(t, k), weighted by the exp of the terms of (5)
         v'(t, i)      = mean over arcs i->j of a(t, pdf) + v(t+1, j), weighted by the exp of the terms of (5)
    (M5) E[A | arc, t] = u'(t, i) + a(t, pdf) + v(t+1, j)
    (M6) d E[A] / d y[t, p] = sum of gamma(t, arc) (E[A | arc, t] - E[A]) over the arcs with pdf p
         d E[A] / d a[t, p] = occupancy(t, p)

u'(t, i) is the accuracy to expect of the first t frames of a path that is in state i then, v(t, i) that of the others.
Povey, PhD thesis, Cambridge 2003, chapter 6, where paths are those of a lattice.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.backends import Lengths
from fsachain.backends.reference import sums as reference
from fsachain.backends.reference.sums import Scores
from fsachain.batch import TableBatch
from fsachain.fsa import Ints
from fsachain.recursion import Array, log_sum, log_sum_rows
from fsachain.table import TransitionTable

# log Z [N] as in `sums.log_probs`; E[A] [N], -inf or NaN as log Z, NaN for an illegal accuracy; both are finite [N]
Result = tuple[Array, Array, npt.NDArray[np.bool_]]


class _One(NamedTuple):
    """One sequence: E[A], and by frame and arc (view by source) gamma and E[A | arc, t], float64 [T, arcs]."""

    mean: float
    gamma: Array
    of_arc: Array


def expected_accuracy(
    batch: TableBatch, scores: Scores, accuracy: Scores, lengths: Lengths, leaky: float
) -> Result:
    """log Z, E[A] of (M3) and ok of every sequence; accuracy [N, T, P] must be finite in the active pdfs."""
    return _run(batch, scores, accuracy, lengths, leaky)[0]


def set_accuracy_gradient(
    batch: TableBatch,
    scores: Scores,
    accuracy: Scores,
    lengths: Lengths,
    leaky: float,
    weights: Array,
    out: npt.NDArray[np.floating],
    occupancy: npt.NDArray[np.floating],
    memory_budget: float | None = None,
) -> Result:
    """As `expected_accuracy`; writes weights[n] times the derivatives of (M6) to out and occupancy [N, T, P].

    Only active pdfs of real frames of ok sequences of nonzero weight are written; an empty `occupancy` is left alone.
    `memory_budget` changes nothing: all frames are kept.
    """
    result, found = _run(batch, scores, accuracy, lengths, leaky)
    for n in [n for n in found if weights[n]]:
        one, column, active = found[n], batch.table(n).by_src.column, batch.table(n).active_pdfs
        change = one.gamma * (one.of_arc - one.mean)
        out[n, : lengths[n]][:, active] = weights[n] * _sums(change.T, column, len(active)).T
        if len(occupancy):
            occupancy[n, : lengths[n]][:, active] = weights[n] * _sums(one.gamma.T, column, len(active)).T
    return result


def _sums(values: Array, row: Ints, rows: int) -> Array:
    """[rows, ...]: row r is the sum of values[k] over the k with row[k] = r."""
    sums = np.zeros((rows, *values.shape[1:]))
    np.add.at(sums, row, values)
    return sums


def _run(
    batch: TableBatch, scores: Scores, accuracy: Scores, lengths: Lengths, leaky: float
) -> tuple[Result, dict[int, _One]]:
    log_z, ok = reference.log_probs(batch, scores, lengths, leaky)
    mean, found = log_z.copy(), {}
    for n in range(batch.size):
        table, frames = batch.table(n), slice(0, lengths[n])
        a = np.asarray(accuracy[n, frames][:, table.active_pdfs], dtype=np.float64)
        if not np.isfinite(a).all():
            mean[n], ok[n] = np.nan, False
        elif (one := reference.trellis(table, scores[n, frames], leaky)) is not None:
            found[n] = _one(table, one, a, leaky)
            mean[n] = found[n].mean
    return (log_z, mean, ok), found


def _one(table: TransitionTable, one: reference.Trellis, accuracy: Array, leaky: float) -> _One:
    so_far = _so_far(table, one.scores, accuracy, leaky, one.alpha)
    to_come = _to_come(table, one.scores, accuracy, leaky, one.beta, one.log_z)
    view = table.by_src
    of_arc = so_far[:-1][:, view.src] + accuracy[:, view.column] + to_come[1:][:, view.dst]  # (M5)
    mean = _mean(so_far[-1], one.alpha[-1] + table.final_log_prob)  # (M3)
    gamma = np.exp([reference.log_gamma(table, one, t) for t in range(len(of_arc))])
    return _One(mean, gamma.reshape(of_arc.shape), of_arc)


def _so_far(table: TransitionTable, frames: Array, accuracy: Array, leaky: float, alpha: Array) -> Array:
    """u'(t, i) of (M1) and (M2), float64 [T + 1, S]; 0 where alpha' is log-zero."""
    view = table.by_dst
    plain = table.initial_log_prob
    u: Array = np.zeros(table.num_states)
    result = np.empty_like(alpha)
    for t in range(len(alpha)):
        if t > 0:
            terms = alpha[t - 1][view.src] + view.log_prob + frames[t - 1][view.column]
            plain = log_sum_rows(terms, view.offsets)  # (2)
            gains = result[t - 1][view.src] + accuracy[t - 1][view.column]
            u = _means(gains, _share(terms, plain[view.dst]), view.dst, table.num_states)
        leaked = _mean(u, plain)
        stays = _share(plain, alpha[t])
        result[t] = u if leaky == 0.0 else np.where(np.isneginf(alpha[t]), 0.0, leaked + stays * (u - leaked))
    return result


def _to_come(
    table: TransitionTable, frames: Array, accuracy: Array, leaky: float, beta: Array, log_z: float
) -> Array:
    """v(t, i) of (M4), float64 [T + 1, S]; 0 where beta is log-zero."""
    view, init = table.by_src, table.leak_target
    plain = table.final_log_prob - log_z
    v: Array = np.zeros(table.num_states)
    result = np.empty_like(beta)
    for t in range(len(frames), -1, -1):
        if t < len(frames):
            terms = view.log_prob + frames[t][view.column] + beta[t + 1][view.dst]
            plain = log_sum_rows(terms, view.offsets)  # (5)
            gains = accuracy[t][view.column] + result[t + 1][view.dst]
            v = _means(gains, _share(terms, plain[view.src]), view.src, table.num_states)
        leaked = _mean(v, init + plain)
        stays = _share(plain, beta[t])
        result[t] = v if leaky == 0.0 else np.where(np.isneginf(beta[t]), 0.0, leaked + stays * (v - leaked))
    return result


def _means(values: Array, weights: Array, row: Ints, rows: int) -> Array:
    """[rows]: the weighted mean of the values of each row, 0 where all weights are zero.

    Logs of large magnitude are rounded, so that the weights do not quite sum to one; over many frames it would show.
    """
    total = _sums(weights, row, rows)
    return _sums(weights * values, row, rows) / np.where(total > 0.0, total, 1.0)


def _mean(values: Array, log_weights: Array) -> float:
    one_row = np.zeros(len(values), dtype=np.int32)
    return float(_means(values, _share(log_weights, log_sum(log_weights)), one_row, 1)[0])


def _share(x: Array, total: Array | float) -> Array:
    """exp(x - total), 0 where x is log-zero; the total of nothing but log-zeros is log-zero too."""
    possible = x > -np.inf
    return np.where(possible, np.exp(np.where(possible, x, 0.0) - np.where(possible, total, 0.0)), 0.0)
