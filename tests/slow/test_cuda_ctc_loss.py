"""`ctc_loss` of scores on a device, its kernels run on the host: values, gradients and errors are those of the host."""

from contextlib import nullcontext

import numpy as np
import pytest
import tolerances
import torch
from device_arrays import assert_same_bits, needs_host_compiler, on_device, read

from fsachain import DataError, Forgiveness
from fsachain.backends.cuda.ctc import Sizes, Targets, Task
from fsachain.backends.cuda.ctc import ctc as by_kernels
from fsachain.loss.ctc import ctc, ctc_loss
from tools.cuda_on_host import HostDevice, pretended

pytestmark = needs_host_compiler

FRAMES, CLASSES = 8, 6
TARGETS = torch.tensor([[1, 2, 2], [3, 0, 0], [5, 5, 5], [0, 0, 0]])
TARGET_LENGTHS, LENGTHS = [3, 1, 3, 0], [8, 5, 4, 2]


def random_scores(dtype=torch.float32, scale=1.0, shape=(FRAMES, 4, CLASSES)):
    generator = torch.Generator().manual_seed(0)
    scores = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
    return scores.to(dtype).requires_grad_()


def assert_like_the_reference(scores, *arguments, factor=1.0, **options):
    """Loss and gradient by the kernels; the second backward pass is the last and writes over what the forward pass left."""
    found = []
    for backend, pretend in (("auto", pretended), ("reference", nullcontext)):
        scores.grad = None
        with pretend() as device:
            loss = ctc_loss(scores, *arguments, backend=backend, **options)
            total = factor * (loss * torch.arange(1, 1 + loss.numel()).view(loss.shape)).sum()
            first = torch.autograd.grad(total, scores, retain_graph=True)[0]
            total.backward()
        text = "forward_backward.cu" if options.get("forgive") else "ctc.cu"
        assert device is None or any(launch.kernel.text == text for launch in device.launches)
        assert torch.equal(first, scores.grad)
        found.append((loss.detach(), scores.grad))
    (loss, gradient), (expected, expected_gradient) = found
    limit = tolerances.LOG_PROB_RELATIVE
    torch.testing.assert_close(loss, expected, rtol=limit, atol=limit * tolerances.LOG_PROB_FLOOR)
    torch.testing.assert_close(gradient, expected_gradient, rtol=0.0, atol=tolerances.OCCUPANCY)


@pytest.mark.parametrize(("blank", "scale"), [(3, 1.0), (5, 30.0)])
def test_any_class_may_be_the_blank_at_any_magnitude(blank, scale):
    targets = (TARGETS + blank) % CLASSES
    options = {"inputs": "logits", "reduction": "none", "zero_infinity": True}
    scores = random_scores(scale=scale)
    assert_like_the_reference(scores, targets, LENGTHS, TARGET_LENGTHS, blank, **options)


def test_more_classes_than_a_warp_holds_at_once():
    targets = torch.tensor([[700, 3, 700], [1299, 0, 0]])
    scores = random_scores(scale=2.0, shape=(4, 2, 1300))
    assert_like_the_reference(scores, targets, [4, 2], [3, 1], inputs="logits", reduction="none")


@pytest.mark.parametrize("forgive", [None, Forgiveness(1.0, 0.5, 0.7)])
@pytest.mark.parametrize("factor", [1.0, -3.0])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_sum_or_mean_and_its_gradient_are_those_of_the_reference(reduction, factor, forgive):
    """One target has no path."""
    options = {"inputs": "logits", "reduction": reduction, "zero_infinity": True, "forgive": forgive}
    scores = random_scores()
    assert_like_the_reference(scores, TARGETS, LENGTHS, TARGET_LENGTHS, factor=factor, **options)


def test_the_operator_keeps_its_promises_to_torch():
    lengths = torch.tensor(LENGTHS), torch.tensor(TARGET_LENGTHS)
    scores = random_scores(torch.float64)
    options = 0, "logits", "standard", 0.0, "warn", "", "auto", "mean", False, True, None, [], "mean", 0
    arguments = scores, TARGETS, *lengths, torch.empty(0), *options
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    with pretended():
        registered = ctc.registered
        torch.library.opcheck(registered.op, tuple(registered.arguments(arguments)), test_utils=tests)


@pytest.mark.parametrize("forgive", [None, Forgiveness(1.0, 0.5, 0.7)])
def test_rows_that_do_not_sum_to_one_are_refused_where_that_was_asked_for(forgive):
    options = {"unnormalized": "error", "forgive": forgive}
    with pretended():
        ctc_loss(random_scores().log_softmax(2), TARGETS, LENGTHS, TARGET_LENGTHS, **options)
        with pytest.raises(
            DataError, match=r"sequence 0: the probabilities of frame [0-7] sum to .*; expected 1"
        ):
            ctc_loss(random_scores(), TARGETS, LENGTHS, TARGET_LENGTHS, **options)


def random_logits(size=5):
    return (2.0 * np.random.default_rng(0).normal(size=(size, 9, 7))).astype(np.float32)


# A label twice in a row and twice apart, one label, none, one too many for its frames, one that needs all of them.
LABELS, FRAMES_OF_EACH = [[1, 2, 2, 3, 1], [5], [], [1, 1, 1, 1], [4, 4, 6]], [9, 8, 3, 6, 4]


def run(device, logits, labels=LABELS, lengths=FRAMES_OF_EACH):
    """Losses [N] and gradient [N, T, C] by the kernels alone, with labels that the device alone knows, in small blocks."""
    counts = np.array([len(own) for own in labels])
    rows = np.full((len(labels), max(counts)), 99)
    for row, own in zip(rows, labels, strict=True):
        row[: len(own)] = own
    scores, given = on_device(device, logits), Targets(on_device(device, rows), counts)
    gradient = on_device(device, np.full(logits.shape, np.nan, np.float32))
    loss = by_kernels(device, scores, given, np.array(lengths), Task(0), gradient, sizes=Sizes(64, 32))
    return loss.read(np.float64), read(gradient)


def test_illegal_logits_and_labels_touch_only_their_own_sequence():
    """NaN in any class, +inf, a row of nothing but -inf, a label that is the blank or no class: NaN and no gradient."""
    logits = random_logits(7)
    logits[0, 2, 6] = np.nan
    logits[1, 0, 1] = np.inf
    logits[2, 3] = -np.inf
    labels, device = [[1, 2]] * 3 + [[1, 0], [7], [-1], [1, 2]], HostDevice()
    loss, gradient = run(device, logits, labels, [9] * 7)
    assert np.isnan(loss[:6]).all() and not gradient[:6].any()
    alone = run(device, logits[6:], labels[6:], [9])
    assert np.isfinite(alone[0]).all() and alone[1].any()
    assert_same_bits(alone, (loss[6:], gradient[6:]))
