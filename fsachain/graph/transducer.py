"""A weighted transducer as plain arrays, and its fast way in and out of pywrapfst.

pywrapfst visits arcs one Python call at a time; a whole graph crosses in one piece through OpenFst's binary
form instead. Labels are OpenFst's (0 = epsilon), weights are natural log-probabilities: only the sign changes
at this crossing.
"""

from __future__ import annotations

import heapq
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fsachain import fsa as reachability
from fsachain.errors import GraphError, require
from fsachain.fsa import Fsa

_MAGIC = 2125659606
_EXPANDED_AND_MUTABLE = 3
ARC = np.dtype([("ilabel", "<i4"), ("olabel", "<i4"), ("cost", "<f4"), ("dst", "<i4")])


@dataclass(frozen=True, eq=False)
class Transducer:
    """States, one start, arcs with two labels and a log-probability. Arcs may have any order.

    Attributes:
        num_states, start: number of states S and the start state.
        src, dst, ilabel, olabel: int [A]; label 0 is epsilon.
        log_prob: float64 [A]; final_log_prob: float64 [S], -inf = not final.
    """

    num_states: int
    start: int
    src: npt.NDArray[np.integer]
    dst: npt.NDArray[np.integer]
    ilabel: npt.NDArray[np.integer]
    olabel: npt.NDArray[np.integer]
    log_prob: npt.NDArray[np.float64]
    final_log_prob: npt.NDArray[np.float64]

    def leaving(self, tags: Sequence[int] | None) -> list[list[tuple[int, int, int, float, int]]]:
        """The arcs that leave each state: dst, ilabel, olabel, log_prob, and the arc's tag, -1 where there are no tags."""
        result: list[list[tuple[int, int, int, float, int]]] = [[] for _ in range(self.num_states)]
        columns = (self.src, self.dst, self.ilabel, self.olabel, self.log_prob)
        own = [-1] * len(self.src) if tags is None else tags
        for src, *arc in zip(*(column.tolist() for column in columns), own, strict=True):
            result[src].append((arc[0], arc[1], arc[2], arc[3], arc[4]))
        return result

    @classmethod
    def from_openfst(cls, fst: Any) -> Transducer:
        """Arrays of a pywrapfst FST over the tropical semiring, arcs in its order.

        Raises:
            GraphError: another arc type, or no start state (the empty FST).
        """
        if fst.arc_type() != "standard":
            raise GraphError(f"arc type {fst.arc_type()!r}: expected 'standard' (tropical, 32 bits)")
        if fst.start() < 0:
            raise GraphError("the FST has no start state: it accepts nothing")
        vector = require("pywrapfst", extra="graph").convert(fst, "vector")
        vector.set_input_symbols(None)
        vector.set_output_symbols(None)
        data = vector.write_to_string()
        offset = 4
        for _ in range(2):
            offset += 4 + struct.unpack_from("<i", data, offset)[0]
        offset += 16
        start, num_states, _ = struct.unpack_from("<qqq", data, offset)
        offset += 24
        finals = np.empty(num_states)
        counts = np.empty(num_states, dtype=np.int64)
        pieces = []
        header = struct.Struct("<fq")
        for state in range(num_states):
            finals[state], count = header.unpack_from(data, offset)
            offset += header.size
            pieces.append(data[offset : offset + 16 * count])
            counts[state] = count
            offset += 16 * count
        arcs = np.frombuffer(b"".join(pieces), dtype=ARC)
        src = np.repeat(np.arange(num_states, dtype=np.int32), counts)
        log_prob = 0.0 - arcs["cost"].astype(np.float64)  # and not minus: a cost of 0 would become -0.0
        labels = arcs["ilabel"], arcs["olabel"]
        return cls(num_states, start, src, arcs["dst"], *labels, log_prob, 0.0 - finals)

    def input_fsa(self) -> Fsa:
        """The acceptor of the input labels, pdf = label - 1; arcs keep their order.

        Raises:
            GraphError: an input epsilon.
        """
        pdf = self.ilabel - 1
        pdf.setflags(write=False)
        return Fsa(
            self.num_states,
            self.src,
            self.dst,
            pdf,
            self.log_prob,
            self.final_log_prob,
            self.start,
        )

    def acceptor(self, where: str) -> Fsa:
        """The acceptor of a transducer whose labels are pdf + 1 on both sides; arcs keep their order.

        Raises:
            GraphError: an epsilon or negative label, different labels on the two sides of an arc, a weight of
                NaN or cost -Infinity, a destination or start that is no state. The message begins with `where`
                and names state and arc.
        """
        if not 0 <= self.start < self.num_states:
            raise GraphError(f"{where}: no states or no start state; expected at least a start state")
        _check_arcs(self, where)
        _check_finals(self.final_log_prob, where)
        return self.input_fsa()

    def to_openfst(self) -> Any:
        """The same transducer as a pywrapfst `VectorFst` (tropical); arcs of one state keep their order."""
        pywrapfst = require("pywrapfst", extra="graph")
        return pywrapfst.VectorFst.read_from_string(self.to_bytes())

    def to_bytes(self) -> bytes:
        """The same transducer in OpenFst's binary form, as a vector FST (tropical); arcs of one state keep their order."""
        order = np.argsort(self.src, kind="stable")
        arcs = np.empty(len(order), dtype=ARC)
        arcs["ilabel"], arcs["olabel"] = self.ilabel[order], self.olabel[order]
        arcs["cost"], arcs["dst"] = -self.log_prob[order], self.dst[order]
        body = arcs.tobytes()
        ends = np.searchsorted(self.src[order], np.arange(self.num_states), side="right").tolist()
        pieces = [struct.pack("<ii6si8sii", _MAGIC, 6, b"vector", 8, b"standard", 2, 0)]
        pieces.append(struct.pack("<Qqqq", _EXPANDED_AND_MUTABLE, self.start, self.num_states, len(arcs)))
        first = 0
        for final, end in zip((-self.final_log_prob).tolist(), ends, strict=True):
            pieces.append(struct.pack("<fq", final, end - first))
            pieces.append(body[16 * first : 16 * end])
            first = end
        return b"".join(pieces)


def _check_arcs(arcs: Transducer, where: str) -> None:
    """Refuse the first arc that an `Fsa` cannot hold; arcs are numbered within their state, as in OpenFst."""
    cost = 0.0 - arcs.log_prob
    checks: tuple[tuple[npt.NDArray[np.bool_], str], ...] = (
        (arcs.ilabel != arcs.olabel, "expected an acceptor: equal input and output labels"),
        (arcs.ilabel <= 0, "expected labels >= 1 (pdf + 1); remove epsilons (label 0) first"),
        (np.isnan(cost) | (cost == -np.inf), "expected a finite cost or Infinity"),
        ((arcs.dst < 0) | (arcs.dst >= arcs.num_states), f"expected a destination in [0, {arcs.num_states})"),
    )
    for is_bad, expected in checks:
        if is_bad.any():
            arc = int(np.argmax(is_bad))
            src = int(arcs.src[arc])
            number = arc - int(np.searchsorted(arcs.src, src))
            came = (
                f"labels {arcs.ilabel[arc]}:{arcs.olabel[arc]}, cost {cost[arc]:g}, to state {arcs.dst[arc]}"
            )
            raise GraphError(f"{where}: state {src}, arc {number} has {came}; {expected}")


def _check_finals(final_log_prob: npt.NDArray[np.float64], where: str) -> None:
    bad = np.flatnonzero(np.isnan(final_log_prob) | (final_log_prob == np.inf))
    if bad.size:
        state = int(bad[0])
        cost = f"final cost {-final_log_prob[state]:g}"
        raise GraphError(f"{where}: state {state} has {cost}; expected a finite cost or Infinity")


# Product of two acceptors that remembers which arc of the first each arc came from.

Arc = tuple[int, int, int, float, int]  # src, dst, pdf, log_prob, origin


def product(fsa: Fsa, other: Fsa) -> tuple[Fsa, npt.NDArray[np.int64]]:
    """Trimmed product (sum of log weights, path by path) of two acceptors.

    Only pairs of states that the starts reach are made: for a numerator and a normalization about as many as
    the numerator has states.

    Args:
        fsa: the acceptor whose arcs are remembered.
        other: indexed by (state, pdf) on first use; the index is kept for the few that are in use.

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
    pairs = [(fsa.start, other.start)]
    numbers = {pairs[0]: 0}
    arcs: list[Arc] = []
    for index, (state, their_state) in enumerate(pairs):  # the list grows while it is read
        available = theirs[their_state]
        for arc, dst, pdf, log_prob in leaving[state]:
            for their_dst, their_log_prob in available.get(pdf, ()):
                pair = (dst, their_dst)
                number = numbers.get(pair)
                if number is None:
                    number = numbers[pair] = len(pairs)
                    pairs.append(pair)
                arcs.append((index, number, pdf, log_prob + their_log_prob, arc))
    ours, their_states = np.array(pairs).T
    return _trim(arcs, fsa.final_log_prob[ours] + other.final_log_prob[their_states])


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


# Removal of epsilon arcs in the log semiring: the weights of all epsilon paths between two arcs are added.
#
# OpenFst does the same in 32 bits and forgets where an arc came from; this keeps float64 and a tag on each
# arc.

# A chain of n epsilons with an arc at each state becomes n * n / 2 arcs: a small file could ask for any memory.
MOST_GROWTH, FREE_STEPS = 10, 2_000_000


def remove_epsilons(graph: Transducer, tags: Sequence[int]) -> tuple[Transducer, list[int]]:
    """The same language and path weights without arcs of input label 0; trimmed.

    Output labels of epsilon arcs are lost. Time and size are linear if, as in graphs of transcripts, few states are within
    reach of each other by epsilons alone.

    Args:
        graph: any transducer whose epsilon arcs form no cycle.
        tags: [A] integers that the arcs which stay keep.

    Returns:
        The graph, start state 0, and the tag of each of its arcs. Without any path it has one state and no arcs.

    Raises:
        GraphError: a cycle of epsilon arcs, or so many states within reach of each other by epsilons that the result would
            be out of proportion to the graph (`MOST_GROWTH`).
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
    keep = reachability.on_a_path(0, final > -math.inf, src, dst)
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
