"""What sequences with targets of their own run on side by side: a graph for all, weights and columns for each lane."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fsachain.backends.cpu import DOUBLE
from fsachain.backends.cpu_ctc_frames import OwnColumns
from fsachain.backends.cpu_lanes import aligned_bytes
from fsachain.backends.cpu_layouts import ArcRows, Weights
from fsachain.backends.cpu_numbers import ZERO_EXPONENT, Form, is_wide, plain_form, wide_form, width_of
from fsachain.backends.cpu_tables import KernelTable, kernel_table
from fsachain.backends.cpu_work import Shape, shape_of
from fsachain.backends.ctc import CtcProblem, Integers, column_shape, columns_of
from fsachain.graph.ctc import CtcTopology, ctc_arcs, final_states
from fsachain.table import TransitionTable, compile_table

# Two AVX-512 registers: what each arc costs beside its arithmetic is then shared by more. One lane alone takes 0.4 of the
# time of 16. Any other width would have to be compiled too.
WIDTHS = 1, 16
# What is tried for a sequence, in this order: float32 would leave its range, and its wide form hardly saves time.
FORMS_TRIED = {width: (plain_form(width), wide_form(width)) for width in WIDTHS}
KINDS = 2  # of these forms; then logs
ZERO = ZERO_EXPONENT[DOUBLE.itemsize]
LABELS = 8  # graphs are made for multiples of so many labels: few of them, and kept


class Group(NamedTuple):
    """Some sequences side by side: the form of their numbers, their lanes and lengths, -1 for none, and what they run on."""

    form: Form
    lanes: Integers
    lengths: Integers
    table: KernelTable
    columns: Any
    shape: Shape


def group_of(problem: CtcProblem, kind: int, lanes: Integers) -> Group:
    """Made once for the losses and the gradient."""
    key = kind, lanes.tobytes()
    if key not in problem.kept:
        width = next(width for width in WIDTHS if width >= len(lanes))
        form, padded = FORMS_TRIED[width][kind], np.resize(lanes, width)
        lengths = np.full(width, -1)
        lengths[: len(lanes)] = problem.frame_counts[lanes]
        most = int(problem.label_counts[lanes].max())
        num_labels = -(-most // LABELS) * LABELS
        table = _lane_table(problem, padded, num_labels, form)
        columns: Any = _own_columns(problem, padded, num_labels)
        shape = shape_of(table, columns, form, DOUBLE)
        problem.kept[key] = Group(form, padded, lengths, table, columns, shape)
    found: Group = problem.kept[key]
    return found


def _own_columns(problem: CtcProblem, lanes: Integers, num_labels: int) -> OwnColumns:
    classes, counts, offset, slope = columns_of(problem, lanes, num_labels)
    place = np.arange(len(classes), dtype=np.uint32)
    return OwnColumns(classes.astype(np.uint32), counts, offset, slope, np.empty(0, np.int64), place)


class _Shape(NamedTuple):
    """The graph of all targets of so many labels.

    In each of the three orders of `ArcRows` there are `sizes` arcs; of these, `rows` are there only where the labels that
    they lead to, `labels`, differ from the ones before.
    """

    table: TransitionTable
    sizes: tuple[int, int, int]
    rows: tuple[Integers, Integers, Integers]
    labels: tuple[Integers, Integers, Integers]


@lru_cache(maxsize=256)
def _shape(num_labels: int, topology: CtcTopology, repeats_apart: bool) -> _Shape:
    fsa, own = column_shape(num_labels, topology, repeats_apart), ctc_arcs(num_labels, topology)
    table = compile_table(fsa)
    arcs: Any = kernel_table(table, DOUBLE, plain_form(1), False, ArcRows).arcs
    key = fsa.src.astype(np.int64) * fsa.num_states + fsa.dst  # no two arcs have the same ends
    sorting = np.argsort(key)
    pair_dst = np.repeat(np.arange(fsa.num_states), np.diff(arcs.state_pairs))
    src_of = np.repeat(np.arange(fsa.num_states), np.diff(arcs.src_arcs))
    sizes, rows, labels = [], [], []
    for src, dst in (
        (arcs.arc_src, np.repeat(pair_dst, np.diff(arcs.pair_arcs))),
        (arcs.column_src, np.repeat(arcs.column_dst, np.diff(arcs.column_arcs))),
        (src_of, arcs.column_dst[arcs.src_pair]),
    ):
        number = sorting[np.searchsorted(key, src.astype(np.int64) * fsa.num_states + dst, sorter=sorting)]
        found = np.flatnonzero(own.must_differ(topology)[number])
        sizes.append(len(number))
        rows.append(found)
        labels.append(own.label[number[found]].astype(np.int64))
    return _Shape(table, tuple(sizes), tuple(rows), tuple(labels))  # type: ignore[arg-type]


def _lane_table(problem: CtcProblem, lanes: Integers, num_labels: int, form: Form) -> KernelTable:
    """The kernels' table of the shape, with weights of its own for each lane: 0 for arcs that a target has not."""
    shape = _shape(num_labels, problem.topology, problem.repeats_apart)
    table = kernel_table(shape.table, DOUBLE, form, False, ArcRows)
    differs = np.ones((num_labels + 1, len(lanes)), np.bool_)
    own = problem.differs[lanes, : num_labels + 1].T
    differs[: len(own)] = own
    by_order = []
    for size, rows, labels in zip(shape.sizes, shape.rows, shape.labels, strict=True):
        mantissas, exponents = both = _lane_weights(form, size, 1.0)
        mantissas[rows] = differs[labels]
        if len(exponents):
            exponents[rows] = np.where(differs[labels], 0, ZERO)
        by_order.append(both)
    arcs: Any = table.arcs
    arcs = arcs._replace(arc_weight=by_order[0], column_weight=by_order[1], src_weight=by_order[2])
    final = _lane_weights(form, shape.table.num_states, 0.0)
    for state in final_states(problem.label_counts[lanes], problem.topology):
        final[0][state, np.arange(len(lanes))] = 1.0
        if len(final[1]):
            final[1][state, np.arange(len(lanes))] = 0
    return table._replace(arcs=arcs, final=final)


def _lane_weights(form: Form, count: int, value: float) -> Weights:
    """Rows of weights, all 0 or all 1, as `cpu_numbers.weights` makes them; in memory that begins at a line."""
    width = width_of(form)
    size = count * width * DOUBLE.itemsize
    mantissas = aligned_bytes(size).view(np.float64).reshape(count, width)
    mantissas.fill(value)
    if not is_wide(form):
        return mantissas, _no_exponents(width)
    exponents = aligned_bytes(size).view(np.int64).reshape(count, width)
    exponents.fill(0 if value else ZERO)
    return mantissas, exponents


@lru_cache
def _no_exponents(width: int) -> Integers:
    return np.empty((0, width), np.int64)
