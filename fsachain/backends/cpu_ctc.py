"""CTC on the CPU: sequences with targets of their own side by side, in the recursion that shared graphs run through.

A group of sequences runs through the graph of its longest target; what a target lacks has weight zero in its lane. A lane
never sees another, and zeros change no sum, so a sequence gets the same bits in any group. It runs in plain float64 first,
then in wide numbers, last in logs, as in `cpu`; which of these was enough for log Z is remembered for the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.backends import cpu_log
from fsachain.backends.cpu import DOUBLE, SMALLEST
from fsachain.backends.cpu_ctc_frames import CtcFrames
from fsachain.backends.cpu_ctc_tables import KINDS, WIDTHS, ZERO, group_of
from fsachain.backends.cpu_log_table import log_table
from fsachain.backends.cpu_numbers import (
    Form,
    is_wide,
    weights,
)
from fsachain.backends.cpu_run import run
from fsachain.backends.cpu_softmax import FORMS, leave_out_masks
from fsachain.backends.cpu_work import Plan, make_plan, memory_for, thread_budget, trim
from fsachain.backends.ctc import (
    Checks,
    CtcProblem,
    Integers,
    Rows,
    column_graph,
    column_scores,
    write_gradient,
)
from fsachain.backends.threads import get_num_threads, run_all
from fsachain.fsa import Floats
from fsachain.table import compile_table

ALONE = 3  # so many sequences of a thread take less time one after the other than side by side


class _Job(NamedTuple):
    """What a call works on; without a gradient `out` is empty. checks: of `sums`. budget: bytes for each thread."""

    problem: CtcProblem
    scores: Rows
    statistics: Floats
    sums: Floats
    checks: Checks
    factors: Floats
    out: npt.NDArray[np.floating]
    kinds: npt.NDArray[np.uint8]
    budget: float


def log_probs(
    problem: CtcProblem, scores: Rows, statistics: Floats, sums: Floats, checks: Checks
) -> tuple[Floats, npt.NDArray[np.uint8]]:
    """log Z [N] of scores as they are, and the kinds of numbers [N] that they took, for `gradient`.

    Of real rows two arrays are filled, each unless it is empty: statistics [2, N, T] with maxima m and the sums of
    exp(y - m); sums [N, T], where `checks` says so, with the sums of exp(y), within 1e-4 of themselves and where no y is
    above 88.
    """
    kinds = np.zeros(len(problem.labels), np.uint8)
    nowhere = np.empty(0, scores.flat.dtype)
    job = _Job(problem, scores, statistics, sums, checks, np.zeros(len(kinds)), nowhere, kinds, 0.0)
    return _run(job), kinds


def gradient(
    problem: CtcProblem,
    scores: Rows,
    statistics: Floats,
    kinds: npt.NDArray[np.uint8],
    factors: Floats,
    out: npt.NDArray[np.floating],
    memory_budget: float | None,
) -> None:
    """Write factors [N] x (softmax - occupancy) to `out`, flat and strided as the scores.

    Without statistics the softmax is left out: they are the derivatives of log-probabilities. Frames beyond a sequence's
    end, and sequences whose factor is 0, are not written.
    """
    budget, no_sums = thread_budget(memory_budget), np.empty((0, 0))
    job = _Job(problem, scores, statistics, no_sums, Checks(), -factors, out, kinds.copy(), budget)
    _run(job)


def _run(job: _Job) -> Floats:
    """log Z [N], each sequence in the first kind of number from its own on that is wide enough."""
    log_z = np.full(len(job.kinds), -np.inf)
    wanted = job.factors != 0.0 if len(job.out) else np.ones(len(log_z), np.bool_)
    for index in range(KINDS):
        waiting = (wanted & (job.kinds == index)).nonzero()[0]
        if not waiting.size:
            continue
        certain = np.ones(len(log_z), np.bool_)
        groups = _groups(job.problem, waiting)
        run_all([_group_job(job, index, lanes, log_z, certain) for lanes in groups])
        job.kinds[~certain] += 1
    if (job.kinds == KINDS).any():
        in_logs = (wanted & (job.kinds == KINDS)).nonzero()[0]
        run_all([_log_job(job, int(n), log_z) for n in in_logs])
    trim()
    return log_z


def _groups(problem: CtcProblem, waiting: Integers) -> list[Integers]:
    """Sequences of about equal length side by side, as many as there are lanes, or fewer where threads would idle."""
    threads, size = get_num_threads(), len(waiting)
    if size == 1:
        return [waiting]
    ordered = waiting[np.argsort(-problem.frame_counts[waiting], kind="stable")]
    count = size if size <= ALONE * threads else max(-(-size // WIDTHS[-1]), threads)
    return np.array_split(ordered, count)


def _group_job(
    job: _Job, kind: int, lanes: Integers, log_z: Floats, certain: npt.NDArray[np.bool_]
) -> Callable[[], None]:
    def run_group() -> None:
        log_z[lanes], certain[lanes] = _in_numbers(job, kind, lanes)

    return run_group


def _in_numbers(job: _Job, kind: int, lanes: Integers) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """log Z of the lanes and whether each is certain; the gradient of those that are."""
    problem = job.problem
    form, padded, lengths, table, columns, shape = group_of(problem, kind, lanes)
    count = int(lengths.max())
    plan = make_plan(shape, count, job.budget) if len(job.out) else Plan(count, max(count, 1))
    limit = -ZERO / 4 if is_wide(form) else SMALLEST[DOUBLE]
    log_z, certain = np.empty(len(padded)), np.empty(len(padded), np.bool_)
    size = job.scores.flat.itemsize
    with memory_for(shape, plan, plan.segment if len(job.out) else 1) as memory:
        frames = CtcFrames(
            scores=job.scores.flat,
            lanes=padded,
            lengths=lengths,
            columns=columns,
            strides=np.array(job.scores.strides),
            num_classes=problem.num_classes,
            statistics=job.statistics,
            sums=job.sums,
            every=job.checks.every,
            phase=job.checks.phase,
            reads=not len(job.out),
            form=FORMS[size],
            masks=leave_out_masks(size),
        )
        factors = job.factors[padded]
        run(
            form,
            table,
            _no_leak(form),
            frames,
            plan.segment,
            memory,
            limit,
            factors,
            log_z,
            certain,
            job.out,
        )
    return log_z[: len(lanes)], certain[: len(lanes)]


@lru_cache(maxsize=8)
def _no_leak(form: Form) -> Any:
    return weights(form, np.array([-np.inf]), DOUBLE)


def _log_job(job: _Job, n: int, log_z: Floats) -> Callable[[], None]:
    def run_one() -> None:
        log_z[n] = _in_logs(job, n)

    return run_one


def _in_logs(job: _Job, n: int) -> float:
    """The same for one sequence in logs, always certain."""
    data = log_table(compile_table(column_graph(job.problem, n)))
    scores = column_scores(job.problem, job.scores, n)
    frames = len(scores) + 1 if len(job.out) else min(2, len(scores) + 1)
    history = np.empty((frames, max(len(data.initial), len(data.active))))
    log_z = float(cpu_log.forward(data, -np.inf, scores, history))
    if len(job.out) and np.isfinite(log_z):
        cpu_log.backward(data, -np.inf, scores, history)
        occupancy = np.zeros(scores.shape)
        occupancy[:, data.active] = history[: len(scores), : len(data.active)]
        into = job.scores._replace(flat=job.out)
        write_gradient(job.problem, job.scores, job.statistics, n, -job.factors[n], occupancy, into)
    return log_z
