"""One kind of number for the sequences of one seat: the launches of the forward and of the backward pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from fsachain.backends.cuda.device import (
    C_TYPES,
    Argument,
    Device,
    DeviceArray,
    KernelSpec,
    Limits,
    Memory,
    element,
    place_of,
)
from fsachain.backends.cuda.layout import Division, Integers, Layout, join_fields, lay_out
from fsachain.backends.cuda.plan import (
    LOG,
    MEMORY_THREADS,
    PLAIN,
    RESIDENT_BLOCKS,
    VALUE_BYTES,
    WIDE,
    Groups,
    Place,
    Reach,
    Seat,
    arc_bytes,
    encode,
    in_memory,
    least_plain_total,
    own_on_chip,
    reach_of,
    seat_of_shared,
    shared_bytes,
)
from fsachain.batch import TableBatch
from fsachain.table import TransitionTable

# What the launches of a call read: tables, lanes and scores on the device.


@dataclass(frozen=True)
class Tables:
    """What a seat's layout looks like on the device, in one kind of number.

    Attributes:
        exponents: the arcs have them.
        forward, backward: fields, slices, units, arcs and entries of `layout.cuh`.
        vectors, pairs, pdfs, pairs_by_column, column_ends: as in `Layout`.
    """

    exponents: bool
    forward: list[Memory]
    backward: list[Memory]
    vectors: Memory
    pairs: Memory
    pdfs: Memory
    pairs_by_column: Memory
    column_ends: Memory


@dataclass(frozen=True)
class Call:
    """What all kinds of a call share. leaky: c. kinds: int32 [N] on the device. log_prob, ok: the results."""

    device: Device
    scores: DeviceArray
    leaky: float
    kinds: Memory
    log_prob: Memory
    ok: Memory


class LaneMemory(NamedTuple):
    """`Groups` on the device, its fields for windows of `Run.frames`."""

    directory: Memory
    sequences: Memory
    lengths: Memory


RECURSIONS, FRAMES = "forward_backward.cu", "frames.cu"
THREADS = 256
TILE = 32  # of frames.cu
NULL = np.uint64(0)


@dataclass
class Run:
    """A kind of number, a seat and its groups.

    Attributes:
        lanes: sequences of a thread.
        counters: memory and the byte in it where those of this run begin, a uint32 for each group.
        shared_bytes: of a block on chip.
        frames: of a window.
        least_total: see `cuda_numbers.least_plain_total`; 0 for other kinds.
        checkpoints: states at the beginnings of the windows, the last window's end behind them, once `forward` has run.
    """

    call: Call
    kind: int
    seat: Seat
    lanes: int
    groups: Groups
    tables: Tables
    on_lanes: LaneMemory
    counters: tuple[Memory, int]
    frames: int
    least_total: float
    num_frames: int
    shared_bytes: int
    checkpoints: list[Memory] = field(default_factory=list)
    history: Memory | None = None
    _memory: dict[str, Memory] = field(default_factory=dict)

    def prepare(self, first_kinds: Memory, size: int, counters: Memory, num_counters: int) -> None:
        """Set `kinds` of a batch of `size` and the counters of all runs; once before any of them starts."""
        self.call.device.launch(
            self._recursion("prepare"),
            -(-max(size, num_counters) // THREADS),
            THREADS,
            0,
            [first_kinds, self.call.kinds, np.int32(size), counters, np.int32(num_counters)],
        )

    def forward(self, keep: bool) -> None:
        """log Z of the sequences of this kind; `keep`: the last window's history and the states before all windows."""
        self.checkpoints, states = [], [self._state(), self._state()]
        begins = self._windows()
        for number, begin in enumerate(begins):
            before = states[number % 2] if number else None
            after = states[(number + 1) % 2]
            if keep and number:
                self.checkpoints.append(states[number % 2])
                states[(number + 1) % 2] = after = self._state()
            last = number == len(begins) - 1
            if keep and last:
                self.history = self._empty("history")
            self._read(begin)
            self._forward(begin, before, after, self.history if keep and last else None)
        self._finish(states[len(begins) % 2])

    def backward(self, weights: Memory, out: DeviceArray) -> None:
        """Add weights [N] x occupancy of the sequences of this kind to `out`; `forward` has run with `keep`."""
        begins = self._windows()
        betas: list[Memory] = []
        if len(begins) > 1:
            betas = [self._state(), self._state()]
        for number in reversed(range(len(begins))):
            last = number == len(begins) - 1
            if not last:
                self._read(begins[number])
                before = self.checkpoints[number - 1] if number else None
                self._forward(begins[number], before, None, self.history)
            after = None if last else betas[(number + 1) % 2]
            before = betas[number % 2] if number else None
            self._backward(begins[number], after, before)
            self._write(begins[number], weights, out)
        self.release()

    def release(self) -> None:
        """Give back all memory that only this run uses."""
        self.checkpoints, self.history = [], None
        self._memory.clear()

    def _windows(self) -> list[int]:
        """Where the windows begin; one without frames where no sequence has any."""
        return list(range(0, max(self.num_frames, 1), self.frames))

    def _end(self, begin: int) -> np.int32:
        return np.int32(min(begin + self.frames, self.num_frames))

    def _empty(self, name: str) -> Memory:
        """Memory for all groups, the same one at each call."""
        if name not in self._memory:
            frames = self.frames if name in ("probs", "history") else 1
            count = self.groups.sizes[name] * frames * VALUE_BYTES[self.kind]
            self._memory[name] = self.call.device.empty(count)
        return self._memory[name]

    def _scratch(self, name: str, num_bytes: int) -> Memory:
        if name not in self._memory:
            self._memory[name] = self.call.device.empty(num_bytes)
        return self._memory[name]

    def _state(self) -> Memory:
        return self.call.device.empty(self.groups.sizes["state"] * VALUE_BYTES[self.kind])

    @property
    def _num_lanes(self) -> int:
        return len(self.groups.sequences)

    def _defines(self) -> tuple[tuple[str, int | str], ...]:
        return ("KIND", self.kind), ("LANES", self.lanes), ("SLICE", self.seat.place.slice)

    def _recursion(self, name: str) -> KernelSpec:
        place = self.seat.place
        defines = (
            *self._defines(),
            ("LEAK", int(self.call.leaky > 0.0)),
            ("PLACE", int(not place.on_chip)),
            ("CLUSTER", place.cluster),
            ("ARCS_ON_CHIP", int(place.arcs_on_chip)),
            ("THREADS", place.threads),
            ("EXPONENTS", int(self.tables.exponents)),
        )
        waits = name in ("forward", "backward")
        return KernelSpec(RECURSIONS, name, defines, cluster=place.cluster if waits else 1)

    def _lanes_arguments(self) -> list[Argument]:
        return [self.on_lanes.sequences, self.on_lanes.lengths, self.call.kinds]

    def _log_leak(self) -> np.float64:
        return np.float64(math.log(self.call.leaky) if self.call.leaky > 0.0 else -math.inf)

    def _read(self, begin: int) -> None:
        frames = int(self._end(begin)) - begin
        tiles = -(-frames // (TILE // self.seat.place.sequences(self.lanes)))
        if not tiles:
            return
        value = VALUE_BYTES[self.kind]
        # OUT does not concern `read_frames`; with the usual one it is compiled together with `write_occupancies`.
        out = "OUT", C_TYPES["float64" if self.call.scores.dtype == "float64" else "float32"]
        kernel = KernelSpec(FRAMES, "read_frames", (*self._defines(), element(self.call.scores), out))
        shared = 16 * TILE + 16 * TILE + TILE * (TILE + 1) * value
        self.call.device.launch(
            kernel,
            len(self.groups.fields) * tiles,
            THREADS,
            shared,
            [
                *(self.on_lanes.directory, self.tables.pdfs, *self._lanes_arguments()),
                *place_of(self.call.scores),
                *(self._empty("probs"), self._scratch("offsets", 8 * self.num_frames * self._num_lanes)),
                *(np.int32(self._num_lanes), np.int32(begin), self._end(begin)),
            ],
        )

    def _pass(self, name: str, arguments: list[Argument], tail: list[Argument]) -> None:
        """Launch `forward` or `backward`; its arguments before and after the counters."""
        device, place, count = self.call.device, self.seat.place, len(self.groups.fields)
        kernel = self._recursion(name)
        if place.on_chip:
            block = [np.int32(0), np.int32(place.cluster)]
            shared = self.shared_bytes
            arguments = [*arguments, NULL, NULL, *block, *tail]
            device.launch(kernel, count * place.cluster, place.threads, shared, arguments)
            return
        at_once = RESIDENT_BLOCKS * device.limits.multiprocessors
        shares = int(self.seat.of("shares").max())
        team = max(1, min(shares, at_once // count))
        block = [np.int32(0), np.int32(team)]
        shared = 32 * VALUE_BYTES[self.kind] * (MEMORY_THREADS // 32)
        arguments = [
            *arguments,
            self._empty("work"),
            np.uint64(self.counters[0].pointer + self.counters[1]),
            *block,
            *tail,
        ]
        device.launch(kernel._replace(cooperative=team > 1), count * team, place.threads, shared, arguments)

    def _forward(
        self, begin: int, before: Memory | None, after: Memory | None, history: Memory | None
    ) -> None:
        exponents = self._scratch("exponents", 8 * self._num_lanes)
        self._pass(
            "forward",
            [
                *(
                    self.on_lanes.directory,
                    *self.tables.forward,
                    self.tables.vectors,
                    *self._lanes_arguments(),
                ),
                *(self._probs(), history or NULL, before or NULL, after or NULL, exponents),
            ],
            [np.int32(begin), self._end(begin), self._log_leak(), np.float32(self.least_total)],
        )

    def _backward(self, begin: int, after: Memory | None, before: Memory | None) -> None:
        assert self.history is not None
        self._pass(
            "backward",
            [
                *(self.on_lanes.directory, *self.tables.backward, self.tables.pairs, self.tables.vectors),
                *(*self._lanes_arguments(), self._probs(), self.history, after or NULL, before or NULL),
            ],
            [np.int32(begin), self._end(begin), self._log_leak()],
        )

    def _probs(self) -> Memory:
        return self._empty("probs")

    def _finish(self, state: Memory) -> None:
        offsets = self._scratch("offsets", 8 * self.num_frames * self._num_lanes)
        self.call.device.launch(
            self._recursion("finish"),
            self._num_lanes,
            THREADS,
            THREADS * (VALUE_BYTES[self.kind] + 8),
            [
                *(self.on_lanes.directory, self.tables.vectors, *self._lanes_arguments(), state, offsets),
                *(self._scratch("exponents", 8 * self._num_lanes), np.int32(self._num_lanes)),
                *(self._log_leak(), self.call.log_prob, self.call.ok),
            ],
        )

    def _write(self, begin: int, weights: Memory, out: DeviceArray) -> None:
        assert self.history is not None
        frames = int(self._end(begin)) - begin
        if not frames:
            return
        width = self.seat.place.sequences(self.lanes)
        kernel = KernelSpec(
            FRAMES, "write_occupancies", (*self._defines(), element(self.call.scores), element(out, "OUT"))
        )
        self.call.device.launch(
            kernel,
            len(self.groups.fields) * frames,
            TILE * width,
            TILE * width * VALUE_BYTES[self.kind],
            [
                *(
                    self.on_lanes.directory,
                    self.tables.pdfs,
                    self.tables.pairs_by_column,
                    self.tables.column_ends,
                ),
                *(*self._lanes_arguments(), self.call.ok, np.uint64(weights.pointer), self.history),
                *place_of(out),
                *(np.int32(begin), self._end(begin)),
            ],
        )


# What the CUDA backend keeps of tables and batches: layouts and seats on the host, and their arrays on each
# device.
#
# What can be made of a table alone is kept with it, so that a batch of tables that have been seen before, in
# whatever composition, costs no more than putting their arrays one after another.

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
