"""The commands `fsachain plot ...`: files of an experiment in, pictures out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from numpy.typing import NDArray

from fsachain.backends.dispatch import forward_backward
from fsachain.batch import TableBatch
from fsachain.cli.config import Experiment
from fsachain.cli.graphs import load_denominator, load_normalization
from fsachain.cli.lang import Lang
from fsachain.cli.model import AcousticModel
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
from fsachain.data.audio import read_audio
from fsachain.data.dataset import load_examples
from fsachain.data.kaldi_dir import DataDir
from fsachain.decode.ctm import CtmEntry, read_ctm
from fsachain.decode.wer import read_text, score
from fsachain.denominator import DenominatorGraph
from fsachain.errors import ConfigError, DataError, GraphError
from fsachain.files import read_npz
from fsachain.fsa import Fsa
from fsachain.graph.numerator import Numerator, build_numerator, load_numerators
from fsachain.loss.lattice import rnnt_lattice
from fsachain.plot import alignment, graph, occupancy, training, trellis, wer
from fsachain.plot.occupancy import OccupancyPanel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    from fsachain.cli.bad_data import data_with
    from fsachain.cli.lang import load_lang
    from fsachain.cli.model import AcousticModel

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
    from fsachain.cli.bad_data import data_with

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
    from fsachain.cli.bad_data import data_with
    from fsachain.cli.lang import load_lang
    from fsachain.cli.model import AcousticModel

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
    _save(wer_figure(reference, hypothesis, utt2spk), out)


# Pictures from the files of an experiment; what is drawn, and how, is in `fsachain.plot`.

LATTICE_ARRAYS = ("logits", "targets", "logit_lengths", "target_lengths")
ALIGNMENTS = {"words": "words.ctm", "phones": "phones.ctm"}


def occupancy_figure(files: Sequence[Path], max_utterances: int, frame_seconds: float | None) -> Figure:
    """Lattices of the same utterances from one or several files, each a column named after the file.

    Raises:
        DataError: a file that is no npz, or lacks an array.
    """
    names = [path.stem for path in files]
    if len(set(names)) != len(names):
        raise ConfigError(f"files: {', '.join(names)}; expected different names, which head the columns")
    columns = {path.stem: _lattice_panels(path)[:max_utterances] for path in files}
    return occupancy.plot_occupancy(columns, frame_seconds=frame_seconds)


def _lattice_panels(path: Path) -> list[OccupancyPanel]:
    """Of the inputs of a transducer loss in an npz file; symbols [V] and names [N] are written where it has them."""
    import torch

    arrays = read_npz(path)
    missing = [name for name in LATTICE_ARRAYS if name not in arrays]
    if missing:
        raise DataError(f"{path}: has {', '.join(arrays) or 'no arrays'}; lacks {', '.join(missing)}")
    logits, targets, frames, lengths = (torch.from_numpy(arrays[name]) for name in LATTICE_ARRAYS)
    lattice = rnnt_lattice(logits, targets, frames, lengths, int(arrays.get("blank", -1)))
    symbols = arrays.get("symbols", np.arange(logits.shape[-1])).astype(str).tolist()
    said = [
        [symbols[k] for k in row[:length]]
        for row, length in zip(targets.tolist(), lengths.tolist(), strict=True)
    ]
    names = arrays.get("names", np.arange(len(logits))).astype(str).tolist()
    return occupancy.occupancy_panels(lattice, said, names)


def trellis_figure(
    model: AcousticModel, lang: Lang, den: Path, data: DataDir, utterance: str, by: str, max_rows: int
) -> Figure:
    """Numerator, denominator and gradient of one utterance, as training would see it.

    Raises:
        DataError: no such utterance, or one without a numerator.
        ConfigError: `by` is neither "phone" nor "pdf".
    """
    numerator = _numerator(lang, den, data, utterance)
    denominator = load_denominator(lang, den)
    scores = network_output(model, data, utterance)
    leak = model.experiment.loss.at(1.0)["leaky_hmm_coefficient"]
    if by == "phone":
        pair = trellis.phone_trellis(scores, numerator, denominator, lang.tree, leaky_hmm_coefficient=leak)
    elif by == "pdf":
        names = trellis.pdf_names(lang.tree)
        pair = trellis.pdf_trellis(scores, numerator, denominator, leaky_hmm_coefficient=leak, names=names)
    else:
        raise ConfigError(f"by: {by!r}; expected 'phone' or 'pdf'")
    title = f"{utterance}: {' '.join(numerator.words)}"
    return trellis.plot_trellis(
        pair, frame_seconds=model.timing.frame_seconds, title=title, max_rows=max_rows
    )


def _numerator(lang: Lang, den: Path, data: DataDir, utterance: str) -> Numerator:
    words = _only(data, utterance).utterances[0].words
    try:
        normalization = load_normalization(lang, den)
        return build_numerator(words, lang.lexicon, lang.tree, normalization=normalization, name=utterance)
    except GraphError as error:
        raise DataError(f"utterance {utterance!r}: has no numerator: {error}") from error


def _only(data: DataDir, utterance: str) -> DataDir:
    found = data.select(lambda one: one.id == utterance)
    if not len(found):
        raise DataError(f"utterance {utterance!r} is not among the {len(data)} of the data directory")
    return found


def network_output(model: AcousticModel, data: DataDir, utterance: str) -> NDArray[np.float32]:
    """Network output [T, P] of one utterance.

    Raises:
        DataError: no such utterance, or one without frames.
    """
    # Statistics of a speaker need all that this speaker says; others take the utterance alone.
    kept = _only(data, utterance)
    if model.cmvn.config.scope == "speaker":
        speaker = kept.utterances[0].speaker
        kept = data.select(lambda one: one.speaker == speaker)
    outputs = model.outputs([e for e in model.examples(kept, None, 1) if e.id == utterance])
    if utterance not in outputs:
        raise DataError(f"utterance {utterance!r} has no frames")
    return outputs[utterance]


def alignment_figure(experiment: Experiment, data: DataDir, aligned: Path, utterance: str) -> Figure:
    """The spectrogram of a recording, or the features of an utterance that has no recording, over its words and phones.

    Raises:
        DataError: no such utterance, or nothing in `aligned` to draw.
    """
    kept = _only(data, utterance)
    one = kept.utterances[0]
    tiers = ctm_tiers(aligned, utterance)
    title = f"{utterance}: {' '.join(one.words)}"
    if one.audio is not None:
        rate = experiment.features.sample_rate
        values = alignment.spectrogram(read_audio(one, rate), rate)
        return alignment.plot_alignment(values, tiers, title=title)
    features = load_examples(kept, experiment.features)[0].features
    shift = experiment.features.frame_shift_ms / 1000.0
    return alignment.plot_alignment(features, tiers, frame_shift=shift, title=title)


def ctm_tiers(aligned: Path, utterance: str) -> dict[str, list[CtmEntry]]:
    """The words and phones of one utterance from a folder that `fsachain align` made.

    Raises:
        DataError: the folder has neither words.ctm nor phones.ctm, or the utterance is in none of them.
    """
    files = {tier: aligned / name for tier, name in ALIGNMENTS.items() if (aligned / name).is_file()}
    if not files:
        raise DataError(f"{aligned}: has no {' or '.join(ALIGNMENTS.values())}; `fsachain align` writes them")
    tiers = {
        tier: [entry for entry in read_ctm(path) if entry.utterance == utterance]
        for tier, path in files.items()
    }
    if not any(tiers.values()):
        raise DataError(f"{aligned}: utterance {utterance!r} is not in {', '.join(ALIGNMENTS.values())}")
    return tiers


def graph_figure(
    path: Path,
    lang: Lang | None,
    utterance: str | None,
    scored: tuple[AcousticModel, DataDir] | None,
    max_arcs: int,
) -> Figure:
    """A graph file; with `scored` the arcs are as wide as the utterance's network output uses them.

    Args:
        path: an OpenFst acceptor over pdfs, or an npz of numerators.
        lang: names its pdfs.
        utterance: whose numerator, and whose network output.
        scored: model and data.
        max_arcs: more are clipped.

    Raises:
        ConfigError: numerators or a model, but no utterance.
        DataError: no such utterance.
    """
    if utterance is None and (scored is not None or path.suffix == ".npz"):
        raise ConfigError(f"{path}: --utterance is needed for numerators and for the output of a model")
    names = None if lang is None else trellis.pdf_names(lang.tree)
    fsa, title = _read_graph(path, utterance)
    used = None
    if scored is not None and utterance is not None:
        used = _arc_use(fsa, network_output(*scored, utterance), path.suffix != ".npz")
        title = f"{title}, as {utterance} uses it"
    return graph.plot_graph(fsa, names=names, occupancy=used, max_arcs=max_arcs, title=title)


def _read_graph(path: Path, utterance: str | None) -> tuple[Fsa, str]:
    if path.suffix != ".npz":
        return Fsa.read(path), path.name
    numerators = load_numerators(path)
    if utterance is None or utterance not in numerators:
        raise DataError(f"{path}: has no numerator of {utterance!r}, but of {len(numerators)} others")
    found = numerators[utterance]
    return found.fsa, f"numerator of {utterance}: {' '.join(found.words)}"


def _arc_use(fsa: Fsa, scores: NDArray[np.float32], is_denominator: bool) -> NDArray[np.float64]:
    """How often an utterance takes each arc; a denominator may begin and end anywhere, as in training."""
    from fsachain.table import compile_table

    if is_denominator:
        batch = DenominatorGraph(fsa, scores.shape[1]).batch(1)
    else:
        batch = TableBatch.pack([compile_table(fsa, scores.shape[1], name="numerator")])
    return np.asarray(forward_backward(batch, scores[None]).arc_occupancy(0).sum(axis=0))


def training_figure(log: Path, wers: Sequence[tuple[int, Path]]) -> Figure:
    """The curves of a train.jsonl, or of the folder that has one.

    Args:
        log: the file or folder.
        wers: epochs, and the folders (or wer.json files) of what was decoded after them.

    Raises:
        DataError: a file that cannot be read.
    """
    path = log / "train.jsonl" if log.is_dir() else log
    found = {epoch: _total_wer(folder) for epoch, folder in wers}
    return training.plot_training(training.read_events(path), wer=found or None, title=str(path))


def _total_wer(path: Path) -> float:
    file = path / "wer.json" if path.is_dir() else path
    try:
        report: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return float(report["total"]["wer"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file}: expected a wer.json with a rate: {error!r}") from error


def wer_figure(reference: Path, hypothesis: Path, utt2spk: Path | None) -> Figure:
    """Word error rates by speaker and length.

    Raises:
        DataError: as `score`.
    """
    speakers = None
    if utt2spk is not None:
        speakers = {name: words[0] for name, words in read_text(utt2spk).items() if words}
    report = score(read_text(reference), read_text(hypothesis), speakers=speakers)
    return wer.plot_wer(report, title=str(hypothesis))
