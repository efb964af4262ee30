"""The end of a training: the final model, made of the models of its last epochs as `TrainConfig.combine` says.

Nothing is written while this runs, and nothing random is drawn: a training that is killed here makes the same final model
when it is started again, and one that has ended makes another if `combine` is changed. All processes of a training run the
same lines; the first one alone reads checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from fsachain.errors import ConfigError
from fsachain.train.checkpoint import Checkpoint, Tensors
from fsachain.train.combination import Combination, best_average
from fsachain.train.config import TrainConfig
from fsachain.train.keeper import Keeper
from fsachain.train.share import WHOLE, Share
from fsachain.train.source import Source, SupervisedBatch
from fsachain.train.step import Stepper

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
