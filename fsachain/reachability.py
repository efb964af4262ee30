"""Which states matter: breadth-first distances over sparse adjacency matrices."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse import csgraph

Indices = npt.NDArray[np.integer]


def arcs_from(start: int, num_states: int, src: Indices, dst: Indices) -> npt.NDArray[np.float64]:
    """float64 [S]: the fewest arcs on a path from `start` to each state; inf where there is no path."""
    return np.asarray(csgraph.dijkstra(_adjacency(num_states, src, dst), indices=start, unweighted=True))


def on_a_path(start: int, final: npt.NDArray[np.bool_], src: Indices, dst: Indices) -> npt.NDArray[np.bool_]:
    """bool [S]: the state lies on a path from `start` to a state marked in `final` [S]."""
    num_states = len(final)
    # One extra state collects the final states, so that one search over reversed arcs answers for all of them.
    sink_src = np.flatnonzero(final)
    sink_dst = np.full(len(sink_src), num_states)
    backward = _reachable(num_states, num_states + 1, np.append(dst, sink_dst), np.append(src, sink_src))
    return _reachable(start, num_states, src, dst) & backward[:num_states]


def _reachable(start: int, num_states: int, src: Indices, dst: Indices) -> npt.NDArray[np.bool_]:
    order = csgraph.breadth_first_order(_adjacency(num_states, src, dst), start, return_predecessors=False)
    found = np.zeros(num_states, dtype=bool)
    found[order] = True
    return found


def _adjacency(num_states: int, src: Indices, dst: Indices) -> sparse.csr_array:
    # float64: parallel arcs are summed, and a narrower type could wrap around to zero.
    return sparse.csr_array((np.ones(len(src)), (src, dst)), shape=(num_states, num_states))
