"""Numba kernels for equations (2)-(7) in the normalised form (10)-(13): probabilities instead of logs.

One text serves sequences that share a graph (lanes innermost, so that an arc is read once for all of them and a line of
the inner loops is a few vector instructions) and sequences with graphs of their own: `unit` is (1,) for a single lane and
() for any number of them, so that the compiler knows which. Lanes never mix, and the compiler may neither reorder nor
fuse operations: a sequence gets the same bits in every lane of a group of any width. Float32 and float64 follow from the
arrays; zero and one are made of the arrays' type because a literal would widen float32 arithmetic.

For W lanes, `history` [T + 1, max(S, K), W] holds a'(t, i), normalised to sum one before the leak; the backward pass
replaces it, frame by frame, by the occupancy of the K active pdfs.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from fsachain.backends.cpu_exp import exp_double, exp_single

# Equation (13): products below these may have been flushed to zero, and what was flushed may matter.
SMALLEST = {np.dtype(np.float32): 1e-25, np.dtype(np.float64): 1e-285}

_jit = numba.njit(cache=True, nogil=True, error_model="numpy")


@_jit
def _load(
    unit: Any,
    scores: Any,
    lanes: Any,
    lengths: Any,
    t: int,
    active: Any,
    p: Any,
    shift: Any,
    floor: Any,
    legal: Any,
) -> None:
    """p[k, g] = exp(y[lanes[g], t, active[k]] - shift[g]), shift the maximum over k; 0 past a sequence's end.

    floor [W] is the least finite score minus shift: what p may have lost by underflow.
    """
    width = 1 if len(unit) == 1 else p.shape[1]
    for g in range(width):
        shift[g] = -np.inf
        floor[g] = np.inf
    # In blocks of pdfs, because the scores of one lane lie next to each other and those of one pdf do not.
    for first in range(0, len(active), 16):
        last = min(first + 16, len(active))
        for g in range(width):
            for k in range(first, last):
                y = scores[lanes[g], t, active[k]] if t < lengths[g] else -np.inf
                p[k, g] = y
                if not y < np.inf:
                    legal[g] = False
                else:
                    shift[g] = max(shift[g], y)
                    if y > -np.inf:
                        floor[g] = min(floor[g], y)
    for g in range(width):
        if shift[g] == -np.inf or not legal[g]:
            shift[g] = 0.0
            floor[g] = 0.0
        floor[g] -= shift[g]
    if p.itemsize == 4:
        exp_single(p, shift)
    else:
        exp_double(p, shift)


@_jit
def _gather(unit: Any, offsets: Any, arcs: Any, before: Any, p: Any, now: Any, total: Any) -> None:
    """Equation (2) for one frame, two arcs at a time; total [W] is the sum over states."""
    width = 1 if len(unit) == 1 else p.shape[1]
    zero = p.dtype.type(0)
    src, column, weight = arcs
    for g in range(width):
        total[g] = zero
    for j in range(len(offsets) - 1):
        for g in range(width):
            now[j, g] = zero
        e, last = offsets[j], offsets[j + 1]
        while e + 1 < last:
            i0, k0, w0 = src[e], column[e], weight[e]
            i1, k1, w1 = src[e + 1], column[e + 1], weight[e + 1]
            for g in range(width):
                now[j, g] += before[i0, g] * (w0 * p[k0, g]) + before[i1, g] * (w1 * p[k1, g])
            e += 2
        if e < last:
            i0, k0, w0 = src[e], column[e], weight[e]
            for g in range(width):
                now[j, g] += before[i0, g] * (w0 * p[k0, g])
        for g in range(width):
            total[g] += now[j, g]


@_jit
def _spread(
    unit: Any, offsets: Any, arcs: Any, alpha: Any, after: Any, p: Any, now: Any, occupancy: Any
) -> None:
    """Equations (5) and (6), (7) for one frame, not normalised: beta' from the betas `after`, occupancy [K, W]."""
    width = 1 if len(unit) == 1 else p.shape[1]
    zero = p.dtype.type(0)
    dst, column, weight = arcs
    for k in range(len(p)):
        for g in range(width):
            occupancy[k, g] = zero
    for i in range(len(offsets) - 1):
        for g in range(width):
            now[i, g] = zero
        for e in range(offsets[i], offsets[i + 1]):
            j, k, w = dst[e], column[e], weight[e]
            for g in range(width):
                x = (w * p[k, g]) * after[j, g]
                now[i, g] += x
                occupancy[k, g] += alpha[i, g] * x


@_jit
def _normalise(unit: Any, now: Any, total: Any, leak: Any, target: Any, least: Any) -> None:
    """now[i] = now[i] / total + leak[g] * target[i]; a lane of total 0 stays 0. least [W]: the least nonzero value."""
    width = 1 if len(unit) == 1 else now.shape[1]
    zero, one = now.dtype.type(0), now.dtype.type(1)
    for g in range(width):
        least[g] = one
        if total[g] > zero:
            total[g] = one / total[g]
        else:
            leak[g] = zero
    for i in range(len(target)):
        for g in range(width):
            value = now[i, g] * total[g] + leak[g] * target[i]
            now[i, g] = value
            least[g] = min(least[g], value if value > zero else one)


@_jit
def _final_sum(alpha: Any, final: Any, g: int) -> float:
    z = 0.0
    for i in range(len(final)):
        z += alpha[i, g] * final[i]
    return z


@_jit
def forward(
    unit: Any,
    table: Any,
    c: Any,
    scores: Any,
    lanes: Any,
    lengths: Any,
    history: Any,
    log_z: Any,
    lowest: Any,
) -> None:
    """Equations (1)-(4): history, log_z [W] and lowest [W], a bound for (13) that needs no beta.

    It is the larger of two: the least of all products but exact zeros, with factors taken before they are rounded; and,
    if the leak reaches every state, n(t) c min init, since then w(t) >= c min_i init(i). Where the alphas are not kept,
    `history` has two frames. log_z is NaN for an illegal score, -inf for no path.
    """
    width = 1 if len(unit) == 1 else history.shape[2]
    frames, active = history.shape[0], table.active
    zero = history.dtype.type(0)
    arcs = (table.dst_src, table.dst_column, table.dst_weight)
    p, legal = np.empty((len(active), width), history.dtype), np.ones(width, np.bool_)
    work = np.ones((6, width), history.dtype)
    shift, floor, total, least, leak, leaked = work[0], work[1], work[2], work[3], work[4], work[5]
    least_initial, least_weight, least_init, least_final = table.least
    log_z[:] = table.log_scale[0]
    lowest[:] = least_initial if c == zero else min(least_initial, c * least_init)
    for t in range(lengths.max() + 1):
        now = history[t % frames]
        if t == 0:
            total[:] = table.initial.sum()
            for i in range(len(table.initial)):
                now[i, :] = table.initial[i]
        else:
            _load(unit, scores, lanes, lengths, t - 1, active, p, shift, floor, legal)
            for g in range(width):
                if t <= lengths[g]:
                    product = float(least[g]) * math.exp(float(floor[g])) * least_weight
                    lowest[g] = min(lowest[g], product)
                    log_z[g] += shift[g] + table.log_scale[1]
            _gather(unit, table.dst_offsets, arcs, history[(t - 1) % frames], p, now, total)
        for g in range(width):
            leak[g] = c
            if t <= lengths[g]:
                leaked[g] = min(leaked[g], total[g] * (c * table.init_everywhere))
                log_z[g] += math.log(total[g]) if total[g] > zero else -np.inf
        _normalise(unit, now, total, leak, table.init, least)
        for g in range(width):
            if t == lengths[g]:
                z = _final_sum(now, table.final, g)
                lowest[g] = max(min(lowest[g], float(least[g]) * least_final), min(leaked[g], z))
                log_z[g] += math.log(z) + table.log_scale[2] if z > 0.0 else -np.inf
    for g in range(width):
        if not legal[g]:
            log_z[g] = np.nan


@_jit
def _column_sums(unit: Any, rows: Any, weights: Any, total: Any) -> None:
    """total[g] = sum_i weights[i] * rows[i, g]."""
    width = 1 if len(unit) == 1 else rows.shape[1]
    zero = rows.dtype.type(0)
    for g in range(width):
        total[g] = zero
    for i in range(len(weights)):
        for g in range(width):
            total[g] += weights[i] * rows[i, g]


@_jit
def backward(
    unit: Any, table: Any, c: Any, scores: Any, lanes: Any, lengths: Any, history: Any, lowest: Any
) -> None:
    """Equations (5)-(7): replaces history by occupancies; lowest [W] is the least n(t) w(t) of equation (13)."""
    width = 1 if len(unit) == 1 else history.shape[2]
    num_states, active = len(table.final), table.active
    zero, one = history.dtype.type(0), history.dtype.type(1)
    arcs = (table.src_dst, table.src_column, table.src_weight)
    p, legal = np.empty((len(active), width), history.dtype), np.ones(width, np.bool_)
    work = np.empty((5, width), history.dtype)
    shift, floor, total, least, leak = work[0], work[1], work[2], work[3], work[4]
    now, after = np.zeros((num_states, width), history.dtype), np.zeros((num_states, width), history.dtype)
    occupancy = np.empty((len(active), width), history.dtype)
    ones_states, ones_pdfs = np.ones(num_states, history.dtype), np.ones(len(active), history.dtype)
    lowest[:] = 1.0
    for t in range(lengths.max(), -1, -1):
        if t < lengths.max():
            _load(unit, scores, lanes, lengths, t, active, p, shift, floor, legal)
            _spread(unit, table.src_offsets, arcs, history[t], after, p, now, occupancy)
            _column_sums(unit, occupancy, ones_pdfs, total)
            for g in range(width):
                if t < lengths[g]:
                    lowest[g] = min(lowest[g], float(total[g]))
                total[g] = one / total[g] if total[g] > zero else zero
            for k in range(len(active)):
                for g in range(width):
                    history[t, k, g] = occupancy[k, g] * total[g]
        for g in range(width):
            if t == lengths[g]:
                w = zero
                for i in range(num_states):
                    now[i, g] = table.final[i]
                    w += history[t, i, g] * table.final[i]
                lowest[g] = min(lowest[g], float(w))
        _column_sums(unit, now, table.init, leak)
        _column_sums(unit, now, ones_states, total)
        for g in range(width):
            leak[g] = c * leak[g] / total[g] if total[g] > zero else zero
        _normalise(unit, now, total, leak, ones_states, least)
        now, after = after, now


@_jit
def scatter(unit: Any, occupancy: Any, active: Any, lanes: Any, lengths: Any, weights: Any, out: Any) -> None:
    """out[lanes[g], t, active[k]] += weights[g] * occupancy[t, k, g]; lanes of weight 0 are not touched."""
    width = 1 if len(unit) == 1 else occupancy.shape[2]
    for t in range(len(occupancy) - 1):
        for first in range(0, len(active), 16):
            last = min(first + 16, len(active))
            for g in range(width):
                if t < lengths[g] and weights[g] != 0.0:
                    for k in range(first, last):
                        out[lanes[g], t, active[k]] += weights[g] * occupancy[t, k, g]
