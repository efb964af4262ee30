"""A line of the GPU report: its time, what it is to be below, and ratios to what was timed in the same rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tools.bench.row import Comparison
from tools.bench.timing import Times

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

    Attributes:
        name: what was run.
        evaluations: arcs x frames x sequences; 0 where arcs are not the measure.
        times: seconds on the device, one entry for each round.
        target: in ms, or in GB of memory where `peak` stands.
        peak: the most bytes that were allocated during a call, None where that was not looked at.
        comparisons: with other jobs of the same rounds.
    """

    name: str
    evaluations: int
    times: Times
    target: Target | None = None
    peak: int | None = None
    comparisons: tuple[Comparison, ...] = ()

    @property
    def value(self) -> float:
        """What the target is about."""
        return self.peak * 1e-9 if self.peak is not None else self.times.scaled(1e3).median

    @property
    def verdict(self) -> str:
        """Whether the target is met; empty without one."""
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
            "target": self.verdict or None,
            "peak_bytes": self.peak,
            "ratios": {comparison.name: vars(comparison.ratio) for comparison in self.comparisons},
        }


@dataclass(frozen=True)
class Failure:
    """Something that could not be timed, and why: the other rows are still printed."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"  {self.name:44} FAILED: {self.reason}"

    def record(self) -> dict[str, Any]:
        return {"name": self.name, "failed": self.reason}
