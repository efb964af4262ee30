"""The training log as TensorBoard scalars, while the training runs or afterwards."""

from __future__ import annotations

import html
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fsachain.errors import ConfigError, DataError, require
from fsachain.report.collect import number, read_events
from fsachain.train.config import flat

PREFIX = "events.out.tfevents."


def write_scalars(log: Path, out: Path, *, wait_seconds: float | None = None) -> int:
    """Write the epochs of a training as TensorBoard event files, replacing those in `out`; returns the number of epochs.

    Tags are `train/objf`, `dev/objf`, `learning_rate` and so on: every number of an epoch's event, by its place. The
    horizontal axis is the step (batches that moved the parameters), the time that of the event. The options of the training
    are a text, escaped. `log` is train.jsonl or its folder. With `wait_seconds` the log is polled until the training ends.
    """
    writers = require("tensorboardX", extra="tensorboard")
    path = log / "train.jsonl" if log.is_dir() else log
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected the train.jsonl of a training")
    _clear(out)
    epochs = 0
    with writers.SummaryWriter(str(out), flush_secs=1) as writer:
        for event in _events(path, wait_seconds):
            at = number(event, "time") or 0.0
            if event.get("event") == "start":
                told = json.dumps(event.get("config"), indent=2, ensure_ascii=False)
                writer.add_text("config", f"<pre>{html.escape(told)}</pre>", 0, walltime=at)
            if event.get("event") != "epoch":
                continue
            step = int(number(event, "step") or 0)
            for tag, value in _scalars(event):
                writer.add_scalar(tag, value, step, walltime=at)
            writer.flush()
            epochs += 1
    return epochs


def _clear(out: Path) -> None:
    """Empty the folder; one with other files is refused."""
    if out.is_dir():
        foreign = sorted(path.name for path in out.iterdir() if not path.name.startswith(PREFIX))
        if foreign:
            raise ConfigError(f"{out}: holds {foreign[0]!r}; expected a folder of event files alone, or none")
        shutil.rmtree(out)
    out.mkdir(parents=True)


def _events(path: Path, wait_seconds: float | None) -> Iterator[dict[str, Any]]:
    """The events of the log; with `wait_seconds` also those to come, until the end of the training."""
    seen = 0
    while True:
        events = read_events(path).events
        yield from events[seen:]
        seen = max(seen, len(events))
        if wait_seconds is None or (events and events[-1].get("event") == "end"):
            return
        time.sleep(wait_seconds)


def _scalars(event: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in flat(event):
        figure = number({name: value}, name)
        if figure is not None and name not in ("time", "epoch", "step"):
            yield name.replace(".", "/"), figure
