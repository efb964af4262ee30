"""Every path of a small acceptor, written out: the oracle of the oracle.

It shares no code with the package and knows no recursion. A leak is an extra transition between two frames (and before
the first and after the last) that takes no frame: from any state to state k with weight c init(k). Equation (3) leaks at
most once at each time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import numpy as np


@dataclass(frozen=True)
class Enumerated:
    """log Z, occupancy [T, P], arc occupancy [T, A] and the score of the best path without leaks."""

    log_prob: float
    occupancy: np.ndarray
    arc_occupancy: np.ndarray
    best_score: float


def log_sum(values) -> float:
    values = [value for value in values if value > -math.inf]
    if not values:
        return -math.inf
    largest = max(values)
    return largest + math.log(math.fsum(math.exp(value - largest) for value in values))


def all_paths(fsa, scores, *, initial=None, final=None, init=None, leaky=0.0):
    """(score, arcs) of every path of len(scores) arcs; paths of weight 0 are left out."""
    if initial is None:
        initial = np.where(np.arange(fsa.num_states) == fsa.start, 0.0, -math.inf)
    final = fsa.final_log_prob if final is None else final
    partial = [
        (float(initial[state]), (), state) for state in range(fsa.num_states) if initial[state] > -math.inf
    ]
    leaks = []
    if leaky > 0.0:
        leaks = [(math.log(leaky) + float(init[k]), k) for k in range(fsa.num_states) if init[k] > -math.inf]
    leaving = [[a for a in range(fsa.num_arcs) if fsa.src[a] == state] for state in range(fsa.num_states)]
    for t in range(len(scores) + 1):
        partial += [(score + weight, arcs, k) for (score, arcs, _), (weight, k) in product(partial, leaks)]
        if t == len(scores):
            break
        longer = []
        for score, arcs, state in partial:
            for arc in leaving[state]:
                total = score + float(fsa.log_prob[arc]) + float(scores[t, fsa.pdf[arc]])
                if total > -math.inf:
                    longer.append((total, (*arcs, arc), int(fsa.dst[arc])))
        partial = longer
    ended = [(score + float(final[state]), arcs) for score, arcs, state in partial]
    return [(score, arcs) for score, arcs in ended if score > -math.inf]


def enumerate_paths(fsa, scores, num_pdfs, *, initial=None, final=None, init=None, leaky=0.0) -> Enumerated:
    scores = np.asarray(scores, dtype=np.float64)
    ends = {"initial": initial, "final": final}
    paths = all_paths(fsa, scores, init=init, leaky=leaky, **ends)
    plain = paths if leaky == 0.0 else all_paths(fsa, scores, **ends)
    log_prob = log_sum([score for score, _ in paths])
    gamma = np.zeros((len(scores), fsa.num_arcs))
    for score, arcs in paths:
        for t, arc in enumerate(arcs):
            gamma[t, arc] += math.exp(score - log_prob)
    occupancy = np.zeros((len(scores), num_pdfs))
    for arc in range(fsa.num_arcs):
        occupancy[:, fsa.pdf[arc]] += gamma[:, arc]
    return Enumerated(log_prob, occupancy, gamma, max((score for score, _ in plain), default=-math.inf))
