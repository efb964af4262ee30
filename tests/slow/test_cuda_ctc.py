"""CTC on a device, its kernels run on the host: loss and gradient are torch's."""

import numpy as np
import pytest
import tolerances
import torch
from device_arrays import on_device, read

from fsachain.backends.cuda.ctc import Sizes, Targets, Task, ctc
from fsachain.backends.cuda.device import DeviceArray
from tools.cuda_on_host import HostDevice, skip_reason

pytestmark = pytest.mark.skipif(skip_reason() is not None, reason=str(skip_reason()))

CLASSES = 7
SMALL = Sizes(64, 32)  # a thread of the host stands for each
# Repeats that need a blank between, one label twice apart, none, one too many for its frames, one that needs all of them.
LABELS = [[1, 2, 2, 3, 1], [5], [], [1, 1, 1, 1], [4, 4, 6]]
LENGTHS = np.array([9, 8, 3, 6, 4])
BLANK = 0


def padded(labels):
    rows = np.full((len(labels), max(1, *map(len, labels))), 99)
    for row, own in zip(rows, labels, strict=True):
        row[: len(own)] = own
    return rows.astype(np.int64)


def random_logits(num_frames=9, classes=CLASSES, size=5, scale=2.0, seed=0):
    return (scale * np.random.default_rng(seed).normal(size=(size, num_frames, classes))).astype(np.float32)


def run(logits, labels=LABELS, lengths=LENGTHS, blank=BLANK, device=None, rows=None, **options):
    """loss [N] and gradient [N, T, C]."""
    device = device or HostDevice()
    array = logits if isinstance(logits, DeviceArray) else on_device(device, logits)
    given = on_device(device, padded(labels) if rows is None else rows)
    dtype = np.float64 if array.dtype == "float64" else np.float32
    gradient = on_device(device, np.full(array.shape, np.nan, dtype))
    targets = Targets(given, np.array([len(own) for own in labels]))
    loss = ctc(device, array, targets, np.asarray(lengths), Task(blank, **options), gradient, sizes=SMALL)
    return loss.read(np.float64), read(gradient)


def by_torch(logits, labels=LABELS, lengths=LENGTHS, blank=BLANK):
    """The same by torch, in float64."""
    leaf = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    counts = torch.tensor([len(own) for own in labels])
    rows = torch.from_numpy(np.clip(padded(labels), 0, logits.shape[2] - 1))
    loss = torch.nn.functional.ctc_loss(
        leaf.log_softmax(2).transpose(0, 1), rows, torch.as_tensor(lengths), counts, blank, reduction="none"
    )
    finite = torch.isfinite(loss)
    torch.where(finite, loss, 0.0).sum().backward()
    gradient = torch.where(finite[:, None, None], leaf.grad, 0.0).numpy()
    return loss.detach().numpy(), gradient


def assert_close(found, expected):
    np.testing.assert_allclose(
        found[0], expected[0], rtol=tolerances.LOG_PROB_RELATIVE, atol=10 * tolerances.LOG_PROB_RELATIVE
    )
    np.testing.assert_allclose(found[1], expected[1], rtol=0, atol=tolerances.OCCUPANCY)


@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("blank", [0, 3, 6])
def test_loss_and_gradient_are_those_of_torch(blank, scale):
    logits = random_logits(scale=scale)
    labels = [[label + (label >= blank) - 1 if blank else label for label in own] for own in LABELS]
    labels = [
        [label % CLASSES if label % CLASSES != blank else (blank + 1) % CLASSES for label in own]
        for own in labels
    ]
    found, expected = run(logits, labels, blank=blank), by_torch(logits, labels, blank=blank)
    assert np.isinf(expected[0][3]) and np.isfinite(expected[0][[0, 1, 2, 4]]).all()
    assert_close(found, expected)
    assert (found[1][np.arange(9) >= LENGTHS[:, None]] == 0.0).all()
    np.testing.assert_allclose(found[1].sum(axis=2), 0.0, atol=tolerances.OCCUPANCY)


def test_more_classes_than_a_warp_holds_at_once():
    logits = random_logits(4, 1300, 2)
    labels, lengths = [[700, 3, 700], [1299]], [4, 2]
    assert_close(run(logits, labels, lengths), by_torch(logits, labels, lengths))


def test_illegal_logits_and_labels_touch_only_their_own_sequence():
    """NaN in any class, +inf, a row of nothing but -inf, a label that is the blank or no class: NaN and no gradient."""
    logits = random_logits(size=7)
    logits[0, 2, 6] = np.nan
    logits[1, 0, 1] = np.inf
    logits[2, 3] = -np.inf
    labels, lengths = [[1, 2]] * 3 + [[1, BLANK], [CLASSES], [-1], [1, 2]], np.full(7, 9)
    loss, gradient = run(logits, labels, lengths)
    assert np.isnan(loss[:6]).all() and not gradient[:6].any()
    assert_close((loss[6:], gradient[6:]), by_torch(logits[6:], labels[6:], lengths[6:]))
