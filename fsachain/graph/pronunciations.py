"""Pronunciations of many words in little memory: one text for each word, made into tuples on access.

A phone is a character, that of id 1 is `@`. A pronunciation is its probability, unless that is 1, its phones and a line
feed: those of ids 1 and 2 with the probability 0.5 are `0.5@A`. So a phone takes one to three bytes in place of eight.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from fsachain.errors import GraphError
from fsachain.names import Names, Strings
from fsachain.on_access import OnAccess

MAX_PHONES = 1 << 15  # all are characters below the surrogates, which are none
_BELOW_FIRST = 0x3F  # phones begin behind what a probability is written with
_NUMBER = "0123456789.-:"


class Pronunciation(NamedTuple):
    """One way to say a word: phone ids and a probability in (0, 1]."""

    phones: tuple[int, ...]
    prob: float


class Pronunciations(OnAccess[tuple[Pronunciation, ...]]):
    """For each word, by its index, at least one pronunciation; equal to any sequence of the same.

    Args:
        texts: of each word, joined from `pronunciation_text`.
        phones: for each id that the texts are written with, from 1 on, the id that it stands for.
    """

    def __init__(self, texts: Strings, phones: Iterable[int]) -> None:
        self._texts = texts
        self._phones = array("H", bytes(2 + 2 * _BELOW_FIRST))
        self._phones.extend(phones)

    @classmethod
    def of(
        cls, words: Iterable[str], lists: Iterable[Iterable[tuple[Sequence[int], float]]], num_phones: int
    ) -> Pronunciations:
        """Those of lists of (phone ids, probability), one list for each word.

        Raises:
            GraphError: more than `MAX_PHONES` phones; names the word that has no pronunciation, or one that
                `pronunciation_text` refuses.
        """
        check_num_phones(num_phones)
        texts = Strings()
        for word, ways in zip(words, lists, strict=True):
            text = "".join(pronunciation_text(word, phones, prob, num_phones) for phones, prob in ways)
            if not text:
                raise GraphError(f"word {word[:80]!r} has no pronunciation")
            texts.append(text)
        return cls(texts, range(1, num_phones + 1))

    @property
    def num_phones(self) -> int:
        """Ids are at most this."""
        return max(self._phones)

    def __len__(self) -> int:
        return len(self._texts)

    def at(self, place: int) -> tuple[Pronunciation, ...]:
        """Those of the word at a place in [0, len)."""
        return self._read(self._texts.at(place))

    def __iter__(self) -> Iterator[tuple[Pronunciation, ...]]:
        return map(self._read, self._texts)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(of {len(self)} words)"

    def repeated(self) -> tuple[int, tuple[int, ...]] | None:
        """Index of the first word that has the same phones twice, and these phones; None if no word has."""
        for place, text in enumerate(self._texts):
            if text.count("\n") > 1:
                spoken = Names()
                for number, way in enumerate(_ways(text)):
                    if spoken.add(way.lstrip(_NUMBER)) < number:
                        return place, self._ids(way.lstrip(_NUMBER))
        return None

    def _read(self, text: str) -> tuple[Pronunciation, ...]:
        return tuple(map(self._read_one, text[:-1].split("\n")))

    def _read_one(self, way: str) -> Pronunciation:
        phones = way.lstrip(_NUMBER)
        number = way[: -len(phones)]
        return Pronunciation(self._ids(phones), float(number.replace(":", "e")) if number else 1.0)

    def _ids(self, phones: str) -> tuple[int, ...]:
        table = self._phones
        return tuple([table[ord(phone)] for phone in phones])


def check_num_phones(count: int) -> None:
    """Raises GraphError for more phones than there are characters for."""
    if count > MAX_PHONES:
        raise GraphError(f"{count} phones: expected at most {MAX_PHONES}")


def pronunciation_text(word: str, phones: Sequence[int], prob: float, num_phones: int = MAX_PHONES) -> str:
    """One pronunciation as `Pronunciations` keeps it.

    Raises:
        GraphError: names the word that has phone ids that are not in [1, num_phones], none, or a probability that is not
            in (0, 1].
    """
    if not phones or min(phones) < 1 or max(phones) > num_phones:
        came = str(list(phones[:10]))[:80]
        raise GraphError(f"word {word[:80]!r} has phone ids {came}: expected some in [1, {num_phones}]")
    if not 0.0 < prob <= 1.0:
        came = str(prob)[:20]
        raise GraphError(f"word {word[:80]!r} has a pronunciation of probability {came}: expected (0, 1]")
    number = "" if prob == 1.0 else repr(float(prob)).replace("e", ":")
    return "".join([number, *[chr(_BELOW_FIRST + phone) for phone in phones], "\n"])


def _ways(text: str) -> Iterator[str]:
    """Its pronunciations, without a list of all."""
    begin = 0
    while begin < len(text):
        end = text.index("\n", begin)
        yield text[begin:end]
        begin = end + 1
