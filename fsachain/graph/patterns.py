"""Numerators of what is not one transcript: alternatives, gaps, unknown words, keywords among anything.

A pattern is a sequence of items. An item is

    a word             all its pronunciations
    an acceptor        over phones (label = phone id - 1): a loop of phones, a phone language model, a spelling
    OneOf              one of several patterns, each with a probability; the empty one may be among them

so that several transcripts are `[OneOf([(0.7, a), (0.3, b)])]`, a gap is `optional([loop])`, a keyword somewhere is
`[optional([loop]), *keyword, optional([loop])]`, and a word nobody could write down is `loop`. As long as no item
gives one phone sequence more than probability one, no numerator does, and objf stays at or below 0 when the
normalization is composed in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NoReturn, Union

import numpy as np

from fsachain.errors import ConfigError, GraphError, brief
from fsachain.fsa import Fsa, input_fsa
from fsachain.graph.context import ContextTree
from fsachain.graph.lexicon import Lexicon
from fsachain.graph.numerator import Numerator, numerator_of_phones
from fsachain.graph.spelling import NO_WORD, spell
from fsachain.openfst import Transducer


@dataclass(frozen=True)
class OneOf:
    """One of several patterns.

    Attributes:
        alternatives: pairs (probability, pattern); probabilities are above 0, finite, and used as they stand.
    """

    alternatives: Sequence[tuple[float, Pattern]]

    __repr__ = brief

    def __post_init__(self) -> None:
        if not self.alternatives:
            raise GraphError(
                "OneOf has no alternatives; expected at least one pair of probability and pattern"
            )
        for number, (prob, _) in enumerate(self.alternatives):
            if not 0 < prob < math.inf:
                raise GraphError(
                    f"OneOf: alternatives[{number}] has probability {prob}; expected one above 0"
                )


Item = Union[str, Fsa, OneOf]  # noqa: UP007 (OneOf refers to it by name)
Pattern = Sequence[Item]


def optional(pattern: Pattern, prob: float = 0.5) -> OneOf:
    """The pattern with probability `prob`, else nothing.

    Raises:
        ConfigError: a probability outside (0, 1).
    """
    if not 0 < prob < 1:
        raise ConfigError(f"prob = {prob}: expected one in (0, 1)")
    return OneOf([(prob, pattern), (1 - prob, [])])


def build_pattern_numerator(
    pattern: Pattern,
    lexicon: Lexicon,
    tree: ContextTree,
    *,
    normalization: Fsa | None = None,
    name: str | None = None,
) -> Numerator:
    """The numerator graph of a pattern; for a plain sequence of words it accepts what `build_numerator` does.

    Args:
        pattern: a sequence of items: words, acceptors over phones, `OneOf`.
        lexicon: pronunciations and optional silence, which may stand between any two items.
        tree: context and topology, over the lexicon's phones.
        normalization: as for `build_numerator`.
        name: utterance id, for error messages.

    Returns:
        Its `words` are those of the pattern from left to right, alternatives one after another; a path has some of them.

    Raises:
        GraphError: as `build_numerator`; a pattern that accepts the empty sequence of phones alone.
    """
    graph, parts = pattern_graph(pattern, lexicon, name=name)
    return numerator_of_words(graph, lexicon, tree, parts=parts, normalization=normalization, name=name)


def numerator_of_words(
    words: Transducer,
    lexicon: Lexicon,
    tree: ContextTree,
    *,
    parts: Sequence[Fsa] = (),
    normalization: Fsa | None = None,
    name: str | None = None,
) -> Numerator:
    """The numerator graph of a graph of words, such as an OpenFst file or AT&T text over word ids.

    Args:
        words: input labels are word ids of the lexicon, 0 (epsilon, in no cycle), or len(lexicon.words) + 1 + k for
            parts[k]; output labels are ignored.
        lexicon: pronunciations and optional silence.
        tree: context and topology, over the lexicon's phones.
        parts: acceptors over phones (label = phone id - 1), such as a loop of phones or a phone language model.
        normalization: as for `build_numerator`.
        name: utterance id, for error messages.

    Returns:
        Its `words` are those of the arcs of `words`, in their order.

    Raises:
        GraphError: as `build_numerator`; a label that stands for nothing, or a part with a phone that the lexicon lacks.
    """
    where = "" if name is None else f"utterance {name!r}: "
    try:
        phones, tags = spell(words, lexicon, parts)
    except GraphError as error:
        raise GraphError(f"{where}{error}") from error
    is_word = (words.ilabel > 0) & (words.ilabel <= len(lexicon.words))
    position = np.where(is_word, np.cumsum(is_word) - 1, NO_WORD).tolist()
    names = tuple(lexicon.words[label - 1] for label in words.ilabel[is_word].tolist())
    places = [NO_WORD if tag == NO_WORD else position[tag] for tag in tags]
    return numerator_of_phones(phones, places, names, lexicon, tree, normalization=normalization, name=name)


def pattern_graph(
    pattern: Pattern, lexicon: Lexicon, *, name: str | None = None
) -> tuple[Transducer, list[Fsa]]:
    """What a pattern is to `numerator_of_words`: the graph of words, and its parts."""
    states, parts = count(1), list[Fsa]()
    arcs: list[tuple[int, int, int, int, float]] = []

    def label(item: str | Fsa) -> int:
        if isinstance(item, Fsa):
            parts.append(item)
            return len(lexicon.words) + len(parts)
        if not isinstance(item, str):
            raise GraphError(f"pattern has the item {item!r}: expected a word, an Fsa over phones or OneOf")
        return lexicon.word_id(item, name=name)

    def write(pattern: Pattern, state: int) -> int:
        """Write `pattern` from `state` on, epsilon arcs around alternatives; returns where it ends."""
        if isinstance(pattern, str):
            raise GraphError(f"pattern = {pattern!r}: expected a sequence of items, such as text.split()")
        for item in pattern:
            end = next(states)
            if isinstance(item, OneOf):
                for prob, alternative in item.alternatives:
                    begin = next(states)
                    arcs.append((state, begin, 0, 0, math.log(prob)))
                    arcs.append((write(alternative, begin), end, 0, 0, 0.0))
            else:
                word = label(item)
                arcs.append((state, end, word, word, 0.0))
            state = end
        return state

    end = write(pattern, 0)
    final = np.full(next(states), -math.inf)
    final[end] = 0.0
    return Transducer.of_arcs(arcs, final), parts


def phone_model_of_words(words: Fsa, lexicon: Lexicon) -> Fsa:
    """A word language model as one over phones, for `build_denominator`.

    Args:
        words: label = word id - 1, such as `estimate_phone_lm` makes of sequences of word ids, or `ngram_acceptor`.
        lexicon: pronunciations and silence. For a denominator let the probabilities of each word's pronunciations sum to
            one; `lexiconp.txt` scales the best to one instead.

    Returns:
        Acceptor over phones, label = phone id - 1.
    """
    return input_fsa(spell(words.to_transducer(), lexicon)[0])


# Patterns as text, one line for each utterance.
#
#     she had your dark suit                            words
#     ( 0.7 she had | 0.3 she has ) your dark suit      one of several, each with its probability
#     she had [ your ] dark suit                        with probability 0.5, else nothing
#     ask <loop> now                                    a named part: any phones, one at least
#     * dark suit *                                     a gap: `[ <loop> ]`, anything or nothing
#
# Marks stand apart, with white space around them. A backslash before a mark makes it a word: `\*`.

LOOP = "<loop>"
GAP = "*"
_CLOSING = {"(": ")", "[": "]"}
_MARKS = frozenset({"(", ")", "[", "]", "|", GAP})


def parse_pattern(text: str | Sequence[str], parts: Mapping[str, Fsa]) -> Pattern:
    """The pattern that a line says.

    Args:
        text: the line, or its fields.
        parts: acceptors over phones by name; a gap needs the name `<loop>`.

    Raises:
        GraphError: a bracket without its other half, an alternative without a probability, a gap without a loop.
    """
    fields = text.split() if isinstance(text, str) else list(text)
    parser = _Parser(fields, parts)
    pattern = parser.items()
    if parser.position < len(fields):
        parser.fail("no bracket is open")
    return pattern


def alternatives_as_text(alternatives: Sequence[tuple[float, Sequence[str]]]) -> str:
    """A line for `parse_pattern`: one of several word sequences, each with its probability; one alone stands as it is."""
    texts = [
        " ".join("\\" + word if word in _MARKS or word == LOOP else word for word in words)
        for _, words in alternatives
    ]
    if len(texts) == 1:
        return texts[0]
    probs = [f"{prob:.6f}" for prob, _ in alternatives]
    return f"( {' | '.join(map(' '.join, zip(probs, texts, strict=True)))} )"


class _Parser:
    def __init__(self, fields: list[str], parts: Mapping[str, Fsa]) -> None:
        self.fields, self.parts = fields, parts
        self.position = 0

    def fail(self, reason: str) -> NoReturn:
        shown = repr(self.fields[self.position]) if self.position < len(self.fields) else "the end"
        raise GraphError(f"pattern: {reason} at {shown} (field {self.position + 1} of {len(self.fields)})")

    def items(self) -> list[Item]:
        """Items up to a mark that begins none, which stays."""
        found: list[Item] = []
        while self.position < len(self.fields) and self.fields[self.position] not in (")", "]", "|"):
            self.position += 1
            found.append(self.item(self.fields[self.position - 1]))
        return found

    def item(self, field: str) -> Item:
        if field in _CLOSING:
            return self.bracket(field)
        if field == GAP:
            if LOOP not in self.parts:
                self.position -= 1
                self.fail(f"a gap needs the part {LOOP}")
            return optional([self.parts[LOOP]])
        if field in self.parts:
            return self.parts[field]
        return field[1:] if field[:1] == "\\" and (field[1:] in _MARKS or field[1:] in self.parts) else field

    def bracket(self, opening: str) -> OneOf:
        end = _CLOSING[opening]
        if opening == "[":
            found = optional(self.items())
            self.expect((end,))
            return found
        alternatives = [self.alternative()]
        while self.expect(("|", end)) == "|":
            alternatives.append(self.alternative())
        return OneOf(alternatives)

    def alternative(self) -> tuple[float, Pattern]:
        try:
            prob = float(self.fields[self.position])
        except (IndexError, ValueError):
            self.fail("expected the probability of an alternative")
        self.position += 1
        return prob, self.items()

    def expect(self, marks: Sequence[str]) -> str:
        if self.position >= len(self.fields) or self.fields[self.position] not in marks:
            self.fail(f"expected {' or '.join(marks)}")
        self.position += 1
        return self.fields[self.position - 1]
