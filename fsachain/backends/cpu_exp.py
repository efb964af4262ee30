"""exp and log of lanes: a power of two, and a series for what is left of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types

from fsachain.backends.cpu_arithmetic import (
    exponent,
    fma,
    larger,
    mantissa,
    power_of_two,
    rint,
    to_floats,
    to_integers,
    where_more,
)
from fsachain.backends.cpu_lanes import by_type, fill, splat

# |r| <= ln 2 / 2: these powers leave relative errors of 5e-9 in float32, 7e-15 in float64.
_DEGREES = {types.float32: 7, types.float64: 11}
_EXCESS = {
    types.float32: 1.9046542999577679e-9,
    types.float64: -2.3190468138462996e-17,
}  # ln 2 as rounded, less ln 2
# exp of less than this is 0 in the type, subnormal numbers left out.
_FLOORS = {types.float32: -104.0, types.float64: -746.0}
_ODD_TERMS = 10  # of the series of atanh below: its remainder is below 2e-17 in float64
_SQRT_2 = 2.0**0.5
_LN_2 = 0.6931471805599453
_SCALARS = {types.float32: np.float32, types.float64: np.float64}


@by_type
def exp_parts(form: Any, x: Any) -> Any:
    """(q, n) with exp(x) = q 2**n, q within [0.7, 1.42] and n integer lanes; finite x only."""
    scalar = _SCALARS[x.dtype]
    log2_e = scalar(math.log2(math.e))
    # n ln 2 is taken off in two parts, which together have twice the digits: exact enough for any n.
    minus_ln2 = scalar(-math.log(2.0))
    excess = scalar(_EXCESS[x.dtype])
    series = tuple(scalar(1.0 / math.factorial(degree)) for degree in range(_DEGREES[x.dtype], -1, -1))
    first, rest = series[0], series[1:]

    def parts(form: Any, x: Any) -> Any:
        n = rint(x * splat(form, log2_e))
        r = fma(n, splat(form, excess), fma(n, splat(form, minus_ln2), x))
        q = splat(form, first)
        for coefficient in rest:
            q = fma(q, r, splat(form, coefficient))
        return q, to_integers(n)

    return parts


@by_type
def exp_or_zero(form: Any, x: Any) -> Any:
    """exp(x) for x <= 0 or near it; exactly 0 for -inf and for NaN, as -inf - -inf gives it."""
    floor = _FLOORS[x.dtype]

    def implementation(form: Any, x: Any) -> Any:
        q, n = exp_parts(form, larger(x, fill(x, floor)))
        return q * power_of_two(q, n)

    return implementation


@by_type
def exp_or_nan(form: Any, x: Any) -> Any:
    """The same, but NaN for NaN."""
    floor = _FLOORS[x.dtype]

    def implementation(form: Any, x: Any) -> Any:
        q, n = exp_parts(form, larger(fill(x, floor), x))
        return q * power_of_two(q, n)

    return implementation


@by_type
def log_of_sum(form: Any, x: Any) -> Any:
    """log of float64 lanes that are 1 or more; some number for others."""
    series = tuple(1.0 / (2 * k + 1) for k in range(_ODD_TERMS, -1, -1))
    first, rest = series[0], series[1:]

    def implementation(form: Any, x: Any) -> Any:
        # x = f 2**n with f in [1 / sqrt 2, sqrt 2]; log f = 2 atanh((f - 1) / (f + 1)).
        f, limit, one = mantissa(x), fill(x, _SQRT_2), fill(x, 1.0)
        f = where_more(f, limit, f * fill(x, 0.5), f)
        n = to_floats(x, exponent(x))
        n = where_more(mantissa(x), limit, n + one, n)
        z = (f - one) / (f + one)
        square = z * z
        total = splat(form, first)
        for coefficient in rest:
            total = fma(total, square, splat(form, coefficient))
        return fma(n, fill(x, _LN_2), (z + z) * total)

    return implementation
