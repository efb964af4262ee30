"""Kaldi's text files around a lexicon: lexicon.txt, lexiconp.txt and phones.txt."""

from __future__ import annotations

import os
from pathlib import Path

from fsachain.errors import GraphError
from fsachain.kaldi.stream import MAX_DIGITS

Entry = tuple[str, float, list[str]]
FORMATS = ("auto", "lexicon", "lexiconp")
EPSILON_NAMES = ("<eps>", "<epsilon>")


def read_lines(path: str | os.PathLike[str]) -> list[tuple[int, list[str]]]:
    """(line number, fields) of each line that is not blank.

    Raises:
        GraphError: the file cannot be read or is not UTF-8.
    """
    try:
        with Path(path).open(encoding="utf-8") as file:
            return [(number, line.split()) for number, line in enumerate(file, 1) if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise GraphError(f"{path}: cannot be read as UTF-8 text ({error})") from error


def read_entries(path: str | os.PathLike[str], format: str = "auto") -> list[Entry]:
    """(word, probability, phone names) of each line of a lexicon.

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
    first_line: dict[tuple[str, ...], int] = {}
    for number, fields in read_lines(path):
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
        key = (word, *phones)
        if key in first_line:
            raise GraphError(
                f"{where}: word {word!r} has this pronunciation already on line {first_line[key]}"
            )
        first_line[key] = number
        entries.append((word, prob, phones))
    if not entries:
        raise GraphError(f"{path}: no entries; expected lines of a word and its phones")
    return entries


def read_phones(path: str | os.PathLike[str]) -> list[str]:
    """Phone names in id order from a phones.txt (name, id), without epsilon and disambiguation symbols (#0).

    Raises:
        GraphError: a malformed line, or ids that are not 1, 2, ... without gaps.
    """
    names: dict[int, str] = {}
    for number, fields in read_lines(path):
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
