"""The training loop of an LF-MMI model.

Epochs, checkpoints, log and progress are here; what happens to one batch is in `step.py`, which utterances
take part is in `source.py`.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from fsachain.data.augment import AugmentConfig
from fsachain.data.dataset import Example
from fsachain.data.utterance import Fault
from fsachain.files import locked
from fsachain.table import TransitionTable
from fsachain.train.checkpoint import Keeper, TrainResult, TrainState, begin_random, fingerprint, save_tensors
from fsachain.train.config import TrainConfig, to_dict
from fsachain.train.ending import Finisher, check_ending
from fsachain.train.exclusions import LeftOut, Skipping
from fsachain.train.log import JsonLinesLog, NoLog, json_ready
from fsachain.train.optimizer import ParameterEma, Schedules, make_optimizer
from fsachain.train.progress import NoProgress, Progress
from fsachain.train.schedule import Scheduled
from fsachain.train.source import BatchSource, Source, SupervisedBatch, versions_of
from fsachain.train.stats import EpochSums
from fsachain.train.step import StepOutcome, Stepper
from fsachain.train.stopping import MESSAGE, StoppedError, StopRequest
from fsachain.train.world import World

# Items made ahead of their use by a thread, and how long one had to wait for them.

Item = TypeVar("Item")


def prefetch(items: Iterable[Item], depth: int = 2) -> Iterator[Item]:
    """The same items, up to `depth` of them made ahead by a thread; its errors are raised here."""
    ready: queue.Queue[tuple[str, Item | BaseException | None]] = queue.Queue(depth)
    stopped = threading.Event()

    def put(kind: str, value: Item | BaseException | None) -> None:
        while not stopped.is_set():
            try:
                ready.put((kind, value), timeout=0.1)
                return
            except queue.Full:
                continue

    def produce() -> None:
        try:
            for item in items:
                put("item", item)
                if stopped.is_set():
                    return
        except BaseException as error:  # the consumer raises it
            put("error", error)
        else:
            put("end", None)

    thread = threading.Thread(target=produce, name="fsachain-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            kind, value = ready.get()
            if kind == "end":
                return
            if isinstance(value, BaseException):
                raise value
            yield value  # type: ignore[misc]
    finally:
        stopped.set()
        thread.join()


def timed(items: Iterable[Item]) -> Iterator[tuple[float, Item]]:
    """Each item with the seconds that it took to get it."""
    started = time.perf_counter()
    for item in items:
        yield time.perf_counter() - started, item
        started = time.perf_counter()


class Trainer:
    """Trains a model with an LF-MMI loss and leaves its final parameters in the model.

    In `directory` appear `checkpoints/`, `train.jsonl` (one JSON object per epoch and event) and
    `final.safetensors`. If checkpoints are there already, the training goes on from the newest one, exactly
    as if it had never stopped (bit for bit on a CPU), whenever it was killed. SIGTERM ends it after the running
    batch, with a checkpoint.

    Several processes train one model together where each makes a Trainer with a `World` of all of them, from the same
    arguments, and calls the same methods. The first one writes all files.

    Args:
        model: Called with (features [N, T, F], lengths [N]), returns an `Output`; has `output_lengths`. If it
            has `constrain_orthonormal`, that is called every `config.orthonormal_every` steps.
        loss: A `fsachain.LFMMILoss`, or anything with its call, `objective` and `last_record`.
        config: Options.
        directory: Folder of this training.
        numerators: Numerator table by utterance id, for the training and development examples of `fit`.
        progress: Shows the training; nothing is shown by default. See `make_progress`.
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
        self.progress = (progress if self.world.is_first else None) or NoProgress()
        self._numerators = numerators or {}
        self._optimizer = make_optimizer(model, config.optimizer)
        self._schedules = Schedules(model, loss, self._optimizer, config, loss_schedules or {})
        self._ema = ParameterEma(model, config.ema) if config.ema else None
        self._stepper = Stepper.configured(model, loss, self._optimizer, config, self.world)
        self._log = JsonLinesLog(self.directory / "train.jsonl") if self.world.is_first else NoLog()
        self._state = TrainState()
        self._stop = StopRequest()

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
            train: The examples, or several versions of them as for `BatchSource`.
            dev: Examples for the objective after each epoch; none is fine.
            augmentation: Changes of the training features.
            reasons: Why an utterance has no numerator, for the report.
            left_out: As for `fit_sources`.

        Raises:
            DataError: no utterance is left to train on.
            Others as `fit_sources`.
        """
        settings: dict[str, Any] = {
            "batch_size": self.config.batch_size,
            "batch_frames": self.config.batch_frames,
            "seed": self.config.seed,
            "reasons": reasons,
        }
        lengths: Any = self.model.output_lengths
        source = BatchSource(
            versions_of(train), self._numerators, lengths, augmentation=augmentation, **settings
        )
        dev_source = BatchSource([dev], self._numerators, lengths, **settings) if dev else None
        return self.fit_sources(source, dev_source, left_out=left_out)

    def fit_sources(
        self, source: Source, dev_source: Source | None = None, *, left_out: Sequence[Fault] = ()
    ) -> TrainResult:
        """Run all epochs that are left, make the final model of the last ones, evaluate.

        Args:
            source: The batches to train on.
            dev_source: Utterances for the objective after each epoch; None is fine.
            left_out: Utterances that are in no source because something is wrong with them; they are reported with
                those that the sources exclude.

        Raises:
            DataError: some utterances cannot be used and `config.bad_data` is "stop"; or no checkpoint is sound.
            ConfigError: the folder holds a training with other options or data, or one that is running.
            DivergedError: `config.max_bad_batches` batches in a row were not finite.
            StoppedError: SIGTERM came to one of the processes; the state is saved.
            WorldError: another process has ended.
            OSError: the disk is full or read-only; the checkpoints are as they were.
        """
        self.world.take_threads(self.config.num_threads)
        begin_random(self.config.seed, self.world.rank)
        check_ending(self.config, dev_source)
        identity = fingerprint(self.config, source.fingerprint(), self._schedules.loss_options)
        self._keeper = Keeper(
            self.directory / "checkpoints",
            self.model,
            self._optimizer,
            self.config,
            identity,
            world=self.world,
            precision=self._stepper.passes.precision,
            ema=self._ema,
        )
        self._left_out = LeftOut(self.world, self._log, self.progress, self.config.bad_data)
        self._skipping = Skipping(
            self.model, self.world, self._log, self.progress, self.config.max_bad_batches
        )
        owned = locked(self.directory, "a training") if self.world.is_first else nullcontext()
        with owned, self._stop:
            try:
                self._resume()
                self._begin(source, dev_source, left_out)
                while self._state.epoch < self.config.num_epochs:
                    self._run_epoch(source, dev_source)
                return self._finish(source, dev_source)
            except StoppedError:
                self._log.write("stopped", **self._position())
                raise
            finally:
                self.progress.close()

    def _run_epoch(self, source: Source, dev_source: Source | None) -> None:
        number = self._state.epoch + 1
        self.progress.start_epoch(number, self.config.num_epochs, source.num_batches, self._state.batch)
        self.model.train()
        num_steps = source.num_batches * self.config.num_epochs
        started = time.perf_counter()
        for waited, parts in timed(
            prefetch(source.batches(self._state.epoch, self._state.batch, self._stepper.share))
        ):
            done = self._state.epoch * source.num_batches + self._state.batch
            self._schedules.apply(done, num_steps)
            outcome = self._train_step(parts)
            self._state.batch += 1
            now = time.perf_counter()
            self._state.sums.data_seconds += waited
            self._state.sums.seconds += now - started
            started = now
            self.progress.batch(self._state.sums)
            every = self.config.checkpoint_every
            due = every and self._state.batch % every == 0 and self._state.batch < source.num_batches
            # Alone, a request is heeded at once; several processes stop after the step in which all have heard of it.
            stopping = self._stop.requested if self.world.size == 1 else outcome.stopping
            if due or stopping:
                self._keeper.save(self._state)
            if stopping:
                raise StoppedError(MESSAGE)
        self._end_epoch(source, dev_source)

    def _end_epoch(self, source: Source, dev_source: Source | None) -> None:
        train = self._state.sums.summary()
        dev = self._evaluate(dev_source)
        self._state.epoch += 1
        self._state.epochs.append({"epoch": self._state.epoch, "train": train, "dev": dev})
        figures = {**self._schedules.values, "train": train, "dev": dev}
        names = self._state.sums.left_out()
        self._log.write("epoch", epoch=self._state.epoch, step=self._state.step, **figures, excluded=names)
        self.progress.end_epoch(self._state.epoch, train, dev)
        self._state.batch = 0
        self._state.sums = EpochSums()
        self._keeper.save(self._state)
        self._left_out.add(source.excluded + (dev_source.excluded if dev_source else ()))
        if self.world.any(self._stop.requested):
            raise StoppedError(MESSAGE)

    def _evaluate(self, dev_source: Source | None) -> dict[str, Any] | None:
        """Figures on the development set, if there is one."""
        return None if dev_source is None else self._figures(dev_source)

    def _figures(self, source: Any) -> dict[str, Any]:
        """Figures of the model as it is now; a request to stop need not wait for the end of the source."""

        def before_batch() -> None:
            stopping = self.world.any(self._stop.requested)
            if stopping and self._state.batch:
                self._keeper.save(self._state)
            if stopping:
                raise StoppedError(MESSAGE)

        self._schedules.apply_final()
        return self._stepper.evaluate(source, before_batch).summary()

    def _train_step(self, parts: Sequence[SupervisedBatch]) -> StepOutcome:
        outcome = self._stepper.step(parts, self._state.sums, lambda: self._stop.requested)
        if outcome.empty:
            return outcome
        if not outcome.usable:
            self._skipping.note(self._state, parts, outcome)
            return outcome
        self._state.bad_in_a_row = 0
        self._state.step += 1
        self._state.sums.limited_steps += self._stepper.limit.limited
        self._state.sums.limited_components += self._stepper.limit.limited_components
        every = self.config.orthonormal_every
        if every and self._state.step % every == 0 and hasattr(self.model, "constrain_orthonormal"):
            self.model.constrain_orthonormal()  # type: ignore[operator]
        if self._ema is not None:
            self._ema.update(self._state.step)
        return outcome

    def _resume(self) -> None:
        """Take up the newest sound checkpoint, if there is one; all processes begin with the first one's parameters."""
        state = self._keeper.take_up(self._log, self.progress.message)
        if state is None:
            self.world.copy_first(self.model.state_dict())
            if self._ema is not None:
                self._ema.restart()
            return
        self._state = state
        self._log.write("resume", **self._position(), processes=self.world.size)
        self.progress.message(f"continuing after {state.epoch} epochs and {state.batch} batches")

    def _position(self) -> dict[str, int]:
        return {"epoch": self._state.epoch, "batch": self._state.batch, "step": self._state.step}

    def _begin(self, source: Source, dev_source: Source | None, left_out: Sequence[Fault]) -> None:
        self._left_out.begin(
            (*left_out, *source.excluded, *(dev_source.excluded if dev_source else ())),
            utterances=source.num_utterances,
            batches=source.num_batches,
            processes=self.world.size,
            parameters=sum(parameter.numel() for parameter in self.model.parameters()),
            config=to_dict(self.config),
        )

    def _finish(self, source: Source, dev_source: Source | None) -> TrainResult:
        """Make the final model, evaluate, write."""
        finisher = Finisher(self._stepper, self._keeper, self.config, source, dev_source, self._figures)
        ending = finisher.finish()
        dev = self._evaluate(dev_source)
        self.model.eval()
        path = self.directory / "final.safetensors"
        facts = {"combine": self.config.combine, "candidates": ending.objf}
        if self.world.is_first:
            header = {"averaged": ending.averaged, "dev": json_ready(dev), **json_ready(facts)}
            save_tensors(path, self.model.state_dict(), header)
        best = self._state.best_epoch
        self._log.write("end", dev=dev, averaged=len(ending.averaged), **facts, best_epoch=best)
        if dev is not None:
            self.progress.message(f"final model, {ending.text}: dev objf {dev['objf']:.4f}")
        return TrainResult(tuple(self._state.epochs), dev, self._left_out.faults, path)
