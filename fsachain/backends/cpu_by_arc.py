"""One frame of equations (2) and (5)-(7) on a graph that one sequence has for itself: arc after arc.

Such graphs have few arcs for each state, and rows of one number; loops over the arcs of a state would spend their time on
branches. Every arc is added to its destination's alpha or its source's beta where these stand in memory, in an order in
which arcs that follow each other have different ends: the i-th arcs of all states, then the next.
"""

from __future__ import annotations

from typing import Any

from fsachain.backends.cpu_arithmetic import least_lane, sum_lanes
from fsachain.backends.cpu_frames import ALONG, ALONG_FORM
from fsachain.backends.cpu_lanes import by_type, load, load_from, splat, store, store_from
from fsachain.backends.cpu_numbers import (
    add,
    is_wide_type,
    lanes_of,
    least_positive,
    multiply,
    multiply_add,
    read,
    scaled,
    tidy,
    weight,
    where_positive,
    write,
    zero,
)
from fsachain.backends.jit import jit


@jit
def _sum_rows(form: Any, rows: Any, count: int) -> Any:
    """The sum of the numbers in rows 0 to count - 1, one after another."""
    total = zero(form, rows)
    for i in range(count):
        total = add(total, read(form, rows, i))
    return total


@jit
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


@jit
def _least_along(form: Any, rows: Any, count: int) -> Any:
    least = splat(ALONG_FORM, rows.dtype.type(1))
    whole = count - count % ALONG
    for i in range(0, whole, ALONG):
        least = least_positive(load_from(ALONG_FORM, rows, i), least)
    result = splat(form, least_lane(least))
    for i in range(whole, count):
        result = least_positive(load(form, rows, i), result)
    return result


@by_type
def _least_row(form: Any, rows: Any, count: Any) -> Any:
    """The least number that is not 0, at most 1; 1 for wide numbers, which are never too small."""
    if is_wide_type(form):
        return lambda form, rows, count: splat(form[0], rows.dtype.type(1))
    return lambda form, rows, count: _least_along(form, rows, count)


@jit
def gather_arcs(form: Any, arcs: Any, before: Any, probs: Any, now: Any, row: Any) -> None:
    """Equation (2), after `weigh`; row [3, 1] = the sum over states, a number; and the least alpha that is not 0."""
    num_states = arcs.num_states
    for i in range(num_states):
        write(form, now, i, zero(form, now))
    for e in range(len(arcs.src)):
        j = arcs.dst[e]
        alpha = multiply_add(read(form, probs, e), read(form, before, arcs.src[e]), read(form, now, j))
        write(form, now, j, alpha)
    _tidy_rows(form, now, num_states)
    write(form, row, 0, tidy(sum_rows(form, now, num_states)))
    store(row, 2, _least_row(form, now, num_states))


@jit
def _weigh_each(form: Any, arcs: Any, probs: Any) -> None:
    for e in range(len(arcs.src)):
        write(form, probs, e, multiply(weight(form, arcs.weight, e), read(form, probs, e)))


@jit
def _weigh_along(form: Any, arcs: Any, probs: Any) -> None:
    weights = arcs.weight[0]
    whole = len(weights) - len(weights) % ALONG
    for e in range(0, whole, ALONG):
        store_from(probs, e, load_from(ALONG_FORM, weights, e) * load_from(ALONG_FORM, probs, e))
    for e in range(whole, len(weights)):
        store(probs, e, splat(form, weights[e]) * load(form, probs, e))


@by_type
def weigh(form: Any, arcs: Any, probs: Any) -> Any:
    """probs [A], one for the pdf of each arc, times the arcs' weights."""
    if is_wide_type(form):
        return lambda form, arcs, probs: _weigh_each(form, arcs, probs)
    return lambda form, arcs, probs: _weigh_along(form, arcs, probs)


@jit
def _tidy_wide(form: Any, rows: Any, count: int) -> None:
    for i in range(count):
        write(form, rows, i, tidy(read(form, rows, i)))


@by_type
def _tidy_rows(form: Any, rows: Any, count: Any) -> Any:
    if is_wide_type(form):
        return lambda form, rows, count: _tidy_wide(form, rows, count)
    return lambda form, rows, count: None


@jit
def spread_arcs(form: Any, table: Any, alphas: Any, after: Any, probs: Any, now: Any, work: Any) -> Any:
    """Equation (5) and (6): betas, arc occupancies; the sums of occupancies, of betas, and of betas over init."""
    arcs, alpha = table.arcs, alphas[0]
    num_states, num_arcs = arcs.num_states, len(arcs.src)
    leaks = len(table.final[0]) > num_states
    leak, scale = read(form, work.leak, 0), load(lanes_of(form), work.beta_scale, 0)
    nothing = zero(form, now)
    for i in range(len(table.final[0])):
        write(form, now, i, nothing)
    for j in range(num_states):
        write(form, work.pairs, j, add(scaled(read(form, after, j), scale), leak))
    for e in range(num_arcs):
        i = arcs.src[e]
        onward = multiply(read(form, probs, e), read(form, work.pairs, arcs.dst[e]))
        write(form, now, i, add(read(form, now, i), onward))
        write(form, work.occupancy, e, multiply(read(form, alpha, i), onward))
    leaked = read(form, now, num_states) if leaks else nothing
    for i in range(num_states):
        passed = read(form, alpha, i)
        if leaks:
            passed = multiply_add(weight(form, table.init, i), read(form, alpha, num_states), passed)
        write(form, now, i, where_positive(passed, tidy(read(form, now, i)), nothing))
    return tidy(sum_rows(form, work.occupancy, num_arcs)), sum_rows(form, now, num_states), leaked
