"""Pronunciation lexicon: words, phones, pronunciations with probabilities, optional silence.

Phone id = index in `phones` + 1, word id = index in `words` + 1; 0 is epsilon. Reads Kaldi's lexicon.txt
(word, phones) and lexiconp.txt (word, probability, phones). Pronunciation probabilities are used as they
stand: Kaldi's files scale the best pronunciation of each word to 1.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fsachain.errors import GraphError
from fsachain.files import parse_json, write_text

JSON_FORMAT = "fsachain-lexicon-1"


class Pronunciation(NamedTuple):
    """One way to say a word: phone ids and a probability in (0, 1]."""

    phones: tuple[int, ...]
    prob: float


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

    words: tuple[str, ...]
    phones: tuple[str, ...]
    pronunciations: tuple[tuple[Pronunciation, ...], ...]
    silence: str | None = "SIL"
    silence_prob: float = 0.5
    oov: str | None = None
    _word_ids: dict[str, int] = field(init=False, repr=False)
    _phone_ids: dict[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_word_ids", {word: index + 1 for index, word in enumerate(self.words)})
        object.__setattr__(self, "_phone_ids", {phone: index + 1 for index, phone in enumerate(self.phones)})
        if (
            not self.words
            or len(self._word_ids) != len(self.words)
            or len(self.pronunciations) != len(self.words)
        ):
            raise GraphError(
                f"lexicon of {len(self.words)} words ({len(self._word_ids)} distinct) and "
                f"{len(self.pronunciations)} lists of "
                "pronunciations: expected at least one word, all distinct, one list for each"
            )
        if len(self._phone_ids) != len(self.phones):
            raise GraphError(
                f"lexicon has {len(self.phones)} phones, {len(self._phone_ids)} of them distinct"
            )
        if self.silence is not None and self.silence not in self._phone_ids:
            raise GraphError(
                f"silence = {self.silence!r} is not a phone of the lexicon; silence=None: there is none"
            )
        if self.silence is not None and not 0.0 < self.silence_prob < 1.0:
            raise GraphError(
                f"silence_prob = {self.silence_prob}: expected one in (0, 1); silence=None: no silence"
            )
        if self.oov is not None and self.oov not in self._word_ids:
            raise GraphError(f"oov = {self.oov!r} is not a word of the lexicon")
        for word, pronunciations in zip(self.words, self.pronunciations, strict=True):
            self._check(word, pronunciations)

    def _check(self, word: str, pronunciations: Sequence[Pronunciation]) -> None:
        if not pronunciations:
            raise GraphError(f"word {word!r} has no pronunciation")
        for phones, prob in pronunciations:
            if not phones or not all(1 <= phone <= len(self.phones) for phone in phones):
                raise GraphError(
                    f"word {word!r} has phone ids {list(phones)}: expected some in [1, {len(self.phones)}]"
                )
            if not 0.0 < prob <= 1.0:
                raise GraphError(f"word {word!r} has a pronunciation of probability {prob}: expected (0, 1]")

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
        from fsachain.graph import lexicon_files

        entries = lexicon_files.read_entries(path, format)
        if isinstance(phones, str | os.PathLike):
            phones = lexicon_files.read_phones(phones)
        elif phones is None:
            phones = _phones_of(entries, silence)
        entries.reverse()
        each = (entries.pop() for _ in range(len(entries)))  # given back one by one
        try:
            return cls.from_entries(each, silence=silence, silence_prob=silence_prob, oov=oov, phones=phones)
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
        if phones is None:
            entries = list(entries)
            phones = _phones_of(entries, silence)
        ids = {phone: index + 1 for index, phone in enumerate(phones)}
        by_word: dict[str, list[Pronunciation]] = {}
        for word, prob, names in entries:
            unknown = [name for name in names if name not in ids]
            if unknown:
                raise GraphError(
                    f"word {word!r} uses the phone {unknown[0]!r}, which is not among the {len(ids)} phones"
                )
            known = by_word.setdefault(word, [])
            known.append(Pronunciation(tuple(ids[name] for name in names), prob))
        for word, known in by_word.items():
            if len({one.phones for one in known}) < len(known):
                counts = Counter(one.phones for one in known)
                twice = " ".join(phones[phone - 1] for phone in counts.most_common(1)[0][0])
                raise GraphError(f"word {word!r} has the pronunciation {twice!r} twice")
        words, pronunciations = tuple(by_word), tuple(map(tuple, by_word.values()))
        del (
            by_word,
            known,
        )  # before the lexicon numbers its words: each is as large as a dictionary of all words
        return cls(words, tuple(phones), pronunciations, silence, silence_prob, oov)

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
        entries = []
        for word, pronunciations in zip(self.words, self.pronunciations, strict=True):
            for ids, prob in pronunciations:
                names = [self.phones[phone - 1] for phone in ids]
                marks = ["S"] if len(ids) == 1 else ["B", *"I" * (len(ids) - 2), "E"]
                marked = [n if n in plain else f"{n}_{mark}" for n, mark in zip(names, marks, strict=True)]
                entries.append((word, prob, marked))
        return Lexicon.from_entries(
            entries, silence=self.silence, silence_prob=self.silence_prob, oov=self.oov, phones=phones
        )

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
            word: the word.
            name: utterance that the word comes from, for the error message.

        Raises:
            GraphError: the word is not in the lexicon and `oov` is None.
        """
        index = self._word_ids.get(word)
        if index is None:
            if self.oov is None:
                where = "" if name is None else f"utterance {name!r}: "
                raise GraphError(
                    f"{where}word {word!r} is not among the {len(self.words)} words of the lexicon; "
                    "add it, or choose a word that stands for unknown ones (oov=...)"
                )
            index = self._word_ids[self.oov]
        return index

    def phone_id(self, phone: str) -> int:
        """Id of the phone called `phone`."""
        if phone not in self._phone_ids:
            raise GraphError(f"phone {phone!r} is not among the {len(self.phones)} phones of the lexicon")
        return self._phone_ids[phone]

    def pronunciations_of(self, word: str, *, name: str | None = None) -> tuple[Pronunciation, ...]:
        """The pronunciations of `word`; arguments and errors as `word_id`."""
        return self.pronunciations[self.word_id(word, name=name) - 1]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the lexicon as JSON."""
        record = {
            "format": JSON_FORMAT,
            "phones": self.phones,
            "silence": self.silence,
            "silence_prob": self.silence_prob,
            "oov": self.oov,
            "words": [[word, p] for word, p in zip(self.words, self.pronunciations, strict=True)],
        }
        write_text(path, json.dumps(record, ensure_ascii=False))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Lexicon:
        """Read a lexicon that `save` wrote.

        Raises:
            GraphError: the file is not such a lexicon.
        """
        try:
            record = parse_json(Path(path).read_bytes(), str(path))
            if record["format"] != JSON_FORMAT:
                raise GraphError(f"{path}: format {record['format']!r}, expected {JSON_FORMAT!r}")
            words = tuple(word for word, _ in record["words"])
            lists = tuple(_pronunciations(record["words"]))
            phones = tuple(record["phones"])
            return cls(words, phones, lists, record["silence"], record["silence_prob"], record["oov"])
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, GraphError):
                raise
            raise GraphError(f"{path}: not a lexicon written by fsachain ({error!r})") from error


def _phones_of(entries: Iterable[tuple[str, float, Sequence[str]]], silence: str | None) -> list[str]:
    """Silence, then the phones of the entries by name."""
    spoken = {phone for _, _, names in entries for phone in names}
    return ([] if silence is None else [silence]) + sorted(spoken - {silence})


def _pronunciations(entries: list[Any]) -> Iterator[tuple[Pronunciation, ...]]:
    """Those of each word of a JSON file, whose lists are given back one by one: they are larger than the lexicon."""
    for number, (_, ways) in enumerate(entries):
        entries[number] = None
        yield tuple(Pronunciation(tuple(ids), prob) for ids, prob in ways)
