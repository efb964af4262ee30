"""What a training takes its batches from: utterances with their numerators, in memory or streamed."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
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
from fsachain.data.audio import Perturbation, seeded_generator
from fsachain.data.cmvn import Cmvn, CmvnConfig
from fsachain.data.dataset import Example, cut_example, estimate_cmvn, load_usable
from fsachain.data.kaldi_dir import DataDir, Utterance
from fsachain.data.order import frame_counts
from fsachain.data.utterance import Fault, Member
from fsachain.data.workers import Workers
from fsachain.errors import ConfigError, DataError
from fsachain.files import read_npz, replacing
from fsachain.graph.chunks import Chunk, holds_chunks, load_chunks
from fsachain.graph.numerator import Numerator, load_numerators, source_of
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

STATISTICS = "cmvn.npz"
STATISTICS_UTTERANCES = 5000  # that global statistics are taken from; more would not change them


@dataclass(frozen=True)
class TrainingSet:
    """Utterances and the numerators of those that can be used, by utterance id."""

    data: DataDir
    numerators: Mapping[str, Numerator]

    @classmethod
    def read(cls, data: DataDir, path: Path) -> TrainingSet:
        graphs = load_numerators(path)
        # Numerators of patterns and graphs are not made from transcripts, so their words may differ.
        compared = graphs if source_of(path) == "transcripts" else ()
        for utterance in data:
            if utterance.id in compared and graphs[utterance.id].words != utterance.words:
                raise _changed(path, utterance)
        return cls(data, graphs)

    @property
    def supervised(self) -> Container[str]:
        return self.numerators

    def cut(self, copies: list[list[Example]], network: NetworkSpec) -> list[list[Example]]:
        return copies

    def tables(self, num_pdfs: int, prefixes: Sequence[str]) -> dict[str, TransitionTable]:
        """By the ids of the utterances and of their copies, whose ids have a prefix."""
        compiled = {
            name: compile_table(numerator.fsa, num_pdfs, name=name)
            for name, numerator in self.numerators.items()
        }
        return {prefix + name: table for prefix in prefixes for name, table in compiled.items()}

    def reader(self, num_pdfs: int) -> Callable[[Utterance], TransitionTable]:
        tables = self.tables(num_pdfs, [""])
        return lambda utterance: tables[utterance.id]


def _changed(path: Path, utterance: Utterance) -> DataError:
    return DataError(
        f"{path}: the transcript of {utterance.id!r} has changed since its numerator was made; "
        "build the numerators anew"
    )


@dataclass(frozen=True)
class CompiledSet(TrainingSet):
    """Utterances and shards of compiled numerators, mapped into memory; `numerators` is empty."""

    shards: TableShards

    @property
    def supervised(self) -> Container[str]:
        return self.shards

    @classmethod
    def read(cls, data: DataDir, path: Path) -> CompiledSet:
        shards = TableShards(path)
        shards.check_bodies()
        for utterance in data:
            if utterance.id in shards and not shards.says(utterance.id, utterance.words):
                raise _changed(path, utterance)
        return cls(data, {}, shards)

    def tables(self, num_pdfs: int, prefixes: Sequence[str]) -> dict[str, TransitionTable]:
        tables = {name: self._checked(name, table, num_pdfs) for name, table in self.shards.items()}
        return {prefix + name: table for prefix in prefixes for name, table in tables.items()}

    def reader(self, num_pdfs: int) -> Callable[[Utterance], TransitionTable]:
        """A table is read when it is asked for."""
        return lambda utterance: self._checked(utterance.id, self.shards.read(utterance.id), num_pdfs)

    def _checked(self, name: str, table: TransitionTable, num_pdfs: int) -> TransitionTable:
        if table.num_pdfs != num_pdfs:
            raise DataError(
                f"{self.shards.folder}: the numerator of {name!r} was made for {table.num_pdfs} pdfs; expected "
                f"{num_pdfs}; compile the numerators anew"
            )
        return table


@dataclass(frozen=True)
class ChunkedSet:
    """Utterances and, for each that can be used, a list of chunks per copy; `path` is the file they came from."""

    data: DataDir
    chunks: Mapping[str, list[list[Chunk]]]
    path: Path

    @property
    def supervised(self) -> Container[str]:
        return self.chunks

    def cut(self, copies: list[list[Example]], network: NetworkSpec) -> list[list[Example]]:
        """Chunks come with as much context as the network sees; utterances without are left out."""
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
        """By the ids of the chunks, which have the prefix of their copy already."""
        every = (chunk for lists in self.chunks.values() for one in lists for chunk in one)
        return {chunk.id: compile_table(chunk.fsa, num_pdfs, name=chunk.id) for chunk in every}


@dataclass(frozen=True)
class TranscriptSet:
    """Utterances whose numerators are compiled while a training streams them."""

    data: DataDir


def read_training_set(data: DataDir, numerators: Path) -> TrainingSet | ChunkedSet:
    """The utterances with what `num-graphs`, `num-tables` (a folder) or `supervise` wrote for them."""
    if not numerators.is_dir() and holds_chunks(numerators):
        return ChunkedSet(data, load_chunks(numerators), numerators)
    return read_flat_set(data, numerators)


def read_flat_set(data: DataDir, numerators: Path) -> TrainingSet:
    """Numerators of whole utterances, from a file or a folder of shards."""
    return (CompiledSet if numerators.is_dir() else TrainingSet).read(data, numerators)


def transcript_faults(utterances: Iterable[Utterance], lang: Lang | None) -> list[Fault]:
    """Utterances without words and, where `lang` is given, with a word that its lexicon refuses."""
    faults = []
    for utterance in utterances:
        if not utterance.words:
            message = f"utterance {utterance.id!r}: the transcript is empty"
            faults.append(Fault(utterance.id, message, "empty text"))
        elif lang is not None:
            refusal = lang.refusal(utterance.words, utterance.id)
            if refusal is not None:
                faults.append(Fault(utterance.id, refusal, "unknown word"))
    return faults


def _without_numerator(data: DataDir, supervised: Container[str], lang: Lang) -> list[Fault]:
    """The fault of the transcript is the reason, where it has one."""
    bare = [utterance for utterance in data if utterance.id not in supervised]
    why = {fault.id: fault for fault in transcript_faults(bare, lang)}
    return [why.get(one.id, Fault(one.id, f"utterance {one.id!r}: has no numerator")) for one in bare]


@dataclass(frozen=True)
class Sources:
    """`faults` are of utterances that are in neither source and that the sources themselves do not name."""

    cmvn: Cmvn
    train: Source | StreamSource
    dev: Source | StreamSource | None
    faults: list[Fault] = field(default_factory=list)

    def close(self) -> None:
        """End the workers of streams."""
        for source in (self.train, self.dev):
            if isinstance(source, StreamSource):
                source.close()


# in memory


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

    The lexicon of `lang` tells why an utterance has no numerator; `spec` tells how much context a chunk needs.
    """
    faults: list[Fault] = []

    def load(
        given: TrainingSet | ChunkedSet, copies: Sequence[Perturbation]
    ) -> tuple[DataDir, list[list[Example]]]:
        found = _without_numerator(given.data, given.supervised, lang)
        usable, variants, broken = load_usable(
            given.data.select(lambda utterance: utterance.id in given.supervised),
            experiment.features,
            copies,
            cache_dir=cache,
            num_workers=num_workers,
        )
        found += broken
        if not len(usable):
            first = f"; the first: {found[0].reason}" if found else ""
            raise DataError(f"no utterance is left, {len(found)} were excluded{first}")
        faults.extend(found)
        return usable, variants

    num_pdfs = lang.tree.num_pdfs
    options: dict[str, Any] = {
        "batch_size": experiment.train.batch_size,
        "batch_frames": experiment.train.batch_frames,
        "seed": experiment.train.seed,
    }
    data, variants = load(train, copies)
    cmvn = estimate_cmvn(variants[0], experiment.cmvn)
    variants = replace(train, data=data).cut([normalise_set(examples, cmvn) for examples in variants], spec)
    tables = train.tables(num_pdfs, [copy.prefix for copy in copies])
    source = BatchSource(variants, tables, output_lengths, augmentation=experiment.augment, **options)
    if dev is None:
        return Sources(cmvn, source, None, faults)
    _, (examples,) = load(dev, (Perturbation(),))
    dev_source = BatchSource(
        [normalise_set(examples, cmvn)], dev.tables(num_pdfs, [""]), output_lengths, **options
    )
    return Sources(cmvn, source, dev_source, faults)


# streamed


@dataclass(frozen=True)
class Streaming:
    """How a corpus is read that is not kept in memory.

    Utterances are prepared by the executor, by processes if there are any, else by threads. `shards_at_once` are the Shar
    shards or Kaldi archives that are mixed with each other; None takes utterances from everywhere. `cache` is a folder for
    lengths and for features, one file for each utterance.
    """

    num_threads: int = 1
    num_processes: int = 0
    executor: Executor | None = None
    shards_at_once: int | None = None
    cache: Path | None = None

    @property
    def folder(self) -> str | None:
        return None if self.cache is None else str(self.cache)


def open_streams(
    experiment: Experiment,
    lang: Lang,
    denominator: Path,
    train: TrainingSet | ChunkedSet | TranscriptSet,
    dev: TrainingSet | TranscriptSet | None,
    copies: Sequence[Perturbation],
    out: Path,
    output_lengths: OutputLengths,
    streaming: Streaming,
) -> Sources:
    """The sources of a training set and, if there is one, a development set; chunks are refused.

    Numerators compiled here are normalised by `denominator`, the folder of `fsachain den-graph`. `out` keeps global
    statistics of the features.
    """

    def source(
        given: TrainingSet | ChunkedSet | TranscriptSet, corpus: Corpus, cmvn: Cmvn, faults: Sequence[Fault]
    ) -> StreamSource:
        maker = None
        if isinstance(given, TranscriptSet):
            maker = NumeratorMaker(lang.lexicon, lang.tree, load_normalization(lang, denominator))
        return StreamSource(
            corpus,
            Preparation(experiment.features, cmvn, experiment.augment, maker, streaming.folder),
            output_lengths,
            batch_size=experiment.train.batch_size,
            seed=experiment.train.seed,
            batch_frames=experiment.train.batch_frames,
            num_threads=streaming.num_threads,
            num_processes=streaming.num_processes,
            executor=streaming.executor,
            left_out=faults,
        )

    corpus, faults = _corpus(experiment, lang, train, copies, streaming)
    cmvn = _statistics(experiment, corpus, out / STATISTICS, streaming)
    first = source(train, corpus, cmvn, faults)
    if dev is None:
        return Sources(cmvn, first, None)
    corpus, faults = _corpus(experiment, lang, dev, (Perturbation(),), streaming)
    own = _statistics(experiment, corpus, None, streaming) if cmvn.config.scope == "speaker" else cmvn
    return Sources(cmvn, first, source(dev, corpus, own, faults))


def _corpus(
    experiment: Experiment,
    lang: Lang,
    given: TrainingSet | ChunkedSet | TranscriptSet,
    copies: Sequence[Perturbation],
    streaming: Streaming,
) -> tuple[Corpus, list[Fault]]:
    if isinstance(given, ChunkedSet):
        raise ConfigError(
            f"{given.path}: chunks are cut from utterances in memory; train on them without --stream"
        )
    stored = None
    if isinstance(given, TranscriptSet):
        faults = transcript_faults(given.data, lang)
    else:
        faults = _without_numerator(given.data, given.supervised, lang)
        stored = given.reader(lang.tree.num_pdfs)
    wrong = {fault.id for fault in faults}
    utterances = [one for one in given.data if one.id not in wrong]
    counts, unreadable = frame_counts(
        utterances,
        experiment.features,
        copies,
        cache_dir=streaming.cache,
        num_workers=streaming.num_threads,
    )
    faults += unreadable
    known = {fault.id for fault in unreadable}
    empty: NDArray[np.bool_] = np.any(counts <= 0, axis=0)
    kept = []
    for one, without_frames in zip(utterances, empty.tolist(), strict=True):
        if not without_frames:
            kept.append(one)
        elif one.id not in known:
            faults.append(Fault(one.id, f"utterance {one.id!r}: gives no frame", "no frames"))
    at_once = streaming.shards_at_once
    shards = None if at_once is None else _shards(kept)
    return Corpus(kept, counts[:, ~empty], copies, stored, shards, at_once or 1), faults


def _statistics(experiment: Experiment, corpus: Corpus, path: Path | None, streaming: Streaming) -> Cmvn:
    """The normalisation; global statistics come from the file if it is there, else they are written to it."""
    config = experiment.cmvn
    if config.scope in ("none", "utterance"):
        return Cmvn(config)
    if config.scope == "speaker":
        every = [(one, copy) for copy in corpus.copies for one in corpus.utterances]
        return Cmvn.estimate(config, _features(experiment, every, streaming))
    if path is not None and path.is_file():
        return Cmvn.from_state(config, read_npz(path))
    size = len(corpus.utterances)
    places: Iterable[int] = range(size)
    if size > STATISTICS_UTTERANCES:
        generator = seeded_generator(experiment.train.seed, "cmvn")
        places = sorted(generator.choice(size, STATISTICS_UTTERANCES, replace=False).tolist())
    some = [(corpus.utterances[place], corpus.copies[0]) for place in places]
    cmvn = Cmvn.estimate(config, _features(experiment, some, streaming))
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            np.savez(file, allow_pickle=False, **cmvn.state())
    return cmvn


def _features(
    experiment: Experiment, utterances: Sequence[tuple[Utterance, Perturbation]], streaming: Streaming
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Speakers and features as they are; what cannot be read is left out here, and named when its turn comes."""
    plain = Preparation(experiment.features, Cmvn(CmvnConfig("none")), cache_dir=streaming.folder)
    tasks = (
        [Task(None, tuple(utterances[begin : begin + PIECE]))] for begin in range(0, len(utterances), PIECE)
    )
    count = streaming.num_threads
    with Workers(plain, num_threads=count, executor=streaming.executor) as workers:
        for (pieces,) in workers.ahead(tasks, 2 * count):
            for found in pieces:
                if not isinstance(found, Fault):
                    yield found[0].speaker, found[0].features


def _shards(utterances: Sequence[Utterance]) -> list[int]:
    """A number for each file that holds the data of several utterances."""

    def shard(utterance: Utterance) -> str:
        for part in (utterance.audio_part, utterance.feats_part):
            if isinstance(part, Member):
                return part.path
        return (utterance.feats or "").rpartition(":")[0]

    names = [shard(utterance) for utterance in utterances]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    if len(numbers) < 2:
        raise ConfigError(
            "shards_at_once: the corpus does not lie in several shards or archives; leave the option away"
        )
    return [numbers[name] for name in names]
