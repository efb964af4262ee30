"""A `TransitionTable` as the kernels in logs read it, made once per table and kept while it lives."""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from fsachain.backends.cpu_layouts import Index
from fsachain.fsa import Floats
from fsachain.table import TransitionTable


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
