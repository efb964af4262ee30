"""Logits and the grid on a device, the kernels run on the host: the oracle's scores and gradients, whatever lies beside."""

import numpy as np
import pytest
import tolerances
import torch
from device_arrays import (
    WithFarMemory,
    assert_same_bits,
    far_memory,
    needs_host_compiler,
    on_device,
    read,
    strided,
    upper_halves,
)
from random_rows import KINDS, empty_scores, is_real, make_logits, make_rows
from rnnt_inputs import BLANK, FRAMES, LABELS, WIDTH, close, make_targets
from rnnt_inputs import make_logits as rnnt_logits

from fsachain import rnnt_loss, rnnt_loss_pruned
from fsachain.backends.cuda.device import DeviceArray
from fsachain.backends.cuda.grid import LogitRows, RowPlan
from fsachain.backends.dispatch import grid
from fsachain.backends.reference import grid as reference_grid
from fsachain.grid import REGULAR
from fsachain.loss.arguments import given
from fsachain.loss.arguments import make_rows as rows_of
from fsachain.loss.rnnt import grid_batch, rnnt_call
from tools.cuda_on_host import HostDevice, pretended

pytestmark = needs_host_compiler

LIMIT = 0.3
SMALL = RowPlan(64)  # a thread of the host stands for each
WEIGHTS = np.array([1.0, -0.5, 2.0, 0.25, 1e-3])
of_every_kind = pytest.mark.parametrize("kind", KINDS)
of_kinds_and_layouts = pytest.mark.parametrize(
    ("layout", "kind"),
    [
        ("padded", "regular"),
        ("packed", "multi-blank"),
        ("pruned", "regular"),
        ("packed", "hat"),
        ("padded", "tdt"),
    ],
)


def occupancies(rows, seed=3):
    """Positive numbers in the place of g, with some nodes without any."""
    generator = np.random.default_rng(seed)
    shape = empty_scores(rows).shape
    return generator.random(shape) * (generator.random(shape[1]) < 0.8)


def as_array(device, given):
    return given if isinstance(given, DeviceArray) else on_device(device, given)


def run_scores(rows, logits, device, **options):
    """Scores [K, cells], and the statistics as the gradient takes them."""
    values = on_device(device, empty_scores(rows))
    work = LogitRows(device, rows, as_array(device, logits), **{"plan": SMALL, **options})
    stats = work.scores(values, False)
    return read(values), stats


def run(rows, logits, g, limit=np.inf, weights=WEIGHTS, out=None, device=None, **options):
    """Scores [K, cells] and the gradient, in the type of the logits."""
    device = device or HostDevice()
    there = as_array(device, logits)
    scores, stats = run_scores(rows, there, device, **options)
    factors = on_device(device, weights[: len(rows.sequences)])
    into = there if out is None else out
    work = LogitRows(device, rows, there, into, **{"plan": SMALL, **options})
    work.gradient(stats, on_device(device, g), factors, limit)
    return scores, read(into)


def by_oracle(rows, logits, g, limit=np.inf, weights=WEIGHTS):
    scores, exact = empty_scores(rows), np.array(logits, np.float64)
    exact[~is_real(rows)] = 0.0  # what lies in padding is not looked at
    stats = reference_grid.row_scores(rows, exact, False, scores)
    gradient = np.zeros(exact.shape)
    reference_grid.row_gradient(rows, exact, stats, g, weights, limit, gradient)
    return scores, gradient


def assert_close(found, expected, wide):
    limits = (tolerances.ROUNDING,) * 2
    if not wide:
        limits = tolerances.FEW_FLOAT32_TERMS, tolerances.FLOAT32_GRADIENT
    np.testing.assert_allclose(found[0], expected[0], rtol=limits[0], atol=limits[0])
    np.testing.assert_allclose(found[1], expected[1], rtol=0, atol=limits[1])


@of_kinds_and_layouts
def test_scores_and_gradients_are_the_oracles_in_every_layout(layout, kind):
    rows = make_rows(layout, KINDS[kind], 40)
    for dtype, scale in ((np.float32, 1.0), (np.float32, 1000.0), (np.float64, 30.0)):
        logits, g = make_logits(rows, scale).astype(dtype), occupancies(rows)
        for limit in (np.inf, LIMIT):
            found, expected = run(rows, logits, g, limit), by_oracle(rows, logits, g, limit)
            assert_close(found, expected, dtype == np.float64)
            assert not found[1][~is_real(rows)].any()


@pytest.mark.parametrize("num_classes", [5, 33, 65, 257, 513, 1100])
def test_rows_of_any_length(num_classes):
    rows = make_rows("padded", KINDS["regular"], num_classes)
    for dtype in (np.float32, np.float64):
        logits, g = make_logits(rows, 5.0).astype(dtype), occupancies(rows)
        assert_close(run(rows, logits, g), by_oracle(rows, logits, g), dtype == np.float64)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_logits_are_read_and_half_gradients_written(dtype):
    """In place, and from and to float32 beside them."""
    rows = make_rows("padded", KINDS["regular"], 40)
    logits, g = make_logits(rows, 3.0, padding=0.0), occupancies(rows)
    given, same = upper_halves(logits) if dtype == "bfloat16" else [logits.astype(dtype)] * 2
    expected = by_oracle(rows, same, g)
    device = HostDevice()
    beside = on_device(device, np.full(logits.shape, np.nan, np.float32))
    assert_close(run(rows, given, g, out=beside, device=device), expected, False)
    there = on_device(device, given)
    scores, written = run(rows, there, g, device=device)
    if dtype == "bfloat16":
        written = (written.astype(np.uint32) << 16).view(np.float32)
    assert_close((scores, expected[1]), expected, False)
    step = tolerances.ELEMENT_ROUNDING[dtype]
    np.testing.assert_allclose(written, expected[1], rtol=step, atol=tolerances.FLOAT32_GRADIENT)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_gradients_are_the_nearest_numbers(dtype):
    """From below the smallest to beyond the largest one, ties to even."""
    rows = make_rows("packed", KINDS["regular"], 5, np.array([[40, 9]]))
    g = np.float32(10.0) ** np.random.default_rng(2).uniform(-9, 6, empty_scores(rows).shape)
    g[0, :8] = np.array(
        [1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 65519, 65520, 3e-8, 2.0**-25]
    )
    device = HostDevice()
    bits = np.zeros((g.shape[1], 5), np.uint16 if dtype == "bfloat16" else dtype)
    there = on_device(device, bits)
    weights = on_device(device, -np.ones(1))
    LogitRows(device, rows, there, plan=SMALL).gradient(None, on_device(device, g), weights, np.inf)
    expected = torch.from_numpy(g[0]).to(torch.float32).to(getattr(torch, dtype))
    found = torch.from_numpy(read(there)[:, 4].view(np.int16)).view(expected.dtype)
    assert torch.equal(found, expected) and torch.isinf(found).any() == (dtype == "float16")


@of_every_kind
def test_no_bit_depends_on_blocks_spans_or_strides(kind):
    rows = make_rows("padded", KINDS[kind], 70)
    logits, g = make_logits(rows).astype(np.float32), occupancies(rows)
    expected = run(rows, logits, g)
    for plan in (RowPlan(32), RowPlan(256, span=3), RowPlan(64, span=1), RowPlan(64, span=7)):
        assert_same_bits(run(rows, logits, g, plan=plan), expected)
    device = HostDevice()
    spread, into = strided(device, logits), on_device(device, np.zeros_like(logits))
    assert_same_bits(run(rows, spread, g, out=into, device=device), expected)


def test_rows_lie_beyond_31_bits():
    """The second sequence's first row begins at element 2^31 and more; float32 in place."""
    width, kind = 8192, KINDS["regular"]
    near = make_rows("packed", kind, width, np.array([[2, 1], [2, 1]]))
    logits, g = make_logits(near).astype(np.float32), occupancies(near)
    expected = run(near, logits, g)
    far_row = (1 << 31) // width + 3
    rows = near._replace(sequences=near.sequences.copy())
    rows.sequences[1, 0] = far_row
    memory = far_memory(width * (far_row + 4))
    there = memory.reshape(-1, width)
    there[:4], there[far_row:] = logits[:4], logits[4:]
    device = WithFarMemory()
    array = DeviceArray(memory.ctypes.data, "float32", there.shape, (width, 1), None)
    scores, stats = run_scores(rows, array, device)
    np.testing.assert_array_equal(scores, expected[0])
    weights = on_device(device, WEIGHTS[:2])
    LogitRows(device, rows, array, plan=SMALL).gradient(stats, on_device(device, g), weights, np.inf)
    np.testing.assert_array_equal(np.concatenate([there[:4], there[far_row:]]), expected[1])


# Targets and ranges that the device alone knows are read there.


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
    placed = rows_of(list(logits.shape), call)
    assert placed.targets is not None and placed.rows.targets.size == 0
    with pretended():
        ours = grid(logits, "auto")
        values, _ = ours.scores(placed, logits.detach(), is_normalized)
        return ours.log_probs(grid_batch(placed.rows, call.starts, np.array(REGULAR)), values)


def test_targets_of_a_device_are_read_there_and_illegal_ones_make_their_sequence_nan():
    logits = rnnt_logits().detach()
    expected = -rnnt_loss(logits, *SIZES, BLANK, reduction="none")
    close(place(logits, TARGETS), expected)
    wrong = TARGETS.clone()
    wrong[0, 1], wrong[3, 4] = WIDTH, -5  # the second one is padding
    found = place(logits, wrong)
    assert torch.isnan(found[0])
    close(found[1:], expected[1:])
    wrong = TARGETS.clone()
    wrong[1, 0] = BLANK  # which no softmax of labels has
    found = place(logits, wrong, heads=[WIDTH, BLANK])
    assert torch.isnan(found[1]) and torch.isfinite(found[[0, 2, 3]]).all()


def test_ranges_of_a_device_are_read_there_and_illegal_ones_make_their_sequence_nan():
    first = torch.tensor([[0, 0, 1, 1, 2, 2, 2, 2, 2]] * 4)
    ranges = first.unsqueeze(2) + torch.arange(4)
    logits = rnnt_logits().detach()[:, :, :4].contiguous()
    expected = -rnnt_loss_pruned(logits, TARGETS, ranges, BLANK, BOUNDARY, reduction="none")
    close(place(logits, TARGETS, ranges), expected)
    ranges[0] += 3
    ranges[3, 0, 2] = 7
    for is_normalized, rows in ((False, logits), (True, logits.log_softmax(3))):
        found = place(rows, TARGETS, ranges, is_normalized=is_normalized)
        assert torch.isnan(found[[0, 3]]).all()
        close(found[1:3], expected[1:3])
