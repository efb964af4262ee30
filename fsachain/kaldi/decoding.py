"""Kaldi's decoding graphs and grammars for fsachain's models: HCLG over pdfs, G over the ids of a `Lexicon`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fsachain.errors import DataError
from fsachain.kaldi.symbols import BACK_OFF
from fsachain.kaldi.transitions import TransitionModel
from fsachain.openfst import Transducer


def pdf_graph(hclg: Transducer, model: TransitionModel) -> Transducer:
    """HCLG with pdf + 1 in place of the transition ids of `model`; costs, output labels and epsilons stay.

    Kaldi's decoders look each transition id up at each frame; here that is done once. `pdf_graph(...).to_openfst()` is the
    argument of `fsachain.decode.decoder.Decoder`.
    """
    table = model.transitions.pdf.astype(np.int64) + 1  # entry 0, epsilon, is -1 + 1
    bad = np.flatnonzero((hclg.ilabel < 0) | (hclg.ilabel >= len(table)))
    if bad.size:
        raise DataError(
            f"arc {bad[0]} has input label {hclg.ilabel[bad[0]]}; {model.name} has the transition ids 1 to {len(table) - 1}"
        )
    return replace(hclg, ilabel=table[hclg.ilabel].astype(np.int32))


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
