"""Numba kernel for the penalties on large scores: one pass over a sequence's network output."""

from __future__ import annotations

from typing import Any

import numpy as np

from fsachain.backends.jit import jit


@jit
def add_penalties(
    y: Any, weight: float, l2: float, out_of_range: float, limit: float, out: Any, sums: Any
) -> None:
    """Sums of weight y^2 and weight (|y| - limit)_+^2 over y [T, P]; d(-1/2 factor sum)/dy is added to `out`.

    `out` [T, P] may be empty. Infinite scores cost nothing.
    """
    squares, excesses = 0.0, 0.0
    for t in range(y.shape[0]):
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
