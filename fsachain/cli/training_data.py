"""Utterances with the numerators that were made for them, whichever step made them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsachain.cli.config import Experiment, NetworkSpec
from fsachain.cli.graphs import load_normalization
from fsachain.cli.lang import Lang
from fsachain.cli.model import normalise_set
from fsachain.cli.options import track
from fsachain.data.audio import Perturbation, seeded_generator
from fsachain.data.cmvn import Cmvn, CmvnConfig
from fsachain.data.dataset import Example, cut_example, estimate_cmvn, load_usable
from fsachain.data.kaldi_dir import DataDir, Utterance
from fsachain.data.order import frame_counts
from fsachain.data.utterance import Fault, Member, fault_table
from fsachain.data.workers import Workers
from fsachain.errors import ConfigError, DataError, FsachainError, GraphError
from fsachain.files import read_npz, replacing
from fsachain.graph.chunks import Chunk, holds_chunks, load_chunks
from fsachain.graph.numerator import Numerator, build_numerator, load_numerators, source_of
from fsachain.graph.shards import NumeratorMaker, TableShards
from fsachain.table import TransitionTable, compile_table
from fsachain.train.source import (
    PIECE,
    BatchSource,
    Corpus,
    OutputLengths,
    Preparation,
    Source,
    StreamSource,
    Task,
)


@dataclass(frozen=True)
class TrainingSet:
    """Utterances and the numerators of those that can be used, by utterance id."""

    data: DataDir
    numerators: Mapping[str, Numerator]

    @classmethod
    def read(cls, data: DataDir, numerators: Path) -> TrainingSet:
        """The utterances with the numerators that `make_numerators` wrote for them.

        Raises:
            DataError: a numerator was made for another transcript.
        """
        graphs = load_numerators(numerators)
        # Those of patterns and graphs say what they say, whatever the transcript.
        compared = graphs if source_of(numerators) == "transcripts" else ()
        for utterance in data:
            if utterance.id in compared and graphs[utterance.id].words != utterance.words:
                raise DataError(
                    f"{numerators}: the transcript of {utterance.id!r} has changed since its numerator was made; "
                    "build the numerators anew"
                )
        return cls(data, graphs)

    @property
    def supervised(self) -> Container[str]:
        """Ids of the utterances that have a numerator."""
        return self.numerators

    def cut(self, copies: list[list[Example]], network: NetworkSpec) -> list[list[Example]]:
        """The utterances as they are."""
        return copies

    def tables(self, num_pdfs: int, prefixes: Sequence[str]) -> dict[str, TransitionTable]:
        """Compiled numerators by the ids of the utterances and of their copies, whose ids have a prefix."""
        compiled = {
            name: compile_table(numerator.fsa, num_pdfs, name=name)
            for name, numerator in self.numerators.items()
        }
        return {prefix + name: table for prefix in prefixes for name, table in compiled.items()}


@dataclass(frozen=True)
class ChunkedSet:
    """Utterances and the chunks of those that can be used: for each one list of chunks per copy.

    Attributes:
        data: the utterances.
        chunks: as `load_chunks` gives them.
        path: the file they came from, for messages.
    """

    data: DataDir
    chunks: Mapping[str, list[list[Chunk]]]
    path: Path

    @property
    def supervised(self) -> Container[str]:
        """Ids of the utterances that have chunks."""
        return self.chunks

    def cut(self, copies: list[list[Example]], network: NetworkSpec) -> list[list[Example]]:
        """The chunks of every copy, with as much context as the network sees; utterances without are left out.

        Raises:
            DataError: the file was made for other copies, or for utterances of another length.
        """
        found: list[list[Example]] = [[] for _ in copies]
        for utterance, *examples in zip(self.data.utterances, *copies, strict=True):
            lists = self.chunks.get(utterance.id)
            if lists is None:
                continue
            names = [one[0].utterance for one in lists]
            if names != [example.id for example in examples]:
                raise DataError(
                    f"{self.path}: has chunks of {', '.join(names)}, expected those of "
                    f"{', '.join(example.id for example in examples)}; supervise anew after a change of speeds"
                )
            for made, example, chunks in zip(found, examples, lists, strict=True):
                made += [self._cut_one(example, chunk, network) for chunk in chunks]
        return found

    def _cut_one(self, example: Example, chunk: Chunk, network: NetworkSpec) -> Example:
        frames = -(-example.num_frames // network.subsampling)
        if frames != chunk.of_frames:
            raise DataError(
                f"{self.path}: chunk {chunk.id!r} is of {chunk.of_frames} output frames, the utterance has "
                f"{frames}; supervise anew after a change of features or network"
            )
        return cut_example(
            example,
            chunk.start,
            chunk.frame_weights,
            subsampling=network.subsampling,
            context=network.context,
            name=chunk.id,
        )

    def tables(self, num_pdfs: int, prefixes: Sequence[str]) -> dict[str, TransitionTable]:
        """Compiled numerators by the ids of the chunks; these have the prefix of their copy already."""
        every = (chunk for lists in self.chunks.values() for one in lists for chunk in one)
        return {chunk.id: compile_table(chunk.fsa, num_pdfs, name=chunk.id) for chunk in every}


@dataclass(frozen=True)
class CompiledSet(TrainingSet):
    """Utterances and shards of compiled numerators; `numerators` is empty.

    Attributes:
        shards: tables by utterance id, mapped into memory.
    """

    shards: TableShards

    @property
    def supervised(self) -> Container[str]:
        """Ids of the utterances in the shards."""
        return self.shards

    @classmethod
    def read(cls, data: DataDir, numerators: Path) -> CompiledSet:
        """The utterances with the shards that `make_shards` wrote for them.

        Raises:
            DataError: as for `TrainingSet.read`, or a shard is damaged: found now, and not hours later.
        """
        shards = TableShards(numerators)
        shards.check_bodies()
        for utterance in data:
            if utterance.id in shards and not shards.says(utterance.id, utterance.words):
                raise DataError(
                    f"{numerators}: the transcript of {utterance.id!r} has changed since its numerator was made; "
                    "build the numerators anew"
                )
        return cls(data, {}, shards)

    def tables(self, num_pdfs: int, prefixes: Sequence[str]) -> dict[str, TransitionTable]:
        """The tables by the ids of the utterances and of their copies, whose ids have a prefix.

        Raises:
            DataError: a table was made for a tree of another number of pdfs.
        """
        for name, table in self.shards.items():
            if table.num_pdfs != num_pdfs:
                raise DataError(
                    f"{self.shards.folder}: the numerator of {name!r} was made for {table.num_pdfs} pdfs; expected "
                    f"{num_pdfs}; compile the numerators anew"
                )
        return {prefix + name: table for prefix in prefixes for name, table in self.shards.items()}


def read_training_set(data: DataDir, numerators: Path) -> TrainingSet | ChunkedSet:
    """The utterances with what `make_numerators`, `make_shards` (a folder) or `make_supervision` wrote for them.

    Raises:
        GraphError: the file holds neither.
        DataError: as `TrainingSet.read`.
    """
    if numerators.is_dir():
        return CompiledSet.read(data, numerators)
    if holds_chunks(numerators):
        return ChunkedSet(data, load_chunks(numerators), numerators)
    return TrainingSet.read(data, numerators)


def read_flat_set(data: DataDir, numerators: Path) -> TrainingSet:
    """The utterances with whole numerators, from a file or a folder of shards; errors as `read_training_set`."""
    return CompiledSet.read(data, numerators) if numerators.is_dir() else TrainingSet.read(data, numerators)


# What is wrong with a data directory, before hours are spent on it.


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


# Sources of a training whose features are all in memory.


@dataclass(frozen=True)
class Sources:
    """What a training takes its batches from.

    Attributes:
        cmvn: normalisation of the training set.
        train, dev: the batches; no `dev` is fine.
        faults: of utterances that are in neither.
    """

    cmvn: Cmvn
    train: Source
    dev: Source | None
    faults: list[Fault] = field(default_factory=list)

    def close(self) -> None:
        """End what works for the sources."""


def load_sources(
    experiment: Experiment,
    lang: Lang,
    train: TrainingSet | ChunkedSet,
    dev: TrainingSet | None,
    copies: Sequence[Perturbation],
    spec: NetworkSpec,
    output_lengths: OutputLengths,
    *,
    cache: Path | None,
    num_workers: int,
) -> Sources:
    """Load the features of a training set and, if there is one, a development set.

    Args:
        experiment: the configuration.
        lang: its tree gives the number of pdfs.
        train: utterances and numerators, or chunks of them.
        dev: evaluated.
        copies: changes of speed and volume of the training set.
        spec: how much context a chunk needs.
        output_lengths: the model's.
        cache: folder that keeps features between runs.
        num_workers: threads that compute features.

    Raises:
        DataError: no utterance is left.
    """
    num_pdfs = lang.tree.num_pdfs
    settings: dict[str, Any] = {"cache": cache, "num_workers": num_workers}
    data, variants, faults = load_supervised(
        train.data, train.supervised, experiment, lang, copies, **settings
    )
    cmvn = estimate_cmvn(variants[0], experiment.cmvn)
    variants = replace(train, data=data).cut([normalise_set(examples, cmvn) for examples in variants], spec)
    options: dict[str, Any] = {
        "batch_size": experiment.train.batch_size,
        "batch_frames": experiment.train.batch_frames,
        "seed": experiment.train.seed,
    }
    tables = train.tables(num_pdfs, [copy.prefix for copy in copies])
    source = BatchSource(variants, tables, output_lengths, augmentation=experiment.augment, **options)
    if dev is None:
        return Sources(cmvn, source, None, faults)
    _, (examples,), dev_faults = load_supervised(dev.data, dev.supervised, experiment, lang, **settings)
    normalised = normalise_set(examples, cmvn)
    dev_source = BatchSource([normalised], dev.tables(num_pdfs, [""]), output_lengths, **options)
    return Sources(cmvn, source, dev_source, faults + dev_faults)


# Sources of a training whose corpus is not kept in memory.

STATISTICS = "cmvn.npz"
STATISTICS_UTTERANCES = 5000  # that global statistics are taken from; more would not change them


@dataclass(frozen=True)
class TranscriptSet:
    """Utterances whose numerators are compiled while the training runs."""

    data: DataDir


@dataclass(frozen=True)
class Streaming:
    """How a corpus is read that is not kept in memory.

    Attributes:
        num_threads: that prepare utterances.
        num_processes: the same in processes; 0: threads do it.
        executor: the same anywhere; None: threads or processes of our own.
        shards_at_once: of Shar shards or Kaldi archives that are mixed with each other; None: utterances from everywhere.
    """

    num_threads: int = 1
    num_processes: int = 0
    executor: Executor | None = None
    shards_at_once: int | None = None


@dataclass(frozen=True)
class Streams:
    """What a training needs: normalisation and sources; `close` ends their workers."""

    cmvn: Cmvn
    train: StreamSource
    dev: StreamSource | None
    faults: list[Fault] = field(default_factory=list)

    def close(self) -> None:
        """End the workers."""
        self.train.close()
        if self.dev is not None:
            self.dev.close()


@dataclass(frozen=True)
class Opener:
    """Makes the streams of one training.

    Attributes:
        experiment: the configuration.
        lang: lexicon and tree.
        denominator: folder made by `make_denominator`.
        streaming: who works.
        cache: folder that keeps features, in one file for each utterance, and lengths; None for none.
    """

    experiment: Experiment
    lang: Lang
    denominator: Path
    streaming: Streaming
    cache: Path | None = None

    def open(
        self,
        train: TrainingSet | ChunkedSet | TranscriptSet,
        dev: TrainingSet | TranscriptSet | None,
        copies: Sequence[Perturbation],
        out: Path,
        output_lengths: OutputLengths,
    ) -> Streams:
        """The sources of a training set and, if there is one, a development set.

        Args:
            train: chunks are refused.
            dev: evaluated; its utterances are taken as they are.
            copies: changes of speed and volume of the training set.
            out: folder that keeps global statistics of the features.
            output_lengths: the model's.

        Raises:
            ConfigError: chunks, or shards where the corpus has none.
            DataError: no utterance is left.
        """
        corpus, maker, faults = self._corpus(train, copies)
        cmvn = self._statistics(corpus, out / STATISTICS)
        first = self._source(corpus, cmvn, maker, output_lengths, faults)
        if dev is None:
            return Streams(cmvn, first, None)
        corpus, maker, faults = self._corpus(dev, (Perturbation(),))
        own = self._statistics(corpus, None) if cmvn.config.scope == "speaker" else cmvn
        return Streams(cmvn, first, self._source(corpus, own, maker, output_lengths, faults))

    def _source(
        self,
        corpus: Corpus,
        cmvn: Cmvn,
        maker: NumeratorMaker | None,
        output_lengths: OutputLengths,
        faults: Sequence[Fault],
    ) -> StreamSource:
        config, folder = self.experiment, None if self.cache is None else str(self.cache)
        return StreamSource(
            corpus,
            Preparation(config.features, cmvn, config.augment, maker, folder),
            output_lengths,
            batch_size=config.train.batch_size,
            seed=config.train.seed,
            batch_frames=config.train.batch_frames,
            num_threads=self.streaming.num_threads,
            num_processes=self.streaming.num_processes,
            executor=self.streaming.executor,
            left_out=faults,
        )

    def _corpus(
        self, given: TrainingSet | ChunkedSet | TranscriptSet, copies: Sequence[Perturbation]
    ) -> tuple[Corpus, NumeratorMaker | None, list[Fault]]:
        """The utterances that can be used, who compiles their numerators, and what is wrong with the others."""
        if isinstance(given, ChunkedSet):
            raise ConfigError(
                f"{given.path}: chunks are cut from utterances in memory; train on them without --stream"
            )
        maker, stored = None, None
        if isinstance(given, TranscriptSet):
            wrong = {fault.id: fault for fault in transcript_faults(given.data, self.lang)}
            normalization = load_normalization(self.lang, self.denominator)
            maker = NumeratorMaker(self.lang.lexicon, self.lang.tree, normalization)
        else:
            bare = [one for one in given.data if one.id not in given.supervised]
            why = {fault.id: fault for fault in transcript_faults(bare, self.lang)}
            wrong = {
                one.id: why.get(one.id, Fault(one.id, f"utterance {one.id!r}: has no numerator"))
                for one in bare
            }
            stored = _stored(given, self.lang.tree.num_pdfs)
        utterances = [one for one in given.data if one.id not in wrong]
        counts, unreadable = frame_counts(
            utterances,
            self.experiment.features,
            copies,
            cache_dir=self.cache,
            num_workers=self.streaming.num_threads,
        )
        faults = [*wrong.values(), *unreadable]
        known = {fault.id for fault in faults}
        empty: NDArray[np.bool_] = np.any(counts <= 0, axis=0)
        faults += [
            Fault(one.id, f"utterance {one.id!r}: gives no frame", "no frames")
            for one, without in zip(utterances, empty.tolist(), strict=True)
            if without and one.id not in known
        ]
        kept = [one for one, without in zip(utterances, empty.tolist(), strict=True) if not without]
        at_once = self.streaming.shards_at_once
        shards = None if at_once is None else _shards(kept)
        return Corpus(kept, counts[:, ~empty], copies, stored, shards, at_once or 1), maker, faults

    def _statistics(self, corpus: Corpus, path: Path | None) -> Cmvn:
        """The normalisation; global statistics come from the file if it is there, else they are written to it."""
        config = self.experiment.cmvn
        if config.scope in ("none", "utterance"):
            return Cmvn(config)
        if config.scope == "speaker":
            every = [(one, copy) for copy in corpus.copies for one in corpus.utterances]
            return Cmvn.estimate(config, self._features(every))
        if path is not None and path.is_file():
            return Cmvn.from_state(config, read_npz(path))
        size = len(corpus.utterances)
        places: Iterable[int] = range(size)
        if size > STATISTICS_UTTERANCES:
            generator = seeded_generator(self.experiment.train.seed, "cmvn")
            places = sorted(generator.choice(size, STATISTICS_UTTERANCES, replace=False).tolist())
        some = [(corpus.utterances[place], corpus.copies[0]) for place in places]
        cmvn = Cmvn.estimate(config, self._features(some))
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as file:
                np.savez(file, allow_pickle=False, **cmvn.state())
        return cmvn

    def _features(
        self, utterances: Sequence[tuple[Utterance, Perturbation]]
    ) -> Iterable[tuple[str, NDArray[np.float32]]]:
        """Speakers and features as they are; what cannot be read is left out here, and named when its turn comes."""
        folder = None if self.cache is None else str(self.cache)
        plain = Preparation(self.experiment.features, Cmvn(CmvnConfig("none")), cache_dir=folder)
        tasks = (
            [Task(None, tuple(utterances[begin : begin + PIECE]))]
            for begin in range(0, len(utterances), PIECE)
        )
        count, executor = self.streaming.num_threads, self.streaming.executor
        with Workers(plain, num_threads=count, executor=executor) as workers:
            for (pieces,) in workers.ahead(tasks, 2 * count):
                for found in pieces:
                    if not isinstance(found, Fault):
                        yield found[0].speaker, found[0].features


def _stored(given: TrainingSet, num_pdfs: int) -> Callable[[Utterance], TransitionTable]:
    """The numerator of an utterance: read when it is asked for, if it is in shards."""
    if not isinstance(given, CompiledSet):
        tables = given.tables(num_pdfs, [""])
        return lambda utterance: tables[utterance.id]
    shards = given.shards

    def read(utterance: Utterance) -> TransitionTable:
        table = shards.read(utterance.id)
        if table.num_pdfs != num_pdfs:
            raise DataError(
                f"{shards.folder}: the numerator of {utterance.id!r} was made for {table.num_pdfs} pdfs; expected "
                f"{num_pdfs}; compile the numerators anew"
            )
        return table

    return read


def _shards(utterances: Sequence[Utterance]) -> list[int]:
    """A number for each file that holds the data of several utterances."""
    names = [_shard_name(utterance) for utterance in utterances]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    if len(numbers) < 2:
        raise ConfigError(
            "shards_at_once: the corpus does not lie in several shards or archives; leave the option away"
        )
    return [numbers[name] for name in names]


def _shard_name(utterance: Utterance) -> str:
    for part in (utterance.audio_part, utterance.feats_part):
        if isinstance(part, Member):
            return part.path
    return (utterance.feats or "").rpartition(":")[0]
