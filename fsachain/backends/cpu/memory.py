"""Memory of the CPU kernels: how many frames of alphas are kept, and buffers that the next group of sequences uses again."""

from __future__ import annotations

import math
import os
import re
import time
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.backends.cpu.frames import Columns, count_rows
from fsachain.backends.cpu.layouts import ArcGroups, ArcList, ArcRows
from fsachain.backends.cpu.simd import LINE, WIDTH, aligned_bytes
from fsachain.backends.cpu.structs import Form, Packed, Room, StructType, address_of, describe
from fsachain.backends.cpu.tables import KernelTable
from fsachain.backends.cpu.threads import get_num_threads

Bytes = npt.NDArray[np.uint8]

SHARE_OF_FREE_MEMORY = 1 / 32
KEPT_BYTES = 64 << 20  # a larger buffer is given back after the call

MOST_PLACES = 16  # of buffers at which a block is remembered
FRESH = 0.1  # seconds

_free = (-math.inf, 0)  # when the machine was asked, and what it said
_lock = Lock()
_buffers: list[Bytes] = []


class Plan(NamedTuple):
    """Frames are worked on in segments of `segment`.

    Unless one holds them all, only the alphas before each are kept and the others computed again, about sqrt(T) of each.
    kept: frames whose numbers are there at a time: those of a segment, or one where no beta will run.
    """

    frames: int
    segment: int
    kept: int

    @property
    def starts(self) -> range:
        """The first frame of each segment; one empty segment where there are no frames."""
        return range(0, max(self.frames, 1), self.segment)

    @property
    def is_whole(self) -> bool:
        """All alphas are kept."""
        return self.segment >= self.frames


class Shape(NamedTuple):
    """Sizes of one group's work.

    alphas: states, one more with a leak, and pairs if their sums are kept; active pdfs; pairs; rows of scores; the numbers.
    """

    alphas: int
    pdfs: int
    pairs: int
    score_rows: int
    form: Form
    dtype: np.dtype[Any]

    @property
    def width(self) -> int:
        """W, sequences side by side."""
        return self.form.width

    @property
    def row(self) -> int:
        """R W, entries of a row of numbers."""
        return self.width if self.form.kind == "plain" else 2 * self.width


def shape_of(table: KernelTable, columns: Columns, form: Form, dtype: np.dtype[Any]) -> Shape:
    """The sizes of a group that runs through `table`; those of a single sequence fill up registers."""
    width = form.width
    alphas = len(table.final.mantissas)
    if isinstance(table.arcs, ArcGroups):
        alphas, pairs = table.arcs.num_alphas, table.arcs.num_terms
    else:
        pairs = 0
        if isinstance(table.arcs, ArcRows):
            pairs = len(table.arcs.pair_column)
        elif isinstance(table.arcs, ArcList):
            pairs = len(table.initial.mantissas)
    sizes = alphas, len(table.active), pairs, count_rows(columns, width)
    step = WIDTH[dtype.itemsize] if width == 1 else 1
    alphas, pdfs, pairs, rows = (-(-size // step) * step for size in sizes)
    return Shape(alphas, pdfs, pairs, rows, form, dtype)


def free_bytes() -> int:
    """Memory that is free on this machine, or would be if caches were dropped; 4 GiB where it does not say.

    The machine is asked ten times a second at most: its answer takes as long as the loss of a short utterance.
    """
    global _free
    now = time.monotonic()
    if now >= _free[0] + FRESH:
        _free = now, _ask_free_bytes()
    return _free[1]


def _ask_free_bytes() -> int:
    try:
        found = re.search(rb"MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_bytes())
        return int(found[1]) * 1024  # type: ignore[index]
    except (OSError, TypeError):
        try:
            return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (AttributeError, OSError, ValueError):
            return 4 << 30


def thread_budget(memory_budget: float | None) -> float:
    """Bytes for each thread of a call that may take `memory_budget`; None: a 32nd of the free memory."""
    total = SHARE_OF_FREE_MEMORY * free_bytes() if memory_budget is None else memory_budget
    return total / get_num_threads()


def make_plan(shape: Shape, frames: int, budget: float) -> Plan:
    """All alphas if they fit `budget` bytes, else the segments that need least memory."""
    frame = shape.row * shape.dtype.itemsize
    if ((frames + 1) * shape.alphas + frames * shape.pdfs) * frame <= budget:
        whole = _rounded(frames)
        return Plan(whole, whole, whole)
    segment = max(math.ceil(math.sqrt(frames * shape.alphas / (shape.alphas + shape.pdfs))), 1)
    return Plan(frames, segment, segment)


def forward_plan(frames: int) -> Plan:
    """One segment, for log Z alone."""
    whole = _rounded(frames)
    return Plan(whole, whole, 1)


def _rounded(frames: int) -> int:
    """Memory of a multiple of 16 frames serves all that are a little shorter."""
    return max(-(-frames // 16), 1) * 16


class Record(NamedTuple):
    """What the forward pass leaves beside the alphas, for W lanes; a row of numbers has R W entries, R = 1 or 2.

    shift [T, W] and scale [T + 1, W]: see `sum_product`. z and z_scale [W]: the stored Z of (4) is z 2**z_scale;
    mean [W]: E[A], with expected numbers.
    lowest [1, W]: the least product of an alpha, a probability and a weight that are not zero. leaked [1, W]: the least
    alpha that the leak alone gives. extent [1, W]: the largest absolute value of a finite score; NaN where a score is not
    legal.
    """

    shift: npt.NDArray[np.floating]
    scale: npt.NDArray[np.integer]
    z: npt.NDArray[np.floating]
    mean: npt.NDArray[np.floating]
    z_scale: npt.NDArray[np.integer]
    lowest: npt.NDArray[np.floating]
    leaked: npt.NDArray[np.floating]
    extent: npt.NDArray[np.floating]


class Workspace(NamedTuple):
    """Memory of the passes; S' = S, or S + 1 with a leak, or what `ArcGroups` says.

    history [L + 1, S', R W]: alphas of L + 1 frames, or of two in turn. probs [L or 1, K, R W]: exp(y - shift) 2**-s.
    beta [2, S', R W]: of two frames in turn. leak [2, W], one number, and beta_scale [1, W]: what leaks into the later of
    them, and its exponent. pairs [Q, S or 0, R W]; occupancy [K, R W]; scores and accuracy [K, W] or as many rows as tiles
    have, extremes [3, W, or a register for W = 1], row [3, W], exponents [1, W], frames [1, W] (the lengths), factors
    [1, W], offsets [W].
    whole [2, W], one number, live [2, S'], touched [K] and counts [4]: see `arcs.spread_own`; live and touched for W = 1,
    where numbers of rows are rounded up to fill registers.
    """

    history: npt.NDArray[np.floating]
    probs: npt.NDArray[np.floating]
    beta: npt.NDArray[np.floating]
    leak: npt.NDArray[np.floating]
    beta_scale: npt.NDArray[np.integer]
    whole: npt.NDArray[np.floating]
    pairs: npt.NDArray[np.floating]
    occupancy: npt.NDArray[np.floating]
    scores: npt.NDArray[np.floating]
    accuracy: npt.NDArray[np.floating]
    extremes: npt.NDArray[np.floating]
    row: npt.NDArray[np.floating]
    exponents: npt.NDArray[np.integer]
    frames: npt.NDArray[np.floating]
    factors: npt.NDArray[np.floating]
    offsets: npt.NDArray[np.int64]
    live: npt.NDArray[np.uint32]
    touched: npt.NDArray[np.uint32]
    counts: npt.NDArray[np.int64]


class Memory(NamedTuple):
    """Arrays for one group: kernels' workspace, record, and the alphas before each segment [segments, S', R W]."""

    work: Workspace
    record: Record
    checkpoints: npt.NDArray[np.floating]


class Block(NamedTuple):
    """How a named tuple of arrays lies in a block of `size` bytes that begins at a line.

    words: those of the tuple if the block is at address 0, which is added to those that `in_block` says (1, else 0); value:
    the tuple itself, for the arrays that lie elsewhere; placed: by address.
    """

    numba_type: StructType
    words: npt.NDArray[np.int64]
    in_block: npt.NDArray[np.int64]
    size: int
    value: Any
    placed: dict[int, Packed]

    def at(self, buffer: Bytes) -> Packed:
        """The tuple in a buffer that is the caller's alone and that he keeps meanwhile."""
        address = address_of(buffer)
        found = self.placed.get(address)
        if found is None:
            if len(self.placed) > MOST_PLACES:
                self.placed.clear()
            words = self.words + self.in_block * address
            found = self.placed[address] = Packed(None, self.numba_type, words)
        return found


def borrow(size: int) -> Bytes:
    """A buffer of at least so many bytes, which the next group takes again: see `give_back`."""
    with _lock:
        for index, buffer in enumerate(_buffers):
            if len(buffer) >= size:
                return _buffers.pop(index)
        if _buffers:
            _buffers.pop()  # too small: the larger one takes its place
    return aligned_bytes(size)


def give_back(buffer: Bytes) -> None:
    with _lock:
        _buffers.append(buffer)


def lay_out(value: Any) -> Block:
    """A block for the rooms of a named tuple, each from a line on."""
    words: list[int] = []
    rooms: list[tuple[int, Room]] = []
    numba_type = describe(value, words, rooms)
    in_block, size = np.zeros(len(words), np.int64), 0
    starts: dict[Room, int] = {}
    for index, room in rooms:
        whole = room if room.whole is None else room.whole
        if whole not in starts:
            starts[whole] = size
            size += -(-whole.num_bytes(len(whole)) // LINE) * LINE
        words[index] = starts[whole] + room.num_bytes(room.first)
        in_block[index] = 1
    return Block(numba_type, np.array(words), in_block, size, value, {})


def rooms_of(shape: Shape, plan: Plan) -> Memory:
    """The `Memory` of a group."""
    alphas, pdfs, row, width, kind = shape.alphas, shape.pdfs, shape.row, shape.width, shape.dtype
    integers = np.dtype(f"i{kind.itemsize}")
    segments = 0 if plan.is_whole else len(plan.starts)
    room: Any = Room  # as the array that it will be
    work = Workspace(
        history=room(kind, plan.kept + 1, alphas, row),
        probs=room(kind, plan.kept, pdfs, row),
        beta=room(kind, 2, alphas, row),
        leak=room(kind, 2, width),
        beta_scale=room(integers, 1, width),
        whole=room(kind, 2, width),
        pairs=room(kind, shape.pairs, row),
        occupancy=room(kind, pdfs, row),
        scores=room(kind, shape.score_rows, width),
        accuracy=room(kind, shape.score_rows if shape.form.kind == "expected" else 0, width),
        extremes=room(kind, 3, max(width, WIDTH[kind.itemsize])),
        row=room(kind, 3, width),
        exponents=room(integers, 1, width),
        frames=room(kind, 1, width),
        factors=room(kind, 1, width),
        offsets=room(np.int64, width),
        live=room(np.uint32, 2, alphas if width == 1 else 0),
        touched=room(np.uint32, pdfs if width == 1 else 0),
        counts=room(np.int64, 4),
    )
    record = Record(
        shift=room(kind, plan.frames, width),
        scale=room(integers, plan.frames + 1, width),
        z=room(kind, width),
        mean=room(kind, width),
        z_scale=room(integers, width),
        lowest=room(kind, 1, width),
        leaked=room(kind, 1, width),
        extent=room(kind, 1, width),
    )
    return Memory(work, record, checkpoints=room(kind, segments, alphas, row))


@lru_cache(maxsize=1024)
def memory_block(shape: Shape, plan: Plan) -> Block:
    """A block for these rooms and no others."""
    return lay_out(rooms_of(shape, plan))


def trim() -> None:
    """Give back the large buffers."""
    with _lock:
        _buffers[:] = [buffer for buffer in _buffers if len(buffer) <= KEPT_BYTES]


def _after_fork() -> None:
    # A forked child has none of the parent's other threads, one of which may have held the lock.
    global _lock
    _lock = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
