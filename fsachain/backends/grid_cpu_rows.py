"""Logits and the grid on the CPU: spans of frames as jobs for the threads, equations (24) and (25)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from fsachain.backends import grid_rows
from fsachain.backends.threads import run_all
from fsachain.grid import Ints, Rows
from fsachain.recursion import Array

Reals = npt.NDArray[np.floating]
Span = tuple[int, int]

_FORMS = {4: (0,) * 16, 8: (0,) * 8}  # lanes by the bytes of an entry: 64 bytes
_SPAN_ENTRIES = 1 << 18  # of a job: long beside the call of a kernel, short beside a sequence


def softmax_scores(rows: Rows, logits: Reals, values: Array) -> Reals:
    """Scores (24) of logits [R, V] into values [K, cells]; returns what `softmax_gradient` needs, [2, R]."""
    stats, form = np.zeros((2, len(logits)), logits.dtype), _FORMS[logits.itemsize]
    flat, width, mask = logits.reshape(-1), logits.shape[1], _mask(logits)

    def job(n: int, span: Span) -> None:
        grid_rows.softmax_scores(form, flat, tuple(rows), n, span, width, stats, values, mask)

    _over_spans(rows, width, rows.sequences[:, 4], job)
    return stats


def plain_scores(rows: Rows, log_probs: Reals, values: Array) -> None:
    """The same for rows that are log-probs already."""
    flat, width = log_probs.reshape(-1), log_probs.shape[1]

    def job(n: int, span: Span) -> None:
        grid_rows.plain_scores(flat, tuple(rows), n, span, width, values)

    _over_spans(rows, width, rows.sequences[:, 4], job)


def softmax_gradient(
    rows: Rows, logits: Reals, stats: Reals, occupancy: Array, weights: Array, limit: float, out: Reals
) -> None:
    """Equation (25) times weights [N] into out [R, V], which may be the logits; occupancy [K, cells] is g.

    Entries are kept within +-limit before they are weighted. Rows of padding become 0.
    """
    form, flat, into = _FORMS[logits.itemsize], logits.reshape(-1), out.reshape(-1)
    width = logits.shape[1]

    def job(n: int, span: Span) -> None:
        entries, options = np.empty((3, len(rows.classes))), (float(weights[n]), limit)
        grid_rows.softmax_gradient(
            form, flat, tuple(rows), n, span, width, stats, occupancy, options, entries, into
        )

    _over_spans(rows, width, rows.sequences[:, 2], job)


def plain_gradient(
    rows: Rows, log_probs: Reals, occupancy: Array, weights: Array, limit: float, out: Reals
) -> None:
    """The gradient of -log Z by log-probs [R, V], times weights [N]: otherwise as `softmax_gradient`."""
    form, flat, into = _FORMS[log_probs.itemsize], log_probs.reshape(-1), out.reshape(-1)
    width = log_probs.shape[1]

    def job(n: int, span: Span) -> None:
        entries, options = np.empty((3, len(rows.classes))), (float(weights[n]), limit)
        grid_rows.plain_gradient(form, flat, tuple(rows), n, span, width, occupancy, options, entries, into)

    _over_spans(rows, width, rows.sequences[:, 2], job)


def _mask(logits: Reals) -> Reals:
    """[2 W]: zeros, then ones; read from position k on, the last k lanes are ones."""
    lanes = len(_FORMS[logits.itemsize])
    return np.repeat(np.array([0, 1], logits.dtype), lanes)


def _over_spans(rows: Rows, width: int, frames: Ints, job: Callable[[int, Span], None]) -> None:
    """job(n, (first, last)) for spans of the frames [N] of all sequences."""
    jobs = []
    for n, count in enumerate(frames.tolist()):
        step = max(1, _SPAN_ENTRIES // max(1, int(rows.sequences[n, 3]) * width))
        for first in range(0, count, step):
            jobs.append(partial(job, n, (first, min(first + step, count))))
    run_all(jobs)
