"""Make a graph smaller by merging its states; a stochastic graph stays stochastic.

Two states with the same futures (same arcs into the same classes, same final weight) can be one; so can two
states whose pasts are proportional. Both merges are one formula. Let x(s) > 0 be the expected (discounted)
number of visits to s: then

    x(C)            = sum over s in C of x(s)
    w'(C -> D, pdf) = sum over s in C, d in D of x(s) w(s -> d, pdf) / x(C)
    final'(C)       = sum over s in C of x(s) final(s) / x(C)

keeps the weight of every path set (lumpability, Kemeny and Snell), and a graph whose states sum to one still
does. Kaldi gets there by pushing, quantising and minimising in turns (chain-den-graph,
DenGraphMinimizeWrapper); OpenFst has no such pushing, and its minimisation would keep the quantised weights.
Here quantised weights only decide what is equal.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import sparse

from fsachain.fsa import Fsa

LOG_TOLERANCE = 1e-5  # log-probabilities that round to the same multiple count as equal
DISCOUNT = 0.99
MAX_VISIT_STEPS = 10_000
MAX_ROUNDS = 10
MAX_MAGNITUDE = 300.0  # of a log-probability, far inside the range of exp() in 64 bits

Ints = npt.NDArray[np.integer]
Floats = npt.NDArray[np.float64]


def lump(fsa: Fsa, log_tolerance: float = LOG_TOLERANCE) -> Fsa:
    """Merge states with the same future and states with proportional pasts, in turns, until nothing changes.

    Args:
        fsa: the graph; it is trimmed first. With a log-probability beyond +-`MAX_MAGNITUDE` that is all.
        log_tolerance: quantum of the log-probabilities that are compared, so the largest error per arc.

    Returns:
        A graph of the same language and, within `log_tolerance` per arc, the same path scores. Parallel arcs
        of one pdf are summed. State 0 is the start; arcs are sorted by (src, pdf, dst).
    """
    fsa = fsa.trim()
    weights = np.append(fsa.log_prob, fsa.final_log_prob)
    if np.any(np.abs(weights[np.isfinite(weights)]) > MAX_MAGNITUDE):
        return fsa
    for _ in range(MAX_ROUNDS):
        before = fsa.num_states
        visits = _visits(fsa)
        if visits is not None:
            fsa = _merge(fsa, _same_pasts(fsa, visits, log_tolerance), visits)
            visits = _visits(fsa)
        shares = np.ones(fsa.num_states) if visits is None else visits
        fsa = _merge(fsa, _same_futures(fsa, log_tolerance), shares)
        if fsa.num_states == before:
            break
    return fsa


def _visits(fsa: Fsa) -> Floats | None:
    """Discounted visits x = e_start + r M^T x of each state; None where not all positive and finite."""
    prob = np.exp(fsa.log_prob)
    into = sparse.csr_array((prob, (fsa.dst, fsa.src)), shape=(fsa.num_states, fsa.num_states))
    out_sums = np.bincount(fsa.src, prob, fsa.num_states)
    into *= DISCOUNT / max(1.0, float(out_sums.max()))
    start = np.zeros(fsa.num_states)
    start[fsa.start] = 1.0
    visits = start
    for _ in range(MAX_VISIT_STEPS):
        previous, visits = visits, start + into @ visits
        if np.all(np.abs(visits - previous) <= 1e-13 * visits):
            break
    return visits if np.all(np.isfinite(visits) & (visits > 0)) else None


def _same_futures(fsa: Fsa, tolerance: float) -> Ints:
    final = _quantise(fsa.final_log_prob, tolerance)
    return _refine(fsa.src, fsa.dst, fsa.pdf, fsa.log_prob, final, tolerance)


def _same_pasts(fsa: Fsa, visits: Floats, tolerance: float) -> Ints:
    """Classes of states that agree in their arcs in, weighed by the flow; the start keeps to itself."""
    log_visits = np.log(visits)
    flow = fsa.log_prob + log_visits[fsa.src] - log_visits[fsa.dst]
    is_start = np.arange(fsa.num_states) == fsa.start
    return _refine(fsa.dst, fsa.src, fsa.pdf, flow, is_start.astype(np.int64), tolerance)


def _refine(state: Ints, other: Ints, pdf: Ints, log_weight: Floats, colour: Ints, tolerance: float) -> Ints:
    """Coarsest partition whose classes have one colour and the same arcs (pdf, class of `other`, weight).

    Weights of arcs that agree in state, pdf and class are added before they are compared. A state's arcs are
    compared by the sum of their 64-bit hashes.
    """
    prob = np.exp(log_weight)
    classes = np.unique(colour, return_inverse=True)[1].astype(np.int64)
    num_classes = int(classes.max()) + 1
    while True:
        order = np.lexsort((classes[other], pdf, state))
        keys = np.stack([state[order], pdf[order], classes[other[order]]])
        first = np.flatnonzero(np.append(True, np.any(keys[:, 1:] != keys[:, :-1], axis=0))[: keys.shape[1]])
        total = np.add.reduceat(prob[order], first) if len(first) else np.empty(0)
        row, label, target = keys[:, first].astype(np.uint64)
        with np.errstate(divide="ignore"):
            weight = _quantise(np.log(total), tolerance).astype(np.uint64)
        arc_hash = _mix(_mix(_mix(label) ^ target) ^ weight)
        signature = _mix(classes.astype(np.uint64))
        np.add.at(signature, row.astype(np.int64), arc_hash)
        classes = np.unique(signature, return_inverse=True)[1].astype(np.int64)
        previous, num_classes = num_classes, int(classes.max()) + 1
        if num_classes == previous:
            return classes


def _merge(fsa: Fsa, classes: Ints, weights: Floats) -> Fsa:
    """One state per class, by the formula of the module; the start becomes state 0."""
    members = np.bincount(classes, weights)
    earliest = np.full(len(members), fsa.num_states)
    np.minimum.at(earliest, classes, np.arange(fsa.num_states))
    earliest[classes[fsa.start]] = -1
    number = np.empty(len(members), dtype=np.int64)
    number[np.argsort(earliest)] = np.arange(len(members))
    share = weights / members[classes]
    final = np.bincount(number[classes], share * np.exp(fsa.final_log_prob), len(members))
    src, dst = number[classes[fsa.src]], number[classes[fsa.dst]]
    order = np.lexsort((dst, fsa.pdf, src))
    keys = np.stack([src, fsa.pdf, dst])[:, order]
    first = np.flatnonzero(np.append(True, np.any(keys[:, 1:] != keys[:, :-1], axis=0))[: keys.shape[1]])
    prob = (share[fsa.src] * np.exp(fsa.log_prob))[order]
    total = np.add.reduceat(prob, first) if len(first) else prob
    source, pdf, target = keys[:, first]
    with np.errstate(divide="ignore"):
        return Fsa(len(members), source, target, pdf, np.log(total), np.log(final), 0)


def _quantise(log_prob: Floats, tolerance: float) -> Ints:
    finite = np.isfinite(log_prob)
    steps = np.full(len(log_prob), np.iinfo(np.int64).min, dtype=np.int64)
    steps[finite] = np.rint(log_prob[finite] / tolerance).astype(np.int64)
    return steps


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The splitmix64 finaliser: a bijection of 64-bit words whose output bits look independent."""
    x = values + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
