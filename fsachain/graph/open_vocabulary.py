"""Words that a grammar lacks, spelt by the phones (or characters) of the lexicon.

A spelling is a phone n-gram of the lexicon's own pronunciations, each word once. In the grammar it hangs on the state where
backing off ends, so that a word that nobody knows may stand anywhere, at the price of what backing off to the empty history
costs and of a penalty; from its end the grammar goes on as from there. Its phones are pieces with ids of their own, behind
the V words of the lexicon: of P phones the p-th has the id V + p where it begins a word, and V + P + p where it goes on
with one.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.errors import GraphError, refuse_text
from fsachain.fsa import Fsa
from fsachain.graph.grammar import estimate_arpa, ngram_acceptor
from fsachain.graph.lexicon import Lexicon
from fsachain.graph.spelling import Spelt
from fsachain.openfst import Transducer, rows

Bools = npt.NDArray[np.bool_]


class WordIds(NamedTuple):
    """Which ids are words: up to `known` those of the lexicon, up to `begin` pieces that begin a word, others go on."""

    known: int = sys.maxsize
    begin: int = sys.maxsize

    @classmethod
    def of(cls, lexicon: Lexicon) -> WordIds:
        return cls(len(lexicon.words), len(lexicon.words) + len(lexicon.phones))

    def begins(self, ids: npt.NDArray[np.integer]) -> Bools:
        """Where a word begins; 0 is none."""
        return (ids > 0) & (ids <= self.begin)

    def unknown(self, ids: npt.NDArray[np.integer]) -> Bools:
        """Where a word begins that is spelt."""
        return (ids > self.known) & (ids <= self.begin)


@dataclass(frozen=True)
class Piece:
    """A phone of a spelt word, as the name of an id; its text is `a+` where it begins a word, `+a` where it goes on."""

    phone: int
    begins: bool
    lexicon: Lexicon

    def __str__(self) -> str:
        name = self.lexicon.phones[self.phone - 1]
        return f"{name}+" if self.begins else f"+{name}"


@lru_cache(maxsize=4)
def words_and_pieces(lexicon: Lexicon) -> tuple[str | Piece, ...]:
    """Names by id - 1: words, pieces that begin one, pieces that go on."""
    phones = range(1, len(lexicon.phones) + 1)
    return (*lexicon.words, *(Piece(phone, begins, lexicon) for begins in (True, False) for phone in phones))


def spelt_out(names: Iterable[str | Piece]) -> tuple[str, ...]:
    """The words, pieces joined: letters as they are, phones as `<HH-AH-L-OW>`."""
    found: list[list[str | Piece]] = []
    for name in names:
        if isinstance(name, str) or name.begins:
            found.append([])
        found[-1].append(name)
    return tuple(_joined(*parts) for parts in found)


def _joined(first: str | Piece, *others: Any) -> str:
    if isinstance(first, str):
        return first
    lexicon, phones = first.lexicon, (first.phone, *(piece.phone for piece in others))
    names = [lexicon.phones[phone - 1] for phone in phones]
    return Spelt("".join(names) if lexicon.spells else f"<{'-'.join(names)}>", phones)


def word_ids(words: Iterable[str], lexicon: Lexicon) -> list[int]:
    """Ids of words, of spelt ones those of their pieces; errors as `Lexicon.word_id`."""
    refuse_text("words", words)
    return list(chain.from_iterable(_ids(word, lexicon) for word in words))


def _ids(word: str, lexicon: Lexicon) -> Iterator[int]:
    if not isinstance(word, Spelt):
        yield lexicon.word_id(word)
        return
    known, begin = WordIds.of(lexicon)
    yield known + word.phones[0]
    yield from (begin + phone for phone in word.phones[1:])


def spelling_model(lexicon: Lexicon, order: int = 4) -> Fsa:
    """How unknown words are spelt: a smoothed phone n-gram of the lexicon's pronunciations, each once, silence left out.

    Deterministic acceptor, label = phone id - 1; (number of histories) x (number of phones) arcs.

    Raises:
        ConfigError: order below 1.
        GraphError: no word has a pronunciation beyond silence.
        MissingExtraError: kaldilm is not installed.
    """
    silence = lexicon.silence_phone
    said = [way.phones for ways in lexicon.pronunciations for way in ways if set(way.phones) != {silence}]
    # For ARPA, which has words of its own.
    names = [f"p{phone}" for phone in range(1, len(lexicon.phones) + 1)]
    if not said:
        raise GraphError("lexicon: no word has a pronunciation beyond silence, nothing to spell with")
    allowed = [name for phone, name in enumerate(names, 1) if phone != silence]
    with tempfile.TemporaryDirectory(prefix="fsachain-") as folder:
        path = Path(folder, "spelling.arpa")
        sentences = ([names[phone - 1] for phone in phones if phone != silence] for phones in said)
        path.write_text(estimate_arpa(sentences, order, vocabulary=allowed), encoding="utf-8")
        return ngram_acceptor(path, names)


def open_grammar(grammar: Any, lexicon: Lexicon, spelling: Fsa) -> Any:
    """The grammar with unknown words, an FST over word ids and pieces; their penalty is not part of it.

    Args:
        grammar: pywrapfst FST over word ids. Unknown words stand where backing off from its start ends: in an n-gram the
            empty history, in a loop of words its state. In others, at the start alone.
        lexicon: gives the ids.
        spelling: acceptor over phones, label = phone id - 1; see `spelling_model`. No word has no phones.

    Returns:
        pywrapfst `VectorFst`; states behind those of `grammar` lie within spelt words.
    """
    words = Transducer.from_openfst(grammar)
    first, (known, begin), entry = words.num_states, WordIds.of(lexicon), spelling.start
    leaving, empty, seen = words.leaving(None), words.start, set[int]()
    while empty not in seen:
        seen.add(empty)
        empty = next((dst for dst, label, *_ in leaving[empty] if not label), empty)
    arcs = list(rows(words.src, words.dst, words.ilabel, words.olabel, words.log_prob))
    arcs.append((empty, first + entry, 0, 0, 0.0))
    for src, dst, phone, log_prob in rows(spelling.src, spelling.dst, spelling.pdf, spelling.log_prob):
        piece = (known if src == entry else begin) + phone + 1
        arcs.append((first + src, first + dst, piece, piece, log_prob))
    ends = enumerate(spelling.final_log_prob.tolist())
    arcs += [(first + src, empty, 0, 0, end) for src, end in ends if end > -math.inf and src != entry]
    final = np.append(words.final_log_prob, np.full(spelling.num_states, -math.inf))
    return Transducer.of_arcs(arcs, final, words.start).to_openfst()
