"""What the recursions return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fsachain.brief import brief
from fsachain.fsa import Ints
from fsachain.table import TransitionTable


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
    _state_occupancy: Callable[[int], Any] = field(repr=False)

    __repr__ = brief

    @cached_property
    def occupancy(self) -> Any:
        """float32 or (for float64 scores) float64 [N, T, P], equation (7), computed on first access.

        Rows t < lengths[n] of an ok sequence sum to one; all other rows are exactly 0.
        """
        return self._occupancy()

    def arc_occupancy(self, n: int) -> Any:
        """float64 [T_n, A]: gamma of equation (6) for sequence n, arcs numbered as in its Fsa; 0 if it is not ok."""
        return self._arc_occupancy(n)

    def state_occupancy(self, n: int) -> Any:
        """float64 [T_n + 1, S]: the share of sequence n's paths that are in each state at time t; 0 if it is not ok.

        Equation (14). Row t is the state before frame t, after a leak at t if there was one; the last row the one at the
        end. Rows sum to one.
        """
        return self._state_occupancy(n)


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
    pdfs: list[Ints]
    states: list[Ints]
    arcs: list[Ints]

    __repr__ = brief


@dataclass(frozen=True)
class NBest:
    """The best pdf sequences through each sequence's acceptor, all different; M_n of them, at most the n asked for.

    Attributes:
        score: float64 [N, n]: of each pdf sequence its best path's, equations (8) and (9), not increasing; -inf from entry
            M_n on, NaN throughout for an illegal score.
        pdfs: N arrays int32 [M_n, T_n]: the pdf of each frame.
        states: N arrays int32 [M_n, T_n + 1]: the states of a best path of each pdf sequence.
        arcs: N arrays int32 [M_n, T_n]: its arcs, numbered as in the caller's Fsa.
    """

    score: Any
    pdfs: list[Ints]
    states: list[Ints]
    arcs: list[Ints]

    __repr__ = brief


@dataclass(frozen=True)
class SampledPaths:
    """Paths drawn from each sequence's posterior; M of them, or none (arrays of 0 rows) where no path exists.

    Attributes:
        ok: bool [N], there are paths.
        pdfs: N arrays int32 [M, T_n]: the pdf of each frame.
        states: N arrays int32 [M, T_n + 1]: the state before each frame and at the end, after the jump if there is one.
        arcs: N arrays int32 [M, T_n]: arc numbers as in the caller's Fsa.
        jumps: N arrays bool [M, T_n + 1]: a leak of equation (3) led to this state; it may lead to where the path was.
    """

    ok: Any
    pdfs: list[Ints]
    states: list[Ints]
    arcs: list[Ints]
    jumps: list[npt.NDArray[np.bool_]]

    __repr__ = brief


def pdfs_along(table: TransitionTable, arcs: Ints) -> Ints:
    """The pdfs int32 [..., T] of arcs [..., T]."""
    view = table.by_src
    pdf = np.zeros(table.num_arcs, dtype=np.int32)
    pdf[view.arc] = table.active_pdfs[view.column]
    return pdf[arcs]


def states_along(table: TransitionTable, arcs: Ints) -> Ints:
    """The states int32 [..., T + 1] of best paths with arcs [..., T]; without frames the one that is best to be in."""
    view = table.by_src
    src, dst = np.zeros((2, table.num_arcs), dtype=np.int32)
    src[view.arc], dst[view.arc] = view.src, view.dst
    if arcs.shape[-1]:
        return np.concatenate([src[arcs[..., :1]], dst[arcs]], axis=-1)
    best = np.argmax(table.initial_log_prob + table.final_log_prob)
    return np.full((*arcs.shape[:-1], 1), best, dtype=np.int32)
