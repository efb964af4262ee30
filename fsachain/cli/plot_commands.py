"""The commands `fsachain plot ...`: files of an experiment in, pictures out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fsachain.cli.options import (
    INPUT_DATA,
    INPUT_FILE,
    INPUT_FOLDER,
    INPUT_PATH,
    OUTPUT,
    commands_option,
    config_option,
    lang_option,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fsachain.cli.config import Experiment

utterance_option = click.option("--utterance", required=True, help="Its id.")


@click.group()
def plot() -> None:
    """Draw a lattice, graph, alignment, training or word error rate; docs/plot.md shows each.

    The last argument is the picture: PNG, SVG, PDF or WebP by its suffix.
    """


def _save(figure: Figure, out: Path) -> None:
    from fsachain.plot.canvas import save_figure

    save_figure(figure, out)
    click.echo(f"picture -> {out}")


@plot.command("occupancy")
@click.argument("files", type=INPUT_FILE, nargs=-1, required=True)
@click.argument("out", type=OUTPUT)
@click.option(
    "--utterances", type=click.IntRange(min=1), default=3, show_default=True, help="How many, from the first."
)
@click.option("--frame-seconds", type=float, help="Length of a frame, for an axis in seconds.")
def draw_occupancy(files: tuple[Path, ...], out: Path, utterances: int, frame_seconds: float | None) -> None:
    """Draw where the paths of transducer lattices go, with the best path.

    In: FILES, npz files (np.savez) with the inputs of `rnnt_loss`: logits, targets, logit_lengths, target_lengths, and if
    you like blank, symbols (names of the classes), names (of the utterances). Several files, such as of two checkpoints,
    are drawn side by side.

    Out: OUT, the picture.
    """
    from fsachain.cli.steps.plots import occupancy_figure

    _save(occupancy_figure(files, utterances, frame_seconds), out)


@plot.command("trellis")
@click.argument("model", type=INPUT_FILE)
@click.argument("data", type=INPUT_DATA)
@click.argument("out", type=OUTPUT)
@utterance_option
@lang_option
@click.option("--den", type=INPUT_FOLDER, required=True, help="Folder made by `fsachain den-graph`.")
@click.option("--by", type=click.Choice(["phone", "pdf"]), default="phone", show_default=True, help="Rows.")
@click.option("--rows", type=click.IntRange(min=1), default=40, show_default=True, help="At most so many.")
@commands_option
def draw_trellis(model: Path, data: Path, out: Path, **arguments: Any) -> None:
    """Draw what numerator and denominator expect of an utterance, and the gradient.

    In: MODEL, made by `fsachain train`, and DATA, a Kaldi data directory with the utterance.

    Out: OUT, the picture.
    """
    from fsachain.cli.steps.bad_data import data_with
    from fsachain.cli.steps.lang import load_lang
    from fsachain.cli.steps.model import AcousticModel
    from fsachain.cli.steps.plots import trellis_figure

    figure = trellis_figure(
        AcousticModel.load(model),
        load_lang(arguments["lang"]),
        arguments["den"],
        data_with(data, arguments["utterance"], allow_commands=arguments["allow_commands"]),
        arguments["utterance"],
        arguments["by"],
        arguments["rows"],
    )
    _save(figure, out)


@plot.command("alignment")
@click.argument("data", type=INPUT_DATA)
@click.argument("aligned", type=INPUT_FOLDER)
@click.argument("out", type=OUTPUT)
@utterance_option
@config_option
@commands_option
def draw_alignment(
    data: Path, aligned: Path, out: Path, utterance: str, experiment: Experiment, allow_commands: bool
) -> None:
    """Draw a recording's spectrogram over its words and phones.

    In: DATA, a Kaldi data directory, and ALIGNED, a folder that `fsachain align` made, or any with words.ctm or phones.ctm;
    section features of the configuration has the sample rate.

    Out: OUT, the picture.
    """
    from fsachain.cli.steps.bad_data import data_with
    from fsachain.cli.steps.plots import alignment_figure

    utterances = data_with(data, utterance, allow_commands=allow_commands)
    _save(alignment_figure(experiment, utterances, aligned, utterance), out)


@plot.command("graph")
@click.argument("graph", type=INPUT_FILE)
@click.argument("out", type=OUTPUT)
@click.option("--lang", type=INPUT_FOLDER, help="Folder made by `fsachain lang`: names the pdfs.")
@click.option("--utterance", help="Whose numerator is drawn, or whose recording tells how arcs are used.")
@click.option("--model", type=INPUT_FILE, help="With --data: lines are as wide as the utterance uses an arc.")
@click.option("--data", type=INPUT_DATA, help="A Kaldi data directory with the utterance.")
@click.option(
    "--max-arcs", type=click.IntRange(1, 1000), default=60, show_default=True, help="More are clipped."
)
@commands_option
def draw_graph(graph: Path, out: Path, max_arcs: int, **arguments: Any) -> None:
    """Draw an acceptor; of a large one the most used part, with a summary of the whole.

    In: GRAPH, an OpenFst acceptor over pdfs, or numerators made by `fsachain num-graphs`.

    Out: OUT, the picture.
    """
    from fsachain.cli.steps.bad_data import data_with
    from fsachain.cli.steps.lang import load_lang
    from fsachain.cli.steps.model import AcousticModel
    from fsachain.cli.steps.plots import graph_figure

    if (arguments["model"] is None) != (arguments["data"] is None):
        raise click.UsageError("--model and --data are given together")
    lang = None if arguments["lang"] is None else load_lang(arguments["lang"])
    scored = None
    if arguments["model"] is not None:
        allowed = arguments["allow_commands"]
        data = data_with(arguments["data"], arguments["utterance"], allow_commands=allowed)
        scored = (AcousticModel.load(arguments["model"]), data)
    _save(graph_figure(graph, lang, arguments["utterance"], scored, max_arcs), out)


@plot.command("training")
@click.argument("log", type=INPUT_PATH)
@click.argument("out", type=OUTPUT)
@click.option(
    "--wer",
    "wers",
    type=(int, INPUT_PATH),
    multiple=True,
    metavar="EPOCH FOLDER",
    help="What `fsachain decode` or `score --out` wrote for the model of an epoch; may be given several times.",
)
def draw_training(log: Path, out: Path, wers: tuple[tuple[int, Path], ...]) -> None:
    """Draw the curves of a training, also of one that is running.

    In: LOG, train.jsonl or its folder.

    Out: OUT, the picture.
    """
    from fsachain.cli.steps.plots import training_figure

    _save(training_figure(log, wers), out)


@plot.command("wer")
@click.argument("reference", type=INPUT_FILE)
@click.argument("hypothesis", type=INPUT_FILE)
@click.argument("out", type=OUTPUT)
@click.option("--utt2spk", type=INPUT_FILE, help="Kaldi's table of speakers.")
def draw_wer(reference: Path, hypothesis: Path, out: Path, utt2spk: Path | None) -> None:
    """Draw word error rates by speaker and by length.

    In: REFERENCE and HYPOTHESIS in Kaldi's text format (utterance word ...).

    Out: OUT, the picture.
    """
    from fsachain.cli.steps.plots import wer_figure

    _save(wer_figure(reference, hypothesis, utt2spk), out)
