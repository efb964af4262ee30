"""What is told about the utterances that take no part in a training, once for each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from fsachain.data.utterance import Fault, fault_table
from fsachain.errors import DataError, FsachainError
from fsachain.train.checkpoint import TrainState
from fsachain.train.log import JsonLinesLog, NoLog
from fsachain.train.progress import Progress
from fsachain.train.source import SupervisedBatch
from fsachain.train.step import StepOutcome
from fsachain.train.world import World

# What to tell a person about utterances that are left out, and about a training that no longer moves.


class DivergedError(FsachainError, ArithmeticError):
    """Several batches in a row gave numbers that are not finite."""


def describe_excluded(excluded: Sequence[Fault]) -> str:
    """The table of the utterances that take no part."""
    return f"{len(excluded)} utterances are left out (all are in train.jsonl):\n{fault_table(excluded)}"


def find_causes(model: nn.Module, parts: Sequence[SupervisedBatch], outcome: StepOutcome) -> list[str]:
    """Which numbers of a bad batch are not finite, from the input to the loss, as far as one process knows.

    `parts` are its micro-batches, and may be none.
    """
    causes = []
    broken = []
    for item in parts:
        frames = torch.isfinite(item.batch.features).flatten(1).all(dim=1).tolist()
        broken += [name for name, good in zip(item.batch.ids, frames, strict=True) if not good]
    if broken:
        causes.append(f"features that are not finite in {', '.join(broken)}")
    weights = [name for name, value in model.state_dict().items() if not bool(torch.isfinite(value).all())]
    if weights:
        causes.append(f"parameters that are not finite: {', '.join(weights[:3])}")
    if outcome.excluded:
        causes.append(
            f"sequences without a path, or with outputs that are not finite: {', '.join(outcome.excluded)}"
        )
    return causes


def diagnose(outcome: StepOutcome, causes: Iterable[str]) -> str:
    """One line about a bad batch, with the causes that all processes found."""
    told = list(dict.fromkeys(causes))
    if not told:
        if not math.isfinite(outcome.loss):
            told.append("a network output that is not finite")
        elif not math.isfinite(outcome.grad_norm):
            told.append("a gradient that is not finite")
        told.append("features and parameters are finite: try a lower learning rate or gradient norm")
    if outcome.overflow:
        told = ["a number too large for float16, the gradients of the next batches are scaled down"]
    return f"loss {outcome.loss:g}, gradient norm {outcome.grad_norm:g}; {'; '.join(told)}"


_PER_EVENT = 200  # utterances: a log is read line by line


def _records(faults: Sequence[Fault]) -> list[list[dict[str, Any]]]:
    """The faults for the log, a few hundred in an event."""
    records = [asdict(fault) for fault in faults]
    return [records[begin : begin + _PER_EVENT] for begin in range(0, len(records), _PER_EVENT)]


class LeftOut:
    """The faults that are known; sources that read while the training runs find more.

    Args:
        world: its processes may find different ones.
        log, progress: are told.
        bad_data: "exclude" or "stop", as in `TrainConfig`.
    """

    def __init__(self, world: World, log: JsonLinesLog | NoLog, progress: Progress, bad_data: str) -> None:
        self._world = world
        self._log = log
        self._progress = progress
        self._bad_data = bad_data
        self._known: dict[Fault, None] = {}  # in order

    @property
    def faults(self) -> tuple[Fault, ...]:
        """All that were told."""
        return tuple(self._known)

    def begin(self, faults: Iterable[Fault], **start: Any) -> None:
        """Tell of what is known when the training begins; `start` is written with it.

        Raises:
            DataError: there is some and `bad_data` is "stop".
        """
        new = self._add(faults)
        first, *others = _records(new) or [[]]
        self._log.write("start", **start, excluded=first)
        self._log_left_out(others)
        self._tell(new)

    def add(self, faults: Iterable[Fault]) -> None:
        """Tell of those that are new; called by all processes, each with what it found.

        Raises:
            DataError: there is some and `bad_data` is "stop".
        """
        new = self._add(faults)
        if new:
            self._log_left_out(_records(new))
            self._tell(new)

    def _log_left_out(self, records: Iterable[list[dict[str, Any]]]) -> None:
        for some in records:
            self._log.write("left_out", excluded=some)

    def _add(self, faults: Iterable[Fault]) -> list[Fault]:
        every = [fault for found in self._world.gather(list(faults)) for fault in found]
        new = [fault for fault in dict.fromkeys(every) if fault not in self._known]
        self._known |= dict.fromkeys(new)
        return new

    def _tell(self, new: list[Fault]) -> None:
        if new:
            self._progress.message(describe_excluded(new))
        if new and self._bad_data == "stop":
            raise DataError(
                f"{len(new)} utterances cannot be trained on and train.bad_data is 'stop'; the first: {new[0]}"
            )


# Batches that moved no parameter: told, counted, and the end of a training that has too many of them.


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
