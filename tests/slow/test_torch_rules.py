"""torch's own checks of the operators behind every loss, and torch.compile of a step with each."""

import pytest
import torch
from loss_calls import LOSSES, SCORES, TARGETS
from loss_inputs import make_graphs, make_loss, make_output

from fsachain import (
    TableBatch,
    do_rnnt_pruning,
    get_rnnt_prune_ranges,
    rnnt_loss_pruned,
    rnnt_loss_simple,
)
from fsachain.loss import autograd

OPERATED = sorted(set(LOSSES) - {"chunks"})
FIRST = {"lfmmi", "boosted", "ctc", "rnnt"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", OPERATED)
@pytest.mark.parametrize("wants", [True, False])
def test_operators_keep_the_rules_of_torch(name, dtype, wants, monkeypatch):
    """opcheck of what each loss calls: schema, fake kernel, autograd registration, ahead-of-time graphs."""
    if dtype != torch.float32 and name not in FIRST:
        pytest.skip("one type for those that share their operators")
    calls, real = [], autograd.Operator.__call__

    def record(self, *given):
        inputs = given[0] if self._takes_tuple else given
        # Operators that compute gradients refuse to be differentiated, which opcheck would do.
        copies = [
            value.detach().clone().requires_grad_(value.requires_grad and torch.is_grad_enabled())
            if torch.is_tensor(value)
            else value
            for value in inputs
        ]
        calls.append((self, copies))
        return real(self, *given)

    monkeypatch.setattr(autograd.Operator, "__call__", record)
    scores = SCORES.detach().to(dtype, copy=True).requires_grad_(wants)
    value = LOSSES[name](scores)
    if wants:
        value.backward()
    monkeypatch.undo()
    assert calls
    for operator, inputs in calls:
        registered = operator.registered
        torch.library.opcheck(registered.op, tuple(registered.arguments(inputs)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", OPERATED)
def test_compiled_code_has_one_graph_and_the_same_values(name, dtype):
    if dtype == torch.float16 and name not in FIRST:
        pytest.skip("one type for those that share their operators")
    torch._dynamo.reset()
    compiled = torch.compile(LOSSES[name], backend="aot_eager", fullgraph=True)
    results = []
    for function in (LOSSES[name], compiled):
        scores = SCORES.detach().to(dtype, copy=True).requires_grad_()
        value = function(scores)
        value.backward()
        results.append((value.detach(), scores.grad))
    torch.testing.assert_close(results[1], results[0], rtol=1e-6, atol=1e-6)


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def test_a_compiled_loss_serves_batches_of_any_size_without_compiling_anew():
    """Names, tables, N and T change from call to call; the second graph has symbolic sizes and is the last one."""
    loss = make_loss()

    def step(y, lengths, numerators):
        return loss(y, lengths, numerators)

    torch._dynamo.utils.counters.clear()
    call = compiled(step)
    for k in range(12):
        size = 2 + k % 5
        numerators = TableBatch.pack(make_graphs(size, seed=k), [f"utterance {k}-{n}" for n in range(size)])
        scores = make_output(size=size).detach()[:, : 6 + k % 4].contiguous().requires_grad_()
        lengths = torch.tensor([6, 5, 5, 4, 6, 4][:size])
        expected = step(scores, lengths, numerators)
        assert torch.equal(call(scores, lengths, numerators), expected)
        assert loss.last_record.names == numerators.names
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2


def pruned_with(scores, boundary):
    lm = scores[:, :3]
    _, grads = rnnt_loss_simple(lm.detach(), scores.detach(), TARGETS, 0, boundary, return_grad=True)
    ranges = get_rnnt_prune_ranges(*grads, boundary, 2)
    return rnnt_loss_pruned(sum(do_rnnt_pruning(scores, lm, ranges)), TARGETS, ranges, 0, boundary)


@pytest.mark.parametrize("dynamic", [None, True])
def test_ranges_whose_width_depends_on_a_boundary_compile_into_one_graph(dynamic):
    """One graph serves both widths: with one frame for two labels all three nodes are kept."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    call = torch.compile(pruned_with, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for frames in (4, 1, 3):
        boundary = torch.tensor([[0, 0, 2, 4], [0, 0, 2, frames]])
        results = []
        for function in (pruned_with, call):
            scores = SCORES.clone().requires_grad_()
            value = function(scores, boundary)
            value.backward()
            results.append((value.detach(), scores.grad))
        assert torch.isfinite(results[0][0])
        torch.testing.assert_close(results[1], results[0], rtol=1e-6, atol=1e-6)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


class Pruned(torch.nn.Module):
    def forward(self, scores, boundary):
        return pruned_with(scores, boundary)


def test_exported_ranges_serve_other_frames_and_boundaries():
    frames = torch.export.Dim("frames", min=4, max=100)
    boundary = torch.tensor([[0, 0, 2, 4], [0, 0, 2, 4]])
    shapes = ({1: frames}, None)
    exported = torch.export.export(Pruned(), (SCORES, boundary), dynamic_shapes=shapes).module()
    longer = torch.cat([SCORES, SCORES], dim=1)
    for last in (8, 1):
        boundary = torch.tensor([[0, 0, 2, 8], [0, 0, 2, last]])
        expected = pruned_with(longer, boundary)
        torch.testing.assert_close(exported(longer, boundary), expected, rtol=1e-6, atol=1e-6)
