"""The denominator graph: phone language model, context and topology as one acceptor over pdfs; or none of these."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import sparse

from fsachain.denominator import DenominatorGraph
from fsachain.errors import GraphError, counted, integer
from fsachain.files import without_collector
from fsachain.fsa import Floats, Fsa, Ints, input_fsa
from fsachain.graph.context import ContextTree
from fsachain.graph.ctc import CtcTopology, check_topology, ctc_graph
from fsachain.graph.expand import expand_arcs
from fsachain.graph.transducer import product

# Merging states: a stochastic graph stays stochastic.
#
# Two states with the same futures (same arcs into the same classes, same final weight) can be one; so can two
# states whose pasts are proportional. Both merges are one formula. Let x(s) > 0 be the expected (discounted)
# number of visits to s: then
#
#     x(C)            = sum over s in C of x(s)
#     w'(C -> D, pdf) = sum over s in C, d in D of x(s) w(s -> d, pdf) / x(C)
#     final'(C)       = sum over s in C of x(s) final(s) / x(C)
#
# keeps the weight of every path set (lumpability, Kemeny and Snell), and a graph whose states sum to one
# still does. Kaldi gets there by pushing, quantising and minimising in turns (chain-den-graph,
# DenGraphMinimizeWrapper); OpenFst has no such pushing, and its minimisation would keep the quantised
# weights. Here quantised weights only decide what is equal.

LOG_TOLERANCE = 1e-5  # log-probabilities that round to the same multiple count as equal
DISCOUNT = 0.99
MAX_VISIT_STEPS = 10_000
STEPS_OF_SERIES = 16
MAX_ROUNDS = 10
MAX_MAGNITUDE = 300.0  # of a log-probability, far inside the range of exp() in 64 bits


def lump(fsa: Fsa, log_tolerance: float = LOG_TOLERANCE) -> Fsa:
    """Merge states with the same future and states with proportional pasts, in turns, until nothing changes.

    The language stays, and path scores within `log_tolerance` per arc, the quantum of compared log-probabilities.
    Parallel arcs of one pdf are summed. State 0 is the start; arcs are sorted by (src, pdf, dst). A graph with a
    log-probability beyond +-`MAX_MAGNITUDE` is only trimmed.
    """
    fsa = fsa.trim()
    weights = np.append(fsa.log_prob, fsa.final_log_prob)
    if np.any(np.abs(weights[np.isfinite(weights)]) > MAX_MAGNITUDE):
        return fsa
    for _ in range(MAX_ROUNDS):
        before = fsa.num_states
        visits = _visits(fsa)
        if visits is not None:
            # Classes of states that agree in their entering arcs, weighted by the flow; the start is one of its own.
            log_visits = np.log(visits)
            flow = fsa.log_prob + log_visits[fsa.src] - log_visits[fsa.dst]
            is_start = (np.arange(fsa.num_states) == fsa.start).astype(np.int64)
            fsa = _merge(fsa, _refine(fsa.dst, fsa.src, fsa.pdf, flow, is_start, log_tolerance), visits)
            visits = _visits(fsa)
        final = _quantise(fsa.final_log_prob, log_tolerance)
        same_future = _refine(fsa.src, fsa.dst, fsa.pdf, fsa.log_prob, final, log_tolerance)
        fsa = _merge(fsa, same_future, np.ones(fsa.num_states) if visits is None else visits)
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
    visits = change = start
    for step in range(1, MAX_VISIT_STEPS + 1):
        before = np.abs(change).sum()
        following = start + into @ visits
        change, visits = following - visits, following
        if np.all(np.abs(change) <= 1e-13 * visits):
            break
        # Soon all changes shrink by the same share: add the rest of that series.
        if step % STEPS_OF_SERIES == 0:
            share = np.abs(change).sum() / before
            visits = visits + change * (share / (1.0 - share))
    return visits if np.all(np.isfinite(visits) & (visits > 0)) else None


def _refine(state: Ints, other: Ints, pdf: Ints, log_weight: Floats, colour: Ints, tolerance: float) -> Ints:
    """Coarsest partition whose classes have one colour and the same arcs (pdf, class of `other`, weight).

    Weights of arcs that agree in state, pdf and class are added before they are compared. A state's arcs are
    compared by the sum of their 64-bit hashes.
    """
    prob = np.exp(log_weight)
    classes = np.unique(colour, return_inverse=True)[1].astype(np.int64)
    num_classes = int(classes.max()) + 1
    while True:
        *keys, total = _sums(state, pdf, classes[other], prob)
        row, label, target = (column.astype(np.uint64) for column in keys)
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
    """One state per class, by the formulas above with x = `weights`; the start becomes state 0."""
    members = np.bincount(classes, weights)
    earliest = np.full(len(members), fsa.num_states)
    np.minimum.at(earliest, classes, np.arange(fsa.num_states))
    earliest[classes[fsa.start]] = -1
    number = np.empty(len(members), dtype=np.int64)
    number[np.argsort(earliest)] = np.arange(len(members))
    share = weights / members[classes]
    final = np.bincount(number[classes], share * np.exp(fsa.final_log_prob), len(members))
    prob = share[fsa.src] * np.exp(fsa.log_prob)
    source, pdf, target, total = _sums(number[classes[fsa.src]], fsa.pdf, number[classes[fsa.dst]], prob)
    with np.errstate(divide="ignore"):
        return Fsa(len(members), source, target, pdf, np.log(total), np.log(final), 0)


COARSE_TOLERANCE = 4.0  # nats within which weights count as equal where states are merged for a star


@lru_cache(maxsize=4)  # an Fsa is immutable and hashed by identity
def coarse(fsa: Fsa) -> Fsa:
    """An acceptor with fewer states in which no sequence weighs more than in `fsa`.

    States with arcs of the same pdfs into the same classes, of like weight, are one, whose arcs weigh the least that they do
    in any of them:

        w'(C -> D, pdf) = min over s in C of the sum over d in D of w(s -> d, pdf),     final'(C) likewise.

    By induction over its length a sequence weighs from C at most what it does from any s in C.
    """
    return merge_down(fsa, COARSE_TOLERANCE)


def merge_down(fsa: Fsa, tolerance: float, kinds: npt.ArrayLike = 0) -> Fsa:
    """As `coarse`, where weights within `tolerance` nats are alike, and states of different `kinds` [S] stay apart."""
    is_start = np.arange(fsa.num_states) == fsa.start
    colours = np.stack(
        [_quantise(fsa.final_log_prob, tolerance), is_start, np.broadcast_to(kinds, is_start.shape)]
    )
    colour = np.unique(colours, axis=1, return_inverse=True)[1].ravel()
    classes = _refine(fsa.src, fsa.dst, fsa.pdf, fsa.log_prob, colour, tolerance)
    state, pdf, target, total = _sums(fsa.src, fsa.pdf, classes[fsa.dst], np.exp(fsa.log_prob))
    keys = np.stack([classes[state], pdf, target])
    order = _order(keys)
    keys = keys[:, order]
    first = _runs(keys)
    least = np.minimum.reduceat(total[order], first) if len(first) else total
    final = np.full(int(classes.max()) + 1, np.inf)
    np.minimum.at(final, classes, fsa.final_log_prob)
    src, pdf, dst = keys[:, first]
    return Fsa(len(final), src, dst, pdf, np.log(least), final, int(classes[fsa.start]))


def _runs(keys: Ints) -> Ints:
    """Where in sorted columns [K, A] another one begins."""
    changes = np.any(keys[:, 1:] != keys[:, :-1], axis=0)
    return np.flatnonzero(np.append(True, changes)[: keys.shape[1]])


def _order(keys: Ints) -> Ints:
    """The columns of `keys` [K, A] sorted, ties in their order; the first key decides first."""
    sizes = keys.max(axis=1, initial=0).astype(np.int64) + 1
    if math.prod(sizes.tolist()) > np.iinfo(np.int64).max:
        return np.lexsort(keys[::-1])
    return np.argsort(np.ravel_multi_index(tuple(keys), tuple(sizes)), kind="stable")


def _sums(src: Ints, pdf: Ints, dst: Ints, prob: Floats) -> tuple[Ints, Ints, Ints, Floats]:
    """Parallel arcs as one, sorted by (src, pdf, dst)."""
    keys = np.stack([src, pdf, dst])
    order = _order(keys)
    keys = keys[:, order]
    first = _runs(keys)
    total = np.add.reduceat(prob[order], first) if len(first) else prob
    source, label, target = keys[:, first]
    return source, label, target, total


def _quantise(log_prob: Floats, tolerance: float) -> Ints:
    finite = np.isfinite(log_prob)
    steps = np.full(len(log_prob), np.iinfo(np.int64).min, dtype=np.int64)
    steps[finite] = np.rint(log_prob[finite] / tolerance).astype(np.int64)
    return steps


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The splitmix64 finaliser, a bijection of 64-bit words."""
    x = values + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _accepting(model: Fsa, name: str, what: str) -> Fsa:
    trimmed = model.trim()
    if not trimmed.num_arcs:
        raise GraphError(
            f"{name} ({counted(model.num_states, 'state')}, {counted(model.num_arcs, 'arc')}) accepts no {what}"
        )
    return trimmed


@without_collector()
def build_denominator(phone_lm: Fsa, tree: ContextTree) -> Fsa:
    """Expand a phone language model to pdfs, transition and self-loop scale 1, and merge equivalent states.

    Args:
        phone_lm: acceptor over phones, label = phone id - 1, such as `estimate_phone_lm` makes.
        tree: context and topology.

    Returns:
        The graph for `DenominatorGraph`. A phone model whose states sum to one gives a graph whose states sum
        to one.

    Raises:
        GraphError: the language model accepts nothing, or has a phone that the tree does not know.
    """
    phones = _accepting(phone_lm, "phone_lm", "phone sequence").to_transducer()
    expansion = expand_arcs(phones, tree, self_loop_scale=1.0, transition_scale=1.0, epsilon_free=True)
    return lump(input_fsa(expansion.graph))


def free_denominator(num_pdfs: int) -> Fsa:
    """One state with a self-loop of score 0 for each pdf: every sequence of pdfs is accepted with score 0.

    Its log Z is sum_t log sum_p exp y(t, p), what a softmax of every frame divides by. With numerators of a CTC topology the
    objective log Z_num - log Z_den is then the log-likelihood of CTC (Graves et al., ICML 2006).
    """
    if num_pdfs < 1:
        raise GraphError(f"num_pdfs = {num_pdfs}; expected at least 1")
    loop = np.zeros(num_pdfs, np.int64)
    return Fsa(1, loop, loop, np.arange(num_pdfs), np.zeros(num_pdfs), np.zeros(1))


# Denominators over units with a blank: a unit language model under one of the CTC topologies.
#
# `fsachain.graph.ctc` says which frame sequences spell a target; this is the same for all targets at once,
# each with its probability under the language model. Pdf 0 is the blank, pdf k unit k. Only the pairs of
# units that the language model has become arcs: a bigram of 5,000 BPE units has some hundred thousand, where
# all pairs would be 25 million.
#
# Of a bigram with S states (one for the history of each unit) and A arcs:
#
# | topology | states | arcs |
# |---|---|---|
# | "standard" | about 2 S | about 2 A + 3 S, less one for each unit that may follow itself |
# | "compact" | about 2 S | about 2 A + 3 S |
# | "selfless" | about 2 S | S less than "standard" |
# | "minimal" | S | A + S |

BLANK = 0


def ctc_denominator(units: Fsa, topology: CtcTopology = "standard") -> Fsa:
    """The graph of all frame sequences of all unit sequences of a language model.

    The score of a frame sequence is the log-sum, over the ways in which the topology reads it, of the language model's
    score of what is read; blanks and repetitions cost nothing. So for a target y the sequences of
    `ctc_graph(y, 0, topology)` are a part of these, and `ctc_numerator` makes a
    numerator of it for `LFMMILoss`. Under "compact" frames that spell two equal units in a row are read in
    several ways, which numerator and normalization count independently; objf may then be positive.

    Args:
        units: acceptor, label = unit id - 1 with unit ids from 1 on: `estimate_phone_lm` of sequences of unit ids (order 2
            for thousands of units), or `ngram_acceptor`.
        topology: "standard", "compact", "selfless" or "minimal".

    Returns:
        The graph for `DenominatorGraph(fsa, num_units + 1)`; start state 0.

    Raises:
        ConfigError: an unknown topology.
        GraphError: the language model accepts nothing.
    """
    check_topology(topology)
    model = _accepting(units, "units", "sequence of units")
    states = np.arange(model.num_states)
    if topology == "minimal":
        parts = [_arcs(states, states, BLANK), _arcs(model.src, model.dst, model.pdf + 1, model.log_prob)]
        return _graph(parts, model.final_log_prob, model.start)
    return _with_last_unit(model, topology)


def ctc_numerator(
    unit_ids: Sequence[int], denominator: DenominatorGraph, topology: CtcTopology = "standard"
) -> Fsa:
    """The numerator of a unit sequence for `LFMMILoss` with the denominator of a `ctc_denominator`.

    Its paths are frame sequences that spell the units, with the weights that they have in the denominator: log Z never
    exceeds the denominator's, except under "compact".

    Args:
        unit_ids: ids from 1 on, as in the sequences of which the language model was estimated.
        denominator: made of `ctc_denominator(units, topology)`.
        topology: the denominator's.

    Returns:
        The graph, over the denominator's pdfs. If the language model does not accept the sequence, it has one state and no
        arcs: the loss leaves the sequence out and names it.

    Raises:
        ConfigError: an unknown topology.
        GraphError: a unit that the denominator lacks.

    Example:
        >>> from fsachain import DenominatorGraph, ctc_denominator, ctc_numerator, estimate_phone_lm
        >>> unit_lm = estimate_phone_lm([[1, 2], [2, 1, 2]], ngram_order=2)
        >>> denominator = DenominatorGraph(ctc_denominator(unit_lm), num_pdfs=3)
        >>> ctc_numerator([2, 1, 2], denominator)
        Fsa(8 states, 15 arcs, start 0)
    """
    check_topology(topology)
    ids = [integer("unit_ids", unit, GraphError) for unit in unit_ids]
    for place, unit in enumerate(ids):
        if not 0 < unit < denominator.num_pdfs:
            raise GraphError(
                f"unit_ids[{place}] = {unit}; expected units of the denominator, 1 to {denominator.num_pdfs - 1}"
            )
    numerator, _ = product(ctc_graph(ids, BLANK, topology), _normalization(denominator))
    return numerator


@lru_cache(maxsize=4)  # of as many denominators as a training has; they are hashed by identity
def _normalization(denominator: DenominatorGraph) -> Fsa:
    return denominator.normalization_fsa()


def _with_last_unit(model: Fsa, topology: CtcTopology) -> Fsa:
    """In states below S the last frame was blank, or there was none; those from S on are pairs (state, last unit)."""
    num_states, states = model.num_states, np.arange(model.num_states)
    width = int(model.pdf.max()) + 1
    keys, pair_of_arc = np.unique(model.dst.astype(np.int64) * width + model.pdf, return_inverse=True)
    pair_state, pair_unit = keys // width, keys % width + 1
    pairs = num_states + np.arange(len(keys))
    units = model.pdf + 1
    spoken = num_states + pair_of_arc
    # Behind each pair, each arc that leaves its state.
    order = np.argsort(model.src, kind="stable")
    begin = np.searchsorted(model.src[order], pair_state)
    count = np.searchsorted(model.src[order], pair_state, side="right") - begin
    owner = np.repeat(np.arange(len(keys)), count)
    arc = order[np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(begin, count)]
    if topology != "compact":
        differs = units[arc] != pair_unit[owner]
        owner, arc = owner[differs], arc[differs]
    parts = [
        _arcs(states, states, BLANK),
        _arcs(pairs, pair_state, BLANK),
        _arcs(model.src, spoken, units, model.log_prob),
        _arcs(pairs[owner], spoken[arc], units[arc], model.log_prob[arc]),
    ]
    if topology != "selfless":
        parts.append(_arcs(pairs, pairs, pair_unit))
    return _graph(parts, np.append(model.final_log_prob, model.final_log_prob[pair_state]), model.start)


def _arcs(
    src: np.ndarray, dst: np.ndarray, pdf: np.ndarray | int, log_prob: np.ndarray | float = 0.0
) -> list[np.ndarray]:
    return [src, dst, np.broadcast_to(pdf, src.shape), np.broadcast_to(log_prob, src.shape)]


def _graph(parts: list[list[np.ndarray]], final: np.ndarray, start: int) -> Fsa:
    """The arcs by source state; `trim` drops blank states that no path of the model needs."""
    src, dst, pdf, log_prob = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.lexsort((dst, pdf, src))
    return Fsa(len(final), src[order], dst[order], pdf[order], log_prob[order], final, start).trim()
