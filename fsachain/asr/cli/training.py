"""From data sets and graphs to a trained model, `fsachain train`; what is wrong with a data set, `fsachain validate`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import click
import torch
from torch import nn

from fsachain.asr.cli.config import Experiment, Given, config_option, given_options
from fsachain.asr.cli.graphs import DENOMINATOR, den_option, load_denominator
from fsachain.asr.cli.lang import LANG, Lang, lang_option, usable_transcripts
from fsachain.asr.cli.model import FINAL_MODEL, AcousticModel, begin_network
from fsachain.asr.cli.options import COUNT, DATA, OUT, PATH, command, option, track
from fsachain.asr.cli.record import recorded_command
from fsachain.asr.cli.resources import (
    FAULTS_FILE,
    RESOURCE_OPTIONS,
    Resources,
    end_without,
    executor_at,
    with_resources,
)
from fsachain.asr.cli.training_data import ChunkedSet, Loader, TrainingSet, read_training_set
from fsachain.asr.data.dataset import Example
from fsachain.asr.data.kaldi_dir import DataDir
from fsachain.asr.data.utterance import Fault, check_left_out, fault_table, told_reasons, write_faults
from fsachain.asr.nn.network import Network
from fsachain.asr.train.advice import unseen_advice
from fsachain.asr.train.checkpoint import list_checkpoints
from fsachain.asr.train.config import changes, to_compare
from fsachain.asr.train.log import JsonLinesLog
from fsachain.asr.train.reporting import Progress, ShownProgress
from fsachain.asr.train.schedule import scheduled
from fsachain.asr.train.source import OutputLengths, fault_of
from fsachain.asr.train.step import subnormals_flushed
from fsachain.asr.train.stopping import stoppable
from fsachain.asr.train.trainer import Trainer, TrainResult
from fsachain.asr.train.world import World
from fsachain.errors import (
    ConfigError,
    DataError,
    FsachainError,
    GraphError,
    LeftOutError,
    counted,
    without_python,
)
from fsachain.files import parse_json, write_text
from fsachain.graph.numerator import build_numerator, made_with, told_floored
from fsachain.loss.lfmmi import LFMMILoss

OPTIONS = "experiment.json"  # of a training, in its folder
LEAK = "loss.leaky_hmm_coefficient"
NUMERATORS = click.Path(exists=True, allow_dash=True, path_type=Path)


@command(data=DATA, numerators=NUMERATORS, out=OUT)
def train(
    data: Path,
    numerators: Path,
    out: Path,
    lang: Lang = lang_option,
    den: Path = den_option,
    dev: tuple[Path, Path] | None = option(
        (DATA, NUMERATORS), "Data set and numerators evaluated each epoch."
    ),
    stream: bool = option(
        bool, "Keep no features in memory: --workers threads prepare utterances ahead of their use."
    ),
    jobs: int = option(
        click.IntRange(min=0),
        "With --stream: processes that prepare utterances in place of threads; compiling needs them.",
        default=0,
    ),
    shards_at_once: int | None = option(
        COUNT,
        "With --stream: mix the utterances of so many Shar shards or Kaldi archives, not of the whole corpus.",
    ),
    num_epochs: int | None = option(COUNT, "In place of train.num_epochs of the configuration."),
    bad_data: str | None = option(
        click.Choice(["exclude", "stop"]), "In place of train.bad_data of the configuration."
    ),
    scheduler: str | None = RESOURCE_OPTIONS["scheduler"],
    experiment: Experiment = config_option,
    resources: Resources = with_resources("cache", "workers", "allow_left_out", "commands"),
) -> None:
    """Train a network with LF-MMI; a run that was broken off continues where it stood.

    In: DATA, a Kaldi data directory, a lhotse manifest of cuts (.jsonl, .jsonl.gz) or a folder of Shar shards, and
    NUMERATORS, made from it by `fsachain num-graphs` or `fsachain num-tables` (flat start) or `fsachain supervise` (chunks
    with times), or - to compile them from the transcripts while a corpus is streamed; the sections features, cmvn,
    perturbation, augment, network, loss and train of the configuration.
    Out: folder OUT with model.safetensors, checkpoints and the log train.jsonl. Utterances that cannot be trained on
    are listed as by `fsachain validate`, and in faults.jsonl; the exit status is then 3, but 0 under torchrun, which takes
    any other for a crash. SIGTERM ends the training with a checkpoint and exit status 75.

    Several processes train one model when torchrun starts them: torchrun --nproc-per-node 2 -m fsachain train ...
    Example: fsachain train train graphs/train.npz model --lang lang --den graphs --dev dev graphs/dev.npz --cache cache
    """
    (out / FAULTS_FILE).unlink(missing_ok=True)
    given = {"--jobs": jobs, "--shards-at-once": shards_at_once, "--scheduler": scheduler}
    for name, value in given.items():
        if value and not stream:
            raise click.UsageError(f"{name} goes with --stream")
    changed = {"num_epochs": num_epochs, "bad_data": bad_data}
    settings: dict[str, Any] = {name: value for name, value in changed.items() if value is not None}
    experiment = replace(experiment, train=replace(experiment.train, **settings))
    experiment = _with_leak_of_before(experiment, out, given_options())
    faults: list[Fault] = []

    def read(path: Path) -> DataDir:
        found, unusable = DataDir.check(path, allow_commands=resources.allow_commands)
        faults.extend(unusable)
        if experiment.train.bad_data != "stop":  # else the training lists all of them and stops
            check_left_out(unusable, len(found) + len(unusable), str(path), resources.allow_left_out)
        return found

    with (
        World.from_environment(experiment.train.process_timeout) as world,
        recorded_command(out, "train", config=experiment.to_dict()) if world.is_first else stoppable(),
        executor_at(scheduler) as executor,
    ):
        train_set = read_training_set(read(data), numerators, lang)
        dev_set = None if dev is None else TrainingSet.read(read(dev[0]), dev[1], lang)
        result = train_model(
            experiment,
            lang,
            train_set,
            den,
            out,
            replace(resources, jobs=jobs, executor=executor),
            dev=dev_set,
            stream=stream,
            shards_at_once=shards_at_once,
            left_out=faults,
            world=world,
        )
    if not world.is_first:
        return
    click.echo(f"model -> {out / FINAL_MODEL}")
    if result.excluded:
        write_faults(out / FAULTS_FILE, result.excluded)
    with nullcontext() if world.size == 1 else suppress(LeftOutError):
        end_without(result.excluded, out / FAULTS_FILE)


def train_model(
    experiment: Experiment,
    lang: Lang,
    train: TrainingSet | ChunkedSet,
    denominator: Path,
    out: Path,
    resources: Resources,
    *,
    dev: TrainingSet | None = None,
    stream: bool = False,
    shards_at_once: int | None = None,
    left_out: Sequence[Fault] = (),
    world: World,
) -> TrainResult:
    """Train a network and write it to `out`; continues a training that was broken off.

    Where several processes train together (`world`), all call this with the same arguments. The first loads the data before
    the others, which then find features and statistics where it has put them; it alone writes to `out`. Faults `left_out`
    are of utterances that are not in `train` or `dev`, reported with those found here.
    """
    graphs = load_denominator(lang, denominator)
    experiment = experiment.fitted(train.data, tell=world.is_first)
    if world.is_first:
        _claim_folder(experiment, lang, denominator, out)
    if dev is not None:
        words = train.data.transcripts
        # Tables go by id: one of two different utterances of one id would get the other's.
        for one in dev.data:
            if words.get(one.id, one.words) != one.words:
                raise DataError(
                    f"utterance {one.id!r} is in the training and the development set with different words; "
                    "expected different ids"
                )
        if dev.forgiving:
            raise DataError(
                "the development set's numerators forgive errors of transcripts, so its objective would tell little; "
                "expected those of `fsachain num-graphs --as-written`"
            )
    unseen: list[Fault] = []
    ids, dev_ids = {one.id for one in train.data}, {one.id for one in dev.data} if dev else set()
    if isinstance(train, TrainingSet):
        train, unseen = train.seen()
        if unseen and experiment.train.bad_data != "stop":
            check_left_out(unseen, len(ids), "training set", resources.allow_left_out)
        if unseen and not len(train.data):
            raise DataError(f"training set: no utterance is left: {told_reasons(unseen)}")
        forgive = experiment.settled(lang.tree).forgive.forgiveness() if train.numerators is None else None
        if train.has_star or (forgive is not None and forgive.has_star_of_frames):
            graphs = graphs.with_star()
    spec = experiment.network_spec(lang.tree.num_pdfs)
    torch.manual_seed(experiment.train.seed)
    if list_checkpoints(out / "checkpoints"):
        spec = replace(spec, init_from=None)  # the training goes on; that file may be gone
    network, lines, taken = begin_network(experiment, spec, lang)
    if taken is not None and world.is_first:
        JsonLinesLog(out / "train.jsonl").write("init", path=spec.init_from, **asdict(taken))
    progress = ShownProgress() if world.is_first else Progress()
    for line in lines:
        progress.message(line)
    augment = experiment.augment
    if experiment.features.kind == "mfcc" and (augment.frequency_masks or augment.frequency_warp):
        progress.message(
            "WARNING: augment.frequency_masks and augment.frequency_warp change bands of neighbouring columns, which mean "
            "nothing for mfcc; expected 0, or features.kind fbank"
        )
    trainer = Trainer(
        cast(nn.Module, network),
        LFMMILoss(graphs, **experiment.loss.at(0.0)),
        experiment.train,
        out,
        progress=progress,
        loss_schedules=experiment.loss.schedules,
        world=world,
    )
    facts = {}
    if dev is not None and world.is_first:
        facts["dev_floored"] = dev.num_floored(lang, denominator)
        if told := told_floored(facts["dev_floored"]):
            progress.message(f"development set: {counted(len(dev.data), 'utterance')}{told}")
        if warning := unseen_advice(facts["dev_floored"], len(dev.data)):
            progress.message(f"WARNING: {warning}")
    loader = Loader(experiment, lang, network.output_lengths, resources)
    with world.first("the first process to load the data"):
        if stream:
            sources = loader.stream(train, dev, denominator, out, shards_at_once)
        elif any(isinstance(one, TrainingSet) and one.numerators is None for one in (train, dev)):
            raise ConfigError(
                "numerators: '-' compiles them while a corpus is streamed; without --stream, make them beforehand"
            )
        else:
            sources = loader.load(train, dev)

    def check(excluded: Sequence[Fault]) -> None:
        if experiment.train.bad_data == "stop":  # the trainer lists them all, and stops
            return
        for which, known in (("training", ids), ("development", dev_ids)):
            missing = [fault for fault in (*unseen, *sources.faults, *excluded) if fault.id in known]
            check_left_out(missing, len(known), f"{which} set", resources.allow_left_out)

    try:
        with subnormals_flushed():
            result = trainer.fit_sources(
                sources.train,
                sources.dev,
                left_out=[*left_out, *unseen, *sources.faults],
                facts=facts,
                check=check,
            )
    finally:
        for source in filter(None, (sources.train, sources.dev)):
            source.close()
    if world.is_first:
        network = cast(Network, trainer.model.eval())
        AcousticModel(experiment, network, sources.cmvn, lang).save(out / FINAL_MODEL)
    return result


def _with_leak_of_before(experiment: Experiment, out: Path, given: Given | None) -> Experiment:
    """With the leak of the training in this folder, if none is given: its default was 1e-5 in earlier versions."""
    path = out / OPTIONS
    if given is None or not given.has_file or LEAK in given.flat or not path.is_file():
        return experiment
    with suppress(
        KeyError, TypeError, ValueError
    ):  # a damaged file is an error where all options are compared
        kept = scheduled(parse_json(path.read_bytes(), str(path))["loss"]["leaky_hmm_coefficient"], LEAK)
        return replace(experiment, loss=replace(experiment.loss, leaky_hmm_coefficient=kept))
    return experiment


def _claim_folder(experiment: Experiment, lang: Lang, denominator: Path, out: Path) -> None:
    """Note options and graphs in the folder; refuse one that holds a training with others.

    The trainer itself compares the options of section `train` and the utterances.
    """
    elsewhere = ("train", "decoding", "rescoring")
    options = {
        name: value
        for name, value in to_compare(experiment.settled(lang.tree)).items()
        if name not in elsewhere
    }
    made = made_with(lang.lexicon, lang.tree)
    options["graphs"] = {
        "phones": {str(number): phone for number, phone in enumerate(made["phones"], 1)},
        "tree": made["tree"][:12],
        "lexicon": made["lexicon"][:12],
        "denominator": hashlib.sha256((denominator / DENOMINATOR).read_bytes()).hexdigest()[:12],
    }
    path = out / OPTIONS
    if path.is_file() and list_checkpoints(out / "checkpoints"):  # else it broke off before its first epoch
        try:
            before = dict(parse_json(path.read_bytes(), str(path)))
        except (TypeError, ValueError) as error:
            raise DataError(f"{path}: cannot read the options of the training ({error})") from error
        before.setdefault("graphs", options["graphs"])  # that of an earlier version
        told = changes(before, options)
        if told:
            raise ConfigError(
                f"{out}: holds a training with other options: {', '.join(told[:8])}; choose another folder or delete it"
            )
    write_text(path, json.dumps(options, indent=2) + "\n")


@command(data=DATA)
def validate(
    data: Path,
    lang: Lang | None = option(
        LANG, "Folder made by `fsachain lang`: words and lengths are checked too.", is_eager=True
    ),
    numerators: Path | None = option(
        PATH, "File or shards made for DATA: checksums and transcripts are compared."
    ),
    out: Path | None = option(OUT, "File for all faults, one JSON object per line."),
    policy: str = option(
        click.Choice(["stop", "exclude"]),
        "stop: status 1 if there is any fault. exclude: only if nothing is left to train on.",
        default="stop",
    ),
    experiment: Experiment = config_option,
    resources: Resources = with_resources("cache", "workers", "commands"),
) -> None:
    """List what is wrong with a data directory, before a training meets it.

    In: DATA, a Kaldi data directory; the sections features and network of the configuration. Tables, recordings and
    features are read as a training reads them: unreadable or empty audio, another sampling rate, missing files,
    duplicate ids, empty text, numbers that are not finite; with --lang unknown words and utterances too short for
    their words; with --numerators shards that are damaged, and utterances without numerator.
    Out: one table by kind of fault, printed; with --out all faults as a file. `fsachain train` prints the same
    table; its option `train: {bad_data: stop}` ends it there.
    Example: fsachain validate train --lang lang
    """
    num_utterances, faults = validate_data(data, experiment, lang, resources, numerators=numerators)
    usable, wrong = f"{counted(num_utterances, 'utterance')} can be trained on", counted(len(faults), "fault")
    click.echo(without_python(f"{usable}, {wrong}\n{fault_table(faults)}").rstrip())
    if out is not None:
        write_faults(out, faults)
    if not num_utterances or (faults and policy == "stop"):
        raise DataError(f"{data}: {wrong}, {usable}")


def validate_data(
    folder: Path,
    experiment: Experiment,
    lang: Lang | None = None,
    resources: Resources | None = None,
    *,
    numerators: Path | None = None,
) -> tuple[int, list[Fault]]:
    """How many utterances of a data set can be trained on, and what is wrong with others: all that a training reads is read.

    Damaged files of the cache are made anew; commands in wav.scp are faults without leave to run them.
    """
    resources = resources or Resources()
    data, faults = DataDir.check(folder, allow_commands=resources.allow_commands)
    experiment = experiment.fitted(data)

    def without(unusable: list[Fault]) -> DataDir:
        faults.extend(unusable)
        names = {fault.id for fault in unusable}
        return data.select(lambda utterance: utterance.id not in names)

    data = without(usable_transcripts(data.transcripts, None if lang is None else lang.lexicon)[1])
    if numerators is not None:
        try:
            has = read_training_set(data, numerators, lang).numerators or {}
        except FsachainError as error:
            faults.append(Fault(str(numerators), str(error)))
        else:
            lacking = [one.id for one in data if one.id not in has]
            told = f"has no numerator in {numerators}"
            data = without([Fault(name, f"utterance {name!r}: {told}") for name in lacking])
    usable, (examples,), broken = resources.load_usable(data, experiment.features)
    faults += broken
    if lang is None or not examples:  # without a recording nothing tells the width of the network's input
        return len(usable), faults
    output_lengths = experiment.network_spec(lang.tree.num_pdfs).sketch.output_lengths
    found = (_fault_of(example, lang, output_lengths) for example in track(examples, "transcripts"))
    too_short = [fault for fault in found if fault is not None]
    return len(usable) - len(too_short), faults + too_short


def _fault_of(example: Example, lang: Lang, output_lengths: OutputLengths) -> Fault | None:
    try:
        graph = build_numerator(example.words, lang.lexicon, lang.tree, name=example.id)
    except GraphError as error:
        return Fault(example.id, str(error), "no pronunciation")
    return fault_of(example, graph.required_frames, output_lengths)
