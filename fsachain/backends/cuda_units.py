"""Arcs of shares in units and slices, in one direction; `layout.cuh` has the terms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

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


_NAMES = (
    "whole_slices part_slices split_slices first_slice first_unit units first_arc arcs first_entry entries first_pair "
    "pair_rows pair_base state_base share_states partial_base"
)
FIELDS = {name: number for number, name in enumerate(_NAMES.split())}


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
