"""Logits and the grid on the CPU: spans of frames as jobs for the threads, equations (24), (25), (28) and (29)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from fsachain.backends.cpu.frames import FORMS, leave_out_masks, row_statistics, write_softmax, write_zeros
from fsachain.backends.cpu.jit import helper, jit_on_views
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
# A softmax is taken over one piece of a row or two, with a hole between them. `pieces` [P, 3]: first entry,
# last + 1, softmax.


@helper
def _target(targets: Any, n: int, u: int, num_labels: int) -> int:
    """The class of label arcs at label u; -1 where there is none."""
    return targets[n, u] if u < num_labels else -1


@helper
def _keep(largest: float, total: float, is_second: bool, of_softmax: Any) -> None:
    """of_softmax [3]: the largest entry, the sum of exp(x - largest), its log; of both sides of a hole after the second."""
    if is_second and of_softmax[1] != 0:
        if total == 0:
            return
        top = max(of_softmax[0], largest)
        total = total * math.exp(largest - top) + of_softmax[1] * math.exp(of_softmax[0] - top)
        largest = top
    of_softmax[0], of_softmax[1], of_softmax[2] = largest, total, math.log(total)


@helper
def _log_prob(score: float, of_softmax: Any) -> float:
    """The log-prob of an entry: -inf stays, and an illegal row gives NaN."""
    result = np.float64(score) - of_softmax[0]
    if result > -np.inf or not of_softmax[1] >= 0:
        result -= of_softmax[2]
    return result


@helper
def _log_sigma(x: float, sign: float) -> float:
    """log sigma(sign x); NaN for +inf, which is illegal."""
    if x == np.inf:
        return np.nan
    return min(sign * x, 0.0) - math.log1p(math.exp(-abs(x)))


@helper
def _score(flat: Any, start: int, entry: int, time: int, alone: int, found: Any) -> float:
    """(24), (28), (29) without charges; time: the entry of the duration, or -1."""
    if entry == alone:
        return _log_sigma(np.float64(flat[start + alone]), 1.0)
    score = _log_prob(flat[start + entry], found[0])
    if alone >= 0:
        score += _log_sigma(np.float64(flat[start + alone]), -1.0)
    if time >= 0:
        score += _log_prob(flat[start + time], found[-1])
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
    found: Any,
    stats: Any,
    values: Any,
    masks: Any,
) -> None:
    """Equation (24) for frames[0] <= t < frames[1] of sequence n: values [K, cells]; stats [2 S, rows].

    Without pieces the rows are log-probs already. found [S, 3] holds (0, 1, 0) for these, and anything otherwise.
    """
    base, step, _, per_frame, num_frames, num_labels, cell_base, cell_step = rows[0][n]
    classes, charges, alone, durations = rows[3], rows[4], rows[5][1], rows[6]
    for t in range(frames[0], frames[1]):
        begin = rows[1][n, t]
        for j in range(min(per_frame, num_labels + 1 - begin)):
            row, cell, u = base + t * step + j, cell_base + t * cell_step + begin + j, begin + j
            if len(pieces) > 0:
                for p in range(len(pieces)):
                    start, count, s = row * width + pieces[p, 0], pieces[p, 1] - pieces[p, 0], pieces[p, 2]
                    largest, total = row_statistics(form, flat, masks, start, count)
                    _keep(largest, total, p > 0 and s == 0, found[s])
                for s in range(len(found)):
                    stats[2 * s, row] = found[s, 0]
                    stats[2 * s + 1, row] = 1 / found[s, 1] if found[s, 1] != 0 else found[s, 1]
            target, late = _target(rows[2], n, u, num_labels), 0.5 * (num_frames - 1) - t
            for k in range(len(classes)):
                entry = classes[k] if classes[k] >= 0 else target
                if entry >= 0:
                    score = _score(flat, row * width, entry, durations[k], alone, found)
                    values[k, cell] = score + charges[0, k] * late - charges[1, k]


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
def _gather(
    classes: Any, durations: Any, target: int, alone: int, cell: int, values: Any, entries: Any, totals: Any
) -> int:
    """entries [3, 2 K]: a row's entries that are scores of arcs, and the sum of g of these; returns their number.

    totals [S + 1]: the sum of g of the kinds that have a factor of each softmax, and of all.
    """
    used = 0
    for s in range(len(totals)):
        totals[s] = 0.0
    for k in range(len(classes)):
        entry = classes[k] if classes[k] >= 0 else target
        if entry < 0:
            continue
        g = values[k, cell]
        used = _add(entries, used, entry, g)
        totals[-1] += g
        if entry != alone:
            totals[0] += g
        if durations[k] >= 0:
            totals[1] += g
            used = _add(entries, used, durations[k], g)
    return used


@helper
def _share(heads: Any, row: int, entry: int, x: float, stats: Any, totals: Any) -> float:
    """p_v times the sum of g, for the softmax or the sigmoid that entry v belongs to."""
    if entry == heads[1]:
        return totals[-1] * math.exp(_log_sigma(x, 1.0))
    s = 0 if entry < heads[0] else 1
    if len(stats) == 0 or totals[s] == 0:
        return 0.0
    return math.exp(x - stats[2 * s, row]) * stats[2 * s + 1, row] * totals[s]


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
    entries: Any,
    totals: Any,
    out: Any,
) -> None:
    """Equation (25) times options[0], each entry kept within +-options[1] before, for all rows of these frames.

    values [K, cells]: g. Without pieces the rows are log-probs, whose gradient is -g. Rows of padding get 0.
    """
    base, step, _, per_frame, num_frames, num_labels, cell_base, cell_step = rows[0][n]
    weight, limit, kind, alone = options[0], options[1], out.dtype.type, rows[5][1]
    for t in range(frames[0], frames[1]):
        for j in range(per_frame):
            row, u, used = base + t * step + j, rows[1][n, t] + j, 0
            start = row * width
            if t < num_frames and u <= num_labels:
                target, cell = _target(rows[2], n, u, num_labels), cell_base + t * cell_step + u
                used = _gather(rows[3], rows[6], target, alone, cell, values, entries, totals)
            if used == 0 or totals[-1] == 0 or kind(totals[-1] * weight) == 0:
                write_zeros(form, out, start, width)
                continue
            if limit < np.inf:
                for i in range(used):
                    entry = np.int64(entries[0, i])
                    x = flat[start + entry]  # before it is overwritten: `out` may be the logits
                    share = _share(rows[5], row, entry, x, stats, totals) - entries[1, i]
                    entries[2, i] = weight * min(max(share, -limit), limit)
            if len(pieces) == 0:
                write_zeros(form, out, start, width)
            if alone >= 0:
                blank = math.exp(_log_sigma(np.float64(flat[start + alone]), 1.0))
                out[start + alone] = weight * min(totals[-1] * blank, limit)
            for p in range(len(pieces)):
                begin, count, s = start + pieces[p, 0], pieces[p, 1] - pieces[p, 0], pieces[p, 2]
                if totals[s] == 0:
                    write_zeros(form, out, begin, count)
                else:
                    scale = kind(stats[2 * s + 1, row] * totals[s])
                    numbers = (stats[2 * s, row], scale, kind(limit), kind(weight))
                    write_softmax(form, flat, begin, count, numbers, out)
            for i in range(used):
                place = start + np.int64(entries[0, i])
                out[place] = entries[2, i] if limit < np.inf else out[place] - weight * entries[1, i]


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
    form, masks = FORMS[logits.itemsize], leave_out_masks(logits.itemsize)
    flat, width, softmaxes = logits.reshape(-1), logits.shape[1], num_softmaxes(rows)

    def job(n: int, span: Span) -> None:
        found = np.array([[0.0, 1.0, 0.0]] * softmaxes)
        scores(form, flat, tuple(rows), n, span, width, pieces, found, stats, values, masks)

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
        scratch = np.empty((3, 2 * len(rows.classes))), np.empty(num_softmaxes(rows) + 1)
        gradient(form, *given, (float(weights[n]), limit), *scratch, into)

    _over_spans(rows, width, rows.sequences[:, 2], job)


def _pieces(rows: Rows, width: int) -> Ints:
    """What the softmaxes of a row are taken over, see `grid_rows`."""
    classes, alone = rows.heads.tolist()
    edges = [(0, classes, 0)] if alone < 0 else [(0, alone, 0), (alone + 1, classes, 0)]
    if num_softmaxes(rows) > 1:
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
