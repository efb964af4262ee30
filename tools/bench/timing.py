"""Times taken in turns: every job once per round, so that a busy machine slows all jobs alike; and rows of them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple, TypeVar

import torch

from fsachain.backends.cpu.threads import get_num_threads, set_num_threads

Call = Callable[[], object]
Key = TypeVar("Key")
Name = tuple[str, int]  # of a job: what it does, with how many threads of the CPU backend and of torch
Calls = Mapping[Name, Call]
Clock = Callable[[Any, Call, int], float]  # seconds of one of so many calls, given the name of a job

MOST_REPEATS = 50
HEADER = f"  {'':44} {'th':2}  {'ms [least-most]':28} {'ns/arc':>7}   ratios [least-most] to"


class Spread(NamedTuple):
    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.least:.2f}-{self.most:.2f}]"


@dataclass(frozen=True)
class Times:
    """Seconds of one job, one entry for each round."""

    seconds: tuple[float, ...]

    def scaled(self, factor: float) -> Spread:
        return Spread.of([factor * value for value in self.seconds])

    def over(self, other: Times) -> Spread:
        """Ratios self / other, each between two times of one round."""
        return Spread.of([mine / theirs for mine, theirs in zip(self.seconds, other.seconds, strict=True)])


def seconds_of(run: Call, repeats: int = 1, now: Callable[[], float] = time.perf_counter) -> float:
    """Of one of `repeats` calls; `now` is the clock."""
    start = now()
    for _ in range(repeats):
        run()
    return (now() - start) / repeats


def by_the_clock(name: Any, run: Call, repeats: int) -> float:
    """Of the host; a job whose name has a number of threads runs with these."""
    if isinstance(name, tuple):
        _, threads = name
        if get_num_threads() != threads:
            set_num_threads(threads)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
    return seconds_of(run, repeats)


def take_turns(
    jobs: Mapping[Key, Call],
    seconds: float,
    clock: Clock = by_the_clock,
    *,
    rounds: tuple[int, int] = (3, 25),
    least: float = 0.0,
) -> dict[Key, Times]:
    """Time all jobs round by round, after a round that is not counted: it compiles, and fills caches and memory pools.

    Args:
        seconds: after which no round begins, once there were as many as `rounds` asks for; it also bounds them.
        least: calls of a job are repeated until they take so many seconds.
    """
    repeats = dict.fromkeys(jobs, 1)
    for name, run in jobs.items():
        clock(name, run, 1)
        if least:
            repeats[name] = max(1, min(MOST_REPEATS, round(least / max(clock(name, run, 1), 1e-9))))
    taken: dict[Key, list[float]] = {name: [] for name in jobs}
    start, done = time.perf_counter(), 0
    while done < rounds[0] or (done < rounds[1] and time.perf_counter() - start < seconds):
        for name, run in jobs.items():
            taken[name].append(clock(name, run, repeats[name]))
        done += 1
    return {name: Times(tuple(values)) for name, values in taken.items()}


class Comparison(NamedTuple):
    """Ours divided by something else, paired round by round; below one means that ours is faster."""

    name: str
    ratio: Spread


class Target(NamedTuple):
    """What TARGETS.md asks for: at most `most` of `unit`, which is ms or one of a row's figures."""

    most: float
    unit: str

    def verdict(self, value: float) -> str:
        """Whether a value meets it, and by how much."""
        word = "met" if value <= self.most else "MISSED"
        return f"<= {self.most:g} {self.unit}: {word} ({value / self.most:.2f} x)"


@dataclass(frozen=True)
class Row:
    """A line of a table: `str` is for the screen, `record` for JSON."""

    name: str
    threads: int = 0  # 0 where their number is not set
    times: Times | None = None
    evaluations: int = 0  # arcs x frames x sequences; 0 where arcs are not the measure
    comparisons: tuple[Comparison, ...] = ()  # with other jobs of the same rounds
    # What else was measured, by names with their units.
    figures: dict[str, float] = field(default_factory=dict)
    target: Target | None = None

    @property
    def value(self) -> float:
        """In the target's unit: median milliseconds, or a figure."""
        if self.target and self.target.unit in self.figures:
            return self.figures[self.target.unit]
        return self.times.scaled(1e3).median if self.times else 0.0

    @property
    def verdict(self) -> str:
        return self.target.verdict(self.value) if self.target else ""

    def __str__(self) -> str:
        taken = per_arc = ""
        if self.times:
            ms = self.times.scaled(1e3)
            taken = f"{ms.median:9.3f} [{ms.least:.3f}-{ms.most:.3f}]"
            per_arc = f"{1e6 * ms.median / self.evaluations:7.4f}" if self.evaluations else ""
        more = [f"{ratio} {name}" for name, ratio in self.comparisons]
        more += [f"{name} {value:.4g}" for name, value in self.figures.items()]
        beside = "   ".join(filter(None, [self.verdict, *more]))
        return f"  {self.name:44} {self.threads or '':2}  {taken:28} {per_arc:7}   {beside}".rstrip()

    def record(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "threads": self.threads,
            "arc_evaluations": self.evaluations,
            "rounds": len(self.times.seconds) if self.times else 0,
            "milliseconds": self.times.scaled(1e3)._asdict() if self.times else None,
            "ratios": {name: ratio._asdict() for name, ratio in self.comparisons},
            "value": self.value,
            "target": self.verdict or None,
            **self.figures,
        }


def some_of(known: Iterable[str]) -> Callable[[str], tuple[str, ...]]:
    """A type for argparse: names of tables with commas between."""

    def names(text: str) -> tuple[str, ...]:
        chosen = tuple(text.split(","))
        for name in chosen:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r}; expected some of {','.join(known)}")
        return chosen

    return names
