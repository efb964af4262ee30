"""The CPU backend: which numbers each sequence runs in, decided by its data, and threads over groups of sequences.

A sequence first runs in plain numbers (`numbers`): in float32 where it shares its graph with others and its scores are
not float64, else in float64. Equation (13) is checked when its alphas are there; a sequence that fails it runs in wide
numbers, and one whose scores exceed even those in float64 logs (`log`), which are right at any magnitude.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from fsachain.backends import LogProbs, Paths
from fsachain.backends.cpu import log as cpu_log
from fsachain.backends.cpu.frames import Frames, make_columns
from fsachain.backends.cpu.frames import add_penalties as add_penalties_of_one
from fsachain.backends.cpu.jit import helper, jit_on_views
from fsachain.backends.cpu.layouts import ArcGroups, ArcList, ArcRows
from fsachain.backends.cpu.log import log_table
from fsachain.backends.cpu.memory import Plan, Shape, make_plan, memory_for, shape_of, thread_budget, trim
from fsachain.backends.cpu.numbers import (
    ZERO_EXPONENT,
    is_wide_type,
    weights,
    write,
    zero,
)
from fsachain.backends.cpu.simd import by_type
from fsachain.backends.cpu.structs import Form, Packed, pack
from fsachain.backends.cpu.sum_product import backward, both_ends_agree, forward
from fsachain.backends.cpu.tables import kernel_table
from fsachain.backends.cpu.threads import run_all
from fsachain.batch import TableBatch
from fsachain.fsa import Ints
from fsachain.table import TransitionTable

# What one group of sequences goes through: alphas of all segments, log Z, the decision (13), betas and
# occupancies.


@helper
def _conclude(table: Any, frames: Any, record: Any, log_z: Any) -> None:
    """log_z [W] from what the forward pass took off; -inf for no path, NaN for an illegal score."""
    initial, arcs, final = table.log_scale
    for g in range(len(frames.lengths)):
        if record.extent[0, g] != record.extent[0, g]:
            log_z[g] = np.nan
        elif not record.z[g] > 0.0:
            log_z[g] = -np.inf
        else:
            shifts, scales = 0.0, float(record.z_scale[g])
            for t in range(frames.lengths[g]):
                shifts += record.shift[t, g]
                scales += record.scale[t, g]
            weights = initial + arcs * frames.lengths[g] + final
            log_z[g] = math.log(record.z[g]) + scales * math.log(2.0) + shifts + weights


@by_type
def _decide(form: Any, table: Any, frames: Any, record: Any, limit: Any, certain: Any) -> Any:
    """Whether nothing that matters was lost: equation (13), or that no exponent of a wide number came near zero's."""

    def plain(form, table, frames, record, limit, certain):  # type: ignore[no-untyped-def]
        for g in range(len(certain)):
            enough = max(record.lowest[0, g], record.leaked[0, g]) >= limit
            certain[g] = enough or math.isnan(record.extent[0, g])

    def wide(form, table, frames, record, limit, certain):  # type: ignore[no-untyped-def]
        for g in range(len(certain)):
            reach = (record.extent[0, g] / math.log(2.0) + table.reach + 2.0) * (frames.lengths[g] + 2)
            certain[g] = reach < limit or math.isnan(record.extent[0, g])

    return wide if is_wide_type(form) else plain


@helper
def _copy(source: Any, target: Any) -> None:
    for i in range(source.shape[0]):
        for g in range(source.shape[1]):
            target[i, g] = source[i, g]


@helper
def _clear(form: Any, rows: Any) -> None:
    for i in range(len(rows)):
        write(form, rows, i, zero(form, rows))


@jit_on_views
def run(
    form: Any,
    table: Any,
    c: Any,
    frames: Any,
    segment: int,
    memory: Any,
    limit: float,
    factors: Any,
    log_z: Any,
    certain: Any,
    out: Any,
    confirmed: bool,
) -> None:
    """log_z [W] and certain [W]; where the latter is true, out[n, t, p] += factors [W] x occupancy, unless out is empty.

    Frames are worked on in segments. The alphas before each are kept in `memory`, and all those of one segment at a time
    (all of two, in turn, if out is empty, when there is but one segment). `confirmed`: an earlier call with the same
    arguments made the forward pass and was not certain, but `confirm` was.
    """
    work, record = memory.work, memory.record
    count, starts, wanted = 0, len(memory.checkpoints), False
    for g in range(len(frames.lengths)):
        count = max(count, frames.lengths[g])
    if not confirmed:
        for index in range(max(starts, 1)):
            if index > 0:
                _copy(work.history[segment], work.history[0])
                _copy(work.history[0], memory.checkpoints[index])
            forward(form, table, c, frames, index * segment, min((index + 1) * segment, count), work, record)
        _conclude(table, frames, record, log_z)
        _decide(form, table, frames, record, limit, certain)
    for g in range(len(certain)):
        usable = certain[g] and math.isfinite(log_z[g]) and frames.lengths[g] > 0 and len(out) > 0
        work.factors[0, g] = factors[g] if usable else 0.0
        wanted |= work.factors[0, g] != 0.0
    if not wanted:
        return
    _clear(form, work.beta[0])
    _clear(form, work.beta[1])
    for index in range(max(starts, 1) - 1, -1, -1):
        first, last = index * segment, min((index + 1) * segment, count)
        if index < starts - 1:
            _copy(memory.checkpoints[index], work.history[0])
            forward(form, table, c, frames, first, last, work, record)
        backward(form, table, c, frames, first, last, work, out)


@jit_on_views
def confirm(form: Any, table: Any, c: Any, frames: Any, memory: Any) -> bool:
    """Equation (19) for a sequence in plain numbers without a leak, after `run` was not certain of it."""
    return both_ends_agree(form, table, c, frames, memory.work, memory.record)


Scores = npt.NDArray[np.floating]
Lengths = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
LANES = {SINGLE: 16, DOUBLE: 8}  # one AVX-512 register; narrower ones take two or four
# Equation (13): a plain product below these may have lost digits, or everything, and what was lost may matter.
SMALLEST = {SINGLE: 1e-30, DOUBLE: 1e-290}


class _Job(NamedTuple):
    """What a call works on; `out` is empty where only log Z is wanted. `budget`: bytes for each thread."""

    scores: Scores
    lengths: Lengths
    leaky: float
    weights: Floats
    out: npt.NDArray[np.floating]
    budget: float


class _Graph(NamedTuple):
    """A table, packed, with the columns of the scores, and the sizes of a group that runs through it."""

    table: Packed
    columns: Packed
    shape: Shape


_graphs: WeakKeyDictionary[TransitionTable, dict[Any, _Graph]] = WeakKeyDictionary()


def log_probs(batch: TableBatch, scores: Scores, lengths: Lengths, leaky: float) -> LogProbs:
    """log Z [N] and ok [N]; see `reference.sums.log_probs`."""
    return _run(
        batch, _Job(scores, lengths, leaky, np.zeros(batch.size), np.empty((0, 0, 0), scores.dtype), 0.0)
    )


def add_occupancy(
    batch: TableBatch,
    scores: Scores,
    lengths: Lengths,
    leaky: float,
    weights: Floats,
    out: npt.NDArray[np.floating],
    memory_budget: float | None = None,
) -> LogProbs:
    """Add weights[n] x occupancy to out [N, T, P]; log Z [N] and ok [N]; see `reference.add_occupancy`.

    Alphas of all frames are kept if they fit `memory_budget` bytes (None: a 32nd of the free memory); else about
    2 sqrt(T) of T are kept and the others computed again, which changes no bit of the result.
    """
    return _run(batch, _Job(scores, lengths, leaky, weights, out, thread_budget(memory_budget)))


def add_penalties(
    scores: Scores,
    lengths: Lengths,
    weights: Floats,
    factors: tuple[float, float, float],
    out: npt.NDArray[np.floating],
) -> Floats:
    """Penalties on large scores and their derivatives; see `reference.sums.add_penalties`."""
    sums = np.zeros((len(scores), 2))
    l2, out_of_range, limit = factors
    nowhere = np.empty((0, 0), scores.dtype)

    def job(n: int) -> Callable[[], None]:
        y, into = scores[n, : lengths[n]], out[n, : lengths[n]] if len(out) else nowhere
        return lambda: add_penalties_of_one(y, weights[n], l2, out_of_range, limit, into, sums[n])

    run_all([job(int(n)) for n in np.flatnonzero(weights)])
    return np.array([-0.5 * l2, -0.5 * out_of_range]) * sums.sum(axis=0)


def best_paths(
    batch: TableBatch, scores: Scores, lengths: Lengths, memory_budget: float | None = None
) -> Paths:
    """The best path of every sequence; `memory_budget` is for other backends."""
    score = np.empty(batch.size)
    arcs: list[Ints] = [np.empty(0, dtype=np.int32)] * batch.size

    def job(n: int) -> None:
        score[n], arcs[n] = best_path(batch.table(n), scores[n, : lengths[n]])

    run_all([partial(job, n) for n in range(batch.size)])
    return Paths(score, arcs)


def best_path(table: TransitionTable, scores: Scores) -> tuple[float, Ints]:
    """Score and arcs [T] of the best path; see `reference.best_path`."""
    path = np.empty(len(scores), dtype=np.int64)
    back = np.empty((len(scores), table.num_states), dtype=np.uint32)
    score = cpu_log.best_path(log_table(table), scores, back, path)
    return score, table.by_dst.arc[path] if np.isfinite(score) else np.empty(0, dtype=np.int32)


def _run(batch: TableBatch, job: _Job) -> LogProbs:
    """All sequences in the first kind of number that is wide enough for each."""
    log_z, waiting = np.empty(batch.size), np.arange(batch.size)
    for dtype, kind in _kinds(batch, job.scores.dtype):
        if waiting.size:
            certain = np.ones(batch.size, np.bool_)
            groups = _groups(batch, job.lengths, waiting, dtype)
            run_all([_group_job(batch, job, dtype, kind, lanes, log_z, certain) for lanes in groups])
            waiting = np.flatnonzero(~certain)
    run_all([_log_job(batch, job, int(n), log_z) for n in waiting])
    trim()
    return LogProbs(log_z, np.isfinite(log_z))


def _kinds(batch: TableBatch, dtype: np.dtype[Any]) -> list[tuple[np.dtype[Any], str]]:
    """Types and kinds of number that are tried for a sequence, in this order."""
    if dtype != SINGLE:
        return [(DOUBLE, "plain"), (DOUBLE, "wide")]
    return [(SINGLE if batch.is_shared else DOUBLE, "plain"), (SINGLE, "wide"), (DOUBLE, "wide")]


def _groups(
    batch: TableBatch, lengths: Lengths, waiting: npt.NDArray[np.int64], dtype: np.dtype[Any]
) -> list[npt.NDArray[np.int64]]:
    """The sequences that run side by side: those that share a graph, of about equal length, as many as there are lanes."""
    ordered = waiting[np.argsort(-lengths[waiting], kind="stable")]
    count = -(-len(waiting) // LANES[dtype]) if batch.is_shared else len(waiting)
    return np.array_split(ordered, count)


def _group_job(
    batch: TableBatch,
    job: _Job,
    dtype: np.dtype[Any],
    kind: str,
    lanes: npt.NDArray[np.int64],
    log_z: Floats,
    certain: Bools,
) -> Callable[[], None]:
    def run() -> None:
        form = Form(1 if len(lanes) == 1 else LANES[dtype], kind)
        alone = ArcGroups if len(lanes) == 1 else ArcRows
        layout = alone if batch.is_shared else ArcList
        graph = _graph(batch.table(int(lanes[0])), dtype, form, job.leaky > 0.0, layout, job.scores.shape[2])
        log_z[lanes], certain[lanes] = _in_numbers(graph, job, lanes)

    return run


def _graph(
    table: TransitionTable,
    dtype: np.dtype[Any],
    form: Form,
    leaks: bool,
    layout: type[ArcRows] | type[ArcGroups] | type[ArcList],
    num_pdfs: int,
) -> _Graph:
    """Made once, and kept while the table lives."""
    made = _graphs.setdefault(table, {})
    key = dtype.char, form.width, form.kind, leaks, layout, num_pdfs
    if key not in made:
        data = kernel_table(table, dtype, form, leaks, layout)
        columns = make_columns(data.active, data.runs, form.width, num_pdfs)
        made[key] = _Graph(pack(data), pack(columns), shape_of(data, columns, form, dtype))
    return made[key]


def _in_numbers(graph: _Graph, job: _Job, lanes: npt.NDArray[np.int64]) -> tuple[Floats, Bools]:
    """log Z of the lanes and whether each is certain; adds the occupancy of those that are."""
    table, columns, shape = graph
    form, dtype, width = shape.form, shape.dtype, shape.width
    padded, lengths, factors = lanes, job.lengths[lanes], job.weights[lanes]
    if len(lanes) < width:
        padded, factors = np.resize(lanes, width), np.resize(factors, width)
        lengths = np.concatenate([lengths, np.full(width - len(lanes), -1)])
    count = int(lengths.max())
    plan = make_plan(shape, count, job.budget) if len(job.out) else Plan(count, max(count, 1))
    limit = -ZERO_EXPONENT[dtype.itemsize] / 4 if form.is_wide else SMALLEST[dtype]
    log_z, certain = np.empty(width), np.empty(width, np.bool_)
    with memory_for(shape, plan, plan.segment if len(job.out) else 1) as memory:
        leak, frames = _leak(form, job.leaky, dtype), pack(Frames(job.scores, padded, lengths, columns))
        arguments = form, table, leak, frames, plan.segment, memory, limit, factors, log_z, certain, job.out
        run(*arguments, False)
        # Weights below the limit may themselves have lost digits.
        data = table.value
        simple = isinstance(data.arcs, ArcList) and not form.is_wide and not job.leaky and count > 0
        if simple and not certain[0] and np.isfinite(log_z[0]) and data.least[[0, 1, 3]].min() >= limit:
            certain[0] = confirm(form, table, leak, frames, memory)
            if certain[0] and len(job.out):
                run(*arguments, True)
    return log_z[: len(lanes)], certain[: len(lanes)]


@lru_cache(maxsize=64)
def _leak(form: Form, coefficient: float, dtype: np.dtype[Any]) -> Any:
    with np.errstate(divide="ignore"):
        return pack(weights(form, np.log(np.array([coefficient])), dtype))


def _log_job(batch: TableBatch, job: _Job, n: int, log_z: Floats) -> Callable[[], None]:
    def run() -> None:
        log_z[n] = _in_logs(batch.table(n), job, n)

    return run


def _in_logs(table: TransitionTable, job: _Job, n: int) -> float:
    """The same for one sequence in logs, always certain."""
    data, scores = log_table(table), job.scores[n, : job.lengths[n]]
    log_c = float(np.log(job.leaky)) if job.leaky > 0.0 else -np.inf
    frames = len(scores) + 1 if len(job.out) else min(2, len(scores) + 1)
    history = np.empty((frames, max(table.num_states, len(table.active_pdfs))))
    log_z = float(cpu_log.forward(data, log_c, scores, history))
    if len(job.out) and np.isfinite(log_z):
        cpu_log.backward(data, log_c, scores, history)
        occupancy = history[: len(scores), : len(table.active_pdfs)]
        job.out[n, : len(scores), table.active_pdfs] += (job.weights[n] * occupancy).T
    return log_z
