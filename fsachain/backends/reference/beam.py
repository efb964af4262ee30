"""How many states a beam search keeps alive, in numpy float64, written to be read."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fsachain.openfst import Transducer


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
