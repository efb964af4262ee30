"""Kaldi's symbol tables, words.txt and phones.txt: lines of a name and its id; and grammars over the ids of a `Lexicon`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fsachain.errors import DataError
from fsachain.openfst import Transducer
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


def grammar_over(grammar: Transducer, symbols: Sequence[str], words: Sequence[str]) -> Transducer:
    """G.fst with the word ids of a lexicon in place of those of words.txt, and epsilon for `#0`.

    `symbols` is `read_symbols("words.txt")`, `words` is `lexicon.words`; a word that the lexicon lacks is a DataError.
    `grammar_over(...).to_openfst()` is the argument `grammar` of `build_decoding_graph`.
    """
    ids = {word: number for number, word in enumerate(words, 1)}
    used = np.union1d(grammar.ilabel, grammar.olabel)
    if used.size and (used[0] < 0 or used[-1] > len(symbols)):
        raise DataError(
            f"the grammar has labels {used[0]} to {used[-1]}; words.txt has ids 1 to {len(symbols)}"
        )
    table = np.zeros(len(symbols) + 1, dtype=np.int32)
    for label in used[used > 0].tolist():
        name = symbols[label - 1]
        if name in ids:
            table[label] = ids[name]
        elif name != BACK_OFF:
            raise DataError(
                f"the grammar has the word {name!r}, which is not among the {len(ids)} words of the lexicon"
            )
    return replace(grammar, ilabel=table[grammar.ilabel], olabel=table[grammar.olabel])
