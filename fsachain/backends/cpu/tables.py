"""A `TransitionTable` in the forms that the numba kernels read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from fsachain.backends.cpu.arcs import AHEAD
from fsachain.backends.cpu.layouts import (
    ArcEnds,
    ArcGroups,
    ArcList,
    ArcRows,
    ArcsBothWays,
    Index,
    Layout,
    OwnGroups,
    Rows,
    Sums,
)
from fsachain.backends.cpu.numbers import Weights, weights
from fsachain.backends.cpu.simd import WIDTH, aligned_bytes
from fsachain.backends.cpu.structs import Form
from fsachain.fsa import Floats
from fsachain.table import TransitionTable

# `ArcGroups` from `ArcRows`: rows of about equal length side by side.

Positions = npt.NDArray[np.int64]

WASTE = 2  # rows go side by side where filling them up makes no more than this many terms of each
LONG = 6  # terms of a row that is put beside those of its component, which read what it reads
SHARED = 2  # rows that read a number which is loaded for all lanes at once


class _Order(NamedTuple):
    """Rows in groups of W. rows [G, W]; shared and lengths [G]: see `layouts.Rows`.

    terms: where each term was before, -1 where a row has no more; reads: the same, of a shared term that of some row.
    """

    rows: Positions
    shared: Positions
    lengths: Positions
    terms: Positions
    reads: Positions


class _Sources(NamedTuple):
    """What rows read of a graph that one sequence has for itself: of each term, and of each row the component [R]."""

    terms: Positions
    components: Positions


def _split(counts: Positions, side: int, sources: _Sources | None) -> tuple[Positions, Positions]:
    """Rows [G, side] side by side, the last of them repeated where there are too few, and rows [N, 1] for themselves."""
    order = np.argsort(-counts, kind="stable")
    groups, singles, n = [np.empty((0, side), np.int64)], [np.empty((0, 1), np.int64)], 0
    if sources is not None:
        n = int(np.searchsorted(-counts[order], 1 - LONG))
        alike = order[np.argsort(sources.components[order[:n]], kind="stable")]
        groups.append(np.pad(alike, (0, -n % side), "edge").reshape(-1, side))
    while n < len(order):
        rows = np.pad(order[n:], (0, -(len(order) - n) % side), "edge").reshape(-1, side)
        sums = np.add.reduceat(counts[order[n:]], np.arange(0, len(order) - n, side))
        fitting = side * counts[rows[:, 0]] <= WASTE * sums
        count = len(rows) if fitting.all() else int(fitting.argmin())
        groups.append(rows[:count])
        n += count * side
        while n < len(order) and side * counts[order[n]] > WASTE * counts[order[n : n + side]].sum():
            singles.append(order[n : n + 1, None])
            n += 1
    return np.concatenate(groups), np.concatenate(singles)


def _rank(groups: Positions) -> Positions:
    """Of each entry, how many before it have the same value."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    return rank


def _in_order(starts: Positions, counts: Positions, rows: Positions) -> _Order:
    """The terms from starts[n] on, counts[n] of them, of each row n of `rows`."""
    lengths = counts[rows].max(axis=1, initial=0)
    group = np.repeat(np.arange(len(rows)), lengths)
    along = np.arange(len(group)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    own = rows[group]
    terms = np.where(along[:, None] < counts[own], starts[own] + along[:, None], -1).ravel()
    return _Order(rows, 0 * lengths, lengths, terms, terms)


def _sharing(order: _Order, sources: Positions) -> _Order:
    """The same with shared terms where at least SHARED rows of a group read a source."""
    count, side = order.rows.shape
    group = np.repeat(np.arange(count), order.lengths * side)
    lane = group * side + np.arange(len(group)) % side
    real = order.terms >= 0
    group, lane, term = group[real], lane[real], order.terms[real]
    most = int(sources.max(initial=0)) + 1
    known, which = np.unique(group * most + sources[term], return_inverse=True)
    once = np.zeros(len(term), np.bool_)  # of parallel arcs
    once[np.unique(lane * len(known) + which, return_index=True)[1]] = True
    common = np.bincount(which[once], minlength=len(known)) >= SHARED
    shared = np.bincount(known[common] // most, minlength=count)
    number = np.zeros(len(known), np.int64)
    number[common] = _rank(known[common] // most)
    is_shared = common[which] & once
    step = np.where(is_shared, number[which], 0)
    step[~is_shared] = shared[group[~is_shared]] + _rank(lane[~is_shared])
    steps = shared.copy()
    np.maximum.at(steps, group, step + 1)
    place = (np.cumsum(steps) - steps)[group] + step
    terms = np.full((int(steps.sum()), side), -1)
    terms[place, lane % side] = term
    reads = terms.copy()
    reads[place[is_shared]] = term[is_shared, None]
    return _Order(order.rows, shared, steps - shared, terms.ravel(), reads.ravel())


def _in_groups(
    starts: Positions, counts: Positions, side: int, sources: _Sources | None = None
) -> tuple[_Order, _Order]:
    """All rows, in both widths."""
    if sources is not None and counts.max(initial=0) < LONG:
        sources = None
    many, single = (_in_order(starts, counts, rows) for rows in _split(counts, side, sources))
    return many if sources is None else _sharing(many, sources.terms), single


def _by_offsets(offsets: Index, side: int, sources: _Sources | None = None) -> tuple[_Order, _Order]:
    starts = offsets.astype(np.int64)
    return _in_groups(starts[:-1], np.diff(starts), side, sources)


def _places(positions: Sequence[Positions], count: int) -> Positions:
    """Where each of `count` numbers stands in what `positions` lists one after another; -1 stands for none."""
    listed = np.concatenate(positions)
    places = np.zeros(count, np.int64)
    places[listed[listed >= 0]] = np.flatnonzero(listed >= 0)
    return places


def _aligned(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    copy = aligned_bytes(values.nbytes).view(values.dtype)
    copy[:] = values
    return copy


def _pick(values: npt.NDArray[Any], positions: Positions, filling: Any) -> npt.NDArray[Any]:
    """values[positions], and `filling` where these are -1."""
    return np.append(values, np.array([filling], values.dtype))[positions]


def _pick_weights(weights: Weights, positions: Positions, zero: Weights) -> Weights:
    mantissas, exponents = weights
    filled = _pick(exponents, positions, zero.exponents[0]) if len(exponents) else exponents
    return Weights(_aligned(_pick(mantissas, positions, zero.mantissas[0])), _aligned(filled))


def _rows(
    order: _Order, first: int, source: npt.NDArray[Any], other: npt.NDArray[Any], weight: Weights
) -> Rows:
    return Rows(
        shared=order.shared.astype(np.uint32),
        lengths=order.lengths.astype(np.uint32),
        target=_aligned(order.rows.ravel().astype(np.uint32)),
        first=np.uint64(first),
        source=_aligned(source.astype(np.uint32)),
        other=_aligned(other.astype(np.uint32)),
        weight=weight,
    )


class _Pairs(NamedTuple):
    """What the sums of both widths need to know.

    zero: the weight 0. nothing: a row that holds the number 0. For each pair, leak: the position of the leak's arc, or -1;
    kept_row: the row that has its sum. For each in the order of the pdfs, row: that of its sum, or of the state whose alpha
    tells it; is_only: the latter; place: where its term is kept.
    """

    rows: ArcRows
    zero: Weights
    nothing: int
    leak: Positions
    kept_row: Positions
    row: Positions
    is_only: npt.NDArray[np.bool_]
    place: Positions


def _sums(pairs: _Pairs, orders: tuple[_Order, ...], first: tuple[int, int]) -> Sums:
    """The sums of one width; first: the first of its rows of kept sums, and of its terms."""
    rows, zero, unused = pairs.rows, pairs.zero, np.empty(0, np.uint32)
    into, states, columns, back = orders
    leak = pairs.leak[into.rows.ravel()] if (pairs.leak >= 0).any() else np.empty(0, np.int64)
    arcs_in, arcs_out, is_only = (
        _pick_weights(rows.arc_weight, into.terms, zero),
        _pick_weights(rows.src_weight, back.terms, zero),
        _aligned(_pick(pairs.is_only.astype(zero.mantissas.dtype), columns.terms, 0)),
    )
    sources = (
        _pick(rows.arc_src, into.reads, 0),
        _pick(pairs.kept_row, states.terms, pairs.nothing),
        _pick(pairs.row, columns.terms, pairs.nothing),
        _pick(pairs.place[rows.src_pair], back.reads, 0),
    )
    columns_of, states_of = _pick(rows.pair_column, states.terms, 0), _pick(rows.column_dst, columns.terms, 0)
    none = Weights(zero.mantissas[:0], zero.exponents[:0])
    return Sums(
        into=_rows(into, first[0], sources[0], unused, arcs_in),
        leak=_pick_weights(rows.arc_weight, leak, zero),
        states=_rows(states, 0, sources[1], columns_of, none),
        columns=_rows(columns, first[1], sources[2], states_of, Weights(is_only, none.exponents)),
        back=_rows(back, 0, sources[3], unused, arcs_out),
    )


def arc_groups(rows: ArcRows, zero: Weights, is_own: bool) -> ArcGroups:
    """The arcs of `rows`, of which the last into a pair is the leak's if it leaves no state; zero: the weight 0.

    Where a sequence has the graph for itself terms may be summed in any order.
    """
    num_states, side = len(rows.src_arcs) - 1, WIDTH[zero.mantissas.itemsize]
    starts, ends = rows.pair_arcs[:-1].astype(np.int64), rows.pair_arcs[1:].astype(np.int64)
    leaks = rows.arc_src[ends - 1] == num_states
    from_states = from_pairs = None
    if is_own:
        pair_dst = np.repeat(np.arange(num_states), np.diff(rows.state_pairs))
        arc_dst = np.repeat(pair_dst, ends - starts)
        links = rows.arc_src < num_states
        edges = np.ones(int(links.sum())), (rows.arc_src[links], arc_dst[links])
        component = connected_components(
            sparse.csr_array(edges, shape=(num_states, num_states)), connection="strong"
        )[1].astype(np.int64)
        from_states = _Sources(rows.arc_src.astype(np.int64), component[pair_dst])
        from_pairs = _Sources(rows.src_pair.astype(np.int64), component)
    into = _in_groups(starts, ends - starts - leaks, side, from_states)
    states, columns = (_by_offsets(x, side) for x in (rows.state_pairs, rows.column_pairs))
    back = _by_offsets(rows.src_arcs, side, from_pairs)
    nothing = num_states + 1
    kept = -(-(nothing + 1) // side) * side
    kept_row = kept + _places([order.rows.ravel() for order in into], len(starts))
    is_only = np.diff(rows.column_arcs.astype(np.int64)) == 0
    anew = np.argsort(rows.pair_column, kind="stable")
    pairs = _Pairs(
        rows=rows,
        zero=zero,
        nothing=nothing,
        leak=np.where(leaks, ends - 1, -1),
        kept_row=kept_row,
        row=np.where(is_only, rows.column_dst, kept_row[anew]),
        is_only=is_only,
        place=_places([order.terms for order in columns], len(starts)),
    )
    middle = kept + into[0].rows.size, len(columns[0].terms)
    many, single = zip(into, states, columns, back, strict=True)
    return ArcGroups(
        many=_sums(pairs, many, (kept, 0)),
        single=_sums(pairs, single, middle),
        nothing=nothing,
        num_alphas=middle[0] + into[1].rows.size,
        num_terms=middle[1] + len(columns[1].terms),
    )


class KernelTable(NamedTuple):
    """What `sum_product` reads; the arcs in one of the layouts.

    With a leak there is one state more, the last: its alpha is c tot(t), and its arcs, one for each pair, are the arcs of
    all states weighted by init; `ArcsBothWays` has none. Weights are relative to their maximum where
    numbers are plain; the logs of the maxima are in `log_scale` (of initial, arcs, final). `least` has the least nonzero
    weights of initial, arcs, init and final before they are rounded to the table's type, in which they may be zero;
    `init_everywhere` is the least init, 0 where a leak misses a state; `reach` is the largest exponent of any weight. `into`
    has the arcs of a graph that one sequence has for itself by destination, none for others; `few` of them take as long one
    by one as all in their layout.
    """

    arcs: Layout
    into: ArcEnds
    active: Index
    initial: Weights
    init: Weights
    final: Weights
    log_scale: Floats
    least: Floats
    init_everywhere: float
    reach: float
    few: int


def kernel_table(
    table: TransitionTable,
    dtype: np.dtype[Any],
    form: Form,
    leaks: bool,
    layout: type[Layout],
) -> KernelTable:
    """`table` for numbers of the form's kind in `dtype`, with the state that stands for the leak if it `leaks`."""
    view, init = table.by_dst, table.leak_target
    log_weights = table.initial_log_prob, view.log_prob, table.final_log_prob
    initial_scale, arcs_scale, final_scale = (0.0 if form.is_wide else _largest(x) for x in log_weights)
    if leaks and layout is not ArcsBothWays:
        arcs = _with_leak(table)
    else:
        arcs = _Arcs(view.src, view.dst, view.column, view.log_prob)
    arcs = arcs._replace(log_prob=arcs.log_prob - arcs_scale)
    rows: Layout
    if layout is ArcList:
        rows = _arc_list(table, arcs, dtype, form)
    elif layout is ArcsBothWays:
        rows = ArcsBothWays(
            _arc_ends(table, arcs, arcs.dst, arcs.src, dtype, form),
            _arc_ends(table, arcs, arcs.src, arcs.dst, dtype, form),
        )
    else:
        rows = _arc_rows(table, arcs, dtype, form)
        if layout is not ArcRows:
            groups = arc_groups(rows, weights(form, np.array([-np.inf]), dtype), layout is OwnGroups)
            rows = OwnGroups(*groups) if layout is OwnGroups else groups
    # Nobody else asks for single arcs into a state.
    own = arcs if layout in (ArcList, OwnGroups) else _Arcs(*(column[:0] for column in arcs))
    through = np.empty(0)
    if leaks:
        with np.errstate(divide="ignore"):
            through = (
                np.log(np.exp(init + table.final_log_prob - final_scale).sum(keepdims=True)) + final_scale
            )
    return KernelTable(
        arcs=rows,
        into=_arc_ends(table, own, own.dst, own.src, dtype, form),
        active=table.active_pdfs.astype(np.uint32),
        initial=weights(form, table.initial_log_prob - initial_scale, dtype),
        init=weights(form, init, dtype),
        final=weights(form, np.append(table.final_log_prob, through) - final_scale, dtype),
        log_scale=np.array([initial_scale, arcs_scale, final_scale]),
        least=np.array(
            [
                _least(table.initial_log_prob, initial_scale),
                _least(view.log_prob, arcs_scale),
                _least(init, 0.0),
                _least(table.final_log_prob, final_scale),
            ]
        ),
        init_everywhere=float(np.exp(init.min())),
        reach=float(max(np.abs(x[x > -np.inf]).max(initial=0.0) for x in (*log_weights, init)) / np.log(2.0)),
        few=_few(rows, len(own.src)),
    )


# Of going back over an arc alone: what a step of the sums side by side takes, its numbers from anywhere or one for all.
STEP, SHARED_STEP = 0.6, 0.15


def _few(rows: Layout, num_arcs: int) -> int:
    if not isinstance(rows, OwnGroups):
        return num_arcs // 2
    sums = [x for part in (rows.many, rows.single) for x in (part.columns, part.columns, part.back)]
    return int(sum(STEP * x.lengths.sum() + SHARED_STEP * x.shared.sum() for x in sums))


class _Arcs(NamedTuple):
    """Parallel arrays, one entry for each arc."""

    src: npt.NDArray[Any]
    dst: npt.NDArray[Any]
    column: npt.NDArray[Any]
    log_prob: Floats


def count_pairs(table: TransitionTable) -> int:
    """How many different destinations and pdfs arcs have."""
    view = table.by_dst
    return len(np.unique(view.dst.astype(np.int64) * len(table.active_pdfs) + view.column))


def _arc_list(table: TransitionTable, arcs: _Arcs, dtype: np.dtype[Any], form: Form) -> ArcList:
    order = np.lexsort((_rank(arcs.dst), arcs.column))
    return ArcList(
        num_states=table.num_states,
        src=arcs.src[order].astype(np.uint32),
        dst=arcs.dst[order].astype(np.uint32),
        column=arcs.column[order].astype(np.uint32),
        columns=_offsets(arcs.column[order], len(table.active_pdfs)),
        weight=weights(form, arcs.log_prob[order], dtype),
    )


def _arc_ends(
    table: TransitionTable,
    arcs: _Arcs,
    end: npt.NDArray[Any],
    other: npt.NDArray[Any],
    dtype: np.dtype[Any],
    form: Form,
) -> ArcEnds:
    order = np.lexsort((other, end))
    return ArcEnds(
        offsets=_offsets(end[order], table.num_states),
        other=np.pad(other[order].astype(np.uint32), (0, AHEAD)),
        column=arcs.column[order].astype(np.uint32),
        weight=weights(form, arcs.log_prob[order], dtype),
    )


def _arc_rows(table: TransitionTable, arcs: _Arcs, dtype: np.dtype[Any], form: Form) -> ArcRows:
    num_states, num_columns = table.num_states, len(table.active_pdfs)
    order = np.lexsort((arcs.column, arcs.dst))
    src, dst, column, log_prob = (array[order] for array in arcs)
    key = dst.astype(np.int64) * num_columns + column
    pairs, first, pair_of = np.unique(key, return_index=True, return_inverse=True)
    pair_dst, pair_column = np.divmod(pairs, max(num_columns, 1))
    anew = np.argsort(pair_column, kind="stable")
    number = np.empty_like(anew)
    number[anew] = np.arange(len(anew))
    is_only = np.bincount(pair_dst, minlength=num_states)[dst] == 1
    again = np.flatnonzero(~is_only)
    again = again[np.argsort(number[pair_of[again]], kind="stable")]
    by_src = np.flatnonzero(src < num_states)
    by_src = by_src[np.argsort(src[by_src], kind="stable")]
    return ArcRows(
        state_pairs=_offsets(pair_dst, num_states),
        pair_column=pair_column.astype(np.uint32),
        pair_arcs=np.append(first, len(src)).astype(np.uint32),
        arc_src=src.astype(np.uint32),
        arc_weight=weights(form, log_prob, dtype),
        column_pairs=_offsets(pair_column[anew], num_columns),
        column_dst=pair_dst[anew].astype(np.uint32),
        column_arcs=_offsets(number[pair_of[again]], len(pairs)),
        column_src=src[again].astype(np.uint32),
        column_weight=weights(form, log_prob[again], dtype),
        src_arcs=_offsets(src[by_src], num_states),
        src_pair=number[pair_of[by_src]].astype(np.uint32),
        src_weight=weights(form, log_prob[by_src], dtype),
    )


def _with_leak(table: TransitionTable) -> _Arcs:
    """The arcs and, after them, one arc of the state S for each pair."""
    view, num_columns = table.by_dst, max(len(table.active_pdfs), 1)
    key = view.dst.astype(np.int64) * num_columns + view.column
    pairs, pair_of = np.unique(key, return_inverse=True)
    weight = table.leak_target[view.src] + view.log_prob
    largest = np.full(len(pairs), -np.inf)
    np.maximum.at(largest, pair_of, weight)
    reached = largest > -np.inf
    usable = weight > -np.inf
    relative = np.exp(weight[usable] - largest[pair_of[usable]])
    sums = np.bincount(pair_of[usable], relative, len(pairs))[reached]
    log_prob = np.log(sums) + largest[reached]
    dst, column = np.divmod(pairs[reached], num_columns)
    src = np.full(len(dst), table.num_states)
    return _Arcs(
        np.concatenate([view.src, src]),
        np.concatenate([view.dst, dst]),
        np.concatenate([view.column, column]),
        np.concatenate([view.log_prob, log_prob]),
    )


def _offsets(rows: npt.NDArray[Any], count: int) -> Index:
    """Where each of `count` rows begins among entries sorted by row, and the end."""
    return np.searchsorted(rows, np.arange(count + 1)).astype(np.uint32)


def _largest(log_probs: Floats) -> float:
    largest = float(log_probs.max(initial=-np.inf))
    return largest if largest > -np.inf else 0.0


def _least(log_probs: Floats, scale: float) -> float:
    finite = log_probs[log_probs > -np.inf]
    return float(np.exp(finite.min() - scale)) if finite.size else 1.0
