"""What a training takes its batches from: utterances with their numerators, in memory or streamed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import click
import numpy as np
from numpy.typing import NDArray

from fsachain.asr.cli.config import Experiment, NetworkSpec
from fsachain.asr.cli.graphs import load_normalization
from fsachain.asr.cli.lang import Lang, check_origin, usable_transcripts
from fsachain.asr.cli.model import normalise_set
from fsachain.asr.cli.resources import Resources
from fsachain.asr.data.audio import Perturbation, seeded_generator
from fsachain.asr.data.cmvn import Cmvn, CmvnConfig
from fsachain.asr.data.dataset import Example, cut_example, estimate_cmvn
from fsachain.asr.data.features import frame_counts, without_frames
from fsachain.asr.data.kaldi_dir import DataDir, Utterance
from fsachain.asr.data.utterance import Fault, Member, told_left_out, told_reasons
from fsachain.asr.data.workers import Workers
from fsachain.asr.train.source import (
    PIECE,
    BatchSource,
    Corpus,
    ForgivingNumerators,
    OutputLengths,
    Preparation,
    Source,
    StreamSource,
    Task,
)
from fsachain.errors import ConfigError, DataError, counted, without_python
from fsachain.files import read_npz, replacing
from fsachain.graph.archive import origin_of
from fsachain.graph.forgive import Forgiveness
from fsachain.graph.numerator import FLOOR, Numerator, load_numerators, source_of
from fsachain.graph.shards import NumeratorMaker, TableShards
from fsachain.graph.supervision import Chunk, holds_chunks, load_chunks
from fsachain.graph.transducer import told_unseen
from fsachain.progress import counter
from fsachain.table import TransitionTable, compile_table

COMPILED = Path("-")  # in place of numerators: they are compiled while the training runs
STATISTICS = "cmvn.npz"
STATISTICS_UTTERANCES = 5000  # that global statistics are taken from; more would not change them


@dataclass(frozen=True)
class TrainingSet:
    """Utterances and the numerators of those that can be used, by utterance id: graphs, or tables in mapped shards.

    Where `numerators` is None, they are compiled from the transcripts while a training streams the utterances. `forgiving`
    ones allow for transcripts that are wrong, in a training set alone; `has_star` tells that they have a pdf more than the
    tree, that of stars of frames.
    """

    data: DataDir
    numerators: Mapping[str, Numerator] | TableShards | None
    forgiving: bool = False
    has_star: bool = False

    @classmethod
    def read(cls, data: DataDir, path: Path, lang: Lang | None) -> TrainingSet:
        """With the numerators of whole utterances, from a file or a folder of shards, which `lang` made."""
        if path == COMPILED:
            return cls(data, None)
        made: Any
        if path.is_dir():
            made = TableShards(path)
            origin = made.origin
            made.check_bodies()
            changed = [one.id for one in data if one.id in made and not made.says(one.id, one.words)]
        else:
            made, origin = load_numerators(path), origin_of(path)
            # Numerators of patterns and graphs are not made from transcripts, so their words may differ.
            compared = made if source_of(path) == "transcripts" else ()
            changed = [one.id for one in data if one.id in compared and made[one.id].words != one.words]
        check_origin(lang, origin, path)
        if changed:
            raise DataError(
                f"{path}: the transcript of {changed[0]!r} has changed since its numerator was made; "
                "build the numerators anew"
            )
        star = origin.get("forgive") if isinstance(origin, Mapping) else None
        return cls(data, made, bool(star), star == "frames")

    @property
    def _floored(self) -> frozenset[str]:
        """Utterances with n-grams that the phone language model never saw; see `Numerator.floored`."""
        if isinstance(self.numerators, TableShards):
            return self.numerators.floored
        return frozenset(name for name, one in (self.numerators or {}).items() if one.floored)

    def num_floored(self, lang: Lang, denominator: Path) -> int:
        """How many are used with a floor, in a development set. Numerators that are not there yet are made for it."""
        if self.numerators is not None:
            return len(self._floored.intersection(one.id for one in self.data))
        maker = compiler(lang, denominator, floor=FLOOR)
        usable, _ = usable_transcripts(self.data.transcripts, lang.lexicon)
        return sum(maker.numerator(*one).floored for one in usable.items())

    def seen(self) -> tuple[TrainingSet, list[Fault]]:
        """Without the floored ones, which no denominator contains, and their faults."""
        floored = self._floored
        faults = [
            one.unusable("no path", f": {told_unseen()}").fault for one in self.data if one.id in floored
        ]
        return replace(self, data=self.data.select(lambda one: one.id not in floored)), faults

    def tables(self, num_pdfs: int, prefixes: Sequence[str]) -> dict[str, TransitionTable]:
        """By the ids of the utterances and of their copies, whose ids have a prefix."""
        compiled = {name: self._table(name, one, num_pdfs) for name, one in (self.numerators or {}).items()}
        return {prefix + name: table for prefix in prefixes for name, table in compiled.items()}

    def reader(self, num_pdfs: int) -> Callable[[Utterance], TransitionTable]:
        """Gives the table of an utterance; those in shards are read when they are asked for."""
        shards = self.numerators
        if isinstance(shards, TableShards):
            return lambda utterance: self._table(utterance.id, shards[utterance.id], num_pdfs)
        tables = self.tables(num_pdfs, [""])
        return lambda utterance: tables[utterance.id]

    def _table(self, name: str, numerator: Numerator | TransitionTable, num_pdfs: int) -> TransitionTable:
        num_pdfs += self.has_star
        if isinstance(numerator, Numerator):
            return compile_table(numerator.fsa, num_pdfs, name=name)
        if numerator.num_pdfs != num_pdfs:
            assert isinstance(self.numerators, TableShards)
            raise DataError(
                f"{self.numerators.folder}: the numerator of {name!r} was made for "
                f"{counted(numerator.num_pdfs, 'pdf')}; expected "
                f"{num_pdfs}; compile the numerators anew"
            )
        return numerator


def compiler(lang: Lang, denominator: Path, **options: Any) -> NumeratorMaker:
    return NumeratorMaker(lang.lexicon, lang.tree, load_normalization(lang, denominator), **options)


@dataclass(frozen=True)
class ChunkedSet:
    """Utterances and, for each that can be used, a list of chunks per copy; `path` is the file they came from."""

    data: DataDir
    numerators: Mapping[str, list[list[Chunk]]]
    path: Path

    def cut(self, copies: list[list[Example]], spec: NetworkSpec) -> list[list[Example]]:
        """Chunks come with as much context as the network sees."""
        subsampling, context = spec.sketch.subsampling, spec.sketch.context
        if context is None:
            raise ConfigError(
                f"network.kind: each output of {spec.kind} sees the whole utterance; expected a network of bounded context, "
                "such as a conformer with network.chunk"
            )
        found: list[list[Example]] = [[] for _ in copies]
        for utterance, *examples in zip(self.data.utterances, *copies, strict=True):
            lists = self.numerators[utterance.id]
            names = [one[0].utterance for one in lists]
            if names != [example.id for example in examples]:
                raise DataError(
                    f"{self.path}: has chunks of {', '.join(names)}, expected those of "
                    f"{', '.join(example.id for example in examples)}; supervise anew after a change of speeds"
                )
            for made, example, chunks in zip(found, examples, lists, strict=True):
                frames = -(-example.num_frames // subsampling)
                for chunk in chunks:
                    if frames != chunk.of_frames:
                        raise DataError(
                            f"{self.path}: chunk {chunk.id!r} is of "
                            f"{counted(chunk.of_frames, 'output frame')}, the utterance has "
                            f"{frames}; supervise anew after a change of features or network"
                        )
                    part = chunk.start, chunk.frame_weights
                    made.append(
                        cut_example(example, *part, subsampling=subsampling, context=context, name=chunk.id)
                    )
        return found

    def tables(self, num_pdfs: int, prefixes: Sequence[str]) -> dict[str, TransitionTable]:
        """By the ids of the chunks, which have the prefix of their copy already."""
        every = (chunk for lists in self.numerators.values() for one in lists for chunk in one)
        return {chunk.id: compile_table(chunk.fsa, num_pdfs, name=chunk.id) for chunk in every}


def read_training_set(data: DataDir, numerators: Path, lang: Lang | None) -> TrainingSet | ChunkedSet:
    """The utterances with what `num-graphs`, `num-tables` (a folder) or `supervise` wrote for them, or "-" for nothing."""
    if numerators != COMPILED and not numerators.is_dir() and holds_chunks(numerators):
        check_origin(lang, origin_of(numerators), numerators)
        return ChunkedSet(data, load_chunks(numerators), numerators)
    return TrainingSet.read(data, numerators, lang)


def _without_numerator(given: TrainingSet | ChunkedSet, lang: Lang) -> list[Fault]:
    """The fault of the transcript is the reason, where it has one."""
    bare = {one.id: one.words for one in given.data if one.id not in (given.numerators or ())}
    why = {fault.id: fault for fault in usable_transcripts(bare, lang.lexicon)[1]}
    return [why.get(name, Fault(name, f"utterance {name!r}: has no numerator")) for name in bare]


class Sources(NamedTuple):
    """`faults` are of utterances that are in neither source and that the sources themselves do not name."""

    cmvn: Cmvn
    train: Source
    dev: Source | None
    faults: Sequence[Fault] = ()


@dataclass(frozen=True)
class Loader:
    """Makes the sources of a training from a training set and, if there is one, a development set.

    In memory, features are computed by `resources.workers` threads. Streamed, utterances are prepared by the executor, by
    `resources.jobs` processes if there are any, else by threads. `resources.cache` is a folder for lengths and features.
    The lexicon of `lang` tells why an utterance has no numerator. `output_lengths` are the network's.
    """

    experiment: Experiment
    lang: Lang
    output_lengths: OutputLengths
    resources: Resources

    @property
    def _copies(self) -> list[Perturbation]:
        return self.experiment.perturbation.copies(self.experiment.train.seed)

    @property
    def _batching(self) -> dict[str, Any]:
        found = {
            name: getattr(self.experiment.train, name) for name in ("batch_size", "batch_frames", "seed")
        }
        return {**found, "views": self.experiment.loss.views}

    def load(self, train: TrainingSet | ChunkedSet, dev: TrainingSet | None) -> Sources:
        """With all features in memory."""
        faults: list[Fault] = []

        def load(
            which: str, given: TrainingSet | ChunkedSet, copies: Sequence[Perturbation]
        ) -> tuple[DataDir, list[list[Example]]]:
            made = given.data.select(lambda utterance: utterance.id in (given.numerators or ()))
            usable, variants, broken = self.resources.load_usable(made, self.experiment.features, copies)
            found = _without_numerator(given, self.lang) + broken
            if not len(usable):
                click.echo(without_python(told_left_out(found)))
                raise DataError(f"{which} set: no utterance is left: {told_reasons(found)}")
            faults.extend(found)
            return usable, variants

        num_pdfs = self.lang.tree.num_pdfs
        data, variants = load("training", train, self._copies)
        cmvn = estimate_cmvn(variants[0], self.experiment.cmvn, self.experiment.features.loudness)
        variants = [normalise_set(examples, cmvn) for examples in variants]
        if isinstance(train, ChunkedSet):
            variants = replace(train, data=data).cut(variants, self.experiment.network_spec(num_pdfs))
        prefixes = [copy.prefix for copy in self._copies]
        forgiving = self._forgiving(train, prefixes)
        tables = train.tables(num_pdfs, prefixes) if forgiving is None else forgiving.at(0)
        how = {
            "augmentation": self.experiment.augmentation,
            "loudness": self.experiment.features.loudness,
            "forgiving": forgiving,
            **self._batching,
        }
        source = BatchSource(variants, tables, self.output_lengths, **how)
        if dev is None:
            return Sources(cmvn, source, None, faults)
        _, (examples,) = load("development", dev, (Perturbation(),))
        variants = [normalise_set(examples, cmvn)]
        dev_source = BatchSource(variants, dev.tables(num_pdfs, [""]), self.output_lengths, **self._batching)
        return Sources(cmvn, source, dev_source, faults)

    def _forgiving(
        self, train: TrainingSet | ChunkedSet, prefixes: Sequence[str]
    ) -> ForgivingNumerators | None:
        """None where no numerator forgives, or none that is in memory."""
        config = self.experiment.settled(self.lang.tree).forgive
        given = train.numerators if isinstance(train, TrainingSet) else None
        graphs = {} if given is None or isinstance(given, TableShards) else given
        if not any(graph.forgive is not None for graph in graphs.values()):
            if config.changing:
                raise ConfigError(
                    "forgive: has penalties that change with the training; expected numerators in memory that forgive, as "
                    "`fsachain num-graphs` makes them with this section; those of patterns do not"
                )
            return None
        size = self.experiment.train.num_epochs

        def penalties(epoch: int) -> Forgiveness:
            return cast(Forgiveness, config.forgiveness((epoch + 0.5) / size))

        copies = {prefix + name: graph for prefix in prefixes for name, graph in graphs.items()}
        changing = (penalties, f"{config} {size}") if config.changing else ()
        num_pdfs = self.lang.tree.num_pdfs + cast(TrainingSet, train).has_star
        return ForgivingNumerators(copies, num_pdfs, *changing)

    def stream(
        self,
        train: TrainingSet | ChunkedSet,
        dev: TrainingSet | None,
        denominator: Path,
        out: Path,
        shards_at_once: int | None,
    ) -> Sources:
        """With utterances prepared ahead of their use, and no more kept; chunks are refused.

        Numerators compiled here are normalised by `denominator`, the folder of `fsachain den-graph`. `out` keeps global
        statistics of the features. `shards_at_once` are the Shar shards or Kaldi archives that are mixed with each other;
        None takes utterances from everywhere.
        """
        resources = self.resources
        config = self.experiment.cmvn

        def source(given: TrainingSet, corpus: Corpus, cmvn: Cmvn, faults: Sequence[Fault]) -> StreamSource:
            maker = None
            if given.numerators is None:
                forgive = self.experiment.settled(self.lang.tree).forgive.forgiveness()
                how: dict[str, Any] = {"floor": FLOOR} if given is dev else {"forgive": forgive}
                maker = compiler(self.lang, denominator, **how)
            augmentation = self.experiment.augmentation
            return StreamSource(
                corpus,
                Preparation(self.experiment.features, cmvn, augmentation, maker, resources.cache),
                self.output_lengths,
                num_threads=resources.workers,
                num_processes=resources.jobs,
                executor=resources.executor,
                left_out=faults,
                **self._batching,
            )

        if self.experiment.forgive.changing:
            raise ConfigError("forgive: has penalties that change with the training; train without --stream")
        if isinstance(train, ChunkedSet):
            raise ConfigError(
                f"{train.path}: chunks are cut from utterances in memory; train on them without --stream"
            )
        corpus, faults = self._corpus(train, self._copies, shards_at_once)
        cmvn = self._statistics(corpus, out / STATISTICS)
        first = source(train, corpus, cmvn, faults)
        if dev is None:
            return Sources(cmvn, first, None)
        corpus, faults = self._corpus(dev, (Perturbation(),), shards_at_once)
        own = self._statistics(corpus, None) if config.scope == "speaker" else cmvn
        return Sources(cmvn, first, source(dev, corpus, own, faults))

    def _corpus(
        self, given: TrainingSet, copies: Sequence[Perturbation], shards_at_once: int | None
    ) -> tuple[Corpus, list[Fault]]:
        stored = None
        if given.numerators is None:
            _, faults = usable_transcripts(given.data.transcripts, self.lang.lexicon)
        else:
            faults = _without_numerator(given, self.lang)
            stored = given.reader(self.lang.tree.num_pdfs)
        wrong = {fault.id for fault in faults}
        utterances = [one for one in given.data if one.id not in wrong]
        cache, threads = self.resources.cache, self.resources.workers
        features = self.experiment.features
        with counter("lengths") as update:
            counts, unreadable = frame_counts(
                utterances, features, copies, cache_dir=cache, num_workers=threads, progress=update
            )
        faults += unreadable
        known = {fault.id for fault in unreadable}
        empty: NDArray[np.bool_] = np.any(counts <= 0, axis=0)
        kept = []
        for one, is_empty in zip(utterances, empty.tolist(), strict=True):
            if not is_empty:
                kept.append(one)
            elif one.id not in known:
                faults.append(without_frames(one))
        shards = None if shards_at_once is None else _shards(kept)
        return Corpus(kept, counts[:, ~empty], copies, stored, shards, shards_at_once or 1), faults

    def _statistics(self, corpus: Corpus, path: Path | None) -> Cmvn:
        """The normalisation; global statistics come from the file if it is there, else they are written to it."""
        config, loudness = self.experiment.cmvn, self.experiment.features.loudness
        if config.scope in ("none", "utterance", "window"):
            return Cmvn(config, loudness=loudness)
        if config.scope == "speaker":
            every = [(one, copy) for copy in corpus.copies for one in corpus.utterances]
            return Cmvn.estimate(config, self._features(every), loudness)
        if path is not None and path.is_file():
            return Cmvn.from_state(config, read_npz(path), loudness)
        size = len(corpus.utterances)
        places: Iterable[int] = range(size)
        if size > STATISTICS_UTTERANCES:
            generator = seeded_generator(self.experiment.train.seed, "cmvn")
            places = sorted(generator.choice(size, STATISTICS_UTTERANCES, replace=False).tolist())
        some = [(corpus.utterances[place], corpus.copies[0]) for place in places]
        cmvn = Cmvn.estimate(config, self._features(some), loudness)
        if path is not None:
            with replacing(path) as file:
                np.savez(file, allow_pickle=False, **cmvn.state())
        return cmvn

    def _features(
        self, pairs: Sequence[tuple[Utterance, Perturbation]]
    ) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Speakers and features as they are; what cannot be read is left out here, and named when its turn comes."""
        plain = Preparation(
            self.experiment.features, Cmvn(CmvnConfig("none")), cache_dir=self.resources.cache
        )
        tasks = ([Task(None, tuple(pairs[begin : begin + PIECE]))] for begin in range(0, len(pairs), PIECE))
        count = self.resources.workers
        with Workers(plain, num_threads=count, executor=self.resources.executor) as workers:
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
            "--shards-at-once: the corpus does not lie in several shards or archives; leave the option away"
        )
    return [numbers[name] for name in names]
