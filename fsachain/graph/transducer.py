"""Product of acceptors, and removal of epsilons, in float64 and with the origin of each arc."""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fsachain.errors import GraphError, counted
from fsachain.fsa import Fsa, input_fsa
from fsachain.openfst import Transducer

Node = TypeVar("Node", bound=Hashable)
_LOOP = math.log(0.5)  # as that of a chain topology


class Numbers(dict[Node, int]):
    """Numbers of nodes, counted from 0 in the order in which they are asked for; `nodes` has them, and grows meanwhile."""

    def __init__(self, *first: Node) -> None:
        super().__init__()
        self.nodes: list[Node] = []
        for node in first:
            self[node]

    def __missing__(self, node: Node) -> int:
        self[node] = number = len(self.nodes)
        self.nodes.append(node)
        return number


def check_labels(graph: Transducer, highest: int, expected: str, where: str = "") -> None:
    """A GraphError, which begins with `where`, for the first arc whose input label is not 0 to `highest`."""
    bad = np.flatnonzero((graph.ilabel < 0) | (graph.ilabel > highest))
    if bad.size:
        arc = int(bad[0])
        came = f"arc {arc} (state {graph.src[arc]} -> {graph.dst[arc]}) has label {graph.ilabel[arc]}"
        raise GraphError(f"{where}{came}; expected {expected}")


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
    theirs = arcs_by_pdf(other)
    leaving = fsa.to_transducer().leaving(range(fsa.num_arcs))
    their_final = other.final_log_prob
    restart = theirs[other.start]
    if log_floor > -math.inf:  # one more state: the start, but it may end
        theirs, their_final = [*theirs, restart], np.append(their_final, 0.0)
    forced: dict[int, list[tuple[int, float]]] = {}  # by arc, what it does where it cannot be followed
    while True:
        numbers = Numbers((fsa.start, other.start))
        arcs: list[tuple[int, int, int, int, float, int]] = []
        for index, (state, their_state) in enumerate(numbers.nodes):  # which grows while it is read
            available = theirs[their_state]
            for dst, label, _, log_prob, arc in leaving[state]:
                for their_dst, their_log_prob in available.get(label - 1) or forced.get(arc) or ():
                    after = numbers[dst, their_dst]
                    arcs.append((index, after, label, label, log_prob + their_log_prob, arc))
        ours, their_states = np.array(numbers.nodes).T
        graph, origin = _trimmed(arcs, fsa.final_log_prob[ours] + their_final[their_states])
        if origin or log_floor == -math.inf:
            return input_fsa(graph), np.array(origin, dtype=np.int64)
        followed = {arc[5] for arc in arcs}
        blocked = [
            (state, *one) for state in set(ours.tolist()) for one in leaving[state] if one[4] not in followed
        ]
        if not blocked:
            return input_fsa(graph), np.array(origin, dtype=np.int64)
        for state, dst, label, _, _, arc in blocked:
            again = [(their_dst, log_floor + log_prob) for their_dst, log_prob in restart.get(label - 1, ())]
            forced[arc] = again or [(other.num_states, _LOOP if dst == state else log_floor)]


def told_unseen(*, floor: bool = False) -> str:
    """Return why the normalization accepts no path of a transcript, and what helps, for messages."""
    least = "floor= (for a development set), " if floor else ""
    return (
        "it has an n-gram that the phone language model never saw; expected "
        f"{least}a lower phone_lm.ngram_order, or a phone language model of more text"
    )


def normalized(fsa: Fsa, normalization: Fsa | None, refusal: str) -> Fsa:
    """The product with a normalization, if there is one; a GraphError `refusal` where it has no path."""
    if normalization is None:
        return fsa
    found, _ = product(fsa, normalization)
    if not found.num_arcs:
        raise GraphError(refusal)
    return found


# Fsa objects are immutable and hashed by identity, so an entry can neither go stale nor be mistaken.
@lru_cache(maxsize=4)
def arcs_by_pdf(fsa: Fsa) -> list[dict[int, list[tuple[int, float]]]]:
    """For each state: pdf -> (dst, log_prob) of its arcs."""
    table: list[dict[int, list[tuple[int, float]]]] = [{} for _ in range(fsa.num_states)]
    for by_pdf, arcs in zip(table, fsa.to_transducer().leaving(None), strict=True):
        for dst, label, _, log_prob, _ in arcs:
            by_pdf.setdefault(label - 1, []).append((dst, log_prob))
    return table


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
    rank = ranks(skipping)
    numbers = Numbers(graph.start)
    arcs: list[tuple[int, int, int, int, float, int]] = []
    final: list[float] = []
    most = FREE_STEPS + MOST_GROWTH * (len(graph.src) + graph.num_states)
    steps = 0
    for index, state in enumerate(numbers.nodes):  # which grows while it is read
        total = -math.inf
        within_reach = _closure(state, skipping, rank)
        steps += len(within_reach)
        if steps + len(arcs) > most:
            raise GraphError(
                f"without its epsilons a graph of {counted(graph.num_states, 'state')} and "
                f"{counted(len(graph.src), 'arc')} takes more than "
                f"{counted(most, 'step')} and arcs; expected few states within reach of each other by epsilons alone"
            )
        for reached, weight in within_reach:
            total = float(np.logaddexp(total, weight + graph.final_log_prob[reached]))
            for dst, ilabel, olabel, log_prob, tag in leaving[reached]:
                arcs.append((index, numbers[dst], ilabel, olabel, weight + log_prob, tag))
        final.append(total)
    return _trimmed(arcs, np.array(final))


def ranks(skipping: list[list[tuple[int, float]]]) -> list[int]:
    """A number for each state such that epsilon arcs, (dst, weight) by state, lead to higher numbers."""
    before: dict[int, list[int]] = {}
    for state, targets in enumerate(skipping):
        for target, _ in targets:
            before.setdefault(target, []).append(state)
    rank = [0] * len(skipping)
    try:
        for number, state in enumerate(TopologicalSorter(before).static_order()):
            rank[state] = number
    except CycleError as error:
        raise GraphError(
            f"state {error.args[1][0]} lies on a cycle of epsilon arcs; expected none"
        ) from error
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
    arcs: list[tuple[int, int, int, int, float, int]], final: npt.NDArray[np.float64]
) -> tuple[Transducer, list[int]]:
    """The graph of these arcs without states that lead to no end, and the last field of each of its arcs.

    All states are reached from state 0, which stays.
    """
    entering: list[list[int]] = [[] for _ in final]
    for arc in arcs:
        entering[arc[1]].append(arc[0])
    is_final = final > -math.inf
    alive, keep = np.flatnonzero(is_final).tolist(), is_final.tolist()
    for state in alive:  # grows while it is read
        for source in entering[state]:
            if not keep[source]:
                keep[source] = True
                alive.append(source)
    kept = [arc for arc in arcs if keep[arc[0]] and keep[arc[1]]]
    keep[0] = True
    graph = Transducer.of_arcs(kept, final[np.array(keep)])
    new = (np.cumsum(keep) - 1).astype(np.int32)
    return replace(graph, src=new[graph.src], dst=new[graph.dst]), [arc[5] for arc in kept]
