"""What is timed on a device: sizes, graphs, and losses as users call them, with the float64 values that they must have."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fsachain.batch import TableBatch
from fsachain.fsa import Fsa
from fsachain.table import compile_table
from tests import tolerances
from tools.bench.gpu_timing import Call, copies_of, rotated
from tools.bench.workloads import Workloads, left_to_right


@dataclass(frozen=True)
class GpuSizes:
    """How much is timed; the defaults are those of the targets.

    Tuples are sequences and frames, of `numerators` also states, of which half can be left out (1,000 arcs); `ctc` is
    frames and `classes` theirs; `bigram` is units, sequences and frames of the denominator over pairs of units; `transducer`
    sequences of the random batch, frames of the sorted one, frames of an utterance at most, and classes. `copy_bytes` and
    `product_side` are of the measurements of the device; `seconds` is the time for each group of rows.
    """

    long: tuple[int, int] = (128, 700)
    numerators: tuple[int, int, int] = (128, 700, 401)
    loss: tuple[int, int] = (128, 150)
    ctc: int = 150
    classes: int = 500
    bigram: tuple[int, int, int] = (500, 64, 500)
    transducer: tuple[int, int, int, int] = (30, 10_000, 1000, 500)
    copy_bytes: int = 1 << 30
    product_side: int = 8192
    seconds: float = 2.0


def numerator_batch(sizes: GpuSizes, num_pdfs: int) -> TableBatch:
    """Seeded numerators: chains with a self-loop on each state, of which every second may be left out."""
    generator = np.random.default_rng(5)
    size, _, states = sizes.numerators
    graphs = []
    for _ in range(size):
        pdfs = generator.integers(0, num_pdfs, states - 1)
        graphs.append(left_to_right(pdfs, np.arange(states - 1) % 2 == 1, float(-np.log(3.0)), 1))
    return TableBatch.pack([compile_table(graph, num_pdfs) for graph in graphs])


def repeated_numerators(work: Workloads, size: int, num_pdfs: int) -> TableBatch:
    """The workload's numerators over and over; pdfs beyond the output are folded into it, sizes stay."""
    tables = []
    for n in range(size):
        graph = work.numerators[n % len(work.numerators)]
        parts = graph.src, graph.dst, graph.pdf % num_pdfs, graph.log_prob, graph.final_log_prob
        tables.append(compile_table(Fsa(graph.num_states, *parts, graph.start), num_pdfs))
    return TableBatch.pack(tables)


def bigram_denominator(units: int) -> Fsa:
    """All pairs of units in CTC's topology: pdf 0 is the blank, unit u has pdf u + 1; every state is final.

    State 0 starts and stands for blanks before the first unit; 1 + u is in unit u, 1 + units + u in a blank after it. From
    both every unit can follow, but a unit follows itself only after a blank.
    """
    unit = np.arange(units)
    inside, after = 1 + unit, 1 + units + unit
    before, following = (grid.ravel() for grid in np.meshgrid(unit, unit, indexing="ij"))
    other = before != following
    parts = [
        (np.zeros(1, int), np.zeros(1, int), np.zeros(1, int)),
        (np.zeros(units, int), inside, 1 + unit),
        (inside, inside, 1 + unit),
        (inside, after, np.zeros(units, int)),
        (after, after, np.zeros(units, int)),
        (inside[before[other]], inside[following[other]], 1 + following[other]),
        (after[before], inside[following], 1 + following),
    ]
    src, dst, pdf = (np.concatenate(column) for column in zip(*parts, strict=True))
    weight = np.random.default_rng(6).random(len(src)) + 0.01
    log_prob = np.log(weight / np.bincount(src, weight)[src])
    num_states = 1 + 2 * units
    return Fsa(num_states, src, dst, pdf, log_prob, np.zeros(num_states))


Loss = Callable[[torch.Tensor], torch.Tensor]
Sums = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Case:
    """A loss of scores that do not depend on the machine.

    arrays: makes float32 arrays on the host. combine: of these, where the loss shall run, the scores [N, T, .., P]. loss: of
    each sequence, or one of all. trains: the gradient is asked for too. unit: how large gradients may be. parts: the same
    sequence by sequence, for a host without room for all in float64. rotates: there is room for several inputs.
    """

    arrays: Callable[[], Sequence[npt.NDArray[np.float32]]]
    loss: Loss
    combine: Callable[..., torch.Tensor] = lambda scores: scores
    trains: bool = True
    unit: float = 1.0
    parts: Callable[[], Iterator[Case]] | None = None
    rotates: bool = True

    def scores(self, device: torch.device) -> torch.Tensor:
        there = [torch.from_numpy(array).to(device) for array in self.arrays()]
        return self.combine(*there).requires_grad_(self.trains)

    def step(self, scores: torch.Tensor) -> torch.Tensor:
        """The losses; the gradient, where it is asked for, is `scores.grad`."""
        scores.grad = None
        losses = self.loss(scores)
        if self.trains:
            losses.sum().backward()
        return losses

    def call(self, device: torch.device) -> Call:
        """Steps with as many inputs in turn as together do not fit the caches."""
        first = self.scores(device)
        count = copies_of(first.numel() * first.element_size()) if self.rotates else 1
        others = [first.detach().roll(n, dims=1).requires_grad_(self.trains) for n in range(1, count)]
        return rotated([lambda scores=scores: self.step(scores) for scores in (first, *others)])

    def sums(self, scores: torch.Tensor) -> Sums:
        """The losses and, of the gradient, sums over frames and weighted sums over classes: float64."""
        losses = self.step(scores).detach().double().cpu().numpy().reshape(-1)
        if not self.trains:
            return {"loss": losses}
        assert scores.grad is not None
        weights = torch.from_numpy(np.random.default_rng(9).random(scores.shape[-1])).to(scores.device)
        by_class, by_frame = [], []
        for gradient in scores.grad:  # one at a time, since float64 takes twice the room
            wide = gradient.double()
            by_class.append(wide.flatten(0, -2).sum(0).cpu().numpy())
            by_frame.append(
                (wide @ weights).flatten(1).sum(1).cpu().numpy()
                if wide.dim() > 2
                else (wide @ weights).cpu().numpy()
            )
        return {"loss": losses, "by_class": np.stack(by_class), "by_frame": np.stack(by_frame)}

    def reference(self) -> Sums:
        """The sums in float64 by the host, and a check sum of the arrays."""
        if self.parts is None:
            found = self.sums(self.scores(torch.device("cpu")).detach().double().requires_grad_(self.trains))
        else:
            each = [part.reference() for part in self.parts()]
            found = {name: _stacked([sums[name] for sums in each]) for name in each[0]}
        return {**found, "arrays": self.check_sum()}

    def check_sum(self) -> npt.NDArray[Any]:
        return np.array([zlib.crc32(np.ascontiguousarray(array)) for array in self.arrays()])

    def compare(self, path: Path, device: torch.device) -> tuple[float, str]:
        """The largest difference from a file that `reference` has made, relative to what is allowed, and of what.

        Raises:
            FileNotFoundError, ValueError: there is no such file, or it is for other arrays.
        """
        with np.load(path) as archive:
            exact = dict(archive)
        if not np.array_equal(exact.pop("arrays"), self.check_sum()):
            raise ValueError(f"{path.name} is for other scores: this machine's numpy draws other numbers")
        worst = 0.0, "nothing"
        for name, ours in self.sums(self.scores(device)).items():
            right = exact[name]
            allowed = tolerances.LOG_PROB_RELATIVE * np.maximum(tolerances.LOG_PROB_FLOOR, np.abs(right))
            if name != "loss":
                allowed = tolerances.OCCUPANCY * (self.unit + np.abs(right))
            away = np.abs(ours - right) / allowed
            ratio = np.inf if np.isnan(away).any() else float(away.max(initial=0.0))
            worst = max(worst, (ratio, name))
        return worst


def _stacked(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Rows of different lengths, with zeros behind."""
    if arrays[0].ndim == 1:
        return np.concatenate(arrays)
    width = max(array.shape[1] for array in arrays)
    return np.concatenate([np.pad(array, ((0, 0), (0, width - array.shape[1]))) for array in arrays])
