"""exp of score differences for the scaled kernels, a row of lanes at a time."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

# Cody-Waite: n ln 2 is subtracted in two parts, the first exact in float32; minimax polynomial of degree 6 (Cephes expf).
LOG2_E = np.float32(1.44269504088896341)
LN2_HIGH = np.float32(0.693359375)
LN2_LOW = np.float32(-2.12194440e-4)
C2 = np.float32(5.0000001201e-1)
C3 = np.float32(1.6666665459e-1)
C4 = np.float32(4.1665795894e-2)
C5 = np.float32(8.3334519073e-3)
C6 = np.float32(1.3981999507e-3)
C7 = np.float32(1.9875691500e-4)
ONE = np.float32(1.0)
HALF = np.float32(0.5)
LOWEST = np.float32(-104.0)
BIAS = np.int32(127)
MANTISSA_BITS = np.int32(23)
NO_BITS = np.int32(0)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def exp_single(x: Any, shift: Any) -> None:
    """x = exp(x - shift) in place, float32 x [K, W], shift [W]; relative error <= 2.4e-7, 0 where x - shift < -87.7.

    2**n is made from its bits; where n is below the smallest normal exponent the result is 0.
    """
    power = np.empty(x.shape[1], np.float32)
    bits = power.view(np.int32)
    for k in range(x.shape[0]):
        for g in range(x.shape[1]):
            d = max(x[k, g] - shift[g], LOWEST)
            n = np.floor(d * LOG2_E + HALF)
            r = (d - n * LN2_HIGH) - n * LN2_LOW
            q = (((((C7 * r + C6) * r + C5) * r + C4) * r + C3) * r + C2) * (r * r) + r + ONE
            bits[g] = max(np.int32(n) + BIAS, NO_BITS) << MANTISSA_BITS
            x[k, g] = q
        for g in range(x.shape[1]):
            x[k, g] *= power[g]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def exp_double(x: Any, shift: Any) -> None:
    """x = exp(x - shift) in place, float64 x [K, W], shift [W]."""
    for k in range(x.shape[0]):
        for g in range(x.shape[1]):
            x[k, g] = math.exp(x[k, g] - shift[g])
