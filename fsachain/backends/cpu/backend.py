"""The CPU backend: which numbers each sequence runs in, decided by its data, and threads over groups of sequences.

A sequence first runs in plain numbers (`numbers`): in float32 where it shares its graph with others and its scores are
not float64, else in float64. Equation (13) is checked when its alphas are there; a sequence that fails it runs in wide
numbers, and one whose scores exceed even those in float64 logs (`log`), which are right at any magnitude.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from fsachain.backends import Lengths, LogProbs, Paths
from fsachain.backends.cpu import log as cpu_log
from fsachain.backends.cpu.frames import AccurateFrames, Frames, make_columns, scale_row
from fsachain.backends.cpu.frames import add_penalties as add_penalties_of_one
from fsachain.backends.cpu.jit import helper, jit, jit_on_views
from fsachain.backends.cpu.layouts import ArcGroups, ArcList, ArcRows, ArcsBothWays, Layout, OwnGroups
from fsachain.backends.cpu.memory import (
    Shape,
    borrow,
    forward_plan,
    give_back,
    make_plan,
    memory_block,
    shape_of,
    thread_budget,
    trim,
)
from fsachain.backends.cpu.numbers import (
    ZERO_EXPONENT,
    kind_of,
    weights,
    write,
    zero,
)
from fsachain.backends.cpu.simd import WIDTH, by_type
from fsachain.backends.cpu.structs import Form, Packed, pack
from fsachain.backends.cpu.sum_product import backward, forward
from fsachain.backends.cpu.tables import count_pairs, kernel_table
from fsachain.backends.cpu.threads import get_num_threads, run_all
from fsachain.backends.reference.sums import Scores, active_scores
from fsachain.batch import TableBatch
from fsachain.fsa import Floats, Ints
from fsachain.table import TransitionTable

_TO_SCALE = 0.3  # nanoseconds to multiply one number, which memory allows

# What one group of sequences goes through: alphas of all segments, log Z, the decision (13), betas and
# occupancies.


@helper
def _conclude(table: Any, frames: Any, record: Any, found: Any) -> None:
    """found [2, W]: log Z from what the forward pass took off, -inf for no path, NaN for an illegal score; and E[A]."""
    initial, arcs, final = table.log_scale
    log_z, means, lengths = found[0], found[1], frames.lengths
    z, shift, scale = record.z, record.shift, record.scale
    for g in range(len(lengths)):
        means[g] = record.mean[g]
        if math.isnan(record.extent[0, g]):
            log_z[g] = np.nan
        elif not z[g] > 0.0:
            log_z[g] = -np.inf
        else:
            shifts, scales = 0.0, float(record.z_scale[g])
            for t in range(lengths[g]):
                shifts += shift[t, g]
                scales += scale[t, g]
            weights = initial + arcs * lengths[g] + final
            log_z[g] = math.log(z[g]) + scales * math.log(2.0) + shifts + weights


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

    return wide if kind_of(form) == "wide" else plain


@jit
def find_wide(
    scores: Any, lengths: Any, active: Any, offsets: Any, spread: float, fall: float, is_wide: Any
) -> None:
    """Of the sequences where is_wide [N], keep those whose finite scores are `spread` nats apart in four frames.

    Or as far that over all frames this adds up to `fall`. Scores [N, T, P]; sequence n sees the pdfs
    active[offsets[n] : offsets[n + 1]].
    """
    for n in range(len(is_wide)):
        for part in range(4):
            t, top, low = part * lengths[n] // 4, -np.inf, np.inf
            for k in range(offsets[n], offsets[n + 1] if is_wide[n] else 0):
                y = scores[n, t, active[k]]
                if -np.inf < y < np.inf:
                    top, low = max(top, y), min(low, y)
            is_wide[n] &= top - low > min(spread, fall / lengths[n])


@helper
def _copy(source: Any, target: Any) -> None:
    for i in range(source.shape[0]):
        for g in range(source.shape[1]):
            target[i, g] = source[i, g]


@helper
def _clear(form: Any, rows: Any) -> None:
    for i in range(len(rows)):
        write(form, rows, i, zero(form, rows))


def _run_segments(
    form: Any,
    table: Any,
    c: Any,
    frames: Any,
    segment: int,
    memory: Any,
    limit: float,
    factors: Any,
    found: Any,
    certain: Any,
    out: Any,
) -> None:
    """found [2, W], log Z and E[A], and certain [W]; where that is true, out[n, t, p] += factors [W] x occupancy.

    Unless `out` is empty. With expected numbers the derivative of E[A], (M6), takes the place of the occupancy.

    Frames are worked on in segments. The alphas before each are kept in `memory`, and all those of one segment at a time
    (all of two, in turn, if out is empty, when there is but one segment).
    """
    work, record, checkpoints, lengths = memory.work, memory.record, memory.checkpoints, frames.lengths
    history, beta = work.history, work.beta
    count, starts, wanted = 0, len(checkpoints), False
    for g in range(len(lengths)):
        count = max(count, lengths[g])
    for index in range(max(starts, 1)):
        if index > 0:
            _copy(history[segment], history[0])
            _copy(history[0], checkpoints[index])
        forward(form, table, c, frames, index * segment, min((index + 1) * segment, count), work, record)
    _conclude(table, frames, record, found)
    _decide(form, table, frames, record, limit, certain)
    for g in range(len(certain)):
        usable = certain[g] and math.isfinite(found[0, g]) and lengths[g] > 0 and len(out) > 0
        factor = factors[g] if usable else 0.0
        work.factors[0, g] = factor
        wanted |= factor != 0.0
    if not wanted:
        return
    _clear(form, beta[0])
    _clear(form, beta[1])
    for index in range(max(starts, 1) - 1, -1, -1):
        first, last = index * segment, min((index + 1) * segment, count)
        if index < starts - 1:
            _copy(checkpoints[index], history[0])
            forward(form, table, c, frames, first, last, work, record)
        backward(form, table, c, frames, first, last, work, out)


run, run_inside = jit_on_views(_run_segments), helper(_run_segments)  # from Python, from another kernel


Bools = npt.NDArray[np.bool_]
Expected = tuple[Floats, Floats, Bools]  # log Z, E[A], ok [N]

SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
ALONE = 2  # so many sequences on a shared graph take less time one after the other than side by side
DENSE = 8  # arcs for each pdf, half of it for each state: with more they are summed by pdf where a graph is not shared, too
LARGE = 2000  # arcs; what a list keeps for each arc and frame then leaves the caches
FEW = 1000  # arcs; layouts differ by 0.1 ms a call there, not worth the seconds in which kernels for one more are compiled
# Nats between the scores of a frame. Where they are further apart wide numbers, of the scores' type, take no longer than a
# list in plain ones, which are often of no use.
SPREAD = {SINGLE: 48.0, DOUBLE: 128.0}
FALL = 2800.0  # nats, over all frames: slow paths through a numerator are then so far behind that (13) fails
BEYOND_CACHE = 16_000  # pairs whose rows of 16 float32 leave a second-level cache of 1 MB
# Equation (13): a plain product below these may have lost digits, or everything, and what was lost may matter.
SMALLEST = {SINGLE: 1e-30, DOUBLE: 1e-290}


class _Job(NamedTuple):
    """What a call works on; `out` is empty where no occupancy is wanted. `budget`: bytes for each thread.

    Where there are accuracies [N, T, P], E[A] and its derivative by the scores take the occupancy's place.
    """

    scores: Scores
    lengths: Lengths
    leaky: float
    weights: Floats
    out: npt.NDArray[np.floating]
    budget: float
    accuracy: Scores | None = None


class _Graph(NamedTuple):
    """A table, packed, with the columns of the scores, and the sizes of a group that runs through it."""

    table: Packed
    columns: Packed
    shape: Shape


_graphs: WeakKeyDictionary[TransitionTable, dict[Any, _Graph]] = WeakKeyDictionary()


def log_probs(batch: TableBatch, scores: Scores, lengths: Lengths, leaky: float) -> LogProbs:
    """log Z [N] and ok [N]; see `reference.sums.log_probs`."""
    return add_occupancy(
        batch, scores, lengths, leaky, np.zeros(batch.size), np.empty((0, 0, 0), scores.dtype), 0.0
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
    log_z = _run(batch, _Job(scores, lengths, leaky, weights, out, thread_budget(memory_budget)))[0]
    return LogProbs(log_z, np.isfinite(log_z))


def expected_accuracy(
    batch: TableBatch, scores: Scores, accuracy: Scores, lengths: Lengths, leaky: float
) -> Expected:
    """log Z, E[A] and ok of every sequence; see `reference.mbr.expected_accuracy`."""
    nowhere = np.empty((0, 0, 0), scores.dtype)
    return set_accuracy_gradient(
        batch, scores, accuracy, lengths, leaky, np.zeros(batch.size), nowhere, nowhere
    )


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
) -> Expected:
    """The same, and derivatives are added to `out` and `occupancy`; see `reference.mbr.set_accuracy_gradient`."""
    legal = np.array([np.isfinite(_seen(batch, accuracy, lengths, n)).all() for n in range(batch.size)])
    used, budget = np.where(legal, weights, 0.0), thread_budget(memory_budget)
    log_z, mean = _run(batch, _Job(scores, lengths, leaky, used, out, budget, accuracy))
    if len(occupancy):
        _run(batch, _Job(scores, lengths, leaky, used, occupancy, budget))
    mean = np.where(np.isfinite(log_z), np.where(legal, mean, np.nan), log_z)
    return log_z, mean, np.isfinite(log_z) & legal


def _seen(batch: TableBatch, accuracy: Scores, lengths: Lengths, n: int) -> Floats:
    """Sums over frames of a sequence's accuracies, for its active pdfs: not finite if one of them is not."""
    with np.errstate(invalid="ignore"):
        sums: Floats = accuracy[n, : lengths[n]].sum(axis=0, dtype=np.float64)
    return sums[batch.table(n).active_pdfs]


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


def scale_rows(values: npt.NDArray[np.floating], factors: Floats, out: npt.NDArray[np.floating]) -> None:
    """Write values [N, K] times factors [N] to `out` [N, K], which may be `values`; what is 0 stays 0.

    Both arrays are float32 or float64 and contiguous. Products that would be subnormal are 0.
    """
    if len(values) == 1:  # one factor for all: the threads take a share each
        shares = zip(*(np.array_split(array[0], get_num_threads()) for array in (values, out)), strict=True)
        rows = [(share, factors[0], into) for share, into in shares]
    else:
        rows = list(zip(values, factors, out, strict=True))
    run_all([partial(scale_row, *row) for row in rows], _TO_SCALE * values.size)


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
    frames = active_scores(table, scores)
    if not frames.legal:
        return np.nan, np.empty(0, dtype=np.int32)
    path = np.empty(len(scores), dtype=np.int32)
    back = np.empty((len(scores), table.num_states), dtype=np.uint32)
    rows = np.empty((2, table.num_states))
    score = cpu_log.best_path(cpu_log.log_table(table), frames.scores, rows, back, path)
    # One after another, as `paths.n_best` adds them.
    return score + frames.shift.cumsum()[-1] if len(scores) else score, path if score > -np.inf else path[:0]


def _run(batch: TableBatch, job: _Job) -> Floats:
    """[2, N], log Z and E[A]: each sequence in the first kind of number that is wide enough for it."""
    found, waiting = np.zeros((2, batch.size)), np.arange(batch.size)
    # A third of a nanosecond for an arc that sequences share, some 5 for another.
    arcs = (
        0.3 * batch.tables[0].num_arcs if batch.is_shared else 5.0 * max([x.num_arcs for x in batch.tables])
    )
    work = arcs * float(job.lengths.sum())
    is_wide = _are_wide(batch, job)
    for dtype, kind in _kinds(batch, job):
        if waiting.size:
            certain = ~is_wide if kind == "plain" else np.ones(batch.size, np.bool_)
            groups = _groups(batch, job.lengths, waiting[certain[waiting]], dtype, kind)
            run_group = partial(_run_group, batch, job, dtype, kind, found, certain)
            run_all([partial(run_group, lanes) for lanes in groups], work)
            waiting = np.flatnonzero(~certain)
    run_all([partial(_in_logs, batch, job, found, int(n)) for n in waiting])
    trim()
    return found


def _are_wide(batch: TableBatch, job: _Job) -> Bools:
    """The sequences for which plain numbers are not tried: see SPREAD."""
    if batch.is_shared or job.accuracy is not None:
        return np.zeros(batch.size, np.bool_)
    active = list(map(attrgetter("active_pdfs"), batch.tables))
    offsets = np.cumsum([0, *map(len, active)])
    num_arcs, num_states = np.array(list(map(attrgetter("num_arcs", "num_states"), batch.tables))).T
    is_wide = ~is_dense(num_arcs, np.diff(offsets), num_states) & (job.lengths > 0)
    if is_wide.any():
        spread = SPREAD[job.scores.dtype]
        find_wide(job.scores, job.lengths, np.concatenate(active), offsets, spread, FALL, is_wide)
    return is_wide


def _kinds(batch: TableBatch, job: _Job) -> list[tuple[np.dtype[Any], str]]:
    """Types and kinds of number that are tried for a sequence, in this order."""
    if job.accuracy is not None:
        return [(DOUBLE, "expected")]
    if job.scores.dtype != SINGLE:
        return [(DOUBLE, "plain"), (DOUBLE, "wide")]
    return [(SINGLE if batch.is_shared else DOUBLE, "plain"), (SINGLE, "wide"), (DOUBLE, "wide")]


def _groups(
    batch: TableBatch, lengths: Lengths, waiting: npt.NDArray[np.int64], dtype: np.dtype[Any], kind: str
) -> list[npt.NDArray[np.int64]]:
    """The sequences that run side by side: those that share a graph, of about equal length, as many as there are lanes.

    What is left over runs one by one if that is little: the shortest.
    """
    ordered = waiting[np.argsort(-lengths[waiting], kind="stable")]
    left = len(waiting) % WIDTH[dtype.itemsize] if batch.is_shared else len(waiting)
    if batch.is_shared and (left > ALONE or kind == "expected"):
        left = 0
    together, alone = ordered[: len(ordered) - left], ordered[len(ordered) - left :]
    groups = np.array_split(together, -(-len(together) // WIDTH[dtype.itemsize])) if len(together) else []
    return [*groups, *alone[:, None]]


def _run_group(
    batch: TableBatch,
    job: _Job,
    dtype: np.dtype[Any],
    kind: str,
    found: Floats,
    certain: Bools,
    lanes: npt.NDArray[np.int64],
) -> None:
    form = Form(1 if len(lanes) == 1 else WIDTH[dtype.itemsize], kind)
    table = batch.table(int(lanes[0]))
    graph = _graph(table, dtype, form, job.leaky > 0.0, batch.is_shared, job.scores.shape[2])
    found[:, lanes], certain[lanes] = _in_numbers(graph, job, lanes)


def _graph(
    table: TransitionTable,
    dtype: np.dtype[Any],
    form: Form,
    leaks: bool,
    is_shared: bool,
    num_pdfs: int,
) -> _Graph:
    """Made once, and kept while the table lives."""
    made = _graphs.setdefault(table, {})
    key = dtype.char, form.width, form.kind, leaks, is_shared, num_pdfs
    if key not in made:
        data = kernel_table(table, dtype, form, leaks, choose_layout(table, form, is_shared))
        columns = make_columns(data.active, form.width, num_pdfs)
        made[key] = _Graph(pack(data), pack(columns), shape_of(data, columns, form, dtype))
    return made[key]


def choose_layout(table: TransitionTable, form: Form, is_shared: bool) -> type[Layout]:
    """How the arcs of `table` should stand; for sequences that share it, alone or not, the sums are in one order."""
    num_arcs = table.num_arcs
    if is_shared:
        pairs = count_pairs(table) if num_arcs > FEW else 0
        if pairs * (4 if pairs > BEYOND_CACHE else 2) > num_arcs:
            return ArcsBothWays
        return ArcGroups if form.width == 1 and form.kind != "expected" else ArcRows
    dense = is_dense(num_arcs, len(table.active_pdfs), table.num_states)
    if form.kind == "expected":
        return ArcRows if dense else ArcList
    return OwnGroups if form.is_wide or dense else ArcList


def is_dense(num_arcs: Any, num_pdfs: Any, num_states: Any) -> Any:
    """Whether a graph of one's own is summed by pairs, where numbers are plain; of arrays for each.

    A list adds one arc after the other: right where few arcs have a pdf or a state in common, and an addition is one
    instruction.
    """
    by_pairs = (num_arcs > DENSE * num_pdfs) & (num_arcs > DENSE // 2 * num_states)
    return by_pairs | ((num_arcs > LARGE) & (num_arcs > 3 * num_states))


def _in_numbers(graph: _Graph, job: _Job, lanes: npt.NDArray[np.int64]) -> tuple[Floats, Bools]:
    """log Z and E[A] of the lanes and whether each is certain; adds the occupancy of those that are."""
    table, columns, shape = graph
    form, dtype, width = shape.form, shape.dtype, shape.width
    padded, lengths, factors = lanes, job.lengths[lanes], job.weights[lanes]
    if len(lanes) < width:
        padded, factors = np.resize(lanes, width), np.resize(factors, width)
        lengths = np.concatenate([lengths, np.full(width - len(lanes), -1)])
    count = int(lengths.max())
    plan = make_plan(shape, count, job.budget) if len(job.out) else forward_plan(count)
    limit = -ZERO_EXPONENT[dtype.itemsize] / 4 if form.is_wide else SMALLEST[dtype]
    found, certain = np.empty((2, width)), np.empty(width, np.bool_)
    block = memory_block(shape, plan)
    buffer = borrow(block.size)
    try:
        memory, inputs = block.at(buffer), (job.scores, padded, lengths, columns)
        frames = pack(Frames(*inputs) if job.accuracy is None else AccurateFrames(*inputs, job.accuracy))
        leak = _leak(form, job.leaky, dtype)
        run(form, table, leak, frames, plan.segment, memory, limit, factors, found, certain, job.out)
    finally:
        give_back(buffer)
    return found[:, : len(lanes)], certain[: len(lanes)]


@lru_cache(maxsize=64)
def _leak(form: Form, coefficient: float, dtype: np.dtype[Any]) -> Any:
    with np.errstate(divide="ignore"):
        return pack(weights(form, np.log(np.array([coefficient])), dtype))


def _in_logs(batch: TableBatch, job: _Job, found: Floats, n: int) -> None:
    """The same for one sequence in logs, always certain."""
    table = batch.table(n)
    scores, active = job.scores[n, : job.lengths[n]], table.active_pdfs
    pdfs = np.zeros((len(scores) if len(job.out) else 0, len(active)))
    wanted, accuracy = cpu_log.Wanted(pdfs=pdfs), None
    if job.accuracy is not None:
        wanted = cpu_log.Wanted(pdfs=pdfs, changes=np.zeros_like(pdfs))
        accuracy = job.accuracy[n, : len(scores), active].T.astype(np.float64)
    found[:, n] = cpu_log.run(table, scores, job.leaky, wanted, accuracy)
    if job.weights[n]:
        job.out[n, : len(pdfs), active] += job.weights[n] * wanted[-1 if accuracy is not None else -2].T
