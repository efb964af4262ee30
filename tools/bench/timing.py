"""Times taken in turns: every job once per round, so that a busy machine slows all jobs alike; and rows of them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

import torch

from fsachain.backends.cpu.threads import get_num_threads, set_num_threads

Call = Callable[[], object]
Name = tuple[str, int]  # of a job: what it does, with how many threads of the CPU backend and of torch
Calls = Mapping[Name, Call]

MIN_ROUNDS, MAX_ROUNDS = 3, 25
HEADER = f"  {'':34} {'th':2}  {'ms [least-most]':28} {'ns/arc':>7}   ratios [least-most] to"


@dataclass(frozen=True)
class Spread:
    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        return cls(median(values), min(values), max(values))


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


def take_turns(jobs: Calls, seconds: float) -> dict[Name, Times]:
    """Run all jobs round by round, after one round that is not counted (it compiles and fills caches)."""
    before = get_num_threads(), torch.get_num_threads()
    taken: dict[Name, list[float]] = {name: [] for name in jobs}
    try:
        _round(jobs)
        start, rounds = time.perf_counter(), 0
        while rounds < MIN_ROUNDS or (rounds < MAX_ROUNDS and time.perf_counter() - start < seconds):
            for name, value in _round(jobs).items():
                taken[name].append(value)
            rounds += 1
    finally:
        set_num_threads(before[0])
        torch.set_num_threads(before[1])
    return {name: Times(tuple(values)) for name, values in taken.items()}


def _round(jobs: Calls) -> dict[Name, float]:
    result = {}
    for (name, threads), run in jobs.items():
        if get_num_threads() != threads:
            set_num_threads(threads)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        start = time.perf_counter()
        run()
        result[name, threads] = time.perf_counter() - start
    return result


@dataclass(frozen=True)
class Comparison:
    """Ours divided by something else, paired round by round; below one means that ours is faster."""

    name: str
    ratio: Spread

    def __str__(self) -> str:
        return f"{self.ratio.median:.2f} [{self.ratio.least:.2f}-{self.ratio.most:.2f}] {self.name}"


@dataclass(frozen=True)
class Row:
    """A line of a table: `str` is for the screen, `record` for JSON."""

    name: str
    threads: int
    times: Times | None = None
    evaluations: int = 0  # arcs x frames x sequences; 0 where arcs are not the measure
    comparisons: tuple[Comparison, ...] = ()  # with other jobs of the same rounds
    # What else was measured; the names have the units.
    figures: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        taken = per_arc = ""
        if self.times:
            ms = self.times.scaled(1e3)
            taken = f"{ms.median:8.2f} [{ms.least:.2f}-{ms.most:.2f}]"
            per_arc = f"{1e6 * ms.median / self.evaluations:7.3f}" if self.evaluations else ""
        figures = [f"{name} {value:.4g}" for name, value in self.figures.items()]
        ratios = "   ".join([*map(str, self.comparisons), *figures])
        return f"  {self.name:34} {self.threads:2}  {taken:28} {per_arc:7}   {ratios}".rstrip()

    def record(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "threads": self.threads,
            "arc_evaluations": self.evaluations,
            "rounds": len(self.times.seconds) if self.times else 0,
            "milliseconds": vars(self.times.scaled(1e3)) if self.times else None,
            "ratios": {comparison.name: vars(comparison.ratio) for comparison in self.comparisons},
            **self.figures,
        }


class Table(NamedTuple):
    title: str
    rows: list[Row]


def some_of(known: Iterable[str]) -> Callable[[str], tuple[str, ...]]:
    """For argparse: names of tables with commas between."""

    def names(text: str) -> tuple[str, ...]:
        chosen = tuple(text.split(","))
        for name in chosen:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r}; expected some of {','.join(known)}")
        return chosen

    return names
