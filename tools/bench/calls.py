"""The calls that are timed, each as a function without arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fsachain.backends.cpu import backend as cpu
from fsachain.batch import TableBatch
from fsachain.loss.ctc import ctc_loss
from fsachain.loss.total import total_log_prob
from tools.bench import yardstick
from tools.bench.timing import Call
from tools.bench.workloads import Scores


def backend_call(batch: TableBatch, scores: Scores, leak: float) -> Call:
    """log Z and occupancy, which is added to an array that stands ready, as inside the losses."""
    out = np.zeros_like(scores)
    lengths, weights = np.full(batch.size, scores.shape[1]), np.ones(batch.size)
    return lambda: cpu.add_occupancy(batch, scores, lengths, leak, weights, out)


def plain_call(batch: TableBatch, scores: Scores, leak: float, dtype: npt.DTypeLike) -> Call:
    """The plain loop over the same work: all sequences at once where they share a graph, else one after another."""
    parts = [scores] if batch.is_shared else np.split(scores, batch.size)
    inputs = []
    for table, part in zip(batch.tables, parts, strict=True):
        columns = yardstick.plain_scores(table, part, dtype)
        c = columns.dtype.type(leak)
        inputs.append((yardstick.plain_graph(table, dtype), c, columns, np.empty_like(columns)))
    return lambda: [yardstick.plain_forward_backward(*arguments) for arguments in inputs]


def with_gradient(loss: Callable[[], Tensor], leaf: Tensor) -> Callable[[], Tensor]:
    """A forward and backward pass, as in a training step; returns the leaf with its gradient."""

    def step() -> Tensor:
        leaf.grad = None
        value = loss()
        # Any gradient of its shape: the value itself is at hand without a pass over memory.
        value.backward(value.detach() if value.ndim else None)
        return leaf

    return step


def ctc_calls(
    batch: TableBatch, targets: npt.NDArray[np.int64], scores: Scores
) -> dict[str, Callable[[], Tensor]]:
    """The CTC loss summed over the batch, from logits to their gradient; torch's comes last."""
    logits, labels = torch.from_numpy(scores).requires_grad_(), torch.from_numpy(targets)
    lengths = torch.full((len(scores),), scores.shape[1]), torch.full((len(scores),), targets.shape[1])

    def rows() -> Tensor:
        return logits.log_softmax(2).transpose(0, 1)

    ours = partial(ctc_loss, reduction="sum")
    losses = {
        "ctc_loss, logits": lambda: ours(logits.transpose(0, 1), labels, *lengths, inputs="logits"),
        "ctc_loss, log_softmax": lambda: ours(rows(), labels, *lengths, inputs="log_probs"),
        "total_log_prob": lambda: -total_log_prob(batch, logits.log_softmax(2)).sum(),
        "torch ctc_loss": lambda: torch.nn.functional.ctc_loss(rows(), labels, *lengths, reduction="sum"),
    }
    return {name: with_gradient(loss, logits) for name, loss in losses.items()}
