"""Equations (1)-(9) and (14) of `fsachain.recursion` in numpy float64, one sequence at a time.

Scores of a frame are shifted by their maximum over the active pdfs, which (4) adds back: alpha then stays small enough
for float64 at any magnitude of the scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.backends import LogProbs, Paths
from fsachain.batch import TableBatch
from fsachain.fsa import Ints
from fsachain.recursion import Array, log_add, log_sum, log_sum_rows
from fsachain.table import TransitionTable

Scores = npt.NDArray[np.floating]


@dataclass(frozen=True)
class ActiveScores:
    """One sequence's scores on the active pdfs [T, K], shifted by `shift` [T]; `legal` is False for NaN or +inf."""

    scores: Array
    shift: Array
    legal: bool


def active_scores(table: TransitionTable, scores: Scores) -> ActiveScores:
    active = np.asarray(scores[:, table.active_pdfs], dtype=np.float64)
    legal = not bool((np.isnan(active) | (active == np.inf)).any())
    shift = active.max(axis=1, initial=-np.inf)
    shift = np.where(np.isneginf(shift), 0.0, shift)
    with np.errstate(invalid="ignore"):  # +inf - +inf, in a sequence that is not legal
        return ActiveScores(active - shift[:, None], shift, legal)


def _leak(x: Array, log_leak: float, target: Array) -> Array:
    """Equation (3), and (5) with the roles of x and init exchanged by the caller."""
    return x if np.isneginf(log_leak) else log_add(x, log_leak + target)


def _alphas(table: TransitionTable, frames: Array, leaky: float) -> Array:
    """alpha'(t, i), float64 [T + 1, S], of shifted scores [T, K]."""
    log_c = np.log(leaky) if leaky > 0.0 else -np.inf
    init = table.leak_target
    view = table.by_dst
    alpha = np.empty((len(frames) + 1, table.num_states))
    alpha[0] = table.initial_log_prob  # (1)
    for t in range(len(frames) + 1):
        if t > 0:
            arcs = alpha[t - 1][view.src] + view.log_prob + frames[t - 1][view.column]
            alpha[t] = log_sum_rows(arcs, view.offsets)  # (2)
        alpha[t] = _leak(alpha[t], log_c + log_sum(alpha[t]), init)  # (3)
    return alpha


def _betas(table: TransitionTable, frames: Array, leaky: float, log_z: float) -> Array:
    """beta(t, i), float64 [T + 1, S]."""
    log_c = np.log(leaky) if leaky > 0.0 else -np.inf
    init = table.leak_target
    beta = np.empty((len(frames) + 1, table.num_states))
    for t in range(len(frames), -1, -1):
        inner = before_leak(table, frames, beta, t, log_z)
        beta[t] = _leak(inner, log_c + log_sum(init + inner), np.zeros(table.num_states))  # (5)
    return beta


def before_leak(table: TransitionTable, frames: Array, beta: Array, t: int, log_z: float) -> Array:
    """beta'(t, i) of (5), float64 [S], from the later rows of beta."""
    if t == len(frames):
        return table.final_log_prob - log_z
    view = table.by_src
    arcs = view.log_prob + frames[t][view.column] + beta[t + 1][view.dst]
    return log_sum_rows(arcs, view.offsets)


def _log_z(table: TransitionTable, alpha: Array) -> float:
    return log_sum(alpha[-1] + table.final_log_prob)  # (4), without the shifts


class Trellis(NamedTuple):
    """(1)-(5) of one sequence: its shifted scores [T, K], alpha' and beta [T + 1, S], and log Z without the shifts."""

    scores: Array
    alpha: Array
    beta: Array
    log_z: float


def trellis(table: TransitionTable, scores: Scores, leaky: float) -> Trellis | None:
    """None for an impossible sequence."""
    frames = active_scores(table, scores)
    if not frames.legal:
        return None
    alpha = _alphas(table, frames.scores, leaky)
    log_z = _log_z(table, alpha)
    if np.isneginf(log_z):
        return None
    return Trellis(frames.scores, alpha, _betas(table, frames.scores, leaky, log_z), log_z)


def log_gamma(table: TransitionTable, found: Trellis, t: int) -> Array:
    """The log of (6) for the arcs [A] of `table.by_src`."""
    view = table.by_src
    before, after = found.alpha[t][view.src], found.beta[t + 1][view.dst]
    return before + view.log_prob + found.scores[t][view.column] + after


def log_probs(batch: TableBatch, scores: Scores, lengths: npt.NDArray[np.int64], leaky: float) -> LogProbs:
    """log Z [N] (NaN for an illegal score, -inf where no path exists) and ok [N]."""
    log_prob = np.empty(batch.size)
    for n in range(batch.size):
        frames = active_scores(batch.table(n), scores[n, : lengths[n]])
        alpha = _alphas(batch.table(n), frames.scores, leaky) if frames.legal else None
        log_prob[n] = np.nan if alpha is None else _log_z(batch.table(n), alpha) + frames.shift.sum()
    return LogProbs(log_prob, np.isfinite(log_prob))


def arc_occupancy(table: TransitionTable, scores: Scores, leaky: float) -> Array:
    """gamma(t, arc) of equation (6), float64 [T, A] in the caller's arc order; all zero for an impossible sequence."""
    result = np.zeros((len(scores), table.num_arcs))
    found = trellis(table, scores, leaky)
    if found is None:
        return result
    for t in range(len(scores)):
        result[t, table.by_src.arc] = np.exp(log_gamma(table, found, t))
    return result


def state_occupancy(table: TransitionTable, scores: Scores, leaky: float) -> Array:
    """Equation (14), float64 [T + 1, S]: the share of paths that are in state i before frame t; all zero if impossible."""
    result = np.zeros((len(scores) + 1, table.num_states))
    found = trellis(table, scores, leaky)
    if found is None:
        return result
    for t, alpha in enumerate(found.alpha):
        result[t] = np.exp(alpha + before_leak(table, found.scores, found.beta, t, found.log_z))  # (14)
    return result


def add_arc_occupancy(
    batch: TableBatch,
    scores: Scores,
    lengths: npt.NDArray[np.int64],
    leaky: float,
    counts: Sequence[Array],
) -> None:
    """Add to counts[n] [A_n] how often sequence n takes each arc: the sum of gamma(t, arc) over t = d log Z / d log_prob."""
    for n in range(batch.size):
        counts[n] += arc_occupancy(batch.table(n), scores[n, : lengths[n]], leaky).sum(axis=0)


def add_occupancy(
    batch: TableBatch,
    scores: Scores,
    lengths: npt.NDArray[np.int64],
    leaky: float,
    weights: Array,
    out: npt.NDArray[np.floating],
    memory_budget: float | None = None,
) -> LogProbs:
    """Add weights[n] x occupancy(t, p) of equation (7) to out [N, T, P]; returns log Z [N] and ok [N].

    `memory_budget` changes nothing: all alphas, betas and occupancies of arcs of one sequence are kept.
    """
    log_prob, ok = log_probs(batch, scores, lengths, leaky)
    for n in np.flatnonzero(ok):
        table = batch.table(int(n))
        gamma = arc_occupancy(table, scores[n, : lengths[n]], leaky)
        for column, pdf in enumerate(table.active_pdfs):
            first, last = table.by_column.offsets[column : column + 2]
            out[n, : lengths[n], pdf] += weights[n] * gamma[:, table.by_column.arc[first:last]].sum(axis=1)
    return LogProbs(log_prob, ok)


def add_penalties(
    scores: Scores,
    lengths: npt.NDArray[np.int64],
    weights: Array,
    factors: tuple[float, float, float],
    out: npt.NDArray[np.floating],
) -> Array:
    """Penalties on large scores, sequence n's times weights[n]; sequences of weight 0 are not looked at.

    factors: l2, o and the limit L. Returns -1/2 l2 sum y^2 and -1/2 o sum (|y| - L)_+^2 over real frames; their
    derivatives are added to out [N, T, P] unless it is empty. A score of -inf costs nothing.
    """
    l2, out_of_range, limit = factors
    l2_term = range_term = 0.0
    for n in np.flatnonzero(weights):
        y = np.asarray(scores[n, : lengths[n]], dtype=np.float64)
        y = np.where(np.isfinite(y), y, 0.0)
        excess = y - np.clip(y, -limit, limit)
        l2_term -= 0.5 * l2 * weights[n] * float((y * y).sum())
        range_term -= 0.5 * out_of_range * weights[n] * float((excess * excess).sum())
        if len(out):
            out[n, : lengths[n]] -= weights[n] * (l2 * y + out_of_range * excess)
    return np.array([l2_term, range_term])


def best_paths(
    batch: TableBatch, scores: Scores, lengths: npt.NDArray[np.int64], memory_budget: float | None = None
) -> Paths:
    found = [best_path(batch.table(n), scores[n, : lengths[n]]) for n in range(batch.size)]
    return Paths(np.array([score for score, _ in found]), [arcs for _, arcs in found])


def best_path(table: TransitionTable, scores: Scores) -> tuple[float, Ints]:
    """Score and arcs [T] of the best path, equations (8) and (9); an empty array where there is none."""
    none = np.empty(0, dtype=np.int32)
    frames = active_scores(table, scores)
    if not frames.legal:
        return np.nan, none
    view = table.by_dst
    delta = table.initial_log_prob
    back = np.full((len(scores), table.num_states), -1)
    for t in range(len(scores)):
        arcs = delta[view.src] + view.log_prob + frames.scores[t][view.column]
        delta = np.full(table.num_states, -np.inf)
        for j in np.flatnonzero(np.diff(view.offsets)):
            first, last = view.offsets[j : j + 2]
            best = first + int(np.argmax(arcs[first:last]))
            delta[j], back[t, j] = arcs[best], best
    total = delta + table.final_log_prob
    state = int(np.argmax(total))
    if np.isneginf(total[state]):
        return -np.inf, none
    score = float(total[state] + frames.shift.sum())
    path = np.empty(len(scores), dtype=np.int32)
    for t in range(len(scores) - 1, -1, -1):
        path[t] = view.arc[back[t, state]]
        state = int(view.src[back[t, state]])
    return score, path
