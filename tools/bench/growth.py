"""How time grows with frames, arcs and sequences: a slope of 1 on logarithmic axes is linear."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fsachain.batch import TableBatch
from fsachain.denominator import DenominatorGraph
from tools.bench import calls, workloads
from tools.bench.row import Table
from tools.bench.tables import LEAK, pack_numerators
from tools.bench.timing import Job, Spread, take_turns
from tools.bench.workloads import Sizes, Workloads

POINTS = 5
LANES = (
    16  # sequences that fill a vector register: what one costs when the register is empty is another matter
)
FEW_FRAMES = 15
HEADER = f"  {'':34} {'from':>7} {'to':>7}  {'slope':>6}   nanoseconds per arc-evaluation at each size"


@dataclass(frozen=True)
class Slope:
    """Seconds of one kind of work at several sizes.

    Attributes:
        name: what grows, of what.
        sizes: of the axis.
        evaluations: arc-evaluations at each size.
        times: median, least and most seconds at each size.
    """

    name: str
    sizes: tuple[int, ...]
    evaluations: tuple[int, ...]
    times: tuple[Spread, ...]

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
        """For JSON."""
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
        HEADER,
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
        scores = calls.random_scores(batch.size, frames, num_pdfs)
        jobs[size] = Job(calls.backend_call(batch, scores, leak))
        evaluations.append(frames * sum(len(batch.table(n).by_dst.arc) for n in range(batch.size)))
    times = take_turns(jobs, sizes.seconds)
    return Slope(name, points, tuple(evaluations), tuple(times[size].scaled(1.0) for size in points))


def _between(first: int, last: int) -> tuple[int, ...]:
    """Sizes at equal ratios."""
    return tuple(int(size) for size in np.geomspace(first, last, POINTS).round())
