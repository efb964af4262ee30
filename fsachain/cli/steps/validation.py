"""What is wrong with a data directory, before hours are spent on it."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fsachain.cli.config import Experiment
from fsachain.cli.progress import track
from fsachain.cli.steps.lang import Lang
from fsachain.cli.steps.training_sets import read_training_set
from fsachain.data.audio import Perturbation
from fsachain.data.dataset import Example
from fsachain.data.faults import Fault, fault_table
from fsachain.data.kaldi_dir import DataDir, Utterance
from fsachain.data.usable import load_usable
from fsachain.errors import DataError, FsachainError, GraphError
from fsachain.graph.numerator import build_numerator


@dataclass(frozen=True)
class Validation:
    """What `validate_data` found.

    Attributes:
        num_utterances: that can be trained on.
        faults: one for each utterance or line that cannot.
    """

    num_utterances: int
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        head = f"{self.num_utterances} utterances can be trained on, {len(self.faults)} faults"
        return "\n".join([head, fault_table(self.faults)]).rstrip()


def validate_data(
    folder: Path,
    experiment: Experiment,
    lang: Lang | None = None,
    *,
    allow_commands: bool = False,
    numerators: Path | None = None,
    cache: Path | None = None,
    num_workers: int = 1,
) -> Validation:
    """Read everything that a training on a data directory would read, and note what is wrong.

    Args:
        folder: a Kaldi data directory.
        experiment: its sections features and network say what recordings must be like.
        lang: with it, words that the lexicon refuses and utterances too short for their words are found too.
        allow_commands: run the commands in wav.scp; without it they are faults.
        numerators: with it the file, or every shard of the folder, is compared with its checksums, and utterances without
            numerator, or with one of other words, are found too.
        cache: folder that keeps the features; files of it that are damaged are made anew.
        num_workers: threads.

    Raises:
        DataError: there is no data directory.
    """
    data, unread = DataDir.check(folder, allow_commands=allow_commands)
    faults = list(unread)
    data, unsaid = split_by_transcript(data, lang)
    if numerators is not None:
        lacking = numerator_faults(data, numerators)
        faults += lacking
        without = {fault.id for fault in lacking}
        data = data.select(lambda utterance: utterance.id not in without)
    usable, (examples,), broken = load_usable(
        data, experiment.features, cache_dir=cache, num_workers=num_workers
    )
    faults += unsaid + broken
    too_short: list[Fault] = []
    if lang is not None:
        subsampling = experiment.network_spec(lang.tree.num_pdfs).subsampling
        pairs = list(zip(usable.utterances, examples, strict=True))
        found = (_too_short(one, example, lang, subsampling) for one, example in track(pairs, "transcripts"))
        too_short = [fault for fault in found if fault is not None]
    return Validation(len(usable) - len(too_short), tuple(faults + too_short))


def numerator_faults(data: DataDir, numerators: Path) -> list[Fault]:
    """What is wrong with the numerators of a data set: one fault for the file, or those of utterances that have none."""
    try:
        supervised = read_training_set(data, numerators).supervised
    except FsachainError as error:
        return [Fault(str(numerators), str(error))]
    return [
        Fault(one.id, f"utterance {one.id!r}: has no numerator in {numerators}")
        for one in data
        if one.id not in supervised
    ]


def load_supervised(
    data: DataDir,
    supervised: Container[str],
    experiment: Experiment,
    lang: Lang,
    copies: Sequence[Perturbation] = (Perturbation(),),
    *,
    cache: Path | None = None,
    num_workers: int = 1,
) -> tuple[DataDir, list[list[Example]], list[Fault]]:
    """Features of the utterances that can be trained on, for each copy.

    Args:
        data: the utterances.
        supervised: ids of those that have a numerator.
        experiment: its section features.
        lang: its lexicon tells why an utterance has no numerator.
        copies: as for `load_usable`.
        cache: folder that keeps features between runs.
        num_workers: threads.

    Returns:
        As `load_usable`; utterances without a numerator are among the faults.

    Raises:
        DataError: no utterance is left.
    """
    bare = [utterance for utterance in data if utterance.id not in supervised]
    why = {fault.id: fault for fault in transcript_faults(bare, lang)}
    faults = [why.get(one.id, Fault(one.id, f"utterance {one.id!r}: has no numerator")) for one in bare]
    usable, variants, broken = load_usable(
        data.select(lambda utterance: utterance.id in supervised),
        experiment.features,
        copies,
        cache_dir=cache,
        num_workers=num_workers,
    )
    faults += broken
    if not len(usable):
        first = f"; the first: {faults[0].reason}" if faults else ""
        raise DataError(f"no utterance is left, {len(faults)} were excluded{first}")
    return usable, variants, faults


def split_by_transcript(data: DataDir, lang: Lang | None) -> tuple[DataDir, list[Fault]]:
    """The utterances that have words, all known where `lang` is given, and what is wrong with the others."""
    faults = {fault.id: fault for fault in transcript_faults(data, lang)}
    return data.select(lambda utterance: utterance.id not in faults), list(faults.values())


def transcript_faults(utterances: Iterable[Utterance], lang: Lang | None) -> list[Fault]:
    """Utterances without words and, where `lang` is given, with a word that its lexicon refuses."""
    faults = []
    for utterance in utterances:
        if not utterance.words:
            message = f"utterance {utterance.id!r}: the transcript is empty"
            faults.append(Fault(utterance.id, message, "empty text"))
        elif lang is not None:
            try:
                for word in utterance.words:
                    lang.lexicon.pronunciations_of(word, name=utterance.id)
            except GraphError as error:
                faults.append(Fault(utterance.id, str(error), "unknown word"))
    return faults


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
