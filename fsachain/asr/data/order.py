"""The order of an epoch: which utterances go together in a step, and in which order the steps come.

Everything is a pure function of (seed, epoch) and the lengths: a training that is resumed, on any number of processes
and from any kind of source, takes the steps that it would have taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from fsachain.asr.data.audio import seeded_generator
from fsachain.errors import ConfigError

NOISE = 0.1  # of the lengths by which utterances are put together; see `length_buckets`
_PROBES = 4  # epochs whose steps are counted
_SPARE = 0.02  # share of steps added to the largest of these counts, so that few epochs need more
_WIDENING = 1.02


def length_buckets(
    lengths: Sequence[int],
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    max_batch_frames: int | None = None,
    noise: float = NOISE,
) -> list[list[int]]:
    """The batches of one epoch: utterances of similar length together, in random order.

    Utterances are sorted by length times a random factor in [1 - noise, 1 + noise], cut into batches, and the batches are
    shuffled. The factor makes batches differ from epoch to epoch at little padding. The result, lists of positions in
    `lengths`, each of which occurs once, is a function of seed, epoch and the lengths.

    `lengths` are the frames of each utterance. A batch has at most `batch_size` utterances and `max_batch_frames` frames,
    padding included (utterances x longest); an utterance longer than that is a batch of its own. Epochs count from 0.
    `noise` 0 sorts strictly by length, ties at random.
    """
    _check_positive(batch_size=batch_size, max_batch_frames=max_batch_frames)
    if not 0.0 <= noise < 1.0:
        raise ConfigError(f"noise is {noise}; expected 0 <= noise < 1")
    generator = seeded_generator(seed, epoch, "length_buckets")
    blurred = np.asarray(lengths, np.float64) * generator.uniform(1.0 - noise, 1.0 + noise, len(lengths))
    order = generator.permutation(len(lengths))
    order = order[np.argsort(blurred[order], kind="stable")]
    batches: list[list[int]] = []
    longest = 0
    for position in order.tolist():
        longest = max(longest, lengths[position])
        full = not batches or len(batches[-1]) == batch_size
        if full or (max_batch_frames is not None and (len(batches[-1]) + 1) * longest > max_batch_frames):
            batches.append([])
            longest = lengths[position]
        batches[-1].append(position)
    return [batches[i] for i in generator.permutation(len(batches))]


def _check_positive(**options: int | None) -> None:
    for name, value in options.items():
        if value is not None and value < 1:
            raise ConfigError(f"{name} is {value}; expected at least 1")


class EpochOrder:
    """Utterances of similar length together, in steps whose number is the same in every epoch.

    The learning rate follows the number of steps, which must therefore be known. With `batch_frames` it would differ from
    epoch to epoch: the padding depends on who is put together with whom. So a few epochs are counted; a later one with
    fewer steps has its fullest ones split, and one with more puts utterances together by length more strictly. Only if that
    is not enough, as can happen in a corpus of a few steps, its limit is widened by 2 % at a time.

    Args:
        lengths_of: frames of each utterance in an epoch, which depend on it where versions at several speeds are drawn.
        batch_size, batch_frames: limits of a step, as in `length_buckets`.
        seed: of the run.
        shard_of: number of the shard of each utterance, if neighbouring steps are to come from few shards, which a disk or a
            network reads faster than utterances from everywhere; None: from everywhere.
        shards_at_once: so many shards, drawn at random, are mixed with each other.
    """

    def __init__(
        self,
        lengths_of: Callable[[int], Sequence[int]],
        *,
        batch_size: int,
        seed: int,
        batch_frames: int | None = None,
        shard_of: Sequence[int] | None = None,
        shards_at_once: int = 8,
    ) -> None:
        _check_positive(batch_size=batch_size, shards_at_once=shards_at_once, batch_frames=batch_frames)
        self._lengths_of = lengths_of
        self._batch_size, self._batch_frames, self._seed = batch_size, batch_frames, seed
        self._shard_of, self._shards_at_once = shard_of, shards_at_once

    @cached_property
    def num_batches(self) -> int:
        """Steps of every epoch."""
        count = len(self._lengths_of(0))
        least = -(-count // self._batch_size)
        if self._shard_of is not None:  # each group may end with a step that is not full
            least = count // self._batch_size + len(self._groups(0, count))
        if self._batch_frames is not None:
            counts = [len(self._cut(epoch, NOISE, self._batch_frames)) for epoch in range(_PROBES)]
            least = max(least, round((1 + _SPARE) * max(counts)))
        return min(count, least)

    def buckets(self, epoch: int) -> list[list[int]]:
        """Positions of the utterances of each step of an epoch, counted from 0; every position occurs once."""
        noise, limit = NOISE, self._batch_frames
        while len(buckets := self._cut(epoch, noise, limit)) > self.num_batches:
            if noise > 0:
                noise = noise / 2 if noise > NOISE / 4 else 0.0
            elif limit is not None:
                limit = int(limit * _WIDENING) + 1
        return _split(buckets, self.num_batches)

    def _cut(self, epoch: int, noise: float, limit: int | None) -> list[list[int]]:
        lengths = self._lengths_of(epoch)
        found: list[list[int]] = []
        for positions in self._groups(epoch, len(lengths)):
            part = length_buckets(
                [lengths[position] for position in positions],
                batch_size=self._batch_size,
                seed=self._seed,
                epoch=epoch,
                max_batch_frames=limit,
                noise=noise,
            )
            found += [[positions[place] for place in bucket] for bucket in part]
        return found

    def _groups(self, epoch: int, count: int) -> list[list[int]]:
        """Groups of positions; a step takes all its utterances from one group."""
        if self._shard_of is None:
            return [list(range(count))]
        members: dict[int, list[int]] = {}
        for position, shard in enumerate(self._shard_of):
            members.setdefault(shard, []).append(position)
        generator = seeded_generator(self._seed, epoch, "shards")
        names = sorted(members)
        drawn = [names[place] for place in generator.permutation(len(names))]
        step = self._shards_at_once
        return [
            [position for shard in drawn[begin : begin + step] for position in members[shard]]
            for begin in range(0, len(drawn), step)
        ]


def _split(buckets: list[list[int]], count: int) -> list[list[int]]:
    """`count` buckets, by halving the fullest; the halves stay neighbours."""
    missing = count - len(buckets)
    if missing <= 0:
        return buckets
    parts = [[bucket] for bucket in buckets]
    order = sorted(range(len(buckets)), key=lambda place: (-len(buckets[place]), place))
    while missing:
        for place in order:
            largest = max(parts[place], key=len)
            if missing and len(largest) > 1:
                middle = len(largest) // 2
                at = parts[place].index(largest)
                parts[place][at : at + 1] = [largest[:middle], largest[middle:]]
                missing -= 1
    return [part for inner in parts for part in inner]
