"""What is timed on a device: sizes, graphs, and calls as users make them, with inputs that rotate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from fsachain.backends.dispatch import best_path
from fsachain.batch import TableBatch
from fsachain.fsa import Fsa
from fsachain.loss.ctc import ctc_loss
from fsachain.loss.lfmmi import LFMMILoss
from fsachain.loss.total import total_log_prob
from fsachain.table import compile_table
from tools.bench.calls import random_scores
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


CtcLoss = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Shape:
    size: int
    frames: int
    pdfs: int


def inputs(shape: Shape, device: torch.device) -> list[torch.Tensor]:
    """As many arrays of scores [N, T, P] as together do not fit the caches; each wants a gradient."""
    host = torch.from_numpy(random_scores(shape.size, shape.frames, shape.pdfs))
    first = host.to(device)
    count = copies_of(first.numel() * first.element_size())
    others = [first.roll(n, dims=1) for n in range(1, count)]
    return [scores.detach().requires_grad_() for scores in (first, *others)]


def _step(loss: Callable[[torch.Tensor], torch.Tensor], scores: torch.Tensor) -> torch.Tensor | None:
    scores.grad = None
    loss(scores).backward()
    return scores.grad


def training_calls(loss: Callable[[torch.Tensor], torch.Tensor], shape: Shape, device: torch.device) -> Call:
    return rotated([partial(_step, loss, scores) for scores in inputs(shape, device)])


def log_prob_call(batch: TableBatch, shape: Shape, leak: float, device: torch.device) -> Call:
    """With the gradient."""
    return training_calls(
        lambda scores: total_log_prob(batch, scores, leaky_hmm_coefficient=leak).sum(), shape, device
    )


def loss_call(loss: LFMMILoss, batch: TableBatch, shape: Shape, device: torch.device) -> Call:
    lengths = torch.full((shape.size,), shape.frames)
    return training_calls(lambda scores: loss(scores, lengths, batch), shape, device)


def best_path_call(batch: TableBatch, shape: Shape, device: torch.device) -> Call:
    """Best paths, brought to the host."""
    arrays = [scores.detach() for scores in inputs(shape, device)]
    return rotated([partial(best_path, batch, scores) for scores in arrays])


def our_ctc(targets: npt.NDArray[np.int64], frames: int, device: torch.device) -> CtcLoss:
    """Our CTC loss of logits [N, T, C], log-softmax included; targets on the device."""
    rows = torch.from_numpy(targets).to(device)
    lengths = [torch.full((len(rows),), count) for count in (frames, rows.shape[1])]

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return ctc_loss(logits.transpose(0, 1), rows, *lengths, reduction="sum", inputs="logits")

    return loss


def torch_ctc(
    targets: npt.NDArray[np.int64], frames: int, targets_on: torch.device, integer: torch.dtype
) -> CtcLoss:
    """torch's CTC loss of logits [N, T, C]. Targets as int32 on the host, all in a row, are what cuDNN's takes."""
    rows = torch.from_numpy(targets).to(integer)
    lengths = [torch.full((len(rows),), count, dtype=integer) for count in (frames, rows.shape[1])]
    given = rows.flatten() if targets_on.type == "cpu" else rows.to(targets_on)

    def loss(logits: torch.Tensor) -> torch.Tensor:
        log_probs = logits.log_softmax(2).transpose(0, 1)
        return torch.nn.functional.ctc_loss(log_probs, given, *lengths, reduction="sum")

    return loss
