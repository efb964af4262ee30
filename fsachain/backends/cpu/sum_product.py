"""Numba kernels for equations (1)-(7) in the normalised form (10)-(12), on W sequences that share a graph.

The text holds for all kinds of numbers of `numbers`. Frames are normalised by powers of two, which lose nothing:
with s(t) the exponent of tot(t), frame t multiplies by exp(y - shift) 2**-s(t), so that

    alpha(t, i) = log(stored a(t, i)) + sum over u < t of (shift(u) + s(u) log 2).

The leak is one more state, as `tables.KernelTable` explains; the arrays are those of `memory`. Betas are kept only
where the alpha is not zero, since they are of no use elsewhere: their scale is then set by states that matter. How a
frame runs over the arcs depends on the layout of the table: see `arcs`.
"""

from __future__ import annotations

from typing import Any

from fsachain.backends.cpu.arcs import (
    add_leak,
    begin_live,
    gather_arcs,
    gather_both_ways,
    gather_groups,
    gather_pairs,
    probabilities_across,
    spread_arcs,
    spread_both_ways,
    spread_groups,
    spread_own,
    spread_pairs,
)
from fsachain.backends.cpu.frames import TOUCHED, load_scores, probabilities_by_row, scatter, scatter_live
from fsachain.backends.cpu.jit import helper
from fsachain.backends.cpu.layouts import ArcList, ArcRows, ArcsBothWays, OwnGroups
from fsachain.backends.cpu.numbers import (
    add,
    bound,
    bound_sum,
    kind_of,
    lanes_of,
    mean_of,
    multiply,
    multiply_add,
    parts_of,
    read,
    scale_of,
    scaled,
    shift_of,
    tidy,
    weight,
    where_lane,
    write,
    zero,
)
from fsachain.backends.cpu.simd import by_type, fill, larger, load, load_from, smaller, store, where_more


@by_type
def _gather(form: Any, arcs: Any, before: Any, probs: Any, now: Any, row: Any) -> Any:
    ways = {ArcList: gather_arcs, ArcRows: gather_pairs, ArcsBothWays: gather_both_ways}
    return ways.get(arcs.instance_class, gather_groups)


@by_type
def _make_probabilities(form: Any, columns: Any, scale: Any, work: Any, probs: Any) -> Any:
    """probs = exp(y - shift) 2**-n of the scores in `work`, one for each pdf."""
    is_many = form.width > 1 or kind_of(form) == "expected"
    return probabilities_by_row if is_many else probabilities_across


@by_type
def _spread(form: Any, table: Any, alphas: Any, after: Any, probs: Any, now: Any, work: Any) -> Any:
    if _is_own(form, table):
        return spread_own
    ways = {ArcList: spread_arcs, ArcRows: spread_pairs, ArcsBothWays: spread_both_ways}
    return ways.get(table["arcs"].instance_class, spread_groups)


def _is_own(form: Any, table: Any) -> bool:
    """Whether one sequence has the graph for itself, and (34) holds of its numbers."""
    return form.kind != "expected" and table["arcs"].instance_class in (ArcList, OwnGroups)


@by_type
def _begin_betas(form: Any, table: Any, frames: Any, t: Any, alpha: Any, work: Any) -> Any:
    return begin_live if _is_own(form, table) else lambda form, table, frames, t, alpha, work: None


@by_type
def _write_occupancy(form: Any, table: Any, frames: Any, t: Any, total: Any, work: Any, out: Any) -> Any:
    """Equation (7) to `out`."""

    def of_some(form, table, frames, t, total, work, out):  # type: ignore[no-untyped-def]
        if work.counts[TOUCHED] < 0:
            scatter(form, frames, t, total, work, out)
        else:
            scatter_live(form, frames, t, total, work, out)

    of_all = lambda form, table, frames, t, total, work, out: scatter(form, frames, t, total, work, out)  # noqa: E731
    return of_some if _is_own(form, table) else of_all


@helper
def _begin(form: Any, table: Any, now: Any, row: Any) -> None:
    """Equation (1), with the same results in `row` as `_gather`."""
    total = zero(form, now)
    for i in range(len(table.initial.mantissas)):
        alpha = weight(form, table.initial, i)
        write(form, now, i, alpha)
        total = add(total, alpha)
    write(form, row, 0, tidy(total))
    store(row, 2, fill(load(lanes_of(form), row, 0), 1.0))


@helper
def _bound(form: Any, table: Any, t: int, work: Any, record: Any) -> None:
    """Take frame t, just loaded, into `lowest` and `extent`."""
    lanes = lanes_of(form)
    step = work.extremes.shape[1]
    top, low = load(lanes, work.extremes, 0), load_from(lanes, work.extremes, step)
    nothing = fill(top, 0.0)
    largest = larger(larger(top, nothing - top), larger(low, nothing - low))
    # The last one, NaN for a score that is not legal, goes on from frame to frame: see `larger`.
    store(
        record.extent,
        0,
        larger(largest, load(lanes, record.extent, 0)) + load_from(lanes, work.extremes, 2 * step),
    )
    least = load(lanes, work.row, 2) * fill(top, table.least[1])
    product = bound(form, least, low, top, load(lanes, record.scale, t))
    _lower(lanes, record.lowest, product, t + 1, work)


@helper
def _lower(lanes: Any, rows: Any, value: Any, t: int, work: Any) -> None:
    """rows [1, W] = the lesser of themselves and `value`, for sequences of at least t frames."""
    least = load(lanes, rows, 0)
    goes_on = load(lanes, work.frames, 0)
    store(rows, 0, where_more(goes_on, fill(goes_on, t - 0.5), smaller(value, least), least))


@helper
def _finish(form: Any, table: Any, c: Any, frames: Any, t: int, now: Any, work: Any, record: Any) -> None:
    """Equations (3) and, for the sequences that end here, (4): after `_gather` made the alphas of time t."""
    final, row, lengths, lowest, leaked = table.final, work.row, frames.lengths, record.lowest, record.leaked
    num_states, num_final = len(table.initial.mantissas), len(final.mantissas)
    total = read(form, row, 0)
    store(record.scale, t, scale_of(total))
    if num_final > num_states:
        write(form, now, num_states, tidy(multiply(weight(form, c, 0), total)))
    _lower(lanes_of(form), leaked, bound_sum(total, c.mantissas[0] * table.init_everywhere), t, work)
    ends = False
    for g in range(len(lengths)):
        ends |= lengths[g] == t
    if ends:
        z = zero(form, now)
        for i in range(num_final):
            z = multiply_add(weight(form, final, i), read(form, now, i), z)
        significand, n = parts_of(tidy(z))
        store(row, 0, significand)
        store(row, 1, mean_of(z))
        store(work.exponents, 0, n)
        for g in range(len(lengths)):
            if lengths[g] == t:
                record.z[g], record.z_scale[g], record.mean[g] = row[0, g], work.exponents[0, g], row[1, g]
                lowest[0, g] = min(lowest[0, g], row[2, g] * table.least[3])
                leaked[0, g] = min(leaked[0, g], row[0, g])
    add_leak(form, table, now)


@helper
def forward(
    form: Any, table: Any, c: Any, frames: Any, first: int, last: int, work: Any, record: Any
) -> None:
    """Equations (1)-(4) for frames first to last - 1; history row 0 holds the alphas of time `first`, unless that is 0."""
    lanes, history, probs, scale = lanes_of(form), work.history, work.probs, record.scale
    for g in range(len(frames.lengths)):
        work.frames[0, g] = frames.lengths[g]
    if first == 0:
        least, leak = table.least, c.mantissas[0]
        nothing = fill(load(lanes, record.extent, 0), 0.0)
        store(record.lowest, 0, fill(nothing, least[0] if leak == 0 else min(least[0], leak * least[2])))
        store(record.leaked, 0, fill(nothing, 1.0))
        store(record.extent, 0, nothing)
        _begin(form, table, history[0], work.row)
        _finish(form, table, c, frames, first, history[0], work, record)
    for t in range(first, last):
        load_scores(lanes, frames, t, work)
        _bound(form, table, t, work, record)
        store(record.shift, t, shift_of(form, load(lanes, work.extremes, 0)))
        p = probs[(t - first) % len(probs)]
        _make_probabilities(form, frames.columns, scale[t : t + 1], work, p)
        before, now = history[(t - first) % len(history)], history[(t + 1 - first) % len(history)]
        _gather(form, table.arcs, before, p, now, work.row)
        _finish(form, table, c, frames, t + 1, now, work, record)


@helper
def keep_beta(form: Any, c: Any, total: Any, leaked: Any, work: Any) -> None:
    """Keep the exponent of the sum of betas, and the leak of (5) at that scale."""
    scale = scale_of(tidy(total))
    store(work.beta_scale, 0, scale)
    write(form, work.leak, 0, scaled(multiply(weight(form, c, 0), tidy(leaked)), scale))


@helper
def end_betas(form: Any, table: Any, c: Any, frames: Any, t: int, beta: Any, work: Any) -> None:
    """Equation (5) at the end of the sequences of t frames: their betas become the final weights."""
    ends, lengths, extremes = False, frames.lengths, work.extremes
    for g in range(len(lengths)):
        extremes[0, g] = lengths[g] == t
        ends |= lengths[g] == t
    if ends:
        mask = load(lanes_of(form), extremes, 0)
        total, leaked = zero(form, beta), zero(form, beta)
        for i in range(len(table.init.mantissas)):
            x = where_lane(weight(form, table.final, i), mask, read(form, beta, i))
            write(form, beta, i, x)
            total = add(total, x)
            leaked = multiply_add(weight(form, table.init, i), x, leaked)
        keep_beta(form, c, total, leaked, work)


@helper
def backward(form: Any, table: Any, c: Any, frames: Any, first: int, last: int, work: Any, out: Any) -> None:
    """Equations (5)-(7) for frames last - 1 to first, whose alphas `forward` left in history rows 0 to last - first.

    out[n, t, p] += factor x occupancy, each frame divided by its sum (12), with the factors [1, W] in `work`. The betas of
    time `last` stand in `work`, all zero if no frame follows.
    """
    beta, history = work.beta, work.history
    for t in range(last - 1, first - 1, -1):
        after, now = beta[(t + 1) % 2], beta[t % 2]
        row = t - first
        alphas = history[max(row - 1, 0)], history[row], history[row + 1]
        end_betas(form, table, c, frames, t + 1, after, work)
        _begin_betas(form, table, frames, t, alphas[2], work)
        occupied, total, leaked = _spread(form, table, alphas, after, work.probs[t - first], now, work)
        _write_occupancy(form, table, frames, t, occupied, work, out)
        keep_beta(form, c, total, leaked, work)
