"""Losses under other regimes of torch than eager: right, or refused by name; never a constant, a 0 or unwritten memory."""

import pytest
import torch
from loss_calls import COUNTS, FRAMES, LOSSES, SCORES, TARGETS, logits
from refusals import refuses
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

from fsachain import (
    RNNTLoss,
    ShapeError,
    rnnt_loss,
    transducer_loss,
)

# The joiner of "chunks" is called again in backward, which no graph can hold. "rnnt in place" writes to its logits.
IN_GRAPHS = sorted(set(LOSSES) - {"chunks", "pruned"})
WITH_GRADIENT = sorted(set(IN_GRAPHS) - {"rnnt in place"})
SEVERAL = torch.stack([SCORES, 2.0 * SCORES])


def gradient(loss, scores=SCORES):
    leaf = scores.clone().requires_grad_()
    (result,) = torch.autograd.grad(loss(leaf), leaf)
    return result


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_jit_trace_is_refused_since_it_would_keep_the_loss_as_a_constant(name):
    refuses(
        RuntimeError,
        r"no losses under torch\.jit\.trace; expected torch\.export\.export or torch\.compile",
        lambda: torch.jit.trace(LOSSES[name], (SCORES,)),
    )


@pytest.mark.parametrize("name", WITH_GRADIENT)
def test_a_graph_recorded_without_gradients_has_the_right_ones_later(name):
    with torch.no_grad():
        graph = make_fx(LOSSES[name])(SCORES)
    scores = 0.5 * SCORES  # others than those of the recording
    close(graph(scores), LOSSES[name](scores))
    close(gradient(graph, scores), gradient(LOSSES[name], scores))


class Joined(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 5)
        self.loss = RNNTLoss(blank=0)

    def forward(self, scores):
        return self.loss(self.layer(scores), TARGETS, FRAMES, COUNTS)


def test_a_network_exported_without_gradients_trains():
    torch.manual_seed(3)
    network = Joined()
    given = logits(SCORES).detach()
    with torch.no_grad():
        exported = torch.export.export(network, (given,)).module()
    for model in (network, exported):
        model.zero_grad()
        model(given).backward()
    for ours, theirs in zip(exported.parameters(), network.parameters(), strict=True):
        close(ours.grad, theirs.grad)
        assert ours.grad.any()


@pytest.mark.parametrize("name", IN_GRAPHS)
def test_vmap_gives_the_loss_of_each(name):
    close(torch.func.vmap(LOSSES[name])(SEVERAL), torch.stack([LOSSES[name](each) for each in SEVERAL]))


@pytest.mark.parametrize("name", WITH_GRADIENT)
def test_functional_gradients_are_those_of_backward(name):
    loss = LOSSES[name]
    close(torch.func.grad(loss)(SCORES), gradient(loss))
    close(torch.func.jacrev(loss)(SCORES), gradient(loss))
    each = torch.func.vmap(torch.func.grad(loss))(SEVERAL)
    close(each, torch.stack([gradient(loss, scores) for scores in SEVERAL]))


@pytest.mark.parametrize("name", WITH_GRADIENT)
def test_several_gradients_at_once_are_those_of_each(name):
    loss = LOSSES[name]
    expected = gradient(loss)
    close(torch.autograd.functional.jacobian(loss, SCORES, vectorize=True), expected)
    leaf = SCORES.clone().requires_grad_()
    value = loss(leaf)
    factors = torch.tensor([1.0, 0.0, -2.5], dtype=value.dtype)
    (several,) = torch.autograd.grad(value, leaf, factors, is_grads_batched=True)
    close(several, factors.to(expected.dtype).view(3, 1, 1, 1) * expected)


def test_differentiating_twice_is_refused_in_place_as_well():
    leaf = logits(SCORES).detach().requires_grad_()
    for inplace in (False, True):
        loss = rnnt_loss(leaf * leaf, TARGETS, FRAMES, COUNTS, 0, inplace=inplace)
        (first,) = torch.autograd.grad(loss, leaf, create_graph=True)
        with pytest.raises(RuntimeError, match="first derivatives only"):
            first.square().sum().backward()


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_chunks_of_a_transducer_work_under_checkpoints(use_reentrant):
    def loss(encoder, predictor):
        return transducer_loss(
            encoder, predictor, lambda x, y: x + y, TARGETS, FRAMES, COUNTS, blank=0, chunk_frames=2
        )

    leaves = SCORES.clone().requires_grad_(), SCORES[:, :3].clone().requires_grad_()
    expected = torch.autograd.grad(loss(*leaves), leaves)
    checkpoint(loss, *leaves, use_reentrant=use_reentrant).backward()
    for leaf, value in zip(leaves, expected, strict=True):
        close(leaf.grad, value)


@pytest.mark.parametrize("wrong", [[-1, 4], [-5570080269274466818, 4], [5, 4], [4]])
def test_lengths_of_chunks_are_checked(wrong):
    def call():
        transducer_loss(SCORES, SCORES[:, :3], lambda x, y: x + y, TARGETS, wrong, COUNTS, blank=0)

    refuses(ShapeError, "logit_lengths", call)
