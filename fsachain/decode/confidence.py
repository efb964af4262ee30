"""How sure the words of a lattice's best path are: posteriors, by one forward and one backward pass over the lattice.

A lattice holds the likely paths of the decoding graph with their scores, so that exp(score) / Z is a path's posterior
among them. On the arcs of a graph from `fsachain.graph.build_decoding_graph` a word stands where its last phone begins:
there it is said. The confidence of a word of the best path is the expected number of times, at most 1, that the same word
is said nearer to this place than to the words before and after it. Other times and pronunciations of a word therefore count
for it, other words against it. What the beam left out counts for nothing.
"""

from __future__ import annotations

import math
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.errors import DataError
from fsachain.kaldi.lattice_arrays import Lattice


class WordPosterior(NamedTuple):
    """A word of the best path: its id, the frame before which it is said, and its confidence in [0, 1]."""

    word: int
    frame: int
    confidence: float


def word_posteriors(lattice: Lattice) -> list[WordPosterior]:
    """The words of the best path with their confidences.

    Args:
        lattice: as `Decoder.lattice` gives it: without cycles, and all paths to a state of as many frames.

    Raises:
        DataError: a cycle, or no path to the end.
    """
    order = _arcs_in_order(lattice)
    log_prob = -(lattice.graph_cost + lattice.acoustic_cost)
    final = -(lattice.final_graph_cost + lattice.final_acoustic_cost)
    forward, frame = _forward(lattice, order, log_prob)
    total = float(np.logaddexp.reduce(forward + final))
    if not math.isfinite(total):
        raise DataError(f"lattice: the paths to the end have the total {total}; expected a finite one")
    backward, path = _backward(lattice, order, log_prob, final)
    posterior = np.exp(forward[lattice.src] + log_prob + backward[lattice.dst] - total)
    best = [arc for arc in path if lattice.word[arc]]
    places = frame[lattice.src]
    said = np.flatnonzero(lattice.word)
    middles = 0.5 * (places[best][1:] + places[best][:-1])
    nearest = np.searchsorted(middles, places[said], side="right")
    expected = np.zeros(len(best))
    for arc, which in zip(said.tolist(), nearest.tolist(), strict=True):
        if best and lattice.word[arc] == lattice.word[best[which]]:
            expected[which] += posterior[arc]
    return [
        WordPosterior(int(lattice.word[arc]), int(places[arc]), min(1.0, float(value)))
        for arc, value in zip(best, expected, strict=True)
    ]


def _arcs_in_order(lattice: Lattice) -> npt.NDArray[np.int64]:
    """The arcs sorted so that all arcs into a state stand before those out of it."""
    before: dict[int, set[int]] = {}
    for src, dst in zip(lattice.src.tolist(), lattice.dst.tolist(), strict=True):
        before.setdefault(dst, set()).add(src)
    rank = np.zeros(lattice.num_states, dtype=np.int64)
    try:
        order = list(TopologicalSorter(before).static_order())
    except CycleError as error:
        raise DataError(f"lattice: the states {error.args[1]} are a cycle; expected none") from error
    rank[order] = np.arange(len(order))
    return np.argsort(rank[lattice.src], kind="stable")


def _forward(
    lattice: Lattice, order: npt.NDArray[np.int64], log_prob: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Log-sum over the paths from the start to each state, and the frames that they spend."""
    sums = [-math.inf] * lattice.num_states
    frames = [0] * lattice.num_states
    sums[lattice.start] = 0.0
    columns = (lattice.src, lattice.dst, lattice.transition, log_prob)
    for src, dst, transition, weight in zip(*(column[order].tolist() for column in columns), strict=True):
        sums[dst] = _log_add(sums[dst], sums[src] + weight)
        frames[dst] = frames[src] + (transition > 0)
    return np.array(sums), np.array(frames, dtype=np.int64)


def _backward(
    lattice: Lattice,
    order: npt.NDArray[np.int64],
    log_prob: npt.NDArray[np.float64],
    final: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.float64], list[int]]:
    """Log-sum over the paths from each state to the end, and the arcs of the best path from the start."""
    sums, best = final.tolist(), final.tolist()
    choice = [-1] * lattice.num_states
    arcs = order[::-1]
    columns = (arcs, lattice.src[arcs], lattice.dst[arcs], log_prob[arcs])
    for arc, src, dst, weight in zip(*(column.tolist() for column in columns), strict=True):
        sums[src] = _log_add(sums[src], sums[dst] + weight)
        if best[dst] + weight > best[src]:
            best[src], choice[src] = best[dst] + weight, arc
    path, state = [], lattice.start
    while choice[state] >= 0:
        path.append(choice[state])
        state = int(lattice.dst[path[-1]])
    return np.array(sums), path


def _log_add(a: float, b: float) -> float:
    high, low = (a, b) if a > b else (b, a)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))
