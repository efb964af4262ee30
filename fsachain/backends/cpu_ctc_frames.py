"""Between arrays [N, T, C] and rows of numbers where each lane has columns of its own, as CTC targets have.

The same frames pass through the log-softmax here, where they are in the cache anyway: its statistics are taken when scores
are read, its gradient is written just before the occupancies.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.backends.cpu_lanes import prefetch
from fsachain.backends.cpu_softmax import row_statistics, row_sum, write_softmax, write_zeros
from fsachain.backends.jit import jit_on_views


class OwnColumns(NamedTuple):
    """What each column of each lane reads: see `fsachain.backends.ctc.CtcColumns`.

    active [K, W]: classes; counts [W]: columns in use; offset [K, W], slope [K]; tiles and place as in `cpu_frames.Columns`:
    none, and k. A lane with such columns is rounded alike alone and beside others: `cpu_frames` tells them by this type.
    """

    active: npt.NDArray[np.uint32]
    counts: npt.NDArray[np.int64]
    offset: npt.NDArray[np.float64]
    slope: npt.NDArray[np.float64]
    tiles: npt.NDArray[np.int64]
    place: npt.NDArray[np.uint32]


class CtcFrames(NamedTuple):
    """Scores, flat, of sequences lanes[g] of lengths[g] frames, -1 if there is none for the lane.

    strides [2]: entries from one sequence and from one frame to the next. num_classes: C. statistics [2, N, T]: of each row
    what `row_statistics` finds; if there are any, the gradient is that through a log-softmax. sums [N, T], if there are any:
    `row_sum` of the frames t for which `every` divides t + phase; the others stay what they are. reads: the scores are read
    for the first time, so both are to be found now. form: of a register of scores; masks: `leave_out_masks`.
    """

    scores: npt.NDArray[np.floating]
    lanes: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    columns: OwnColumns
    strides: npt.NDArray[np.int64]
    num_classes: int
    statistics: npt.NDArray[np.float64]
    sums: npt.NDArray[np.float64]
    every: int
    phase: int
    reads: bool
    form: Any
    masks: npt.NDArray[np.floating]


@jit_on_views
def _prefetch_row(flat: Any, start: int, count: int) -> None:
    for i in range(start, start + count, 16):
        prefetch(flat, i)


@jit_on_views
def copy_own(form: Any, frames: Any, t: int, rows: Any) -> None:
    """rows[k, g] = the score of column k, -inf beyond a lane's columns and past a sequence's end."""
    columns, flat = frames.columns, frames.scores
    num_columns = len(columns.active)
    for g in range(len(form)):
        count = 0
        if t < frames.lengths[g]:
            count = columns.counts[g]
            n = frames.lanes[g]
            start = n * frames.strides[0] + t * frames.strides[1]
            if frames.reads and frames.statistics.size > 0:
                top, total = row_statistics(frames.form, flat, frames.masks, start, frames.num_classes)
                frames.statistics[0, n, t] = top
                frames.statistics[1, n, t] = total
            elif frames.reads and frames.sums.size > 0 and (t + frames.phase) % frames.every == 0:
                frames.sums[n, t] = row_sum(frames.form, flat, frames.masks, start, frames.num_classes)
            if t + 1 < frames.lengths[g]:
                _prefetch_row(flat, start + frames.strides[1], frames.num_classes)
            late = (frames.lengths[g] - 1) * 0.5 - t
            for k in range(count):
                y = flat[start + columns.active[k, g]]
                rows[k, g] = y - columns.offset[k, g] + columns.slope[k] * late
        for k in range(count, num_columns):
            rows[k, g] = -np.inf


@jit_on_views
def add_own(form: Any, frames: Any, t: int, rows: Any, factors: Any, out: Any) -> None:
    """The gradient of frame t where the factor is not 0: the rows of shares over zeros, or over minus factor x softmax."""
    columns = frames.columns
    for g in range(len(form)):
        factor = factors[0, g]
        if t < frames.lengths[g] and factor != 0.0:
            n = frames.lanes[g]
            start = n * frames.strides[0] + t * frames.strides[1]
            if frames.statistics.size > 0:
                kind, total = frames.scores.dtype.type, frames.statistics[1, n, t]
                top, scale = kind(frames.statistics[0, n, t]), kind(-factor / total)
                numbers = top, scale, kind(np.inf), kind(1)
                write_softmax(frames.form, frames.scores, start, frames.num_classes, numbers, out)
            else:
                write_zeros(frames.form, out, start, frames.num_classes)
            if t > 0:
                _prefetch_row(frames.scores, start - frames.strides[1], frames.num_classes)
                _prefetch_row(out, start - frames.strides[1], frames.num_classes)
            for k in range(columns.counts[g]):
                out[start + columns.active[k, g]] += rows[k, g]
