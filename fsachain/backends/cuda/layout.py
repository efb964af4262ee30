"""Tables as the CUDA kernels read them; kernels/layout.cuh has the terms.

States are dealt over shards. The arcs of a shard stand in segments, up to some dozens of arcs of one state, and segments of
about equal length in chunks: the sparse format SELL-C-sigma (Kreutzer et al. 2014), C = `Division.chunk`.

Layouts are made for several tables at once, of any number of shards each, because numpy takes as long for one small table as
for dozens. What is made of a table depends neither on the others nor on the kind of number in which the kernels compute;
`encode` writes its log weights as numbers of a kind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.fsa import Floats
from fsachain.recursion import log_sum_rows
from fsachain.table import TransitionTable

Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

WHOLE, PART, SPLIT = range(3)  # levels of segments: all arcs of a state, some of them, the sums of such parts
_ENDS_PAIR = np.int64(-(2**31))


def fields_of(names: str) -> np.dtype[Any]:
    return np.dtype([(name, np.int64) for name in names.split()])


# As the enum ShardField of layout.cuh.
SHARD = fields_of(
    "whole_chunks part_chunks split_chunks tile_chunks first_chunk first_segment segments first_arc arcs first_entry "
    "entries first_pair pair_rows pair_base state_base states partial_base"
)
# Of a table: its shards, states, rows of pairs, active pdfs, and pairs without holes; the states, rows of pairs, arcs and
# partial sums of the shard with most of them; the partial sums of all shards; chunks and segments as arcs.
SIZES = fields_of(
    "shards states pairs columns filled_pairs max_shard_states max_shard_pairs forward_arcs backward_arcs forward_partials "
    "backward_partials all_forward_partials all_backward_partials forward_chunks backward_chunks forward_segments "
    "backward_segments"
)


class Division(NamedTuple):
    """How tables are divided.

    shards: of each table. chunk: segments of a chunk, 32 or 1. longest: arcs of a segment. spread: whether arcs stand so
    that neighbours read rows in different banks of shared memory, which takes time and pays for large graphs. twins: whether
    two states whose arcs lead to the same pairs are kept together, so that a thread reads a row once for both.
    """

    shards: tuple[int, ...]
    chunk: int
    longest: int
    spread: bool = False
    twins: bool = False


class Direction(NamedTuple):
    """Arcs by destination (forward) or by source (backward), all shards one after another.

    shards: [shards] `SHARD`. chunks: int32 [*, 4]. segments: int32 [*, 2]. arc_index: int32; arc_log: log weights, 0 of
    partial sums. entry_index: int32, entry_log: of each pair row its column and log r (forward), r = sum of w init(src); of
    each segment log init of its state (backward). partials: partial sums of each shard.
    """

    shards: npt.NDArray[Any]
    chunks: npt.NDArray[np.int32]
    segments: npt.NDArray[np.int32]
    arc_index: npt.NDArray[np.int32]
    arc_log: Floats
    entry_index: npt.NDArray[np.int32]
    entry_log: Floats
    partials: Integers


@dataclass(frozen=True, eq=False)
class Layout:
    """A table, laid out.

    pairs: int32 [pair rows, 2], column and destination, -1 for holes. pdfs: the active pdfs. column_ends: where each
    column's pairs end in `pairs_by_column`, which are rows of pairs. vectors: [2 S + 2] logs, initial and final by the new
    numbers of the states, the sum of initial, the sum of init final. sizes: [1] `SIZES`. column_sums: see
    `with_column_sums`. encoded: what `encode` has made of it.
    """

    forward: Direction
    backward: Direction
    pairs: npt.NDArray[np.int32]
    pdfs: npt.NDArray[np.int32]
    column_ends: npt.NDArray[np.int32]
    pairs_by_column: npt.NDArray[np.int32]
    vectors: Floats
    sizes: npt.NDArray[Any]
    column_sums: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    encoded: dict[tuple[int, bool], list[Bytes]] = field(default_factory=dict)


class _Shards(NamedTuple):
    """of_state: the shard of each state; states, table: of each shard; first_state: of each table."""

    of_state: Integers
    states: Integers
    table: Integers
    first_state: Integers


class _Segments(NamedTuple):
    """Segments, and the arcs or partial sums in them, segment after segment.

    shard, level, row, state, length, pairs: [segments]. segment, target, log, run: of each arc or partial; run is that of
    the pair it ends, else -1.
    """

    shard: Integers
    level: Integers
    row: Integers
    state: Integers
    length: Integers
    pairs: Integers
    segment: Integers
    target: Integers
    log: Floats
    run: Integers


class _Chunks(NamedTuple):
    """Where segments stand. chunk, slot: [segments]; length, pairs, shard: [chunks]; counts: [shards, levels].

    tiles: [shards] the chunks, first among those of parts, of which every other one holds the twins of that before.
    """

    chunk: Integers
    slot: Integers
    length: Integers
    pairs: Integers
    shard: Integers
    counts: Integers
    tiles: Integers


class _Arcs(NamedTuple):
    """All arcs of all tables by destination, states in their new numbers; `run` numbers (destination, column)."""

    src: Integers
    dst: Integers
    column: Integers
    log_prob: Floats
    run: Integers


def starts_of(counts: Any) -> Integers:
    """Where each of consecutive pieces begins."""
    return np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)


def stacked(records: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Arrays of `fields_of` one after another; numpy would compare their fields for each anew."""
    return np.concatenate([array.view(np.int64) for array in records]).view(records[0].dtype)


def lay_out(tables: Sequence[TransitionTable], division: Division) -> list[Layout]:
    num_states = np.array([table.num_states for table in tables], dtype=np.int64)
    first_state = starts_of(num_states)
    order, shard_states = _deal(tables, division, first_state)
    arcs = _sorted_arcs(tables, first_state, order)
    of_state = np.repeat(np.arange(len(shard_states)), shard_states)
    shards = _Shards(of_state, shard_states, np.repeat(np.arange(len(tables)), division.shards), first_state)
    init = np.concatenate([table.leak_target for table in tables])[order]
    tail = arcs.src - first_state[shards.table[of_state[arcs.dst]]]
    segments = _cut(arcs.dst, arcs.run, tail, arcs.log_prob, division.longest, shards)
    forward, position, pairs, first_arc = _forward(arcs, segments, init, shards, division)
    # `position`: row of each run over all tables; the backward pass counts within the table.
    table_of_run = shards.table[of_state[arcs.dst[first_arc]]]
    rows = np.bincount(shards.table, forward.shards["pair_rows"], len(tables)).astype(np.int64)
    local = position - starts_of(rows)[table_of_run]
    by_src = np.argsort(arcs.src, kind="stable")
    tail = arcs.src[by_src]
    segments = _cut(tail, tail, local[arcs.run[by_src]], arcs.log_prob[by_src], division.longest, shards)
    backward = _backward(segments, init, forward.shards, shards, division)

    columns = np.array([len(table.active_pdfs) for table in tables])
    over_all = starts_of(columns)[table_of_run] + arcs.column[first_arc]
    filled = np.bincount(table_of_run, minlength=len(tables))
    in_column = np.bincount(over_all, minlength=int(columns.sum()))
    column_ends = np.cumsum(in_column) - np.repeat(starts_of(filled), columns)

    sizes, first_shard = np.zeros(len(tables), SIZES), starts_of(division.shards)
    sizes["shards"], sizes["states"], sizes["pairs"] = division.shards, num_states, rows
    sizes["columns"], sizes["filled_pairs"] = columns, filled
    sizes["max_shard_states"] = np.maximum.reduceat(shard_states, first_shard)
    sizes["max_shard_pairs"] = np.maximum.reduceat(forward.shards["pair_rows"], first_shard)
    for name, direction in (("forward", forward), ("backward", backward)):
        sizes[f"{name}_arcs"] = np.maximum.reduceat(direction.shards["arcs"], first_shard)
        sizes[f"{name}_partials"] = np.maximum.reduceat(direction.partials, first_shard)
        chunks = sum(direction.shards[f"{level}_chunks"] for level in ("whole", "part", "split"))
        sizes[f"{name}_chunks"] = np.maximum.reduceat(chunks, first_shard)
        sizes[f"{name}_segments"] = np.maximum.reduceat(direction.shards["segments"], first_shard)
        sizes[f"all_{name}_partials"] = np.add.reduceat(direction.partials, first_shard)
    together = Layout(
        forward,
        backward,
        pairs,
        np.concatenate([table.active_pdfs for table in tables]).astype(np.int32),
        column_ends.astype(np.int32),
        local[np.lexsort((local, over_all))].astype(np.int32),
        _vectors(tables, order, init, first_state),
        sizes,
    )
    return _split(together)


def _deal(
    tables: Sequence[TransitionTable], division: Division, first_state: Integers
) -> tuple[Integers, Integers]:
    """Old state of each new one, shard after shard, and the states of each shard: like cards, the heaviest first.

    Twins are one card.
    """
    orders, counts = [], []
    for table, shards, first in zip(tables, division.shards, first_state, strict=True):
        states = np.arange(table.num_states)
        if shards > 1:
            weight = np.diff(table.by_dst.offsets) + np.diff(table.by_src.offsets)
            unit = states
            if division.twins:
                out = table.by_src
                number, _ = _in_twos(
                    np.split(out.dst * len(table.active_pdfs) + out.column, out.offsets[1:-1])
                )
                unit = np.unique(number, return_inverse=True)[1]
            weight = np.bincount(unit, weight)
            rank = np.empty(len(weight), dtype=np.int64)
            rank[np.argsort(-weight, kind="stable")] = np.arange(len(weight))
            lap, card = np.divmod(rank, shards)
            shard = np.where(lap % 2 == 0, card, shards - 1 - card)[unit]
            states = np.lexsort((states, shard))
            counts.append(np.bincount(shard, minlength=shards))
        else:
            counts.append(np.array([table.num_states]))
        orders.append(states + first)
    return np.concatenate(orders).astype(np.int64), np.concatenate(counts).astype(np.int64)


def _in_twos(lists: Sequence[npt.NDArray[Any]]) -> tuple[Integers, npt.NDArray[np.bool_]]:
    """For each list the first of the two equal ones that it belongs to, itself if there is no other; which are second."""
    first, second, waiting = np.arange(len(lists)), np.zeros(len(lists), dtype=bool), dict[bytes, int]()
    for number, values in enumerate(lists):
        key = values.tobytes()
        if key in waiting:
            first[number], second[number] = waiting.pop(key), True
        else:
            waiting[key] = number
    return first, second


def _sorted_arcs(tables: Sequence[TransitionTable], first_state: Integers, order: Integers) -> _Arcs:
    new = np.empty_like(order)
    new[order] = np.arange(len(order))
    views = [table.by_dst for table in tables]
    shift = np.repeat(first_state, [len(view.arc) for view in views])
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


def _cut(
    key: Integers, run: Integers, index: Integers, log: Floats, longest: int, shards: _Shards
) -> _Segments:
    """Segments of arcs that are sorted by `key`, their state, and within it by run."""
    states = len(shards.of_state)
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
    segment = np.cumsum(begins) - 1
    length = np.diff(np.append(first, len(key)))
    state, level = key[first], np.where(split[first], PART, WHOLE)
    # A part's row is the number of its sum within the shard, a state's the number of the state within the table.
    parts = np.flatnonzero(level == PART)
    shard = shards.of_state[state]
    partial = np.arange(len(parts)) - np.searchsorted(shard[parts], shard[parts])
    row = state - shards.first_state[shards.table[shard]]
    row[parts] = partial
    # The second level: partials are the arcs, and the last part of a run ends a pair.
    last = first[parts] + length[parts] - 1
    split_states, split_segment = np.unique(state[parts], return_inverse=True)
    empty = np.flatnonzero(degree == 0)
    more = np.concatenate([split_states, empty])
    more_shard = shards.of_state[more]
    lengths = np.concatenate(
        [length, np.bincount(split_segment, minlength=len(split_states)), np.zeros_like(empty)]
    )
    closes = np.concatenate(
        [np.where(ends_run & ~split, run, -1), np.where(ends_run[last], run[last], -1)]
    ).astype(np.int64)
    owner = np.concatenate([segment, len(first) + split_segment])
    return _Segments(
        shard=np.concatenate([shard, more_shard]),
        level=np.concatenate([level, np.full(len(split_states), SPLIT), np.full(len(empty), WHOLE)]),
        row=np.concatenate([row, more - shards.first_state[shards.table[more_shard]]]),
        state=np.concatenate([state, more]),
        length=lengths,
        pairs=np.bincount(owner[closes >= 0], minlength=len(lengths)),
        segment=owner,
        target=np.concatenate([index, partial]),
        log=np.concatenate([log, np.zeros(len(parts))]),
        run=closes,
    )


def _chunked(segments: _Segments, division: Division, num_shards: int) -> _Chunks:
    """Segments of each shard and level, the longest first, in chunks of `division.chunk`; twins before other parts."""
    width, level = division.chunk, segments.shard * 3 + segments.level
    each = np.arange(len(level))
    first, second, tiled = each, np.zeros(len(level), dtype=bool), np.zeros(len(level), dtype=bool)
    if division.twins:
        parts = np.flatnonzero(segments.level == PART)
        at = np.searchsorted(segments.segment, parts)
        ends = at + segments.length[parts]
        keys = [
            np.append(segments.target[b:e], -1 - s)
            for b, e, s in zip(at, ends, segments.shard[parts], strict=True)
        ]
        of, second[parts] = _in_twos(keys)
        first = each.copy()
        first[parts] = parts[of]
        tiled[first[second]] = tiled[second] = True
    # Seconds are counted with their firsts, so that both have the same slot.
    kind = 2 * level + ~tiled
    order = np.lexsort((first, -segments.pairs, -segments.length, second, kind))
    sizes = np.bincount(kind[~second], minlength=6 * num_shards)
    rank = np.empty_like(order)
    ones = order[~second[order]]
    rank[ones] = np.arange(len(ones)) - np.repeat(starts_of(sizes), sizes)
    rank = rank[first]
    chunks = -(-sizes // width).reshape(-1, 2)
    tiles = 2 * chunks[:, 0]
    per_level = tiles + chunks[:, 1]
    within = np.where(tiled, 2 * (rank // width) + second, tiles[level] + rank // width)
    number = starts_of(per_level)[level] + within
    length, pairs = np.zeros((2, int(per_level.sum())), dtype=np.int64)
    np.maximum.at(length, number, segments.length)
    np.maximum.at(pairs, number, segments.pairs)
    shard = np.repeat(np.arange(3 * num_shards) // 3, per_level)
    counts = per_level.reshape(num_shards, 3)
    return _Chunks(number, rank % width, length, pairs, shard, counts, tiles.reshape(num_shards, 3)[:, PART])


# Rows of 16 bytes that are read at once, by a quarter of a warp: one from each of the groups of banks, or the same.
_BANKS = 8


def _spread(segments: _Segments, chunks: _Chunks, division: Division) -> _Segments:
    """The arcs of each pair in another order: those that a quarter of a warp reads at once from different banks.

    Of a few orders each quarter gets the one by which it reads the least often.
    """
    if not division.spread:
        return segments
    bank = segments.target % _BANKS
    begins = np.ones(len(bank), dtype=bool)
    begins[1:] = (segments.segment[1:] != segments.segment[:-1]) | (segments.run[:-1] >= 0)
    piece = np.cumsum(begins) - 1
    quarter = chunks.chunk * (division.chunk // _BANKS) + chunks.slot // _BANKS
    of_slot = np.full((_BANKS, int(quarter.max()) + 1), -1)
    of_slot[chunks.slot % _BANKS, quarter] = np.arange(len(segments.length))
    first = np.searchsorted(segments.segment, np.arange(len(segments.length)))  # of each segment
    shape = of_slot, first, segments.length, piece, bank, quarter[segments.segment]
    found = [_in_turns(*shape, stay) for stay in (1, 4, 8, 32)]
    best = np.argmin([reads for _, reads in found], axis=0)
    taken = np.stack([arcs for arcs, _ in found])[best[quarter[segments.segment]], np.arange(len(bank))]
    return segments._replace(target=segments.target[taken], log=segments.log[taken])


def _in_turns(
    of_slot: Integers,
    first: Integers,
    length: Integers,
    piece: Integers,
    bank: Integers,
    quarter: Integers,
    stay: int,
) -> tuple[Integers, Integers]:
    """The arc for each place, and how often each quarter reads.

    Step by step each segment of a quarter takes an arc of its next pair, those with the least choice first: of a bank that
    the step has used least; of these, one of which the quarter and, `stay` times as important, the pair have most left.

    of_slot: [slots, quarters] segments, -1 for none. piece, bank, quarter: of each arc.
    """
    quarters = of_slot.shape[1]
    left = np.bincount(piece * _BANKS + bank, minlength=(piece[-1] + 1) * _BANKS).reshape(-1, _BANKS)
    order = np.lexsort((bank, piece))
    next_of = starts_of(left.ravel()).reshape(left.shape)
    taken, reads = np.empty_like(piece), np.zeros(quarters, dtype=np.int64)
    demand = np.bincount(quarter * _BANKS + bank, minlength=quarters * _BANKS).reshape(quarters, _BANKS)
    for step in range(int(length.max(initial=0))):
        used = np.zeros((quarters, _BANKS), dtype=np.int64)
        choice = np.full(of_slot.shape, _BANKS + 1)
        busy = (of_slot >= 0) & (length[of_slot] > step)
        choice[busy] = (left[piece[first[of_slot[busy]] + step]] > 0).sum(axis=1)
        for slot in np.argsort(choice, axis=0, kind="stable"):
            row = np.flatnonzero(busy[slot, np.arange(quarters)])
            at = first[of_slot[slot[row], row]] + step
            own = piece[at]
            score = demand[row] + stay * left[own] - (used[row] << 32)
            best = np.where(left[own] > 0, score, np.iinfo(np.int64).min).argmax(axis=1)
            taken[at] = order[next_of[own, best]]
            next_of[own, best] += 1
            left[own, best] -= 1
            used[row, best] += 1
            demand[row, best] -= 1
        reads += used.max(axis=1)
    return taken, reads


def _arrange(
    segments: _Segments, chunks: _Chunks, shards: _Shards, width: int
) -> tuple[Direction, Integers, Integers]:
    """All but the entries; and the first pair row of each chunk, over all tables, and the slot of each segment."""
    num_shards, per_shard = len(shards.states), chunks.counts.sum(axis=1)
    fields = np.zeros(num_shards, SHARD)
    for level, name in enumerate(("whole_chunks", "part_chunks", "split_chunks")):
        fields[name] = chunks.counts[:, level]
    fields["tile_chunks"] = chunks.tiles
    fields["first_chunk"], fields["segments"] = starts_of(per_shard), per_shard * width
    fields["first_segment"] = starts_of(fields["segments"])
    fields["arcs"] = np.bincount(chunks.shard, chunks.length * width, num_shards)
    fields["first_arc"] = starts_of(fields["arcs"])
    fields["pair_rows"] = np.bincount(chunks.shard, chunks.pairs * width, num_shards)
    fields["first_pair"] = starts_of(fields["pair_rows"])
    fields["states"] = shards.states
    partials = np.bincount(segments.shard[segments.level == PART], minlength=num_shards)
    first_of_table = np.searchsorted(shards.table, shards.table)
    for name, counts in (("pair", fields["pair_rows"]), ("state", shards.states), ("partial", partials)):
        fields[f"{name}_base"] = starts_of(counts) - starts_of(counts)[first_of_table]

    first_arc, first_pair = starts_of(chunks.length * width), starts_of(chunks.pairs * width)
    first_segment = np.arange(len(chunks.length)) * width
    slot = chunks.chunk * width + chunks.slot
    segment_rows = np.tile(np.array([[-1, 0]], dtype=np.int32), (len(chunks.length) * width, 1))
    segment_rows[slot, 0], segment_rows[slot, 1] = segments.row, segments.length
    # Arcs of the first level stand in the order of their segments, those of the second behind them.
    first = starts_of(np.bincount(segments.segment, minlength=len(segments.length)))
    k = np.arange(len(segments.segment)) - first[segments.segment]
    where = first_arc[chunks.chunk[segments.segment]] + k * width + chunks.slot[segments.segment]
    total = int((chunks.length * width).sum())
    arc_index, arc_log = np.zeros(total, dtype=np.int32), np.full(total, -np.inf)
    arc_index[where] = np.where(segments.run >= 0, segments.target + _ENDS_PAIR, segments.target)
    arc_log[where] = segments.log
    rows = np.stack(
        [
            first_arc - fields["first_arc"][chunks.shard],
            chunks.length,
            first_segment - fields["first_segment"][chunks.shard],
            first_pair - fields["first_pair"][chunks.shard],
        ],
        axis=1,
    )
    nothing: Any = np.empty(0, dtype=np.int32)
    made = Direction(
        fields, rows.astype(np.int32), segment_rows, arc_index, arc_log, nothing, np.empty(0), partials
    )
    return made, first_pair, slot


def _forward(
    arcs: _Arcs, segments: _Segments, init: Floats, shards: _Shards, division: Division
) -> tuple[Direction, Integers, npt.NDArray[np.int32], Integers]:
    """The arcs by destination; the row of each run over all tables; `Layout.pairs`; and the first arc of each run."""
    width = division.chunk
    chunks = _chunked(segments, division, len(shards.states))
    made, first_pair, _ = _arrange(_spread(segments, chunks, division), chunks, shards, width)
    closing = np.flatnonzero(segments.run >= 0)
    segment = segments.segment[closing]
    rank = np.arange(len(closing)) - np.searchsorted(segment, segment)  # segments are in order
    position = np.empty(len(closing), dtype=np.int64)
    position[segments.run[closing]] = first_pair[chunks.chunk[segment]] + rank * width + chunks.slot[segment]
    first = np.searchsorted(arcs.run, np.arange(len(closing)))
    rows = int(made.shards["pair_rows"].sum())
    pairs, log_r = np.full((rows, 2), -1, dtype=np.int32), np.full(rows, -np.inf)
    table = shards.table[shards.of_state[arcs.dst[first]]]
    pairs[position] = np.stack([arcs.column[first], arcs.dst[first] - shards.first_state[table]], axis=1)
    log_r[position] = log_sum_rows(arcs.log_prob + init[arcs.src], np.append(first, len(arcs.run)))
    made.shards["first_entry"], made.shards["entries"] = made.shards["first_pair"], made.shards["pair_rows"]
    entry_index = np.ascontiguousarray(np.maximum(pairs[:, 0], 0))
    return made._replace(entry_index=entry_index, entry_log=log_r), position, pairs, first


def _backward(
    segments: _Segments, init: Floats, forward: npt.NDArray[Any], shards: _Shards, division: Division
) -> Direction:
    chunks = _chunked(segments, division, len(shards.states))
    made, _, slot = _arrange(_spread(segments, chunks, division), chunks, shards, division.chunk)
    for name in ("first_pair", "pair_rows", "pair_base"):
        made.shards[name] = forward[name]
    made.shards["first_entry"], made.shards["entries"] = (
        made.shards["first_segment"],
        made.shards["segments"],
    )
    log_init = np.full(len(made.segments), -np.inf)
    summed = segments.level != PART
    log_init[slot[summed]] = init[segments.state[summed]]
    entry_index = np.ascontiguousarray(np.maximum(made.segments[:, 0], 0))
    return made._replace(entry_index=entry_index, entry_log=log_init)


def _vectors(
    tables: Sequence[TransitionTable], order: Integers, init: Floats, first_state: Integers
) -> Floats:
    initial = np.concatenate([table.initial_log_prob for table in tables])[order]
    final = np.concatenate([table.final_log_prob for table in tables])[order]
    bounds = np.append(first_state, len(order))
    sums = log_sum_rows(initial, bounds), log_sum_rows(init + final, bounds)
    pieces: list[Floats] = []
    for n, (begin, end) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        pieces += [initial[begin:end], final[begin:end], sums[0][n : n + 1], sums[1][n : n + 1]]
    return np.concatenate(pieces)


def with_column_sums(layout: Layout) -> Layout:
    """A layout for a backward pass that sums gammas of a shard by column, and keeps the sums in place of its first pairs.

    column_sums: the first sum of each shard and their number; where the pairs of each end in the list that follows; pairs of
    a shard, by column, as rows of the shard. `pairs_by_column` are the rows of sums.
    """
    base = layout.backward.shards["pair_base"]
    pair = np.flatnonzero(layout.pairs[:, 0] >= 0)
    shard, column = np.searchsorted(base, pair, side="right") - 1, layout.pairs[pair, 0]
    order = np.lexsort((pair, column, shard))
    pair, shard, column = pair[order], shard[order], column[order]
    begins = np.flatnonzero(np.diff(shard, prepend=-1) | np.diff(column, prepend=-1))
    of_shard, of_column = shard[begins], column[begins]
    first = np.searchsorted(of_shard, np.arange(len(base) + 1))
    rows = base[of_shard] + np.arange(len(begins)) - first[of_shard]
    by_column = np.lexsort((rows, of_column))
    ends = np.searchsorted(of_column[by_column], np.arange(len(layout.pdfs)), side="right")
    lists = first, np.append(begins, len(pair))[1:], pair - base[shard]
    return replace(
        layout,
        pairs_by_column=rows[by_column].astype(np.int32),
        column_ends=ends.astype(np.int32),
        column_sums=np.concatenate(lists).astype(np.int32),
        encoded={},
    )


# Of the arrays of a direction, the field of a shard that says where its part begins.
_BEGINS = {
    "chunks": "first_chunk",
    "segments": "first_segment",
    "arc_index": "first_arc",
    "arc_log": "first_arc",
    "entry_index": "first_entry",
    "entry_log": "first_entry",
}
_FIRSTS = ("first_chunk", "first_segment", "first_arc", "first_entry", "first_pair")


def _split(together: Layout) -> list[Layout]:
    """The layouts of several tables that stand one after another."""
    sizes = together.sizes
    parts = zip(
        _split_direction(together.forward, sizes["shards"]),
        _split_direction(together.backward, sizes["shards"]),
        _pieces(together.pairs, sizes["pairs"]),
        _pieces(together.pdfs, sizes["columns"]),
        _pieces(together.column_ends, sizes["columns"]),
        _pieces(together.pairs_by_column, sizes["filled_pairs"]),
        _pieces(together.vectors, 2 * sizes["states"] + 2),
        _pieces(sizes, np.ones(len(sizes), int)),
        strict=True,
    )
    return [Layout(*part) for part in parts]


def _split_direction(together: Direction, shards: Integers) -> list[Direction]:
    begins, cuts = np.cumsum(shards) - shards, {}
    for name, first in _BEGINS.items():
        values = getattr(together, name)
        cuts[name] = _pieces(values, np.diff(together.shards[first][begins], append=len(values)))
    result = []
    fields_of_each, partials = _pieces(together.shards, shards), _pieces(together.partials, shards)
    for n, fields in enumerate(fields_of_each):
        for name in _FIRSTS:
            fields[name] -= fields[name][0]
        arrays = {name: pieces[n] for name, pieces in cuts.items()}
        result.append(Direction(fields, **arrays, partials=partials[n]))
    return result


def _pieces(values: npt.NDArray[Any], counts: Integers) -> list[npt.NDArray[Any]]:
    """Copies, since a view would keep what belongs to all tables as long as one of them."""
    ends = np.cumsum(counts).tolist()
    return [values[end - count : end].copy() for end, count in zip(ends, counts.tolist(), strict=True)]


def joined(layouts: Sequence[Layout]) -> list[npt.NDArray[Any]]:
    """The arrays of tables that are the same in all kinds of number, each of all tables one after another.

    Forward and backward: shards, chunks, segments. Then pairs, pdfs, pairs_by_column, column_ends, column_sums.
    """
    arrays: list[npt.NDArray[Any]] = []
    for directions in ([layout.forward for layout in layouts], [layout.backward for layout in layouts]):
        fields = stacked([d.shards for d in directions])
        counts = [
            (len(d.chunks), len(d.segments), len(d.arc_index), len(d.entry_index), len(layout.pairs))
            for d, layout in zip(directions, layouts, strict=True)
        ]
        before = np.cumsum(counts, axis=0) - counts
        shards = [len(d.shards) for d in directions]
        for number, name in enumerate(_FIRSTS):
            fields[name] += np.repeat(before[:, number], shards)
        arrays += [
            fields,
            np.concatenate([d.chunks for d in directions]),
            np.concatenate([d.segments for d in directions]),
        ]
    for name in ("pairs", "pdfs", "pairs_by_column", "column_ends", "column_sums"):
        arrays.append(np.concatenate([getattr(layout, name) for layout in layouts]))
    return arrays


# Log weights as the numbers of numbers.cuh.

PLAIN, WIDE, LOG = range(3)
ZERO_EXPONENT = -(1 << 29)  # of a wide zero
PLAIN_SHIFT = 60  # plain alphas are scaled by 2^60
LOG_2 = math.log(2.0)
_ENTRY_TYPES = (
    [("index", "<i4"), ("weight", "<f4")],
    [("index", "<i4"), ("weight", "<f4"), ("exponent", "<i4"), ("unused", "<i4")],
    [("index", "<i4"), ("unused", "<i4"), ("weight", "<f8")],
)


def encode(kind: int, exponents: bool, layouts: Sequence[Layout]) -> list[list[Bytes]]:
    """Of each table its arcs, forward and backward, and its vectors.

    kind: PLAIN, WIDE or LOG. exponents: wide arcs have them; else they are written as plain ones.
    """
    made, counts = [], []
    for directions in ([layout.forward for layout in layouts], [layout.backward for layout in layouts]):
        index, log = (
            np.concatenate([getattr(d, name) for d in directions]) for name in ("arc_index", "arc_log")
        )
        made.append(_weights(PLAIN if kind == WIDE and not exponents else kind, index, log))
        counts.append([len(d.arc_log) for d in directions])
    made.append(encoded_vectors(kind, layouts))
    counts.append([len(layout.vectors) for layout in layouts])
    pieces = [
        _pieces(array.view(np.uint8), np.array(numbers) * array.itemsize)
        for array, numbers in zip(made, counts, strict=True)
    ]
    return [list(of_table) for of_table in zip(*pieces, strict=True)]


def encode_joined(kind: int, exponents: bool, layouts: Sequence[Layout]) -> list[Bytes]:
    """The arrays of `encode`, each of all tables one after another; what is encoded is kept with each layout."""
    key = kind, exponents
    missing = [layout for layout in layouts if key not in layout.encoded]
    for layout, made in zip(missing, encode(kind, exponents, missing) if missing else [], strict=True):
        layout.encoded.setdefault(key, made)
    return [np.concatenate(arrays) for arrays in zip(*(x.encoded[key] for x in layouts), strict=True)]


def entries(kind: int, layouts: Sequence[Layout]) -> list[npt.NDArray[Any]]:
    """What a leak reads beside the arcs, of all tables one after another, forward and backward."""
    return [
        _weights(
            kind,
            np.concatenate([d.entry_index for d in directions]),
            np.concatenate([d.entry_log for d in directions]),
        )
        for directions in ([layout.forward for layout in layouts], [layout.backward for layout in layouts])
    ]


def _weights(kind: int, index: npt.NDArray[np.int32], log: Floats) -> npt.NDArray[Any]:
    """The struct Entry of numbers.cuh for each index and log weight."""
    result = np.zeros(len(index), dtype=_ENTRY_TYPES[kind])
    result["index"] = index
    if kind == WIDE:
        result["weight"], result["exponent"] = _wide(log)
    else:
        result["weight"] = np.exp(log) if kind == PLAIN else log
    return result


def encoded_vectors(kind: int, layouts: Sequence[Layout]) -> npt.NDArray[Any]:
    """`Layout.vectors` of several tables as the type Value; plain initial ones are scaled as plain alphas are."""
    log = np.concatenate([layout.vectors for layout in layouts])
    if kind == LOG:
        return log
    if kind == PLAIN:
        shift = []
        for layout in layouts:
            states = int(layout.sizes["states"][0])
            shift += [PLAIN_SHIFT] * states + [0] * states + [PLAIN_SHIFT, 0]
        return np.exp(log + np.array(shift) * LOG_2).astype(np.float32)
    result = np.zeros(len(log), dtype=[("m", "<f4"), ("e", "<i4")])
    result["m"], result["e"] = _wide(log)
    return result


def _wide(log: Floats) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
    finite = log > -np.inf
    usable = np.where(finite, log, 0.0)
    # Beyond the limits are only tables that run in logs.
    whole = np.clip(np.floor(usable / LOG_2), -(2.0**28), 2.0**28)
    with np.errstate(over="ignore"):
        rest = np.exp(np.clip(usable - whole * LOG_2, 0.0, LOG_2)).astype(np.float32)
    mantissa, up = np.where(rest >= 2.0, rest / 2.0, rest), rest >= 2.0
    exponent = np.where(finite, whole + up, ZERO_EXPONENT).astype(np.int32)
    return np.where(finite, mantissa, 0.0).astype(np.float32), exponent
