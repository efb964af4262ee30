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
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from fsachain.backends.cuda.device import (
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
    clusters_of,
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


class Kernels(NamedTuple):
    """Those of a run."""

    read_frames: KernelSpec
    forward: KernelSpec
    finish: KernelSpec
    backward: KernelSpec
    write_occupancies: KernelSpec


@lru_cache(maxsize=1024)
def kernels_of(
    plan: Plan,
    form: int,
    kind: int,
    lanes: int,
    leaks: bool,
    scores: str,
    out: str,
    cooperative: bool = False,
) -> Kernels:
    """For scores and occupancies of these types. cooperative: blocks share a group in memory."""
    defines = macros(
        KIND=kind,
        LANES=lanes,
        CHUNK=plan.chunk,
        LEAK=leaks,
        ON_CHIP=plan.on_chip,
        CLUSTER=plan.cluster,
        ARCS_ON_CHIP=plan.arcs_on_chip,
        FORWARD_METADATA=plan.forward_metadata,
        BACKWARD_METADATA=plan.backward_metadata,
        SUM_COLUMNS=plan.sum_columns,
        HELD_CHUNKS=plan.held_chunks,
        AHEAD=plan.ahead,
        TILES=plan.tiles,
        THREADS=plan.threads,
        EXPONENTS=form == EXPONENTS,
        LOGS=form == LOGS,
    )
    # `read_frames` makes nothing of `out`; with the usual one it is compiled together with `write_occupancies`.
    usual = "float64" if scores == "float64" else "float32"
    reads, writes = (
        macros(KIND=kind, LANES=lanes, CHUNK=plan.chunk, ELEMENT=scores, OUT=dtype, THREADS=THREADS)
        for dtype in (usual, out)
    )
    text = "forward_backward.cu"
    return Kernels(
        KernelSpec("frames.cu", "read_frames", reads),
        KernelSpec(text, "forward", defines, plan.cluster, cooperative),
        KernelSpec(text, "finish", defines),
        KernelSpec(text, "backward", defines, plan.cluster, cooperative),
        KernelSpec("frames.cu", "write_occupancies", writes),
    )


class DeviceTables(NamedTuple):
    """Addresses of the tables of a sub-batch on the device, in one kind of number.

    forward, backward: shards, chunks, segments, arcs of layout.cuh and entries of storage.cuh. The others: as in `Layout`.
    """

    forward: list[int]
    backward: list[int]
    vectors: int
    pairs: int
    pdfs: int
    pairs_by_column: int
    column_ends: int
    column_sums: int


class Occupancies(NamedTuple):
    """Where occupancies [N, T, P] go, times weights [N], None: ones; is_new: `out` holds anything and is written whole.

    lists: see `backend.add_occupancy`.
    """

    out: DeviceArray
    weights: Memory | DeviceArray | None
    is_new: bool
    lists: DeviceArray | None


class Scratch(NamedTuple):
    """Of what a run takes beside its results: bytes, or addresses.

    states: two, of which one may be 0. probs, offsets, history: of all frames of a window, the second of all windows.
    """

    state: int
    other_state: int
    probs: int
    exponents: int
    offsets: int
    history: int
    work: int


@dataclass(frozen=True)
class Call:
    """What all runs of a call share.

    occupancies: None where log Z alone is asked for. kinds int32 [N], lengths int64 [N], log_prob float64 [N], ok uint8 [N]:
    on the device. scratch: the addresses that runs use one after the other.
    """

    device: Device
    scores: DeviceArray
    log_leak: float
    occupancies: Occupancies | None
    kinds: Memory
    lengths: Memory
    log_prob: Memory
    ok: Memory
    scratch: Scratch


class Prepared(NamedTuple):
    """What the launches for a kind of number and a sub-batch are, whatever the lengths.

    lanes: sequences of a thread. num_groups: see `plan.Groups`. blocks: of a group. shared_bytes: of a block of both passes.
    at_once: groups that run at the same time; 0 where nobody has asked, since more of them need not take turns.
    """

    kind: int
    part: SubBatch
    lanes: int
    num_groups: int
    blocks: int
    shared_bytes: int
    at_once: int
    kernels: Kernels
    tables: DeviceTables


@dataclass
class Run:
    """The launches for a kind of number and a sub-batch.

    frames: of a window. num_frames: of the longest sequence. least_total: see `plan.least_plain_total`; 0 for other kinds.
    fields, lanes_there: `groups` on the device. counters: a uint32 for each group. clusters, span: see `clusters_of`; the
    latter is 0 where each group has a cluster.
    """

    call: Call
    prepared: Prepared
    groups: Groups
    frames: int
    num_frames: int
    least_total: float
    fields: int
    lanes_there: int
    counters: int
    clusters: int
    span: int

    def __post_init__(self) -> None:
        prepared, call = self.prepared, self.call
        self.kind, self.plan = prepared.kind, prepared.part.tables.plan
        self._of_lanes = self.lanes_there, self.lanes_there + 4 * self.groups.num_lanes, call.kinds.pointer
        self._begins = range(0, max(self.num_frames, 1), self.frames)  # one where no sequence has a frame
        self._sharing = call.scratch.work, self.counters, prepared.blocks, self.span, prepared.num_groups

    def run(self) -> None:
        """log Z of the sequences of this kind, and their occupancies where they are asked for.

        A window's history is made by `forward`; of windows but the last it is made again, from the state before.
        """
        keep, last = self.call.occupancies is not None, len(self._begins) - 1
        room, history = self.call.scratch, self.call.scratch.history if keep else 0
        befores, before, kept = [], 0, []
        for number, begin in enumerate(self._begins):
            befores.append(before)
            after = room[number % 2]
            if keep and number:
                kept.append(self._state())
                after = kept[-1].pointer
            self._read_frames(begin)
            self._forward(begin, before, after, history if number == last else 0)
            before = after
        self._finish(before)
        if not keep:
            return
        betas = [0, 0]
        if last:
            kept += [self._state(), self._state()]
            betas = [memory.pointer for memory in kept[-2:]]
        at_begin = room.state if self.span else 0  # `finish` has read the alphas there
        for number in range(last, -1, -1):
            begin = self._begins[number]
            if number < last:
                self._read_frames(begin)
                self._forward(begin, befores[number], 0, history)
            after = betas[(number + 1) % 2] if number < last else 0
            self._backward(begin, after, betas[number % 2] if number else at_begin)
            self._write_occupancies(begin)

    def _state(self) -> Memory:
        return self.call.device.empty(self.groups.sizes["state"] * VALUE_BYTES[self.kind])

    def _end(self, begin: int) -> int:
        return min(begin + self.frames, self.num_frames)

    def _read_frames(self, begin: int) -> None:
        end, call = self._end(begin), self.call
        tiles = -(-(end - begin) // (TILE // self.plan.sequences(self.prepared.lanes)))
        if not tiles:
            return
        call.device.launch(
            self.prepared.kernels.read_frames,
            self.prepared.num_groups * tiles,
            THREADS,
            16 * TILE + 16 * TILE + TILE * (TILE + 1) * VALUE_BYTES[self.kind],
            [
                *(self.fields, self.prepared.tables.pdfs, *self._of_lanes, *strided(call.scores)),
                *(call.scratch.probs, call.scratch.offsets, self.groups.num_lanes, begin, end),
            ],
        )

    def _forward(self, begin: int, before: int, after: int, history: int) -> None:
        room, tables = self.call.scratch, self.prepared.tables
        arguments = [
            *(self.fields, *tables.forward, tables.vectors, *self._of_lanes),
            *(room.probs, history, before, after, room.exponents, *self._sharing),
        ]
        tail = begin, self._end(begin), self.call.log_leak, np.float32(self.least_total)
        self._pass(self.prepared.kernels.forward, [*arguments, *tail])

    def _backward(self, begin: int, after: int, before: int) -> None:
        room, tables = self.call.scratch, self.prepared.tables
        arguments = [
            *(self.fields, *tables.backward, tables.pairs, tables.column_sums, tables.vectors),
            *(*self._of_lanes, room.probs, room.history, after, before, *self._sharing),
        ]
        tail = begin, self._end(begin), self.call.log_leak
        self._pass(self.prepared.kernels.backward, [*arguments, *tail])

    def _pass(self, kernel: KernelSpec, arguments: Sequence[Argument]) -> None:
        prepared = self.prepared
        blocks, threads = self.clusters * prepared.blocks, self.plan.threads
        self.call.device.launch(kernel, blocks, threads, prepared.shared_bytes, arguments)

    def _finish(self, state: int) -> None:
        num_lanes, call = self.groups.num_lanes, self.call
        room = call.scratch
        call.device.launch(
            self.prepared.kernels.finish,
            num_lanes,
            THREADS,
            THREADS * (VALUE_BYTES[self.kind] + 8),
            [
                *(
                    self.fields,
                    self.prepared.tables.vectors,
                    *self._of_lanes,
                    state,
                    room.offsets,
                    room.exponents,
                ),
                *(num_lanes, call.log_leak, call.log_prob.pointer, call.ok.pointer),
            ],
        )

    def _write_occupancies(self, begin: int) -> None:
        end, prepared, call = self._end(begin), self.prepared, self.call
        if call.occupancies is None:
            return
        out, weights, is_new, lists = call.occupancies
        if end == begin and lists is None:
            return
        threads, groups = TILE * self.plan.sequences(prepared.lanes), prepared.num_groups
        tables = prepared.tables
        # As many blocks as keep the device busy: those of a group that is not concerned have to be started too.
        at_once = BUSY_THREADS * call.device.limits.multiprocessors // threads
        blocks = max(1, min(end - begin, at_once // groups))
        call.device.launch(
            prepared.kernels.write_occupancies,
            groups * blocks,
            threads,
            threads * VALUE_BYTES[self.kind],
            [
                *(self.fields, tables.pdfs, tables.pairs_by_column, tables.column_ends, *self._of_lanes),
                *(call.ok.pointer, address(weights), call.scratch.history, *strided(out)),
                *(begin, end, blocks, out.shape[2] if is_new else 0, address(lists)),
            ],
        )


def run_all(
    device: Device,
    batch: TableBatch,
    scores: DeviceArray,
    lengths: Integers,
    leaky: float,
    occupancies: Occupancies | None,
    memory_budget: float | None,
) -> Call:
    """All runs, in the order of their kinds, with one upload of what depends on the lengths.

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
    out = scores if occupancies is None else occupancies.out
    arrays: list[npt.NDArray[Any]] = [starts, lengths]
    # With the frames of a window, and which array is the first.
    made: dict[Hashable, tuple[Groups, int, int]] = {}
    plans: list[tuple[Prepared, tuple[Groups, int, int]]] = []
    for kind in kinds:
        for prepared in prepare(device, batch, kind, scores.dtype, out.dtype, leaky, laid_out):
            (tables, which, rows, _), lanes = prepared.part, prepared.lanes
            key = tables, lanes, VALUE_BYTES[kind]
            if key not in made:
                groups = make_groups(tables, lanes, which, rows, lengths, growth)
                frames = window_of(kind, groups, longest, budget)
                made[key] = groups, frames, len(arrays)
                arrays += [groups.in_windows(frames).fields, groups.lanes]
            plans.append((prepared, made[key]))
    # The kernels change the kinds, and the counters of the peers' barriers or of groups that are handed on.
    arrays.append(np.zeros(sum(prepared.num_groups for prepared, _ in plans), np.uint32))
    uploaded = device.upload(arrays)
    log_prob, ok = device.pieces([8 * batch.size, batch.size])
    needed = [
        _scratch_bytes(prepared, groups, frames, longest, occupancies is not None)
        for prepared, (groups, frames, _) in plans
    ]
    scratch = device.pieces([max(sizes) for sizes in zip(*needed, strict=True)])
    addresses = Scratch(*[memory.pointer for memory in scratch])
    log_leak = math.log(leaky) if leaky > 0.0 else -math.inf
    call = Call(device, scores, log_leak, occupancies, uploaded[0], uploaded[1], log_prob, ok, addresses)
    counter = uploaded[-1].pointer
    for prepared, (groups, frames, first) in plans:
        there = uploaded[first].pointer, uploaded[first + 1].pointer
        clusters = prepared.num_groups, 0
        # In the kind in which sequences begin, since few need another one.
        if prepared.kind == kinds[0] and 0 < prepared.at_once < prepared.num_groups and frames >= longest:
            clusters = clusters_of(
                groups.lanes[1, :: prepared.part.tables.plan.sequences(prepared.lanes)], prepared.at_once
            )
        Run(call, prepared, groups, frames, longest, least_total or 0.0, *there, counter, *clusters).run()
        counter += 4 * prepared.num_groups
    return call


def _scratch_bytes(prepared: Prepared, groups: Groups, frames: int, num_frames: int, keep: bool) -> Scratch:
    """For windows of so many of the frames; keep: `forward` leaves a history."""
    on_chip = prepared.part.tables.plan.on_chip
    value, sizes = VALUE_BYTES[prepared.kind], groups.sizes
    return Scratch(
        state=sizes["state"] * value,
        other_state=sizes["state"] * value if frames < num_frames else 0,
        probs=sizes["probs"] * frames * value,
        exponents=8 * groups.num_lanes,
        offsets=8 * groups.num_lanes * num_frames,
        history=sizes["history"] * frames * value if keep else 0,
        work=0 if on_chip else sizes["work"] * value,
    )


def prepare(
    device: Device,
    batch: TableBatch,
    kind: int,
    scores: str,
    out: str,
    leaky: float,
    laid_out: LaidOut | None = None,
) -> list[Prepared]:
    """How a batch is computed in one kind of number, for scores and occupancies of these types; kept with its tables."""
    limits, owner = device.limits, batch.tables[0] if batch.is_shared else batch

    def made() -> list[Prepared]:
        parts = sub_batches(batch, limits, kind, scores == "float64", laid_out)
        return [_prepared(device, batch, part, kind, scores, out, leaky) for part in parts]

    if device.stream is None:
        return made()
    key = "prepared", device.index, device.stream, limits, kind, batch.size, scores, out, leaky > 0.0
    kept: list[Prepared] = _keep(owner, key, made)
    return kept


def _prepared(
    device: Device, batch: TableBatch, part: SubBatch, kind: int, scores: str, out: str, leaky: float
) -> Prepared:
    plan = part.tables.plan
    lanes = _lanes(device, part, kind, leaky) if part.rows is None else 1
    num_groups = -(-len(part.which) // plan.sequences(lanes))
    if plan.on_chip:
        blocks, shared = plan.cluster, part.shared_bytes(kind, lanes)
    else:
        resident = RESIDENT_BLOCKS * device.limits.multiprocessors
        blocks = max(1, min(part.tables.most_shards, resident // num_groups))
        shared = WARP * VALUE_BYTES[kind] * (plan.threads // WARP)
    together = blocks > 1 and not plan.on_chip
    kernels = kernels_of(plan, part.form, kind, lanes, leaky > 0.0, scores, out, together)
    tables = tables_on_device(device, batch, part, kind, leaky > 0.0)
    at_once = 0
    if plan.on_chip and part.rows is None:
        at_once = device.at_once(kernels.forward, plan.threads, shared)
    return Prepared(kind, part, lanes, num_groups, blocks, shared, at_once, kernels, tables)


def _lanes(device: Device, part: SubBatch, kind: int, leaky: float) -> int:
    """Sequences of a thread; kept, since the driver's answers for three choices take long to ask for."""
    plan, size = part.tables.plan, len(part.which)
    if plan.max_lanes == 1:
        return 1

    def chosen() -> int:
        types = "float32", "float32"  # which `forward` never sees
        # `forward` takes the most registers.
        kernel = kernels_of(plan, part.form, kind, plan.max_lanes, leaky > 0.0, *types).forward
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

    None where the weights of its tables are not all written alike, or a table is shared: that is laid out once anyway. What
    is made of each table is kept with it, so that another batch with it costs less.
    """
    if batch.is_shared:
        return None
    numbers = {table: number for number, table in enumerate(dict.fromkeys(batch.tables))}
    plan, division = own_on_chip(list(numbers))
    tables, growths = (
        PlannedTables(plan, tuple(_layouts(list(numbers), division))),
        _growths(list(numbers), 0.0),
    )
    forms = {form_of(WIDE, False, growth) for growth in growths}
    if len(forms) > 1 or max(growth.powers for growth in growths) >= WIDE_BUDGET:
        return None
    rows, (form,) = np.array([numbers[table] for table in batch.tables]), forms
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
    taken = shared_bytes(sizes, plan._replace(ahead=0), kind, np.take(ARC_BYTES, forms), 1)
    fits = taken <= limits.shared_bytes

    def planned(chosen: npt.NDArray[np.bool_], on_chip: bool) -> PlannedTables:
        some = [tables[number] for number in np.flatnonzero(chosen)]
        plan, division = own_on_chip(some) if on_chip else in_memory(some, 1)
        made = PlannedTables(plan, tuple(_layouts(some, division)))
        if plan.ahead and made.shared_bytes(LOG, ARC_BYTES[LOGS], 1) > limits.shared_bytes:
            return PlannedTables(plan._replace(ahead=0), made.layouts)
        return made

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

    there = device.resident(owner, ("weights", tables, of_arcs, form), weights)
    forward_arcs, backward_arcs, vectors = (memory.pointer for memory in there)
    if kind != of_arcs:
        (own,) = device.resident(owner, ("vectors", tables), lambda: [tables.vectors(kind)])
        vectors = own.pointer
    *sums, pairs, pdfs, by_column, ends, column_sums = (memory.pointer for memory in shape)
    entries_there = [pairs, pairs]
    if leaks:
        made = device.resident(owner, ("entries", tables, of_arcs), lambda: entries(of_arcs, tables.layouts))
        entries_there = [memory.pointer for memory in made]
    forward = [*sums[:3], forward_arcs, entries_there[0]]
    backward = [*sums[3:], backward_arcs, entries_there[1]]
    return DeviceTables(forward, backward, vectors, pairs, pdfs, by_column, ends, column_sums)
