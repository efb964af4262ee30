"""From words to phones, for any graph of words: pronunciations, optional silence, and parts given as phones.

`fsachain.graph.numerator.transcript_acceptor` writes the same down for one sequence of words, faster. Here words may
branch, meet and repeat: several transcripts, alternatives, lattices of words, word n-grams.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fsachain.errors import GraphError
from fsachain.fsa import Fsa, input_fsa
from fsachain.graph.lexicon import Lexicon
from fsachain.graph.transducer import remove_epsilons
from fsachain.openfst import Transducer

NO_TAG = -1


def spell(words: Transducer, lexicon: Lexicon, parts: Sequence[Fsa] = ()) -> tuple[Transducer, list[int]]:
    """All phone sequences of a graph of words, epsilon-free.

    Silence is optional at the start, at the end and between any two items; an arc with label 0 is no item.

    Args:
        words: input labels are word ids of the lexicon, 0, or len(lexicon.words) + 1 + k for parts[k]. The arcs of label 0
            form no cycle. Output labels are ignored.
        lexicon: pronunciations, and silence with its probability.
        parts: acceptors over phones (label = phone id - 1), such as a loop of phones or a phone language model.

    Returns:
        The acceptor over phone ids, start state 0, and for each of its arcs the arc of `words` it belongs to (-1: silence).
        A path weighs as the path of words, its pronunciations, its parts and its choices of silence do together.

    Raises:
        GraphError: a label that stands for nothing, a part with a phone that the lexicon lacks, or nothing is accepted.
    """
    _check(words, lexicon, parts)
    graph, tags = remove_epsilons(*_Speller(words, lexicon, parts).run())
    if not (graph.final_log_prob > -math.inf).any():
        raise GraphError("the graph of words accepts nothing")
    return graph, tags


def phone_model_of_words(words: Fsa, lexicon: Lexicon) -> Fsa:
    """A word language model as one over phones, for `build_denominator`.

    Args:
        words: label = word id - 1, such as `estimate_phone_lm` makes of sequences of word ids, or `ngram_acceptor`.
        lexicon: pronunciations and silence. For a denominator let the probabilities of each word's pronunciations sum to
            one; `lexiconp.txt` scales the best to one instead.

    Returns:
        Acceptor over phones, label = phone id - 1.
    """
    labels = words.pdf + 1
    graph, _ = spell(
        Transducer(
            words.num_states,
            words.start,
            words.src,
            words.dst,
            labels,
            labels,
            words.log_prob,
            words.final_log_prob,
        ),
        lexicon,
    )
    return input_fsa(graph)


def _check(words: Transducer, lexicon: Lexicon, parts: Sequence[Fsa]) -> None:
    highest = len(lexicon.words) + len(parts)
    bad = np.flatnonzero((words.ilabel < 0) | (words.ilabel > highest))
    if bad.size:
        arc = int(bad[0])
        raise GraphError(
            f"words: arc {arc} ({words.src[arc]} -> {words.dst[arc]}) has label {words.ilabel[arc]}; expected 0, a word id "
            f"up to {len(lexicon.words)}, or one of {len(parts)} parts behind those"
        )
    for number, part in enumerate(parts):
        if part.num_arcs and part.pdf.max() >= len(lexicon.phones):
            raise GraphError(
                f"parts[{number}] has phone {part.pdf.max() + 1}; the lexicon has {len(lexicon.phones)}"
            )


class _Speller:
    """State 2q is state q of the words before the choice of silence, 2q + 1 behind it; then the insides of items."""

    def __init__(self, words: Transducer, lexicon: Lexicon, parts: Sequence[Fsa]) -> None:
        self.words, self.lexicon, self.parts = words, lexicon, parts
        self.num_states = 2 * words.num_states
        self.arcs: list[tuple[int, int, int, float, int]] = []  # src, dst, phone, log_prob, tag

    def run(self) -> tuple[Transducer, list[int]]:
        silence, no_silence = self.lexicon.silence_log_probs()
        for state in range(self.words.num_states):
            self.arcs.append((2 * state, 2 * state + 1, 0, no_silence, NO_TAG))
            if self.lexicon.silence_phone is not None:
                self.arcs.append((2 * state, 2 * state + 1, self.lexicon.silence_phone, silence, NO_TAG))
        columns = (self.words.src, self.words.dst, self.words.ilabel, self.words.log_prob)
        for tag, arc in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            src, dst, label, log_prob = arc
            self.add(src, dst, label, log_prob, tag)
        final = np.full(self.num_states, -math.inf)
        final[1 : 2 * self.words.num_states : 2] = self.words.final_log_prob
        src, dst, phone, log_prob, tags = zip(*self.arcs, strict=True)
        sources, targets, labels = (np.array(column, dtype=np.int32) for column in (src, dst, phone))
        start = 2 * self.words.start
        graph = Transducer(
            self.num_states, start, sources, targets, labels, labels, np.array(log_prob), final
        )
        return graph, list(tags)

    def add(self, src: int, dst: int, label: int, log_prob: float, tag: int) -> None:
        """One arc of the words."""
        if label == 0:
            self.arcs.append((2 * src + 1, 2 * dst + 1, 0, log_prob, tag))
            return
        if label > len(self.lexicon.words):
            self.insert(self.parts[label - len(self.lexicon.words) - 1], src, dst, log_prob, tag)
            return
        for phones, prob in self.lexicon.pronunciations[label - 1]:
            inner = range(self.num_states, self.num_states + len(phones) - 1)
            self.num_states += len(inner)
            stops = [2 * src + 1, *inner, 2 * dst]
            weights = [log_prob + math.log(prob), *[0.0] * len(inner)]
            self.arcs += zip(stops, stops[1:], phones, weights, [tag] * len(phones), strict=False)

    def insert(self, part: Fsa, src: int, dst: int, log_prob: float, tag: int) -> None:
        """A copy of `part` between two states of the words."""
        offset, self.num_states = self.num_states, self.num_states + part.num_states
        self.arcs.append((2 * src + 1, offset + part.start, 0, log_prob, tag))
        columns = (part.src + offset, part.dst + offset, part.pdf + 1, part.log_prob)
        self.arcs += [(*arc, tag) for arc in zip(*(column.tolist() for column in columns), strict=True)]
        for state, weight in enumerate(part.final_log_prob.tolist()):
            if weight > -math.inf:
                self.arcs.append((offset + state, 2 * dst, 0, weight, tag))
