"""The commands that show an experiment: `report` as a page, `tensorboard` as scalars."""

from __future__ import annotations

import gc
import html
import json
import math
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from fsachain.cli.graphs import build_numerators, load_denominator
from fsachain.cli.lang import load_lang
from fsachain.cli.model import FINAL_MODEL, AcousticModel, check_lang
from fsachain.cli.options import DATA, FOLDER, OUT, PATH, command, commands_option, option
from fsachain.data.kaldi_dir import DataDir, Utterance
from fsachain.errors import ConfigError, DataError, counted, require
from fsachain.plot.occupancy import by_phone, trellises
from fsachain.progress import counter
from fsachain.report.collect import Layout, number, read_events
from fsachain.report.heard import Seen
from fsachain.report.page import write_report
from fsachain.train.config import flat

REPORT = "report.html"
POLL_SECONDS = 5.0
NUMBER = click.IntRange(min=0)
EVENT_FILE = "events.out.tfevents."  # begins the names of TensorBoard's files


def _beside_exp(context: click.Context, _: click.Parameter, out: Path | None) -> Path:
    return out or context.params["exp"] / REPORT


@command(exp=FOLDER, out={"type": OUT, "required": False, "callback": _beside_exp})
def report(
    exp: Path,
    out: Path,
    base: Path | None = option(FOLDER, "Folder with data, lang and graphs, if not EXP or its first pass."),
    test: Path | None = option(DATA, "Data directory that was decoded.  [default: data/test or test]"),
    utterances: int = option(NUMBER, "Of the worst and of the best, each.", default=10),
    pictured: int = option(NUMBER, "Of these, with spectrogram and lattice.", default=3),
    allow_commands: bool = commands_option,
) -> str:
    """Show an experiment as one HTML file that needs no network.

    In: EXP, the folder of a recipe, or one with model, lang, graphs, decoded, aligned and test as in docs/training.md. It
    may be running, or broken off: what is not there yet is said.
    Out: OUT, by default EXP/report.html.
    Example: fsachain report . report.html
    """
    layout = Layout.find(exp, base=base, test=test)
    model = layout.model / FINAL_MODEL
    shown: dict[str, Any] = {
        "num_utterances": utterances,
        "num_pictured": pictured,
        "allow_commands": allow_commands,
    }

    def look(utterances: Sequence[Utterance]) -> tuple[dict[str, Seen], dict[str, str]]:
        return occupancies(layout, AcousticModel.load(model), utterances)

    thresholds = gc.get_threshold()
    gc.freeze()  # neither what the imports left nor a picture half made is gone through again and again: a fourth
    gc.set_threshold(100_000, *thresholds[1:])
    try:
        with counter("report"):
            write_report(layout, out, look if model.is_file() else None, **shown)
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
    return "report"


def occupancies(
    layout: Layout, model: AcousticModel, utterances: Sequence[Utterance]
) -> tuple[dict[str, Seen], dict[str, str]]:
    """What numerator and denominator make of the utterances, by phone, and for those that have no path the reason."""
    lang = load_lang(layout.lang)
    check_lang(model, lang)
    denominator = load_denominator(lang, layout.graphs)
    data = DataDir(tuple(utterances))
    numerators, faults = build_numerators(lang, data, denominator.normalization_fsa())
    reasons = {fault.id: fault.reason for fault in faults}
    outputs = model.outputs(model.examples(data))
    leak = model.experiment.loss.at(1.0)["leaky_hmm_coefficient"]
    seen = {}
    reasons |= {name: f"utterance {name!r}: has no frames" for name in numerators if name not in outputs}
    names = [name for name in numerators if name in outputs]
    pairs = trellises(
        [outputs[name] for name in names], [numerators[name] for name in names], denominator, leak
    )
    for name, pair in zip(names, pairs, strict=True):
        if all(map(math.isfinite, pair.log_probs or ())):
            seen[name] = Seen(by_phone(pair, lang.tree), model.timing.frame_seconds)
        else:
            reasons[name] = (
                f"utterance {name!r}: has no path of its {counted(len(outputs[name]), 'output frame')}"
            )
    return seen, reasons


@command(log=PATH, out=OUT)
def tensorboard(log: Path, out: Path, follow: bool = option(bool, "Go on until the training ends.")) -> str:
    """Write a training's log as TensorBoard scalars.

    In: LOG, the train.jsonl that `fsachain train` writes, or its folder.
    Out: folder OUT with event files, for `tensorboard --logdir OUT`. Those of an earlier call are replaced.
    Example: fsachain tensorboard model scalars
    """
    # Every number of an epoch's event is a scalar of this place, such as dev/objf, over the steps that moved the parameters.
    writers = require("tensorboardX", extra="tensorboard")
    path = log / "train.jsonl" if log.is_dir() else log
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected the train.jsonl of a training")
    _clear(out)
    epochs = 0
    with writers.SummaryWriter(str(out), flush_secs=1) as writer:
        for event in _events(path, follow):
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
    return counted(epochs, "epoch")


def _clear(out: Path) -> None:
    """Empty the folder; one with other files is refused."""
    if out.is_dir():
        foreign = sorted(path.name for path in out.iterdir() if not path.name.startswith(EVENT_FILE))
        if foreign:
            raise ConfigError(f"{out}: holds {foreign[0]!r}; expected a folder of event files alone, or none")
        shutil.rmtree(out)
    out.mkdir(parents=True)


def _events(path: Path, follow: bool) -> Iterator[dict[str, Any]]:
    """The events of the log; with `follow` also those to come, until the end of the training."""
    seen = 0
    while True:
        events = read_events(path).events
        yield from events[seen:]
        seen = max(seen, len(events))
        if not follow or (events and events[-1].get("event") == "end"):
            return
        time.sleep(POLL_SECONDS)


def _scalars(event: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in flat(event):
        figure = number({name: value}, name)
        if figure is not None and name not in ("time", "epoch", "step"):
            yield name.replace(".", "/"), figure
