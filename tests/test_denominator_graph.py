"""The denominator graph scores as phone model and topology do, is stochastic, and as small as Kaldi's."""

import math
from dataclasses import replace

import numpy as np
import pytest
import tolerances
import torch
from graph_paths import Scorer, assert_same_scores, log_add, pdf_sequences
from hypothesis import example, given
from hypothesis import strategies as st
from random_graphs import graphs
from refusals import refuses

import fsachain
from fsachain import ContextTree, DenominatorGraph, Lexicon, LFMMILoss, Topology, build_numerator
from fsachain.denominator import normalization_fsa
from fsachain.errors import GraphError
from fsachain.fsa import Fsa, input_fsa
from fsachain.graph.denominator import build_denominator, free_denominator, lump
from fsachain.graph.expand import expand_arcs
from fsachain.graph.phone_lm import estimate_phone_lm
from fsachain.graph.topology import HmmState

PHONES = ("SIL", "A", "B")
TREES = {
    "monophone": ContextTree.monophone(PHONES, Topology.chain()),
    "biphone": ContextTree.biphone(PHONES, Topology.chain(), context_independent=("SIL",)),
    "shared": ContextTree.monophone(PHONES, Topology.chain_one_pdf(), shared=[("A", "B")]),
    "two states": ContextTree.biphone(PHONES, Topology.left_to_right(2)),
    "skips": ContextTree.biphone(
        PHONES,
        Topology((HmmState(0, 0, math.log(0.3), math.log(0.5), ((2, math.log(0.2)),)), HmmState(1, 1))),
    ),
}
SENTENCES = [[1, 2, 3, 1], [2, 2, 3], [1, 3, 2, 2, 1], [3], [2, 3, 3, 3, 1, 2]]


def state_sums(fsa):
    return np.bincount(fsa.src, np.exp(fsa.log_prob), fsa.num_states) + np.exp(fsa.final_log_prob)


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_every_state_sums_to_one_and_sequences_score_as_in_the_unmerged_graph(tree):
    """Log-sums over paths, since phones that share pdfs give one sequence several paths."""
    phone_lm = estimate_phone_lm(SENTENCES, 3, 5, 2)
    scales = {"self_loop_scale": 1.0, "transition_scale": 1.0}
    whole = input_fsa(expand_arcs(phone_lm.to_transducer(), tree, **scales).graph)
    small = build_denominator(phone_lm, tree)
    assert small.num_states <= whole.num_states
    np.testing.assert_allclose(state_sums(small), 1.0, rtol=0.0, atol=tolerances.ENUMERATION)
    assert_same_scores(small, whole, tolerances.LUMPED_PATH, count=60, seed=8, max_frames=60)


NO_FINAL = Fsa(2, [0], [1], [0], [0.0], [-math.inf, -math.inf])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: build_denominator(NO_FINAL, TREES["monophone"]), "accepts no phone sequence"),
        (lambda: build_denominator(Fsa(1, [], [], [], [], [0.0]), TREES["monophone"]), "accepts no phone"),
        (
            lambda: build_denominator(Fsa(1, [0], [0], [3], [-0.5], [-0.5]), TREES["monophone"]),
            "label 4; expected",
        ),
        (lambda: free_denominator(0), "num_pdfs = 0; expected at least 1"),
        (lambda: DenominatorGraph(3, 3), "fsa is a int; expected an Fsa"),
    ],
    ids=["a model that accepts nothing", "no phones", "a phone beyond the tree", "no pdfs", "no graph"],
)
def test_what_makes_no_denominator_is_refused(call, message):
    refuses(GraphError, message, call)


# Few distinct weights, so that states often agree.
SIMILAR = {
    "weights": st.sampled_from([math.log(0.5), math.log(0.25), math.log(0.1)]),
    "finals": st.sampled_from([0.0, math.log(0.5), -math.inf]),
}


def diamond(pdf, log_prob):
    """From state 0 through state 1 or state 2 to state 3."""
    return Fsa(4, [0, 0, 1, 2], [1, 2, 3, 3], pdf, log_prob, [-math.inf] * 3 + [0.0])


# The two ways differ in weight, so an even share would move score between them.
EQUAL_FUTURES, PROPORTIONAL_PASTS = (
    diamond(pdf, [-0.1, -2.0, -0.3, -0.3]) for pdf in ((0, 1, 2, 2), (0, 0, 1, 2))
)


@example(EQUAL_FUTURES)
@example(PROPORTIONAL_PASTS)
@given(graphs(6, 14, 2, **SIMILAR))
def test_merging_states_changes_no_score(fsa):
    """Every pdf sequence of up to five frames keeps the log-sum of its paths."""
    merged = lump(fsa)
    assert merged.num_states <= fsa.num_states
    for num_frames in range(6):
        sequences = pdf_sequences(int(fsa.pdf.max(initial=0)) + 1, num_frames)
        assert_same_scores(merged, fsa, tolerances.LUMPED_PATH, sequences)


def test_states_that_agree_in_their_futures_or_pasts_become_one():
    assert lump(EQUAL_FUTURES).num_states == lump(PROPORTIONAL_PASTS).num_states == 3


def test_states_that_differ_by_more_than_the_tolerance_stay():
    assert lump(diamond([0, 1, 2, 2], [-1.0, -1.0, -0.3, -0.4])).num_states == 4


def test_weights_that_exp_cannot_hold_are_kept_as_they_are():
    fsa = diamond([0, 1, 2, 2], [-2000.0, -1.0, -0.3, -0.3])
    np.testing.assert_array_equal(lump(fsa).log_prob, fsa.log_prob)


def test_a_graph_without_a_cycle_is_a_denominator_from_its_start():
    graph = DenominatorGraph(EQUAL_FUTURES, 3, initial="start", final="fsa")
    assert fsachain.forward_backward(graph.batch(1), np.zeros((1, 2, 3))).ok[0]


class TestNormalization:
    GRAPH = Fsa(
        3,
        [0, 0, 1, 1, 2, 2],
        [1, 2, 1, 2, 1, 2],
        [0, 1, 2, 1, 0, 1],
        np.log([0.5, 0.5, 0.3, 0.7, 0.6, 0.4]),
        [-math.inf] * 3,
    )
    INITIAL = (0.0, 0.25, 0.75)

    def test_sum_is_the_denominator_from_its_initial_distribution(self):
        """So that a numerator composed with it has log Z at most that of the denominator."""
        score = Scorer(normalization_fsa(self.GRAPH, self.INITIAL), log_add)
        best = Scorer(normalization_fsa(self.GRAPH, self.INITIAL, "min"), log_add)
        one = np.zeros(3)
        starts = [Scorer(replace(self.GRAPH, final_log_prob=one, start=s), log_add) for s in range(3)]
        differs = False
        for pdfs in pdf_sequences(3, 3):
            expected = -math.inf
            for prob, start in zip(self.INITIAL, starts, strict=True):
                if prob:
                    expected = log_add(expected, math.log(prob) + start(pdfs))
            assert score(pdfs) == pytest.approx(expected, abs=tolerances.ENUMERATION)
            assert best(pdfs) <= score(pdfs) + tolerances.ENUMERATION
            differs |= best(pdfs) < score(pdfs) - 0.01
        assert differs

    @pytest.mark.parametrize("final", ["one", "fsa"])
    @pytest.mark.parametrize("initial", ["stationary", "start"])
    def test_it_begins_and_ends_as_its_denominator_does(self, initial, final):
        fsa = replace(self.GRAPH, final_log_prob=[-math.inf, -0.5, 0.25])
        graph = DenominatorGraph(fsa, 3, initial=initial, final=final)
        scores = np.random.default_rng(1).normal(size=(4, 5, 3))
        lengths = [5, 1, 3, 2]
        own = fsachain.forward_backward(graph.batch(4), scores, lengths)
        found = fsachain.forward_backward([graph.normalization_fsa()] * 4, scores, lengths)
        assert own.ok.all()
        np.testing.assert_allclose(found.log_prob, own.log_prob, rtol=0.0, atol=tolerances.ENUMERATION)
        np.testing.assert_allclose(found.occupancy, own.occupancy, rtol=0.0, atol=tolerances.ENUMERATION)

    def test_of_a_graph_without_a_cycle_it_is_the_graph(self):
        graph = DenominatorGraph(EQUAL_FUTURES, 3, initial="start", final="fsa").normalization_fsa()
        assert_same_scores(graph, EQUAL_FUTURES, tolerances.ENUMERATION, count=20, seed=1, max_frames=9)

    def test_the_empty_path_and_unreachable_states_are_left_out(self):
        result = normalization_fsa(self.GRAPH, self.INITIAL)
        assert result.final_log_prob[result.start] == -math.inf
        assert result.num_states == 3


# The denominator that accepts everything: LF-MMI with it is CTC.


FRAMES = 9


def test_log_z_is_the_sum_of_the_log_sums_of_all_frames():
    scores = torch.randn(2, FRAMES, 5, generator=torch.manual_seed(1), dtype=torch.float64) * 30
    graph = DenominatorGraph(free_denominator(5), 5)
    found = fsachain.forward_backward(graph.batch(2), scores, [FRAMES, 4], leaky_hmm_coefficient=0.0)
    expected = [scores[0].logsumexp(-1).sum(), scores[1, :4].logsumexp(-1).sum()]
    np.testing.assert_allclose(found.log_prob, expected, rtol=tolerances.LOG_PROB_RELATIVE)


def test_lfmmi_with_ctc_numerators_and_the_free_denominator_is_ctc():
    lexicon = Lexicon.characters(["abba", "ab"], silence=None)
    tree = ContextTree.monophone(lexicon.phones, Topology.ctc())
    words = [["abba"], ["ab"]]
    numerators = [build_numerator(said, lexicon, tree).fsa for said in words]
    scores = torch.randn(2, FRAMES, tree.num_pdfs, generator=torch.manual_seed(2), dtype=torch.float64)
    denominator = DenominatorGraph(free_denominator(tree.num_pdfs), tree.num_pdfs)
    loss = LFMMILoss(denominator, leaky_hmm_coefficient=0.0, out_of_range_regularize=0.0)
    labels = torch.tensor([[1, 2, 2, 1], [1, 2, 0, 0]])
    ours, theirs = scores.clone().requires_grad_(), scores.clone().requires_grad_()
    loss(ours, [FRAMES, 5], numerators).backward()
    log_probs = theirs.log_softmax(-1).transpose(0, 1)
    losses = torch.nn.functional.ctc_loss(log_probs, labels, (FRAMES, 5), (4, 2), reduction="sum")
    losses.div(FRAMES + 5).backward()
    torch.testing.assert_close(ours.grad, theirs.grad, atol=tolerances.OCCUPANCY, rtol=0.0)
