"""Everything that changes with the progress of a training, set before each step.

Learning rate by group of parameters, frozen parameters, dropout, options of the loss: all are pure functions of the number
of steps done, so that a training that goes on from a checkpoint needs nothing but this number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from fsachain.errors import ConfigError
from fsachain.train.config import TrainConfig
from fsachain.train.dropout import NetworkDropout
from fsachain.train.optimizer import frozen_epochs, set_learning_rate
from fsachain.train.piecewise import Scheduled, value_at
from fsachain.train.schedule import learning_rate, training_progress


class Schedules:
    """Sets what changes in a training.

    Args:
        model: its dropout and its frozen parameters are set.
        loss: its `adjust(**options)` is called, if there are `loss_options`.
        optimizer: made by `make_optimizer` for the model.
        config: options of the training.
        loss_options: schedules of options of the loss by name, such as `denominator_scale`.

    Raises:
        ConfigError: a dropout schedule for a network that drops nothing, or options for a loss that takes none.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Any,
        optimizer: torch.optim.Optimizer,
        config: TrainConfig,
        loss_options: Mapping[str, Scheduled],
    ) -> None:
        self._loss = loss
        self._optimizer = optimizer
        self._config = config
        self.loss_options = dict(loss_options)
        if self.loss_options and not hasattr(loss, "adjust"):
            raise ConfigError(
                f"loss_schedules: {', '.join(self.loss_options)} for a {type(loss).__name__}, which has no `adjust`"
            )
        self._dropout = None if config.dropout_schedule is None else NetworkDropout(model)
        # What the user froze stays so.
        movable = {name: value for name, value in model.named_parameters() if value.requires_grad}
        self._frozen = [
            (movable[name], epochs)
            for name, epochs in frozen_epochs(movable, config.optimizer).items()
            if epochs
        ]
        self._values: dict[str, float] = {}

    @property
    def values(self) -> dict[str, float]:
        """What was set last, by name, for the log; the learning rate is that of factor 1."""
        return dict(self._values)

    def apply(self, step: int, num_steps: int) -> None:
        """Set everything for step `step`, counted from 0, of `num_steps` in all epochs together."""
        rate = learning_rate(self._config.schedule, step, num_steps)
        set_learning_rate(self._optimizer, rate)
        epochs = step * self._config.num_epochs / max(num_steps, 1)
        for parameter, until in self._frozen:
            moves = epochs >= until
            if not moves:
                parameter.grad = None  # one from before a resumed training would still move it
            parameter.requires_grad_(moves)
        progress = training_progress(step, num_steps)
        self._values = {"learning_rate": rate, **self._adjust(progress)}
        if self._dropout is not None and self._config.dropout_schedule is not None:
            self._values["dropout"] = value_at(self._config.dropout_schedule, progress)
            self._dropout.set(self._values["dropout"])

    def apply_final(self) -> None:
        """Give the loss its options of the last step, so that evaluations at any time can be compared."""
        self._adjust(1.0)

    def _adjust(self, progress: float) -> dict[str, float]:
        options = {name: value_at(value, progress) for name, value in self.loss_options.items()}
        if options:
            self._loss.adjust(**options)
        return options
