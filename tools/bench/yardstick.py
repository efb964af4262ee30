"""What the backend is compared with: the plain loop that anyone would write first.

The plain loop does the work of equations (1)-(7) for a batch that shares one graph, in one thread: sequences innermost,
every alpha kept, each frame divided by its sum. It takes its scores in the order it likes best, has one length for all and
no way out when a sum underflows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from fsachain.backends.cpu.jit import with_cache
from fsachain.table import ArcView, TransitionTable

Reals = npt.NDArray[np.floating[Any]]


def _kernel(function: Any) -> Any:
    """Compiled with freedom to reorder and fuse, which the backend's own kernels must not have."""
    return with_cache(numba.njit(nogil=True, fastmath=True, error_model="numpy")(function))


class PlainGraph(NamedTuple):
    """A table as the plain loop reads it: rows of arcs by destination and by source, probabilities instead of logs."""

    by_dst: tuple[Any, ...]
    by_src: tuple[Any, ...]
    initial: Reals
    init: Reals
    final: Reals


def plain_graph(table: TransitionTable, dtype: npt.DTypeLike) -> PlainGraph:
    """`table` for `plain_forward_backward`; the scores' columns are its active pdfs."""
    leak = table.leaky_log_prob
    return PlainGraph(
        by_dst=_rows(table.by_dst, table.by_dst.src, dtype),
        by_src=_rows(table.by_src, table.by_src.dst, dtype),
        initial=np.exp(table.initial_log_prob).astype(dtype),
        init=np.zeros(table.num_states, dtype) if leak is None else np.exp(leak).astype(dtype),
        final=np.exp(table.final_log_prob).astype(dtype),
    )


def plain_scores(table: TransitionTable, scores: Reals, dtype: npt.DTypeLike) -> Reals:
    """[T, K, N] of `dtype` from scores [N, T, P]: the columns that the table uses, sequences innermost."""
    return np.ascontiguousarray(scores[:, :, table.active_pdfs].transpose(1, 2, 0), dtype=dtype)


def _rows(view: ArcView, other: npt.NDArray[Any], dtype: npt.DTypeLike) -> tuple[Any, ...]:
    indices = (array.astype(np.uint32) for array in (view.offsets, other, view.column))
    return *indices, np.exp(view.log_prob).astype(dtype)


@_kernel
def plain_forward_backward(graph: Any, c: Any, scores: Any, occupancy: Any) -> Any:
    """log Z [N] in float64; occupancy [T, K, N] is overwritten. c has the scores' type."""
    num_frames, num_columns, width = scores.shape
    num_states = len(graph.initial)
    alpha = np.empty((num_frames + 1, num_states, width), scores.dtype)
    now, after = np.empty((num_states, width), scores.dtype), np.empty((num_states, width), scores.dtype)
    p, total = np.empty((num_columns, width), scores.dtype), np.empty(width, scores.dtype)
    ones, log_z = np.ones(max(num_states, num_columns), scores.dtype), np.zeros(width)
    for i in range(num_states):
        alpha[0, i, :] = graph.initial[i]
        after[i, :] = graph.final[i]
    for t in range(num_frames + 1):
        if t > 0:
            _exp(scores[t - 1], p, total)
            log_z += total
            _step(graph.by_dst, alpha[t - 1], p, alpha[t])
        _sum(alpha[t], ones, total)
        log_z += np.log(total)
        for i in range(num_states):
            for g in range(width):
                alpha[t, i, g] = alpha[t, i, g] / total[g] + c * graph.init[i]
    _sum(alpha[num_frames], graph.final, total)
    log_z += np.log(total)
    leak = np.empty_like(total)
    for t in range(num_frames - 1, -1, -1):
        _sum(after, graph.init, leak)
        _sum(after, ones, total)
        for i in range(num_states):
            for g in range(width):
                after[i, g] = (after[i, g] + c * leak[g]) / total[g]
        _exp(scores[t], p, total)
        _step_back(graph.by_src, alpha[t], after, p, now, occupancy[t])
        _sum(occupancy[t], ones, total)
        for k in range(num_columns):
            for g in range(width):
                occupancy[t, k, g] /= total[g]
        now, after = after, now
    return log_z


@_kernel
def _step(rows: Any, before: Any, p: Any, now: Any) -> None:
    offsets, src, column, weight = rows
    width = p.shape[1]
    for j in range(len(offsets) - 1):
        for g in range(width):
            now[j, g] = 0
        for e in range(offsets[j], offsets[j + 1]):
            i, k, w = src[e], column[e], weight[e]
            for g in range(width):
                now[j, g] += before[i, g] * w * p[k, g]


@_kernel
def _step_back(rows: Any, alpha: Any, after: Any, p: Any, now: Any, occupancy: Any) -> None:
    offsets, dst, column, weight = rows
    width = p.shape[1]
    occupancy[:] = 0
    for i in range(len(offsets) - 1):
        for g in range(width):
            now[i, g] = 0
        for e in range(offsets[i], offsets[i + 1]):
            j, k, w = dst[e], column[e], weight[e]
            for g in range(width):
                x = w * p[k, g] * after[j, g]
                now[i, g] += x
                occupancy[k, g] += alpha[i, g] * x


@_kernel
def _exp(y: Any, p: Any, largest: Any) -> None:
    """p [K, N] = exp(y - largest), largest [N] the maximum over k."""
    largest[:] = y[0]
    for k in range(len(y)):
        for g in range(len(largest)):
            largest[g] = max(largest[g], y[k, g])
    for k in range(len(y)):
        for g in range(len(largest)):
            p[k, g] = np.exp(y[k, g] - largest[g])


@_kernel
def _sum(rows: Any, weights: Any, total: Any) -> None:
    total[:] = 0
    for i in range(len(rows)):
        for g in range(len(total)):
            total[g] += weights[i] * rows[i, g]
