"""Equations (1)-(9), (14) and (M1)-(M6) for one sequence: right at any magnitude, and for every arc and state.

A row alpha'(t, .) or beta(t, .) is kept twice, both relative to its largest entry: as logs, which cannot underflow, and as
probabilities, each of which is right to rounding or below the smallest float. A sum over arcs of products of three such
probabilities is then wrong by at most that float per arc: what comes out at SAFE or above is right to rounding. Every other
sum is added up again in logs. Where nothing is tiny a row costs one logarithm per state and no transcendental function per
arc.

Alpha gathers arcs by destination and beta by source. Apart from that, and from where a leak comes from and lands, the two
steps are one: `advance`. Means of accuracies (`reference.mbr`) go along where they are asked for: `carry_means`.

The occupancy of state i at time t is, with the sums of (5) before the leak,

    exp(alpha'(t, i) + base(i)) sums(i) / W(t),    W(t) = the sum of these over all states,

and that of an arc that leaves it the same with its term in place of the sum. W(t) is made anew in every frame, so that
occupancies of a frame sum to one by construction, as in (12).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from fsachain.backends.cpu.jit import helper, jit_on_views
from fsachain.backends.cpu.structs import Packed, pack
from fsachain.backends.cpu.threads import run_all
from fsachain.backends.reference.sums import Scores, active_scores
from fsachain.batch import TableBatch
from fsachain.fsa import Floats, Ints
from fsachain.table import ArcView, TransitionTable

SAFE = 1e-280  # some 1e27 times the smallest normal float64, so that even 1e10 arcs lose less than a rounding
LOG_TINY = -700.0  # exp of it is 1e-304


class Direction(NamedTuple):
    """The arcs as seen from one end, row by row, and the leak as seen from there.

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


class LogTable(NamedTuple):
    """A `TransitionTable` for these kernels: arcs into and out of each state; initial and final in logs [S]."""

    into: Direction
    out_of: Direction
    initial: Floats
    final: Floats


class Work(NamedTuple):
    """What `advance` works on.

    x [S] is the row as probabilities. sums [S] exp(base [S]) are the sums of (2) or (5) before the leak, relative to the row
    that they were made from; terms [E] are their parts, relative to the same base. p [K] are the frame's exp(scores). The
    other rows [S] are for `backward`: betas and means of two frames in turn.
    """

    x: Floats
    sums: Floats
    base: Floats
    after: Floats
    now: Floats
    rest: Floats
    to_come: Floats
    share: Floats
    room: Floats
    terms: Floats
    p: Floats


class Wanted(NamedTuple):
    """What `backward` adds to; what has no rows is left out.

    arcs [R, A]: gamma(t, arc) to row t modulo R. states [T + 1, S]: (14). pdfs and changes [T, K]: (7) and the first line of
    (M6) for the active pdfs.
    """

    arcs: Floats = np.empty((0, 0))
    states: Floats = np.empty((0, 0))
    pdfs: Floats = np.empty((0, 0))
    changes: Floats = np.empty((0, 0))


_tables: WeakKeyDictionary[TransitionTable, Packed] = WeakKeyDictionary()


def log_table(table: TransitionTable) -> Packed:
    """`table` for these kernels, a `LogTable`; made once and kept while it lives."""
    if table not in _tables:
        init = table.leak_target
        ones, zeros = np.ones(table.num_states), np.zeros(table.num_states)
        by_dst, by_src = table.by_dst, table.by_src
        made = LogTable(
            into=_direction(by_dst, by_dst.src, ones, zeros, np.exp(init), init),
            out_of=_direction(by_src, by_src.dst, np.exp(init), init, ones, zeros),
            initial=np.ascontiguousarray(table.initial_log_prob),
            final=np.ascontiguousarray(table.final_log_prob),
        )
        _tables[table] = pack(made)
    return _tables[table]


def new_work(table: TransitionTable) -> Packed:
    """A `Work` for one sequence."""
    rows, sizes = np.zeros((9, table.num_states)), (table.num_arcs, len(table.active_pdfs))
    return pack(Work(*(*rows, *(np.empty(size) for size in sizes))))


def _direction(view: ArcView, other: Ints, *leak: Floats) -> Direction:
    largest = float(view.log_prob.max(initial=-np.inf))
    scale = largest if largest > -np.inf else 0.0
    source, log_source, target, log_target = (np.ascontiguousarray(row) for row in leak)
    return Direction(
        offsets=view.offsets.astype(np.int64),
        other=other.astype(np.uint32),
        column=view.column.astype(np.uint32),
        number=view.arc.astype(np.uint32),
        weight=np.exp(view.log_prob - scale),
        log_prob=np.ascontiguousarray(view.log_prob),
        scale=scale,
        source=source,
        log_source=log_source,
        target=target,
        log_target=log_target,
    )


@helper
def _copy(source: Any, target: Any) -> None:
    for i in range(len(source)):
        target[i] = source[i]


@helper
def log_add(x: float, y: float) -> float:
    largest, smallest = max(x, y), min(x, y)
    if largest == -np.inf:  # both are log-zero
        return -np.inf
    return largest + math.log1p(math.exp(smallest - largest))


@helper
def log_sum(x: Any, y: Any) -> float:
    """logsum_i x[i] + y[i]."""
    largest = -np.inf
    for i in range(len(x)):
        largest = max(largest, x[i] + y[i])
    if largest == -np.inf:
        return -np.inf
    total = 0.0
    for i in range(len(x)):
        total += math.exp(x[i] + y[i] - largest)
    return largest + math.log(total)


@helper
def _sums(arcs: Any, x: Any, work: Any) -> float:
    """sums, base and terms in probabilities; returns what a leak collects."""
    offsets, other, column, weight = arcs.offsets, arcs.other, arcs.column, arcs.weight
    sums, terms, p, total = work.sums, work.terms, work.p, 0.0
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


@helper
def _sum_in_logs(arcs: Any, i: int, log_x: Any, y: Any, work: Any) -> None:
    """sums, base and terms of state i anew, relative to the largest arc; sums 0 and base -inf where there is none."""
    largest, total = -np.inf, 0.0
    for e in range(arcs.offsets[i], arcs.offsets[i + 1]):
        work.terms[e] = log_x[arcs.other[e]] + arcs.log_prob[e] + y[arcs.column[e]]
        largest = max(largest, work.terms[e])
    for e in range(arcs.offsets[i], arcs.offsets[i + 1]):
        # Most arcs are far below the largest where sums are made in logs: no exponential for what is no float.
        difference = work.terms[e] - largest if largest > -np.inf else -np.inf
        work.terms[e] = math.exp(difference) if difference > LOG_TINY else 0.0
        total += work.terms[e]
    work.base[i], work.sums[i] = largest, total


@helper
def log_sums(work: Any, row: Any) -> None:
    """row [S] = base + log(sums), the sums before the leak."""
    for i in range(len(row)):
        row[i] = work.base[i] + math.log(work.sums[i]) if work.sums[i] > 0.0 else -np.inf


@helper
def leak_into(arcs: Any, log_c: float, row: Any) -> float:
    """Equation (3) or (5) on a row of logs; returns the log of what was collected, times c."""
    if log_c == -np.inf:
        return -np.inf
    leak = log_c + log_sum(row, arcs.log_source)
    for i in range(len(row)):
        row[i] = log_add(row[i], leak + arcs.log_target[i])
    return leak


@helper
def settle(row: Any, x: Any) -> float:
    """Make the row relative to its largest entry, which is returned, and x the same as probabilities."""
    largest = -np.inf
    for i in range(len(row)):
        largest = max(largest, row[i])
    if largest > -np.inf:
        for i in range(len(row)):
            row[i] -= largest
            x[i] = math.exp(row[i])
    return largest


@helper
def advance(arcs: Any, c: float, y: Any, before: Any, now: Any, work: Any) -> float:
    """One frame of (2) and (3), or of (5): the row of logs `now` [S] from the row `before`, of which work.x holds exp.

    Leaves in `work` the sums before the leak and, as x, exp(now). Returns the number that `now` is relative to; -inf where
    no state is left, and then `now` is all -inf.
    """
    x, sums, base = work.x, work.sums, work.base
    for k in range(len(y)):
        work.p[k] = math.exp(y[k])
    collected = c * _sums(arcs, x, work)
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
                now[i] = log_add(now[i], arcs.scale + math.log(collected) + arcs.log_target[i])
        largest = max(largest, now[i])
    if largest > -np.inf:
        factor = math.exp(arcs.scale - largest)
        for i in range(len(now)):
            now[i] -= largest
            x[i] = x[i] * factor if x[i] >= SAFE else math.exp(now[i])
    return largest


@helper
def _mean(row: Any, weight: Any, means: Any) -> float:
    """The mean of means[i] weighted by exp(row[i] + weight[i]), 0 where all are log-zero."""
    largest, total, mean = -np.inf, 0.0, 0.0
    for i in range(len(row)):
        largest = max(largest, row[i] + weight[i])
    if largest == -np.inf:
        return 0.0
    for i in range(len(row)):
        part = math.exp(row[i] + weight[i] - largest)
        total += part
        mean += part * means[i]
    return mean / total


@helper
def carry_means(
    arcs: Any, c: float, a: Any, largest: float, now: Any, before: Any, means: Any, work: Any
) -> None:
    """(M1) and (M2), or (M4): means [S] from the means `before`, after `advance` made `now` relative to `largest`.

    a [K] are the accuracies of the frame.
    """
    for i in range(len(means)):
        mean = 0.0
        for e in range(arcs.offsets[i], arcs.offsets[i + 1]):
            mean += work.terms[e] * (before[arcs.other[e]] + a[arcs.column[e]])
        means[i] = mean / work.sums[i] if work.sums[i] > 0.0 else 0.0
    if c > 0.0 and largest > -np.inf:
        row = work.room
        log_sums(work, row)
        leaked = _mean(row, arcs.log_source, means)
        for i in range(len(means)):
            if now[i] > -np.inf:
                stays = math.exp(min(row[i] - largest - now[i], 0.0))
                means[i] = leaked + stays * (means[i] - leaked)


@jit_on_views
def forward(
    table: Any, c: float, frames: Any, accuracy: Any, history: Any, gains: Any, work: Any
) -> tuple[float, float]:
    """alpha'(t, i) of (1)-(3) into row t modulo R of history [R, S], each relative to its largest; log Z of `frames`.

    frames [T, K] are the scores of the active pdfs, shifted such that none is positive. Unless gains [R, S] has no rows,
    u'(t, i) of (M1), (M2) for the accuracies [T, K] go there, and E[A] of (M3) is returned too.
    """
    log_c = math.log(c) if c > 0.0 else -np.inf
    num_frames, rows = len(frames), len(history)
    _copy(table.initial, history[0])
    leak_into(table.into, log_c, history[0])
    log_z = settle(history[0], work.x)
    if len(gains) > 0:
        gains[0] = 0.0
    for t in range(num_frames):
        if log_z == -np.inf:
            return -np.inf, -np.inf
        before, now = t % rows, (t + 1) % rows
        largest = advance(table.into, c, frames[t], history[before], history[now], work)
        if len(gains) > 0:
            ends = history[now], gains[before], gains[now]
            carry_means(table.into, c, accuracy[t], largest, *ends, work)
        log_z += largest
    last = history[num_frames % rows]
    if log_z > -np.inf:
        log_z += log_sum(last, table.final)
    if log_z == -np.inf:
        return -np.inf, -np.inf
    return log_z, _mean(last, table.final, gains[num_frames % rows]) if len(gains) > 0 else 0.0


@helper
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


@helper
def _add_shares(arcs: Any, places: Any, terms: Any, share: Any, row: Any) -> None:
    """row += (6) at the places [E] of the arcs: [A] by their numbers, or [K], which is (7), by their pdfs."""
    for i in range(len(share)):
        if share[i] > 0.0:
            for e in range(arcs.offsets[i], arcs.offsets[i + 1]):
                row[places[e]] += share[i] * terms[e]


@helper
def _add_changes(
    arcs: Any, terms: Any, share: Any, a: Any, gain: Any, rest: Any, pdfs: Any, row: Any
) -> None:
    """row [K] += (M6) from u', v and the occupancies `pdfs` [K]."""
    mean = 0.0
    for i in range(len(share)):
        if share[i] > 0.0:
            for e in range(arcs.offsets[i], arcs.offsets[i + 1]):
                k = arcs.column[e]
                change = share[i] * terms[e] * (gain[i] + a[k] + rest[arcs.other[e]])
                row[k] += change
                mean += change
    for k in range(len(row)):
        row[k] -= pdfs[k] * mean


@jit_on_views
def backward(
    table: Any, c: float, frames: Any, accuracy: Any, history: Any, gains: Any, work: Any, wanted: Any
) -> None:
    """What is `wanted` of equations (5)-(7), (14) and (M4)-(M6) for a sequence that has a path; inputs as for `forward`."""
    log_c = math.log(c) if c > 0.0 else -np.inf
    view, num_frames, num_states = table.out_of, len(frames), len(table.final)
    share, after, now, rest, to_come = work.share, work.after, work.now, work.rest, work.to_come
    for t in range(num_frames, -1, -1):
        if t == num_frames:
            _copy(table.final, now)
            _copy(table.final, work.base)
            work.sums[:] = 1.0
            leak_into(view, log_c, now)
            settle(now, work.x)
        else:
            largest = advance(view, c, frames[t], after, now, work)
            if len(gains) > 0:
                carry_means(view, c, accuracy[t], largest, now, rest, to_come, work)
        _shares(history[t], work, share)
        if len(wanted.states) > 0:
            for i in range(num_states):
                wanted.states[t, i] += share[i] * work.sums[i]
        if t < num_frames:
            if len(wanted.arcs) > 0:
                _add_shares(view, view.number, work.terms, share, wanted.arcs[t % len(wanted.arcs)])
            if len(wanted.pdfs) > 0:
                _add_shares(view, view.column, work.terms, share, wanted.pdfs[t])
            if len(wanted.changes) > 0:
                given = accuracy[t], gains[t], rest, wanted.pdfs[t]
                _add_changes(view, work.terms, share, *given, wanted.changes[t])
        now, after = after, now
        to_come, rest = rest, to_come


def run(
    table: TransitionTable, scores: Scores, leaky: float, wanted: Wanted, accuracy: Floats | None = None
) -> tuple[float, float]:
    """log Z of one sequence, and E[A] where accuracies [T, K] of the active pdfs are given; makes what is `wanted`.

    NaN for an illegal score. Memory O(T S) where anything is wanted.
    """
    frames, num_frames = active_scores(table, scores), len(scores)
    if not frames.legal:
        return np.nan, np.nan
    is_wanted = any(len(part) for part in wanted)
    rows = num_frames + 1 if is_wanted else 2
    history = np.empty((rows, table.num_states))
    gains = np.empty((0 if accuracy is None else rows, table.num_states))
    gained = np.empty((0, 0)) if accuracy is None else accuracy
    inputs = log_table(table), leaky, frames.scores, gained, history, gains, new_work(table)
    log_z, mean = forward(*inputs)
    if is_wanted and log_z > -np.inf:
        backward(*inputs, pack(wanted))
    return log_z + float(frames.shift.sum()), mean


def arc_occupancy(table: TransitionTable, scores: Scores, leaky: float) -> Floats:
    """gamma(t, arc) of one sequence, float64 [T, A]; see `reference.arc_occupancy`."""
    arcs = np.zeros((len(scores), table.num_arcs))
    run(table, scores, leaky, Wanted(arcs=arcs))
    return arcs


def state_occupancy(table: TransitionTable, scores: Scores, leaky: float) -> Floats:
    """Equation (14) for one sequence, float64 [T + 1, S]; see `reference.state_occupancy`."""
    states = np.zeros((len(scores) + 1, table.num_states))
    run(table, scores, leaky, Wanted(states=states))
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

    def job(n: int) -> None:
        run(batch.table(n), scores[n, : lengths[n]], leaky, Wanted(arcs=counts[n][None]))

    run_all([partial(job, n) for n in range(batch.size)])


@jit_on_views
def best_path(table: Any, frames: Any, rows: Any, back: Any, path: Any) -> float:
    """Equations (8) and (9) of shifted scores [T, K]: the score; the arcs into path [T]; rows [2, S], back [T, S]: room."""
    arcs, num_states, before, now = table.into, len(table.initial), rows[0], rows[1]
    _copy(table.initial, before)
    for t in range(len(frames)):
        for j in range(num_states):
            now[j] = -np.inf
            for e in range(arcs.offsets[j], arcs.offsets[j + 1]):
                x = before[arcs.other[e]] + arcs.log_prob[e] + frames[t, arcs.column[e]]
                if x > now[j]:
                    now[j], back[t, j] = x, e
        before, now = now, before
    state, score = 0, -np.inf
    for i in range(num_states):
        if before[i] + table.final[i] > score:
            state, score = i, before[i] + table.final[i]
    if score > -np.inf:
        for t in range(len(frames) - 1, -1, -1):
            e = back[t, state]
            path[t], state = arcs.number[e], arcs.other[e]
    return score
