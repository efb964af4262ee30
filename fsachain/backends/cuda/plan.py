"""How a batch is computed: on chip or in memory, how many sequences a thread has, in which windows and kinds of number.

The plan of a table and the order of its sums depend on the table, the kind of number and the device, never on the batch;
what depends on the batch (sequences of a thread, blocks of a group, windows) changes no bit of the results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.backends.cuda.device import Limits
from fsachain.backends.cuda.layout import (
    LOG,
    LOG_2,
    PLAIN,
    PLAIN_SHIFT,
    SIZES,
    WIDE,
    Bytes,
    Division,
    Integers,
    Layout,
    encode_joined,
    encoded_vectors,
    fields_of,
    joined,
    lay_out,
    stacked,
    starts_of,
    with_column_sums,
)
from fsachain.table import TransitionTable

VALUE_BYTES, ENTRY_BYTES = (4, 8, 8), (8, 16, 16)  # by kind of number
CHUNK_BYTES, SEGMENT_BYTES, PAIR_BYTES = 16, 8, 8
# How weights of arcs are written: as plain ones, with exponents, as logs in float64.
COMPACT, EXPONENTS, LOGS = range(3)
ARC_BYTES = (8, 16, 16)

# As the enum GroupField of layout.cuh.
GROUP = fields_of(
    "shards first_shard states pairs columns vectors first_column first_pair_row probs history state work forward_partials "
    "backward_partials max_shard_states max_shard_pairs filled_pairs growth"
)
OF_TABLE = [name for name in GROUP.fields or () if name in (SIZES.fields or ())]
OF_GROUP = ("probs", "history", "state", "work")  # fields of a group that say where its values begin
FIRST_OF_GROUP = list(GROUP.fields or ()).index("probs")

HELD_CHUNKS = 1  # of each kind, whose place and length a thread keeps in registers
OWN_HELD_CHUNKS = 0  # the same of tables of one sequence each
# Frames on their way beside the next one, where there is room: a frame of a small table may take less time than a copy.
AHEAD = 0
PARTIALS = ("forward_partials", "backward_partials")
MAX_LANES = 4
WARP = 32
SHARD_ARCS, MAX_SHARDS = 4096, 512  # arcs of a shard in memory, and shards at most
OWN_THREADS = MEMORY_THREADS = 256
# With four sequences a thread of `forward` and `backward` needs up to 168 registers, which 384 of them may have.
MOST_THREADS = 384
# Blocks that run at once on a multiprocessor: what registers (128 for each thread) always allow.
RESIDENT_BLOCKS = 2


class Plan(NamedTuple):
    """Where and how tables are computed.

    on_chip: values in shared memory, else in global memory. cluster: blocks of a cluster, 1 in memory. threads: of a block.
    arcs_on_chip: arcs in shared memory too. max_lanes: sequences of a thread at most. chunk: segments of a chunk.
    forward_metadata, backward_metadata: see storage.cuh.
    sum_columns: see `layout.with_column_sums`. held_chunks, ahead, tiles: see storage.cuh.
    """

    on_chip: bool
    cluster: int
    threads: int
    arcs_on_chip: bool
    max_lanes: int
    chunk: int
    forward_metadata: int = 0
    backward_metadata: int = 0
    sum_columns: bool = False
    held_chunks: int = 0
    ahead: int = 0
    tiles: bool = False

    def sequences(self, lanes: int) -> int:
        """Sequences of a group whose threads have `lanes` each."""
        return lanes * (WARP // self.chunk)


@dataclass(frozen=True, eq=False)
class PlannedTables:
    """A plan and the layouts of the tables that it is for, one after another on the device."""

    plan: Plan
    layouts: tuple[Layout, ...]
    _shared_bytes: dict[tuple[int, int, int], int] = field(default_factory=dict, kw_only=True)
    _groups: dict[tuple[int, int], tuple[Integers, dict[str, int]]] = field(
        default_factory=dict, kw_only=True
    )

    @cached_property
    def sizes(self) -> npt.NDArray[Any]:
        """[tables] `SIZES`."""
        return stacked([layout.sizes for layout in self.layouts])

    @cached_property
    def most_shards(self) -> int:
        return int(self.sizes["shards"].max())

    @cached_property
    def counts(self) -> Integers:
        """[tables, `OF_GROUP`]: values that a sequence takes of probabilities, history, state and work."""
        sizes = self.sizes
        partials = [sizes[name if self.plan.on_chip else f"all_{name}"] for name in PARTIALS]
        # In memory: alphas, or pair values and betas, with partial sums and the shards' sums; see forward.cuh, backward.cuh.
        forward, backward = 2 * sizes["states"] + partials[0], sizes["pairs"] + sizes["states"] + partials[1]
        work = np.maximum(forward, backward) + 2 * sizes["shards"]
        return np.stack([sizes["columns"], sizes["pairs"], sizes["states"] + 1, work], axis=1)

    @cached_property
    def fields(self) -> Integers:
        """[tables, `GROUP`]: what does not depend on the sequences; 0 for the rest."""
        sizes, fields = self.sizes, np.zeros(len(self.sizes), GROUP)
        for name in OF_TABLE:
            fields[name] = sizes[f"all_{name}" if name in PARTIALS and not self.plan.on_chip else name]
        fields["first_shard"] = starts_of(sizes["shards"])
        fields["vectors"] = starts_of(2 * sizes["states"] + 2)
        fields["first_column"] = starts_of(sizes["columns"])
        fields["first_pair_row"] = starts_of(sizes["filled_pairs"])
        return fields.view(np.int64).reshape(len(fields), -1)

    def groups_of(self, rows: Integers, width: int) -> tuple[Integers, dict[str, int]]:
        """`Groups.fields` of groups of so many sequences whose tables are these, without growth; and `Groups.sizes`."""
        fields, counts = self.fields.take(rows, axis=0), self.counts.take(rows, axis=0)
        ends = counts.cumsum(axis=0)
        fields[:, FIRST_OF_GROUP : FIRST_OF_GROUP + len(OF_GROUP)] = (ends - counts) * width
        return fields, {name: width * total for name, total in zip(OF_GROUP, ends[-1].tolist(), strict=True)}

    def groups_of_one(self, count: int, width: int) -> tuple[Integers, dict[str, int]]:
        """As `groups_of`, of so many groups for the only table; kept."""
        key = count, width
        if key not in self._groups:
            self._groups[key] = self.groups_of(np.zeros(count, np.int64), width)
        return self._groups[key]

    def shape(self) -> list[npt.NDArray[Any]]:
        """See `layout.joined`."""
        return joined(self.layouts)

    def weights(self, kind: int, exponents: bool) -> list[Bytes]:
        """See `layout.encode_joined`."""
        return encode_joined(kind, exponents, self.layouts)

    def vectors(self, kind: int) -> npt.NDArray[Any]:
        """See `layout.encoded_vectors`."""
        return encoded_vectors(kind, self.layouts)

    def shared_bytes(self, kind: int, arc: int, lanes: int) -> int:
        key = kind, arc, lanes
        if key not in self._shared_bytes:
            self._shared_bytes[key] = int(shared_bytes(self.sizes, self.plan, *key).max())
        return self._shared_bytes[key]


@dataclass(frozen=True, eq=False)
class LaidOut(PlannedTables):
    """All tables of a batch on chip, as the arrays that are sent: what a worker has made, for numbers that are not plain.

    form: of the arcs of every table. rows: the number of each sequence's table; powers: its `Growth.powers`. all_sizes,
    shape_arrays, weight_arrays, log_vectors: what `sizes`, `shape`, `weights` of wide numbers and `vectors` of logs give.
    """

    form: int
    rows: Integers
    powers: Integers
    all_sizes: npt.NDArray[Any]
    shape_arrays: list[npt.NDArray[Any]]
    weight_arrays: list[Bytes]
    log_vectors: npt.NDArray[Any]

    @property
    def sizes(self) -> npt.NDArray[Any]:
        return self.all_sizes

    def shape(self) -> list[npt.NDArray[Any]]:
        return self.shape_arrays

    def weights(self, kind: int, exponents: bool) -> list[Bytes]:
        return self.weight_arrays

    def vectors(self, kind: int) -> npt.NDArray[Any]:
        return self.log_vectors


def shared_bytes(sizes: npt.NDArray[Any], plan: Plan, kind: int, arc: Any, lanes: int) -> Integers:
    """Shared memory that a block on chip needs for the larger of its two passes, [tables]; see the two kernels.

    Each array begins at a multiple of 16 bytes, for which some bytes are added. arc: bytes of an arc, of all tables or
    of each. lanes: sequences of a thread.
    """
    row, entry, pairs = VALUE_BYTES[kind] * lanes, ENTRY_BYTES[kind], sizes["max_shard_pairs"]
    arcs = arc if plan.arcs_on_chip else 0
    both: list[Any] = [
        row * (2 + plan.ahead) * sizes["columns"],
        row * 2 * plan.cluster * (plan.threads // WARP),
        16,
    ]
    chunks, segments = (
        [size * sizes[f"{direction}_{name}"] for direction in ("forward", "backward")]
        for name, size in (("chunks", CHUNK_BYTES), ("segments", SEGMENT_BYTES))
    )
    forward = [row * 2 * sizes["states"], row * sizes["forward_partials"], arcs * sizes["forward_arcs"]]
    forward += [chunks[0], segments[0], entry * pairs][: plan.forward_metadata]
    backward = [row * sizes["pairs"], row * sizes["max_shard_states"], row * (1 + plan.ahead) * pairs]
    backward += [row * sizes["backward_partials"], arcs * sizes["backward_arcs"]]
    read = [chunks[1], segments[1], PAIR_BYTES * pairs, entry * sizes["backward_segments"]]
    backward += read[: plan.backward_metadata]
    passes = [sum(arrays) + 16 * len(arrays) for arrays in (both + forward, both + backward)]
    return np.maximum(passes[0], passes[1])


def plan_shared(table: TransitionTable, limits: Limits, kind: int, arc: int) -> PlannedTables:
    """The plan of a graph that sequences share.

    The smallest cluster whose blocks hold their arcs, with enough sequences for each arc that is read; else the largest that
    holds the alphas, arcs through the cache; else memory.
    """
    wanted = MAX_LANES if kind == PLAIN else 2
    clusters = [size for size in (1, 2, 4, 8) if size <= limits.cluster]
    alphas = 2 * table.num_states * VALUE_BYTES[kind]
    best: PlannedTables | None = None
    for cluster in clusters:
        if table.num_arcs * arc // cluster + alphas > limits.shared_bytes:
            continue
        for tiles in (True, False):
            plan, layout = _on_chip(table, cluster, tiles)
            tables = _with_most_lanes(plan, layout, kind, arc, limits)
            if tables and (best is None or tables.plan.max_lanes > best.plan.max_lanes):
                best = tables
            if best and best.plan.max_lanes >= wanted:
                return best
            # With tiles, chunks of twins, which are not all full, may be what leaves too little room.
            if not plan.tiles:
                break
    if best is None and alphas <= limits.shared_bytes:
        plan, layout = _on_chip(table, clusters[-1], True)
        best = _with_most_lanes(plan._replace(arcs_on_chip=False), layout, kind, arc, limits)
    if best is None:
        plan, division = in_memory([table], WARP)
        best = PlannedTables(plan, tuple(lay_out([table], division)))
    return best


def _on_chip(table: TransitionTable, cluster: int, tiles: bool) -> tuple[Plan, Layout]:
    """tiles: sums of two states with the same arcs side by side in a thread, which reads each alpha or beta once."""
    arcs = table.num_arcs // cluster
    threads = next((size for size in (64, 128, 256) if arcs <= 8 * size), MOST_THREADS)
    longest = next((size for size in (16, 32) if arcs <= 3 * size * threads), 64)
    plan = Plan(True, cluster, threads, True, MAX_LANES, WARP, held_chunks=HELD_CHUNKS)
    (layout,) = lay_out([table], Division((cluster,), WARP, longest, spread=True, twins=tiles))
    tile_chunks = [direction.shards["tile_chunks"] for direction in (layout.forward, layout.backward)]
    plan = plan._replace(tiles=bool(np.any(tile_chunks)))
    # Where it halves what is kept of gammas, the backward pass sums them by column while they are on chip.
    summed = with_column_sums(layout)
    if 2 * len(summed.pairs_by_column) > len(layout.pairs_by_column):
        return plan, layout
    return plan._replace(sum_columns=True), summed


def _with_most_lanes(plan: Plan, layout: Layout, kind: int, arc: int, limits: Limits) -> PlannedTables | None:
    """With 4, 2 or 1 sequences of a thread, as many as shared memory holds, then metadata as it does; or None."""

    def fits(planned: Plan) -> bool:
        taken = shared_bytes(layout.sizes, planned, kind, arc, planned.max_lanes)
        return bool(taken.max() <= limits.shared_bytes)

    found = [plan._replace(max_lanes=lanes) for lanes in (4, 2, 1) if lanes <= MAX_LANES]
    best = next(filter(fits, found), None)
    if best is None:
        return None
    # What is left of the first-level cache beside so much shared memory holds little.
    if plan.cluster > 1:
        best = next(filter(fits, [best._replace(forward_metadata=count) for count in range(3, -1, -1)]))
        best = next(filter(fits, [best._replace(backward_metadata=count) for count in range(4, -1, -1)]))
    ahead = best._replace(ahead=AHEAD)
    return PlannedTables(ahead if fits(ahead) else best, (layout,))


def in_memory(tables: Sequence[TransitionTable], across: int) -> tuple[Plan, Division]:
    """For tables of any size, with `across` sequences side by side: 32, or 1 for tables of one sequence each."""
    shards = tuple(min(MAX_SHARDS, -(-max(table.num_arcs, 1) // SHARD_ARCS)) for table in tables)
    plan = Plan(False, 1, MEMORY_THREADS, False, 1, WARP // across)
    return plan, Division(shards, plan.chunk, 32)


def own_on_chip(tables: Sequence[TransitionTable]) -> tuple[Plan, Division]:
    """For tables of one sequence each, a block for each."""
    plan = Plan(True, 1, OWN_THREADS, True, 1, WARP, held_chunks=OWN_HELD_CHUNKS, ahead=AHEAD)
    return plan, Division((1,) * len(tables), WARP, 32)


USUAL_FRAMES = 500


def clusters_of(frames: npt.NDArray[Any], at_once: int) -> tuple[int, int]:
    """How many clusters, at most `at_once`, work on more groups of so many frames, the longest first, and frames of each.

    The latter is McNaughton's (1959) least time in which groups may change places; see `Turns` of recursion.cuh.
    """
    times = np.maximum(frames, 1)
    total = int(times.sum())
    span = max(int(times[0]), -(-total // at_once))
    return -(-total // span), span


def lanes_for(plan: Plan, size: int, at_once: Callable[[int], int]) -> int:
    """Sequences of a thread for `size` of them: as many as make the time of all groups least.

    at_once: how many groups of so many sequences a thread run at the same time; more take turns. By the wavefronts of shared
    memory that arcs and rows take, a frame of 1, 2 and 4 sequences takes 6.5, 8 and 11 units.
    """

    def time(lanes: int) -> float:
        groups = -(-size // plan.sequences(lanes))
        return clusters_of(np.full(groups, USUAL_FRAMES), at_once(lanes))[1] * (5.0 + 1.5 * lanes)

    return min((lanes for lanes in (4, 2, 1) if lanes <= plan.max_lanes), key=time)


@dataclass(frozen=True)
class Groups:
    """Sequences, longest first, in groups that a block, a cluster or blocks that share memory work on together.

    fields: [groups, `GROUP`] int64. lanes: int32 [2, lanes], the number of each lane's sequence in the batch, -1 for none,
    and its frames. sizes: values that probabilities, history, state and work of all groups take; of the first two for each
    frame.
    """

    fields: Integers
    lanes: npt.NDArray[np.int32]
    sizes: dict[str, int]
    num_lanes: int

    def in_windows(self, frames: int) -> Groups:
        """With probabilities and history of a group frame after frame of windows of so many."""
        self.fields[:, FIRST_OF_GROUP : FIRST_OF_GROUP + 2] *= frames
        return self


def make_groups(
    tables: PlannedTables,
    lanes: int,
    numbers: Integers,
    rows: Integers | None,
    lengths: Integers,
    growth: Integers,
) -> Groups:
    """Groups of the sequences `numbers` of a batch whose frames are `lengths`.

    `rows` are the numbers of their tables and `growth` that of each of the batch; None: there is one table and one growth.
    """
    width = tables.plan.sequences(lanes)
    lengths = lengths[numbers]
    order = (-lengths).argsort(kind="stable")
    count = -(-len(order) // width)
    placed = np.full((2, count * width), -1, dtype=np.int32)
    placed[:, : len(order)] = numbers[order], lengths[order]
    if rows is None:
        fields, sizes = tables.groups_of_one(count, width)
        fields = fields.copy()
        fields[:, -1] = growth
    else:
        fields, sizes = tables.groups_of(rows[order], width)
        fields[:, -1] = growth[numbers[order]]
    return Groups(fields, placed, sizes, count * width)


def window_of(kind: int, groups: Groups, num_frames: int, budget: float) -> int:
    """Frames of a window under `budget` bytes for history, probabilities and offsets, and for the states between windows."""
    value, sizes = VALUE_BYTES[kind], groups.sizes
    frame = (sizes["history"] + sizes["probs"]) * value + 8 * groups.num_lanes
    return frames_of_window(num_frames, frame, sizes["state"] * value, budget)


def frames_of_window(num_frames: int, frame_bytes: int, state_bytes: int, budget: float) -> int:
    """Frames of a window such that windows' states and one window's history fit `budget`, or come nearest to it."""
    if num_frames * frame_bytes + 2 * state_bytes <= budget:
        return max(num_frames, 1)
    best = max(1, round(math.sqrt(num_frames * state_bytes / frame_bytes)))
    for count in range(2, -(-num_frames // best)):
        frames = -(-num_frames // count)
        if frames * frame_bytes + (count + 1) * state_bytes <= budget:
            return frames
    return best


# The powers of two that a wide number may gain or lose over a sequence; `max_growth` of frames.cu has the same.
WIDE_BUDGET = 1 << 27
# Wide weights whose logs to base 2 are smaller than this need no exponents: what is lost is below 2^-46 of a sum.
COMPACT_LOG = 40.0


class Growth(NamedTuple):
    """How far the weights of a table and the leak may take numbers.

    powers: by how many powers of two a frame, the start or the end may change one beside the scores. is_compact: the weights
    of arcs need no exponents in wide numbers.
    """

    powers: int
    is_compact: bool


def growth_of(table: TransitionTable, leaky: float) -> Growth:
    weights, finals = _extremes(table.by_dst.log_prob), _extremes(table.final_log_prob)
    logs = *weights, *finals, *_extremes(table.initial_log_prob)
    powers = max(abs(x) for x in logs) + math.log2(table.num_arcs + table.num_states + 1) + 2.0
    if leaky > 0.0:
        init = table.leak_target
        powers += -math.log2(leaky) - float(init[init > -np.inf].min(initial=0.0)) / LOG_2
    is_compact = max(-weights[0], weights[1]) < COMPACT_LOG
    return Growth(int(min(math.ceil(powers), 2**40)), is_compact)


def least_plain_total(table: TransitionTable, leaky: float) -> float | None:
    """What the sum of scaled plain alphas must not fall below, by (13); None if plain numbers do not suit the table.

    In a frame, products of plain numbers below 2^-126 are lost, and a frame begins with alphas that sum to 2^60 n, n at
    least the result. All arcs together lose A W 2^-126 of probabilities and A W 2^-186 / n of alphas, W the largest weight;
    the beta of any state is at least c min init of the largest, so that losses below 2^-24 of n c min init do not count.
    """
    least_init = float(table.leak_target.min(initial=0.0)) / LOG_2
    if leaky <= 0.0 or least_init == -math.inf:
        return None
    weights, finals = _extremes(table.by_dst.log_prob), _extremes(table.final_log_prob)
    lost = math.log2(table.num_arcs + 1) + max(weights[1], 0.0) + 24.0
    room = math.log2(leaky) + least_init
    least = max(lost - 126.0 - room, (lost - 186.0 - room) / 2.0)
    in_range = weights[0] > -100.0 and max(-finals[0], finals[1]) < 20.0
    if not in_range or least > -20.0 or lost - least_init > 74.0:
        return None
    return 2.0 ** (PLAIN_SHIFT + least)


def _extremes(log: npt.NDArray[np.float64]) -> tuple[float, float]:
    """The least and the largest finite log to base 2; 0 where there is none."""
    finite = log[log > -np.inf]
    if not finite.size:
        return 0.0, 0.0
    return float(finite.min()) / LOG_2, float(finite.max()) / LOG_2


def form_of(kind: int, float64: bool, growth: Growth) -> int:
    """How the weights of a table's arcs are written.

    Logs read those of wide numbers, unless the scores are in float64 or a weight is beyond wide numbers.
    """
    if kind == LOG and (float64 or growth.powers >= WIDE_BUDGET):
        return LOGS
    return COMPACT if kind == PLAIN or growth.is_compact else EXPONENTS


LARGEST_HALF = 1.001 * 65_504 / LOG_2  # of |float16|, in powers of two, and what float32 may round


def kinds_of(
    dtype: str, least_total: float | None, lengths: npt.NDArray[np.int64], growth: Integers
) -> tuple[tuple[int, ...], npt.NDArray[np.int32]]:
    """The kinds of number that sequences of these lengths may need, in this order, and int32 [N]: the first for each."""
    if dtype == "float64":
        return (LOG,), np.full(len(lengths), LOG, np.int32)
    kinds = (WIDE, LOG) if least_total is None else (PLAIN, WIDE, LOG)
    # Logs where the table alone may exceed wide numbers; where no score of the type can, nothing needs them.
    powers, frames = int(growth.max()), int(lengths.max(initial=0)) + 2
    if powers * frames < WIDE_BUDGET:
        first = np.full(len(lengths), kinds[0], np.int32)
        if dtype == "float16" and WIDE_BUDGET / frames - powers > LARGEST_HALF:
            return kinds[:-1], first
        return kinds, first
    first = np.where(growth * (lengths + 2) < WIDE_BUDGET, kinds[0], LOG).astype(np.int32)
    return ((LOG,) if (first == LOG).all() else kinds), first
