"""Transducers on a device: the grid (grid.cu), its rows of logits (grid_rows.cu), lost normalizers of pairs (pairs.cu).

Equations (20)-(29) of `fsachain.grid`. The functions are those of the host's backends, with a device before and arrays that
lie on it. Each uploads what the host says about its batch in one copy, and waits for nothing. No bit depends on a plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.backends.cuda.device import (
    Argument,
    Device,
    DeviceArray,
    KernelSpec,
    address,
    macros,
    strided,
)
from fsachain.backends.cuda.memory import Memory
from fsachain.grid import GridBatch, Ints, Rows, num_cells, num_softmaxes
from fsachain.recursion import Array

KIND_BYTES = 48  # of a `Kind` of grid.cu
GRID_THREADS = (32, 64, 128, 256, 512)  # few sizes: each is compiled on its own
BYTE_KINDS = 1 << 8  # that a byte tells apart
HELD_KINDS = 6  # whose scores of two steps fit the registers of a thread
CLEAR_THREADS, CLEAR_LINES = 256, 64  # lines of a box that a block clears
MAX_GRID_Y = 65_535


class GridPlan(NamedTuple):
    """threads: of a block, a multiple of 32, at most 512.

    shared_bytes: what the last steps of the longest sequence may take on chip; None: all that the device has.
    """

    threads: int
    shared_bytes: int | None = None


def log_probs(device: Device, batch: GridBatch, values: DeviceArray, plan: GridPlan | None = None) -> Memory:
    """log Z of (21) for every sequence, float64 [N]: -inf where there is no path, NaN for scores that hold NaN or +inf.

    values: the scores, flat [*] and contiguous, float32 or float64. A kind of arc must pass a frame or a label.
    """
    return _Grid(device, batch, values, plan).forward(None)


def forward_backward(
    device: Device, batch: GridBatch, values: DeviceArray, plan: GridPlan | None = None
) -> Memory:
    """As `log_probs`; the scores in `values` give way to their occupancies g of (22).

    The rest of each box, and all boxes of a sequence whose log Z is not finite, get 0.
    """
    grid = _Grid(device, batch, values, plan)
    alphas = device.empty(8 * grid.num_nodes)
    log_prob = grid.forward(alphas)
    grid.launch_steps("grid_backward", 2, [alphas.pointer, log_prob.pointer])
    lines = int(np.minimum(batch.boxes[:, :, 3], batch.boxes[:, :, 4]).max(initial=0))
    blocks = max(1, -(-lines // CLEAR_LINES)), min(max(1, grid.size), MAX_GRID_Y)
    kernel = KernelSpec("grid.cu", "grid_clear", (*grid.defines, *macros(ON_CHIP=1)))
    arguments = [*grid.arrays, grid.size, values.pointer, log_prob.pointer]
    device.launch(kernel, blocks, CLEAR_THREADS, 0, arguments)
    return log_prob


def best_paths(device: Device, batch: GridBatch, values: DeviceArray, plan: GridPlan | None = None) -> Memory:
    """The best path (23) of every sequence, the same bits as the CPU's.

    Returns bytes on the device that `read_paths` reads once they are on the host: one copy brings scores and paths.
    """
    grid, most = _Grid(device, batch, values, plan), _most_arcs(batch)
    back = device.empty((1 if len(batch.arcs) <= BYTE_KINDS else 2) * grid.num_nodes)
    found = device.empty((8 + 4 * most) * grid.size)
    grid.launch_steps("grid_best_path", 1, [back.pointer, most, found.pointer, found.pointer + 8 * grid.size])
    return found


def read_paths(batch: GridBatch, data: npt.NDArray[np.uint8]) -> tuple[Array, list[Ints]]:
    """What `best_paths` has found, of its bytes: scores [N], and rows (k, t, u) of the arcs; no rows where there is none."""
    size = len(batch.sizes)
    score = data[: 8 * size].view(np.float64).copy()
    kinds = data[8 * size :].view(np.int32).reshape(size, _most_arcs(batch))
    paths = []
    for row in kinds:
        used = row[row >= 0].astype(np.int64)
        steps = batch.arcs[used, :2]
        paths.append(np.concatenate([used[:, None], np.cumsum(steps, axis=0) - steps], axis=1))
    return score, paths


def _most_arcs(batch: GridBatch) -> int:
    """No path has more arcs."""
    return int(batch.sizes[:, 2:].sum(axis=1).max(initial=0))


class _Grid:
    """A batch of grids on the device, and the launches of kernels that go through their steps."""

    def __init__(self, device: Device, batch: GridBatch, values: DeviceArray, plan: GridPlan | None) -> None:
        arcs = batch.arcs
        for k in np.flatnonzero(arcs[:, :2].max(axis=1) < 1).tolist():
            raise ValueError(
                f"arcs[{k}] = {arcs[k].tolist()} passes no frame and no label; expected at least one of them"
            )
        # 0 where every arc passes a frame, so that a step of the recursion is a frame; else 1, an anti-diagonal.
        slope = int(arcs[:, 0].min() < 1)
        frames, labels = batch.sizes[:, 2], batch.sizes[:, 3]
        nodes = (frames + slope * labels + 1) * (labels + 1)
        most = int(labels.max(initial=0)) + 1
        self._device, self._values, self._num_kinds = device, values, len(arcs)
        self.size, self.num_nodes = len(batch.sizes), int(nodes.sum())
        self._plan = plan or GridPlan(
            next((count for count in GRID_THREADS if count >= most), GRID_THREADS[-1])
        )
        self._depth = int((arcs[:, 0] + slope * arcs[:, 1]).max()) + 1
        self._row_doubles = self._depth * most
        self.defines = macros(
            VALUE=values,
            KINDS=len(arcs),
            SLOPE=slope,
            THREADS=self._plan.threads,
            HELD=len(arcs) <= HELD_KINDS,
            BACK="unsigned char" if len(arcs) <= BYTE_KINDS else "unsigned short",
        )
        arrays = [np.ascontiguousarray(part) for part in (*batch, np.cumsum(nodes) - nodes)]
        self._there = device.upload(arrays)
        *self.arrays, self._starts = [memory.pointer for memory in self._there]

    def forward(self, alphas: Memory | None) -> Memory:
        """log Z; alphas go to memory if there is any."""
        log_prob = self._device.empty(8 * self.size)
        self.launch_steps("grid_forward", 1, [address(alphas), log_prob.pointer])
        return log_prob

    def launch_steps(self, name: str, rows: int, arguments: Sequence[Argument]) -> None:
        """A kernel that goes through the steps, with so many rows of nodes for each."""
        if not self.size:
            return
        fixed, row_bytes = KIND_BYTES * self._num_kinds, 8 * rows * self._row_doubles
        most = self._device.limits.shared_bytes
        if self._plan.shared_bytes is not None:
            most = min(most, self._plan.shared_bytes)
        on_chip = fixed + row_bytes <= most
        room = self._device.empty(0 if on_chip else row_bytes * self.size)
        where = self._depth, room.pointer, 0 if on_chip else rows * self._row_doubles
        kernel = KernelSpec("grid.cu", name, (*self.defines, *macros(ON_CHIP=on_chip)))
        shared = fixed + row_bytes if on_chip else fixed
        every = [*self.arrays, *where, self._values.pointer, self._starts, *arguments]
        self._device.launch(kernel, self.size, self._plan.threads, shared, every)


# Logits of transducers: equations (24)-(29).

CELL_THREADS = 256
CELL_BLOCKS = 1 << 12  # at most, of those that work on cells one after another
# Blocks for each multiprocessor before a group of threads takes several rows: the tables are read once for all of them.
BLOCKS, MAX_SPAN = 16, 16
# Threads of a row and the classes that each holds, by the classes of a row: as many as are held at least.
SHAPES = ((32, 8, 4), (64, 16, 4), (128, 32, 4), (256, 32, 8), (512, 32, 16))


class RowPlan(NamedTuple):
    """threads: of a block, a multiple of 32, at most 1024.

    span: successive rows of a group of threads; None: as many as keep all multiprocessors busy.
    """

    threads: int = 256
    span: int | None = None


DEFAULT_PLAN = RowPlan()


class LogitRows:
    """Rows of logits [R, V] on a device, what the host says about them, and the launches of kernels for them.

    logits: of any of the four types, with any strides. out: [R, V] of any of them, where a gradient goes, which may be the
    logits: the same memory, type and strides; None: scores are asked for. targets, int32 or int64 [N, U], and first, int64
    [N, T], of the device take the place of those of `rows`. A target that is no class makes log Z of its sequence NaN; the
    caller has seen to it that the rows of a frame end at the targets' width or before.
    """

    def __init__(
        self,
        device: Device,
        rows: Rows,
        logits: DeviceArray,
        out: DeviceArray | None = None,
        targets: DeviceArray | None = None,
        first: DeviceArray | None = None,
        plan: RowPlan = DEFAULT_PLAN,
    ) -> None:
        self._device, self._plan, self._rows = device, plan, rows
        num_rows, width = logits.shape
        self._out = out = out or logits
        self._stat_bytes = 2 * num_softmaxes(rows) * (8 if logits.dtype == "float64" else 4) * num_rows
        classes, alone = rows.heads.tolist()
        # Threads of a row, classes that each holds, and whether that is the whole row; float64 takes two registers.
        most = max(classes, width - classes)
        shapes = SHAPES[:-1] if logits.dtype == "float64" else SHAPES
        whole = next((shape for shape in shapes if most <= shape[0]), None)
        self._lanes, held = (whole or shapes[-1])[1:]
        self._defines = macros(
            ELEMENT=logits,
            OUT=out,
            INTEGER="int64" if targets is None else targets,
            KINDS=len(rows.classes),
            LANES=self._lanes,
            HELD=held,
            WHOLE=whole is not None,
            DURATIONS=num_softmaxes(rows) - 1,
            SIGMOID=alone >= 0,
            DENSE=logits.strides[1] == out.strides[1] == 1,
            THREADS=plan.threads,
        )
        arrays: dict[str, npt.NDArray[np.generic]] = {"sequences": rows.sequences, "classes": rows.classes}
        arrays |= {"durations": rows.durations, "charges": np.asarray(rows.charges, np.float64)}
        if first is None and rows.first.any():
            arrays["first"] = rows.first
        if targets is None:
            arrays["targets"] = rows.targets
        self._memories = device.upload([np.ascontiguousarray(array) for array in arrays.values()])
        there = {name: memory.pointer for name, memory in zip(arrays, self._memories, strict=True)}

        def matrix(name: str, given: DeviceArray | None, host: npt.NDArray[np.generic]) -> list[int]:
            return [there.get(name, 0), host.shape[1], 1] if given is None else strided(given)

        self._charges = there["charges"]
        self._before = [
            *(there["sequences"], len(rows.sequences)),
            *(*matrix("first", first, rows.first), *matrix("targets", targets, rows.targets)),
            *(there["classes"], there["durations"], classes, width, alone, num_cells(rows)),
        ]
        self._after = [*strided(logits), num_rows]

    def scores(self, values: DeviceArray, is_normalized: bool) -> Memory:
        """Scores (24) into values, float64 [K, cells], contiguous; entries that no row has an arc for stay what they are.

        Returns what `gradient` needs: [2 S, R] for S softmaxes, float64 for float64 logits, else float32; nothing for rows
        that are log-probs already. What belongs to padding is neither read nor written.
        """
        stats = self._device.empty(0 if is_normalized else self._stat_bytes)
        name, made = ("plain_scores", []) if is_normalized else ("softmax_scores", [stats.pointer])
        self._launch(name, 4, [self._charges, values.pointer, *made])
        return stats

    def gradient(
        self, stats: Memory | DeviceArray | None, occupancy: DeviceArray, weights: DeviceArray, limit: float
    ) -> None:
        """Equation (25), and what (28) and (29) make of it, times weights into `out`.

        Rows of padding, and those without occupancy, become 0 and are not read. stats: what `scores` has returned; None for
        rows that are log-probs. occupancy: g, float64 [K, cells], contiguous. weights: float64 [N]. limit: entries are kept
        within +-limit before they are weighted.
        """
        name, made = ("plain_gradient", []) if stats is None else ("softmax_gradient", [stats.pointer])
        given = occupancy.pointer, *strided(weights), float(limit), *strided(self._out)
        self._launch(name, 2, [*made, *given])

    def _launch(self, name: str, field: int, arguments: Sequence[Argument]) -> None:
        """A kernel for the rows of as many frames as this field of `Rows.sequences` says."""
        frames = self._rows.sequences[:, field]
        counts = frames * self._rows.sequences[:, 3]
        groups = self._plan.threads // self._lanes
        most, total = int(counts.max(initial=0)), int(counts.sum())
        if total == 0:
            return
        busy = BLOCKS * self._device.limits.multiprocessors * groups
        span = self._plan.span or min(max(1, total // busy), MAX_SPAN)
        blocks = -(-most // (groups * span)), min(len(frames), MAX_GRID_Y)
        kernel = KernelSpec("grid_rows.cu", name, self._defines)
        every = [*self._before, span, *self._after, *arguments]
        self._device.launch(kernel, blocks, self._plan.threads, 0, every)


def constrain(device: Device, rows: Rows, values: DeviceArray) -> None:
    """Equation (26) on scores of blanks and labels, float64 [2, cells], in place."""
    _over_cells(device, rows, "grid_constrain", values)


def release(device: Device, rows: Rows, occupancy: DeviceArray) -> None:
    """What (26) asks of occupancies [2, cells]: blanks get those of the labels that they are a part of."""
    _over_cells(device, rows, "grid_release", occupancy)


def _over_cells(device: Device, rows: Rows, name: str, values: DeviceArray) -> None:
    most = int((rows.sequences[:, 4] * rows.sequences[:, 5]).max(initial=0))
    if most == 0:
        return
    (sequences,) = device.upload([np.ascontiguousarray(rows.sequences)])
    size = len(rows.sequences)
    grid = min(-(-most // CELL_THREADS), CELL_BLOCKS), min(size, MAX_GRID_Y)
    arguments = [sequences.pointer, size, num_cells(rows), values.pointer]
    device.launch(KernelSpec("grid_rows.cu", name), grid, CELL_THREADS, 0, arguments)


PAIR_THREADS = 128


def pair_log_sums(
    device: Device,
    am: DeviceArray,
    lm: DeviceArray,
    sums: DeviceArray,
    least: float,
    out: DeviceArray,
    threads: int = PAIR_THREADS,
) -> None:
    """out = log sum_c exp(am[n, t, c] + lm[n, s, c]) where `sums` is not above `least`, or is NaN.

    am [N, T, C], lm [N, S, C], sums and out [N, S, T] are float32 or float64, contiguous.
    """
    (size, frames, width), positions = am.shape, lm.shape[1]
    pairs = size * positions * frames
    if pairs:
        kernel = KernelSpec("pairs.cu", "pair_log_sums", macros(ELEMENT=am, THREADS=threads))
        given = am.pointer, lm.pointer, sums.pointer, _limit(am, least)
        arguments = [*given, frames, positions, width, pairs, out.pointer]
        device.launch(kernel, -(-pairs // threads), threads, 0, arguments)


def add_pair_gradient(
    device: Device,
    am: DeviceArray,
    lm: DeviceArray,
    sums: DeviceArray,
    least: float,
    normalizer: DeviceArray,
    factors: DeviceArray,
    by_am: DeviceArray,
    by_lm: DeviceArray,
    threads: int = PAIR_THREADS,
) -> None:
    """Add factors [N, S, T] times the derivatives of the pairs of `pair_log_sums` to by_am [N, T, C] and by_lm [N, S, C].

    normalizer: [N, S, T], what `pair_log_sums` has left there.
    """
    size, frames, width = am.shape
    kernel = KernelSpec("pairs.cu", "pair_gradient", macros(ELEMENT=am, THREADS=threads))
    for own, other, steps, into in ((am, lm, (1, frames), by_am), (lm, am, (frames, 1), by_lm)):
        rows, others = size * own.shape[1], other.shape[1]
        if not rows or not others:
            continue
        arguments = [
            *(
                own.pointer,
                other.pointer,
                sums.pointer,
                _limit(own, least),
                normalizer.pointer,
                factors.pointer,
            ),
            *(own.shape[1], others, *steps, width, rows, into.pointer),
        ]
        device.launch(kernel, -(-rows // (threads // 32)), threads, 0, arguments)


def _limit(like: DeviceArray, least: float) -> Argument:
    return np.float32(least) if like.dtype == "float32" else float(least)
