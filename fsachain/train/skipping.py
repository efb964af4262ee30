"""Batches that moved no parameter: told, counted, and the end of a training that has too many of them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from fsachain.train.diagnosis import DivergedError, diagnose, find_causes
from fsachain.train.log import JsonLinesLog, NoLog
from fsachain.train.progress import Progress
from fsachain.train.source import SupervisedBatch
from fsachain.train.state import TrainState
from fsachain.train.step import StepOutcome
from fsachain.train.world import World


class Skipping:
    """Notes the batches that are skipped.

    Args:
        model: is looked at for the reason.
        world: all of its processes skip the same batches.
        log, progress: are told.
        limit: so many in a row end the training.
    """

    def __init__(
        self, model: nn.Module, world: World, log: JsonLinesLog | NoLog, progress: Progress, limit: int
    ) -> None:
        self._model = model
        self._world = world
        self._log = log
        self._progress = progress
        self._limit = limit

    def note(self, state: TrainState, parts: Sequence[SupervisedBatch], outcome: StepOutcome) -> None:
        """Note a batch, of which `parts` are this process's micro-batches, in the state.

        Raises:
            DivergedError: there were too many in a row. What float16 cannot hold does not count.
        """
        state.sums.skipped_batches += 1
        mine = [name for item in parts for name in item.batch.ids]
        found = self._world.gather((mine, find_causes(self._model, parts, outcome)))
        utterances = [name for names, _ in found for name in names]
        diagnosis = diagnose(outcome, [cause for _, causes in found for cause in causes])
        epoch, names = state.epoch + 1, ", ".join(utterances)
        self._progress.message(f"epoch {epoch}: batch skipped ({names}): {diagnosis}")
        self._log.write("skipped", epoch=epoch, batch=state.batch, utterances=utterances, diagnosis=diagnosis)
        if outcome.overflow:
            return
        state.bad_in_a_row += 1
        if state.bad_in_a_row >= self._limit:
            raise DivergedError(
                f"{state.bad_in_a_row} batches in a row were not finite (train.max_bad_batches); the last, {names}: "
                f"{diagnosis}"
            )
