"""The end of a training: the final model, made of the models of its last epochs as `TrainConfig.combine` says.

Nothing is written while this runs, and nothing random is drawn: a training that is killed here makes the same final model
when it is started again, and one that has ended makes another if `combine` is changed. All processes of a training run the
same lines; the first one alone reads checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from fsachain.asr.train.checkpoint import Checkpoint, Tensors
from fsachain.asr.train.config import TrainConfig
from fsachain.asr.train.source import Source, SupervisedBatch
from fsachain.asr.train.step import Stepper
from fsachain.errors import DataError, brief


@dataclass(frozen=True)
class Combination:
    """A chosen model.

    Attributes:
        state: its `state_dict()`.
        num_models: models in the mean.
        objf: the objective by candidate: "1", "2", ... for the means of so many models.
    """

    state: Tensors
    num_models: int
    objf: dict[str, float]

    __repr__ = brief


def best_average(
    newest_first: Iterable[Mapping[str, torch.Tensor]], objective: Callable[[Tensors], float]
) -> Combination:
    """The best of the means of the newest 1, 2, 3, ... models, as Kaldi's nnet3-chain-combine has it.

    Args:
        newest_first: `state_dict()`s, loaded one at a time.
        objective: what to maximise; NaN loses against any number, of equals the mean of fewer models is kept. Called once
            for each candidate, in order.
    """
    best: Combination | None = None
    objf: dict[str, float] = {}
    for num_models, state in enumerate(_means(newest_first), start=1):
        value = objf[str(num_models)] = objective(state)
        before = -math.inf if best is None else objf[str(best.num_models)]
        if best is None or value > before or (value == value and before != before):
            best = Combination(state, num_models, objf)
    if best is None:
        raise DataError("newest_first: nothing to combine")
    return best


def _means(newest_first: Iterable[Mapping[str, torch.Tensor]]) -> Iterator[Tensors]:
    """The means of the newest 1, 2, 3, ... models."""
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
        yield {
            name: (sums[name] / count).to(tensor.dtype) if name in sums else tensor.clone()
            for name, tensor in newest.items()
        }


def make_final_model(
    stepper: Stepper,
    paths: Sequence[Path],
    config: TrainConfig,
    source: Source,
    dev_source: Source | None,
    evaluate: Callable[[Iterable[Sequence[SupervisedBatch]]], dict[str, Any]],
) -> tuple[int, dict[str, float]]:
    """Give the model its final parameters and statistics; the models in the mean, and the objective by candidate.

    `paths` are the checkpoints of the last epochs, oldest first; they exist for the first process only. `source` gives
    training batches for the statistics of batch normalisation.
    """
    model, world = stepper.model, stepper.world

    def take(state: Mapping[str, torch.Tensor]) -> None:
        """Load the first process's `state` everywhere and recompute the statistics of batch normalisation."""
        model.load_state_dict(state)
        world.copy_first(model.state_dict())
        batches = source.batches(config.num_epochs, 0, stepper.share)
        stepper.passes.refresh(islice(batches, config.batch_norm_batches))

    def objective(state: Tensors) -> float:
        take(state)
        assert dev_source is not None
        return float(evaluate(dev_source.in_order(stepper.share))["objf"])

    def newest_first() -> Iterator[Tensors]:
        """The models of the last epochs; in processes other than the first, placeholders of the same shapes."""
        for path in reversed(paths):
            if world.is_first:
                yield Checkpoint.load(path).model
            else:
                yield {name: value.cpu() for name, value in model.state_dict().items()}

    if config.combine == "best-average":
        found = best_average(newest_first(), objective)
        take(found.state)
        return found.num_models, found.objf
    if config.combine == "none" or len(paths) == 1:
        return 1, {}  # the model is as the last epoch left it
    *_, mean = _means(newest_first())
    take(mean)
    return len(paths), {}
