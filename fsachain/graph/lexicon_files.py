"""Kaldi's text files around a lexicon: lexicon.txt, lexiconp.txt and phones.txt."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NoReturn

from fsachain.errors import DataError, GraphError
from fsachain.files import text_lines
from fsachain.graph.lexicon_entries import Entries, PhoneNumbers
from fsachain.graph.pronunciations import Pronunciations
from fsachain.kaldi.symbols import in_id_order, symbol_and_id
from fsachain.names import Names

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
