"""Sources of a training whose corpus is not kept in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fsachain.cli.config import Experiment
from fsachain.cli.steps.graphs import load_normalization
from fsachain.cli.steps.lang import Lang
from fsachain.cli.steps.training_sets import ChunkedSet, CompiledSet, TrainingSet
from fsachain.cli.steps.validation import transcript_faults
from fsachain.data.audio import Perturbation, seeded_generator
from fsachain.data.cmvn import Cmvn, CmvnConfig
from fsachain.data.faults import Fault
from fsachain.data.kaldi_dir import DataDir
from fsachain.data.lengths import frame_counts
from fsachain.data.utterance import Member, Utterance
from fsachain.data.workers import Workers
from fsachain.errors import ConfigError, DataError
from fsachain.files import replacing
from fsachain.graph.shards import NumeratorMaker
from fsachain.npz_file import read_npz
from fsachain.table import TransitionTable
from fsachain.train.checks import OutputLengths
from fsachain.train.stream import PIECE, Corpus, Preparation, StreamSource, Task

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
