"""The CPU backend: which kernel each sequence runs through, decided by its data, and threads over groups of sequences.

A sequence first runs in probabilities (`cpu_scaled`): in float32 where it shares its graph with others and its scores
are not float64, else in float64. Equation (13) is checked on the way; a sequence that fails it runs again with a wider
range, in the end in float64 logs (`cpu_log`), which are right at any magnitude.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.backends import cpu_log, cpu_scaled
from fsachain.backends.cpu_penalty import add_penalties as add_penalties_of_one
from fsachain.backends.cpu_scaled import SMALLEST
from fsachain.backends.cpu_tables import log_table, scaled_table
from fsachain.backends.reference import arc_occupancy as arc_occupancy
from fsachain.backends.threads import get_num_threads, run_all
from fsachain.batch import TableBatch
from fsachain.fsa import Ints
from fsachain.table import TransitionTable

Scores = npt.NDArray[np.floating]
Lengths = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MAX_LANES = 32
SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)


class _Job(NamedTuple):
    """What a call works on; `weights` and `out` are None where only log Z is wanted."""

    scores: Scores
    lengths: Lengths
    leaky: float
    weights: Floats | None
    out: npt.NDArray[np.floating] | None


def log_probs(
    batch: TableBatch, scores: Scores, lengths: Lengths, leaky: float
) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """log Z [N] and ok [N]; see `reference.log_probs`."""
    return _run(batch, _Job(scores, lengths, leaky, None, None))


def add_occupancy(
    batch: TableBatch,
    scores: Scores,
    lengths: Lengths,
    leaky: float,
    weights: Floats,
    out: npt.NDArray[np.floating],
) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Add weights[n] x occupancy to out [N, T, P]; log Z [N] and ok [N]; see `reference.add_occupancy`."""
    return _run(batch, _Job(scores, lengths, leaky, weights, out))


def add_penalties(
    scores: Scores,
    lengths: Lengths,
    weights: Floats,
    factors: tuple[float, float, float],
    out: npt.NDArray[np.floating],
) -> tuple[float, float]:
    """Penalties on large scores and their derivatives; see `reference.add_penalties`."""
    sums = np.zeros((len(scores), 2))
    l2, out_of_range, limit = factors
    nowhere = np.empty((0, 0), scores.dtype)

    def job(n: int) -> Callable[[], None]:
        y, into = scores[n, : lengths[n]], out[n, : lengths[n]] if len(out) else nowhere
        return lambda: add_penalties_of_one(y, weights[n], l2, out_of_range, limit, into, sums[n])

    run_all([job(int(n)) for n in np.flatnonzero(weights)])
    squares, excesses = sums.sum(axis=0)
    return -0.5 * l2 * float(squares), -0.5 * out_of_range * float(excesses)


def best_path(table: TransitionTable, scores: Scores) -> tuple[float, Ints]:
    """Score and arcs [T] of the best path; see `reference.best_path`."""
    path = np.empty(len(scores), dtype=np.int64)
    back = np.empty((len(scores), table.num_states), dtype=np.uint32)
    score = cpu_log.best_path(log_table(table), scores, back, path)
    return score, table.by_dst.arc[path] if np.isfinite(score) else np.empty(0, dtype=np.int32)


def _run(batch: TableBatch, job: _Job) -> tuple[Floats, npt.NDArray[np.bool_]]:
    log_z = np.empty(batch.size)
    precision = SINGLE if batch.is_shared and job.scores.dtype == SINGLE else DOUBLE
    groups = _groups(job.lengths) if precision == SINGLE else [np.array([n]) for n in range(batch.size)]
    run_all([_group_job(batch, job, lanes, precision, log_z) for lanes in groups])
    return log_z, np.isfinite(log_z)


def _group_job(
    batch: TableBatch, job: _Job, lanes: npt.NDArray[np.int64], precision: np.dtype[Any], log_z: Floats
) -> Callable[[], None]:
    def run() -> None:
        table = batch.table(int(lanes[0]))
        log_z[lanes], certain = _scaled(table, job, lanes, precision)
        for n in lanes[~certain]:
            lane = np.array([n])
            sure = np.array([False])
            if precision == SINGLE:
                log_z[lane], sure = _scaled(table, job, lane, DOUBLE)
            if not sure[0]:
                log_z[n] = _logs(table, job, lane)

    return run


def _groups(lengths: Lengths) -> list[npt.NDArray[np.int64]]:
    """Sequences of about equal length in groups of at most MAX_LANES, as many groups as threads or a multiple."""
    size = len(lengths)
    per_thread = -(-size // get_num_threads())
    count = -(-size // min(MAX_LANES, max(per_thread, 8)))
    return np.array_split(np.argsort(-lengths, kind="stable"), count)


def _scaled(
    table: TransitionTable, job: _Job, lanes: npt.NDArray[np.int64], precision: np.dtype[Any]
) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """log Z of the lanes and whether each is certain by equation (13); adds the occupancy of those that are."""
    unit = (1,) if len(lanes) == 1 else ()
    data = scaled_table(table, precision)
    lengths = job.lengths[lanes]
    frames = min(2, lengths.max() + 1) if job.out is None else lengths.max() + 1
    history = np.empty((frames, max(table.num_states, len(table.active_pdfs)), len(lanes)), precision)
    log_z, lowest = np.empty(len(lanes)), np.empty(len(lanes))
    c = precision.type(job.leaky)
    cpu_scaled.forward(unit, data, c, job.scores, lanes, lengths, history, log_z, lowest)
    if job.out is not None and job.weights is not None:
        cpu_scaled.backward(unit, data, c, job.scores, lanes, lengths, history, lowest)
    illegal = np.isnan(log_z)
    certain = illegal | (np.isfinite(log_z) & (lowest >= SMALLEST[precision]))
    if job.out is not None and job.weights is not None:
        weights = np.where(certain & ~illegal, job.weights[lanes], 0.0)
        cpu_scaled.scatter(unit, history, data.active, lanes, lengths, weights, job.out)
    return log_z, certain


def _logs(table: TransitionTable, job: _Job, lanes: npt.NDArray[np.int64]) -> float:
    """The same for one sequence in logs, always certain."""
    n = int(lanes[0])
    data, scores = log_table(table), job.scores[n, : job.lengths[n]]
    log_c = float(np.log(job.leaky)) if job.leaky > 0.0 else -np.inf
    frames = len(scores) + 1 if job.out is not None else min(2, len(scores) + 1)
    history = np.empty((frames, max(table.num_states, len(table.active_pdfs))))
    log_z = float(cpu_log.forward(data, log_c, scores, history))
    if job.out is not None and job.weights is not None and np.isfinite(log_z):
        cpu_log.backward(data, log_c, scores, history)
        occupancy = history[:, :, None]
        cpu_scaled.scatter(
            (1,), occupancy, data.active, lanes, job.lengths[lanes], job.weights[lanes], job.out
        )
    return log_z
