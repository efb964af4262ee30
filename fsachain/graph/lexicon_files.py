"""Kaldi's text files around a lexicon: lexicon.txt, lexiconp.txt and phones.txt."""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fsachain.errors import GraphError
from fsachain.files import text_lines
from fsachain.kaldi.stream import MAX_DIGITS

Entry = tuple[str, float, tuple[str, ...]]
FORMATS = ("auto", "lexicon", "lexiconp")
EPSILON_NAMES = ("<eps>", "<epsilon>")


def read_entries(path: str | os.PathLike[str], format: str = "auto") -> list[Entry]:
    """(word, probability, phone names) of each line of a lexicon; the same name is the same object.

    Args:
        path: the file.
        format: one of `FORMATS`; "auto" takes "lexiconp" for a file whose name has "lexiconp" in it.

    Raises:
        GraphError: names file and line of what is not an entry; a pronunciation that occurs twice; an empty
            file.
    """
    if format not in FORMATS:
        raise GraphError(f"format = {format!r}: expected one of {', '.join(FORMATS)}")
    if format == "auto":
        format = "lexiconp" if "lexiconp" in Path(path).name else "lexicon"
    entries: list[Entry] = []
    names: dict[str, str] = {}
    numbers, hashes = array("L"), array("q")
    for number, fields in text_lines(path, GraphError):
        where = f"{path}:{number}"
        word, prob, phones = fields[0], 1.0, fields[1:]
        if format == "lexiconp":
            prob, phones = _probability(fields, where), fields[2:]
        if not phones:
            raise GraphError(f"{where}: word {word!r} has no phones")
        if format == "lexicon" and len(phones) > 1 and _looks_like_probability(phones[0]):
            raise GraphError(
                f"{where}: phone {phones[0]!r} looks like a probability; read it with format='lexiconp' "
                "(or name it lexiconp.txt)"
            )
        entry = (word, prob, tuple(names.setdefault(phone, phone) for phone in phones))
        entries.append(entry)
        numbers.append(number)
        hashes.append(hash((word, entry[2])))
    _refuse_repeats(path, entries, numbers, hashes)
    if not entries:
        raise GraphError(f"{path}: no entries; expected lines of a word and its phones")
    return entries


def _refuse_repeats(
    path: str | os.PathLike[str], entries: Sequence[Entry], numbers: Sequence[int], hashes: array[int]
) -> None:
    """Entries are compared where their hashes are equal: a set of them all would be larger than the file."""
    values = np.frombuffer(hashes, dtype=np.int64)
    order = np.argsort(values, kind="stable")
    first_line: dict[tuple[str, tuple[str, ...]], int] = {}
    repeated = np.flatnonzero(np.diff(values[order]) == 0)
    for place in sorted({*order[repeated].tolist(), *order[repeated + 1].tolist()}):
        word, _, phones = entries[place]
        first = first_line.setdefault((word, phones), numbers[place])
        if first != numbers[place]:
            raise GraphError(
                f"{path}:{numbers[place]}: word {word!r} has this pronunciation already on line {first}"
            )


def read_phones(path: str | os.PathLike[str]) -> list[str]:
    """Phone names in id order from a phones.txt (name, id), without epsilon and disambiguation symbols (#0).

    Raises:
        GraphError: a malformed line, or ids that are not 1, 2, ... without gaps.
    """
    names: dict[int, str] = {}
    for number, fields in text_lines(path, GraphError):
        if len(fields) != 2 or not (fields[1].isdecimal() and len(fields[1]) <= MAX_DIGITS):
            raise GraphError(f"{path}:{number}: {' '.join(fields)!r}, expected a phone and its id")
        name, phone = fields[0], int(fields[1])
        if name in EPSILON_NAMES or name.startswith("#"):
            continue
        if phone in names:
            raise GraphError(f"{path}:{number}: id {phone} belongs to {names[phone]!r} and {name!r}")
        names[phone] = name
    if sorted(names) != list(range(1, len(names) + 1)):
        raise GraphError(f"{path}: phone ids {sorted(names)[:10]}...: expected 1, 2, ... without gaps")
    return [names[phone] for phone in sorted(names)]


def _probability(fields: list[str], where: str) -> float:
    try:
        prob = float(fields[1])
    except (IndexError, ValueError):
        prob = -1.0
    if not 0.0 < prob <= 1.0:
        given = fields[1] if len(fields) > 1 else "nothing"
        raise GraphError(
            f"{where}: word {fields[0]!r} is followed by {given!r}, expected a probability in (0, 1]"
        )
    return prob


def _looks_like_probability(text: str) -> bool:
    try:
        return "." in text and 0.0 < float(text) <= 1.0
    except ValueError:
        return False
