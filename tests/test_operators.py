"""What torch may ask of every loss: one derivative in reverse mode, twice the same, no second one, none in forward mode."""

import pytest
import torch
from loss_calls import LOSSES, SCORES
from random_graphs import connected_graph, left_to_right_graph
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from fsachain import DenominatorGraph, LFMMILoss, TableBatch, total_log_prob


@pytest.mark.parametrize("name", LOSSES)
def test_backward_twice_gives_the_same_and_differentiating_twice_raises(name):
    scores = SCORES.clone().requires_grad_()
    value = LOSSES[name](scores)
    if name == "rnnt in place":  # whose backward runs once
        (first,) = torch.autograd.grad(value, scores)
        assert torch.isfinite(first).all() and first.any()
        return
    (first,) = torch.autograd.grad(value, scores, retain_graph=True)
    kept = first.clone()
    (second,) = torch.autograd.grad(value, scores, create_graph=True)
    assert torch.isfinite(first).all() and first.any()
    assert torch.equal(first, kept) and torch.equal(second, kept)
    with pytest.raises(RuntimeError, match="fsachain gives first derivatives only"):
        torch.autograd.grad(second.square().sum(), scores)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_float64_but_ctc_of_float32_as_in_torch(name):
    expected = torch.float32 if name.startswith("ctc") else torch.float64
    assert LOSSES[name](SCORES.clone()).dtype == expected


@pytest.mark.parametrize("name", sorted(set(LOSSES) - {"chunks"}))
def test_forward_mode_is_refused_and_not_taken_for_zero(name):
    with pytest.raises(RuntimeError, match="reverse mode only"):
        torch.func.jacfwd(LOSSES[name])(SCORES)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(SCORES, torch.ones_like(SCORES))
        with pytest.raises(RuntimeError, match="reverse mode only"):
            LOSSES[name](dual)


class Other(torch.Tensor):
    """A subclass, which may want to see each operator."""


@pytest.mark.parametrize("name", ["lfmmi", "ctc", "rnnt"])
def test_tracers_transforms_and_subclasses_meet_the_operator(name):
    loss = LOSSES[name]
    assert f"fsachain.{name}" in make_fx(loss)(SCORES).code
    several = torch.stack([SCORES, 2.0 * SCORES])
    assert torch.equal(torch.func.vmap(loss)(several), torch.stack([loss(each) for each in several]))
    found = loss(SCORES.as_subclass(Other))
    assert type(found) is Other and torch.equal(found, loss(SCORES))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert isinstance(loss(mode.from_tensor(SCORES)), FakeTensor)


def test_lists_of_graphs_are_to_be_packed_under_fullgraph_alone():
    """Elsewhere the compiled call goes on outside of the compiled part."""
    graphs, lengths = [left_to_right_graph(n, 3, 9) for n in range(2)], [12, 9]
    scores = torch.randn(2, 12, 9, generator=torch.Generator().manual_seed(1))
    loss = LFMMILoss(DenominatorGraph(connected_graph(0), 9))
    calls = {
        "numerators": lambda given: loss(scores, lengths, given),
        "batch": lambda given: total_log_prob(given, scores, lengths),
    }
    for name, call in calls.items():
        torch._dynamo.reset()
        whole = torch.compile(call, fullgraph=True, backend="aot_eager")
        assert torch.equal(whole(TableBatch.pack(graphs)), call(graphs))
        with pytest.raises(
            RuntimeError, match=f"{name} is a list; expected a TableBatch .*pack graphs first"
        ):
            whole(graphs)
        torch._dynamo.reset()
        assert torch.equal(torch.compile(call, backend="aot_eager")(graphs), call(graphs))
