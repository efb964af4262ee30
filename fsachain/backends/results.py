"""What the recursions return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class ForwardBackward:
    """Result of `forward_backward`; arrays are of the scores' kind (numpy, torch) and live where the scores live.

    Attributes:
        log_prob: float64 [N], log Z of equation (4); -inf where no path of exactly T_n frames exists, NaN where a score
            of an active pdf is NaN or +inf.
        ok: bool [N], log_prob is finite.
    """

    log_prob: Any
    ok: Any
    _occupancy: Callable[[], Any] = field(repr=False)
    _arc_occupancy: Callable[[int], Any] = field(repr=False)

    @cached_property
    def occupancy(self) -> Any:
        """float32 or (for float64 scores) float64 [N, T, P], equation (7), computed on first access.

        Rows t < lengths[n] of an ok sequence sum to one; all other rows are exactly 0.
        """
        return self._occupancy()

    def arc_occupancy(self, n: int) -> Any:
        """float64 [T_n, A]: gamma of equation (6) for sequence n, arcs numbered as in its Fsa."""
        return self._arc_occupancy(n)


@dataclass(frozen=True)
class BestPath:
    """The path of the highest score through each sequence's acceptor, equations (8) and (9).

    Attributes:
        score: float64 [N]; -inf where there is no path, NaN for an illegal score.
        pdfs: N arrays int32 [T_n]: the pdf of each frame; empty where there is no path.
        states: N arrays int32 [T_n + 1]: the states passed, the first one initial; empty where there is no path.
        arcs: N arrays int32 [T_n]: arc numbers as in the caller's Fsa.
    """

    score: Any
    pdfs: list[npt.NDArray[np.integer[Any]]]
    states: list[npt.NDArray[np.integer[Any]]]
    arcs: list[npt.NDArray[np.integer[Any]]]
