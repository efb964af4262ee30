"""`ArcGroups` from `ArcRows`: rows of about equal length side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.backends.cpu_across import SIDES
from fsachain.backends.cpu_lanes import aligned_bytes
from fsachain.backends.cpu_layouts import ArcGroups, ArcRows, Index, Rows, Sums, Weights

Positions = npt.NDArray[np.int64]

WASTE = 2  # rows go side by side where filling them up makes no more than this many terms of each


class _Order(NamedTuple):
    """Rows in groups of W. rows [G, W]; lengths [G]; terms: where each term was before, -1 where a row has no more."""

    rows: Positions
    lengths: Positions
    terms: Positions


def _split(counts: Positions, side: int) -> tuple[Positions, Positions]:
    """Rows [G, side] side by side, the last of them repeated where there are too few, and rows [N, 1] for themselves."""
    order = np.argsort(-counts, kind="stable")
    groups, singles, n = [np.empty((0, side), np.int64)], [np.empty((0, 1), np.int64)], 0
    while n < len(order):
        rows = order[n : n + side]
        if side * counts[rows[0]] <= WASTE * counts[rows].sum():
            groups.append(np.pad(rows, (0, side - len(rows)), "edge")[None])
            n += side
        else:
            singles.append(rows[:1, None])
            n += 1
    return np.concatenate(groups), np.concatenate(singles)


def _in_order(starts: Positions, counts: Positions, rows: Positions) -> _Order:
    """The terms from starts[n] on, counts[n] of them, of each row n of `rows`."""
    lengths = counts[rows].max(axis=1, initial=0)
    terms = [np.empty(0, np.int64)]
    for start, count, length in zip(starts[rows], counts[rows], lengths, strict=True):
        along = np.arange(length)[:, None]
        terms.append(np.where(along < count, start + along, -1).ravel())
    return _Order(rows, lengths, np.concatenate(terms))


def _in_groups(starts: Positions, counts: Positions, side: int) -> tuple[_Order, _Order]:
    """All rows, in both widths."""
    many, single = (_in_order(starts, counts, rows) for rows in _split(counts, side))
    return many, single


def _by_offsets(offsets: Index, side: int) -> tuple[_Order, _Order]:
    starts = offsets.astype(np.int64)
    return _in_groups(starts[:-1], np.diff(starts), side)


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
    filled = _pick(exponents, positions, zero[1][0]) if len(exponents) else exponents
    return _aligned(_pick(mantissas, positions, zero[0][0])), _aligned(filled)


def _rows(
    order: _Order, first: int, source: npt.NDArray[Any], other: npt.NDArray[Any], weight: Weights
) -> Rows:
    return Rows(
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
        _aligned(_pick(pairs.is_only.astype(zero[0].dtype), columns.terms, 0)),
    )
    sources = (
        _pick(rows.arc_src, into.terms, 0),
        _pick(pairs.kept_row, states.terms, pairs.nothing),
        _pick(pairs.row, columns.terms, pairs.nothing),
        _pick(pairs.place[rows.src_pair], back.terms, 0),
    )
    columns_of, states_of = _pick(rows.pair_column, states.terms, 0), _pick(rows.column_dst, columns.terms, 0)
    none = zero[0][:0], zero[1][:0]
    return Sums(
        into=_rows(into, first[0], sources[0], unused, arcs_in),
        leak=_pick_weights(rows.arc_weight, leak, zero),
        states=_rows(states, 0, sources[1], columns_of, none),
        columns=_rows(columns, first[1], sources[2], states_of, (is_only, none[1])),
        back=_rows(back, 0, sources[3], unused, arcs_out),
    )


def arc_groups(rows: ArcRows, zero: Weights) -> ArcGroups:
    """The arcs of `rows`, of which the last into a pair is the leak's if it leaves no state; zero: the weight 0."""
    num_states, side = len(rows.src_arcs) - 1, SIDES[zero[0].itemsize]
    starts, ends = rows.pair_arcs[:-1].astype(np.int64), rows.pair_arcs[1:].astype(np.int64)
    leaks = rows.arc_src[ends - 1] == num_states
    into = _in_groups(starts, ends - starts - leaks, side)
    states, columns, back = (
        _by_offsets(x, side) for x in (rows.state_pairs, rows.column_pairs, rows.src_arcs)
    )
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
