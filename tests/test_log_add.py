"""The one (+) of the equations, and log-sums, over {log-zero, finite, equal, far apart}."""

import math

import numpy as np
import pytest
import tolerances

from fsachain.recursion import log_add, log_sum, log_sum_rows

INF = math.inf
CASES = [
    (-INF, -INF, -INF),
    (-INF, 3.0, 3.0),
    (3.0, -INF, 3.0),
    (-2.0, -2.0, -2.0 + math.log(2.0)),
    (1e6, 1e6, 1e6 + math.log(2.0)),
    (0.0, 1e4, 1e4),
    (-1e4, 0.0, 0.0),
    (1.0, 2.0, 2.0 + math.log1p(math.exp(-1.0))),
    (-1e300, 1e300, 1e300),
]


@pytest.mark.parametrize(("x", "y", "expected"), CASES)
@pytest.mark.parametrize("add", [log_add, lambda x, y: log_sum(np.array([x, y]))])
def test_log_add_of_two(add, x, y, expected):
    assert float(add(x, y)) == pytest.approx(expected, rel=tolerances.LOG_ADD, abs=0.0)


def test_log_add_works_elementwise_without_a_warning():
    with np.errstate(all="raise", under="ignore"):
        result = log_add(np.array([-INF, 0.0]), np.array([-INF, -INF]))
    assert result.tolist() == [-INF, 0.0]


def test_log_sum_of_nothing_is_log_zero():
    assert log_sum(np.empty(0)) == -INF


def test_log_sum_rows_keeps_empty_rows_and_rows_of_log_zero():
    values = np.array([-INF, -INF, 0.0, 1.0, -INF])
    rows = log_sum_rows(values, np.array([0, 0, 2, 4, 5, 5]))
    assert rows.tolist() == pytest.approx(
        [-INF, -INF, 1.0 + math.log1p(math.exp(-1.0)), -INF, -INF], rel=tolerances.LOG_ADD, abs=0.0
    )
