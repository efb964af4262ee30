"""Reports of a training: to a person by a bar or by lines, to programs by `train.jsonl`."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import nn

from fsachain import progress
from fsachain.asr.data.utterance import Fault, told_left_out
from fsachain.asr.train.checkpoint import TrainState
from fsachain.asr.train.config import TrainConfig, to_dict
from fsachain.asr.train.log import JsonLinesLog
from fsachain.asr.train.source import Source, SupervisedBatch
from fsachain.asr.train.step import EpochSums, StepOutcome
from fsachain.asr.train.world import World
from fsachain.errors import DataError, FsachainError, counted

REFRESH_SECONDS = 0.25
_PER_EVENT = 200  # utterances in one line of the log


class DivergedError(FsachainError, ArithmeticError):
    """Several batches in a row gave numbers that are not finite."""


class Progress:
    """What a person sees while a training runs; this base class shows nothing."""

    def start_epoch(self, epoch: int, num_epochs: int, num_batches: int, done: int) -> None:
        """Epoch `epoch`, counted from 1, begins with `done` of its batches behind it."""

    def batch(self, sums: EpochSums) -> None:
        """A batch is done; `sums` covers the epoch so far."""

    def end_epoch(self, epoch: int, train: dict[str, Any], dev: dict[str, Any] | None) -> None:
        """The epoch is over; the tables are `EpochSums.summary()`."""

    def start_ending(self) -> None:
        """The final model is about to be made of those of the last epochs."""

    def message(self, text: str) -> None:
        """Something worth a line, such as the utterances that were left out."""

    def close(self) -> None:
        """The training is over or was broken off."""


class ShownProgress(Progress):
    """For a person, on `stream` (default: standard error): a bar for each epoch, or lines; a line per epoch and message."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._num_epochs = self._num_batches = 0
        self._epoch = ExitStack()
        self._update: progress.Update | None = None
        self._drawn = 0.0

    def start_epoch(self, epoch: int, num_epochs: int, num_batches: int, done: int) -> None:
        self.close()
        self._num_epochs, self._num_batches = num_epochs, num_batches
        shown = progress.counter(f"epoch {epoch}/{num_epochs}", self._stream)
        self._update = self._epoch.enter_context(shown)
        self._update(done, num_batches)

    def batch(self, sums: EpochSums) -> None:
        now, last = time.monotonic(), sums.batches == self._num_batches
        if self._update and (last or now - self._drawn >= REFRESH_SECONDS):  # small steps are not slowed down
            self._drawn = now
            self._update(sums.batches, self._num_batches, figures(sums.summary()))

    def end_epoch(self, epoch: int, train: dict[str, Any], dev: dict[str, Any] | None) -> None:
        line = f"epoch {epoch:>3}/{self._num_epochs}  {figures(train)}"
        self.message(line if dev is None else f"{line}; dev objf {dev['objf']:.4f}")

    def start_ending(self) -> None:
        self.close()
        self._epoch.enter_context(progress.counter("final model", self._stream))

    def message(self, text: str) -> None:
        progress.message(text, self._stream)  # above a bar, which takes the place of standard error

    def close(self) -> None:
        self._epoch.close()


def figures(summary: dict[str, Any]) -> str:
    text = (
        f"objf {summary['objf']:.4f} (num {summary['num']:.3f}, den {summary['den']:.3f}) "
        f"{summary['frames_per_second']:,.0f} frames/s, loss {100 * summary['loss_share']:.0f} % of time, "
        f"waiting for data {100 * summary['data_share']:.0f} %"
    )
    if "deleted" in summary:
        wrong = f"{100 * summary['substituted']:.0f} / {100 * summary['inserted']:.0f}"
        text += f", of 100 words {wrong} substituted / inserted, {100 * summary['deleted']:.0f} deletions"
    if summary["excluded"]:
        text += f", {summary['excluded']} excluded"
    if summary["skipped_batches"]:
        text += f", {counted(summary['skipped_batches'], 'batch')} skipped"
    return text


class Reporter:
    """Reports the events of one training; silent in processes other than the first.

    All processes call `start`, `left_out` and `skipped`, each with what it found. `faults` are the excluded utterances
    reported so far; sources that read while the training runs find more.
    """

    def __init__(self, path: Path, progress: Progress | None, config: TrainConfig, world: World) -> None:
        self.log = JsonLinesLog(path) if world.is_first else None
        self.progress = (progress if world.is_first else None) or Progress()
        self._config = config
        self._world = world
        self._faults: dict[Fault, None] = {}  # in order

    @property
    def faults(self) -> tuple[Fault, ...]:
        return tuple(self._faults)

    def write(self, event: str, **values: Any) -> None:
        if self.log is not None:
            self.log.write(event, **values)

    def warn(self, text: str) -> None:
        self.write("warning", text=text)
        self.progress.message(f"WARNING: {text}")

    def resumed(self, state: TrainState) -> None:
        self.write("resume", **state.position, processes=self._world.size)
        self.progress.message(
            f"continuing after {counted(state.epoch, 'epoch')} and {counted(state.batch, 'batch')}"
        )

    def start(
        self, model: nn.Module, source: Source, faults: Iterable[Fault], facts: Mapping[str, Any]
    ) -> None:
        """`facts` are more values of the event; raises as `left_out`."""
        new = self._new(faults)
        first, *others = _records(new) or [[]]
        self.write(
            "start",
            utterances=source.num_utterances,
            batches=source.num_batches,
            processes=self._world.size,
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            config=to_dict(self._config),
            **facts,
            excluded=first,
        )
        self._tell(new, others)

    def left_out(self, faults: Iterable[Fault]) -> None:
        """Report utterances not reported before; DataError where `bad_data` is "stop"."""
        new = self._new(faults)
        self._tell(new, _records(new))

    def _new(self, faults: Iterable[Fault]) -> list[Fault]:
        every = [fault for found in self._world.gather(list(faults)) for fault in found]
        new = [fault for fault in dict.fromkeys(every) if fault not in self._faults]
        self._faults |= dict.fromkeys(new)
        return new

    def _tell(self, new: list[Fault], records: list[list[dict[str, Any]]]) -> None:
        for some in records:
            self.write("left_out", excluded=some)
        if not new:
            return
        self.progress.message(told_left_out(new, " (all are in train.jsonl)"))
        if self._config.bad_data == "stop":
            raise DataError(
                f"{counted(len(new), 'utterance')} cannot be trained on and train.bad_data is 'stop'; the first: {new[0]}"
            )

    def epoch(
        self,
        state: TrainState,
        scheduled: dict[str, float],
        train: dict[str, Any],
        dev: dict[str, Any] | None,
    ) -> None:
        """Called while the sums of the epoch are still in the state."""
        names = state.sums.left_out()
        self.write(
            "epoch", epoch=state.epoch, step=state.step, **scheduled, train=train, dev=dev, excluded=names
        )
        self.progress.end_epoch(state.epoch, train, dev)

    def skipped(
        self, model: nn.Module, state: TrainState, parts: Sequence[SupervisedBatch], outcome: StepOutcome
    ) -> None:
        """Count a batch that moved no parameter; `parts` are this process's micro-batches of it.

        Too many in a row are a DivergedError. An overflow of float16 does not count.
        """
        state.sums.skipped_batches += 1
        mine = [name for item in parts for name in item.batch.ids]
        found = self._world.gather((mine, find_causes(model, parts, outcome)))
        utterances = [name for names, _ in found for name in names]
        diagnosis = diagnose(outcome, [cause for _, causes in found for cause in causes])
        epoch, names = state.epoch + 1, ", ".join(utterances)
        self.progress.message(f"epoch {epoch}: batch skipped ({names}): {diagnosis}")
        self.write("skipped", epoch=epoch, batch=state.batch, utterances=utterances, diagnosis=diagnosis)
        if outcome.overflow:
            return
        state.bad_in_a_row += 1
        if state.bad_in_a_row >= self._config.max_bad_batches:
            raise DivergedError(
                f"{counted(state.bad_in_a_row, 'batch')} in a row were not finite (train.max_bad_batches); "
                f"the last, {names}: "
                f"{diagnosis}"
            )


def _records(faults: Sequence[Fault]) -> list[list[dict[str, Any]]]:
    records = [asdict(fault) for fault in faults]
    return [records[begin : begin + _PER_EVENT] for begin in range(0, len(records), _PER_EVENT)]


def find_causes(model: nn.Module, parts: Sequence[SupervisedBatch], outcome: StepOutcome) -> list[str]:
    """Which numbers of a bad batch are not finite, from the input to the loss, in this process alone."""
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
    """`causes` are those of all processes."""
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
