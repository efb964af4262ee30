"""The kernel that reduces losses, run on the host: what it writes is what numpy makes of the same numbers."""

import numpy as np
import pytest
import tolerances
from device_arrays import needs_host_compiler, on_device, read

from fsachain.backends.cuda.backend import Reduced, reduce_losses
from tools.cuda_on_host import HostDevice

pytestmark = needs_host_compiler

SHARES = 1.0 / np.array([3.0, 1.0, 2.0, 40.0, 7.0] * 60)  # of more sequences than threads


def make_costs(*others):
    costs = np.random.default_rng(0).random(len(SHARES))
    costs[: len(others)] = others
    return costs


def run(device, found, is_log_prob=False, shares=1.0, zero_infinity=False, dtype=np.float64):
    """The losses and their total."""
    each, total = (on_device(device, np.full(size, np.nan, dtype)) for size in (len(found), 1))
    of_each = shares if isinstance(shares, float) else on_device(device, shares)
    given = device, on_device(device, found), is_log_prob, len(found), of_each
    reduce_losses(*given, Reduced(zero_infinity, each, None))
    reduce_losses(*given, Reduced(zero_infinity, None, total))
    return read(each), float(read(total)[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shares", [1.0, 0.25, SHARES], ids=["sum", "mean", "shares"])
def test_each_loss_and_their_total(shares, dtype):
    costs = make_costs()
    each, total = run(HostDevice(), costs, shares=shares, dtype=dtype)
    np.testing.assert_array_equal(each, costs.astype(dtype))
    rounding = tolerances.FLOAT64 if dtype == np.float64 else float(np.finfo(dtype).eps)
    assert total == pytest.approx(float((shares * costs).sum()), rel=rounding)


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_infinite_losses_count_as_zero_where_that_was_asked_for_and_nan_stays(zero_infinity):
    each, total = run(HostDevice(), make_costs(np.inf, 0.5), zero_infinity=zero_infinity)
    assert each[0] == (0.0 if zero_infinity else np.inf) and each[1] == 0.5
    assert np.isfinite(total) == zero_infinity
    each, total = run(HostDevice(), make_costs(0.5, np.nan), zero_infinity=zero_infinity)
    assert np.isnan(each[1]) and np.isnan(total)


def test_log_z_of_no_frames_costs_zero_and_not_minus_zero():
    each, _ = run(HostDevice(), make_costs(0.0, -np.inf, 2.0), True)
    assert each[:3].tolist() == [0.0, np.inf, -2.0] and not np.signbit(each[0])
