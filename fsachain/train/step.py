"""One step of training and one pass of evaluation.

features -> network -> loss -> gradient of the network output -> backward through the network -> clipping ->
optimiser. The loss's own gradient is taken first and handed to the network, which gives the same numbers as
one backward call and tells how much of the time the loss took.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from fsachain.train.source import BatchSource, SupervisedBatch
from fsachain.train.stats import EpochSums


@dataclass
class _Cropped:
    nnet_output: torch.Tensor
    lengths: torch.Tensor
    xent_log_probs: torch.Tensor | None


class Output(Protocol):
    """What a model returns: scores [N, T', P], lengths [N], log-softmax of a second branch or None."""

    nnet_output: torch.Tensor
    lengths: torch.Tensor
    xent_log_probs: torch.Tensor | None


@dataclass(frozen=True)
class StepOutcome:
    """Loss and gradient norm before clipping; `usable` is False when nothing in the model was changed.

    `excluded` names the sequences that the loss left out.
    """

    loss: float
    grad_norm: float
    usable: bool
    excluded: tuple[str, ...] = ()


class Stepper:
    """Moves the parameters of a model by the gradient of one batch.

    Args:
        model: As for `Trainer`.
        loss: As for `Trainer`.
        optimizer: Holds the model's parameters.
        max_grad_norm: Longer gradients are scaled down to this norm.
    """

    def __init__(
        self, model: nn.Module, loss: Any, optimizer: torch.optim.Optimizer, max_grad_norm: float
    ) -> None:
        self.model = model
        self.loss = loss
        self.optimizer = optimizer
        self._max_grad_norm = max_grad_norm
        self._device = next(model.parameters()).device

    def step(self, item: SupervisedBatch, sums: EpochSums) -> StepOutcome:
        """Forward, backward, and a step of the optimiser if all is finite and some sequence took part.

        Otherwise the buffers of the model (running statistics of batch normalisation) are given back the values
        they had: one NaN would stay in them for ever.
        """
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        output = self.forward(item)
        roots = [value for value in (output.nnet_output, output.xent_log_probs) if value is not None]
        leaves = [root.detach().requires_grad_() for root in roots]
        started = self._now()
        xent = leaves[1] if len(leaves) > 1 else None
        windows = item.batch.windows
        weights = {} if windows is None else {"frame_weights": windows.frame_weights.to(self._device)}
        loss = self.loss(leaves[0], output.lengths, item.numerators, xent_log_probs=xent, **weights)
        loss.backward()
        sums.loss_seconds += self._now() - started
        norm = self._backward(roots, [leaf.grad for leaf in leaves])
        record = self.loss.last_record
        sums.batches += 1
        sums.input_frames += int(item.batch.lengths.sum())
        value = float(loss.detach())
        usable = bool(record.ok.any()) and math.isfinite(value + norm)
        outcome = StepOutcome(value, norm, usable, tuple(str(name) for name in record.excluded))
        if not usable:
            with torch.no_grad():
                for name, buffer in self.model.named_buffers():
                    buffer.copy_(buffers[name])
            return outcome
        sums.add_record(record, output.lengths.tolist())
        sums.add_norm(norm)
        self.optimizer.step()
        return outcome

    def forward(self, item: SupervisedBatch) -> Output:
        """The model's output for a batch, on the model's device; of chunks without what is only context."""
        output: Output = self.model(item.batch.features.to(self._device), item.batch.lengths)
        windows = item.batch.windows
        if windows is None:
            return output
        xent = None if output.xent_log_probs is None else windows.crop(output.xent_log_probs)
        return _Cropped(windows.crop(output.nnet_output), windows.lengths, xent)

    def evaluate(self, source: BatchSource, before_batch: Callable[[], None] = lambda: None) -> EpochSums:
        """Objective of the model, in evaluation mode, over the utterances of a source.

        `before_batch` is called before each batch, and may end the evaluation by an exception.
        """
        self.model.eval()
        sums = EpochSums()
        started = time.perf_counter()
        with torch.no_grad():
            for item in source.in_order():
                before_batch()
                output = self.forward(item)
                record = self.loss.objective(
                    output.nnet_output, output.lengths, item.numerators, xent_log_probs=output.xent_log_probs
                )
                sums.add_record(record, output.lengths.tolist())
                sums.input_frames += int(item.batch.lengths.sum())
                sums.batches += 1
        sums.seconds = time.perf_counter() - started
        return sums

    def _backward(self, roots: list[torch.Tensor], grads: list[torch.Tensor | None]) -> float:
        """Carry the loss's gradients through the network and clip; returns the norm before clipping."""
        self.optimizer.zero_grad(set_to_none=True)
        used = [(root, grad) for root, grad in zip(roots, grads, strict=True) if grad is not None]
        torch.autograd.backward([root for root, _ in used], [grad for _, grad in used])
        return float(nn.utils.clip_grad_norm_(self.model.parameters(), self._max_grad_norm))

    def _now(self) -> float:
        """The time, once the device has done all that was asked of it."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
