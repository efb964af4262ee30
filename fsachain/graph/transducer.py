"""Product of acceptors, and removal of epsilons, in float64 and with the origin of each arc."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fsachain.errors import GraphError
from fsachain.fsa import Fsa, on_a_path
from fsachain.openfst import Transducer

Arc = tuple[int, int, int, float, int]  # src, dst, pdf, log_prob, origin
_LOOP = math.log(0.5)  # as that of a chain topology


def product(fsa: Fsa, other: Fsa, log_floor: float = -math.inf) -> tuple[Fsa, npt.NDArray[np.int64]]:
    """Trimmed product (sum of log weights, path by path) of two acceptors.

    Only pairs of states that the starts reach are made: for a numerator and a normalization about as many as
    the numerator has states.

    Args:
        fsa: the acceptor whose arcs are remembered.
        other: indexed by (state, pdf) on first use; the index is kept for the few that are in use.
        log_floor: where the product would be empty, arcs that no state of `other` can follow, from those that `fsa` and
            it reach together, restart `other` at this log-probability, until there is a path. Arcs with a pdf that its
            start lacks as well lead to its start, and loops among them cost log(1/2). For normalizations, whose start has
            the arcs of all states.

    Returns:
        The product, start state 0, and for each of its arcs the arc of `fsa` it came from. A product of the
        empty language has one state and no arcs.
    """
    theirs = _arcs_by_pdf(other)
    leaving: list[list[tuple[int, int, int, float]]] = [[] for _ in range(fsa.num_states)]
    columns = (
        fsa.src.tolist(),
        range(fsa.num_arcs),
        fsa.dst.tolist(),
        fsa.pdf.tolist(),
        fsa.log_prob.tolist(),
    )
    for src, arc, dst, pdf, log_prob in zip(*columns, strict=True):
        leaving[src].append((arc, dst, pdf, log_prob))
    their_final = other.final_log_prob
    restart = theirs[other.start]
    if log_floor > -math.inf:  # one more state: the start, but it may end
        theirs, their_final = [*theirs, restart], np.append(their_final, 0.0)
    forced: dict[int, list[tuple[int, float]]] = {}  # by arc, what it does where it cannot be followed
    while True:
        pairs = [(fsa.start, other.start)]
        numbers = {pairs[0]: 0}
        arcs: list[Arc] = []
        for index, (state, their_state) in enumerate(pairs):  # the list grows while it is read
            available = theirs[their_state]
            for arc, dst, pdf, log_prob in leaving[state]:
                for their_dst, their_log_prob in available.get(pdf) or forced.get(arc) or ():
                    pair = (dst, their_dst)
                    number = numbers.get(pair)
                    if number is None:
                        number = numbers[pair] = len(pairs)
                        pairs.append(pair)
                    arcs.append((index, number, pdf, log_prob + their_log_prob, arc))
        ours, their_states = np.array(pairs).T
        found = _trim(arcs, fsa.final_log_prob[ours] + their_final[their_states])
        if found[0].num_arcs or log_floor == -math.inf:
            return found
        followed = {arc[4] for arc in arcs}
        blocked = [
            (state, *one) for state in set(ours.tolist()) for one in leaving[state] if one[0] not in followed
        ]
        if not blocked:
            return found
        for state, arc, dst, pdf, _ in blocked:
            again = [(their_dst, log_floor + log_prob) for their_dst, log_prob in restart.get(pdf, ())]
            forced[arc] = again or [(other.num_states, _LOOP if dst == state else log_floor)]


# Fsa objects are immutable and hashed by identity, so an entry can neither go stale nor be mistaken.
@lru_cache(maxsize=4)
def _arcs_by_pdf(fsa: Fsa) -> list[dict[int, list[tuple[int, float]]]]:
    """For each state: pdf -> (dst, log_prob) of its arcs."""
    table: list[dict[int, list[tuple[int, float]]]] = [{} for _ in range(fsa.num_states)]
    columns = (fsa.src.tolist(), fsa.pdf.tolist(), fsa.dst.tolist(), fsa.log_prob.tolist())
    for src, pdf, dst, log_prob in zip(*columns, strict=True):
        table[src].setdefault(pdf, []).append((dst, log_prob))
    return table


def _trim(arcs: list[Arc], final: npt.NDArray[np.float64]) -> tuple[Fsa, npt.NDArray[np.int64]]:
    """Drop the states that reach no final state; all are reached from state 0."""
    entering: list[list[int]] = [[] for _ in final]
    for source, target, *_ in arcs:
        entering[target].append(source)
    alive = np.flatnonzero(final > -np.inf).tolist()
    keep = (final > -np.inf).tolist()
    for state in alive:  # grows while it is read
        for source in entering[state]:
            if not keep[source]:
                keep[source] = True
                alive.append(source)
    keep[0] = True
    kept = [arc for arc in arcs if keep[arc[0]] and keep[arc[1]]]
    columns = list(zip(*kept, strict=True)) or [()] * 5
    src, dst, pdf = (np.array(columns[field], dtype=np.int32) for field in (0, 1, 2))
    new = np.cumsum(keep).astype(np.int32) - np.int32(1)
    trimmed = Fsa(int(new[-1]) + 1, new[src], new[dst], pdf, np.array(columns[3]), final[np.array(keep)], 0)
    return trimmed, np.array(columns[4], dtype=np.int64)


# A chain of n epsilons with an arc at each state becomes n * n / 2 arcs: a small file could ask for any memory.
MOST_GROWTH, FREE_STEPS = 10, 2_000_000


def remove_epsilons(graph: Transducer, tags: Sequence[int]) -> tuple[Transducer, list[int]]:
    """The same language and path weights (log semiring) without arcs of input label 0, which may form no cycle; trimmed.

    OpenFst does this in 32 bits and forgets where an arc came from; here weights are float64, and arcs keep their tags
    [A]. Output labels of epsilon arcs are lost. The start becomes state 0; without any path it is the only state.

    Time and size are linear if, as in graphs of transcripts, few states are within reach of each other by epsilons alone;
    a graph whose result would be out of proportion (`MOST_GROWTH`) is refused.
    """
    possible = [[arc for arc in arcs if arc[3] > -math.inf] for arcs in graph.leaving(tags)]
    leaving = [[arc for arc in arcs if arc[1]] for arcs in possible]
    skipping = [[(dst, log_prob) for dst, ilabel, _, log_prob, _ in arcs if not ilabel] for arcs in possible]
    rank = _ranks(skipping)
    states, numbers = [graph.start], {graph.start: 0}
    arcs: list[tuple[int, int, int, int, float, int]] = []
    final: list[float] = []
    most = FREE_STEPS + MOST_GROWTH * (len(graph.src) + graph.num_states)
    steps = 0
    for index, state in enumerate(states):  # the list grows while it is read
        total = -math.inf
        within_reach = _closure(state, skipping, rank)
        steps += len(within_reach)
        if steps + len(arcs) > most:
            raise GraphError(
                f"without its epsilons a graph of {graph.num_states} states and {len(graph.src)} arcs takes more than "
                f"{most} steps and arcs; expected few states within reach of each other by epsilons alone"
            )
        for reached, weight in within_reach:
            total = float(np.logaddexp(total, weight + graph.final_log_prob[reached]))
            for dst, ilabel, olabel, log_prob, tag in leaving[reached]:
                number = numbers.get(dst)
                if number is None:
                    number = numbers[dst] = len(states)
                    states.append(dst)
                arcs.append((index, number, ilabel, olabel, weight + log_prob, tag))
        final.append(total)
    return _trimmed(arcs, np.array(final))


def _ranks(skipping: list[list[tuple[int, float]]]) -> list[int]:
    """A number for each state such that epsilon arcs lead to higher numbers."""
    entering = [0] * len(skipping)
    for targets in skipping:
        for target, _ in targets:
            entering[target] += 1
    order = [state for state, count in enumerate(entering) if not count]
    for state in order:  # grows while it is read
        for target, _ in skipping[state]:
            entering[target] -= 1
            if not entering[target]:
                order.append(target)
    if len(order) < len(skipping):
        state = next(state for state, count in enumerate(entering) if count)
        raise GraphError(f"state {state} lies on, or behind, a cycle of epsilon arcs; expected none")
    rank = [0] * len(order)
    for number, state in enumerate(order):
        rank[state] = number
    return rank


def _closure(state: int, skipping: list[list[tuple[int, float]]], rank: list[int]) -> list[tuple[int, float]]:
    """States within reach by epsilons alone, itself included, with the log-sum over the ways."""
    weights = {state: 0.0}
    queue = [(rank[state], state)]
    found = []
    while queue:
        _, here = heapq.heappop(queue)
        weight = weights[here]
        found.append((here, weight))
        for target, log_prob in skipping[here]:
            if target in weights:
                weights[target] = float(np.logaddexp(weights[target], weight + log_prob))
            else:
                weights[target] = weight + log_prob
                heapq.heappush(queue, (rank[target], target))
    return found


def _trimmed(
    arcs: list[tuple[int, int, int, int, float, int]], final: np.ndarray
) -> tuple[Transducer, list[int]]:
    columns = list(zip(*arcs, strict=True)) or [()] * 6
    src, dst, ilabel, olabel = (np.array(column, dtype=np.int32) for column in columns[:4])
    keep = on_a_path(0, final > -math.inf, src, dst)
    keep[0] = True
    new = (np.cumsum(keep) - 1).astype(np.int32)
    kept = keep[src] & keep[dst]
    graph = Transducer(
        int(keep.sum()),
        0,
        new[src[kept]],
        new[dst[kept]],
        ilabel[kept],
        olabel[kept],
        np.array(columns[4], dtype=np.float64)[kept],
        final[keep],
    )
    return graph, np.array(columns[5], dtype=np.int64)[kept].tolist()
