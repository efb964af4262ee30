"""CTC by `reference`: float64, one sequence at a time, through the graph of each target."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fsachain.backends.ctc import (
    Checks,
    CtcProblem,
    Rows,
    check_labels,
    column_graph,
    column_scores,
    log_sum,
    write_gradient,
)
from fsachain.backends.reference import sums as reference
from fsachain.batch import TableBatch
from fsachain.fsa import Floats
from fsachain.table import compile_table


def log_probs(
    problem: CtcProblem,
    scores: Rows,
    statistics: Floats,
    sums: Floats,
    checks: Checks,
    out: npt.NDArray[np.floating],
    weights: Floats,
    memory_budget: float | None,
) -> Floats:
    """See `backends.cpu.ctc.log_probs`; the memory budget changes nothing, and labels are checked."""
    check_labels(problem)
    log_z = np.empty(len(problem.labels))
    for n, frames in enumerate(problem.frame_counts.tolist()):
        rows = scores.sequence(n)[:frames].astype(np.float64)
        if sums.size:
            chosen = np.flatnonzero((np.arange(frames) + checks.phase) % checks.every == 0)
            sums[n, chosen] = np.exp(rows[chosen].clip(max=88.0)).sum(axis=1)
        if statistics.size:
            top = rows.max(axis=1)
            with np.errstate(invalid="ignore"):  # rows of -inf, or with +inf, give NaN
                statistics[:, n, :frames] = top, np.exp(rows - top[:, None]).sum(axis=1)
        batch = TableBatch.share(compile_table(column_graph(problem, n)), 1)
        inputs = batch, column_scores(problem, scores, n)[None], np.array([frames]), 0.0
        log_z[n] = reference.log_probs(*inputs)[0][0] - log_sum(statistics, n, frames)
        if out.size:
            occupancy = np.zeros(inputs[1].shape)
            reference.add_occupancy(*inputs, np.ones(1), occupancy)
            weight = weights[n] if np.isfinite(log_z[n]) else 0.0
            write_gradient(problem, scores, statistics, n, occupancy[0], weight, scores._replace(flat=out))
    return log_z
