"""Numba kernels for (M1)-(M6) of `reference_mbr` in float64 logs, one sequence at a time: right at any magnitude.

Alphas and betas are logs, normalised in every frame; u and v are plain numbers, since they are means of accuracies.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fsachain.backends.cpu_log import _load, _log_add, _log_sum
from fsachain.backends.jit import jit


class Inputs(NamedTuple):
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
def forward(inputs: Any, span: Any, alpha: Any, gain: Any, sums: Any) -> None:
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
            sums[0] += _load(scores[t - 1], table.active, y)
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
def backward(
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
            _load(scores[t], table.active, y)
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
