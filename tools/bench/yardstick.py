"""What the backend is compared with: the plain loop that anyone would write first, and the rates of the machine.

The plain loop does the work of equations (1)-(7) for a batch that shares one graph, in one thread: sequences innermost,
every alpha kept, each frame divided by its sum. It takes its scores in the order it likes best, has one length for all and
no way out when a sum underflows.

The limit is what the machine forbids to undercut: two multiply-adds for each arc-evaluation, and the bytes that must
move. The forward and the backward pass each add a product of a weight and a number of another state to a sum, which is
one multiply-add per arc with the other factors taken out of the loop; occupancies, exponentials and normalisation come
on top and are not counted. Through memory go the scores once, the gradient in and out, and the alphas out and in where
they are larger than the caches. The larger of the two times counts, at rates measured in the same rounds by one thread,
divided by the threads. Operands of the multiply-adds stand in the first-level cache, which graphs of thousands of
states do not: no program reaches 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from fsachain.backends.cpu.jit import with_cache
from fsachain.table import ArcView, TransitionTable
from tools.bench.timing import Call, Comparison, Name, Times
from tools.bench.workloads import PER_ARC, Work

Reals = npt.NDArray[np.floating[Any]]

CACHE_LINE = 64  # bytes
ROWS, LANES = 8, 512  # 16 KB, within the first-level cache
PASSES = 20_000
MULTIPLY_ADDS = PASSES * ROWS * LANES
STREAM_LENGTH = 8 << 20  # three arrays of 32 MB, more than the caches hold
ADDING, MOVING = ("multiply-adds", 1), ("memory", 1)  # the jobs that measure the two rates
STREAM_BYTES = 4 * 4 * STREAM_LENGTH  # three arrays are read, one is written


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


def multiply_add_arrays() -> tuple[Reals, Reals, Reals]:
    """Rows begin at a cache line, so that the rate does not hang on where memory was free."""
    generator = np.random.default_rng(1)
    room = np.zeros((ROWS + 2) * LANES, np.float32)
    first = (-room.ctypes.data % CACHE_LINE) // room.itemsize
    rows = room[first : first + (ROWS + 1) * LANES].reshape(ROWS + 1, LANES)
    rows[:ROWS] = generator.random((ROWS, LANES), dtype=np.float32)
    return rows[:ROWS], generator.random(ROWS, dtype=np.float32), rows[ROWS]


@_kernel
def multiply_add(x: Any, w: Any, out: Any, passes: int) -> None:
    """out += w x, `passes` times: a state with eight arcs, the sum in a register, operands in the first-level cache."""
    for _ in range(passes):
        w0, w1, w2, w3, w4, w5, w6, w7 = w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]
        for g in range(len(out)):
            low = w0 * x[0, g] + w1 * x[1, g] + w2 * x[2, g] + w3 * x[3, g]
            out[g] += low + (w4 * x[4, g] + w5 * x[5, g] + w6 * x[6, g] + w7 * x[7, g])


def stream_arrays() -> tuple[Reals, Reals, Reals]:
    generator = np.random.default_rng(1)
    x, y = (generator.random(STREAM_LENGTH, dtype=np.float32) for _ in range(2))
    return x, y, np.zeros_like(x)


@_kernel
def stream(x: Any, y: Any, z: Any) -> None:
    """z += x y, once through memory."""
    for i in range(len(z)):
        z[i] += x[i] * y[i]


def rates() -> dict[Name, Call]:
    """The jobs that measure the two rates; they run in the same rounds as what is compared with the limit."""
    operands, arrays = multiply_add_arrays(), stream_arrays()
    return {ADDING: lambda: multiply_add(*operands, PASSES), MOVING: lambda: stream(*arrays)}


def against_limit(times: Mapping[Name, Times], name: Name, work: Work) -> Comparison:
    """How far the job `name` is from the limit of its work and threads."""
    pairs = zip(times[ADDING].seconds, times[MOVING].seconds, strict=True)
    arithmetic, traffic = PER_ARC * work.evaluations / MULTIPLY_ADDS, work.bytes / STREAM_BYTES
    limit = Times(tuple(max(arithmetic * a, traffic * m) / name[1] for a, m in pairs))
    return Comparison("limit", times[name].over(limit))
