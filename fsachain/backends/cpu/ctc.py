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
from fsachain.backends.cpu.backend import DOUBLE, SMALLEST, run
from fsachain.backends.cpu.frames import FORMS, CtcFrames, OwnColumns, leave_out_masks
from fsachain.backends.cpu.jit import helper, jit, jit_on_views
from fsachain.backends.cpu.layouts import ArcRows
from fsachain.backends.cpu.memory import Plan, Shape, make_plan, memory_for, shape_of, thread_budget, trim
from fsachain.backends.cpu.numbers import (
    ZERO_EXPONENT,
    Weights,
    weights,
)
from fsachain.backends.cpu.simd import LINE, aligned_bytes
from fsachain.backends.cpu.structs import Form, Packed, address_of, pack
from fsachain.backends.cpu.tables import kernel_table
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
    write_gradient,
)
from fsachain.fsa import Floats
from fsachain.graph.ctc import CtcTopology, ctc_arcs, final_states
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
LABELS = 8  # graphs are made for multiples of so many labels: few of them, and kept


class Group(NamedTuple):
    """Some sequences side by side: the form of their numbers, their lanes and lengths, -1 for none, and what they run on."""

    form: Form
    lanes: Integers
    lengths: Integers
    table: Packed
    columns: Packed  # `OwnColumns`
    shape: Shape


class _Pattern(NamedTuple):
    """What all targets of so many labels have in common.

    What a target decides stands in a block of `size` bytes; its parts, (shape, type, first byte) of arrays, are the last
    arguments of `_fill`. The words of table and columns are those for a block at address 0; the entries `in_block` of each
    are addresses there. Weights come in the three orders of `ArcRows`, then the final ones. `rows`: of arcs that are there
    only where the label that they lead to, in `labels`, differs from the one before; final [U + 1, 2]: of the final states
    of a target of so many labels. column_labels: see `fsachain.backends.ctc`.
    """

    shape: Shape
    size: int
    parts: tuple[tuple[tuple[int, ...], Any, int], ...]
    table: Packed
    columns: Packed
    in_block: tuple[Integers, ...]
    rows: Integers
    labels: Integers
    final: Integers
    column_labels: Integers


def group_of(problem: CtcProblem, kind: int, lanes: Integers) -> Group:
    """What a target decides is filled into a block of its own; all else is made once."""
    form = FORMS_TRIED[1 if len(lanes) == 1 else WIDTHS[-1]][kind]
    most = max(problem.label_counts[lanes].tolist())
    own = _pattern(-(-most // LABELS) * LABELS, problem.topology, problem.repeats_apart, form)
    block = aligned_bytes(own.size)
    parts = [np.ndarray(shape, dtype, block, first) for shape, dtype, first in own.parts]
    _fill(
        lanes,
        problem.labels,
        problem.differs,
        problem.label_counts,
        problem.frame_counts,
        problem.log_prior,
        problem.blank,
        problem.delay_penalty,
        own.rows,
        own.labels,
        own.final,
        own.column_labels,
        *parts,
    )
    start = address_of(block)
    table, columns = (
        Packed((block, own), part._numba_type_, part.words + at * start)
        for part, at in zip((own.table, own.columns), own.in_block, strict=True)
    )
    return Group(form, parts[-2], parts[-1], table, columns, own.shape)


@jit_on_views
def _fill(
    given: Any,
    labels: Any,
    differs: Any,
    label_counts: Any,
    frame_counts: Any,
    log_prior: Any,
    blank: int,
    delay_penalty: float,
    rows: Any,
    row_labels: Any,
    final: Any,
    column_labels: Any,
    mantissas: Any,
    exponents: Any,
    offset: Any,
    slope: Any,
    active: Any,
    counts: Any,
    lanes: Any,
    lengths: Any,
) -> None:
    """Weights, columns, lanes and lengths of the sequences `given`, of which some fill up the lanes once more."""
    first = final[0, 0]
    for k in range(len(column_labels)):
        slope[k] = delay_penalty if k > 0 and column_labels[k] > column_labels[k - 1] else 0.0
    for g in range(len(lanes)):
        n = given[g % len(given)]
        count = label_counts[n]
        lanes[g], lengths[g] = n, frame_counts[n] if g < len(given) else -1
        for row in range(len(mantissas)):
            mantissas[row, g] = 1.0 if row < first else 0.0
        for i in range(len(rows)):
            if row_labels[i] <= count and not differs[n, row_labels[i]]:
                mantissas[rows[i], g] = 0.0
        for i in range(2):
            mantissas[final[count, i], g] = 1.0
        for row in range(len(exponents)):
            exponents[row, g] = 0 if mantissas[row, g] > 0.0 else ZERO
        counts[g] = 0
        for k in range(len(column_labels)):
            own = column_labels[k] <= count
            counts[g] += own
            class_ = labels[n, column_labels[k] - 1] if own and column_labels[k] > 0 else blank
            active[k, g] = class_
            offset[k, g] = log_prior[class_] if len(log_prior) > 0 else 0.0


@lru_cache(maxsize=256)
def _pattern(num_labels: int, topology: CtcTopology, repeats_apart: bool, form: Form) -> _Pattern:
    fsa, own = column_shape(num_labels, topology, repeats_apart), ctc_arcs(num_labels, topology)
    data = kernel_table(compile_table(fsa), DOUBLE, form, False, ArcRows)
    arcs: Any = data.arcs
    key = fsa.src.astype(np.int64) * fsa.num_states + fsa.dst  # no two arcs have the same ends
    sorting = np.argsort(key)
    pair_dst = np.repeat(np.arange(fsa.num_states), np.diff(arcs.state_pairs))
    src_of = np.repeat(np.arange(fsa.num_states), np.diff(arcs.src_arcs))
    firsts, rows, labels = [0], [], []
    for src, dst in (
        (arcs.arc_src, np.repeat(pair_dst, np.diff(arcs.pair_arcs))),
        (arcs.column_src, np.repeat(arcs.column_dst, np.diff(arcs.column_arcs))),
        (src_of, arcs.column_dst[arcs.src_pair]),
    ):
        number = sorting[np.searchsorted(key, src.astype(np.int64) * fsa.num_states + dst, sorter=sorting)]
        found = np.flatnonzero(own.must_differ(topology)[number])
        rows.append(firsts[-1] + found)
        labels.append(own.label[number[found]].astype(np.int64))
        firsts.append(firsts[-1] + len(number))
    last, width = firsts[-1] + fsa.num_states, form.width
    label_of = column_labels(num_labels, repeats_apart)
    parts, size = [], 0
    for shape, kind in (
        ((last, width), np.float64),  # mantissas
        ((last if form.is_wide else 0, width), np.int64),  # exponents
        ((len(label_of), width), np.float64),  # offset
        ((len(label_of),), np.float64),  # slope
        ((len(label_of), width), np.uint32),  # active
        *[((width,), np.int64)] * 3,  # counts, lanes, lengths
    ):
        parts.append((shape, kind, size))
        size += -(-math.prod(shape) * np.dtype(kind).itemsize // LINE) * LINE
    block = aligned_bytes(size)
    mantissas, exponents, offset, slope, active, counts, *_ = [
        np.ndarray(shape, kind, block, first) for shape, kind, first in parts
    ]
    one, two, three, final = (
        Weights(mantissas[a:b], exponents[a:b]) for a, b in itertools.pairwise((*firsts, last))
    )
    arcs = arcs._replace(arc_weight=one, column_weight=two, src_weight=three)
    data = data._replace(arcs=arcs, final=final)
    place = np.arange(len(label_of), dtype=np.uint32)
    columns: Any = OwnColumns(active, counts, offset, slope, np.empty(0, np.int64), place)
    packed, start = (pack(data), pack(columns)), address_of(block)
    in_block = tuple([((x.words >= start) & (x.words <= start + size)).astype(np.int64) for x in packed])
    for part, at in zip(packed, in_block, strict=True):
        part.words -= start * at
    return _Pattern(
        shape_of(data, columns, form, DOUBLE),
        size,
        tuple(parts),
        *packed,
        in_block,
        np.concatenate(rows),
        np.concatenate(labels),
        firsts[-1] + np.stack(final_states(np.arange(num_labels + 1), topology), axis=1),
        label_of,
    )


ALONE = 3  # so many sequences of a thread take less time one after the other than side by side


class _Job(NamedTuple):
    """What a call works on: see `log_probs`. budget: bytes for each thread."""

    problem: CtcProblem
    scores: Rows
    statistics: Floats
    sums: Floats
    checks: Checks
    out: npt.NDArray[np.floating]
    budget: float


def log_probs(
    problem: CtcProblem,
    scores: Rows,
    statistics: Floats,
    sums: Floats,
    checks: Checks,
    out: npt.NDArray[np.floating],
    memory_budget: float | None,
) -> Floats:
    """log Z [N] of scores as they are.

    Of real rows three arrays are filled, each unless it is empty: statistics [2, N, T] with maxima m and the sums of
    exp(y - m); sums [N, T], where `checks` says so, with the sums of exp(y), within 1e-4 of themselves and where no y is
    above 88; out, flat and strided as the scores, with softmax - occupancy, of which the softmax is left out without
    statistics. Sequences whose log Z is not finite are not written to `out`.
    """
    job = _Job(problem, scores, statistics, sums, checks, out, thread_budget(memory_budget))
    size = len(problem.labels)
    log_z, certain, waiting = np.empty(size), np.empty(size, np.bool_), np.arange(size)
    # Half a nanosecond for a class of a frame, and some 30 for a label.
    frame = 0.5 * problem.num_classes + 30.0 * problem.labels.shape[1]
    work = frame * sum(problem.frame_counts.tolist())
    for kind in range(KINDS):
        groups = _groups(problem, waiting, threads_for(work))
        run_all([partial(_in_numbers, job, kind, lanes, log_z, certain) for lanes in groups], work)
        waiting = waiting[~certain[waiting]]
        if not len(waiting):
            break
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


def _in_numbers(
    job: _Job, kind: int, lanes: Integers, log_z: Floats, all_certain: npt.NDArray[np.bool_]
) -> None:
    """log Z of the lanes and whether each is certain; the gradient of those that are."""
    problem = job.problem
    form, padded, lengths, table, columns, shape = group_of(problem, kind, lanes)
    count = max(lengths.tolist())
    plan = make_plan(shape, count, job.budget) if len(job.out) else Plan(count, max(count, 1))
    limit = -ZERO / 4 if form.is_wide else SMALLEST[DOUBLE]
    found, certain = np.empty((2, len(padded))), np.empty(len(padded), np.bool_)
    size = job.scores.flat.itemsize
    with memory_for(shape, plan, plan.segment if len(job.out) else 1) as memory:
        frames = CtcFrames(
            scores=job.scores.flat,
            lanes=padded,
            lengths=lengths,
            columns=columns,
            strides=np.array(job.scores.strides),
            num_classes=problem.num_classes,
            statistics=job.statistics,
            sums=job.sums,
            every=job.checks.every,
            phase=job.checks.phase,
            form=FORMS[size],
            masks=leave_out_masks(size),
        )
        run(
            form,
            table,
            _no_leak(form),
            pack(frames),
            plan.segment,
            memory,
            limit,
            _minus_ones(len(padded)),
            found,
            certain,
            job.out,
            False,
        )
    log_z[lanes], all_certain[lanes] = found[0, : len(lanes)], certain[: len(lanes)]


@lru_cache
def _minus_ones(width: int) -> Floats:
    return np.full(width, -1.0)


@lru_cache(maxsize=8)
def _no_leak(form: Form) -> Any:
    return pack(weights(form, np.array([-np.inf]), DOUBLE))


def _in_logs(job: _Job, n: int, log_z: Floats) -> None:
    """The same for one sequence in logs, always certain."""
    table, scores = compile_table(column_graph(job.problem, n)), column_scores(job.problem, job.scores, n)
    pdfs = np.zeros((len(scores) if len(job.out) else 0, len(table.active_pdfs)))
    log_z[n], _ = cpu_log.run(table, scores, 0.0, cpu_log.Wanted(pdfs=pdfs))
    if len(job.out) and np.isfinite(log_z[n]):
        occupancy = np.zeros(scores.shape)
        occupancy[:, table.active_pdfs] = pdfs
        into = job.scores._replace(flat=job.out)
        write_gradient(job.problem, job.scores, job.statistics, n, occupancy, into)


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
