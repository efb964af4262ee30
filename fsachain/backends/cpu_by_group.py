"""`cpu_by_pair` for a sequence that has no others beside it: lanes hold different rows of the graph.

The sums over arcs into pairs, over pairs into states and pdfs, and over arcs out of states are made for a register full of
rows at once (`cpu_across`); rows that are too unlike any others come after them, one by one, in the same text. Sums of pairs
are kept beside the alphas, so that the occupancies need no arcs: one lane has room for them. The order within each sum is
that of `cpu_by_pair`, and so are the bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fsachain.backends.cpu_across import (
    across,
    everywhere,
    gather,
    read_from,
    scatter,
    weights_from,
    width,
    write_from,
)
from fsachain.backends.cpu_lanes import fill, load, load_from, splat, store
from fsachain.backends.cpu_numbers import (
    add,
    lanes_of,
    least_positive,
    multiply,
    multiply_add,
    read,
    scaled,
    tidy,
    weight,
    where_lane,
    where_positive,
    write,
    zero,
)
from fsachain.backends.jit import jit_on_views


@jit_on_views
def _sum(form: Any, rows: Any, source: Any, e: Any, length: Any) -> Any:
    """The sum of `length` terms that begin at e, of weight x source."""
    total = zero(form, source)
    for _ in range(length):
        total = multiply_add(weights_from(form, rows.weight, e), gather(form, source, rows.source, e), total)
        e += width(form)
    return total


@jit_on_views
def _sum_pairs(form: Any, sums: Any, before: Any, leak: Any, now: Any) -> None:
    """The sums of pairs over arcs, without the pdf's probability; leak: the row of its alpha."""
    rows, e, row = sums.into, np.uint64(0), np.uint64(0)
    leaks, leaked = len(sums.leak[0]) > 0, everywhere(form, before, leak)
    for g in range(len(rows.lengths)):
        pair = _sum(form, rows, before, e, rows.lengths[g])
        if leaks:
            pair = multiply_add(weights_from(form, sums.leak, row), leaked, pair)
        write_from(form, now, rows.first + row, pair)
        e += rows.lengths[g] * width(form)
        row += width(form)


@jit_on_views
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


@jit_on_views
def gather_groups(form: Any, arcs: Any, before: Any, probs: Any, now: Any, row: Any) -> None:
    """As `gather_pairs`; the sums of the pairs are kept behind the alphas."""
    side = across(form, now)
    _sum_pairs(side, arcs.many, before, arcs.nothing - 1, now)
    _sum_pairs(form, arcs.single, before, arcs.nothing - 1, now)
    write(form, now, arcs.nothing, zero(form, now))
    _sum_states(side, arcs.many.states, probs, now)
    _sum_states(form, arcs.single.states, probs, now)
    total = zero(form, now)
    least = fill(load(lanes_of(form), row, 0), 1.0)
    for j in range(arcs.nothing - 1):
        alpha = read(form, now, j)
        total = add(total, alpha)
        least = least_positive(alpha, least)
    write(form, row, 0, tidy(total))
    store(row, 2, least)


@jit_on_views
def _scale(form: Any, first: int, last: int, work: Any, after: Any) -> None:
    """Give betas the scale and the leak of (5), rows `first` to last - 1."""
    leak, scale = everywhere(form, work.leak, 0), splat(lanes_of(form), work.beta_scale[0, 0])
    for j in range(first, last, width(form)):
        write_from(form, after, j, add(scaled(read_from(form, after, j), scale), leak))


@jit_on_views
def _sum_columns(form: Any, rows: Any, alpha_after: Any, after: Any, probs: Any, work: Any) -> None:
    """Equations (6), (7): occupancies, and the terms exp(y) b(t + 1, dst), from which betas come."""
    e, row = np.uint64(0), np.uint64(0)
    for g in range(len(rows.lengths)):
        p, gamma = gather(form, probs, rows.target, row), zero(form, after)
        for _ in range(rows.lengths[g]):
            beta = gather(form, after, rows.other, e)
            onward = multiply(beta, p)
            write_from(form, work.pairs, rows.first + e, onward)
            factor = where_lane(beta, load_from(lanes_of(form), rows.weight[0], e), onward)
            gamma = multiply_add(gather(form, alpha_after, rows.source, e), factor, gamma)
            e += width(form)
        scatter(form, work.occupancy, rows.target, row, tidy(gamma))
        row += width(form)


@jit_on_views
def _sum_back(form: Any, rows: Any, terms: Any, now: Any) -> None:
    e, row = np.uint64(0), np.uint64(0)
    for g in range(len(rows.lengths)):
        beta = _sum(form, rows, terms, e, rows.lengths[g])
        scatter(form, now, rows.target, row, beta)
        e += rows.lengths[g] * width(form)
        row += width(form)


@jit_on_views
def _mask(form: Any, table: Any, alpha: Any, now: Any, first: int, last: int) -> None:
    """Zero the betas of states that no path has reached, and tidy the others, rows `first` to last - 1."""
    num_states = len(table.initial[0])
    leaks = len(table.final[0]) > num_states
    leaked = everywhere(form, alpha, num_states)
    for i in range(first, last, width(form)):
        passed = read_from(form, alpha, i)
        if leaks:
            passed = multiply_add(weights_from(form, table.init, i), leaked, passed)
        write_from(form, now, i, where_positive(passed, tidy(read_from(form, now, i)), zero(form, now)))


@jit_on_views
def spread_groups(form: Any, table: Any, alphas: Any, after: Any, probs: Any, now: Any, work: Any) -> Any:
    """As `spread_pairs`."""
    arcs, num_states, side = table.arcs, len(table.initial[0]), across(form, now)
    whole = num_states - num_states % width(side)
    _scale(side, 0, whole, work, after)
    _scale(form, whole, num_states, work, after)
    _sum_columns(side, arcs.many.columns, alphas[2], after, probs, work)
    _sum_columns(form, arcs.single.columns, alphas[2], after, probs, work)
    _sum_back(side, arcs.many.back, work.pairs, now)
    _sum_back(form, arcs.single.back, work.pairs, now)
    _mask(side, table, alphas[1], now, 0, whole)
    _mask(form, table, alphas[1], now, whole, num_states)
    occupied, total, leaked = zero(form, now), zero(form, now), zero(form, now)
    for k in range(len(table.active)):
        occupied = add(occupied, read(form, work.occupancy, k))
    for i in range(num_states):
        beta = read(form, now, i)
        total = add(total, beta)
        leaked = multiply_add(weight(form, table.init, i), beta, leaked)
    return tidy(occupied), total, leaked
