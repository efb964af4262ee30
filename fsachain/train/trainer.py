"""The training loop of an LF-MMI model.

Epochs, checkpoints, log and progress are here; what happens to one batch is in `step.py`, which utterances
take part is in `source.py`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fsachain.data.augment import AugmentConfig
from fsachain.data.dataset import Example
from fsachain.data.faults import Fault
from fsachain.errors import DataError
from fsachain.files import locked
from fsachain.table import TransitionTable
from fsachain.train.batch_norm import refresh_batch_norm
from fsachain.train.checkpoint import average_checkpoints, epoch_end, prune_checkpoints, save_tensors
from fsachain.train.config import TrainConfig, to_dict
from fsachain.train.diagnosis import DivergedError, describe_excluded, diagnose
from fsachain.train.log import JsonLinesLog, json_ready
from fsachain.train.optimizer import make_optimizer, set_learning_rate
from fsachain.train.progress import NoProgress, Progress
from fsachain.train.resume import take_up
from fsachain.train.schedule import learning_rate
from fsachain.train.source import BatchSource, SupervisedBatch, prefetch, timed
from fsachain.train.state import TrainResult, TrainState, averaged_epochs, fingerprint, save_state
from fsachain.train.stats import EpochSums
from fsachain.train.step import StepOutcome, Stepper
from fsachain.train.stopping import StoppedError, StopRequest


class Trainer:
    """Trains a model with an LF-MMI loss and leaves its final parameters in the model.

    In `directory` appear `checkpoints/`, `train.jsonl` (one JSON object per epoch and event) and
    `final.safetensors`. If checkpoints are there already, the training goes on from the newest one, exactly
    as if it had never stopped (bit for bit on a CPU), whenever it was killed. SIGTERM ends it after the running
    batch, with a checkpoint.

    Args:
        model: Called with (features [N, T, F], lengths [N]), returns an `Output`; has `output_lengths`. If it
            has `constrain_orthonormal`, that is called every `config.orthonormal_every` steps.
        loss: A `fsachain.LFMMILoss`, or anything with its call, `objective` and `last_record`.
        config: Options.
        directory: Folder of this training.
        numerators: Numerator table by utterance id, for training and development.
        progress: Shows the training; nothing is shown by default. See `make_progress`.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Any,
        config: TrainConfig,
        directory: str | Path,
        *,
        numerators: Mapping[str, TransitionTable],
        progress: Progress | None = None,
    ) -> None:
        self.model = model
        self.loss = loss
        self.config = config
        self.directory = Path(directory)
        self.progress = progress or NoProgress()
        self._numerators = numerators
        self._optimizer = make_optimizer(model, config.optimizer)
        self._stepper = Stepper(model, loss, self._optimizer, config.optimizer.max_grad_norm)
        self._log = JsonLinesLog(self.directory / "train.jsonl")
        self._checkpoints = self.directory / "checkpoints"
        self._state = TrainState()
        self._fingerprint = ""
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
        """Run all epochs that are left, average the last models, evaluate.

        Args:
            train: The examples, or several versions of them as for `BatchSource`.
            dev: Examples for the objective after each epoch; none is fine.
            augmentation: Changes of the training features.
            reasons: Why an utterance has no numerator, for the report.
            left_out: Utterances that are not among the examples because something is wrong with them; they are
                reported with those that are excluded here.

        Raises:
            DataError: no utterance is left to train on; or some cannot be used and `config.bad_data` is "stop"; or
                no checkpoint is sound.
            ConfigError: the folder holds a training with other options or data, or one that is running.
            DivergedError: `config.max_bad_batches` batches in a row were not finite.
            StoppedError: SIGTERM came; the state is saved.
            OSError: the disk is full or read-only; the checkpoints are as they were.
        """
        if self.config.num_threads != 0:
            torch.set_num_threads(self.config.num_threads or os.cpu_count() or 1)
        source = self._source(_variants(train), augmentation, reasons)
        dev_source = self._source([dev], None, reasons) if dev else None
        excluded = tuple(left_out) + source.excluded + (dev_source.excluded if dev_source else ())
        torch.manual_seed(self.config.seed)
        self._fingerprint = fingerprint(self.config, augmentation, source.fingerprint())
        with locked(self.directory, "a training"), self._stop:
            try:
                self._resume()
                self._report_start(source, excluded)
                while self._state.epoch < self.config.num_epochs:
                    self._run_epoch(source, dev_source)
                return self._finish(source, dev_source, excluded)
            except StoppedError:
                self._log.write("stopped", **self._position())
                raise
            finally:
                self.progress.close()

    def _source(
        self,
        variants: Sequence[Sequence[Example]],
        augmentation: AugmentConfig | None,
        reasons: Mapping[str, str] | None,
    ) -> BatchSource:
        return BatchSource(
            variants,
            self._numerators,
            self.model.output_lengths,  # type: ignore[arg-type]
            batch_size=self.config.batch_size,
            seed=self.config.seed,
            augmentation=augmentation,
            reasons=reasons,
        )

    def _run_epoch(self, source: BatchSource, dev_source: BatchSource | None) -> None:
        number = self._state.epoch + 1
        self.progress.start_epoch(number, self.config.num_epochs, source.num_batches, self._state.batch)
        self.model.train()
        num_steps = source.num_batches * self.config.num_epochs
        started = time.perf_counter()
        for waited, item in timed(prefetch(source.batches(self._state.epoch, self._state.batch))):
            done = self._state.epoch * source.num_batches + self._state.batch
            set_learning_rate(self._optimizer, learning_rate(self.config.schedule, done, num_steps))
            self._train_step(item)
            self._state.batch += 1
            now = time.perf_counter()
            self._state.sums.data_seconds += waited
            self._state.sums.seconds += now - started
            started = now
            self.progress.batch(self._state.sums)
            every = self.config.checkpoint_every
            due = every and self._state.batch % every == 0 and self._state.batch < source.num_batches
            if due or self._stop.requested:
                self._save()
            self._stop.check()
        self._end_epoch(dev_source)

    def _end_epoch(self, dev_source: BatchSource | None) -> None:
        train = self._state.sums.summary()
        dev = self._evaluate(dev_source)
        self._state.epoch += 1
        self._state.epochs.append({"epoch": self._state.epoch, "train": train, "dev": dev})
        rate = self._optimizer.param_groups[0]["lr"]
        figures = {"learning_rate": rate, "train": train, "dev": dev}
        names = sorted(set(self._state.sums.excluded))
        self._log.write("epoch", epoch=self._state.epoch, step=self._state.step, **figures, excluded=names)
        self.progress.end_epoch(self._state.epoch, train, dev)
        self._state.batch = 0
        self._state.sums = EpochSums()
        self._save()
        self._stop.check()

    def _evaluate(self, dev_source: BatchSource | None) -> dict[str, Any] | None:
        """Figures on the development set; a request to stop need not wait for its end."""
        if dev_source is None:
            return None

        def before_batch() -> None:
            if self._stop.requested and self._state.batch:
                self._save()
            self._stop.check()

        return self._stepper.evaluate(dev_source, before_batch).summary()

    def _train_step(self, item: SupervisedBatch) -> None:
        outcome = self._stepper.step(item, self._state.sums)
        if not outcome.usable:
            self._skip(item, outcome)
            return
        self._state.bad_in_a_row = 0
        self._state.step += 1
        every = self.config.orthonormal_every
        if every and self._state.step % every == 0 and hasattr(self.model, "constrain_orthonormal"):
            self.model.constrain_orthonormal()  # type: ignore[operator]

    def _skip(self, item: SupervisedBatch, outcome: StepOutcome) -> None:
        """Note a batch that moved no parameter; give up after too many in a row."""
        self._state.bad_in_a_row += 1
        self._state.sums.skipped_batches += 1
        epoch, names = self._state.epoch + 1, ", ".join(item.batch.ids)
        diagnosis = diagnose(self.model, item, outcome)
        self.progress.message(f"epoch {epoch}: batch skipped ({names}): {diagnosis}")
        utterances = list(item.batch.ids)
        self._log.write(
            "skipped", epoch=epoch, batch=self._state.batch, utterances=utterances, diagnosis=diagnosis
        )
        in_a_row = self._state.bad_in_a_row
        if in_a_row >= self.config.max_bad_batches:
            raise DivergedError(
                f"{in_a_row} batches in a row were not finite (train.max_bad_batches); the last, {names}: {diagnosis}"
            )

    def _save(self) -> None:
        save_state(self._checkpoints, self._state, self.model, self._optimizer, fingerprint=self._fingerprint)
        self._prune()

    def _prune(self) -> None:
        keep = self.config.average_last + self.config.keep_checkpoints
        prune_checkpoints(self._checkpoints, keep, self._state.best_epoch)

    def _resume(self) -> None:
        """Take up the newest sound checkpoint, if there is one."""
        state = take_up(
            self._checkpoints,
            self._log,
            self.model,
            self._optimizer,
            fingerprint=self._fingerprint,
            needed=averaged_epochs(self.config),
            tell=self.progress.message,
        )
        if state is None:
            return
        self._state = state
        self._prune()
        self._log.write("resume", **self._position())
        self.progress.message(f"continuing after {state.epoch} epochs and {state.batch} batches")

    def _position(self) -> dict[str, int]:
        return {"epoch": self._state.epoch, "batch": self._state.batch, "step": self._state.step}

    def _report_start(self, source: BatchSource, excluded: tuple[Fault, ...]) -> None:
        if excluded:
            self.progress.message(describe_excluded(excluded))
        self._log.write(
            "start",
            utterances=source.num_utterances,
            batches=source.num_batches,
            parameters=sum(parameter.numel() for parameter in self.model.parameters()),
            config=to_dict(self.config),
            excluded=[asdict(entry) for entry in excluded],
        )
        if excluded and self.config.bad_data == "stop":
            raise DataError(
                f"{len(excluded)} utterances cannot be trained on and train.bad_data is 'stop'; the first: {excluded[0]}"
            )

    def _finish(
        self, source: BatchSource, dev_source: BatchSource | None, excluded: tuple[Fault, ...]
    ) -> TrainResult:
        """Average the last epochs, refresh the statistics that averaging leaves stale, evaluate, write."""
        paths = [epoch_end(self._checkpoints, epoch) for epoch in averaged_epochs(self.config)]
        if len(paths) > 1:
            self.model.load_state_dict(average_checkpoints(paths))
            batches = islice(source.batches(self.config.num_epochs), self.config.batch_norm_batches)
            refresh_batch_norm(self.model, self._stepper.forward, batches)
        dev = self._evaluate(dev_source)
        self.model.eval()
        path = self.directory / "final.safetensors"
        header = {"averaged": [file.name for file in paths], "dev": json_ready(dev)}
        save_tensors(path, self.model.state_dict(), header)
        self._log.write("end", dev=dev, averaged=len(paths), best_epoch=self._state.best_epoch)
        if dev is not None:
            self.progress.message(f"final model, mean of {len(paths)} epochs: dev objf {dev['objf']:.4f}")
        return TrainResult(tuple(self._state.epochs), dev, excluded, path)


def _variants(train: Sequence[Example] | Sequence[Sequence[Example]]) -> Sequence[Sequence[Example]]:
    if not train or isinstance(train[0], Example):
        return [train]  # type: ignore[list-item]
    return train  # type: ignore[return-value]
