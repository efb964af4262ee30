"""Between arrays of sequences [N, T, P] and rows of numbers: scores in, probabilities, occupancies out, frame by frame."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.backends.cpu.jit import helper, inlined, jit_on_views
from fsachain.backends.cpu.numbers import (
    by_kind,
    kind_of,
    lanes_of,
    probability,
    ratio,
    read,
    reciprocal,
    shift_of,
    write,
    zero,
)
from fsachain.backends.cpu.simd import (
    FORMS,
    WIDTH,
    by_type,
    fill,
    fma,
    intrinsic,
    larger,
    largest_lane,
    largest_of_rows,
    least_lane,
    load,
    load_from,
    prefetch,
    smaller,
    splat,
    store,
    store_to,
    sum_in_halves,
    sum_lanes,
    sum_of_rows,
    tile_in,
    tile_out,
    where_more,
)
from fsachain.backends.cpu.structs import Form, Packed

# Rows of C classes as lanes: sums of their exponentials, and the gradient that a softmax leaves there.
#
# A row is read W classes at a time, as many as fill a register. Where C is no multiple of W the last W
# classes are read once more, and those that were counted already are left out.

# Registers that are added up before the sum goes on in float64: float32 keeps its digits over so many.
BLOCK = 64
SHORT = 16  # registers of a row: W such rows lie side by side in the first-level cache
ONE = Form(1)
LOG2_E, LN_2 = 1.0 / np.log(2.0), np.log(2.0)


@cache
def _powers(degree: int) -> tuple[float, ...]:
    """Of exp(r) for |r| <= ln 2 / 2, through the Chebyshev points of the interval; from the highest to the lowest."""
    series = np.polynomial.Chebyshev.interpolate(np.exp, degree, [-0.5 * LN_2, 0.5 * LN_2])
    return tuple(series.convert(kind=np.polynomial.Polynomial).coef[::-1].tolist())


@intrinsic
def as_power(like: Any, x: Any) -> Any:
    """2**n from lanes whose lowest mantissa bits are n + bias."""

    def code(context: Any, builder: Any, _: Any, value: Any) -> Any:
        bits = builder.bitcast(value, x.bits)
        return builder.bitcast(builder.shl(bits, x.constant(x.mantissa_bits)), x.vector)

    return like, code


@lru_cache(maxsize=2)
def leave_out_masks(itemsize: int) -> Any:
    """[2 W] zeros and ones: W of them from r on are zero but for the last r."""
    width = WIDTH[itemsize]
    kind = np.float32 if itemsize == 4 else np.float64
    return np.repeat(np.array([0.0, 1.0], kind), width)


def _exp_by(degree: int, floor: float, y: Any) -> Any:
    """(q, p) with exp(y) = q p for y < 88, those below `floor` as if they were `floor`; NaN for NaN.

    A polynomial of |r| <= ln 2 / 2, and an exponent that rounding leaves in the bits.
    """
    # Added to n, it leaves the integer n + bias in the lowest bits of the mantissa.
    magic = 1.5 * 2.0**y.mantissa_bits + y.bias
    first, rest = _powers(degree)[0], _powers(degree)[1:]

    def parts(form, y):  # type: ignore[no-untyped-def]
        x = larger(fill(y, floor), y)
        shifted = fma(x, fill(x, LOG2_E), fill(x, magic))
        r = fma(shifted - fill(x, magic), fill(x, -LN_2), x)
        q = fill(x, first)
        for coefficient in rest:
            q = fma(q, r, fill(x, coefficient))
        return q, as_power(x, shifted)

    return parts


# Their floors are the least whose exp is a normal number, to a few digits; the relative errors below 2e-9 and 1e-15, and
# what rounding ln 2 costs: 2e-9 |y| and 2e-17 |y|.
_DEGREES = {"float32": (6, -87.0), "float64": (10, -708.0)}


@by_type
def _exp(form: Any, y: Any) -> Any:
    return _exp_by(*_DEGREES[str(y.dtype)], y)


@by_type
def _roughly_exp(form: Any, y: Any) -> Any:
    """Within 1e-4 of itself."""
    return _exp_by(3, -80.0, y)


@helper
def _largest(form: Any, flat: Any, start: int, count: int) -> Any:
    """Lanes with the largest of `count` entries among them, count >= W; a NaN may go unseen."""
    width, end = len(form), start + count - len(form)
    a = load_from(form, flat, end)
    b, c, d = a, a, a  # four at once: none waits for the one before
    i = start
    while i + 3 * width <= end:
        a = larger(load_from(form, flat, i), a)
        b = larger(load_from(form, flat, i + width), b)
        c = larger(load_from(form, flat, i + 2 * width), c)
        d = larger(load_from(form, flat, i + 3 * width), d)
        i += 4 * width
    while i < end:
        a = larger(load_from(form, flat, i), a)
        i += width
    return larger(larger(a, b), larger(c, d))


@helper
def _first_sum(form: Any, flat: Any, masks: Any, start: int, count: int, top: Any) -> Any:
    """Lanes whose sum is that of exp(y - top) over the first BLOCK W of `count` entries, and `count` % W at the end."""
    width, lanes = len(form), splat(form, top)
    rest, partial = count % width, fill(lanes, 0.0)
    if rest > 0:
        q, power = _exp(form, load_from(form, flat, start + count - width) - lanes)
        partial = q * power * load_from(form, masks, rest)
    return _add_exp(form, flat, start, min(count - rest, BLOCK * width), lanes, partial)


@helper
def _add_exp(form: Any, flat: Any, start: int, count: int, top: Any, partial: Any) -> Any:
    for i in range(start, start + count, len(form)):
        q, power = _exp(form, load_from(form, flat, i) - top)
        partial = fma(q, power, partial)
    return partial


@helper
def _sum_wide(form: Any, flat: Any, masks: Any, start: int, count: int, top: Any) -> float:
    """The sum of exp(y - top) over `count` entries, count >= W."""
    width, lanes = len(form), splat(form, top)
    total = float(sum_in_halves(_first_sum(form, flat, masks, start, count, top)))
    end = start + count - count % width
    for first in range(start + BLOCK * width, end, BLOCK * width):
        partial = fill(lanes, 0.0)
        total += sum_in_halves(_add_exp(form, flat, first, min(BLOCK * width, end - first), lanes, partial))
    return total


@helper
def row_statistics(form: Any, flat: Any, masks: Any, start: int, count: int) -> Any:
    """(m, s) with logsum of `count` entries from `start` on = m + log s: their maximum, the sum of exp(y - m), float64.

    (0, 0) for a row of nothing but -inf; s is NaN for one that holds NaN or +inf.
    """
    if count < len(form):
        return _narrow_statistics(flat, start, count)
    top = largest_lane(_largest(form, flat, start, count))
    if top == -np.inf:  # a NaN may be among them
        return 0.0, 0.0 * _sum_wide(form, flat, masks, start, count, flat.dtype.type(0))
    return float(top), _sum_wide(form, flat, masks, start, count, top)


@helper
def _narrow_statistics(flat: Any, start: int, count: int) -> Any:
    """The same for count < W. A function of its own: with it `row_statistics` is too large to be inlined, and slower."""
    top = flat.dtype.type(-np.inf)
    for i in range(start, start + count):
        top = max(top, flat[i])
    used = 1.0
    if top == -np.inf:
        top, used = flat.dtype.type(0), 0.0
    lanes, total = splat(ONE, top), fill(splat(ONE, top), 0.0)
    for i in range(start, start + count):
        total = _add_exp(ONE, flat, i, 1, lanes, total)
    return float(top), sum_in_halves(total) * used


@helper
def statistics_of_rows(
    form: Any, flat: Any, masks: Any, start: int, stride: int, rows: int, count: int, work: Any, found: Any
) -> None:
    """As `row_statistics` for up to W rows `stride` apart, to the bit: found [2, W] float64; work [W + 1, W].

    Rows are short: what W registers come to, one for each row, costs more than a row if it is asked of each.
    """
    width = len(form)
    if count < width:
        for r in range(rows):
            found[0, r], found[1, r] = _narrow_statistics(flat, start + r * stride, count)
        return
    if count > SHORT * width:
        highest = largest_lane(_largest(form, flat, start, count))
        for r in range(rows):
            # Looked for before this row's sum is taken, and not after it: neither then waits for the other.
            after = start + min(r + 1, rows - 1) * stride
            following = largest_lane(_largest(form, flat, after, count))
            is_nothing = highest == -np.inf
            top = flat.dtype.type(0) if is_nothing else highest
            total = _sum_wide(form, flat, masks, start + r * stride, count, top)
            found[0, r], found[1, r] = top, 0.0 * total if is_nothing else total
            highest = following
        return
    for r in range(rows):
        store(work, r, _largest(form, flat, start + r * stride, count))
    top = largest_of_rows(form, work)
    least, zero = fill(top, -np.inf), fill(top, 0.0)
    store(work, width, where_more(top, least, top, zero))
    for r in range(rows):
        store(work, r, _first_sum(form, flat, masks, start + r * stride, count, work[width, r]))
        found[0, r] = work[width, r]
    total = sum_of_rows(form, work)
    store(work, 0, where_more(top, least, total, total * zero))
    for r in range(rows):
        found[1, r] = work[0, r]


@helper
def row_sum(form: Any, flat: Any, masks: Any, start: int, count: int) -> float:
    """The sum of exp(y) over `count` entries from `start` on, within 1e-4 of itself where no y is above 88.

    A larger y gives any number but none that is near one; entries below -80 count as exp(-80).
    """
    width, total = len(form), 0.0
    if count < width:
        for i in range(start, start + count):
            q, power = _roughly_exp(ONE, load_from(ONE, flat, i))
            total += sum_in_halves(q * power)
        return total
    q, power = _roughly_exp(form, load_from(form, flat, start + count - width))
    partial = q * power * load_from(form, masks, count % width)
    for i in range(start, start + count - width + 1, width):
        q, power = _roughly_exp(form, load_from(form, flat, i))
        partial = partial + q * power
    return float(sum_in_halves(partial))


@helper
def _softmax(form: Any, y: Any, top: Any, scale: Any) -> Any:
    """scale exp(y - top), exactly 0 for -inf."""
    q, power = _exp(form, y - top)
    return where_more(y, fill(y, -np.inf), q * power * scale, fill(y, 0.0))


@inlined
def write_softmax(form: Any, flat: Any, start: int, count: int, top: Any, scale: Any, out: Any) -> None:
    """out = scale exp(y - top) for `count` entries from `start` on; `out` may be the scores themselves.

    top and scale: of the scores' type.
    """
    width, end = len(form), start + count - len(form)
    if count < width:
        for i in range(start, start + count):
            store_to(out, i, _softmax(ONE, load_from(ONE, flat, i), splat(ONE, top), splat(ONE, scale)))
        return
    tops, scales = splat(form, top), splat(form, scale)
    # Some of these a second time: before any of them is overwritten.
    last = _softmax(form, load_from(form, flat, end), tops, scales)
    for i in range(start, end, width):
        store_to(out, i, _softmax(form, load_from(form, flat, i), tops, scales))
    store_to(out, end, last)


@helper
def sum_of_entries(
    form: Any, into: Any, first: int, x: Any, start: int, y: Any, row: int, count: int
) -> None:
    """into = x + y, `count` entries from `first`, `start` and `row` on; `into` may be x itself."""
    whole = count - count % len(form)
    for i in range(0, whole, len(form)):
        store_to(into, first + i, load_from(form, x, start + i) + load_from(form, y, row + i))
    for i in range(whole, count):
        into[first + i] = x[start + i] + y[row + i]


@helper
def write_zeros(form: Any, out: Any, start: int, count: int) -> None:
    """out[start : start + count] = 0."""
    nothing = splat(form, out.dtype.type(0))
    whole = count // len(form)
    for block in range(whole):
        store_to(out, start + block * len(form), nothing)
    for i in range(start + whole * len(form), start + count):
        out[i] = 0


# Between arrays [N, T, C] and rows of numbers where each lane has columns of its own, as CTC targets have.
#
# The same frames pass through the log-softmax here, where they are in the cache anyway: its statistics are
# taken when scores are read, its gradient is written just before the occupancies.


class OwnColumns(NamedTuple):
    """What each column of each lane reads: see `fsachain.backends.ctc.column_scores`.

    active [K, W]: classes; counts [W]: columns in use; offset [K, W], slope [K]; tiles and place as in `frames.Columns`:
    none, and k. A lane with such columns is rounded alike alone and beside others: `frames` tells them by this type.
    """

    active: npt.NDArray[np.uint32]
    counts: npt.NDArray[np.int64]
    offset: npt.NDArray[np.float64]
    slope: npt.NDArray[np.float64]
    tiles: npt.NDArray[np.int64]
    place: npt.NDArray[np.uint32]


class CtcRows(NamedTuple):
    """What a call reads, and fills beside its gradient; all numbers are flat.

    strides: entries from one sequence and from one frame to the next. statistics [2, N, T]: of each row what
    `row_statistics` finds; if there are any, the gradient is that through a log-softmax. sums [N, T], if there are any:
    `row_sum` of the frames t for which `every` divides t + phase; the others stay what they are. stars [2, N, T]: what
    `row_statistics` finds of a row with shifts [C], if there are any; column 1 is then the star, whose score that is. units
    [N C]: room for such rows.
    """

    scores: npt.NDArray[np.floating]
    statistics: npt.NDArray[np.float64]
    sums: npt.NDArray[np.float64]
    stars: npt.NDArray[np.float64]
    shifts: npt.NDArray[np.floating]
    units: npt.NDArray[np.floating]
    sequence_stride: int
    frame_stride: int
    num_frames: int
    num_classes: int
    every: int
    phase: int


class CtcFrames(NamedTuple):
    """Sequences lanes[g] of lengths[g] frames, -1 if there is none for the lane.

    form: of a register of scores; masks: `leave_out_masks`.
    """

    lanes: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    columns: OwnColumns
    form: Any
    masks: npt.NDArray[np.floating]
    rows: CtcRows


@helper
def _prefetch_row(flat: Any, start: int, count: int) -> None:
    for i in range(start, start + count, 16):
        prefetch(flat, i)


@helper
def copy_own(form: Any, frames: Any, t: int, work: Any) -> None:
    """work.scores[k, g] = the score of column k, -inf beyond a lane's columns and past a sequence's end."""
    columns, given, rows, lengths = frames.columns, frames.rows, work.scores, frames.lengths
    flat, statistics, stars, num_columns = given.scores, given.statistics, given.stars, len(columns.active)
    width, masks, num_classes = frames.form, frames.masks, given.num_classes
    for g in range(len(form)):
        count = 0
        if t < lengths[g]:
            count = columns.counts[g]
            n = frames.lanes[g]
            start = n * given.sequence_stride + t * given.frame_stride
            if statistics.size > 0:
                statistics[0, n, t], statistics[1, n, t] = row_statistics(
                    width, flat, masks, start, num_classes
                )
            elif given.sums.size > 0 and (t + given.phase) % given.every == 0:
                given.sums[n, t] = row_sum(width, flat, masks, start, num_classes)
            if t + 1 < lengths[g]:
                _prefetch_row(flat, start + given.frame_stride, num_classes)
            late = (lengths[g] - 1) * 0.5 - t
            for k in range(count):
                y = flat[start + columns.active[k, g]]
                rows[k, g] = y - columns.offset[k, g] + columns.slope[k] * late
            # Where no target has a label the graph may have no arc of a star, and no row for it.
            if stars.size > 0 and count > 1:
                row, units = n * num_classes, given.units
                sum_of_entries(width, units, row, flat, start, given.shifts, 0, num_classes)
                top, total = row_statistics(width, units, masks, row, num_classes)
                stars[0, n, t], stars[1, n, t] = top, total
                rows[1, g] = top + np.log(total) - columns.offset[1, g]
        for k in range(count, num_columns):
            rows[k, g] = -np.inf


@helper
def add_own(form: Any, frames: Any, t: int, rows: Any, work: Any, out: Any) -> None:
    """The gradient of frame t where the factor is not 0: the rows of shares over zeros, or over minus factor x softmax."""
    columns, given = frames.columns, frames.rows
    statistics, scores, num_classes = given.statistics, given.scores, given.num_classes
    for g in range(len(form)):
        factor = work.factors[0, g]
        if t < frames.lengths[g] and factor != 0.0:
            n = frames.lanes[g]
            start = n * given.sequence_stride + t * given.frame_stride
            if statistics.size > 0:
                kind = scores.dtype.type
                top, scale = kind(statistics[0, n, t]), kind(-factor / statistics[1, n, t])
                write_softmax(frames.form, scores, start, num_classes, top, scale, out)
            else:
                write_zeros(frames.form, out, start, num_classes)
            if t > 0:
                _prefetch_row(scores, start - given.frame_stride, num_classes)
                _prefetch_row(out, start - given.frame_stride, num_classes)
            if given.stars.size > 0 and columns.counts[g] > 1:
                _add_star(frames, n, t, start, rows[1, g], out)
                rows[1, g] = 0.0
            for k in range(columns.counts[g]):
                out[start + columns.active[k, g]] += rows[k, g]


@helper
def _add_star(frames: Any, n: int, t: int, start: int, share: float, out: Any) -> None:
    """The share of the star, spread over the classes that it stands for."""
    given, total = frames.rows, frames.rows.stars[1, n, t]
    if share == 0.0 or total == 0.0:
        return
    row, units, kind = n * given.num_classes, given.units, given.units.dtype.type
    form, count = frames.form, given.num_classes
    sum_of_entries(form, units, row, given.scores, start, given.shifts, 0, count)
    top, scale = kind(given.stars[0, n, t]), kind(share / total)
    write_softmax(form, units, row, count, top, scale, units)
    sum_of_entries(form, out, start, out, start, units, row, count)


@helper
def clear_own(frames: Any, g: int, first: int, out: Any) -> None:
    """Zeros in the rows of lane g from frame `first` on."""
    given = frames.rows
    for t in range(first, given.num_frames):
        start = frames.lanes[g] * given.sequence_stride + t * given.frame_stride
        write_zeros(frames.form, out, start, given.num_classes)


_WIDE_FORMS = {size: Form(width, "wide") for size, width in WIDTH.items()}


@by_type
def across(form: Any, array: Any) -> Any:
    """The form of as many lanes as rows of one number stand side by side, where a sequence is alone; see `arcs`.

    A register full of the array's type; expected numbers stay one by one.
    """
    if kind_of(form) == "expected":
        return lambda form, array: form
    side = (_WIDE_FORMS if kind_of(form) == "wide" else FORMS)[array.dtype.bitwidth // 8]
    return lambda form, array: side


# Of `Workspace.counts`: states in `live`; columns in `touched`, -1 for all; frames that all states are still worked on;
# whether the rows of betas and occupancies that come next hold what is old.
LISTED, TOUCHED, PATIENCE_LEFT, STALE = range(4)


class Columns(NamedTuple):
    """Where the active pdfs lie.

    active [K]: in the scores. tiles: the first pdfs of W x W tiles; place [K]: in the rows of all tiles; k without tiles.
    """

    active: npt.NDArray[np.uint32]
    tiles: npt.NDArray[np.int64]
    place: npt.NDArray[np.uint32]


class Frames(NamedTuple):
    """The scores [N, T, P]; lane g has sequence lanes[g] of lengths[g] frames, -1 if there is none for it."""

    scores: npt.NDArray[np.floating]
    lanes: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    columns: Columns | Packed


class AccurateFrames(NamedTuple):
    """`Frames` with what a path collects for its pdf in each frame, accuracy [N, T, P], finite for the active pdfs."""

    scores: npt.NDArray[np.floating]
    lanes: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    columns: Columns | Packed
    accuracy: npt.NDArray[np.floating]


def make_columns(active: npt.NDArray[np.uint32], width: int, num_pdfs: int) -> Columns:
    """Columns for `width` lanes and scores of `num_pdfs` pdfs; tiles where both are wide enough."""
    if width == 1 or num_pdfs < width or not len(active):
        return Columns(active, np.empty(0, np.int64), np.arange(len(active), dtype=np.uint32))
    tiles: list[int] = []
    place = np.empty(len(active), np.uint32)
    k = 0
    while k < len(active):
        start = min(int(active[k]), num_pdfs - width)
        after = int(np.searchsorted(active, start + width))
        place[k:after] = len(tiles) * width + active[k:after] - start
        tiles.append(start)
        k = after
    return Columns(active, np.array(tiles), place)


def count_rows(columns: Columns, width: int) -> int:
    """Rows of a workspace for these columns."""
    return max(len(columns.tiles) * width, len(columns.active))


@helper
def _offsets(frames: Any, t: int, offsets: Any) -> None:
    """offsets[g]: where frame t of each sequence begins in the flat scores; its last frame where it has ended."""
    _, num_frames, num_pdfs = frames.scores.shape
    for g in range(len(frames.lanes)):
        frame = max(min(t, frames.lengths[g] - 1), 0)
        offsets[g] = (frames.lanes[g] * num_frames + frame) * num_pdfs


@helper
def _copy_tiles(form: Any, frames: Any, source: Any, t: int, rows: Any, offsets: Any, past: float) -> None:
    _offsets(frames, t, offsets)
    for index in range(len(frames.columns.tiles)):
        tile_in(form, source, offsets, frames.columns.tiles[index], rows, np.int64(index * len(form)))
    for g in range(len(form)):
        if t >= frames.lengths[g]:
            for k in range(len(frames.columns.active)):
                rows[frames.columns.place[k], g] = past


@helper
def _copy_entries(form: Any, frames: Any, source: Any, t: int, rows: Any, offsets: Any, past: float) -> None:
    active, place, n = frames.columns.active, frames.columns.place, frames.lanes
    for g in range(len(form)):
        if t < frames.lengths[g]:
            y, following = source[n[g], t], source[n[g], min(t + 1, source.shape[1] - 1)]
            for k in range(len(active)):
                rows[place[k], g] = y[active[k]]
                prefetch(following, active[k])
        else:
            for k in range(len(active)):
                rows[place[k], g] = past


@by_type
def _copy_rows(form: Any, frames: Any, source: Any, t: Any, rows: Any, offsets: Any, past: Any) -> Any:
    """rows[place[k], g] = the entry of active pdf k in `source` [N, T, P], `past` beyond a sequence's end."""

    def tiles(form, frames, source, t, rows, offsets, past):  # type: ignore[no-untyped-def]
        if len(frames.columns.tiles) > 0:
            _copy_tiles(form, frames, source, t, rows, offsets, past)
        else:
            _copy_entries(form, frames, source, t, rows, offsets, past)

    return tiles if form.width > 1 and source.dtype == rows.dtype else _copy_entries


@helper
def _copy_scores(form: Any, frames: Any, t: int, work: Any) -> None:
    _copy_rows(form, frames, frames.scores, t, work.scores, work.offsets, -np.inf)


@helper
def _copy_both(form: Any, frames: Any, t: int, work: Any) -> None:
    _copy_scores(form, frames, t, work)
    _copy_rows(form, frames, frames.accuracy, t, work.accuracy, work.offsets, 0.0)


@by_type
def _copy_frame(form: Any, frames: Any, t: Any, work: Any) -> Any:
    """Rows of scores, -inf past a sequence's end, and of accuracies where there are any."""
    return {CtcFrames: copy_own, AccurateFrames: _copy_both}.get(frames.instance_class, _copy_scores)


@helper
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


@helper
def _keep_extremes(form: Any, extremes: Any, top: Any, low: Any, illegal: Any) -> None:
    """extremes [3, W]: the maximum (0 where it is -inf), the least value, at most the maximum, NaN if one is not legal."""
    top = where_more(top, fill(top, -np.inf), top, fill(top, 0.0))
    store(extremes, 0, top)
    store(extremes, 1, smaller(low, top))
    store(extremes, 2, illegal)


@helper
def _extremes_by_row(form: Any, columns: Any, rows: Any, extremes: Any) -> None:
    nothing = fill(load(form, extremes, 0), -np.inf)
    _keep_extremes(form, extremes, *_extremes(form, rows, columns.place, nothing))


@helper
def _extremes_across(form: Any, columns: Any, rows: Any, extremes: Any) -> None:
    """The same for one sequence, pdfs side by side, filled up with -inf: a lane of nothing else has no say."""
    side, count = across(form, rows), len(columns.active)
    nothing = fill(load(side, extremes, 0), -np.inf)
    for k in range(count, len(rows)):
        rows[k, 0] = -np.inf
    top, low, illegal = _extremes(side, rows, range(-(-count // len(side))), nothing)
    top, low = fill(top, largest_lane(top)), fill(top, least_lane(low))
    _keep_extremes(side, extremes, top, low, fill(top, sum_lanes(illegal)))


@by_type
def _find_extremes(form: Any, columns: Any, rows: Any, extremes: Any) -> Any:
    if form.width == 1:
        return _extremes_across
    return _extremes_by_row


@helper
def load_scores(form: Any, frames: Any, t: int, work: Any) -> None:
    """Rows of scores of frame t on the active pdfs, -inf past a sequence's end, and their extremes."""
    _copy_frame(form, frames, t, work)
    _find_extremes(form, frames.columns, work.scores, work.extremes)


# The probability with the accuracy of its pdf, where numbers are expected ones.
_collect = by_kind(
    lambda form, p, place, work: p,
    lambda form, p, place, work: p,
    lambda form, p, place, work: (p[0], p[0] * load(lanes_of(form), work.accuracy, place)),
)


@helper
def probabilities_by_row(form: Any, columns: Any, scale: Any, work: Any, probs: Any) -> None:
    """probs [K] = exp(y - shift) 2**-n as numbers, n the integers scale [1, W]."""
    lanes = lanes_of(form)
    shift = shift_of(form, load(lanes, work.extremes, 0))
    n = load(lanes, scale, 0)
    for k in range(len(columns.active)):
        p = probability(form, load(lanes, work.scores, columns.place[k]), shift, n)
        write(form, probs, k, _collect(form, p, columns.place[k], work))


@helper
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


@helper
def _shares_across(form: Any, columns: Any, inverse: Any, work: Any) -> None:
    side = across(form, work.occupancy)
    factor = splat(side, work.factors[0, 0] * sum_lanes(inverse))
    for k in range(-(-len(columns.active) // len(side))):
        store(work.scores, k, factor * load(side, work.occupancy, k))


@by_type
def _make_shares(form: Any, columns: Any, inverse: Any, work: Any) -> Any:
    if kind_of(form) == "plain" and form.width == 1 and columns.instance_class is not OwnColumns:
        return _shares_across
    return _shares_by_row


@helper
def _add_tiles(form: Any, frames: Any, t: int, rows: Any, offsets: Any, out: Any) -> None:
    _offsets(frames, t, offsets)
    for index in range(len(frames.columns.tiles)):
        tile_out(form, rows, np.int64(index * len(form)), out, offsets, frames.columns.tiles[index])


@helper
def _add_entries(form: Any, frames: Any, t: int, rows: Any, work: Any, out: Any) -> None:
    active, place, n = frames.columns.active, frames.columns.place, frames.lanes
    for g in range(len(form)):
        if t < frames.lengths[g] and work.factors[0, g] != 0.0:
            into, following = out[n[g], t], out[n[g], max(t - 1, 0)]
            for k in range(len(active)):
                into[active[k]] += rows[place[k], g]
                prefetch(following, active[k])


@by_type
def _add_rows(form: Any, frames: Any, t: Any, rows: Any, work: Any, out: Any) -> Any:
    if frames.instance_class is CtcFrames:
        return add_own

    def tiles(form, frames, t, rows, work, out):  # type: ignore[no-untyped-def]
        if len(frames.columns.tiles) > 0:
            _add_tiles(form, frames, t, rows, work.offsets, out)
        else:
            _add_entries(form, frames, t, rows, work, out)

    return tiles if form.width > 1 and out.dtype == rows.dtype else _add_entries


@helper
def scatter(form: Any, frames: Any, t: int, total: Any, work: Any, out: Any) -> None:
    """out[n, t, p] += factor of the sequence x occupancy / total; where the factor is 0 nothing changes."""
    _make_shares(form, frames.columns, reciprocal(total), work)
    _add_rows(lanes_of(form), frames, t, work.scores, work, out)


@helper
def scatter_live(form: Any, frames: Any, t: int, total: Any, work: Any, out: Any) -> None:
    """The same for one sequence and the columns in work.touched, whose occupancies are put to zero."""
    n, inverse, factor = frames.lanes[0], reciprocal(total), load(lanes_of(form), work.factors, 0)
    for m in range(work.counts[TOUCHED]):
        k = work.touched[m]
        pdf = frames.columns.active[k]
        share = factor * ratio(read(form, work.occupancy, k), inverse)
        out[n, t, pdf] += largest_lane(share)
        prefetch(out[n, max(t - 1, 0)], pdf)
        write(form, work.occupancy, k, zero(form, work.occupancy))


# Numba kernel for the penalties on large scores: one pass over a sequence's network output.

WIDE = Form(16)


@helper
def _largest_magnitude(y: Any) -> float:
    """The largest |y| of a row [P], NaN left out."""
    whole, result = len(y) - len(y) % 16, 0.0
    if whole > 0:
        top = fill(load_from(WIDE, y, 0), 0.0)
        for p in range(0, whole, 16):
            value = load_from(WIDE, y, p)
            top = larger(larger(value, fill(value, 0.0) - value), top)
        result = float(largest_lane(top))
    for p in range(whole, len(y)):
        if abs(y[p]) > result:
            result = abs(y[p])
    return result


@jit_on_views
def add_penalties(
    y: Any, weight: float, l2: float, out_of_range: float, limit: float, out: Any, sums: Any
) -> None:
    """Sums of weight y^2 and weight (|y| - limit)_+^2 over y [T, P]; d(-1/2 factor sum)/dy is added to `out`.

    `out` [T, P] may be empty. Infinite scores cost nothing. A frame within the limit costs a glance where l2 is 0.
    """
    squares, excesses = 0.0, 0.0
    for t in range(y.shape[0]):
        if l2 == 0.0 and _largest_magnitude(y[t]) <= limit:
            continue
        for p in range(y.shape[1]):
            value = np.float64(y[t, p])  # `float` would leave it a float32, whose square may be too large
            if not -np.inf < value < np.inf:
                continue
            excess = value - min(max(value, -limit), limit)
            squares += value * value
            excesses += excess * excess
            if len(out) > 0:
                out[t, p] -= weight * (l2 * value + out_of_range * excess)
    sums[0], sums[1] = weight * squares, weight * excesses


@jit_on_views
def scale_row(values: Any, factor: float, out: Any) -> None:
    """Write factor * values [K] to `out` [K], which may be `values`; what is 0 stays 0, even if the factor is infinite.

    A kernel, so that products below the least normal number are written as 0 (see `flush`).
    """
    zero = values.dtype.type(0)
    factor_of_type = values.dtype.type(factor)
    for k in range(len(values)):
        value = values[k]
        out[k] = zero if value == zero else value * factor_of_type
