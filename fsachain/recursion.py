"""Forward-backward over an epsilon-free acceptor: the page with the equations.

States i, j of an acceptor with S states; arcs (i -> j, pdf, log_prob); frames t = 0..T-1 of one sequence with network
output y[t, p], any real numbers, not normalised over p; -inf is legal. alpha(t, i) is the log-sum over all paths of t
arcs that end in state i, the scores of the first t frames included; it exists for 0 <= t <= T. (+) is log-add.

    (1) alpha(0, i)    = initial(i)
    (2) alpha(t+1, j)  = logsum over arcs i->j of  alpha'(t, i) + log_prob + y[t, pdf]
    (3) alpha'(t, i)   = alpha(t, i) (+) [log c + tot(t) + log init(i)],   tot(t) = logsum_i alpha(t, i),   for t = 0..T
    (4) log Z          = logsum_i alpha'(T, i) + final(i)
    (5) beta'(T, i)    = final(i) - log Z
        beta(t, i)     = beta'(t, i) (+) [log c + logsum_k (log init(k) + beta'(t, k))],   for t = 0..T
        beta'(t, i)    = logsum over arcs i->j of  log_prob + y[t, pdf] + beta(t+1, j)
    (6) gamma(t, arc)  = exp(alpha'(t, i) + log_prob + y[t, pdf] + beta(t+1, j))
    (7) occupancy(t,p) = sum of gamma(t, arc) over the arcs with pdf p  = d log Z / d y[t, p]

c is the leaky-HMM coefficient and init the stationary probabilities (`fsachain.denominator`). With c = 0, alpha' = alpha
and beta = beta'. The best path replaces logsum by max in (2) and (4):

    (8) delta(0, i)    = initial(i),   delta(t+1, j) = max over arcs i->j of  delta(t, i) + log_prob + y[t, pdf]
    (9) score          = max_i delta(T, i) + final(i);   among equals the arc, then the state, of the lowest number wins

Normalised form. Backends that work with probabilities instead of logs keep, for each frame, factors that cancel:

    (10) a(t, i)  = exp(alpha(t, i) - A(t)),   A(t) chosen such that max_i a(t, i) = 1
         b(t, i)  = exp(beta(t, i) - B(t)),    B(t) chosen such that max_i b(t, i) = 1
    (11) w(t)     = sum_i a'(t, i) b'(t, i);   w(t) exp(A(t) + B'(t)) = 1 for every t, because (5) divides by Z once
    (12) gamma    = a'(t, i) exp(log_prob) exp(y[t, pdf] - m(t)) b(t+1, j) / (their sum over all arcs),   m(t) any number

(12) makes each frame's occupancies sum to one by construction. Such a backend loses digits of a product that falls below the
smallest normal float. A sequence is safe if all its alphas keep theirs,

    (13) the least nonzero a(t, i) x the least nonzero probability of frame t x the least weight >> tiny,   for every t,

since what a beta loses is then less than tiny times the largest beta of a state that a path has reached, which is nothing
beside w(t); betas of other states are put to zero. It is safe as well if a leak reaches every state and
n(t) c min_i init(i) >> tiny, n(t) the sum of the stored a(t, .): by (5) no beta is less than c min_i init(i) times the
largest, so w(t) is no less than that. Both are known when the alphas are, for each sequence from its own data; one of which
neither is true is computed again in a wider range.

Most betas of a graph that one sequence has for itself are nothing beside the others. With a and b of the same time,

    (34) states with  a(t, i) b(t, i) < 2^-64 sum_j a(t, j) b(t, j)  are left out, for t > 0: arcs into them have no gamma,

and states that lead to no others no beta. By (11) each has less than 2^-64 of all paths, which float64 does not show.

More from the same rows. A state is passed between frames; ahead(t, .) is (8) run backwards; paths are drawn with beta:

    (14) state_occupancy(t, i) = exp(alpha'(t, i) + beta'(t, i)),   for t = 0..T; rows sum to one
    (15) ahead(T, i)   = final(i),   ahead(t, i) = max over arcs i->j of  log_prob + y[t, pdf] + ahead(t+1, j);
         the best pdf sequence that begins with t given pdfs has the score max_i delta(t, i) + ahead(t, i), delta over paths
         with these pdfs
    (16) P(first state i)   ~ exp(initial(i) + beta(0, i))
    (17) P(no leak at t, i) = exp(beta'(t, i) - beta(t, i));   a leak leads to k with P(k) ~ exp(log init(k) + beta'(t, k))
    (18) P(arc i->j at t)   ~ exp(log_prob + y[t, pdf] + beta(t+1, j))

After Povey et al., Interspeech 2016 (leaky HMM, denominator), and Hadian et al., Interspeech 2018 (numerators with
self-loops, end to end).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def log_add(x: npt.ArrayLike, y: npt.ArrayLike) -> Array:
    """log(exp(x) + exp(y)) elementwise, the (+) of the equations."""
    largest, smallest = np.maximum(x, y), np.minimum(x, y)
    both_log_zero = np.isneginf(largest)
    # Where both are log-zero the difference would be -inf - -inf = NaN.
    difference = np.where(both_log_zero, 0.0, smallest - np.where(both_log_zero, 0.0, largest))
    return np.where(both_log_zero, -np.inf, largest + np.log1p(np.exp(difference)))


def log_sum(values: Array) -> float:
    """logsum over a vector; -inf for an empty one."""
    largest = values.max(initial=-np.inf)
    if np.isneginf(largest):
        return -np.inf
    return float(largest + np.log(np.exp(values - largest).sum()))


def log_sum_rows(values: Array, offsets: npt.NDArray[np.int64]) -> Array:
    """logsum within each row of a CSR view: entry k is over values[offsets[k] : offsets[k + 1]]."""
    rows = len(offsets) - 1
    filled = np.flatnonzero(np.diff(offsets))
    result = np.full(rows, -np.inf)
    if not filled.size:
        return result
    starts = offsets[filled]
    largest = np.maximum.reduceat(values, starts)
    shift = np.where(np.isneginf(largest), 0.0, largest)
    sums = np.add.reduceat(np.exp(values - np.repeat(shift, np.diff(offsets)[filled])), starts)
    with np.errstate(divide="ignore"):
        result[filled] = np.log(sums) + shift
    return result
