"""A numba type for W numbers that are worked on together, one in each lane of the vector registers.

A row of a C-contiguous array [rows, W] is loaded into lanes, computed with and stored; the compiler chooses the
instructions (AVX-512, AVX2, NEON, ...) and splits a row where the machine's registers are narrower. A lane never sees
another lane, nothing is reordered and only `fma` is fused: a sequence gets the same bits in any lane, and with W = 1.

The width is part of the type of a `Form`: `load(Form(16), array, i)` gives 16 lanes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import cache, partial
from inspect import isfunction
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.core.typing.templates import AbstractTemplate, infer_global
from numba.extending import models, register_model

from fsachain.backends.cpu.jit import helper
from fsachain.backends.cpu.structs import Form, FormType, address_of

LINE = 64  # bytes of a cache line
# Lanes of a register, by the bytes of a number, where registers are widest (AVX-512); others take two or four for them.
WIDTH = {4: 16, 8: 8}
FORMS = {size: Form(width) for size, width in WIDTH.items()}


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
    def vector(self) -> Any:
        """The LLVM type."""
        is_float = isinstance(self.dtype, types.Float)
        kinds = {32: ir.FloatType(), 64: ir.DoubleType()}
        return ir.VectorType(kinds[self.dtype.bitwidth], self.width) if is_float else self.bits

    @property
    def bits(self) -> Any:
        """That of `integers`."""
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


class _Named:
    """A name for compiled code, which finds its type here rather than in numba's registries."""

    def __init__(self, template: Any) -> None:
        template.key, template.implementations = self, {}
        self._numba_type_ = types.Function(template)


class _Template(AbstractTemplate):
    implementations: ClassVar[dict[Any, Any]]

    def get_impl_key(self, sig: Any) -> Any:
        return self.implementations[sig.args]


def intrinsic(function: Callable[..., Any]) -> Any:
    """A decorator for functions of types that return the type of the result and what makes the code of the values.

    Numba's own goes through all of its registries for each call in a kernel's text.
    """
    known = cache(function)

    class Intrinsic(_Template):
        def generic(self, args: Any, kws: Any) -> Any:
            result, code = known(*args)

            def implementation(context: Any, builder: Any, signature: Any, values: Any) -> Any:
                made = code(context, builder, *values)
                return context.get_dummy_value() if result is types.void else made

            if args not in self.implementations:
                self.implementations[args] = implementation
                cpu_target.target_context.insert_func_defn([(implementation, implementation, args)])
            return result(*args)

    return _Named(Intrinsic)


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes: Lanes) -> None:
        super().__init__(manager, lanes, lanes.vector)


def _data(context: Any, builder: Any, array: tuple[Any, Any]) -> Any:
    """Where an array's entries begin; array: type and value."""
    return context.data_model_manager[array[0]].get(builder, array[1], "data")


def _address(
    context: Any, builder: Any, array: tuple[Any, Any], position: tuple[Any, Any], lanes: Lanes
) -> Any:
    """A pointer to W entries of an array; array and position are pairs of type and value."""
    data = _data(context, builder, array)
    first = builder.gep(data, [context.cast(builder, position[1], position[0], types.intp)])
    return builder.bitcast(first, lanes.vector.as_pointer())


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
    start = -address_of(raw) % LINE
    return raw[start : start + size]


def _bytes(lanes: Lanes) -> int:
    return min(LINE, lanes.dtype.bitwidth // 8 * lanes.width)


@intrinsic
def load(form: Any, array: Any, row: Any) -> Any:
    """Row `row` of an array whose rows have W numbers."""
    lanes = Lanes(array.dtype, form.width)

    def code(context: Any, builder: Any, _: Any, entries: Any, index: Any) -> Any:
        address = _row_address(context, builder, (array, entries), (row, index), lanes)
        return builder.load(address, align=_bytes(lanes))

    return lanes, code


@intrinsic
def prefetch(array: Any, position: Any) -> Any:
    """Have the cache line brought near in which an entry of a contiguous array stands, counted through all its axes."""

    def code(context: Any, builder: Any, entries: Any, index: Any) -> None:
        address = _address(context, builder, (array, entries), (position, index), Lanes(array.dtype, 1))
        byte, i32 = builder.bitcast(address, ir.IntType(8).as_pointer()), ir.IntType(32)
        function = ir.FunctionType(ir.VoidType(), [byte.type, i32, i32, i32])
        call = cgutils.get_or_insert_function(builder.module, function, "llvm.prefetch.p0")
        # To be read, of middling locality (the second-level cache), data.
        builder.call(call, [byte, ir.Constant(i32, 0), ir.Constant(i32, 2), ir.Constant(i32, 1)])

    return types.void, code


@intrinsic
def load_from(form: Any, array: Any, position: Any) -> Any:
    """W entries of a contiguous array from `position` on, at any address: here the lanes are entries, not sequences."""
    lanes = Lanes(array.dtype, form.width)

    def code(context: Any, builder: Any, _: Any, entries: Any, index: Any) -> Any:
        address = _address(context, builder, (array, entries), (position, index), lanes)
        return builder.load(address, align=array.dtype.bitwidth // 8)

    return lanes, code


@intrinsic
def store(array: Any, row: Any, lanes: Any) -> Any:
    """Write lanes over row `row`."""

    def code(context: Any, builder: Any, entries: Any, index: Any, value: Any) -> None:
        address = _row_address(context, builder, (array, entries), (row, index), lanes)
        builder.store(value, address, align=_bytes(lanes))

    return types.void, code


@intrinsic
def store_to(array: Any, position: Any, lanes: Any) -> Any:
    """Write lanes over W entries of a contiguous array from `position` on, at any address: see `load_from`."""

    def code(context: Any, builder: Any, entries: Any, index: Any, value: Any) -> None:
        address = _address(context, builder, (array, entries), (position, index), lanes)
        builder.store(value, address, align=array.dtype.bitwidth // 8)

    return types.void, code


def _spread(builder: Any, lanes: Lanes, value: Any) -> Any:
    nothing = ir.Constant(lanes.vector, ir.Undefined)
    single = builder.insert_element(nothing, value, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), lanes.width), [0] * lanes.width)
    return builder.shuffle_vector(single, nothing, zeros)


@intrinsic
def splat(form: Any, kind: Any) -> Any:
    """The same number in every lane."""
    lanes = Lanes(kind, form.width)
    return lanes, lambda context, builder, _, value: _spread(builder, lanes, value)


@intrinsic
def fill(like: Any, kind: Any) -> Any:
    """The same number in every lane, in the type of `like`, whose own numbers do not matter."""

    def code(context: Any, builder: Any, _: Any, value: Any) -> Any:
        return _spread(builder, like, context.cast(builder, value, kind, like.dtype))

    return like, code


def by_type(choose: Callable[..., Any], function: Any = None) -> Any:
    """A function for compiled code whose implementation `choose` gives for the types of its arguments.

    A call of it is a call of the implementation, an intrinsic or a function to be compiled: nothing stands between.
    With `function`, an operator say, that gets one implementation more, for types where `choose` gives one.
    """
    implementation = cache(lambda *arguments: compiled(choose(*arguments)))

    class Chosen(_Template):
        metadata: ClassVar[dict[str, str]] = {"target": "cpu"}  # is asked before numba's own, which has none

        def generic(self, args: Any, kws: Any) -> Any:
            chosen = implementation(*args)
            if chosen is None:
                return None
            callee = self.context.resolve_value_type(chosen)
            signature = callee.get_call_type(self.context, args, kws)
            self.implementations[signature.args] = callee.get_impl_key(signature)
            return signature

    named = _Named(Chosen)
    if function is None:
        return named
    Chosen.key = function
    infer_global(function, types.Function(Chosen))
    return function


def compiled(function: Any) -> Any:
    """A plain function as one that is compiled where it is called; anything else as it is."""
    return helper(function) if isfunction(function) else function


@intrinsic
def _width(form: Any) -> Any:
    return types.int64, lambda context, builder, _: context.get_constant(types.int64, form.width)


by_type(lambda form: _width if isinstance(form, FormType) else None, len)


# Arithmetic of `Lanes`, lane by lane: each function is one instruction or a few.


def _llvm(name: str, lanes: Lanes) -> Any:
    """An intrinsic of LLVM that takes and returns floating-point lanes."""

    def call(context: Any, builder: Any, *values: Any) -> Any:
        full_name = f"llvm.{name}.v{lanes.width}f{lanes.dtype.bitwidth}"
        function = ir.FunctionType(lanes.vector, [lanes.vector] * len(values))
        return builder.call(cgutils.get_or_insert_function(builder.module, function, full_name), values)

    return call


@intrinsic
def fma(x: Any, y: Any, z: Any) -> Any:
    """x y + z, rounded once."""
    return x, _llvm("fma", x)


@intrinsic
def rint(x: Any) -> Any:
    """The nearest integers, as floating-point lanes."""
    return x, _llvm("rint", x)


def _binary(build: Callable[[Any, Lanes, Any, Any], Any]) -> Any:
    return intrinsic(lambda x, y: (x, lambda context, builder, *values: build(builder, x, *values)))


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


add, subtract, multiply = _arithmetic("add"), _arithmetic("sub"), _arithmetic("mul")
divide = _binary(lambda builder, lanes, x, y: builder.fdiv(x, y))
larger = _binary(_choose_larger)  # x where x > y, else y: larger(x, NaN) is NaN, larger(NaN, y) is y
smaller = _binary(_choose_smaller)  # x where x < y, else y


for _operator, _operation in (
    (operator.add, add),
    (operator.sub, subtract),
    (operator.mul, multiply),
    (operator.truediv, divide),
):
    by_type(
        lambda x, y, of=_operation: of if isinstance(x, Lanes) and isinstance(y, Lanes) else None, _operator
    )


@intrinsic
def where_more(x: Any, limit: Any, value: Any, other: Any) -> Any:
    """`value` where x > limit, else `other`."""

    def code(context: Any, builder: Any, x: Any, limit: Any, value: Any, other: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", x, limit), value, other)

    return value, code


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
    def reduce(x: Any) -> Any:
        def code(context: Any, builder: Any, value: Any) -> Any:
            return order(partial(combine, builder, x), builder, value, x.width)

        return x.dtype, code

    return reduce


def _fadd(builder: Any, lanes: Lanes, x: Any, y: Any) -> Any:
    return builder.fadd(x, y)


def _reduction_of_rows(combine: Callable[[Any, Lanes, Any, Any], Any]) -> Any:
    """[k] of the result: row k of an array [W, W] combined as by `_in_halves`, to the bit; all rows at once."""

    @intrinsic
    def reduce(form: Any, array: Any) -> Any:
        lanes = Lanes(array.dtype, form.width)

        def code(context: Any, builder: Any, _: Any, entries: Any) -> Any:
            width, address = form.width, partial(_row_address, context, builder, (array, entries))
            numbers = [(types.intp, ir.Constant(context.get_value_type(types.intp), k)) for k in range(width)]
            rows = [builder.load(address(number, lanes), align=_bytes(lanes)) for number in numbers]
            size = width  # of what is left of a row; a register holds so many of several rows
            while size > 1:
                half, between = size // 2, len(rows) // 2
                starts = [of + block for block in range(0, width, size) for of in (0, width)]
                picks = [
                    ir.Constant(
                        ir.VectorType(ir.IntType(32), width),
                        [start + shift + i for start in starts for i in range(half)],
                    )
                    for shift in (0, half)
                ]
                rows = [
                    combine(builder, lanes, *(builder.shuffle_vector(x, y, pick) for pick in picks))
                    for x, y in zip(rows[:between], rows[between:], strict=True)
                ]
                size = half
            return rows[0]

        return lanes, code

    return reduce


sum_lanes = _reduction(_fadd, _in_order)
sum_in_halves = _reduction(_fadd, _in_halves)
largest_lane = _reduction(_choose_larger, _in_halves)
least_lane = _reduction(_choose_smaller, _in_halves)
sum_of_rows = _reduction_of_rows(_fadd)
largest_of_rows = _reduction_of_rows(_choose_larger)


@intrinsic
def to_integers(x: Any) -> Any:
    """Floating-point lanes that hold integers, as integers."""
    return x.integers, lambda context, builder, value: builder.fptosi(value, x.bits)


@intrinsic
def to_floats(like: Any, n: Any) -> Any:
    """Integer lanes as floating-point lanes in the type of `like`."""
    return like, lambda context, builder, _, value: builder.sitofp(value, like.vector)


@intrinsic
def as_integers(x: Any) -> Any:
    """The bits of floating-point lanes, unchanged."""
    return x.integers, lambda context, builder, value: builder.bitcast(value, x.bits)


@intrinsic
def as_floats(like: Any, n: Any) -> Any:
    """The reverse of `as_integers`, in the type of `like`."""
    return like, lambda context, builder, _, value: builder.bitcast(value, like.vector)


@intrinsic
def power_of_two(like: Any, n: Any) -> Any:
    """2**n made from its bits, in the type of `like`; 0 where n is below the exponents of normal numbers."""

    def code(context: Any, builder: Any, _: Any, value: Any) -> Any:
        exponent = _choose_larger(builder, n, value, n.constant(-like.bias))
        biased = builder.add(exponent, n.constant(like.bias))
        shifted = builder.shl(biased, n.constant(like.mantissa_bits))
        return builder.bitcast(shifted, like.vector)

    return like, code


@intrinsic
def exponent(x: Any) -> Any:
    """n with 2**n <= x < 2**(n + 1), for x > 0; the lowest exponent less one for 0 and subnormal numbers."""

    def code(context: Any, builder: Any, value: Any) -> Any:
        bits = builder.bitcast(value, x.bits)
        return builder.sub(builder.lshr(bits, x.constant(x.mantissa_bits)), x.constant(x.bias))

    return x.integers, code


@intrinsic
def mantissa(x: Any) -> Any:
    """x / 2**exponent(x), within [1, 2), for x > 0 that is not subnormal."""

    def code(context: Any, builder: Any, value: Any) -> Any:
        stored = builder.and_(builder.bitcast(value, x.bits), x.constant((1 << x.mantissa_bits) - 1))
        return builder.bitcast(builder.or_(stored, x.constant(x.bias << x.mantissa_bits)), x.vector)

    return x, code


# exp and log of lanes: a power of two, and a series for what is left of it.

# |r| <= ln 2 / 2: these powers leave relative errors of 5e-9 in float32, 7e-15 in float64.
_DEGREES = {types.float32: 7, types.float64: 11}
# ln 2 as rounded, less ln 2.
_EXCESS = {types.float32: 1.9046542999577679e-9, types.float64: -2.3190468138462996e-17}
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


# W x W tiles turned round in registers: from the scores of W sequences to rows of lanes, and back for
# occupancies.
#
# Scores of one sequence lie side by side, while the kernels want those of one pdf side by side. Element by
# element that costs as much as ten arcs; turned in log2(W) steps of shuffles, a tile costs hardly more than
# its loads and stores.


def _turned(builder: Any, rows: list[Any]) -> list[Any]:
    """Entry [k] of result [g] is entry [g] of row [k]: in step h, the bit h of the two indices is exchanged."""
    width = len(rows)
    h = 1
    while h < width:
        # Entries of the first row have the numbers 0 to W - 1, those of the second W to 2 W - 1.
        upper = [k if not k & h else width + k - h for k in range(width)]
        lower = [k + h if not k & h else width + k for k in range(width)]
        masks = [ir.Constant(ir.VectorType(ir.IntType(32), width), mask) for mask in (upper, lower)]
        turned = list(rows)
        for i in range(width):
            if not i & h:
                for target, mask in zip((i, i | h), masks, strict=True):
                    turned[target] = builder.shuffle_vector(rows[i], rows[i | h], mask)
        rows, h = turned, 2 * h
    return rows


def _vectors(
    context: Any, builder: Any, array: tuple[Any, Any], lanes: Lanes, offsets: list[Any]
) -> list[Any]:
    """Pointers to W entries of an array at each of these offsets."""
    data = _data(context, builder, array)
    return [builder.bitcast(builder.gep(data, [offset]), lanes.vector.as_pointer()) for offset in offsets]


def _row_offsets(builder: Any, first: Any, lanes: Lanes) -> list[Any]:
    width = ir.Constant(first.type, lanes.width)
    return [builder.mul(builder.add(first, ir.Constant(first.type, k)), width) for k in range(lanes.width)]


def _lane_offsets(
    context: Any, builder: Any, offsets: tuple[Any, Any], column: Any, lanes: Lanes
) -> list[Any]:
    """offsets[g] + column for each lane g."""
    data = _data(context, builder, offsets)
    loaded = (builder.load(builder.gep(data, [ir.Constant(column.type, g)])) for g in range(lanes.width))
    return [builder.add(offset, column) for offset in loaded]


@intrinsic
def tile_in(form: Any, source: Any, offsets: Any, column: Any, rows: Any, first: Any) -> Any:
    """rows[first + k, g] = flat source[offsets[g] + column + k] for 0 <= k, g < W; int64 offsets, column and first."""
    lanes = Lanes(rows.dtype, form.width)

    def code(
        context: Any, builder: Any, _: Any, given: Any, at: Any, column: Any, into: Any, first: Any
    ) -> None:
        size = rows.dtype.bitwidth // 8
        starts = _lane_offsets(context, builder, (offsets, at), column, lanes)
        pointers = _vectors(context, builder, (source, given), lanes, starts)
        turned = _turned(builder, [builder.load(pointer, align=size) for pointer in pointers])
        targets = _vectors(context, builder, (rows, into), lanes, _row_offsets(builder, first, lanes))
        for pointer, value in zip(targets, turned, strict=True):
            builder.store(value, pointer, align=size)

    return types.void, code


@intrinsic
def tile_out(form: Any, rows: Any, first: Any, target: Any, offsets: Any, column: Any) -> Any:
    """flat target[offsets[g] + column + k] += rows[first + k, g] for 0 <= k, g < W; int64 offsets, column and first."""
    lanes = Lanes(rows.dtype, form.width)

    def code(
        context: Any, builder: Any, _: Any, given: Any, first: Any, into: Any, at: Any, column: Any
    ) -> None:
        size = rows.dtype.bitwidth // 8
        pointers = _vectors(context, builder, (rows, given), lanes, _row_offsets(builder, first, lanes))
        turned = _turned(builder, [builder.load(pointer, align=size) for pointer in pointers])
        starts = _lane_offsets(context, builder, (offsets, at), column, lanes)
        for pointer, value in zip(
            _vectors(context, builder, (target, into), lanes, starts), turned, strict=True
        ):
            builder.store(builder.fadd(builder.load(pointer, align=size), value), pointer, align=size)

    return types.void, code
