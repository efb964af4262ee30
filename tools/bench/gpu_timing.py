"""Times of work on a device, the limit that it sets, and a line of the report for each measurement."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

from tools.bench.timing import Comparison, Times
from tools.bench.workloads import PER_ARC, Work

Key = TypeVar("Key")
Call = Callable[[], object]

MIN_ROUNDS, MAX_ROUNDS = 5, 50
LEAST_SECONDS = 2e-3  # between two events: calls are repeated until they take as long
MOST_REPEATS = 50
CACHE_BYTES = 128 << 20  # twice the second-level cache of the largest GPU there is


class Clock(Protocol):
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

    `seconds` bounds the counted rounds together, but at least MIN_ROUNDS are run.
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


# How fast the device lets anyone be: bytes at the rate of a copy, multiply-adds at the rate of a matrix product, measured in
# the same run. Of an arc-evaluation two multiply-adds are counted, of a batch the scores once and the gradient in and out,
# as in `tools.bench.limit`; operands that must come from shared memory or L2 are not, so that no program reaches 1.


class Rates(NamedTuple):
    """Bytes read and written, and float32 multiply-adds, per second."""

    bytes: float
    multiply_adds: float

    def __str__(self) -> str:
        return f"copy {self.bytes * 1e-12:.2f} TB/s, float32 {2e-12 * self.multiply_adds:.1f} TFLOP/s"

    def limit(self, work: Work) -> float:
        return max(work.bytes / self.bytes, PER_ARC * work.evaluations / self.multiply_adds)

    def against(self, times: Times, work: Work) -> Comparison:
        """How far a job is from the limit of its work."""
        return Comparison("limit", times.scaled(1.0 / self.limit(work)))


def measure_rates(device: torch.device, clock: Clock, side: int, num_bytes: int, seconds: float) -> Rates:
    """Rates of a copy of `num_bytes` and of a product of two float32 matrices [side, side]."""
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    left, right = torch.rand(2, side, side, device=device)
    product = torch.empty_like(left)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # no tensor cores: the recursions have no use for them
    try:
        jobs: dict[str, Call] = {
            "copy": lambda: target.copy_(source),
            "product": lambda: torch.mm(left, right, out=product),
        }
        times = take_turns(jobs, seconds, clock)
    finally:
        torch.set_float32_matmul_precision(before)
    best = {name: entry.scaled(1.0).least for name, entry in times.items()}
    return Rates(2 * num_bytes / best["copy"], side**3 / best["product"])


HEADER = f"  {'':44} {'ms [least-most]':26} {'ns/arc':>7}  {'target':22} ratios [least-most] to"


@dataclass(frozen=True)
class Target:
    """What TARGETS.md asks for: at most `most` of `unit`."""

    most: float
    unit: str

    def verdict(self, value: float) -> str:
        """Whether a value meets it, and by how much."""
        word = "met" if value <= self.most else "MISSED"
        return f"<= {self.most:g} {self.unit}: {word} ({value / self.most:.2f} x)"


@dataclass(frozen=True)
class GpuRow:
    """One measurement.

    `evaluations` are arcs x frames x sequences, 0 where arcs are not the measure; `times` seconds on the device, one for
    each round; `target` is in ms, or in GB of memory where `peak` stands: the most bytes that were allocated during a call.
    `comparisons` are with other jobs of the same rounds.
    """

    name: str
    evaluations: int
    times: Times
    target: Target | None = None
    peak: int | None = None
    comparisons: tuple[Comparison, ...] = ()

    @property
    def value(self) -> float:
        """In the target's unit."""
        return self.peak * 1e-9 if self.peak is not None else self.times.scaled(1e3).median

    @property
    def verdict(self) -> str:
        return self.target.verdict(self.value) if self.target else ""

    def __str__(self) -> str:
        taken = self.times.scaled(1e3)
        spread = f"{taken.median:9.3f} [{taken.least:.3f}-{taken.most:.3f}]"
        each = f"{1e6 * taken.median / self.evaluations:7.4f}" if self.evaluations else " " * 7
        memory = f"{self.peak * 1e-9:.2f} GB  " if self.peak is not None else ""
        ratios = "   ".join(str(comparison) for comparison in self.comparisons)
        return f"  {self.name:44} {spread:26} {each}  {self.verdict:22} {memory}{ratios}".rstrip()

    def record(self) -> dict[str, Any]:
        """For JSON; times in milliseconds."""
        return {
            "name": self.name,
            "arc_evaluations": self.evaluations,
            "rounds": len(self.times.seconds),
            "milliseconds": vars(self.times.scaled(1e3)),
            "value": self.value,
            "target": self.verdict or None,
            "peak_bytes": self.peak,
            "ratios": {comparison.name: vars(comparison.ratio) for comparison in self.comparisons},
        }
