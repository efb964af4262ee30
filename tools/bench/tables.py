"""Tables of the recursion itself; each times its rows and what they are compared with in the same rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from fsachain.batch import TableBatch
from fsachain.table import compile_table
from tools.bench import calls
from tools.bench.limit import Name, Work, against_limit, work_of, yardsticks
from tools.bench.row import HEADER, Comparison, Row, Table
from tools.bench.timing import Job, Times, take_turns
from tools.bench.workloads import Sizes, Workloads

LEAK = 1e-5
PLAIN = ("plain loop", 1)
Calls = Mapping[Name, Callable[[], object]]


def leaky_denominator(work: Workloads, sizes: Sizes) -> Table:
    """The denominators with Kaldi's leak, several batch sizes."""
    rows = []
    for name, graph in work.denominators.items():
        for size in sizes.batch_sizes:
            batch = graph.batch(size)
            scores = calls.random_scores(size, sizes.frames, graph.num_pdfs)
            jobs = per_thread(f"{name}, B {size}", calls.backend_call(batch, scores, LEAK), sizes)
            plain = calls.plain_call(batch, scores, LEAK, np.float32)
            least = work_of(batch, sizes.frames, graph.num_pdfs)
            rows += compared({**jobs, PLAIN: plain}, least, sizes.seconds)
    return Table(f"denominator, leak {LEAK:g}", HEADER, rows)


def long_denominator(work: Workloads, sizes: Sizes) -> Table:
    """One large batch of long sequences."""
    size, frames = sizes.long
    graph = work.denominator
    batch = graph.batch(size)
    scores = calls.random_scores(size, frames, graph.num_pdfs)
    call = calls.backend_call(batch, scores, LEAK)
    jobs = {(f"{work.name}, B {size}, T {frames}", max(sizes.threads)): call}
    rows = compared(jobs, work_of(batch, frames, graph.num_pdfs), sizes.seconds)
    return Table(f"a long batch, leak {LEAK:g}", HEADER, rows)


def exact_denominator(work: Workloads, sizes: Sizes) -> Table:
    """The same without a leak; large scores leave the range of plain numbers and take the slower ways."""
    graph = work.denominator
    batch = graph.batch(sizes.sequences)
    scores = calls.random_scores(batch.size, sizes.frames, graph.num_pdfs)
    jobs = _at_scales(f"{work.name}, B {batch.size}", batch, scores, (1, 30, 80, 1000), sizes)
    plain = calls.plain_call(batch, scores, 0.0, np.float32)
    least = work_of(batch, sizes.frames, graph.num_pdfs)
    return Table("denominator, exact", HEADER, compared({**jobs, PLAIN: plain}, least, sizes.seconds))


def numerators(work: Workloads, sizes: Sizes) -> Table:
    """A graph of its own for each sequence; the plain loop runs in float64, since float32 would underflow."""
    batch = pack_numerators(work, work.numerator_pdfs)
    scores = calls.random_scores(batch.size, sizes.frames, work.numerator_pdfs)
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
    scores = calls.random_scores(ready.size, sizes.frames, work.numerator_pdfs)
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
    """The call once for each number of threads."""
    return {(name, threads): call for threads in sizes.threads}


def as_jobs(jobs: Calls) -> dict[Name, Job]:
    """For `take_turns`."""
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
