"""Batches with their numerators: which utterances take part, and in which order.

The batches of an epoch are a pure function of (seed, epoch), whatever was run before and by however many processes,
so that a training which is continued in the middle of an epoch sees the batches it would have seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import torch

from fsachain.batch import TableBatch
from fsachain.data.audio import seeded_generator
from fsachain.data.augment import AugmentConfig, augment
from fsachain.data.dataset import Batch, Example, collate
from fsachain.data.order import EpochOrder
from fsachain.data.utterance import Fault
from fsachain.errors import DataError
from fsachain.fsa import arcs_from
from fsachain.table import TransitionTable
from fsachain.train.world import WHOLE, Share

# Why an example cannot be trained on.

OutputLengths = Callable[[torch.Tensor], torch.Tensor]


def min_frames(table: TransitionTable) -> float:
    """Fewest frames that a sequence through the table has; infinity where there is no path."""
    arcs = table.by_src
    final = np.isfinite(table.final_log_prob)
    starts = np.flatnonzero(np.isfinite(table.initial_log_prob))
    distances = (arcs_from(int(state), table.num_states, arcs.src, arcs.dst) for state in starts)
    return float(min((distance[final].min(initial=np.inf) for distance in distances), default=np.inf))


def fault_of(example: Example, need: float, output_lengths: OutputLengths) -> Fault | None:
    """What is wrong with an example that has a numerator; None if it can be trained on.

    Args:
        example: features that are not finite are found.
        need: `min_frames` of its numerator.
        output_lengths: the model's, from input to output frames.
    """
    if not np.isfinite(example.features).all():
        frame = int(np.argmin(np.isfinite(example.features).all(axis=1)))
        return Fault(
            example.id, f"its features are not finite, first in frame {frame}", "features not finite"
        )
    if example.window is not None:
        have = example.window.length
    else:
        have = int(output_lengths(torch.tensor([example.num_frames]))[0])
    if have >= need and have > 0:
        return None
    if np.isinf(need):
        return Fault(example.id, "its numerator has no path", "no path")
    return Fault(
        example.id, f"needs {need:.0f} output frames, has {have}", "too short" if have else "no frames"
    )


@dataclass(frozen=True)
class SupervisedBatch:
    """A batch of features and the numerators of its utterances."""

    batch: Batch
    numerators: TableBatch


class Source(Protocol):
    """Where the batches of a training come from.

    Attributes:
        excluded: utterances that cannot be trained on, as far as that is known beforehand.
    """

    excluded: tuple[Fault, ...]

    @property
    def num_utterances(self) -> int:
        """Utterances of an epoch."""

    @property
    def num_batches(self) -> int:
        """Optimiser steps of an epoch, of all processes together."""

    def fingerprint(self) -> list[Any]:
        """What tells two sources apart, as JSON can hold it."""

    def batches(
        self, epoch: int, start: int = 0, share: Share = WHOLE
    ) -> Iterator[tuple[SupervisedBatch, ...]]:
        """For each step of epoch `epoch` from number `start` on, both counted from 0, the micro-batches of `share`.

        The utterances of a step do not depend on `share`; a process that gets none of them gets an empty tuple.
        """

    def in_order(self, share: Share = WHOLE) -> Iterator[tuple[SupervisedBatch, ...]]:
        """The same for one pass over all utterances, unchanged: for evaluation."""


class BatchSource:
    """Supervised batches of examples in memory, epoch by epoch: a `Source`.

    Args:
        variants: One or more versions of the same utterances in the same order, for instance at several
            speeds; an epoch draws one version of each utterance.
        numerators: Tables by the id of the example, so by that of each version.
        output_lengths: The model's, from input to output frames.
        batch_size: Utterances per batch, at most.
        seed: Seed of order and version.
        batch_frames: Frames per batch, at most, padding included; None: no limit. See `EpochOrder`.
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
        batch_frames: int | None = None,
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
        self._order = EpochOrder(self._lengths, batch_size=batch_size, seed=seed, batch_frames=batch_frames)

    @property
    def num_utterances(self) -> int:
        """Utterances of an epoch."""
        return len(self._choices)

    @property
    def num_batches(self) -> int:
        """Batches of an epoch."""
        return self._order.num_batches

    def fingerprint(self) -> list[Any]:
        """Augmentation, and ids and lengths of all examples."""
        augmentation = None if self._augmentation is None else asdict(self._augmentation)
        examples = (example for versions in self._choices for example in versions)
        return [augmentation, [[example.id, example.num_frames] for example in examples]]

    def batches(
        self, epoch: int, start: int = 0, share: Share = WHOLE
    ) -> Iterator[tuple[SupervisedBatch, ...]]:
        """The micro-batches of `share`, made one step at a time; see `Source`."""
        examples = self._draw(epoch)
        for bucket in self._order.buckets(epoch)[start:]:
            yield self._supervise(share.parts([examples[position] for position in bucket]), epoch)

    def in_order(self, share: Share = WHOLE) -> Iterator[tuple[SupervisedBatch, ...]]:
        """The first version of every utterance, unchanged, shortest first: for evaluation."""
        examples = sorted((versions[0] for versions in self._choices), key=lambda example: example.num_frames)
        for begin in range(0, len(examples), self._batch_size):
            yield self._supervise(share.parts(examples[begin : begin + self._batch_size]))

    def _supervise(
        self, parts: Sequence[Sequence[Example]], epoch: int | None = None
    ) -> tuple[SupervisedBatch, ...]:
        """The parts with their numerators; augmented as in an epoch where one is given."""
        if epoch is not None and self._augmentation is not None:
            parts = [[augment(one, self._augmentation, epoch) for one in part] for part in parts]
        return tuple(supervise(part, self._numerators) for part in parts)

    def _lengths(self, epoch: int) -> list[int]:
        return [example.num_frames for example in self._draw(epoch)]

    def _draw(self, epoch: int) -> list[Example]:
        if all(len(versions) == 1 for versions in self._choices):
            return [versions[0] for versions in self._choices]
        sizes = np.array([len(versions) for versions in self._choices])
        picks = seeded_generator(self._seed, epoch, "variants").integers(0, sizes)
        return [versions[pick] for versions, pick in zip(self._choices, picks.tolist(), strict=True)]


def versions_of(examples: Sequence[Example] | Sequence[Sequence[Example]]) -> Sequence[Sequence[Example]]:
    """Examples, or lists of versions of them, as lists of versions."""
    if not examples or isinstance(examples[0], Example):
        return [examples]  # type: ignore[list-item]
    return examples  # type: ignore[return-value]


def supervise(examples: Sequence[Example], numerators: Mapping[str, TransitionTable]) -> SupervisedBatch:
    """Pad the examples to a batch and pack their numerators."""
    batch = collate(examples)
    return SupervisedBatch(batch, TableBatch.pack([numerators[name] for name in batch.ids], batch.ids))


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
    need = needs.get(table)
    if need is None:
        need = needs[table] = min_frames(table)
    return fault_of(example, need, output_lengths)
