"""The rows of the GPU report: what TARGETS.md asks for, as users call it, beside torch's and cuDNN's CTC loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fsachain.batch import TableBatch
from fsachain.loss.lfmmi import LFMMILoss
from fsachain.table import compile_table
from tools.bench import gpu_transducer, gpu_workloads
from tools.bench.gpu_timing import Call, Clock, Failure, GpuRow, Rates, Target, take_turns
from tools.bench.gpu_workloads import GpuSizes, Shape
from tools.bench.limit import work_of
from tools.bench.tables import LEAK
from tools.bench.timing import Comparison, Line
from tools.bench.workloads import Workloads

NUMERATOR_PDFS = 2000


@dataclass(frozen=True)
class Bench:
    work: Workloads
    sizes: GpuSizes
    device: torch.device
    clock: Clock
    rates: Rates

    def row(
        self, name: str, batch: TableBatch, shape: Shape, call: Call, target: Target | None
    ) -> list[Line]:
        """One row of its own rounds, compared with the limit."""
        times = take_turns({name: call}, self.sizes.seconds, self.clock)[name]
        work = work_of(batch, shape.frames, shape.pdfs)
        return [GpuRow(name, work.evaluations, times, target, None, (self.rates.against(times, work),))]


Maker = Callable[[Bench], list[Line]]


def long_denominator(bench: Bench) -> list[Line]:
    """With Kaldi's leak and exact, and best paths."""
    graph, (size, frames) = bench.work.denominator, bench.sizes.long
    batch, shape = graph.batch(size), Shape(size, frames, graph.num_pdfs)
    name = f"{bench.work.name}, B {size}, T {frames}"
    lines = []
    for leak, label, target in ((LEAK, "leaky", Target(8.0, "ms")), (0.0, "exact", None)):
        call = gpu_workloads.log_prob_call(batch, shape, leak, bench.device)
        lines += bench.row(f"{name}, {label}", batch, shape, call, target)
    best = gpu_workloads.best_path_call(batch, shape, bench.device)
    return lines + bench.row(f"{name}, best paths", batch, shape, best, None)


def numerators(bench: Bench) -> list[Line]:
    size, frames, _ = bench.sizes.numerators
    batch = gpu_workloads.numerator_batch(bench.sizes, NUMERATOR_PDFS)
    shape = Shape(size, frames, NUMERATOR_PDFS)
    name = f"numerators, B {size}, T {frames}, {batch.table(0).num_arcs} arcs"
    call = gpu_workloads.log_prob_call(batch, shape, 0.0, bench.device)
    best = gpu_workloads.best_path_call(batch, shape, bench.device)
    return bench.row(name, batch, shape, call, Target(3.0, "ms")) + bench.row(
        f"{name}, best paths", batch, shape, best, None
    )


def whole_loss(bench: Bench) -> list[Line]:
    graph, (size, frames) = bench.work.denominator, bench.sizes.loss
    batch = gpu_workloads.repeated_numerators(bench.work, size, graph.num_pdfs)
    shape = Shape(size, frames, graph.num_pdfs)
    loss = LFMMILoss(graph, leaky_hmm_coefficient=LEAK)
    call = gpu_workloads.loss_call(loss, batch, shape, bench.device)
    name = f"LFMMILoss, B {size}, T {frames}"
    return bench.row(name, graph.batch(size), shape, call, Target(3.0, "ms"))


def ctc(bench: Bench) -> list[Line]:
    targets, frames = bench.work.targets, bench.sizes.ctc
    classes = bench.sizes.classes
    shape = Shape(len(targets), frames, classes)
    batch = TableBatch.pack([compile_table(graph, classes) for graph in bench.work.ctc])
    losses = {
        "ours": gpu_workloads.our_ctc(targets, frames, bench.device),
        "torch": gpu_workloads.torch_ctc(targets, frames, bench.device, torch.int64),
    }
    if bench.device.type == "cuda":
        losses["cuDNN"] = gpu_workloads.torch_ctc(targets, frames, torch.device("cpu"), torch.int32)
    jobs = {name: gpu_workloads.training_calls(loss, shape, bench.device) for name, loss in losses.items()}
    times = take_turns(jobs, bench.sizes.seconds, bench.clock)
    work = work_of(batch, frames, classes)
    title = f"CTC, B {len(targets)}, T {frames}, U {targets.shape[1]}, V {classes}"
    peers = tuple(Comparison(name, times["ours"].over(times[name])) for name in jobs if name != "ours")
    ratios = bench.rates.against(times["ours"], work), *peers
    ours = GpuRow(title, work.evaluations, times["ours"], Target(0.4, "ms"), None, ratios)
    others = [GpuRow(f"{title}: {name}", 0, times[name]) for name in jobs if name != "ours"]
    return [ours, *others]


def bigram(bench: Bench) -> list[Line]:
    """A denominator over all pairs of units: what it takes of the device's memory, scores and gradient included."""
    units, size, frames = bench.sizes.bigram
    batch = TableBatch.share(compile_table(gpu_workloads.bigram_denominator(units)), size)
    shape = Shape(size, frames, units + 1)
    call = gpu_workloads.log_prob_call(batch, shape, 0.0, bench.device)
    call()
    peak = _peak(call, bench.device)
    times = take_turns({"bigram": call}, bench.sizes.seconds, bench.clock)["bigram"]
    name = f"bigram of {units} units, B {size}, T {frames}"
    work = work_of(batch, frames, units + 1)
    ratios = (bench.rates.against(times, work),)
    return [GpuRow(name, work.evaluations, times, Target(4.0, "GB"), peak, ratios)]


def transducer(bench: Bench) -> list[Line]:
    """`rnnt_loss` in place on batches of LibriSpeech's shapes: time, and all memory next to 1.05 times the logits."""
    size, frames, longest, classes = bench.sizes.transducer
    shapes = gpu_transducer.utterances(longest)
    batches = {
        f"{size} at random": gpu_transducer.random_batch(shapes, size, classes, bench.device),
        f"{frames} frames": gpu_transducer.sorted_batch(shapes, frames, classes, bench.device),
    }
    lines: list[Line] = []
    for name, batch in batches.items():
        lines += _transducer_rows(bench, f"rnnt_loss, {name}, V {classes}", batch)
    return lines


def _transducer_rows(bench: Bench, name: str, batch: gpu_transducer.Batch) -> list[Line]:
    call = gpu_transducer.training_call(gpu_transducer.ours, batch, bench.device)
    call()
    peak = _peak(call, bench.device)
    losses = gpu_transducer.peers() if bench.device.type == "cuda" else {}
    jobs = {"ours": call}
    jobs |= {peer: gpu_transducer.training_call(loss, batch, bench.device) for peer, loss in losses.items()}
    times = take_turns(jobs, bench.sizes.seconds, bench.clock)
    ratios = [bench.rates.against(times["ours"], batch.work)]
    ratios += [Comparison(peer, times["ours"].over(times[peer])) for peer in losses]
    evaluations, most = batch.work.evaluations, Target(batch.most_gigabytes, "GB")
    return [
        GpuRow(f"{name}: {batch}", evaluations, times["ours"], Target(10.0, "ms"), None, tuple(ratios)),
        GpuRow(f"{name}: memory", 0, times["ours"], most, peak),
        *(GpuRow(f"{name}: {peer}", 0, times[peer]) for peer in losses),
    ]


def _peak(call: Call, device: torch.device) -> int:
    """The most bytes of torch's pool during a call; 0 for a device that does not tell."""
    if device.type != "cuda":
        call()
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device)


MAKERS: dict[str, Maker] = {
    "denominator": long_denominator,
    "numerators": numerators,
    "loss": whole_loss,
    "ctc": ctc,
    "bigram": bigram,
    "transducer": transducer,
}


def attempted(name: str, bench: Bench) -> list[Line]:
    """The rows of one table; where something fails, what failed: the others are still of use."""
    try:
        return MAKERS[name](bench)
    except Exception as error:
        return [Failure(name, f"{type(error).__name__}: {error}")]
