"""`cpu_by_pair` for a sequence that has no others beside it: sums over arcs, several rows of equal length side by side.

A sum waits for each of its additions; of SIDE sums none waits for another. And where rows of equal length follow each other,
the machine foresees where each ends. The sums of pairs are kept beside the alphas, so that the occupancies need no arcs: one
lane has room for them. The order within each sum is that of `cpu_by_pair`, and so are the bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fsachain.backends.cpu_lanes import fill, load, store
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
    where_positive,
    write,
    zero,
)
from fsachain.backends.cpu_runs import SIDE
from fsachain.backends.jit import jit_on_views

# Unsigned, like all that they are added to: with signed integers numba would make floats of them.
ONE, TWO, THREE, FOUR = (np.uint64(n) for n in range(1, SIDE + 1))


@jit_on_views
def _term(form: Any, rows: Any, source: Any, e: int, total: Any) -> Any:
    return multiply_add(weight(form, rows.weight, e), read(form, source, rows.source[e]), total)


@jit_on_views
def sum_rows(form: Any, rows: Any, source: Any, into: Any) -> None:
    """into[target] = the sum over the row's arcs of weight x source, for all rows."""
    e, row = np.uint64(0), np.uint64(0)
    for run in range(len(rows.lengths)):
        length, end = rows.lengths[run], rows.ends[run]
        while row + FOUR <= end:
            a = b = c = d = zero(form, source)
            for _ in range(length):
                a = _term(form, rows, source, e, a)
                b = _term(form, rows, source, e + ONE, b)
                c = _term(form, rows, source, e + TWO, c)
                d = _term(form, rows, source, e + THREE, d)
                e += FOUR
            write(form, into, rows.target[row], a)
            write(form, into, rows.target[row + ONE], b)
            write(form, into, rows.target[row + TWO], c)
            write(form, into, rows.target[row + THREE], d)
            row += FOUR
        while row < end:
            a = zero(form, source)
            for _ in range(length):
                a = _term(form, rows, source, e, a)
                e += ONE
            write(form, into, rows.target[row], a)
            row += ONE


@jit_on_views
def gather_runs(form: Any, arcs: Any, before: Any, probs: Any, now: Any, work: Any) -> None:
    """As `gather_pairs`; the sums of the pairs are kept behind the alphas."""
    sum_rows(form, arcs.into, before, now)
    rows, total, kept = arcs.rows, zero(form, before), np.uint64(len(arcs.rows.state_pairs))
    least = fill(load(lanes_of(form), work.row, 0), 1.0)
    for j in range(len(rows.state_pairs) - 1):
        alpha = zero(form, before)
        for q in range(rows.state_pairs[j], rows.state_pairs[j + 1]):
            p = read(form, probs, rows.pair_column[q])
            alpha = multiply_add(read(form, now, kept + q), p, alpha)
        alpha = tidy(alpha)
        write(form, now, j, alpha)
        total = add(total, alpha)
        least = least_positive(alpha, least)
    write(form, work.row, 0, tidy(total))
    store(work.row, 2, least)


@jit_on_views
def _occupy(form: Any, arcs: Any, alphas: Any, after: Any, probs: Any, work: Any) -> Any:
    """As `occupy_pairs`, with the sums that `gather_runs` kept."""
    _, alpha, alpha_after = alphas
    leak, scale = read(form, work.leak, 0), load(lanes_of(form), work.beta_scale, 0)
    rows, total = arcs.rows, zero(form, alpha)
    for k in range(len(rows.column_pairs) - 1):
        p = read(form, probs, k)
        gamma = zero(form, alpha)
        for q in range(rows.column_pairs[k], rows.column_pairs[k + 1]):
            j = rows.column_dst[q]
            beta = add(scaled(read(form, after, j), scale), leak)
            onward = multiply(beta, p)
            if rows.column_arcs[q] == rows.column_arcs[q + 1]:
                gamma = multiply_add(read(form, alpha_after, j), beta, gamma)
            else:
                gamma = multiply_add(read(form, alpha_after, arcs.kept[q]), onward, gamma)
            write(form, work.pairs, q, onward)
        gamma = tidy(gamma)
        write(form, work.occupancy, k, gamma)
        total = add(total, gamma)
    return tidy(total)


@jit_on_views
def spread_runs(form: Any, table: Any, alphas: Any, after: Any, probs: Any, now: Any, work: Any) -> Any:
    """As `spread_pairs`."""
    alpha, num_states = alphas[1], len(table.initial[0])
    occupied = _occupy(form, table.arcs, alphas, after, probs, work)
    sum_rows(form, table.arcs.back, work.pairs, now)
    leaks = len(table.final[0]) > num_states
    total, leaked = zero(form, now), zero(form, now)
    for i in range(num_states):
        passed = read(form, alpha, i)
        if leaks:
            passed = multiply_add(weight(form, table.init, i), read(form, alpha, num_states), passed)
        beta = where_positive(passed, tidy(read(form, now, i)), zero(form, now))
        write(form, now, i, beta)
        total = add(total, beta)
        leaked = multiply_add(weight(form, table.init, i), beta, leaked)
    return occupied, total, leaked
