"""The kernels of the penalties, run on the host: terms and derivatives are those of the reference, in a fixed order."""

import numpy as np
import pytest
import tolerances
from device_arrays import on_device, read, upper_halves

from fsachain.backends.cuda.backend import add_penalties
from fsachain.backends.reference import sums as reference
from tools.cuda_on_host import HostDevice, skip_reason

pytestmark = pytest.mark.skipif(skip_reason() is not None, reason=str(skip_reason()))

FACTORS = (0.01, 0.5, 30.0)
LENGTHS = np.array([70, 33, 0, 32])
WEIGHTS = np.array([1.0, 0.5, 2.0, 0.25])


def large_scores(num_pdfs=140, dtype=np.float32, seed=0):
    """Several blocks of frames and several loads of a lane; infinite scores, and NaN in what is padding."""
    scores = (25.0 * np.random.default_rng(seed).normal(size=(4, 70, num_pdfs))).astype(dtype)
    scores[0, 2, 1] = -np.inf
    scores[1, 33:] = np.nan
    return scores


def run(device, array, out, lengths=LENGTHS, weights=WEIGHTS, factors=FACTORS, threads=64):
    (on,) = device.upload([weights])
    return add_penalties(device, array, lengths, on, factors, out, threads).read(np.float64)


@pytest.mark.parametrize("factors", [FACTORS, (0.0, 0.5, 30.0), (0.01, 0.0, 30.0)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.uint16])
def test_terms_and_derivatives_are_those_of_the_reference(dtype, factors):
    given, same = upper_halves(large_scores()) if dtype == np.uint16 else [large_scores(dtype=dtype)] * 2
    expected = np.ones(same.shape, np.float64 if dtype == np.float64 else np.float32)
    terms = reference.add_penalties(same, LENGTHS, WEIGHTS, factors, expected)
    device = HostDevice()
    out = on_device(device, np.ones_like(expected))
    found = run(device, on_device(device, given), out, factors=factors)
    np.testing.assert_allclose(found, terms, rtol=tolerances.FLOAT64)
    np.testing.assert_allclose(read(out), expected, rtol=tolerances.LOG_PROB_RELATIVE)
    assert (read(out)[1, 33:] == 1.0).all() and (read(out)[2] == 1.0).all(), "padding was touched"
    assert read(out)[0, 2, 1] == 1.0, "a score of -inf has no derivative"
