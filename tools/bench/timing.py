"""Times taken in turns: every job once per round, so that a busy machine slows all jobs of a table alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

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
        """Median, least and most of the seconds times `factor`."""
        return Spread.of([factor * value for value in self.seconds])

    def over(self, other: Times, factor: float = 1.0) -> Spread:
        """Of the ratios self / (factor x other), each between two times of one round."""
        pairs = zip(self.seconds, other.seconds, strict=True)
        return Spread.of([mine / (factor * theirs) for mine, theirs in pairs])


@dataclass(frozen=True)
class Spread:
    """Median, least and most of several values."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """The three of these values."""
        return cls(median(values), min(values), max(values))


def take_turns(
    jobs: Mapping[Key, Job], seconds: float, clock: Callable[[], float] = time.perf_counter
) -> dict[Key, Times]:
    """Run all jobs round by round, after one round that is not counted (it compiles and fills caches).

    Args:
        jobs: by any key, in the order of a round.
        seconds: how long the counted rounds may take in all; at least MIN_ROUNDS are run whatever they take.
        clock: returns seconds.
    """
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
