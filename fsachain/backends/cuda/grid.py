"""The driver of `grid.cu`: equations (20)-(23) of `fsachain.grid` on a device, a block for each sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.backends.cuda.device import C_TYPES, Argument, Device, DeviceArray, KernelSpec, Memory, element
from fsachain.grid import GridBatch, Ints, Rows, num_cells, num_softmaxes
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


# The driver of `grid_rows.cu`: logits of transducers and the grid on a device, equations (24)-(29) of
# `fsachain.grid`.
#
# The functions are those of `grid_cpu_rows`, with a device before and arrays that lie on it. Each uploads
# what the host says about the rows in one copy, and waits for nothing.

DOUBLE_cuda_grid_rows = 8  # bytes
INTEGERS = {"int32": "int", "int64": "long long"}
THREADS_cuda_grid_rows = 256
WARP = 32
CELL_BLOCKS = 1 << 12  # at most, of those that work on cells one after another
# Blocks for each multiprocessor before a group of threads takes several rows: the tables are read once for all of them.
BLOCKS, MAX_SPAN = 16, 16
# Threads of a row and the classes that each holds, by the classes of a row: as many as are held at least.
SHAPES = ((32, 8, 4), (64, 16, 4), (128, 32, 4), (256, 32, 8), (512, 32, 16))


class Plan_cuda_grid_rows(NamedTuple):
    """How the kernels run; no bit depends on it.

    Attributes:
        threads: of a block, a multiple of 32, at most 1024.
        span: successive rows of a group of threads; None: as many as keep all multiprocessors busy.
    """

    threads: int = THREADS_cuda_grid_rows
    span: int | None = None


DEFAULT_PLAN = Plan_cuda_grid_rows()


def softmax_scores(
    device: Device,
    rows: Rows,
    logits: DeviceArray,
    values: DeviceArray,
    targets: DeviceArray | None = None,
    first: DeviceArray | None = None,
    plan: Plan_cuda_grid_rows = DEFAULT_PLAN,
) -> Memory:
    """Scores (24) of logits [R, V] into values; rows of padding are not read.

    Args:
        device: where everything happens.
        rows: where rows and cells lie, on the host.
        logits: float16, bfloat16, float32 or float64 [R, V] with any strides.
        values: float64 [K, cells], contiguous; entries that no row has an arc for stay what they are.
        targets: int32 or int64 [N, U] on the device, in the place of `rows.targets`, which then is not looked at. A target
            that is no class has the score NaN, which makes log Z of its sequence NaN.
        first: int64 [N, T] on the device, in the place of `rows.first`, which then is not looked at. The caller has seen to
            it that the rows of a frame end at the targets' width or before.
        plan: how to run.

    Returns:
        What `softmax_gradient` needs: [2 S, R] for S softmaxes, float64 for float64 logits, else float32; what belongs to
        padding is not written.
    """
    run = _Run_cuda_grid_rows(device, rows, logits, logits, (targets, first), plan)
    size = DOUBLE_cuda_grid_rows if logits.dtype == "float64" else DOUBLE_cuda_grid_rows // 2
    stats = device.empty(2 * num_softmaxes(rows) * size * logits.shape[0])
    run.launch("softmax_scores", rows.sequences[:, 4], [run.charges, np.uint64(values.pointer), stats])
    return stats


def plain_scores(
    device: Device,
    rows: Rows,
    log_probs: DeviceArray,
    values: DeviceArray,
    targets: DeviceArray | None = None,
    first: DeviceArray | None = None,
    plan: Plan_cuda_grid_rows = DEFAULT_PLAN,
) -> None:
    """The same for rows that are log-probs already."""
    run = _Run_cuda_grid_rows(device, rows, log_probs, log_probs, (targets, first), plan)
    run.launch("plain_scores", rows.sequences[:, 4], [run.charges, np.uint64(values.pointer)])


def softmax_gradient(
    device: Device,
    rows: Rows,
    logits: DeviceArray,
    stats: Memory | DeviceArray,
    occupancy: DeviceArray,
    weights: Memory | DeviceArray,
    limit: float,
    out: DeviceArray,
    targets: DeviceArray | None = None,
    first: DeviceArray | None = None,
    plan: Plan_cuda_grid_rows = DEFAULT_PLAN,
) -> None:
    """Equation (25), and what (28) and (29) make of it, times weights into `out`.

    Rows of padding, and those without occupancy, become 0 and are not read.

    Args:
        device, rows, logits, targets, first, plan: as for `softmax_scores`.
        stats: what that has returned.
        occupancy: g, float64 [K, cells], contiguous.
        weights: float64 [N] on the device.
        limit: entries are kept within +-limit before they are weighted.
        out: [R, V] of any of the four types, which may be the logits: the same memory, type and strides.
    """
    run = _Run_cuda_grid_rows(device, rows, logits, out, (targets, first), plan)
    into = _gradient(occupancy, weights, limit, out)
    run.launch("softmax_gradient", rows.sequences[:, 2], [np.uint64(stats.pointer), *into])


def plain_gradient(
    device: Device,
    rows: Rows,
    log_probs: DeviceArray,
    occupancy: DeviceArray,
    weights: Memory | DeviceArray,
    limit: float,
    out: DeviceArray,
    targets: DeviceArray | None = None,
    first: DeviceArray | None = None,
    plan: Plan_cuda_grid_rows = DEFAULT_PLAN,
) -> None:
    """The gradient of -log Z by log-probs [R, V], times weights [N]: otherwise as `softmax_gradient`."""
    run = _Run_cuda_grid_rows(device, rows, log_probs, out, (targets, first), plan)
    run.launch("plain_gradient", rows.sequences[:, 2], _gradient(occupancy, weights, limit, out))


def constrain(device: Device, rows: Rows, values: DeviceArray) -> None:
    """Equation (26) on scores of blanks and labels, float64 [2, cells], in place."""
    _over_cells(device, rows, "grid_constrain", values)


def release(device: Device, rows: Rows, occupancy: DeviceArray) -> None:
    """What (26) asks of occupancies [2, cells]: blanks get those of the labels that they are a part of."""
    _over_cells(device, rows, "grid_release", occupancy)


def scale_kinds(device: Device, values: DeviceArray, factors: Sequence[float]) -> None:
    """values [K, cells] float64 times factors [K], in place: (27) multiplies those of labels by 1 + lambda."""
    cells = values.num_bytes // DOUBLE_cuda_grid_rows // len(factors)
    if cells == 0 or all(factor == 1.0 for factor in factors):
        return
    (given,) = device.upload([np.asarray(factors, np.float64)])
    grid = min(-(-cells // THREADS_cuda_grid_rows), CELL_BLOCKS), len(factors)
    arguments: list[Argument] = [np.int64(cells), given, np.uint64(values.pointer)]
    device.launch(KernelSpec("grid_rows.cu", "grid_scale"), grid, THREADS_cuda_grid_rows, 0, arguments)


def _gradient(
    occupancy: DeviceArray, weights: Memory | DeviceArray, limit: float, out: DeviceArray
) -> list[Argument]:
    given = np.uint64(occupancy.pointer), np.uint64(weights.pointer), np.float64(limit)
    return [*given, np.uint64(out.pointer), *(np.int64(stride) for stride in out.strides)]


def _over_cells(device: Device, rows: Rows, name: str, values: DeviceArray) -> None:
    most = int((rows.sequences[:, 4] * rows.sequences[:, 5]).max(initial=0))
    if most == 0:
        return
    (sequences,) = device.upload([np.ascontiguousarray(rows.sequences)])
    size = len(rows.sequences)
    grid = min(-(-most // THREADS_cuda_grid_rows), CELL_BLOCKS), min(size, MAX_GRID_Y)
    counts = np.int64(size), np.int64(num_cells(rows))
    device.launch(
        KernelSpec("grid_rows.cu", name),
        grid,
        THREADS_cuda_grid_rows,
        0,
        [sequences, *counts, np.uint64(values.pointer)],
    )


def _shape(num_classes: int, is_wide: bool) -> tuple[int, int, bool]:
    """Threads of a row, classes that each holds, and whether that is the whole row; float64 takes two registers."""
    shapes = SHAPES[:-1] if is_wide else SHAPES
    for most, lanes, held in shapes:
        if num_classes <= most:
            return lanes, held, True
    return *shapes[-1][1:], False


def _place(array: DeviceArray | None, uploaded: Argument, like: npt.NDArray[np.generic]) -> list[Argument]:
    """Address and strides of a matrix of the device, or of the copy of a contiguous one of the host."""
    if array is None:
        return [uploaded, np.int64(like.shape[1]), np.int64(1)]
    return [np.uint64(array.pointer), *(np.int64(stride) for stride in array.strides)]


class _Run_cuda_grid_rows:
    """The kernels, launched on the rows of one array of logits."""

    def __init__(
        self,
        device: Device,
        rows: Rows,
        logits: DeviceArray,
        out: DeviceArray,
        given: tuple[DeviceArray | None, DeviceArray | None],
        plan: Plan_cuda_grid_rows,
    ) -> None:
        self._device, self._plan, self._rows = device, plan, rows
        targets, first = given
        num_rows, width = logits.shape
        classes, alone = rows.heads.tolist()
        self._lanes, held, is_whole = _shape(max(classes, width - classes), logits.dtype == "float64")
        dense = logits.strides[1] == out.strides[1] == 1
        self._defines = (
            element(logits),
            element(out, "OUT"),
            ("INTEGER", INTEGERS["int64" if targets is None else targets.dtype]),
            ("KINDS", len(rows.classes)),
            ("LANES", self._lanes),
            ("HELD", held),
            ("WHOLE", int(is_whole)),
            ("DURATIONS", num_softmaxes(rows) - 1),
            ("SIGMOID", int(alone >= 0)),
            ("DENSE", int(dense)),
            ("THREADS", plan.threads),
        )
        table, self.charges = self._upload(targets, first)
        sizes = np.int32(classes), np.int32(width), np.int32(alone), np.int64(num_cells(rows))
        self._before = [*table, *sizes]
        place = np.uint64(logits.pointer), *(np.int64(stride) for stride in logits.strides)
        self._after: list[Argument] = [*place, np.int64(num_rows)]

    def _upload(
        self, targets: DeviceArray | None, first: DeviceArray | None
    ) -> tuple[list[Argument], Argument]:
        """What the host says about the rows, in the order of the kernels' parameters, and the charges."""
        rows = self._rows
        arrays: dict[str, npt.NDArray[np.generic]] = {"sequences": rows.sequences, "classes": rows.classes}
        arrays |= {"durations": rows.durations, "charges": np.asarray(rows.charges, np.float64)}
        if first is None and rows.first.any():
            arrays["first"] = rows.first
        if targets is None:
            arrays["targets"] = rows.targets
        memories = self._device.upload([np.ascontiguousarray(array) for array in arrays.values()])
        there: dict[str, Argument] = dict(zip(arrays, memories, strict=True))
        table = [there["sequences"], np.int64(len(rows.sequences))]
        table += _place(first, there.get("first", np.uint64(0)), rows.first)
        table += _place(targets, there.get("targets", np.uint64(0)), rows.targets)
        return [*table, there["classes"], there["durations"]], there["charges"]

    def launch(self, name: str, frames: npt.NDArray[np.int64], arguments: Sequence[Argument]) -> None:
        """A kernel for the rows of so many frames [N]."""
        counts = frames * self._rows.sequences[:, 3]
        groups = self._plan.threads // self._lanes
        most, total = int(counts.max(initial=0)), int(counts.sum())
        if total == 0:
            return
        busy = BLOCKS * self._device.limits.multiprocessors * groups
        span = self._plan.span or min(max(1, total // busy), MAX_SPAN)
        blocks = -(-most // (groups * span)), min(len(frames), MAX_GRID_Y)
        kernel = KernelSpec("grid_rows.cu", name, self._defines)
        every = [*self._before, np.int64(span), *self._after, *arguments]
        self._device.launch(kernel, blocks, self._plan.threads, 0, every)
