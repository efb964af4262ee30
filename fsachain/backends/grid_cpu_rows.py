"""Logits and the grid on the CPU: spans of frames as jobs for the threads, equations (24) and (25)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from fsachain.backends import grid_rows
from fsachain.backends.cpu_softmax import FORMS, leave_out_masks
from fsachain.backends.threads import run_all
from fsachain.grid import Ints, Rows
from fsachain.recursion import Array

Reals = npt.NDArray[np.floating]
Span = tuple[int, int]

_SPAN_ENTRIES = 1 << 18  # of a job: long beside the call of a kernel, short beside a sequence


def softmax_scores(rows: Rows, logits: Reals, values: Array) -> Reals:
    """Scores (24) of logits [R, V] into values [K, cells]; returns what `softmax_gradient` needs, [2, R]."""
    stats = np.zeros((2, len(logits)), logits.dtype)
    _scores(rows, logits, stats, values)
    return stats


def plain_scores(rows: Rows, log_probs: Reals, values: Array) -> None:
    """The same for rows that are log-probs already."""
    _scores(rows, log_probs, _no_stats(log_probs), values)


def _scores(rows: Rows, logits: Reals, stats: Reals, values: Array) -> None:
    form, masks = FORMS[logits.itemsize], leave_out_masks(logits.itemsize)
    flat, width = logits.reshape(-1), logits.shape[1]

    def job(n: int, span: Span) -> None:
        grid_rows.scores(form, flat, tuple(rows), n, span, width, stats, values, masks)

    _over_spans(rows, width, rows.sequences[:, 4], job)


def softmax_gradient(
    rows: Rows, logits: Reals, stats: Reals, occupancy: Array, weights: Array, limit: float, out: Reals
) -> None:
    """Equation (25) times weights [N] into out [R, V], which may be the logits; occupancy [K, cells] is g.

    Entries are kept within +-limit before they are weighted. Rows of padding become 0.
    """
    form, flat, into = FORMS[logits.itemsize], logits.reshape(-1), out.reshape(-1)
    width = logits.shape[1]

    def job(n: int, span: Span) -> None:
        entries, options = np.empty((3, len(rows.classes))), (float(weights[n]), limit)
        grid_rows.gradient(form, flat, tuple(rows), n, span, width, stats, occupancy, options, entries, into)

    _over_spans(rows, width, rows.sequences[:, 2], job)


def plain_gradient(
    rows: Rows, log_probs: Reals, occupancy: Array, weights: Array, limit: float, out: Reals
) -> None:
    """The gradient of -log Z by log-probs [R, V], times weights [N]: otherwise as `softmax_gradient`."""
    softmax_gradient(rows, log_probs, _no_stats(log_probs), occupancy, weights, limit, out)


def _no_stats(log_probs: Reals) -> Reals:
    return np.empty((2, 0), log_probs.dtype)


def _over_spans(rows: Rows, width: int, frames: Ints, job: Callable[[int, Span], None]) -> None:
    """job(n, (first, last)) for spans of the frames [N] of all sequences."""
    jobs = []
    for n, count in enumerate(frames.tolist()):
        step = max(1, _SPAN_ENTRIES // max(1, int(rows.sequences[n, 3]) * width))
        for first in range(0, count, step):
            jobs.append(partial(job, n, (first, min(first + step, count))))
    run_all(jobs)
