"""Sequences whose values stand in columns: a value is made when it is asked for, and not kept."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TypeVar, overload

Value = TypeVar("Value")


class OnAccess(Sequence[Value]):
    """Values made on access; equal to any sequence of equal values.

    A subclass has `__len__` and `at`; those that stand for a list have `some`, too.
    """

    @abstractmethod
    def at(self, place: int) -> Value:
        """The value at a place in [0, len)."""

    def some(self, places: range) -> Sequence[Value]:
        """The values of a slice: a tuple."""
        return tuple(map(self.at, places))

    @overload
    def __getitem__(self, place: int) -> Value: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Value]: ...

    def __getitem__(self, place: int | slice) -> Value | Sequence[Value]:
        if isinstance(place, slice):
            return self.some(range(*place.indices(len(self))))
        return self.at(range(len(self))[place])

    def __iter__(self) -> Iterator[Value]:
        return map(self.at, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str) or not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(
            mine == theirs for mine, theirs in zip(self, other, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]
