"""One frame of equations (2) and (5)-(7) on a graph that one sequence has for itself: arc after arc.

Such graphs have few arcs for each state, and rows of one number; loops over the arcs of a state would spend their time on
branches. Every arc is added to its destination's alpha or its source's beta where these stand in memory, in the order of
`cpu_tables.ArcList`; what a state or a scale needs then is done for ALONG states side by side.
"""

from __future__ import annotations

from typing import Any

from fsachain.backends.cpu_arithmetic import least_lane, sum_lanes, where_more
from fsachain.backends.cpu_frames import ALONG, ALONG_FORM, pdf_probabilities
from fsachain.backends.cpu_lanes import by_type, fill, load, load_from, splat, store
from fsachain.backends.cpu_numbers import (
    add,
    is_wide_type,
    lanes_of,
    least_positive,
    multiply,
    multiply_add,
    probability,
    read,
    scaled,
    tidy,
    weight,
    where_positive,
    write,
    zero,
)
from fsachain.backends.jit import jit_on_views

# Equation (19), in plain numbers, which are float64 here: what is less than this among alphas is put to zero, and betas are
# raised by it. It is 2**74 times the least number there is, so that no rounding of such numbers can be seen beside it.
FLOOR = 2.0**-1000


@jit_on_views
def _sum_rows(form: Any, rows: Any, count: int) -> Any:
    """The sum of the numbers in rows 0 to count - 1, one after another."""
    total = zero(form, rows)
    for i in range(count):
        total = add(total, read(form, rows, i))
    return total


@jit_on_views
def _sum_along(form: Any, rows: Any, count: int) -> Any:
    """The same, ALONG rows side by side."""
    partial = splat(ALONG_FORM, rows.dtype.type(0))
    whole = count - count % ALONG
    for i in range(0, whole, ALONG):
        partial = partial + load_from(ALONG_FORM, rows, i)
    total = splat(form, sum_lanes(partial))
    for i in range(whole, count):
        total = total + load(form, rows, i)
    return total


@by_type
def sum_rows(form: Any, rows: Any, count: Any) -> Any:
    """The sum of `count` rows that hold a number each."""
    if is_wide_type(form):
        return lambda form, rows, count: _sum_rows(form, rows, count)
    return lambda form, rows, count: _sum_along(form, rows, count)


@jit_on_views
def _flush_along(form: Any, rows: Any, count: int) -> Any:
    least = splat(ALONG_FORM, rows.dtype.type(1))
    floor, nothing = fill(least, FLOOR), fill(least, 0.0)
    for i in range(-(-count // ALONG)):
        x = load(ALONG_FORM, rows, i)
        least = least_positive(x, least)
        store(rows, i, where_more(floor, x, nothing, x))
    return splat(form, least_lane(least))


@by_type
def _flush_rows(form: Any, rows: Any, count: Any) -> Any:
    """For (19), put to 0 what is below FLOOR; the least number that was not 0, at most 1. Wide numbers are never small."""
    if is_wide_type(form):
        return lambda form, rows, count: splat(form[0], rows.dtype.type(1))
    return lambda form, rows, count: _flush_along(form, rows, count)


@jit_on_views
def _clear_each(form: Any, rows: Any, count: int) -> None:
    for i in range(count):
        write(form, rows, i, zero(form, rows))


@jit_on_views
def _clear_along(form: Any, rows: Any, count: int) -> None:
    for i in range(-(-count // ALONG)):
        store(rows, i, splat(ALONG_FORM, rows.dtype.type(0)))


@by_type
def _clear_rows(form: Any, rows: Any, count: Any) -> Any:
    """Zero in `count` rows at least."""
    if is_wide_type(form):
        return lambda form, rows, count: _clear_each(form, rows, count)
    return lambda form, rows, count: _clear_along(form, rows, count)


@jit_on_views
def _scale_each(form: Any, after: Any, count: int, work: Any) -> None:
    leak, scale = read(form, work.leak, 0), load(lanes_of(form), work.beta_scale, 0)
    for j in range(count):
        write(form, work.pairs, j, add(scaled(read(form, after, j), scale), leak))


@jit_on_views
def _scale_along(form: Any, after: Any, count: int, work: Any) -> None:
    leak, scale = splat(ALONG_FORM, work.leak[0, 0]), splat(ALONG_FORM, work.beta_scale[0, 0])
    for j in range(-(-count // ALONG)):
        store(work.pairs, j, scaled(load(ALONG_FORM, after, j), scale) + leak)


@by_type
def _scale_betas(form: Any, after: Any, count: Any, work: Any) -> Any:
    """work.pairs [S] = the betas of the frame after, with the leak into it."""
    if is_wide_type(form):
        return lambda form, after, count, work: _scale_each(form, after, count, work)
    return lambda form, after, count, work: _scale_along(form, after, count, work)


@jit_on_views
def _mask_each(form: Any, table: Any, alpha: Any, now: Any) -> None:
    num_states = len(table.initial[0])
    leaks = len(table.final[0]) > num_states
    for i in range(num_states):
        passed = read(form, alpha, i)
        if leaks:
            passed = multiply_add(weight(form, table.init, i), read(form, alpha, num_states), passed)
        write(form, now, i, where_positive(passed, tidy(read(form, now, i)), zero(form, now)))


@jit_on_views
def _mask_along(alpha: Any, now: Any, count: int) -> None:
    nothing = splat(ALONG_FORM, now.dtype.type(0))
    for i in range(-(-count // ALONG)):
        beta = load(ALONG_FORM, now, i)
        store(now, i, where_positive(load(ALONG_FORM, alpha, i), beta, nothing))


@by_type
def _mask_betas(form: Any, table: Any, alpha: Any, now: Any) -> Any:
    """Zero the betas of states that no path has reached, and tidy the others."""

    def plain(form, table, alpha, now):  # type: ignore[no-untyped-def]
        if len(table.final[0]) > len(table.initial[0]):
            _mask_each(form, table, alpha, now)
        else:
            _mask_along(alpha, now, len(table.initial[0]))

    return (
        (lambda form, table, alpha, now: _mask_each(form, table, alpha, now)) if is_wide_type(form) else plain
    )


@jit_on_views
def gather_arcs(form: Any, arcs: Any, before: Any, probs: Any, now: Any, row: Any) -> None:
    """Equation (2) with `arc_probabilities`; row [3, 1] = the sum over states, a number; and the least alpha not 0."""
    num_states = arcs.num_states
    _clear_rows(form, now, num_states)
    for e in range(len(arcs.src)):
        j = arcs.dst[e]
        alpha = multiply_add(read(form, probs, e), read(form, before, arcs.src[e]), read(form, now, j))
        write(form, now, j, alpha)
    _tidy_rows(form, now, num_states)
    store(row, 2, _flush_rows(form, now, num_states))
    write(form, row, 0, tidy(sum_rows(form, now, num_states)))


@jit_on_views
def _probabilities_each(form: Any, arcs: Any, columns: Any, scale: Any, work: Any, probs: Any) -> None:
    pdf_probabilities(form, columns, scale, work, probs)
    for e in range(len(arcs.src)):
        write(form, probs, e, multiply(weight(form, arcs.weight, e), read(form, probs, e)))


@jit_on_views
def _probabilities_along(form: Any, arcs: Any, columns: Any, scale: Any, work: Any, probs: Any) -> None:
    shift, n = load(ALONG_FORM, work.extremes, 0), splat(ALONG_FORM, scale[0, 0])
    for row in range(-(-len(arcs.src) // ALONG)):
        p = probability(ALONG_FORM, load(ALONG_FORM, work.scores, row), shift, n)
        store(probs, row, p * load(ALONG_FORM, arcs.weight[0], row))


@by_type
def arc_probabilities(form: Any, arcs: Any, columns: Any, scale: Any, work: Any, probs: Any) -> Any:
    """probs [A] = weight x exp(y - shift) 2**-n as numbers, one for each arc, n the integer scale [1, 1]."""
    if is_wide_type(form):
        return lambda form, arcs, columns, scale, work, probs: _probabilities_each(
            form, arcs, columns, scale, work, probs
        )
    return lambda form, arcs, columns, scale, work, probs: _probabilities_along(
        form, arcs, columns, scale, work, probs
    )


@jit_on_views
def _tidy_wide(form: Any, rows: Any, count: int) -> None:
    for i in range(count):
        write(form, rows, i, tidy(read(form, rows, i)))


@by_type
def _tidy_rows(form: Any, rows: Any, count: Any) -> Any:
    if is_wide_type(form):
        return lambda form, rows, count: _tidy_wide(form, rows, count)
    return lambda form, rows, count: None


@jit_on_views
def spread_arcs(form: Any, table: Any, alphas: Any, after: Any, probs: Any, now: Any, work: Any) -> Any:
    """Equation (5) and (6): betas, arc occupancies; the sums of occupancies, of betas, and of betas over init."""
    arcs, alpha = table.arcs, alphas[1]
    num_states, num_arcs = arcs.num_states, len(arcs.src)
    _clear_rows(form, now, len(table.final[0]))
    _scale_betas(form, after, num_states, work)
    for e in range(num_arcs):
        i = arcs.src[e]
        onward = multiply(read(form, probs, e), read(form, work.pairs, arcs.dst[e]))
        write(form, now, i, add(read(form, now, i), onward))
        write(form, work.occupancy, e, multiply(read(form, alpha, i), onward))
    leaked = zero(form, now)
    if len(table.final[0]) > num_states:
        leaked = read(form, now, num_states)
    _mask_betas(form, table, alpha, now)
    return tidy(sum_rows(form, work.occupancy, num_arcs)), sum_rows(form, now, num_states), leaked


@jit_on_views
def _raise_along(rows: Any, count: int) -> None:
    for i in range(-(-count // ALONG)):
        x = load(ALONG_FORM, rows, i)
        store(rows, i, x + fill(x, FLOOR))


@jit_on_views
def raise_betas(form: Any, table: Any, after: Any, probs: Any, now: Any, work: Any) -> Any:
    """The betas of (19), without a leak, in plain numbers; returns their sum."""
    arcs, num_states = table.arcs, table.arcs.num_states
    _clear_rows(form, now, num_states)
    _scale_betas(form, after, num_states, work)
    for e in range(len(arcs.src)):
        i = arcs.src[e]
        onward = multiply_add(read(form, probs, e), read(form, work.pairs, arcs.dst[e]), read(form, now, i))
        write(form, now, i, onward)
    _raise_along(now, num_states)
    return sum_rows(form, now, num_states)
