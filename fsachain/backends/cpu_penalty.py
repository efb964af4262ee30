"""Numba kernel for the penalties on large scores: one pass over a sequence's network output."""

from __future__ import annotations

from typing import Any

import numpy as np

from fsachain.backends.cpu_arithmetic import larger, largest_lane
from fsachain.backends.cpu_lanes import fill, load_from
from fsachain.backends.jit import jit_on_views

WIDE = (0,) * 16


@jit_on_views
def _largest(y: Any) -> float:
    """The largest |y| of a row [P], NaN left out."""
    whole, result = len(y) - len(y) % 16, 0.0
    if whole > 0:
        top = fill(load_from(WIDE, y, 0), 0.0)
        for p in range(0, whole, 16):
            value = load_from(WIDE, y, p)
            top = larger(larger(value, fill(value, 0.0) - value), top)
        result = float(largest_lane(top))
    for p in range(whole, len(y)):
        if abs(y[p]) > result:
            result = abs(y[p])
    return result


@jit_on_views
def add_penalties(
    y: Any, weight: float, l2: float, out_of_range: float, limit: float, out: Any, sums: Any
) -> None:
    """Sums of weight y^2 and weight (|y| - limit)_+^2 over y [T, P]; d(-1/2 factor sum)/dy is added to `out`.

    `out` [T, P] may be empty. Infinite scores cost nothing. A frame within the limit costs a glance where l2 is 0.
    """
    squares, excesses = 0.0, 0.0
    for t in range(y.shape[0]):
        if l2 == 0.0 and _largest(y[t]) <= limit:
            continue
        for p in range(y.shape[1]):
            value = float(y[t, p])
            if not -np.inf < value < np.inf:
                continue
            excess = value - min(max(value, -limit), limit)
            squares += value * value
            excesses += excess * excess
            if len(out) > 0:
                out[t, p] -= weight * (l2 * value + out_of_range * excess)
    sums[0], sums[1] = weight * squares, weight * excesses
