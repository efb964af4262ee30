"""Numba kernels for the rows alpha'(t, .) and beta(t, .) of one sequence: added up in probabilities, remembered in logs.

A row is kept twice, both relative to its largest entry: as logs, which cannot underflow, and as probabilities, each of
which is right to rounding or below the smallest float. A sum over arcs of products of three such probabilities is then
wrong by at most that float per arc: what comes out at SAFE or above is right to rounding. Every other sum is added up
again in logs. Hence the result is right at any magnitude of the scores, and where nothing is tiny a row costs one
logarithm per state and no transcendental function per arc.

Alpha gathers arcs by destination and beta by source. Apart from that, and from where a leak comes from and lands, the two
steps are one: `advance`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.backends.cpu.jit import jit
from fsachain.backends.cpu.log import _log_add, _log_sum
from fsachain.backends.cpu.threads import run_all
from fsachain.backends.reference.sums import _frames
from fsachain.batch import TableBatch
from fsachain.fsa import Floats, Ints
from fsachain.table import ArcView, TransitionTable

SAFE = 1e-280  # some 1e27 times the smallest normal float64, so that even 1e10 arcs lose less than a rounding
LOG_TINY = -700.0  # exp of it is 1e-304


class ArcRows(NamedTuple):
    """The arcs of one direction, row by row, and the leak as seen from there.

    offsets: int64 [S + 1]; other: uint32 [E], the state at the arc's other end; column: uint32 [E], the pdf's index;
    number: uint32 [E], the arc's number in the caller's Fsa. weight [E] is exp(log_prob - scale), at most 1. A leak
    collects probability from state k with weight source(k) and gives it to state i with weight target(i).
    """

    offsets: npt.NDArray[np.int64]
    other: npt.NDArray[np.uint32]
    column: npt.NDArray[np.uint32]
    number: npt.NDArray[np.uint32]
    weight: Floats
    log_prob: Floats
    scale: float
    source: Floats
    log_source: Floats
    target: Floats
    log_target: Floats


class RowTable(NamedTuple):
    """A `TransitionTable` for these kernels: arcs into and out of each state; initial and final in logs [S]."""

    into: ArcRows
    out_of: ArcRows
    initial: Floats
    final: Floats


class Work(NamedTuple):
    """What `advance` works on.

    x [S] is the row as probabilities. sums [S] exp(base [S]) are the sums of (2) or (5) before the leak, relative to the row
    that they were made from; terms [E] are their parts, relative to the same base.
    """

    x: Floats
    sums: Floats
    base: Floats
    terms: Floats


def row_table(table: TransitionTable) -> RowTable:
    """`table` for these kernels: two exponentials per arc, everything else without a copy."""
    init = table.leak_target
    ones, zeros = np.ones(table.num_states), np.zeros(table.num_states)
    by_dst, by_src = table.by_dst, table.by_src
    return RowTable(
        into=_arc_rows(by_dst, by_dst.src, (ones, zeros, np.exp(init), init)),
        out_of=_arc_rows(by_src, by_src.dst, (np.exp(init), init, ones, zeros)),
        initial=_fixed(table.initial_log_prob),
        final=_fixed(table.final_log_prob),
    )


def new_work(table: TransitionTable) -> Work:
    """Room for the rows of one sequence."""
    x, sums, base = np.empty((3, table.num_states))
    return Work(x, sums, base, np.empty(len(table.by_src.arc)))


def _arc_rows(view: ArcView, other: Ints, leak: tuple[Floats, ...]) -> ArcRows:
    largest = float(view.log_prob.max(initial=-np.inf))
    scale = largest if largest > -np.inf else 0.0
    return ArcRows(
        offsets=_fixed(view.offsets),
        other=_fixed(other).view(np.uint32),
        column=_fixed(view.column).view(np.uint32),
        number=_fixed(view.arc).view(np.uint32),
        weight=_fixed(np.exp(view.log_prob - scale)),
        log_prob=_fixed(view.log_prob),
        scale=scale,
        source=_fixed(leak[0]),
        log_source=_fixed(leak[1]),
        target=_fixed(leak[2]),
        log_target=_fixed(leak[3]),
    )


def _fixed(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array as a contiguous read-only view: kernels are compiled once, not for each kind of memory."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


@jit
def _sums(arcs: Any, x: Any, p: Any, work: Any) -> float:
    """sums, base and terms in probabilities; returns what a leak collects. p [K] are the frame's exp(scores)."""
    offsets, other, column, weight = arcs.offsets, arcs.other, arcs.column, arcs.weight
    sums, terms, total = work.sums, work.terms, 0.0
    for i in range(len(sums)):
        even = odd = 0.0
        e, last = offsets[i], offsets[i + 1]
        while e + 1 < last:
            terms[e] = x[other[e]] * (weight[e] * p[column[e]])
            terms[e + 1] = x[other[e + 1]] * (weight[e + 1] * p[column[e + 1]])
            even += terms[e]
            odd += terms[e + 1]
            e += 2
        if e < last:
            terms[e] = x[other[e]] * (weight[e] * p[column[e]])
            even += terms[e]
        sums[i] = even + odd
        work.base[i] = arcs.scale
        total += arcs.source[i] * sums[i]
    return total


@jit
def _sum_in_logs(arcs: Any, i: int, log_x: Any, y: Any, work: Any) -> None:
    """sums, base and terms of state i anew, relative to the largest arc; sums 0 and base -inf where there is none."""
    first, last = arcs.offsets[i], arcs.offsets[i + 1]
    largest, total = -np.inf, 0.0
    for e in range(first, last):
        term = log_x[arcs.other[e]] + arcs.log_prob[e] + y[arcs.column[e]]
        work.terms[e] = term
        largest = term if term > largest else largest
    if largest == -np.inf:
        work.terms[first:last] = 0.0
        work.base[i], work.sums[i] = -np.inf, 0.0
        return
    for e in range(first, last):
        # Most arcs are far below the largest where sums are made in logs: no exponential for what is no float.
        difference = work.terms[e] - largest
        work.terms[e] = math.exp(difference) if difference > LOG_TINY else 0.0
        total += work.terms[e]
    work.base[i], work.sums[i] = largest, total


@jit
def log_sums(work: Any, row: Any) -> None:
    """row [S] = base + log(sums), the sums before the leak."""
    for i in range(len(row)):
        row[i] = work.base[i] + math.log(work.sums[i]) if work.sums[i] > 0.0 else -np.inf


@jit
def leak_into(arcs: Any, log_c: float, row: Any) -> float:
    """Equation (3) or (5) on a row of logs; returns the log of what was collected, times c."""
    if log_c == -np.inf:
        return -np.inf
    leak = log_c + _log_sum(row, arcs.log_source)
    for i in range(len(row)):
        row[i] = _log_add(row[i], leak + arcs.log_target[i])
    return leak


@jit
def settle(row: Any, x: Any) -> float:
    """Make the row relative to its largest entry, which is returned, and x the same as probabilities."""
    largest = row.max()
    if largest > -np.inf:
        for i in range(len(row)):
            row[i] -= largest
            x[i] = math.exp(row[i])
    return largest


@jit
def advance(arcs: Any, c: float, y: Any, p: Any, before: Any, now: Any, work: Any) -> float:
    """One frame of (2) and (3), or of (5): the row of logs `now` [S] from the row `before`, of which work.x holds exp.

    Leaves in `work` the sums before the leak and, as x, exp(now). Returns the number that `now` is relative to; -inf where
    no state is left, and then `now` is all -inf.
    """
    x, sums, base = work.x, work.sums, work.base
    collected = c * _sums(arcs, x, p, work)
    if c > 0.0 and collected < SAFE:  # in logs altogether
        for i in range(len(now)):
            _sum_in_logs(arcs, i, before, y, work)
        log_sums(work, now)
        leak_into(arcs, math.log(c), now)
        return settle(now, x)
    largest = -np.inf
    for i in range(len(now)):
        x[i] = sums[i] + collected * arcs.target[i]
        if x[i] >= SAFE:
            now[i] = arcs.scale + math.log(x[i])
        else:
            _sum_in_logs(arcs, i, before, y, work)
            now[i] = base[i] + math.log(sums[i]) if sums[i] > 0.0 else -np.inf
            if c > 0.0:
                now[i] = _log_add(now[i], arcs.scale + math.log(collected) + arcs.log_target[i])
        largest = max(largest, now[i])
    if largest > -np.inf:
        factor = math.exp(arcs.scale - largest)
        for i in range(len(now)):
            now[i] -= largest
            x[i] = x[i] * factor if x[i] >= SAFE else math.exp(now[i])
    return largest


@jit
def to_probs(y: Any, p: Any) -> None:
    """p = exp(y) for one frame."""
    for k in range(len(p)):
        p[k] = math.exp(y[k])


@jit
def forward(table: Any, c: float, frames: Any, history: Any, work: Any) -> float:
    """alpha'(t, i) of (1)-(3) into history [T + 1, S], each row relative to its largest; returns log Z of `frames`.

    `frames` [T, K] are the scores of the active pdfs, shifted such that none is positive.
    """
    log_c = math.log(c) if c > 0.0 else -np.inf
    p = np.empty(frames.shape[1])
    history[0] = table.initial
    leak_into(table.into, log_c, history[0])
    log_z = settle(history[0], work.x)
    for t in range(len(frames)):
        if log_z == -np.inf:
            return -np.inf
        to_probs(frames[t], p)
        log_z += advance(table.into, c, frames[t], p, history[t], history[t + 1], work)
    return log_z + _log_sum(history[len(frames)], table.final) if log_z > -np.inf else -np.inf


# Occupancies of arcs and states on the CPU, equation (6) and its sums: one sequence a job, float64, any
# magnitude.
#
# With alpha' and beta as `cpu_rows` keeps them, state i has at time t the share
#
#     exp(alpha'(t, i) + base(i)) sums(i) / W(t),    W(t) = the sum of these over all states,
#
# and an arc that leaves it the same with its term in place of the sum. W(t) is made anew in every frame, so
# that occupancies of a frame sum to one by construction, as in (12). The exponents are compared with their
# largest before they are raised: a share is right to rounding or below 1e-300.

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
