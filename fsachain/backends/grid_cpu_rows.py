"""Logits and the grid on the CPU: spans of frames as jobs for the threads, equations (24), (25), (28) and (29)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from fsachain.backends import grid_rows
from fsachain.backends.cpu_softmax import FORMS, leave_out_masks
from fsachain.backends.threads import run_all
from fsachain.grid import Ints, Rows, num_softmaxes
from fsachain.recursion import Array

Reals = npt.NDArray[np.floating]
Span = tuple[int, int]

_NO_PIECES = np.empty((0, 3), np.int64)
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
    flat, width = logits.reshape(-1), logits.shape[1]

    def job(n: int, span: Span) -> None:
        found = np.tile([0.0, 1.0, 0.0], (num_softmaxes(rows), 1))
        grid_rows.scores(form, flat, tuple(rows), n, span, width, pieces, found, stats, values, masks)

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
        grid_rows.gradient(form, *given, (float(weights[n]), limit), *scratch, into)

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
    jobs = []
    for n, count in enumerate(frames.tolist()):
        step = max(1, _SPAN_ENTRIES // max(1, int(rows.sequences[n, 3]) * width))
        for first in range(0, count, step):
            jobs.append(partial(job, n, (first, min(first + step, count))))
    run_all(jobs)
