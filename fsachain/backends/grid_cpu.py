"""The grid on the CPU: sequences as jobs for the threads, each with a workspace of its thread."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from fsachain.backends import grid_recursion
from fsachain.backends.cpu_lanes import aligned_bytes
from fsachain.backends.grid_recursion import PAD
from fsachain.backends.threads import get_num_threads, run_all
from fsachain.grid import GridBatch, Ints
from fsachain.recursion import Array

Reals = npt.NDArray[np.floating]


def log_probs(batch: GridBatch, values: Reals) -> Array:
    """log Z [N] of (21): -inf where there is no path, NaN for scores that hold NaN or +inf."""
    return _run(grid_recursion.log_prob, batch, values)


def forward_backward(batch: GridBatch, values: Reals) -> Array:
    """log Z [N]; the scores in `values`, float32 or float64 [*], give way to their occupancies g of (22).

    Padding, and a sequence whose log Z is not finite, get 0.
    """
    return _run(grid_recursion.forward_backward, batch, values)


def best_paths(batch: GridBatch, values: Reals) -> tuple[Array, list[Ints]]:
    """The best path (23) of each sequence: its score [N], and rows (k, t, u) of its arcs; no rows where there is none."""
    score, paths = np.empty(len(batch.sizes)), [np.empty((0, 3), np.int64)] * len(batch.sizes)

    def job(n: int, work: Array, columns: int) -> None:
        path = np.empty((int(batch.sizes[n, 2:].sum()), 3), np.int64)
        score[n], used = grid_recursion.best_path(tuple(batch), n, values, work, columns, path)
        paths[n] = path[len(path) - used :]

    _for_each(batch, job)
    return score, paths


def _run(kernel: Any, batch: GridBatch, values: Reals) -> Array:
    result = np.empty(len(batch.sizes))

    def job(n: int, work: Array, columns: int) -> None:
        result[n] = kernel(tuple(batch), n, values, work, columns)

    _for_each(batch, job)
    return result


def _for_each(batch: GridBatch, job: Callable[[int, Array, int], None]) -> None:
    """job(n, work, columns) for each sequence, longest first; work [K + 2, cells], one for each thread."""
    cells = [_num_rows(size) * _num_columns(size) + PAD for size in batch.sizes]
    spare: list[Array] = []  # list.append and list.pop are atomic
    kinds = len(batch.arcs) + 2

    def run(n: int) -> None:
        try:
            work = spare.pop()
        except IndexError:
            work = aligned_bytes(kinds * max(cells) * 8).view(np.float64).reshape(kinds, max(cells))
        job(n, work, _num_columns(batch.sizes[n]))
        spare.append(work)

    order = sorted(range(len(cells)), key=lambda n: -cells[n])
    if get_num_threads() == 1:
        for n in order:
            run(n)
    else:
        run_all([partial(run, n) for n in order])


def _num_columns(size: Ints) -> int:
    """A block before the first label, and those that the labels need."""
    return PAD * ((int(size[3]) + PAD) // PAD + 1)


def _num_rows(size: Ints) -> int:
    return int(size[2] + size[3]) + 1
