"""Pronunciation lexicon: words, phones, pronunciations with probabilities, optional silence.

Phone id = index in `phones` + 1, word id = index in `words` + 1; 0 is epsilon. Reads Kaldi's lexicon.txt
(word, phones) and lexiconp.txt (word, probability, phones). Pronunciation probabilities are used as they
stand: Kaldi's files scale the best pronunciation of each word to 1.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from fsachain.errors import GraphError
from fsachain.graph import lexicon_files, lexicon_json
from fsachain.graph.lexicon_entries import Entries, FoundPhones, GivenPhones, PhoneNumbers
from fsachain.graph.pronunciations import Pronunciation, Pronunciations
from fsachain.names import Names

__all__ = ["Lexicon", "Pronunciation"]


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
            phones = lexicon_files.read_phones(phones)
        words, names, pronunciations = lexicon_files.read_lexicon(path, format, _numbers(phones, silence))
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
        lexicon_json.write(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Lexicon:
        """Read a lexicon that `save` wrote.

        Raises:
            GraphError: the file is not such a lexicon.
        """
        arguments = lexicon_json.read(path)
        try:
            return cls(**arguments)
        except GraphError as error:
            raise GraphError(f"{path}: {error}") from error


def _names(strings: Sequence[str]) -> Names:
    return strings if isinstance(strings, Names) else Names(strings)


def _numbers(phones: Iterable[str] | None, silence: str | None) -> PhoneNumbers:
    return FoundPhones(silence) if phones is None else GivenPhones(phones)
