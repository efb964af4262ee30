"""The end of a training: the final model, made of the models of its last epochs as `TrainConfig.combine` says.

Nothing is written while this runs, and nothing random is drawn: a training that is killed here makes the same final model
when it is started again, and one that has ended makes another if `combine` is changed. All processes of a training run the
same lines; the first one alone reads checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from fsachain.errors import ConfigError, DataError, counted
from fsachain.train.checkpoint import Checkpoint, Tensors
from fsachain.train.config import TrainConfig
from fsachain.train.source import Source, SupervisedBatch
from fsachain.train.step import Stepper


@dataclass(frozen=True)
class Combination:
    """A chosen model.

    Attributes:
        state: its `state_dict()`.
        num_models: models in the mean; 0 for the moving average.
        objf: the objective by candidate: "1", "2", ... for the means of so many models, and "ema".
    """

    state: Tensors
    num_models: int
    objf: dict[str, float]

    @property
    def name(self) -> str:
        return str(self.num_models) if self.num_models else "ema"


def best_average(
    newest_first: Iterable[Mapping[str, torch.Tensor]],
    objective: Callable[[Tensors], float],
    ema: Tensors | None = None,
) -> Combination:
    """The best of the means of the newest 1, 2, 3, ... models, as Kaldi's nnet3-chain-combine has it, and of `ema`.

    Args:
        newest_first: `state_dict()`s, loaded one at a time.
        objective: what to maximise; NaN loses against any number. Called once for each candidate, in order.
        ema: one more candidate; at equal objectives the earlier candidate, the mean of fewer models, is kept.
    """
    best: Combination | None = None
    objf: dict[str, float] = {}
    for num_models, state in _candidates(newest_first, ema):
        candidate = Combination(state, num_models, objf)
        value = objf[candidate.name] = objective(state)
        if best is None or value > objf[best.name] or (value == value and objf[best.name] != objf[best.name]):
            best = candidate
    if best is None:
        raise DataError("newest_first: nothing to combine")
    return best


def _candidates(
    newest_first: Iterable[Mapping[str, torch.Tensor]], ema: Tensors | None
) -> Iterator[tuple[int, Tensors]]:
    """How many models each candidate is the mean of, 0 for `ema`, and its parameters."""
    newest: Mapping[str, torch.Tensor] | None = None
    sums: Tensors = {}
    for count, state in enumerate(newest_first, start=1):
        newest = state if newest is None else newest
        for name in sorted(newest.keys() | state.keys()):
            shapes = [list(part[name].shape) if name in part else None for part in (newest, state)]
            if shapes[0] != shapes[1]:
                raise DataError(
                    f"models to combine: {name!r} has shape {shapes[0]} in one and {shapes[1]} in another"
                )
        for name, tensor in state.items():
            if tensor.is_floating_point():
                sums[name] = sums[name] + tensor.double() if count > 1 else tensor.double()
        yield (
            count,
            {
                name: (sums[name] / count).to(tensor.dtype) if name in sums else tensor.clone()
                for name, tensor in newest.items()
            },
        )
    if ema is not None:
        yield 0, {name: tensor.clone() for name, tensor in ema.items()}


@dataclass(frozen=True)
class Ending:
    """How the final model was made.

    `averaged` names the checkpoints of which it is the mean (none for the moving average); `objf` holds the objective of
    each candidate, where one was chosen.
    """

    averaged: tuple[str, ...]
    text: str
    objf: dict[str, float] = field(default_factory=dict)


def check_ending(config: TrainConfig, dev_source: Source | None) -> None:
    """Raised before training rather than after its last epoch."""
    if config.combine == "best-average" and config.combine_on == "dev" and dev_source is None:
        raise ConfigError(
            'train.combine: "best-average" is chosen on a development set, and there is none; expected one, or '
            'train.combine_on: "train"'
        )


def make_final_model(
    stepper: Stepper,
    paths: Sequence[Path],
    ema: Tensors,
    config: TrainConfig,
    source: Source,
    dev_source: Source | None,
    evaluate: Callable[[Iterable[Sequence[SupervisedBatch]]], dict[str, Any]],
) -> Ending:
    """Give the model its final parameters and statistics.

    `paths` are the checkpoints of the last epochs, oldest first; they exist for the first process only. `ema` is empty
    without moving averages. `source` gives training batches for the statistics of batch normalisation.
    """
    model, world = stepper.model, stepper.world
    names = tuple(path.name for path in paths)

    def first_batches() -> Iterable[Sequence[SupervisedBatch]]:
        return islice(source.batches(config.num_epochs, 0, stepper.share), config.batch_norm_batches)

    def take(state: Mapping[str, torch.Tensor]) -> None:
        """Load the first process's `state` everywhere and recompute the statistics of batch normalisation."""
        model.load_state_dict(state)
        world.copy_first(model.state_dict())
        stepper.passes.refresh(first_batches())

    def objective(state: Tensors) -> float:
        take(state)
        if config.combine_on == "train":
            return float(evaluate(first_batches())["objf"])
        assert dev_source is not None
        return float(evaluate(dev_source.in_order(stepper.share))["objf"])

    def newest_first() -> Iterator[Tensors]:
        """The models of the last epochs; in processes other than the first, placeholders of the same shapes."""
        for path in reversed(paths):
            if world.is_first:
                yield Checkpoint.load(path).model
            else:
                yield {name: value.cpu() for name, value in model.state_dict().items()}

    # The moving average, with the last model's buffers.
    moving = {name: value.detach().clone() for name, value in model.state_dict().items()} | ema
    if config.combine == "best-average":
        found = best_average(newest_first(), objective, moving if config.ema else None)
        take(found.state)
        averaged = names[len(names) - found.num_models :]
        best = f"mean of {counted(len(averaged), 'epoch')}" if averaged else "moving average"
        return Ending(averaged, f"{best}, the best of {len(found.objf)} candidates", found.objf)
    if config.combine == "ema":
        take(moving)
        return Ending((), f"moving average with decay {config.ema:g}")
    if config.combine == "none" or len(paths) == 1:
        return Ending(names[-1:], "that of the last epoch")
    *_, (_, mean) = _candidates(newest_first(), None)
    take(mean)
    return Ending(names, f"mean of {counted(len(names), 'epoch')}")
