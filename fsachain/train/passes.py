"""Passes through the network, forward and backward, that several processes make together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from fsachain.data.dataset import Batch
from fsachain.train.batch_norm import refresh_batch_norm
from fsachain.train.pooling import Pooling
from fsachain.train.precision import Precision
from fsachain.train.source import SupervisedBatch
from fsachain.train.world import World


@dataclass
class _Scores:
    nnet_output: torch.Tensor
    lengths: torch.Tensor
    xent_log_probs: torch.Tensor | None


class Output(Protocol):
    """What a model returns: scores [N, T', P], lengths [N], log-softmax of a second branch or None."""

    nnet_output: torch.Tensor
    lengths: torch.Tensor
    xent_log_probs: torch.Tensor | None


class Passes:
    """The passes of one model.

    Args:
        model: As for `Trainer`.
        world: The processes that make them.
        precision: Number format.
    """

    def __init__(self, model: nn.Module, world: World, precision: Precision) -> None:
        self.model = model
        self.precision = precision
        self.pooling = Pooling(model, world)
        self._world = world
        self._device = next(model.parameters()).device
        self._used: list[int] | None = None

    @contextmanager
    def shared(self, parts: Sequence[SupervisedBatch]) -> Iterator[list[Batch]]:
        """A block in which all processes pass their micro-batches of one batch; gives the stand-ins to pass after them."""
        with self.pooling.joined():
            yield self.pooling.stand_ins(parts)

    def forward(self, batch: Batch) -> Output:
        """The model's output for a batch, on the model's device; of chunks without what is only context."""
        with self.precision.passes(self._device):
            output: Output = self.model(batch.features.to(self._device), batch.lengths)
        scores, xent, lengths = output.nnet_output, output.xent_log_probs, output.lengths
        if batch.windows is not None:
            scores, lengths = batch.windows.crop(scores), batch.windows.lengths
            xent = None if xent is None else batch.windows.crop(xent)
        return _Scores(_at_least_float32(scores), lengths, None if xent is None else _at_least_float32(xent))

    def backward(self, roots: list[torch.Tensor], grads: Sequence[torch.Tensor | None]) -> None:
        """Carry the loss's gradients through the network; where passes are shared, through the same roots everywhere."""
        used = [int(grad is not None) for grad in grads]
        if self.pooling.active:
            self._used = used = self._used or self._world.largest(used)
        pairs = [
            (root, torch.zeros_like(root) if grad is None else grad)
            for root, grad, wanted in zip(roots, grads, used, strict=True)
            if wanted
        ]
        torch.autograd.backward([root for root, _ in pairs], [grad for _, grad in pairs])

    def stand_in(self, batch: Batch) -> None:
        """Make the passes that the other processes make."""
        with self.pooling.counting(False):
            output = self.forward(batch)
            roots = [value for value in (output.nnet_output, output.xent_log_probs) if value is not None]
            self.backward(roots, [None] * len(roots))

    def refresh(self, batches: Iterable[Sequence[SupervisedBatch]]) -> None:
        """Take the running statistics of all normalisation layers anew; see `refresh_batch_norm`."""
        passed = False

        def every() -> Iterator[tuple[Batch, bool]]:
            nonlocal passed
            for parts in batches:
                passed = passed or bool(parts)
                with self.shared(parts) as stand_ins:
                    yield from ((item.batch, True) for item in parts)
                    yield from ((batch, False) for batch in stand_ins)

        def forward(one: tuple[Batch, bool]) -> None:
            batch, counts = one
            with self.pooling.counting(counts):
                self.forward(batch)

        refresh_batch_norm(self.model, forward, every())
        self.pooling.average_running(passed)


def _at_least_float32(values: torch.Tensor) -> torch.Tensor:
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
