"""Logits and the grid on the CPU: spans of frames as jobs for the threads, equations (24), (25), (28) and (29)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from fsachain.backends.cpu.frames import (
    FORMS,
    leave_out_masks,
    statistics_of_rows,
    write_softmax,
    write_zeros,
)
from fsachain.backends.cpu.jit import helper, jit_on_views
from fsachain.backends.cpu.simd import aligned_bytes, fill, fma, load_from, log_of_sum, store_to, where_more
from fsachain.backends.cpu.threads import run_all
from fsachain.grid import Ints, Rows, num_softmaxes
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
def _with(rows: Any, k: int, label: int, used: int, num_labels: int) -> int:
    """How many of `used` rows from this label on have an arc of kind k."""
    return used if rows[3][k] >= 0 else min(used, num_labels - label)


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
    result = np.float64(score) - found[s, 0, r]
    if result > -np.inf or not found[s, 1, r] >= 0:
        result -= found[s, 2, r]
    return result


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


@jit_on_views
def scores(
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
    masks, lanes, found, more = work
    for t in range(frames[0], frames[1]):
        begin, late = rows[1][n, t], 0.5 * (num_frames - 1) - t
        used = min(per_frame, num_labels + 1 - begin)
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
                for r in range(count):
                    stats[2 * s, row + r] = found[s, 0, r]
                    stats[2 * s + 1, row + r] = found[s, 3, r]
            for k in range(len(classes)):
                charge = charges[0, k] * late - charges[1, k]
                cell, u = cell_base + t * cell_step + begin + first, begin + first
                for r in range(_with(rows, k, u, count, num_labels)):
                    start, entry = (row + r) * width, classes[k] if classes[k] >= 0 else rows[2][n, u + r]
                    if alone >= 0 or durations[k] >= 0:
                        score = _score(flat, start, entry, durations[k], alone, found, r)
                    else:
                        score = _log_prob(flat[start + entry], found, 0, r)
                    values[k, cell + r] = score + charge


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
def _share(heads: Any, row: int, entry: int, x: float, stats: Any, totals: Any) -> float:
    """p_v times the sum of g, for the softmax or the sigmoid that entry v belongs to."""
    if entry == heads[1]:
        return totals[2] * math.exp(_log_sigma(x, 1.0))
    s = 0 if entry < heads[0] else 1
    if len(stats) == 0 or totals[s] == 0:
        return 0.0
    return math.exp(x - stats[2 * s, row]) * stats[2 * s + 1, row] * totals[s]


@helper
def _clamped(
    flat: Any,
    rows: Any,
    row: int,
    width: int,
    of_row: Any,
    stats: Any,
    values: Any,
    limit: float,
    entries: Any,
) -> int:
    """entries [3, 2 K]: a row's entries that are scores of arcs, the sums of g of these, and (25) within +-limit.

    of_row: the target, the cell and the sums of g. Returns how many entries there are.
    """
    target, cell, totals = of_row
    used = 0
    for k in range(len(rows[3])):
        entry = rows[3][k] if rows[3][k] >= 0 else target
        if entry >= 0:
            used = _add(entries, used, entry, values[k, cell])
            if rows[6][k] >= 0:
                used = _add(entries, used, rows[6][k], values[k, cell])
    for i in range(used):
        entry = np.int64(entries[0, i])
        share = _share(rows[5], row, entry, flat[row * width + entry], stats, totals) - entries[1, i]
        entries[2, i] = min(max(share, -limit), limit)
    return used


@helper
def _write_clamped(row: int, width: int, options: Any, used: int, entries: Any, out: Any) -> None:
    """A row kept within +-options[1] x options[0], with the entries that `_clamped` found."""
    weight, limit = options
    most = out.dtype.type(limit * abs(weight))
    for i in range(row * width, (row + 1) * width):
        out[i] = min(max(out[i], -most), most)
    for i in range(used):
        out[row * width + np.int64(entries[0, i])] = weight * entries[2, i]


@jit_on_views
def gradient(
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

    values [K, cells]: g. Without pieces the rows are log-probs, whose gradient is -g. Rows of padding get 0. work: sums
    [3, W], entries [3, 2 K].
    """
    base, step, _, per_frame, num_frames, num_labels, cell_base, cell_step = rows[0][n]
    classes, alone, durations = rows[3], rows[5][1], rows[6]
    weight, limit, kind = options[0], options[1], out.dtype.type
    sums, entries = work
    for t in range(frames[0], frames[1]):
        begin = rows[1][n, t]
        last = min(per_frame, num_labels + 1 - begin) if t < num_frames else 0
        for first in range(0, per_frame, len(form)):
            row, u, count = base + t * step + first, begin + first, min(per_frame - first, len(form))
            cell, used = cell_base + t * cell_step + u, min(count, last - first)
            # Sums of g: of the kinds that have a factor of the first softmax, of the second, and of all.
            for s in range(3):
                for r in range(count):
                    sums[s, r] = 0.0
            for k in range(len(classes)):
                for s in range(3):
                    if s == 2 or (durations[k] >= 0 if s == 1 else classes[k] < 0 or classes[k] != alone):
                        for r in range(_with(rows, k, u, used, num_labels)):
                            sums[s, r] += values[k, cell + r]
            for r in range(count):
                start, total, known = (row + r) * width, sums[2, r], 0
                if total == 0 or kind(total * weight) == 0:
                    sums[2, r] = 0.0
                    write_zeros(form, out, start, width)
                    continue
                if limit < np.inf:  # before the row is overwritten: `out` may be the logits
                    of_row = _target(rows[2], n, u + r, num_labels), cell + r, (sums[0, r], sums[1, r], total)
                    known = _clamped(flat, rows, row + r, width, of_row, stats, values, limit, entries)
                if len(pieces) == 0:
                    write_zeros(form, out, start, width)
                if alone >= 0:
                    blank = math.exp(_log_sigma(np.float64(flat[start + alone]), 1.0))
                    out[start + alone] = weight * total * blank
                for p in range(len(pieces)):
                    at, length, s = start + pieces[p, 0], pieces[p, 1] - pieces[p, 0], pieces[p, 2]
                    if sums[s, r] == 0:
                        write_zeros(form, out, at, length)
                    else:
                        scale = kind(stats[2 * s + 1, row + r] * sums[s, r] * weight)
                        write_softmax(form, flat, at, length, stats[2 * s, row + r], scale, out)
                if limit < np.inf:
                    _write_clamped(row + r, width, options, known, entries, out)
            if limit < np.inf:
                continue
            for k in range(len(classes)):
                for r in range(_with(rows, k, u, used, num_labels)):
                    if sums[2, r] != 0:
                        start, g = (row + r) * width, weight * values[k, cell + r]
                        out[start + (classes[k] if classes[k] >= 0 else rows[2][n, u + r])] -= g
                        if durations[k] >= 0:
                            out[start + durations[k]] -= g


Reals = npt.NDArray[np.floating]
Span = tuple[int, int]

_NO_PIECES = np.empty((0, 3), np.int64)
_ROW, _ENTRY = 20.0, 0.4  # nanoseconds that a row takes, and one of its entries
_SPAN_ENTRIES = 1 << 18  # of a job: long beside the call of a kernel, short beside a sequence


def softmax_scores(rows: Rows, logits: Reals, values: Array) -> Reals:
    """Scores (24) of logits [R, V] into values [K, cells]; returns what `softmax_gradient` needs, [2 S, R]."""
    stats = np.zeros((2 * num_softmaxes(rows), len(logits)), logits.dtype)
    _scores(rows, logits, _pieces(rows, logits.shape[1]), stats, values)
    return stats


def plain_scores(rows: Rows, log_probs: Reals, values: Array) -> None:
    """The same for rows that are log-probs already."""
    _scores(rows, log_probs, _NO_PIECES, _no_stats(log_probs), values)


def _scores(rows: Rows, logits: Reals, pieces: Ints, stats: Reals, values: Array) -> None:
    form, flat, width = FORMS[logits.itemsize], logits.reshape(-1), logits.shape[1]
    lanes, softmaxes = form.width, num_softmaxes(rows)

    def job(n: int, span: Span) -> None:
        square = aligned_bytes((lanes + 1) * lanes * logits.itemsize).view(logits.dtype).reshape(-1, lanes)
        found = np.empty((softmaxes, 4, lanes))
        if not len(pieces):
            found[:] = [[0.0], [1.0], [0.0], [1.0]]
        work = leave_out_masks(logits.itemsize), square, found, np.empty((2, lanes))
        scores(form, flat, tuple(rows), n, span, width, pieces, stats, values, work)

    _over_spans(rows, width, rows.sequences[:, 4], job)


def softmax_gradient(
    rows: Rows, logits: Reals, stats: Reals, occupancy: Array, weights: Array, limit: float, out: Reals
) -> None:
    """Equation (25) times weights [N] into out [R, V], which may be the logits; occupancy [K, cells] is g.

    Entries are kept within +-limit before they are weighted. Rows of padding become 0.
    """
    _gradient(rows, logits, _pieces(rows, logits.shape[1]), stats, occupancy, weights, limit, out)


def plain_gradient(
    rows: Rows, log_probs: Reals, occupancy: Array, weights: Array, limit: float, out: Reals
) -> None:
    """The gradient of -log Z by log-probs [R, V], times weights [N]: otherwise as `softmax_gradient`."""
    _gradient(rows, log_probs, _NO_PIECES, _no_stats(log_probs), occupancy, weights, limit, out)


def _gradient(
    rows: Rows,
    logits: Reals,
    pieces: Ints,
    stats: Reals,
    occupancy: Array,
    weights: Array,
    limit: float,
    out: Reals,
) -> None:
    form, flat, into = FORMS[logits.itemsize], logits.reshape(-1), out.reshape(-1)
    width = logits.shape[1]

    def job(n: int, span: Span) -> None:
        given = flat, tuple(rows), n, span, width, pieces, stats, occupancy
        work = np.empty((3, form.width)), np.empty((3, 2 * len(rows.classes)))
        gradient(form, *given, (float(weights[n]), limit), work, into)

    _over_spans(rows, width, rows.sequences[:, 2], job)


def _pieces(rows: Rows, width: int) -> Ints:
    """What the softmaxes of a row are taken over, see `grid_rows`."""
    return _pieces_of(*rows.heads.tolist(), num_softmaxes(rows) > 1, width)


@lru_cache(maxsize=64)
def _pieces_of(classes: int, alone: int, has_durations: bool, width: int) -> Ints:
    edges = [(0, classes, 0)] if alone < 0 else [(0, alone, 0), (alone + 1, classes, 0)]
    if has_durations:
        edges.append((classes, width, 1))
    return np.array([edge for edge in edges if edge[1] > edge[0]], np.int64)


def _no_stats(log_probs: Reals) -> Reals:
    return np.empty((0, 0), log_probs.dtype)


def _over_spans(rows: Rows, width: int, frames: Ints, job: Callable[[int, Span], None]) -> None:
    """job(n, (first, last)) for spans of the frames [N] of all sequences."""
    jobs, nodes = [], 0
    for n, (count, per_frame) in enumerate(zip(frames.tolist(), rows.sequences[:, 3].tolist(), strict=True)):
        step = max(1, _SPAN_ENTRIES // max(1, per_frame * width))
        for first in range(0, count, step):
            jobs.append(partial(job, n, (first, min(first + step, count))))
        nodes += count * per_frame
    run_all(jobs, nodes * (_ROW + _ENTRY * width))
