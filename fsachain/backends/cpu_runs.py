"""Sums over arcs in the order of their lengths, for `cpu_by_run`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

SIDE = 4  # rows that are summed side by side


class Rows(NamedTuple):
    """Rows of equal length follow each other, as a run.

    Run r has rows of lengths[r] entries and ends before row ends[r]. The sum of a row, of weight times what stands at
    `source`, goes to target[row]. Of each SIDE rows of a run come the first entries, then the second ones, and so on; of
    those that are left at its end, row after row. weight: as `cpu_numbers.weights` makes them.
    """

    lengths: npt.NDArray[np.uint32]
    ends: npt.NDArray[np.uint32]
    target: npt.NDArray[np.uint32]
    source: npt.NDArray[np.uint32]
    weight: tuple[npt.NDArray[np.floating], npt.NDArray[np.integer]]


def in_runs(
    offsets: npt.NDArray[np.uint32],
    source: npt.NDArray[np.uint32],
    weight: tuple[npt.NDArray[np.floating], npt.NDArray[np.integer]],
) -> Rows:
    """The rows offsets[n] to offsets[n + 1] - 1 of `source` and `weight`, whose sums go to n."""
    starts = offsets.astype(np.int64)
    counts = np.diff(starts)
    target = np.argsort(counts, kind="stable")
    lengths, firsts = np.unique(counts[target], return_index=True)
    ends = np.append(firsts, len(target))[1:]
    order: list[npt.NDArray[Any]] = [np.empty(0, np.int64)]
    for length, first, end in zip(lengths, firsts, ends, strict=True):
        whole = end - (end - first) % SIDE
        along = np.arange(length)[:, None]
        order.append((starts[target[first:whole]].reshape(-1, 1, SIDE) + along).ravel())
        order.append((starts[target[whole:end]] + along).T.ravel())
    positions = np.concatenate(order)
    mantissas, exponents = weight
    return Rows(
        lengths=lengths.astype(np.uint32),
        ends=ends.astype(np.uint32),
        target=target.astype(np.uint32),
        source=source[positions],
        weight=(mantissas[positions], exponents[positions] if len(exponents) else exponents),
    )
