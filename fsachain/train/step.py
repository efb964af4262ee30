"""One step of training and one pass of evaluation.

features -> network -> loss -> gradient of the network output -> backward through the network, for each micro-batch of
each process; then the sum over all of them, divided by the frames that took part -> clipping -> optimiser. The loss's own
gradient is taken first and handed to the network, which gives the same numbers as one backward call and tells how much of
the time the loss took. How the utterances of a step are shared out changes roundings and nothing else, but for batch
normalisation, whose batch is one micro-batch of every process, and dropout.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from fsachain.train.config import TrainConfig
from fsachain.train.max_change import MaxChange
from fsachain.train.passes import Passes
from fsachain.train.precision import Precision
from fsachain.train.share import WHOLE, Share
from fsachain.train.source import Source, SupervisedBatch
from fsachain.train.stats import EpochSums
from fsachain.train.world import World


@dataclass(frozen=True)
class StepOutcome:
    """What came of a step, over all processes and the same in all of them.

    Attributes:
        loss: per frame.
        grad_norm: of its gradient, before clipping.
        usable: False when nothing in the model was changed.
        excluded: names of the sequences that the loss left out.
        overflow: nothing was changed because a number was too large for float16, and the next step's are smaller.
        stopping: some process was asked to stop.
        empty: the batch has no utterance at all.
    """

    loss: float
    grad_norm: float
    usable: bool
    excluded: tuple[str, ...] = ()
    overflow: bool = False
    stopping: bool = False
    empty: bool = False


@dataclass
class _Found:
    """What the micro-batches of this process gave, and then those of all."""

    loss: float = 0.0  # summed over frames
    ok: float = 0.0  # sequences that took part
    excluded: float = 0.0
    stopping: float = 0.0
    sums: EpochSums = field(default_factory=EpochSums)

    def numbers(self) -> list[float]:
        return [self.loss, self.ok, self.excluded, self.stopping, *self.sums.numbers()]


class Stepper:
    """Moves the parameters of a model by the gradient of one batch.

    Args:
        model: As for `Trainer`.
        loss: As for `Trainer`; a mean over the `weight_ok` frames of its `last_record`.
        optimizer: Holds the model's parameters.
        max_grad_norm: Longer gradients are scaled down to this norm.
        world: The processes that share each batch.
        share: Which part of each batch is this process's.
        precision: Number format of the network.
        limit: How far one step may move the parameters; None: as far as it likes.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Any,
        optimizer: torch.optim.Optimizer,
        max_grad_norm: float,
        *,
        world: World | None = None,
        share: Share = WHOLE,
        precision: Precision | None = None,
        limit: MaxChange | None = None,
    ) -> None:
        self.model = model
        self.loss = loss
        self.optimizer = optimizer
        self.world = world or World.alone()
        self.passes = Passes(model, self.world, precision or Precision())
        self.share = share
        self.limit = limit or MaxChange(model)
        self._max_grad_norm = max_grad_norm
        self._parameters = list(model.parameters())
        self._device = self._parameters[0].device

    @classmethod
    def configured(
        cls, model: nn.Module, loss: Any, optimizer: torch.optim.Optimizer, config: TrainConfig, world: World
    ) -> Stepper:
        """The stepper of a training with these options."""
        limits = config.optimizer.max_change_per_component, config.optimizer.max_change
        per_component, total = (math.inf if limit is None else limit for limit in limits)
        return cls(
            model,
            loss,
            optimizer,
            config.optimizer.max_grad_norm,
            world=world,
            share=Share(world.rank, world.size, config.micro_batch),
            precision=Precision(config.precision),
            limit=MaxChange(model, per_component=per_component, total=total),
        )

    def step(
        self, parts: Sequence[SupervisedBatch], sums: EpochSums, stopping: Callable[[], bool] = bool
    ) -> StepOutcome:
        """Forward, backward, and a step of the optimiser if all is finite and some sequence took part.

        Otherwise the buffers of the model (running statistics of batch normalisation) are given back the values
        they had: one NaN would stay in them for ever. Every process calls this with its own micro-batches.

        Args:
            parts: micro-batches; none if this process has no utterance of the batch.
            sums: are added to, the same in all processes.
            stopping: asked after the backward pass whether this process is to stop.

        Raises:
            WorldError: another process has ended.
        """
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        waited = self.world.seconds
        self.optimizer.zero_grad(set_to_none=True)
        mine = _Found()
        with self.passes.shared(parts) as stand_ins:
            for item in parts:
                self._accumulate(item, mine)
            for batch in stand_ins:
                self.passes.stand_in(batch)
        mine.stopping = float(stopping())
        found, norm = self._reduce(mine)
        sums.batches += 1
        sums.input_frames += found.sums.input_frames
        sums.loss_seconds += mine.sums.loss_seconds
        sums.world_seconds += self.world.seconds - waited
        names: tuple[str, ...] = ()
        if found.excluded:
            names = tuple(name for given in self.world.gather(mine.sums.excluded) for name in given)
        value = found.loss / found.sums.weight if found.sums.weight else 0.0 * found.loss
        usable = found.ok > 0 and math.isfinite(value + norm)
        overflow = self.passes.precision.note(math.isfinite(norm)) and math.isfinite(value)
        empty = found.sums.input_frames == 0
        outcome = StepOutcome(value, norm, usable, names, overflow, found.stopping > 0, empty)
        if not usable:
            with torch.no_grad():
                for name, buffer in self.model.named_buffers():
                    buffer.copy_(buffers[name])
            return outcome
        found.sums.input_frames = 0
        sums.add_numbers(found.sums.numbers())
        sums.excluded += names
        sums.add_norm(norm)
        with self.limit:
            self.optimizer.step()
        self.passes.pooling.average_running(passed=bool(parts))
        return outcome

    def evaluate(self, source: Source, before_batch: Callable[[], None] = lambda: None) -> EpochSums:
        """Objective of the model, in evaluation mode, over the utterances of a source, each seen by one process.

        `before_batch` is called before each batch, in all processes alike, and may end the evaluation by an exception.
        """
        self.model.eval()
        mine = EpochSums()
        started = time.perf_counter()
        with torch.no_grad():
            for parts in source.in_order(self.share):
                before_batch()
                for item in parts:
                    output = self.passes.forward(item.batch)
                    record = self.loss.objective(
                        output.nnet_output,
                        output.lengths,
                        item.numerators,
                        xent_log_probs=output.xent_log_probs,
                    )
                    mine.add_record(record, output.lengths.tolist())
                    mine.input_frames += int(item.batch.lengths.sum())
                mine.batches += 1
        sums = EpochSums(batches=mine.batches)
        sums.add_numbers(self.world.sum_numbers(mine.numbers()))
        sums.excluded = [name for names in self.world.gather(mine.excluded) for name in names]
        sums.seconds = time.perf_counter() - started
        return sums

    def _accumulate(self, item: SupervisedBatch, mine: _Found) -> None:
        """Add the gradient of a micro-batch, summed over its frames, to those of the parameters."""
        output = self.passes.forward(item.batch)
        roots = [value for value in (output.nnet_output, output.xent_log_probs) if value is not None]
        leaves = [root.detach().requires_grad_() for root in roots]
        started = self._now()
        xent = leaves[1] if len(leaves) > 1 else None
        windows = item.batch.windows
        weights = {} if windows is None else {"frame_weights": windows.frame_weights.to(self._device)}
        loss = self.loss(leaves[0], output.lengths, item.numerators, xent_log_probs=xent, **weights)
        record = self.loss.last_record
        frames = torch.as_tensor(record.weight_ok, dtype=loss.dtype, device=loss.device)
        loss.backward(frames * self.passes.precision.factor)
        mine.sums.loss_seconds += self._now() - started
        self.passes.backward(roots, [leaf.grad for leaf in leaves])
        mine.loss += float(loss.detach() * frames)
        mine.ok += float(record.ok.sum())
        mine.sums.add_record(record, output.lengths.tolist())
        mine.sums.input_frames += int(item.batch.lengths.sum())
        mine.excluded = float(len(mine.sums.excluded))

    def _reduce(self, mine: _Found) -> tuple[_Found, float]:
        """Sums over all processes; gradients become those of the loss per frame, clipped. The norm is that before."""
        moved = [float(parameter.grad is not None) for parameter in self._parameters]
        numbers = mine.numbers()
        totals = self.world.sum_numbers(numbers + moved)
        loss, ok, excluded, stopping = totals[:4]
        found = _Found(loss, ok, excluded, stopping)
        found.sums.add_numbers(totals[4 : len(numbers)])
        chosen = [
            parameter
            for parameter, count in zip(self._parameters, totals[len(numbers) :], strict=True)
            if count
        ]
        own = [torch.zeros_like(one) if one.grad is None else one.grad for one in chosen]
        grads = self.world.add_up_many(own)
        for parameter, grad in zip(chosen, grads, strict=True):
            parameter.grad = grad
        if grads and found.sums.weight:
            torch._foreach_div_(grads, found.sums.weight * self.passes.precision.factor)
        return found, float(nn.utils.clip_grad_norm_(chosen, self._max_grad_norm))

    def _now(self) -> float:
        """The time, once the device has done all that was asked of it."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
