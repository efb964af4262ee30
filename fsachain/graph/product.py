"""Product of two acceptors that remembers which arc of the first each arc came from."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fsachain.fsa import Fsa

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
