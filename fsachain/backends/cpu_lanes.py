"""A numba type for W numbers that are worked on together, one in each lane of the vector registers.

A row of a C-contiguous array [rows, W] is loaded into lanes, computed with and stored; the compiler chooses the
instructions (AVX-512, AVX2, NEON, ...) and splits a row where the machine's registers are narrower. A lane never sees
another lane, nothing is reordered and only `fma` is fused: a sequence gets the same bits in any lane, and with W = 1.

The width is part of the type of a `form`, a tuple of W zeros: `load((0,) * 16, array, i)` gives 16 lanes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic as numba_intrinsic
from numba.extending import models, overload, register_model

from fsachain.backends.jit import NO_COUNTS

LINE = 64  # bytes of a cache line


class Lanes(types.Type):
    """W numbers of one scalar type."""

    def __init__(self, dtype: Any, width: int) -> None:
        self.dtype, self.width = dtype, width
        super().__init__(name=f"Lanes({dtype}, {width})")

    @property
    def integers(self) -> Lanes:
        """Lanes of the integers that have as many bits."""
        return Lanes(getattr(types, f"int{self.dtype.bitwidth}"), self.width)

    @property
    def bits(self) -> Any:
        """Their LLVM type."""
        return ir.VectorType(ir.IntType(self.dtype.bitwidth), self.width)

    def constant(self, value: int) -> Any:
        """The LLVM constant that has an integer in every lane."""
        return ir.Constant(self.bits, [value] * self.width)

    @property
    def mantissa_bits(self) -> int:
        """Stored bits of the mantissa; the exponent's bits stand above them."""
        return {32: 23, 64: 52}[int(self.dtype.bitwidth)]

    @property
    def bias(self) -> int:
        """What is added to an exponent when it is stored."""
        return {32: 127, 64: 1023}[int(self.dtype.bitwidth)]


def intrinsic(function: Callable[..., Any]) -> Any:
    """numba's decorator, untyped: what compiled code calls has not the parameters of what makes its code."""
    return numba_intrinsic(function)


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes: Lanes) -> None:
        element = manager.lookup(lanes.dtype).get_value_type()
        super().__init__(manager, lanes, ir.VectorType(element, lanes.width))


def _address(
    context: Any, builder: Any, array: tuple[Any, Any], position: tuple[Any, Any], lanes: Lanes
) -> Any:
    """A pointer to W entries of an array; array and position are pairs of type and value."""
    data = context.make_array(array[0])(context, builder, array[1]).data
    first = builder.gep(data, [context.cast(builder, position[1], position[0], types.intp)])
    return builder.bitcast(first, context.get_value_type(lanes).as_pointer())


def _row_address(
    context: Any, builder: Any, array: tuple[Any, Any], row: tuple[Any, Any], lanes: Lanes
) -> Any:
    """The same for a row of W entries."""
    index = context.cast(builder, row[1], row[0], types.intp)
    position = builder.mul(index, ir.Constant(index.type, lanes.width))
    return _address(context, builder, array, (types.intp, position), lanes)


def aligned_bytes(size: int) -> npt.NDArray[np.uint8]:
    """`size` bytes that begin at a cache line, as arrays must whose rows are loaded: no row then straddles two lines."""
    raw = np.empty(size + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    return raw[start : start + size]


def _bytes(lanes: Lanes) -> int:
    return min(LINE, lanes.dtype.bitwidth // 8 * lanes.width)


@intrinsic
def load(typing: Any, form: Any, array: Any, row: Any) -> Any:
    """Row `row` of an array whose rows have W numbers."""
    lanes = Lanes(array.dtype, form.count)

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _row_address(context, builder, (array, arguments[1]), (row, arguments[2]), lanes)
        return builder.load(address, align=_bytes(lanes))

    return lanes(form, array, row), code


@intrinsic
def prefetch(typing: Any, array: Any, position: Any) -> Any:
    """Have the cache line brought near in which an entry of a contiguous array stands, counted through all its axes."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lane = Lanes(array.dtype, 1)
        address = _address(context, builder, (array, arguments[0]), (position, arguments[1]), lane)
        byte, i32 = builder.bitcast(address, ir.IntType(8).as_pointer()), ir.IntType(32)
        function = ir.FunctionType(ir.VoidType(), [byte.type, i32, i32, i32])
        call = cgutils.get_or_insert_function(builder.module, function, "llvm.prefetch.p0")
        # To be read, of middling locality (the second-level cache), data.
        builder.call(call, [byte, ir.Constant(i32, 0), ir.Constant(i32, 2), ir.Constant(i32, 1)])
        return context.get_dummy_value()

    return types.void(array, position), code


@intrinsic
def load_from(typing: Any, form: Any, array: Any, position: Any) -> Any:
    """W entries of a contiguous array from `position` on, at any address: here the lanes are entries, not sequences."""
    lanes = Lanes(array.dtype, form.count)

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, (array, arguments[1]), (position, arguments[2]), lanes)
        return builder.load(address, align=array.dtype.bitwidth // 8)

    return lanes(form, array, position), code


@intrinsic
def store(typing: Any, array: Any, row: Any, value: Any) -> Any:
    """Write lanes over row `row`."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _row_address(context, builder, (array, arguments[0]), (row, arguments[1]), value)
        builder.store(arguments[2], address, align=_bytes(value))
        return context.get_dummy_value()

    return types.void(array, row, value), code


@intrinsic
def store_to(typing: Any, array: Any, position: Any, value: Any) -> Any:
    """Write lanes over W entries of a contiguous array from `position` on, at any address: see `load_from`."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, (array, arguments[0]), (position, arguments[1]), value)
        builder.store(arguments[2], address, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, position, value), code


def _spread(context: Any, builder: Any, lanes: Lanes, value: Any) -> Any:
    nothing = ir.Constant(context.get_value_type(lanes), ir.Undefined)
    single = builder.insert_element(nothing, value, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), lanes.width), [0] * lanes.width)
    return builder.shuffle_vector(single, nothing, zeros)


@intrinsic
def splat(typing: Any, form: Any, value: Any) -> Any:
    """The same number in every lane."""
    lanes = Lanes(value, form.count)

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _spread(context, builder, lanes, arguments[1])

    return lanes(form, value), code


@intrinsic
def fill(typing: Any, like: Any, value: Any) -> Any:
    """The same number in every lane, in the type of `like`, whose own numbers do not matter."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _spread(context, builder, like, context.cast(builder, arguments[1], value, like.dtype))

    return like(like, value), code


def by_type(choose: Callable[..., Any], function: Any = None) -> Any:
    """A function for compiled code whose implementation `choose` gives for the types of its arguments.

    Its parameters are those of `choose`. With `function`, an operator say, that is given one implementation more.
    """

    def for_compiled_code(*arguments: Any) -> Any:
        raise NotImplementedError("for compiled code only")

    def choose_bare(*arguments: Any) -> Any:
        implementation = choose(*arguments)
        if implementation is not None:
            implementation.__annotations__ = {}  # numba compares signatures, and annotations with them
        return implementation

    parameters = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in _parameters(choose)]
    choose_bare.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function = for_compiled_code if function is None else function
    options: Any = NO_COUNTS
    overload(function, jit_options=options)(choose_bare)
    return function


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())
