"""Losses of scores in every type: kernels that the quick tests do not compile."""

import pytest
import tolerances
import torch
from loss_inputs import LENGTHS, LOSSES, close, make_graphs, make_loss, make_output


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", LOSSES)
def test_gradients_are_those_of_float64_rounded_to_the_type(kind, dtype):
    scores = make_output().detach().to(dtype)
    results = []
    for own in (dtype, torch.float64):
        output = scores.to(own, copy=True).requires_grad_()
        loss = make_loss(kind, l2_regularize=0.01)
        value = loss(output, LENGTHS, make_graphs())
        value.backward()
        assert output.grad.dtype == own and value.dtype == torch.float64
        results.append((value.detach(), output.grad))
    close(results[0][0], results[1][0], tolerances.OCCUPANCY)
    close(results[0][1], results[1][1], tolerances.OCCUPANCY + torch.finfo(dtype).eps)
