"""`ctc_loss` of scores on a device, its kernels run on the host: values, gradients and errors are those of the host."""

from contextlib import nullcontext
from typing import get_args

import pytest
import tolerances
import torch
from device_arrays import needs_host_compiler

from fsachain import DataError, Forgiveness
from fsachain.graph.ctc import CtcTopology
from fsachain.loss.ctc import ctc, ctc_loss
from tools.cuda_on_host import pretended

pytestmark = needs_host_compiler

FRAMES, CLASSES = 8, 6
TARGETS = torch.tensor([[1, 2, 2], [3, 0, 0], [5, 5, 5], [0, 0, 0]])
TARGET_LENGTHS, LENGTHS = [3, 1, 3, 0], [8, 5, 4, 2]


def random_scores(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(FRAMES, 4, CLASSES, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    )


def both(scores, *arguments, text="ctc.cu", **options):
    """Loss and gradient on the pretended device, whose kernels are in a text, and by the reference."""
    found = []
    for backend, pretend in (("auto", pretended), ("reference", nullcontext)):
        scores.grad = None
        with pretend() as device:
            loss = ctc_loss(scores, *arguments, backend=backend, **options)
        assert device is None or any(launch.kernel.text == text for launch in device.launches)
        (loss * torch.arange(1, 1 + loss.numel()).view(loss.shape)).sum().backward()
        found.append((loss.detach(), scores.grad.clone()))
    return found


def assert_equal(found, rounding=0.0):
    (loss, gradient), (expected, expected_gradient) = found
    assert loss.dtype == expected.dtype and gradient.dtype == expected_gradient.dtype
    torch.testing.assert_close(loss, expected, rtol=0, atol=tolerances.log_prob_tolerance(0.0))
    atol = tolerances.OCCUPANCY + rounding
    torch.testing.assert_close(gradient, expected_gradient, rtol=rounding, atol=atol)


@pytest.mark.parametrize("topology", get_args(CtcTopology))
@pytest.mark.parametrize("inputs", ["logits", "log_probs"])
def test_losses_and_gradients_are_those_of_the_reference(inputs, topology):
    scores = random_scores()
    if inputs == "log_probs":
        scores = scores.detach().log_softmax(2).requires_grad_()
    arguments = TARGETS, LENGTHS, TARGET_LENGTHS
    options = {"inputs": inputs, "topology": topology, "reduction": "none", "zero_infinity": True}
    assert_equal(both(scores, *arguments, **options))
    priors = torch.linspace(-1.0, 1.0, CLASSES)
    assert_equal(both(scores, *arguments, log_priors=priors, delay_penalty=0.2, **options))


@pytest.mark.parametrize("forgive", [None, Forgiveness(1.0, 0.5, 0.7)])
@pytest.mark.parametrize("factor", [1.0, -3.0])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_sum_or_mean_and_its_gradient_are_those_of_the_reference(reduction, factor, forgive):
    """One target has no path. The second backward pass is the last and writes over what the forward pass left."""
    options = {"inputs": "logits", "reduction": reduction, "zero_infinity": True, "forgive": forgive}
    found = []
    for backend, pretend in (("auto", pretended), ("reference", nullcontext)):
        scores = random_scores()
        with pretend():
            loss = ctc_loss(scores, TARGETS, LENGTHS, TARGET_LENGTHS, backend=backend, **options)
            first = torch.autograd.grad(factor * loss, scores, retain_graph=True)[0]
            (factor * loss).backward()
        assert torch.equal(first, scores.grad)
        found.append((loss.detach(), scores.grad))
    assert_equal(found)


def test_the_operator_keeps_its_promises_to_torch():
    lengths = torch.tensor(LENGTHS), torch.tensor(TARGET_LENGTHS)
    scores = random_scores(torch.float64)
    options = 0, "logits", "standard", 0.0, "warn", "", "auto", "mean", False, True, None, [], "mean", 0
    arguments = scores, TARGETS, *lengths, torch.empty(0), *options
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    with pretended():
        torch.library.opcheck(ctc.op, arguments, test_utils=tests)


@pytest.mark.parametrize("star", ["mean", "sum"])
def test_losses_of_targets_that_may_be_wrong_are_those_of_the_reference(star):
    options = {"inputs": "logits", "reduction": "none", "forgive": Forgiveness(1.0, 0.5, 0.7, star)}
    arguments = random_scores(), TARGETS, LENGTHS, TARGET_LENGTHS
    assert_equal(both(*arguments, text="forward_backward.cu", **options))


@pytest.mark.parametrize("forgive", [None, Forgiveness(1.0, 0.5, 0.7)])
def test_rows_that_do_not_sum_to_one_are_refused_where_that_was_asked_for(forgive):
    options = {"unnormalized": "error", "forgive": forgive}
    with pretended():
        ctc_loss(random_scores().log_softmax(2), TARGETS, LENGTHS, TARGET_LENGTHS, **options)
        with pytest.raises(
            DataError, match=r"sequence 0: the probabilities of frame [0-7] sum to .*; expected 1"
        ):
            ctc_loss(random_scores(), TARGETS, LENGTHS, TARGET_LENGTHS, **options)
