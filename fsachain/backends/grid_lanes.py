"""exp and log of lanes where any argument is legal, and lanes added up pairwise: for the kernels of the grid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from fsachain.backends.cpu_arithmetic import (
    exponent,
    fma,
    larger,
    mantissa,
    power_of_two,
    where_more,
)
from fsachain.backends.cpu_exp import exp_parts
from fsachain.backends.cpu_lanes import by_type, fill, intrinsic, splat

# exp of less than this is 0 in the type, subnormal numbers left out.
_FLOORS = {types.float32: -104.0, types.float64: -746.0}
_ODD_TERMS = 10  # of the series of atanh below: its remainder is below 2e-17 in float64
_SQRT_2 = 2.0**0.5
_LN_2 = 0.6931471805599453


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


@intrinsic
def to_floats(typing: Any, like: Any, n: Any) -> Any:
    """Integer lanes as floating-point lanes in the type of `like`."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.sitofp(arguments[1], context.get_value_type(like))

    return like(like, n), code


@intrinsic
def store_to(typing: Any, array: Any, position: Any, value: Any) -> Any:
    """Write lanes over the entries of a contiguous array from `position` on, at any address."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(array)(context, builder, arguments[0]).data
        index = context.cast(builder, arguments[1], position, types.intp)
        pointer = builder.bitcast(builder.gep(data, [index]), context.get_value_type(value).as_pointer())
        builder.store(arguments[2], pointer, align=value.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, position, value), code


def _in_pairs(combine: Callable[[Any, Any, Any], Any]) -> Any:
    """All lanes combined into one scalar: the upper half with the lower half, until one is left."""

    @intrinsic
    def reduce(typing: Any, x: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            value, width = arguments[0], x.width
            i32 = ir.IntType(32)
            while width > 1:
                width //= 2
                halves = [
                    builder.shuffle_vector(
                        value,
                        value,
                        ir.Constant(ir.VectorType(i32, width), list(range(first, first + width))),
                    )
                    for first in (0, width)
                ]
                value = combine(builder, *halves)
            return builder.extract_element(value, ir.Constant(i32, 0))

        return x.dtype(x), code

    return reduce


def _larger(builder: Any, x: Any, y: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", x, y), x, y)


sum_in_pairs = _in_pairs(lambda builder, x, y: builder.fadd(x, y))
largest_in_pairs = _in_pairs(_larger)
