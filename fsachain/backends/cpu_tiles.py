"""W x W tiles turned round in registers: from the scores of W sequences to rows of lanes, and back for occupancies.

Scores of one sequence lie side by side, while the kernels want those of one pdf side by side. Element by element that
costs as much as ten arcs; turned in log2(W) steps of shuffles, a tile costs hardly more than its loads and stores.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from fsachain.backends.cpu_lanes import Lanes, intrinsic


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
    data = context.make_array(array[0])(context, builder, array[1]).data
    pointer = context.get_value_type(lanes).as_pointer()
    return [builder.bitcast(builder.gep(data, [offset]), pointer) for offset in offsets]


def _row_offsets(builder: Any, first: Any, lanes: Lanes) -> list[Any]:
    width = ir.Constant(first.type, lanes.width)
    return [builder.mul(builder.add(first, ir.Constant(first.type, k)), width) for k in range(lanes.width)]


def _lane_offsets(
    context: Any, builder: Any, offsets: tuple[Any, Any], column: Any, lanes: Lanes
) -> list[Any]:
    """offsets[g] + column for each lane g."""
    data = context.make_array(offsets[0])(context, builder, offsets[1]).data
    loaded = (builder.load(builder.gep(data, [ir.Constant(column.type, g)])) for g in range(lanes.width))
    return [builder.add(offset, column) for offset in loaded]


@intrinsic
def tile_in(typing: Any, form: Any, source: Any, offsets: Any, column: Any, rows: Any, first: Any) -> Any:
    """rows[first + k, g] = flat source[offsets[g] + column + k] for 0 <= k, g < W; int64 offsets, column and first."""
    lanes = Lanes(rows.dtype, form.count)

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, source_value, offset_value, column_value, row_value, first_value = arguments
        size = rows.dtype.bitwidth // 8
        starts = _lane_offsets(context, builder, (offsets, offset_value), column_value, lanes)
        pointers = _vectors(context, builder, (source, source_value), lanes, starts)
        turned = _turned(builder, [builder.load(pointer, align=size) for pointer in pointers])
        targets = _row_offsets(builder, first_value, lanes)
        for pointer, value in zip(
            _vectors(context, builder, (rows, row_value), lanes, targets), turned, strict=True
        ):
            builder.store(value, pointer, align=size)
        return context.get_dummy_value()

    return types.void(form, source, offsets, types.int64, rows, types.int64), code


@intrinsic
def tile_out(typing: Any, form: Any, rows: Any, first: Any, target: Any, offsets: Any, column: Any) -> Any:
    """flat target[offsets[g] + column + k] += rows[first + k, g] for 0 <= k, g < W; int64 offsets, column and first."""
    lanes = Lanes(rows.dtype, form.count)

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, row_value, first_value, target_value, offset_value, column_value = arguments
        size = rows.dtype.bitwidth // 8
        sources = _row_offsets(builder, first_value, lanes)
        pointers = _vectors(context, builder, (rows, row_value), lanes, sources)
        turned = _turned(builder, [builder.load(pointer, align=size) for pointer in pointers])
        starts = _lane_offsets(context, builder, (offsets, offset_value), column_value, lanes)
        for pointer, value in zip(
            _vectors(context, builder, (target, target_value), lanes, starts), turned, strict=True
        ):
            builder.store(builder.fadd(builder.load(pointer, align=size), value), pointer, align=size)
        return context.get_dummy_value()

    return types.void(form, rows, types.int64, target, offsets, types.int64), code
