"""The commands that show an experiment: `report` as a page, `tensorboard` as scalars."""

from __future__ import annotations

import gc
import math
from collections.abc import Sequence
from pathlib import Path

import click

from fsachain.cli.graphs import build_numerators, load_denominator
from fsachain.cli.lang import load_lang
from fsachain.cli.model import FINAL_MODEL, AcousticModel, check_lang
from fsachain.cli.options import DATA, FOLDER, OUT, PATH, command, commands_option, option
from fsachain.data.kaldi_dir import DataDir, Utterance
from fsachain.errors import counted
from fsachain.plot.occupancy import by_phone, trellises
from fsachain.progress import counter
from fsachain.report.collect import Layout
from fsachain.report.heard import Seen
from fsachain.report.page import ReportOptions, look_at_nothing, write_report
from fsachain.report.tensorboard import write_scalars

REPORT = "report.html"
NUMBER = click.IntRange(min=0)


@command(exp=FOLDER, out={"type": OUT, "required": False})
def report(
    exp: Path,
    out: Path | None,
    base: Path | None = option(FOLDER, "Folder with data, lang and graphs, if not EXP or its first pass."),
    test: Path | None = option(DATA, "Data directory that was decoded.  [default: data/test or test]"),
    utterances: int = option(NUMBER, "Of the worst and of the best, each.", default=10),
    pictured: int = option(NUMBER, "Of these, with spectrogram and lattice.", default=3),
    allow_commands: bool = commands_option,
) -> None:
    """Show an experiment as one HTML file that needs no network.

    In: EXP, the folder of a recipe, or one with model, lang, graphs, decoded, aligned and test as in docs/training.md. It
    may be running, or broken off: what is not there yet is said.
    Out: OUT, by default EXP/report.html.
    Example: fsachain report . report.html
    """
    options = ReportOptions(utterances, pictured, allow_commands)
    click.echo(f"report -> {make_report(exp, out, base=base, test=test, options=options)}")


@command(log=PATH, out=OUT)
def tensorboard(log: Path, out: Path, follow: bool = option(bool, "Go on until the training ends.")) -> None:
    """Write a training's log as TensorBoard scalars.

    In: LOG, the train.jsonl that `fsachain train` writes, or its folder.
    Out: folder OUT with event files, for `tensorboard --logdir OUT`. Those of an earlier call are replaced.
    Example: fsachain tensorboard model scalars
    """
    count = write_scalars(log, out, wait_seconds=5.0 if follow else None)
    click.echo(f"{counted(count, 'epoch')} -> {out}")


def make_report(
    exp: Path,
    out: Path | None = None,
    *,
    base: Path | None = None,
    test: Path | None = None,
    options: ReportOptions | None = None,
) -> Path:
    """Writes `out`, by default report.html in `exp`; `base` and `test` as for `Layout.find`."""
    layout = Layout.find(exp, base=base, test=test)
    target, model = out or exp / REPORT, layout.model / FINAL_MODEL

    def look(utterances: Sequence[Utterance]) -> tuple[dict[str, Seen], dict[str, str]]:
        return occupancies(layout, AcousticModel.load(model), utterances)

    gc.freeze()  # what the imports left is not gone through again and again: a fifth of the time
    try:
        with counter("report"):
            write_report(layout, target, options, look if model.is_file() else look_at_nothing)
    finally:
        gc.unfreeze()
    return target


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
