"""CTC on the CPU runs few sequences one by one, others in sixteen lanes: no bit depends on which."""

import pytest
import torch
from ctc_inputs import random_batch

from fsachain import DataError, Forgiveness, ctc_loss
from fsachain.backends.cpu import ctc as cpu_ctc

SIZE = 20
FORGIVING = {"forgive": Forgiveness(2.0, 3.0, 1.0, most_left_out=2)}


@pytest.fixture
def one_thread(use_threads):
    use_threads(1)


def run(batch, lanes, dtype, **options):
    """Losses and gradients [T, n, C] of some sequences together."""
    leaf = batch.leaf(dtype).detach()[:, lanes].requires_grad_()
    targets = torch.from_numpy(batch.targets[lanes])
    counts = ([lengths[n] for n in lanes] for lengths in (batch.input_lengths, batch.target_lengths))
    losses = ctc_loss(leaf, targets, *counts, batch.blank, reduction="none", unnormalized="ignore", **options)
    (gradient,) = torch.autograd.grad(losses, leaf, torch.tensor(lanes) + 1.0)
    return losses.detach(), gradient


@pytest.mark.parametrize(
    ("scale", "dtype", "options"),
    [
        (1.0, torch.float32, {"inputs": "logits"}),
        (1.0, torch.float64, {"inputs": "logits"}),
        (1.0, torch.float32, {"topology": "minimal"}),
        (1.0, torch.float32, {"delay_penalty": 0.1}),
        (300.0, torch.float32, {"inputs": "logits"}),
        (1.0, torch.float32, {"inputs": "logits", **FORGIVING}),
        (300.0, torch.float64, {"topology": "minimal", **FORGIVING}),
    ],
)
def test_a_sequence_has_the_same_bits_alone_and_side_by_side(one_thread, scale, dtype, options):
    batch = random_batch(4, SIZE, scale=scale)
    losses, gradient = run(batch, list(range(SIZE)), dtype, **options)
    for lanes in ([0], [7], [SIZE - 1], [2, 0, 5], [9, 1, 4, 3]):
        found = run(batch, lanes, dtype, **options)
        assert torch.equal(found[0], losses[lanes]) and torch.equal(found[1], gradient[:, lanes])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("size", "widths"), [(1, [1]), (3, [1, 1, 1]), (4, [16]), (16, [16]), (20, [16, 16])]
)
def test_sequences_have_as_many_lanes_as_they_need(threads, size, widths, monkeypatch, use_threads):
    """A second thread takes other groups, but no half of one: that would take as long as the whole."""
    use_threads(threads)
    used, real = [], cpu_ctc._run

    def spy(form, *rest):
        used.append(form.width)
        real(form, *rest)

    monkeypatch.setattr(cpu_ctc, "_run", spy)
    batch = random_batch(5, size)
    with torch.no_grad():
        ctc_loss(batch.leaf(torch.float32), *batch.arguments(), inputs="logits")
    assert used == widths


@pytest.mark.parametrize("scale", [1.0, 300.0])
@pytest.mark.parametrize("label", [-1, -(2**60), 7, 2**40])
@pytest.mark.parametrize("n", [0, 9])
def test_an_illegal_label_is_named_however_many_run_beside_its_target(label, n, scale):
    for size in (SIZE, 2):
        batch, n = random_batch(4, size, scale=scale), min(n, size - 1)
        targets = torch.from_numpy(batch.targets)
        targets[n, 0], counts = label, [max(1, count) for count in batch.target_lengths]
        with pytest.raises(DataError, match=rf"targets\[{n}\]\[0\] = {label}; expected a class in \[0, 7\)"):
            ctc_loss(batch.leaf(), targets, batch.input_lengths, counts, batch.blank, inputs="logits")
