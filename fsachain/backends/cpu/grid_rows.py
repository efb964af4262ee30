"""Logits and the grid on the CPU: spans of frames as jobs for the threads, equations (24), (25), (28) and (29)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from threading import get_ident
from typing import Any

import numpy as np
import numpy.typing as npt

from fsachain.backends.cpu.frames import (
    leave_out_masks,
    statistics_of_rows,
    sum_of_entries,
    write_softmax,
    write_zeros,
)
from fsachain.backends.cpu.grid import INDEX, columns_of, forward_backward_inside, num_entries
from fsachain.backends.cpu.jit import helper, jit_on_views
from fsachain.backends.cpu.simd import (
    FORMS,
    LINE,
    WIDTH,
    aligned_bytes,
    fill,
    fma,
    load_from,
    log_of_sum,
    store_to,
    where_more,
)
from fsachain.backends.cpu.threads import run_all, threads_for
from fsachain.grid import Ints, Rows
from fsachain.recursion import Array

# Numba kernels between logits and the grid, equations (24), (25), (28) and (29): a node's logits are a row.
#
# Rows are read once each way: a row is [V] entries of a flat array and stays in the first-level cache while
# its largest entries, the sums and the gradient are made. `stats` keeps the largest entry and 1 / sum exp(x -
# largest) of each softmax of each row, so that probabilities are exact at any magnitude. The gradient may
# overwrite the logits.
#
# As many rows as a register has lanes are read one after another, and what is made of their sums is made of all at once.
#
# A softmax is taken over one piece of a row or two, with a hole between them. `pieces` [P, 3]: first entry,
# last + 1, softmax.

DOUBLE: Any = FORMS[8]


@helper
def _target(targets: Any, n: int, u: int, num_labels: int) -> int:
    """The class of label arcs at label u; -1 where there is none."""
    return targets[n, u] if u < num_labels else -1


@helper
def _frames_together(sequence: Any, frames: Any) -> int:
    """How many frames have rows and cells one after another, without gaps: those of a span, or one."""
    is_dense = sequence[1] == sequence[5] + 1 and sequence[7] == sequence[1]
    return max(frames[1] - frames[0], 1) if is_dense else 1


@helper
def _merge(count: int, found: Any, more: Any) -> None:
    """found [.., W]: of both sides of a hole, the other's largest entries and sums being more [2, W]."""
    for r in range(count):
        if found[1, r] == 0:
            found[0, r], found[1, r] = more[0, r], more[1, r]
        elif more[1, r] != 0:
            top = max(found[0, r], more[0, r])
            total = more[1, r] * math.exp(more[0, r] - top)
            found[0, r], found[1, r] = top, total + found[1, r] * math.exp(found[0, r] - top)


@helper
def _finish(found: Any, s: int) -> None:
    """found [S, 4, W]: to the sums of exp(x - largest) of softmax s their logs, and one over them, 0 for sums of 0."""
    width = found.shape[2]
    for i in range(4 * s * width, (4 * s + 1) * width, len(DOUBLE)):
        total = load_from(DOUBLE, found, i + width)
        nothing = fill(total, 0.0)
        # A NaN must stay one, which `log_of_sum` does not promise.
        store_to(found, i + 2 * width, fma(total, nothing, log_of_sum(DOUBLE, total)))
        inverse = where_more(nothing, total - fill(total, 1e-300), total, fill(total, 1.0) / total)
        store_to(found, i + 3 * width, inverse)


@helper
def _log_prob(score: float, found: Any, s: int, r: int) -> float:
    """The log-prob of an entry: -inf stays, and an illegal row gives NaN."""
    return np.float64(score) - found[s, 0, r] - found[s, 2, r]


@helper
def _log_sigma(x: float, sign: float) -> float:
    """log sigma(sign x); NaN for +inf, which is illegal."""
    if x == np.inf:
        return np.nan
    return min(sign * x, 0.0) - math.log1p(math.exp(-abs(x)))


@helper
def _score(flat: Any, start: int, entry: int, time: int, alone: int, found: Any, r: int) -> float:
    """(24), (28), (29) without charges; time: the entry of the duration, or -1."""
    if entry == alone:
        return _log_sigma(np.float64(flat[start + alone]), 1.0)
    score = _log_prob(flat[start + entry], found, 0, r)
    if alone >= 0:
        score += _log_sigma(np.float64(flat[start + alone]), -1.0)
    if time >= 0:
        score += _log_prob(flat[start + time], found, len(found) - 1, r)
    return score


def _scores(
    form: Any,
    flat: Any,
    rows: Any,
    n: int,
    frames: Any,
    width: int,
    pieces: Any,
    stats: Any,
    values: Any,
    work: Any,
) -> None:
    """Equation (24) for frames[0] <= t < frames[1] of sequence n: values [K, cells]; stats [2 S, rows].

    Without pieces the rows are log-probs already. work: `leave_out_masks`; lanes [W + 1, W]; found [S, 4, W], that holds
    0, 1, 0, 1 for these and anything otherwise; more [2, W].
    """
    base, step, _, per_frame, num_frames, num_labels, cell_base, cell_step = rows[0][n]
    classes, charges, alone, durations = rows[3], rows[4], rows[5][1], rows[6]
    targets, (masks, lanes, found, more) = rows[2][n], work
    together = _frames_together(rows[0][n], frames)
    for t in range(frames[0], frames[1], together):
        begin = rows[1][n, t]
        used = together * min(per_frame, num_labels + 1 - begin)
        for first in range(0, used, len(form)):
            row, count = base + t * step + first, min(used - first, len(form))
            for p in range(len(pieces)):
                start, entries, s = row * width + pieces[p, 0], pieces[p, 1] - pieces[p, 0], pieces[p, 2]
                is_second = p > 0 and s == 0
                into = more if is_second else found[s]
                statistics_of_rows(form, flat, masks, start, width, count, entries, lanes, into)
                if is_second:
                    _merge(count, found[0], more)
            for s in range(len(stats) // 2):
                _finish(found, s)
                top, inverse, own = stats[2 * s], stats[2 * s + 1], found[s]
                for r in range(count):
                    top[row + r] = own[0, r]
                    inverse[row + r] = own[3, r]
            for k in range(len(classes)):
                entry, time, into = classes[k], durations[k], values[k]
                delay, sigma, u = charges[0, k], charges[1, k], begin + first % step
                late = 0.5 * (num_frames - 1) - (t + first // step)
                cell, charge = cell_base + t * cell_step + begin + first, delay * late - sigma
                for r in range(count):
                    if entry >= 0 or u < num_labels:
                        start, read = (row + r) * width, entry if entry >= 0 else targets[INDEX(u)]
                        if alone >= 0 or time >= 0:
                            score = _score(flat, start, read, time, alone, found, r)
                        else:
                            score = _log_prob(flat[INDEX(start + read)], found, 0, INDEX(r))
                        into[INDEX(cell + r)] = score + charge
                    u += 1
                    if u > num_labels:
                        u, late = 0, late - 1.0
                        charge = delay * late - sigma


scores, scores_inside = jit_on_views(_scores), helper(_scores)  # from Python, from another kernel


@helper
def _add(entries: Any, count: int, entry: int, g: float) -> int:
    """Add g to an entry of the row, among `count` that are known; how many then are."""
    for i in range(count):
        if entries[0, i] == entry:
            entries[1, i] += g
            return count
    entries[0, count], entries[1, count] = entry, g
    return count + 1


@helper
def _share(heads: Any, row: int, entry: int, x: float, stats: Any, inner: float, total: float) -> float:
    """p_v times the sum of g, for the softmax or the sigmoid that entry v belongs to: see `gradient`."""
    if entry == heads[1]:
        return total * math.exp(_log_sigma(x, 1.0))
    s, own = (0, inner) if entry < heads[0] else (1, total)
    if len(stats) == 0 or own == 0:
        return 0.0
    return math.exp(x - stats[2 * s, row]) * stats[2 * s + 1, row] * own


@helper
def _clamp(
    flat: Any,
    rows: Any,
    row: int,
    width: int,
    of_row: Any,
    stats: Any,
    values: Any,
    limit: float,
    entries: Any,
) -> None:
    """entries [3, 2 K + 1]: a row's entries that are scores of arcs, the sums of g of these, and (25) within +-limit.

    Behind the last one stands -1. of_row: the target, the cell and the sums of g.
    """
    target, cell, inner, total = of_row
    used = 0
    for k in range(len(rows[3])):
        entry = rows[3][k] if rows[3][k] >= 0 else target
        if entry >= 0:
            used = _add(entries, used, entry, values[k, cell])
            if rows[6][k] >= 0:
                used = _add(entries, used, rows[6][k], values[k, cell])
    for i in range(used):
        entry = np.int64(entries[0, i])
        share = _share(rows[5], row, entry, flat[row * width + entry], stats, inner, total)
        entries[2, i] = min(max(share - entries[1, i], -limit), limit)
    entries[0, used] = -1.0


@helper
def _write_clamped(row: int, width: int, weight: float, limit: float, entries: Any, out: Any) -> None:
    """A row kept within +-limit x weight, with the entries that `_clamp` found."""
    most = out.dtype.type(limit * abs(weight))
    for i in range(row * width, (row + 1) * width):
        out[i] = min(max(out[i], -most), most)
    i = 0
    while entries[0, i] >= 0:
        out[row * width + np.int64(entries[0, i])] = weight * entries[2, i]
        i += 1


def _gradient(
    form: Any,
    flat: Any,
    rows: Any,
    n: int,
    frames: Any,
    width: int,
    pieces: Any,
    stats: Any,
    values: Any,
    options: Any,
    work: Any,
    out: Any,
) -> None:
    """Equation (25) times options[0], each entry kept within +-options[1] before, for all rows of these frames.

    values [K, cells]: g, 0 where a kind has no arc. Without pieces the rows are log-probs, whose gradient is -g. Rows of
    padding get 0. work: sums [2, W], scales [2, W] of the rows' type, entries [W, 3, 2 K + 1].
    """
    base, step, _, per_frame, num_frames, num_labels, cell_base, cell_step = rows[0][n]
    classes, alone, durations = rows[3], rows[5][1], rows[6]
    targets, weight, limit, kind = rows[2][n], options[0], options[1], out.dtype.type
    sums, scales, entries = work
    real = min(frames[1], num_frames)
    together = _frames_together(rows[0][n], (frames[0], real))
    for t in range(frames[0], real, together):
        begin = rows[1][n, t]
        used = together * min(per_frame, num_labels + 1 - begin)
        for first in range(0, used, len(form)):
            row, count = base + t * step + first, min(used - first, len(form))
            cell = cell_base + t * cell_step + begin + first
            # Sums of g: of the kinds that have a factor of the first softmax, and of all.
            inner, total = sums[0], sums[1]
            write_zeros(DOUBLE, inner, 0, len(form))
            write_zeros(DOUBLE, total, 0, len(form))
            for k in range(len(classes)):
                sum_of_entries(DOUBLE, total, 0, total, 0, values[k], cell, count)
                if classes[k] < 0 or classes[k] != alone:
                    sum_of_entries(DOUBLE, inner, 0, inner, 0, values[k], cell, count)
            for r in range(count):
                if kind(total[r] * weight) == 0:
                    inner[r], total[r] = 0.0, 0.0
            for s in range(len(stats) // 2):
                inverse, own, scale = stats[2 * s + 1], sums[s], scales[s]
                for r in range(count):  # of a row that is illegal 0 and not NaN
                    scale[r] = inverse[row + r] * own[r] * weight if own[r] != 0 else 0.0
            if limit < np.inf:  # before rows are overwritten: `out` may be the logits
                u = begin + first % step
                for r in range(count):
                    of_row = _target(rows[2], n, u, num_labels), cell + r, inner[r], total[r]
                    _clamp(flat, rows, row + r, width, of_row, stats, values, limit, entries[r])
                    u = u + 1 if u < num_labels else 0
            for p in range(len(pieces)):
                start, length, s = row * width + pieces[p, 0], pieces[p, 1] - pieces[p, 0], pieces[p, 2]
                top, scale = stats[2 * s], scales[s]
                for r in range(count):  # without a call in between, so that constants stay in registers
                    if scale[r] != 0:
                        write_softmax(form, flat, start + r * width, length, top[row + r], scale[r], out)
                for r in range(count):
                    if scale[r] == 0:
                        write_zeros(form, out, start + r * width, length)
            if len(pieces) == 0:
                write_zeros(form, out, row * width, count * width)
            if alone >= 0:
                for r in range(count):
                    at = (row + r) * width + alone
                    blank = math.exp(_log_sigma(np.float64(flat[at]), 1.0)) if total[r] != 0 else 0.0
                    out[at] = weight * total[r] * blank
            if limit < np.inf:
                for r in range(count):
                    if total[r] != 0:
                        _write_clamped(row + r, width, weight, limit, entries[r], out)
                continue
            for k in range(len(classes)):
                entry, time, g, u = classes[k], durations[k], values[k], begin + first % step
                for r in range(count):
                    if total[INDEX(r)] != 0 and (entry >= 0 or u < num_labels):
                        start, less = (row + r) * width, weight * g[INDEX(cell + r)]
                        out[INDEX(start + (entry if entry >= 0 else targets[INDEX(u)]))] -= less
                        if time >= 0:
                            out[INDEX(start + time)] -= less
                    u = u + 1 if u < num_labels else 0
        write_zeros(form, out, (base + t * step + used) * width, (together * per_frame - used) * width)
    padding = max(frames[0], real)
    write_zeros(form, out, (base + padding * step) * width, (frames[1] - padding) * per_frame * width)


gradient, gradient_inside = jit_on_views(_gradient), helper(_gradient)


@helper
def _place(rows: Any, n: int, shape: Any, frames: Any, labels: Any) -> Any:
    """Sequence n of padded logits [N, T, U + 1, V], if its lengths and targets are legal; and whether none is a blank."""
    sequences, _, targets, classes, _, heads, _ = rows
    count, across = shape[1], shape[2]
    if not (0 <= frames[n] <= count and 0 <= labels[n] < across and labels[n] <= targets.shape[1]):
        return False, False
    without_blank = True
    for u in range(labels[n]):
        target = targets[n, u]
        if target < 0 or target >= heads[0] or target == heads[1]:
            return False, False
        for blank in classes:  # of arcs that are no labels', whose class is -1
            without_blank &= target != blank
    sequence, first = sequences[n], n * count * across
    sequence[0], sequence[1], sequence[2], sequence[3] = first, across, count, across
    sequence[4], sequence[5], sequence[6], sequence[7] = frames[n], labels[n], first, across
    return True, without_blank


@jit_on_views
def at_once(
    form: Any,
    flat: Any,
    given: Any,
    rows: Any,
    pieces: Any,
    stats: Any,
    values: Any,
    batch: Any,
    options: Any,
    works: Any,
    out: Any,
    found: Any,
) -> bool:
    """`scores`, `forward_backward_of_one` and `gradient` of each sequence; whether all is well with the arguments.

    Where it is not, they are illegal, and nothing is done, or there is a blank among the targets. found [N]: log Z. given:
    shape of the logits, frames, labels. Of rows the sequences are made here, of batch the sizes and boxes. works: of these
    three.
    """
    shape, frames, labels = given
    arcs, sizes, boxes = batch
    is_plain = True
    for n in range(len(found)):
        is_legal, without_blank = _place(rows, n, shape, frames, labels)
        if not is_legal:
            return False
        is_plain &= without_blank
    for n in range(len(found)):
        _, step, span, _, num_frames, num_labels, cell, _ = rows[0][n]
        sizes[n, 0], sizes[n, 1], sizes[n, 2], sizes[n, 3] = 0, 0, num_frames, num_labels
        for k in range(len(arcs)):
            box = boxes[n, k]
            box[0], box[1], box[2], box[3], box[4] = cell + k * values.shape[1], step, 1, span, step
        # The number 0 has a type of its own, for which these would be compiled once more.
        all_frames = np.int64(0), span
        given_rows = form, flat, rows, n, all_frames, shape[3], pieces, stats, values
        scores_inside(*given_rows, works[0])
        found[n] = forward_backward_inside(batch, n, values.reshape(-1), works[1], columns_of(num_labels))
        gradient_inside(*given_rows, options, works[2], out)
    return is_plain


Reals = npt.NDArray[np.floating]

_ROW, _ENTRY = 20.0, 0.4  # nanoseconds that a row takes, and one of its entries
_SPAN_ENTRIES = 1 << 18  # of a job: long beside the call of a kernel, short beside a sequence


def row_scores(rows: Rows, logits: Reals, is_normalized: bool, values: Array) -> Reals:
    """Scores (24) of logits [R, V], or of rows that are log-probs already, into values [K, cells].

    Returns what `row_gradient` needs, [2 S, R]; S = 0 of log-probs.
    """
    form, flat, (_, width) = FORMS[logits.itemsize], logits.reshape(-1), logits.shape
    pieces, softmaxes = _pieces(*rows.heads.tolist(), width, is_normalized)
    stats, given = np.zeros((2 * softmaxes, len(logits)), logits.dtype), tuple(rows)

    def job(n: int, first: int, last: int) -> None:
        work = _scores_work(get_ident(), softmaxes, logits.itemsize)
        scores(form, flat, given, n, (first, last), width, pieces, stats, values, work)

    _over_spans(rows, width, 4, job)
    return stats


@lru_cache(maxsize=256)
def _scores_work(thread: int, softmaxes: int, itemsize: int) -> tuple[Any, ...]:
    """What `scores` works in; each thread has its own."""
    masks, found = leave_out_masks(itemsize), np.empty((max(1, softmaxes), 4, WIDTH[itemsize]))
    found[:] = [[0.0], [1.0], [0.0], [1.0]]
    square = aligned_bytes((len(masks) // 2 + 1) * LINE).view(masks.dtype).reshape(-1, len(masks) // 2)
    return masks, square, found, np.empty((2, WIDTH[itemsize]))


def row_gradient(
    rows: Rows,
    logits: Reals,
    stats: Reals,
    occupancy: Array,
    weights: Sequence[float],
    limit: float,
    out: Reals,
) -> None:
    """Equation (25) times weights [N] into out [R, V], which may be the logits; occupancy [K, cells] is g.

    stats: what `row_scores` has returned; by log-probs the gradient of -log Z is -g. Entries are kept within +-limit before
    they are weighted. Rows of padding become 0.
    """
    form, flat, into, (_, width) = FORMS[logits.itemsize], logits.reshape(-1), out.reshape(-1), logits.shape
    pieces, _ = _pieces(*rows.heads.tolist(), width, len(stats) == 0)
    given, kind = tuple(rows), (logits.dtype, 0 if limit == np.inf else 2 * len(rows.classes) + 1)

    def job(n: int, first: int, last: int) -> None:
        work, options = _gradient_work(get_ident(), *kind), (weights[n], limit)
        gradient(form, flat, given, n, (first, last), width, pieces, stats, occupancy, options, work, into)

    _over_spans(rows, width, 2, job)


@lru_cache(maxsize=256)
def _gradient_work(thread: int, kind: np.dtype[Any], entries: int) -> tuple[Any, ...]:
    """What `gradient` works in; each thread has its own. entries: of a row that are clamped, 0 without a limit."""
    lanes = WIDTH[kind.itemsize]
    return np.empty((2, lanes)), np.empty((2, lanes), kind), np.empty((lanes if entries else 0, 3, entries))


@lru_cache(maxsize=64)
def _pieces(classes: int, alone: int, width: int, is_normalized: bool) -> tuple[Ints, int]:
    """What the softmaxes of a row are taken over, see above, and how many softmaxes these are; none of log-probs."""
    if is_normalized:
        return np.empty((0, 3), np.int64), 0
    edges = [(0, classes, 0)] if alone < 0 else [(0, alone, 0), (alone + 1, classes, 0)]
    edges.append((classes, width, 1))
    return np.array([edge for edge in edges if edge[1] > edge[0]], np.int64), 1 + (classes < width)


def losses_and_gradient(
    logits: Reals,
    targets: Ints,
    frames: Ints,
    labels: Ints,
    kinds: tuple[Any, ...],
    arcs: Ints,
    is_normalized: bool,
    weight: float,
    limit: float,
) -> tuple[Array, Reals, bool]:
    """Log Z [N] and the gradient of -log Z times a weight, by this thread; and whether all is well with the arguments.

    Where it is not `loss.arguments` says what, and raises an error where there are no results. logits: padded
    [N, T, U + 1, V]; kinds: the last fields of `Rows`. One call of compiled code: three, with what is made for each of them
    in Python, take as long as a short sequence.
    """
    size, count, across, width = shape = logits.shape
    height, num_arcs, clamped = size * count * across, len(arcs), 0 if limit == np.inf else 2 * len(arcs) + 1
    rows = (np.empty((size, 8), np.int64), np.zeros((size, count), np.int64), targets, *kinds)
    pieces, softmaxes = _pieces(*kinds[2].tolist(), width, is_normalized)
    stats, values = np.empty((2 * softmaxes, height), logits.dtype), np.empty((num_arcs, height))
    batch = arcs, np.empty((size, 4), np.int64), np.empty((size, num_arcs, 5), np.int64)
    cells, thread = num_entries(count, across - 1), get_ident()
    nodes = aligned_bytes((num_arcs + 2) * cells * 8).view(np.float64).reshape(num_arcs + 2, cells)
    works = (
        _scores_work(thread, softmaxes, logits.itemsize),
        nodes,
        _gradient_work(thread, logits.dtype, clamped),
    )
    given, options, found, out = (
        (shape, frames, labels),
        (weight, limit),
        np.empty(size),
        np.empty_like(logits),
    )
    form, flat, into = FORMS[logits.itemsize], logits.reshape(-1), out.reshape(-1)
    is_plain = at_once(form, flat, given, rows, pieces, stats, values, batch, options, works, into, found)
    return found, out, is_plain


def _over_spans(rows: Rows, width: int, frames: int, job: Callable[[int, int, int], None]) -> None:
    """job(n, first, last) for spans of the frames of all sequences, how many are in this column of `Rows.sequences`."""
    sequences = rows.sequences.tolist()
    work = sum([sequence[frames] * sequence[3] for sequence in sequences]) * (_ROW + _ENTRY * width)
    if threads_for(work) == 1:
        for n, sequence in enumerate(sequences):
            job(n, 0, sequence[frames])
        return
    jobs: list[Callable[[], None]] = []
    for n, sequence in enumerate(sequences):
        count, step = sequence[frames], max(1, _SPAN_ENTRIES // max(1, sequence[3] * width))
        jobs += [partial(job, n, first, min(first + step, count)) for first in range(0, count, step)]
    run_all(jobs, work)
