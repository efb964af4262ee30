"""Sums and scalings of rows of lanes for `cpu_mbr_scaled`; see there for `unit`."""

from __future__ import annotations

from typing import Any

from fsachain.backends.jit import jit


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
