"""Arithmetic of `cpu_lanes.Lanes`, lane by lane: each function is one instruction or a few."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from fsachain.backends.cpu_lanes import Lanes, by_type, intrinsic


def _llvm(name: str, arity: int) -> Any:
    """An intrinsic of LLVM that takes and returns floating-point lanes."""

    def call(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = signature.return_type
        vector = context.get_value_type(lanes)
        full_name = f"llvm.{name}.v{lanes.width}f{lanes.dtype.bitwidth}"
        function = ir.FunctionType(vector, [vector] * arity)
        return builder.call(cgutils.get_or_insert_function(builder.module, function, full_name), arguments)

    return call


@intrinsic
def fma(typing: Any, x: Any, y: Any, z: Any) -> Any:
    """x y + z, rounded once."""
    return x(x, y, z), _llvm("fma", 3)


@intrinsic
def rint(typing: Any, x: Any) -> Any:
    """The nearest integers, as floating-point lanes."""
    return x(x), _llvm("rint", 1)


def _binary(build: Callable[[Any, Lanes, Any, Any], Any]) -> Any:
    @intrinsic
    def operation(typing: Any, x: Any, y: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return build(builder, x, *arguments)

        return x(x, y), code

    return operation


def _arithmetic(name: str) -> Any:
    def build(builder: Any, lanes: Lanes, x: Any, y: Any) -> Any:
        is_float = isinstance(lanes.dtype, types.Float)
        return getattr(builder, ("f" if is_float else "") + name)(x, y)

    return _binary(build)


def _choose_larger(builder: Any, lanes: Lanes, x: Any, y: Any) -> Any:
    is_float = isinstance(lanes.dtype, types.Float)
    larger = builder.fcmp_ordered(">", x, y) if is_float else builder.icmp_signed(">", x, y)
    return builder.select(larger, x, y)


def _choose_smaller(builder: Any, lanes: Lanes, x: Any, y: Any) -> Any:
    return builder.select(builder.fcmp_ordered("<", x, y), x, y)


_add, _sub, _mul = _arithmetic("add"), _arithmetic("sub"), _arithmetic("mul")
_div = _binary(lambda builder, lanes, x, y: builder.fdiv(x, y))
larger = _binary(_choose_larger)  # x where x > y, else y: larger(x, NaN) is NaN, larger(NaN, y) is y
smaller = _binary(_choose_smaller)  # x where x < y, else y


def _give_operator(function: Any, implementation: Any) -> None:
    def choose(x: Any, y: Any) -> Any:
        return (lambda x, y: implementation(x, y)) if isinstance(x, Lanes) and isinstance(y, Lanes) else None

    by_type(choose, function)


for _function, _implementation in (
    (operator.add, _add),
    (operator.sub, _sub),
    (operator.mul, _mul),
    (operator.truediv, _div),
):
    _give_operator(_function, _implementation)


@intrinsic
def where_more(typing: Any, x: Any, limit: Any, value: Any, other: Any) -> Any:
    """`value` where x > limit, else `other`."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        more = builder.fcmp_ordered(">", arguments[0], arguments[1])
        return builder.select(more, arguments[2], arguments[3])

    return value(x, limit, value, other), code


def _in_order(combine: Callable[[Any, Any], Any], builder: Any, value: Any, width: int) -> Any:
    """From the first lane to the last."""
    entries = [builder.extract_element(value, ir.Constant(ir.IntType(32), g)) for g in range(width)]
    result = entries[0]
    for entry in entries[1:]:
        result = combine(result, entry)
    return result


def _in_halves(combine: Callable[[Any, Any], Any], builder: Any, value: Any, width: int) -> Any:
    """The lower half with the upper half, until one lane is left: few steps that wait for one another."""
    i32 = ir.IntType(32)
    while width > 1:
        width //= 2
        kind = ir.VectorType(i32, width)
        picks = [ir.Constant(kind, list(range(first, first + width))) for first in (0, width)]
        value = combine(*(builder.shuffle_vector(value, value, pick) for pick in picks))
    return builder.extract_element(value, ir.Constant(i32, 0))


def _reduction(combine: Callable[[Any, Lanes, Any, Any], Any], order: Callable[..., Any]) -> Any:
    """All lanes combined into one scalar."""

    @intrinsic
    def reduce(typing: Any, x: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return order(partial(combine, builder, x), builder, arguments[0], x.width)

        return x.dtype(x), code

    return reduce


def _fadd(builder: Any, lanes: Lanes, x: Any, y: Any) -> Any:
    return builder.fadd(x, y)


sum_lanes = _reduction(_fadd, _in_order)
sum_in_halves = _reduction(_fadd, _in_halves)
largest_lane = _reduction(_choose_larger, _in_halves)
least_lane = _reduction(_choose_smaller, _in_halves)


@intrinsic
def to_integers(typing: Any, x: Any) -> Any:
    """Floating-point lanes that hold integers, as integers."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fptosi(arguments[0], x.bits)

    return x.integers(x), code


@intrinsic
def to_floats(typing: Any, like: Any, n: Any) -> Any:
    """Integer lanes as floating-point lanes in the type of `like`."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.sitofp(arguments[1], context.get_value_type(like))

    return like(like, n), code


@intrinsic
def as_integers(typing: Any, x: Any) -> Any:
    """The bits of floating-point lanes, unchanged."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], x.bits)

    return x.integers(x), code


@intrinsic
def as_floats(typing: Any, like: Any, n: Any) -> Any:
    """The reverse of `as_integers`, in the type of `like`."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[1], context.get_value_type(like))

    return like(like, n), code


@intrinsic
def power_of_two(typing: Any, like: Any, n: Any) -> Any:
    """2**n made from its bits, in the type of `like`; 0 where n is below the exponents of normal numbers."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        exponent = _choose_larger(builder, n, arguments[1], n.constant(-like.bias))
        biased = builder.add(exponent, n.constant(like.bias))
        shifted = builder.shl(biased, n.constant(like.mantissa_bits))
        return builder.bitcast(shifted, context.get_value_type(like))

    return like(like, n), code


@intrinsic
def exponent(typing: Any, x: Any) -> Any:
    """n with 2**n <= x < 2**(n + 1), for x > 0; the lowest exponent less one for 0 and subnormal numbers."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.bitcast(arguments[0], x.bits)
        return builder.sub(builder.lshr(bits, x.constant(x.mantissa_bits)), x.constant(x.bias))

    return x.integers(x), code


@intrinsic
def mantissa(typing: Any, x: Any) -> Any:
    """x / 2**exponent(x), within [1, 2), for x > 0 that is not subnormal."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.bitcast(arguments[0], x.bits)
        stored = builder.and_(bits, x.constant((1 << x.mantissa_bits) - 1))
        return builder.bitcast(
            builder.or_(stored, x.constant(x.bias << x.mantissa_bits)), context.get_value_type(x)
        )

    return x(x), code
