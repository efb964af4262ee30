"""Numba kernels between logits and the grid, equations (24) and (25): a node's logits are a row, read once each way.

A row is [V] entries of a flat array and stays in the first-level cache while its largest entry, the sum and the gradient are
made. `stats` keeps the largest entry and 1 / sum exp(x - largest) of each row, so that probabilities are exact at any
magnitude. The gradient may overwrite the logits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fsachain.backends.cpu_arithmetic import larger, smaller
from fsachain.backends.cpu_lanes import load_from, splat
from fsachain.backends.grid_lanes import (
    exp_or_nan,
    exp_or_zero,
    largest_in_pairs,
    store_to,
    sum_in_pairs,
)
from fsachain.backends.jit import jit_on_views


@jit_on_views
def _peak(form: Any, flat: Any, start: int, count: int) -> Any:
    """The largest of `count` >= W entries; NaN among them may be passed over."""
    width, end = len(form), start + count - len(form)
    a = load_from(form, flat, end)
    b, c, d = a, a, a
    i = start
    while i + 3 * width <= end:
        a = larger(load_from(form, flat, i), a)
        b = larger(load_from(form, flat, i + width), b)
        c = larger(load_from(form, flat, i + 2 * width), c)
        d = larger(load_from(form, flat, i + 3 * width), d)
        i += 4 * width
    while i < end:
        a = larger(load_from(form, flat, i), a)
        i += width
    return largest_in_pairs(larger(larger(a, b), larger(c, d)))


@jit_on_views
def _mass(form: Any, flat: Any, start: int, count: int, largest: Any, mask: Any) -> Any:
    """The sum of exp(x - largest) of `count` >= W entries; NaN if one of them is NaN or +inf."""
    width, whole = len(form), count // len(form)
    shift, total = splat(form, largest), splat(form, largest - largest)
    for block in range(whole):
        total = total + exp_or_nan(form, load_from(form, flat, start + block * width) - shift)
    left = count - whole * width
    if left:
        # The last W entries; those that have been added count 0 times.
        last = exp_or_nan(form, load_from(form, flat, start + count - width) - shift)
        total = total + last * load_from(form, mask, left)
    return sum_in_pairs(total)


@jit_on_views
def _measure(form: Any, flat: Any, start: int, count: int, mask: Any) -> Any:
    """(largest entry, sum of exp(x - largest)); (0, 0) if all are -inf; a sum of NaN for NaN or +inf."""
    if count >= len(form):
        largest = _peak(form, flat, start, count)
        if largest == -np.inf:
            largest = flat.dtype.type(0)
        if largest < np.inf:
            return largest, _mass(form, flat, start, count, largest, mask)
        return flat.dtype.type(0), flat.dtype.type(np.nan)
    largest = flat.dtype.type(-np.inf)
    for i in range(start, start + count):
        largest = max(largest, flat[i])
    if largest == -np.inf:
        largest = flat.dtype.type(0)
    total = flat.dtype.type(0)
    for i in range(start, start + count):
        total += math.exp(flat[i] - largest)
    return largest, total


@jit_on_views
def _class(rows: Any, n: int, k: int, u: int) -> int:
    """The entry of arc k at label u; -1 where there is none."""
    classes, targets = rows[3], rows[2]
    if classes[k] >= 0:
        return classes[k]
    return targets[n, u] if u < rows[0][n, 5] else -1


@jit_on_views
def _charge(rows: Any, n: int, k: int, t: int) -> float:
    charges, num_frames = rows[4], rows[0][n, 4]
    return charges[0, k] * (0.5 * (num_frames - 1) - t) - charges[1, k]


@jit_on_views
def softmax_scores(
    form: Any, flat: Any, rows: Any, n: int, frames: Any, width: int, stats: Any, values: Any, mask: Any
) -> None:
    """Equation (24) for frames[0] <= t < frames[1] of sequence n: values [K, cells]; stats [2, rows]."""
    base, step, _, per_frame, _, num_labels, cell_base, cell_step = rows[0][n]
    for t in range(frames[0], frames[1]):
        begin = rows[1][n, t]
        for j in range(min(per_frame, num_labels + 1 - begin)):
            row, cell, u = base + t * step + j, cell_base + t * cell_step + begin + j, begin + j
            largest, total = _measure(form, flat, row * width, width, mask)
            stats[0, row] = largest
            stats[1, row] = 1 / total if total != 0 else total
            log_total = math.log(total)
            for k in range(len(rows[3])):
                entry = _class(rows, n, k, u)
                if entry >= 0:
                    score = np.float64(flat[row * width + entry]) - largest
                    if score > -np.inf or not total >= 0:
                        score -= log_total
                    values[k, cell] = score + _charge(rows, n, k, t)


@jit_on_views
def plain_scores(flat: Any, rows: Any, n: int, frames: Any, width: int, values: Any) -> None:
    """The same for rows that are log-probs already."""
    base, step, _, per_frame, _, num_labels, cell_base, cell_step = rows[0][n]
    for t in range(frames[0], frames[1]):
        begin = rows[1][n, t]
        for j in range(min(per_frame, num_labels + 1 - begin)):
            row, cell, u = base + t * step + j, cell_base + t * cell_step + begin + j, begin + j
            for k in range(len(rows[3])):
                entry = _class(rows, n, k, u)
                if entry >= 0:
                    values[k, cell] = flat[row * width + entry] + _charge(rows, n, k, t)


@jit_on_views
def _zero(form: Any, out: Any, start: int, count: int) -> None:
    nothing = splat(form, out.dtype.type(0))
    whole = count // len(form)
    for block in range(whole):
        store_to(out, start + block * len(form), nothing)
    for i in range(start + whole * len(form), start + count):
        out[i] = 0


@jit_on_views
def _shares(form: Any, flat: Any, out: Any, start: int, count: int, factors: Any) -> None:
    """out = min(exp(x - factors[0]) factors[1], factors[2]) factors[3] along a row; `out` may be `flat`."""
    largest, scale, limit, weight = factors
    width = len(form)
    if count < width:
        for i in range(start, start + count):
            out[i] = min(math.exp(flat[i] - largest) * scale, limit) * weight
        return
    shift, times = splat(form, largest), splat(form, scale)
    most, last_times = splat(form, limit), splat(form, weight)
    end = start + count - width
    last = exp_or_zero(form, load_from(form, flat, end) - shift) * times  # before any of it is overwritten
    for i in range(start, end, width):
        share = exp_or_zero(form, load_from(form, flat, i) - shift) * times
        store_to(out, i, smaller(share, most) * last_times)
    store_to(out, end, smaller(last, most) * last_times)


@jit_on_views
def _gather(rows: Any, n: int, cell: int, u: int, values: Any, entries: Any, flat: Any, start: int) -> float:
    """entries [3, K]: class, g and x of each kind of arc at a node; returns the sum of g."""
    total = 0.0
    for k in range(len(rows[3])):
        entry = _class(rows, n, k, u)
        entries[0, k] = entry
        entries[1, k] = values[k, cell] if entry >= 0 else 0.0
        entries[2, k] = flat[start + entry] if entry >= 0 else 0.0
        total += entries[1, k]
    return total


@jit_on_views
def _own(entries: Any, k: int) -> float:
    """The sum of g over the kinds whose class is that of kind k."""
    total = 0.0
    for other in range(entries.shape[1]):
        if entries[0, other] == entries[0, k]:
            total += entries[1, other]
    return total


@jit_on_views
def softmax_gradient(
    form: Any,
    flat: Any,
    rows: Any,
    n: int,
    frames: Any,
    width: int,
    stats: Any,
    values: Any,
    options: Any,
    entries: Any,
    out: Any,
) -> None:
    """Equation (25) times options[0], each entry kept within +-options[1] before, for all rows of these frames.

    values [K, cells]: g. Rows of padding get 0.
    """
    base, step, _, per_frame, num_frames, num_labels, cell_base, cell_step = rows[0][n]
    weight, limit, kind = options[0], options[1], out.dtype.type
    for t in range(frames[0], frames[1]):
        begin = rows[1][n, t]
        for j in range(per_frame):
            row, u = base + t * step + j, begin + j
            start, total = row * width, 0.0
            if t < num_frames and u <= num_labels:
                cell = cell_base + t * cell_step + u
                total = _gather(rows, n, cell, u, values, entries, flat, start)
            if total == 0 or kind(total * weight) == 0:
                _zero(form, out, start, width)
                continue
            largest, inverse = stats[0, row], stats[1, row]
            _shares(
                form, flat, out, start, width, (largest, kind(inverse * total), kind(limit), kind(weight))
            )
            for k in range(entries.shape[1]):
                if entries[0, k] >= 0:
                    share = math.exp(entries[2, k] - largest) * inverse * total - _own(entries, k)
                    out[start + np.int64(entries[0, k])] = weight * min(max(share, -limit), limit)


@jit_on_views
def plain_gradient(
    form: Any,
    flat: Any,
    rows: Any,
    n: int,
    frames: Any,
    width: int,
    values: Any,
    options: Any,
    entries: Any,
    out: Any,
) -> None:
    """-options[0] g for rows that are log-probs, 0 elsewhere; otherwise as `softmax_gradient`."""
    base, step, _, per_frame, num_frames, num_labels, cell_base, cell_step = rows[0][n]
    weight, limit = options[0], options[1]
    for t in range(frames[0], frames[1]):
        begin = rows[1][n, t]
        for j in range(per_frame):
            row, u = base + t * step + j, begin + j
            start, total = row * width, 0.0
            if t < num_frames and u <= num_labels:
                cell = cell_base + t * cell_step + u
                total = _gather(rows, n, cell, u, values, entries, flat, start)
            _zero(form, out, start, width)
            for k in range(entries.shape[1]):
                if total != 0 and entries[0, k] >= 0:
                    share = -_own(entries, k)
                    out[start + np.int64(entries[0, k])] = weight * min(max(share, -limit), limit)
