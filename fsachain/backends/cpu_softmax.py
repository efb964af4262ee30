"""Rows of C classes as lanes: sums of their exponentials, and the gradient that a softmax leaves there.

A row is read W classes at a time, as many as fill a register. Where C is no multiple of W the last W classes are read once
more, and those that were counted already are left out.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from fsachain.backends.cpu_arithmetic import fma, larger, largest_lane, smaller, sum_in_halves
from fsachain.backends.cpu_exp import exp_or_nan, exp_or_zero
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
def _largest(form: Any, flat: Any, start: int, count: int) -> Any:
    """The largest of `count` entries, count >= W; a NaN may go unseen."""
    width, end = len(form), start + count - len(form)
    a = load_from(form, flat, end)
    b, c, d = a, a, a  # four at once: none waits for the one before
    i = start
    while i + 3 * width <= end:
        a = larger(load_from(form, flat, i), a)
        b = larger(load_from(form, flat, i + width), b)
        c = larger(load_from(form, flat, i + 2 * width), c)
        d = larger(load_from(form, flat, i + 3 * width), d)
        i += 4 * width
    while i < end:
        a = larger(load_from(form, flat, i), a)
        i += width
    return largest_lane(larger(larger(a, b), larger(c, d)))


@jit_on_views
def _sum_wide(form: Any, flat: Any, masks: Any, start: int, count: int, top: Any) -> float:
    """The sum of exp(y - top) over `count` entries, count >= W."""
    width, lanes = len(form), splat(form, top)
    rest = count % width
    total, partial = 0.0, fill(lanes, 0.0)
    if rest > 0:
        last = exp_or_nan(form, load_from(form, flat, start + count - width) - lanes)
        partial = last * load_from(form, masks, rest)
    i, end = start, start + count - rest
    while i < end:
        stop = min(i + BLOCK * width, end)
        while i < stop:
            partial = partial + exp_or_nan(form, load_from(form, flat, i) - lanes)
            i += width
        total += sum_in_halves(partial)
        partial = fill(lanes, 0.0)
    return total


@jit_on_views
def row_statistics(form: Any, flat: Any, masks: Any, start: int, count: int) -> Any:
    """(m, s) with logsum of `count` entries from `start` on = m + log s: their maximum, the sum of exp(y - m), float64.

    (0, 0) for a row of nothing but -inf; s is NaN for one that holds NaN or +inf.
    """
    if count < len(form):
        return _narrow_statistics(flat, start, count)
    top = _largest(form, flat, start, count)
    if top == -np.inf:
        top = flat.dtype.type(0)
    return float(top), _sum_wide(form, flat, masks, start, count, top)


@jit_on_views
def _narrow_statistics(flat: Any, start: int, count: int) -> Any:
    """The same for count < W. A function of its own: with it `row_statistics` is too large to be inlined, and slower."""
    top = flat.dtype.type(-np.inf)
    for i in range(start, start + count):
        top = max(top, flat[i])
    if top == -np.inf:
        top = flat.dtype.type(0)
    lanes, total = splat((0,), top), 0.0
    for i in range(start, start + count):
        total += sum_in_halves(exp_or_nan((0,), load_from((0,), flat, i) - lanes))
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
            total += sum_in_halves(_roughly_exp((0,), load_from((0,), flat, i)))
        return total
    last = start + count - width
    partial = _roughly_exp(form, load_from(form, flat, last)) * load_from(form, masks, count % width)
    for i in range(start, start + count - width + 1, width):
        partial = partial + _roughly_exp(form, load_from(form, flat, i))
    return float(sum_in_halves(partial))


@jit_on_views
def write_softmax(form: Any, flat: Any, start: int, count: int, numbers: Any, out: Any) -> None:
    """out = factor min(scale exp(y - top), limit) for `count` entries from `start` on; `out` may be the scores themselves.

    numbers: top, scale, limit and factor, of the scores' type.
    """
    width, end = len(form), start + count - len(form)
    if count < width:
        _write_narrow_softmax(flat, start, count, numbers, out)
        return
    top, scale = splat(form, numbers[0]), splat(form, numbers[1])
    limit, factor = splat(form, numbers[2]), splat(form, numbers[3])
    # Some of these a second time: before any of them is overwritten.
    last = exp_or_zero(form, load_from(form, flat, end) - top) * scale
    for i in range(start, end, width):
        share = exp_or_zero(form, load_from(form, flat, i) - top) * scale
        store_to(out, i, smaller(share, limit) * factor)
    store_to(out, end, smaller(last, limit) * factor)


@jit_on_views
def _write_narrow_softmax(flat: Any, start: int, count: int, numbers: Any, out: Any) -> None:
    """The same for count < W."""
    top, scale, limit, factor = numbers
    shift = splat((0,), top)
    for i in range(start, start + count):
        share = exp_or_zero((0,), load_from((0,), flat, i) - shift)
        out[i] = min(sum_in_halves(share) * scale, limit) * factor


@jit_on_views
def write_zeros(form: Any, out: Any, start: int, count: int) -> None:
    """out[start : start + count] = 0."""
    nothing = splat(form, out.dtype.type(0))
    whole = count // len(form)
    for block in range(whole):
        store_to(out, start + block * len(form), nothing)
    for i in range(start + whole * len(form), start + count):
        out[i] = 0
