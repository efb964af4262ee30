"""The driver of `grid_rows.cu`: logits of transducers and the grid on a device, equations (24)-(29) of `fsachain.grid`.

The functions are those of `grid_cpu_rows`, with a device before and arrays that lie on it. Each uploads what the host says
about the rows in one copy, and waits for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.backends.cuda_device import Argument, Device, DeviceArray, KernelSpec, Memory
from fsachain.backends.cuda_elements import element
from fsachain.grid import Rows, num_cells, num_softmaxes

DOUBLE = 8  # bytes
INTEGERS = {"int32": "int", "int64": "long long"}
THREADS = 256
WARP = 32
MAX_GRID_Y = 65_535
CELL_BLOCKS = 1 << 12  # at most, of those that work on cells one after another
# Blocks for each multiprocessor before a group of threads takes several rows: the tables are read once for all of them.
BLOCKS, MAX_SPAN = 16, 16
# Threads of a row and the classes that each holds, by the classes of a row: as many as are held at least.
SHAPES = ((32, 8, 4), (64, 16, 4), (128, 32, 4), (256, 32, 8), (512, 32, 16))


class Plan(NamedTuple):
    """How the kernels run; no bit depends on it.

    Attributes:
        threads: of a block, a multiple of 32, at most 1024.
        span: successive rows of a group of threads; None: as many as keep all multiprocessors busy.
    """

    threads: int = THREADS
    span: int | None = None


DEFAULT_PLAN = Plan()


def softmax_scores(
    device: Device,
    rows: Rows,
    logits: DeviceArray,
    values: DeviceArray,
    targets: DeviceArray | None = None,
    first: DeviceArray | None = None,
    plan: Plan = DEFAULT_PLAN,
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
    run = _Run(device, rows, logits, logits, (targets, first), plan)
    size = DOUBLE if logits.dtype == "float64" else DOUBLE // 2
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
    plan: Plan = DEFAULT_PLAN,
) -> None:
    """The same for rows that are log-probs already."""
    run = _Run(device, rows, log_probs, log_probs, (targets, first), plan)
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
    plan: Plan = DEFAULT_PLAN,
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
    run = _Run(device, rows, logits, out, (targets, first), plan)
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
    plan: Plan = DEFAULT_PLAN,
) -> None:
    """The gradient of -log Z by log-probs [R, V], times weights [N]: otherwise as `softmax_gradient`."""
    run = _Run(device, rows, log_probs, out, (targets, first), plan)
    run.launch("plain_gradient", rows.sequences[:, 2], _gradient(occupancy, weights, limit, out))


def constrain(device: Device, rows: Rows, values: DeviceArray) -> None:
    """Equation (26) on scores of blanks and labels, float64 [2, cells], in place."""
    _over_cells(device, rows, "grid_constrain", values)


def release(device: Device, rows: Rows, occupancy: DeviceArray) -> None:
    """What (26) asks of occupancies [2, cells]: blanks get those of the labels that they are a part of."""
    _over_cells(device, rows, "grid_release", occupancy)


def scale_kinds(device: Device, values: DeviceArray, factors: Sequence[float]) -> None:
    """values [K, cells] float64 times factors [K], in place: (27) multiplies those of labels by 1 + lambda."""
    cells = values.num_bytes // DOUBLE // len(factors)
    if cells == 0 or all(factor == 1.0 for factor in factors):
        return
    (given,) = device.upload([np.asarray(factors, np.float64)])
    grid = min(-(-cells // THREADS), CELL_BLOCKS), len(factors)
    arguments: list[Argument] = [np.int64(cells), given, np.uint64(values.pointer)]
    device.launch(KernelSpec("grid_rows.cu", "grid_scale"), grid, THREADS, 0, arguments)


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
    grid = min(-(-most // THREADS), CELL_BLOCKS), min(size, MAX_GRID_Y)
    counts = np.int64(size), np.int64(num_cells(rows))
    device.launch(
        KernelSpec("grid_rows.cu", name), grid, THREADS, 0, [sequences, *counts, np.uint64(values.pointer)]
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


class _Run:
    """The kernels, launched on the rows of one array of logits."""

    def __init__(
        self,
        device: Device,
        rows: Rows,
        logits: DeviceArray,
        out: DeviceArray,
        given: tuple[DeviceArray | None, DeviceArray | None],
        plan: Plan,
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
