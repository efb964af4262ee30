"""Between arrays of sequences [N, T, P] and rows of numbers: scores in, probabilities, occupancies out, frame by frame."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.backends.cpu_arithmetic import (
    fma,
    larger,
    largest_lane,
    least_lane,
    smaller,
    sum_lanes,
    where_more,
)
from fsachain.backends.cpu_ctc_frames import CtcFrames, OwnColumns, add_own, copy_own
from fsachain.backends.cpu_lanes import by_type, fill, load, prefetch, splat, store
from fsachain.backends.cpu_numbers import (
    is_wide_type,
    lanes_of,
    probability,
    ratio,
    read,
    reciprocal,
    shift_of,
    write,
)
from fsachain.backends.cpu_tiles import tile_in, tile_out
from fsachain.backends.jit import jit_on_views

ALONG = 8  # pdfs or states side by side where a single sequence has no others beside it
ALONG_FORM = (0,) * ALONG


class Columns(NamedTuple):
    """Where the active pdfs lie.

    active [K]: in the scores; equal ones in runs that begin at `runs`, whose last entry is K. tiles: the first pdfs of
    W x W tiles; place [K]: in the rows of all tiles; k without tiles.
    """

    active: npt.NDArray[np.uint32]
    runs: npt.NDArray[np.uint32]
    tiles: npt.NDArray[np.int64]
    place: npt.NDArray[np.uint32]


class Frames(NamedTuple):
    """The scores [N, T, P]; lane g has sequence lanes[g] of lengths[g] frames, -1 if there is none for it."""

    scores: npt.NDArray[np.floating]
    lanes: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    columns: Columns


def make_columns(
    active: npt.NDArray[np.uint32], runs: npt.NDArray[np.uint32], width: int, num_pdfs: int
) -> Columns:
    """Columns for `width` lanes and scores of `num_pdfs` pdfs; tiles where both are wide enough."""
    if width == 1 or num_pdfs < width or not len(active):
        return Columns(active, runs, np.empty(0, np.int64), np.arange(len(active), dtype=np.uint32))
    tiles: list[int] = []
    place = np.empty(len(active), np.uint32)
    k = 0
    while k < len(active):
        start = min(int(active[k]), num_pdfs - width)
        after = int(np.searchsorted(active, start + width))
        place[k:after] = len(tiles) * width + active[k:after] - start
        tiles.append(start)
        k = after
    return Columns(active, runs, np.array(tiles), place)


def count_rows(columns: Columns, width: int) -> int:
    """Rows of a workspace for these columns."""
    return max(len(columns.tiles) * width, len(columns.active))


@jit_on_views
def _offsets(frames: Any, t: int, offsets: Any) -> None:
    """offsets[g]: where frame t of each sequence begins in the flat scores; its last frame where it has ended."""
    _, num_frames, num_pdfs = frames.scores.shape
    for g in range(len(frames.lanes)):
        frame = max(min(t, frames.lengths[g] - 1), 0)
        offsets[g] = (frames.lanes[g] * num_frames + frame) * num_pdfs


@jit_on_views
def _copy_tiles(form: Any, frames: Any, t: int, rows: Any, offsets: Any) -> None:
    _offsets(frames, t, offsets)
    for index in range(len(frames.columns.tiles)):
        tile_in(form, frames.scores, offsets, frames.columns.tiles[index], rows, np.int64(index * len(form)))
    for g in range(len(form)):
        if t >= frames.lengths[g]:
            for k in range(len(frames.columns.active)):
                rows[frames.columns.place[k], g] = -np.inf


@jit_on_views
def _copy_single(frames: Any, t: int, rows: Any) -> None:
    y, active = frames.scores[frames.lanes[0], t], frames.columns.active
    following = frames.scores[frames.lanes[0], min(t + 1, frames.scores.shape[1] - 1)]
    for k in range(len(active)):
        rows[k, 0] = y[active[k]]
        prefetch(following, active[k])


@jit_on_views
def _copy_entries(form: Any, frames: Any, t: int, rows: Any, offsets: Any) -> None:
    for g in range(len(form)):
        if t < frames.lengths[g]:
            for k in range(len(frames.columns.active)):
                pdf = frames.columns.active[k]
                rows[frames.columns.place[k], g] = frames.scores[frames.lanes[g], t, pdf]
        else:
            for k in range(len(frames.columns.active)):
                rows[frames.columns.place[k], g] = -np.inf


@by_type
def _copy_scores(form: Any, frames: Any, t: Any, rows: Any, offsets: Any) -> Any:
    """rows[place[k], g] = the score of active pdf k, -inf past a sequence's end."""
    if frames.instance_class is CtcFrames:
        return lambda form, frames, t, rows, offsets: copy_own(form, frames, t, rows)
    if form.count == 1:  # and no frame past its end
        return lambda form, frames, t, rows, offsets: _copy_single(frames, t, rows)

    def tiles(form, frames, t, rows, offsets):  # type: ignore[no-untyped-def]
        if len(frames.columns.tiles) > 0:
            _copy_tiles(form, frames, t, rows, offsets)
        else:
            _copy_entries(form, frames, t, rows, offsets)

    if frames.types[0].dtype == rows.dtype:
        return tiles
    return lambda form, frames, t, rows, offsets: _copy_entries(form, frames, t, rows, offsets)


@jit_on_views
def _extremes(form: Any, rows: Any, places: Any, top: Any) -> Any:
    """Of the rows `places`: their maximum, from `top` up, their least value that is not -inf, NaN if one is not legal."""
    low, zero = fill(top, np.inf), fill(top, 0.0)
    lowest, illegal = fill(top, np.finfo(np.float32).min), zero
    for place in places:
        y = load(form, rows, place)
        top = larger(top, y)
        low = smaller(where_more(y, fill(top, -np.inf), y, fill(top, np.inf)), low)
        illegal = fma(larger(lowest, y), zero, illegal)  # +inf x 0 and NaN x 0 are NaN
    return top, low, illegal


@jit_on_views
def _keep_extremes(form: Any, extremes: Any, top: Any, low: Any, illegal: Any) -> None:
    """extremes [3, W]: the maximum (0 where it is -inf), the least value, at most the maximum, NaN if one is not legal."""
    top = where_more(top, fill(top, -np.inf), top, fill(top, 0.0))
    store(extremes, 0, top)
    store(extremes, 1, smaller(low, top))
    store(extremes, 2, illegal)


@jit_on_views
def _extremes_by_row(form: Any, columns: Any, rows: Any, extremes: Any) -> None:
    nothing = fill(load(form, extremes, 0), -np.inf)
    _keep_extremes(form, extremes, *_extremes(form, rows, columns.place, nothing))


@jit_on_views
def _extremes_along(form: Any, columns: Any, rows: Any, extremes: Any) -> None:
    """The same for one sequence, ALONG pdfs side by side, filled up with -inf: a lane of nothing else has no say."""
    count, nothing = len(columns.active), fill(load(ALONG_FORM, extremes, 0), -np.inf)
    for k in range(count, len(rows)):
        rows[k, 0] = -np.inf
    top, low, illegal = _extremes(ALONG_FORM, rows, range(-(-count // ALONG)), nothing)
    top, low = fill(top, largest_lane(top)), fill(top, least_lane(low))
    _keep_extremes(ALONG_FORM, extremes, top, low, fill(top, sum_lanes(illegal)))


@by_type
def _find_extremes(form: Any, columns: Any, rows: Any, extremes: Any) -> Any:
    if form.count == 1:
        return lambda form, columns, rows, extremes: _extremes_along(form, columns, rows, extremes)
    return lambda form, columns, rows, extremes: _extremes_by_row(form, columns, rows, extremes)


@jit_on_views
def load_scores(form: Any, frames: Any, t: int, work: Any) -> None:
    """Rows of scores of frame t on the active pdfs, -inf past a sequence's end, and their extremes."""
    _copy_scores(form, frames, t, work.scores, work.offsets)
    _find_extremes(form, frames.columns, work.scores, work.extremes)


@jit_on_views
def _probabilities_by_row(form: Any, columns: Any, scale: Any, work: Any, probs: Any) -> None:
    lanes = lanes_of(form)
    shift = shift_of(form, load(lanes, work.extremes, 0))
    n = load(lanes, scale, 0)
    for k in range(len(columns.active)):
        write(form, probs, k, probability(form, load(lanes, work.scores, columns.place[k]), shift, n))


@jit_on_views
def _probabilities_along(form: Any, columns: Any, scale: Any, work: Any, probs: Any) -> None:
    shift, n = load(ALONG_FORM, work.extremes, 0), splat(ALONG_FORM, scale[0, 0])
    for k in range(-(-len(columns.active) // ALONG)):
        write(ALONG_FORM, probs, k, probability(ALONG_FORM, load(ALONG_FORM, work.scores, k), shift, n))


@by_type
def pdf_probabilities(form: Any, columns: Any, scale: Any, work: Any, probs: Any) -> Any:
    """probs [K] = exp(y - shift) 2**-n as numbers, n the integers scale [1, W]."""
    if not is_wide_type(form) and form.count == 1:
        return lambda form, columns, scale, work, probs: _probabilities_along(
            form, columns, scale, work, probs
        )
    return lambda form, columns, scale, work, probs: _probabilities_by_row(form, columns, scale, work, probs)


@jit_on_views
def _shares_by_row(form: Any, columns: Any, inverse: Any, work: Any) -> None:
    lanes = lanes_of(form)
    factor = load(lanes, work.factors, 0)
    nothing = fill(factor, 0.0)
    used = larger(factor, nothing - factor)
    for index in range(len(columns.tiles) * len(lanes)):
        store(work.scores, index, nothing)
    for k in range(len(columns.active)):
        share = factor * ratio(read(form, work.occupancy, k), inverse)
        # A lane that is not used may hold NaN, and NaN times 0 is not 0.
        store(work.scores, columns.place[k], where_more(used, nothing, share, nothing))


@jit_on_views
def _shares_along(form: Any, columns: Any, inverse: Any, work: Any) -> None:
    factor = splat(ALONG_FORM, work.factors[0, 0] * sum_lanes(inverse))
    for k in range(-(-len(columns.active) // ALONG)):
        store(work.scores, k, factor * load(ALONG_FORM, work.occupancy, k))


@by_type
def _make_shares(form: Any, columns: Any, inverse: Any, work: Any) -> Any:
    if not is_wide_type(form) and form.count == 1 and columns.instance_class is not OwnColumns:
        return lambda form, columns, inverse, work: _shares_along(form, columns, inverse, work)
    return lambda form, columns, inverse, work: _shares_by_row(form, columns, inverse, work)


@jit_on_views
def _add_tiles(form: Any, frames: Any, t: int, rows: Any, offsets: Any, out: Any) -> None:
    _offsets(frames, t, offsets)
    for index in range(len(frames.columns.tiles)):
        tile_out(form, rows, np.int64(index * len(form)), out, offsets, frames.columns.tiles[index])


@jit_on_views
def _add_single(frames: Any, t: int, rows: Any, out: Any) -> None:
    into, active, runs = out[frames.lanes[0], t], frames.columns.active, frames.columns.runs
    following = out[frames.lanes[0], max(t - 1, 0)]
    for run in range(len(runs) - 1):
        pdf, total = active[runs[run]], rows.dtype.type(0)
        for k in range(runs[run], runs[run + 1]):
            total += rows[k, 0]
        into[pdf] += total
        prefetch(following, pdf)


@jit_on_views
def _add_entries(form: Any, frames: Any, t: int, rows: Any, factors: Any, out: Any) -> None:
    for g in range(len(form)):
        if t < frames.lengths[g] and factors[0, g] != 0.0:
            for k in range(len(frames.columns.active)):
                pdf = frames.columns.active[k]
                out[frames.lanes[g], t, pdf] += rows[frames.columns.place[k], g]


@by_type
def _add_rows(form: Any, frames: Any, t: Any, rows: Any, work: Any, out: Any) -> Any:
    if frames.instance_class is CtcFrames:
        return lambda form, frames, t, rows, work, out: add_own(form, frames, t, rows, work.factors, out)
    if form.count == 1:
        return lambda form, frames, t, rows, work, out: _add_single(frames, t, rows, out)

    def tiles(form, frames, t, rows, work, out):  # type: ignore[no-untyped-def]
        if len(frames.columns.tiles) > 0:
            _add_tiles(form, frames, t, rows, work.offsets, out)
        else:
            _add_entries(form, frames, t, rows, work.factors, out)

    if out.dtype == rows.dtype:
        return tiles
    return lambda form, frames, t, rows, work, out: _add_entries(form, frames, t, rows, work.factors, out)


@jit_on_views
def scatter(form: Any, frames: Any, t: int, total: Any, work: Any, out: Any) -> None:
    """out[n, t, p] += factor of the sequence x occupancy / total; where the factor is 0 nothing changes."""
    _make_shares(form, frames.columns, reciprocal(total), work)
    _add_rows(lanes_of(form), frames, t, work.scores, work, out)
