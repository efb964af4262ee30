"""Batches with their numerators: which utterances take part, and in which order; from memory or from disk.

The batches of an epoch are a pure function of (seed, epoch), whatever was run before and by however many processes,
so that a training which is continued in the middle of an epoch sees the batches it would have seen. Of a corpus on disk
(`StreamSource`) the list of utterances and their lengths are in memory, from which alone a step's utterances follow, by
the same function as for examples in memory (`BatchSource`): both give the same batches.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fsachain.asr.data.audio import Perturbation, seeded_generator
from fsachain.asr.data.augment import AugmentConfig, augment
from fsachain.asr.data.cmvn import Cmvn
from fsachain.asr.data.dataset import Batch, Example, collate, example_of, load_sound, normalise
from fsachain.asr.data.features import FeatureConfig, not_finite
from fsachain.asr.data.loudness import Loudness
from fsachain.asr.data.order import EpochOrder
from fsachain.asr.data.utterance import Fault, Utterance
from fsachain.asr.data.workers import Workers
from fsachain.asr.train.config import to_compare
from fsachain.asr.train.world import WHOLE, Share
from fsachain.backends.dispatch import forward_backward
from fsachain.batch import TableBatch
from fsachain.errors import DataError, GraphError, brief, counted
from fsachain.fsa import arcs_from
from fsachain.graph.forgive import Forgiveness
from fsachain.graph.numerator import Numerator
from fsachain.graph.shards import NumeratorMaker
from fsachain.table import TransitionTable, compile_table

PIECE = 8  # utterances that a worker takes at a time
_SPARE_STEPS = 2


OutputLengths = Callable[[torch.Tensor], torch.Tensor]


def min_frames(table: TransitionTable) -> float:
    """Fewest frames of a path through the table; infinity where there is no path."""
    arcs = table.by_src
    final = np.isfinite(table.final_log_prob)
    starts = np.flatnonzero(np.isfinite(table.initial_log_prob))
    distances = (arcs_from(int(state), table.num_states, arcs.src, arcs.dst) for state in starts)
    return float(min((distance[final].min(initial=np.inf) for distance in distances), default=np.inf))


def fault_of(example: Example, need: float, output_lengths: OutputLengths) -> Fault | None:
    """None if the example, whose numerator needs `need` frames, can be trained on."""
    if broken := not_finite(example.features):
        return Fault(example.id, broken, "features not finite")
    if example.window is not None:
        have = example.window.length
    else:
        have = int(output_lengths(torch.tensor([example.num_frames]))[0])
    if have >= need and have > 0:
        return None
    if np.isinf(need):
        return Fault(example.id, "its numerator has no path", "no path")
    reason = f"needs {counted(need, 'output frame', '.0f')}, has {have}"
    if example.window is None:
        words, frames = counted(len(example.words), "word"), counted(example.num_frames, "frame")
        reason += f": {words} in {frames} of features"
    return Fault(example.id, reason, "too short" if have else "no frames")


class ForgivingNumerators:
    """Numerators of transcripts that may be wrong, by utterance id, with the penalties of each epoch, counted from 0.

    `num_pdfs` is that of the tables. Without `penalties` those in the graphs' weights hold; `text` tells them from others.
    """

    def __init__(
        self,
        graphs: Mapping[str, Numerator],
        num_pdfs: int,
        penalties: Callable[[int], Forgiveness] | None = None,
        text: str = "",
    ) -> None:
        self._graphs, self._num_pdfs, self._penalties, self.text = graphs, num_pdfs, penalties, text
        self._tables: dict[Numerator, TransitionTable] = {}
        self._now: Forgiveness | None = None

    def at(self, epoch: int) -> Mapping[str, TransitionTable]:
        """The tables of an epoch, by utterance id."""
        penalties = None if self._penalties is None else self._penalties(epoch)
        if penalties != self._now or not self._tables:
            self._now = penalties
            self._tables = {
                graph: compile_table(
                    graph.fsa if penalties is None else graph.priced(penalties), self._num_pdfs, name=name
                )
                for name, graph in self._graphs.items()
            }
        return {name: self._tables[graph] for name, graph in self._graphs.items()}

    def edits(
        self, batch: SupervisedBatch, nnet_output: torch.Tensor, lengths: torch.Tensor, loss: Any
    ) -> list[float]:
        """Of one utterance of a batch, another from batch to batch: [words, substituted, inserted, places with deletions].

        The last three are expected numbers under the penalties of the epoch; all are 0 where there is no path. The `loss`
        knows what a star of frames scores.
        """
        n = int(lengths.sum()) % len(batch.batch.ids)
        graph = self._graphs[batch.batch.ids[n]]
        table, frames = batch.numerators.table(n), int(lengths[n])
        scores = nnet_output[n : n + 1].detach()
        if table.num_pdfs > scores.shape[2]:
            scores = loss.with_star(scores, [frames])
        found = forward_backward(TableBatch.pack([table]), scores.cpu(), [frames])
        if graph.state_place is None or not found.ok[0] or not frames:
            return [0.0] * 4
        edits = replace(graph, forgive=self._now or graph.forgive).edits(found.arc_occupancy(0))
        return [float(len(graph.words)), *edits.tolist()]


@dataclass(frozen=True)
class SupervisedBatch:
    batch: Batch
    numerators: TableBatch
    forgiving: ForgivingNumerators | None = None


class Source(ABC):
    """Where the batches of a training come from.

    Args:
        sizes: versions of each utterance, of which an epoch draws one.
        excluded: utterances that cannot be trained on, as far as that is known beforehand; an attribute, too.
        views: how many views of each utterance, augmented one by one, a micro-batch has; see `Batch`.
        options: of `EpochOrder`.
    """

    def __init__(
        self, sizes: Sequence[int], excluded: Sequence[Fault], views: int = 1, **options: Any
    ) -> None:
        self.excluded = tuple(excluded)
        self._views = range(views)
        if not len(sizes):
            first = f"; the first: {excluded[0]}" if excluded else ""
            raise DataError(f"no utterance is left, {len(excluded)} were excluded{first}")
        self._sizes = np.array(sizes)
        self._batch_size, self._seed = options["batch_size"], options["seed"]
        self._order = EpochOrder(lambda epoch: self._frames(self._versions(epoch)), **options)

    @abstractmethod
    def fingerprint(self) -> list[Any]:
        """What tells two sources apart, as JSON can hold it."""

    @abstractmethod
    def _frames(self, versions: NDArray[np.int64]) -> list[int]:
        """Of each utterance in the version given."""

    @abstractmethod
    def _steps(
        self, steps: Sequence[Sequence[int]], versions: NDArray[np.int64], epoch: int | None, share: Share
    ) -> Iterator[tuple[SupervisedBatch, ...]]:
        """The micro-batches of steps given as places of utterances; features are augmented where an epoch is given."""

    def close(self) -> None:  # noqa: B027 (most sources have nothing to close)
        """End the workers, of a source that has some."""

    @property
    def num_utterances(self) -> int:
        """Utterances of an epoch."""
        return len(self._sizes)

    @property
    def num_batches(self) -> int:
        """Optimiser steps of an epoch, of all processes together."""
        return self._order.num_batches

    def batches(
        self, epoch: int, start: int = 0, share: Share = WHOLE
    ) -> Iterator[tuple[SupervisedBatch, ...]]:
        """For each step of epoch `epoch` from number `start` on, both counted from 0, the micro-batches of `share`.

        The utterances of a step do not depend on `share`; a process that gets none of them gets an empty tuple.
        """
        return self._steps(self._order.buckets(epoch)[start:], self._versions(epoch), epoch, share)

    def in_order(self, share: Share = WHOLE) -> Iterator[tuple[SupervisedBatch, ...]]:
        """The first version of every utterance, shortest first, without augmentation."""
        first = np.zeros(self.num_utterances, np.int64)
        order = np.argsort(self._frames(first), kind="stable").tolist()
        steps = [order[begin : begin + self._batch_size] for begin in range(0, len(order), self._batch_size)]
        return self._steps(steps, first, None, share)

    def _versions(self, epoch: int) -> NDArray[np.int64]:
        """Which version of each utterance an epoch has."""
        if self._sizes.max() == 1:
            return np.zeros(self.num_utterances, np.int64)
        return seeded_generator(self._seed, epoch, "variants").integers(0, self._sizes)


class BatchSource(Source):
    """A `Source` of examples in memory.

    `variants` are one or more versions of the same utterances in the same order, for instance at several speeds; an epoch
    draws one version of each. `numerators` are by the id of each version. `batch_frames` includes padding; see `EpochOrder`.
    `forgiving` has the tables of each epoch, and counts edits; `numerators` are then those of any epoch.
    `reasons` say, for the report, why an utterance has no numerator. `excluded` are examples without numerator, with fewer
    output frames than it needs, or with features that are not finite.
    """

    def __init__(
        self,
        variants: Sequence[Sequence[Example]],
        numerators: Mapping[str, TransitionTable],
        output_lengths: OutputLengths,
        *,
        batch_size: int,
        seed: int,
        batch_frames: int | None = None,
        augmentation: AugmentConfig | None = None,
        loudness: Loudness | None = None,
        views: int = 1,
        reasons: Mapping[str, str] | None = None,
        forgiving: ForgivingNumerators | None = None,
    ) -> None:
        if not variants or len({len(examples) for examples in variants}) != 1:
            sizes = [len(examples) for examples in variants]
            raise DataError(f"variants: expected versions of the same utterances, got {sizes} examples")
        self._numerators = numerators
        self._forgiving = forgiving
        self._augmentation, self._loudness = augmentation, loudness
        excluded: list[Fault] = []
        self._choices: list[list[Example]] = []
        why = reasons or {}
        needs: dict[TransitionTable, float] = {}  # versions of an utterance share its table
        for versions in zip(*variants, strict=True):
            usable = []
            for example in versions:
                table = numerators.get(example.id)
                if table is None:
                    reason = why.get(example.id, "has no numerator")
                    fault: Fault | None = Fault(example.id, reason, "no numerator")
                else:
                    if table not in needs:
                        needs[table] = min_frames(table)
                    fault = fault_of(example, needs[table], output_lengths)
                if fault is None:
                    usable.append(example)
                else:
                    excluded.append(fault)
            if usable:
                self._choices.append(usable)
        options: dict[str, Any] = {"batch_size": batch_size, "seed": seed, "batch_frames": batch_frames}
        super().__init__([len(usable) for usable in self._choices], excluded, views, **options)

    def fingerprint(self) -> list[Any]:
        """Of augmentation, ids and lengths of all examples, and penalties that change."""
        augmentation: Any = None if self._augmentation is None else to_compare(self._augmentation)
        if self._forgiving is not None and self._forgiving.text:
            augmentation = [augmentation, self._forgiving.text]
        examples = (example for versions in self._choices for example in versions)
        return [augmentation, [[example.id, example.num_frames] for example in examples]]

    def _frames(self, versions: NDArray[np.int64]) -> list[int]:
        return [
            usable[pick].num_frames for usable, pick in zip(self._choices, versions.tolist(), strict=True)
        ]

    def _steps(
        self, steps: Sequence[Sequence[int]], versions: NDArray[np.int64], epoch: int | None, share: Share
    ) -> Iterator[tuple[SupervisedBatch, ...]]:
        if epoch is not None and self._forgiving is not None:
            self._numerators = self._forgiving.at(epoch)
        for step in steps:
            parts = share.parts([self._choices[place][versions[place]] for place in step])
            if epoch is None:
                yield tuple(supervise(part, self._numerators) for part in parts)
                continue
            change = self._augmentation or AugmentConfig()
            seen = (
                [augment(one, change, epoch, view, self._loudness) for view in self._views for one in part]
                for part in parts
            )
            supervised = (supervise(part, self._numerators, len(self._views)) for part in seen)
            yield tuple(replace(one, forgiving=self._forgiving) for one in supervised)


def supervise(
    examples: Sequence[Example], numerators: Mapping[str, TransitionTable], views: int = 1
) -> SupervisedBatch:
    batch = collate(examples, views)
    return SupervisedBatch(batch, TableBatch.pack([numerators[name] for name in batch.ids], batch.ids))


@dataclass(frozen=True)
class Task:
    """Utterances for one worker, each in one of its versions; `epoch` is None where nothing is augmented."""

    epoch: int | None
    utterances: tuple[tuple[Utterance, Perturbation], ...]
    view: int = 0


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
    maker: NumeratorMaker | None = None
    cache_dir: str | Path | None = None

    def __call__(self, task: Task) -> list[Prepared]:
        """For each utterance the example, its numerator and the fewest frames of that; or what is wrong with it."""
        return [self._prepare(task.epoch, task.view, *one) for one in task.utterances]

    def _prepare(self, epoch: int | None, view: int, utterance: Utterance, copy: Perturbation) -> Prepared:
        found, faults = load_sound((utterance,), self.features, copy, self.cache_dir)
        if faults:
            return faults[utterance.id]
        (example,) = normalise([example_of(utterance, found[utterance.id], copy)], self.cmvn)
        if epoch is not None and self.augmentation is not None:
            example = augment(example, self.augmentation, epoch, view, self.features.loudness)
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
        frames: int32 [copies, utterances], from `fsachain.asr.data.features.frame_counts`.
        copies: changes of speed, volume and noise; an epoch draws one for each utterance.
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

    __repr__ = brief


class StreamSource(Source):
    """Supervised batches of a corpus on disk, epoch by epoch: a `Source`.

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
        views: see `Source`.

    Attributes:
        excluded: `left_out`, and those in which a fault was found when they were prepared. A step goes on without them.
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
        views: int = 1,
    ) -> None:
        self._corpus, self._preparation, self._output_lengths = corpus, preparation, output_lengths
        self._needs = np.full(len(corpus.utterances), np.nan)  # `min_frames`, once they are known
        self._known = {fault.id for fault in left_out}
        options: dict[str, Any] = {"batch_size": batch_size, "seed": seed, "batch_frames": batch_frames}
        shards: dict[str, Any] = {"shard_of": corpus.shard_of, "shards_at_once": corpus.shards_at_once}
        sizes = [len(corpus.copies)] * len(corpus.utterances)
        super().__init__(sizes, left_out, views, **options, **shards)
        self._workers = Workers(
            preparation, num_threads=num_threads, num_processes=num_processes, executor=executor
        )

    def fingerprint(self) -> list[Any]:
        """Equal to that of the same examples in memory, if steps are drawn from all utterances."""
        corpus, change = self._corpus, self._preparation.augmentation
        ids = [
            [copy.prefix + utterance.id, int(count)]
            for utterance, counts in zip(corpus.utterances, corpus.frames.T, strict=True)
            for copy, count in zip(corpus.copies, counts, strict=True)
        ]
        shards = [] if corpus.shard_of is None else [list(corpus.shard_of), corpus.shards_at_once]
        return [None if change is None else to_compare(change), ids, *shards]

    def close(self) -> None:
        self._workers.close()

    def _frames(self, versions: NDArray[np.int64]) -> list[int]:
        found: list[int] = self._corpus.frames[versions, np.arange(self.num_utterances)].tolist()
        return found

    def _steps(
        self, steps: Sequence[Sequence[int]], versions: NDArray[np.int64], epoch: int | None, share: Share
    ) -> Iterator[tuple[SupervisedBatch, ...]]:
        parts_of = (share.parts(step) for step in steps)
        ahead, here = itertools.tee(parts_of)
        groups = (self._tasks(parts, versions, epoch) for parts in ahead)
        mine = max(1, self._batch_size // share.size)
        depth = _SPARE_STEPS + -(-self._workers.count * PIECE // mine)
        for parts, pieces in zip(here, self._workers.ahead(groups, depth), strict=True):
            prepared = itertools.chain.from_iterable(pieces)
            views = len(self._views) if epoch is not None else 1
            batches = (
                self._supervise(itertools.islice(prepared, views * len(part)), part, views) for part in parts
            )
            yield tuple(batch for batch in batches if batch is not None)

    def _tasks(
        self, parts: Iterable[Sequence[int]], versions: NDArray[np.int64], epoch: int | None
    ) -> list[Task]:
        utterances, copies = self._corpus.utterances, self._corpus.copies
        tasks = []
        for part in parts:
            flat = [(utterances[place], copies[versions[place]]) for place in part]
            for view in self._views if epoch is not None else (0,):
                pieces = (tuple(flat[begin : begin + PIECE]) for begin in range(0, len(flat), PIECE))
                tasks += [Task(epoch, piece, view) for piece in pieces]
        return tasks

    def _supervise(
        self, prepared: Iterable[Prepared], places: Sequence[int], views: int
    ) -> SupervisedBatch | None:
        """A batch of the utterances without a fault; None if there are none."""
        examples: list[Example] = []
        tables: list[TransitionTable] = []
        pairs = list(zip(list(prepared), [*places] * views, strict=True))
        faulty = {place for found, place in pairs if isinstance(found, Fault)}
        for found, place in pairs:
            if isinstance(found, Fault):
                self._exclude(found)
            if isinstance(found, Fault) or place in faulty:
                continue
            example, table, need = found
            if table is None:
                assert self._corpus.stored is not None, "a corpus without stored numerators needs a maker"
                table = self._corpus.stored(self._corpus.utterances[place])
                if np.isnan(self._needs[place]):
                    self._needs[place] = min_frames(table)
                need = float(self._needs[place])
            fault = fault_of(example, need, self._output_lengths)
            if fault is not None:
                self._exclude(fault)
                continue
            examples.append(example)
            tables.append(table)
        if not examples:
            return None
        batch = collate(examples, views)
        return SupervisedBatch(batch, TableBatch.pack(tables, batch.ids))

    def _exclude(self, fault: Fault) -> None:
        if fault.id not in self._known:
            self._known.add(fault.id)
            self.excluded = (*self.excluded, fault)
