"""The kernel that reduces losses, run on the host: what it writes is what numpy makes of the same numbers."""

import numpy as np
import pytest
import tolerances
from device_arrays import needs_host_compiler, on_device, read

from fsachain.backends.cuda.backend import Reduced, reduce_losses
from tools.cuda_on_host import HostDevice

pytestmark = needs_host_compiler

COUNTS = np.array([3, 0, 1, 40, 7] * 60)  # more sequences than threads


def make_costs(*others):
    costs = np.random.default_rng(0).random(len(COUNTS))
    costs[: len(others)] = others
    return costs


def run(device, found, is_log_prob=False, counts=None, is_mean=False, zero_infinity=False, dtype=np.float64):
    """Used shares, the losses and their total."""
    there, size = on_device(device, found), len(found)
    used, each, total = (
        on_device(device, np.full(n, np.nan, kind)) for n, kind in ((size, float), (size, dtype), (1, dtype))
    )
    labels = None if counts is None else device.upload([counts])[0]
    given = device, there, is_log_prob, labels, size
    reduce_losses(*given, Reduced(is_mean, zero_infinity, used, each, None))
    reduce_losses(*given, Reduced(is_mean, zero_infinity, None, None, total))
    return read(used), read(each), float(read(total)[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("is_mean", [False, True])
@pytest.mark.parametrize("counts", [None, COUNTS])
def test_sums_and_means_over_sequences_and_labels(counts, is_mean, dtype):
    costs = make_costs()
    shares = 1.0 / (len(costs) * np.maximum(1 if counts is None else counts, 1)) if is_mean else 1.0
    shares = np.broadcast_to(shares, costs.shape)
    used, each, total = run(HostDevice(), costs, False, counts, is_mean, dtype=dtype)
    np.testing.assert_array_equal(used, shares)
    np.testing.assert_array_equal(each, costs.astype(dtype))
    rounding = tolerances.FLOAT64 if dtype == np.float64 else float(np.finfo(dtype).eps)
    assert total == pytest.approx(float(shares @ costs), rel=rounding)


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_infinite_losses_have_no_share_and_count_as_zero_where_that_was_asked_for(zero_infinity):
    used, each, total = run(HostDevice(), make_costs(np.inf, 0.5), zero_infinity=zero_infinity)
    assert used[0] == 0.0 and (used[1:] == 1.0).all()
    assert each[0] == (0.0 if zero_infinity else np.inf) and each[1] == 0.5
    assert np.isfinite(total) == zero_infinity
    used, each, total = run(HostDevice(), make_costs(0.5, np.nan), zero_infinity=zero_infinity)
    assert used[1] == 0.0 and np.isnan(each[1]) and np.isnan(total)


def test_log_z_of_no_frames_costs_zero_and_not_minus_zero():
    used, each, _ = run(HostDevice(), make_costs(0.0, -np.inf, 2.0), True)
    assert each[:3].tolist() == [0.0, np.inf, -2.0] and not np.signbit(each[0])
    assert used[:3].tolist() == [1.0, 0.0, 1.0]
