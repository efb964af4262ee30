"""Where sequences of a batch are computed: on chip or in memory, how many a thread has, in which windows of frames.

The place of a table and the order of its sums depend on the table, the kind of number and the device, never on the batch;
what depends on the batch (sequences of a thread, blocks of a team, windows) changes no bit of the results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.backends.cuda.device import Limits
from fsachain.backends.cuda.layout import SIZES, Division, Integers, Layout, lay_out, starts_of
from fsachain.table import TransitionTable

# Places where the recursions run, seats of tables there, and what a block on chip needs; see `place.cuh`.

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


MAX_LANES = 4
# Sequences side by side in a warp of a shared graph in memory.
ACROSS = 32
# Arcs of a share in memory, and shares at most.
SHARE_ARCS, MAX_SHARES = 4096, 512
OWN_THREADS = MEMORY_THREADS = 256
# With four sequences a thread of `forward` and `backward` needs up to 168 registers, which 384 of them may have.
MOST_THREADS = 384
# Blocks of a team that run at once on a multiprocessor: what registers (128 for each thread) always allow.
RESIDENT_BLOCKS = 2


def seat_of_shared(table: TransitionTable, limits: Limits, kind: int, arc: int) -> Seat:
    """Where a graph that sequences share is computed.

    The smallest cluster whose blocks hold their arcs, with enough sequences for each arc that is read; else the largest that
    holds the alphas, arcs through the cache; else memory.
    """
    wanted = MAX_LANES if kind == PLAIN else 2
    clusters = [size for size in (1, 2, 4, 8) if size <= limits.cluster]
    best: tuple[int, Seat] | None = None
    for cluster in clusters:
        place, division = _on_chip(table, cluster)
        lower_bound = table.num_arcs * arc // cluster + 2 * table.num_states * VALUE_BYTES[kind]
        if lower_bound > limits.shared_bytes:
            continue
        (layout,) = lay_out([table], division)
        lanes = _most_lanes(layout, place, kind, arc, limits)
        if lanes and (best is None or lanes > best[0]):
            best = lanes, Seat(place._replace(max_lanes=lanes), (layout,))
        if lanes >= wanted:
            break
    if best is not None:
        return best[1]
    if 2 * table.num_states * VALUE_BYTES[kind] <= limits.shared_bytes:
        place, division = _on_chip(table, clusters[-1])
        (layout,), place = lay_out([table], division), place._replace(arcs_on_chip=False)
        lanes = _most_lanes(layout, place, kind, arc, limits)
        if lanes:
            return Seat(place._replace(max_lanes=lanes), (layout,))
    place, division = in_memory([table], ACROSS)
    return Seat(place, tuple(lay_out([table], division)))


def in_memory(tables: Sequence[TransitionTable], across: int) -> tuple[Place, Division]:
    """Tables of any size, with `across` sequences side by side: 32, or 1 for tables of one sequence each."""
    shares = tuple(min(MAX_SHARES, -(-max(table.num_arcs, 1) // SHARE_ARCS)) for table in tables)
    place = Place(False, 1, MEMORY_THREADS, False, 1, 32 // across)
    return place, Division(shares, place.slice, 32)


def own_on_chip(tables: Sequence[TransitionTable]) -> tuple[Place, Division]:
    """Tables of one sequence each, a block for each."""
    return Place(True, 1, OWN_THREADS, True, 1, 32), Division((1,) * len(tables), 32, 32)


def lanes_for(place: Place, size: int, limits: Limits) -> int:
    """Sequences of a thread for `size` of them: as many as leave no multiprocessor idle."""
    lanes = place.max_lanes
    while lanes > 1 and -(-size // lanes) * place.cluster * 4 < limits.multiprocessors * 3:
        lanes //= 2
    return lanes


def frames_of_window(num_frames: int, frame_bytes: int, state_bytes: int, budget: float) -> int:
    """Frames of a window such that windows' states and one window's history fit `budget`, or come nearest to it."""
    if num_frames * frame_bytes + 2 * state_bytes <= budget:
        return max(num_frames, 1)
    best = max(1, round(math.sqrt(num_frames * state_bytes / frame_bytes)))
    windows = -(-num_frames // best)
    for count in range(2, windows):
        frames = -(-num_frames // count)
        if frames * frame_bytes + (count + 1) * state_bytes <= budget:
            return frames
    return best


def _on_chip(table: TransitionTable, cluster: int) -> tuple[Place, Division]:
    arcs = table.num_arcs // cluster
    threads = next((size for size in (64, 128, 256) if arcs <= 8 * size), MOST_THREADS)
    longest = next((size for size in (16, 32) if arcs <= 3 * size * threads), 64)
    place = Place(True, cluster, threads, True, MAX_LANES, 32)
    return place, Division((cluster,), 32, longest)


def _most_lanes(layout: Layout, place: Place, kind: int, arc: int, limits: Limits) -> int:
    """4, 2 or 1 sequences of a thread, as many as shared memory holds; 0 for none."""
    for lanes in (4, 2, 1):
        if shared_bytes(layout.sizes[None], place, kind, arc, lanes)[0] <= limits.shared_bytes:
            return lanes
    return 0


# Groups of sequences: which sequences a launch works on, and where each group's rows begin.


@dataclass(frozen=True)
class Groups:
    """The sequences of one seat, longest first, in groups.

    Attributes:
        fields: int64 [groups, fields].
        sequences, lengths: int32 [lanes]: the number in the batch, -1 for none, and the frames of each lane.
        sizes: values that probabilities, history, state and work of all groups take; of the first two for each frame.
    """

    fields: Integers
    sequences: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]
    sizes: dict[str, int]


def make_groups(
    seat: Seat, lanes: int, numbers: Integers, rows: Integers | None, lengths: Integers, reach: Integers
) -> Groups:
    """Groups of the sequences `numbers` whose frames are `lengths`.

    `rows` are the numbers of their tables in the seat and `reach` those of each; None: there is one table and one reach.
    """
    width = seat.place.sequences(lanes)
    order = np.argsort(-lengths, kind="stable")
    count = -(-len(order) // width)
    sequences, frames = np.full((2, count * width), -1, dtype=np.int32)
    sequences[: len(order)], frames[: len(order)] = numbers[order], lengths[order]
    fields = np.repeat(seat.fields, count, axis=0) if rows is None else seat.fields[rows[order]]
    fields[:, GROUP_FIELDS["reach"]] = reach if rows is None else reach[order]
    totals = {}
    for name, of_group in _rows(fields).items():
        ends = np.cumsum(of_group * width)
        fields[:, GROUP_FIELDS[name]] = ends - of_group * width
        totals[name] = int(ends[-1])
    return Groups(fields, sequences, frames, totals)


def with_frames(fields: Integers, frames: int) -> Integers:
    """The fields for windows of so many frames: probabilities and history of a group lie frame after frame."""
    result = fields.copy()
    for name in ("probs", "history"):
        result[:, GROUP_FIELDS[name]] *= frames
    return result


def _rows(fields: Integers) -> dict[str, Integers]:
    """Rows of each group: of a frame of probabilities and of history, of states, of work in memory.

    Work is alphas, or pair values and betas, with partial sums and the shares' sums; see `forward.cuh`, `backward.cuh`.
    """

    def of(name: str) -> Integers:
        return fields[:, GROUP_FIELDS[name]]

    forward = 2 * of("states") + of("forward_parts")
    backward = of("pairs") + of("states") + of("backward_parts")
    work = np.maximum(forward, backward) + 2 * of("shares")
    return {"probs": of("columns"), "history": of("pairs"), "state": of("states") + 1, "work": work}


def window_of(kind: int, groups: Groups, num_frames: int, budget: float) -> int:
    """Frames of a window under `budget` bytes for history, probabilities and offsets, and for the states between windows."""
    value, sizes = VALUE_BYTES[kind], groups.sizes
    frame = (sizes["history"] + sizes["probs"]) * value + 8 * len(groups.sequences)
    return frames_of_window(num_frames, frame, sizes["state"] * value, budget)


# Log weights written as the numbers of `numbers.cuh`, and which kind of number a table and a length allow.

Floats = npt.NDArray[np.float64]

# As in `numbers.cuh`: the exponent of a wide zero, and what plain alphas are scaled by.
ZERO_EXPONENT = -(1 << 29)
PLAIN_SHIFT = 60
# The powers of two that a wide number may gain or lose over a sequence; `most_reach` of `frames.cu` has the same.
WIDE_BUDGET = 1 << 27
# Wide weights whose logs to base 2 are smaller than this need no exponents: what is lost is below 2^-46 of a sum.
COMPACT_REACH = 40.0
_LOG_2 = math.log(2.0)
_ENTRY_TYPES = (
    [("index", "<i4"), ("weight", "<f4")],
    [("index", "<i4"), ("weight", "<f4"), ("exponent", "<i4"), ("unused", "<i4")],
    [("index", "<i4"), ("unused", "<i4"), ("weight", "<f8")],
)


class Range(NamedTuple):
    """Logs to base 2 of what one table multiplies by: all finite; 0 where there is nothing.

    Attributes:
        least_weight, largest_weight: of arcs.
        least_final, largest_final: of finals.
        initial: the largest |log initial|.
        least_init: of leaks; -inf if some state is not reached by them.
    """

    least_weight: float
    largest_weight: float
    least_final: float
    largest_final: float
    initial: float
    least_init: float


def range_of(table: TransitionTable) -> Range:
    """What `table` multiplies by."""
    weights = _extremes(table.by_dst.log_prob)
    finals, initial = _extremes(table.final_log_prob), _extremes(table.initial_log_prob)
    least_init = float(table.leak_target.min(initial=0.0)) / _LOG_2
    return Range(*weights, *finals, max(-initial[0], initial[1]), least_init)


class Reach(NamedTuple):
    """What follows from the weights of a table and the leak.

    Attributes:
        powers: by how many powers of two one frame, the start or the end may change a number beside the scores.
        is_compact: the weights of arcs need no exponents in wide numbers.
    """

    powers: int
    is_compact: bool


def reach_of(table: TransitionTable, leaky: float) -> Reach:
    """The reach of `table`."""
    r = range_of(table)
    logs = [r.least_weight, r.largest_weight, r.least_final, r.largest_final, r.initial]
    powers = max(abs(x) for x in logs) + math.log2(table.num_arcs + table.num_states + 1) + 2.0
    if leaky > 0.0:
        init = table.leak_target
        powers += -math.log2(leaky) - float(init[init > -np.inf].min(initial=0.0)) / _LOG_2
    is_compact = max(-r.least_weight, r.largest_weight) < COMPACT_REACH
    return Reach(int(min(math.ceil(powers), 2**40)), is_compact)


def least_plain_total(table: TransitionTable, leaky: float) -> float | None:
    """What the sum of scaled plain alphas must not fall below, by (13); None if plain numbers do not suit the table.

    In a frame, products of plain numbers below 2^-126 are lost, and a frame begins with alphas that sum to 2^60 n, n at
    least the result. All arcs together lose A W 2^-126 of probabilities and A W 2^-186 / n of alphas, W the largest weight;
    the beta of any state is at least c min init of the largest, so that losses below 2^-24 of n c min init do not count.
    """
    r = range_of(table)
    if leaky <= 0.0 or r.least_init == -math.inf:
        return None
    lost = math.log2(table.num_arcs + 1) + max(r.largest_weight, 0.0) + 24.0
    room = math.log2(leaky) + r.least_init
    least = max(lost - 126.0 - room, (lost - 186.0 - room) / 2.0)
    in_range = r.least_weight > -100.0 and max(-r.least_final, r.largest_final) < 20.0
    if not in_range or least > -20.0 or lost - r.least_init > 74.0:
        return None
    return 2.0 ** (PLAIN_SHIFT + least)


def kinds_of(float64: bool, least_total: float | None) -> tuple[int, ...]:
    """The kinds of number that sequences may need, in this order."""
    if float64:
        return (LOG,)
    return (WIDE, LOG) if least_total is None else (PLAIN, WIDE, LOG)


def first_kinds(kinds: tuple[int, ...], lengths: npt.NDArray[np.int64], reach: npt.NDArray[Any]) -> Any:
    """int32 [N]: in which kind each sequence is tried first; logs where the table alone may exceed wide numbers."""
    return np.where(reach * (lengths + 2) < WIDE_BUDGET, kinds[0], LOG).astype(np.int32)


def entries(kind: int, index: npt.NDArray[np.int32], log: Floats) -> npt.NDArray[Any]:
    """The struct Entry of `numbers.cuh` for each index and log weight."""
    result = np.zeros(len(index), dtype=_ENTRY_TYPES[kind])
    result["index"] = index
    if kind == WIDE:
        result["weight"], result["exponent"] = _wide(log)
    else:
        result["weight"] = np.exp(log) if kind == PLAIN else log
    return result


def arcs(kind: int, exponents: bool, index: npt.NDArray[np.int32], log: Floats) -> npt.NDArray[Any]:
    """The struct Arc: an entry, of wide numbers without its exponent where weights allow that."""
    return entries(PLAIN if kind == WIDE and not exponents else kind, index, log)


def values(kind: int, log: Floats, plain_shift: Any = 0) -> npt.NDArray[Any]:
    """The type Value: exp(log), plain ones times 2^plain_shift."""
    if kind == LOG:
        return log
    if kind == PLAIN:
        return np.exp(log + plain_shift * _LOG_2).astype(np.float32)
    result = np.zeros(len(log), dtype=[("m", "<f4"), ("e", "<i4")])
    result["m"], result["e"] = _wide(log)
    return result


def vectors(kind: int, layouts: Sequence[Layout]) -> npt.NDArray[Any]:
    """`Layout.vectors` of several tables as numbers: initial ones scaled as plain alphas are."""
    log = np.concatenate([layout.vectors for layout in layouts])
    if kind != PLAIN:
        return values(kind, log)
    shift = []
    for layout in layouts:
        states = int(layout.sizes[SIZES["states"]])
        shift += [PLAIN_SHIFT] * states + [0] * states + [PLAIN_SHIFT, 0]
    return values(kind, log, np.array(shift))


def encode(kind: int, exponents: bool, layouts: Sequence[Layout]) -> list[list[npt.NDArray[np.uint8]]]:
    """Of each table the bytes of its arcs and entries, forward and backward, and vectors."""
    made, counts = [], []
    for name in ("forward", "backward"):
        directions = [getattr(layout, name) for layout in layouts]
        index, log, entry_index, entry_log = (
            [getattr(direction, array) for direction in directions]
            for array in ("arc_index", "arc_log", "entry_index", "entry_log")
        )
        made.append(arcs(kind, exponents, np.concatenate(index), np.concatenate(log)))
        made.append(entries(kind, np.concatenate(entry_index), np.concatenate(entry_log)))
        counts += [[len(array) for array in log], [len(array) for array in entry_log]]
    made.append(vectors(kind, layouts))
    counts.append([len(layout.vectors) for layout in layouts])
    pieces = []
    for array, numbers in zip(made, counts, strict=True):
        flat = array.view(np.uint8)
        ends = (np.cumsum(numbers) * array.itemsize).tolist()
        pieces.append([flat[b:e].copy() for b, e in zip([0, *ends], ends, strict=False)])
    return [list(of_table) for of_table in zip(*pieces, strict=True)]


def _wide(log: Floats) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
    finite = log > -np.inf
    usable = np.where(finite, log, 0.0)
    # Beyond the limits are only tables that run in logs.
    whole = np.clip(np.floor(usable / _LOG_2), -(2.0**28), 2.0**28)
    with np.errstate(over="ignore"):
        rest = np.exp(np.clip(usable - whole * _LOG_2, 0.0, _LOG_2)).astype(np.float32)
    mantissa, up = np.where(rest >= 2.0, rest / 2.0, rest), rest >= 2.0
    exponent = np.where(finite, whole + up, ZERO_EXPONENT).astype(np.int32)
    return np.where(finite, mantissa, 0.0).astype(np.float32), exponent


def _extremes(log: Floats) -> tuple[float, float]:
    finite = log[log > -np.inf]
    if not finite.size:
        return 0.0, 0.0
    return float(finite.min()) / _LOG_2, float(finite.max()) / _LOG_2
