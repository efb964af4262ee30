"""The grid on the CPU: sequences as jobs for the threads, each with a workspace of its thread."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from fsachain.backends.cpu.jit import helper, jit_on_views
from fsachain.backends.cpu.memory import borrow, give_back, trim
from fsachain.backends.cpu.simd import (
    exp_or_zero,
    fill,
    fma,
    larger,
    load,
    load_from,
    log_of_sum,
    smaller,
    splat,
    store,
    where_more,
)
from fsachain.backends.cpu.structs import Form
from fsachain.backends.cpu.threads import run_all
from fsachain.grid import GridBatch, Ints
from fsachain.recursion import Array

# Numba kernels for equations (20)-(23): one sequence at a time, the nodes of an anti-diagonal side by side in
# lanes.
#
# All nodes with t + u = r stand in row r, (t, u) in column PAD + u, so that an arc leads from a row to a
# later one and, over all lanes at once, from columns to the same columns or to the next. Every alpha is a
# float64 log: right at any magnitude. Lanes off the grid hold -inf, because no arc leads there; the one that
# follows a row's last is the next row's first, so one block more stands after the last row. A sequence is
# worked on by itself, so its bits do not depend on the batch.

PAD = 8  # lanes, and columns before the first label
NODE = 10.0  # nanoseconds that a node takes, of the grid or beside it
FORM = Form(PAD)
INDEX: Any = np.uint64  # of an entry: of a signed number numba asks each time whether it counts from the end


def num_columns(labels: int) -> int:
    """Of a row: a block before the first label, and those that the labels need."""
    return PAD * ((labels + PAD) // PAD + 1)


columns_of = helper(num_columns)


def num_entries(frames: int, labels: int) -> int:
    """Of a sequence's rows."""
    return (frames + labels + 1) * num_columns(labels) + PAD


@helper
def _extent(arc: Any, box: Any, size: Any) -> Any:
    """As `grid.usable_extent`."""
    frames = min(size[2] - arc[0] - arc[2] + 1, box[3] - size[0])
    return max(frames, 0), max(min(size[3] - arc[1] + 1, box[4] - size[1]), 0)


@helper
def _skew(arc: Any, box: Any, size: Any, values: Any, rows: Any, columns: int) -> bool:
    """Scores of one kind from their box into rows, -inf elsewhere; whether none of them is NaN or +inf."""
    nothing = splat(FORM, -np.inf)
    for i in range((size[2] + size[3] + 1) * columns // PAD):
        store(rows, i, nothing)
    frames, labels = _extent(arc, box, size)
    illegal = 0.0
    for t in range(frames):
        source = box[0] + (size[0] + t) * box[1] + size[1] * box[2]
        target = t * columns + PAD
        for _ in range(labels):
            score = np.float64(values[INDEX(source)])
            rows[INDEX(target)] = score
            illegal += max(score, -1e300) * 0.0  # max(NaN, x) is NaN here, and +inf x 0 is NaN
            source += box[2]
            target += columns + 1
    return illegal == 0.0


@helper
def _unskew(arc: Any, box: Any, size: Any, rows: Any, values: Any, columns: int) -> None:
    """Occupancies of one kind from rows into their box."""
    frames, labels = _extent(arc, box, size)
    for t in range(frames):
        target = box[0] + (size[0] + t) * box[1] + size[1] * box[2]
        source = t * columns + PAD
        for _ in range(labels):
            values[INDEX(target)] = rows[INDEX(source)]
            target += box[2]
            source += columns + 1


@helper
def _clear(arc: Any, box: Any, size: Any, ok: bool, values: Any) -> None:
    """0 in a whole box, unless the occupancies of a sequence that is ok fill it."""
    frames, labels = _extent(arc, box, size)
    if ok and frames == box[3] and labels == box[4]:
        return
    for t in range(box[3]):
        position = box[0] + t * box[1]
        for _ in range(box[4]):
            values[INDEX(position)] = 0.0
            position += box[2]


@helper
def _columns(size: Any, r: int) -> Any:
    """The blocks of PAD columns that row r has nodes in: first and last + 1."""
    return (max(r - size[2], 0) + PAD) // PAD, (min(r, size[3]) + PAD) // PAD + 1


@helper
def _alphas(arcs: Any, size: Any, scores: Any, alpha: Any, columns: int) -> None:
    """Equation (20): alpha, rows [(T + U + 1) columns + PAD], from the scores, [K] of the same."""
    nothing = splat(FORM, -np.inf)
    one = fill(nothing, 1.0)
    num_rows = size[2] + size[3] + 1
    for i in range(num_rows * columns // PAD + 1):
        store(alpha, i, nothing)
    alpha[PAD] = 0.0
    for r in range(1, num_rows):
        first, last = _columns(size, r)
        for block in range(first, last):
            top, total, count = nothing, one, 0
            for k in range(len(arcs)):
                before = r - arcs[k, 0] - arcs[k, 1]
                if before >= 0:
                    source = before * columns + block * PAD - arcs[k, 1]
                    x = load_from(FORM, alpha, source) + load_from(FORM, scores[k], source)
                    if count > 0:  # total is the sum of exp(x - top), the largest of which is 1
                        share = exp_or_zero(FORM, smaller(x, top) - larger(x, top))
                        total = where_more(x, top, fma(total, share, one), total + share)
                    top = larger(x, top)
                    count += 1
            store(alpha, r * columns // PAD + block, top + log_of_sum(FORM, total))


@helper
def _occupancies(arcs: Any, size: Any, scores: Any, alpha: Any, nodes: Any, columns: int) -> None:
    """Equation (22): scores give way to g; nodes, rows [(T + U + 1) columns + PAD], to n."""
    zero = splat(FORM, 0.0)
    num_rows = size[2] + size[3] + 1
    for i in range(num_rows * columns // PAD + 1):
        store(nodes, i, zero)
    nodes[(num_rows - 1) * columns + PAD + size[3]] = 1.0
    for r in range(num_rows - 2, -1, -1):
        first, last = _columns(size, r)
        for block in range(first, last):
            row = r * columns // PAD + block
            here, total = load(FORM, alpha, row), zero
            for k in range(len(arcs)):
                after = r + arcs[k, 0] + arcs[k, 1]
                if after < num_rows:
                    target = after * columns + block * PAD + arcs[k, 1]
                    ahead = load_from(FORM, nodes, target)
                    x = here + load(FORM, scores[k], row) - load_from(FORM, alpha, target)
                    g = ahead * exp_or_zero(FORM, x)
                    store(scores[k], row, g)
                    total = total + g
            store(nodes, row, total)


@helper
def _load_scores(batch: Any, n: int, values: Any, scores: Any, columns: int) -> bool:
    arcs, sizes, boxes = batch
    legal = True
    for k in range(len(arcs)):
        legal &= _skew(arcs[k], boxes[n, k], sizes[n], values, scores[k], columns)
    return legal


def _log_prob(batch: Any, n: int, values: Any, work: Any, columns: int) -> float:
    """log Z (21) of sequence n; work [K + 2, rows x columns + PAD] float64 then holds scores and alphas."""
    arcs, sizes, _ = batch
    if not _load_scores(batch, n, values, work, columns):
        return np.nan
    alpha = work[len(arcs)]
    _alphas(arcs, sizes[n], work, alpha, columns)
    return alpha[(sizes[n, 2] + sizes[n, 3]) * columns + PAD + sizes[n, 3]]


log_prob, log_prob_inside = jit_on_views(_log_prob), helper(_log_prob)  # from Python, from another kernel


def _forward_backward(batch: Any, n: int, values: Any, work: Any, columns: int) -> float:
    """log Z of sequence n; its scores in `values` give way to occupancies, to zeros if log Z is not finite."""
    arcs, sizes, boxes = batch
    result = log_prob_inside(batch, n, values, work, columns)
    ok = -np.inf < result < np.inf
    for k in range(len(arcs)):
        _clear(arcs[k], boxes[n, k], sizes[n], ok, values)
    if ok:
        _occupancies(arcs, sizes[n], work, work[len(arcs)], work[len(arcs) + 1], columns)
        for k in range(len(arcs)):
            _unskew(arcs[k], boxes[n, k], sizes[n], work[k], values, columns)
    return result


forward_backward_of_one, forward_backward_inside = jit_on_views(_forward_backward), helper(_forward_backward)


@jit_on_views
def best_path(batch: Any, n: int, values: Any, work: Any, columns: int, path: Any) -> Any:
    """The best path (23): its score, and how many rows (k, t, u) of `path` [T + U, 3] it fills from the end."""
    arcs, sizes, _ = batch
    size = sizes[n]
    if not _load_scores(batch, n, values, work, columns):
        return np.nan, 0
    best, back = work[len(arcs)], work[len(arcs) + 1]
    for t in range(size[2] + 1):
        for u in range(size[3] + 1):
            here = (t + u) * columns + PAD + u
            best[here], back[here] = 0.0 if t + u == 0 else -np.inf, -1.0
            for k in range(len(arcs)):
                if t >= arcs[k, 0] and u >= arcs[k, 1]:
                    source = here - (arcs[k, 0] + arcs[k, 1]) * columns - arcs[k, 1]
                    candidate = best[source] + work[k, source]
                    if candidate > best[here]:
                        best[here], back[here] = candidate, k
    t, u, used = size[2], size[3], 0
    score = best[(t + u) * columns + PAD + u]
    if score > -np.inf:
        while t + u > 0:
            k = int(back[(t + u) * columns + PAD + u])
            t, u = t - arcs[k, 0], u - arcs[k, 1]
            used += 1
            path[len(path) - used, 0], path[len(path) - used, 1], path[len(path) - used, 2] = k, t, u
    return score, used


Reals = npt.NDArray[np.floating]


def log_probs(batch: GridBatch, values: Reals) -> Array:
    """log Z [N] of (21): -inf where there is no path, NaN for scores that hold NaN or +inf."""
    return _run(log_prob, batch, values)


def forward_backward(batch: GridBatch, values: Reals) -> Array:
    """log Z [N]; the scores in `values`, float32 or float64 [*], give way to their occupancies g of (22).

    Padding, and a sequence whose log Z is not finite, get 0.
    """
    return _run(forward_backward_of_one, batch, values)


def best_paths(batch: GridBatch, values: Reals) -> tuple[Array, list[Ints]]:
    """The best path (23) of each sequence: its score [N], and rows (k, t, u) of its arcs; no rows where there is none."""
    score, paths = np.empty(len(batch.sizes)), [np.empty((0, 3), np.int64)] * len(batch.sizes)

    def job(n: int, work: Array, columns: int) -> None:
        path = np.empty((int(batch.sizes[n, 2:].sum()), 3), np.int64)
        score[n], used = best_path(tuple(batch), n, values, work, columns, path)
        paths[n] = path[len(path) - used :]

    _for_each(batch, job)
    return score, paths


def _run(kernel: Any, batch: GridBatch, values: Reals) -> Array:
    result, given = np.empty(len(batch.sizes)), tuple(batch)

    def job(n: int, work: Array, columns: int) -> None:
        result[n] = kernel(given, n, values, work, columns)

    _for_each(batch, job)
    return result


def _for_each(batch: GridBatch, job: Callable[[int, Array, int], None]) -> None:
    """job(n, work, columns) for each sequence, longest first; work [K + 2, cells]."""
    jobs, total, kinds = [], 0, len(batch.arcs) + 2

    def run(cells: int, n: int, columns: int) -> None:
        buffer = borrow(kinds * cells * 8)
        job(n, np.ndarray((kinds, cells), np.float64, buffer), columns)
        give_back(buffer)

    for n, (_, _, frames, labels) in enumerate(batch.sizes.tolist()):
        cells = num_entries(frames, labels)
        jobs.append((cells, n, num_columns(labels)))
        total += cells
    jobs.sort(reverse=True)
    run_all([partial(run, *one) for one in jobs], NODE * total)
    trim()
