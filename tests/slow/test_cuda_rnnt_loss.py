"""Transducer losses of tensors on a device, its kernels run on the host: values and gradients are those of the host."""

from contextlib import nullcontext

import numpy as np
import pytest
import tolerances
import torch
from device_arrays import needs_host_compiler
from rnnt_inputs import BLANK, FRAMES, LABELS, TYPES, WIDTH, make_logits, make_targets, pack

from fsachain import (
    Forgiveness,
    do_rnnt_pruning,
    get_rnnt_prune_ranges,
    hat_lattice,
    hat_loss,
    multi_blank_loss,
    rnnt_lattice,
    rnnt_loss,
    rnnt_loss_pruned,
    rnnt_loss_simple,
    rnnt_loss_smoothed,
    tdt_lattice,
    tdt_loss,
    transducer_loss,
)
from fsachain.backends.dispatch import grid
from fsachain.grid import REGULAR
from fsachain.loss.arguments import given, make_rows
from fsachain.loss.rnnt import grid_batch, rnnt_call
from tools.cuda_on_host import pretended

pytestmark = needs_host_compiler

DURATIONS = [0, 1, 2]
TARGETS = make_targets() % BLANK  # without the blank and without the last classes
SIZES = TARGETS, FRAMES, LABELS
BOUNDARY = torch.tensor([[0, 0, u, t] for t, u in zip(FRAMES, LABELS, strict=True)])
WEIGHTS = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)

LOSSES = {
    "regular": lambda x: rnnt_loss(x, *SIZES, BLANK, reduction="none"),
    "modified": lambda x: rnnt_loss(x, *SIZES, BLANK, reduction="none", rnnt_type="modified"),
    "constrained": lambda x: rnnt_loss(x, *SIZES, BLANK, reduction="none", rnnt_type="constrained", fastemit_lambda=0.1),
    "log-probs": lambda x: rnnt_loss(x.log_softmax(3), *SIZES, BLANK, reduction="none", fused_log_softmax=False),
    "packed": lambda x: rnnt_loss(pack(x), *SIZES, BLANK, reduction="none"),
    "options": lambda x: rnnt_loss(
        x, *SIZES, BLANK, 0.1, "none", fastemit_lambda=0.3, delay_penalty=0.2, zero_infinity=True
    ),
    "forgiving": lambda x: rnnt_loss(x, *SIZES, BLANK, reduction="none", forgive=Forgiveness(1.0, 0.5, 0.7, "sum")),
    "in place": lambda x: rnnt_loss(2.0 * x, *SIZES, BLANK, reduction="none", inplace=True),
    "multi-blank": lambda x: multi_blank_loss(x, *SIZES, {10: 2, 9: 4}, BLANK, reduction="none", sigma=0.1),
    "hat": lambda x: hat_loss(x, *SIZES, BLANK, "none"),
    "tdt": lambda x: tdt_loss(x, *SIZES, DURATIONS, BLANK, "none", sigma=0.1),
}  # fmt: skip


def both(call, *inputs):
    """Losses and gradients on the pretended device and on the host."""
    found = []
    for pretend in (pretended, nullcontext):
        own = [x.detach().clone().requires_grad_() for x in inputs]
        with pretend() as device:
            losses = call(*own)
            losses.backward(WEIGHTS[: losses.numel()].view(losses.shape))
        assert device is None or any(launch.kernel.text == "grid.cu" for launch in device.launches)
        found.append((losses.detach(), *(x.grad for x in own)))
    return found


def assert_equal(found, limit=tolerances.FLOAT64):
    for ours, theirs in zip(*found, strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=limit, atol=limit)


def test_a_frame_on_which_nothing_is_possible_is_not_forgiven():
    logits = make_logits(3.0).detach()
    logits[1, 1] = -torch.inf
    found = both(LOSSES["forgiving"], logits)
    assert_equal(found)
    assert found[0][0].isinf().tolist() == [n == 1 for n in range(len(logits))]


@pytest.mark.parametrize("kind", LOSSES)
def test_losses_and_gradients_are_those_of_the_host(kind):
    assert_equal(both(LOSSES[kind], make_logits(3.0)))


@pytest.mark.parametrize("rnnt_type", TYPES)
@pytest.mark.parametrize("loss", [rnnt_loss_simple, rnnt_loss_smoothed])
def test_pruned_training_is_that_of_the_host(loss, rnnt_type):
    generator = torch.Generator().manual_seed(3)
    am = torch.randn(4, max(FRAMES), WIDTH, generator=generator)
    lm = torch.randn(4, max(LABELS) + 1, WIDTH, generator=generator)
    options = {"boundary": BOUNDARY, "rnnt_type": rnnt_type, "delay_penalty": 0.1}

    def both_losses(am, lm):
        simple, occupancy = loss(lm, am, TARGETS, BLANK, reduction="none", return_grad=True, **options)
        ranges = get_rnnt_prune_ranges(*occupancy, BOUNDARY, 3)
        kept_am, kept_lm = do_rnnt_pruning(am, lm, ranges)
        pruned = rnnt_loss_pruned(kept_am + kept_lm, TARGETS, ranges, BLANK, reduction="none", **options)
        # A modified path has a label a frame at most: the second sequence has none.
        return torch.where(torch.isfinite(simple), simple + pruned, 0.0)

    assert_equal(both(both_losses, am, lm), tolerances.OCCUPANCY)


@pytest.mark.parametrize("rnnt_type", TYPES)
def test_the_joiner_inside(rnnt_type):
    generator = torch.Generator().manual_seed(9)
    shapes = (4, max(FRAMES), 6), (4, max(LABELS) + 1, 6), (6, WIDTH)
    options = {"rnnt_type": rnnt_type, "delay_penalty": 0.1, "fastemit_lambda": 0.2, "zero_infinity": True}

    def call(encoder, predictor, weight):
        def joiner(frames, labels):
            return torch.nn.functional.dropout(torch.tanh(frames + labels), 0.3) @ weight

        torch.manual_seed(1)
        parts = encoder, predictor, joiner
        return transducer_loss(*parts, *SIZES, BLANK, reduction="none", parameters=[weight], **options)

    inputs = [torch.randn(shape, generator=generator) for shape in shapes]
    assert_equal(both(call, *inputs), tolerances.OCCUPANCY)


LATTICES = {
    "regular": lambda x: rnnt_lattice(x, *SIZES, BLANK, delay_penalty=0.3),
    "constrained": lambda x: rnnt_lattice(x, *SIZES, BLANK, rnnt_type="constrained"),
    "log-probs": lambda x: rnnt_lattice(x.log_softmax(3), *SIZES, BLANK, False),
    "hat": lambda x: hat_lattice(x, *SIZES, BLANK),
    "tdt": lambda x: tdt_lattice(x, *SIZES, DURATIONS, BLANK),
}


@pytest.mark.parametrize("kind", LATTICES)
def test_lattices_occupancies_and_alignments(kind):
    x = make_logits(3.0).detach()
    expected = LATTICES[kind](x)
    with pretended():
        lattice = LATTICES[kind](x)
        occupancy, alignments, log_prob = lattice.occupancy(), lattice.best_alignment(), lattice.log_prob()
    usable = torch.isfinite(expected.scores)
    assert torch.equal(usable, torch.isfinite(lattice.scores))
    limit = tolerances.FLOAT64
    torch.testing.assert_close(lattice.scores[usable], expected.scores[usable], rtol=limit, atol=limit)
    torch.testing.assert_close(log_prob, expected.log_prob(), rtol=limit, atol=limit)
    for ours, theirs in zip(occupancy, expected.occupancy(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=limit, atol=limit)
    for ours, theirs in zip(alignments, expected.best_alignment(), strict=True):
        assert ours.score == pytest.approx(theirs.score, abs=limit)
        np.testing.assert_array_equal(ours.arcs, theirs.arcs)
        np.testing.assert_array_equal(ours.frames, theirs.frames)


def place(logits, targets, ranges=None, heads=None, is_normalized=False):
    """log Z where targets and ranges are known to the device alone, as those of CUDA tensors are."""

    class There(torch.Tensor):
        is_cpu = False

    def there(tensor):
        return tensor.as_subclass(There)

    heads = heads or [WIDTH, -1]
    call = rnnt_call(logits, given(logits, TARGETS, FRAMES, LABELS), REGULAR, [BLANK, -1], heads=heads)
    call = call._replace(targets=there(targets))
    if ranges is not None:
        call = call._replace(ranges=there(ranges))
    placed = make_rows(list(logits.shape), call)
    assert placed.targets is not None and placed.rows.targets.size == 0
    with pretended():
        ours = grid(logits, "auto")
        values, _ = ours.scores(placed, logits.detach(), is_normalized)
        return ours.log_probs(grid_batch(placed.rows, call.starts, np.array(REGULAR)), values)


def test_targets_of_a_device_are_read_there_and_illegal_ones_make_their_sequence_nan():
    logits = make_logits().detach()
    expected = -rnnt_loss(logits, *SIZES, BLANK, reduction="none")
    limit = tolerances.FLOAT64
    torch.testing.assert_close(place(logits, TARGETS), expected, rtol=limit, atol=limit)
    wrong = TARGETS.clone()
    wrong[0, 1], wrong[3, 4] = WIDTH, -5  # the second one is padding
    found = place(logits, wrong)
    assert torch.isnan(found[0])
    torch.testing.assert_close(found[1:], expected[1:], rtol=limit, atol=limit)
    wrong = TARGETS.clone()
    wrong[1, 0] = BLANK  # which no softmax of labels has
    found = place(logits, wrong, heads=[WIDTH, BLANK])
    assert torch.isnan(found[1]) and torch.isfinite(found[[0, 2, 3]]).all()


def test_ranges_of_a_device_are_read_there_and_illegal_ones_make_their_sequence_nan():
    first = torch.tensor([[0, 0, 1, 1, 2, 2, 2, 2, 2]] * 4)
    ranges = first.unsqueeze(2) + torch.arange(4)
    logits = make_logits().detach()[:, :, :4].contiguous()
    expected = -rnnt_loss_pruned(logits, TARGETS, ranges, BLANK, BOUNDARY, reduction="none")
    limit = tolerances.FLOAT64
    torch.testing.assert_close(place(logits, TARGETS, ranges), expected, rtol=limit, atol=limit)
    ranges[0] += 3
    ranges[3, 0, 2] = 7
    for is_normalized, rows in ((False, logits), (True, logits.log_softmax(3))):
        found = place(rows, TARGETS, ranges, is_normalized=is_normalized)
        assert torch.isnan(found[[0, 3]]).all()
        torch.testing.assert_close(found[1:3], expected[1:3], rtol=limit, atol=limit)
