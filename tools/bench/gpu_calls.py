"""The calls that are timed on a device: as users make them, with inputs that rotate so that no cache serves twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from fsachain.backends.dispatch import best_path
from fsachain.batch import TableBatch
from fsachain.loss.ctc import ctc_loss
from fsachain.loss.lfmmi import LFMMILoss
from fsachain.loss.total import total_log_prob
from tools.bench.calls import random_scores
from tools.bench.gpu_timing import Call, copies_of, rotated

CtcLoss = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Shape:
    """Sequences, frames and pdfs of the scores."""

    size: int
    frames: int
    pdfs: int


def inputs(shape: Shape, device: torch.device) -> list[torch.Tensor]:
    """As many arrays of scores [N, T, P] as together do not fit the caches; each wants a gradient."""
    host = torch.from_numpy(random_scores(shape.size, shape.frames, shape.pdfs))
    first = host.to(device)
    count = copies_of(first.numel() * first.element_size())
    others = [first.roll(n, dims=1) for n in range(1, count)]
    return [scores.detach().requires_grad_() for scores in (first, *others)]


def _step(loss: Callable[[torch.Tensor], torch.Tensor], scores: torch.Tensor) -> torch.Tensor | None:
    scores.grad = None
    loss(scores).backward()
    return scores.grad


def training_calls(loss: Callable[[torch.Tensor], torch.Tensor], shape: Shape, device: torch.device) -> Call:
    """Loss and gradient, for one input after another."""
    return rotated([partial(_step, loss, scores) for scores in inputs(shape, device)])


def log_prob_call(batch: TableBatch, shape: Shape, leak: float, device: torch.device) -> Call:
    """log Z and its gradient."""
    return training_calls(
        lambda scores: total_log_prob(batch, scores, leaky_hmm_coefficient=leak).sum(), shape, device
    )


def loss_call(loss: LFMMILoss, batch: TableBatch, shape: Shape, device: torch.device) -> Call:
    """`LFMMILoss` as in a training step."""
    lengths = torch.full((shape.size,), shape.frames)
    return training_calls(lambda scores: loss(scores, lengths, batch), shape, device)


def best_path_call(batch: TableBatch, shape: Shape, device: torch.device) -> Call:
    """Best paths, brought to the host."""
    arrays = [scores.detach() for scores in inputs(shape, device)]
    return rotated([partial(best_path, batch, scores) for scores in arrays])


def our_ctc(targets: npt.NDArray[np.int64], frames: int, device: torch.device) -> CtcLoss:
    """Our CTC loss of logits [N, T, C], log-softmax included; targets on the device."""
    rows = torch.from_numpy(targets).to(device)
    lengths = [torch.full((len(rows),), count) for count in (frames, rows.shape[1])]

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return ctc_loss(logits.transpose(0, 1), rows, *lengths, reduction="sum", inputs="logits")

    return loss


def torch_ctc(
    targets: npt.NDArray[np.int64], frames: int, targets_on: torch.device, integer: torch.dtype
) -> CtcLoss:
    """torch's CTC loss of logits [N, T, C]. Targets as int32 on the host, all in a row, are what cuDNN's takes."""
    rows = torch.from_numpy(targets).to(integer)
    lengths = [torch.full((len(rows),), count, dtype=integer) for count in (frames, rows.shape[1])]
    given = rows.flatten() if targets_on.type == "cpu" else rows.to(targets_on)

    def loss(logits: torch.Tensor) -> torch.Tensor:
        log_probs = logits.log_softmax(2).transpose(0, 1)
        return torch.nn.functional.ctc_loss(log_probs, given, *lengths, reduction="sum")

    return loss
