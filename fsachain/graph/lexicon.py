"""Pronunciation lexicon: words, phones, pronunciations with probabilities, optional silence.

Phone id = index in `phones` + 1, word id = index in `words` + 1; 0 is epsilon. Reads Kaldi's lexicon.txt
(word, phones) and lexiconp.txt (word, probability, phones). Pronunciation probabilities are used as they
stand: Kaldi's files scale the best pronunciation of each word to 1.
"""

from __future__ import annotations

import json
import math
import os
import re
import unicodedata
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

import numpy as np

from fsachain.errors import DataError, GraphError, as_number, brief, counted, listed, refuse_text, warn
from fsachain.files import LONGEST_LINE, binary_lines, parse_json, replacing, text_lines, without_collector
from fsachain.graph.transducer import Numbers
from fsachain.opaque import opaque
from fsachain.openfst import read_symbols

__all__ = ["Lexicon", "Pronunciation"]

FORMATS = ("auto", "lexicon", "lexiconp")
JSON_FORMAT = "fsachain-lexicon-2"
_LONGEST_ENTRY = 1 << 13  # bytes of a line of text: a word and 4,000 phones
_DISAMBIGUATION = re.compile(r"#\d+")
_NUMBERED = re.compile(r"(.+)\(\d+\)")
_COMMENT = re.compile(r"#|;;")  # begins a line that is a comment, in files of CMUdict and of Kaldi's recipes
_MOST_LOOKED_AT = 1000  # words, to see whether they are their characters
_HEAD: dict[str, type | tuple[type, ...]] = {
    "silence": (str, NoneType),
    "silence_prob": (float, int),
    "oov": (str, NoneType),
    "phones": int,
    "pronunciations": int,
}


# Variation selectors and the grapheme joiner: marks of no sound, but of category Mn as vowel signs are.
_JOINERS = frozenset({"\u034f", *map(chr, range(0xFE00, 0xFE10))})
# Between two letters these part words, as a dash (category Pd) does: slashes, and what ends a sentence or clause.
_PARTING = frozenset(
    "/!?;\u2026\u0964\u0965\u3002\uff0c\u3001\uff01\uff1f\uff1b\u061f\u060c\u061b\u06d4\u1362\u1363\u104a\u104b\u17d4\u17d5"
)
# Noises and words that were broken off, whose marks mean something: [noise], <unk>, {breath}; wan-, -ted.
_NOTED = re.compile(r"[\[<{].*[\]>}]|-\w.*|.*\w-", re.DOTALL)
_MOST_MARKS = 16  # around a word, of which all ways to leave some are tried


def is_mark(character: str) -> bool:
    """Whether the character is punctuation or a symbol, in any script: Unicode's categories P* and S*."""
    return unicodedata.category(character)[0] in "PS"


def is_invisible(character: str) -> bool:
    """Whether the character is neither seen nor heard: soft hyphens, zero-width spaces and joiners, marks of direction."""
    return unicodedata.category(character) == "Cf" or character in _JOINERS


def visible(written: str) -> str:
    """The word without invisible characters."""
    if written.isascii():
        return written
    return "".join(character for character in written if not is_invisible(character))


def bare(written: str, letters: Container[str] = ()) -> str:
    """The word without invisible characters and without the punctuation and symbols around it.

    Marks among `letters` stay. A word of marks alone is empty.
    """
    seen = visible(written)
    first, end = _edges(seen, letters)
    return seen[first:end]


def _edges(seen: str, letters: Container[str] = ()) -> tuple[int, int]:
    """Where the word within its marks begins and ends; (0, 0) if there are marks alone."""
    inner = [n for n, one in enumerate(seen) if one in letters or not is_mark(one)]
    return (inner[0], inner[-1] + 1) if inner else (0, 0)


def _with_fewer_marks(written: str) -> list[str]:
    """The word as written, without invisible characters, then with fewer and fewer of the marks around it, down to none.

    So a mark that is a letter of the lexicon stays: \u00ab'okina\u00bb is 'okina where the lexicon has that.
    """
    seen = visible(written)
    first, end = _edges(seen)
    if not end:
        return [written, seen]
    ways = [(left, right) for left in range(first + 1) for right in range(len(seen), end - 1, -1)]
    if first + len(seen) - end > _MOST_MARKS:
        ways = [(0, len(seen)), (first, end)]
    ways.sort(key=lambda way: way[0] + len(seen) - way[1])
    return list(dict.fromkeys([written, *(seen[left:right] for left, right in ways)]))


def folded(word: str) -> str:
    """What words have in common that differ in case or in how Unicode writes a letter: `\u00e9`, or `e` and a mark."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", word).casefold())


def _is_spoken(written: str) -> bool:
    return any(map(str.isalnum, written))


class Token(NamedTuple):
    """One word of a transcript.

    written: the word with its case and punctuation; word: its form in the lexicon, or else without marks, in lower case and
    composed (NFC); place: the number, from 0, of the piece between white space that it is part of.
    """

    written: str
    word: str
    place: int


def transcript_tokens(text: str | Iterable[str], lexicon: Lexicon | None = None) -> list[Token]:
    """The words of a transcript, a line or pieces of one; a word of marks alone is left out, if the lexicon lacks it.

    A piece that the lexicon lacks as a whole is parted at dashes, slashes and marks that end sentences: `well-known` and
    `and/or` are two words each, with the mark at the end of the first.
    """
    found = []
    for place, whole in enumerate(text.split() if isinstance(text, str) else text):
        known = lexicon.known_form(whole) if lexicon else None
        for written in [whole] if known else _parted(whole):
            word = known or (lexicon.known_form(written) if lexicon else None)
            plain = unicodedata.normalize("NFC", bare(written).lower())
            if word or _is_spoken(plain):
                found.append(Token(written, word or plain, place))
    return found


def _parted(whole: str) -> list[str]:
    """The parts of a compound, each with the marks that follow it."""
    parts, part, is_parted = list[str](), "", False
    for one in whole:
        if is_parted and not is_mark(one) and _is_spoken(part):
            parts.append(part)
            part = ""
        part += one
        is_parted = one in _PARTING or unicodedata.category(one) == "Pd" or (is_parted and is_mark(one))
    return [*parts, part]


class Pronunciation(NamedTuple):
    """One way to say a word: phone ids and a probability in (0, 1]."""

    phones: tuple[int, ...]
    prob: float


@opaque
@dataclass(frozen=True, eq=False)
class Lexicon:
    """Words and how they are said.

    Attributes:
        words: names of the words; id = index + 1.
        phones: names of the phones, silence included; id = index + 1.
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
    _word_ids: dict[str, int] = field(init=False, repr=False)
    _phone_ids: dict[str, int] = field(init=False, repr=False)

    __repr__ = brief

    def __post_init__(self) -> None:
        for name in ("words", "phones"):
            refuse_text(name, getattr(self, name), expected="a sequence of names, such as ['a', 'b']")
        words, phones = tuple(self.words), tuple(self.phones)
        word_ids, phone_ids = _ids(words), _ids(phones)
        if not words or len(word_ids) != len(words) or len(self.pronunciations) != len(words):
            raise GraphError(
                f"lexicon of {counted(len(words), 'word')} ({len(word_ids)} distinct) and "
                f"{len(self.pronunciations)} lists of "
                "pronunciations: expected at least one word, all distinct, one list for each"
            )
        if len(phone_ids) != len(phones):
            raise GraphError(
                f"lexicon has {counted(len(phones), 'phone')}, {len(phone_ids)} of them distinct"
            )
        if self.silence is not None and self.silence not in phone_ids:
            other = _in_another_case(self.silence, phones)
            hint = "" if other is None else f"; it has {other!r:.80}: expected silence={other!r:.80}"
            raise GraphError(
                f"silence = {self.silence!r:.80} is not a phone of the lexicon; expected one of its phones, or None{hint}"
            )
        if self.silence is not None and not 0.0 < as_number("silence_prob", self.silence_prob) < 1.0:
            raise GraphError(f"silence_prob = {self.silence_prob}: expected a probability in (0, 1)")
        if self.oov is not None and self.oov not in word_ids:
            raise GraphError(f"oov = {self.oov!r:.80} is not a word of the lexicon")
        pronunciations = tuple(map(_as_pronunciations, self.pronunciations))
        if not _are_sound(pronunciations, len(phones)):
            for word, ways in zip(words, pronunciations, strict=True):
                if not ways:
                    raise GraphError(f"word {word[:80]!r} has no pronunciation")
                for spoken, prob in ways:
                    _check_pronunciation(word, spoken, prob, len(phones))
        for name, value in (
            ("words", words),
            ("phones", phones),
            ("pronunciations", pronunciations),
            ("_word_ids", word_ids),
            ("_phone_ids", phone_ids),
        ):
            object.__setattr__(self, name, value)

    @classmethod
    @without_collector()
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

        Lines that begin with `#` or `;;` are comments. A word that begins so counts where it is spelled by its characters,
        as in the line `#a # a`.
        """
        if isinstance(phones, str | os.PathLike):
            phones = read_phones(phones)
        if format not in FORMATS:
            raise GraphError(f"format = {format!r}: expected one of {', '.join(FORMATS)}")
        if format == "auto":
            format = "lexiconp" if "lexiconp" in Path(path).name else "lexicon"
        found = _numbered(_entries(path, format), phones, silence, path)
        if not found[0]:
            raise GraphError(f"{path}: no entries; expected lines of a word and its phones")
        try:
            return cls(*found, silence, silence_prob, oov)
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
        found = _numbered(((0, *entry) for entry in entries), phones, silence, None)
        return cls(*found, silence, silence_prob, oov)

    @classmethod
    def characters(
        cls,
        texts: Iterable[str | Sequence[str]],
        *,
        silence: str | None = "SIL",
        silence_prob: float = 0.5,
        oov: str | None = None,
    ) -> Lexicon:
        """A lexicon that spells: each word of `texts` (split at white space, or lists) is its characters.

        Words are without the punctuation and symbols around them and without invisible characters (`word_id` finds them by
        what is written); what is nothing else is not a word.
        """
        if isinstance(texts, str):
            raise GraphError("texts is one string; expected transcripts, such as text.splitlines()")
        words = dict.fromkeys(
            bare(word) for text in texts for word in (text.split() if isinstance(text, str) else text)
        )
        entries = [(word, 1.0, list(word)) for word in words if word]
        return cls.from_entries(entries, silence=silence, silence_prob=silence_prob, oov=oov)

    def with_positions(self, without: Iterable[str] = ()) -> Lexicon:
        """The same lexicon with word positions on the phones: X_B first, X_I inside, X_E last, X_S alone.

        Args:
            without: phones that keep their plain name, beside the silence phone.
        """
        refuse_text("without", without, expected="a list of phones, such as ['SPN']")
        plain = {*without, self.silence}
        phones: list[str] = []
        for phone in self.phones:
            phones += [phone] if phone in plain else [f"{phone}_{position}" for position in "BIES"]

        def marked(ids: Sequence[int]) -> list[str]:
            positions = "S" if len(ids) == 1 else f"B{'I' * (len(ids) - 2)}E"
            names = (
                (self.phones[phone - 1], position) for phone, position in zip(ids, positions, strict=True)
            )
            return [name if name in plain else f"{name}_{position}" for name, position in names]

        spoken = zip(self.words, self.pronunciations, strict=True)
        entries = ((word, prob, marked(ids)) for word, ways in spoken for ids, prob in ways)
        options: dict[str, Any] = {
            "silence": self.silence,
            "silence_prob": self.silence_prob,
            "oov": self.oov,
        }
        return Lexicon.from_entries(entries, **options, phones=phones)

    @property
    def silence_phone(self) -> int | None:
        """Id of the silence phone, or None."""
        return None if self.silence is None else self._phone_ids[self.silence]

    def silence_log_probs(self) -> tuple[float, float]:
        """Log probabilities of (silence, no silence) at each place; (-inf, 0) for a lexicon without."""
        if self.silence is None:
            return -math.inf, 0.0
        return math.log(self.silence_prob), math.log1p(-self.silence_prob)

    def word_id(self, word: str, *, name: str | None = None) -> int:
        """Id of `word`, or of `oov` for a word that is not in the lexicon.

        Args:
            word: the word, as it is written: if the lexicon lacks it so, without the punctuation, symbols and invisible
                characters around it.
            name: utterance that the word comes from, for the error message.

        Raises:
            GraphError: the word is not in the lexicon and `oov` is None.
        """
        found = self._word_ids.get(word)
        if found is not None:
            return found
        known = self._without_marks(word)
        if known is not None:
            return self._word_ids[known]
        if self.oov is None:
            where, known = "" if name is None else f"utterance {name!r}: ", self.known_form(word)
            like = "" if known is None else f", which has {known!r}"
            if known is not None and len({unicodedata.normalize("NFC", one) for one in (known, word)}) == 1:
                like += f", the same letters in another Unicode form (NFC, NFD): {known!a} for {word!a}"
            raise GraphError(
                f"{where}word {word!r} is not among the {counted(len(self.words), 'word')} of the lexicon{like}; "
                "add it, or choose a word that stands for unknown ones (lang.oov)"
            )
        return self._word_ids[self.oov]

    def has(self, word: str) -> bool:
        """Whether `word` itself is in the lexicon."""
        return word in self._word_ids

    def known_form(self, written: str) -> str | None:
        """The word that is meant, or None: as written, or else without marks around it, in another case or form of Unicode.

        Marks are punctuation and symbols of any script, and invisible characters; as few as possible are taken off.
        """
        if written in self._word_ids:
            return written
        texts = _with_fewer_marks(written)
        forms = (form for text in texts for form in (text, text.lower(), text.upper()))
        found = next(filter(self.has, forms), None)
        return found or next(filter(None, (self._by_folded.get(folded(text)) for text in texts)), None)

    def without_marks(self, words: Iterable[str]) -> list[str]:
        """Take off the marks around the words of a transcript that the lexicon has without them.

        A word that the lexicon has as written stays, and so does a word that it lacks with and without marks. Marks that
        stand alone are left out. Case and Unicode form are left as they are, and so are words between square, curly or angle
        brackets and words with a hyphen at one end: noises, and words that were broken off.
        """
        if all(map(self.has, words := list(words))):
            return words
        found = []
        for written in words:
            known = self._without_marks(written)
            if known or _is_spoken(written):
                found.append(known or written)
        return found

    def _without_marks(self, written: str) -> str | None:
        """The word with as few of the marks around it as the lexicon has it with."""
        if written in self._word_ids or _NOTED.fullmatch(written):
            return written if written in self._word_ids else None
        return next(filter(self.has, _with_fewer_marks(written)), None)

    @cached_property
    def letters(self) -> frozenset[str]:
        """Punctuation and symbols that are phones of a lexicon that spells, such as an apostrophe."""
        return frozenset(one for one in self.phones if len(one) == 1 and is_mark(one) and self.spells)

    @cached_property
    def _by_folded(self) -> dict[str, str]:
        """The first of the words that are the same in another case, form of Unicode or without invisible characters."""
        return {folded(visible(word)): word for word in reversed(self.words)}

    def phone_id(self, phone: str) -> int:
        """Id of the phone called `phone`."""
        found = self._phone_ids.get(phone)
        if found is None:
            raise GraphError(
                f"phone {phone!r} is not among the {counted(len(self.phones), 'phone')} of the lexicon"
            )
        return found

    def pronunciations_of(self, word: str, *, name: str | None = None) -> Sequence[Pronunciation]:
        """The pronunciations of `word`; arguments and errors as `word_id`."""
        return self.pronunciations[self.word_id(word, name=name) - 1]

    def spelled(self, word: str) -> tuple[int, ...] | None:
        """The phones of a word that the lexicon lacks, by its characters; None where these are not its phones.

        Only where it spells its own words so: nine of ten are their characters, in lower case or as they stand. Characters
        that are no phones, such as a hyphen, are left out: of the cases and forms of Unicode that which leaves out fewest.
        """
        if not self.spells:
            return None
        texts = (word, unicodedata.normalize("NFC", word), unicodedata.normalize("NFD", word), folded(word))
        forms = [form for text in texts for form in (text, text.lower(), text.upper())]
        best = min(forms, key=lambda form: sum(c not in self._phone_ids for c in form))
        return tuple(self._phone_ids[c] for c in best if c in self._phone_ids) or None

    @cached_property
    def spells(self) -> bool:
        """Whether the phones are characters: nine of ten words are spelt by theirs."""
        words = list(zip(self.words, self.pronunciations, strict=True))[:_MOST_LOOKED_AT]
        spelt = sum(
            "".join(self.phones[p - 1] for p in ways[0].phones).lower() == word.lower()
            for word, ways in words
        )
        return spelt >= 0.9 * len(words)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the lexicon as lines of JSON, which `load` reads.

        The first line has the options and counts, then comes a line for each phone name, in order of the ids, and one
        for each pronunciation: `["word", 1.0, [3, 1, 2]]`, probability and phone ids.

        Raises:
            GraphError: a pronunciation of ten thousands of phones.
        """
        options = {"silence": self.silence, "silence_prob": self.silence_prob, "oov": self.oov}
        counts = {"phones": len(self.phones), "pronunciations": sum(map(len, self.pronunciations))}
        values: list[Any] = [{"format": JSON_FORMAT, **options, **counts}, *self.phones]
        for word, ways in zip(self.words, self.pronunciations, strict=True):
            values += [(word, prob, phones) for phones, prob in ways]
        with replacing(path) as file:
            for value in values:
                line = json.dumps(value, ensure_ascii=False).encode("utf-8") + b"\n"
                if len(line) > LONGEST_LINE:
                    raise GraphError(
                        f"{path}: {line[:80].decode('utf-8', 'replace')} ... takes {counted(len(line), 'byte')}; a phone or "
                        f"pronunciation of a lexicon has at most {LONGEST_LINE}"
                    )
                file.write(line)

    @classmethod
    @without_collector()
    def load(cls, path: str | os.PathLike[str]) -> Lexicon:
        """Read a lexicon that `save` wrote.

        Raises:
            GraphError: the file is not such a lexicon.
        """
        if not Path(path).is_file():
            raise GraphError(f"{path}: no such file")
        try:
            lines = ((f"{path}:{n}", parse_json(line, f"{path}:{n}")) for n, line in binary_lines(path))
            head = _head(path, lines)
            phones = [name for _, name in islice(lines, head["phones"])]
            for number, name in enumerate(phones, 2):
                if not isinstance(name, str):
                    raise GraphError(f"{path}:{number}: not the name of a phone")
            words: dict[str, list[Pronunciation]] = {}
            count = 0
            for where, entry in lines:
                word, pronunciation = _saved_pronunciation(entry, len(phones), where)
                words.setdefault(word, []).append(pronunciation)
                count += 1
        except DataError as error:
            raise GraphError(str(error)) from error
        if (len(phones), count) != (head["phones"], head["pronunciations"]):
            expected = f"{head['phones']} and {head['pronunciations']}"
            raise GraphError(
                f"{path}: {counted(len(phones), 'phone')} and {count} pronunciations; expected {expected}"
            )
        try:
            options = (head["silence"], head["silence_prob"], head["oov"])
            return cls(tuple(words), phones, tuple(words.values()), *options)
        except GraphError as error:
            raise GraphError(f"{path}: {error}") from error


def _ids(names: Iterable[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(names, 1)}


def _as_pronunciations(ways: Iterable[tuple[Sequence[int], float]]) -> tuple[Pronunciation, ...]:
    return tuple(
        [
            way if isinstance(way, Pronunciation) else Pronunciation(tuple(way[0]), float(way[1]))
            for way in ways
        ]
    )


def _are_sound(pronunciations: Sequence[tuple[Pronunciation, ...]], num_phones: int) -> bool:
    """Whether `_check_pronunciation` has nothing to say about any; all at once."""
    ways = list(chain.from_iterable(pronunciations))
    spoken = list(map(itemgetter(0), ways))
    if not (all(pronunciations) and all(spoken)):
        return False
    phones = set(chain.from_iterable(spoken))
    probs = set(map(itemgetter(1), ways))
    return min(phones) >= 1 and max(phones) <= num_phones and all(0.0 < prob <= 1.0 for prob in probs)


def _check_pronunciation(word: str, phones: Sequence[int], prob: float, num_phones: int) -> None:
    if not phones or min(phones) < 1 or max(phones) > num_phones:
        came = str(list(phones[:10]))[:80]
        raise GraphError(f"word {word[:80]!r} has phone ids {came}: expected some in [1, {num_phones}]")
    if not 0.0 < prob <= 1.0:
        came = str(prob)[:20]
        raise GraphError(f"word {word[:80]!r} has a pronunciation of probability {came}: expected (0, 1]")


def _entries(path: str | os.PathLike[str], format: str) -> Iterator[tuple[int, str, float, Sequence[str]]]:
    """(line, word, probability, phone names) of each line of a lexicon."""
    before, comments = "", list[str]()
    for number, fields in text_lines(path, GraphError, longest=_LONGEST_ENTRY):
        word, prob, phones = fields[0], 1.0, fields[1:]
        is_spelled = "".join(fields[1 + (format == "lexiconp") :]) == word
        if _COMMENT.match(word) and not is_spelled:
            if len(fields) > 1 and word.strip("#;"):  # may have been meant as a word
                comments.append(f"line {number}, {word[:40]!r}")
            continue
        if format == "lexiconp":
            phones, given = fields[2:], fields[1] if len(fields) > 1 else "nothing"
            prob = _probability(given)
            if not prob:
                raise GraphError(
                    f"{path}:{number}: word {word[:80]!r} is followed by {given[:80]!r}, expected a probability in (0, 1]"
                )
        if not phones:
            raise GraphError(f"{path}:{number}: word {word[:80]!r} has no phones")
        if len(phones) > 1 and "." in phones[0] and _probability(phones[0]):
            silences = format == "lexiconp" or "." in phones[1]
            raise GraphError(
                f"{path}:{number}: phone {phones[0][:80]!r} looks like a probability; a lexicon "
                "with probabilities is called lexiconp.txt, and has one on each line"
                + ("; those of silence have to go, see docs/training.md, Lexicon" if silences else "")
            )
        if marks := [phone for phone in phones if _DISAMBIGUATION.fullmatch(phone)]:
            raise GraphError(
                f"{path}:{number}: {marks[0][:80]!r} looks like a disambiguation symbol and would become a phone; "
                "expected a lexicon without these"
            )
        if "#" in phones[1:-1] and not is_spelled:
            raise GraphError(
                f"{path}:{number}: word {word[:80]!r} has a phone '#', which looks like the beginning of a comment; "
                "expected comments on lines of their own"
            )
        if "<eps>" in fields:
            raise GraphError(
                f"{path}:{number}: '<eps>' stands for no word and no phone; expected a lexicon without"
            )
        if (numbered := _NUMBERED.fullmatch(word)) and numbered[1] == before:
            raise GraphError(
                f"{path}:{number}: {word[:80]!r} looks like one more pronunciation of {before[:80]!r}, as CMUdict numbers "
                "them, and would become a word; expected the word without a number on each of its lines"
            )
        before = word
        yield number, word, prob, phones
    if comments:
        warn(f"{path}: read as comments, not as words: {listed(comments)}", UserWarning)


def _in_another_case(name: str, names: Iterable[str]) -> str | None:
    """One of `names` that differs from `name` in case alone."""
    return next((other for other in names if other != name and other.casefold() == name.casefold()), None)


def _probability(text: str) -> float:
    """A probability in (0, 1], 0 where the text is none."""
    try:
        prob = float(text)
    except ValueError:
        return 0.0
    return prob if 0.0 < prob <= 1.0 else 0.0


def _numbered(
    entries: Iterable[tuple[int, str, float, Sequence[str]]],
    known: Sequence[str] | None,
    silence: str | None,
    path: str | os.PathLike[str] | None,
) -> tuple[tuple[str, ...], Sequence[str], tuple[tuple[Pronunciation, ...], ...]]:
    """Words, phones and pronunciations of a lexicon; words in the order of their first entries.

    Without `known` phones silence is first, the others go by name. Unknown phones and repetitions are refused.
    """
    numbers: dict[str, int] = (
        Numbers() if known is None else {name: number for number, name in enumerate(known)}
    )
    ways: dict[str, list[tuple[tuple[int, ...], float, int]]] = {}  # phones by `numbers`, probability, line

    def where(line: int) -> str:
        return "" if path is None else f"{path}:{line}: "

    for line, word, prob, names in entries:
        try:
            way = tuple(map(numbers.__getitem__, names)), prob, line
        except KeyError as error:
            lacking = error.args[0][:80]
            marked = [name for name in (f"{lacking}_{position}" for position in "BIES") if name in numbers]
            hint = f", which have {marked[0]!r}: expected the lexicon with positions" if marked else ""
            raise GraphError(
                f"{where(line)}word {word[:80]!r} uses the phone {lacking!r}, which is not among the "
                f"{counted(len(numbers), 'phone')}{hint}"
            ) from None
        others = ways.get(word)
        if others is None:
            ways[word] = [way]
        else:
            others.append(way)
    if twice := list(_repetitions(ways, list(numbers))):
        told = listed([f"{where(line)}{repeated}" for line, repeated in twice])
        count = f"{counted(len(twice), 'repetition')}: " if len(twice) > 1 else ""
        raise GraphError(f"{count}{told}; expected each pronunciation of a word once")
    other = None if silence is None or silence in numbers else _in_another_case(silence, numbers)
    if known is None and other is not None:
        raise GraphError(
            f"{'' if path is None else f'{path}: '}silence = {silence!r:.80} is not among the phones, which have "
            f"{other!r:.80}; expected silence={other!r:.80} (lang.silence of a configuration), or another name for one"
        )
    phones = known
    if phones is None:
        phones = [*([] if silence is None else [silence]), *sorted(numbers.keys() - {silence})]
    ids = _ids(phones)
    id_of = [ids[name] for name in numbers].__getitem__
    pronunciations = tuple(
        tuple([Pronunciation(tuple(map(id_of, spoken)), prob) for spoken, prob, _ in several])
        for several in ways.values()
    )
    return tuple(ways), phones, pronunciations


def _repetitions(
    ways: dict[str, list[tuple[tuple[int, ...], float, int]]], names: Sequence[str]
) -> Iterator[tuple[int, str]]:
    """Line and message of each pronunciation that its word has already, in the order of the lines."""
    found = []
    for word, several in ways.items():
        first = dict[tuple[int, ...], int]()
        for spoken, _, line in several if len(several) > 1 else ():
            if spoken in first:
                already = f" already on line {first[spoken]}" if line else " twice"
                phones = " ".join(names[phone] for phone in spoken)
                found.append((line, f"word {word!r:.80} has the pronunciation {phones!r:.80}{already}"))
            first.setdefault(spoken, line)
    yield from sorted(found, key=itemgetter(0))


def phone_difference(names: Sequence[str], others: Sequence[str], where: tuple[str, str]) -> str | None:
    """Where two lists of phones part: "phone 3 is 'EH' in the lexicon, 'IH' in the tree"; None where they are equal."""
    for number, (name, other) in enumerate(zip(names, others, strict=False), 1):
        if name != other:
            return f"phone {number} is {name!r:.80} in {where[0]}, {other!r:.80} in {where[1]}"
    number, shorter = min(len(names), len(others)), len(names) < len(others)
    if len(names) == len(others):
        return None
    longer, ends = (where[1], where[0]) if shorter else where
    first = [*names, *others[number:]][number]
    return f"phone {number + 1} is {first!r:.80} in {longer}, {ends} has {number}"


def read_phones(path: str | os.PathLike[str]) -> list[str]:
    """Phone names in id order from a phones.txt (name, id), without epsilon and disambiguation symbols (#0).

    Ids other than 1, 2, ... without gaps are a GraphError.
    """
    try:
        names = read_symbols(path)
    except DataError as reason:
        raise GraphError(str(reason)) from reason
    phones = [name for name in names if not name.startswith("#")]
    for number, (name, other) in enumerate(zip(phones, names, strict=False), 1):
        if name != other:
            raise GraphError(
                f"{path}: id {number} belongs to {other[:80]!r}; expected phones before such symbols"
            )
    return phones


def _head(path: str | os.PathLike[str], lines: Iterator[tuple[str, Any]]) -> dict[str, Any]:
    try:
        _, head = next(lines)
        sound = head["format"] == JSON_FORMAT and all(
            isinstance(head[key], kind) for key, kind in _HEAD.items()
        )
    except (StopIteration, DataError, LookupError, TypeError):
        sound = False
    if not (sound and 0 <= head["phones"] <= Path(path).stat().st_size):
        raise GraphError(
            f"{path}: not a lexicon of format {JSON_FORMAT!r}; if an older version wrote it, make the folder anew "
            "(fsachain lang)"
        )
    return dict(head)


def _saved_pronunciation(entry: Any, num_phones: int, where: str) -> tuple[str, Pronunciation]:
    try:
        word, prob, phones = entry
        word.encode("utf-8")  # no lone surrogates
        if any(type(phone) is not int for phone in phones):
            raise TypeError("phone ids are integers")
        pronunciation = Pronunciation(tuple(phones), float(prob))
    except (AttributeError, TypeError, ValueError) as error:
        raise GraphError(f"{where}: not a word, its probability and its phone ids") from error
    try:
        _check_pronunciation(word, *pronunciation, num_phones)
    except GraphError as error:
        raise GraphError(f"{where}: {error}") from error
    return word, pronunciation


def lm_phones(
    text: Iterable[Sequence[str]],
    lexicon: Lexicon,
    edge_silence: float = 0.8,
    between_silence: float = 0.2,
    seed: int = 0,
) -> list[list[int]]:
    """One phone-id sequence for each transcript, for `estimate_phone_lm`; reproducible.

    Args:
        text: transcripts, each a sequence of words.
        lexicon: each word is said in one of its ways, drawn by their probabilities (scaled to sum to one).
        edge_silence: probability of the silence phone at the start, and of one at the end.
        between_silence: probability of the silence phone between two words. Neither matters for a lexicon
            without silence.
        seed: of the random draws.

    Returns:
        As many lists as there are transcripts; an empty transcript gives an empty list.

    Raises:
        GraphError: a probability outside [0, 1], a string in the place of words, or a word that the lexicon refuses (the
            message has the transcript's index).
    """
    for argument, prob in (("edge_silence", edge_silence), ("between_silence", between_silence)):
        if not 0.0 <= as_number(argument, prob) <= 1.0:
            raise GraphError(f"{argument} = {prob}: expected a probability in [0, 1]")
    refuse_text("text", text, expected="a sequence of transcripts, each a sequence of words")
    rng = np.random.default_rng(seed)
    silence = [] if lexicon.silence_phone is None else [lexicon.silence_phone]
    sequences = []
    for index, transcript in enumerate(text):
        refuse_text(f"text[{index}]", transcript)
        words = lexicon.without_marks(transcript)
        phones: list[int] = []
        sequences.append(phones)
        if not words:
            continue
        places = rng.random(len(words) + 1)
        choices = rng.random(len(words))
        for position, word in enumerate(words):
            if places[position] < (between_silence if position else edge_silence):
                phones += silence
            pronunciations = lexicon.pronunciations_of(word, name=f"text[{index}]")
            cumulative = np.cumsum([pronunciation.prob for pronunciation in pronunciations])
            chosen = np.searchsorted(cumulative, choices[position] * cumulative[-1], side="right")
            phones += pronunciations[chosen].phones
        if places[-1] < edge_silence:
            phones += silence
    return sequences
