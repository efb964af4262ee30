"""CTC on the CPU: sums over paths, and the best path.

Sequences with targets of their own run side by side, in the recursion that shared graphs run through.

A group of sequences runs through the graph of its longest target; what a target lacks has weight zero in its lane. A lane
never sees another, and zeros change no sum, so a sequence gets the same bits in any group. It runs in plain float64 first,
then in wide numbers, last in logs, as in `cpu`.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.backends.cpu import log as cpu_log
from fsachain.backends.cpu.backend import DOUBLE, SMALLEST, run_inside
from fsachain.backends.cpu.frames import CtcFrames, CtcRows, OwnColumns, clear_own, leave_out_masks
from fsachain.backends.cpu.jit import helper, jit, jit_on_views
from fsachain.backends.cpu.layouts import ArcRows
from fsachain.backends.cpu.memory import (
    Block,
    Memory,
    Plan,
    Shape,
    borrow,
    forward_plan,
    give_back,
    lay_out,
    make_plan,
    rooms_of,
    shape_of,
    thread_budget,
    trim,
)
from fsachain.backends.cpu.numbers import (
    ZERO_EXPONENT,
    Weights,
    weights,
)
from fsachain.backends.cpu.simd import FORMS
from fsachain.backends.cpu.structs import Form, Room, pack, words_of
from fsachain.backends.cpu.tables import KernelTable, kernel_table
from fsachain.backends.cpu.threads import run_all, threads_for
from fsachain.backends.ctc import (
    Checks,
    CtcProblem,
    Integers,
    Rows,
    column_graph,
    column_labels,
    column_scores,
    column_shape,
    log_sum,
    write_gradient,
)
from fsachain.fsa import Floats
from fsachain.graph.ctc import CtcTopology, ctc_arcs, ctc_prices, final_states
from fsachain.graph.forgive import Forgiveness
from fsachain.table import compile_table

# What sequences with targets of their own run on side by side: a graph for all, weights and columns for each
# lane.

# Two AVX-512 registers: what each arc costs beside its arithmetic is then shared by more. One lane alone takes 0.4 of the
# time of 16. Any other width would have to be compiled too.
WIDTHS = 1, 16
# What is tried for a sequence, in this order: float32 would leave its range, and its wide form hardly saves time.
FORMS_TRIED = {width: (Form(width), Form(width, "wide")) for width in WIDTHS}
KINDS = 2  # of these forms; then logs
ZERO = ZERO_EXPONENT[DOUBLE.itemsize]
LABELS = 4  # graphs are made for multiples of so many labels: not many of them, and kept


class Group(NamedTuple):
    """What some sequences side by side run on.

    What a target decides is `fill`ed in: mantissas and exponents, of the weights of `table` in the three orders of
    `ArcRows`, then the final ones; lanes and lengths; the least weights of `KernelTable`; offset, slope, active and counts
    of its columns. The same for all targets of so many labels are, for each arc in the three orders, prices; labels, of how
    many a target must have at least, and apart: see `CtcArcs`; final [U + 1, F] and end_prices [F]: see `final_states`;
    column_labels: see `fsachain.backends.ctc`. factors [W], found [2, W], certain [W]: of `run`.
    """

    mantissas: Floats
    exponents: Integers
    lanes: Integers
    lengths: Integers
    factors: Floats
    found: Floats
    certain: Integers
    least: Floats
    prices: Integers
    labels: Integers
    apart: Integers
    final: Integers
    end_prices: Integers
    column_labels: Integers
    table: KernelTable
    columns: OwnColumns


@jit_on_views
def _run(
    form: Any,
    c: Any,
    stage: Any,
    given: Any,
    labels: Any,
    label_counts: Any,
    frame_counts: Any,
    log_prior: Any,
    prices: Any,
    star_offset: float,
    blank: int,
    delay_penalty: float,
    segment: int,
    limit: float,
    weights: Any,
    log_z: Any,
    all_certain: Any,
    out: Any,
) -> None:
    """log Z of the sequences `given`, whether each is certain, and the gradient of those that are: see `log_probs`."""
    group, frames = stage.group, stage.frames
    classes = frames.rows.num_classes, log_prior, star_offset, blank, delay_penalty
    _fill(group, given, labels, label_counts, frame_counts, prices, *classes)
    lanes, lengths, factors = group.lanes, group.lengths, group.factors
    for g in range(len(lanes)):
        factors[g] = -weights[lanes[g]]
    found, certain = group.found, group.certain
    rest = stage.memory, limit, factors, found, certain, out
    run_inside(form, group.table, c, frames, segment, *rest)
    for g in range(len(given)):
        n = given[g]
        value, is_certain = found[0, g] - _log_sums(frames.rows, n, lengths[g]), certain[g] != 0
        if group.columns.counts[g] == 0:
            value, is_certain = np.nan, True
        log_z[n], all_certain[n] = value, is_certain
        if is_certain and len(out) > 0:
            is_written = math.isfinite(value) and factors[g] != 0.0
            clear_own(frames, g, lengths[g] if is_written else 0, out)


@helper
def _log_sums(rows: Any, n: int, num_frames: int) -> float:
    """Of the rows of a sequence, 0 without statistics."""
    total, statistics = 0.0, rows.statistics
    if statistics.size > 0:
        for t in range(num_frames):
            total += statistics[0, n, t] + math.log(statistics[1, n, t])
    return total


@helper
def _fill(
    group: Any,
    given: Any,
    labels: Any,
    label_counts: Any,
    frame_counts: Any,
    prices: Any,
    num_classes: int,
    log_prior: Any,
    star_offset: float,
    blank: int,
    delay_penalty: float,
) -> None:
    """What the targets of the sequences `given` decide, of which some fill up the lanes once more.

    One with an illegal label has no columns and no frames.
    """
    mantissas, exponents, columns, least = group.mantissas, group.exponents, group.columns, group.least
    column_labels, own, weights = group.column_labels, group.labels, prices.weights
    num_arcs = len(group.prices)
    has_star = len(column_labels) > 1 and column_labels[1] == 0
    least[0], least[1], least[2], least[3] = 1.0, prices.least[0], 1.0, prices.least[1]
    for k in range(len(column_labels)):
        columns.slope[k] = delay_penalty if k > 0 and column_labels[k] > column_labels[k - 1] else 0.0
    for g in range(len(group.lanes)):
        n = given[g % len(given)]
        target, count, legal = labels[n], label_counts[n], True
        for k in range(count):
            legal &= target[k] >= 0 and target[k] < num_classes and target[k] != blank
        group.lanes[g] = n
        group.lengths[g] = -1 if g >= len(given) else frame_counts[n] if legal else 0
        used = 0
        for k in range(len(column_labels)):
            if legal and column_labels[k] <= count:
                class_ = target[column_labels[k] - 1] if column_labels[k] > 0 else blank
                columns.active[k, g] = class_
                columns.offset[k, g] = log_prior[class_] if len(log_prior) > 0 else 0.0
                used += 1
        columns.counts[g] = used
        if has_star:
            columns.offset[1, g] = star_offset
        for row in range(len(mantissas)):
            value, price = 0.0, 0
            if row < num_arcs:
                label, apart, price = own[row], group.apart[row], group.prices[row]
                if label <= count and (apart == 0 or target[label - 1] != target[apart - 1]):
                    value = weights.mantissas[price]
            mantissas[row, g] = value
            if len(exponents) > 0:
                exponents[row, g] = weights.exponents[price] if value > 0.0 else ZERO
        for i in range(len(group.end_prices)):
            row, price = num_arcs + group.final[count, i], group.end_prices[i]
            if row >= num_arcs:
                mantissas[row, g] = weights.mantissas[price]
                if len(exponents) > 0:
                    exponents[row, g] = weights.exponents[price]


class _Kind(NamedTuple):
    """What decides about the arcs of all targets of so many labels; errors: the `Forgiveness.kinds` of a problem."""

    num_labels: int
    topology: CtcTopology
    repeats_apart: bool
    errors: Forgiveness


@lru_cache(maxsize=256)
def _pattern(kind: _Kind, form: Form) -> tuple[Group, Shape]:
    """The group of targets of at most so many labels, what they decide being rooms, and its sizes."""
    num_labels, topology, repeats_apart, errors = kind
    fsa = column_shape(np.arange(num_labels), topology, repeats_apart, errors)
    own = ctc_arcs(num_labels, topology, errors)
    data = kernel_table(compile_table(fsa), DOUBLE, form, False, ArcRows)
    arcs: Any = data.arcs
    sizes_of = fsa.num_states, fsa.num_states, int(fsa.pdf.max()) + 1
    key = np.ravel_multi_index((fsa.src, fsa.dst, fsa.pdf), sizes_of)  # no two arcs are alike
    sorting = np.argsort(key)
    pair_dst = np.repeat(np.arange(fsa.num_states), np.diff(arcs.state_pairs))
    column = np.repeat(np.arange(len(arcs.column_pairs) - 1), np.diff(arcs.column_pairs))
    into, again = np.diff(arcs.pair_arcs), np.diff(arcs.column_arcs)
    firsts, numbers = [0], []
    for src, dst, pdf in (
        (arcs.arc_src, np.repeat(pair_dst, into), np.repeat(arcs.pair_column, into)),
        (arcs.column_src, np.repeat(arcs.column_dst, again), np.repeat(column, again)),
        (
            np.repeat(np.arange(fsa.num_states), np.diff(arcs.src_arcs)),
            arcs.column_dst[arcs.src_pair],
            column[arcs.src_pair],
        ),
    ):
        wanted = np.ravel_multi_index((src, dst, pdf), sizes_of)
        numbers.append(sorting[np.searchsorted(key, wanted, sorter=sorting)])
        firsts.append(firsts[-1] + len(wanted))
    number = np.concatenate(numbers)
    last, width = firsts[-1] + fsa.num_states, form.width
    label_of = column_labels(num_labels, repeats_apart, errors.has_star)[data.active]
    room: Any = Room  # as the array that it will be
    mantissas = room(np.float64, last, width)
    exponents = room(np.int64, last if form.is_wide else 0, width)
    least = room(np.float64, 4)
    one, two, three, final = (
        Weights(mantissas.rows(a, b), exponents.rows(a, b)) for a, b in itertools.pairwise((*firsts, last))
    )
    arcs = arcs._replace(arc_weight=one, column_weight=two, src_weight=three)
    data = data._replace(arcs=arcs, final=final, log_scale=np.zeros(3), least=least)
    columns: Any = OwnColumns(
        active=room(np.uint32, len(label_of), width),
        counts=room(np.int64, width),
        offset=room(np.float64, len(label_of), width),
        slope=room(np.float64, len(label_of)),
        tiles=np.empty(0, np.int64),
        place=np.arange(len(label_of), dtype=np.uint32),
    )
    prices, labels, apart = (np.asarray(x, np.int64)[number] for x in (own.price, own.label, own.apart))
    ends: Any = final_states(np.arange(num_labels + 1), num_labels, topology, errors)
    group = Group(
        mantissas=mantissas,
        exponents=exponents,
        lanes=room(np.int64, width),
        lengths=room(np.int64, width),
        factors=room(np.float64, width),
        found=room(np.float64, 2, width),
        certain=room(np.int64, width),
        least=least,
        prices=prices,
        labels=labels,
        apart=apart,
        final=ends[0],
        end_prices=ends[1],
        column_labels=label_of,
        table=data,
        columns=columns,
    )
    return group, shape_of(data, columns, form, DOUBLE)


class Stage(NamedTuple):
    """A group with all that it runs on. The call's own words are the last: those of `frames.rows`."""

    group: Group
    memory: Memory
    frames: CtcFrames


@lru_cache(maxsize=1024)
def _stage(kind: _Kind, form: Form, itemsize: int, plan: Plan) -> Block:
    """A `Stage` for scores of `itemsize` bytes."""
    (group, shape), masks = _pattern(kind, form), leave_out_masks(itemsize)
    rows = CtcRows(masks, np.empty((2, 0, 0)), np.empty((0, 0)), np.empty((2, 0, 0)), masks, masks, *[0] * 6)
    frames = CtcFrames(group.lanes, group.lengths, group.columns, FORMS[itemsize], masks, rows)
    return lay_out(Stage(group, rooms_of(shape, plan), frames))


ALONE = 3  # so many sequences of a thread take less time one after the other than side by side


_NO_STARS: tuple[npt.NDArray[Any], ...] = np.empty((2, 0, 0)), np.empty(0), np.empty(0)


class _Job(NamedTuple):
    """What a call works on: see `log_probs`. budget: bytes for each thread."""

    problem: CtcProblem
    rows: CtcRows
    scores: Rows
    out: npt.NDArray[np.floating]
    weights: Floats
    budget: float


def log_probs(
    problem: CtcProblem,
    scores: Rows,
    statistics: Floats,
    sums: Floats,
    checks: Checks,
    out: npt.NDArray[np.floating],
    weights: Floats,
    memory_budget: float | None,
) -> Floats:
    """log Z [N] of scores as they are, or with statistics that of their log-softmax.

    Of real rows two arrays are filled, each unless it is empty: statistics [2, N, T] with maxima m and the sums of
    exp(y - m); sums [N, T], where `checks` says so, with the sums of exp(y), within 1e-4 of themselves and where no y is
    above 88. So is `out`, flat and strided as the scores, with weights [N] times softmax - occupancy, of which the softmax
    is left out without statistics; with zeros in rows that are not real, and where log Z is not finite. A label that is no
    class or the blank gives NaN.
    """
    stars = _NO_STARS
    if problem.forgive.has_star:
        shifts = problem.unit_shifts.astype(scores.flat.dtype)
        units = np.empty(scores.shape[0] * scores.shape[2], scores.flat.dtype)
        stars = np.empty((2, *scores.shape[:2])), shifts, units
    sizes = *scores.strides, *scores.shape[1:], *checks
    given: tuple[Any, ...] = (scores.flat, statistics, sums, *stars, *sizes)
    job = _Job(problem, CtcRows(*given), scores, out, weights, thread_budget(memory_budget))
    size = len(problem.labels)
    log_z, certain, waiting = np.empty(size), np.zeros(size, np.bool_), np.arange(size)
    # Half a nanosecond for a class of a frame; for a label some 30 alone and 11 side by side, where one group of lanes takes
    # as long as its half, so that another thread would spare nothing.
    label = 30.0 if size <= ALONE else 11.0 if size > WIDTHS[-1] else 0.0
    frame = 0.5 * problem.num_classes + label * problem.labels.shape[1]
    work = frame * sum(problem.frame_counts.tolist())
    for kind in range(KINDS):
        groups = _groups(problem, waiting, threads_for(work))
        run_all([partial(_in_numbers, job, kind, lanes, log_z, certain) for lanes in groups], work)
        if all(certain.tolist()):
            break
        waiting = np.flatnonzero(~certain)
    else:
        run_all([partial(_in_logs, job, int(n), log_z) for n in waiting])
    trim()
    return log_z


def _groups(problem: CtcProblem, waiting: Integers, threads: int) -> list[Integers]:
    """Sequences of about equal length side by side, as many as there are lanes, or fewer where threads would idle."""
    size = len(waiting)
    if size == 1:
        return [waiting]
    ordered = waiting[np.argsort(-problem.frame_counts[waiting], kind="stable")]
    count = size if size <= ALONE * threads else max(-(-size // WIDTHS[-1]), threads)
    return np.array_split(ordered, count)


def _in_numbers(job: _Job, kind: int, lanes: Integers, log_z: Floats, certain: npt.NDArray[np.bool_]) -> None:
    """log Z of the lanes and whether each is certain; the gradient of those that are."""
    problem = job.problem
    form = FORMS_TRIED[1 if len(lanes) == 1 else WIDTHS[-1]][kind]
    most, count = max(problem.label_counts[lanes].tolist()), max(problem.frame_counts[lanes].tolist())
    labels = -(-most // LABELS) * LABELS
    pattern = _Kind(labels, problem.topology, problem.repeats_apart, problem.forgive.kinds), form
    shape = _pattern(*pattern)[1]
    plan = make_plan(shape, count, job.budget) if len(job.out) else forward_plan(count)
    block, words = _stage(*pattern, job.scores.flat.itemsize, plan), words_of(job.rows)
    buffer = borrow(block.size)
    try:
        stage = block.at(buffer)
        stage.words[-len(words) :] = words
        _run(
            form,
            _no_leak(form),
            stage,
            lanes,
            problem.labels,
            problem.label_counts,
            problem.frame_counts,
            problem.log_prior,
            _prices(form, problem.forgive),
            problem.star_offset,
            problem.blank,
            problem.delay_penalty,
            plan.segment,
            -ZERO / 4 if form.is_wide else SMALLEST[DOUBLE],
            job.weights,
            log_z,
            certain,
            job.out,
        )
    finally:
        give_back(buffer)


class _Prices(NamedTuple):
    """`ctc_prices` as numbers, and the least of arcs and of ends."""

    weights: Weights
    least: Floats


@lru_cache(maxsize=8)
def _prices(form: Form, forgive: Forgiveness) -> Any:
    prices = ctc_prices(forgive)
    arcs, ends = np.split(prices, [len(prices) - forgive.longest_gap - 1])
    least = np.array([x[x > -np.inf].min() for x in (arcs, ends)])
    return pack(_Prices(weights(form, prices, DOUBLE), np.exp(least)))


@lru_cache(maxsize=8)
def _no_leak(form: Form) -> Any:
    return pack(weights(form, np.array([-np.inf]), DOUBLE))


def _in_logs(job: _Job, n: int, log_z: Floats) -> None:
    """The same for one sequence in logs, always certain."""
    table, scores = compile_table(column_graph(job.problem, n)), column_scores(job.problem, job.scores, n)
    pdfs = np.zeros((len(scores) if len(job.out) else 0, len(table.active_pdfs)))
    found, _ = cpu_log.run(table, scores, 0.0, cpu_log.Wanted(pdfs=pdfs))
    log_z[n] = found - log_sum(job.rows.statistics, n, len(scores))
    if len(job.out):
        occupancy = np.zeros(scores.shape)
        occupancy[:, table.active_pdfs] = pdfs
        weight = job.weights[n] if np.isfinite(log_z[n]) else 0.0
        into = job.scores._replace(flat=job.out)
        write_gradient(job.problem, job.scores, job.rows.statistics, n, occupancy, weight, into)


# The best path of a target, equations (8) and (9) on the graphs of `graph.ctc`, in float64.
#
# Of the scores before a frame two rows are kept, [U + 1] each: of the blank behind label k, and of label k. A step is a byte
# that says where both came from. Steps of all frames would take T U bytes, so frames are cut into stretches. A first pass
# keeps the two rows at the head of each; then, from the last stretch to the first, steps are made again, but only for the n
# labels, n the frames of the stretch, from which its end can be reached. With n = (8 T U)^(1/3) heads and steps together
# take the least memory, and the second pass n / U of the time of the first.

SMALL = 1 << 26  # bytes of steps that are kept at once
FROM_LABEL = 4  # in the step of a blank; the step of a label is 0: itself, 1: the blank before it, 2: the label before it


class _Target(NamedTuple):
    """What a frame reads of the scores [T, C], and how its U labels may follow each other.

    classes: the different ones among the labels, C for the one whose scores are `wild` [T]. columns [U + 1]: which of these
    label k is, from 1. skip [U + 1]: 0 where the label may follow the one before it without a blank, else -inf. again: 0
    where a label may last, else -inf.
    """

    scores: Any
    wild: Any
    classes: Any
    columns: Any
    skip: Any
    again: float
    blank: int


def best_path(
    scores: npt.NDArray[np.floating],
    labels: npt.NDArray[np.int64],
    differs: npt.NDArray[np.bool_],
    wild: Floats,
    blank: int,
    topology: CtcTopology,
) -> tuple[float, npt.NDArray[np.int32]]:
    """The score of the best path and for each frame the label's place in the target, counted from 1, 0 for the blank.

    Among equal scores a frame stays where the one before it was, else comes from a blank; the path ends in a label.

    Args:
        scores: [T, C], contiguous.
        labels: [U]; label C has the scores `wild` [T].
        differs: [U + 1], see `graph.ctc.differs_from_previous`.

    Returns:
        The score is -inf where there is no path and NaN where a score that is read is NaN or +inf; the places then mean
        nothing.
    """
    num_frames, num_labels = len(scores), len(labels)
    classes, columns = np.unique(labels, return_inverse=True)
    may_skip = np.ones(num_labels + 1, np.bool_) if topology in ("compact", "minimal") else differs
    skip = np.where(may_skip, 0.0, -np.inf)
    skip[:2] = -np.inf  # there is no label before the first
    again = 0.0 if topology in ("standard", "compact") else -np.inf
    stretch = num_frames
    if num_frames * (num_labels + 1) > SMALL:
        stretch = int(np.cbrt(8.0 * num_frames * num_labels)) + 1
    where = np.zeros(num_frames, np.int32)
    columns = np.concatenate([[0], columns.ravel()])
    target = _Target(scores, wild, classes, columns, skip, again, blank)
    return float(_best(target, max(1, stretch), where)), where


@jit
def _best(target: Any, stretch: int, where: Any) -> float:
    """The score; `where` [T] becomes the label of each frame."""
    num_frames, num_labels = len(target.scores), len(target.skip) - 1
    count = (num_frames + stretch - 1) // stretch
    rows = np.full((2, 2, num_labels + 1), -np.inf)  # by parity of the frame that they stand before
    rows[0, 0, 0] = 0.0
    heads = np.empty((count, 2, num_labels + 1))
    reach = num_labels if count <= 1 else min(num_labels, stretch)
    steps = np.empty((stretch, reach + 1), np.uint8)
    unused = np.empty((1, num_labels + 1), np.uint8)
    y = np.empty(len(target.classes))
    for s in range(count):
        first, last = s * stretch, min((s + 1) * stretch, num_frames)
        heads[s] = rows[first % 2]
        into = steps if count == 1 else unused
        if not _pass(target, first, last, 0, num_labels, rows, y, into):
            return np.nan
    k = num_labels
    blank_end, label_end = rows[num_frames % 2, 0, k], rows[num_frames % 2, 1, k]
    on_label = k > 0 and not blank_end > label_end
    score = label_end if on_label else blank_end
    if not score > -np.inf:
        return score
    for s in range(count - 1, -1, -1):
        first, last = s * stretch, min((s + 1) * stretch, num_frames)
        low = 0
        if count > 1:
            low = max(0, k - (last - first))
            rows.fill(-np.inf)
            rows[first % 2] = heads[s]
            _pass(target, first, last, low, k, rows, y, steps)
        for t in range(last - 1, first - 1, -1):
            step = steps[t - first, k - low]
            if on_label:
                where[t] = k
                k -= (step & 3) > 0
                on_label = (step & 3) != 1
            else:
                on_label = (step & FROM_LABEL) > 0
    return score


@helper
def _pass(target: Any, first: int, last: int, low: int, high: int, rows: Any, y: Any, steps: Any) -> bool:
    """Take rows from before frame `first` to before frame `last`; steps are those of labels `low` to `high`.

    False where a score is NaN or +inf.
    """
    scores, classes = target.scores, target.classes
    num_frames, num_classes = scores.shape
    num_labels = len(target.skip) - 1
    legal: Any = True
    for t in range(first, last):
        y_blank = np.float64(scores[t, target.blank])
        legal &= y_blank < np.inf
        for c in range(len(classes)):
            y[c] = target.wild[t] if classes[c] == num_classes else np.float64(scores[t, classes[c]])
            legal &= y[c] < np.inf
        # More labels cannot have been spelled yet, and with fewer the frames that are left would not do.
        begin = max(low, num_labels - (num_frames - 1 - t))
        end = min(t + 1, high) + 1
        row = t - first if len(steps) > 1 else 0
        _frame(target, rows[t % 2], rows[(t + 1) % 2], y, y_blank, begin, end, low, steps[row])
    return legal


@helper
def _frame(
    target: Any, old: Any, new: Any, y: Any, y_blank: float, begin: int, end: int, low: int, steps: Any
) -> None:
    """Labels `begin` to `end` - 1 of one frame."""
    if begin == 0:
        new[0, 0] = old[0, 0] + y_blank
        steps[0] = 0
        begin = 1
    # Views that begin at the same label: an index that may be negative would cost a branch.
    blank, label = old[0, begin:end], old[1, begin:end]
    blank_before, label_before = old[0, begin - 1 : end - 1], old[1, begin - 1 : end - 1]
    new_blank, new_label = new[0, begin:end], new[1, begin:end]
    skip, columns, again = target.skip[begin:end], target.columns[begin:end], target.again
    steps = steps[begin - low : end - low]
    for k in range(len(blank)):
        stays, left = label[k], blank[k]
        new_blank[k] = max(left, stays) + y_blank
        best = stays + again
        skipped = label_before[k] + skip[k]
        step = 1 if blank_before[k] > best else 0
        best = max(best, blank_before[k])
        step = 2 if skipped > best else step
        best = max(best, skipped)
        new_label[k] = best + y[columns[k]]
        steps[k] = step + (FROM_LABEL if stays > left else 0)
