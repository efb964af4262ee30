"""Batches of a corpus that is never in memory: features, and numerators if need be, are made ahead of their use.

What stays in memory is the list of utterances and their lengths. A step's utterances follow from these alone, by the same
function as for examples in memory, so both give the same batches, and a training that is resumed reads nothing of what it
has done.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fsachain.batch import TableBatch
from fsachain.data.audio import Perturbation, seeded_generator
from fsachain.data.augment import AugmentConfig, augment
from fsachain.data.cmvn import Cmvn
from fsachain.data.dataset import Example, collate
from fsachain.data.features import FeatureConfig, load_chunk
from fsachain.data.order import EpochOrder
from fsachain.data.utterance import Fault, Utterance, UtteranceError
from fsachain.data.workers import Workers
from fsachain.errors import DataError, GraphError
from fsachain.table import TransitionTable
from fsachain.train.source import OutputLengths, SupervisedBatch, fault_of, min_frames
from fsachain.train.world import WHOLE, Share

PIECE = 8  # utterances that a worker takes at a time
_SPARE_STEPS = 2


class TableMaker(Protocol):
    """What compiles a numerator: `fsachain.graph.shards.NumeratorMaker`, say."""

    def table(self, name: str, words: Sequence[str]) -> TransitionTable:
        """The numerator of an utterance; a `GraphError` says why there is none."""


@dataclass(frozen=True)
class Task:
    """A piece of work: utterances, each in one of its versions, of an epoch; None where nothing is augmented."""

    epoch: int | None
    utterances: tuple[tuple[Utterance, Perturbation], ...]


Prepared = tuple[Example, TransitionTable | None, float] | Fault


@dataclass(frozen=True)
class Preparation:
    """What a worker does with an utterance; picklable.

    Attributes:
        features: kind and size of the features.
        cmvn: their normalisation.
        augmentation: changes drawn anew in each epoch; None: none.
        maker: compiles the numerator from the transcript; None: the source has it.
        cache_dir: folder that keeps features, one file for each utterance; None for none.
    """

    features: FeatureConfig
    cmvn: Cmvn
    augmentation: AugmentConfig | None = None
    maker: TableMaker | None = None
    cache_dir: str | None = None

    def __call__(self, task: Task) -> list[Prepared]:
        """For each utterance the example, its numerator and the fewest frames of that; or what is wrong with it."""
        return [self._prepare(task.epoch, *one) for one in task.utterances]

    def _prepare(self, epoch: int | None, utterance: Utterance, copy: Perturbation) -> Prepared:
        try:
            (matrix,) = load_chunk((utterance,), self.features, copy, self.cache_dir)
        except UtteranceError as error:
            return error.fault
        name, speaker = copy.prefix + utterance.id, copy.prefix + utterance.speaker
        if not len(matrix):
            return Fault(name, f"utterance {utterance.id!r}: gives no frame", "no frames")
        if not np.isfinite(matrix).all():  # before statistics are taken
            return Fault(name, f"utterance {utterance.id!r}: features are not finite", "features not finite")
        example = Example(name, speaker, utterance.words, self.cmvn.apply(matrix, speaker))
        if epoch is not None and self.augmentation is not None:
            example = augment(example, self.augmentation, epoch)
        if self.maker is None:
            return example, None, 0.0
        try:
            table = self.maker.table(utterance.id, utterance.words)
        except GraphError as error:
            return Fault(utterance.id, str(error), "no numerator")
        return example, table, min_frames(table)


@dataclass(frozen=True)
class Corpus:
    """The utterances of a stream and what is known of them.

    Attributes:
        utterances: those that can be used, as far as that is known.
        frames: int32 [copies, utterances], from `fsachain.data.order.frame_counts`.
        copies: changes of speed and volume; an epoch draws one for each utterance.
        stored: the numerator of an utterance; None where workers compile it.
        shard_of: see `EpochOrder`; None: utterances from everywhere are mixed.
        shards_at_once: see `EpochOrder`.
    """

    utterances: Sequence[Utterance]
    frames: NDArray[np.int32]
    copies: Sequence[Perturbation] = (Perturbation(),)
    stored: Callable[[Utterance], TransitionTable] | None = None
    shard_of: Sequence[int] | None = None
    shards_at_once: int = 8


class StreamSource:
    """Supervised batches of a corpus on disk, epoch by epoch: a `fsachain.train.source.Source`.

    Args:
        corpus: the utterances.
        preparation: what is done with each.
        output_lengths: the model's, from input to output frames.
        batch_size: utterances per step, at most.
        seed: of order and version.
        batch_frames: frames per step, at most, padding included; see `EpochOrder`.
        num_threads, num_processes, executor: who prepares utterances; see `Workers`. Numerators are compiled faster by
            processes.
        left_out: utterances that are not in the corpus because something is wrong with them.

    Attributes:
        excluded: `left_out`, and those with which something was found wrong when it was their turn. A step goes on
            without them.

    Raises:
        DataError: there is no utterance.
    """

    def __init__(
        self,
        corpus: Corpus,
        preparation: Preparation,
        output_lengths: OutputLengths,
        *,
        batch_size: int,
        seed: int,
        batch_frames: int | None = None,
        num_threads: int = 1,
        num_processes: int = 0,
        executor: Executor | None = None,
        left_out: Sequence[Fault] = (),
    ) -> None:
        self.excluded = tuple(left_out)
        if not corpus.utterances:
            first = f"; the first: {self.excluded[0]}" if self.excluded else ""
            raise DataError(f"no utterance is left, {len(self.excluded)} were excluded{first}")
        self._corpus, self._preparation, self._output_lengths = corpus, preparation, output_lengths
        self._batch_size, self._seed = batch_size, seed
        self._needs = np.full(len(corpus.utterances), np.nan)  # `min_frames`, once they are known
        self._known = {fault.id for fault in self.excluded}
        self._order = EpochOrder(
            self._lengths,
            batch_size=batch_size,
            seed=seed,
            batch_frames=batch_frames,
            shard_of=corpus.shard_of,
            shards_at_once=corpus.shards_at_once,
        )
        self._workers = Workers(
            preparation, num_threads=num_threads, num_processes=num_processes, executor=executor
        )

    @property
    def num_utterances(self) -> int:
        """Utterances of an epoch."""
        return len(self._corpus.utterances)

    @property
    def num_batches(self) -> int:
        """Steps of an epoch."""
        return self._order.num_batches

    def fingerprint(self) -> list[Any]:
        """As that of the same examples in memory, if steps are drawn from everywhere."""
        corpus, change = self._corpus, self._preparation.augmentation
        ids = [
            [copy.prefix + utterance.id, int(count)]
            for utterance, counts in zip(corpus.utterances, corpus.frames.T, strict=True)
            for copy, count in zip(corpus.copies, counts, strict=True)
        ]
        shards = [] if corpus.shard_of is None else [list(corpus.shard_of), corpus.shards_at_once]
        return [None if change is None else asdict(change), ids, *shards]

    def batches(
        self, epoch: int, start: int = 0, share: Share = WHOLE
    ) -> Iterator[tuple[SupervisedBatch, ...]]:
        """The micro-batches of `share`, some steps ahead; see `Source`."""
        return self._steps(self._order.buckets(epoch)[start:], self._versions(epoch), epoch, share)

    def in_order(self, share: Share = WHOLE) -> Iterator[tuple[SupervisedBatch, ...]]:
        """The first version of every utterance, unchanged, shortest first: for evaluation."""
        order = np.argsort(self._corpus.frames[0], kind="stable").tolist()
        steps = [order[begin : begin + self._batch_size] for begin in range(0, len(order), self._batch_size)]
        return self._steps(steps, np.zeros(len(order), np.int64), None, share)

    def close(self) -> None:
        """End the workers."""
        self._workers.close()

    def _lengths(self, epoch: int) -> list[int]:
        found: list[int] = self._corpus.frames[self._versions(epoch), np.arange(self.num_utterances)].tolist()
        return found

    def _versions(self, epoch: int) -> NDArray[np.int64]:
        """Which copy of each utterance an epoch has: the draw of `BatchSource`."""
        copies = len(self._corpus.copies)
        if copies == 1:
            return np.zeros(self.num_utterances, np.int64)
        sizes = np.full(self.num_utterances, copies)
        return seeded_generator(self._seed, epoch, "variants").integers(0, sizes)

    def _steps(
        self, buckets: Sequence[Sequence[int]], versions: NDArray[np.int64], epoch: int | None, share: Share
    ) -> Iterator[tuple[SupervisedBatch, ...]]:
        parts_of = (share.parts(bucket) for bucket in buckets)
        ahead, here = itertools.tee(parts_of)
        groups = (self._tasks(parts, versions, epoch) for parts in ahead)
        mine = max(1, self._batch_size // share.size)
        depth = _SPARE_STEPS + -(-self._workers.count * PIECE // mine)
        for parts, pieces in zip(here, self._workers.ahead(groups, depth), strict=True):
            prepared = itertools.chain.from_iterable(pieces)
            batches = (self._supervise(itertools.islice(prepared, len(part)), part) for part in parts)
            yield tuple(batch for batch in batches if batch is not None)

    def _tasks(
        self, parts: Iterable[Sequence[int]], versions: NDArray[np.int64], epoch: int | None
    ) -> list[Task]:
        utterances, copies = self._corpus.utterances, self._corpus.copies
        flat = [(utterances[place], copies[versions[place]]) for part in parts for place in part]
        return [Task(epoch, tuple(flat[begin : begin + PIECE])) for begin in range(0, len(flat), PIECE)]

    def _supervise(self, prepared: Iterable[Prepared], places: Sequence[int]) -> SupervisedBatch | None:
        """A batch of what is in order; None if nothing is."""
        examples: list[Example] = []
        tables: list[TransitionTable] = []
        for found, place in zip(list(prepared), places, strict=True):
            if isinstance(found, Fault):
                self._exclude(found)
                continue
            example, table, need = found
            if table is None:
                table, need = self._stored(place)
            fault = fault_of(example, need, self._output_lengths)
            if fault is not None:
                self._exclude(fault)
                continue
            examples.append(example)
            tables.append(table)
        if not examples:
            return None
        batch = collate(examples)
        return SupervisedBatch(batch, TableBatch.pack(tables, batch.ids))

    def _stored(self, place: int) -> tuple[TransitionTable, float]:
        assert self._corpus.stored is not None, "a corpus without stored numerators needs a maker"
        table = self._corpus.stored(self._corpus.utterances[place])
        if np.isnan(self._needs[place]):
            self._needs[place] = min_frames(table)
        return table, float(self._needs[place])

    def _exclude(self, fault: Fault) -> None:
        if fault.id not in self._known:
            self._known.add(fault.id)
            self.excluded = (*self.excluded, fault)
