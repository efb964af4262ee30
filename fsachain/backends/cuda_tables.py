"""Tables as the CUDA kernels read them: states dealt over shares, arcs in units and slices; `layout.cuh` has the terms.

Layouts are made for several tables at once, of any number of shares each, because numpy takes as long for one small table as
for dozens. What is made of a table does not depend on the others, nor on the kind of number in which the kernels compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.backends.cuda_layout import SIZES, Layout, split
from fsachain.backends.cuda_units import (
    FIELDS,
    PART,
    Direction,
    Floats,
    Integers,
    Places,
    Units,
    direction_of,
    make_units,
    slices_of,
    starts_of,
)
from fsachain.recursion import log_sum_rows
from fsachain.table import TransitionTable


class Division(NamedTuple):
    """How tables are divided.

    Attributes:
        shares: of each table.
        slice: units of a slice, 32 or 1.
        longest: arcs of a unit at most.
    """

    shares: tuple[int, ...]
    slice: int
    longest: int


class _Arcs(NamedTuple):
    """All arcs of all tables by destination, states in their new numbers; `run` numbers (destination, column)."""

    src: Integers
    dst: Integers
    column: Integers
    log_prob: Floats
    run: Integers


def lay_out(tables: Sequence[TransitionTable], division: Division) -> list[Layout]:
    """The layout of each table."""
    num_states = np.array([table.num_states for table in tables], dtype=np.int64)
    first_state = starts_of(num_states)
    order, share_states = _deal(tables, division, first_state)
    arcs = _arcs(tables, first_state, order)
    share_of = np.repeat(np.arange(len(share_states)), share_states)
    table_of_share = np.repeat(np.arange(len(tables)), division.shares)
    places = Places(share_of, share_states, table_of_share, first_state)
    init = np.concatenate([table.leak_target for table in tables])[order]
    tail = arcs.src - first_state[table_of_share[share_of[arcs.dst]]]
    units = make_units(arcs.dst, arcs.run, tail, arcs.log_prob, division.longest, places)
    forward, position, pairs, entries = _forward(arcs, units, init, places, division)
    # `position`: row of each run over all tables; the backward pass counts within the table.
    table_of_run = table_of_share[share_of[arcs.dst[entries]]]
    rows = np.bincount(table_of_share, forward.fields[:, FIELDS["pair_rows"]], len(tables)).astype(np.int64)
    local = position - starts_of(rows)[table_of_run]
    by_src = np.argsort(arcs.src, kind="stable")
    tail = arcs.src[by_src]
    units = make_units(tail, tail, local[arcs.run[by_src]], arcs.log_prob[by_src], division.longest, places)
    backward = _backward(units, init, forward.fields, places, division)
    ends, pairs_by_column = _by_column(tables, arcs.column[entries], table_of_run, local)
    counted = {
        "shares": np.array(division.shares),
        "states": num_states,
        "pairs": rows,
        "columns": np.array([len(table.active_pdfs) for table in tables]),
        "filled_pairs": np.bincount(table_of_run, minlength=len(tables)),
    }
    together = Layout(
        forward,
        backward,
        pairs,
        np.concatenate([table.active_pdfs for table in tables]).astype(np.int32),
        ends,
        pairs_by_column,
        _vectors(tables, order, init, first_state),
        _sizes(forward, backward, counted),
    )
    return split(together)


def _by_column(
    tables: Sequence[TransitionTable], column: Integers, table: Integers, local: Integers
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """`Layout.column_ends` and `Layout.pairs_by_column` of pairs, given the column, the table and the row of each."""
    columns = np.array([len(table.active_pdfs) for table in tables])
    over_all = starts_of(columns)[table] + column
    order = np.lexsort((local, over_all))
    counts = np.bincount(table, minlength=len(tables))
    in_column = np.bincount(over_all, minlength=int(columns.sum()))
    ends = np.cumsum(in_column) - np.repeat(starts_of(counts), columns)
    return ends.astype(np.int32), local[order].astype(np.int32)


def _vectors(
    tables: Sequence[TransitionTable], order: Integers, init: Floats, first_state: Integers
) -> Floats:
    """`Layout.vectors`."""
    initial = np.concatenate([table.initial_log_prob for table in tables])[order]
    final = np.concatenate([table.final_log_prob for table in tables])[order]
    bounds = np.append(first_state, len(order))
    sums = log_sum_rows(initial, bounds), log_sum_rows(init + final, bounds)
    pieces: list[Floats] = []
    for number, (begin, end) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        pieces += [
            initial[begin:end],
            final[begin:end],
            sums[0][number : number + 1],
            sums[1][number : number + 1],
        ]
    return np.concatenate(pieces)


def _sizes(forward: Direction, backward: Direction, counted: dict[str, Integers]) -> Integers:
    """`Layout.sizes` of all tables, beside what is `counted` already: the largest and the sums over shares."""
    first_share = starts_of(counted["shares"])
    largest = {
        "own_states": forward.fields[:, FIELDS["share_states"]],
        "own_pairs": forward.fields[:, FIELDS["pair_rows"]],
        "forward_arcs": forward.fields[:, FIELDS["arcs"]],
        "backward_arcs": backward.fields[:, FIELDS["arcs"]],
        "forward_parts": forward.parts,
        "backward_parts": backward.parts,
    }
    sums = {"all_forward_parts": forward.parts, "all_backward_parts": backward.parts}
    counted = counted | {name: np.maximum.reduceat(values, first_share) for name, values in largest.items()}
    counted |= {name: np.add.reduceat(values, first_share) for name, values in sums.items()}
    return np.stack([counted[name] for name in SIZES], axis=1).astype(np.int64)


def _deal(
    tables: Sequence[TransitionTable], division: Division, first_state: Integers
) -> tuple[Integers, Integers]:
    """Old state of each new one, share after share, and the states of each share: like cards, the heaviest first."""
    orders, counts = [], []
    for table, shares, first in zip(tables, division.shares, first_state, strict=True):
        states = np.arange(table.num_states)
        if shares > 1:
            weight = np.diff(table.by_dst.offsets) + np.diff(table.by_src.offsets)
            turn = np.empty_like(states)
            turn[np.argsort(-weight, kind="stable")] = states
            lap, card = np.divmod(turn, shares)
            share = np.where(lap % 2 == 0, card, shares - 1 - card)
            states = np.lexsort((states, share))
            counts.append(np.bincount(share, minlength=shares))
        else:
            counts.append(np.array([table.num_states]))
        orders.append(states + first)
    return np.concatenate(orders).astype(np.int64), np.concatenate(counts).astype(np.int64)


def _arcs(tables: Sequence[TransitionTable], first_state: Integers, order: Integers) -> _Arcs:
    new = np.empty_like(order)
    new[order] = np.arange(len(order))
    views = [table.by_dst for table in tables]
    counts = [len(view.arc) for view in views]
    shift = np.repeat(first_state, counts)
    src = new[np.concatenate([view.src for view in views]) + shift]
    dst = new[np.concatenate([view.dst for view in views]) + shift]
    column = np.concatenate([view.column for view in views]).astype(np.int64)
    log_prob = np.concatenate([view.log_prob for view in views])
    # By destination, then by column, then as they stand.
    sort = np.argsort(dst * (int(column.max(initial=0)) + 1) + column, kind="stable")
    src, dst, column, log_prob = src[sort], dst[sort], column[sort], log_prob[sort]
    begins = np.ones(len(src), dtype=bool)
    begins[1:] = (dst[1:] != dst[:-1]) | (column[1:] != column[:-1])
    return _Arcs(src, dst, column, log_prob, np.cumsum(begins) - 1)


def _forward(
    arcs: _Arcs, units: Units, init: Floats, places: Places, division: Division
) -> tuple[Direction, Integers, npt.NDArray[np.int32], Integers]:
    """The arcs by destination; the row of each run over all tables; `Layout.pairs`; and the first arc of each run."""
    slices = slices_of(units, division.slice, len(places.share_states))
    made, first_pair, _ = direction_of(units, slices, places, division.slice)
    closing = np.flatnonzero(units.run >= 0)
    unit = units.unit[closing]
    before = np.searchsorted(unit, unit)  # flattened, units are in order
    rank = np.arange(len(closing)) - before
    position = np.empty(len(closing), dtype=np.int64)
    position[units.run[closing]] = first_pair[slices.slice[unit]] + rank * division.slice + slices.slot[unit]
    first = np.searchsorted(arcs.run, np.arange(len(closing)))
    leak = log_sum_rows(arcs.log_prob + init[arcs.src], np.append(first, len(arcs.run)))
    rows = int(made.fields[:, FIELDS["pair_rows"]].sum())
    pairs = np.full((rows, 2), -1, dtype=np.int32)
    table = places.table_of_share[places.share_of[arcs.dst[first]]]
    pairs[position] = np.stack([arcs.column[first], arcs.dst[first] - places.first_state[table]], axis=1)
    log_r = np.full(rows, -np.inf)
    log_r[position] = leak
    made.fields[:, FIELDS["first_entry"]] = made.fields[:, FIELDS["first_pair"]]
    made.fields[:, FIELDS["entries"]] = made.fields[:, FIELDS["pair_rows"]]
    return _with_entries(made, np.maximum(pairs[:, 0], 0), log_r), position, pairs, first


def _backward(
    units: Units, init: Floats, forward_fields: Integers, places: Places, division: Division
) -> Direction:
    slices = slices_of(units, division.slice, len(places.share_states))
    made, _, slot = direction_of(units, slices, places, division.slice)
    for name in ("first_pair", "pair_rows", "pair_base"):
        made.fields[:, FIELDS[name]] = forward_fields[:, FIELDS[name]]
    made.fields[:, FIELDS["first_entry"]] = made.fields[:, FIELDS["first_unit"]]
    made.fields[:, FIELDS["entries"]] = made.fields[:, FIELDS["units"]]
    log_init = np.full(len(made.units), -np.inf)
    summed = units.level != PART
    log_init[slot[summed]] = init[units.state[summed]]
    return _with_entries(made, np.maximum(made.units[:, 0], 0), log_init)


def _with_entries(made: Direction, index: npt.NDArray[np.int32], log: Floats) -> Direction:
    return replace(made, entry_index=np.ascontiguousarray(index), entry_log=log)
