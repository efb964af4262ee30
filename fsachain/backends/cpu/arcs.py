"""One frame of equations (2) and (5)-(7) on a graph that sequences share: every state gathers its arcs.

Arcs that share a destination and a pdf are summed before they are multiplied by the pdf's probability. Many graphs have one
pdf for all arcs into a state; an arc then costs one load and one multiply-add each way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from fsachain.backends.cpu.frames import LISTED, PATIENCE_LEFT, STALE, TOUCHED, across
from fsachain.backends.cpu.jit import helper
from fsachain.backends.cpu.layouts import ArcList, ArcsBothWays, OwnGroups
from fsachain.backends.cpu.numbers import (
    add,
    by_kind,
    exceeds,
    is_positive,
    lanes_of,
    least_positive,
    multiply,
    multiply_add,
    probability,
    read,
    scaled,
    shift_of,
    tidy,
    weight,
    where_lane,
    where_positive,
    write,
    zero,
)
from fsachain.backends.cpu.simd import (
    Lanes,
    _address,
    as_floats,
    as_integers,
    by_type,
    fill,
    intrinsic,
    largest_lane,
    least_lane,
    load,
    load_from,
    power_of_two,
    prefetch,
    splat,
    store,
    store_to,
    sum_in_halves,
    sum_lanes,
    where_more,
)
from fsachain.backends.cpu.structs import FormType


@helper
def _keep_alpha(form: Any, now: Any, j: int, alpha: Any, total: Any, least: Any) -> Any:
    """Write the alpha of state j; the sum over states and the least alpha that is not 0, with it."""
    alpha = tidy(alpha)
    write(form, now, j, alpha)
    return add(total, alpha), least_positive(alpha, least)


@helper
def gather_pairs(form: Any, arcs: Any, before: Any, probs: Any, now: Any, row: Any) -> None:
    """Equation (2); row [3, W] = the sum over states, a number; and the least alpha that is not 0."""
    total = zero(form, before)
    least = fill(load(lanes_of(form), row, 0), 1.0)
    for j in range(len(arcs.state_pairs) - 1):
        alpha = zero(form, before)
        for q in range(arcs.state_pairs[j], arcs.state_pairs[j + 1]):
            pair = zero(form, before)
            for e in range(arcs.pair_arcs[q], arcs.pair_arcs[q + 1]):
                pair = multiply_add(
                    weight(form, arcs.arc_weight, e), read(form, before, arcs.arc_src[e]), pair
                )
            alpha = multiply_add(pair, read(form, probs, arcs.pair_column[q]), alpha)
        total, least = _keep_alpha(form, now, j, alpha, total, least)
    write(form, row, 0, tidy(total))
    store(row, 2, least)


@helper
def occupy_pairs(form: Any, arcs: Any, alphas: Any, after: Any, probs: Any, work: Any) -> Any:
    """Equations (6), (7): occupancy rows and their sum, and the pairs' rows exp(y) b(t + 1, dst), from which betas come."""
    before, alpha, alpha_after = alphas
    leak, scale = read(form, work.leak, 0), load(lanes_of(form), work.beta_scale, 0)
    total = zero(form, alpha)
    for k in range(len(arcs.column_pairs) - 1):
        p = read(form, probs, k)
        gamma = zero(form, alpha)
        for q in range(arcs.column_pairs[k], arcs.column_pairs[k + 1]):
            j = arcs.column_dst[q]
            prefetch(before, min(q, len(before) - 1) * before.shape[1])
            beta = add(scaled(read(form, after, j), scale), leak)
            onward = multiply(beta, p)
            write(form, work.pairs, q, onward)
            first, last = arcs.column_arcs[q], arcs.column_arcs[q + 1]
            if first == last:
                gamma = multiply_add(read(form, alpha_after, j), beta, gamma)
            else:
                pair = zero(form, alpha)
                for e in range(first, last):
                    x = read(form, alpha, arcs.column_src[e])
                    pair = multiply_add(weight(form, arcs.column_weight, e), x, pair)
                gamma = multiply_add(pair, onward, gamma)
        gamma = tidy(gamma)
        write(form, work.occupancy, k, gamma)
        total = add(total, gamma)
    return tidy(total)


@helper
def spread_pairs(form: Any, table: Any, alphas: Any, after: Any, probs: Any, now: Any, work: Any) -> Any:
    """Equation (5) and (6), (7): betas, occupancy rows; the sums of occupancies, of betas, and of betas over init."""
    arcs, alpha, num_states = table.arcs, alphas[1], len(table.initial.mantissas)
    occupied = occupy_pairs(form, arcs, alphas, after, probs, work)
    leaks = len(table.final.mantissas) > num_states
    total, leaked = zero(form, now), zero(form, now)
    for i in range(num_states):
        beta = zero(form, now)
        for e in range(arcs.src_arcs[i], arcs.src_arcs[i + 1]):
            beta = multiply_add(
                weight(form, arcs.src_weight, e), read(form, work.pairs, arcs.src_pair[e]), beta
            )
        passed = read(form, alpha, i)
        if leaks:
            passed = multiply_add(weight(form, table.init, i), read(form, alpha, num_states), passed)
        beta = where_positive(passed, tidy(beta), zero(form, now))
        write(form, now, i, beta)
        total = add(total, beta)
        leaked = multiply_add(weight(form, table.init, i), beta, leaked)
    return occupied, total, leaked


# The same arc by arc, on large graphs where hardly two arcs share a destination and a pdf.
#
# What costs there is numbers from anywhere in arrays beyond the second-level cache: one alpha and one beta for each arc,
# and nothing else. Rows of pdfs fit that cache, occupancies are added to there.


FAR = 2**18  # numbers; an array of more leaves the second-level cache
AHEAD = 32  # arcs, whose numbers are then asked for so long before they are used


@helper
def gather_both_ways(form: Any, arcs: Any, before: Any, probs: Any, now: Any, row: Any) -> None:
    """As `gather_pairs`."""
    into, is_far = arcs.into, before.size > FAR
    total = zero(form, before)
    least = fill(load(lanes_of(form), row, 0), 1.0)
    for j in range(len(into.offsets) - 1):
        alpha = zero(form, before)
        for e in range(into.offsets[j], into.offsets[j + 1]):
            if is_far:
                prefetch(before, into.other[e + AHEAD] * before.shape[1])
            p = multiply(weight(form, into.weight, e), read(form, probs, into.column[e]))
            alpha = multiply_add(p, read(form, before, into.other[e]), alpha)
        total, least = _keep_alpha(form, now, j, alpha, total, least)
    write(form, row, 0, tidy(total))
    store(row, 2, least)


@by_type
def add_leak(form: Any, table: Any, now: Any) -> Any:
    """Equation (3): alphas with the leak, which row S holds, where it is no state of its own."""

    def to_all(form, table, now):  # type: ignore[no-untyped-def]
        num_states = len(table.initial.mantissas)
        if len(table.final.mantissas) > num_states:
            leak = read(form, now, num_states)
            for i in range(num_states):
                write(form, now, i, tidy(multiply_add(weight(form, table.init, i), leak, read(form, now, i))))

    own_state = lambda form, table, now: None  # noqa: E731
    return to_all if table["arcs"].instance_class is ArcsBothWays else own_state


@helper
def spread_both_ways(form: Any, table: Any, alphas: Any, after: Any, probs: Any, now: Any, work: Any) -> Any:
    """As `spread_pairs`."""
    out, alpha, is_far = table.arcs.out, alphas[1], after.size > FAR
    leak, scale = read(form, work.leak, 0), load(lanes_of(form), work.beta_scale, 0)
    for k in range(len(table.active)):
        write(form, work.occupancy, k, zero(form, now))
    for j in range(len(out.offsets) - 1):
        write(form, after, j, add(scaled(read(form, after, j), scale), leak))
    occupied, total, leaked = zero(form, now), zero(form, now), zero(form, now)
    for i in range(len(out.offsets) - 1):
        passed, beta = read(form, alpha, i), zero(form, now)
        for e in range(out.offsets[i], out.offsets[i + 1]):
            k = out.column[e]
            if is_far:
                prefetch(after, out.other[e + AHEAD] * after.shape[1])
            p = multiply(weight(form, out.weight, e), read(form, probs, k))
            onward = multiply(p, read(form, after, out.other[e]))
            beta = add(beta, onward)
            write(form, work.occupancy, k, multiply_add(passed, onward, read(form, work.occupancy, k)))
        beta = where_positive(passed, tidy(beta), zero(form, now))
        write(form, now, i, beta)
        total = add(total, beta)
        leaked = multiply_add(weight(form, table.init, i), beta, leaked)
    for k in range(len(table.active)):
        gamma = tidy(read(form, work.occupancy, k))
        write(form, work.occupancy, k, gamma)
        occupied = add(occupied, gamma)
    return tidy(occupied), total, leaked


# Lanes that hold different rows of one sequence, for graphs that are shared but have a single sequence at
# hand.
#
# Such a sequence has rows of one number. Here a register full of these comes into the lanes, of rows that
# follow each other or stand anywhere, of either kind of number (`numbers`). All arithmetic is then that
# of sequences side by side, lane by lane, and so are the bits. From anywhere means a load for each lane: the
# instruction that some processors have for it takes 1.4 times as long on Zen 4.


@by_type
def width(form: Any) -> Any:
    """How many lanes a form has. Unsigned, like all that it is added to: numba makes floats of signed and unsigned."""
    lanes = np.uint64(form.width)
    return lambda form: lanes


def _row_at(
    context: Any, builder: Any, array: tuple[Any, Any], indices: tuple[Any, Any], place: Any, entries: int
) -> Any:
    """The address of row indices[place] of `entries` numbers; array and indices: type and value."""
    address = _address(context, builder, indices, (types.intp, place), Lanes(indices[0].dtype, 1))
    index = builder.extract_element(builder.load(address), ir.Constant(ir.IntType(32), 0))
    first = builder.mul(builder.zext(index, place.type), ir.Constant(place.type, entries))
    return _address(context, builder, array, (types.intp, first), Lanes(array[0].dtype, entries))


def _shuffled(builder: Any, x: Any, y: Any, picks: Any) -> Any:
    picks = list(picks)
    return builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(ir.IntType(32), len(picks)), picks))


def _gathering(entries: int) -> Any:
    @intrinsic
    def gather_rows(form: Any, array: Any, indices: Any, position: Any) -> Any:
        lanes, size = Lanes(array.dtype, entries * form.width), array.dtype.bitwidth // 8

        def code(context: Any, builder: Any, _: Any, source: Any, rows: Any, place: Any) -> Any:
            first = context.cast(builder, place, position, types.intp)
            given = (array, source), (indices, rows)
            places = [builder.add(first, ir.Constant(first.type, lane)) for lane in range(form.width)]
            parts = [
                builder.load(_row_at(context, builder, *given, place, entries), align=size)
                for place in places
            ]
            count = entries
            while len(parts) > 1:
                count *= 2
                pairs = zip(parts[::2], parts[1::2], strict=True)
                parts = [_shuffled(builder, *pair, range(count)) for pair in pairs]
            return parts[0]

        return lanes, code

    return gather_rows


def _scattering(entries: int) -> Any:
    @intrinsic
    def scatter_rows(array: Any, indices: Any, position: Any, lanes: Any) -> Any:
        def code(context: Any, builder: Any, target: Any, rows: Any, place: Any, value: Any) -> None:
            first = context.cast(builder, place, position, types.intp)
            given = (array, target), (indices, rows)
            for lane in range(lanes.width // entries):
                place = builder.add(first, ir.Constant(first.type, lane))
                row = _shuffled(builder, value, value, range(lane * entries, (lane + 1) * entries))
                address = _row_at(context, builder, *given, place, entries)
                builder.store(row, address, align=lanes.dtype.bitwidth // 8)

        return types.void, code

    return scatter_rows


def _every_second(plus: int) -> Any:
    @intrinsic
    def pick_every_second(x: Any) -> Any:
        picks = range(plus, x.width, 2)
        return Lanes(x.dtype, len(picks)), lambda context, builder, value: _shuffled(
            builder, value, value, picks
        )

    return pick_every_second


@intrinsic
def _in_turn(x: Any, y: Any) -> Any:
    picks = [lane + half for lane in range(x.width) for half in (0, x.width)]
    return Lanes(x.dtype, len(picks)), lambda context, builder, x, y: _shuffled(builder, x, y, picks)


_gather, _gather_two, _scatter, _scatter_two = _gathering(1), _gathering(2), _scattering(1), _scattering(2)
_even, _odd = _every_second(0), _every_second(1)


@intrinsic
def _pairs_of(form: Any) -> Any:
    """The form of the lanes that as many pairs take."""
    return FormType("plain", 2 * form.width), lambda context, builder, value: value


@helper
def _apart(x: Any) -> Any:
    return _even(x), as_integers(_odd(x))


@helper
def _together(x: Any) -> Any:
    return _in_turn(x[0], as_floats(x[0], x[1]))


# The numbers in the rows indices[position], indices[position + 1], ... of an array whose rows hold one each; the reverse.
gather = by_kind(
    _gather, lambda form, array, indices, position: _apart(_gather_two(form, array, indices, position))
)
scatter = by_kind(
    lambda form, array, indices, position, x: _scatter(array, indices, position, x),
    lambda form, array, indices, position, x: _scatter_two(array, indices, position, _together(x)),
)
# The numbers in as many rows as there are lanes, from `row` on; the reverse.
read_from = by_kind(
    load_from, lambda form, array, row: _apart(load_from(_pairs_of(form), array, 2 * row)), read
)
write_from = by_kind(
    lambda form, array, row, x: store_to(array, row, x),
    lambda form, array, row, x: store_to(array, 2 * row, _together(x)),
    write,
)
# Consecutive entries of a pair of arrays that `numbers.weights` made, one for each lane.
weights_from = by_kind(
    lambda form, weights, position: load_from(form, weights.mantissas, position),
    lambda form, weights, position: (
        load_from(lanes_of(form), weights.mantissas, position),
        load_from(lanes_of(form), weights.exponents, position),
    ),
    weight,
)
# The number in one row, in every lane.
everywhere = by_kind(
    lambda form, array, row: splat(form, array[row, 0]),
    lambda form, array, row: (
        splat(lanes_of(form), array[row, 0]),
        as_integers(splat(lanes_of(form), array[row, 1])),
    ),
    read,
)


@helper
def probabilities_across(form: Any, columns: Any, scale: Any, work: Any, probs: Any) -> None:
    """As `frames.probabilities_by_row` for a single sequence, pdfs side by side."""
    side = across(form, probs)
    lanes = lanes_of(side)
    shift, n = shift_of(side, load(lanes, work.extremes, 0)), splat(lanes, scale[0, 0])
    for k in range(0, len(columns.active), len(side)):
        write_from(side, probs, k, probability(side, load_from(lanes, work.scores, k), shift, n))


# the text by pairs for a sequence that has no others beside it: lanes hold different rows of the graph.
#
# The sums over arcs into pairs, over pairs into states and pdfs, and over arcs out of states are made for a
# register full of rows at once (rows in lanes); rows that are too unlike any others come after them, one by
# one, in the same text. Sums of pairs are kept beside the alphas, so that the occupancies need no arcs: one
# lane has room for them. The order within each sum is that of the text by pairs, and so are the bits.


@helper
def _add_shared(form: Any, rows: Any, source: Any, e: Any, total: Any) -> Any:
    """One more term, the same number in all lanes times a weight."""
    return multiply_add(weights_from(form, rows.weight, e), everywhere(form, source, rows.source[e]), total)


@helper
def _sum(form: Any, rows: Any, source: Any, g: int, e: Any) -> Any:
    """The sums of group g, whose terms, of weight x source, begin at e; and where they end."""
    total, step = zero(form, source), width(form)
    if rows.shared[g] > 3:
        b, c, d = total, total, total  # four at once: none waits for the one before
        for _ in range(rows.shared[g] // 4):
            total = _add_shared(form, rows, source, e, total)
            b = _add_shared(form, rows, source, e + step, b)
            c = _add_shared(form, rows, source, e + step + step, c)
            d = _add_shared(form, rows, source, e + step + step + step, d)
            e += step + step + step + step
        total = add(add(total, b), add(c, d))
    for _ in range(rows.shared[g] % 4):
        total = _add_shared(form, rows, source, e, total)
        e += step
    for _ in range(rows.lengths[g]):
        total = multiply_add(weights_from(form, rows.weight, e), gather(form, source, rows.source, e), total)
        e += step
    return total, e


@helper
def _sum_pairs(form: Any, sums: Any, before: Any, leak: Any, now: Any) -> None:
    """The sums of pairs over arcs, without the pdf's probability; leak: the row of its alpha."""
    rows, e, row = sums.into, np.uint64(0), np.uint64(0)
    leaks, leaked = len(sums.leak.mantissas) > 0, everywhere(form, before, leak)
    for g in range(len(rows.lengths)):
        pair, e = _sum(form, rows, before, g, e)
        if leaks:
            pair = multiply_add(weights_from(form, sums.leak, row), leaked, pair)
        write_from(form, now, rows.first + row, pair)
        row += width(form)


@helper
def _sum_states(form: Any, rows: Any, probs: Any, now: Any) -> None:
    """Equation (2) from the sums of pairs."""
    e, row = np.uint64(0), np.uint64(0)
    for g in range(len(rows.lengths)):
        alpha = zero(form, now)
        for _ in range(rows.lengths[g]):
            p = gather(form, probs, rows.other, e)
            alpha = multiply_add(gather(form, now, rows.source, e), p, alpha)
            e += width(form)
        scatter(form, now, rows.target, row, tidy(alpha))
        row += width(form)


@helper
def gather_groups(form: Any, arcs: Any, before: Any, probs: Any, now: Any, row: Any) -> None:
    """As `gather_pairs`; the sums of the pairs are kept behind the alphas."""
    side = across(form, now)
    _sum_pairs(side, arcs.many, before, arcs.nothing - 1, now)
    _sum_pairs(form, arcs.single, before, arcs.nothing - 1, now)
    write(form, now, arcs.nothing, zero(form, now))
    _sum_states(side, arcs.many.states, probs, now)
    _sum_states(form, arcs.single.states, probs, now)
    total, least = _sum_alphas(form, arcs, now)
    write(form, row, 0, tidy(total))
    store(row, 2, least)


@by_type
def _side_of(form: Any, arcs: Any, now: Any) -> Any:
    """The form in which rows are added: lanes full of them where any order will do, else one after another."""
    if arcs.instance_class is OwnGroups:
        return lambda form, arcs, now: across(form, now)
    return lambda form, arcs, now: form


@helper
def _sum_alphas(form: Any, arcs: Any, now: Any) -> Any:
    """The sum over states, and the least alpha that is not 0, at most 1."""
    side, count = _side_of(form, arcs, now), arcs.nothing - 1
    whole = count - count % width(side)
    partial = zero(side, now)
    least = splat(lanes_of(side), now.dtype.type(1))
    for j in range(0, whole, width(side)):
        alpha = read_from(side, now, j)
        partial = add(partial, alpha)
        least = least_positive(alpha, least)
    total, least = sum_across(form, partial), splat(lanes_of(form), least_lane(least))
    for j in range(whole, count):
        alpha = read(form, now, j)
        total = add(total, alpha)
        least = least_positive(alpha, least)
    return total, least


def _wide_sum_across(form: Any, x: Any) -> Any:
    highest = largest_lane(x[1])
    aligned = x[0] * power_of_two(x[0], x[1] - fill(x[1], highest))
    return splat(lanes_of(form), sum_in_halves(aligned)), splat(lanes_of(form), highest)


# The sum of the numbers in all lanes, as a number of a form of one lane.
sum_across = by_kind(lambda form, x: splat(form, sum_in_halves(x)), _wide_sum_across)


@helper
def _scale(form: Any, first: int, last: int, work: Any, after: Any, target: Any) -> None:
    """target = betas with the scale and the leak of (5), rows `first` to last - 1."""
    leak, scale = everywhere(form, work.leak, 0), splat(lanes_of(form), work.beta_scale[0, 0])
    for j in range(first, last, width(form)):
        write_from(form, target, j, add(scaled(read_from(form, after, j), scale), leak))


@helper
def _sum_columns(form: Any, rows: Any, alpha_after: Any, after: Any, probs: Any, work: Any) -> None:
    """Equations (6), (7): occupancies, and the terms exp(y) b(t + 1, dst), from which betas come."""
    e, row = np.uint64(0), np.uint64(0)
    for g in range(len(rows.lengths)):
        p, gamma = gather(form, probs, rows.target, row), zero(form, after)
        for _ in range(rows.lengths[g]):
            beta = gather(form, after, rows.other, e)
            onward = multiply(beta, p)
            write_from(form, work.pairs, rows.first + e, onward)
            factor = where_lane(beta, load_from(lanes_of(form), rows.weight.mantissas, e), onward)
            gamma = multiply_add(gather(form, alpha_after, rows.source, e), factor, gamma)
            e += width(form)
        scatter(form, work.occupancy, rows.target, row, tidy(gamma))
        row += width(form)


@helper
def _sum_back(form: Any, rows: Any, terms: Any, now: Any) -> None:
    e, row = np.uint64(0), np.uint64(0)
    for g in range(len(rows.lengths)):
        beta, e = _sum(form, rows, terms, g, e)
        scatter(form, now, rows.target, row, beta)
        row += width(form)


@helper
def _mask(form: Any, table: Any, alpha: Any, now: Any, first: int, last: int) -> None:
    """Zero the betas of states that no path has reached, and tidy the others, rows `first` to last - 1."""
    num_states = len(table.initial.mantissas)
    leaks, leaked = len(table.final.mantissas) > num_states, zero(form, now)
    if leaks:
        leaked = everywhere(form, alpha, num_states)
    for i in range(first, last, width(form)):
        passed = read_from(form, alpha, i)
        if leaks:
            passed = multiply_add(weights_from(form, table.init, i), leaked, passed)
        write_from(form, now, i, where_positive(passed, tidy(read_from(form, now, i)), zero(form, now)))


@helper
def spread_groups(form: Any, table: Any, alphas: Any, after: Any, probs: Any, now: Any, work: Any) -> Any:
    """As `spread_pairs`."""
    arcs, num_states, side = table.arcs, len(table.initial.mantissas), across(form, now)
    whole = num_states - num_states % width(side)
    _scale(side, 0, whole, work, after, after)
    _scale(form, whole, num_states, work, after, after)
    _sum_columns(side, arcs.many.columns, alphas[2], after, probs, work)
    _sum_columns(form, arcs.single.columns, alphas[2], after, probs, work)
    _sum_back(side, arcs.many.back, work.pairs, now)
    _sum_back(form, arcs.single.back, work.pairs, now)
    _mask(side, table, alphas[1], now, 0, whole)
    _mask(form, table, alphas[1], now, whole, num_states)
    return _sum_betas(form, table, arcs, work.occupancy, now)


@helper
def _sum_betas(form: Any, table: Any, arcs: Any, occupancy: Any, now: Any) -> Any:
    """The sums of occupancies, of betas, and of betas over init."""
    side, count, num_states = _side_of(form, arcs, now), len(table.active), len(table.initial.mantissas)
    partial = zero(side, now)
    whole = count - count % width(side)
    for k in range(0, whole, width(side)):
        partial = add(partial, read_from(side, occupancy, k))
    occupied = sum_across(form, partial)
    for k in range(whole, count):
        occupied = add(occupied, read(form, occupancy, k))
    partial, leak = zero(side, now), zero(side, now)
    whole = num_states - num_states % width(side)
    for i in range(0, whole, width(side)):
        beta = read_from(side, now, i)
        partial = add(partial, beta)
        leak = multiply_add(weights_from(side, table.init, i), beta, leak)
    total, leaked = sum_across(form, partial), sum_across(form, leak)
    for i in range(whole, num_states):
        beta = read(form, now, i)
        total = add(total, beta)
        leaked = multiply_add(weight(form, table.init, i), beta, leaked)
    return tidy(occupied), total, leaked


# One frame of equations (2) and (5)-(7) on a graph that one sequence has for itself: arc after arc.
#
# Such graphs have few arcs for each state, and rows of one number; loops over the arcs of a state would spend
# their time on branches. Every arc is added to its destination's alpha or its source's beta where these stand
# in memory, in the order of `tables.ArcList`; what a state or a scale needs then is done for states
# side by side. Numbers are plain or expected ones.

# Alphas below are put to zero, in plain numbers, which are float64 here: (13) fails where there are any, and the processor
# takes long over subnormal ones.
FLOOR = 2.0**-1000


# The sum of the numbers in all lanes, from the first to the last.
_in_turn_across = by_kind(lambda form, x: splat(form, sum_lanes(x)), lambda form, x: x, lambda form, x: x)


@helper
def sum_rows(form: Any, rows: Any, count: int) -> Any:
    """The sum of `count` rows that hold a number each."""
    side = across(form, rows)
    partial, whole = zero(side, rows), count - count % len(side)
    for i in range(0, whole, len(side)):
        partial = add(partial, read_from(side, rows, i))
    total = _in_turn_across(form, partial)
    for i in range(whole, count):
        total = add(total, read(form, rows, i))
    return total


_flushed = by_kind(lambda x: where_more(fill(x, FLOOR), x, fill(x, 0.0), x), lambda x: x, lambda x: x)


@helper
def _flush_rows(form: Any, rows: Any, count: int) -> Any:
    """The least number that is not 0, at most 1; plain ones below FLOOR become 0."""
    side = across(form, rows)
    least = splat(lanes_of(side), rows.dtype.type(1))
    for i in range(0, count, len(side)):
        x = read_from(side, rows, i)
        least = least_positive(x, least)
        write_from(side, rows, i, _flushed(x))
    return splat(lanes_of(form), least_lane(least))


@helper
def _clear_rows(form: Any, rows: Any, count: int) -> None:
    """Zero in `count` rows at least."""
    side = across(form, rows)
    for i in range(0, count, len(side)):
        write_from(side, rows, i, zero(side, rows))


@helper
def gather_arcs(form: Any, arcs: Any, before: Any, probs: Any, now: Any, row: Any) -> None:
    """Equation (2); row [3, 1] = the sum over states, a number; and the least alpha not 0."""
    num_states = arcs.num_states
    _clear_rows(form, now, num_states)
    for e in range(len(arcs.src)):
        j = arcs.dst[e]
        p = multiply(weight(form, arcs.weight, e), read(form, probs, arcs.column[e]))
        alpha = multiply_add(p, read(form, before, arcs.src[e]), read(form, now, j))
        write(form, now, j, alpha)
    store(row, 2, _flush_rows(form, now, num_states))
    write(form, row, 0, sum_rows(form, now, num_states))


@helper
def spread_arcs(form: Any, table: Any, alphas: Any, after: Any, probs: Any, now: Any, work: Any) -> Any:
    """As `spread_pairs`."""
    arcs, alpha, side = table.arcs, alphas[1], across(form, now)
    num_states, num_columns = arcs.num_states, len(table.active)
    _clear_rows(form, now, len(table.final.mantissas))
    _scale(side, 0, num_states, work, after, work.pairs)
    for k in range(num_columns):
        p, gamma = read(form, probs, k), zero(form, now)
        for e in range(arcs.columns[k], arcs.columns[k + 1]):
            i = arcs.src[e]
            onward = multiply(multiply(weight(form, arcs.weight, e), p), read(form, work.pairs, arcs.dst[e]))
            write(form, now, i, add(read(form, now, i), onward))
            gamma = multiply_add(read(form, alpha, i), onward, gamma)
        write(form, work.occupancy, k, gamma)
    leaked = zero(form, now)
    if len(table.final.mantissas) > num_states:
        leaked = read(form, now, num_states)
        _mask(form, table, alpha, now, 0, num_states)  # of init there are no more rows than states
    else:
        _mask(side, table, alpha, now, 0, num_states)
    return sum_rows(form, work.occupancy, num_columns), sum_rows(form, now, num_states), leaked


# Equations (5)-(7) on a graph that one sequence has for itself, over the states that matter: (34).
#
# Most betas and occupancies of a numerator are nothing beside the others: scores choose among the states that can be
# reached at all, and these are few early and late. A frame here costs what the arcs into the others cost, in the order in
# which they are found; of what is left out not even zeros are written. Where most arcs matter, all are worked on.

NEGLIGIBLE = 64  # states whose share of all paths is less than 2 to the minus this are left out
PATIENCE = 8  # frames in which all states are worked on before it is asked again


@helper
def list_all(table: Any, work: Any) -> None:
    """Have it found out for all states whether they matter."""
    for i in range(len(table.initial.mantissas)):
        work.live[0, i] = i
    work.counts[LISTED] = len(table.initial.mantissas)


@helper
def begin_live(form: Any, table: Any, frames: Any, t: int, alpha: Any, work: Any) -> None:
    """Before the last frame t of the sequence, whose last alphas are `alpha`."""
    if t + 1 == frames.lengths[0]:
        list_all(table, work)
        work.counts[PATIENCE_LEFT], work.counts[STALE] = 0, 1
        whole = zero(form, alpha)
        for i in range(len(table.final.mantissas)):
            whole = multiply_add(weight(form, table.final, i), read(form, alpha, i), whole)
        write(form, work.whole, 0, tidy(whole))


@helper
def _find_live(form: Any, table: Any, alpha: Any, beta: Any, work: Any) -> int:
    """Keep those states of work.live that matter at the time of `alpha` and `beta`; returns how many arcs they have."""
    into, live, count = table.into, work.live, work.counts[LISTED]
    leak, scale = read(form, work.leak, 0), load(lanes_of(form), work.beta_scale, 0)
    floor = scaled(scaled(read(form, work.whole, 0), scale), fill(scale, NEGLIGIBLE))
    found, arcs = 0, 0
    for m in range(count):
        j = live[0, m]
        share = multiply(read(form, alpha, j), add(scaled(read(form, beta, j), scale), leak))
        if exceeds(share, floor):
            live[0, found] = j
            found += 1
            arcs += into.offsets[j + 1] - into.offsets[j]
        else:
            write(form, beta, j, zero(form, beta))
    work.counts[LISTED] = found
    return arcs


@helper
def _spread_live(form: Any, table: Any, alphas: Any, after: Any, probs: Any, now: Any, work: Any) -> Any:
    into, alpha, live = table.into, alphas[1], work.live
    num_states = len(table.initial.mantissas)
    leak, scale = read(form, work.leak, 0), load(lanes_of(form), work.beta_scale, 0)
    if work.counts[STALE]:
        _clear_rows(form, now, len(table.final.mantissas))
        _clear_rows(form, work.occupancy, len(table.active))
        for i in range(num_states, len(table.final.mantissas)):
            write(form, after, i, zero(form, now))
        work.counts[STALE] = 0
    found, touched = 0, 0
    for m in range(work.counts[LISTED]):
        j = live[0, m]
        beta = add(scaled(read(form, after, j), scale), leak)
        write(form, after, j, zero(form, now))
        for e in range(into.offsets[j], into.offsets[j + 1]):
            i, k = into.other[e], into.column[e]
            onward = multiply(multiply(weight(form, into.weight, e), read(form, probs, k)), beta)
            gamma = multiply(read(form, alpha, i), onward)
            if not is_positive(gamma):
                continue
            passed, occupied = read(form, now, i), read(form, work.occupancy, k)
            if not is_positive(passed):
                live[1, found] = i
                found += 1
            if not is_positive(occupied):
                work.touched[touched] = k
                touched += 1
            write(form, now, i, add(passed, onward))
            write(form, work.occupancy, k, add(occupied, gamma))
    occupied, total, leaked = zero(form, now), zero(form, now), zero(form, now)
    for m in range(touched):
        occupied = add(occupied, read(form, work.occupancy, work.touched[m]))
    for m in range(found):
        i = live[1, m]
        live[0, m] = i
        beta = tidy(read(form, now, i))
        if i == num_states:
            leaked = beta
            beta = zero(form, now)
        write(form, now, i, beta)
        total = add(total, beta)
    work.counts[LISTED], work.counts[TOUCHED] = found, touched
    if len(table.final.mantissas) > num_states:  # the leak makes a beta for every state
        list_all(table, work)
    return tidy(occupied), total, leaked


@by_type
def _spread_all(form: Any, table: Any, alphas: Any, after: Any, probs: Any, now: Any, work: Any) -> Any:
    return spread_arcs if table["arcs"].instance_class is ArcList else spread_groups


@helper
def spread_own(form: Any, table: Any, alphas: Any, after: Any, probs: Any, now: Any, work: Any) -> Any:
    """As `spread_pairs`.

    The states whose betas are in `after` stand in work.live, which then has those of `now`; other betas are 0. The columns
    that have an occupancy stand in work.touched. work.whole is (11) at the scale of `after`, then of `now`: the sum over all
    states is that over all arcs of the frame behind them.
    """
    if work.counts[PATIENCE_LEFT] == 0:
        if _find_live(form, table, alphas[2], after, work) <= table.few:
            found = _spread_live(form, table, alphas, after, probs, now, work)
            write(form, work.whole, 0, found[0])
            return found
        work.counts[PATIENCE_LEFT] = PATIENCE
    work.counts[TOUCHED], work.counts[PATIENCE_LEFT], work.counts[STALE] = (
        -1,
        work.counts[PATIENCE_LEFT] - 1,
        1,
    )
    if work.counts[PATIENCE_LEFT] == 0:
        list_all(table, work)
    found = _spread_all(form, table, alphas, after, probs, now, work)
    write(form, work.whole, 0, found[0])
    return found
