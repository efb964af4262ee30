"""What one group of sequences goes through: alphas of all segments, log Z, the decision (13), betas and occupancies."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fsachain.backends.cpu_confirm import confirm
from fsachain.backends.cpu_lanes import by_type
from fsachain.backends.cpu_numbers import is_wide_type, write, zero
from fsachain.backends.cpu_recursion import backward, forward
from fsachain.backends.jit import jit_on_views


@jit_on_views
def _conclude(table: Any, frames: Any, record: Any, log_z: Any) -> None:
    """log_z [W] from what the forward pass took off; -inf for no path, NaN for an illegal score."""
    initial, arcs, final = table.log_scale
    for g in range(len(frames.lengths)):
        if record.extent[0, g] != record.extent[0, g]:
            log_z[g] = np.nan
        elif not record.z[g] > 0.0:
            log_z[g] = -np.inf
        else:
            shifts, scales = 0.0, float(record.z_scale[g])
            for t in range(frames.lengths[g]):
                shifts += record.shift[t, g]
                scales += record.scale[t, g]
            weights = initial + arcs * frames.lengths[g] + final
            log_z[g] = math.log(record.z[g]) + scales * math.log(2.0) + shifts + weights


@by_type
def _decide(form: Any, table: Any, frames: Any, record: Any, limit: Any, certain: Any) -> Any:
    """Whether nothing that matters was lost: equation (13), or that no exponent of a wide number came near zero's."""

    def plain(form, table, frames, record, limit, certain):  # type: ignore[no-untyped-def]
        for g in range(len(certain)):
            enough = max(record.lowest[0, g], record.leaked[0, g]) >= limit
            certain[g] = enough or math.isnan(record.extent[0, g])

    def wide(form, table, frames, record, limit, certain):  # type: ignore[no-untyped-def]
        for g in range(len(certain)):
            reach = (record.extent[0, g] / math.log(2.0) + table.reach + 2.0) * (frames.lengths[g] + 2)
            certain[g] = reach < limit or math.isnan(record.extent[0, g])

    return wide if is_wide_type(form) else plain


@jit_on_views
def _copy(source: Any, target: Any) -> None:
    for i in range(source.shape[0]):
        for g in range(source.shape[1]):
            target[i, g] = source[i, g]


@jit_on_views
def _clear(form: Any, rows: Any) -> None:
    for i in range(len(rows)):
        write(form, rows, i, zero(form, rows))


@jit_on_views
def run(
    form: Any,
    table: Any,
    c: Any,
    frames: Any,
    segment: int,
    memory: Any,
    limit: float,
    factors: Any,
    log_z: Any,
    certain: Any,
    out: Any,
) -> None:
    """log_z [W] and certain [W]; where the latter is true, out[n, t, p] += factors [W] x occupancy, unless out is empty.

    Frames are worked on in segments. The alphas before each are kept in `memory`, and all those of one segment at a time
    (all of two, in turn, if out is empty, when there is but one segment).
    """
    work, record = memory.work, memory.record
    count, starts = 0, len(memory.checkpoints)
    for g in range(len(frames.lengths)):
        count = max(count, frames.lengths[g])
    for index in range(max(starts, 1)):
        if index > 0:
            _copy(work.history[segment], work.history[0])
            _copy(work.history[0], memory.checkpoints[index])
        forward(form, table, c, frames, index * segment, min((index + 1) * segment, count), work, record)
    _conclude(table, frames, record, log_z)
    _decide(form, table, frames, record, limit, certain)
    confirm(form, table, c, frames, limit, work, record, certain)
    wanted = False
    for g in range(len(certain)):
        usable = certain[g] and math.isfinite(log_z[g]) and frames.lengths[g] > 0 and len(out) > 0
        work.factors[0, g] = factors[g] if usable else 0.0
        wanted |= work.factors[0, g] != 0.0
    if not wanted:
        return
    _clear(form, work.beta[0])
    _clear(form, work.beta[1])
    for index in range(max(starts, 1) - 1, -1, -1):
        first, last = index * segment, min((index + 1) * segment, count)
        if index < starts - 1:
            _copy(memory.checkpoints[index], work.history[0])
            forward(form, table, c, frames, first, last, work, record)
        backward(form, table, c, frames, first, last, work, out)
