"""A `TransitionTable` in the two forms that the numba kernels read, made once per table and kept while it lives."""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from fsachain.fsa import Floats
from fsachain.table import TransitionTable

# Unsigned indices spare the compiler the code for negative ones.
Index = npt.NDArray[np.uint32]
Reals = npt.NDArray[np.floating]


class ScaledTable(NamedTuple):
    """Probabilities relative to their maximum, the logs of which are in `log_scale` (of initial, arcs, final).

    `least` has the least nonzero probabilities of initial, arcs, init and final as they were before they were rounded to
    the table's type, in which they may be zero. `init_everywhere` is the least init, 0 where a leak misses a state.
    """

    dst_offsets: Index
    dst_src: Index
    dst_column: Index
    dst_weight: Reals
    src_offsets: Index
    src_dst: Index
    src_column: Index
    src_weight: Reals
    active: Index
    initial: Reals
    init: Reals
    final: Reals
    log_scale: Floats
    least: tuple[float, float, float, float]
    init_everywhere: float


class LogTable(NamedTuple):
    """The same arcs with their log-probabilities; `zeros` is a vector of zeros as long as any sum."""

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


_scaled: WeakKeyDictionary[TransitionTable, dict[np.dtype[Any], ScaledTable]] = WeakKeyDictionary()
_logs: WeakKeyDictionary[TransitionTable, LogTable] = WeakKeyDictionary()


def scaled_table(table: TransitionTable, dtype: np.dtype[Any]) -> ScaledTable:
    """`table` for the scaled kernels in float32 or float64."""
    made = _scaled.setdefault(table, {})
    if dtype not in made:
        largest = float(table.by_dst.log_prob.max(initial=-np.inf))
        arcs_scale = largest if largest > -np.inf else 0.0
        initial, initial_scale = _probs(table.initial_log_prob, dtype)
        final, final_scale = _probs(table.final_log_prob, dtype)
        made[dtype] = ScaledTable(
            **_arcs(table),
            dst_weight=np.exp(table.by_dst.log_prob - arcs_scale).astype(dtype),
            src_weight=np.exp(table.by_src.log_prob - arcs_scale).astype(dtype),
            active=table.active_pdfs.astype(np.uint32),
            initial=initial,
            init=np.exp(table.leak_target).astype(dtype),
            final=final,
            log_scale=np.array([initial_scale, arcs_scale, final_scale]),
            least=(
                _least(table.initial_log_prob, initial_scale),
                _least(table.by_dst.log_prob, arcs_scale),
                _least(table.leak_target, 0.0),
                _least(table.final_log_prob, final_scale),
            ),
            init_everywhere=float(np.exp(table.leak_target.min())),
        )
    return made[dtype]


def log_table(table: TransitionTable) -> LogTable:
    """`table` for the kernels that work with logs."""
    if table not in _logs:
        _logs[table] = LogTable(
            **_arcs(table),
            dst_log_prob=table.by_dst.log_prob,
            src_log_prob=table.by_src.log_prob,
            active=table.active_pdfs.astype(np.uint32),
            initial=table.initial_log_prob,
            init=table.leak_target,
            final=table.final_log_prob,
            zeros=np.zeros(max(table.num_states, table.num_arcs)),
        )
    return _logs[table]


def _arcs(table: TransitionTable) -> dict[str, Index]:
    by_dst, by_src = table.by_dst, table.by_src
    return {
        "dst_offsets": by_dst.offsets.astype(np.uint32),
        "dst_src": by_dst.src.astype(np.uint32),
        "dst_column": by_dst.column.astype(np.uint32),
        "src_offsets": by_src.offsets.astype(np.uint32),
        "src_dst": by_src.dst.astype(np.uint32),
        "src_column": by_src.column.astype(np.uint32),
    }


def _probs(log_probs: Floats, dtype: np.dtype[Any]) -> tuple[Reals, float]:
    largest = float(log_probs.max())
    scale = largest if largest > -np.inf else 0.0
    return np.exp(log_probs - scale).astype(dtype), scale


def _least(log_probs: Floats, scale: float) -> float:
    finite = log_probs[log_probs > -np.inf]
    return float(np.exp(finite.min() - scale)) if finite.size else 1.0
