"""Which kernels the CUDA backend compiles, and how: found by asking its drivers, with a device that only takes notes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fsachain.backends.cuda import backend as cuda
from fsachain.backends.cuda import ctc as cuda_ctc
from fsachain.backends.cuda import grid as cuda_grid
from fsachain.backends.cuda import paths as cuda_paths
from fsachain.backends.cuda.device import Argument, DeviceArray, KernelSpec, Limits
from fsachain.batch import TableBatch
from fsachain.denominator import DenominatorGraph
from fsachain.grid import (
    BLANK,
    MODIFIED,
    REGULAR,
    GridArc,
    GridBatch,
    dense_boxes,
    grid_sizes,
    num_cells,
)
from fsachain.loss.arguments import given, make_rows
from fsachain.loss.rnnt import rnnt_call
from tools.bench.workloads import chains, entered_by_one_pdf

# Compute capability, multiprocessors, shared memory of a block and cluster of GPUs of each generation that is compiled for:
# T4, A100, H100 and H200, B200.
GPUS = {
    75: Limits((7, 5), 40, 65_536, 1),
    80: Limits((8, 0), 108, 166_912, 1),
    90: Limits((9, 0), 132, 232_448, 8),
    100: Limits((10, 0), 148, 232_448, 8),
}
NUM_PDFS = 84
FRAMES = 16  # as many as best paths in windows need


class DryMemory(NamedTuple):
    """Memory that is not there."""

    pointer: int
    num_bytes: int


@dataclass
class DryDevice:
    """A device with these limits that runs nothing; `kernels` are those it was asked to launch, in order."""

    limits: Limits
    kernels: list[KernelSpec] = field(default_factory=list)
    index: int = 0
    stream: None = None

    def empty(self, num_bytes: int) -> DryMemory:
        """An address that nobody may use."""
        return DryMemory(1 << 32, num_bytes)

    def pieces(self, sizes: Sequence[int]) -> list[DryMemory]:
        return [self.empty(size) for size in sizes]

    def upload(self, arrays: Sequence[npt.NDArray[Any]]) -> list[DryMemory]:
        return [self.empty(array.nbytes) for array in arrays]

    def resident(
        self, owner: Any, key: Hashable, make: Callable[[], Sequence[npt.NDArray[Any]]]
    ) -> list[DryMemory]:
        return self.upload(make())

    def launch(
        self,
        kernel: KernelSpec,
        grid: int | tuple[int, int],
        block: int,
        shared_bytes: int,
        arguments: Sequence[Argument],
    ) -> None:
        self.kernels.append(kernel)

    def at_once(self, kernel: KernelSpec, block: int, shared_bytes: int) -> int:
        """One block on each multiprocessor."""
        return self.limits.multiprocessors // kernel.cluster

    def array(self, dtype: str, *shape: int) -> DeviceArray:
        return cuda.view(torch.empty(shape, dtype=getattr(torch, dtype), device="meta"))


@cache
def _denominator(states: int, arcs: int) -> DenominatorGraph:
    """Their plans differ from those of graphs with pdfs at random."""
    return entered_by_one_pdf(states, arcs, NUM_PDFS)


@cache
def _numerators(states: int, size: int) -> TableBatch:
    return chains(np.random.default_rng(3), size, states, NUM_PDFS)


# Graphs that sequences share, from a phone bigram to one that no chip holds; batches with and without idle processors.
SHARED = ((40, 200), (1000, 12_000), (3000, 51_000), (9000, 90_000), (60_000, 120_000))
USUAL, LARGE = SHARED[2], SHARED[4]
BATCHES = (1, 128)
# Graphs of one sequence each.
OWN_STATES = (30, 20_000)


def _recursion(device: DryDevice, batch: TableBatch, dtype: str, leaky: float) -> None:
    size = batch.size
    scores = device.array(dtype, size, FRAMES, NUM_PDFS)
    out = device.array("float64" if dtype == "float64" else "float32", size, FRAMES, NUM_PDFS)
    lengths = np.full(size, FRAMES, np.int64)
    cuda.log_probs(device, batch, scores, lengths, leaky)
    cuda.add_occupancy(device, batch, scores, lengths, leaky, device.array("float64", size), out, None, True)


def _rest(device: DryDevice, dtype: str, labels: str) -> None:
    """Best paths, penalties, CTC and pair normalizers."""
    wide = "float64" if dtype == "float64" else "float32"
    for batch in (_denominator(*USUAL).batch(2), _denominator(*LARGE).batch(2), _numerators(30, 2)):
        scores = device.array(dtype, batch.size, FRAMES, NUM_PDFS)
        lengths = np.full(batch.size, FRAMES, np.int64)
        for budget in (None, 1.0):
            cuda_paths.best_paths(device, batch, scores, lengths, budget)
    lengths = np.full(4, FRAMES, np.int64)
    logits, gradient = device.array(dtype, 4, FRAMES, 500), device.array(wide, 4, FRAMES, 500)
    targets = cuda_ctc.Targets(device.array(labels, 4, 5), np.full(4, 5, np.int64))
    for out in (None, gradient):
        numbers, factors, four = device.array("float64", 2, 4), (1.0, 1.0, 30.0), device.array("float64", 4)
        cuda.scale_rows(device, device.array(wide, 4, FRAMES, 500), four, logits)
        cuda.spread_rows(device, gradient, device.array("int32", 4, 502), four, logits)
        terms = cuda.LossTerms(four, four, four, four)
        cuda.loss_terms(device, logits, FRAMES, numbers, (four, four), 1.0, 0.0, factors, None, True, terms)
        cuda.finish_gradient(device, gradient, logits, numbers, four, factors, None, four, four, logits)
        cuda_ctc.ctc(device, logits, targets, lengths, cuda_ctc.Task(0), out)
        cuda.reduce_losses(device, four, True, 4, 1.0, cuda.Reduced(False, None, gradient))
        cuda.reduce_losses(device, four, True, 4, 1.0, cuda.Reduced(False, None, None))
    am, lm, pairs = (device.array(wide, *shape) for shape in ((4, FRAMES, 500), (4, 9, 500), (4, 9, FRAMES)))
    cuda_grid.pair_log_sums(device, am, lm, pairs, 1e-25, pairs)
    cuda_grid.add_pair_gradient(device, am, lm, pairs, 1e-25, pairs, pairs, am, lm)


# Of a transducer: kinds of arcs, classes and durations of a row, the class that has a sigmoid.
_TIMES = tuple(GridArc(d, 0, 0) for d in range(1, 5)) + tuple(GridArc(d, 1, 1) for d in range(5))
USUAL_TRANSDUCER = REGULAR, 500, 0, -1
TRANSDUCERS = (
    USUAL_TRANSDUCER,
    (MODIFIED, 30, 0, -1),
    (REGULAR, 100, 0, -1),
    (REGULAR, 250, 0, 0),
    ((*REGULAR, BLANK._replace(frames=2)), 5000, 0, -1),
    (_TIMES, 500, 5, -1),
)
LABELS = (5, 100, 400)


def _transducer(
    device: DryDevice,
    dtype: str,
    kind: tuple[tuple[GridArc, ...], int, int, int],
    most_labels: Iterable[int] = LABELS,
) -> None:
    """The losses from logits, padded, and the grid alone with scores of float32; the gradient in place of the logits."""
    arcs, classes, durations, alone = kind
    kinds, size = len(arcs), 2
    for labels in most_labels:
        shape = [size, FRAMES, labels + 1, classes + durations]
        targets, counts = torch.ones(size, labels, dtype=torch.int64), [labels] * size
        lengths = given(targets, targets, [FRAMES] * size, counts)
        own = [-1 if arc.labels else 0 for arc in arcs]
        entries = [classes + arc.frames for arc in arcs if durations]
        rows = make_rows(shape, rnnt_call(targets, lengths, arcs, own, entries, [classes, alone])).rows
        logits = device.array(dtype, size * FRAMES * (labels + 1), classes + durations)
        cells, weights = num_cells(rows), device.array("float64", size)
        values = device.array("float64", kinds, cells)
        work = cuda_grid.LogitRows(device, rows, logits)
        work.gradient(work.scores(values, False), values, weights, 1.0)
        work.scores(values, True)
        work.gradient(None, values, weights, 1.0)
        cuda_grid.constrain(device, rows, values)
        cuda_grid.release(device, rows, values)
        boxes = dense_boxes(size, kinds, FRAMES, labels + 1)
        sizes = grid_sizes(np.full(size, FRAMES), np.full(size, labels))
        batch = GridBatch(np.array(arcs), sizes, boxes)
        for values in (device.array("float64", kinds * cells), device.array("float32", kinds * cells)):
            cuda_grid.forward_backward(device, batch, values)
            cuda_grid.best_paths(device, batch, values)


def main_kernels(limits: Limits) -> list[KernelSpec]:
    """What float32 scores need: a leaky and an exact denominator of the usual size, numerators, and all else once."""
    device = DryDevice(limits)
    for leaky in (1e-5, 0.0):
        _recursion(device, _denominator(*USUAL).batch(128), "float32", leaky)
    _recursion(device, _denominator(*LARGE).batch(128), "float32", 1e-5)
    _recursion(device, _numerators(OWN_STATES[0], 128), "float32", 0.0)
    _rest(device, "float32", "int64")
    _transducer(device, "float32", USUAL_TRANSDUCER, (100,))
    return distinct(device.kernels)


def all_kernels(limits: Limits) -> list[KernelSpec]:
    """What scores of any type need, on graphs of all sizes, in small and in large batches."""
    device = DryDevice(limits)
    for dtype, labels in (
        ("float32", "int64"),
        ("float16", "int32"),
        ("bfloat16", "int64"),
        ("float64", "int32"),
    ):
        _rest(device, dtype, labels)
        for kind in TRANSDUCERS:
            _transducer(device, dtype, kind)
        for size in BATCHES:
            for shape in SHARED:
                for leaky in (1e-5, 0.0):
                    _recursion(device, _denominator(*shape).batch(size), dtype, leaky)
            for states in OWN_STATES:
                _recursion(device, _numerators(states, min(size, 4)), dtype, 0.0)
    return distinct(device.kernels)


def distinct(kernels: Iterable[KernelSpec]) -> list[KernelSpec]:
    return sorted(set(kernels), key=repr)
