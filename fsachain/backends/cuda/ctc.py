"""CTC on a device, from scores to loss and gradient, through the recursion of `cuda`: see `ctc.cu` and `log_softmax.cu`.

Targets stay on the device: what is different about them is written into the scores of an acceptor that depends on nothing
but the length of a target, rounded up.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.backends.cuda import backend as cuda
from fsachain.backends.cuda.device import (
    C_TYPES,
    Argument,
    Device,
    DeviceArray,
    KernelSpec,
    Memory,
    element,
    nowhere,
    place_of,
)
from fsachain.batch import TableBatch
from fsachain.fsa import Floats, Fsa
from fsachain.graph.ctc import CtcTopology
from fsachain.table import TransitionTable, compile_table

Lengths = npt.NDArray[np.int64]

DOUBLE, LONG, INDEX = 8, 8, 4  # bytes
COLUMNS = 4  # of a label, see `ctc.cu`
ROUNDING = 8  # labels: as many lengths of targets share an acceptor
INTEGERS = {"int32": "int", "int64": "long long"}
ROW_THREADS, TARGET_THREADS = 256, 128


class Targets(NamedTuple):
    """Labels of all sequences, on the device.

    labels: int32 or int64 [N, U], or [sum of lengths], one target after another. lengths: int64 [N] on the host.
    """

    labels: DeviceArray
    lengths: Lengths


class Task(NamedTuple):
    """What is asked for beside scores and targets.

    Attributes:
        blank: its class, in [0, C).
        normalizes: scores are logits, whose log-softmax is part of the loss; else they are taken as log-probabilities, and
            their own derivatives are made.
        topology: see `fsachain.graph.ctc`.
        log_priors: float64 [C] on the host, taken off the scores; None for none.
        delay_penalty: in nats for each frame, see `fsachain.backends.ctc`.
    """

    blank: int
    normalizes: bool = True
    topology: CtcTopology = "standard"
    log_priors: Floats | None = None
    delay_penalty: float = 0.0

    @property
    def rounding(self) -> float:
        """How far below 0 rounding may bring a loss for each frame; 0 where scores need not be probabilities."""
        is_probability = self.log_priors is None and self.delay_penalty == 0.0
        return 8.0 * float(np.finfo(np.float32).eps) if is_probability else 0.0


class Sizes(NamedTuple):
    """Threads of a block, multiples of 32: of kernels whose warps take a frame each, and of those for a target."""

    rows: int = ROW_THREADS
    targets: int = TARGET_THREADS


DEFAULT_SIZES = Sizes()


def ctc(
    device: Device,
    scores: DeviceArray,
    targets: Targets,
    lengths: Lengths,
    task: Task,
    gradient: DeviceArray | None,
    memory_budget: float | None = None,
    sizes: Sizes = DEFAULT_SIZES,
) -> Memory:
    """The CTC loss of every sequence, and its derivative by the scores.

    Nothing waits for the device. The caller has checked shapes and lengths; a label that is the blank or no class makes the
    loss of its sequence NaN.

    Args:
        device: where everything happens.
        scores: [N, T, C] of any type.
        targets: labels and lengths.
        lengths: frames of each sequence [N], on the host.
        task: which loss.
        gradient: [N, T, C], float64 for float64 scores, else float32; all of it is written. None: no gradient, no beta.
        memory_budget: as for `cuda.add_occupancy`.
        sizes: of the blocks.

    Returns:
        float64 [N] on the device; +inf where there is no path, NaN for an illegal score or label. There the gradient is 0.
    """
    run = _Run(device, scores, task, gradient, sizes)
    frames, counts, ones = device.upload([lengths, targets.lengths, np.ones(run.size)])
    linked = run.link(targets, counts)
    log_sums = run.log_softmax(frames) if task.normalizes else None
    batch = templates(tuple(_rounded(targets.lengths).tolist()))
    columns, occupancy = run.columns(linked, frames)
    if occupancy is None:
        log_prob, _ = cuda.log_probs(device, batch, columns, lengths, 0.0)
        return run.loss(linked, frames, log_sums, log_prob)
    inputs = device, batch, columns, lengths, 0.0
    log_prob, _ = cuda.add_occupancy(*inputs, ones, occupancy, memory_budget)
    loss = run.loss(linked, frames, log_sums, log_prob)
    run.subtract(linked, frames, loss, occupancy)
    return loss


class _Linked(NamedTuple):
    """What `ctc_links` makes of targets, on the device: `most` labels is what each has room for, `width` columns."""

    labels: Memory
    links: Memory
    counts: Memory
    most: int
    width: int


class _Run:
    """The kernels, launched on one batch of logits."""

    def __init__(
        self, device: Device, scores: DeviceArray, task: Task, gradient: DeviceArray | None, sizes: Sizes
    ) -> None:
        self._device, self._scores, self._gradient, self._sizes = device, scores, gradient, sizes
        self.size, self._num_frames, self._num_classes = scores.shape
        self._task, self._blank = task, np.int64(task.blank)
        self._wide = "float64" if scores.dtype == "float64" else "float32"
        self._types = element(scores), ("OUT", C_TYPES[self._wide])
        self._into = nowhere() if gradient is None else place_of(gradient)
        self._shape = np.int64(self.size), np.int64(self._num_frames)

    def link(self, targets: Targets, counts: Memory) -> _Linked:
        """Labels in 32 bits, where they repeat, and whether they are legal."""
        most = int(targets.lengths.max(initial=0))
        empty, room = self._device.empty, INDEX * self.size * most
        width = COLUMNS * int(_rounded(targets.lengths).max(initial=0)) + 1
        linked = _Linked(empty(room), empty(room), empty(LONG * self.size), most, width)
        labels = targets.labels
        by_sequence = labels.strides[0] if len(labels.shape) == 2 else -1
        place = np.uint64(labels.pointer), np.int64(by_sequence), np.int64(labels.strides[-1])
        classes = np.int64(most), np.int64(self._num_classes), self._blank
        kernel = KernelSpec("ctc.cu", "ctc_links", (*self._types, ("INTEGER", INTEGERS[labels.dtype])))
        arguments: list[Argument] = [*place, counts, *classes, *linked[:3]]
        self._device.launch(kernel, self.size, self._sizes.targets, 0, arguments)
        return linked

    def log_softmax(self, frames: Memory) -> Memory:
        """log_sums [N][T]; the softmax goes to the gradient."""
        log_sums = self._device.empty(DOUBLE * self.size * self._num_frames)
        shape = *self._shape, np.int64(self._num_classes)
        arguments: list[Argument] = [*place_of(self._scores), *shape, frames, log_sums, *self._into]
        self._rows("log_softmax.cu", "log_softmax", arguments)
        return log_sums

    def columns(self, linked: _Linked, frames: Memory) -> tuple[DeviceArray, DeviceArray | None]:
        """The scores for the recursion and zeros [N, T, width] for its occupancies, if there is a gradient."""
        columns, task = self._array(linked.width), self._task
        occupancy = None if self._gradient is None else self._array(linked.width)
        priors: list[Argument] = [np.uint64(0)]
        if task.log_priors is not None:
            priors = [*self._device.upload([task.log_priors])]
        sizes = np.int64(linked.most), self._blank, np.int64(linked.width)
        further, doubles = task.topology in ("standard", "compact"), task.topology in ("compact", "minimal")
        arguments: list[Argument] = [*place_of(self._scores), *self._shape, frames, linked.labels]
        arguments += [linked.counts, *sizes, np.int32(further), np.int32(doubles), *priors]
        arguments += [np.float64(task.delay_penalty), np.uint64(columns.pointer)]
        self._rows("ctc.cu", "ctc_column_rows", [*arguments, _address(occupancy)])
        return columns, occupancy

    def loss(self, linked: _Linked, frames: Memory, log_sums: Memory | None, log_prob: Memory) -> Memory:
        """The loss [N] from log Z of the columns."""
        loss, threads = self._device.empty(DOUBLE * self.size), self._sizes.targets
        sums = np.uint64(0) if log_sums is None else log_sums
        numbers = np.int64(self._num_frames), np.float64(self._task.rounding)
        arguments: list[Argument] = [sums, log_prob, frames, linked.counts, *numbers, loss]
        kernel = KernelSpec("ctc.cu", "ctc_loss", self._types)
        self._device.launch(kernel, self.size, threads, threads // 32 * DOUBLE, arguments)
        return loss

    def subtract(self, linked: _Linked, frames: Memory, loss: Memory, occupancy: DeviceArray) -> None:
        """Finish the gradient."""
        sizes = np.int64(linked.most), self._blank, np.int64(linked.width)
        arguments: list[Argument] = [loss, frames, *linked[:3], *sizes]
        arguments += [np.int32(self._task.normalizes), np.uint64(occupancy.pointer)]
        arguments += [*self._shape, np.int64(self._num_classes), *self._into]
        self._rows("ctc.cu", "ctc_gradient_rows", arguments)

    def _rows(self, text: str, name: str, arguments: Sequence[Argument]) -> None:
        """A kernel that takes a warp for a frame."""
        threads = self._sizes.rows
        grid = max(1, -(-self.size * self._num_frames // (threads // 32)))
        self._device.launch(KernelSpec(text, name, self._types), grid, threads, 0, arguments)

    def _array(self, width: int) -> DeviceArray:
        """New memory [N, T, width] of the gradient's type."""
        shape = self.size, self._num_frames, width
        memory = self._device.empty(int(np.prod(shape)) * np.dtype(self._wide).itemsize)
        return DeviceArray(memory.pointer, self._wide, shape, (self._num_frames * width, width, 1), memory)


def _address(array: DeviceArray | None) -> np.uint64:
    return np.uint64(0 if array is None else array.pointer)


def _rounded(lengths: Lengths) -> Lengths:
    return -(-lengths // ROUNDING) * ROUNDING


@lru_cache(maxsize=64)
def templates(lengths: tuple[int, ...]) -> TableBatch:
    """The acceptors for targets of these lengths, multiples of ROUNDING."""
    return TableBatch.pack([template(length) for length in lengths])


@lru_cache(maxsize=1024)
def template(length: int) -> TransitionTable:
    """The acceptor of all targets of up to `length` labels; its pdfs are the columns of `ctc.cu`."""
    blank, label = 1 + 2 * np.arange(length + 1), 2 + 2 * np.arange(length)
    labels = COLUMNS * np.arange(length)
    parts = [
        (blank, blank, COLUMNS * np.arange(length + 1)),
        (label, blank[1:], labels + COLUMNS),
        (label, label, labels + 1),
        (blank[:-1], label, labels + 2),
        (label[:-1], label[1:], labels[1:] + 3),
        (np.zeros(1, int), blank[:1], np.zeros(1, int)),
        (np.zeros(len(label[:1]), int), label[:1], labels[:1] + 2),
    ]
    src, dst, column = (np.concatenate(column) for column in zip(*parts, strict=True))
    num_states = 2 * length + 2
    fsa = Fsa(num_states, src, dst, column, np.zeros(len(src)), np.zeros(num_states))
    return compile_table(fsa, COLUMNS * length + 1)
