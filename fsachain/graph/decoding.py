"""The decoding graph: grammar, lexicon, context and topology as one transducer from pdfs to words.

Kaldi calls it HCLG, and gets it by composing lexicon and grammar and determinising the result, with
disambiguation symbols that keep homophones and back-off apart until the end. Here the determinised result is
written down directly: every state of the grammar becomes a prefix tree of the pronunciations of the words
that leave it. The word label sits on the last phone, so homophones share all phones but this one; back-off
arcs stay. Each arc of a tree carries its share of the log-sum of the words beneath it, so that the search can
prune by the grammar's scores early. Path weights are not changed by this.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.errors import GraphError, brief, check_finite, require
from fsachain.fsa import Fsa
from fsachain.graph.context import ContextTree
from fsachain.graph.expand import expand_arcs
from fsachain.graph.lexicon import Lexicon, Pronunciation
from fsachain.graph.numerator import check_phones
from fsachain.graph.open_vocabulary import WordIds, open_grammar
from fsachain.graph.transducer import Numbers, check_labels
from fsachain.opaque import opaque
from fsachain.openfst import Transducer, rows


class Weights(NamedTuple):
    """What a path's words cost beside their scores.

    Attributes:
        lm_weight: factor on the grammar's costs, at least 0.
        word_insertion_penalty: nats for each word that is printed.
        unknown_word_penalty: nats for each of them that is spelt, besides.
    """

    lm_weight: float = 1.0
    word_insertion_penalty: float = 0.0
    unknown_word_penalty: float = 0.0

    def __str__(self) -> str:
        spelt = f", of unknown words {self.unknown_word_penalty:g}" if self.unknown_word_penalty else ""
        return f"LM weight {self.lm_weight:g}, penalty {self.word_insertion_penalty:g}{spelt}"

    def check(self) -> Weights:
        check_finite("lm_weight", self.lm_weight, least=0.0)
        for name, value in zip(self._fields[1:], self[1:], strict=True):
            check_finite(name, value)
        return self

    def penalty(self, ids: npt.NDArray[np.integer], words: WordIds) -> npt.NDArray[np.float64]:
        """Both penalties, by output label."""
        return self.word_insertion_penalty * words.begins(ids) + self.unknown_word_penalty * words.unknown(
            ids
        )


@opaque
@dataclass(frozen=True, eq=False)
class DecodingGraph:
    """A decoding graph that knows which part of its costs is the grammar's: its lattices can be weighed anew.

    Attributes:
        arcs: input label pdf + 1 or epsilon, output label as the grammar's, all log-probabilities; trimmed, arcs sorted by
            source state and input label.
        language_cost: float64 [A], the part of each arc's cost that is the grammar's, at weight one. Shares that were moved
            towards a word's beginning are among it; along a whole path they cancel out.
        final_language_cost: float64 [S], the same of the ends; inf: not final.
        weights: those of `arcs`; words that print nothing bear no penalty.
        words: which output labels are words.
    """

    arcs: Transducer
    language_cost: npt.NDArray[np.float64]
    final_language_cost: npt.NDArray[np.float64]
    weights: Weights
    words: WordIds

    __repr__ = brief

    @classmethod
    def build(
        cls,
        lexicon: Lexicon,
        tree: ContextTree,
        grammar: Any,
        *,
        lm_weight: float = 1.0,
        word_insertion_penalty: float = 0.0,
        unknown_word_penalty: float = 0.0,
        spelling: Fsa | None = None,
    ) -> DecodingGraph:
        """Arguments and errors are those of `build_decoding_graph`.

        With `spelling`, a `spelling_model`, words that the grammar lacks are spelt, each at the cost `unknown_word_penalty`
        besides; the names of its output labels are `words_and_pieces(lexicon)`.
        """
        weights = Weights(lm_weight, word_insertion_penalty, unknown_word_penalty).check()
        check_phones(lexicon, tree)
        words, ids = Transducer.from_openfst(grammar), WordIds()
        expected = f"a word id of the lexicon, 1 to {len(lexicon.words)}, or 0 for epsilon"
        check_labels(words, len(lexicon.words), expected, "grammar: ")
        inside = words.num_states
        if spelling is not None:
            ids = WordIds.of(lexicon)
            words = Transducer.from_openfst(open_grammar(grammar, lexicon, spelling))
        phones, other, printed = _merged(_spoken(words, inside, lexicon, weights, ids))
        # The same graph twice: with all weights, and with those that are not the grammar's.
        whole, rest = (
            expand_arcs(one, tree, self_loop_scale=1.0, transition_scale=1.0).graph for one in (phones, other)
        )
        # OpenFst trims and sorts a copy whose output labels are the numbers of the arcs.
        numbered = replace(whole, olabel=np.arange(1, len(whole.src) + 1))
        kept = Transducer.from_openfst(numbered.to_openfst().connect().arcsort("ilabel"))
        arc = kept.olabel - 1
        state = np.full(kept.num_states, whole.start)
        state[kept.src], state[kept.dst] = whole.src[arc], whole.dst[arc]
        arcs = replace(kept, olabel=printed[whole.olabel[arc]])
        language = rest.log_prob[arc] - arcs.log_prob - weights.penalty(arcs.olabel, ids)
        is_final = arcs.final_log_prob > -math.inf
        at_end = np.where(is_final, rest.final_log_prob[state], 0.0) - arcs.final_log_prob
        scale = 1.0 / lm_weight if lm_weight else 0.0
        ends = np.where(is_final, scale * np.where(is_final, at_end, 0.0), math.inf)
        return cls(arcs, scale * language, ends, weights, ids)


def build_decoding_graph(
    lexicon: Lexicon,
    tree: ContextTree,
    grammar: Any,
    *,
    lm_weight: float = 1.0,
    word_insertion_penalty: float = 0.0,
) -> Any:
    """Build the graph that the decoder searches.

    The cost of a path is lm_weight x (grammar cost) + word_insertion_penalty x (number of words) +
    pronunciation and silence costs of the lexicon + the topology's costs, all transitions and self-loops with
    scale 1.

    Args:
        lexicon: pronunciations; optional silence at the ends and between words.
        tree: context and topology, over the same phones.
        grammar: pywrapfst FST; input labels are word ids, output labels what to print (word ids as a rule), 0
            is epsilon, as on back-off arcs.
        lm_weight: factor on the grammar's costs, >= 0; found on a development set.
        word_insertion_penalty: cost for each word that is printed; negative values favour more words.

    Returns:
        pywrapfst `VectorFst` (tropical): input label pdf + 1 or epsilon, output label as the grammar's.
        `DecodingGraph.build` keeps the grammar's costs apart, for `tune`, and spells words that the grammar lacks.

    Raises:
        GraphError: lexicon and tree disagree on the phones, a word id is not in the lexicon, or the grammar
            accepts nothing.
        ConfigError: lm_weight or word_insertion_penalty is not a legal number.
        MissingExtraError: pywrapfst is not installed.
    """
    weights = Weights(lm_weight, word_insertion_penalty)
    return DecodingGraph.build(lexicon, tree, grammar, **weights._asdict()).arcs.to_openfst()


def _merged(spoken: _Spoken) -> tuple[Transducer, Transducer, npt.NDArray[np.int32]]:
    """The graph of phones with states of the same future merged; the same with other costs only; what is printed.

    Weights count as labels, so none is pushed or quantised. Output labels of the two are numbers k; [k] of the third is the
    grammar's label. Ends are arcs of a label of their own meanwhile.
    """
    mapper = require("pywrapfst", extra="graph").EncodeMapper(
        "standard", encode_labels=True, encode_weights=True
    )
    pairs, label = np.unique(
        np.stack([spoken.arcs.olabel, spoken.other], axis=1), axis=0, return_inverse=True
    )
    fst = replace(spoken.arcs, olabel=label.ravel() + 1).to_openfst().connect()
    if fst.start() < 0:
        raise GraphError("grammar: no word sequence is accepted")
    fst.encode(mapper)
    fst.minimize(allow_nondet=True)
    fst.decode(mapper)
    printed, costs = np.concatenate([np.zeros((1, 2)), pairs]).T
    merged = Transducer.from_openfst(fst)
    ends, inner = merged.ilabel == spoken.end, merged.ilabel != spoken.end

    def phones(log_prob: npt.NDArray[np.float64]) -> Transducer:
        final = np.full(merged.num_states, -math.inf)
        final[merged.src[ends]] = log_prob[ends]
        src, dst, ilabel, olabel = (
            column[inner] for column in (merged.src, merged.dst, merged.ilabel, merged.olabel)
        )
        return Transducer(merged.num_states, merged.start, src, dst, ilabel, olabel, log_prob[inner], final)

    return phones(merged.log_prob), phones(costs[merged.olabel]), printed.astype(np.int32)


class _Arc(NamedTuple):
    """`other` is the part of `log_prob` that is neither the grammar's nor the penalty: pronunciation and silence."""

    dst: int
    ilabel: int
    olabel: int
    log_prob: float
    other: float = 0.0

    def after(self, log_prob: float) -> _Arc:
        return self._replace(log_prob=self.log_prob + log_prob, other=self.other + log_prob)


class _Spoken(NamedTuple):
    """A graph of phones whose only final state is reached by arcs of the input label `end`; `other` is by arc."""

    arcs: Transducer
    other: npt.NDArray[np.float64]
    end: int


class _PrefixTree:
    """Pronunciations of the words that leave one grammar state, common beginnings shared. Node 0 is the root.

    `numbers` are those of the nodes, by the node before and the phone between the two; `leaves` hold for each pronunciation
    the node before its last phone and the arc that spends it.
    """

    def __init__(self) -> None:
        self.numbers = Numbers((-1, 0))
        self.leaves: list[tuple[int, _Arc]] = []

    def add(self, phones: tuple[int, ...], olabel: int, dst: int, log_prob: float, other: float) -> None:
        node = 0
        for phone in phones[:-1]:
            node = self.numbers[node, phone]
        self.leaves.append((node, _Arc(dst, phones[-1], olabel, log_prob, other)))

    def masses(self) -> list[float]:
        """Log-sum of the leaves beneath each node; 0 for the root, so that it takes no share of its arcs."""
        mass = [-math.inf] * len(self.numbers)
        for node, leaf in self.leaves:
            mass[node] = _log_add(mass[node], leaf.log_prob)
        for node in range(len(mass) - 1, 0, -1):
            parent, _ = self.numbers.nodes[node]
            mass[parent] = _log_add(mass[parent], mass[node])
        mass[0] = 0.0
        return mass


def _log_add(a: float, b: float) -> float:
    """log(exp a + exp b); exactly b if a is -inf, so that a chain without branches carries exact zeros."""
    if a == -math.inf:
        return b
    return max(a, b) + math.log1p(math.exp(-abs(a - b)))


def _spoken(words: Transducer, inside: int, lexicon: Lexicon, weights: Weights, ids: WordIds) -> _Spoken:
    """Phones in, words out.

    State 2q is grammar state q before the choice of silence, 2q + 1 behind it; beyond these are the nodes of the
    prefix trees. Words lead to even states, silence and back-off to odd ones, so the choice is made once, at the
    start and at every word's end, and no two paths differ only in where an epsilon was taken. Grammar states from
    `inside` on lie within spelt words, where there is no silence: what enters them leads to odd states, the epsilon that
    ends a spelt word to an even one.
    """
    pieces = [(Pronunciation((phone,), 1.0),) for phone in range(1, len(lexicon.phones) + 1)]
    spellings = [
        [(phones, math.log(prob)) for phones, prob in pronunciations]
        for pronunciations in (*lexicon.pronunciations, *pieces, *pieces)
    ]
    # The words and the epsilon arcs that leave each grammar state.
    leaving: list[tuple[_PrefixTree, list[_Arc]]] = [(_PrefixTree(), []) for _ in range(words.num_states)]
    columns = (words.src, words.dst, words.ilabel, words.olabel, words.log_prob)
    for src, dst, ilabel, olabel, log_prob, penalty in rows(*columns, weights.penalty(words.olabel, ids)):
        if log_prob == -math.inf:
            continue
        tree, epsilons = leaving[src]
        scaled = weights.lm_weight * log_prob
        if ilabel == 0:
            ends_word = dst < inside <= src
            epsilons.append(_Arc(2 * dst + (not ends_word), 0, olabel, scaled))
            continue
        entered = 2 * dst + (dst >= inside)
        for phones, spelling_log_prob in spellings[ilabel - 1]:
            tree.add(phones, olabel, entered, scaled - penalty + spelling_log_prob, spelling_log_prob)
    silence, no_silence = lexicon.silence_log_probs()
    end, num_states = len(lexicon.phones) + 1, 2 * words.num_states
    arcs: list[tuple[int, _Arc]] = []
    for state, (tree, epsilons) in enumerate(leaving):
        offset = num_states - 1  # of the nodes behind the root
        num_states += len(tree.numbers) - 1
        mass = tree.masses()
        branches = [
            (parent, _Arc(node + offset, phone, 0, mass[node] - mass[parent]))
            for node, (parent, phone) in enumerate(tree.numbers.nodes)
            if node > 0
        ]
        branches += [(node, leaf._replace(log_prob=leaf.log_prob - mass[node])) for node, leaf in tree.leaves]
        arcs += [(node + offset, arc) for node, arc in branches if node > 0]
        first = [*(arc for node, arc in branches if node == 0), *epsilons]
        if words.final_log_prob[state] > -math.inf:
            first.append(_Arc(-1, end, 0, weights.lm_weight * float(words.final_log_prob[state])))
        for arc in first:
            arcs += [(2 * state, arc.after(no_silence)), (2 * state + 1, arc)]
        if lexicon.silence_phone is not None:
            arcs.append((2 * state, _Arc(2 * state + 1, lexicon.silence_phone, 0, silence, silence)))
    possible = [
        (src, num_states if arc.dst < 0 else arc.dst, *arc[1:])
        for src, arc in arcs
        if arc.log_prob > -math.inf
    ]
    final = np.append(np.full(num_states, -math.inf), 0.0)
    graph = Transducer.of_arcs(possible, final, 2 * words.start)
    return _Spoken(graph, np.array([row[-1] for row in possible], dtype=np.float64), end)
