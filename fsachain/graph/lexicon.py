"""Pronunciation lexicon: words, phones, pronunciations with probabilities, optional silence.

Phone id = index in `phones` + 1, word id = index in `words` + 1; 0 is epsilon. Reads Kaldi's lexicon.txt
(word, phones) and lexiconp.txt (word, probability, phones). Pronunciation probabilities are used as they
stand: Kaldi's files scale the best pronunciation of each word to 1.
"""

from __future__ import annotations

import json
import math
import os
from array import array
from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np

from fsachain.errors import DataError, GraphError
from fsachain.files import binary_lines, parse_json, replacing, text_lines
from fsachain.kaldi.symbols import in_id_order, symbol_and_id
from fsachain.names import Names, Strings
from fsachain.on_access import OnAccess

__all__ = ["Lexicon", "Pronunciation"]


# Pronunciations of many words in little memory: one text for each word, made into tuples on access.
#
# A phone is a character, that of id 1 is `@`. A pronunciation is its probability, unless that is 1, its
# phones and a line feed: those of ids 1 and 2 with the probability 0.5 are `0.5@A`. So a phone takes one to
# three bytes in place of eight.

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


# From entries in any order to the columns of a lexicon: words and phones are numbered, pronunciations grouped
# by word.

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


# Kaldi's text files around a lexicon: lexicon.txt, lexiconp.txt and phones.txt.

FORMATS = ("auto", "lexicon", "lexiconp")
EPSILON_NAMES = ("<eps>", "<epsilon>")
LONGEST_LINE = 1 << 13  # bytes: a word and 4,000 phones


def read_lexicon(
    path: str | os.PathLike[str], format: str, numbers: PhoneNumbers
) -> tuple[Names, Names, Pronunciations]:
    """Words in the order of the file, phones, and the pronunciations of each word.

    Args:
        path: the file.
        format: one of `FORMATS`; "auto" takes "lexiconp" for a file whose name has "lexiconp" in it.
        numbers: gives the phone ids.

    Raises:
        GraphError: names file and line of what is not an entry; a pronunciation that occurs twice; an empty
            file.
    """
    if format not in FORMATS:
        raise GraphError(f"format = {format!r}: expected one of {', '.join(FORMATS)}")
    if format == "auto":
        format = "lexiconp" if "lexiconp" in Path(path).name else "lexicon"
    entries = Entries()
    for where, word, prob, spoken in _entries(path, format):
        try:
            entries.add(word, numbers.ids(word, spoken), prob)
        except GraphError as error:
            raise GraphError(f"{where}: {error}") from error
    if not entries.words:
        raise GraphError(f"{path}: no entries; expected lines of a word and its phones")
    phones, order = numbers.finish()
    pronunciations = entries.finish(order)
    if again := pronunciations.repeated():
        _refuse_repeat(path, format, entries.words[again[0]], [phones[phone - 1] for phone in again[1]])
    return entries.words, phones, pronunciations


def _entries(path: str | os.PathLike[str], format: str) -> Iterator[tuple[str, str, float, Sequence[str]]]:
    """(file and line, word, probability, phone names) of each line."""
    for number, fields in text_lines(path, GraphError, longest=LONGEST_LINE):
        where = f"{path}:{number}"
        word, prob, phones = fields[0], 1.0, fields[1:]
        if format == "lexiconp":
            prob, phones = _probability(fields, where), fields[2:]
        if not phones:
            raise GraphError(f"{where}: word {word[:80]!r} has no phones")
        if format == "lexicon" and len(phones) > 1 and _looks_like_probability(phones[0]):
            raise GraphError(
                f"{where}: phone {phones[0][:80]!r} looks like a probability; read it with format='lexiconp' "
                "(or name it lexiconp.txt)"
            )
        yield where, word, prob, phones


def _refuse_repeat(path: str | os.PathLike[str], format: str, word: str, phones: Sequence[str]) -> NoReturn:
    """The file is read again for the two lines, since to keep the number of each would take as much as some lines do."""
    said = f"word {word[:80]!r} has this pronunciation"
    if Path(path).is_file():
        same = (e[0] for e in _entries(path, format) if e[1] == word and e[3] == phones)
        first, second = islice(same, 2)
        raise GraphError(f"{second}: {said} already on line {first.rpartition(':')[2]}")
    raise GraphError(f"{path}: {said} twice: {' '.join(phones)[:80]}")


def read_phones(path: str | os.PathLike[str]) -> Names:
    """Phone names in id order from a phones.txt (name, id), without epsilon and disambiguation symbols (#0).

    Raises:
        GraphError: a malformed line, or ids that are not 1, 2, ... without gaps.
    """
    names, ids = Names(), array("I")
    try:
        for number, fields in text_lines(path, longest=LONGEST_LINE):
            name, phone = symbol_and_id(fields, f"{path}:{number}", "a phone")
            if name not in EPSILON_NAMES and not name.startswith("#"):
                names.append(name)
                ids.append(phone)
        return in_id_order(names, ids, path)
    except DataError as reason:
        raise GraphError(str(reason)) from reason


def _probability(fields: Sequence[str], where: str) -> float:
    try:
        prob = float(fields[1])
    except (IndexError, ValueError):
        prob = -1.0
    if not 0.0 < prob <= 1.0:
        given = fields[1] if len(fields) > 1 else "nothing"
        raise GraphError(
            f"{where}: word {fields[0][:80]!r} is followed by {given[:80]!r}, expected a probability in (0, 1]"
        )
    return prob


def _looks_like_probability(text: str) -> bool:
    try:
        return "." in text and 0.0 < float(text) <= 1.0
    except ValueError:
        return False


# The saved form of a lexicon: JSON values in lines, so that neither writer nor reader holds more than one.
#
# The first line is a table: the format, what is true of the lexicon as a whole, and the numbers of lines that
# follow. Each phone is a line with its name, in the order of the ids, and each pronunciation one of the form
# `["word", 1.0, [3, 1, 2]]`: probability and phone ids. Those of a word come together, in the order of the
# words.

FORMAT = "fsachain-lexicon-2"
LONGEST_LINE_lexicon_json = 1 << 15  # bytes
MOST_VALUES = 5_000  # of a line, which are Python objects while it is read; a phone is one
_HEAD: dict[str, type | tuple[type, ...]] = {
    "silence": (str, NoneType),
    "silence_prob": (float, int),
    "oov": (str, NoneType),
    "phones": int,
    "pronunciations": int,
}


def write(lexicon: Lexicon, path: str | os.PathLike[str]) -> None:
    """Write a lexicon as `read` reads it.

    Raises:
        GraphError: a pronunciation has more than about `MOST_VALUES` phones, or a name is too long for a line.
    """
    head = {
        "format": FORMAT,
        "silence": lexicon.silence,
        "silence_prob": lexicon.silence_prob,
        "oov": lexicon.oov,
        "phones": len(lexicon.phones),
        "pronunciations": sum(map(len, lexicon.pronunciations)),
    }
    with replacing(path) as file:
        for what, value in _values(lexicon, head):
            line = json.dumps(value, ensure_ascii=False).encode("utf-8") + b"\n"
            _check_size(line, f"{path}: {what:.80}")
            file.write(line)


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Arguments of the lexicon in a file that `write` wrote.

    Raises:
        GraphError: the file is not such a lexicon, or not all of one; names the file, and the line if one is wrong.
    """
    lines = _lines(path)
    head = _head(path, lines)
    phones = Names()
    for where, name in islice(lines, head["phones"]):
        if not isinstance(name, str):
            raise GraphError(f"{where}: not the name of a phone")
        phones.append(name)
    entries, count = Entries(len(phones)), 0
    for where, value in lines:
        _add(entries, where, value)
        count += 1
    if (len(phones), count) != (head["phones"], head["pronunciations"]):
        expected = f"{head['phones']} and {head['pronunciations']}"
        raise GraphError(f"{path}: {len(phones)} phones and {count} pronunciations; expected {expected}")
    pronunciations = entries.finish(range(1, len(phones) + 1))
    columns = {"words": entries.words, "phones": phones, "pronunciations": pronunciations}
    return {**columns, **{key: head[key] for key in ("silence", "silence_prob", "oov")}}


def _values(lexicon: Lexicon, head: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What each line is about, and its value."""
    yield "the first line", head
    for phone in lexicon.phones:
        yield f"phone {phone}", phone
    for word, ways in zip(lexicon.words, lexicon.pronunciations, strict=True):
        for phones, prob in ways:
            yield f"word {word}", (word, prob, phones)


def _check_size(line: bytes, where: str) -> None:
    values = sum(map(line.count, (b",", b":", b"[", b"{")))  # or more, if a name has one of these
    if len(line) > LONGEST_LINE_lexicon_json or values > MOST_VALUES:
        raise GraphError(
            f"{where}: {len(line)} bytes with {values} values; a phone or pronunciation of a lexicon takes at most "
            f"{LONGEST_LINE_lexicon_json} bytes and {MOST_VALUES} values"
        )


def _lines(path: str | os.PathLike[str]) -> Iterator[tuple[str, Any]]:
    """(file and line, value) of each line."""
    try:
        for number, line in binary_lines(path):
            where = f"{path}:{number}"
            _check_size(line, where)
            yield where, parse_json(line, where)
    except DataError as error:
        raise GraphError(str(error)) from error


def _head(path: str | os.PathLike[str], lines: Iterator[tuple[str, Any]]) -> dict[str, Any]:
    if not Path(path).is_file():
        raise GraphError(f"{path}: no such file")
    try:
        _, head = next(lines)
        sound = head["format"] == FORMAT and all(isinstance(head[key], kind) for key, kind in _HEAD.items())
    except (StopIteration, GraphError, LookupError, TypeError):
        sound = False
    if not (sound and 0 <= head["phones"] <= MAX_PHONES):
        raise GraphError(
            f"{path}: not a lexicon of format {FORMAT!r}; if an older version wrote it, make the folder anew "
            "(fsachain lang)"
        )
    return dict(head)


def _add(entries: Entries, where: str, value: Any) -> None:
    try:
        word, prob, phones = value
        entries.add(word, phones, prob)
    except GraphError as error:
        raise GraphError(f"{where}: {error}") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise GraphError(f"{where}: not a word, its probability and its phone ids") from error


@dataclass(frozen=True, eq=False)
class Lexicon:
    """Words and how they are said. Strings and pronunciations are kept in little memory, and made on access.

    Attributes:
        words: names of the words; id = index + 1.
        phones: names of the phones, silence included; id = index + 1. At most 32,768.
        pronunciations: for each word (by index in `words`), at least one pronunciation.
        silence: name of the phone that may stand at the ends and between words; None: nothing may.
        silence_prob: probability of that silence at each such place, in (0, 1).
        oov: word that stands for every word not in the lexicon; None: such words are refused.
    """

    words: Sequence[str]
    phones: Sequence[str]
    pronunciations: Sequence[Sequence[Pronunciation]]
    silence: str | None = "SIL"
    silence_prob: float = 0.5
    oov: str | None = None
    _words: Names = field(init=False, repr=False)
    _phones: Names = field(init=False, repr=False)

    def __post_init__(self) -> None:
        words, phones = _names(self.words), _names(self.phones)
        for attribute, names in (("words", words), ("phones", phones)):
            object.__setattr__(self, attribute, names)
            object.__setattr__(self, f"_{attribute}", names)
        distinct = len(words) - len(words.repeats())
        if not words or distinct != len(words) or len(self.pronunciations) != len(words):
            raise GraphError(
                f"lexicon of {len(words)} words ({distinct} distinct) and {len(self.pronunciations)} lists of "
                "pronunciations: expected at least one word, all distinct, one list for each"
            )
        if repeats := phones.repeats():
            raise GraphError(
                f"lexicon has {len(phones)} phones, {len(phones) - len(repeats)} of them distinct"
            )
        if self.silence is not None and self.silence not in phones:
            raise GraphError(
                f"silence = {self.silence!r:.80} is not a phone of the lexicon; silence=None: there is none"
            )
        if self.silence is not None and not 0.0 < self.silence_prob < 1.0:
            raise GraphError(
                f"silence_prob = {self.silence_prob}: expected one in (0, 1); silence=None: no silence"
            )
        if self.oov is not None and self.oov not in words:
            raise GraphError(f"oov = {self.oov!r:.80} is not a word of the lexicon")
        known = self.pronunciations
        if not (isinstance(known, Pronunciations) and known.num_phones <= len(phones)):
            object.__setattr__(self, "pronunciations", Pronunciations.of(words, known, len(phones)))

    @classmethod
    def read(
        cls,
        path: str | os.PathLike[str],
        *,
        silence: str | None = "SIL",
        silence_prob: float = 0.5,
        oov: str | None = None,
        phones: Sequence[str] | str | os.PathLike[str] | None = None,
        format: str = "auto",
    ) -> Lexicon:
        """Read lexicon.txt or lexiconp.txt. Words keep the order of the file.

        Args:
            path: the file; UTF-8, one pronunciation a line.
            silence: name of the silence phone, or None.
            silence_prob: probability of silence at each place where it may stand.
            oov: word that stands for unknown words; None refuses them.
            phones: phone names in id order, or the path of a Kaldi phones.txt. Default: silence first, then
                the phones of the file sorted by name.
            format: "lexicon" (word, phones), "lexiconp" (word, probability, phones), or "auto": lexiconp if
                the name of the file has "lexiconp" in it.

        Raises:
            GraphError: names file, line, what came and what was expected.
        """
        if isinstance(phones, str | os.PathLike):
            phones = read_phones(phones)
        words, names, pronunciations = read_lexicon(path, format, _numbers(phones, silence))
        try:
            return cls(words, names, pronunciations, silence, silence_prob, oov)
        except GraphError as error:
            raise GraphError(f"{path}: {error}") from error

    @classmethod
    def from_entries(
        cls,
        entries: Iterable[tuple[str, float, Sequence[str]]],
        *,
        silence: str | None = "SIL",
        silence_prob: float = 0.5,
        oov: str | None = None,
        phones: Sequence[str] | None = None,
    ) -> Lexicon:
        """A lexicon of (word, probability, phone names); `phones` as in `read`."""
        numbers, grouped = _numbers(phones, silence), Entries()
        for word, prob, spoken in entries:
            grouped.add(word, numbers.ids(word, spoken), prob)
        names, order = numbers.finish()
        pronunciations = grouped.finish(order)
        if again := pronunciations.repeated():
            twice = " ".join(names[phone - 1] for phone in again[1])
            raise GraphError(
                f"word {grouped.words[again[0]]!r:.80} has the pronunciation {twice!r:.80} twice"
            )
        return cls(grouped.words, names, pronunciations, silence, silence_prob, oov)

    @classmethod
    def characters(
        cls,
        texts: Iterable[str | Sequence[str]],
        *,
        silence: str | None = "SIL",
        silence_prob: float = 0.5,
        oov: str | None = None,
    ) -> Lexicon:
        """A lexicon that spells: each word of `texts` (split at white space, or lists) is its characters."""
        words = dict.fromkeys(
            word for text in texts for word in (text.split() if isinstance(text, str) else text)
        )
        entries = [(word, 1.0, list(word)) for word in words]
        return cls.from_entries(entries, silence=silence, silence_prob=silence_prob, oov=oov)

    def with_positions(self, without: Iterable[str] = ()) -> Lexicon:
        """The same lexicon with word positions on the phones: X_B first, X_I inside, X_E last, X_S alone.

        Args:
            without: phones that keep their plain name, beside the silence phone.
        """
        plain = {*without, *([] if self.silence is None else [self.silence])}
        phones: list[str] = []
        for phone in self.phones:
            phones += [phone] if phone in plain else [f"{phone}_{position}" for position in "BIES"]
        return Lexicon.from_entries(
            self._marked(plain),
            silence=self.silence,
            silence_prob=self.silence_prob,
            oov=self.oov,
            phones=phones,
        )

    def _marked(self, plain: set[str]) -> Iterator[tuple[str, float, list[str]]]:
        for word, pronunciations in zip(self.words, self.pronunciations, strict=True):
            for ids, prob in pronunciations:
                names = [self.phones[phone - 1] for phone in ids]
                marks = ["S"] if len(ids) == 1 else ["B", *"I" * (len(ids) - 2), "E"]
                marked = [n if n in plain else f"{n}_{mark}" for n, mark in zip(names, marks, strict=True)]
                yield word, prob, marked

    @property
    def silence_phone(self) -> int | None:
        """Id of the silence phone, or None."""
        return None if self.silence is None else self._phones.index(self.silence) + 1

    def silence_log_probs(self) -> tuple[float, float]:
        """Log probabilities of (silence, no silence) at each place; (-inf, 0) for a lexicon without."""
        if self.silence is None:
            return -math.inf, 0.0
        return math.log(self.silence_prob), math.log1p(-self.silence_prob)

    def word_id(self, word: str, *, name: str | None = None) -> int:
        """Id of `word`, or of `oov` for a word that is not in the lexicon.

        Args:
            word: the word.
            name: utterance that the word comes from, for the error message.

        Raises:
            GraphError: the word is not in the lexicon and `oov` is None.
        """
        place = self._words.place(word)
        if place is None:
            if self.oov is None:
                where = "" if name is None else f"utterance {name!r}: "
                raise GraphError(
                    f"{where}word {word!r} is not among the {len(self.words)} words of the lexicon; "
                    "add it, or choose a word that stands for unknown ones (oov=...)"
                )
            place = self._words.index(self.oov)
        return place + 1

    def phone_id(self, phone: str) -> int:
        """Id of the phone called `phone`."""
        place = self._phones.place(phone)
        if place is None:
            raise GraphError(f"phone {phone!r} is not among the {len(self.phones)} phones of the lexicon")
        return place + 1

    def pronunciations_of(self, word: str, *, name: str | None = None) -> Sequence[Pronunciation]:
        """The pronunciations of `word`; arguments and errors as `word_id`."""
        return self.pronunciations[self.word_id(word, name=name) - 1]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the lexicon as lines of JSON, which `load` reads.

        Raises:
            GraphError: a pronunciation of thousands of phones.
        """
        write(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Lexicon:
        """Read a lexicon that `save` wrote.

        Raises:
            GraphError: the file is not such a lexicon.
        """
        arguments = read(path)
        try:
            return cls(**arguments)
        except GraphError as error:
            raise GraphError(f"{path}: {error}") from error


def _names(strings: Sequence[str]) -> Names:
    return strings if isinstance(strings, Names) else Names(strings)


def _numbers(phones: Iterable[str] | None, silence: str | None) -> PhoneNumbers:
    return FoundPhones(silence) if phones is None else GivenPhones(phones)


# Phone sequences for the phone language model, from transcripts: draw pronunciations, put in silences.


def lm_phones(
    text: Iterable[str | Sequence[str]],
    lexicon: Lexicon,
    edge_silence: float = 0.8,
    between_silence: float = 0.2,
    seed: int = 0,
) -> list[list[int]]:
    """One phone-id sequence for each transcript, for `estimate_phone_lm`; reproducible.

    Args:
        text: transcripts, as strings (split at white space) or sequences of words.
        lexicon: each word is said in one of its ways, drawn by their probabilities (scaled to sum to one).
        edge_silence: probability of the silence phone at the start, and of one at the end.
        between_silence: probability of the silence phone between two words. Neither matters for a lexicon
            without silence.
        seed: of the random draws.

    Returns:
        As many lists as there are transcripts; an empty transcript gives an empty list.

    Raises:
        GraphError: a probability outside [0, 1], or a word that the lexicon refuses (the message has the
            transcript's index).
    """
    for argument, prob in (("edge_silence", edge_silence), ("between_silence", between_silence)):
        if not 0.0 <= prob <= 1.0:
            raise GraphError(f"{argument} = {prob}: expected a probability in [0, 1]")
    rng = np.random.default_rng(seed)
    sequences = []
    for index, transcript in enumerate(text):
        words = transcript.split() if isinstance(transcript, str) else transcript
        sequences.append(_draw(words, lexicon, edge_silence, between_silence, rng, f"text[{index}]"))
    return sequences


def _draw(
    words: Sequence[str], lexicon: Lexicon, edge: float, between: float, rng: np.random.Generator, name: str
) -> list[int]:
    phones: list[int] = []
    if not words:
        return phones
    silence = [] if lexicon.silence_phone is None else [lexicon.silence_phone]
    places = rng.random(len(words) + 1)
    choices = rng.random(len(words))
    for position, word in enumerate(words):
        if places[position] < (between if position else edge):
            phones += silence
        pronunciations = lexicon.pronunciations_of(word, name=name)
        cumulative = np.cumsum([pronunciation.prob for pronunciation in pronunciations])
        chosen = np.searchsorted(cumulative, choices[position] * cumulative[-1], side="right")
        phones += pronunciations[chosen].phones
    if places[-1] < edge:
        phones += silence
    return phones
