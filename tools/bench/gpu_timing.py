"""Times of work on a device: events around several calls, jobs taken in turns, inputs that rotate."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Protocol, TypeVar

import torch

from tools.bench.timing import Times

Key = TypeVar("Key")
Call = Callable[[], object]

MIN_ROUNDS, MAX_ROUNDS = 5, 50
LEAST_SECONDS = 2e-3  # between two events: calls are repeated until they take as long
MOST_REPEATS = 50
CACHE_BYTES = 128 << 20  # twice the second-level cache of the largest GPU there is


class Clock(Protocol):
    """Measures how long the device works."""

    def seconds(self, run: Call, repeats: int) -> float:
        """Of one of `repeats` calls made one after another, waiting for none but the last."""


class Events:
    """A CUDA device's own clock, on torch's current stream."""

    def seconds(self, run: Call, repeats: int) -> float:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        first.record()
        for _ in range(repeats):
            run()
        last.record()
        last.synchronize()
        return first.elapsed_time(last) * 1e-3 / repeats


class Wall:
    """The host's clock: for devices that do their work before a call returns."""

    def seconds(self, run: Call, repeats: int) -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            run()
        return (time.perf_counter() - start) / repeats


def clock_of(device: torch.device) -> Clock:
    """The clock that fits a device."""
    return Events() if device.type == "cuda" else Wall()


def rotated(calls: Sequence[Call]) -> Call:
    """A call that makes these one after another, over and over: no call finds its input in a cache from the last."""
    turns = cycle(calls)
    return lambda: next(turns)()


def copies_of(num_bytes: int) -> int:
    """How many inputs of this size do not fit the caches together; at least two, at most eight."""
    return min(8, max(2, -(-CACHE_BYTES // max(1, num_bytes))))


def take_turns(jobs: Mapping[Key, Call], seconds: float, clock: Clock) -> dict[Key, Times]:
    """Time all jobs round by round, after a round that is not counted and one that tells how often to repeat each.

    Args:
        jobs: by any key, in the order of a round.
        seconds: how long the counted rounds may take in all, at least MIN_ROUNDS are run whatever they take.
        clock: of the device.
    """
    for run in jobs.values():
        clock.seconds(run, 1)  # compiles, fills caches and memory pools
    single = {name: clock.seconds(run, 1) for name, run in jobs.items()}
    repeats = {name: _repeats(value) for name, value in single.items()}
    a_round = sum(repeats[name] * value for name, value in single.items())
    rounds = int(min(MAX_ROUNDS, max(MIN_ROUNDS, seconds / max(a_round, 1e-9))))
    taken: dict[Key, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, run in jobs.items():
            taken[name].append(clock.seconds(run, repeats[name]))
    return {name: Times(tuple(values)) for name, values in taken.items()}


def _repeats(seconds: float) -> int:
    return max(1, min(MOST_REPEATS, round(LEAST_SECONDS / max(seconds, 1e-9))))
