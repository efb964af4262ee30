"""State-level minimum Bayes risk on the CPU: which kernel each sequence runs through, decided by its data, and threads.

Sequences run in float64 probabilities (`cpu_mbr_scaled`), in groups where they share a graph. Equation (13) is checked on
the way; a sequence that fails it runs again in logs (`cpu_mbr_log`). Where the alphas of all frames take more than the
memory budget, those of every sqrt(T)-th frame are kept and the others are computed anew: the same bits, 1.1 to 1.5 times
the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from fsachain.backends import cpu_mbr_log, cpu_mbr_scaled
from fsachain.backends.cpu_log_table import LogTable, log_table
from fsachain.backends.cpu_mbr_scaled import LOG_Z, LOWEST, MEAN, NUM_SUMS
from fsachain.backends.cpu_work import thread_budget
from fsachain.backends.threads import get_num_threads, run_all
from fsachain.batch import TableBatch
from fsachain.table import TransitionTable

Scores = npt.NDArray[np.floating]
Lengths = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Index = npt.NDArray[np.uint32]
Result = tuple[Floats, Floats, npt.NDArray[np.bool_]]
Span = tuple[int, int]

MAX_LANES = 16
# Equation (13): products below it may have been flushed to zero, and what was flushed may matter.
SMALLEST = 1e-285


class _Table(NamedTuple):
    """Probabilities relative to their maximum; float64."""

    dst_offsets: Index
    dst_src: Index
    dst_column: Index
    dst_weight: Floats
    src_offsets: Index
    src_dst: Index
    src_column: Index
    src_weight: Floats
    active: Index
    initial: Floats
    init: Floats
    final: Floats
    log_scale: Floats
    least: tuple[float, float, float, float]
    init_everywhere: float


class _Job(NamedTuple):
    """What a call works on; `weights` is None where no derivative is wanted. `budget`: bytes for each thread."""

    scores: Scores
    accuracy: Scores
    lengths: Lengths
    leaky: float
    weights: Floats | None
    out: npt.NDArray[np.floating]
    occupancy: npt.NDArray[np.floating]
    budget: float


_tables: WeakKeyDictionary[TransitionTable, _Table] = WeakKeyDictionary()


def expected_accuracy(
    batch: TableBatch, scores: Scores, accuracy: Scores, lengths: Lengths, leaky: float
) -> Result:
    """log Z, E[A] and ok of every sequence; see `reference_mbr.expected_accuracy`."""
    nowhere = np.empty((0, 0, 0))
    return _run(batch, _Job(scores, accuracy, lengths, leaky, None, nowhere, nowhere, 0.0))


def set_accuracy_gradient(
    batch: TableBatch,
    scores: Scores,
    accuracy: Scores,
    lengths: Lengths,
    leaky: float,
    weights: Floats,
    out: npt.NDArray[np.floating],
    occupancy: npt.NDArray[np.floating],
    memory_budget: float | None = None,
) -> Result:
    """The same, and derivatives into `out` and `occupancy`; see `reference_mbr.set_accuracy_gradient`.

    `memory_budget` is as in `cpu.add_occupancy`.
    """
    each = thread_budget(memory_budget)
    return _run(batch, _Job(scores, accuracy, lengths, leaky, weights, out, occupancy, each))


def _run(batch: TableBatch, job: _Job) -> Result:
    log_z, mean = np.empty(batch.size), np.empty(batch.size)
    run_all([_group_job(batch, job, lanes, log_z, mean) for lanes in _groups(batch, job.lengths)])
    return log_z, mean, np.isfinite(log_z) & np.isfinite(mean)


def _groups(batch: TableBatch, lengths: Lengths) -> list[npt.NDArray[np.int64]]:
    """Sequences of about equal length in groups of at most MAX_LANES; graphs of their own one by one."""
    if not batch.is_shared:
        return [np.array([n]) for n in range(batch.size)]
    per_thread = -(-batch.size // get_num_threads())
    count = -(-batch.size // min(MAX_LANES, per_thread))
    return np.array_split(np.argsort(-lengths, kind="stable"), count)


def _group_job(
    batch: TableBatch, job: _Job, lanes: npt.NDArray[np.int64], log_z: Floats, mean: Floats
) -> Callable[[], None]:
    def run() -> None:
        table = batch.table(int(lanes[0]))
        sums, certain = _scaled(table, job, lanes)
        log_z[lanes], mean[lanes] = sums[LOG_Z], sums[MEAN]
        for n in lanes[~certain]:
            log_z[n], mean[n] = _logs(log_table(table), job, int(n))

    return run


def _scaled(
    table: TransitionTable, job: _Job, lanes: npt.NDArray[np.int64]
) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """The sums [NUM_SUMS, W] of the lanes and which of them are certain by equation (13), with their derivatives."""
    unit = (1,) if len(lanes) == 1 else ()
    data, lengths, width = _scaled_table(table), job.lengths[lanes], len(lanes)
    sums = np.empty((NUM_SUMS, width))
    inputs = cpu_mbr_scaled.Inputs(data, job.leaky, job.scores, job.accuracy, lanes, lengths)

    def forward(span: Span, history: Floats, into: Floats) -> None:
        cpu_mbr_scaled.forward(unit, inputs, span, history[0], history[1], into)

    def backward(span: Span, history: Floats) -> None:
        cpu_mbr_scaled.backward(
            unit, inputs, span, history[0], history[1], carried, lowest, weights, job.out, job.occupancy
        )

    shape = (table.num_states, width)
    if job.weights is None:
        forward((0, int(lengths.max())), np.empty((2, 2, *shape)), sums)
        return sums, _is_certain(sums, sums[LOWEST])
    keeper = _Keeper(int(lengths.max()), shape, forward, sums, job.budget)
    possible = np.isfinite(sums[LOG_Z]) & np.isfinite(sums[MEAN])
    weights = np.where(possible, job.weights[lanes], 0.0)
    carried, lowest = np.zeros((2, *shape)), np.ones(width)
    if weights.any():
        keeper.run_backward(backward)
    lowest = np.where(weights != 0.0, lowest, sums[LOWEST])
    return sums, _is_certain(sums, lowest)


def _is_certain(sums: Floats, lowest: Floats) -> npt.NDArray[np.bool_]:
    """An illegal score shows whatever was lost; that there is no path, or one below the smallest float, does not."""
    return np.isnan(sums[LOG_Z]) | (np.isfinite(sums[LOG_Z]) & (lowest >= SMALLEST))


def _logs(table: LogTable, job: _Job, n: int) -> tuple[float, float]:
    """log Z and E[A] of one sequence in logs, always certain, with its derivatives."""
    frames, num_states = int(job.lengths[n]), len(table.initial)
    scores, accuracy = job.scores[n, :frames], job.accuracy[n, :frames]
    log_c = float(np.log(job.leaky)) if job.leaky > 0.0 else -np.inf
    inputs = cpu_mbr_log.Inputs(table, log_c, scores, accuracy)
    sums = np.empty(2)

    def forward(span: Span, history: Floats, into: Floats) -> None:
        cpu_mbr_log.forward(inputs, span, history[0], history[1], into)

    def backward(span: Span, history: Floats) -> None:
        out = job.out[n, :frames]
        occupancy = job.occupancy[n, :frames] if len(job.occupancy) else np.empty((0, 0), job.occupancy.dtype)
        cpu_mbr_log.backward(inputs, span, history[0], history[1], carried, weight, out, occupancy)

    weight = 0.0 if job.weights is None else float(job.weights[n])
    if not weight:
        forward((0, frames), np.empty((2, 2, num_states)), sums)
    else:
        keeper = _Keeper(frames, (num_states,), forward, sums, job.budget)
        carried = np.empty((2, num_states))
        if np.isfinite(sums).all():
            keeper.run_backward(backward)
    return float(sums[0]), float(sums[1])


class _Keeper:
    """Runs the forward recursion and keeps the alphas, all of them or those of some frames, for the backward recursion.

    forward(span, history [2, rows, ...], sums) fills the rows of frames span[0] to span[1], the first one given but for
    frame 0. All alphas are kept if they take no more than `budget` bytes.
    """

    def __init__(
        self,
        num_frames: int,
        shape: tuple[int, ...],
        forward: Callable[[Span, Floats, Floats], None],
        sums: Floats,
        budget: float,
    ) -> None:
        row = 16 * int(np.prod(shape))
        fits = (num_frames + 1) * row <= budget
        step = max(num_frames if fits else math.ceil(math.sqrt(num_frames)), 1)
        self._spans = [(first, min(first + step, num_frames)) for first in range(0, max(num_frames, 1), step)]
        self._forward, self._sums = forward, sums
        self._history = np.empty((2, step + 1, *shape))
        self._kept = np.empty((len(self._spans) - 1, 2, *shape))
        for k, span in enumerate(self._spans):
            if k > 0:
                self._history[:, 0] = self._history[:, step]
                self._kept[k - 1] = self._history[:, 0]
            forward(span, self._history, sums)

    def run_backward(self, backward: Callable[[Span, Floats], None]) -> None:
        """backward(span, history) for the spans from the last to the first."""
        for k in range(len(self._spans) - 1, -1, -1):
            if k < len(self._spans) - 1:
                if k > 0:
                    self._history[:, 0] = self._kept[k - 1]
                self._forward(self._spans[k], self._history, self._sums.copy())
            backward(self._spans[k], self._history)


def _scaled_table(table: TransitionTable) -> _Table:
    if table not in _tables:
        logs = log_table(table)
        initial, initial_scale, least_initial = _probs(logs.initial)
        by_dst, arc_scale, least_arc = _probs(logs.dst_log_prob)
        by_src, _, _ = _probs(logs.src_log_prob)
        final, final_scale, least_final = _probs(logs.final)
        init = np.exp(logs.init)
        _tables[table] = _Table(
            *(logs.dst_offsets, logs.dst_src, logs.dst_column, by_dst),
            *(logs.src_offsets, logs.src_dst, logs.src_column, by_src),
            logs.active,
            *(initial, init, final),
            np.array([initial_scale, arc_scale, final_scale]),
            (least_initial, least_arc, init.min(where=init > 0.0, initial=1.0), least_final),
            float(init.min()),
        )
    return _tables[table]


def _probs(log_probs: Floats) -> tuple[Floats, float, float]:
    """Probabilities relative to their maximum, its log, and the least of those that are not zero in logs."""
    finite = log_probs[log_probs > -np.inf]
    scale = float(finite.max(initial=-np.inf)) if finite.size else 0.0
    least = float(np.exp(finite.min() - scale)) if finite.size else 1.0
    return np.exp(log_probs - scale), scale, least
