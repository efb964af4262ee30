"""torch's own checks of the operators behind every loss, and torch.compile of a step with each."""

import pytest
import torch
from loss_calls import LOSSES, SCORES

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

    def record(self, *inputs, **named):
        inputs = (*inputs, *(named[key] for key in self._names[len(inputs) :]))
        copies = [
            value.detach().clone().requires_grad_(value.requires_grad) if torch.is_tensor(value) else value
            for value in inputs
        ]
        calls.append((self, copies))
        return real(self, *inputs)

    monkeypatch.setattr(autograd.Operator, "__call__", record)
    scores = SCORES.to(dtype).requires_grad_(wants)
    value = LOSSES[name](scores)
    if wants:
        value.backward()
    monkeypatch.undo()
    assert calls
    for operator, inputs in calls:
        torch.library.opcheck(operator.op, tuple(inputs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", OPERATED)
def test_compiled_code_has_one_graph_and_the_same_values(name, dtype):
    if dtype == torch.float16 and name not in FIRST:
        pytest.skip("one type for those that share their operators")
    torch._dynamo.reset()
    compiled = torch.compile(LOSSES[name], backend="aot_eager", fullgraph=True)
    results = []
    for function in (LOSSES[name], compiled):
        scores = SCORES.to(dtype).requires_grad_()
        value = function(scores)
        value.backward()
        results.append((value.detach(), scores.grad))
    torch.testing.assert_close(results[1], results[0], rtol=1e-6, atol=1e-6)
