"""How many states a beam search keeps alive, in a tenth of the time that a search for a lattice takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fsachain.backends.cpu.jit import helper, jit_on_views
from fsachain.openfst import Transducer

Float32Array = npt.NDArray[np.float32]


class LiveStates:
    """Counts for one graph, whose input label is pdf + 1 or epsilon; see `fsachain.backends.reference.beam`."""

    def __init__(self, graph: Transducer) -> None:
        size = graph.num_states
        self._heard = _by_source(graph, graph.ilabel > 0)
        self._silent = _by_source(graph, graph.ilabel == 0)
        self._start = graph.start
        # Costs before and after a frame, inf where not alive; states that are; those that wait, and whether one does.
        self._costs = np.full((2, size), np.inf, dtype=np.float32)
        self._states = np.zeros((3, size), dtype=np.int32)
        self._waits = np.zeros(size, dtype=np.bool_)

    def count(self, scores: Float32Array, beam: float, most: int) -> int:
        """Live states of a search of scores [T, P], summed over T + 1 frames; broken off where they are more than `most`."""
        return int(
            _count(
                scores,
                self._heard,
                self._silent,
                self._start,
                np.float32(beam),
                most,
                self._costs,
                self._states,
                self._waits,
            )
        )


def _by_source(graph: Transducer, which: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[Any], ...]:
    """First arc of each state [S + 1], and of each arc its pdf, destination and cost."""
    arcs = np.flatnonzero(which)
    arcs = arcs[np.argsort(graph.src[arcs], kind="stable")]
    first = np.searchsorted(graph.src[arcs], np.arange(graph.num_states + 1)).astype(np.int64)
    pdf, dst = (column[arcs].astype(np.int32) for column in (graph.ilabel - 1, graph.dst))
    return first, pdf, dst, -graph.log_prob[arcs].astype(np.float32)


@helper
def _follow_epsilons(graph: Any, beam: Any, cost: Any, states: Any, waiting: Any, waits: Any, n: int) -> Any:
    """Add what the n live states reach by epsilons; how many live then, and the cost that none of the next may exceed."""
    first, _, dst, arc_cost = graph
    cutoff = np.float32(np.inf)
    for k in range(n):
        cutoff = min(cutoff, cost[states[k]])
        waiting[k] = states[k]
        waits[states[k]] = True
    cutoff += beam
    m = n
    while m:
        m -= 1
        state = waiting[m]
        waits[state] = False
        if cost[state] > cutoff:
            continue
        for arc in range(first[state], first[state + 1]):
            to, value = dst[arc], cost[state] + arc_cost[arc]
            if value < cutoff and value < cost[to]:
                if cost[to] == np.inf:
                    states[n] = to
                    n += 1
                cost[to] = value
                if not waits[to]:
                    waiting[m] = to
                    waits[to] = True
                    m += 1
    return n, cutoff


@jit_on_views
def _count(
    scores: Any,
    heard: Any,
    silent: Any,
    start: int,
    beam: Any,
    most: int,
    costs: Any,
    states: Any,
    waits: Any,
) -> int:
    first, pdf, dst, arc_cost = heard
    now, then = costs[0], costs[1]
    alive, reached, waiting = states[0], states[1], states[2]
    alive[0] = start
    now[start] = 0.0
    n, cutoff = _follow_epsilons(silent, beam, now, alive, waiting, waits, 1)
    total = n
    for t in range(len(scores)):
        if total > most:
            break
        least, m = np.float32(np.inf), 0
        for k in range(n):
            state = alive[k]
            cost = now[state]
            if cost > cutoff:
                continue
            for arc in range(first[state], first[state + 1]):
                value = cost + arc_cost[arc] - scores[t, pdf[arc]]
                if value < least + beam:
                    least = min(least, value)
                    to = dst[arc]
                    if then[to] == np.inf:
                        reached[m] = to
                        m += 1
                    then[to] = min(then[to], value)
        for k in range(n):
            now[alive[k]] = np.inf
        n = 0
        for k in range(m):
            if then[reached[k]] < least + beam:
                alive[n] = reached[k]
                now[alive[n]] = then[reached[k]]
                n += 1
            then[reached[k]] = np.inf
        n, cutoff = _follow_epsilons(silent, beam, now, alive, waiting, waits, n)
        total += n
    for k in range(n):
        now[alive[k]] = np.inf
    return total
