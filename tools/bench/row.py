"""Lines of the report: what was timed, how long it took, and how that compares with what was timed in the same rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tools.bench.timing import Spread, Times


class Line(Protocol):
    """A line of a table: text for the screen, a record for JSON."""

    def record(self) -> dict[str, Any]:
        """For JSON."""
        ...


@dataclass(frozen=True)
class Table:
    """A title, what stands above the columns, and the lines."""

    title: str
    header: str
    rows: Sequence[Line]

    @property
    def lines(self) -> list[str]:
        """What is printed below the title."""
        return [self.header, *map(str, self.rows)]

    def record(self) -> list[dict[str, Any]]:
        """For JSON."""
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
    """One measurement.

    Attributes:
        name: what was run.
        threads: how many threads it had.
        evaluations: arcs x frames x sequences, summed over sequences of different graphs; 0 where arcs are not the measure.
        times: seconds, one entry for each round.
        comparisons: with other jobs of the same rounds.
    """

    name: str
    threads: int
    evaluations: int
    times: Times
    comparisons: tuple[Comparison, ...] = ()

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
        """For JSON; times in milliseconds."""
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
