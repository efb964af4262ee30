"""Batches with their numerators: which utterances take part, in which order, and ahead of time.

The batches of an epoch are a pure function of (seed, epoch), whatever was run before, so that a training
which is continued in the middle of an epoch sees the batches it would have seen.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from fsachain.batch import TableBatch
from fsachain.data.audio import seeded_generator
from fsachain.data.augment import AugmentConfig, augment
from fsachain.data.dataset import Batch, Example, collate, length_buckets
from fsachain.data.faults import Fault
from fsachain.errors import DataError
from fsachain.reachability import arcs_from
from fsachain.table import TransitionTable

Item = TypeVar("Item")
OutputLengths = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class SupervisedBatch:
    """A batch of features and the numerators of its utterances."""

    batch: Batch
    numerators: TableBatch


class BatchSource:
    """Supervised batches, epoch by epoch.

    Args:
        variants: One or more versions of the same utterances in the same order, for instance at several
            speeds; an epoch draws one version of each utterance.
        numerators: Tables by the id of the example, so by that of each version.
        output_lengths: The model's, from input to output frames.
        batch_size: Utterances per batch.
        seed: Seed of order and version.
        augmentation: Changes of the features, drawn anew in each epoch.
        reasons: Why an utterance has no numerator, for the report.

    Attributes:
        excluded: Examples without numerator, with fewer output frames than it needs, or with features that are
            not finite.

    Raises:
        DataError: the versions differ in number, or nothing is left.
    """

    def __init__(
        self,
        variants: Sequence[Sequence[Example]],
        numerators: Mapping[str, TransitionTable],
        output_lengths: OutputLengths,
        *,
        batch_size: int,
        seed: int,
        augmentation: AugmentConfig | None = None,
        reasons: Mapping[str, str] | None = None,
    ) -> None:
        if not variants or len({len(examples) for examples in variants}) != 1:
            sizes = [len(examples) for examples in variants]
            raise DataError(f"variants: expected versions of the same utterances, got {sizes} examples")
        self._numerators = numerators
        self._batch_size = batch_size
        self._seed = seed
        self._augmentation = augmentation
        excluded: list[Fault] = []
        self._choices: list[list[Example]] = []
        why = reasons or {}
        needs: dict[TransitionTable, float] = {}  # versions of an utterance share its table
        for versions in zip(*variants, strict=True):
            faults = [_fault(example, numerators, output_lengths, why, needs) for example in versions]
            excluded += [fault for fault in faults if fault is not None]
            usable = [example for example, fault in zip(versions, faults, strict=True) if fault is None]
            if usable:
                self._choices.append(usable)
        self.excluded = tuple(excluded)
        if not self._choices:
            first = f"; the first: {self.excluded[0]}" if self.excluded else ""
            raise DataError(f"no utterance is left, {len(self.excluded)} were excluded{first}")

    @property
    def num_utterances(self) -> int:
        """Utterances of an epoch."""
        return len(self._choices)

    @property
    def num_batches(self) -> int:
        """Batches of an epoch."""
        return -(-len(self._choices) // self._batch_size)

    def fingerprint(self) -> list[list[str | int]]:
        """Ids and lengths of all examples, to tell whether two sources are the same."""
        return [[example.id, example.num_frames] for versions in self._choices for example in versions]

    def batches(self, epoch: int, start: int = 0) -> Iterator[SupervisedBatch]:
        """Batches number `start` and following of epoch `epoch`, both counted from 0; made one at a time."""
        examples = self._draw(epoch)
        lengths = [example.num_frames for example in examples]
        buckets = length_buckets(lengths, batch_size=self._batch_size, seed=self._seed, epoch=epoch)
        for bucket in buckets[start:]:
            chosen = [examples[position] for position in bucket]
            if self._augmentation is not None:
                chosen = [augment(example, self._augmentation, epoch) for example in chosen]
            yield supervise(chosen, self._numerators)

    def in_order(self) -> Iterator[SupervisedBatch]:
        """The first version of every utterance, unchanged, shortest first: for evaluation."""
        examples = sorted((versions[0] for versions in self._choices), key=lambda example: example.num_frames)
        for begin in range(0, len(examples), self._batch_size):
            yield supervise(examples[begin : begin + self._batch_size], self._numerators)

    def _draw(self, epoch: int) -> list[Example]:
        if all(len(versions) == 1 for versions in self._choices):
            return [versions[0] for versions in self._choices]
        sizes = np.array([len(versions) for versions in self._choices])
        picks = seeded_generator(self._seed, epoch, "variants").integers(0, sizes)
        return [versions[pick] for versions, pick in zip(self._choices, picks.tolist(), strict=True)]


def supervise(examples: Sequence[Example], numerators: Mapping[str, TransitionTable]) -> SupervisedBatch:
    """Pad the examples to a batch and pack their numerators."""
    batch = collate(examples)
    return SupervisedBatch(batch, TableBatch.pack([numerators[name] for name in batch.ids], batch.ids))


def min_frames(table: TransitionTable) -> float:
    """Fewest frames that a sequence through the table has; infinity where there is no path."""
    arcs = table.by_src
    final = np.isfinite(table.final_log_prob)
    starts = np.flatnonzero(np.isfinite(table.initial_log_prob))
    distances = (arcs_from(int(state), table.num_states, arcs.src, arcs.dst) for state in starts)
    return float(min((distance[final].min(initial=np.inf) for distance in distances), default=np.inf))


def prefetch(items: Iterable[Item], depth: int = 2) -> Iterator[Item]:
    """The same items, up to `depth` of them made ahead by a thread; its errors are raised here."""
    ready: queue.Queue[tuple[str, Item | BaseException | None]] = queue.Queue(depth)
    stopped = threading.Event()

    def put(kind: str, value: Item | BaseException | None) -> None:
        while not stopped.is_set():
            try:
                ready.put((kind, value), timeout=0.1)
                return
            except queue.Full:
                continue

    def produce() -> None:
        try:
            for item in items:
                put("item", item)
                if stopped.is_set():
                    return
        except BaseException as error:  # the consumer raises it
            put("error", error)
        else:
            put("end", None)

    thread = threading.Thread(target=produce, name="fsachain-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            kind, value = ready.get()
            if kind == "end":
                return
            if isinstance(value, BaseException):
                raise value
            yield value  # type: ignore[misc]
    finally:
        stopped.set()
        thread.join()


def timed(items: Iterable[Item]) -> Iterator[tuple[float, Item]]:
    """Each item with the seconds that it took to get it."""
    started = time.perf_counter()
    for item in items:
        yield time.perf_counter() - started, item
        started = time.perf_counter()


def _fault(
    example: Example,
    numerators: Mapping[str, TransitionTable],
    output_lengths: OutputLengths,
    reasons: Mapping[str, str],
    needs: dict[TransitionTable, float],
) -> Fault | None:
    """Why the example cannot be trained on; None if it can."""
    table = numerators.get(example.id)
    if table is None:
        return Fault(example.id, reasons.get(example.id, "has no numerator"), "no numerator")
    if not np.isfinite(example.features).all():
        frame = int(np.argmin(np.isfinite(example.features).all(axis=1)))
        return Fault(
            example.id, f"its features are not finite, first in frame {frame}", "features not finite"
        )
    if example.window is not None:
        have = example.window.length
    else:
        have = int(output_lengths(torch.tensor([example.num_frames]))[0])
    need = needs.get(table)
    if need is None:
        need = needs[table] = min_frames(table)
    if have >= need and have > 0:
        return None
    if np.isinf(need):
        return Fault(example.id, "its numerator has no path", "no path")
    return Fault(
        example.id, f"needs {need:.0f} output frames, has {have}", "too short" if have else "no frames"
    )
