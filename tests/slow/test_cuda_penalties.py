"""The kernels of penalties and of sums of losses, run on the host: what the reference or numpy makes of the same numbers."""

import numpy as np
import pytest
import tolerances
from device_arrays import on_device, read, upper_halves

from fsachain.backends.cuda.backend import LossTerms, Reduced, finish_gradient, loss_terms, reduce_losses
from fsachain.backends.reference import sums as reference
from fsachain.loss.base import SUMS
from tools.cuda_on_host import HostDevice, skip_reason

pytestmark = pytest.mark.skipif(skip_reason() is not None, reason=str(skip_reason()))

FACTORS = (0.01, 0.5, 30.0)
LENGTHS = np.array([70, 33, 0, 32])
WEIGHTS = np.array([1.0, 0.5, 2.0, 0.25])
NUM, DEN = np.array([-3.0, -2.0, -1.5, -np.inf]), np.array([-1.0, np.nan, 0.5, -np.inf])
SCALE, EXCLUDED = 0.7, -10.0
OK = np.array([True, False, True, False])


def large_scores(dtype=np.float32):
    """Several blocks of frames and several loads of a lane; infinite scores, and NaN in what is padding."""
    scores = (25.0 * np.random.default_rng(0).normal(size=(4, 70, 140))).astype(dtype)
    scores[0, 2, 1] = -np.inf
    scores[1, 33:] = np.nan
    return scores


def run(device, array, lengths=LENGTHS, factors=FACTORS, log_probs=(NUM, DEN), out=None, is_divided=False):
    """Terms and sums; the gradient of all four sequences, of which two are ok, by way of `out`, unless that is None."""
    values, sums, total = (on_device(device, np.full(size, np.nan)) for size in (4, len(SUMS), 1))
    terms = LossTerms(values, on_device(device, np.full(4, 7, np.uint8)), sums, total)
    numbers, both = on_device(device, np.stack([WEIGHTS, lengths])), (on_device(device, z) for z in log_probs)
    given = int(max(lengths)), numbers, tuple(both), SCALE, EXCLUDED, factors, None, is_divided, terms
    loss_terms(device, array, *given, 64)
    if out is not None:
        divisor = on_device(device, np.array([-0.25])) if is_divided else None
        given = numbers, terms.ok, factors, None, on_device(device, np.array([2.0])), divisor, out
        finish_gradient(device, out, array, *given)
    return terms


@pytest.mark.parametrize("factors", [FACTORS, (0.0, 0.5, 30.0), (0.01, 0.0, 30.0), (0.0, 0.0, 30.0)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.uint16])
def test_sums_are_those_of_the_reference_over_the_sequences_that_are_ok(dtype, factors):
    given, same = upper_halves(large_scores()) if dtype == np.uint16 else [large_scores(dtype=dtype)] * 2
    used, nothing = np.where(OK, WEIGHTS, 0.0), np.zeros((0, 0, 0))
    penalties = reference.add_penalties(same, LENGTHS, used, factors, nothing)
    device = HostDevice()
    found = run(device, on_device(device, given), factors=factors)
    values, (frames, frames_ok) = NUM - SCALE * DEN, (WEIGHTS @ LENGTHS, used @ LENGTHS)
    objf = float(used[OK] @ values[OK])
    expected = {
        "objf": objf + EXCLUDED * (frames - frames_ok),
        "objf_ok": objf,
        "l2_term": penalties[0],
        "out_of_range_term": penalties[1],
        "xent_objf": 0.0,
        "consistency_term": 0.0,
        "weight": frames,
        "weight_ok": frames_ok,
        "divisor": -frames_ok,
    }
    assert tuple(expected) == SUMS
    np.testing.assert_allclose(read(found.sums), list(expected.values()), rtol=tolerances.FLOAT64)
    total = read(found.total)[0]
    np.testing.assert_allclose(total, objf + penalties.sum(), rtol=tolerances.FLOAT64)
    divided = run(device, on_device(device, given), factors=factors, is_divided=True)
    assert read(divided.total)[0] == total / read(found.sums)[-1]
    np.testing.assert_array_equal(read(found.values), np.where(OK, values, np.nan))
    np.testing.assert_array_equal(read(found.ok), OK)


def test_where_all_sequences_are_excluded_the_total_is_zero_and_is_divided_by_minus_one():
    device, nothing = HostDevice(), np.full(4, -np.inf)
    found = run(device, on_device(device, large_scores()), log_probs=(nothing, nothing))
    sums = dict(zip(SUMS, read(found.sums), strict=True))
    assert read(found.total) == 0.0 and sums["divisor"] == -1.0 and not read(found.ok).any()
    assert sums["objf"] == EXCLUDED * sums["weight"] and sums["weight_ok"] == sums["objf_ok"] == 0.0


@pytest.mark.parametrize(("is_divided", "factor"), [(False, 2.0), (True, -8.0)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("order", [1, -1], ids=["first is ok", "first is not"])
def test_derivatives_are_those_of_the_reference_where_a_sequence_is_ok_and_zero_elsewhere(
    order, dtype, is_divided, factor
):
    scores, ok, log_probs = large_scores(dtype=dtype), OK[::order], (NUM[::order].copy(), DEN[::order].copy())
    expected = np.where(ok[:, None, None], np.ones(scores.shape), 0.0)
    for n, length in enumerate(LENGTHS):
        expected[n, length:] = 0.0
    reference.add_penalties(scores, LENGTHS, np.where(ok, WEIGHTS, 0.0), FACTORS, expected)
    device = HostDevice()
    out = on_device(device, np.ones_like(scores))
    run(device, on_device(device, scores), log_probs=log_probs, out=out, is_divided=is_divided)
    np.testing.assert_allclose(read(out), factor * expected, rtol=tolerances.LOG_PROB_RELATIVE)


# The kernel that reduces losses to a sum or a mean.


SHARES = 1.0 / np.array([3.0, 1.0, 2.0, 40.0, 7.0] * 60)  # of more sequences than threads


def make_costs(*others):
    costs = np.random.default_rng(0).random(len(SHARES))
    costs[: len(others)] = others
    return costs


def run_reduction(device, found, is_log_prob=False, shares=1.0, zero_infinity=False, dtype=np.float64):
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
    each, total = run_reduction(HostDevice(), costs, shares=shares, dtype=dtype)
    np.testing.assert_array_equal(each, costs.astype(dtype))
    rounding = tolerances.FLOAT64 if dtype == np.float64 else float(np.finfo(dtype).eps)
    assert total == pytest.approx(float((shares * costs).sum()), rel=rounding)


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_infinite_losses_count_as_zero_where_that_was_asked_for_and_nan_stays(zero_infinity):
    each, total = run_reduction(HostDevice(), make_costs(np.inf, 0.5), zero_infinity=zero_infinity)
    assert each[0] == (0.0 if zero_infinity else np.inf) and each[1] == 0.5
    assert np.isfinite(total) == zero_infinity
    each, total = run_reduction(HostDevice(), make_costs(0.5, np.nan), zero_infinity=zero_infinity)
    assert np.isnan(each[1]) and np.isnan(total)


def test_log_z_of_no_frames_costs_zero_and_not_minus_zero():
    each, _ = run_reduction(HostDevice(), make_costs(0.0, -np.inf, 2.0), True)
    assert each[:3].tolist() == [0.0, np.inf, -2.0] and not np.signbit(each[0])
