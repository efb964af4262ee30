"""Occupancies of arcs and states on the CPU, equation (6) and its sums: one sequence a job, float64, any magnitude.

With alpha' and beta as `cpu_rows` keeps them, state i has at time t the share

    exp(alpha'(t, i) + base(i)) sums(i) / W(t),    W(t) = the sum of these over all states,

and an arc that leaves it the same with its term in place of the sum. W(t) is made anew in every frame, so that occupancies
of a frame sum to one by construction, as in (12). The exponents are compared with their largest before they are raised:
a share is right to rounding or below 1e-300.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fsachain.backends.cpu_rows import advance, forward, leak_into, new_work, row_table, settle, to_probs
from fsachain.backends.jit import jit
from fsachain.backends.reference import _frames
from fsachain.backends.threads import run_all
from fsachain.batch import TableBatch
from fsachain.fsa import Floats
from fsachain.table import TransitionTable

Scores = npt.NDArray[np.floating]


def arc_occupancy(table: TransitionTable, scores: Scores, leaky: float) -> Floats:
    """gamma(t, arc) of one sequence, float64 [T, A]; see `reference.arc_occupancy`."""
    arcs = np.zeros((len(scores), table.num_arcs))
    _add(table, row_table(table), scores, leaky, arcs, np.empty((0, 0)))
    return arcs


def state_occupancy(table: TransitionTable, scores: Scores, leaky: float) -> Floats:
    """Equation (14) for one sequence, float64 [T + 1, S]; see `reference.state_occupancy`."""
    states = np.zeros((len(scores) + 1, table.num_states))
    _add(table, row_table(table), scores, leaky, np.empty((0, 0)), states)
    return states


def add_arc_occupancy(
    batch: TableBatch,
    scores: Scores,
    lengths: npt.NDArray[np.int64],
    leaky: float,
    counts: Sequence[Floats],
) -> None:
    """Add the sum over frames of gamma(t, arc) of each sequence to counts[n] [A_n]; see `reference.add_arc_occupancy`.

    Time O(T A) per sequence, memory O(T S) per thread.
    """
    shared = row_table(batch.tables[0]) if batch.is_shared else None

    def job(n: int) -> Callable[[], None]:
        def run() -> None:
            table = batch.table(n)
            rows = row_table(table) if shared is None else shared
            _add(table, rows, scores[n, : lengths[n]], leaky, counts[n][None], np.empty((0, 0)))

        return run

    run_all([job(n) for n in range(batch.size)])


def _add(
    table: TransitionTable, rows: Any, scores: Scores, leaky: float, arcs: Floats, states: Floats
) -> None:
    frames = _frames(table, scores)
    if not frames.legal:
        return
    history = np.empty((len(scores) + 1, table.num_states))
    work = new_work(table)
    if forward(rows, leaky, frames.scores, history, work) > -np.inf:
        _backward(rows, leaky, frames.scores, history, work, arcs, states)


@jit
def _shares(alpha: Any, work: Any, share: Any) -> None:
    """share [S] such that share(i) sums(i) is the occupancy of state i and share(i) terms(e) that of its arc e."""
    largest, total = -np.inf, 0.0
    for i in range(len(alpha)):
        share[i] = alpha[i] + work.base[i] if work.sums[i] > 0.0 else -np.inf
        largest = max(largest, share[i])
    for i in range(len(alpha)):
        share[i] = math.exp(share[i] - largest) if largest > -np.inf else 0.0
        total += share[i] * work.sums[i]
    for i in range(len(alpha)):
        share[i] = share[i] / total if total > 0.0 else 0.0


@jit
def _backward(table: Any, c: float, frames: Any, history: Any, work: Any, arcs: Any, states: Any) -> None:
    """Equations (5) and (6) for a sequence that has a path, given alpha' in history [T + 1, S].

    Adds gamma(t, arc) to row t modulo R of arcs [R, A] and equation (14) to row t of states [T + 1, S]; either may have no
    rows, and then it is not made.
    """
    log_c = math.log(c) if c > 0.0 else -np.inf
    view, num_frames, num_states = table.out_of, len(frames), len(table.final)
    p, share = np.empty(frames.shape[1]), np.empty(num_states)
    after, now = np.empty(num_states), np.empty(num_states)
    for t in range(num_frames, -1, -1):
        if t == num_frames:
            now[:] = table.final
            work.base[:] = table.final
            work.sums[:] = 1.0
            leak_into(view, log_c, now)
            settle(now, work.x)
        else:
            to_probs(frames[t], p)
            advance(view, c, frames[t], p, after, now, work)
        _shares(history[t], work, share)
        if len(states) > 0:
            for i in range(num_states):
                states[t, i] += share[i] * work.sums[i]
        if t < num_frames and len(arcs) > 0:
            row = arcs[t % len(arcs)]
            for i in range(num_states):
                if share[i] > 0.0:
                    for e in range(view.offsets[i], view.offsets[i + 1]):
                        row[view.number[e]] += share[i] * work.terms[e]
        now, after = after, now
