"""Where sequences of a batch are computed: on chip or in memory, how many a thread has, in which windows of frames.

The place of a table and the order of its sums depend on the table, the kind of number and the device, never on the batch;
what depends on the batch (sequences of a thread, blocks of a team, windows) changes no bit of the results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fsachain.backends.cuda_device import Limits
from fsachain.backends.cuda_layout import Layout
from fsachain.backends.cuda_place import PLAIN, VALUE_BYTES, Place, Seat, shared_bytes
from fsachain.backends.cuda_tables import Division, lay_out
from fsachain.table import TransitionTable

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
