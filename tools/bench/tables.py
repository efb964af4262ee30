"""Tables of the recursion and the losses, each row timed beside what it is compared with; and growth with size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fsachain.batch import TableBatch
from fsachain.denominator import DenominatorGraph
from fsachain.loss.lfmmi import LFMMILoss
from fsachain.table import compile_table
from tools.bench import calls, digits, workloads
from tools.bench.limit import Name, against_limit, yardsticks
from tools.bench.timing import HEADER, Comparison, Job, Row, Spread, Table, Times, take_turns
from tools.bench.workloads import LEAK, Sizes, Work, Workloads, random_scores, work_of

PLAIN = ("plain loop", 1)
Calls = Mapping[Name, Callable[[], object]]


def leaky_denominator(work: Workloads, sizes: Sizes) -> Table:
    rows = []
    for name, graph in work.denominators.items():
        for size in sizes.batch_sizes:
            batch = graph.batch(size)
            scores = random_scores(size, sizes.frames, graph.num_pdfs)
            jobs = per_thread(f"{name}, B {size}", calls.backend_call(batch, scores, LEAK), sizes)
            plain = calls.plain_call(batch, scores, LEAK, np.float32)
            least = work_of(batch, sizes.frames, graph.num_pdfs)
            rows += compared({**jobs, PLAIN: plain}, least, sizes.seconds)
    return Table(f"denominator, leak {LEAK:g}", HEADER, rows)


def long_denominator(work: Workloads, sizes: Sizes) -> Table:
    size, frames = sizes.long
    graph = work.denominator
    batch = graph.batch(size)
    scores = random_scores(size, frames, graph.num_pdfs)
    call = calls.backend_call(batch, scores, LEAK)
    jobs = {(f"{work.name}, B {size}, T {frames}", max(sizes.threads)): call}
    rows = compared(jobs, work_of(batch, frames, graph.num_pdfs), sizes.seconds)
    return Table(f"a long batch, leak {LEAK:g}", HEADER, rows)


def exact_denominator(work: Workloads, sizes: Sizes) -> Table:
    """Without a leak; large scores leave the range of plain numbers and take the slower ways."""
    graph = work.denominator
    batch = graph.batch(sizes.sequences)
    scores = random_scores(batch.size, sizes.frames, graph.num_pdfs)
    jobs = _at_scales(f"{work.name}, B {batch.size}", batch, scores, (1, 30, 80, 1000), sizes)
    plain = calls.plain_call(batch, scores, 0.0, np.float32)
    least = work_of(batch, sizes.frames, graph.num_pdfs)
    return Table("denominator, exact", HEADER, compared({**jobs, PLAIN: plain}, least, sizes.seconds))


def numerators(work: Workloads, sizes: Sizes) -> Table:
    """A graph of its own for each sequence; the plain loop runs in float64, since float32 would underflow."""
    batch = pack_numerators(work, work.numerator_pdfs)
    scores = random_scores(batch.size, sizes.frames, work.numerator_pdfs)
    jobs = _at_scales(f"B {batch.size}", batch, scores, (1, 80, 1000), sizes)
    plain = calls.plain_call(batch, scores, 0.0, np.float64)
    # Of the wide network output only the columns of active pdfs are read and written.
    active = max(len(batch.table(n).active_pdfs) for n in range(batch.size))
    least = work_of(batch, sizes.frames, active)
    return Table("numerators", HEADER, compared({**jobs, PLAIN: plain}, least, sizes.seconds))


def packing(work: Workloads, sizes: Sizes) -> Table:
    """What a batch of new numerators costs beside its recursion: packing, and what the first pass makes of the tables."""
    ready = pack_numerators(work, work.numerator_pdfs)
    many = [ready.table(n % ready.size) for n in range(sizes.packed)]
    scores = random_scores(ready.size, sizes.frames, work.numerator_pdfs)
    again = calls.backend_call(ready, scores, 0.0)

    def anew() -> object:
        fresh = TableBatch.pack([replace(table) for table in ready.tables])
        return calls.backend_call(fresh, scores, 0.0)()

    jobs: dict[Name, Callable[[], object]] = {
        (f"pack {len(many)} tables", 1): lambda: TableBatch.pack(many),
        (f"B {ready.size}, tables seen before", 1): again,
        (f"B {ready.size}, new tables", 1): anew,
    }
    times = take_turns(as_jobs(jobs), sizes.seconds)
    return Table("packing", HEADER, [Row(*name, 0, times[name]) for name in jobs])


def pack_numerators(work: Workloads, num_pdfs: int) -> TableBatch:
    """The numerators for outputs of this width, with pdfs beyond it folded onto those within."""
    graphs = [replace(fsa, pdf=fsa.pdf % num_pdfs) for fsa in work.numerators]
    return TableBatch.pack([compile_table(fsa, num_pdfs) for fsa in graphs])


def compared(jobs: Calls, least: Work, seconds: float) -> list[Row]:
    """A row for each job but the plain loop, with ratios to the limit and to that loop, where it is there."""
    times = take_turns(as_jobs({**jobs, **yardsticks()}), seconds)
    return [_row(name, times, least) for name in jobs if name != PLAIN]


def per_thread(name: str, call: Callable[[], object], sizes: Sizes) -> dict[Name, Callable[[], object]]:
    return {(name, threads): call for threads in sizes.threads}


def as_jobs(jobs: Calls) -> dict[Name, Job]:
    return {(name, threads): Job(call, threads) for (name, threads), call in jobs.items()}


def _row(name: Name, times: Mapping[Name, Times], least: Work) -> Row:
    ratios = [against_limit(times, name, least)]
    if PLAIN in times:
        ratios.append(Comparison(PLAIN[0], times[name].over(times[PLAIN])))
    return Row(*name, least.evaluations, times[name], tuple(ratios))


def _at_scales(
    name: str, batch: TableBatch, scores: calls.Scores, scales: tuple[int, ...], sizes: Sizes
) -> dict[Name, Callable[[], object]]:
    jobs: dict[Name, Callable[[], object]] = {}
    for scale in scales:
        call = calls.backend_call(batch, np.float32(scale) * scores, 0.0)
        jobs |= per_thread(f"{name}, scores x {scale}", call, sizes)
    return jobs


# Losses as users call them: LF-MMI, its share of a training step, and CTC beside torch's.


def whole_loss(work: Workloads, sizes: Sizes) -> Table:
    widths = work.denominator.num_pdfs, work.numerator_pdfs
    rows = [_loss_row(work, sizes, width, threads) for width in widths for threads in sizes.threads]
    return Table("LFMMILoss, with the shares of numerators, denominator and the rest", HEADER, rows)


def ctc(work: Workloads, sizes: Sizes) -> Table:
    """The CTC loss from logits to their gradient: `ctc_loss`, graphs through `total_log_prob`, torch's."""
    batch = TableBatch.pack([compile_table(graph, sizes.labels) for graph in work.ctc])
    scores = random_scores(batch.size, sizes.frames, sizes.labels)
    start = f"B {batch.size}, "
    made = {
        f"{start}ctc_loss, logits": calls.ctc_through_loss(work.targets, scores, "logits"),
        f"{start}ctc_loss, log_softmax": calls.ctc_through_loss(work.targets, scores, "log_probs"),
        f"{start}total_log_prob": calls.ctc_through_graphs(batch, scores),
        f"{start}torch ctc_loss": calls.ctc_through_torch(work.targets, scores),
    }
    *ours, peer = made
    jobs: dict[Name, Callable[[], object]] = {}
    for name, call in made.items():
        jobs |= per_thread(name, call, sizes)
    times = take_turns(as_jobs({**jobs, **yardsticks()}), sizes.seconds)
    least = work_of(batch, sizes.frames, sizes.labels)
    rows = []
    for threads in sizes.threads:
        theirs = times[peer, threads]
        for name in ours:
            mine = times[name, threads]
            ratios = against_limit(times, (name, threads), least), Comparison(peer, mine.over(theirs))
            rows.append(Row(name, threads, least.evaluations, mine, ratios))
        rows.append(Row(peer, threads, least.evaluations, theirs))
    return Table("CTC, log-softmax included", HEADER, rows)


def training_step(work: Workloads, sizes: Sizes) -> Table:
    """One step of the digits recipe and the share of the loss; no row where its texts are not beside this checkout."""
    rows = []
    step = digits.make_step(None if work.folder is None else work.folder.parent / "digits")
    for threads in sizes.threads:
        jobs = {("step", threads): step.whole, ("loss", threads): step.loss_alone}
        whole, loss = take_turns(as_jobs(jobs), sizes.seconds).values()
        rows.append(Row(step.name, threads, 0, whole, (Comparison("share of the loss", loss.over(whole)),)))
    return Table("a training step: forward, loss, backward, optimiser", HEADER, rows)


def shares(whole: Times, numerator: Times, denominator: Times) -> tuple[Comparison, ...]:
    """What part of the whole the numerators, the denominator and all the rest take, round by round."""
    rest = zip(whole.seconds, numerator.seconds, denominator.seconds, strict=True)
    left = Times(tuple(w - n - d for w, n, d in rest))
    named = {"numerators": numerator, "denominator": denominator, "rest": left}
    return tuple(Comparison(name, part.over(whole)) for name, part in named.items())


def _loss_row(work: Workloads, sizes: Sizes, num_pdfs: int, threads: int) -> Row:
    graph = DenominatorGraph(work.denominator.fsa, num_pdfs)
    batch = pack_numerators(work, num_pdfs)
    shared = graph.batch(batch.size)
    scores = random_scores(batch.size, sizes.frames, num_pdfs)
    loss = LFMMILoss(graph, leaky_hmm_coefficient=LEAK)
    jobs = {
        ("loss", threads): calls.loss_call(loss, batch, scores),
        ("numerators", threads): calls.backend_call(batch, scores, 0.0),
        ("denominator", threads): calls.backend_call(shared, scores, LEAK),
    }
    whole, *parts = take_turns(as_jobs(jobs), sizes.seconds).values()
    count = sum(work_of(one, sizes.frames, num_pdfs).evaluations for one in (batch, shared))
    return Row(f"B {batch.size}, P {num_pdfs}", threads, count, whole, shares(whole, *parts))


# How time grows with frames, arcs and sequences: a slope of 1 on logarithmic axes is linear.

POINTS = 5
LANES = 16  # sequences that fill a vector register
FEW_FRAMES = 15
GROWTH_HEADER = f"  {'':34} {'from':>7} {'to':>7}  {'slope':>6}   nanoseconds per arc-evaluation at each size"


@dataclass(frozen=True)
class Slope:
    """Seconds of one kind of work at several sizes."""

    name: str  # what grows, of what
    sizes: tuple[int, ...]  # of the axis
    evaluations: tuple[int, ...]  # arc-evaluations at each size
    times: tuple[Spread, ...]  # median, least and most seconds at each size

    @property
    def slope(self) -> float:
        """Of the line through log seconds over log size, by least squares; the least times, which others disturb least."""
        return float(np.polyfit(np.log(self.sizes), np.log([time.least for time in self.times]), 1)[0])

    @property
    def nanoseconds(self) -> list[float]:
        """Per arc-evaluation at each size, the median."""
        pairs = zip(self.times, self.evaluations, strict=True)
        return [1e9 * time.median / count for time, count in pairs]

    def __str__(self) -> str:
        each = "  ".join(f"{value:.3f}" for value in self.nanoseconds)
        return f"  {self.name:34} {self.sizes[0]:7} {self.sizes[-1]:7}  {self.slope:6.3f}   {each}"

    def record(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "sizes": list(self.sizes),
            "slope": self.slope,
            "milliseconds": [1e3 * time.median for time in self.times],
            "nanoseconds_per_arc_evaluation": self.nanoseconds,
        }


def growth(work: Workloads, sizes: Sizes) -> Table:
    """Over two decades each, in one thread: the denominator by frames, arcs and sequences, numerators by frames."""
    frames, arcs, sequences = (_between(*ends) for ends in sizes.growth)
    name, graph, num_pdfs = work.name, work.denominator, work.denominator.num_pdfs
    lanes, numerators = graph.batch(LANES), pack_numerators(work, work.numerator_pdfs)
    graphs = [DenominatorGraph(workloads.connected(max(n // 10, 2), n, num_pdfs), num_pdfs) for n in arcs]
    width = work.numerator_pdfs
    return Table(
        f"growth with size, leak {LEAK:g} and 0, one thread",
        GROWTH_HEADER,
        [
            _slope(f"{name}, B {LANES}: frames", frames, lambda _, t: (lanes, t, num_pdfs), sizes),
            _slope(
                f"random graphs, B {LANES}: arcs",
                arcs,
                lambda i, _: (graphs[i].batch(LANES), sizes.frames, num_pdfs),
                sizes,
            ),
            _slope(
                f"{name}, T {FEW_FRAMES}: sequences",
                sequences,
                lambda _, n: (graph.batch(n), FEW_FRAMES, num_pdfs),
                sizes,
            ),
            _slope(
                f"numerators, B {numerators.size}: frames", frames, lambda _, t: (numerators, t, width), sizes
            ),
        ],
    )


def _slope(
    name: str,
    points: tuple[int, ...],
    work_at: Callable[[int, int], tuple[TableBatch, int, int]],
    sizes: Sizes,
) -> Slope:
    """Time the batch, frames and pdfs that `work_at(index, size)` gives for each size."""
    jobs, evaluations = {}, []
    for index, size in enumerate(points):
        batch, frames, num_pdfs = work_at(index, size)
        leak = LEAK if batch.is_shared else 0.0
        scores = random_scores(batch.size, frames, num_pdfs)
        jobs[size] = Job(calls.backend_call(batch, scores, leak))
        evaluations.append(frames * sum(len(batch.table(n).by_dst.arc) for n in range(batch.size)))
    times = take_turns(jobs, sizes.seconds)
    return Slope(name, points, tuple(evaluations), tuple(times[size].scaled(1.0) for size in points))


def _between(first: int, last: int) -> tuple[int, ...]:
    return tuple(int(size) for size in np.geomspace(first, last, POINTS).round())
