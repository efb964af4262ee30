"""The driver of `grid.cu`: equations (20)-(23) of `fsachain.grid` on a device, a block for each sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.backends.cuda_device import Argument, Device, DeviceArray, KernelSpec, Memory
from fsachain.backends.cuda_elements import C_TYPES
from fsachain.grid import GridBatch, Ints
from fsachain.recursion import Array

DOUBLE, INDEX, KIND = 8, 4, 48  # bytes; of a `Kind` of grid.cu
THREADS = (32, 64, 128, 256, 512)  # few sizes: each is compiled on its own
BYTE_KINDS = 1 << 8  # that a byte tells apart
HELD_KINDS = 6  # whose scores of two steps fit the registers of a thread
CLEAR_THREADS, CLEAR_LINES = 256, 64  # lines of a box that a block clears
MAX_GRID_Y = 65_535


class Plan(NamedTuple):
    """How the kernels run; no bit depends on it.

    Attributes:
        threads: of a block, a multiple of 32, at most 512.
        shared_bytes: what the last steps of the longest sequence may take on chip; None: all that the device has.
    """

    threads: int
    shared_bytes: int | None = None


def log_probs(device: Device, batch: GridBatch, values: DeviceArray, plan: Plan | None = None) -> Memory:
    """log Z of (21) for every sequence: -inf where there is no path, NaN for scores that hold NaN or +inf.

    Args:
        device: where everything happens; nothing waits for it.
        batch: where the scores of N sequences lie, on the host.
        values: the scores, flat [*] and contiguous, float32 or float64.
        plan: how to run; None chooses for this batch.

    Returns:
        float64 [N] on the device.

    Raises:
        ValueError: a kind of arc that passes neither a frame nor a label.
    """
    return _Run(device, batch, values, plan).forward(None)


def forward_backward(
    device: Device, batch: GridBatch, values: DeviceArray, plan: Plan | None = None
) -> Memory:
    """As `log_probs`; the scores in `values` give way to their occupancies g of (22).

    The rest of each box, and all boxes of a sequence whose log Z is not finite, get 0.
    """
    run = _Run(device, batch, values, plan)
    alphas = device.empty(DOUBLE * run.num_nodes)
    log_prob = run.forward(alphas)
    run.backward(alphas, log_prob)
    return log_prob


def best_paths(device: Device, batch: GridBatch, values: DeviceArray, plan: Plan | None = None) -> Memory:
    """The best path (23) of every sequence, the same bits as the CPU's; see `log_probs` for the arguments.

    Returns:
        Bytes on the device that `read_paths` reads once they are on the host: one copy brings scores and paths.
    """
    return _Run(device, batch, values, plan).best_paths()


def read_paths(batch: GridBatch, data: npt.NDArray[np.uint8]) -> tuple[Array, list[Ints]]:
    """What `best_paths` has found, of its bytes: scores [N], and rows (k, t, u) of the arcs; no rows where there is none."""
    size = len(batch.sizes)
    score = data[: DOUBLE * size].view(np.float64).copy()
    kinds = data[DOUBLE * size :].view(np.int32).reshape(size, _most_arcs(batch))
    paths = []
    for row in kinds:
        used = row[row >= 0].astype(np.int64)
        steps = batch.arcs[used, :2]
        paths.append(np.concatenate([used[:, None], np.cumsum(steps, axis=0) - steps], axis=1))
    return score, paths


def _most_arcs(batch: GridBatch) -> int:
    """No path has more arcs."""
    return int(batch.sizes[:, 2:].sum(axis=1).max(initial=0))


def _slope(arcs: Ints) -> int:
    """0 where every arc passes a frame, so that a step of the recursion is a frame; else 1, an anti-diagonal."""
    for k in np.flatnonzero(arcs[:, :2].max(axis=1) < 1).tolist():
        raise ValueError(
            f"arcs[{k}] = {arcs[k].tolist()} passes no frame and no label; expected at least one of them"
        )
    return int(arcs[:, 0].min() < 1)


class _Run:
    """The kernels, launched on one batch."""

    def __init__(self, device: Device, batch: GridBatch, values: DeviceArray, plan: Plan | None) -> None:
        self._device, self._batch, self._value = device, batch, C_TYPES[values.dtype]
        self._size = len(batch.sizes)
        slope = _slope(batch.arcs)
        frames, labels = batch.sizes[:, 2], batch.sizes[:, 3]
        nodes = (frames + slope * labels + 1) * (labels + 1)
        self.num_nodes = int(nodes.sum())
        most = int(labels.max(initial=0)) + 1
        self._plan = plan or Plan(next((count for count in THREADS if count >= most), THREADS[-1]))
        self._depth = int((batch.arcs[:, 0] + slope * batch.arcs[:, 1]).max()) + 1
        self._row_doubles = self._depth * most
        self._defines = (
            ("VALUE", self._value),
            ("KINDS", len(batch.arcs)),
            ("SLOPE", slope),
            ("THREADS", self._plan.threads),
            ("HELD", int(len(batch.arcs) <= HELD_KINDS)),
            ("BACK", "unsigned char" if len(batch.arcs) <= BYTE_KINDS else "unsigned short"),
        )
        self._values: Argument = np.uint64(values.pointer)
        arrays = [np.ascontiguousarray(part) for part in (*batch, np.cumsum(nodes) - nodes)]
        *self._grids, self._starts = device.upload(arrays)

    def forward(self, alphas: Memory | None) -> Memory:
        """log Z; alphas go to memory if there is any."""
        log_prob = self._device.empty(DOUBLE * self._size)
        into: Argument = np.uint64(0) if alphas is None else alphas
        self._steps("grid_forward", 1, [self._values, self._starts, into, log_prob])
        return log_prob

    def backward(self, alphas: Memory, log_prob: Memory) -> None:
        """Occupancies in the place of scores."""
        self._steps("grid_backward", 2, [self._values, self._starts, alphas, log_prob])
        lines = int(np.minimum(self._batch.boxes[:, :, 3], self._batch.boxes[:, :, 4]).max(initial=0))
        blocks = max(1, -(-lines // CLEAR_LINES)), min(max(1, self._size), MAX_GRID_Y)
        kernel = KernelSpec("grid.cu", "grid_clear", (*self._defines, ("ON_CHIP", 1)))
        arguments = [*self._grids, np.int64(self._size), self._values, log_prob]
        self._device.launch(kernel, blocks, CLEAR_THREADS, 0, arguments)

    def best_paths(self) -> Memory:
        """Scores and kinds of arcs, one after the other."""
        most = _most_arcs(self._batch)
        back_bytes = 1 if len(self._batch.arcs) <= BYTE_KINDS else 2
        back = self._device.empty(back_bytes * self.num_nodes)
        found = self._device.empty((DOUBLE + INDEX * most) * self._size)
        paths = np.uint64(found.pointer + DOUBLE * self._size)
        arguments: list[Argument] = [self._values, self._starts, back, np.int64(most), found, paths]
        self._steps("grid_best_path", 1, arguments)
        return found

    def _steps(self, name: str, rows: int, arguments: Sequence[Argument]) -> None:
        """A kernel that goes through the steps, with so many rows of nodes for each."""
        fixed = KIND * len(self._batch.arcs)
        bytes_of_rows = DOUBLE * rows * self._row_doubles
        most = self._device.limits.shared_bytes
        if self._plan.shared_bytes is not None:
            most = min(most, self._plan.shared_bytes)
        on_chip = fixed + bytes_of_rows <= most
        room = self._device.empty(0 if on_chip else bytes_of_rows * self._size)
        where = np.int32(self._depth), room, np.int64(0 if on_chip else rows * self._row_doubles)
        kernel = KernelSpec("grid.cu", name, (*self._defines, ("ON_CHIP", int(on_chip))))
        shared = fixed + bytes_of_rows if on_chip else fixed
        if self._size:
            every = [*self._grids, *where, *arguments]
            self._device.launch(kernel, self._size, self._plan.threads, shared, every)
