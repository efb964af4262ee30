"""Targets and ranges that the device alone knows are read there, and illegal ones make their sequence NaN.

What holds of the losses themselves: test_cuda_every_loss.py.
"""

import numpy as np
import torch
from device_arrays import needs_host_compiler
from rnnt_inputs import BLANK, FRAMES, LABELS, WIDTH, make_logits, make_targets
from tolerances import FLOAT64

from fsachain import rnnt_loss, rnnt_loss_pruned
from fsachain.backends.dispatch import grid
from fsachain.grid import REGULAR
from fsachain.loss.arguments import given, make_rows
from fsachain.loss.rnnt import grid_batch, rnnt_call
from tools.cuda_on_host import pretended

pytestmark = needs_host_compiler

TARGETS = make_targets() % BLANK  # without the blank and without the last classes
SIZES = TARGETS, FRAMES, LABELS
BOUNDARY = torch.tensor([[0, 0, u, t] for t, u in zip(FRAMES, LABELS, strict=True)])


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
    torch.testing.assert_close(place(logits, TARGETS), expected, rtol=FLOAT64, atol=FLOAT64)
    wrong = TARGETS.clone()
    wrong[0, 1], wrong[3, 4] = WIDTH, -5  # the second one is padding
    found = place(logits, wrong)
    assert torch.isnan(found[0])
    torch.testing.assert_close(found[1:], expected[1:], rtol=FLOAT64, atol=FLOAT64)
    wrong = TARGETS.clone()
    wrong[1, 0] = BLANK  # which no softmax of labels has
    found = place(logits, wrong, heads=[WIDTH, BLANK])
    assert torch.isnan(found[1]) and torch.isfinite(found[[0, 2, 3]]).all()


def test_ranges_of_a_device_are_read_there_and_illegal_ones_make_their_sequence_nan():
    first = torch.tensor([[0, 0, 1, 1, 2, 2, 2, 2, 2]] * 4)
    ranges = first.unsqueeze(2) + torch.arange(4)
    logits = make_logits().detach()[:, :, :4].contiguous()
    expected = -rnnt_loss_pruned(logits, TARGETS, ranges, BLANK, BOUNDARY, reduction="none")
    torch.testing.assert_close(place(logits, TARGETS, ranges), expected, rtol=FLOAT64, atol=FLOAT64)
    ranges[0] += 3
    ranges[3, 0, 2] = 7
    for is_normalized, rows in ((False, logits), (True, logits.log_softmax(3))):
        found = place(rows, TARGETS, ranges, is_normalized=is_normalized)
        assert torch.isnan(found[[0, 3]]).all()
        torch.testing.assert_close(found[1:3], expected[1:3], rtol=FLOAT64, atol=FLOAT64)
