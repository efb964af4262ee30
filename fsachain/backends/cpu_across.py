"""Lanes that hold different rows of one sequence, for graphs that are shared but have a single sequence at hand.

Such a sequence has rows of one number. Here a register full of these comes into the lanes, of rows that follow each other
or stand anywhere, of either kind of number (`cpu_numbers`). All arithmetic is then that of sequences side by side, lane by
lane, and so are the bits. From anywhere means a load for each lane: the instruction that some processors have for it takes
1.4 times as long on Zen 4.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from fsachain.backends.cpu_arithmetic import as_floats, as_integers
from fsachain.backends.cpu_lanes import Lanes, _address, by_type, intrinsic, load_from, splat, store_to
from fsachain.backends.cpu_numbers import is_wide_type, plain_form, wide_form

SIDES = {4: 16, 8: 8}  # rows in the lanes, by the bytes of a number: a register where registers are widest
_FORMS = {size: (plain_form(side), wide_form(side)) for size, side in SIDES.items()}


@by_type
def across(form: Any, array: Any) -> Any:
    """The form of as many lanes of the same kind as there are rows side by side, for numbers of the array's type."""
    plain, wide = _FORMS[array.dtype.bitwidth // 8]
    return (lambda form, array: wide) if is_wide_type(form) else (lambda form, array: plain)


@by_type
def width(form: Any) -> Any:
    """How many lanes a form has. Unsigned, like all that it is added to: numba makes floats of signed and unsigned."""
    lanes = np.uint64(form[0].count if is_wide_type(form) else form.count)
    return lambda form: lanes


def _element(context: Any, builder: Any, array: tuple[Any, Any], index: Any, step: int, plus: int) -> Any:
    """The address of entry index x step + plus; array: type and value."""
    place = builder.mul(index, ir.Constant(index.type, step))
    place = builder.add(place, ir.Constant(index.type, plus))
    return _address(context, builder, array, (types.intp, place), Lanes(array[0].dtype, 1))


def _index(context: Any, builder: Any, indices: tuple[Any, Any], position: Any, lane: int) -> Any:
    """Entry position + lane of an array of unsigned integers, as an intp."""
    place = builder.add(position, ir.Constant(position.type, lane))
    address = _address(context, builder, indices, (types.intp, place), Lanes(indices[0].dtype, 1))
    single = builder.extract_element(builder.load(address), ir.Constant(ir.IntType(32), 0))
    return builder.zext(single, position.type)


def _gathering(step: int, plus: int) -> Any:
    @intrinsic
    def gather_entries(typing: Any, form: Any, array: Any, indices: Any, position: Any) -> Any:
        lanes = Lanes(array.dtype, form.count)

        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            first = context.cast(builder, arguments[3], position, types.intp)
            value = ir.Constant(context.get_value_type(lanes), ir.Undefined)
            for lane in range(lanes.width):
                index = _index(context, builder, (indices, arguments[2]), first, lane)
                address = _element(context, builder, (array, arguments[1]), index, step, plus)
                entry = builder.extract_element(builder.load(address), ir.Constant(ir.IntType(32), 0))
                value = builder.insert_element(value, entry, ir.Constant(ir.IntType(32), lane))
            return value

        return lanes(form, array, indices, position), code

    return gather_entries


def _scattering(step: int, plus: int) -> Any:
    @intrinsic
    def scatter_entries(typing: Any, array: Any, indices: Any, position: Any, value: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            first = context.cast(builder, arguments[2], position, types.intp)
            single = ir.VectorType(context.get_value_type(value.dtype), 1)
            for lane in range(value.width):
                index = _index(context, builder, (indices, arguments[1]), first, lane)
                address = _element(context, builder, (array, arguments[0]), index, step, plus)
                entry = builder.extract_element(arguments[3], ir.Constant(ir.IntType(32), lane))
                nothing = ir.Constant(single, ir.Undefined)
                builder.store(builder.insert_element(nothing, entry, ir.Constant(ir.IntType(32), 0)), address)
            return context.get_dummy_value()

        return types.void(array, indices, position, value), code

    return scatter_entries


def _every_second(plus: int) -> Any:
    @intrinsic
    def load_every_second(typing: Any, form: Any, array: Any, position: Any) -> Any:
        lanes = Lanes(array.dtype, form.count)

        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            both = Lanes(array.dtype, 2 * lanes.width)
            address = _address(context, builder, (array, arguments[1]), (position, arguments[2]), both)
            rows = builder.load(address, align=array.dtype.bitwidth // 8)
            picks = list(range(plus, both.width, 2))
            return builder.shuffle_vector(
                rows, rows, ir.Constant(ir.VectorType(ir.IntType(32), lanes.width), picks)
            )

        return lanes(form, array, position), code

    return load_every_second


@intrinsic
def _store_in_turn(typing: Any, array: Any, position: Any, x: Any, y: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        both = Lanes(array.dtype, 2 * x.width)
        address = _address(context, builder, (array, arguments[0]), (position, arguments[1]), both)
        picks = [lane + half for lane in range(x.width) for half in (0, x.width)]
        mask = ir.Constant(ir.VectorType(ir.IntType(32), both.width), picks)
        rows = builder.shuffle_vector(arguments[2], arguments[3], mask)
        builder.store(rows, address, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, position, x, y), code


_gather, _gather_even, _gather_odd = _gathering(1, 0), _gathering(2, 0), _gathering(2, 1)
_scatter, _scatter_even, _scatter_odd = _scattering(1, 0), _scattering(2, 0), _scattering(2, 1)
_load_even, _load_odd = _every_second(0), _every_second(1)


@by_type
def gather(form: Any, array: Any, indices: Any, position: Any) -> Any:
    """The numbers in the rows indices[position], indices[position + 1], ... of an array whose rows hold one each."""

    def wide(form, array, indices, position):  # type: ignore[no-untyped-def]
        mantissas = _gather_even(form[0], array, indices, position)
        return mantissas, as_integers(_gather_odd(form[0], array, indices, position))

    plain = lambda form, array, indices, position: _gather(form, array, indices, position)  # noqa: E731
    return wide if is_wide_type(form) else plain


@by_type
def scatter(form: Any, array: Any, indices: Any, position: Any, x: Any) -> Any:
    """The reverse."""

    def wide(form, array, indices, position, x):  # type: ignore[no-untyped-def]
        _scatter_even(array, indices, position, x[0])
        _scatter_odd(array, indices, position, as_floats(x[0], x[1]))

    plain = lambda form, array, indices, position, x: _scatter(array, indices, position, x)  # noqa: E731
    return wide if is_wide_type(form) else plain


@by_type
def read_from(form: Any, array: Any, row: Any) -> Any:
    """The numbers in as many rows as there are lanes, from `row` on."""

    def wide(form, array, row):  # type: ignore[no-untyped-def]
        return _load_even(form[0], array, 2 * row), as_integers(_load_odd(form[0], array, 2 * row))

    return wide if is_wide_type(form) else (lambda form, array, row: load_from(form, array, row))


@by_type
def write_from(form: Any, array: Any, row: Any, x: Any) -> Any:
    """The reverse."""

    def wide(form, array, row, x):  # type: ignore[no-untyped-def]
        _store_in_turn(array, 2 * row, x[0], as_floats(x[0], x[1]))

    return wide if is_wide_type(form) else (lambda form, array, row, x: store_to(array, row, x))


@by_type
def weights_from(form: Any, weights: Any, position: Any) -> Any:
    """Consecutive entries of a pair of arrays that `cpu_numbers.weights` made, one for each lane."""

    def wide(form, weights, position):  # type: ignore[no-untyped-def]
        return load_from(form[0], weights[0], position), load_from(form[0], weights[1], position)

    return (
        wide
        if is_wide_type(form)
        else (lambda form, weights, position: load_from(form, weights[0], position))
    )


@by_type
def everywhere(form: Any, array: Any, row: Any) -> Any:
    """The number in one row, in every lane."""

    def wide(form, array, row):  # type: ignore[no-untyped-def]
        return splat(form[0], array[row, 0]), as_integers(splat(form[0], array[row, 1]))

    return wide if is_wide_type(form) else (lambda form, array, row: splat(form, array[row, 0]))
