"""The calls that are timed, each as a function without arguments, and their scores."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from fsachain.backends.cpu import backend as cpu
from fsachain.batch import TableBatch
from fsachain.loss.ctc import Inputs, ctc_loss
from fsachain.loss.lfmmi import LFMMILoss
from fsachain.loss.total import total_log_prob
from tools.bench import yardstick
from tools.bench.workloads import Scores


def backend_call(batch: TableBatch, scores: Scores, leak: float) -> Callable[[], object]:
    """log Z and occupancy, which is added to an array that stands ready, as inside the losses."""
    out = np.zeros_like(scores)
    lengths, weights = np.full(batch.size, scores.shape[1]), np.ones(batch.size)
    return lambda: cpu.add_occupancy(batch, scores, lengths, leak, weights, out)


def plain_call(batch: TableBatch, scores: Scores, leak: float, dtype: npt.DTypeLike) -> Callable[[], object]:
    """The plain loop over the same work: all sequences at once where they share a graph, else one after another."""
    parts = [scores] if batch.is_shared else np.split(scores, batch.size)
    inputs = []
    for table, part in zip(batch.tables, parts, strict=True):
        columns = yardstick.plain_scores(table, part, dtype)
        c = columns.dtype.type(leak)
        inputs.append((yardstick.plain_graph(table, dtype), c, columns, np.empty_like(columns)))
    return lambda: [yardstick.plain_forward_backward(*arguments) for arguments in inputs]


def multiply_add_call() -> Callable[[], object]:
    """MULTIPLY_ADDS multiply-adds, lanes counted one by one."""
    arrays = yardstick.multiply_add_arrays()
    return lambda: yardstick.multiply_add(*arrays, yardstick.PASSES)


def stream_call() -> Callable[[], object]:
    """STREAM_BYTES through memory."""
    arrays = yardstick.stream_arrays()
    return lambda: yardstick.stream(*arrays)


def loss_call(loss: LFMMILoss, batch: TableBatch, scores: Scores) -> Callable[[], object]:
    """One forward and backward through the loss, as in a training step."""
    leaf = torch.from_numpy(scores).requires_grad_()
    lengths = torch.full((batch.size,), scores.shape[1])

    def step() -> torch.Tensor:
        leaf.grad = None
        value = loss(leaf, lengths, batch)
        value.backward()
        return leaf

    return step


def ctc_through_graphs(batch: TableBatch, scores: Scores) -> Callable[[], torch.Tensor]:
    """-log Z summed over the batch, from logits; returns them with their gradient."""
    logits = torch.from_numpy(scores).requires_grad_()

    def step() -> torch.Tensor:
        logits.grad = None
        (-total_log_prob(batch, logits.log_softmax(2)).sum()).backward()
        return logits

    return step


def ctc_through_loss(
    targets: npt.NDArray[np.int64], scores: Scores, inputs: Inputs
) -> Callable[[], torch.Tensor]:
    """The same through `ctc_loss`: from the logits themselves, or from log-probabilities that torch makes of them."""
    logits = torch.from_numpy(scores).requires_grad_()
    labels = torch.from_numpy(targets)
    lengths = torch.full((len(scores),), scores.shape[1]), torch.full((len(scores),), targets.shape[1])

    def step() -> torch.Tensor:
        logits.grad = None
        y = (logits if inputs == "logits" else logits.log_softmax(2)).transpose(0, 1)
        ctc_loss(y, labels, *lengths, reduction="sum", inputs=inputs).backward()
        return logits

    return step


def ctc_through_torch(targets: npt.NDArray[np.int64], scores: Scores) -> Callable[[], torch.Tensor]:
    logits = torch.from_numpy(scores).requires_grad_()
    labels = torch.from_numpy(targets)
    lengths = torch.full((len(scores),), scores.shape[1]), torch.full((len(scores),), targets.shape[1])

    def step() -> torch.Tensor:
        logits.grad = None
        log_probs = logits.log_softmax(2).transpose(0, 1)
        torch.nn.functional.ctc_loss(log_probs, labels, *lengths, reduction="sum").backward()
        return logits

    return step
