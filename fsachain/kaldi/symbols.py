"""Kaldi's symbol tables: words.txt and phones.txt, lines of a name and its id."""

from __future__ import annotations

import os

from fsachain.errors import DataError
from fsachain.kaldi.stream import MAX_DIGITS, open_file

BACK_OFF = "#0"  # label of back-off arcs in a grammar


def read_symbols(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Names in id order, from id 1 on, disambiguation symbols included; id 0 (epsilon) is left out.

    Raises:
        DataError: a malformed line, an id or name that occurs twice, or ids with gaps; names file and line.
    """
    cursor = open_file(path)
    names: dict[int, str] = {}
    number = 0
    while cursor.left:
        number += 1
        fields = cursor.line().split()
        if not fields:
            continue
        if len(fields) != 2 or not (fields[1].isdecimal() and len(fields[1]) <= MAX_DIGITS):
            raise DataError(f"{path}:{number}: {' '.join(fields)[:80]!r}, expected a name and its id")
        symbol = int(fields[1])
        if symbol in names:
            raise DataError(f"{path}:{number}: id {symbol} belongs to {names[symbol]!r} and {fields[0]!r}")
        names[symbol] = fields[0]
    names.pop(0, None)
    if sorted(names) != list(range(1, len(names) + 1)):
        raise DataError(
            f"{path}: {len(names)} ids from {min(names)} to {max(names)}: expected 1, 2, ... without gaps"
        )
    if len(set(names.values())) != len(names):
        raise DataError(f"{path}: a name occurs twice")
    return tuple(names[symbol] for symbol in sorted(names))
