"""Kaldi's symbol tables: words.txt and phones.txt, lines of a name and its id."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from fsachain.errors import DataError
from fsachain.stream import open_file

BACK_OFF = "#0"  # label of back-off arcs in a grammar
_MOST_DIGITS = 9  # of an id, which Kaldi keeps in 32 bits


def read_symbols(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Names in id order, from id 1 on, disambiguation symbols included; id 0 (epsilon) is left out.

    Ids must have no gaps; ids and names occur once.
    """
    cursor = open_file(path)
    names, ids = list[str](), list[int]()
    epsilon: str | None = None
    number = 0
    while cursor.left:
        number += 1
        fields = cursor.line().split()
        if not fields:
            continue
        name, label = symbol_and_id(fields, f"{path}:{number}", "a name")
        if label:
            names.append(name)
            ids.append(label)
        elif epsilon is not None:
            raise DataError(f"{path}:{number}: id 0 belongs to {epsilon[:80]!r} and {name[:80]!r}")
        else:
            epsilon = name
    found = in_id_order(names, ids, path)
    if twice := [name for name, count in Counter(found).items() if count > 1]:
        raise DataError(f"{path}: a name occurs twice, {twice[0][:80]!r}")
    return found


def symbol_and_id(fields: Sequence[str], where: str, what: str) -> tuple[str, int]:
    """Name and id of a line; the message of a malformed one begins with `where` and says that `what` was expected."""
    if len(fields) != 2 or not (fields[1].isdecimal() and len(fields[1]) <= _MOST_DIGITS):
        came = " ".join(fields[:3])[:80]
        raise DataError(f"{where}: {came!r}, expected {what} and its id of at most {_MOST_DIGITS} digits")
    return fields[0], int(fields[1])


def in_id_order(names: Sequence[str], ids: Sequence[int], path: str | os.PathLike[str]) -> tuple[str, ...]:
    """The names by their ids, which must be 1, 2, ... in any order."""
    by_id: dict[int, str] = {}
    for label, name in zip(ids, names, strict=True):
        if not 0 < label <= len(ids):
            came = f"{len(ids)} ids from {min(ids)} to {max(ids)}"
            raise DataError(f"{path}: {came}: expected 1, 2, ... without gaps")
        if label in by_id:
            raise DataError(f"{path}: id {label} belongs to {by_id[label][:80]!r} and {name[:80]!r}")
        by_id[label] = name
    return tuple(by_id[label] for label in range(1, len(ids) + 1))
