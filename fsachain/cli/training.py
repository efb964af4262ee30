"""From data sets and graphs to a trained model: the command `fsachain train`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import cast

import click
import torch
from torch import nn

from fsachain.cli.config import Experiment, NetworkSpec, config_option
from fsachain.cli.graphs import load_denominator
from fsachain.cli.lang import Lang, lang_option
from fsachain.cli.model import FINAL_MODEL, AcousticModel, begin_network
from fsachain.cli.options import INPUT_DATA, OUTPUT, den_option, scheduler_option
from fsachain.cli.record import recorded_command
from fsachain.cli.resources import Resources, executor_at, with_resources
from fsachain.cli.training_data import (
    ChunkedSet,
    Streaming,
    TrainingSet,
    TranscriptSet,
    load_sources,
    open_streams,
    read_flat_set,
    read_training_set,
)
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
from fsachain.train.stopping import stoppable
from fsachain.train.trainer import Trainer, TrainResult
from fsachain.train.world import World

COMPILED = Path("-")  # in place of numerators: they are compiled while the training runs
NUMERATORS = click.Path(exists=True, allow_dash=True, path_type=Path)


@click.command()
@click.argument("data", type=INPUT_DATA)
@click.argument("numerators", type=NUMERATORS)
@click.argument("out", type=OUTPUT)
@lang_option
@den_option
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
@with_resources("cache", "workers", "commands")
def train(
    data: Path,
    numerators: Path,
    out: Path,
    lang: Lang,
    den: Path,
    dev: tuple[Path, Path] | None,
    stream: bool,
    jobs: int,
    shards_at_once: int | None,
    scheduler: str | None,
    experiment: Experiment,
    resources: Resources,
) -> None:
    """Train a network with LF-MMI; a run that was broken off continues where it stood.

    In: DATA, a Kaldi data directory, a lhotse manifest of cuts (.jsonl, .jsonl.gz) or a folder of Shar shards, and
    NUMERATORS, made from it by `fsachain num-graphs` or `fsachain num-tables` (flat start) or `fsachain supervise` (chunks
    with times), or - to compile them from the transcripts while a corpus is streamed; the sections features, cmvn,
    perturbation, augment, network, loss and train of the configuration.

    Out: folder OUT with model.safetensors, checkpoints and the log train.jsonl. Utterances that cannot be trained on
    are listed as by `fsachain validate`. SIGTERM ends the training with a checkpoint and exit status 75.

    Several processes train one model when torchrun starts them: torchrun --nproc-per-node 2 -m fsachain train ...
    """
    for option, value in (
        ("--jobs", jobs),
        ("--shards-at-once", shards_at_once),
        ("--scheduler", scheduler),
    ):
        if value and not stream:
            raise click.UsageError(f"{option} goes with --stream")
    faults: list[Fault] = []

    def read(path: Path) -> DataDir:
        found, unusable = DataDir.check(path, allow_commands=resources.allow_commands)
        faults.extend(unusable)
        return found

    with (
        World.from_environment(experiment.train.process_timeout) as world,
        recorded_command(out, "train", config=experiment.to_dict()) if world.is_first else stoppable(),
        executor_at(scheduler) as executor,
    ):
        streaming = Streaming(resources.workers, jobs, executor, shards_at_once, resources.cache)
        train_set: TrainingSet | ChunkedSet | TranscriptSet
        dev_set: TrainingSet | TranscriptSet | None = None
        if numerators == COMPILED:
            train_set = TranscriptSet(read(data))
        else:
            train_set = read_training_set(read(data), numerators)
        if dev is not None:
            dev_data = read(dev[0])
            dev_set = TranscriptSet(dev_data) if dev[1] == COMPILED else read_flat_set(dev_data, dev[1])
        train_model(
            experiment,
            lang,
            train_set,
            den,
            out,
            resources,
            dev=dev_set,
            streaming=streaming if stream else None,
            left_out=faults,
            world=world,
        )
    if world.is_first:
        click.echo(f"model -> {out / FINAL_MODEL}")


def train_model(
    experiment: Experiment,
    lang: Lang,
    train: TrainingSet | ChunkedSet | TranscriptSet,
    denominator: Path,
    out: Path,
    resources: Resources,
    *,
    dev: TrainingSet | TranscriptSet | None = None,
    streaming: Streaming | None = None,
    left_out: Sequence[Fault] = (),
    world: World | None = None,
) -> TrainResult:
    """Train a network and write it to `out`; continues a training that was broken off.

    Where several processes train together (`world`), all call this with the same arguments. The first loads the data before
    the others, which then find features and statistics where it has put them; it alone writes to `out`.

    `denominator` is the folder of `make_denominator`. With `streaming` utterances are prepared ahead of their use and no
    more are kept, and `train` may be utterances alone; without it all features are in memory. `left_out` are faults of
    utterances that are not in `train` or `dev`, reported with those found here.
    """
    world = world or World.alone()
    if world.is_first:
        _claim_folder(experiment, out)
    copies = experiment.perturbation.copies(experiment.train.seed)
    if not copies:
        raise ConfigError("perturbation.speeds: is empty; [1.0] trains on the recordings as they are")
    if dev is not None:
        _refuse_shared_ids(train.data, dev.data)
    spec = experiment.network_spec(lang.tree.num_pdfs)
    trainer, network = _begin(experiment, spec, load_denominator(lang, denominator), out, world)
    with world.first("the first process to load the data"):
        if streaming is not None:
            sources = open_streams(
                experiment, lang, denominator, train, dev, copies, out, network.output_lengths, streaming
            )
        elif isinstance(train, TranscriptSet) or isinstance(dev, TranscriptSet):
            raise ConfigError(
                "numerators: '-' compiles them while a corpus is streamed; without --stream, make them beforehand"
            )
        else:
            sources = load_sources(
                experiment,
                lang,
                train,
                dev,
                copies,
                spec,
                network.output_lengths,
                cache=resources.cache,
                num_workers=resources.workers,
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
    """Tables go by id: one of two different utterances of one id would get the other's."""
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
