"""From entries in any order to the columns of a lexicon: words and phones are numbered, pronunciations grouped by word."""

from __future__ import annotations

from array import array
from bisect import insort
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from fsachain.errors import GraphError
from fsachain.graph.pronunciations import MAX_PHONES, Pronunciations, check_num_phones, pronunciation_text
from fsachain.names import Names, Strings

_PLACE_BITS = 32


class PhoneNumbers(Protocol):
    """Ids of phones while entries come; `GivenPhones` or `FoundPhones`."""

    def ids(self, word: str, names: Iterable[str]) -> list[int]:
        """Id of each phone of the word.

        Raises:
            GraphError: names the word and a phone that is not known, or there are more than `MAX_PHONES`.
        """

    def finish(self) -> tuple[Names, Iterable[int]]:
        """Names in the order of the lexicon, and for each id given out the one that it has there."""


class GivenPhones:
    """Ids of a list of phones; others are refused."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = Names(names)
        check_num_phones(len(self._names))

    def ids(self, word: str, names: Iterable[str]) -> list[int]:
        """As `PhoneNumbers`."""
        return [self._id(word, name) for name in names]

    def finish(self) -> tuple[Names, Iterable[int]]:
        """As `PhoneNumbers`: the list."""
        return self._names, range(1, len(self._names) + 1)

    def _id(self, word: str, name: str) -> int:
        place = self._names.place(name)
        if place is None:
            came = f"word {word[:80]!r} uses the phone {name[:80]!r}"
            raise GraphError(f"{came}, which is not among the {len(self._names)} phones")
        return place + 1


class FoundPhones:
    """Phones numbered as they come; in the lexicon silence is the first and the others follow by name."""

    def __init__(self, silence: str | None) -> None:
        self._names = Names([] if silence is None else [silence])
        self._first_spoken = len(self._names)

    def ids(self, word: str, names: Iterable[str]) -> list[int]:
        """As `PhoneNumbers`."""
        found = [self._names.add(name) + 1 for name in names]
        check_num_phones(len(self._names))
        return found

    def finish(self) -> tuple[Names, Iterable[int]]:
        """As `PhoneNumbers`."""
        order = array("H", range(self._first_spoken))
        for place in range(self._first_spoken, len(self._names)):
            insort(order, place, lo=self._first_spoken, key=self._names.encoded)
        numbers = array("H", [0]) * len(order)
        for number, place in enumerate(order, 1):
            numbers[place] = number
        self._names = Names(self._names[place] for place in order)
        return self._names, numbers


class Entries:
    """Pronunciations grouped by word. Those of one word mostly come together, and only the others are sorted.

    Attributes:
        words: in order of their first entries.
    """

    def __init__(self, num_phones: int = MAX_PHONES) -> None:
        self.words = Names()
        self._num_phones = num_phones
        self._texts = Strings()  # of all words but the last
        self._last = bytearray()
        self._strays = Strings()
        self._owners = array("Q")  # word of each stray, then its place among them

    def add(self, word: str, phones: Sequence[int], prob: float) -> None:
        """One entry: phone ids and a probability.

        Raises:
            GraphError: as `pronunciation_text`.
        """
        text = pronunciation_text(word, phones, prob, self._num_phones)
        place = self.words.add(word)
        if place < len(self._texts):
            self._owners.append(place << _PLACE_BITS | len(self._strays))
            self._strays.append(text)
            return
        if place > len(self._texts):
            self._end_word()
        self._last += text.encode("utf-8")

    def finish(self, phones: Iterable[int]) -> Pronunciations:
        """Those of each word; `phones` has the final id of each id given."""
        if self.words:
            self._end_word()
        if self._owners:
            self._texts = self._merged()
            self._strays, self._owners = Strings(), array("Q")
        return Pronunciations(self._texts, phones)

    def _end_word(self) -> None:
        self._texts.append(self._last.decode("utf-8"))
        self._last.clear()

    def _merged(self) -> Strings:
        owners = np.frombuffer(self._owners, dtype=np.uint64)
        owners.sort()
        merged, at = Strings(), 0
        for place in range(len(self._texts)):
            self._last += self._texts.encoded(place)
            while at < len(owners) and self._owners[at] >> _PLACE_BITS == place:
                self._last += self._strays.encoded(self._owners[at] & (1 << _PLACE_BITS) - 1)
                at += 1
            merged.append(self._last.decode("utf-8"))
            self._last.clear()
        return merged
