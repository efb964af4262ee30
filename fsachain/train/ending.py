"""The end of a training: the final model, made of the models of its last epochs as `TrainConfig.combine` says.

Nothing is written while this runs, and nothing random is drawn: a training that is killed here makes the same final model
when it is started again, and one that has ended makes another if `combine` is changed. All processes of a training run the
same lines; the first one alone reads checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch

from fsachain.errors import ConfigError, DataError
from fsachain.train.checkpoint import Checkpoint, Keeper, Tensors
from fsachain.train.config import TrainConfig
from fsachain.train.source import Source, SupervisedBatch
from fsachain.train.step import Stepper
from fsachain.train.world import WHOLE, Share

# The final model, made of the models of the last epochs.
#
# "best-average" does what Kaldi's nnet3-chain-combine does: from the newest model on, one older model after
# the other joins a mean, the objective of each mean is taken, and the best is kept. An exponential moving
# average stands beside them, if there is one. Everything is a pure function of checkpoints and data: a
# training that is killed meanwhile does it once more.

EMA = "ema"


@dataclass(frozen=True)
class Combination:
    """What was chosen.

    Attributes:
        state: the chosen model's `state_dict()`.
        num_models: models in the mean; 0 for the moving average.
        objf: the objective by candidate: "1", "2", ... for the means of so many models, and "ema".
    """

    state: Tensors
    num_models: int
    objf: dict[str, float]

    @property
    def name(self) -> str:
        """The chosen candidate's name."""
        return str(self.num_models) if self.num_models else EMA


def best_average(
    newest_first: Iterable[Mapping[str, torch.Tensor]],
    objective: Callable[[Tensors], float],
    ema: Tensors | None = None,
) -> Combination:
    """The best of the means of the newest 1, 2, 3, ... models, and of `ema`.

    Args:
        newest_first: `state_dict()`s, loaded one at a time.
        objective: what to maximise; NaN loses against any number. Called once for each candidate, in order.
        ema: one more candidate; at equal objectives the earlier candidate, the mean of fewer models, is kept.

    Raises:
        DataError: there is no model, or names or shapes differ.
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
    newest: Mapping[str, torch.Tensor] | None = None
    sums: Tensors = {}
    for count, state in enumerate(newest_first, start=1):
        newest = state if newest is None else newest
        _check_same(newest, state)
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


def _check_same(newest: Mapping[str, torch.Tensor], state: Mapping[str, torch.Tensor]) -> None:
    for name in sorted(newest.keys() | state.keys()):
        shapes = [list(part[name].shape) if name in part else None for part in (newest, state)]
        if shapes[0] != shapes[1]:
            raise DataError(
                f"models to combine: {name!r} has shape {shapes[0]} in one and {shapes[1]} in another"
            )


Evaluate = Callable[[Any], dict[str, Any]]


@dataclass(frozen=True)
class Ending:
    """How the final model came to be.

    Attributes:
        averaged: names of the checkpoints that it is the mean of; empty for the moving average.
        text: the same in a few words.
        objf: of each candidate, where one was chosen; see `Combination`.
    """

    averaged: tuple[str, ...]
    text: str
    objf: dict[str, float] = field(default_factory=dict)


def check_ending(config: TrainConfig, dev_source: Source | None) -> None:
    """Raise before a training begins if its end would lack something.

    Raises:
        ConfigError: the best average is to be chosen on a development set, and there is none.
    """
    if config.combine == "best-average" and config.combine_on == "dev" and dev_source is None:
        raise ConfigError(
            'train.combine: "best-average" is chosen on a development set, and there is none; expected one, or '
            'train.combine_on: "train"'
        )


class Finisher:
    """Gives the model its final parameters and statistics.

    Args:
        stepper: has the model, and passes batches through it.
        keeper: has the checkpoints and the moving average.
        config: options of the training.
        source: training batches, for the statistics of batch normalisation and, if that is asked for, the objective.
        dev_source: development set, for the objective.
        evaluate: figures of the model, as it is now, on a source.
    """

    def __init__(
        self,
        stepper: Stepper,
        keeper: Keeper,
        config: TrainConfig,
        source: Source,
        dev_source: Source | None,
        evaluate: Evaluate,
    ) -> None:
        self._stepper = stepper
        self._keeper = keeper
        self._config = config
        self._source = source
        self._dev_source = dev_source
        self._evaluate = evaluate

    def finish(self) -> Ending:
        """Make the final model."""
        names = [path.name for path in self._keeper.last_epochs()]
        kind = self._config.combine
        if kind == "best-average":
            return self._choose(names)
        if kind == "ema":
            self._take(self._averages())
            return Ending((), f"moving average with decay {self._config.ema:g}")
        if kind == "none" or len(names) == 1:
            return Ending((names[-1],), "that of the last epoch")
        first = self._stepper.world.is_first
        self._take(self._keeper.average() if first else self._stepper.model.state_dict())
        return Ending(tuple(names), f"mean of {len(names)} epochs")

    def _choose(self, names: list[str]) -> Ending:
        ema = self._averages() if self._config.ema else None
        found: Combination = best_average(self._newest_first(len(names)), self._objective, ema)
        self._take(found.state)
        averaged = tuple(names[len(names) - found.num_models :])
        best = f"mean of {len(averaged)} epochs" if averaged else "moving average"
        return Ending(averaged, f"{best}, the best of {len(found.objf)} candidates", found.objf)

    def _newest_first(self, count: int) -> Iterator[Tensors]:
        """The models of the last epochs; in other processes than the first, tensors that stand in for them."""
        paths = self._keeper.last_epochs()[::-1]
        for number in range(count):
            if self._stepper.world.is_first:
                yield Checkpoint.load(paths[number]).model
            else:
                yield {name: value.cpu() for name, value in self._stepper.model.state_dict().items()}

    def _averages(self) -> Tensors:
        """The moving average, with the last model's buffers."""
        return {
            name: value.detach().clone() for name, value in self._stepper.model.state_dict().items()
        } | self._keeper.averages()

    def _take(self, state: Tensors) -> None:
        """Load the first process's `state` everywhere, and take the statistics that averaging leaves stale anew."""
        self._stepper.model.load_state_dict(state)
        self._stepper.world.copy_first(self._stepper.model.state_dict())
        batches = self._source.batches(self._config.num_epochs, 0, self._stepper.share)
        self._stepper.passes.refresh(islice(batches, self._config.batch_norm_batches))

    def _objective(self, state: Tensors) -> float:
        self._take(state)
        if self._config.combine_on == "train":
            return float(self._evaluate(_FirstBatches(self._source, self._config))["objf"])
        return float(self._evaluate(self._dev_source)["objf"])


class _FirstBatches:
    """The batches on which statistics are taken, as something to evaluate on."""

    def __init__(self, source: Source, config: TrainConfig) -> None:
        self._source = source
        self._config = config

    def in_order(self, share: Share = WHOLE) -> Iterator[Sequence[SupervisedBatch]]:
        """The first `batch_norm_batches` batches of the epoch after the last."""
        batches = self._source.batches(self._config.num_epochs, 0, share)
        return islice(batches, self._config.batch_norm_batches)
