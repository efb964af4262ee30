"""The training loop of an LF-MMI model: epochs, steps, evaluation, checkpoints."""

from __future__ import annotations

import ctypes
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from fsachain.asr.data.augment import AugmentConfig
from fsachain.asr.data.dataset import Example
from fsachain.asr.data.utterance import Fault
from fsachain.asr.train.advice import advice
from fsachain.asr.train.checkpoint import Checkpoints, Identity, TrainState, process_seed, save_tensors
from fsachain.asr.train.config import TrainConfig
from fsachain.asr.train.ending import make_final_model
from fsachain.asr.train.log import json_ready
from fsachain.asr.train.optimizer import Schedules, make_optimizer
from fsachain.asr.train.reporting import Progress, Reporter
from fsachain.asr.train.schedule import Scheduled
from fsachain.asr.train.source import BatchSource, Source, SupervisedBatch
from fsachain.asr.train.step import EpochSums, StepOutcome, Stepper
from fsachain.asr.train.stopping import MESSAGE, StoppedError, StopRequest
from fsachain.asr.train.world import World
from fsachain.backends import arrays
from fsachain.errors import ConfigError, brief, counted
from fsachain.files import locked
from fsachain.table import TransitionTable

Item = TypeVar("Item")


@dataclass(frozen=True)
class TrainResult:
    """What a training left behind: a table for each epoch (`epoch`, `train` and `dev` figures) and the final model's file.

    `dev` are the figures of the final model, whose parameters the model object has too, on the development set; `excluded`
    the utterances of both sets that took no part.
    """

    epochs: tuple[dict[str, Any], ...]
    dev: dict[str, Any] | None
    excluded: tuple[Fault, ...]
    model_path: Path

    __repr__ = brief


class Trainer:
    """Trains a model with an LF-MMI loss and leaves its final parameters in the model.

    In `directory` appear `checkpoints/`, `train.jsonl` (one JSON object per epoch and event) and
    `final.safetensors`. If checkpoints are there already, the training goes on from the newest one, exactly
    as if it had never stopped (bit for bit on a CPU), whenever it was killed. SIGTERM ends it after the running
    batch, with a checkpoint.

    Several processes train one model together where each makes a Trainer with a `World` of all of them, from the same
    arguments, and calls the same methods. The first one writes all files.

    Args:
        model: Called with (features [N, T, F], lengths [N]), returns a `NetworkOutput`; has `output_lengths`. If it
            has `constrain_orthonormal`, that is called every `config.orthonormal_every` steps.
        loss: A `fsachain.LFMMILoss`, or anything with its call, `objective` and `last_record`.
        config: Options.
        directory: Folder of this training.
        numerators: Numerator table by utterance id, for the training and development examples of `fit`.
        progress: Shows the training; nothing is shown by default. See `ShownProgress`.
        loss_schedules: Options of the loss that change while the training goes on; see `Schedules`.
        world: The processes that train together; None: this one alone.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Any,
        config: TrainConfig,
        directory: str | Path,
        *,
        numerators: Mapping[str, TransitionTable] | None = None,
        progress: Progress | None = None,
        loss_schedules: Mapping[str, Scheduled] | None = None,
        world: World | None = None,
    ) -> None:
        self.world = world or World.alone()
        self.model = model if self.world.device is None else model.to(self.world.device)
        self.loss = loss
        self.config = config
        self.directory = Path(directory)
        self._numerators = numerators or {}
        optimizer = make_optimizer(model, config.optimizer)
        self._schedules = Schedules(model, loss, optimizer, config, loss_schedules or {})
        self._stepper = Stepper(model, loss, optimizer, config, self.world)
        self._reporter = Reporter(self.directory / "train.jsonl", progress, config, self.world)
        self._state = TrainState()
        self._stop = StopRequest()
        self._equal_scores_objf = 0.0  # of a network that knows nothing; 0 before it is measured
        self._told_of_steps = False
        self._advised: set[str] = set()  # kinds of warnings that were given

    @property
    def progress(self) -> Progress:
        """Shows the training; may be replaced."""
        return self._reporter.progress

    @progress.setter
    def progress(self, progress: Progress) -> None:
        self._reporter.progress = progress

    def fit(
        self,
        train: Sequence[Example] | Sequence[Sequence[Example]],
        dev: Sequence[Example] = (),
        *,
        augmentation: AugmentConfig | None = None,
        reasons: Mapping[str, str] | None = None,
        left_out: Sequence[Fault] = (),
    ) -> TrainResult:
        """Train on examples in memory.

        Args:
            train: the examples, or several versions of them as for `BatchSource`.
            dev: examples for the objective after each epoch; none is fine.
            augmentation: changes of the training features.
            reasons: why an utterance has no numerator, for the report.
            left_out: as for `fit_sources`.

        Raises:
            DataError: no utterance is left to train on.
            Others: as for `fit_sources`.
        """
        versions: Any = [train] if not train or isinstance(train[0], Example) else train
        settings: dict[str, Any] = {
            "batch_size": self.config.batch_size,
            "batch_frames": self.config.batch_frames,
            "seed": self.config.seed,
            "reasons": reasons,
        }
        lengths: Any = self.model.output_lengths
        consistent = getattr(self.loss, "consistency", 0.0) or "consistency" in self._schedules.loss_options
        how: dict[str, Any] = {"augmentation": augmentation, "views": 2 if consistent else 1, **settings}
        source = BatchSource(versions, self._numerators, lengths, **how)
        dev_source = BatchSource([dev], self._numerators, lengths, **settings) if dev else None
        return self.fit_sources(source, dev_source, left_out=left_out)

    def fit_sources(
        self,
        source: Source,
        dev_source: Source | None = None,
        *,
        left_out: Sequence[Fault] = (),
        facts: Mapping[str, Any] | None = None,
        check: Callable[[Sequence[Fault]], None] | None = None,
    ) -> TrainResult:
        """Run all epochs that are left, make the final model of the last ones, evaluate.

        Args:
            source: the batches to train on.
            dev_source: utterances for the objective after each epoch; None is fine.
            left_out: utterances that are in no source because something is wrong with them; they are reported with
                those that the sources exclude.
            facts: more values, by name, for the `start` event of train.jsonl.
            check: called with the utterances that the sources exclude, before the first epoch and after each; it may raise.

        Raises:
            DataError: some utterances cannot be used and `config.bad_data` is "stop"; or no checkpoint is sound.
            ConfigError: the folder holds a training with other options or data, which are named, or one that is running.
                More epochs are fine where learning rate, dropout and options of the loss do not change by them.
            DivergedError: `config.max_bad_batches` batches in a row were not finite.
            StoppedError: SIGTERM came to one of the processes; the state is saved.
            WorldError: another process has ended.
            OSError: the disk is full or read-only; the checkpoints are as they were.
        """
        config, rank = self.config, self.world.rank
        self.world.take_threads(config.num_threads)
        torch.manual_seed(process_seed(config.seed, 0, rank) if rank else config.seed)
        if config.combine == "best-average" and dev_source is None:
            raise ConfigError(
                'train.combine: "best-average" is chosen on a development set, and there is none'
            )

        identity = Identity(config, source, dev_source, self._schedules)
        self._checkpoints = Checkpoints(self.directory / "checkpoints", self._stepper, config, identity)
        owned = locked(self.directory, "a training") if self.world.is_first else nullcontext()
        with owned, self._stop:
            try:
                state = self._checkpoints.resume(self._reporter.log, self.progress.message)
                if state is None:  # all processes begin with the first one's parameters
                    self.world.copy_first(self.model.state_dict())
                else:
                    self._state = state
                    self._reporter.resumed(state)
                known = (*left_out, *_excluded(source, dev_source))
                self._reporter.start(self.model, source, known, facts or {})
                self._check_excluded = check or (lambda excluded: None)
                self._check_excluded(_excluded(source, dev_source))
                while self._state.epoch < config.num_epochs:
                    self._run_epoch(source, dev_source)
                return self._finish(source, dev_source)
            except StoppedError:
                self._reporter.write("stopped", **self._state.position)
                raise
            finally:
                self.progress.close()

    def _run_epoch(self, source: Source, dev_source: Source | None) -> None:
        state, config = self._state, self.config
        self.progress.start_epoch(state.epoch + 1, config.num_epochs, source.num_batches, state.batch)
        self.model.train()
        num_steps = source.num_batches * config.num_epochs
        batches = source.batches(state.epoch, state.batch, self._stepper.share)
        if arrays.home_of(next(self.model.parameters())) == "cuda":
            batches = map(laid_out, batches)
        started, trimmed = time.perf_counter(), 0.0
        parts: Sequence[SupervisedBatch] = ()
        for waited, parts in prefetch(batches):
            self._schedules.apply(state.epoch * source.num_batches + state.batch, num_steps)
            outcome = self._train_step(parts)
            state.batch += 1
            now = time.perf_counter()
            if now - trimmed > _SECONDS_PER_TRIM:
                trim_heap()
                trimmed = now
            state.sums.data_seconds += waited
            state.sums.seconds += now - started
            started = now
            self.progress.batch(state.sums)
            every = config.checkpoint_every
            due = every and state.batch % every == 0 and state.batch < source.num_batches
            # Alone, a request is heeded at once; several processes stop after the step in which all have heard of it.
            stopping = self._stop.requested if self.world.size == 1 else outcome.stopping
            if due or stopping:
                self._checkpoints.save(state)
            if stopping:
                raise StoppedError(MESSAGE)
        self._end_epoch(source, dev_source, parts)

    def _train_step(self, parts: Sequence[SupervisedBatch]) -> StepOutcome:
        state = self._state
        outcome = self._stepper.step(parts, state.sums, lambda: self._stop.requested)
        if outcome.empty:
            return outcome
        if not outcome.usable:
            self._reporter.skipped(self.model, state, parts, outcome)
            return outcome
        state.bad_in_a_row = 0
        state.step += 1
        state.sums.limited_steps += self._stepper.limit.limited
        state.sums.limited_components += self._stepper.limit.limited_components
        every = self.config.orthonormal_every
        if every and state.step % every == 0 and hasattr(self.model, "constrain_orthonormal"):
            self.model.constrain_orthonormal()  # type: ignore[operator]
        return outcome

    def _end_epoch(self, source: Source, dev_source: Source | None, last: Sequence[SupervisedBatch]) -> None:
        """`last`: this process's part of the last batch."""
        state = self._state
        train = state.sums.summary()
        self._check_steps(train["objf"], last)
        dev = None if dev_source is None else self._evaluate(dev_source.in_order(self._stepper.share))
        state.epoch += 1
        state.epochs.append({"epoch": state.epoch, "train": train, "dev": dev})
        self._reporter.epoch(state, self._schedules.values, train, dev)
        for kind, text in advice(state.epochs, self.config.num_epochs).items():
            is_said = kind in self._advised or (kind == "fall" and self._told_of_steps)
            if not is_said:
                self._advised.add(kind)
                self._reporter.warn(text)
        state.batch = 0
        state.sums = EpochSums()
        self._checkpoints.save(state)
        self._reporter.left_out(_excluded(source, dev_source))
        self._check_excluded(_excluded(source, dev_source))
        if self.world.any(self._stop.requested):
            raise StoppedError(MESSAGE)

    def _check_steps(self, objf: float, batch: Sequence[SupervisedBatch]) -> None:
        """Say once that an epoch was worse than knowing nothing, as it is where steps are too large.

        Not of the first epoch, whose network may come from elsewhere. Numerators that forgive like equal scores: there a
        training that goes well was worse by 15 %.
        """
        if self._told_of_steps or objf >= _MUCH_WORSE * self._equal_scores_objf:
            return
        # Options of the loss may have changed since it was measured.
        equal = self._equal_scores_objf = self._stepper.evaluate([batch], equal_scores=True).summary()["objf"]
        if self._state.epoch and objf < _MUCH_WORSE * equal < 0:
            self._told_of_steps = True
            self._reporter.warn(
                f"epoch {self._state.epoch + 1}: objf {objf:.4f}, where a network that knows nothing has {equal:.4f}: steps "
                f"are most likely too large; try train.schedule.peak well below {self.config.schedule.peak:g}"
            )

    def _evaluate(self, batches: Iterable[Sequence[SupervisedBatch]]) -> dict[str, Any]:
        """A request to stop is heeded before the end of the batches."""

        def stoppable() -> Iterator[Sequence[SupervisedBatch]]:
            for parts in batches:
                if self.world.any(self._stop.requested):
                    if self._state.batch:
                        self._checkpoints.save(self._state)
                    raise StoppedError(MESSAGE)
                yield parts

        self._schedules.apply_final()
        return self._stepper.evaluate(stoppable()).summary()

    def _finish(self, source: Source, dev_source: Source | None) -> TrainResult:
        self.progress.start_ending()
        size, objf = make_final_model(
            self._stepper, self._checkpoints.final, self.config, source, dev_source, self._evaluate
        )
        dev = None if dev_source is None else self._evaluate(dev_source.in_order(self._stepper.share))
        self.model.eval()
        path = self.directory / "final.safetensors"
        facts = {"combine": self.config.combine, "candidates": objf}
        averaged = [path.name for path in self._checkpoints.final[-size:]]
        if self.world.is_first:
            header = {"averaged": averaged, "dev": json_ready(dev), **json_ready(facts)}
            save_tensors(path, self.model.state_dict(), header)
        best = self._state.best_epoch
        self._reporter.write("end", dev=dev, averaged=size, **facts, best_epoch=best)
        if dev is not None:
            made = f"mean of {counted(size, 'epoch')}" if size > 1 else "that of the last epoch"
            among = f", the best of {counted(len(objf), 'candidate')}" if objf else ""
            self.progress.message(f"final model, {made}{among}: dev objf {dev['objf']:.4f}")
        return TrainResult(tuple(self._state.epochs), dev, self._reporter.faults, path)


def _excluded(source: Source, dev_source: Source | None) -> tuple[Fault, ...]:
    return source.excluded + (() if dev_source is None else dev_source.excluded)


_MUCH_WORSE = 1.5
_SECONDS_PER_TRIM = 3.0  # it takes some 50 ms


def trim_heap() -> None:
    """Give back to the system what glibc keeps free: holes that batches of ever other lengths leave, hundreds of MB."""
    if sys.platform == "linux":
        getattr(ctypes.CDLL(None), "malloc_trim", lambda keep: 0)(0)


def laid_out(parts: tuple[SupervisedBatch, ...]) -> tuple[SupervisedBatch, ...]:
    """Numerators as a GPU reads them, by the thread that makes batches ahead of their use."""
    for part in parts:
        part.numerators.lay_out()
    return parts


def prefetch(items: Iterable[Item], depth: int = 2) -> Iterator[tuple[float, Item]]:
    """Each item with the seconds spent waiting for it. A thread makes up to `depth` ahead; its errors are raised here."""
    end: Any = object()
    make = partial(next, iter(items), end)
    pool = ThreadPoolExecutor(1, "fsachain-prefetch")
    try:
        ahead = deque(pool.submit(make) for _ in range(depth))
        while True:
            started = time.perf_counter()
            item = ahead.popleft().result()
            if item is end:
                return
            ahead.append(pool.submit(make))
            yield time.perf_counter() - started, item
    finally:
        pool.shutdown(cancel_futures=True)
