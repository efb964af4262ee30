"""The commands that show an experiment: `report` as a page, `tensorboard` as scalars."""

from __future__ import annotations

from pathlib import Path

import click

from fsachain.cli.options import INPUT_DATA, INPUT_FOLDER, INPUT_PATH, OUTPUT, commands_option

COUNT = click.IntRange(min=0)


@click.command()
@click.argument("exp", type=INPUT_FOLDER)
@click.argument("out", type=OUTPUT, required=False)
@click.option(
    "--base", type=INPUT_FOLDER, help="Folder with data, lang and graphs, if not EXP or its first pass."
)
@click.option(
    "--test", type=INPUT_DATA, help="Data directory that was decoded.  [default: data/test or test]"
)
@click.option(
    "--utterances", type=COUNT, default=10, show_default=True, help="Of the worst and of the best, each."
)
@click.option(
    "--pictured", type=COUNT, default=3, show_default=True, help="Of these, with spectrogram and lattice."
)
@commands_option
def report(
    exp: Path,
    out: Path | None,
    base: Path | None,
    test: Path | None,
    utterances: int,
    pictured: int,
    allow_commands: bool,
) -> None:
    """Show an experiment as one HTML file that needs no network.

    In: EXP, the folder of a recipe, or one with model, lang, graphs, decoded, aligned and test as in docs/training.md. It
    may be running, or broken off: what is not there yet is said.

    Out: OUT, by default EXP/report.html.
    """
    from fsachain.cli.steps.report import make_report
    from fsachain.report.write import ReportOptions

    options = ReportOptions(utterances, pictured, allow_commands)
    click.echo(f"report -> {make_report(exp, out, base=base, test=test, options=options)}")


@click.command()
@click.argument("log", type=INPUT_PATH)
@click.argument("out", type=OUTPUT)
@click.option("--follow", is_flag=True, help="Go on until the training ends.")
def tensorboard(log: Path, out: Path, follow: bool) -> None:
    """Write a training's log as TensorBoard scalars.

    In: LOG, the train.jsonl that `fsachain train` writes, or its folder.

    Out: folder OUT with event files, for `tensorboard --logdir OUT`. Those of an earlier call are replaced.
    """
    from fsachain.report.tensorboard import write_scalars

    count = write_scalars(log, out, wait_seconds=5.0 if follow else None)
    click.echo(f"{count} epochs -> {out}")


REPORT_COMMANDS = (report, tensorboard)
