"""One step of training and one pass of evaluation.

features -> network -> loss -> gradient of the network output -> backward through the network, for each micro-batch of
each process; then the sum over all of them, divided by the frames that took part -> clipping -> optimiser. The gradient of
the loss is computed first and handed to the network, which gives the same numbers as one backward call and lets the loss
be timed. How the utterances of a step are divided among processes and micro-batches changes only roundings, except for
batch normalisation, whose batch is one micro-batch of every process, and dropout.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import nn

from fsachain.asr.data.dataset import Batch
from fsachain.asr.nn.layers import MaskedBatchNorm
from fsachain.asr.nn.network import Network, NetworkOutput, check_output
from fsachain.asr.train.config import TrainConfig
from fsachain.asr.train.optimizer import MaxChange
from fsachain.asr.train.source import SupervisedBatch
from fsachain.asr.train.world import Share, World
from fsachain.errors import ConfigError


@contextmanager
def subnormals_flushed() -> Iterator[None]:
    """Let torch's arithmetic on this thread take subnormal numbers for 0, and restore afterwards what the caller had.

    On Intel's processors each costs some hundred cycles, and gradients of a confident network are full of them.
    """
    were_flushed = bool(torch.tensor(1e-40) * 1.0 == 0.0)  # torch has no way to ask
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(were_flushed)


# Sums over the batches of an epoch, and the figures per frame made of them.

EDITS = ("substituted", "inserted", "deleted")  # in a summary per word


@dataclass
class EpochSums:
    """Sums over the sequences that took part, of all processes; natural logs."""

    objf: float = 0.0  # weighted num - den
    num_log_prob: float = 0.0
    den_log_prob: float = 0.0
    l2_term: float = 0.0
    out_of_range_term: float = 0.0  # the penalty on outputs beyond +-30
    xent_objf: float = 0.0
    consistency_term: float = 0.0  # what two views of each utterance differ by
    weight: float = 0.0  # times output frames
    output_frames: int = 0
    input_frames: int = 0  # of excluded sequences too: what went through the network
    words: float = 0.0  # of the utterances whose edits were counted, see `ForgivingNumerators.edits`
    substituted: float = 0.0  # of these words, expected numbers
    inserted: float = 0.0
    deleted: float = 0.0  # places between them

    # The figures before are added up over processes; these are equal in all of them, or the first one's.
    batches: int = 0
    grad_norm: float = 0.0  # before clipping, of the batches that moved parameters
    max_grad_norm: float = 0.0
    moved_batches: int = 0
    skipped_batches: int = 0  # a number was not finite
    excluded: list[str] = field(default_factory=list)  # names, as often as the loss left them out
    seconds: float = 0.0  # of the steps, in the first process; the next three are parts of it
    loss_seconds: float = 0.0
    data_seconds: float = 0.0  # waiting for the next batch
    world_seconds: float = 0.0  # waiting for the other processes and adding up
    limited_steps: int = 0  # scaled down by `max_change`
    limited_components: int = 0  # by `max_change_per_component`

    def numbers(self, names: Sequence[str] = ()) -> list[float]:
        return [float(getattr(self, name)) for name in names or SUMMED]

    def add_numbers(self, values: Sequence[float], names: Sequence[str] = ()) -> None:
        for name, value in zip(names or SUMMED, values, strict=True):
            before = getattr(self, name)
            setattr(self, name, before + type(before)(value))

    def add_record(self, record: Any, lengths: list[int]) -> None:
        """`lengths` are the output frames of the record's sequences."""
        ok = [bool(value) for value in record.ok]
        self.objf += float(record.objf_ok)
        self.num_log_prob += _sum_ok(record.num_log_prob, ok)
        self.den_log_prob += _sum_ok(record.den_log_prob, ok)
        self.l2_term += float(record.l2_term)
        self.out_of_range_term += float(record.out_of_range_term)
        self.xent_objf += 0.0 if record.xent_objf is None else float(record.xent_objf)
        # Not of every loss of one's own.
        self.consistency_term += float(getattr(record, "consistency_term", 0.0))
        self.weight += float(record.weight_ok)
        self.output_frames += sum(length for length, good in zip(lengths, ok, strict=True) if good)
        self.excluded += [str(name) for name in record.excluded]

    def left_out(self) -> list[str]:
        """The first 5,000 different names of `excluded`, sorted, which keeps a line of the log short."""
        return sorted(set(self.excluded))[:5000]

    def summary(self) -> dict[str, Any]:
        """Figures per frame and per second; NaN where nothing was counted."""
        return {
            "objf": _ratio(self.objf, self.weight),
            "num": _ratio(self.num_log_prob, self.output_frames),
            "den": _ratio(self.den_log_prob, self.output_frames),
            "l2": _ratio(self.l2_term, self.weight),
            "out_of_range": _ratio(self.out_of_range_term, self.weight),
            "xent": _ratio(self.xent_objf, self.weight),
            "consistency": _ratio(self.consistency_term, self.weight),
            "grad_norm": _ratio(self.grad_norm, self.moved_batches),
            "max_grad_norm": self.max_grad_norm if self.moved_batches else math.nan,
            "output_frames": self.output_frames,
            "frames_per_second": _ratio(self.input_frames, self.seconds),
            "seconds": self.seconds,
            "loss_share": _ratio(self.loss_seconds, self.seconds),
            "data_share": _ratio(self.data_seconds, self.seconds),
            "world_share": _ratio(self.world_seconds, self.seconds),
            "max_change": _ratio(self.limited_steps, self.moved_batches),
            "max_change_components": _ratio(self.limited_components, self.moved_batches),
            "excluded": len(self.excluded),
            "skipped_batches": self.skipped_batches,
            **{name: getattr(self, name) / self.words for name in EDITS if self.words},
        }


SUMMED = tuple(itertools.takewhile(lambda name: name != "batches", EpochSums.__dataclass_fields__))


def _sum_ok(values: Any, ok: list[bool]) -> float:
    return sum(float(value) for value, good in zip(values.tolist(), ok, strict=True) if good)


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.nan


GROW_AFTER = 2000  # steps without an overflow, before the factor of float16's gradients is doubled
_LEAST, _MOST = 2.0**-24, 2.0**16
_TYPES = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
_STAND_IN = "(stand-in)"


class Precision:
    """The number format of the network's passes. Parameters, loss, its gradient, and all sums stay float32 or better.

    With bfloat16 and float16 torch's autocast chooses, operation by operation, what is computed in 16 bits. float16 has no
    numbers above 65504 and few below 6e-8: the gradient enters the network times `factor`, which is halved when something
    overflows, for a step that is then skipped, and doubled after `GROW_AFTER` steps without an overflow (Micikevicius et
    al., ICLR 2018). The decision is about the gradient summed over all processes, and therefore the same in all of them.
    The factor begins with 1: the gradient of a sum over frames, as it is here, is already thousands of times that of their
    mean.
    """

    def __init__(self, name: str = "float32") -> None:
        self._dtype = _TYPES[name]
        self.factor = 1.0
        self.good_steps = 0

    def passes(self, device: torch.device) -> AbstractContextManager[object]:
        """Context of the network's forward passes."""
        return nullcontext() if self._dtype is None else torch.autocast(device.type, dtype=self._dtype)

    def note(self, finite: bool) -> bool:
        """Choose the factor for the next step; True if it was lowered, so that the bad step may be only an overflow."""
        if self._dtype is not torch.float16:
            return False
        self.good_steps = self.good_steps + 1 if finite else 0
        if self.good_steps >= GROW_AFTER:
            self.factor, self.good_steps = min(self.factor * 2.0, _MOST), 0
        lowered = not finite and self.factor > _LEAST
        if not finite:
            self.factor = max(self.factor / 2.0, _LEAST)
        return lowered


class Passes:
    """Forward and backward passes through a network, in step with the other processes.

    Batch normalisation is over all processes: their micro-batches of one pass are one batch, over which `MaskedBatchNorm`
    sums by `add_up` in every forward and backward pass. All must therefore make the same number of passes: one that has
    fewer micro-batches than another passes a stand-in batch through the network, whose frames do not count (`counts`).
    Layers of torch (`nn.BatchNorm1d`, ...) normalise with the statistics of their own process, as they do in torch's
    DistributedDataParallel; their running averages are averaged after each step, so that one model is saved. With one
    process nothing changes.
    """

    def __init__(self, model: nn.Module, world: World, precision: Precision) -> None:
        modules = list(model.modules()) if world.size > 1 else []
        if any(isinstance(module, nn.SyncBatchNorm) for module in modules):
            raise ConfigError(
                "the network has an nn.SyncBatchNorm, which cannot wait for processes without utterances; expected "
                "fsachain.asr.nn.layers.MaskedBatchNorm, or nn.BatchNorm1d"
            )
        self.model, self.precision, self.counts = model, precision, True
        self._world = world
        self._device = next(model.parameters()).device
        self._used: list[int] | None = None
        self._pooled = [module for module in modules if isinstance(module, MaskedBatchNorm)]
        self._running = [
            buffer
            for module in modules
            if not isinstance(module, MaskedBatchNorm)
            for name, buffer in module.named_buffers(recurse=False)
            if name in ("running_mean", "running_var")
        ]

    def add_up(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over all processes, in place; called by the layers."""
        return self._world.add_up(values)

    @contextmanager
    def shared(self, parts: Sequence[SupervisedBatch]) -> Iterator[list[Batch]]:
        """Context of the passes over one batch, in training mode; yields the stand-ins to pass after the micro-batches."""
        stand_ins: list[Batch] = []
        if self._pooled:
            frames, width = parts[0].batch.features.shape[1:] if parts else (0, 0)
            count, frames, width = self._world.largest([len(parts), frames, width])
            names, features = (_STAND_IN,), torch.zeros(1, frames, width)
            stand_ins = [Batch(names, names, ((),), features, torch.tensor([frames]))] * (count - len(parts))
        for module in self._pooled:
            module.pool = self
        try:
            yield stand_ins
        finally:
            for module in self._pooled:
                module.pool = None

    @torch.no_grad()
    def average_running(self, passed: bool) -> None:
        """Average torch's layers over the processes that `passed` something through them; called by all processes."""
        if not self._running:
            return
        count = self._world.sum_numbers([float(passed)])[0]
        sums = self._world.add_up_many(
            [buffer if passed else torch.zeros_like(buffer) for buffer in self._running]
        )
        for buffer, total in zip(self._running, sums, strict=True):
            buffer.copy_(total / max(count, 1.0))

    def forward(self, batch: Batch) -> NetworkOutput:
        """The output on the model's device; of chunks without the frames that are only context."""
        with self.precision.passes(self._device):
            found = self.model(batch.features.to(self._device), batch.lengths)
        output = check_output(found, cast(Network, self.model), batch.features, batch.lengths)
        scores, xent, lengths = output.nnet_output, output.xent_log_probs, output.lengths
        if batch.windows is not None:
            scores, lengths = batch.windows.crop(scores), batch.windows.lengths
            xent = None if xent is None else batch.windows.crop(xent)
        xent = None if xent is None else _at_least_float32(xent)
        return NetworkOutput(_at_least_float32(scores), lengths, xent)

    def backward(self, roots: list[torch.Tensor], grads: Sequence[torch.Tensor | None]) -> None:
        """Where passes are shared, all processes go back from the same roots: a missing gradient becomes zeros."""
        used = [int(grad is not None) for grad in grads]
        if self._pooled:
            self._used = used = self._used or self._world.largest(used)
        pairs = [
            (root, torch.zeros_like(root) if grad is None else grad)
            for root, grad, wanted in zip(roots, grads, used, strict=True)
            if wanted
        ]
        torch.autograd.backward([root for root, _ in pairs], [grad for _, grad in pairs])

    def stand_in(self, batch: Batch) -> None:
        self.counts = False
        output = self.forward(batch)
        roots = [value for value in (output.nnet_output, output.xent_log_probs) if value is not None]
        self.backward(roots, [None] * len(roots))
        self.counts = True

    @torch.no_grad()
    def refresh(self, batches: Iterable[Sequence[SupervisedBatch]]) -> None:
        """Replace all running statistics by their mean over some batches, for weights just averaged.

        Modules are recognised by their buffers `running_mean` and `running_var` and a number `momentum`, the share of the
        newest batch in the running value. Dropout is off meanwhile, as it is wherever the statistics are used. The model's
        mode (training or evaluation) is restored.
        """
        norms = [
            module
            for module in self.model.modules()
            if {"running_mean", "running_var"} <= dict(module.named_buffers(recurse=False)).keys()
            and isinstance(getattr(module, "momentum", None), float)
        ]
        if not norms:
            return
        modes = {module: module.training for module in self.model.modules()}
        momenta = [module.momentum for module in norms]
        self.model.train()
        for module in modes:
            if "dropout" in type(module).__name__.lower():
                module.eval()
        count, passed = 0, False
        try:
            for parts in batches:
                passed = passed or bool(parts)
                with self.shared(parts) as stand_ins:
                    for place, batch in enumerate([*(item.batch for item in parts), *stand_ins]):
                        count += 1
                        for module in norms:
                            module.momentum = 1.0 / count  # type: ignore[assignment]
                        self.counts = place < len(parts)
                        self.forward(batch)
        finally:
            self.counts = True
            for module, momentum in zip(norms, momenta, strict=True):
                module.momentum = momentum
            for module, training in modes.items():
                module.training = training
        self.average_running(passed)


def _at_least_float32(values: torch.Tensor) -> torch.Tensor:
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


@dataclass(frozen=True)
class StepOutcome:
    """What came of a step, over all processes and the same in all of them.

    `loss` is per frame, `grad_norm` before clipping. `usable` is False when nothing in the model was changed; with
    `overflow` because a number was too large for float16. `excluded` names the sequences that the loss left out. `stopping`:
    some process was asked to stop. `empty`: the batch has no utterance.
    """

    loss: float
    grad_norm: float
    usable: bool
    excluded: tuple[str, ...] = ()
    overflow: bool = False
    stopping: bool = False
    empty: bool = False


@dataclass
class _Found(EpochSums):
    """Sums over the micro-batches of this process in one step, and after `_reduce` over all processes."""

    loss: float = 0.0  # summed over frames
    ok: float = 0.0  # sequences that took part
    num_excluded: float = 0.0
    stopping: float = 0.0


_OF_STEP = (*SUMMED, "loss", "ok", "num_excluded", "stopping")


class Stepper:
    """Moves the parameters of a model by the gradient of one batch.

    `loss` is a mean over the `weight_ok` frames of its `last_record`; `share` is this process's part of each batch, `limit`
    says how far one step may move the parameters.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Any,
        optimizer: torch.optim.Optimizer,
        config: TrainConfig,
        world: World | None = None,
    ) -> None:
        self.model, self.loss, self.optimizer = model, loss, optimizer
        self.world = world or World.alone()
        self.passes = Passes(model, self.world, Precision(config.precision))
        self.share = Share(self.world.rank, self.world.size, config.micro_batch)
        options = config.optimizer
        self.limit = MaxChange(
            model, per_component=options.max_change_per_component, total=options.max_change
        )
        self._max_grad_norm = options.max_grad_norm
        self._parameters = list(model.parameters())
        self._device = self._parameters[0].device

    def step(
        self, parts: Sequence[SupervisedBatch], sums: EpochSums, stopping: Callable[[], bool] = bool
    ) -> StepOutcome:
        """Forward, backward, and a step of the optimiser if all is finite and some sequence took part.

        Otherwise the buffers of the model (running statistics of batch normalisation) are restored, because one NaN would
        stay in them for ever. Every process calls this with its own micro-batches, none if it has no utterance of the batch.
        `sums` are added to, the same in all processes; `stopping` is asked after the backward pass whether this process is
        to stop.
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
        sums.input_frames += found.input_frames
        sums.loss_seconds += mine.loss_seconds
        sums.world_seconds += self.world.seconds - waited
        names: tuple[str, ...] = ()
        if found.num_excluded:
            names = tuple(name for given in self.world.gather(mine.excluded) for name in given)
        value = found.loss / found.weight if found.weight else 0.0 * found.loss
        usable = found.ok > 0 and math.isfinite(value + norm)
        overflow = self.passes.precision.note(math.isfinite(norm)) and math.isfinite(value)
        empty = found.input_frames == 0
        outcome = StepOutcome(value, norm, usable, names, overflow, found.stopping > 0, empty)
        if not usable:
            with torch.no_grad():
                for name, buffer in self.model.named_buffers():
                    buffer.copy_(buffers[name])
            return outcome
        found.input_frames = 0
        sums.add_numbers(found.numbers())
        sums.excluded += names
        sums.grad_norm += norm
        sums.max_grad_norm = max(sums.max_grad_norm, norm)
        sums.moved_batches += 1
        with self.limit:
            self.optimizer.step()
        self.passes.average_running(passed=bool(parts))
        return outcome

    def evaluate(
        self, batches: Iterable[Sequence[SupervisedBatch]], *, equal_scores: bool = False
    ) -> EpochSums:
        """Objective in evaluation mode, over batches of which each process has its share.

        `equal_scores`: of a network that knows nothing, in place of this one's.
        """
        self.model.eval()
        mine = EpochSums()
        started = time.perf_counter()
        with torch.no_grad():
            for parts in batches:
                for item in parts:
                    output = self.passes.forward(item.batch)
                    scores = output.nnet_output
                    record = self.loss.objective(
                        torch.zeros_like(scores) if equal_scores else scores,
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
        more: dict[str, Any] = {} if item.batch.views == 1 else {"views": item.batch.views}
        if windows is not None:
            more["frame_weights"] = windows.frame_weights.to(self._device)
        loss = self.loss(leaves[0], output.lengths, item.numerators, xent_log_probs=xent, **more)
        record = self.loss.last_record
        frames = torch.as_tensor(record.weight_ok, dtype=loss.dtype, device=loss.device)
        loss.backward(frames * self.passes.precision.factor)
        mine.loss_seconds += self._now() - started
        self.passes.backward(roots, [leaf.grad for leaf in leaves])
        mine.loss += float(loss.detach() * frames)
        mine.ok += float(record.ok.sum())
        mine.add_record(record, output.lengths.tolist())
        mine.input_frames += int(item.batch.lengths.sum())
        if item.forgiving is not None:
            edits = item.forgiving.edits(item, output.nnet_output, output.lengths, self.loss)
            mine.add_numbers(edits, ("words", *EDITS))
        mine.num_excluded = float(len(mine.excluded))

    def _reduce(self, mine: _Found) -> tuple[_Found, float]:
        """Sums over all processes, and the norm before clipping; gradients become those of the loss per frame, clipped."""
        moved = [float(parameter.grad is not None) for parameter in self._parameters]
        totals = self.world.sum_numbers(mine.numbers(_OF_STEP) + moved)
        found, size = _Found(), len(_OF_STEP)
        found.add_numbers(totals[:size], _OF_STEP)
        pairs = zip(self._parameters, totals[size:], strict=True)
        chosen = [parameter for parameter, count in pairs if count]
        own = [torch.zeros_like(one) if one.grad is None else one.grad for one in chosen]
        grads = self.world.add_up_many(own)
        for parameter, grad in zip(chosen, grads, strict=True):
            parameter.grad = grad
        if grads and found.weight:
            torch._foreach_div_(grads, found.weight * self.passes.precision.factor)
        return found, float(nn.utils.clip_grad_norm_(chosen, self._max_grad_norm))

    def _now(self) -> float:
        """The time after the device has finished all queued work."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
