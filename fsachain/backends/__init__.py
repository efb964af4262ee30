"""What every backend computes, and what it returns: `reference` (the oracle), `cpu` and `cuda`.

`dispatch` chooses one. Arrays are numpy's for the first two, torch's or cupy's on a CUDA device for the third.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from fsachain.batch import TableBatch
from fsachain.fsa import Ints

Lengths = npt.NDArray[np.int64]


class LogProbs(NamedTuple):
    """log Z, float64 [N] (-inf: no path, NaN: an illegal score), and whether it is finite, bool [N]."""

    log_prob: Any
    ok: Any


class Paths(NamedTuple):
    """Scores of paths, float64 [N], and the arcs [T_n] of each on the host, none where there is no path."""

    score: Any
    arcs: list[Ints]


class Recursion(Protocol):
    """Equations (1)-(9) and (12) for scores [N, T, P] of N sequences; lengths [N] are on the host."""

    def log_probs(self, batch: TableBatch, scores: Any, lengths: Lengths, leaky: float) -> LogProbs:
        """Equation (4)."""

    def add_occupancy(
        self,
        batch: TableBatch,
        scores: Any,
        lengths: Lengths,
        leaky: float,
        weights: Any,
        out: Any,
        memory_budget: float | None,
    ) -> LogProbs:
        """Add weights [N] (float64) times occupancy (7) to out [N, T, P], float32 or (for float64 scores) float64."""

    def best_paths(
        self, batch: TableBatch, scores: Any, lengths: Lengths, memory_budget: float | None
    ) -> Paths:
        """Equations (8) and (9)."""


class ArcRecursion(Protocol):
    """Occupancies of arcs and states, on the host: equations (6) and (14) for one sequence's scores [T_n, P]."""

    def arc_occupancy(self, table: Any, scores: Any, leaky: float) -> Any:
        """float64 [T_n, A]."""

    def state_occupancy(self, table: Any, scores: Any, leaky: float) -> Any:
        """float64 [T_n + 1, S]."""

    def add_arc_occupancy(
        self, batch: TableBatch, scores: Any, lengths: Lengths, leaky: float, counts: Sequence[Any]
    ) -> None:
        """Add the sums of (6) over the frames to counts[n] [A_n]."""


class Backend(NamedTuple):
    """One backend; modules of the same functions in each. What "cuda" lacks it has from "cpu", for scores on the host."""

    recursion: Recursion
    arcs: ArcRecursion
    paths: ModuleType  # n_best, sample_paths
    mbr: ModuleType  # expected_accuracy, set_accuracy_gradient
    ctc: ModuleType  # log_probs, gradient
    grid: Any  # see `fsachain.backends.grid_call.Grid`
    grid_rows: Any
    penalties: ModuleType  # add_penalties
