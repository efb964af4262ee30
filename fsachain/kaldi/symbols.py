"""Kaldi's symbol tables: words.txt and phones.txt, lines of a name and its id."""

from __future__ import annotations

import os
from array import array
from itertools import pairwise

import numpy as np

from fsachain.errors import DataError
from fsachain.kaldi.stream import MAX_DIGITS, open_file

BACK_OFF = "#0"  # label of back-off arcs in a grammar


def read_symbols(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Names in id order, from id 1 on, disambiguation symbols included; id 0 (epsilon) is left out.

    Raises:
        DataError: a malformed line, an id or name that occurs twice, or ids with gaps; names file and line.
    """
    cursor = open_file(path)
    names: list[str] = []
    ids = array("q")
    number = 0
    while cursor.left:
        number += 1
        fields = cursor.line().split()
        if not fields:
            continue
        if len(fields) != 2 or not (fields[1].isdecimal() and len(fields[1]) <= MAX_DIGITS):
            raise DataError(f"{path}:{number}: {' '.join(fields)[:80]!r}, expected a name and its id")
        names.append(fields[0])
        ids.append(int(fields[1]))
    order = np.argsort(np.frombuffer(ids, dtype=np.int64), kind="stable").tolist()
    for first, second in pairwise(order):
        if ids[first] == ids[second]:
            raise DataError(f"{path}: id {ids[first]} belongs to {names[first]!r} and {names[second]!r}")
    if order and not ids[order[0]]:
        del order[0]
    if order and (ids[order[0]], ids[order[-1]]) != (1, len(order)):
        raise DataError(
            f"{path}: {len(order)} ids from {ids[order[0]]} to {ids[order[-1]]}: expected 1, 2, ... without gaps"
        )
    found = tuple(names[place] for place in order)
    if any(first == second for first, second in pairwise(sorted(found))):
        raise DataError(f"{path}: a name occurs twice")
    return found
