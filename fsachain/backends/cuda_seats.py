"""What the CUDA backend keeps of tables and batches: layouts and seats on the host, and their arrays on each device.

What can be made of a table alone is kept with it, so that a batch of tables that have been seen before, in whatever
composition, costs no more than putting their arrays one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from fsachain.backends.cuda_device import Device, Limits
from fsachain.backends.cuda_inputs import Tables
from fsachain.backends.cuda_layout import Layout, join_fields
from fsachain.backends.cuda_numbers import Reach, encode, least_plain_total, reach_of
from fsachain.backends.cuda_place import LOG, PLAIN, WIDE, Place, Seat, arc_bytes, shared_bytes
from fsachain.backends.cuda_plan import in_memory, own_on_chip, seat_of_shared
from fsachain.backends.cuda_tables import Division, lay_out
from fsachain.backends.cuda_units import Integers
from fsachain.batch import TableBatch
from fsachain.table import TransitionTable

_kept: WeakKeyDictionary[Any, dict[Hashable, Any]] = WeakKeyDictionary()
_lock = Lock()


class Member(NamedTuple):
    """A seat with the sequences that sit there.

    Attributes:
        seat: where.
        which: the numbers of the sequences.
        rows: the number of each one's table in the seat; None: it has one table.
        exponents: the tables' arcs have them.
    """

    seat: Seat
    which: Integers
    rows: Integers | None
    exponents: bool


class Facts(NamedTuple):
    """What follows from tables and leak alone: `Reach.powers` [1] or of each sequence, and `least_plain_total`."""

    reach: Integers
    least_total: float | None


def owner_of(batch: TableBatch) -> Any:
    """What the arrays of a batch belong to: the table that all share, which other batches may use, or the batch."""
    return batch.tables[0] if batch.is_shared else batch


def facts_of(batch: TableBatch, leaky: float) -> Facts:
    """The facts of a batch, kept with its owner."""

    def make() -> Facts:
        least = least_plain_total(batch.tables[0], leaky) if batch.is_shared else None
        return Facts(np.array([reach.powers for reach in _reaches(batch.tables, leaky)]), least)

    facts: Facts = _keep(owner_of(batch), ("facts", leaky), make)
    return facts


def members_of(batch: TableBatch, limits: Limits, kind: int) -> list[Member]:
    """The seats of a batch for one kind of number; those of shared tables are kept with the table, others with the batch."""
    if not batch.is_shared:
        members: list[Member] = _keep(batch, (limits, kind), lambda: _own_members(batch, limits, kind))
        return members

    def shared() -> tuple[Seat, bool]:
        exponents = kind == WIDE and not _reaches(batch.tables, 0.0)[0].is_compact
        return seat_of_shared(batch.tables[0], limits, kind, arc_bytes(kind, exponents)), exponents

    seat, exponents = _keep(owner_of(batch), (limits, kind), shared)
    return [Member(seat, np.arange(batch.size), None, exponents)]


class _Own(NamedTuple):
    """The different tables of a packed batch, the number of each sequence's, and what decides on their places."""

    tables: list[TransitionTable]
    table_of: Integers
    place: Place
    sizes: Integers
    is_compact: npt.NDArray[np.bool_]


def _own_tables(batch: TableBatch) -> _Own:
    def make() -> _Own:
        numbers = {table: number for number, table in enumerate(dict.fromkeys(batch.tables))}
        tables = list(numbers)
        place, division = own_on_chip(tables)
        sizes = np.stack([layout.sizes for layout in _layouts(tables, division)])
        compact = np.array([reach.is_compact for reach in _reaches(tables, 0.0)])
        return _Own(tables, np.array([numbers[table] for table in batch.tables]), place, sizes, compact)

    own: _Own = _keep(batch, "own", make)
    return own


def _own_members(batch: TableBatch, limits: Limits, kind: int) -> list[Member]:
    """On chip what fits; a table's place and its arcs' form never depend on the others."""
    own = _own_tables(batch)
    exponents = ~own.is_compact if kind == WIDE else np.zeros_like(own.is_compact)
    arc = np.where(exponents, arc_bytes(kind, True), arc_bytes(kind, False))
    fits = shared_bytes(own.sizes, own.place, kind, arc, 1) <= limits.shared_bytes
    members = []
    for on_chip, with_exponents in ((True, False), (True, True), (False, False), (False, True)):
        chosen = (fits == on_chip) & (exponents == with_exponents)
        if chosen.any():
            seat = _own_seat(batch, own.tables, chosen, on_chip)
            which = np.flatnonzero(chosen[own.table_of])
            rows = (np.cumsum(chosen) - 1)[own.table_of[which]]
            members.append(Member(seat, which, rows, with_exponents))
    return members


def _own_seat(
    batch: TableBatch, tables: list[TransitionTable], chosen: npt.NDArray[np.bool_], on_chip: bool
) -> Seat:
    """The seat of the `chosen` tables, the same one for all kinds of number that have them there."""

    def make() -> Seat:
        some = [tables[number] for number in np.flatnonzero(chosen)]
        place, division = own_on_chip(some) if on_chip else in_memory(some, 1)
        return Seat(place, tuple(_layouts(some, division)))

    seat: Seat = _keep(batch, ("seat", on_chip, chosen.tobytes()), make)
    return seat


def _layouts(tables: Sequence[TransitionTable], division: Division) -> list[Layout]:
    """The layout of each table, kept with it; those that are not there yet are made together."""

    def make(missing: list[int]) -> list[Layout]:
        shares = tuple(division.shares[number] for number in missing)
        return lay_out([tables[number] for number in missing], division._replace(shares=shares))

    keys = [("layout", shares, division.slice, division.longest) for shares in division.shares]
    return _keep_each(tables, keys, make)


def _reaches(tables: Sequence[TransitionTable], leaky: float) -> list[Reach]:
    def make(missing: list[int]) -> list[Reach]:
        return [reach_of(tables[number], leaky) for number in missing]

    return _keep_each(tables, [("reach", leaky)] * len(tables), make)


def _encoded(layouts: Sequence[Layout], kind: int, exponents: bool) -> list[list[npt.NDArray[np.uint8]]]:
    """What `encode` gives, kept with the layouts."""

    def make(missing: list[int]) -> list[list[npt.NDArray[np.uint8]]]:
        return encode(kind, exponents, [layouts[number] for number in missing])

    return _keep_each(layouts, [(kind, exponents)] * len(layouts), make)


def _keep(owner: Any, key: Hashable, make: Callable[[], Any]) -> Any:
    """What `make` gives, made once for `owner`; at worst twice where two threads meet."""
    with _lock:
        kept = _kept.setdefault(owner, {})
        if key in kept:
            return kept[key]
    value = make()
    with _lock:
        return kept.setdefault(key, value)


def _keep_each(
    owners: Sequence[Any], keys: Sequence[Hashable], make: Callable[[list[int]], list[Any]]
) -> list[Any]:
    """As `_keep` for several owners; `make` is told which of them it is for."""
    with _lock:
        places = [_kept.setdefault(owner, {}) for owner in owners]
        found = [place.get(key) for place, key in zip(places, keys, strict=True)]
    missing = [number for number, value in enumerate(found) if value is None]
    if missing:
        values = make(missing)
        with _lock:
            for number, value in zip(missing, values, strict=True):
                found[number] = places[number].setdefault(keys[number], value)
    return found


def place_tables(device: Device, batch: TableBatch) -> None:
    """Put on the device what any later call with this batch reads from there beside its scores and lengths."""
    for kind in (PLAIN, WIDE, LOG):
        if kind == PLAIN and (not batch.is_shared or batch.tables[0].leaky_log_prob is None):
            continue
        for member in members_of(batch, device.limits, kind):
            on_device(device, batch, member, kind)


def on_device(device: Device, batch: TableBatch, member: Member, kind: int) -> Tables:
    """The tables of a member in one kind of number, uploaded on first use."""
    seat, owner = member.seat, owner_of(batch)
    shape = device.resident(owner, ("shape", seat), lambda: _shape(seat.layouts))

    def numbers() -> list[npt.NDArray[Any]]:
        if batch.is_shared:  # nobody else needs them
            return encode(kind, member.exponents, seat.layouts)[0]
        return _columns(_encoded(seat.layouts, kind, member.exponents))

    weights = device.resident(owner, ("numbers", seat, kind, member.exponents), numbers)
    return Tables(
        member.exponents, [*shape[:3], *weights[:2]], [*shape[3:6], *weights[2:4]], weights[4], *shape[6:]
    )


def _shape(layouts: Sequence[Layout]) -> list[npt.NDArray[Any]]:
    """The arrays of tables that are the same in all kinds of number."""
    pairs = [len(layout.pairs) for layout in layouts]
    joined: list[npt.NDArray[Any]] = []
    for directions in zip(*((layout.forward, layout.backward) for layout in layouts), strict=True):
        joined.append(join_fields(directions, pairs))
        joined += _columns([(d.slices, d.units) for d in directions])
    rest = [(layout.pairs, layout.pdfs, layout.pairs_by_column, layout.column_ends) for layout in layouts]
    return [*joined, *_columns(rest)]


def _columns(rows: Sequence[Sequence[npt.NDArray[Any]]]) -> list[npt.NDArray[Any]]:
    """The first arrays of all rows one after another, the second ones, and so on."""
    return [np.concatenate(arrays) for arrays in zip(*rows, strict=True)]
