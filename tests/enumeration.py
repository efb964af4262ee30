"""Every path of a small acceptor, written out: the oracle of the oracle.

It shares no code with the package and knows no recursion. A leak is an extra transition between two frames (and before
the first and after the last) that takes no frame: from any state to state k with weight c init(k). Equation (3) leaks at
most once at each time.
"""

import math
from dataclasses import dataclass
from itertools import product

import numpy as np


@dataclass(frozen=True)
class Enumerated:
    """log Z, occupancies of pdfs [T, P], arcs [T, A] and states [T + 1, S]; the score of the best path without leaks."""

    log_prob: float
    occupancy: np.ndarray
    arc_occupancy: np.ndarray
    state_occupancy: np.ndarray
    best_score: float


def log_sum(values):
    values = [value for value in values if value > -math.inf]
    if not values:
        return -math.inf
    largest = max(values)
    return largest + math.log(math.fsum(math.exp(value - largest) for value in values))


def all_walks(fsa, scores, *, initial=None, final=None, init=None, leaky=0.0):
    """(score, arcs, states, jumps) of every path of len(scores) arcs; paths of weight 0 are left out.

    states and jumps have an entry for the time before each frame and for the end: the state, and whether a leak led there.
    """
    if initial is None:
        initial = np.where(np.arange(fsa.num_states) == fsa.start, 0.0, -math.inf)
    final = fsa.final_log_prob if final is None else final
    begin = np.flatnonzero(np.asarray(initial) > -math.inf).tolist()
    partial = [(float(initial[state]), (), (state,), (False,)) for state in begin]
    leaks = []
    if leaky > 0.0:
        leaks = [(math.log(leaky) + float(init[k]), k) for k in range(fsa.num_states) if init[k] > -math.inf]
    leaving = [[a for a in range(fsa.num_arcs) if fsa.src[a] == state] for state in range(fsa.num_states)]
    for t in range(len(scores) + 1):
        partial += [
            (score + weight, arcs, (*states[:-1], k), (*jumps[:-1], True))
            for (score, arcs, states, jumps), (weight, k) in product(partial, leaks)
        ]
        if t == len(scores):
            break
        longer = []
        for score, arcs, states, jumps in partial:
            for arc in leaving[states[-1]]:
                total = score + float(fsa.log_prob[arc]) + float(scores[t, fsa.pdf[arc]])
                if total > -math.inf:
                    longer.append((total, (*arcs, arc), (*states, int(fsa.dst[arc])), (*jumps, False)))
        partial = longer
    ended = (
        (score + float(final[states[-1]]), arcs, states, jumps) for score, arcs, states, jumps in partial
    )
    return [walk for walk in ended if walk[0] > -math.inf]


def all_paths(fsa, scores, **options):
    """(score, arcs) of every path; see `all_walks`."""
    return [(score, arcs) for score, arcs, _, _ in all_walks(fsa, scores, **options)]


def ranked_pdf_sequences(fsa, scores, **options):
    """(score of the best path, pdfs) of every pdf sequence, the best first; among equals in the order of the pdfs."""
    best: dict[tuple[int, ...], float] = {}
    for score, arcs in all_paths(fsa, np.asarray(scores, dtype=np.float64), **options):
        pdfs = tuple(int(fsa.pdf[arc]) for arc in arcs)
        best[pdfs] = max(best.get(pdfs, -math.inf), score)
    return sorted(((score, pdfs) for pdfs, score in best.items()), key=lambda item: (-item[0], item[1]))


def enumerate_paths(fsa, scores, num_pdfs, *, initial=None, final=None, init=None, leaky=0.0):
    scores = np.asarray(scores, dtype=np.float64)
    ends = {"initial": initial, "final": final}
    walks = all_walks(fsa, scores, init=init, leaky=leaky, **ends)
    plain = walks if leaky == 0.0 else all_walks(fsa, scores, **ends)
    log_prob = log_sum([walk[0] for walk in walks])
    gamma = np.zeros((len(scores), fsa.num_arcs))
    in_state = np.zeros((len(scores) + 1, fsa.num_states))
    for score, arcs, states, _ in walks:
        share = math.exp(score - log_prob)
        for t, arc in enumerate(arcs):
            gamma[t, arc] += share
        for t, state in enumerate(states):
            in_state[t, state] += share
    occupancy = np.zeros((len(scores), num_pdfs))
    for arc in range(fsa.num_arcs):
        occupancy[:, fsa.pdf[arc]] += gamma[:, arc]
    best = max((walk[0] for walk in plain), default=-math.inf)
    return Enumerated(log_prob, occupancy, gamma, in_state, best)
