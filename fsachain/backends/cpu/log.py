"""Numba kernels for equations (2)-(9) in float64 logs, one sequence at a time: right at any magnitude, not fast."""

from __future__ import annotations

import math
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from fsachain.backends.cpu.jit import jit
from fsachain.backends.cpu.layouts import Index
from fsachain.fsa import Floats
from fsachain.table import TransitionTable


@jit
def _log_add(x: float, y: float) -> float:
    largest, smallest = max(x, y), min(x, y)
    if largest == -np.inf:  # both are log-zero
        return -np.inf
    return largest + math.log1p(math.exp(smallest - largest))


@jit
def _log_sum(x: Any, y: Any) -> float:
    """logsum_i x[i] + y[i]; y may be longer than x."""
    largest = -np.inf
    for i in range(len(x)):
        largest = max(largest, x[i] + y[i])
    if largest == -np.inf:
        return -np.inf
    total = 0.0
    for i in range(len(x)):
        total += math.exp(x[i] + y[i] - largest)
    return largest + math.log(total)


@jit
def _load(scores: Any, active: Any, y: Any) -> float:
    """y = scores[active] minus their maximum, which is returned (0 if all are -inf; NaN for NaN or +inf)."""
    shift = -np.inf
    for k in range(len(active)):
        y[k] = scores[active[k]]
        if not y[k] < np.inf:
            return np.nan
        shift = max(shift, y[k])
    if shift == -np.inf:
        return 0.0
    for k in range(len(active)):
        y[k] -= shift
    return shift


@jit
def forward(table: Any, log_c: float, scores: Any, history: Any) -> float:
    """alpha' of equations (1)-(3) into history [T + 1, >= S] ([2, S] where not kept); returns log Z, NaN if illegal."""
    offsets, src, column, log_prob = table.dst_offsets, table.dst_src, table.dst_column, table.dst_log_prob
    num_states, rows, log_z = len(table.initial), len(history), 0.0
    y, arc = np.empty(len(table.active)), np.empty(len(src))
    for t in range(len(scores) + 1):
        now = history[t % rows, :num_states]
        if t == 0:
            now[:] = table.initial
        else:
            before = history[(t - 1) % rows]
            log_z += _load(scores[t - 1], table.active, y)
            if math.isnan(log_z):
                return np.nan
            for j in range(num_states):
                first, last = offsets[j], offsets[j + 1]
                for e in range(first, last):
                    arc[e] = before[src[e]] + log_prob[e] + y[column[e]]
                now[j] = _log_sum(arc[first:last], table.zeros)  # (2)
        if log_c > -np.inf:
            leak = log_c + _log_sum(now, table.zeros)
            for i in range(num_states):
                now[i] = _log_add(now[i], leak + table.init[i])  # (3)
    return log_z + _log_sum(history[len(scores) % rows, :num_states], table.final)  # (4)


@jit
def backward(table: Any, log_c: float, scores: Any, history: Any) -> None:
    """Equations (5)-(7) for a sequence that has a path: replaces history [T + 1, max(S, K)] by occupancies [T, K]."""
    offsets, dst, column, log_prob = table.src_offsets, table.src_dst, table.src_column, table.src_log_prob
    num_states, num_frames, num_active = len(table.initial), len(scores), len(table.active)
    y, arc, occupancy = np.empty(num_active), np.empty(len(dst)), np.empty(num_active)
    after, now = np.empty(num_states), np.empty(num_states)
    for t in range(num_frames, -1, -1):
        if t == num_frames:
            log_z = _log_sum(history[t, :num_states], table.final)
            for i in range(num_states):
                now[i] = table.final[i] - log_z
        else:
            _load(scores[t], table.active, y)
            occupancy[:] = 0.0
            for i in range(num_states):
                largest, total = -np.inf, 0.0
                for e in range(offsets[i], offsets[i + 1]):
                    arc[e] = log_prob[e] + y[column[e]] + after[dst[e]]
                    largest = max(largest, arc[e])
                now[i] = -np.inf
                if largest > -np.inf:
                    alpha = math.exp(history[t, i] + largest)
                    for e in range(offsets[i], offsets[i + 1]):
                        share = math.exp(arc[e] - largest)
                        total += share
                        occupancy[column[e]] += alpha * share  # (6), (7)
                    now[i] = largest + math.log(total)  # (5)
            history[t, :num_active] = occupancy
        leak = log_c + _log_sum(now, table.init) if log_c > -np.inf else -np.inf
        for i in range(num_states):
            after[i] = _log_add(now[i], leak)


@jit
def best_path(table: Any, scores: Any, back: Any, path: Any) -> float:
    """Equations (8) and (9): path [T], positions in the by-destination view; back [T, S] is workspace. The score."""
    offsets, src, column, log_prob = table.dst_offsets, table.dst_src, table.dst_column, table.dst_log_prob
    num_states, score = len(table.initial), 0.0
    y, before, now = np.empty(len(table.active)), table.initial.copy(), np.empty(num_states)
    for t in range(len(scores)):
        score += _load(scores[t], table.active, y)
        if math.isnan(score):
            return np.nan
        for j in range(num_states):
            now[j] = -np.inf
            for e in range(offsets[j], offsets[j + 1]):
                x = before[src[e]] + log_prob[e] + y[column[e]]
                if x > now[j]:
                    now[j], back[t, j] = x, e
        before, now = now, before
    state = np.argmax(before + table.final)
    if before[state] + table.final[state] == -np.inf:
        return -np.inf
    score += before[state] + table.final[state]
    for t in range(len(scores) - 1, -1, -1):
        path[t] = back[t, state]
        state = src[path[t]]
    return score


# A `TransitionTable` as the kernels in logs read it, made once per table and kept while it lives.


class LogTable(NamedTuple):
    """The arcs by destination and by source with their log-probabilities; `zeros` is as long as any sum."""

    dst_offsets: Index
    dst_src: Index
    dst_column: Index
    dst_log_prob: Floats
    src_offsets: Index
    src_dst: Index
    src_column: Index
    src_log_prob: Floats
    active: Index
    initial: Floats
    init: Floats
    final: Floats
    zeros: Floats


_logs: WeakKeyDictionary[TransitionTable, LogTable] = WeakKeyDictionary()


def log_table(table: TransitionTable) -> LogTable:
    """`table` for the kernels that work with logs."""
    if table not in _logs:
        by_dst, by_src = table.by_dst, table.by_src
        _logs[table] = LogTable(
            dst_offsets=by_dst.offsets.astype(np.uint32),
            dst_src=by_dst.src.astype(np.uint32),
            dst_column=by_dst.column.astype(np.uint32),
            dst_log_prob=by_dst.log_prob,
            src_offsets=by_src.offsets.astype(np.uint32),
            src_dst=by_src.dst.astype(np.uint32),
            src_column=by_src.column.astype(np.uint32),
            src_log_prob=by_src.log_prob,
            active=table.active_pdfs.astype(np.uint32),
            initial=table.initial_log_prob,
            init=table.leak_target,
            final=table.final_log_prob,
            zeros=np.zeros(max(table.num_states, table.num_arcs)),
        )
    return _logs[table]
