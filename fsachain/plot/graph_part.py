"""Which part of a graph is drawn, and what is written on it."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fsachain.errors import ShapeError
from fsachain.fsa import Fsa, Ints
from fsachain.plot.canvas import shortened

MOST_ARCS = 1000  # a picture of more is black, and takes Graphviz minutes
THINNEST, WIDEST = 0.7, 6.0  # points


@dataclass(frozen=True)
class Part:
    """The states and arcs that are drawn, and what is written on them.

    Attributes:
        states: their numbers in the graph, ascending.
        arcs: likewise.
        labels: one for each arc.
        widths: [arcs] of the lines, points.
        unused: [arcs] True where an occupancy is known and zero.
        is_cut: [states] True where arcs of the state are left out.
    """

    states: Ints
    arcs: Ints
    labels: tuple[str, ...]
    widths: npt.NDArray[np.float64]
    unused: npt.NDArray[np.bool_]
    is_cut: npt.NDArray[np.bool_]


def checked_occupancy(occupancy: npt.ArrayLike, num_arcs: int) -> npt.NDArray[np.float64]:
    """The occupancy [A] as float64.

    Raises:
        ShapeError: another shape, or numbers that are negative or not finite.
    """
    values = np.asarray(occupancy, dtype=np.float64)
    if values.shape != (num_arcs,):
        raise ShapeError(
            f"occupancy: shape {list(values.shape)}, expected [{num_arcs}], one entry for each arc"
        )
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if bad.size:
        raise ShapeError(
            f"occupancy[{bad[0]}] = {values[bad[0]]}: expected finite numbers that are not negative"
        )
    return values


def symbols(fsa: Fsa, names: Sequence[str] | None, arc_names: Sequence[str] | None) -> Callable[[int], str]:
    """What to write for an arc, by its number: its own name, that of its pdf, or the pdf.

    Raises:
        ShapeError: names that do not fit the graph.
    """
    if arc_names is not None:
        if len(arc_names) != fsa.num_arcs:
            raise ShapeError(f"arc_names: {len(arc_names)}, expected {fsa.num_arcs}, one for each arc")
        return arc_names.__getitem__
    largest = int(fsa.pdf.max(initial=-1))
    if names is not None and largest >= len(names):
        raise ShapeError(f"names: {len(names)}; the graph has pdfs up to {largest}")
    return lambda arc: str(int(fsa.pdf[arc])) if names is None else names[int(fsa.pdf[arc])]


def chosen(fsa: Fsa, used: npt.NDArray[np.float64] | None, max_arcs: int) -> Ints:
    """The numbers of the arcs that are drawn, ascending."""
    if fsa.num_arcs <= max_arcs:
        return np.arange(fsa.num_arcs)
    if used is not None:
        return np.sort(np.argsort(-used, kind="stable")[:max_arcs])
    return _nearest(fsa, max_arcs)


def _nearest(fsa: Fsa, max_arcs: int) -> Ints:
    """The arcs that the most probable ways from the start meet first."""
    order = np.lexsort((-fsa.log_prob, fsa.src))
    first = np.searchsorted(fsa.src[order], np.arange(fsa.num_states + 1))
    waiting: list[tuple[float, int, int]] = []  # cost up to the end of the arc, arcs up to there, arc
    seen = {fsa.start}

    def leave(state: int, cost: float, depth: int) -> None:
        for arc in order[first[state] : first[state + 1]][:max_arcs].tolist():
            heapq.heappush(waiting, (cost - float(fsa.log_prob[arc]), depth + 1, arc))

    leave(fsa.start, 0.0, 0)
    taken: list[int] = []
    while waiting and len(taken) < max_arcs:
        cost, depth, arc = heapq.heappop(waiting)
        taken.append(arc)
        if (state := int(fsa.dst[arc])) not in seen:
            seen.add(state)
            leave(state, cost, depth)
    return np.sort(np.array(taken, dtype=np.int64))


def make_part(
    fsa: Fsa, arcs: Ints, used: npt.NDArray[np.float64] | None, symbol: Callable[[int], str]
) -> Part:
    """The part of `fsa` that consists of `arcs`, with labels by `symbol` and widths by the occupancy `used` [A]."""
    whole = len(arcs) == fsa.num_arcs
    ends = np.concatenate([fsa.src[arcs], fsa.dst[arcs], [fsa.start]])
    states = np.arange(fsa.num_states) if whole and fsa.num_states <= MOST_ARCS else np.unique(ends)
    drawn = np.bincount(np.searchsorted(states, fsa.src[arcs]), minlength=len(states))
    drawn += np.bincount(np.searchsorted(states, fsa.dst[arcs]), minlength=len(states))
    every = np.bincount(fsa.src, minlength=fsa.num_states) + np.bincount(fsa.dst, minlength=fsa.num_states)
    labels = tuple(f"{shortened(symbol(arc), 16)} / {fsa.log_prob[arc] + 0.0:.3g}" for arc in arcs.tolist())
    widths, unused = np.full(len(arcs), 1.2), np.zeros(len(arcs), dtype=np.bool_)
    if used is not None:
        largest = used.max(initial=0.0) or 1.0
        widths, unused = THINNEST + (WIDEST - THINNEST) * used[arcs] / largest, used[arcs] == 0
    return Part(states, arcs, labels, widths, unused, drawn < every[states])
