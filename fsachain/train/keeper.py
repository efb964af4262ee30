"""The checkpoints of one training: written, thinned out, taken up again, averaged.

The first process alone reads and writes files. The others are told what it read, so that they need not see its folder.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from fsachain.errors import DataError
from fsachain.train.checkpoint import Tensors, average_checkpoints, epoch_end, prune_checkpoints
from fsachain.train.config import TrainConfig
from fsachain.train.ema import ParameterEma
from fsachain.train.log import JsonLinesLog, NoLog
from fsachain.train.precision import Precision
from fsachain.train.random_state import fresh_seed, name_states, random_states, restore_random
from fsachain.train.resume import take_up
from fsachain.train.state import TrainState, averaged_epochs, save_state
from fsachain.train.world import World


class Keeper:
    """Keeps a training's state on disk.

    Args:
        folder: of the checkpoints.
        model, optimizer: whose state is written and restored.
        config: says how many checkpoints are kept, and which are averaged.
        fingerprint: of the training; a checkpoint of another one is refused.
        world: all of its processes call every method, but `last_epochs` and `average`.
        precision: whose factor is written and restored.
        ema: the moving average of the parameters, written and restored; None without one.
    """

    def __init__(
        self,
        folder: Path,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        config: TrainConfig,
        fingerprint: str,
        *,
        world: World,
        precision: Precision,
        ema: ParameterEma | None = None,
    ) -> None:
        self._folder = folder
        self._model = model
        self._optimizer = optimizer
        self._config = config
        self._fingerprint = fingerprint
        self._world = world
        self._precision = precision
        self._ema = ema
        self._device = next(model.parameters()).device

    def save(self, state: TrainState) -> None:
        """Write a checkpoint and delete those that are no longer of use."""
        random = self._world.gather(random_states(self._device))
        if self._world.is_first:
            facts = {
                "processes": self._world.size,
                "precision": [self._precision.factor, self._precision.good_steps],
            }
            save_state(
                self._folder,
                state,
                self._model,
                self._optimizer,
                fingerprint=self._fingerprint,
                rng=name_states(random),
                facts=facts,
                ema=self.averages(),
            )
            self._prune(state)
        self._world.wait("the first process to write a checkpoint")

    def take_up(self, log: JsonLinesLog | NoLog, tell: Callable[[str], None]) -> TrainState | None:
        """Restore the newest sound checkpoint, with model, optimiser and log as they were then.

        Random numbers go on where they stood if there are as many processes as then; else all begin with fresh seeds.

        `log` is rewound; the processes that are not the first have none.

        Returns:
            Where the training stands; None if there is no checkpoint.

        Raises:
            ConfigError, DataError: as `fsachain.train.resume.restore_state`.
        """
        taken = None
        if isinstance(log, JsonLinesLog):
            found = take_up(
                self._folder,
                log,
                self._model,
                self._optimizer,
                fingerprint=self._fingerprint,
                needed=averaged_epochs(self._config),
                tell=tell,
            )
            if found is not None:
                self._prune(found[0])
                if self._ema is not None:
                    self._ema.load(found[1].ema)
                taken = (found[0], found[1].optimizer, found[1].rng, found[1].state)
        taken = self._world.from_first(taken)
        if taken is None:
            return None
        state, moments, random, facts = taken
        if not self._world.is_first:
            self._optimizer.load_state_dict(moments)
        self._world.copy_first({**self._model.state_dict(), **self._named_averages()})
        self._precision.factor, self._precision.good_steps = facts.get("precision", [1.0, 0])
        if facts.get("processes", 1) == self._world.size:
            try:
                restore_random(random, self._world.rank, self._device)
            except (KeyError, RuntimeError) as error:  # torch's, about a state of the wrong size
                raise DataError(
                    f"{self._folder}: the newest checkpoint's random states cannot be used ({error})"
                ) from error
        else:
            torch.manual_seed(fresh_seed(self._config.seed, state.step, self._world.rank))
        return state

    def averages(self) -> Tensors:
        """The moving averages of the parameters, by name; empty without any."""
        return {} if self._ema is None else self._ema.state()

    def _named_averages(self) -> Tensors:
        return {f"the moving average of {name}": value for name, value in self.averages().items()}

    def last_epochs(self) -> list[Path]:
        """The checkpoints whose models make the final one, oldest first."""
        return [epoch_end(self._folder, epoch) for epoch in averaged_epochs(self._config)]

    def average(self) -> dict[str, torch.Tensor]:
        """The mean of the models of `last_epochs`."""
        return average_checkpoints(self.last_epochs())

    def _prune(self, state: TrainState) -> None:
        keep = len(averaged_epochs(self._config)) + self._config.keep_checkpoints
        prune_checkpoints(self._folder, keep, state.best_epoch)
