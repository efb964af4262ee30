"""The launches of the forward and of the backward pass for one kind of number and the tables of one plan.

Every sequence is tried in the first kind of number that may suit it; the kernels themselves raise `kinds` where its data
needs another one. The launches of all kinds that may occur are made in order, and a group of which no sequence is of the
kind returns at once, so that the host never asks what the device found.

Layouts and plans are kept with the tables that they are made of, and their arrays on each device, so that a batch of tables
that have been seen before, in whatever composition, costs no more than putting their arrays one after another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from itertools import product
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from fsachain.backends.cuda.device import (
    NULL,
    Argument,
    Device,
    DeviceArray,
    KernelSpec,
    Limits,
    address,
    macros,
    strided,
)
from fsachain.backends.cuda.layout import (
    LOG,
    WIDE,
    Division,
    Integers,
    Layout,
    encode,
    entries,
    lay_out,
    stacked,
)
from fsachain.backends.cuda.memory import Memory
from fsachain.backends.cuda.plan import (
    ARC_BYTES,
    COMPACT,
    EXPONENTS,
    LOGS,
    RESIDENT_BLOCKS,
    VALUE_BYTES,
    WARP,
    WIDE_BUDGET,
    Groups,
    Growth,
    LaidOut,
    Plan,
    PlannedTables,
    form_of,
    growth_of,
    in_memory,
    kinds_of,
    lanes_for,
    least_plain_total,
    make_groups,
    own_on_chip,
    plan_shared,
    shared_bytes,
    window_of,
)
from fsachain.batch import TableBatch
from fsachain.table import TransitionTable

THREADS = 256
BUSY_THREADS = 4096  # for each multiprocessor, of which it runs half at once
TILE = 32  # of frames.cu
DEFAULT_SHARE = 1.0 / 16.0  # of a device's memory, for the history of one call where no budget is given


class SubBatch(NamedTuple):
    """Sequences of a batch whose tables have one plan and one form of arcs.

    which: the numbers of the sequences. rows: the number of each one's table; None: there is one table. form: see
    `plan.form_of`.
    """

    tables: PlannedTables
    which: Integers
    rows: Integers | None
    form: int

    def shared_bytes(self, kind: int, lanes: int) -> int:
        """What a block of `forward` or `backward` on chip takes."""
        return self.tables.shared_bytes(kind, ARC_BYTES[self.form], lanes)


def recursion(
    name: str, part: SubBatch, kind: int, lanes: int, leaky: float, cooperative: bool = False
) -> KernelSpec:
    """A kernel of forward_backward.cu."""
    return _recursion(name, part.tables.plan, part.form, kind, lanes, leaky > 0.0, cooperative)


@lru_cache(maxsize=1024)
def _recursion(
    name: str, plan: Plan, form: int, kind: int, lanes: int, leaks: bool, cooperative: bool
) -> KernelSpec:
    defines = macros(
        KIND=kind,
        LANES=lanes,
        CHUNK=plan.chunk,
        LEAK=leaks,
        ON_CHIP=plan.on_chip,
        CLUSTER=plan.cluster,
        ARCS_ON_CHIP=plan.arcs_on_chip,
        METADATA_ON_CHIP=plan.metadata_on_chip,
        THREADS=plan.threads,
        EXPONENTS=form == EXPONENTS,
        LOGS=form == LOGS,
    )
    cluster = plan.cluster if name in ("forward", "backward") else 1
    return KernelSpec("forward_backward.cu", name, defines, cluster, cooperative)


@lru_cache(maxsize=1024)
def _frames(name: str, kind: int, lanes: int, chunk: int, scores: str, out: str) -> KernelSpec:
    """A kernel of frames.cu, for scores and occupancies of these types."""
    return KernelSpec("frames.cu", name, macros(KIND=kind, LANES=lanes, CHUNK=chunk, ELEMENT=scores, OUT=out))


class DeviceTables(NamedTuple):
    """The tables of a sub-batch on the device, in one kind of number.

    forward, backward: shards, chunks, segments, arcs of layout.cuh and entries of storage.cuh. The others: as in `Layout`.
    """

    forward: list[Memory]
    backward: list[Memory]
    vectors: Memory
    pairs: Memory
    pdfs: Memory
    pairs_by_column: Memory
    column_ends: Memory


@dataclass(frozen=True)
class Call:
    """What all kinds of a call share: c, `kinds` int32 [N], lengths int64 [N], results and the barriers' counters there."""

    device: Device
    scores: DeviceArray
    leaky: float
    kinds: Memory
    lengths: Memory
    log_prob: Memory
    ok: Memory
    counters: Memory

    @cached_property
    def strided_scores(self) -> list[Argument]:
        return strided(self.scores)

    @cached_property
    def log_leak(self) -> np.float64:
        return np.float64(math.log(self.leaky) if self.leaky > 0.0 else -math.inf)


@dataclass
class Run:
    """The launches for a kind of number and a sub-batch.

    lanes: sequences of a thread. frames: of a window. num_frames: of the longest sequence. least_total: see
    `plan.least_plain_total`; 0 for other kinds. on_device, fields, lanes_there: tables and `groups` on the device.
    first_counter: a uint32 for each group. checkpoints: states at the beginnings of the windows but the first, once
    `forward` has run.
    """

    call: Call
    kind: int
    part: SubBatch
    lanes: int
    groups: Groups
    frames: int
    num_frames: int
    least_total: float
    on_device: DeviceTables
    fields: Memory
    lanes_there: Memory
    first_counter: int
    checkpoints: list[Memory] = field(default_factory=list)
    _memory: dict[str, Memory] = field(default_factory=dict)

    def forward(self, keep: bool) -> None:
        """log Z of the sequences of this kind; `keep`: the last window's history and the states before all windows."""
        begins = self._windows()
        self.checkpoints, states = [], self._take_memory(keep)
        for number, begin in enumerate(begins):
            before = states[number % 2] if number else None
            after = states[(number + 1) % 2]
            if keep and number:
                self.checkpoints.append(states[number % 2])
                states[(number + 1) % 2] = after = self._state()
            self._read_frames(begin)
            is_last = number == len(begins) - 1
            self._forward(begin, before, after, self._memory["history"] if keep and is_last else None)
        self._finish(states[len(begins) % 2])

    def backward(self, weights: Memory | DeviceArray, out: DeviceArray, is_new: bool) -> None:
        """Add weights [N] x occupancy of the sequences of this kind to `out`; `forward` has run with `keep`.

        is_new: their frames in `out` hold anything and are written whole.
        """
        begins = self._windows()
        last = len(begins) - 1
        betas = [self._state(), self._state()] if last else []
        for number in reversed(range(len(begins))):
            begin = begins[number]
            if number < last:
                self._read_frames(begin)
                before = self.checkpoints[number - 1] if number else None
                self._forward(begin, before, None, self._memory["history"])
            self._backward(
                begin,
                betas[(number + 1) % 2] if number < last else None,
                betas[number % 2] if number else None,
            )
            self._write_occupancies(begin, weights, out, is_new)

    def release(self) -> None:
        self.checkpoints = []
        self._memory.clear()

    def _windows(self) -> list[int]:
        """Where the windows begin; one without frames where no sequence has any."""
        return list(range(0, max(self.num_frames, 1), self.frames))

    def _end(self, begin: int) -> int:
        return min(begin + self.frames, self.num_frames)

    def _take_memory(self, keep: bool) -> list[Memory]:
        """Two states, and what all windows share: `_memory` until `release`."""
        lanes, value, sizes = self.groups.num_lanes, VALUE_BYTES[self.kind], self.groups.sizes
        state = sizes["state"] * value
        needed = {
            "probs": sizes["probs"] * self.frames * value,
            "exponents": 8 * lanes,
            "offsets": 8 * lanes * self.num_frames,
            "history": sizes["history"] * self.frames * value if keep else 0,
            "work": 0 if self.part.tables.plan.on_chip else sizes["work"] * value,
        }
        first, second, *others = self.call.device.pieces([state, state, *needed.values()])
        self._memory = dict(zip(needed, others, strict=True))
        return [first, second]

    def _state(self) -> Memory:
        return self.call.device.empty(self.groups.sizes["state"] * VALUE_BYTES[self.kind])

    def _frames(self, name: str, out: str) -> KernelSpec:
        chunk = self.part.tables.plan.chunk
        return _frames(name, self.kind, self.lanes, chunk, self.call.scores.dtype, out)

    def recursion(self, name: str, cooperative: bool = False) -> KernelSpec:
        return recursion(name, self.part, self.kind, self.lanes, self.call.leaky, cooperative)

    @cached_property
    def _of_lanes(self) -> list[Argument]:
        lengths = self.lanes_there.pointer + 4 * self.groups.num_lanes
        return [self.lanes_there, np.uint64(lengths), self.call.kinds]

    def _read_frames(self, begin: int) -> None:
        end = self._end(begin)
        tiles = -(-(end - begin) // (TILE // self.part.tables.plan.sequences(self.lanes)))
        if not tiles:
            return
        scores, num_lanes = self.call.scores, self.groups.num_lanes
        # OUT does not concern `read_frames`; with the usual one it is compiled together with `write_occupancies`.
        out = "float64" if scores.dtype == "float64" else "float32"
        self.call.device.launch(
            self._frames("read_frames", out),
            len(self.groups.fields) * tiles,
            THREADS,
            16 * TILE + 16 * TILE + TILE * (TILE + 1) * VALUE_BYTES[self.kind],
            [
                *(self.fields, self.on_device.pdfs, *self._of_lanes, *self.call.strided_scores),
                *(self._memory["probs"], self._memory["offsets"]),
                *(np.int32(num_lanes), np.int32(begin), np.int32(end)),
            ],
        )

    def _pass(self, name: str, arguments: list[Argument], tail: list[Argument]) -> None:
        """Launch `forward` or `backward`; its arguments before and after those of the blocks that share a group."""
        device, tables, count = self.call.device, self.part.tables, len(self.groups.fields)
        plan = tables.plan
        work: list[Argument] = [NULL, NULL]
        if plan.on_chip:
            blocks, kernel = plan.cluster, self.recursion(name)
            shared = self.part.shared_bytes(self.kind, self.lanes)
        else:
            at_once = RESIDENT_BLOCKS * device.limits.multiprocessors
            blocks = max(1, min(tables.most_shards, at_once // count))
            kernel = self.recursion(name, cooperative=blocks > 1)
            shared = WARP * VALUE_BYTES[self.kind] * (plan.threads // WARP)
            work = [self._memory["work"], np.uint64(self.call.counters.pointer + 4 * self.first_counter)]
        arguments = [*arguments, *work, np.int32(blocks), *tail]
        device.launch(kernel, count * blocks, plan.threads, shared, arguments)

    def _forward(
        self, begin: int, before: Memory | None, after: Memory | None, history: Memory | None
    ) -> None:
        states = address(history), address(before), address(after)
        on_device = self.on_device
        self._pass(
            "forward",
            [
                *(self.fields, *on_device.forward, on_device.vectors, *self._of_lanes),
                *(self._memory["probs"], *states, self._memory["exponents"]),
            ],
            [np.int32(begin), np.int32(self._end(begin)), self.call.log_leak, np.float32(self.least_total)],
        )

    def _backward(self, begin: int, after: Memory | None, before: Memory | None) -> None:
        on_device = self.on_device
        self._pass(
            "backward",
            [
                *(self.fields, *on_device.backward, on_device.pairs, on_device.vectors, *self._of_lanes),
                *(self._memory["probs"], self._memory["history"], address(after), address(before)),
            ],
            [np.int32(begin), np.int32(self._end(begin)), self.call.log_leak],
        )

    def _finish(self, state: Memory) -> None:
        num_lanes = self.groups.num_lanes
        self.call.device.launch(
            self.recursion("finish"),
            num_lanes,
            THREADS,
            THREADS * (VALUE_BYTES[self.kind] + 8),
            [
                *(self.fields, self.on_device.vectors, *self._of_lanes, state),
                *(self._memory["offsets"], self._memory["exponents"], np.int32(num_lanes)),
                *(self.call.log_leak, self.call.log_prob, self.call.ok),
            ],
        )

    def _write_occupancies(
        self, begin: int, weights: Memory | DeviceArray, out: DeviceArray, is_new: bool
    ) -> None:
        end, on_device = self._end(begin), self.on_device
        if end == begin:
            return
        threads, groups = TILE * self.part.tables.plan.sequences(self.lanes), len(self.groups.fields)
        # As many blocks as keep the device busy: those of a group that is not concerned have to be started too.
        at_once = BUSY_THREADS * self.call.device.limits.multiprocessors // threads
        blocks = max(1, min(end - begin, at_once // groups))
        self.call.device.launch(
            self._frames("write_occupancies", out.dtype),
            groups * blocks,
            threads,
            threads * VALUE_BYTES[self.kind],
            [
                *(self.fields, on_device.pdfs, on_device.pairs_by_column, on_device.column_ends),
                *(*self._of_lanes, self.call.ok, address(weights), self._memory["history"]),
                *(*strided(out), np.int32(begin), np.int32(end), np.int32(blocks)),
                np.int64(out.shape[2] if is_new else 0),
            ],
        )


def make_runs(
    device: Device,
    batch: TableBatch,
    scores: DeviceArray,
    lengths: Integers,
    leaky: float,
    memory_budget: float | None,
) -> list[Run]:
    """All runs of a call, in the order of their kinds, with one upload of what depends on the lengths.

    scores [N, T, P] are on the device, lengths int64 [N] on the host; the batch has N tables, or one that all share.
    leaky: c of equation (3). memory_budget: bytes for probabilities and history; None for a 16th of the device's memory.
    Where they do not fit, windows of frames are computed again; no bit of the results depends on it.
    """
    limits = device.limits
    least_total = _least_total(batch, leaky)
    owner = batch.tables[0] if batch.is_shared else batch
    laid_out: LaidOut | None = None if leaky > 0.0 or scores.dtype == "float64" else batch.laid_out
    growth: Integers = (
        laid_out.powers
        if laid_out
        else _keep(
            owner, ("growths", leaky), lambda: np.array([g.powers for g in _growths(batch.tables, leaky)])
        )
    )
    kinds, starts = kinds_of(scores.dtype, least_total, lengths, growth)
    budget = limits.memory_bytes * DEFAULT_SHARE if memory_budget is None else memory_budget
    longest = int(lengths.max(initial=0))
    plans: list[tuple[int, SubBatch, int, tuple[PlannedTables, int, int]]] = []
    arrays: list[npt.NDArray[Any]] = [starts, lengths]
    made: dict[
        Hashable, tuple[Groups, int, int]
    ] = {}  # with the frames of a window, and which array is the first
    for kind in kinds:
        for part in sub_batches(batch, limits, kind, scores.dtype == "float64", laid_out):
            which, rows = part.which, part.rows
            lanes = _lanes(device, part, kind, leaky) if rows is None else 1
            key = part.tables, lanes, VALUE_BYTES[kind]
            plans.append((kind, part, lanes, key))
            if key in made:
                continue
            of_part = growth if rows is None else growth[which]
            groups = make_groups(part.tables, lanes, which, rows, lengths[which], of_part)
            frames = window_of(kind, groups, longest, budget)
            made[key] = groups, frames, len(arrays)
            arrays += [groups.in_windows(frames).fields, groups.lanes]
    uploaded = device.upload(arrays)
    num_counters = sum(len(made[key][0].fields) for *_, key in plans)
    sizes = 4 * batch.size, 8 * batch.size, batch.size, 4 * num_counters
    kinds_there, log_prob, ok, counters = device.pieces(sizes)
    call = Call(device, scores, leaky, kinds_there, uploaded[1], log_prob, ok, counters)
    runs, counter = [], 0
    for kind, part, lanes, key in plans:
        groups, frames, first = made[key]
        runs.append(
            Run(
                call,
                kind,
                part,
                lanes,
                groups,
                frames,
                num_frames=longest,
                least_total=least_total or 0.0,
                on_device=tables_on_device(device, batch, part, kind, leaky > 0.0),
                fields=uploaded[first],
                lanes_there=uploaded[first + 1],
                first_counter=counter,
            )
        )
        counter += len(groups.fields)
    size = np.int32(batch.size)
    device.launch(
        runs[0].recursion("prepare"),
        -(-max(batch.size, num_counters) // THREADS),
        THREADS,
        0,
        [uploaded[0], call.kinds, size, call.counters, np.int32(num_counters)],
    )
    return runs


def _lanes(device: Device, part: SubBatch, kind: int, leaky: float) -> int:
    """Sequences of a thread; kept, since the driver's answers for three choices take long to ask for."""
    plan, size = part.tables.plan, len(part.which)
    if plan.max_lanes == 1:
        return 1

    def chosen() -> int:
        kernel = recursion("forward", part, kind, plan.max_lanes, leaky)  # it needs the most registers
        return lanes_for(
            plan, size, lambda lanes: device.at_once(kernel, plan.threads, part.shared_bytes(kind, lanes))
        )

    key = "lanes", kind, part.form, size, leaky > 0.0, device.index, device.limits
    lanes: int = _keep(part.tables, key, chosen)
    return lanes


_kept: WeakKeyDictionary[Any, dict[Hashable, Any]] = WeakKeyDictionary()
_lock = Lock()


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


def _growths(tables: Sequence[TransitionTable], leaky: float) -> list[Growth]:
    return _keep_each(
        tables,
        [("growth", leaky)] * len(tables),
        lambda missing: [growth_of(tables[number], leaky) for number in missing],
    )


def _least_total(batch: TableBatch, leaky: float) -> float | None:
    if not batch.is_shared:
        return None
    table = batch.tables[0]
    least: float | None = _keep(table, ("least total", leaky), lambda: least_plain_total(table, leaky))
    return least


def _layouts(tables: Sequence[TransitionTable], division: Division) -> list[Layout]:
    """The layout of each table; those that are not kept yet are made together."""

    def make(missing: list[int]) -> list[Layout]:
        shards = tuple(division.shards[number] for number in missing)
        return lay_out([tables[number] for number in missing], division._replace(shards=shards))

    keys = [("layout", shards, division.chunk, division.longest) for shards in division.shards]
    return _keep_each(tables, keys, make)


def lay_out_batch(batch: TableBatch) -> LaidOut | None:
    """What calls without a leak, for scores that are not in float64, need of a batch whose tables all fit a chip.

    None where the weights of its tables are not all written alike, or a table is shared: that is laid out once anyway.
    """
    numbers = {table: number for number, table in enumerate(dict.fromkeys(batch.tables))}
    growths = [growth_of(table, 0.0) for table in numbers]
    forms = {form_of(WIDE, False, growth) for growth in growths}
    if batch.is_shared or len(forms) > 1 or max(growth.powers for growth in growths) >= WIDE_BUDGET:
        return None
    plan, division = own_on_chip(list(numbers))
    tables, (form,) = PlannedTables(plan, tuple(lay_out(list(numbers), division))), forms
    rows = np.array([numbers[table] for table in batch.tables])
    powers = np.array([growth.powers for growth in growths])[rows]
    weights = tables.weights(WIDE, form == EXPONENTS)
    return LaidOut(plan, (), form, rows, powers, tables.sizes, tables.shape(), weights, tables.vectors(LOG))


def sub_batches(
    batch: TableBatch, limits: Limits, kind: int, float64: bool, laid_out: LaidOut | None = None
) -> list[SubBatch]:
    """How a batch is divided for one kind of number; kept with the table that all share, or with the batch."""
    if laid_out and laid_out.shared_bytes(kind, ARC_BYTES[laid_out.form], 1) <= limits.shared_bytes:
        return [SubBatch(laid_out, np.arange(batch.size), laid_out.rows, laid_out.form)]
    owner, divide = (batch.tables[0], _shared) if batch.is_shared else (batch, _own_sub_batches)
    key = "parts", limits, kind, float64, batch.size
    parts: list[SubBatch] = _keep(owner, key, lambda: divide(batch, limits, kind, float64))
    return parts


def _shared(batch: TableBatch, limits: Limits, kind: int, float64: bool) -> list[SubBatch]:
    table = batch.tables[0]
    form = form_of(kind, float64, _growths(batch.tables, 0.0)[0])
    # One object for wide numbers and the logs that read their arcs.
    key = limits, kind if form == LOGS else min(kind, WIDE)
    tables = _keep(table, key, lambda: plan_shared(table, limits, kind, ARC_BYTES[form]))
    return [SubBatch(tables, np.arange(batch.size), None, form)]


def _own_sub_batches(batch: TableBatch, limits: Limits, kind: int, float64: bool) -> list[SubBatch]:
    """On chip what fits; a table's plan and its arcs' form never depend on the others."""
    numbers = {table: number for number, table in enumerate(dict.fromkeys(batch.tables))}
    tables, table_of = list(numbers), np.array([numbers[table] for table in batch.tables])
    plan, division = own_on_chip(tables)
    sizes = stacked([layout.sizes for layout in _layouts(tables, division)])
    forms = np.array([form_of(kind, float64, growth) for growth in _growths(tables, 0.0)])
    fits = shared_bytes(sizes, plan, kind, np.take(ARC_BYTES, forms), 1) <= limits.shared_bytes

    def planned(chosen: npt.NDArray[np.bool_], on_chip: bool) -> PlannedTables:
        some = [tables[number] for number in np.flatnonzero(chosen)]
        plan, division = own_on_chip(some) if on_chip else in_memory(some, 1)
        return PlannedTables(plan, tuple(_layouts(some, division)))

    parts = []
    for on_chip, form in product((True, False), (COMPACT, EXPONENTS, LOGS)):
        chosen = (fits == on_chip) & (forms == form)
        if chosen.any():
            # One object for all kinds of number that have these tables there.
            key = ("planned", on_chip, chosen.tobytes())
            made: PlannedTables = _keep(batch, key, partial(planned, chosen, on_chip))
            which = np.flatnonzero(chosen[table_of])
            rows = (np.cumsum(chosen) - 1)[table_of[which]]
            parts.append(SubBatch(made, which, rows, form))
    return parts


def tables_on_device(
    device: Device, batch: TableBatch, part: SubBatch, kind: int, leaks: bool
) -> DeviceTables:
    """The tables of a sub-batch in one kind of number, uploaded on first use."""
    tables, form = part.tables, part.form
    owner = batch.tables[0] if batch.is_shared else batch
    shape = device.resident(owner, ("shape", tables), tables.shape)
    # Logs have vectors of their own beside the arcs of wide numbers.
    of_arcs = kind if form == LOGS else min(kind, WIDE)

    def weights() -> list[npt.NDArray[Any]]:
        if batch.is_shared:  # nobody else needs them
            return [*encode(of_arcs, form == EXPONENTS, tables.layouts)[0]]
        return [*tables.weights(of_arcs, form == EXPONENTS)]

    *arcs, vectors = device.resident(owner, ("weights", tables, of_arcs, form), weights)
    if kind != of_arcs:
        (vectors,) = device.resident(owner, ("vectors", tables), lambda: [tables.vectors(kind)])
    pairs = shape[6]
    first, second = pairs, pairs
    if leaks:
        first, second = device.resident(
            owner, ("entries", tables, of_arcs), lambda: entries(of_arcs, tables.layouts)
        )
    return DeviceTables(
        [*shape[:3], arcs[0], first], [*shape[3:6], arcs[1], second], vectors, pairs, *shape[7:]
    )
