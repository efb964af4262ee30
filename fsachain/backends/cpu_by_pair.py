"""One frame of equations (2) and (5)-(7) on a graph that sequences share: every state gathers its arcs.

Arcs that share a destination and a pdf are summed before they are multiplied by the pdf's probability. Many graphs have one
pdf for all arcs into a state; an arc then costs one load and one multiply-add each way.
"""

from __future__ import annotations

from typing import Any

from fsachain.backends.cpu_lanes import fill, load, prefetch, store
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
from fsachain.backends.jit import jit_on_views


@jit_on_views
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
        alpha = tidy(alpha)
        write(form, now, j, alpha)
        total = add(total, alpha)
        least = least_positive(alpha, least)
    write(form, row, 0, tidy(total))
    store(row, 2, least)


@jit_on_views
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


@jit_on_views
def spread_pairs(form: Any, table: Any, alphas: Any, after: Any, probs: Any, now: Any, work: Any) -> Any:
    """Equation (5) and (6), (7): betas, occupancy rows; the sums of occupancies, of betas, and of betas over init."""
    arcs, alpha, num_states = table.arcs, alphas[1], len(table.initial[0])
    occupied = occupy_pairs(form, arcs, alphas, after, probs, work)
    leaks = len(table.final[0]) > num_states
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
