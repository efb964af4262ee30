"""Times taken in turns: every job once per round, so that a busy machine slows all jobs alike; and their tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol, TypeVar

import torch

from fsachain.backends.cpu.threads import get_num_threads, set_num_threads

Key = TypeVar("Key")

MIN_ROUNDS, MAX_ROUNDS = 3, 25


@dataclass(frozen=True)
class Job:
    """Something to time: `run`, with this many threads of the CPU backend and of torch."""

    run: Callable[[], object]
    threads: int = 1


@dataclass(frozen=True)
class Times:
    """Seconds of one job, one entry for each round."""

    seconds: tuple[float, ...]

    def scaled(self, factor: float) -> Spread:
        return Spread.of([factor * value for value in self.seconds])

    def over(self, other: Times, factor: float = 1.0) -> Spread:
        """Ratios self / (factor x other), each between two times of one round."""
        pairs = zip(self.seconds, other.seconds, strict=True)
        return Spread.of([mine / (factor * theirs) for mine, theirs in pairs])


@dataclass(frozen=True)
class Spread:
    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        return cls(median(values), min(values), max(values))


def take_turns(
    jobs: Mapping[Key, Job], seconds: float, clock: Callable[[], float] = time.perf_counter
) -> dict[Key, Times]:
    """Run all jobs round by round, after one round that is not counted (it compiles and fills caches)."""
    before = get_num_threads(), torch.get_num_threads()
    taken: dict[Key, list[float]] = {name: [] for name in jobs}
    try:
        _round(jobs, clock)
        start, rounds = clock(), 0
        while rounds < MIN_ROUNDS or (rounds < MAX_ROUNDS and clock() - start < seconds):
            for name, value in _round(jobs, clock).items():
                taken[name].append(value)
            rounds += 1
    finally:
        set_num_threads(before[0])
        torch.set_num_threads(before[1])
    return {name: Times(tuple(values)) for name, values in taken.items()}


def _round(jobs: Mapping[Key, Job], clock: Callable[[], float]) -> dict[Key, float]:
    result = {}
    for name, job in jobs.items():
        if get_num_threads() != job.threads:
            set_num_threads(job.threads)
        if torch.get_num_threads() != job.threads:
            torch.set_num_threads(job.threads)
        start = clock()
        job.run()
        result[name] = clock() - start
    return result


class Line(Protocol):
    """A line of a table: text for the screen, a record for JSON."""

    def record(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Table:
    """A title, what stands above the columns, and the lines."""

    title: str
    header: str
    rows: Sequence[Line]

    @property
    def lines(self) -> list[str]:
        return [self.header, *map(str, self.rows)]

    def record(self) -> list[dict[str, Any]]:
        return [row.record() for row in self.rows]


@dataclass(frozen=True)
class Comparison:
    """Ours divided by something else, paired round by round; below one means that ours is faster."""

    name: str
    ratio: Spread

    def __str__(self) -> str:
        return f"{self.ratio.median:.2f} [{self.ratio.least:.2f}-{self.ratio.most:.2f}] {self.name}"


@dataclass(frozen=True)
class Row:
    name: str
    threads: int
    # arcs x frames x sequences, summed over sequences of different graphs; 0 where arcs are not the measure
    evaluations: int
    times: Times  # seconds, one entry for each round
    comparisons: tuple[Comparison, ...] = ()  # with other jobs of the same rounds

    @property
    def nanoseconds(self) -> Spread | None:
        """Per arc-evaluation, forward and backward together."""
        return self.times.scaled(1e9 / self.evaluations) if self.evaluations else None

    def __str__(self) -> str:
        taken, each = self.times.scaled(1e3), self.nanoseconds
        spread = f"{taken.median:8.2f} [{taken.least:.2f}-{taken.most:.2f}]"
        per_arc = f"{each.median:7.3f}" if each else " " * 7
        ratios = "   ".join(str(comparison) for comparison in self.comparisons)
        return f"  {self.name:34} {self.threads:2}  {spread:28} {per_arc}   {ratios}".rstrip()

    def record(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "threads": self.threads,
            "arc_evaluations": self.evaluations,
            "rounds": len(self.times.seconds),
            "milliseconds": vars(self.times.scaled(1e3)),
            "nanoseconds_per_arc_evaluation": vars(self.nanoseconds) if self.nanoseconds else None,
            "ratios": {comparison.name: vars(comparison.ratio) for comparison in self.comparisons},
        }


HEADER = f"  {'':34} {'th':2}  {'ms [least-most]':28} {'ns/arc':>7}   ratios [least-most] to"
