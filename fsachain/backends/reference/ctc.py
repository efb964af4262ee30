"""CTC by `reference`: float64, one sequence at a time, through the graph of each target."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fsachain.backends.ctc import Checks, CtcProblem, Rows, column_graph, column_scores, write_gradient
from fsachain.backends.reference import sums as reference
from fsachain.batch import TableBatch
from fsachain.fsa import Floats
from fsachain.table import compile_table


def log_probs(
    problem: CtcProblem, scores: Rows, statistics: Floats, sums: Floats, checks: Checks
) -> tuple[Floats, npt.NDArray[np.uint8]]:
    """log Z [N] and zeros; see `backends.cpu.ctc.log_probs`."""
    log_z = np.empty(len(problem.labels))
    for n, frames in enumerate(problem.frame_counts.tolist()):
        columns = column_scores(problem, scores, n)[None]
        log_z[n] = reference.log_probs(_batch(problem, n), columns, np.array([frames]), 0.0)[0][0]
        rows = scores.sequence(n)[:frames].astype(np.float64)
        if sums.size:
            chosen = np.flatnonzero((np.arange(frames) + checks.phase) % checks.every == 0)
            sums[n, chosen] = np.exp(rows[chosen].clip(max=88.0)).sum(axis=1)
        if statistics.size:
            top = rows.max(axis=1)
            with np.errstate(invalid="ignore"):  # rows of -inf, or with +inf, give NaN
                statistics[:, n, :frames] = top, np.exp(rows - top[:, None]).sum(axis=1)
    return log_z, np.zeros(len(log_z), np.uint8)


def gradient(
    problem: CtcProblem,
    scores: Rows,
    statistics: Floats,
    kinds: npt.NDArray[np.uint8],
    factors: Floats,
    out: npt.NDArray[np.floating],
    memory_budget: float | None,
) -> None:
    """See `backends.cpu.ctc.gradient`; the kinds and the memory budget change nothing."""
    for n in np.flatnonzero(factors).tolist():
        columns = column_scores(problem, scores, n)
        occupancy = np.zeros((1, *columns.shape))
        lengths = problem.frame_counts[[n]]
        reference.add_occupancy(_batch(problem, n), columns[None], lengths, 0.0, np.ones(1), occupancy)
        into = scores._replace(flat=out)
        write_gradient(problem, scores, statistics, n, float(factors[n]), occupancy[0], into)


def _batch(problem: CtcProblem, n: int) -> TableBatch:
    return TableBatch.share(compile_table(column_graph(problem, n)), 1)
