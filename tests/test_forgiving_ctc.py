"""CTC of targets that may be wrong: the loss is that of the graphs, whose paths are counted in test_ctc_graph."""

import math

import numpy as np
import pytest
import tolerances
import torch
from ctc_inputs import random_batch
from hypothesis import given
from hypothesis import strategies as st

from fsachain import (
    ConfigError,
    CTCLoss,
    Forgiveness,
    TableBatch,
    compile_table,
    ctc_graph,
    ctc_loss,
    forward_backward,
)

TOPOLOGIES = ["standard", "selfless", "minimal"]
OPTIONS = Forgiveness(1.0, 0.5, 0.7, "sum", 2)
BATCH = random_batch(1, size=3, frames=9, classes=4, labels=3)


def loss_of(scores, forgive, **options):
    return ctc_loss(scores, *BATCH.arguments(), reduction="none", forgive=forgive, **options)


@pytest.mark.parametrize("star", ["mean", "sum"])
@pytest.mark.parametrize("topology", [*TOPOLOGIES, "compact"])
def test_a_loss_is_minus_log_z_of_a_graph_with_a_class_for_the_star(topology, star):
    options = Forgiveness(1.0, 0.5, 0.7, star)
    log_probs = BATCH.leaf().log_softmax(dim=2).detach()
    units = torch.cat([log_probs[:, :, : BATCH.blank], log_probs[:, :, BATCH.blank + 1 :]], dim=2)
    column = units.exp().mean(2).log() if star == "mean" else units.exp().sum(2).log()
    scores = torch.cat([log_probs, column.unsqueeze(2)], dim=2).transpose(0, 1).numpy()
    graphs = [
        ctc_graph(target[:count], BATCH.blank, topology, forgive=options, star=scores.shape[2] - 1)
        for target, count in zip(BATCH.targets, BATCH.target_lengths, strict=True)
    ]
    batch = TableBatch.pack([compile_table(graph, scores.shape[2]) for graph in graphs])
    wanted = forward_backward(batch, scores, BATCH.input_lengths, backend="reference").log_prob
    for backend in ("cpu", "reference"):
        found = loss_of(log_probs, options, topology=topology, backend=backend)
        assert found.numpy() == pytest.approx(-wanted, abs=tolerances.FLOAT64)


@pytest.mark.parametrize(
    "options", [{}, {"inputs": "logits"}, {"log_priors": torch.tensor([0.1, -0.3, 0.2, 0.0])}]
)
def test_differences_give_the_gradient(options):
    leaf = BATCH.leaf() if options else BATCH.leaf().log_softmax(dim=2).detach().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda y: loss_of(y, OPTIONS, **options), leaf, atol=tolerances.DIFFERENCE
    )


@pytest.mark.parametrize("inputs", ["log_probs", "logits"])
def test_with_infinite_penalties_loss_and_gradient_are_the_plain_ones(inputs):
    found = []
    for options in (None, Forgiveness()):
        leaf = BATCH.leaf()
        scores = leaf if inputs == "logits" else leaf.log_softmax(dim=2)
        loss = CTCLoss(BATCH.blank, inputs=inputs, forgive=options)(scores, *BATCH.arguments()[:3])
        loss.backward()
        found.append((loss.item(), leaf.grad))
    assert found[0][0] == pytest.approx(found[1][0], abs=tolerances.FLOAT64)
    assert torch.allclose(found[0][1], found[1][1], rtol=0, atol=tolerances.FLOAT64)


@given(
    seed=st.integers(0, 1000), scale=st.sampled_from([0.1, 3.0, 30.0]), topology=st.sampled_from(TOPOLOGIES)
)
def test_a_loss_of_probabilities_is_never_negative_however_cheap_errors_are(seed, scale, topology):
    batch = random_batch(seed, size=3, frames=12, classes=3, labels=4, scale=scale)
    cheap = Forgiveness(0.0, 0.0, 0.05, "sum")
    losses = ctc_loss(
        batch.leaf(), *batch.arguments(), reduction="none", inputs="logits", topology=topology, forgive=cheap
    )
    assert losses.min() >= -tolerances.FLOAT64


def test_padding_may_hold_anything_and_single_precision_is_near_double():
    for inputs in ("log_probs", "logits"):
        scores = BATCH.leaf().log_softmax(dim=2).detach()
        wanted = loss_of(scores, OPTIONS, inputs=inputs)
        single = scores.float()
        for n, frames in enumerate(BATCH.input_lengths):
            single[frames:, n] = math.nan
        single.requires_grad_()
        found = loss_of(single, OPTIONS, inputs=inputs)
        found.sum().backward()
        assert np.allclose(found.detach(), wanted, rtol=tolerances.LOG_PROB_RELATIVE)
        for n, frames in enumerate(BATCH.input_lengths):
            assert not single.grad[frames:, n].any() and single.grad[:frames, n].isfinite().all()


def test_a_delay_penalty_is_refused():
    with pytest.raises(ConfigError, match=r"delay_penalty = 0.1 with forgive; expected 0"):
        loss_of(BATCH.leaf(), OPTIONS, delay_penalty=0.1)
