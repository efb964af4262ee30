"""A line of the report: what was timed, how long it took, and how that compares with what was timed in the same rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tools.bench.timing import Spread, Times


@dataclass(frozen=True)
class Comparison:
    """Ours divided by something else, paired round by round; below one means that ours is faster."""

    name: str
    ratio: Spread

    def __str__(self) -> str:
        return f"{self.ratio.median:.2f} [{self.ratio.least:.2f}-{self.ratio.most:.2f}] {self.name}"


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
        name: what was run.
        threads: how many threads it had.
        evaluations: arcs x frames x sequences, summed over sequences of different graphs.
        times: seconds, one entry for each round.
        comparisons: with other jobs of the same rounds.
    """

    name: str
    threads: int
    evaluations: int
    times: Times
    comparisons: tuple[Comparison, ...]

    @property
    def nanoseconds(self) -> Spread:
        """Per arc-evaluation, forward and backward together."""
        return self.times.scaled(1e9 / self.evaluations)

    def __str__(self) -> str:
        taken = self.times.scaled(1e3)
        spread = f"{taken.median:8.2f} [{taken.least:.2f}-{taken.most:.2f}]"
        ratios = "   ".join(str(comparison) for comparison in self.comparisons)
        return f"  {self.name:30} {self.threads:2}  {spread:26} {self.nanoseconds.median:7.3f}   {ratios}"

    def record(self) -> dict[str, Any]:
        """For JSON; times in milliseconds."""
        return {
            "name": self.name,
            "threads": self.threads,
            "arc_evaluations": self.evaluations,
            "rounds": len(self.times.seconds),
            "milliseconds": vars(self.times.scaled(1e3)),
            "nanoseconds_per_arc_evaluation": vars(self.nanoseconds),
            "ratios": {comparison.name: vars(comparison.ratio) for comparison in self.comparisons},
        }


HEADER = f"  {'':30} {'th':2}  {'ms [least-most]':26} {'ns/arc':>7}   ratios [least-most] to"
