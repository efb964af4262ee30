"""The rows of the GPU report: what TARGETS.md asks for, as users call it; and losses of torch, cuDNN and torchaudio."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import torch

from fsachain.backends.dispatch import best_path
from fsachain.batch import TableBatch
from fsachain.loss.ctc import ctc_loss
from fsachain.loss.lfmmi import LFMMILoss
from fsachain.loss.total import total_log_prob
from fsachain.table import compile_table
from tools.bench import gpu_transducer, gpu_workloads
from tools.bench.gpu_timing import Target
from tools.bench.gpu_workloads import Case, GpuSizes, Loss
from tools.bench.workloads import LEAK, Work, Workloads, random_scores, work_of

NUMERATOR_PDFS = 2000


class Entry(NamedTuple):
    """A row. memory: all of torch's pool, scores and gradient included. peers: losses of the same scores, by name."""

    name: str
    case: Case
    work: Work
    target: Target | None = None
    memory: Target | None = None
    peers: dict[str, Loss] = {}  # noqa: RUF012

    @property
    def file(self) -> str:
        """Where the float64 values are kept."""
        return re.sub(r"\W+", "-", self.name) + ".npz"


Maker = Callable[[Workloads, GpuSizes], list[Entry]]


def _recursion(
    name: str,
    batch: TableBatch,
    frames: int,
    leak: float,
    target: Target | None,
    memory: Target | None = None,
) -> Entry:
    pdfs = batch.tables[0].num_pdfs
    case = Case(
        lambda: [random_scores(batch.size, frames, pdfs)],
        lambda scores: total_log_prob(batch, scores, leaky_hmm_coefficient=leak),
    )
    return Entry(name, case, work_of(batch, frames, pdfs), target, memory)


def _best_paths(name: str, batch: TableBatch, frames: int) -> Entry:
    """Brought to the host."""
    pdfs = batch.tables[0].num_pdfs
    case = Case(
        lambda: [random_scores(batch.size, frames, pdfs)],
        lambda scores: best_path(batch, scores).score,
        trains=False,
    )
    return Entry(f"{name}, best paths", case, work_of(batch, frames, pdfs))


def long_denominator(work: Workloads, sizes: GpuSizes) -> list[Entry]:
    """With Kaldi's leak and exact, and best paths."""
    size, frames = sizes.long
    batch, name = work.denominator.batch(size), f"{work.name}, B {size}, T {frames}"
    return [
        _recursion(f"{name}, leaky", batch, frames, LEAK, Target(8.0, "ms")),
        _recursion(f"{name}, exact", batch, frames, 0.0, None),
        _best_paths(name, batch, frames),
    ]


def numerators(work: Workloads, sizes: GpuSizes) -> list[Entry]:
    size, frames, _ = sizes.numerators
    batch = gpu_workloads.numerator_batch(sizes, NUMERATOR_PDFS)
    name = f"numerators, B {size}, T {frames}, {batch.table(0).num_arcs} arcs"
    return [_recursion(name, batch, frames, 0.0, Target(3.0, "ms")), _best_paths(name, batch, frames)]


def whole_loss(work: Workloads, sizes: GpuSizes) -> list[Entry]:
    graph, (size, frames) = work.denominator, sizes.loss
    batch = gpu_workloads.repeated_numerators(work, size, graph.num_pdfs)
    loss, lengths = LFMMILoss(graph, leaky_hmm_coefficient=LEAK), torch.full((size,), frames)
    case = Case(
        lambda: [random_scores(size, frames, graph.num_pdfs)],
        lambda scores: loss(scores, lengths, batch),
        unit=1.0 / (size * frames),
    )
    name, least = f"LFMMILoss, B {size}, T {frames}", work_of(graph.batch(size), frames, graph.num_pdfs)
    return [Entry(name, case, least, Target(3.0, "ms"))]


def ctc(work: Workloads, sizes: GpuSizes) -> list[Entry]:
    """Of logits [N, T, C], log-softmax included."""
    frames, classes, targets = sizes.ctc, sizes.classes, torch.from_numpy(work.targets)
    size, labels = targets.shape
    batch = TableBatch.pack([compile_table(graph, classes) for graph in work.ctc])
    on = cache(targets.to)

    def ours(logits: torch.Tensor) -> torch.Tensor:
        lengths = [torch.full((size,), count) for count in (frames, labels)]
        given = logits.transpose(0, 1), on(logits.device), *lengths
        return ctc_loss(*given, reduction="none", inputs="logits")

    def theirs(logits: torch.Tensor, integer: torch.dtype) -> torch.Tensor:
        """Targets as int32 on the host, all in a row, are what cuDNN's takes."""
        lengths = [torch.full((size,), count, dtype=integer) for count in (frames, labels)]
        given = targets.to(integer).flatten() if integer == torch.int32 else on(logits.device)
        log_probs = logits.log_softmax(2).transpose(0, 1)
        return torch.nn.functional.ctc_loss(log_probs, given, *lengths, reduction="none")

    case = Case(lambda: [random_scores(size, frames, classes)], ours)
    peers = {"torch": partial(theirs, integer=torch.int64), "cuDNN": partial(theirs, integer=torch.int32)}
    name = f"CTC, B {size}, T {frames}, U {labels}, V {classes}"
    return [Entry(name, case, work_of(batch, frames, classes), Target(0.4, "ms"), None, peers)]


def bigram(work: Workloads, sizes: GpuSizes) -> list[Entry]:
    """A denominator over all pairs of units: what it takes of the device's memory, scores and gradient included."""
    units, size, frames = sizes.bigram
    batch = TableBatch.share(compile_table(gpu_workloads.bigram_denominator(units)), size)
    return [
        _recursion(
            f"bigram of {units} units, B {size}, T {frames}", batch, frames, 0.0, None, Target(4.0, "GB")
        )
    ]


def transducer(work: Workloads, sizes: GpuSizes) -> list[Entry]:
    """`rnnt_loss` in place on batches of LibriSpeech's shapes: time, and all memory next to 1.05 times the logits."""
    size, frames, longest, classes = sizes.transducer
    shapes = gpu_transducer.utterances(longest, seeded=work.folder is None)
    batches = {
        f"{size} at random": gpu_transducer.random_batch(shapes, size, classes),
        f"{frames} frames": gpu_transducer.sorted_batch(shapes, frames, classes),
    }
    return [
        Entry(
            f"rnnt_loss, {name}, V {classes}: {batch}",
            gpu_transducer.case(batch),
            batch.work,
            Target(10.0, "ms"),
            Target(batch.most_gigabytes, "GB"),
            {"torchaudio": partial(gpu_transducer.torchaudio, batch)},
        )
        for name, batch in batches.items()
    ]


MAKERS: dict[str, Maker] = {
    "denominator": long_denominator,
    "numerators": numerators,
    "loss": whole_loss,
    "ctc": ctc,
    "bigram": bigram,
    "transducer": transducer,
}
