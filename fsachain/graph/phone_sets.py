"""Sets of phone ids in little memory: a partition of all phones, and one set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from itertools import chain

import numpy as np
import numpy.typing as npt

from fsachain.errors import GraphError
from fsachain.graph.archive import offsets
from fsachain.on_access import OnAccess

_SHOWN = 20  # ids of a message


class PhoneSet(Set[int]):
    """A set of phone ids, such as a frozenset holds."""

    def __init__(self, ids: Iterable[int] = ()) -> None:
        given = ids if isinstance(ids, np.ndarray) else np.fromiter(ids, np.int64)
        rises = bool((given[1:] > given[:-1]).all())
        self.ids: npt.NDArray[np.int64] = given if rises else np.unique(given)

    @classmethod
    def of(cls, ids: Iterable[int]) -> PhoneSet:
        """The set as it is given."""
        return ids if isinstance(ids, PhoneSet) else cls(ids)

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[int]:
        return map(int, self.ids)

    def __contains__(self, phone: object) -> bool:
        if not isinstance(phone, int | np.integer):
            return False
        place = int(np.searchsorted(self.ids, phone))
        return place < len(self.ids) and bool(self.ids[place] == phone)

    def __repr__(self) -> str:
        return f"PhoneSet({self.ids[:_SHOWN].tolist()}: {len(self)})"


class PhoneSets(OnAccess[tuple[int, ...]]):
    """The phone ids 1 to P in sets; equal to any sequence of the same tuples.

    Attributes:
        members: int64 [P], the phones of one set after another.
        ends: int64 [S + 1], where each set begins in `members`, and where the last ends.
        number: int32 [P + 1], the set of each phone, from 0; -1 for no phone.

    Raises:
        GraphError: a phone that is in no set or in two, or an empty set.
    """

    def __init__(self, members: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> None:
        self.members, self.ends = members, offsets(sizes, len(members), "shared sets")
        count = len(members)
        if not sizes.all():
            raise GraphError("shared has an empty set")
        self.number = np.full(count + 1, -1, np.int32)
        if members.min(initial=1) > 0 and members.max(initial=0) <= count:
            self.number[members] = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        if (self.number[1:] < 0).any():
            ids = sorted(members[:_SHOWN].tolist())
            raise GraphError(f"shared sets hold the phone ids {ids}: expected each of 1..{count} once")

    @classmethod
    def of(cls, sets: Iterable[Iterable[int]]) -> PhoneSets:
        """The sets as they are given."""
        if isinstance(sets, PhoneSets):
            return sets
        given = [tuple(phones) for phones in sets]
        members = np.fromiter(chain.from_iterable(given), np.int64)
        return cls(members, np.array([len(phones) for phones in given], np.int64))

    def __len__(self) -> int:
        return len(self.ends) - 1

    def at(self, place: int) -> tuple[int, ...]:
        """The set at a place in [0, len)."""
        return tuple(self.members[self.ends[place] : self.ends[place + 1]].tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PhoneSets):
            return np.array_equal(self.ends, other.ends) and np.array_equal(self.members, other.members)
        return super().__eq__(other)

    def __repr__(self) -> str:
        return f"PhoneSets({list(self[:_SHOWN])}: {len(self)})"
