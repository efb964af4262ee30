"""exp of lanes: its argument reduced to a power of two and a remainder, the remainder's Taylor series."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types

from fsachain.backends.cpu_arithmetic import fma, rint, to_integers
from fsachain.backends.cpu_lanes import by_type, splat

# |r| <= ln 2 / 2: these powers leave relative errors of 5e-9 in float32, 7e-15 in float64.
_DEGREES = {types.float32: 7, types.float64: 11}
_EXCESS = {
    types.float32: 1.9046542999577679e-9,
    types.float64: -2.3190468138462996e-17,
}  # ln 2 as rounded, less ln 2
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
