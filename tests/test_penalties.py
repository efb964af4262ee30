"""The penalties on large scores: terms and derivatives are those of the definition, in both backends."""

from __future__ import annotations

import numpy as np
import pytest

from fsachain.backends.cpu import backend as cpu
from fsachain.backends.reference import sums as reference
from tests import tolerances

FACTORS = (0.01, 0.5, 30.0)


def scores_and_lengths(dtype):
    generator = np.random.default_rng(3)
    scores = (40.0 * generator.normal(size=(3, 7, 5))).astype(dtype)
    scores[0, 2, 1] = -np.inf
    scores[1, 5:] = np.nan  # padding
    return scores, np.array([7, 5, 0]), np.array([1.0, 0.5, 2.0])


@pytest.mark.parametrize("backend", [reference, cpu])
def test_the_terms_are_the_sums_of_the_definition(backend):
    """-1/2 factor sum of squares over real finite scores, of what exceeds the limit for the second term."""
    scores, lengths, weights = scores_and_lengths(np.float64)
    real = [row[:length][np.isfinite(row[:length])] for row, length in zip(scores, lengths, strict=True)]
    squares = sum(w * (y**2).sum() for w, y in zip(weights, real, strict=True))
    excess = sum(
        w * (np.maximum(np.abs(y) - 30.0, 0.0) ** 2).sum() for w, y in zip(weights, real, strict=True)
    )
    found = backend.add_penalties(scores, lengths, weights, FACTORS, np.empty((0, 0, 0)))
    assert found == pytest.approx((-0.005 * squares, -0.25 * excess), rel=tolerances.FLOAT64)


@pytest.mark.parametrize("backend", [reference, cpu])
def test_the_derivative_is_that_of_the_definition(backend):
    """-w (factor y + factor of the excess times what exceeds the limit, with y's sign), added to what was there."""
    scores, lengths, weights = scores_and_lengths(np.float64)
    found = np.ones_like(scores)
    backend.add_penalties(scores, lengths, weights, FACTORS, found)
    real = np.isfinite(scores) & (np.arange(scores.shape[1]) < lengths[:, None])[:, :, None]
    y = np.where(real, scores, 0.0)
    beyond = np.sign(y) * np.maximum(np.abs(y) - 30.0, 0.0)
    assert (beyond > 0.0).any() and (beyond < 0.0).any()
    expected = 1.0 - weights[:, None, None] * (0.01 * y + 0.5 * beyond)
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=tolerances.FLOAT64)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_cpu_adds_the_derivative_that_the_reference_adds(dtype):
    scores, lengths, weights = scores_and_lengths(dtype)
    expected, found = np.ones_like(scores), np.ones_like(scores)
    terms = reference.add_penalties(scores, lengths, weights, FACTORS, expected)
    assert cpu.add_penalties(scores, lengths, weights, FACTORS, found) == pytest.approx(
        terms, rel=tolerances.LOG_PROB_RELATIVE
    )
    np.testing.assert_allclose(found, expected, rtol=tolerances.LOG_PROB_RELATIVE)
    assert (found[1, 5:] == 1.0).all(), "padding was touched"
    assert found[0, 2, 1] == 1.0, "a score of -inf has no derivative"


def test_a_sequence_of_weight_zero_is_not_looked_at():
    scores, lengths, weights = scores_and_lengths(np.float64)
    scores[1, 0] = np.nan
    out = np.zeros_like(scores)
    l2_term, range_term = cpu.add_penalties(scores, lengths, weights * [1, 0, 1], FACTORS, out)
    assert np.isfinite([l2_term, range_term]).all()
    assert not out[1].any()
