"""Which utterances of a step one process computes, and in how many pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from fsachain.errors import ConfigError

Item = TypeVar("Item")


@dataclass(frozen=True)
class Share:
    """The part of every optimiser step that one of several processes computes.

    Attributes:
        rank: of this process, from 0.
        size: processes in all.
        micro_batch: utterances that go through the network together, at most; their gradients are added up. 0: all
            of the process's share at once.
    """

    rank: int = 0
    size: int = 1
    micro_batch: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ConfigError(f"rank is {self.rank}; expected 0 <= rank < size, which is {self.size}")
        if self.micro_batch < 0:
            raise ConfigError(f"micro_batch is {self.micro_batch}; expected 0 (no limit) or more")

    def parts(self, bucket: Sequence[Item]) -> tuple[list[Item], ...]:
        """This process's micro-batches of a step over all of `bucket`; none if there are fewer items than processes.

        Every item comes to exactly one process; neighbours, which are of similar length, to different ones.
        """
        mine = list(bucket[self.rank :: self.size])
        size = self.micro_batch or max(len(mine), 1)
        return tuple(mine[begin : begin + size] for begin in range(0, len(mine), size))


WHOLE = Share()  # what a process that works alone computes: every step at once
