"""`fsachain train`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import click
import torch
from torch import nn

from fsachain.cli.config import Experiment, NetworkSpec, PerturbationConfig
from fsachain.cli.graphs import load_denominator
from fsachain.cli.lang import Lang
from fsachain.cli.model import AcousticModel, begin_network
from fsachain.cli.options import (
    INPUT_DATA,
    INPUT_FOLDER,
    OUTPUT,
    cache_option,
    commands_option,
    config_option,
    lang_option,
    scheduler_option,
    workers_option,
)
from fsachain.cli.training_data import (
    ChunkedSet,
    Opener,
    Sources,
    Streaming,
    Streams,
    TrainingSet,
    TranscriptSet,
    load_sources,
)
from fsachain.data.audio import Perturbation
from fsachain.data.dataset import load_examples
from fsachain.data.kaldi_dir import DataDir
from fsachain.data.utterance import Fault
from fsachain.denominator import DenominatorGraph
from fsachain.errors import ConfigError, DataError
from fsachain.files import parse_json, write_text
from fsachain.loss.lfmmi import LFMMILoss
from fsachain.nn.network import Network
from fsachain.train.checkpoint import list_checkpoints
from fsachain.train.log import JsonLinesLog
from fsachain.train.reporting import Progress, make_progress
from fsachain.train.trainer import Trainer, TrainResult
from fsachain.train.world import World

COMPILED = Path("-")  # in place of numerators: they are compiled while the training runs
NUMERATORS = click.Path(exists=True, allow_dash=True, path_type=Path)


@click.command()
@click.argument("data", type=INPUT_DATA)
@click.argument("numerators", type=NUMERATORS)
@click.argument("out", type=OUTPUT)
@lang_option
@click.option("--den", type=INPUT_FOLDER, required=True, help="Folder made by `fsachain den-graph`.")
@click.option("--dev", type=(INPUT_DATA, NUMERATORS), help="Data set and numerators evaluated each epoch.")
@click.option(
    "--stream",
    is_flag=True,
    help="Keep no features in memory: --workers threads prepare utterances ahead of their use.",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="With --stream: processes that prepare utterances in place of threads; compiling needs them.",
)
@click.option(
    "--shards-at-once",
    type=click.IntRange(min=1),
    help="With --stream: mix the utterances of so many Shar shards or Kaldi archives, not of the whole corpus.",
)
@scheduler_option
@config_option
@cache_option
@workers_option
@commands_option
def train(**arguments: Any) -> None:
    """Train a network with LF-MMI; a run that was broken off continues where it stood.

    In: DATA, a Kaldi data directory, a lhotse manifest of cuts (.jsonl, .jsonl.gz) or a folder of Shar shards, and
    NUMERATORS, made from it by `fsachain num-graphs` or `fsachain num-tables` (flat start) or `fsachain supervise` (chunks
    with times), or - to compile them from the transcripts while a corpus is streamed; the sections features, cmvn,
    perturbation, augment, network, loss and train of the configuration.

    Out: folder OUT with model.safetensors, checkpoints and the log train.jsonl. Utterances that cannot be trained on
    are listed as by `fsachain validate`. SIGTERM ends the training with a checkpoint and exit status 75.

    Several processes train one model when torchrun starts them: torchrun --nproc-per-node 2 -m fsachain train ...
    """
    from fsachain.cli.lang import load_lang
    from fsachain.cli.parallel import executor_at
    from fsachain.cli.record import recorded_command
    from fsachain.cli.training_data import Streaming
    from fsachain.data.kaldi_dir import DataDir
    from fsachain.train.stopping import stoppable
    from fsachain.train.world import World

    _check_options(arguments)
    faults: list[Fault] = []

    def read(path: Path) -> DataDir:
        data, found = DataDir.check(path, allow_commands=arguments["allow_commands"])
        faults.extend(found)
        return data

    experiment = arguments["experiment"]
    with (
        World.from_environment(experiment.train.process_timeout) as world,
        recorded_command(arguments["out"], "train", config=experiment.to_dict())
        if world.is_first
        else stoppable(),
        executor_at(arguments["scheduler"]) as executor,
    ):
        streaming = Streaming(arguments["workers"], arguments["jobs"], executor, arguments["shards_at_once"])
        train_model(
            experiment,
            load_lang(arguments["lang"]),
            _training_set(read(arguments["data"]), arguments["numerators"]),
            arguments["den"],
            arguments["out"],
            dev=_flat_set(read(arguments["dev"][0]), arguments["dev"][1]) if arguments["dev"] else None,
            cache=arguments["cache"],
            num_workers=arguments["workers"],
            streaming=streaming if arguments["stream"] else None,
            left_out=faults,
            world=world,
        )
    if world.is_first:
        click.echo(f"model -> {arguments['out'] / FINAL_MODEL}")


def _check_options(arguments: dict[str, Any]) -> None:
    for name in ("jobs", "shards_at_once", "scheduler"):
        if arguments[name] and not arguments["stream"]:
            raise click.UsageError(f"--{name.replace('_', '-')} goes with --stream")


def _training_set(data: DataDir, numerators: Path) -> TrainingSet | ChunkedSet | TranscriptSet:
    from fsachain.cli.training_data import TranscriptSet, read_training_set

    return TranscriptSet(data) if numerators == COMPILED else read_training_set(data, numerators)


def _flat_set(data: DataDir, numerators: Path) -> TrainingSet | TranscriptSet:
    from fsachain.cli.training_data import TranscriptSet, read_flat_set

    return TranscriptSet(data) if numerators == COMPILED else read_flat_set(data, numerators)


# From data directories and graphs to a trained model.

FINAL_MODEL = "model.safetensors"


def perturbations(config: PerturbationConfig, seed: int) -> list[Perturbation]:
    """One perturbation for each speed."""
    return [Perturbation(speed, config.volume, seed) for speed in config.speeds]


def compute_features(
    experiment: Experiment,
    data: DataDir,
    cache: Path,
    num_workers: int,
    copies: Sequence[Perturbation] = (Perturbation(),),
) -> int:
    """Fill the feature cache; returns the number of frames of all copies together."""
    return sum(
        example.num_frames
        for copy in copies
        for example in load_examples(
            data, experiment.features, perturbation=copy, cache_dir=cache, num_workers=num_workers
        )
    )


def train_model(
    experiment: Experiment,
    lang: Lang,
    train: TrainingSet | ChunkedSet | TranscriptSet,
    denominator: Path,
    out: Path,
    *,
    dev: TrainingSet | TranscriptSet | None = None,
    cache: Path | None = None,
    num_workers: int = 1,
    streaming: Streaming | None = None,
    left_out: Sequence[Fault] = (),
    world: World | None = None,
) -> TrainResult:
    """Train a network and write it to `out`; continues a training that was broken off.

    Where several processes train together, all call this with the same arguments. The first loads the data before the
    others, which then find features and statistics where it has put them; it alone writes to `out`.

    Args:
        experiment: the configuration; `train.seed` is the seed of everything that is drawn.
        lang: the tree gives the number of pdfs.
        train: utterances and numerators, or chunks of them; with `streaming` utterances alone, too.
        denominator: folder made by `make_denominator`.
        out: folder of model.safetensors, checkpoints and log.
        dev: evaluated after each epoch.
        cache: folder that keeps features between runs.
        num_workers: threads that compute features.
        streaming: prepare utterances ahead of their use, and keep no more; None: all features are kept in memory.
        left_out: faults of utterances that are not in `train` or `dev`, to be reported with those found here.
        world: the processes that train together; None: this one alone.

    Raises:
        ConfigError: `out` holds a training with other options, or there is no speed to train at; chunks are to be
            streamed, or numerators compiled for a training in memory.
        DataError: no utterance is left; or some cannot be used and `train.bad_data` is "stop".
        StoppedError, DivergedError, WorldError, OSError: as `Trainer.fit_sources`.
    """
    world = world or World.alone()
    if world.is_first:
        _claim_folder(experiment, out)
    copies = perturbations(experiment.perturbation, experiment.train.seed)
    if not copies:
        raise ConfigError("perturbation.speeds: is empty; [1.0] trains on the recordings as they are")
    if dev is not None:
        _refuse_shared_ids(train.data, dev.data)
    spec = experiment.network_spec(lang.tree.num_pdfs)
    trainer, network = _begin(experiment, spec, load_denominator(lang, denominator), out, world)
    sources: Sources | Streams
    with world.first("the first process to load the data"):
        if streaming is not None:
            opener = Opener(experiment, lang, denominator, streaming, cache)
            sources = opener.open(train, dev, copies, out, network.output_lengths)
        elif isinstance(train, TranscriptSet) or isinstance(dev, TranscriptSet):
            raise ConfigError(
                "numerators: '-' compiles them while a corpus is streamed; without --stream, make them beforehand"
            )
        else:
            settings: dict[str, Any] = {"cache": cache, "num_workers": num_workers}
            sources = load_sources(
                experiment, lang, train, dev, copies, spec, network.output_lengths, **settings
            )
    try:
        result = trainer.fit_sources(sources.train, sources.dev, left_out=[*left_out, *sources.faults])
    finally:
        sources.close()
    if world.is_first:
        AcousticModel(experiment, cast(Network, trainer.model.eval()), sources.cmvn).save(out / FINAL_MODEL)
    return result


def _begin(
    experiment: Experiment, spec: NetworkSpec, denominator: DenominatorGraph, out: Path, world: World
) -> tuple[Trainer, Network]:
    """The trainer and its network, with its first parameters."""
    loss = LFMMILoss(denominator, **experiment.loss.at(0.0))
    torch.manual_seed(experiment.train.seed)
    if list_checkpoints(out / "checkpoints"):
        spec = replace(spec, init_from=None)  # the training goes on; that file may be gone
    begun = begin_network(experiment, spec)
    if begun.taken is not None and world.is_first:
        JsonLinesLog(out / "train.jsonl").write("init", path=spec.init_from, **asdict(begun.taken))
    progress = make_progress() if world.is_first else Progress()
    for line in begun.lines:
        progress.message(line)
    trainer = Trainer(
        cast(nn.Module, begun.network),
        loss,
        experiment.train,
        out,
        progress=progress,
        loss_schedules=experiment.loss.schedules,
        world=world,
    )
    return trainer, begun.network


def _refuse_shared_ids(train: DataDir, dev: DataDir) -> None:
    """The tables of both sets go by the same ids; one of two different utterances would get the other's."""
    words = {utterance.id: utterance.words for utterance in train}
    for utterance in dev:
        if words.get(utterance.id, utterance.words) != utterance.words:
            raise DataError(
                f"utterance {utterance.id!r} is in the training and the development set with different words; "
                "expected different ids"
            )


def _claim_folder(experiment: Experiment, out: Path) -> None:
    """Note the options in the folder; refuse one that holds a training with others.

    The trainer itself compares the options of section `train` and the utterances.
    """
    options = {
        name: value
        for name, value in experiment.to_dict().items()
        if name not in ("train", "decoding", "rescoring")
    }
    path = out / "experiment.json"
    if path.is_file():
        try:
            before = dict(parse_json(path.read_bytes(), str(path)))
        except (TypeError, ValueError) as error:
            raise DataError(f"{path}: cannot read the options of the training ({error})") from error
        changed = sorted(name for name in options if before.get(name) != options[name])
        if changed:
            raise ConfigError(
                f"{out}: holds a training with other options in {', '.join(changed)}; "
                "choose another folder or delete it"
            )
    out.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(options, indent=2) + "\n")
