"""The saved form of a lexicon: JSON values in lines, so that neither writer nor reader holds more than one.

The first line is a table: the format, what is true of the lexicon as a whole, and the numbers of lines that follow. Each
phone is a line with its name, in the order of the ids, and each pronunciation one of the form `["word", 1.0, [3, 1, 2]]`:
probability and phone ids. Those of a word come together, in the order of the words.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from fsachain.errors import DataError, GraphError
from fsachain.files import binary_lines, parse_json, replacing
from fsachain.graph.lexicon_entries import Entries
from fsachain.graph.pronunciations import MAX_PHONES
from fsachain.names import Names

if TYPE_CHECKING:
    from fsachain.graph.lexicon import Lexicon

FORMAT = "fsachain-lexicon-2"
LONGEST_LINE = 1 << 15  # bytes
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
    if len(line) > LONGEST_LINE or values > MOST_VALUES:
        raise GraphError(
            f"{where}: {len(line)} bytes with {values} values; a phone or pronunciation of a lexicon takes at most "
            f"{LONGEST_LINE} bytes and {MOST_VALUES} values"
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
