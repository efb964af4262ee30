"""State-level minimum Bayes risk on the CPU: which kernel each sequence runs through, decided by its data, and threads.

Sequences run in float64 probabilities (`cpu_mbr_scaled`), in groups where they share a graph. Equation (13) is checked on
the way; a sequence that fails it runs again in logs (`cpu_mbr_log`). Where the alphas of all frames take more than the
memory budget, those of every sqrt(T)-th frame are kept and the others are computed anew: the same bits, 1.1 to 1.5 times
the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from fsachain.backends.cpu.jit import jit
from fsachain.backends.cpu.log import LogTable, _log_add, _log_sum, log_table
from fsachain.backends.cpu.log import _load as _load_scores
from fsachain.backends.cpu.memory import thread_budget
from fsachain.backends.cpu.threads import get_num_threads, run_all
from fsachain.batch import TableBatch
from fsachain.table import TransitionTable

# Numba kernels for (M1)-(M6) of `reference.mbr` in float64 logs, one sequence at a time: right at any
# magnitude.
#
# Alphas and betas are logs, normalised in every frame; u and v are plain numbers, since they are means of
# accuracies.


class LogInputs(NamedTuple):
    """What the kernels read: a `LogTable`, log c, scores and accuracies [T, P] of one sequence."""

    table: Any
    log_c: float
    scores: Any
    accuracy: Any


@jit
def _leak(plain: Any, mean: Any, leak: float, target: Any, leaked: float) -> None:
    """(M2) and (M4): log-adds leak + target[i] to plain[i], whose mean is then a mean with `leaked`."""
    for i in range(len(plain)):
        extra = leak + target[i]
        both = _log_add(plain[i], extra)
        if both > -np.inf:
            mean[i] = leaked + math.exp(plain[i] - both) * (mean[i] - leaked)
        plain[i] = both


@jit
def _weighted_mean(x: Any, y: Any, mean: Any) -> tuple[float, float]:
    """total = logsum_i x[i] + y[i], and the mean of mean[i] weighted by the exp of the terms, 0 if all are log-zero."""
    total = _log_sum(x, y)
    result = 0.0
    if total > -np.inf:
        for i in range(len(x)):
            result += math.exp(x[i] + y[i] - total) * mean[i]
    return total, result


@jit
def _load_accuracy(accuracy: Any, active: Any, a: Any) -> float:
    """a = accuracy[active]; NaN if an accuracy is not finite, else 0."""
    illegal = 0.0
    for k in range(len(active)):
        a[k] = accuracy[active[k]]
        if not -np.inf < a[k] < np.inf:
            illegal = np.nan
    return illegal


@jit
def forward_in_logs(inputs: Any, span: Any, alpha: Any, gain: Any, sums: Any) -> None:
    """alpha' and u' of frames span[0] to span[1] into the rows of alpha and gain [rows, S], the first one given if t > 0.

    sums: log Z and E[A], carried from span to span and final after the last frame; NaN for illegal scores or accuracies.
    """
    table, log_c, scores, accuracy = inputs.table, inputs.log_c, inputs.scores, inputs.accuracy
    offsets, src, column, log_prob = table.dst_offsets, table.dst_src, table.dst_column, table.dst_log_prob
    num_states, rows = len(table.initial), len(alpha)
    y, a = np.empty(len(table.active)), np.empty(len(table.active))
    arc = np.empty(len(src))
    for t in range(span[0], span[1] + 1):
        now, u = alpha[(t - span[0]) % rows], gain[(t - span[0]) % rows]
        if t == 0:
            now[:] = table.initial
            u[:] = 0.0
            sums[:] = 0.0
        elif t == span[0]:
            continue
        else:
            before, u_before = alpha[(t - 1 - span[0]) % rows], gain[(t - 1 - span[0]) % rows]
            sums[0] += _load_scores(scores[t - 1], table.active, y)
            sums[1] += _load_accuracy(accuracy[t - 1], table.active, a)
            if math.isnan(sums[0]):
                sums[1] = np.nan
                return
            for j in range(num_states):
                first, last = offsets[j], offsets[j + 1]
                for e in range(first, last):
                    arc[e] = before[src[e]] + log_prob[e] + y[column[e]]
                now[j] = _log_sum(arc[first:last], table.zeros)  # (2)
                u[j] = 0.0
                if now[j] > -np.inf:
                    for e in range(first, last):
                        u[j] += math.exp(arc[e] - now[j]) * (u_before[src[e]] + a[column[e]])  # (M1)
        total, leaked = _weighted_mean(now, table.zeros, u)
        if total > -np.inf:
            sums[0] += total
            for i in range(num_states):
                now[i] -= total
            if log_c > -np.inf:
                _leak(now, u, log_c, table.init, leaked)
        else:
            sums[0] = -np.inf
        if t == len(scores):
            z, mean = _weighted_mean(now, table.final, u)  # (4), (M3)
            sums[0] += z
            sums[1] += mean if sums[0] > -np.inf else -np.inf


@jit
def backward_in_logs(
    inputs: Any,
    span: Any,
    alpha: Any,
    gain: Any,
    carried: Any,
    weight: float,
    out: Any,
    occupancy: Any,
) -> None:
    """(M4)-(M6) of frames span[1] - 1 down to span[0], for a sequence that has a path.

    carried [2, S]: betas and v of frame span[1], in the end those of span[0]. weight d E[A] / d y is written to the
    active columns of out [T, P], weight times the other derivative to those of `occupancy` unless that is empty.
    """
    table, log_c, scores, accuracy = inputs.table, inputs.log_c, inputs.scores, inputs.accuracy
    offsets, dst, column, log_prob = table.src_offsets, table.src_dst, table.src_column, table.src_log_prob
    after, to_come = carried[0], carried[1]
    num_states, num_frames, num_active = len(table.initial), len(scores), len(table.active)
    y, a = np.empty(num_active), np.empty(num_active)
    arc, now, v = np.empty(len(dst)), np.empty(num_states), np.empty(num_states)
    change, share = np.empty(num_active), np.empty(num_active)
    for t in range(span[1], span[0] - 1, -1):
        if t == num_frames:
            now[:] = table.final
            v[:] = 0.0
        elif t == span[1]:
            continue
        else:
            _load_scores(scores[t], table.active, y)
            _load_accuracy(accuracy[t], table.active, a)
            for i in range(num_states):
                first, last = offsets[i], offsets[i + 1]
                for e in range(first, last):
                    arc[e] = log_prob[e] + y[column[e]] + after[dst[e]]
                now[i] = _log_sum(arc[first:last], table.zeros)  # (5)
            row = t - span[0]
            _frame(table, alpha[row], gain[row], a, now, arc, to_come, v, change, share)
            for k in range(num_active):
                out[t, table.active[k]] = weight * change[k]
                if len(occupancy) > 0:
                    occupancy[t, table.active[k]] = weight * share[k]
        total = _log_sum(now, table.zeros)
        for i in range(num_states):
            now[i] -= total
        if log_c > -np.inf:
            leak, leaked = _weighted_mean(now, table.init, v)
            if leak > -np.inf:
                _leak(now, v, log_c + leak, table.zeros, leaked)
        after[:] = now
        to_come[:] = v


@jit
def _frame(
    table: Any,
    alpha: Any,
    gain: Any,
    a: Any,
    now: Any,
    arc: Any,
    to_come: Any,
    v: Any,
    change: Any,
    share: Any,
) -> None:
    """(M6) of one frame: `share` [K] sums to one; v'(t, i) from v(t + 1, j) = to_come. arc: the terms of (5)."""
    offsets, dst, column = table.src_offsets, table.src_dst, table.src_column
    change[:] = 0.0
    share[:] = 0.0
    whole = _log_sum(now, alpha)
    mean = 0.0
    for i in range(len(now)):
        v[i] = 0.0
        if now[i] > -np.inf:
            weight = math.exp(alpha[i] + now[i] - whole)
            for e in range(offsets[i], offsets[i + 1]):
                part = math.exp(arc[e] - now[i])
                rest = a[column[e]] + to_come[dst[e]]
                v[i] += part * rest
                share[column[e]] += weight * part
                change[column[e]] += weight * part * (gain[i] + rest)
            mean += weight * (gain[i] + v[i])
    for k in range(len(a)):
        change[k] -= share[k] * mean


# Sums and scalings of rows of lanes for `cpu_mbr_scaled`; see there for `unit`.


@jit
def column_sums(unit: Any, rows: Any, weights: Any, total: Any) -> None:
    """total[g] = sum_i weights[i] * rows[i, g]."""
    width = 1 if len(unit) == 1 else rows.shape[1]
    for g in range(width):
        total[g] = 0.0
    for i in range(len(weights)):
        for g in range(width):
            total[g] += weights[i] * rows[i, g]


@jit
def normalise(unit: Any, now: Any, factor: Any, leak: Any, target: Any) -> None:
    """now[i] = now[i] * factor[g] + leak[g] * target[i]."""
    width = 1 if len(unit) == 1 else now.shape[1]
    for i in range(len(target)):
        for g in range(width):
            now[i, g] = now[i, g] * factor[g] + leak[g] * target[i]


@jit
def least(unit: Any, now: Any, result: Any) -> None:
    """result[g] = the least nonzero now[i, g], at most 1."""
    width = 1 if len(unit) == 1 else now.shape[1]
    result[:] = 1.0
    for i in range(len(now)):
        for g in range(width):
            result[g] = min(result[g], now[i, g] if now[i, g] > 0.0 else 1.0)


@jit
def reciprocal(total: Any, factor: Any) -> None:
    """factor[g] = 1 / total[g], 0 where the total is 0."""
    for g in range(len(total)):
        factor[g] = 1.0 / total[g] if total[g] > 0.0 else 0.0


# Numba kernels for (M1)-(M6) of `reference.mbr` in float64 probabilities, sequences that share a graph side
# by side.
#
# Arrays end in the W sequences of a group, so that an arc is read once for all of them. Beside each a'(t, i)
# of equation (10) stands a'(t, i) u'(t, i), beside each b(t, i) b(t, i) v(t, i): what is added for one is
# added for the other with the same weights, and no division is needed. `unit` is (1,) for a group of one and
# () for any other, so that the compiler knows which. Lanes never mix and nothing is reordered: a sequence
# gets the same bits in a group of any width.
#
# Whether anything that matters was flushed to zero is decided by equation (13); u and v are bounded by the
# accuracies, so what is lost of a'(t, i) u'(t, i) matters no more than what is lost of a'(t, i).

# Rows of `sums` [7, W]: results, and what is carried from one span of frames to the next.
LOG_Z, MEAN, LOWEST, LEAKED, LEAST, ILLEGAL_SCORE, ILLEGAL_ACCURACY = range(7)
NUM_SUMS = 7


class ScaledInputs(NamedTuple):
    """What the kernels read: a table, c, scores and accuracies [N, T, P], the group's sequences [W] and their frames [W]."""

    table: Any
    c: float
    scores: Any
    accuracy: Any
    lanes: Any
    lengths: Any


@jit
def _load(unit: Any, inputs: Any, t: int, p: Any, a: Any, work: Any) -> None:
    """p[k, g] = exp(y - shift[g]) and a[k, g] of frame t, 0 past a sequence's end; shift is the maximum over k.

    work: rows shift, floor (the least finite score minus shift), illegal score and illegal accuracy (0 or NaN).
    """
    width = 1 if len(unit) == 1 else p.shape[1]
    active, scores, accuracy = inputs.table.active, inputs.scores, inputs.accuracy
    for g in range(width):
        shift, floor = -np.inf, np.inf
        work[2, g] = work[3, g] = 0.0
        n, inside = inputs.lanes[g], t < inputs.lengths[g]
        for k in range(len(active)):
            y = float(scores[n, t, active[k]]) if inside else -np.inf
            gain = float(accuracy[n, t, active[k]]) if inside else 0.0
            p[k, g], a[k, g] = y, gain
            if not y < np.inf:
                work[2, g] = np.nan
            if not -np.inf < gain < np.inf:
                work[3, g] = np.nan
            shift = max(shift, y)
            floor = min(floor, y if y > -np.inf else np.inf)
        if not -np.inf < shift < np.inf or not floor < np.inf:
            shift, floor = 0.0, 0.0
        for k in range(len(active)):
            p[k, g] = math.exp(p[k, g] - shift)
        work[0, g], work[1, g] = shift, floor - shift


@jit
def _gather(unit: Any, table: Any, before: Any, gain: Any, p: Any, a: Any, now: Any, now_gain: Any) -> None:
    """(2) and (M1) of one frame."""
    width = 1 if len(unit) == 1 else p.shape[1]
    offsets, src, column, weight = table.dst_offsets, table.dst_src, table.dst_column, table.dst_weight
    for j in range(len(offsets) - 1):
        for g in range(width):
            now[j, g] = 0.0
            now_gain[j, g] = 0.0
        for e in range(offsets[j], offsets[j + 1]):
            i, k, w = src[e], column[e], weight[e]
            for g in range(width):
                x = w * p[k, g]
                y = x * before[i, g]
                now[j, g] += y
                now_gain[j, g] += x * gain[i, g] + a[k, g] * y


@jit
def _spread(
    unit: Any, table: Any, alpha: Any, gain: Any, after: Any, rest: Any, p: Any, a: Any, now: Any, share: Any
) -> None:
    """(5), (M4) and (M6) of one frame, not normalised.

    now [2, S, W]: b'(t, i) and b'(t, i) v'(t, i). share [2, K, W]: occupancies, and occupancies times E[A | pdf, t].
    """
    width = 1 if len(unit) == 1 else p.shape[1]
    offsets, dst, column, weight = table.src_offsets, table.src_dst, table.src_column, table.src_weight
    beta, value, occupancy, change = now[0], now[1], share[0], share[1]
    occupancy[:] = 0.0
    change[:] = 0.0
    for i in range(len(offsets) - 1):
        for g in range(width):
            beta[i, g] = 0.0
            value[i, g] = 0.0
        for e in range(offsets[i], offsets[i + 1]):
            j, k, w = dst[e], column[e], weight[e]
            for g in range(width):
                x = w * p[k, g]
                y = x * after[j, g]
                z = x * rest[j, g] + a[k, g] * y
                beta[i, g] += y
                value[i, g] += z
                occupancy[k, g] += alpha[i, g] * y
                change[k, g] += gain[i, g] * y + alpha[i, g] * z


@jit
def forward_scaled(unit: Any, inputs: Any, span: Any, alpha: Any, gain: Any, sums: Any) -> None:
    """(1)-(4) and (M1)-(M3) of frames span[0] to span[1] into the rows of alpha and gain [rows, S, W].

    The first row is given if span[0] > 0. sums[LOWEST] is a bound for (13) that needs no beta: the least of all products,
    factors taken before they are rounded, or, where the leak reaches every state, n(t) c min init if that is larger.
    """
    table, c, lengths = inputs.table, inputs.c, inputs.lengths
    width, rows = alpha.shape[2], len(alpha)
    p, a = np.empty((len(table.active), width)), np.empty((len(table.active), width))
    work, totals = np.empty((4, width)), np.empty((4, width))
    total, total_gain, factor, leak = totals[0], totals[1], totals[2], totals[3]
    ones = np.ones(len(table.initial))
    for t in range(span[0], span[1] + 1):
        now, now_gain = alpha[(t - span[0]) % rows], gain[(t - span[0]) % rows]
        if t == 0:
            _begin(table, c, now, now_gain, sums)
        elif t == span[0]:
            continue
        else:
            before = (t - 1 - span[0]) % rows
            _load(unit, inputs, t - 1, p, a, work)
            for g in range(width):
                if t <= lengths[g]:
                    sums[LOG_Z, g] += work[0, g] + table.log_scale[1]
                    product = sums[LEAST, g] * math.exp(work[1, g]) * table.least[1]
                    sums[LOWEST, g] = min(sums[LOWEST, g], product)
                    sums[ILLEGAL_SCORE, g] += work[2, g]
                    sums[ILLEGAL_ACCURACY, g] += work[3, g]
            _gather(unit, table, alpha[before], gain[before], p, a, now, now_gain)
        column_sums(unit, now, ones, total)
        column_sums(unit, now_gain, ones, total_gain)
        reciprocal(total, factor)
        for g in range(width):
            leak[g] = c if total[g] > 0.0 else 0.0
            if t <= lengths[g]:
                sums[LEAKED, g] = min(sums[LEAKED, g], total[g] * (c * table.init_everywhere))
                sums[LOG_Z, g] += math.log(total[g]) if total[g] > 0.0 else -np.inf
        normalise(unit, now, factor, leak, table.init)
        for g in range(width):
            leak[g] = c * total_gain[g] * factor[g]
        normalise(unit, now_gain, factor, leak, table.init)
        least(unit, now, sums[LEAST])
        _end(table, lengths, t, now, now_gain, sums)


@jit
def _begin(table: Any, c: float, now: Any, gain: Any, sums: Any) -> None:
    for i in range(len(table.initial)):
        now[i, :] = table.initial[i]
    gain[:] = 0.0
    sums[:] = 0.0
    sums[LOG_Z] = table.log_scale[0]
    sums[LOWEST] = table.least[0] if c == 0.0 else min(table.least[0], c * table.least[2])
    sums[LEAKED] = 1.0


@jit
def _end(table: Any, lengths: Any, t: int, now: Any, gain: Any, sums: Any) -> None:
    """(4) and (M3) of the sequences of t frames."""
    for g in range(len(lengths)):
        if t == lengths[g]:
            z, mean = 0.0, 0.0
            for i in range(len(table.final)):
                z += now[i, g] * table.final[i]
                mean += gain[i, g] * table.final[i]
            products = min(sums[LOWEST, g], sums[LEAST, g] * table.least[3])
            sums[LOWEST, g] = max(products, min(sums[LEAKED, g], z))
            sums[LOG_Z, g] += math.log(z) + table.log_scale[2] if z > 0.0 else -np.inf
            sums[LOG_Z, g] += sums[ILLEGAL_SCORE, g]
            sums[MEAN, g] = mean / z if z > 0.0 else -np.inf
            sums[MEAN, g] += sums[ILLEGAL_SCORE, g] + sums[ILLEGAL_ACCURACY, g]


@jit
def _write(
    inputs: Any, t: int, share: Any, factor: Any, change: Any, weights: Any, out: Any, occupancy: Any
) -> None:
    """(M6): weights[g] d E[A] / d y into out[lanes[g], t, active], weights[g] times the other into occupancy if not empty.

    share [2, K, W] of `_spread` is divided by its sum, the first row's 1 / factor [W]; change [W] is the second row's sum.
    """
    lanes, active = inputs.lanes, inputs.table.active
    for g in range(len(lanes)):
        if t < inputs.lengths[g] and weights[g] != 0.0:
            mean = change[g] * factor[g]
            for k in range(len(active)):
                part = share[0, k, g] * factor[g]
                out[lanes[g], t, active[k]] = weights[g] * (share[1, k, g] * factor[g] - part * mean)
                if len(occupancy) > 0:
                    occupancy[lanes[g], t, active[k]] = weights[g] * part


@jit
def _begin_betas(inputs: Any, t: int, alpha: Any, now: Any, lowest: Any) -> None:
    """(5) and (M4) of the sequences of t frames, and w(T) of (13)."""
    final = inputs.table.final
    for g in range(len(inputs.lengths)):
        if t == inputs.lengths[g]:
            w = 0.0
            for i in range(len(final)):
                now[0, i, g] = final[i]
                now[1, i, g] = 0.0
                w += alpha[i, g] * final[i]
            lowest[g] = min(lowest[g], w)


@jit
def backward_scaled(
    unit: Any,
    inputs: Any,
    span: Any,
    alpha: Any,
    gain: Any,
    carried: Any,
    lowest: Any,
    weights: Any,
    out: Any,
    occupancy: Any,
) -> None:
    """(5) and (M4)-(M6) of frames span[1] - 1 down to span[0].

    carried [2, S, W]: b and b v of frame span[1], in the end those of span[0]; lowest [W]: the least n(t) w(t) of (13),
    carried too. For `out` and `occupancy` see `_write`.
    """
    table, c, lengths = inputs.table, inputs.c, inputs.lengths
    width, num_states, num_active = alpha.shape[2], len(table.final), len(table.active)
    p, a = np.empty((num_active, width)), np.empty((num_active, width))
    now, share = np.zeros((2, num_states, width)), np.empty((2, num_active, width))
    work, totals = np.empty((4, width)), np.empty((4, width))
    total, factor, leak, leak_gain = totals[0], totals[1], totals[2], totals[3]
    ones, pdfs = np.ones(num_states), np.ones(num_active)
    last = lengths.max()
    for t in range(span[1], span[0] - 1, -1):
        row = t - span[0]
        if t < last:
            if t == span[1]:
                continue
            _load(unit, inputs, t, p, a, work)
            _spread(unit, table, alpha[row], gain[row], carried[0], carried[1], p, a, now, share)
            column_sums(unit, share[0], pdfs, total)
            for g in range(width):
                if t < lengths[g]:
                    lowest[g] = min(lowest[g], total[g])
            reciprocal(total, factor)
            column_sums(unit, share[1], pdfs, leak)
            _write(inputs, t, share, factor, leak, weights, out, occupancy)
        _begin_betas(inputs, t, alpha[row], now, lowest)
        column_sums(unit, now[0], ones, total)
        column_sums(unit, now[0], table.init, leak)
        column_sums(unit, now[1], table.init, leak_gain)
        reciprocal(total, factor)
        for g in range(width):
            leak[g] *= c * factor[g]
            leak_gain[g] *= c * factor[g]
        normalise(unit, now[0], factor, leak, ones)
        normalise(unit, now[1], factor, leak_gain, ones)
        carried[:] = now


Scores = npt.NDArray[np.floating]
Lengths = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Index = npt.NDArray[np.uint32]
Result = tuple[Floats, Floats, npt.NDArray[np.bool_]]
Span = tuple[int, int]

MAX_LANES = 16
# Equation (13): products below it may have been flushed to zero, and what was flushed may matter.
SMALLEST = 1e-285


class _Table(NamedTuple):
    """Probabilities relative to their maximum; float64."""

    dst_offsets: Index
    dst_src: Index
    dst_column: Index
    dst_weight: Floats
    src_offsets: Index
    src_dst: Index
    src_column: Index
    src_weight: Floats
    active: Index
    initial: Floats
    init: Floats
    final: Floats
    log_scale: Floats
    least: tuple[float, float, float, float]
    init_everywhere: float


class _Job(NamedTuple):
    """What a call works on; `weights` is None where no derivative is wanted. `budget`: bytes for each thread."""

    scores: Scores
    accuracy: Scores
    lengths: Lengths
    leaky: float
    weights: Floats | None
    out: npt.NDArray[np.floating]
    occupancy: npt.NDArray[np.floating]
    budget: float


_tables: WeakKeyDictionary[TransitionTable, _Table] = WeakKeyDictionary()


def expected_accuracy(
    batch: TableBatch, scores: Scores, accuracy: Scores, lengths: Lengths, leaky: float
) -> Result:
    """log Z, E[A] and ok of every sequence; see `reference.mbr.expected_accuracy`."""
    nowhere = np.empty((0, 0, 0))
    return _run(batch, _Job(scores, accuracy, lengths, leaky, None, nowhere, nowhere, 0.0))


def set_accuracy_gradient(
    batch: TableBatch,
    scores: Scores,
    accuracy: Scores,
    lengths: Lengths,
    leaky: float,
    weights: Floats,
    out: npt.NDArray[np.floating],
    occupancy: npt.NDArray[np.floating],
    memory_budget: float | None = None,
) -> Result:
    """The same, and derivatives into `out` and `occupancy`; see `reference.mbr.set_accuracy_gradient`.

    `memory_budget` is as in `cpu.add_occupancy`.
    """
    each = thread_budget(memory_budget)
    return _run(batch, _Job(scores, accuracy, lengths, leaky, weights, out, occupancy, each))


def _run(batch: TableBatch, job: _Job) -> Result:
    log_z, mean = np.empty(batch.size), np.empty(batch.size)
    run_all([_group_job(batch, job, lanes, log_z, mean) for lanes in _groups(batch, job.lengths)])
    return log_z, mean, np.isfinite(log_z) & np.isfinite(mean)


def _groups(batch: TableBatch, lengths: Lengths) -> list[npt.NDArray[np.int64]]:
    """Sequences of about equal length in groups of at most MAX_LANES; graphs of their own one by one."""
    if not batch.is_shared:
        return [np.array([n]) for n in range(batch.size)]
    per_thread = -(-batch.size // get_num_threads())
    count = -(-batch.size // min(MAX_LANES, per_thread))
    return np.array_split(np.argsort(-lengths, kind="stable"), count)


def _group_job(
    batch: TableBatch, job: _Job, lanes: npt.NDArray[np.int64], log_z: Floats, mean: Floats
) -> Callable[[], None]:
    def run() -> None:
        table = batch.table(int(lanes[0]))
        sums, certain = _scaled(table, job, lanes)
        log_z[lanes], mean[lanes] = sums[LOG_Z], sums[MEAN]
        for n in lanes[~certain]:
            log_z[n], mean[n] = _logs(log_table(table), job, int(n))

    return run


def _scaled(
    table: TransitionTable, job: _Job, lanes: npt.NDArray[np.int64]
) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """The sums [NUM_SUMS, W] of the lanes and which of them are certain by equation (13), with their derivatives."""
    unit = (1,) if len(lanes) == 1 else ()
    data, lengths, width = _scaled_table(table), job.lengths[lanes], len(lanes)
    sums = np.empty((NUM_SUMS, width))
    inputs = ScaledInputs(data, job.leaky, job.scores, job.accuracy, lanes, lengths)

    def forward(span: Span, history: Floats, into: Floats) -> None:
        forward_scaled(unit, inputs, span, history[0], history[1], into)

    def backward(span: Span, history: Floats) -> None:
        backward_scaled(
            unit, inputs, span, history[0], history[1], carried, lowest, weights, job.out, job.occupancy
        )

    shape = (table.num_states, width)
    if job.weights is None:
        forward((0, int(lengths.max())), np.empty((2, 2, *shape)), sums)
        return sums, _is_certain(sums, sums[LOWEST])
    keeper = _Keeper(int(lengths.max()), shape, forward, sums, job.budget)
    possible = np.isfinite(sums[LOG_Z]) & np.isfinite(sums[MEAN])
    weights = np.where(possible, job.weights[lanes], 0.0)
    carried, lowest = np.zeros((2, *shape)), np.ones(width)
    if weights.any():
        keeper.run_backward(backward)
    lowest = np.where(weights != 0.0, lowest, sums[LOWEST])
    return sums, _is_certain(sums, lowest)


def _is_certain(sums: Floats, lowest: Floats) -> npt.NDArray[np.bool_]:
    """An illegal score shows whatever was lost; that there is no path, or one below the smallest float, does not."""
    return np.isnan(sums[LOG_Z]) | (np.isfinite(sums[LOG_Z]) & (lowest >= SMALLEST))


def _logs(table: LogTable, job: _Job, n: int) -> tuple[float, float]:
    """log Z and E[A] of one sequence in logs, always certain, with its derivatives."""
    frames, num_states = int(job.lengths[n]), len(table.initial)
    scores, accuracy = job.scores[n, :frames], job.accuracy[n, :frames]
    log_c = float(np.log(job.leaky)) if job.leaky > 0.0 else -np.inf
    inputs = LogInputs(table, log_c, scores, accuracy)
    sums = np.empty(2)

    def forward(span: Span, history: Floats, into: Floats) -> None:
        forward_in_logs(inputs, span, history[0], history[1], into)

    def backward(span: Span, history: Floats) -> None:
        out = job.out[n, :frames]
        occupancy = job.occupancy[n, :frames] if len(job.occupancy) else np.empty((0, 0), job.occupancy.dtype)
        backward_in_logs(inputs, span, history[0], history[1], carried, weight, out, occupancy)

    weight = 0.0 if job.weights is None else float(job.weights[n])
    if not weight:
        forward((0, frames), np.empty((2, 2, num_states)), sums)
    else:
        keeper = _Keeper(frames, (num_states,), forward, sums, job.budget)
        carried = np.empty((2, num_states))
        if np.isfinite(sums).all():
            keeper.run_backward(backward)
    return float(sums[0]), float(sums[1])


class _Keeper:
    """Runs the forward recursion and keeps the alphas, all of them or those of some frames, for the backward recursion.

    forward(span, history [2, rows, ...], sums) fills the rows of frames span[0] to span[1], the first one given but for
    frame 0. All alphas are kept if they take no more than `budget` bytes.
    """

    def __init__(
        self,
        num_frames: int,
        shape: tuple[int, ...],
        forward: Callable[[Span, Floats, Floats], None],
        sums: Floats,
        budget: float,
    ) -> None:
        row = 16 * int(np.prod(shape))
        fits = (num_frames + 1) * row <= budget
        step = max(num_frames if fits else math.ceil(math.sqrt(num_frames)), 1)
        self._spans = [(first, min(first + step, num_frames)) for first in range(0, max(num_frames, 1), step)]
        self._forward, self._sums = forward, sums
        self._history = np.empty((2, step + 1, *shape))
        self._kept = np.empty((len(self._spans) - 1, 2, *shape))
        for k, span in enumerate(self._spans):
            if k > 0:
                self._history[:, 0] = self._history[:, step]
                self._kept[k - 1] = self._history[:, 0]
            forward(span, self._history, sums)

    def run_backward(self, backward: Callable[[Span, Floats], None]) -> None:
        """backward(span, history) for the spans from the last to the first."""
        for k in range(len(self._spans) - 1, -1, -1):
            if k < len(self._spans) - 1:
                if k > 0:
                    self._history[:, 0] = self._kept[k - 1]
                self._forward(self._spans[k], self._history, self._sums.copy())
            backward(self._spans[k], self._history)


def _scaled_table(table: TransitionTable) -> _Table:
    if table not in _tables:
        logs = log_table(table)
        initial, initial_scale, least_initial = _probs(logs.initial)
        by_dst, arc_scale, least_arc = _probs(logs.dst_log_prob)
        by_src, _, _ = _probs(logs.src_log_prob)
        final, final_scale, least_final = _probs(logs.final)
        init = np.exp(logs.init)
        _tables[table] = _Table(
            *(logs.dst_offsets, logs.dst_src, logs.dst_column, by_dst),
            *(logs.src_offsets, logs.src_dst, logs.src_column, by_src),
            logs.active,
            *(initial, init, final),
            np.array([initial_scale, arc_scale, final_scale]),
            (least_initial, least_arc, init.min(where=init > 0.0, initial=1.0), least_final),
            float(init.min()),
        )
    return _tables[table]


def _probs(log_probs: Floats) -> tuple[Floats, float, float]:
    """Probabilities relative to their maximum, its log, and the least of those that are not zero in logs."""
    finite = log_probs[log_probs > -np.inf]
    scale = float(finite.max(initial=-np.inf)) if finite.size else 0.0
    least = float(np.exp(finite.min() - scale)) if finite.size else 1.0
    return np.exp(log_probs - scale), scale, least
