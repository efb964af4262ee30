"""What is wrong with a data set, before hours are spent on it: the command `fsachain validate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from fsachain.cli.config import Experiment, config_option
from fsachain.cli.lang import Lang, load_lang
from fsachain.cli.options import INPUT_DATA, INPUT_FOLDER, INPUT_PATH, OUTPUT, track
from fsachain.cli.resources import Resources, with_resources
from fsachain.cli.training_data import read_training_set, transcript_faults
from fsachain.data.dataset import Example, load_usable
from fsachain.data.kaldi_dir import DataDir, Utterance
from fsachain.data.utterance import Fault, fault_table, write_faults
from fsachain.errors import DataError, FsachainError, GraphError
from fsachain.graph.numerator import build_numerator


@click.command()
@click.argument("data", type=INPUT_DATA)
@click.option(
    "--lang", type=INPUT_FOLDER, help="Folder made by `fsachain lang`: words and lengths are checked too."
)
@click.option(
    "--numerators",
    type=INPUT_PATH,
    help="File or shards made for DATA: checksums and transcripts are compared.",
)
@click.option("--out", type=OUTPUT, help="File for all faults, one JSON object per line.")
@click.option(
    "--policy",
    type=click.Choice(["stop", "exclude"]),
    default="stop",
    show_default=True,
    help="stop: status 1 if there is any fault. exclude: only if nothing is left to train on.",
)
@config_option
@with_resources("cache", "workers", "commands")
def validate(
    data: Path,
    lang: Path | None,
    numerators: Path | None,
    out: Path | None,
    policy: str,
    experiment: Experiment,
    resources: Resources,
) -> None:
    """List what is wrong with a data directory, before a training meets it.

    In: DATA, a Kaldi data directory; the sections features and network of the configuration. Tables, recordings and
    features are read as a training reads them: unreadable or empty audio, another sampling rate, missing files,
    duplicate ids, empty text, numbers that are not finite; with --lang unknown words and utterances too short for
    their words; with --numerators shards that are damaged, and utterances without numerator.

    Out: one table by kind of fault, printed; with --out all faults as a file. `fsachain train` prints the same
    table; its option `train: {bad_data: stop}` ends it there.
    """
    language = None if lang is None else load_lang(lang)
    found = validate_data(data, experiment, language, resources, numerators=numerators)
    click.echo(str(found))
    if out is not None:
        write_faults(out, found.faults)
    if not found.num_utterances or (found.faults and policy == "stop"):
        raise DataError(
            f"{data}: {len(found.faults)} faults, {found.num_utterances} utterances can be trained on"
        )


@dataclass(frozen=True)
class Validation:
    num_utterances: int
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        head = f"{self.num_utterances} utterances can be trained on, {len(self.faults)} faults"
        return "\n".join([head, fault_table(self.faults)]).rstrip()


def validate_data(
    folder: Path,
    experiment: Experiment,
    lang: Lang | None = None,
    resources: Resources | None = None,
    *,
    numerators: Path | None = None,
) -> Validation:
    """Read everything that a training on a data set would read, and note what is wrong.

    With `lang`, words that the lexicon refuses and utterances too short for their words are found too. With `numerators` the
    file, or every shard of the folder, is compared with its checksums, and utterances without numerator, or with one of
    other words, are found. Damaged files of the cache are made anew; commands in wav.scp are faults
    without leave to run them.
    """
    resources = resources or Resources()
    data, unread = DataDir.check(folder, allow_commands=resources.allow_commands)
    faults = list(unread)
    unsaid = transcript_faults(data, lang)
    without = {fault.id for fault in unsaid}
    data = data.select(lambda utterance: utterance.id not in without)
    if numerators is not None:
        lacking = _numerator_faults(data, numerators)
        faults += lacking
        bare = {fault.id for fault in lacking}
        data = data.select(lambda utterance: utterance.id not in bare)
    usable, (examples,), broken = load_usable(
        data, experiment.features, cache_dir=resources.cache, num_workers=resources.workers
    )
    faults += unsaid + broken
    too_short: list[Fault] = []
    if lang is not None:
        subsampling = experiment.network_spec(lang.tree.num_pdfs).subsampling
        pairs = list(zip(usable.utterances, examples, strict=True))
        found = (_too_short(one, example, lang, subsampling) for one, example in track(pairs, "transcripts"))
        too_short = [fault for fault in found if fault is not None]
    return Validation(len(usable) - len(too_short), tuple(faults + too_short))


def _numerator_faults(data: DataDir, numerators: Path) -> list[Fault]:
    """One fault for a file that cannot be used, or those of utterances that have no numerator."""
    try:
        supervised = read_training_set(data, numerators).supervised
    except FsachainError as error:
        return [Fault(str(numerators), str(error))]
    return [
        Fault(one.id, f"utterance {one.id!r}: has no numerator in {numerators}")
        for one in data
        if one.id not in supervised
    ]


def _too_short(utterance: Utterance, example: Example, lang: Lang, subsampling: int) -> Fault | None:
    try:
        graph = build_numerator(utterance.words, lang.lexicon, lang.tree, name=utterance.id)
    except GraphError as error:
        return Fault(utterance.id, str(error), "no pronunciation")
    need, have = graph.fsa.min_frames(), -(-example.num_frames // subsampling)
    if need is not None and have >= need:
        return None
    message = (
        f"utterance {utterance.id!r}: {have} output frames ({example.num_frames} of features), its "
        f"{len(utterance.words)} words need {need}"
    )
    return Fault(utterance.id, message, "too short")
