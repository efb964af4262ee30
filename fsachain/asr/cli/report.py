"""The commands that show an experiment: `report` as a page, `tensorboard` as scalars, `plot ...` as pictures."""

from __future__ import annotations

import gc
import html
import json
import math
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import torch
from numpy.typing import NDArray

from fsachain.asr.cli.config import Experiment, config_option
from fsachain.asr.cli.graphs import build_numerators, den_option, load_denominator, load_normalization
from fsachain.asr.cli.inspect import compare, read_graph, speakers_option
from fsachain.asr.cli.lang import LANG, Lang, load_lang
from fsachain.asr.cli.model import FINAL_MODEL, TRAINED, AcousticModel, check_lang, model_lang_option
from fsachain.asr.cli.options import (
    COUNT,
    DATA,
    FILE,
    FOLDER,
    OUT,
    PATH,
    SuggestingGroup,
    command,
    many,
    option,
)
from fsachain.asr.cli.resources import RESOURCE_OPTIONS
from fsachain.asr.data.audio import read_audio
from fsachain.asr.data.dataset import load_examples
from fsachain.asr.data.kaldi_dir import DataDir, Utterance
from fsachain.asr.decode.ctm import read_ctm
from fsachain.asr.plot import graph, occupancy, results
from fsachain.asr.plot.canvas import save_figure
from fsachain.asr.plot.occupancy import OccupancyPanel
from fsachain.asr.report.collect import Layout, Seen, read_events, read_table
from fsachain.asr.report.page import write_report
from fsachain.asr.train.config import flat
from fsachain.asr.train.log import number
from fsachain.backends.dispatch import forward_backward
from fsachain.denominator import DenominatorGraph
from fsachain.errors import ConfigError, DataError, counted, require
from fsachain.files import read_npz
from fsachain.graph.numerator import load_numerators
from fsachain.loss.rnnt import rnnt_lattice
from fsachain.progress import counter

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REPORT = "report.html"
POLL_SECONDS = 5.0
NUMBER = click.IntRange(min=0)
EVENT_FILE = "events.out.tfevents."  # begins the names of TensorBoard's files
LATTICE_ARRAYS = ("logits", "targets", "logit_lengths", "target_lengths")
ALIGNMENTS = {"words": "words.ctm", "phones": "phones.ctm"}

utterance_option = option(str, "Id of the utterance.", "--utterance", required=True)


BESIDE_EXP = {
    "type": OUT,
    "required": False,
    "callback": lambda context, _, out: out or context.params["exp"] / REPORT,
}


@command(exp=FOLDER, out=BESIDE_EXP)
def report(
    exp: Path,
    out: Path,
    base: Path | None = option(FOLDER, "Folder with data, lang and graphs, if not EXP or its first pass."),
    test: Path | None = option(DATA, "Data directory that was decoded.  [default: data/test or test]"),
    utterances: int = option(NUMBER, "How many of the worst, and of the best, are shown.", default=10),
    pictured: int = option(NUMBER, "Of these, with spectrogram and lattice.", default=3),
    allow_commands: bool = RESOURCE_OPTIONS["commands"],
) -> str:
    """Show an experiment as one HTML file that needs no network.

    In: EXP, the folder of a recipe, or one with model, lang, graphs, decoded, aligned and test as in docs/training.md. It
    may be running, or broken off: what is not there yet is said.
    Out: OUT, by default EXP/report.html.
    Example: fsachain report . report.html
    """
    layout = Layout.find(exp, base=base, test=test)
    model = layout.model / FINAL_MODEL

    def look(utterances: Sequence[Utterance]) -> tuple[dict[str, Seen], dict[str, str]]:
        data = DataDir.read(layout.data["test"], allow_commands=allow_commands)
        return occupancies(layout, AcousticModel.load(model), data, utterances)

    thresholds = gc.get_threshold()
    gc.freeze()  # neither what the imports left nor a picture half made is gone through again and again: a fourth
    gc.set_threshold(100_000, *thresholds[1:])
    try:
        with counter("report"):
            write_report(
                layout,
                out,
                look if model.is_file() else None,
                num_utterances=utterances,
                num_pictured=pictured,
                allow_commands=allow_commands,
            )
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
    return "report"


def occupancies(
    layout: Layout, model: AcousticModel, data: DataDir, utterances: Sequence[Utterance]
) -> tuple[dict[str, Seen], dict[str, str]]:
    """What numerator and denominator make of utterances of `data`, by phone, and for those that have no path the reason."""
    lang = load_lang(layout.lang)
    check_lang(model, lang)
    denominator = load_denominator(lang, layout.graphs)
    numerators, faults = build_numerators(lang, DataDir(tuple(utterances)), denominator.normalization_fsa())
    reasons = {fault.id: fault.reason for fault in faults}
    outputs = _network_outputs(model, data, utterances)
    leak = model.experiment.loss.at(1.0)["leaky_hmm_coefficient"]
    seen = {}
    reasons |= {name: f"utterance {name!r}: has no frames" for name in numerators if name not in outputs}
    names = [name for name in numerators if name in outputs]
    pairs = occupancy.trellises(
        [outputs[name] for name in names], [numerators[name] for name in names], denominator, leak
    )
    for name, pair in zip(names, pairs, strict=True):
        if all(map(math.isfinite, pair.log_probs or ())):
            seen[name] = Seen(occupancy.by_phone(pair, lang.tree), model.timing.frame_seconds)
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
    if out.is_dir():
        foreign = sorted(path.name for path in out.iterdir() if not path.name.startswith(EVENT_FILE))
        if foreign:
            raise ConfigError(f"{out}: holds {foreign[0]!r}; expected a folder of event files alone, or none")
        shutil.rmtree(out)
    out.mkdir(parents=True)
    epochs = 0
    with writers.SummaryWriter(str(out), flush_secs=1) as writer:
        for event in _events(path, follow):
            at = number(event, "time")
            if event.get("event") == "start":
                told = json.dumps(event.get("config"), indent=2, ensure_ascii=False)
                writer.add_text("config", f"<pre>{html.escape(told)}</pre>", 0, walltime=at)
            if event.get("event") != "epoch":
                continue
            step = int(number(event, "step") or 0)
            for name, value in flat(event):
                figure = number({name: value}, name)
                if figure is not None and name not in ("time", "epoch", "step"):
                    writer.add_scalar(name.replace(".", "/"), figure, step, walltime=at)
            writer.flush()
            epochs += 1
    return counted(epochs, "epoch")


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


@click.group(cls=SuggestingGroup)
def plot() -> None:
    """Draw a lattice, graph, alignment, training or word error rate; docs/plot.md shows each.

    The last argument is the picture: PNG, SVG, PDF or WebP by its suffix.
    """


def _save(figure: Figure, out: Path) -> str:
    save_figure(figure, out)
    return "picture"


@command(plot, "occupancy", files=many(FILE), out=OUT)
def draw_occupancy(
    files: tuple[Path, ...],
    out: Path,
    utterances: int = option(COUNT, "How many are drawn, from the first.", default=3),
    frame_seconds: float | None = option(float, "Length of a frame, for an axis in seconds."),
) -> str:
    """Draw where the paths of transducer lattices go, with the best path.

    In: FILES, npz files (np.savez) with the inputs of `rnnt_loss`: logits, targets, logit_lengths, target_lengths, and if
    you like blank, symbols (names of the classes), names (of the utterances). Several files, such as of two checkpoints,
    are drawn side by side.
    Out: OUT, the picture.
    Example: fsachain plot occupancy transducer.npz occupancy.png
    """
    names = [path.stem for path in files]
    if len(set(names)) != len(names):
        raise ConfigError(f"files: {', '.join(names)}; expected different names, which head the columns")
    columns = {path.stem: _lattice_panels(path)[:utterances] for path in files}
    return _save(occupancy.plot_occupancy(columns, frame_seconds=frame_seconds), out)


def _lattice_panels(path: Path) -> list[OccupancyPanel]:
    """Of the inputs of a transducer loss in an npz file; it may hold symbols [V] and names [N]."""
    arrays = read_npz(path)
    missing = [name for name in LATTICE_ARRAYS if name not in arrays]
    if missing:
        raise DataError(f"{path}: has {', '.join(arrays) or 'no arrays'}; lacks {', '.join(missing)}")
    logits, targets, frames, lengths = (torch.from_numpy(arrays[name]) for name in LATTICE_ARRAYS)
    lattice = rnnt_lattice(logits, targets, frames, lengths, int(arrays.get("blank", -1)))
    symbols = arrays.get("symbols", np.arange(logits.shape[-1])).astype(str).tolist()
    ends = zip(targets.tolist(), lengths.tolist(), strict=True)
    said = [[symbols[k] for k in row[:length]] for row, length in ends]
    names = arrays.get("names", np.arange(len(logits))).astype(str).tolist()
    return occupancy.occupancy_panels(lattice, said, names)


def _with_utterance(path: Path, utterance: str, allow_commands: bool) -> tuple[DataDir, Utterance]:
    """A data set, and one utterance of it: what is wrong with others does not matter."""
    data, faults = DataDir.check(path, allow_commands=allow_commands)
    for fault in faults:
        if fault.id == utterance:
            raise DataError(fault.reason)
    for one in data:
        if one.id == utterance:
            return data, one
    raise DataError(f"utterance {utterance!r} is not among the {len(data)} of the data directory")


def _network_outputs(
    model: AcousticModel, data: DataDir, utterances: Sequence[Utterance]
) -> dict[str, NDArray[np.float32]]:
    """[T, P] by id of utterances of `data`, but of those without frames."""
    speakers, ids = {one.speaker for one in utterances}, {one.id for one in utterances}
    # Statistics of a speaker need all that this speaker says; others take the utterance alone.
    by_speaker = model.cmvn.config.scope == "speaker"
    kept = data.select(lambda one: one.speaker in speakers if by_speaker else one.id in ids)
    return model.outputs([example for example in model.examples(kept) if example.id in ids])


def _network_output(model: AcousticModel, data: DataDir, one: Utterance) -> NDArray[np.float32]:
    """[T, P]; DataError if the utterance has no frames."""
    outputs = _network_outputs(model, data, [one])
    if one.id not in outputs:
        raise DataError(f"utterance {one.id!r} has no frames")
    return outputs[one.id]


@command(plot, "trellis", model=TRAINED, data=DATA, out=OUT)
def draw_trellis(
    model: AcousticModel,
    data: Path,
    out: Path,
    utterance: str = utterance_option,
    lang: Lang = model_lang_option,
    den: Path = den_option,
    by: str = option(click.Choice(["phone", "pdf"]), "Rows.", default="phone"),
    rows: int = option(COUNT, "The most rows that are drawn.", default=40),
    allow_commands: bool = RESOURCE_OPTIONS["commands"],
) -> str:
    """Draw what numerator and denominator expect of an utterance, and the gradient.

    In: MODEL, made by `fsachain train`, and DATA, a Kaldi data directory with the utterance.
    Out: OUT, the picture.
    Example: fsachain plot trellis model/model.safetensors test trellis.png --lang lang --den graphs --utterance u1
    """
    utterances, one = _with_utterance(data, utterance, allow_commands)
    numerators, faults = build_numerators(lang, DataDir((one,)), load_normalization(lang, den))
    if faults:
        raise DataError(f"utterance {utterance!r}: has no numerator: {faults[0].without_id}")
    numerator = numerators[utterance]
    graphs = (_network_output(model, utterances, one), numerator, load_denominator(lang, den))
    leak = model.experiment.loss.at(1.0)["leaky_hmm_coefficient"]
    pair = occupancy.pdf_trellis(*graphs, leaky_hmm_coefficient=leak, names=occupancy.pdf_names(lang.tree))
    if by == "phone":
        pair = occupancy.by_phone(pair, lang.tree)
    title = f"{utterance}: {' '.join(numerator.words)}"
    seconds = model.timing.frame_seconds
    return _save(occupancy.plot_trellis(pair, frame_seconds=seconds, title=title, max_rows=rows), out)


@command(plot, "alignment", data=DATA, aligned=FOLDER, out=OUT)
def draw_alignment(
    data: Path,
    aligned: Path,
    out: Path,
    utterance: str = utterance_option,
    experiment: Experiment = config_option,
    allow_commands: bool = RESOURCE_OPTIONS["commands"],
) -> str:
    """Draw a recording's spectrogram over its words and phones.

    In: DATA, a Kaldi data directory, and ALIGNED, a folder that `fsachain align` made, or any with words.ctm or phones.ctm;
    section features of the configuration has the sample rate.
    Out: OUT, the picture.
    Example: fsachain plot alignment train aligned alignment.png --utterance u1
    """
    _, one = _with_utterance(data, utterance, allow_commands)
    files = {tier: aligned / name for tier, name in ALIGNMENTS.items() if (aligned / name).is_file()}
    if not files:
        raise DataError(f"{aligned}: has no {' or '.join(ALIGNMENTS.values())}; `fsachain align` writes them")
    tiers = {
        tier: [entry for entry in read_ctm(path) if entry.utterance == utterance]
        for tier, path in files.items()
    }
    if not any(tiers.values()):
        raise DataError(f"{aligned}: utterance {utterance!r} is not in {', '.join(ALIGNMENTS.values())}")
    title = f"{utterance}: {' '.join(one.words)}"
    config = experiment.features.fitted([one])
    if one.audio is not None:
        values = results.spectrogram(read_audio(one, config.sample_rate), config.sample_rate)
        figure = results.plot_alignment(values, tiers, title=title)
    else:
        (example,) = load_examples(DataDir((one,)), config)
        shift = config.frame_shift_ms / 1000.0
        figure = results.plot_alignment(example.features, tiers, frame_shift=shift, title=title)
    return _save(figure, out)


@command(plot, "graph", path={"metavar": "GRAPH", "type": FILE}, out=OUT)
def draw_graph(
    path: Path,
    out: Path,
    lang: Lang | None = option(LANG, "Folder made by `fsachain lang`: names the pdfs."),
    utterance: str | None = option(
        str, "Whose numerator is drawn, or whose recording tells how arcs are used."
    ),
    model: AcousticModel | None = option(
        TRAINED["type"], "With --data: lines are as wide as the utterance uses an arc."
    ),
    data: Path | None = option(DATA, "A Kaldi data directory with the utterance."),
    max_arcs: int = option(click.IntRange(1, 1000), "The most arcs that are drawn.", default=60),
    allow_commands: bool = RESOURCE_OPTIONS["commands"],
) -> str:
    """Draw an acceptor; of a large one the most used part, with a summary of the whole.

    In: GRAPH, an OpenFst file or AT&T text: an acceptor over pdfs; or numerators made by `fsachain num-graphs`.
    Out: OUT, the picture.
    Example: fsachain plot graph graphs/den.fst graph.png
    """
    if (model is None) != (data is None):
        raise click.UsageError("--model and --data are given together")
    is_numerator = path.suffix == ".npz"
    if utterance is None and (model is not None or is_numerator):
        raise ConfigError(f"{path}: --utterance is needed for numerators and for the output of a model")
    names = None if lang is None else occupancy.pdf_names(lang.tree)
    if is_numerator:
        numerators = load_numerators(path)
        if utterance is None or utterance not in numerators:
            raise DataError(f"{path}: has no numerator of {utterance!r}, but of {len(numerators)} others")
        found = numerators[utterance]
        fsa, title = found.fsa, f"numerator of {utterance}: {' '.join(found.words)}"
    else:
        fsa, title = read_graph(path), path.name
    used = None
    if model is not None and data is not None and utterance is not None:
        scores = _network_output(model, *_with_utterance(data, utterance, allow_commands))
        # A denominator may begin and end anywhere, as in training.
        used_graph = fsa if is_numerator else DenominatorGraph(fsa, scores.shape[1])
        used = np.asarray(forward_backward([used_graph], scores[None]).arc_occupancy(0).sum(axis=0))
        title = f"{title}, as {utterance} uses it"
    return _save(graph.plot_graph(fsa, names=names, occupancy=used, max_arcs=max_arcs, title=title), out)


@command(plot, "training", log=PATH, out=OUT)
def draw_training(
    log: Path,
    out: Path,
    wers: tuple[tuple[int, Path], ...] = option(
        (int, PATH),
        "What `fsachain decode` or `score --out` wrote for the model of an epoch; may be given several times.",
        "--wer",
        multiple=True,
        metavar="EPOCH FOLDER",
    ),
) -> str:
    """Draw the curves of a training, also of one that is running.

    In: LOG, train.jsonl or its folder.
    Out: OUT, the picture.
    Example: fsachain plot training model training.png
    """
    path = log / "train.jsonl" if log.is_dir() else log
    found = {}
    for epoch, given in wers:
        file = given / "wer.json" if given.is_dir() else given
        wer = number(read_table(file), "total", "wer")
        if wer is None:
            raise DataError(f"{file}: has no word error rate; expected a wer.json of `fsachain decode`")
        found[epoch] = wer
    return _save(results.plot_training(results.read_events(path), wer=found or None, title=str(path)), out)


@command(plot, "wer", reference=FILE, hypothesis=FILE, out=OUT)
def draw_wer(
    reference: Path, hypothesis: Path, out: Path, speakers: dict[str, str] | None = speakers_option
) -> str:
    """Draw word error rates by speaker and by length.

    In: REFERENCE and HYPOTHESIS in Kaldi's text format (utterance word ...).
    Out: OUT, the picture.
    Example: fsachain plot wer test/text decoded/hyp.txt wer.png
    """
    report = compare(reference, hypothesis, speakers)
    return _save(results.plot_wer(report, title=str(hypothesis)), out)
