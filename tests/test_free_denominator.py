"""The denominator that accepts everything: LF-MMI with it is CTC."""

import numpy as np
import pytest
import torch

import fsachain
from fsachain import ContextTree, DenominatorGraph, Lexicon, LFMMILoss, Topology, build_numerator
from fsachain.errors import GraphError
from fsachain.graph.denominator import free_denominator
from tests import tolerances

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
    loss = LFMMILoss(
        DenominatorGraph(free_denominator(tree.num_pdfs), tree.num_pdfs),
        leaky_hmm_coefficient=0.0,
        out_of_range_regularize=0.0,
    )
    labels = torch.tensor([[1, 2, 2, 1], [1, 2, 0, 0]])
    ours, theirs = scores.clone().requires_grad_(), scores.clone().requires_grad_()
    loss(ours, [FRAMES, 5], numerators).backward()
    torch.nn.functional.ctc_loss(
        theirs.log_softmax(-1).transpose(0, 1), labels, (FRAMES, 5), (4, 2), reduction="sum"
    ).div(FRAMES + 5).backward()
    torch.testing.assert_close(ours.grad, theirs.grad, atol=tolerances.OCCUPANCY, rtol=0.0)


def test_a_denominator_over_no_pdfs_is_refused():
    with pytest.raises(GraphError, match="num_pdfs = 0; expected at least 1"):
        free_denominator(0)
