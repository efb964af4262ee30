"""The kinds of numbers in which the CPU kernels compute; the kernels' text is the same for all.

Plain: a floating-point number. Wide: a mantissa in floating point and an exponent in an integer, m 2**e, so that no
product of scores of any common size leaves the range, at about three times the work. Expected: (p, p E[A]), the sum over
some paths of their probabilities p and of p A, A what a path collects on its way; numbers of this kind are added part by
part, and multiplied as (p, q) (r, s) = (p r, p s + q r). Which kind a kernel is compiled for follows from its `Form`: the
kind, and W, the lanes side by side.

Rows of wide numbers are stored as W mantissas and then the bits of W exponents, expected ones as W numbers p and then W
numbers q. A wide zero is the mantissa 0 with an exponent so low that it never decides how two numbers are aligned.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import types

from fsachain.backends.cpu.simd import add as add_lanes
from fsachain.backends.cpu.simd import (
    as_floats,
    as_integers,
    by_type,
    compiled,
    exp_parts,
    exponent,
    fill,
    fma,
    intrinsic,
    larger,
    largest_lane,
    load,
    mantissa,
    power_of_two,
    smaller,
    splat,
    store,
    where_more,
)
from fsachain.backends.cpu.simd import multiply as multiply_lanes
from fsachain.backends.cpu.structs import Form, FormType

# The exponent of a wide zero, by the bytes of a number: far below all others, and four of them may be added.
ZERO_EXPONENT = {4: -(2**28), 8: -(2**60)}


class Weights(NamedTuple):
    """Numbers in memory: mantissas, and integer exponents where numbers are wide."""

    mantissas: npt.NDArray[np.floating]
    exponents: npt.NDArray[np.integer]


def weights(form: Form, log_probs: npt.NDArray[np.float64], dtype: np.dtype[Any]) -> Weights:
    """exp(log_probs) as `weight` reads them; only wide numbers have exponents."""
    integers = np.dtype(f"i{dtype.itemsize}")
    if not form.is_wide:
        return Weights(np.exp(log_probs).astype(dtype), np.empty(0, integers))
    finite = log_probs > -np.inf
    usable = np.where(finite, log_probs, 0.0)
    exponents = np.floor(usable / np.log(2.0))
    mantissas = np.exp(usable - exponents * np.log(2.0))
    exponents = np.where(finite, exponents, ZERO_EXPONENT[dtype.itemsize])
    return Weights(np.where(finite, mantissas, 0.0).astype(dtype), exponents.astype(integers))


def kind_of(first: Any) -> str:
    """For the numba type of a form or a number."""
    if isinstance(first, FormType):
        return first.kind
    if not isinstance(first, types.BaseTuple):
        return "plain"
    return "expected" if isinstance(first[1].dtype, types.Float) else "wide"


@intrinsic
def lanes_of(form: Any) -> Any:
    """The form of the plain lanes that numbers consist of."""
    return FormType("plain", form.width), lambda context, builder, value: value


def by_kind(plain: Any, wide: Any, expected: Any = None) -> Any:
    """A function for compiled code that is one of these by the kind of its first argument."""
    chosen = {"plain": compiled(plain), "wide": compiled(wide), "expected": compiled(expected)}
    return by_type(lambda *arguments: chosen[kind_of(arguments[0])])


@by_type
def _zero_exponent(n: Any) -> Any:
    value = ZERO_EXPONENT[n.dtype.bitwidth // 8]
    return lambda n: fill(n, value)


@compiled
def _splat_entry(form: Any, array: Any, e: Any) -> Any:
    return splat(form, array[e])


@by_type
def _entry(form: Any, array: Any, e: Any) -> Any:
    return load if array.ndim == 2 else _splat_entry


def _wide_zero(form: Any, array: Any) -> Any:
    zero = splat(lanes_of(form), array.dtype.type(0))
    return zero, _zero_exponent(as_integers(zero))


def _wide_read(form: Any, array: Any, row: Any) -> Any:
    return load(lanes_of(form), array, 2 * row), as_integers(load(lanes_of(form), array, 2 * row + 1))


def _wide_write(form: Any, array: Any, row: Any, x: Any) -> None:
    store(array, 2 * row, x[0])
    store(array, 2 * row + 1, as_floats(x[0], x[1]))


def _plain_probability(form: Any, y: Any, shift: Any, scale: Any) -> Any:
    # Neither -inf nor a difference beyond the integers can be reduced; exp(-2000) is 0 whatever the scale.
    q, n = exp_parts(form, larger(fill(y, -2000.0), y - shift))
    return q * power_of_two(q, n - scale)


def _wide_probability(form: Any, y: Any, shift: Any, scale: Any) -> Any:
    impossible, zero = fill(y, -np.inf), fill(y, 0.0)
    q, n = exp_parts(lanes_of(form), where_more(y, impossible, y - shift, zero))
    return where_more(y, impossible, q, zero), where_more(y, impossible, n - scale, _zero_exponent(n))


def _wide_multiply_add(x: Any, y: Any, z: Any) -> Any:
    n = x[1] + y[1]
    highest = larger(n, z[1])
    addend = z[0] * power_of_two(z[0], z[1] - highest)
    return fma(x[0] * power_of_two(x[0], n - highest), y[0], addend), highest


def _wide_sum(x: Any, y: Any) -> Any:
    highest = larger(x[1], y[1])
    return x[0] * power_of_two(x[0], x[1] - highest) + y[0] * power_of_two(y[0], y[1] - highest), highest


def _wide_tidy(x: Any) -> Any:
    zero = fill(x[0], 0.0)
    n = where_more(x[0], zero, exponent(x[0]) + x[1], _zero_exponent(x[1]))
    return where_more(x[0], zero, mantissa(x[0]), zero), n


@compiled
def _plain_reciprocal(x: Any) -> Any:
    zero = fill(x, 0.0)
    return where_more(x, zero, fill(x, 1.0) / x, zero)


def _wide_reciprocal(x: Any) -> Any:
    zero = fill(x[0], 0.0)
    inverse = where_more(x[0], zero, fill(x[0], 1.0) / x[0], zero)
    return inverse, x[1] - x[1] - x[1]


def _plain_where_positive(x: Any, value: Any, other: Any) -> Any:
    return where_more(x, fill(x, 0.0), value, other)


def _where_positive_in_pairs(x: Any, value: Any, other: Any) -> Any:
    zero = fill(x[0], 0.0)
    return where_more(x[0], zero, value[0], other[0]), where_more(x[0], zero, value[1], other[1])


def _plain_where_lane(x: Any, mask: Any, other: Any) -> Any:
    return where_more(mask, fill(mask, 0.0), x, other)


def _where_lane_in_pairs(x: Any, mask: Any, other: Any) -> Any:
    zero = fill(mask, 0.0)
    return where_more(mask, zero, x[0], other[0]), where_more(mask, zero, x[1], other[1])


@compiled
def _plain_bound(form: Any, factor: Any, y: Any, shift: Any, scale: Any) -> Any:
    p = probability(form, y, shift, scale - scale)
    return factor * smaller(p, p * power_of_two(p, fill(scale, 0) - scale))


@compiled
def _plain_least(x: Any, least: Any) -> Any:
    return smaller(where_more(x, fill(x, 0.0), x, least), least)


def _expected_zero(form: Any, array: Any) -> Any:
    nothing = splat(lanes_of(form), array.dtype.type(0))
    return nothing, nothing


def _expected_write(form: Any, array: Any, row: Any, x: Any) -> None:
    store(array, 2 * row, x[0])
    store(array, 2 * row + 1, x[1])


def _expected_weight(form: Any, weights: Any, e: Any) -> Any:
    x = _entry(lanes_of(form), weights.mantissas, e)
    return x, fill(x, 0.0)


def _expected_probability(form: Any, y: Any, shift: Any, scale: Any) -> Any:
    p = probability(lanes_of(form), y, shift, scale)
    return p, fill(p, 0.0)


def _expected_scaled(x: Any, n: Any) -> Any:
    factor = power_of_two(x[0], fill(n, 0) - n)
    return x[0] * factor, x[1] * factor


def _expected_reciprocal(x: Any) -> Any:
    inverse = _plain_reciprocal(x[0])
    return inverse, fill(inverse, 0.0) - x[1] * inverse * inverse


zero = by_kind(lambda form, array: splat(form, array.dtype.type(0)), _wide_zero, _expected_zero)
read = by_kind(
    load,
    _wide_read,
    lambda form, array, row: (load(lanes_of(form), array, 2 * row), load(lanes_of(form), array, 2 * row + 1)),
)
write = by_kind(lambda form, array, row, x: store(array, row, x), _wide_write, _expected_write)
# Entry e of a pair of arrays made by `weights`, in every lane; row e where each lane has weights of its own.
weight = by_kind(
    lambda form, weights, e: _entry(form, weights.mantissas, e),
    lambda form, weights, e: (
        _entry(lanes_of(form), weights.mantissas, e),
        _entry(lanes_of(form), weights.exponents, e),
    ),
    _expected_weight,
)
# By how much scores are shifted so that the largest is exp(0); wide numbers need no shift.
shift_of = by_kind(
    lambda form, largest: largest,
    lambda form, largest: fill(largest, 0.0),
    lambda form, largest: largest,
)
# exp(y - shift) 2**-scale for lanes of scores, shifts and integers; -inf gives 0.
probability = by_kind(_plain_probability, _wide_probability, _expected_probability)
multiply = by_kind(
    multiply_lanes,
    lambda x, y: (x[0] * y[0], x[1] + y[1]),
    lambda x, y: (x[0] * y[0], fma(x[0], y[1], x[1] * y[0])),
)
multiply_add = by_kind(
    fma, _wide_multiply_add, lambda x, y, z: (fma(x[0], y[0], z[0]), fma(x[0], y[1], fma(x[1], y[0], z[1])))
)
add = by_kind(add_lanes, _wide_sum, lambda x, y: (x[0] + y[0], x[1] + y[1]))
# The same number, a wide one with its mantissa in [1, 2): after every sum that is kept.
tidy = by_kind(lambda x: x, _wide_tidy, lambda x: x)
# n with 2**n <= p < 2**(n + 1) for a tidy number.
scale_of = by_kind(exponent, lambda x: x[1], lambda x: exponent(x[0]))
# A tidy number as lanes m and integer lanes n, p = m 2**n.
parts_of = by_kind(
    lambda x: (x, as_integers(x) - as_integers(x)),
    lambda x: x,
    lambda x: (x[0], as_integers(x[0]) - as_integers(x[0])),
)
# E[A] as lanes; 0 for other kinds.
mean_of = by_kind(lambda x: fill(x, 0.0), lambda x: fill(x[0], 0.0), lambda x: x[1] / x[0])
# x 2**-n.
scaled = by_kind(
    lambda x, n: x * power_of_two(x, fill(n, 0) - n), lambda x, n: (x[0], x[1] - n), _expected_scaled
)
# 1 / x, and 0 for 0.
reciprocal = by_kind(_plain_reciprocal, _wide_reciprocal, _expected_reciprocal)
# x times a reciprocal, as lanes; of expected numbers the second part: (M6) if these are occupancies and their sum.
ratio = by_kind(
    multiply_lanes,
    lambda x, inverse: x[0] * power_of_two(x[0], x[1] + inverse[1]) * inverse[0],
    lambda x, inverse: multiply(x, inverse)[1],
)
# x in the lanes where the mask is positive, else `other`.
where_lane = by_kind(_plain_where_lane, _where_lane_in_pairs, _where_lane_in_pairs)
# Of a form of one lane, as truth: whether x is not 0; whether it is more than y, which is tidy, up to a factor of 4.
is_positive = by_kind(
    lambda x: largest_lane(x) > 0.0, lambda x: largest_lane(x[0]) > 0.0, lambda x: largest_lane(x[0]) > 0.0
)
exceeds = by_kind(
    lambda x, y: largest_lane(x) > largest_lane(y),
    lambda x, y: largest_lane(x[1]) > largest_lane(y[1]),
    lambda x, y: largest_lane(x[0]) > largest_lane(y[0]),
)
# `value` where x is not 0, else `other`.
where_positive = by_kind(_plain_where_positive, _where_positive_in_pairs, _where_positive_in_pairs)
# factor exp(y - shift), or that times 2**-scale where it is less; 1 for wide numbers.
bound = by_kind(
    _plain_bound,
    lambda form, factor, y, shift, scale: fill(factor, 1.0),
    lambda form, factor, y, shift, scale: _plain_bound(lanes_of(form), factor, y, shift, scale),
)
# factor p as lanes; 1 for wide numbers.
bound_sum = by_kind(
    lambda x, factor: x * fill(x, factor),
    lambda x, factor: fill(x[0], 1.0),
    lambda x, factor: x[0] * fill(x[0], factor),
)
# The lesser of the lanes `least` and p where it is not 0; wide numbers are never too small.
least_positive = by_kind(_plain_least, lambda x, least: least, lambda x, least: _plain_least(x[0], least))
