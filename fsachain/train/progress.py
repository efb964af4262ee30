"""What a person sees while a training runs: a bar on a terminal, one plain line per epoch anywhere else."""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol, TextIO

from fsachain.errors import require
from fsachain.train.stats import EpochSums

REFRESH_SECONDS = 0.25


class Progress(Protocol):
    """Receives the events of a training."""

    def start_epoch(self, epoch: int, num_epochs: int, num_batches: int, done: int) -> None:
        """Epoch `epoch`, counted from 1, begins with `done` of its batches behind it."""

    def batch(self, sums: EpochSums) -> None:
        """A batch is done; `sums` covers the epoch so far."""

    def end_epoch(self, epoch: int, train: dict[str, Any], dev: dict[str, Any] | None) -> None:
        """The epoch is over; the tables are `EpochSums.summary()`."""

    def message(self, text: str) -> None:
        """Something worth a line, such as the utterances that were left out."""

    def close(self) -> None:
        """The training is over or was broken off."""


class NoProgress:
    """Shows nothing."""

    def start_epoch(self, epoch: int, num_epochs: int, num_batches: int, done: int) -> None:
        """Ignored."""

    def batch(self, sums: EpochSums) -> None:
        """Ignored."""

    def end_epoch(self, epoch: int, train: dict[str, Any], dev: dict[str, Any] | None) -> None:
        """Ignored."""

    def message(self, text: str) -> None:
        """Ignored."""

    def close(self) -> None:
        """Ignored."""


class LineProgress:
    """One line per epoch and message, for logs, pipes and CI."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._num_epochs = 0

    def start_epoch(self, epoch: int, num_epochs: int, num_batches: int, done: int) -> None:
        """Remember how many epochs there are."""
        self._num_epochs = num_epochs

    def batch(self, sums: EpochSums) -> None:
        """Ignored: a batch is not worth a line."""

    def end_epoch(self, epoch: int, train: dict[str, Any], dev: dict[str, Any] | None) -> None:
        """Print the epoch's figures."""
        self.message(epoch_line(epoch, self._num_epochs, train, dev))

    def message(self, text: str) -> None:
        """Print the text."""
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """Nothing is left open."""


class BarProgress:
    """A bar with the running figures of the epoch; finished epochs scroll away above it."""

    def __init__(self, stream: TextIO) -> None:
        rich_console = require("rich.console", extra="recipes")
        rich_progress = require("rich.progress", extra="recipes")
        self._bar = rich_progress.Progress(
            rich_progress.TextColumn("{task.description}"),
            rich_progress.BarColumn(bar_width=20),
            rich_progress.MofNCompleteColumn(),
            rich_progress.TimeRemainingColumn(),
            rich_progress.TextColumn("{task.fields[figures]}"),
            console=rich_console.Console(file=stream),
            refresh_per_second=4,
            transient=True,
        )
        self._task: Any = None
        self._num_epochs = 0
        self._drawn = 0.0

    def start_epoch(self, epoch: int, num_epochs: int, num_batches: int, done: int) -> None:
        """Put up a new bar."""
        self._bar.start()
        self._num_epochs = num_epochs
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(
            f"epoch {epoch}/{num_epochs}", total=num_batches, completed=done, figures=""
        )

    def batch(self, sums: EpochSums) -> None:
        """Move the bar; figures change a few times a second, so that small steps are not slowed down."""
        now = time.monotonic()
        if now - self._drawn < REFRESH_SECONDS:
            return
        self._drawn = now
        self._bar.update(self._task, completed=sums.batches, figures=figures(sums.summary()))

    def end_epoch(self, epoch: int, train: dict[str, Any], dev: dict[str, Any] | None) -> None:
        """Print the epoch's figures above the bar."""
        self.message(epoch_line(epoch, self._num_epochs, train, dev))

    def message(self, text: str) -> None:
        """Print the text above the bar."""
        self._bar.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Take the bar down."""
        self._bar.stop()


def make_progress(stream: TextIO | None = None) -> Progress:
    """A bar if `stream` (standard error by default) is a terminal, lines otherwise."""
    target = sys.stderr if stream is None else stream
    return BarProgress(target) if target.isatty() else LineProgress(target)


def figures(summary: dict[str, Any]) -> str:
    """Objective, its two parts per frame, speed, where the time went, and what was left out."""
    text = (
        f"objf {summary['objf']:.4f} (num {summary['num']:.3f}, den {summary['den']:.3f}) "
        f"{summary['frames_per_second']:,.0f} frames/s, loss {100 * summary['loss_share']:.0f} % of time, "
        f"waiting for data {100 * summary['data_share']:.0f} %"
    )
    if summary["excluded"]:
        text += f", {summary['excluded']} excluded"
    if summary["skipped_batches"]:
        text += f", {summary['skipped_batches']} batches skipped"
    return text


def epoch_line(epoch: int, num_epochs: int, train: dict[str, Any], dev: dict[str, Any] | None) -> str:
    """One line for a finished epoch."""
    line = f"epoch {epoch:>3}/{num_epochs}  {figures(train)}"
    return line if dev is None else f"{line}; dev objf {dev['objf']:.4f}"
