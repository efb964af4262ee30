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
    names: dict[int, str] = {}
    number = 0
    while cursor.left:
        number += 1
        fields = cursor.line().split()
        if not fields:
            continue
        if len(fields) != 2 or not (fields[1].isdecimal() and len(fields[1]) <= _MOST_DIGITS):
            came = " ".join(fields[:3])[:80]
            raise DataError(
                f"{path}:{number}: {came!r}, expected a name and its id of at most {_MOST_DIGITS} digits"
            )
        name, label = fields[0], int(fields[1])
        if label in names:
            raise DataError(f"{path}:{number}: id {label} belongs to {names[label][:80]!r} and {name[:80]!r}")
        names[label] = name
    names.pop(0, None)
    if names and max(names) > len(names):
        came = f"{len(names)} ids from {min(names)} to {max(names)}"
        raise DataError(f"{path}: {came}: expected 1, 2, ... without gaps")
    if twice := [name for name, count in Counter(names.values()).items() if count > 1]:
        raise DataError(f"{path}: a name occurs twice, {twice[0][:80]!r}")
    return tuple(names[label] for label in range(1, len(names) + 1))


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
