"""A `TransitionTable` in the forms that the numba kernels read, made once per table and kept while it lives."""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from fsachain.backends.cpu_frames import ALONG
from fsachain.backends.cpu_groups import arc_groups
from fsachain.backends.cpu_lanes import aligned_bytes
from fsachain.backends.cpu_layouts import ArcGroups, ArcList, ArcRows, Index, Weights
from fsachain.backends.cpu_numbers import Form, is_wide, weights
from fsachain.fsa import Floats
from fsachain.table import TransitionTable


class KernelTable(NamedTuple):
    """What `cpu_recursion` reads; the arcs in one of three layouts.

    With a leak there is one state more, the last: its alpha is c tot(t), and its arcs, one for each pair, are the arcs of
    all states weighted by init. Weights are relative to their maximum where numbers are plain; the logs of the maxima
    are in `log_scale` (of initial, arcs, final). `least` has the least nonzero weights of initial, arcs, init and final
    before they are rounded to the table's type, in which they may be zero; `runs` are the positions in `active` at which
    another pdf begins, and its length; `init_everywhere` is the least init, 0
    where a leak misses a state; `reach` is the largest exponent of any weight.
    """

    arcs: ArcRows | ArcGroups | ArcList
    active: Index
    runs: Index
    initial: Weights
    init: Weights
    final: Weights
    log_scale: Floats
    least: tuple[float, float, float, float]
    init_everywhere: float
    reach: float


_kernel: WeakKeyDictionary[TransitionTable, dict[Any, KernelTable]] = WeakKeyDictionary()


def kernel_table(
    table: TransitionTable,
    dtype: np.dtype[Any],
    form: Form,
    leaks: bool,
    layout: type[ArcRows] | type[ArcGroups] | type[ArcList],
) -> KernelTable:
    """`table` for numbers of the form's kind in `dtype`, with the state that stands for the leak if it `leaks`."""
    made = _kernel.setdefault(table, {})
    key = dtype, is_wide(form), leaks, layout
    if key not in made:
        arcs = _with_leak(table) if leaks else _plain_arcs(table)
        arcs_scale = 0.0 if is_wide(form) else _largest(table.by_dst.log_prob)
        arcs = arcs._replace(log_prob=arcs.log_prob - arcs_scale)
        rows: ArcRows | ArcGroups | ArcList
        if layout is ArcList:
            order = _by_pdf_and_rank(arcs)
            rows, columns = _arc_list(table, arcs, order, dtype, form), arcs.column[order]
        else:
            rows, columns = _arc_rows(table, arcs, dtype, form), np.arange(len(table.active_pdfs))
            rows = (
                arc_groups(rows, weights(form, np.array([-np.inf]), dtype)) if layout is ArcGroups else rows
            )
        active = table.active_pdfs[columns].astype(np.uint32)
        made[key] = _make(table, rows, active, arcs_scale, dtype, form, leaks)
    return made[key]


def _make(
    table: TransitionTable,
    rows: ArcRows | ArcGroups | ArcList,
    active: Index,
    arcs_scale: float,
    dtype: np.dtype[Any],
    form: Form,
    leaks: bool,
) -> KernelTable:
    wide = is_wide(form)
    initial_scale, final_scale = (
        0.0 if wide else _largest(x) for x in (table.initial_log_prob, table.final_log_prob)
    )
    init = table.leak_target
    through = np.empty(0)
    if leaks:
        with np.errstate(divide="ignore"):
            through = (
                np.log(np.exp(init + table.final_log_prob - final_scale).sum(keepdims=True)) + final_scale
            )
    log_weights = (table.by_dst.log_prob, table.initial_log_prob, table.final_log_prob, init)
    return KernelTable(
        arcs=rows,
        active=active,
        runs=np.append(np.flatnonzero(np.diff(active, prepend=-1)), len(active)).astype(np.uint32),
        initial=weights(form, table.initial_log_prob - initial_scale, dtype),
        init=weights(form, init, dtype),
        final=weights(form, np.append(table.final_log_prob, through) - final_scale, dtype),
        log_scale=np.array([initial_scale, arcs_scale, final_scale]),
        least=(
            _least(table.initial_log_prob, initial_scale),
            _least(table.by_dst.log_prob, arcs_scale),
            _least(init, 0.0),
            _least(table.final_log_prob, final_scale),
        ),
        init_everywhere=float(np.exp(init.min())),
        reach=max(float(np.abs(x[x > -np.inf]).max(initial=0.0)) for x in log_weights) / np.log(2.0),
    )


class _Arcs(NamedTuple):
    """Parallel arrays, one entry for each arc."""

    src: npt.NDArray[Any]
    dst: npt.NDArray[Any]
    column: npt.NDArray[Any]
    log_prob: Floats


def _plain_arcs(table: TransitionTable) -> _Arcs:
    view = table.by_dst
    return _Arcs(view.src, view.dst, view.column, view.log_prob)


def _arc_list(
    table: TransitionTable, arcs: _Arcs, order: npt.NDArray[np.int64], dtype: np.dtype[Any], form: Form
) -> ArcList:
    return ArcList(
        num_states=table.num_states,
        src=arcs.src[order].astype(np.uint32),
        dst=arcs.dst[order].astype(np.uint32),
        weight=_filled_up(weights(form, arcs.log_prob[order], dtype)),
    )


def _filled_up(both: Weights) -> Weights:
    """The same in memory that begins at a line, with zeros up to the next multiple of ALONG."""
    mantissas, exponents = both
    count = -(-len(mantissas) // ALONG) * ALONG
    rows = aligned_bytes(count * mantissas.itemsize).view(mantissas.dtype)
    rows[: len(mantissas)], rows[len(mantissas) :] = mantissas, 0.0
    return rows, exponents


def _by_pdf_and_rank(arcs: _Arcs) -> npt.NDArray[np.int64]:
    """By pdf; then the first arc into every state, the second of each, and so on."""
    order = np.argsort(arcs.dst, kind="stable")
    ordered = arcs.dst[order]
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    return np.lexsort((rank, arcs.column))


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
