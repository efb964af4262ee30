"""Numba kernels between logits and the grid, equations (24) and (25): a node's logits are a row, read once each way.

A row is [V] entries of a flat array and stays in the first-level cache while its largest entry, the sum and the gradient are
made. `stats` keeps the largest entry and 1 / sum exp(x - largest) of each row, so that probabilities are exact at any
magnitude. The gradient may overwrite the logits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fsachain.backends.cpu_softmax import row_statistics, write_softmax, write_zeros
from fsachain.backends.jit import jit_on_views


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
def scores(
    form: Any, flat: Any, rows: Any, n: int, frames: Any, width: int, stats: Any, values: Any, masks: Any
) -> None:
    """Equation (24) for frames[0] <= t < frames[1] of sequence n: values [K, cells]; stats [2, rows].

    Without stats the rows are log-probs already.
    """
    base, step, _, per_frame, _, num_labels, cell_base, cell_step = rows[0][n]
    largest, total = 0.0, 1.0
    for t in range(frames[0], frames[1]):
        begin = rows[1][n, t]
        for j in range(min(per_frame, num_labels + 1 - begin)):
            row, cell, u = base + t * step + j, cell_base + t * cell_step + begin + j, begin + j
            if stats.size > 0:
                largest, total = row_statistics(form, flat, masks, row * width, width)
                stats[0, row] = largest
                stats[1, row] = 1 / total if total != 0 else total
            log_total = math.log(total)
            for k in range(len(rows[3])):
                entry = _class(rows, n, k, u)
                if entry >= 0:
                    score = flat[row * width + entry] - largest
                    if score > -np.inf or not total >= 0:
                        score -= log_total
                    values[k, cell] = score + _charge(rows, n, k, t)


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
def gradient(
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

    values [K, cells]: g. Without stats the rows are log-probs, whose gradient is -g. Rows of padding get 0.
    """
    base, step, _, per_frame, num_frames, num_labels, cell_base, cell_step = rows[0][n]
    weight, limit, kind = options[0], options[1], out.dtype.type
    largest, scale = kind(0), 0.0
    for t in range(frames[0], frames[1]):
        begin = rows[1][n, t]
        for j in range(per_frame):
            row, u = base + t * step + j, begin + j
            start, total = row * width, 0.0
            if t < num_frames and u <= num_labels:
                cell = cell_base + t * cell_step + u
                total = _gather(rows, n, cell, u, values, entries, flat, start)
            if total == 0 or kind(total * weight) == 0:
                write_zeros(form, out, start, width)
                continue
            if stats.size > 0:
                largest, scale = stats[0, row], stats[1, row] * total
                write_softmax(
                    form, flat, start, width, (largest, kind(scale), kind(limit), kind(weight)), out
                )
            else:
                write_zeros(form, out, start, width)
            for k in range(entries.shape[1]):
                if entries[0, k] >= 0:
                    share = -_own(entries, k)
                    if scale != 0.0:
                        share += math.exp(entries[2, k] - largest) * scale
                    out[start + np.int64(entries[0, k])] = weight * min(max(share, -limit), limit)
