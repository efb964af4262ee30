"""Expanding phones to pdfs keeps exactly the paths and scores that phones, context and topology prescribe."""

import itertools
import math
from collections import defaultdict
from functools import cache
from typing import NamedTuple, get_args

import numpy as np
import pytest
import tolerances
from context_trees import full_tree, split_triphone, tree_of
from enumeration import log_sum
from graph_paths import Scorer, assert_same_columns, assert_same_scores, log_add, pdf_sequences
from refusals import refuses

from fsachain.errors import GraphError
from fsachain.graph.context import ContextTree
from fsachain.graph.ctc import CtcTopology, ctc_graph
from fsachain.graph.denominator import build_denominator, ctc_denominator
from fsachain.graph.expand import expand_arcs
from fsachain.graph.phone_lm import estimate_phone_lm
from fsachain.graph.topology import HmmState, Topology
from fsachain.openfst import Transducer

PHONES = ("A", "B")
NUM_FRAMES = 4
WEIGHED = {"self_loop_scale": 1.0, "transition_scale": 1.0}


def transducer(arcs, finals, num_states):
    """arcs: (src, dst, ilabel, olabel, log_prob); finals: {state: log_prob}."""
    return Transducer.of_arcs(arcs, np.array([finals.get(state, -np.inf) for state in range(num_states)]))


LINEAR = transducer([(0, 1, 1, 7, -0.5), (1, 2, 1, 0, 0.0), (2, 3, 2, 8, -0.25)], {3: -1.0}, 4)
LOOP = transducer([(0, 0, 1, 0, -1.0), (0, 0, 2, 0, -0.7), (0, 1, 1, 3, -1.2)], {0: -0.3, 1: 0.0}, 2)
EPSILONS = transducer(
    [(0, 1, 1, 5, -0.1), (0, 1, 0, 0, -2.0), (1, 2, 0, 6, -0.2), (2, 1, 2, 0, -0.3), (2, 3, 2, 0, -0.9)],
    {1: -0.4, 3: 0.0},
    4,
)


def total(graph, labels):
    """Log-sum over all paths of `graph` that spell `labels`; its epsilon arcs form no cycle."""
    leaving = defaultdict(list)
    for arc in zip(graph.src, graph.dst, graph.ilabel, graph.log_prob, strict=True):
        leaving[int(arc[0])].append(arc[1:])

    @cache
    def rest(state, position):
        score = float(graph.final_log_prob[state]) if position == len(labels) else -math.inf
        for dst, label, log_prob in leaving[state]:
            if label == 0:
                score = log_add(score, log_prob + rest(int(dst), position))
            elif position < len(labels) and label == labels[position]:
                score = log_add(score, log_prob + rest(int(dst), position + 1))
        return score

    return rest(graph.start, 0)


def windows(phones, tree):
    """The window of each phone; 0 beyond the ends."""
    after = tree.context_width - 1 - tree.central_position
    padded = (0,) * tree.central_position + tuple(phones) + (0,) * after
    return [padded[i : i + tree.context_width] for i in range(len(phones))]


def accepted(graph, num_frames):
    """All label sequences of `num_frames` labels that some path of `graph` spells; epsilon arcs form no cycle."""
    found, stack = set(), [(graph.start, ())]
    while stack:
        state, labels = stack.pop()
        if len(labels) == num_frames and graph.final_log_prob[state] > -math.inf:
            found.add(labels)
        for arc in np.flatnonzero(graph.src == state):
            label = (int(graph.ilabel[arc]),) if graph.ilabel[arc] else ()
            if len(labels) + len(label) <= num_frames:
                stack.append((int(graph.dst[arc]), labels + label))
    return found


def oracle(phone_graph, tree, num_frames, self_loop_scale, transition_scale):
    """pdf sequence -> log score, by writing out phone strings and durations."""
    scores = defaultdict(lambda: -math.inf)
    for length in range(1, num_frames + 1):
        for phones in itertools.product(range(1, tree.num_phones + 1), repeat=length):
            weight = total(phone_graph, phones)
            if weight == -math.inf:
                continue
            pairs = [tree.window_pdfs(window) for window in windows(phones, tree)]
            for ways in itertools.product(state_paths(tree.topology, num_frames), repeat=length):
                slots = [
                    (tree.topology.states[state], of_phone[state])
                    for of_phone, way in zip(pairs, ways, strict=True)
                    for state in way.states
                ]
                spare = num_frames - len(slots)
                for extra in itertools.product(range(spare + 1), repeat=len(slots)) if spare >= 0 else ():
                    if sum(extra) != spare:
                        continue
                    pdfs, score = [], weight + transition_scale * sum(way.log_prob for way in ways)
                    for (state, (entry, loop)), more in zip(slots, extra, strict=True):
                        if more and loop < 0:
                            break
                        pdfs += [entry, *[loop] * more]
                        score += self_loop_scale * more * state.loop_log_prob
                    else:
                        scores[tuple(pdfs)] = log_add(scores[tuple(pdfs)], score)
    return scores


class Way(NamedTuple):
    """States of a phone one after another, and the transitions between them and out of it."""

    states: tuple[int, ...]
    log_prob: float


@cache
def state_paths(topology, most):
    """All ways through the states of at most so many."""
    found, open_ways = [], [Way((0,), 0.0)]
    for way in open_ways:  # grows while it is read
        for target, log_prob in topology.moves(way.states[-1]):
            if target == len(topology.states):
                found.append(Way(way.states, way.log_prob + log_prob))
            elif len(way.states) < most:
                open_ways.append(Way((*way.states, target), way.log_prob + log_prob))
    return found


def spelled(expansion, pdfs):
    return total(expansion.graph, tuple(pdf + 1 for pdf in pdfs))


def assert_spelled(expansion, expected):
    """The log score of each of these pdf sequences."""
    for pdfs, score in expected.items():
        assert spelled(expansion, pdfs) == pytest.approx(score, abs=tolerances.ENUMERATION)


HALF_STUCK = Topology((HmmState(0, None, -0.1), HmmState(1, 1, -0.9, -0.4)))
SKIP = Topology(
    (HmmState(0, 0, -1.1, -0.9, ((2, -1.3),)), HmmState(1, 1, -0.5, -0.9), HmmState(2, None, -0.7))
)
SHORT_CUT = Topology((HmmState(0, 1, -1.1, -0.9, ((2, -0.8),)), HmmState(1, 1, -0.7, -0.7)))
BACK_AND_FORTH = Topology(
    (HmmState(0, 0, -0.7, -0.7), HmmState(1, None, -0.9, -0.5, ((0, -1.2), (3, -1.5))), HmmState(2, 2))
)
TREES = {
    "monophone": ContextTree.monophone(PHONES, Topology.chain()),
    "one pdf": ContextTree.monophone(PHONES, Topology.chain_one_pdf()),
    "biphone": ContextTree.biphone(PHONES, Topology.chain_one_pdf()),
    "biphone, independent A": ContextTree.biphone(PHONES, Topology.chain(), context_independent=("A",)),
    "two states": ContextTree.monophone(PHONES, Topology.left_to_right(2)),
    "two states in biphones": ContextTree.biphone(PHONES, Topology.left_to_right(2), context_independent="B"),
    "no self-loop": ContextTree.monophone(PHONES, HALF_STUCK),
    "skip": ContextTree.monophone(PHONES, SKIP),
    "skip to the end, in biphones": ContextTree.biphone(PHONES, SHORT_CUT),
    "back and forth": ContextTree.monophone(PHONES, BACK_AND_FORTH),
    "skip in triphones": full_tree(PHONES, SKIP, 3, 1),
    "right biphone": full_tree(PHONES, Topology.chain(), 2, 0),
    "triphone": full_tree(PHONES, Topology.chain_one_pdf(), 3, 1),
    "triphone, two states": full_tree(PHONES, Topology.left_to_right(2), 3, 1),
    "two phones to the left": full_tree(PHONES, Topology.chain_one_pdf(), 3, 2),
    "two phones to the right": full_tree(PHONES, Topology.chain(), 3, 0),
    "quinphone": full_tree(PHONES, Topology.chain_one_pdf(), 5, 2),
    "tied triphone": split_triphone(PHONES, Topology.chain_one_pdf()),
}


@pytest.mark.parametrize("scales", [(1.0, 1.0), (0.0, 0.0), (0.1, 0.7)])
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
@pytest.mark.parametrize("phone_graph", [LINEAR, LOOP, EPSILONS], ids=["linear", "loop", "epsilons"])
def test_every_pdf_sequence_scores_as_its_phones_and_durations_say(phone_graph, tree, scales):
    """Log-sums over all paths agree, so no pdf sequence gains or loses a path, epsilons or not."""
    expansion = expand_arcs(phone_graph, tree, self_loop_scale=scales[0], transition_scale=scales[1])
    expected = oracle(phone_graph, tree, NUM_FRAMES, *scales)
    spellings = {tuple(label - 1 for label in labels) for labels in accepted(expansion.graph, NUM_FRAMES)}
    assert spellings == set(expected)
    assert_spelled(expansion, expected)


def collapse(pdfs):
    """What a frame sequence spells under the standard topology."""
    return tuple(pdf for pdf, _ in itertools.groupby(pdfs) if pdf != 0)


@pytest.mark.parametrize("topology", get_args(CtcTopology))
@pytest.mark.parametrize("phones", [(1,), (1, 2), (1, 1), (2, 2, 1)])
def test_ctc_gives_every_frame_sequence_what_the_graph_of_its_topology_gives(phones, topology):
    """Numerators made of a lexicon are those of `ctc_graph`, which is written down apart."""
    tree = ContextTree.monophone(PHONES, Topology.ctc(topology))
    arcs = [(i, i + 1, phone, 0, 0.0) for i, phone in enumerate(phones)]
    graph = transducer(arcs, {len(phones): 0.0}, len(phones) + 1)
    expansion = expand_arcs(graph, tree, **WEIGHED)
    expected = Scorer(ctc_graph(phones, 0, topology), log_add)
    assert_spelled(expansion, {pdfs: expected(pdfs) for pdfs in pdf_sequences(3, 5)})
    if topology == "standard":
        for pdfs in pdf_sequences(3, 5):
            assert spelled(expansion, pdfs) == (0.0 if collapse(pdfs) == phones else -math.inf)


@pytest.mark.parametrize("topology", get_args(CtcTopology))
@pytest.mark.parametrize("phone_graph", [LINEAR, LOOP, EPSILONS], ids=["linear", "loop", "epsilons"])
def test_blanks_stand_where_the_topology_has_them_in_any_phone_graph(phone_graph, topology):
    """Log-sums over the phone strings of their own weight and that of `ctc_graph`; epsilons hide no equal neighbour."""
    tree = ContextTree.monophone(PHONES, Topology.ctc(topology))
    expansion = expand_arcs(phone_graph, tree, **WEIGHED)
    strings = {
        phones: total(phone_graph, phones)
        for length in range(NUM_FRAMES + 1)
        for phones in itertools.product((1, 2), repeat=length)
    }
    spell = {p: Scorer(ctc_graph(np.array(p, dtype=int), 0, topology), log_add) for p in strings}
    expected = {
        pdfs: log_sum(weight + spell[phones](pdfs) for phones, weight in strings.items())
        for pdfs in pdf_sequences(3, NUM_FRAMES)
    }
    assert_spelled(expansion, expected)


@pytest.mark.parametrize("topology", get_args(CtcTopology))
def test_the_denominator_of_a_unit_model_is_the_same_by_both_builders(topology):
    units = estimate_phone_lm([[1, 2, 2], [2, 1], [1, 1, 2]], 2, 0, 2)
    ours = build_denominator(units, ContextTree.monophone(PHONES, Topology.ctc(topology)))
    other = ctc_denominator(units, topology)
    assert_same_scores(ours, other, tolerances.FEW_FLOAT32_TERMS, pdf_sequences(3, 5))
    assert ours.num_states <= other.num_states


def test_output_labels_stay_on_the_first_frame_of_their_phone():
    tree = ContextTree.monophone(PHONES, Topology.left_to_right(2))
    expansion = expand_arcs(LINEAR, tree, **WEIGHED)
    first = np.array(expansion.arc_is_start)
    assert sorted(expansion.graph.olabel[first].tolist()) == [0, 7, 8]
    assert not expansion.graph.olabel[~first].any()


def test_a_phone_that_the_tree_does_not_know_is_named():
    graph = transducer([(0, 1, 1, 0, 0.0), (0, 1, 3, 0, 0.0)], {1: 0.0}, 2)
    refuses(GraphError, r"arc 1 .*label 3.*\[1, 2\]", expand_arcs, graph, TREES["monophone"], **WEIGHED)


def test_arrays_cross_to_openfst_and_back():
    for graph in (LINEAR, LOOP, EPSILONS):
        fst = graph.to_openfst()
        assert fst.verify()
        back = Transducer.from_openfst(fst)
        order = np.argsort(graph.src, kind="stable")
        for name in ("src", "dst", "ilabel", "olabel", "log_prob"):
            np.testing.assert_array_equal(getattr(back, name), getattr(graph, name)[order].astype("f4"))
        np.testing.assert_array_equal(back.final_log_prob, graph.final_log_prob.astype("f4"))


def test_symbol_tables_and_other_fst_types_are_no_obstacle_the_empty_fst_and_other_semirings_are_refused():
    import pywrapfst  # which not everyone has installed

    fst, table = LINEAR.to_openfst(), pywrapfst.SymbolTable()
    table.add_symbol("<eps>", 0)
    fst.set_input_symbols(table)
    plain = Transducer.from_openfst(fst)
    assert_same_columns(plain, Transducer.from_openfst(pywrapfst.convert(fst, "const")))
    assert fst.input_symbols() is not None and plain.ilabel.tolist() == [1, 1, 2]
    refuses(GraphError, "no start state", Transducer.from_openfst, pywrapfst.VectorFst())
    refuses(GraphError, "arc type 'log'", Transducer.from_openfst, pywrapfst.VectorFst("log"))


@pytest.mark.parametrize("name", ["biphone", "right biphone", "triphone", "quinphone", "tied triphone"])
def test_acceptors_stay_free_of_epsilon_in_wide_trees(name):
    """What waits for its right phone is spent by the first arcs; arcs know their phone and tag all the same."""
    arcs = [(0, 1, 1, 1, -0.5), (1, 2, 2, 2, 0.0), (2, 2, 1, 1, -0.1), (1, 1, 1, 1, -0.25)]
    graph = transducer(arcs, {1: -0.2, 2: -1.0}, 3)
    tree = TREES[name]
    scales = {"self_loop_scale": 0.0, "transition_scale": 0.0}
    expansion = expand_arcs(graph, tree, **scales, tags=[7, 8, 9, 10], epsilon_free=True)
    assert np.all(expansion.graph.ilabel > 0)
    expected = oracle(graph, tree, NUM_FRAMES, 0.0, 0.0)
    assert accepted(expansion.graph, NUM_FRAMES) == {tuple(pdf + 1 for pdf in pdfs) for pdfs in expected}
    assert_spelled(expansion, expected)
    phone_of_tag = {7: 1, 8: 2, 9: 1, 10: 1}
    assert [phone_of_tag[tag] for tag in expansion.arc_tag] == expansion.arc_phone
    for label, phone in zip(expansion.graph.ilabel.tolist(), expansion.arc_phone, strict=True):
        assert phone in tree.describe(label - 1).phones


def test_a_wide_tree_that_asks_for_the_left_phone_alone_is_a_biphone_tree():
    biphone = TREES["biphone"]
    wide = tree_of(PHONES, Topology.chain_one_pdf(), 4, 1, lambda w, c: biphone.pdf(w[1], c, w[0]))
    for graph in (LINEAR, LOOP, EPSILONS):
        assert_spelled(expand_arcs(graph, wide, **WEIGHED), oracle(graph, biphone, NUM_FRAMES, 1.0, 1.0))
