"""Rows of C classes as lanes: sums of their exponentials, and the gradient that a softmax leaves there.

A row is read W classes at a time, as many as fill a register. Where C is no multiple of W the last W classes are read once
more, and those that were counted already are left out.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from fsachain.backends.cpu_arithmetic import fma, larger, largest_lane, power_of_two, sum_lanes
from fsachain.backends.cpu_exp import exp_parts
from fsachain.backends.cpu_lanes import by_type, fill, intrinsic, load_from, splat, store_to
from fsachain.backends.cpu_numbers import plain_form
from fsachain.backends.jit import jit_on_views

# Registers that are added up before the sum goes on in float64: float32 keeps its digits over so many.
BLOCK = 64
WIDTH = {4: 16, 8: 8}  # by the bytes of a class
FORMS = {size: plain_form(width) for size, width in WIDTH.items()}
LOG2_E, LN_2 = 1.0 / np.log(2.0), np.log(2.0)
# exp(r) for |r| <= ln 2 / 2 through the four Chebyshev points of the interval: relative error below 1e-4.
_POINTS = 0.5 * LN_2 * np.cos(np.pi * (np.arange(4) + 0.5) / 4.0)
CUBIC = tuple(np.linalg.solve(np.vander(_POINTS, increasing=True), np.exp(_POINTS)).tolist())


@intrinsic
def as_power(typing: Any, like: Any, x: Any) -> Any:
    """2**n from lanes whose lowest mantissa bits are n + bias."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.bitcast(arguments[1], x.bits)
        return builder.bitcast(builder.shl(bits, x.constant(x.mantissa_bits)), context.get_value_type(x))

    return like(like, x), code


@lru_cache(maxsize=2)
def leave_out_masks(itemsize: int) -> Any:
    """[2 W] zeros and ones: W of them from r on are zero but for the last r."""
    width = WIDTH[itemsize]
    kind = np.float32 if itemsize == 4 else np.float64
    return np.repeat(np.array([0.0, 1.0], kind), width)


@jit_on_views
def _exp(form: Any, y: Any, top: Any) -> Any:
    """exp(y - top) for y <= top; 0 for -inf, NaN for NaN."""
    q, n = exp_parts(form, larger(fill(y, -1000.0), y - top))
    return q * power_of_two(q, n)


@jit_on_views
def _largest(form: Any, flat: Any, start: int, count: int) -> Any:
    """The largest of `count` entries, count >= W; a NaN may go unseen."""
    width = len(form)
    top = load_from(form, flat, start + count - width)
    for i in range(start, start + count - width, width):
        top = larger(load_from(form, flat, i), top)
    return largest_lane(top)


@jit_on_views
def _sum_wide(form: Any, flat: Any, masks: Any, start: int, count: int, top: Any) -> float:
    """The sum of exp(y - top) over `count` entries, count >= W."""
    width = len(form)
    whole, rest = count // width, count % width
    lanes = splat(form, top)
    total = 0.0
    for first in range(0, whole, BLOCK):
        partial = fill(lanes, 0.0)
        for i in range(first, min(first + BLOCK, whole)):
            partial = partial + _exp(form, load_from(form, flat, start + i * width), lanes)
        total += sum_lanes(partial)
    if rest > 0:
        last = _exp(form, load_from(form, flat, start + count - width), lanes)
        total += sum_lanes(fma(last, load_from(form, masks, rest), fill(lanes, 0.0)))
    return total


@jit_on_views
def row_statistics(form: Any, flat: Any, masks: Any, start: int, count: int) -> Any:
    """(m, s) with logsum of `count` entries from `start` on = m + log s: their maximum, the sum of exp(y - m), float64.

    s is NaN for a row that holds NaN or +inf, or nothing but -inf.
    """
    if count >= len(form):
        top = _largest(form, flat, start, count)
        return float(top), _sum_wide(form, flat, masks, start, count, top)
    top = flat[start]
    for i in range(start, start + count):
        top = max(top, flat[i])
    lanes, total = splat((0,), top), 0.0
    for i in range(start, start + count):
        total += sum_lanes(_exp((0,), load_from((0,), flat, i), lanes))
    return float(top), total


@by_type
def _roughly_exp(form: Any, y: Any) -> Any:
    """exp(y) within 1e-4 of itself for y < 88, those below -80 as if they were -80.

    A cubic whose error is spread evenly over |r| <= ln 2 / 2, and an exponent that rounding leaves in the bits.
    """
    mantissa_bits = y.mantissa_bits
    # Added to n, it leaves the integer n + bias in the lowest bits of the mantissa.
    magic = 1.5 * 2.0**mantissa_bits + y.bias

    def rough(form, y):  # type: ignore[no-untyped-def]
        x = larger(fill(y, -80.0), y)
        shifted = fma(x, fill(x, LOG2_E), fill(x, magic))
        r = fma(shifted - fill(x, magic), fill(x, -LN_2), x)
        q = fma(fill(x, CUBIC[3]), r, fill(x, CUBIC[2]))
        q = fma(fma(q, r, fill(x, CUBIC[1])), r, fill(x, CUBIC[0]))
        return q * as_power(x, shifted)

    return rough


@jit_on_views
def row_sum(form: Any, flat: Any, masks: Any, start: int, count: int) -> float:
    """The sum of exp(y) over `count` entries from `start` on, within 1e-4 of itself where no y is above 88.

    A larger y gives any number but none that is near one; entries below -80 count as exp(-80).
    """
    width, total = len(form), 0.0
    if count < width:
        for i in range(start, start + count):
            total += sum_lanes(_roughly_exp((0,), load_from((0,), flat, i)))
        return total
    last = start + count - width
    partial = _roughly_exp(form, load_from(form, flat, last)) * load_from(form, masks, count % width)
    for i in range(start, start + count - width + 1, width):
        partial = partial + _roughly_exp(form, load_from(form, flat, i))
    return float(sum_lanes(partial))


@jit_on_views
def write_softmax(
    form: Any, flat: Any, start: int, count: int, top: float, factor: float, out: Any, where: int
) -> None:
    """out[where + p] = factor exp(y - top) for `count` entries from `start` on."""
    width = len(form)
    kind = flat.dtype.type
    if count >= width:
        lanes, factors = splat(form, kind(top)), splat(form, kind(factor))
        for i in range(0, count - width, width):
            store_to(out, where + i, factors * _exp(form, load_from(form, flat, start + i), lanes))
        last = count - width  # some of these for the second time, with the same result
        store_to(out, where + last, factors * _exp(form, load_from(form, flat, start + last), lanes))
    else:
        single, one = splat((0,), kind(top)), splat((0,), kind(factor))
        for i in range(count):
            store_to(out, where + i, one * _exp((0,), load_from((0,), flat, start + i), single))


@jit_on_views
def write_zeros(out: Any, where: int, count: int) -> None:
    """out[where : where + count] = 0."""
    for i in range(where, where + count):
        out[i] = 0.0
