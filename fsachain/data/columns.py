"""Columns of a corpus: what some of its rows have, in a few bytes each."""

from __future__ import annotations

from array import array
from typing import Generic, Protocol, TypeVar

from fsachain.names import Strings

_T = TypeVar("_T")


class Store(Protocol[_T]):
    """Values that are appended and read by their place."""

    def append(self, value: _T, /) -> None:
        """One more."""

    def __getitem__(self, place: int, /) -> _T: ...

    def __len__(self) -> int: ...


class ByRow:
    """A number of each row, 0 until it is set; rows before the first and after the last that are set take nothing."""

    def __init__(self, typecode: str = "I") -> None:
        self._begin = 0
        self._numbers = array(typecode)

    def __getitem__(self, row: int) -> int:
        place = row - self._begin
        return self._numbers[place] if 0 <= place < len(self._numbers) else 0

    def __setitem__(self, row: int, number: int) -> None:
        if not self._numbers:
            self._begin = row
        if row < self._begin:
            missing = min(self._begin, max(self._begin - row, len(self._numbers)))  # at least twice as many
            self._numbers = array(self._numbers.typecode, [0]) * missing + self._numbers
            self._begin -= missing
        place = row - self._begin
        while len(self._numbers) <= place:
            self._numbers.append(0)
        try:
            self._numbers[place] = number
        except OverflowError:  # from 65,536 on, if they were of 16 bits
            self._numbers = array("I", self._numbers)
            self._numbers[place] = number


class Column(Generic[_T]):
    """Values of rows, which may come in any order; several rows may have one value. Without values it takes nothing.

    Attributes:
        values: in the order in which they came.
    """

    def __init__(self, values: Store[_T]) -> None:
        self.values = values
        self._places = ByRow()  # 1 + the place of the value

    def put(self, row: int, value: _T) -> None:
        """A value of a row's own."""
        self.values.append(value)
        self.link(row, len(self.values) - 1)

    def link(self, row: int, place: int) -> None:
        """A row has the value at this place."""
        self._places[row] = place + 1

    def remove(self, row: int) -> None:
        """The row has no value any more."""
        if row in self:
            self._places[row] = 0

    def __contains__(self, row: int) -> bool:
        return self._places[row] != 0

    def place(self, row: int) -> int:
        """Where the value of a row is that has one."""
        return self._places[row] - 1

    def get(self, row: int) -> _T | None:
        """The value of a row; None if it has none."""
        place = self._places[row]
        return self.values[place - 1] if place else None


class SharedStore(Store[str], Protocol):
    """Values that can be looked up."""

    def add(self, value: str, /) -> int:
        """The place of the value, which is appended if it is new."""
        ...


class SharedColumn(Column[str]):
    """A column of values that recur: `share` keeps each once, `put` does not look."""

    def __init__(self, values: SharedStore) -> None:
        super().__init__(values)
        self._add = values.add

    def share(self, row: int, value: str) -> None:
        """A value of the row, and of others maybe."""
        self.link(row, self._add(value))


class TextColumn(Column[str]):
    """A column of long texts."""

    def __init__(self) -> None:
        self._texts = Strings()
        super().__init__(self._texts)

    def put_utf8(self, row: int, text: bytes) -> None:
        """A text of a row's own, as UTF-8."""
        self._texts.append_utf8(text)
        self.link(row, len(self._texts) - 1)


class Spans:
    """Stretches of time: first second and end, -1 for the end of the recording."""

    def __init__(self) -> None:
        self._seconds = array("d")

    def append(self, span: tuple[float, float]) -> None:
        """One more."""
        self._seconds.extend(span)

    def __len__(self) -> int:
        return len(self._seconds) // 2

    def __getitem__(self, place: int) -> tuple[float, float]:
        return self._seconds[2 * place], self._seconds[2 * place + 1]
