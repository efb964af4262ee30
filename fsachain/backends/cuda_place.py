"""Places where the recursions run, seats of tables there, and what a block on chip needs; see `place.cuh`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fsachain.backends.cuda_layout import SIZES, Layout
from fsachain.backends.cuda_units import Integers, starts_of

PLAIN, WIDE, LOG = range(3)
VALUE_BYTES = (4, 8, 8)
ENTRY_BYTES = (8, 16, 16)
COMPACT_ARC_BYTES = 8  # of plain weights, and of wide ones without exponents

# The GroupFields of `layout.cuh`.
_NAMES = (
    "shares first_share states pairs columns vectors first_column first_pair_row probs history state work forward_parts "
    "backward_parts own_states own_pairs reach"
)
GROUP_FIELDS = {name: number for number, name in enumerate(_NAMES.split())}


class Place(NamedTuple):
    """Where and how tables of one layout are computed.

    Attributes:
        on_chip: values in shared memory; else in global memory.
        cluster: blocks of a cluster, 1 in memory.
        threads: of a block.
        arcs_on_chip: arcs in shared memory too.
        max_lanes: sequences of a thread at most.
        slice: units of a slice.
    """

    on_chip: bool
    cluster: int
    threads: int
    arcs_on_chip: bool
    max_lanes: int
    slice: int

    def sequences(self, lanes: int) -> int:
        """Sequences of a group whose threads have `lanes` each."""
        return lanes * (32 // self.slice)


@dataclass(frozen=True, eq=False)
class Seat:
    """A place, and the layouts of the tables that are computed there, one after another on the device."""

    place: Place
    layouts: tuple[Layout, ...]

    @cached_property
    def sizes(self) -> Integers:
        """int64 [tables, SIZES]."""
        return np.stack([layout.sizes for layout in self.layouts])

    @cached_property
    def fields(self) -> Integers:
        """int64 [tables, GROUP_FIELDS]: what does not depend on the sequences; 0 for the rest."""
        fields = np.zeros((len(self.sizes), len(GROUP_FIELDS)), dtype=np.int64)

        def put(name: str, values: Integers) -> None:
            fields[:, GROUP_FIELDS[name]] = values

        for name in ("shares", "states", "pairs", "columns", "own_states", "own_pairs"):
            put(name, self.of(name))
        parts = "" if self.place.on_chip else "all_"
        for name in ("forward_parts", "backward_parts"):
            put(name, self.of(parts + name))
        put("first_share", starts_of(self.of("shares")))
        put("vectors", starts_of(2 * self.of("states") + 2))
        put("first_column", starts_of(self.of("columns")))
        put("first_pair_row", starts_of(self.of("filled_pairs")))
        return fields

    @cached_property
    def _rows(self) -> tuple[Integers, Integers]:
        return rows_on_chip(self.sizes, self.place)

    def of(self, name: str) -> Integers:
        """One of the `SIZES`, [tables]."""
        return self.sizes[:, SIZES[name]]

    def shared_bytes(self, kind: int, arc: int, lanes: int) -> int:
        """Shared memory of a block on chip."""
        return int(_shared_bytes(self.sizes, self._rows, self.place, kind, arc, lanes).max())


def arc_bytes(kind: int, exponents: bool) -> int:
    """Bytes of an arc in this kind of number."""
    return ENTRY_BYTES[LOG] if kind == LOG or (kind == WIDE and exponents) else COMPACT_ARC_BYTES


def rows_on_chip(sizes: Integers, place: Place) -> tuple[Integers, Integers]:
    """Rows of values that a block holds in the forward and in the backward pass, [tables]; see the two kernels.

    Each array begins at a multiple of 16 bytes; the few bytes between them are allowed for in `shared_bytes`.
    """

    def of(name: str) -> Integers:
        return sizes[:, SIZES[name]]

    both = 2 * of("columns") + 2 * place.cluster * (place.threads // 32)
    forward = 2 * of("states") + of("forward_parts")
    backward = of("pairs") + of("own_states") + of("own_pairs") + of("backward_parts")
    return forward + both, backward + both


def shared_bytes(sizes: Integers, place: Place, kind: int, arc: Any, lanes: int) -> Integers:
    """Shared memory that a block on chip needs for the larger of its two passes, [tables].

    Args:
        sizes: int64 [tables, SIZES].
        place: where.
        kind: of number.
        arc: bytes of an arc, of all tables or of each.
        lanes: sequences of a thread.
    """
    return _shared_bytes(sizes, rows_on_chip(sizes, place), place, kind, arc, lanes)


def _shared_bytes(
    sizes: Integers, rows: tuple[Integers, Integers], place: Place, kind: int, arc: Any, lanes: int
) -> Integers:
    arrays, row = 8 * 16, VALUE_BYTES[kind] * lanes
    needed = [rows[0] * row + arrays, rows[1] * row + arrays]
    if place.arcs_on_chip:
        needed = [
            bytes_ + sizes[:, SIZES[name]] * arc
            for bytes_, name in zip(needed, ("forward_arcs", "backward_arcs"), strict=True)
        ]
    return np.maximum(*needed)
