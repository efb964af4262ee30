"""The graphs of merged chain examples that were made from alignments, taken apart again.

nnet3-chain-merge-egs strings the graphs of a minibatch together: the first F frames of every path belong to the first
sequence, the next F to the second, and so on. Between two sequences stands one state, or several with the same arcs, whose
weights differ by a constant each: what the sequence before ended with (Kaldi's chain/chain-supervision.cc).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from fsachain.errors import DataError
from fsachain.fsa import Fsa

LOG_TOLERANCE = 1e-3  # weights are float32, sums of a few costs

Ints = npt.NDArray[np.int64]


def split_merged(fsa: Fsa, num_sequences: int, num_frames: int) -> Iterator[Fsa]:
    """The graphs that `fsa` strings together, in order.

    Args:
        fsa: every path has num_sequences * num_frames arcs.
        num_sequences: N.
        num_frames: F, frames of each sequence.

    Returns:
        N acyclic acceptors, made one by one once all is checked; the weights of N paths, one of each, add up to the
        weight of the path that they are.

    Raises:
        DataError: no path, paths of other lengths, or a place between two sequences at which the one depends on the other.
    """
    graph = fsa.trim()
    if not graph.num_arcs:
        raise DataError("the graph of merged sequences accepts nothing")
    time = _times(graph, num_sequences * num_frames)
    constant, entries = np.zeros(graph.num_states), [graph.start]
    for number in range(1, num_sequences):
        ends = np.flatnonzero(time == number * num_frames)
        entries.append(int(ends[0]))
        constant[ends] = _constants(graph, ends, entries[-1], number - 1)
    final = np.where(time == num_sequences * num_frames, graph.final_log_prob, constant)
    return (
        _part(graph, time, number * num_frames, (number + 1) * num_frames, entry, final)
        for number, entry in enumerate(entries)
    )


def _part(graph: Fsa, time: Ints, begin: int, end: int, entry: int, final: npt.NDArray[np.float64]) -> Fsa:
    """The frames [begin, end) of all paths, which lead from the state `entry` to those at time `end`."""
    inside = (time > begin) & (time <= end)
    inside[entry] = True
    kept = inside[graph.src] & inside[graph.dst]
    new = np.cumsum(inside) - 1
    return Fsa(
        int(inside.sum()),
        new[graph.src[kept]],
        new[graph.dst[kept]],
        graph.pdf[kept],
        graph.log_prob[kept],
        np.where(time == end, final, -np.inf)[inside],
        int(new[entry]),
    )


def _times(graph: Fsa, num_frames: int) -> Ints:
    """Frames behind each state."""
    leaving = np.argsort(graph.src, kind="stable")
    first = np.searchsorted(graph.src[leaving], np.arange(graph.num_states + 1))
    time = np.full(graph.num_states, -1, dtype=np.int64)
    time[graph.start] = 0
    layer = np.array([graph.start])
    for frame in range(1, num_frames + 1):
        parts = [graph.dst[leaving[first[state] : first[state + 1]]] for state in layer.tolist()]
        layer = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *parts])).astype(np.int64)
        if (time[layer] >= 0).any():
            break
        time[layer] = frame
    ends = graph.final_log_prob > -np.inf
    if (time < 0).any() or (time[graph.dst] != time[graph.src] + 1).any() or (time[ends] != num_frames).any():
        raise DataError(
            f"the graph of merged sequences has paths of other lengths; expected {num_frames} frames"
        )
    return time


def _constants(graph: Fsa, states: Ints, model: int, number: int) -> npt.NDArray[np.float64]:
    """By how much the arcs of each state outweigh those of `model`; all have the same."""
    expected = _arcs(graph, model)
    found = []
    for state in states.tolist():
        own = _arcs(graph, state)
        differences = [own.get(key, np.nan) - weight for key, weight in expected.items()]
        if own.keys() != expected.keys() or np.ptp(differences) > LOG_TOLERANCE:
            raise DataError(
                f"the graph of merged sequences goes on in several ways behind sequence {number}, which depend on it; "
                "expected graphs strung together"
            )
        found.append(differences[0])
    return np.array(found)


def _arcs(graph: Fsa, state: int) -> dict[tuple[int, int], float]:
    """Log-weights of the arcs that leave a state, by pdf and destination."""
    arcs: dict[tuple[int, int], float] = {}
    for arc in np.flatnonzero(graph.src == state).tolist():
        key = int(graph.pdf[arc]), int(graph.dst[arc])
        arcs[key] = float(np.logaddexp(arcs.get(key, -np.inf), graph.log_prob[arc]))
    return arcs
