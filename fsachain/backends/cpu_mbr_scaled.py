"""Numba kernels for (M1)-(M6) of `reference_mbr` in float64 probabilities, sequences that share a graph side by side.

Arrays end in the W sequences of a group, so that an arc is read once for all of them. Beside each a'(t, i) of equation
(10) stands a'(t, i) u'(t, i), beside each b(t, i) b(t, i) v(t, i): what is added for one is added for the other with the
same weights, and no division is needed. `unit` is (1,) for a group of one and () for any other, so that the compiler knows
which. Lanes never mix and nothing is reordered: a sequence gets the same bits in a group of any width.

Whether anything that matters was flushed to zero is decided by equation (13); u and v are bounded by the accuracies, so
what is lost of a'(t, i) u'(t, i) matters no more than what is lost of a'(t, i).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fsachain.backends.cpu_mbr_rows import column_sums, least, normalise, reciprocal
from fsachain.backends.jit import jit

# Rows of `sums` [7, W]: results, and what is carried from one span of frames to the next.
LOG_Z, MEAN, LOWEST, LEAKED, LEAST, ILLEGAL_SCORE, ILLEGAL_ACCURACY = range(7)
NUM_SUMS = 7


class Inputs(NamedTuple):
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
def forward(unit: Any, inputs: Any, span: Any, alpha: Any, gain: Any, sums: Any) -> None:
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
def backward(
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
