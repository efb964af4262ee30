"""The tables of the report; each times its rows and what they are compared with in the same rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from fsachain.batch import TableBatch
from fsachain.denominator import DenominatorGraph
from fsachain.loss.lfmmi import LFMMILoss
from fsachain.table import compile_table
from tools.bench import calls, yardstick
from tools.bench.row import Comparison, Row
from tools.bench.timing import Job, Times, take_turns
from tools.bench.workloads import Sizes, Workloads

LEAK = 1e-5
THREADS = (1, 2)
PLAIN, STREAM = "plain loop", "streaming"


@dataclass(frozen=True)
class Table:
    """A title and its rows."""

    title: str
    rows: list[Row]


def count_evaluations(batch: TableBatch, frames: int) -> int:
    """Arcs x frames, summed over the sequences; arcs of weight -inf are not evaluated and do not count."""
    return frames * sum(len(batch.table(n).by_dst.arc) for n in range(batch.size))


def leaky_denominator(work: Workloads, sizes: Sizes) -> Table:
    """The denominator with Kaldi's leak, several batch sizes."""
    rows = []
    for size in sizes.batch_sizes:
        batch = work.denominator.batch(size)
        scores = calls.random_scores(size, sizes.frames, work.denominator.num_pdfs)
        jobs = _per_thread(f"B {size}", calls.backend_call(batch, scores, LEAK))
        plain = calls.plain_call(batch, scores, LEAK, np.float32)
        rows += _timed(jobs, plain, count_evaluations(batch, sizes.frames), sizes.seconds)
    return Table(f"Denominator, leak {LEAK:g}", rows)


def exact_denominator(work: Workloads, sizes: Sizes) -> Table:
    """The same without a leak; large scores leave the range of float32 and take the slower ways."""
    batch = work.denominator.batch(sizes.sequences)
    scores = calls.random_scores(batch.size, sizes.frames, work.denominator.num_pdfs)
    name = f"B {batch.size}, scores x"
    jobs = {
        **_per_thread(f"{name} 1", calls.backend_call(batch, scores, 0.0)),
        (f"{name} 30", 2): calls.backend_call(batch, np.float32(30) * scores, 0.0),
    }
    plain = calls.plain_call(batch, scores, 0.0, np.float32)
    rows = _timed(jobs, plain, count_evaluations(batch, sizes.frames), sizes.seconds)
    return Table("Denominator, exact", rows)


def numerators(work: Workloads, sizes: Sizes) -> Table:
    """A graph of its own for each sequence; the plain loop runs in float64, since float32 would underflow."""
    batch = pack_numerators(work, work.numerator_pdfs)
    scores = calls.random_scores(batch.size, sizes.frames, work.numerator_pdfs)
    jobs: dict[tuple[str, int], Callable[[], object]] = {}
    for scale in (1, 80, 1000):
        call = calls.backend_call(batch, np.float32(scale) * scores, 0.0)
        jobs |= _per_thread(f"B {batch.size}, scores x {scale}", call)
    plain = calls.plain_call(batch, scores, 0.0, np.float64)
    rows = _timed(jobs, plain, count_evaluations(batch, sizes.frames), sizes.seconds)
    return Table("Numerators", rows)


def whole_loss(work: Workloads, sizes: Sizes) -> Table:
    """`LFMMILoss` forward and backward as in a training step, for a narrow and a wide network output."""
    rows = [_loss_row(work, sizes, width) for width in (work.denominator.num_pdfs, work.numerator_pdfs)]
    return Table("LFMMILoss: share of numerators, denominator and the rest", rows)


def ctc(work: Workloads, sizes: Sizes) -> Table:
    """The CTC loss through our graphs and through torch, log-softmax and gradient to the logits included."""
    batch = TableBatch.pack([compile_table(graph, sizes.labels) for graph in work.ctc])
    scores = calls.random_scores(batch.size, sizes.frames, sizes.labels)
    ours, peer = f"B {batch.size}, total_log_prob", f"B {batch.size}, torch ctc_loss"
    jobs = {
        **_per_thread(ours, calls.ctc_through_graphs(batch, scores)),
        **_per_thread(peer, calls.ctc_through_torch(work.targets, scores)),
    }
    times = take_turns(_jobs(jobs), sizes.seconds)
    count = count_evaluations(batch, sizes.frames)
    rows = []
    for threads in THREADS:
        ratio = Comparison("torch ctc_loss", times[ours, threads].over(times[peer, threads]))
        rows.append(Row(ours, threads, count, times[ours, threads], (ratio,)))
        rows.append(Row(peer, threads, count, times[peer, threads], ()))
    return Table("CTC, log-softmax included", rows)


def pack_numerators(work: Workloads, num_pdfs: int) -> TableBatch:
    """The numerators for outputs of this width, with pdfs beyond it folded onto those within."""
    graphs = [replace(fsa, pdf=fsa.pdf % num_pdfs) for fsa in work.numerators]
    return TableBatch.pack([compile_table(fsa, num_pdfs) for fsa in graphs])


def shares(whole: Times, numerator: Times, denominator: Times) -> tuple[Comparison, ...]:
    """What part of the whole the numerators, the denominator and all the rest take, round by round."""
    rest = zip(whole.seconds, numerator.seconds, denominator.seconds, strict=True)
    left = Times(tuple(w - n - d for w, n, d in rest))
    named = {"numerators": numerator, "denominator": denominator, "rest": left}
    return tuple(Comparison(name, part.over(whole)) for name, part in named.items())


def _loss_row(work: Workloads, sizes: Sizes, num_pdfs: int) -> Row:
    graph = DenominatorGraph(work.denominator.fsa, num_pdfs)
    batch = pack_numerators(work, num_pdfs)
    shared = graph.batch(batch.size)
    scores = calls.random_scores(batch.size, sizes.frames, num_pdfs)
    loss = LFMMILoss(graph, leaky_hmm_coefficient=LEAK)
    jobs = {
        ("loss", 2): calls.loss_call(loss, batch, scores),
        ("numerators", 2): calls.backend_call(batch, scores, 0.0),
        ("denominator", 2): calls.backend_call(shared, scores, LEAK),
    }
    whole, *parts = take_turns(_jobs(jobs), sizes.seconds).values()
    count = count_evaluations(batch, sizes.frames) + count_evaluations(shared, sizes.frames)
    return Row(f"B {batch.size}, P {num_pdfs}", 2, count, whole, shares(whole, *parts))


def _timed(
    jobs: Mapping[tuple[str, int], Callable[[], object]],
    plain: Callable[[], object],
    count: int,
    seconds: float,
) -> list[Row]:
    """A row for each job, compared with the plain loop and with streaming, both in one thread."""
    yardsticks = {(PLAIN, 1): plain, (STREAM, 1): calls.stream_call()}
    times = take_turns(_jobs({**jobs, **yardsticks}), seconds)
    # The streaming time of one pass, blown up to the multiply-adds of this work.
    passes = yardstick.STEPS_PER_ARC * count / yardstick.stream_lanes()
    rows = []
    for name, threads in jobs:
        ours = times[name, threads]
        ratios = (
            Comparison(PLAIN, ours.over(times[PLAIN, 1])),
            Comparison(STREAM, ours.over(times[STREAM, 1], passes)),
        )
        rows.append(Row(name, threads, count, ours, ratios))
    return rows


def _per_thread(name: str, call: Callable[[], object]) -> dict[tuple[str, int], Callable[[], object]]:
    return {(name, threads): call for threads in THREADS}


def _jobs(calls_: Mapping[tuple[str, int], Callable[[], object]]) -> dict[tuple[str, int], Job]:
    return {(name, threads): Job(call, threads) for (name, threads), call in calls_.items()}
