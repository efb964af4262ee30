"""`fsachain train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

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

if TYPE_CHECKING:
    from fsachain.cli.steps.streaming import TranscriptSet
    from fsachain.cli.steps.training_sets import ChunkedSet, TrainingSet
    from fsachain.data.faults import Fault
    from fsachain.data.kaldi_dir import DataDir

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
    from fsachain.cli.steps.cluster import executor_at
    from fsachain.cli.steps.lang import load_lang
    from fsachain.cli.steps.record import recorded_command
    from fsachain.cli.steps.streaming import Streaming
    from fsachain.cli.steps.training import FINAL_MODEL, train_model
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
    from fsachain.cli.steps.streaming import TranscriptSet
    from fsachain.cli.steps.training_sets import read_training_set

    return TranscriptSet(data) if numerators == COMPILED else read_training_set(data, numerators)


def _flat_set(data: DataDir, numerators: Path) -> TrainingSet | TranscriptSet:
    from fsachain.cli.steps.streaming import TranscriptSet
    from fsachain.cli.steps.training_sets import read_flat_set

    return TranscriptSet(data) if numerators == COMPILED else read_flat_set(data, numerators)
