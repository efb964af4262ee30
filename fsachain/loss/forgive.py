"""CTC of targets that may be wrong: the graphs of `fsachain.graph.ctc` over the columns blank, labels and star.

A target reads few classes and the star, which is a log-sum over all units of a frame. Only these columns are made, and their
gradient goes back to the scores in one buffer: that of the star is spread over the units by their share of its sum.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fsachain.backends.ctc import CtcProblem
from fsachain.backends.dispatch import BackendName
from fsachain.batch import TableBatch
from fsachain.graph.ctc import forgiving_graph
from fsachain.graph.forgive import Forgiveness
from fsachain.loss.autograd import Operator
from fsachain.loss.total import total_log_prob
from fsachain.table import compile_table


class StarColumns(NamedTuple):
    """Scores [N, T, U + 2] of the blank, the labels and the star; the log-sum over the units [T, N]."""

    columns: Tensor
    total: Tensor


def _star_columns(scores: Tensor, classes: Tensor, blank: int, offset: float) -> StarColumns:
    """scores [T, N, C]; classes [N, U + 1] of the first columns; offset: of the star."""
    parts = [
        part.logsumexp(dim=2) for part in (scores[:, :, :blank], scores[:, :, blank + 1 :]) if part.shape[2]
    ]
    total = torch.stack(parts).logsumexp(dim=0) if parts else scores.new_full(scores.shape[:2], -math.inf)
    index = classes.expand(scores.shape[0], -1, -1)
    columns = torch.cat([scores.gather(2, index), (total + offset).unsqueeze(2)], dim=2)
    return StarColumns(columns.transpose(0, 1).contiguous(), total)


def _fake_star_columns(scores: Tensor, classes: Tensor, blank: int, offset: float) -> StarColumns:
    frames, size, _ = scores.shape
    return StarColumns(scores.new_empty(size, frames, classes.shape[1] + 1), scores.new_empty(frames, size))


def _star_gradient(
    factor: Tensor, scores: Tensor, classes: Tensor, total: Tensor, blank: int
) -> dict[str, Tensor | None]:
    """Frames in which no star is taken may hold anything."""
    star = factor[:, :, -1].T
    shares = (scores - total.unsqueeze(2)).exp_().mul_(star.unsqueeze(2))
    shares.masked_fill_((star == 0).unsqueeze(2), 0.0)
    shares[:, :, blank] = 0.0
    index = classes.expand(scores.shape[0], -1, -1)
    return {"scores": shares.scatter_add_(2, index, factor[:, :, :-1].transpose(0, 1))}


star_columns = Operator(_star_columns, _fake_star_columns, _star_gradient, options=("blank",))


def forgiving_ctc_log_prob(
    scores: Tensor,
    problem: CtcProblem,
    forgive: Forgiveness,
    backend: BackendName,
    memory_budget: float | None,
) -> Tensor:
    """log Z [N], float64, of log-probabilities [T, N, C]; arguments as for `fsachain.loss.ctc.ctc_loss`."""
    size, most = problem.labels.shape
    classes = np.column_stack([np.full(size, problem.blank), problem.labels])
    tables = []
    for labels, count in zip(problem.labels, problem.label_counts.tolist(), strict=True):
        columns = np.append(np.arange(count + 1), most + 1)
        graph = forgiving_graph(labels[:count], columns, problem.topology, forgive)
        tables.append(compile_table(graph, most + 2))
    mean = -math.log(max(1, problem.num_classes - 1)) if forgive.star == "mean" else 0.0
    where = torch.from_numpy(classes).to(scores.device)
    found: Any = star_columns(scores, where, problem.blank, mean)
    return total_log_prob(
        TableBatch.pack(tables),
        found.columns,
        problem.frame_counts,
        backend=backend,
        memory_budget=memory_budget,
    )
