"""Batch normalisation over several processes: one batch, whichever process has which of its utterances.

`MaskedBatchNorm` adds up its sums over all processes in every forward and backward pass. All must therefore make the same
passes: one that has fewer micro-batches than another passes a stand-in through the network, whose frames do not count.
Layers of torch (`nn.BatchNorm1d`, ...) normalise with the statistics of their own process, as they do in torch's own
training with several processes; their running averages are averaged after each step, so that one model is saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from fsachain.data.dataset import Batch
from fsachain.errors import ConfigError
from fsachain.nn.layers import MaskedBatchNorm
from fsachain.train.source import SupervisedBatch
from fsachain.train.world import World

STAND_IN = "(stand-in)"


class WorldPool:
    """A `fsachain.nn.layers.Pool` of all processes of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.counts = True

    def add_up(self, values: torch.Tensor) -> torch.Tensor:
        """Turn the values into their sum over all processes."""
        return self._world.add_up(values)


class Pooling:
    """The statistics of one model's normalisation layers, in one process of several.

    Args:
        model: its layers are told of the other processes within `joined`.
        world: alone, nothing here does anything.

    Raises:
        ConfigError: a layer is an `nn.SyncBatchNorm`, which would wait for processes that have no utterance.
    """

    def __init__(self, model: nn.Module, world: World) -> None:
        modules = list(model.modules()) if world.size > 1 else []
        if any(isinstance(module, nn.SyncBatchNorm) for module in modules):
            raise ConfigError(
                "the network has an nn.SyncBatchNorm, which cannot wait for processes without utterances; expected "
                "fsachain.nn.layers.MaskedBatchNorm, or nn.BatchNorm1d"
            )
        self._world = world
        self._pool = WorldPool(world)
        self._pooled = [module for module in modules if isinstance(module, MaskedBatchNorm)]
        self._running = [
            buffer
            for module in modules
            if not isinstance(module, MaskedBatchNorm)
            for name, buffer in module.named_buffers(recurse=False)
            if name in ("running_mean", "running_var")
        ]

    @property
    def active(self) -> bool:
        """Whether all processes must make the same passes."""
        return bool(self._pooled)

    @contextmanager
    def joined(self) -> Iterator[None]:
        """A block in which the layers normalise over all processes, in training mode."""
        for module in self._pooled:
            module.pool = self._pool
        try:
            yield
        finally:
            for module in self._pooled:
                module.pool = None

    @contextmanager
    def counting(self, counts: bool) -> Iterator[None]:
        """A block in which what passes through the network counts, or does not."""
        self._pool.counts = counts
        try:
            yield
        finally:
            self._pool.counts = True

    def stand_ins(self, parts: Sequence[SupervisedBatch]) -> list[Batch]:
        """What this process has to pass through the network after its micro-batches, so that all make as many passes."""
        if not self.active:
            return []
        frames, width = parts[0].batch.features.shape[1:] if parts else (0, 0)
        count, frames, width = self._world.largest([len(parts), frames, width])
        batch = Batch((STAND_IN,), (STAND_IN,), ((),), torch.zeros(1, frames, width), torch.tensor([frames]))
        return [batch] * (count - len(parts))

    @torch.no_grad()
    def average_running(self, passed: bool) -> None:
        """Average what the other layers have over the processes that `passed` something through them; call in all."""
        if not self._running:
            return
        count = self._world.sum_numbers([float(passed)])[0]
        sums = self._world.add_up_many(
            [buffer if passed else torch.zeros_like(buffer) for buffer in self._running]
        )
        for buffer, total in zip(self._running, sums, strict=True):
            buffer.copy_(total / max(count, 1.0))
