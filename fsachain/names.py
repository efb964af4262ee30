"""Many strings in little memory: one buffer of UTF-8 and where each ends.

A vocabulary, the ids of a corpus and the lines of a table are hundreds of thousands of short strings. As Python objects
each takes 50 to 60 bytes beside its letters, and a dictionary of them another hundred; here it is four bytes, and six
more for those that are looked up by name.
"""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fsachain.on_access import OnAccess, Value

_SLOTS_PER_NAME = 1.6  # of the hash table: two probes on average
_SLOTS_TO_GROW, _FEWEST_SLOTS = (
    1.9,
    1.3,
)  # the same while names are added: after a renewal, and before the next
_STEP_BITS = 40  # of a hash, below those that choose the step
_ABSENT = 0  # in a slot, where names are counted from 1


class Strings(OnAccess[str]):
    """Strings in order."""

    def __init__(self, strings: Iterable[str] = ()) -> None:
        self._buffer = bytearray()
        self._ends = array("I")
        for text in strings:
            self.append(text)

    def append(self, text: str) -> None:
        """One more string."""
        self.append_utf8(text.encode("utf-8"))

    def append_utf8(self, text: bytes) -> None:
        """One more string, given as its UTF-8, which is not checked."""
        self._buffer += text
        try:
            self._ends.append(len(self._buffer))
        except OverflowError:  # from 4 GiB on
            self._ends = array("Q", self._ends)
            self._ends.append(len(self._buffer))

    def __len__(self) -> int:
        return len(self._ends)

    def encoded(self, place: int) -> bytes:
        """The UTF-8 of the string at a place in [0, len)."""
        return bytes(self._buffer[self._ends[place - 1] if place else 0 : self._ends[place]])

    def at(self, place: int) -> str:
        """The string at a place in [0, len)."""
        return self.encoded(place).decode("utf-8")

    def __iter__(self) -> Iterator[str]:
        begin = 0
        for end in self._ends:
            yield self._buffer[begin:end].decode("utf-8")
            begin = end

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Strings):
            return self._ends == other._ends and self._buffer == other._buffer
        return super().__eq__(other)

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:5]))
        return f"{type(self).__name__}([{shown}{', ...' if len(self) > 5 else ''}]: {len(self)})"


class Names(Strings):
    """Strings that are looked up; of equal ones the first is found.

    Appending after a look-up is possible, and makes the next look-up number them all anew.
    """

    def __init__(self, strings: Iterable[str] = ()) -> None:
        self._slots = array("I")
        self._numbered = 0  # how many the slots know
        super().__init__(strings)

    def place(self, name: str) -> int | None:
        """Where the name stands, from 0; None if it does not."""
        if self._numbered != len(self):
            self.repeats()
        if not self._slots:
            return None
        found = self._slots[self._slot(name.encode("utf-8"))]
        return None if found == _ABSENT else found - 1

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.place(name) is not None

    def index(self, value: str, start: int = 0, stop: int | None = None) -> int:
        """As of a tuple: the first place in [start, stop)."""
        found = self.place(value)
        if found is None or start or stop is not None:
            return super().index(value, start, len(self) if stop is None else stop)
        return found

    def add(self, name: str) -> int:
        """The place of the name, which is appended if it is new."""
        if self._numbered != len(self) or len(self._slots) <= _FEWEST_SLOTS * (len(self) + 1):
            self._number(_SLOTS_TO_GROW)
        encoded = name.encode("utf-8")
        slot = self._slot(encoded)
        if self._slots[slot] != _ABSENT:
            return self._slots[slot] - 1
        self.append_utf8(encoded)
        self._slots[slot] = self._numbered = len(self)
        return len(self) - 1

    def repeats(self) -> array[int]:
        """Places of names that stand at an earlier place too, in order; numbers all names for `place`."""
        return self._number(_SLOTS_PER_NAME)

    def _number(self, slots_per_name: float) -> array[int]:
        found = array("I")
        self._slots = array("I")  # the old ones are given back first
        self._slots = array("I", [_ABSENT]) * (int(slots_per_name * len(self)) + 3 | 1)
        for place in range(len(self)):
            slot = self._slot(self.encoded(place))
            if self._slots[slot] == _ABSENT:
                self._slots[slot] = place + 1
            else:
                found.append(place)
        self._numbered = len(self)
        return found

    def _slot(self, name: bytes) -> int:
        """Where the name is or would be. Python's hash differs from process to process, so that no file can aim at it."""
        slots, ends, buffer = self._slots, self._ends, self._buffer
        number, size = hash(name), len(slots)
        slot, step = number % size, 1 << (number >> _STEP_BITS & 15)  # no divisor of the size, which is odd
        while found := slots[slot]:  # the loop of each look-up: no calls
            if buffer[ends[found - 2] if found > 1 else 0 : ends[found - 1]] == name:
                break
            slot = (slot + step) % size
        return slot

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_slots": array("I"), "_numbered": 0}  # hashes of this process alone


class ByName(Mapping[str, Value]):
    """Values by name, in the order of the names; each is made when it is asked for. A subclass has `at`.

    Attributes:
        names: all different.
    """

    def __init__(self, names: Names) -> None:
        self.names = names

    @abstractmethod
    def at(self, place: int) -> Value:
        """The value of the name at a place in [0, len)."""

    def place(self, name: str) -> int:
        """Where the name stands.

        Raises:
            KeyError: it does not.
        """
        found = self.names.place(name)
        if found is None:
            raise KeyError(name)
        return found

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __getitem__(self, name: str) -> Value:
        return self.at(self.place(name))
