"""CTC of targets that may be wrong on a device: the graphs of `fsachain.graph.ctc` over the columns blank, labels and star.

A target reads few classes and the star, which is a log-sum over all units of a frame. Only these columns are made, and their
gradient goes back to the scores in one buffer: that of the star is spread over the units by their share of its sum.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fsachain.backends import dispatch
from fsachain.backends.ctc import CtcProblem
from fsachain.batch import TableBatch
from fsachain.graph.ctc import target_graph
from fsachain.loss.autograd import new_buffer
from fsachain.table import compile_table


def forgiving_ctc(
    scores: Tensor,
    problem: CtcProblem,
    backend: Any,
    with_gradient: bool,
    memory_budget: float | None,
) -> tuple[Tensor, Tensor]:
    """log Z [N], float64, of log-probabilities [T, N, C]; the derivatives of -log Z [T, N, C], empty unless asked for."""
    (size, most), forgive = problem.labels.shape, problem.forgive
    classes = np.column_stack([np.full(size, problem.blank), problem.labels])
    tables = []
    for labels, count in zip(problem.labels, problem.label_counts.tolist(), strict=True):
        columns = np.arange(count + 1)
        graph = target_graph(labels[:count], columns, columns, most + 1, problem.topology, forgive)
        tables.append(compile_table(graph, most + 2))
    batch = TableBatch.pack(tables)
    index = torch.from_numpy(classes).to(scores.device).expand(len(scores), -1, -1)
    star = _star(scores, problem.blank)
    mean = math.log(max(1, problem.num_classes - 1)) if forgive.star == "mean" else 0.0
    read = (
        torch.cat([scores.gather(2, index), (star - mean).unsqueeze(2)], dim=2).transpose(0, 1).contiguous()
    )
    occupancy = new_buffer(read, with_gradient)
    call = dispatch.bind(batch, read, problem.frame_counts, backend, memory_budget)
    log_prob = call.add_occupancy(batch, 0.0, None, occupancy).log_prob
    if not with_gradient:
        return log_prob, scores.new_empty((0, 0, 0))
    taken = occupancy.neg_().transpose(0, 1)
    stars = taken[:, :, -1:]  # 0 in padding and in sequences without paths, where scores may be anything
    found = (scores - star.unsqueeze(2)).exp_().mul_(stars).masked_fill_(stars == 0, 0.0)
    found[:, :, problem.blank] = 0.0
    return log_prob, found.scatter_add_(2, index, taken[:, :, :-1])


def _star(scores: Tensor, blank: int) -> Tensor:
    """The log-sum over all classes but the blank [T, N]."""
    parts = [part.logsumexp(2) for part in (scores[:, :, :blank], scores[:, :, blank + 1 :]) if part.shape[2]]
    return torch.stack(parts).logsumexp(0) if parts else scores.new_full(scores.shape[:2], -math.inf)
