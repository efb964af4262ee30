"""The driver of `best_path.cu`: the best path of every sequence of a batch, one block each, without leaving the device."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.backends import Lengths
from fsachain.backends.cuda.device import Device, DeviceArray, KernelSpec, Limits, macros, strided
from fsachain.backends.cuda.memory import Memory
from fsachain.batch import TableBatch
from fsachain.table import TransitionTable

FIXED_SHARED = 2 * 32 * 8 + 32 * (8 + 4)  # bytes of shared memory, whatever the acceptor
MAX_LANES = 32
THREADS = (64, 128, 256, 512, 1024)  # few sizes: each is compiled on its own
BACK_TYPES = ((1 << 8, "unsigned char", 1), (1 << 16, "unsigned short", 2), (1 << 31, "unsigned int", 4))
DEFAULT_SHARE = 1.0 / 16.0  # of a device's memory, for back pointers


@dataclass(frozen=True)
class Plan:
    """How the kernels run.

    threads: of a block, a multiple of 32, at most 1024. lanes: threads that share a state. back_type, back_bytes: of a back
    pointer. on_chip: scores and deltas of two frames, `num_doubles` of them, lie in shared memory. every: frames of a
    window; all frames where back pointers fit the budget.
    """

    threads: int
    lanes: int
    back_type: str
    back_bytes: int
    on_chip: bool
    num_doubles: int
    every: int


class BestPaths(NamedTuple):
    """What `best_paths` returns, on the device.

    score: float64 [N], equation (9); -inf where there is no path, NaN for an illegal score. arcs: int32 [N, T], numbered as
    in the caller's Fsa; -1 beyond the sequence's length and where there is no path.
    """

    score: Memory
    arcs: Memory


def best_paths(
    device: Device,
    batch: TableBatch,
    scores: DeviceArray,
    lengths: Lengths,
    memory_budget: float | None = None,
    plan: Plan | None = None,
) -> BestPaths:
    """Equations (8) and (9) for every sequence: the same bits as the CPU backend's `best_path`.

    scores [N, T, P] are on the device, lengths [N] on the host. memory_budget: bytes for back pointers; None: a 16th of
    the device's memory. Where all do not fit, those of some frames are kept at a time, and delta is computed twice.
    Paths do not depend on the plan.
    """
    plan = plan or make_plan(device.limits, batch, lengths, memory_budget)
    size, num_frames, _ = scores.shape
    longest = int(lengths.max(initial=0))
    rows = _num_rows(batch)
    (lengths_there,) = device.upload([lengths])
    # The acceptors stay on the device as long as the batch, or the table that it shares.
    owner = batch.tables[0] if batch.is_shared else batch
    offsets, *arrays = device.resident(owner, "best path", lambda: _pack(batch.tables))
    room_doubles = 0 if plan.on_chip else plan.num_doubles
    room = device.empty(8 * size * room_doubles)
    result = BestPaths(device.empty(8 * size), device.empty(4 * size * num_frames))
    ends = device.empty(4 * size)
    back = device.empty(plan.back_bytes * rows * min(plan.every, longest))
    tables = [memory.pointer for memory in arrays]
    common = [*strided(scores), lengths_there.pointer, offsets.pointer, int(batch.is_shared), *tables]
    common += [room.pointer, room_doubles, num_frames]
    found = result.score.pointer, ends.pointer, result.arcs.pointer
    defines = macros(
        ELEMENT=scores, BACK=plan.back_type, THREADS=plan.threads, LANES=plan.lanes, ON_CHIP=plan.on_chip
    )

    def run(name: str, *arguments: int) -> None:
        kernel = KernelSpec("best_path.cu", name, defines)
        shared = FIXED_SHARED + (8 * plan.num_doubles if plan.on_chip else 0)
        device.launch(kernel, size, plan.threads, shared, [*common, *arguments])

    if longest <= plan.every:
        run("best_path_whole", longest, back.pointer, *found)
        return result
    count = longest // plan.every + 1
    marks = device.empty(8 * rows * count)
    windows = plan.every, count, marks.pointer
    run("best_path_marks", *windows, *found)
    for window in range((longest - 1) // plan.every, -1, -1):
        run("best_path_window", *windows, window, back.pointer, *found[1:])
    return result


def make_plan(
    limits: Limits, batch: TableBatch, lengths: Lengths, memory_budget: float | None = None
) -> Plan:
    """What suits the largest acceptor of the batch; paths do not depend on it."""
    states = max(table.num_states for table in batch.tables)
    arcs = max(len(table.by_dst.arc) / table.num_states for table in batch.tables)
    # All tables' in a row: from one to the next the offsets fall.
    most_arcs = int(np.diff(np.concatenate([table.by_dst.offsets for table in batch.tables])).max())
    lanes = 1
    while 2 * lanes <= min(MAX_LANES, arcs / 2):
        lanes *= 2
    threads = next((count for count in THREADS if count >= states * lanes), THREADS[-1])
    back_type, back_bytes = next(entry[1:] for entry in BACK_TYPES if most_arcs <= entry[0])
    doubles = 2 * max(table.num_states + len(table.active_pdfs) for table in batch.tables)
    budget = limits.memory_bytes * DEFAULT_SHARE if memory_budget is None else memory_budget
    return Plan(
        threads,
        lanes,
        back_type,
        back_bytes,
        FIXED_SHARED + 8 * doubles <= limits.shared_bytes,
        doubles,
        _window(int(lengths.max(initial=0)), _num_rows(batch), back_bytes, budget),
    )


def _window(longest: int, rows: int, back_bytes: int, budget: float) -> int:
    """The most frames whose back pointers fit beside the marks; where none fit, what needs the least memory."""
    if longest * rows * back_bytes <= budget:
        return max(1, longest)
    least = isqrt(8 * longest // back_bytes) + 1
    # every x back_bytes + (longest / every + 1) x 8 = budget / rows, solved for the larger `every`
    half = (budget / rows - 8) / (2 * back_bytes)
    square = half * half - 8 * longest / back_bytes
    return max(least, int(half + square**0.5)) if square > 0 and half > 0 else least


def _num_rows(batch: TableBatch) -> int:
    if batch.is_shared:
        return batch.size * batch.tables[0].num_states
    return sum(table.num_states for table in batch.tables)


def _pack(tables: tuple[TransitionTable, ...]) -> list[npt.NDArray[Any]]:
    """Offsets int64 [tables, 6] and the arrays one table after another, in the order of the kernels' arguments."""
    views = [table.by_dst for table in tables]
    states = np.array([table.num_states for table in tables])
    arcs = np.array([len(view.arc) for view in views])
    columns = np.array([len(table.active_pdfs) for table in tables])
    parts = _starts(states), states, _starts(arcs), _starts(columns), columns, _starts(states + 1)
    return [
        np.stack(parts, axis=1).astype(np.int64),
        np.concatenate([view.offsets for view in views]).astype(np.int32),
        np.concatenate([view.src for view in views]),
        np.concatenate([view.column for view in views]),
        np.concatenate([view.log_prob for view in views]),
        np.concatenate([view.arc for view in views]),
        np.concatenate([table.active_pdfs for table in tables]),
        np.concatenate([table.initial_log_prob for table in tables]),
        np.concatenate([table.final_log_prob for table in tables]),
    ]


def _starts(counts: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.cumsum(counts) - counts
