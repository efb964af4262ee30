"""The n best pdf sequences, sampled paths and the live states of a search, in numpy float64, one sequence."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import numpy.typing as npt

from fsachain.backends.reference.sums import Scores, active_scores, before_leak, trellis
from fsachain.fsa import Ints
from fsachain.openfst import Transducer
from fsachain.recursion import Array
from fsachain.table import TransitionTable

Drawn = tuple[Ints, Ints, npt.NDArray[np.bool_]]


def n_best(table: TransitionTable, scores: Scores, n: int) -> tuple[Array, Ints]:
    """Equation (15): scores [M] and arcs [M, T] of the M <= n best pdf sequences, best first; for NaN or +inf one NaN.

    Among equals the sequence with the lower pdf at the first frame where they differ comes first.
    """
    frames = active_scores(table, scores)
    if not frames.legal:
        return np.full(1, np.nan), np.empty((0, len(scores)), dtype=np.int32)
    ahead = _viterbi_ahead(table, frames.scores)
    first = table.initial_log_prob
    # A prefix of columns with delta of the states that it leads to and the best path to each. Of two tuples of which one
    # begins with the other the shorter is less, so that among equals a prefix is followed to its end before the next.
    paths: dict[int, tuple[int, ...]] = dict.fromkeys(range(table.num_states), ())
    heap: list[Any] = [(-_best(first + ahead[0]), (), first, paths)]
    found: list[tuple[float, tuple[int, ...]]] = []
    while heap and len(found) < n:
        bound, prefix, delta, paths = heapq.heappop(heap)
        if bound == np.inf:
            break
        t = len(prefix)
        if t == len(scores):
            state = int(np.argmax(delta + table.final_log_prob))
            score = delta[state] + table.final_log_prob[state] + frames.shift.sum()
            found.append((float(score), paths[state]))
            continue
        for column in range(len(table.active_pdfs)):
            longer, arcs = _step(table, column, frames.scores[t, column], delta, paths)
            bound = -_best(longer + ahead[t + 1])
            heapq.heappush(heap, (bound, (*prefix, column), longer, arcs))
    # Scores that differ by rounding alone may have been found in either order.
    found.sort(key=lambda path: -path[0])
    arcs_found = np.array([arcs for _, arcs in found], dtype=np.int32).reshape(len(found), len(scores))
    return np.array([score for score, _ in found]), arcs_found


def _best(values: Array) -> float:
    return float(values.max())


def _viterbi_ahead(table: TransitionTable, frames: Array) -> Array:
    """The best score from state i before frame t to the end, float64 [T + 1, S]."""
    view = table.by_src
    ahead = np.full((len(frames) + 1, table.num_states), -np.inf)
    ahead[-1] = table.final_log_prob
    for t in range(len(frames) - 1, -1, -1):
        np.maximum.at(ahead[t], view.src, view.log_prob + frames[t][view.column] + ahead[t + 1][view.dst])
    return ahead


def _step(
    table: TransitionTable, column: int, score: float, delta: Array, paths: dict[int, tuple[int, ...]]
) -> tuple[Array, dict[int, tuple[int, ...]]]:
    """Equation (8) for one frame with the arcs of one column."""
    view = table.by_column
    longer, arcs = np.full(table.num_states, -np.inf), {}
    for e in range(view.offsets[column], view.offsets[column + 1]):
        src, dst = int(view.src[e]), int(view.dst[e])
        value = delta[src] + view.log_prob[e] + score
        if value > longer[dst]:
            longer[dst], arcs[dst] = value, (*paths[src], int(view.arc[e]))
    return longer, arcs


def no_paths(count: int, num_frames: int) -> Drawn:
    """Room for arcs [count, T], states [count, T + 1] and jumps [count, T + 1]."""
    return (
        np.empty((count, num_frames), dtype=np.int32),
        np.empty((count, num_frames + 1), dtype=np.int32),
        np.zeros((count, num_frames + 1), dtype=np.bool_),
    )


def sample_paths(table: TransitionTable, scores: Scores, leaky: float, uniforms: Array) -> Drawn:
    """Equations (16)-(18): arcs [M, T], states [M, T + 1] and jumps [M, T + 1] of M paths; 0 rows where there is no path.

    uniforms [M, 2 T + 2] in [0, 1): of each path one number for the initial state, then for each t one for the leak and one
    for the arc.
    """
    found = trellis(table, scores, leaky)
    if found is None:
        return no_paths(0, len(scores))
    frames, beta = found.scores, found.beta
    log_c = np.log(leaky) if leaky > 0.0 else -np.inf
    arcs, states, jumps = no_paths(len(uniforms), len(scores))
    view = table.by_src
    for m, uniform in enumerate(uniforms):
        state = _draw(table.initial_log_prob + beta[0], uniform[0])  # (16)
        for t in range(len(scores) + 1):
            inner = before_leak(table, frames, beta, t, found.log_z)
            # (17)
            drawn = _draw(np.append(inner[state], log_c + table.leak_target + inner), uniform[1 + 2 * t])
            jumps[m, t] = drawn > 0
            state = states[m, t] = drawn - 1 if drawn > 0 else state
            if t < len(scores):
                row = slice(view.offsets[state], view.offsets[state + 1])
                onward = view.log_prob[row] + frames[t][view.column[row]] + beta[t + 1][view.dst[row]]
                taken = view.offsets[state] + _draw(onward, uniform[2 + 2 * t])  # (18)
                arcs[m, t], state = view.arc[taken], int(view.dst[taken])
    return arcs, states, jumps


def _draw(log_weights: Array, uniform: float) -> int:
    """The first entry whose cumulative share exceeds the uniform number."""
    weights = np.exp(log_weights - log_weights.max())
    cumulative = weights.cumsum()
    entry = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    return min(entry, int(np.flatnonzero(weights)[-1]))


# How many states a beam search keeps alive.


class LiveStates:
    """Counts for one graph, whose input label is pdf + 1 or epsilon."""

    def __init__(self, graph: Transducer) -> None:
        self._graph = graph
        self._leaving = graph.leaving(None)

    def count(self, scores: npt.ArrayLike, beam: float, most: int) -> int:
        """Live states of a search of scores [T, P], summed over T + 1 frames; broken off where they are more than `most`.

        Alive before a frame is what costs less than the best plus `beam`, epsilons followed.
        """
        costs = self._follow_epsilons({self._graph.start: 0.0}, beam)
        total = len(costs)
        for frame in np.asarray(scores, dtype=np.float64):
            if total > most:
                break
            reached: dict[int, float] = {}
            for state, cost in costs.items():
                for dst, label, _, log_prob, _ in self._leaving[state]:
                    if label:
                        value = cost - log_prob - frame[label - 1]
                        reached[dst] = min(value, reached.get(dst, np.inf))
            limit = min(reached.values(), default=np.inf) + beam
            costs = self._follow_epsilons({s: cost for s, cost in reached.items() if cost < limit}, beam)
            total += len(costs)
        return total

    def _follow_epsilons(self, costs: dict[int, float], beam: float) -> dict[int, float]:
        limit = min(costs.values(), default=np.inf) + beam
        waiting = list(costs)
        while waiting:
            state = waiting.pop()
            for dst, label, _, log_prob, _ in self._leaving[state]:
                value = costs[state] - log_prob
                if label == 0 and value < min(limit, costs.get(dst, np.inf)):
                    costs[dst] = value
                    waiting.append(dst)
        return costs
