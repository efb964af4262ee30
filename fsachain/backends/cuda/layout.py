"""What a table looks like to the CUDA kernels; `layout.cuh` has the terms, `cuda_tables` makes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.recursion import log_sum_rows
from fsachain.table import TransitionTable

# Arcs of shares in units and slices, in one direction; `layout.cuh` has the terms.

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

WHOLE, PART, SPLIT = range(3)
_ENDS_PAIR = np.int64(-(2**31))


@dataclass(frozen=True)
class Direction:
    """Arcs by destination (forward) or by source (backward), all shares one after another.

    Attributes:
        fields: int64 [shares, 16], the `ShareField`s.
        slices: int32 [slices, 4].
        units: int32 [units, 2].
        arc_index: int32 [arcs]; arc_log: float64 [arcs], log weights; partials have weight one.
        entry_index: int32, entry_log: float64: of each pair row its column and log r (forward), r = sum of w init(src); of
            each unit log init of its state (backward).
        parts: int64 [shares], partial sums of each.
    """

    fields: Integers
    slices: npt.NDArray[np.int32]
    units: npt.NDArray[np.int32]
    arc_index: npt.NDArray[np.int32]
    arc_log: Floats
    entry_index: npt.NDArray[np.int32]
    entry_log: Floats
    parts: Integers


class Places(NamedTuple):
    """share_of: share of each state; share_states: states of each share; table_of_share; first_state of each table."""

    share_of: Integers
    share_states: Integers
    table_of_share: Integers
    first_state: Integers


class Units(NamedTuple):
    """Units and what stands in them, unit after unit.

    share, level, row, state, length, pairs: [units]. unit, target, log, run: of each arc or partial; run is that of the
    pair it ends, else -1.
    """

    share: Integers
    level: Integers
    row: Integers
    state: Integers
    length: Integers
    pairs: Integers
    unit: Integers
    target: Integers
    log: Floats
    run: Integers


def starts_of(counts: Any) -> Integers:
    """Where each of consecutive pieces begins."""
    return np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)


def make_units(
    key: Integers, run: Integers, index: Integers, log: Floats, longest: int, places: Places
) -> Units:
    """Units of arcs that are sorted by `key`, their state, and within it by run."""
    states = len(places.share_of)
    degree = np.bincount(key, minlength=states)
    split = (degree > longest)[key]
    new_run = np.ones(len(key), dtype=bool)
    new_run[1:] = run[1:] != run[:-1]
    within = np.arange(len(key)) - np.flatnonzero(new_run)[np.cumsum(new_run) - 1]
    new_key = np.ones(len(key), dtype=bool)
    new_key[1:] = key[1:] != key[:-1]
    begins = np.where(split, within % longest == 0, new_key)
    ends_run = np.append(new_run[1:], True)[: len(key)]
    first = np.flatnonzero(begins)
    unit = np.cumsum(begins) - 1
    length = np.diff(np.append(first, len(key)))
    state, level = key[first], np.where(split[first], PART, WHOLE)
    # A part's row is the number of its sum within the share, a state's the number of the state within the table.
    parts = np.flatnonzero(level == PART)
    share = places.share_of[state]
    partial = np.arange(len(parts)) - np.searchsorted(share[parts], share[parts])
    row = state - places.first_state[places.table_of_share[share]]
    row[parts] = partial
    # The second level: partials are the arcs, and the last part of a run ends a pair.
    last = first[parts] + length[parts] - 1
    split_states, split_unit = np.unique(state[parts], return_inverse=True)
    empty = np.flatnonzero(degree == 0)
    more = np.concatenate([split_states, empty])
    more_share = places.share_of[more]
    lengths = np.concatenate(
        [length, np.bincount(split_unit, minlength=len(split_states)), np.zeros_like(empty)]
    )
    closes = np.concatenate(
        [np.where(ends_run & ~split, run, -1), np.where(ends_run[last], run[last], -1)]
    ).astype(np.int64)
    owner = np.concatenate([unit, len(first) + split_unit])
    return Units(
        share=np.concatenate([share, more_share]),
        level=np.concatenate([level, np.full(len(split_states), SPLIT), np.full(len(empty), WHOLE)]),
        row=np.concatenate([row, more - places.first_state[places.table_of_share[more_share]]]),
        state=np.concatenate([state, more]),
        length=lengths,
        pairs=np.bincount(owner[closes >= 0], minlength=len(lengths)),
        unit=owner,
        target=np.concatenate([index, partial]),
        log=np.concatenate([log, np.zeros(len(parts))]),
        run=closes,
    )


_NAMES_cuda_units = (
    "whole_slices part_slices split_slices first_slice first_unit units first_arc arcs first_entry entries first_pair "
    "pair_rows pair_base state_base share_states partial_base"
)
FIELDS = {name: number for number, name in enumerate(_NAMES_cuda_units.split())}


class Slices(NamedTuple):
    """Where units stand. slice, slot: [units]; first, length, pairs, share: [slices]; counts: [shares, levels]."""

    slice: Integers
    slot: Integers
    length: Integers
    pairs: Integers
    share: Integers
    counts: Integers


def slices_of(units: Units, width: int, num_shares: int) -> Slices:
    """Units of each share and level, the longest first, in slices of `width`."""
    order = np.lexsort((np.arange(len(units.share)), -units.pairs, -units.length, units.level, units.share))
    group = units.share * 3 + units.level
    sizes = np.bincount(group, minlength=3 * num_shares)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order)) - np.repeat(starts_of(sizes), sizes)
    in_group = -(-sizes // width)
    number = starts_of(in_group)[group] + rank // width
    total = int(in_group.sum())
    length, pairs = np.zeros((2, total), dtype=np.int64)
    np.maximum.at(length, number, units.length)
    np.maximum.at(pairs, number, units.pairs)
    share = np.repeat(np.arange(3 * num_shares) // 3, in_group)
    return Slices(number, rank % width, length, pairs, share, in_group.reshape(num_shares, 3))


def _fields(units: Units, slices: Slices, places: Places, width: int) -> tuple[Integers, Integers]:
    """`Direction.fields` but for those of the entries, and `Direction.parts`."""
    num_shares = len(places.share_states)
    per_share = slices.counts.sum(axis=1)
    fields = np.zeros((num_shares, len(FIELDS)), dtype=np.int64)

    def put(name: str, values: Any) -> None:
        fields[:, FIELDS[name]] = values

    for level, name in enumerate(("whole_slices", "part_slices", "split_slices")):
        put(name, slices.counts[:, level])
    put("first_slice", starts_of(per_share))
    put("units", per_share * width)
    put("first_unit", starts_of(per_share * width))
    for name, counted, values in (
        ("arcs", "first_arc", slices.length),
        ("pair_rows", "first_pair", slices.pairs),
    ):
        of_share = np.bincount(slices.share, values * width, num_shares).astype(np.int64)
        put(name, of_share)
        put(counted, starts_of(of_share))
    put("share_states", places.share_states)
    parts = np.bincount(units.share[units.level == PART], minlength=num_shares)
    first_of_table = np.searchsorted(places.table_of_share, places.table_of_share)
    for name, counts in (
        ("pair_base", fields[:, FIELDS["pair_rows"]]),
        ("state_base", places.share_states),
        ("partial_base", parts),
    ):
        starts = starts_of(counts)
        put(name, starts - starts[first_of_table])
    return fields, parts


def direction_of(
    units: Units, slices: Slices, places: Places, width: int
) -> tuple[Direction, Integers, Integers]:
    """All but the entries; and the first pair row of each slice, over all tables, and the slot of each unit."""
    fields, parts = _fields(units, slices, places, width)
    first_arc, first_pair = starts_of(slices.length * width), starts_of(slices.pairs * width)

    def within(first: Integers, name: str) -> Integers:
        return first - fields[slices.share, FIELDS[name]]

    slot = slices.slice * width + slices.slot
    unit_rows = np.tile(np.array([[-1, 0]], dtype=np.int32), (len(slices.length) * width, 1))
    unit_rows[slot, 0], unit_rows[slot, 1] = units.row, units.length
    first_entry = starts_of(np.bincount(units.unit, minlength=len(units.length)))
    # Arcs of the first level stand in the order of their units, those of the second behind them.
    k = np.arange(len(units.unit)) - first_entry[units.unit]
    where = first_arc[slices.slice[units.unit]] + k * width + slices.slot[units.unit]
    total = int((slices.length * width).sum())
    arc_index, arc_log = np.zeros(total, dtype=np.int32), np.full(total, -np.inf)
    arc_index[where] = np.where(units.run >= 0, units.target + _ENDS_PAIR, units.target)
    arc_log[where] = units.log
    first_unit = np.arange(len(slices.length)) * width
    rows = np.stack(
        [
            within(first_arc, "first_arc"),
            slices.length,
            within(first_unit, "first_unit"),
            within(first_pair, "first_pair"),
        ],
        axis=1,
    )
    nothing: Any = np.empty(0, dtype=np.int32)
    made = Direction(
        fields, rows.astype(np.int32), unit_rows, arc_index, arc_log, nothing, np.empty(0), parts
    )
    return made, first_pair, slot


# Of a table: its shares, states, rows of pairs, active pdfs, and pairs without holes; the states, rows of pairs, arcs and
# partial sums of the share with most of them, the arcs and partial sums in either direction; the partial sums of all shares.
_NAMES = (
    "shares states pairs columns filled_pairs own_states own_pairs forward_arcs backward_arcs forward_parts backward_parts "
    "all_forward_parts all_backward_parts"
)
SIZES = {name: number for number, name in enumerate(_NAMES.split())}


@dataclass(frozen=True, eq=False)
class Layout:
    """A table, laid out.

    Attributes:
        forward, backward: the arcs.
        pairs: int32 [pair rows, 2], column and destination, -1 for holes.
        pdfs: int32, the active pdfs.
        column_ends: int32, where each column's pairs end in `pairs_by_column`.
        pairs_by_column: int32, rows of pairs.
        vectors: float64 [2 S + 2], logs: initial and final by the new numbers of the states, the sum of initial, and the sum
            of init final.
        sizes: int64, see `SIZES`.
    """

    forward: Direction
    backward: Direction
    pairs: npt.NDArray[np.int32]
    pdfs: npt.NDArray[np.int32]
    column_ends: npt.NDArray[np.int32]
    pairs_by_column: npt.NDArray[np.int32]
    vectors: Floats
    sizes: Integers


def split(together: Layout) -> list[Layout]:
    """The layouts of several tables that stand one after another; `together.sizes` is [tables, SIZES]."""
    sizes = together.sizes

    def pieces(values: npt.NDArray[Any], counts: Any) -> list[npt.NDArray[Any]]:
        # Copies, since a view would keep what belongs to all tables as long as one of them.
        ends = np.cumsum(counts).tolist()
        return [values[end - count : end].copy() for end, count in zip(ends, counts.tolist(), strict=True)]

    columns, pairs, filled = (sizes[:, SIZES[name]] for name in ("columns", "pairs", "filled_pairs"))
    parts = zip(
        _split_direction(together.forward, sizes),
        _split_direction(together.backward, sizes),
        pieces(together.pairs, pairs),
        pieces(together.pdfs, columns),
        pieces(together.column_ends, columns),
        pieces(together.pairs_by_column, filled),
        pieces(together.vectors, 2 * sizes[:, SIZES["states"]] + 2),
        [row.copy() for row in sizes],
        strict=True,
    )
    return [Layout(*part) for part in parts]


# What a share's arrays are, and the field that says where they begin.
_BEGINS = {
    "slices": "first_slice",
    "units": "first_unit",
    "arc_index": "first_arc",
    "arc_log": "first_arc",
    "entry_index": "first_entry",
    "entry_log": "first_entry",
}
_FIRSTS = [FIELDS[name] for name in ("first_slice", "first_unit", "first_arc", "first_entry", "first_pair")]


def _split_direction(together: Direction, sizes: Integers) -> list[Direction]:
    shares = sizes[:, SIZES["shares"]].tolist()
    ends = np.cumsum(shares).tolist()
    begins = [end - count for end, count in zip(ends, shares, strict=True)]
    cuts = {}
    for name, field in _BEGINS.items():
        values = getattr(together, name)
        at = [*together.fields[begins, FIELDS[field]].tolist(), len(values)]
        cuts[name] = [values[at[i] : at[i + 1]].copy() for i in range(len(shares))]
    result = []
    for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        fields = together.fields[begin:end].copy()
        fields[:, _FIRSTS] -= fields[0, _FIRSTS]
        arrays = {name: pieces[number] for name, pieces in cuts.items()}
        result.append(Direction(fields, **arrays, parts=together.parts[begin:end].copy()))
    return result


def join_fields(directions: Sequence[Direction], pairs: Sequence[int]) -> Integers:
    """`Direction.fields` of tables whose arrays stand one after another; `pairs`: the rows of pairs of each."""
    fields = np.concatenate([direction.fields for direction in directions])
    counts = [
        (len(d.slices), len(d.units), len(d.arc_index), len(d.entry_index), rows)
        for d, rows in zip(directions, pairs, strict=True)
    ]
    ends = np.cumsum(counts, axis=0)
    shares = [len(direction.fields) for direction in directions]
    fields[:, _FIRSTS] += np.repeat(ends - counts, shares, axis=0)
    return fields


# Tables as the CUDA kernels read them: states dealt over shares, arcs in units and slices; `layout.cuh` has
# the terms.
#
# Layouts are made for several tables at once, of any number of shares each, because numpy takes as long for
# one small table as for dozens. What is made of a table does not depend on the others, nor on the kind of
# number in which the kernels compute.


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
