"""From words to phones: transcripts, graphs of words, and acceptors over phones among them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.errors import ConfigError, GraphError
from fsachain.fsa import Fsa
from fsachain.graph.forgive import Forgiveness, Star
from fsachain.graph.lexicon import Lexicon
from fsachain.graph.transducer import remove_epsilons
from fsachain.openfst import Transducer

NO_WORD = -1
WORDS_PER_STAR = 3  # what is missing between two words is often more than one


class Spelt(str):
    """A word that was spelt, as it is written, with its phones: no lexicon needs to have it."""

    phones: tuple[int, ...]

    def __new__(cls, written: str, phones: Sequence[int] = ()) -> Spelt:
        made = super().__new__(cls, written)
        made.phones = tuple(phones)
        return made


class Way(NamedTuple):
    """One way to say a word: phone ids, log-probability, the tag of its first phone's arcs, that of the others."""

    phones: tuple[int, ...]
    log_prob: float
    first: int
    rest: int


def ways_to_say(word: str, position: int, lexicon: Lexicon, *, name: str | None = None) -> list[Way]:
    """The lexicon's pronunciations, or the spelling of a spelt word; errors as `Lexicon.word_id`."""
    if isinstance(word, Spelt):
        return [Way(word.phones, 0.0, position, position)]
    found = lexicon.pronunciations_of(word, name=name)
    return [Way(phones, math.log(prob), position, position) for phones, prob in found]


def transcript_acceptor(
    words: Sequence[Sequence[Way]],
    lexicon: Lexicon,
    jumps: Callable[[int], Sequence[tuple[int, float]]] = lambda place: ((place, 0.0),),
) -> tuple[Transducer, list[int]]:
    """All phone sequences of a transcript, epsilon-free, with the tag of each arc (`NO_WORD`: silence).

    Place k is where k words are said. It has two states: the words so far are said (`said`), and then also an optional
    silence (`ready`). What follows leaves `said` with the probability of no silence, and `ready` with probability one.

    Args:
        words: the ways to say each.
        lexicon: its silence.
        jumps: for word k, or the end if k is the number of words, the places that it may follow, with log-probabilities.
    """
    silence, no_silence = lexicon.silence_log_probs()
    silent = lexicon.silence_phone is not None
    places: list[list[tuple[int, float]]] = []  # what follows place k leaves these states, with these weights
    inner: list[list[list[int]]] = []  # the states behind the phones of each way to say word k
    said, num_states = 0, 1
    for ways in (*words, ()):
        places.append([(said, no_silence), (num_states, 0.0)][: 1 + silent])
        num_states += silent
        if not ways:
            break
        said, num_states = num_states, num_states + 1
        inner.append([])
        for way in ways:
            more = len(way.phones) - 1
            inner[-1].append([*range(num_states, num_states + more), said])
            num_states += more
    final = np.full(num_states, -np.inf)
    arcs: list[tuple[int, int, int, float, int]] = []  # src, dst, phone, log_prob, tag
    for position, states in enumerate(places):
        if silent:
            arcs.append((states[0][0], states[1][0], lexicon.silence_phone or 0, silence, NO_WORD))
        departures = [(state, w + jump) for place, jump in jumps(position) for state, w in places[place]]
        if position == len(words):
            for state, weight in departures:
                final[state] = np.logaddexp(final[state], weight)
            break
        for (phones, log_prob, first, rest), behind in zip(words[position], inner[position], strict=True):
            arcs += [
                (source, behind[0], phones[0], weight + log_prob, first) for source, weight in departures
            ]
            arcs += [
                (source, target, phone, 0.0, rest)
                for source, target, phone in zip(behind, behind[1:], phones[1:], strict=False)
            ]
    return _acceptor(arcs, final, 0)


def _acceptor(
    arcs: Sequence[tuple[int, int, int, float, int]], final: npt.NDArray[np.float64], start: int
) -> tuple[Transducer, list[int]]:
    """Of src, dst, phone, log_prob and tag of each arc."""
    graph = Transducer.of_arcs(((src, dst, phone, phone, w) for src, dst, phone, w, _ in arcs), final, start)
    return graph, [arc[4] for arc in arcs]


class ForgivingTranscript:
    """All phone sequences that may have been said where words were written, epsilon-free; states know their place.

    Place k is where k words are done with. It has two states as in `transcript_acceptor`, and a copy of a star's acceptor
    that leaves them, with an optional silence behind it. What follows a place leaves all of these. It may skip words that
    were not said, at the price of `Forgiveness.between`, which no other arc or final weight has. Behind a star and a silence
    another one may begin where `most_left_out` words are skipped.

    Attributes:
        tag [S]: of the arcs that enter a state: the position of a word, `NO_WORD`, or -2 - k for a star at place k.
        place [S]: the state's place, -1 within a word.
        star [S]: whether the state is in a star or behind it.
        graph: the acceptor; its start is state 0.
    """

    def __init__(
        self,
        words: Sequence[str],
        lexicon: Lexicon,
        forgive: Forgiveness,
        star: Fsa,
        *,
        name: str | None = None,
    ) -> None:
        self.tag: list[int] = []
        self.place: list[int] = []
        self.star: list[bool] = []
        self._lexicon, self._forgive, self._part = lexicon, forgive, star
        self._arcs: list[tuple[int, int, int, float]] = []  # src, dst, phone, log_prob
        self._leaving: list[list[tuple[int, float]]] = []  # by place, what leaves it: states and weights
        self._rest: list[int | None] = []  # by place, the state behind the silence of its star
        said = self._state(NO_WORD, 0, False)
        for number, word in enumerate(words):
            self._add_place(number, said)
            before, said = self._before(number), self._state(number, number + 1, False)
            for phones, prob in lexicon.pronunciations_of(word, name=name):
                states = [*(self._state(number, -1, False) for _ in phones[1:]), said]
                self._arcs += [(src, states[0], phones[0], w + math.log(prob)) for src, w in before]
                self._arcs += [
                    (*pair, phone, 0.0) for pair, phone in zip(pairwise(states), phones[1:], strict=True)
                ]
        self._add_place(len(words), said)
        final = np.full(len(self.tag), -math.inf)
        for state, weight in self._before(len(words)):
            final[state] = weight + forgive.constant(len(words))
        rows = ((src, dst, phone, phone, weight) for src, dst, phone, weight in self._arcs)
        self.graph = Transducer.of_arcs(rows, final)

    def _state(self, tag: int, place: int, star: bool) -> int:
        self.tag.append(tag)
        self.place.append(place)
        self.star.append(star)
        return len(self.tag) - 1

    def _add_place(self, place: int, said: int) -> None:
        """The states and arcs of a place where `said` is a state, but for what follows it."""
        ready = self._silence({said: 0.0}, place, False)
        self._leaving.append(ready)
        self._rest.append(None)
        forgive, part = self._forgive, self._part
        if not forgive.has_star:
            return
        first = list(ready)
        again = self._rest[place - forgive.most_left_out] if place >= forgive.most_left_out else None
        price = forgive.between(True, forgive.most_left_out)
        if again is not None and price > -math.inf:
            first.append((again, price))
        copy = [self._state(NO_WORD - 1 - place, place, True) for _ in range(part.num_states)]
        columns = (part.src, part.dst, part.pdf + 1, part.log_prob)
        for src, dst, phone, weight in zip(*(column.tolist() for column in columns), strict=True):
            self._arcs.append((copy[src], copy[dst], phone, weight))
            if src == part.start:
                self._arcs += [(state, copy[dst], phone, w + weight) for state, w in first]
        ends = {copy[state]: float(part.final_log_prob[state]) for state in np.unique(part.dst).tolist()}
        behind = self._silence({state: w for state, w in ends.items() if w > -math.inf}, place, True)
        self._leaving[place] = ready + behind
        if self._lexicon.silence_phone is not None:
            self._rest[place] = behind[-1][0]

    def _silence(self, states: dict[int, float], place: int, star: bool) -> list[tuple[int, float]]:
        """What leaves states with some weights and an optional silence behind them."""
        silence, no_silence = self._lexicon.silence_log_probs()
        leaving = [(state, weight + no_silence) for state, weight in states.items()]
        phone = self._lexicon.silence_phone
        if phone is not None:
            ready = self._state(NO_WORD, place, star)
            self._arcs += [(state, ready, phone, weight + silence) for state, weight in states.items()]
            leaving.append((ready, 0.0))
        return leaving

    def _before(self, place: int) -> list[tuple[int, float]]:
        """The states that what follows `place` may leave, words skipped, with their weights."""
        found = []
        for skipped in range(min(place, self._forgive.most_left_out) + 1):
            for state, weight in self._leaving[place - skipped]:
                price = self._forgive.between(self.star[state], skipped)
                if price > -math.inf:
                    found.append((state, weight + price))
        return found


def spell(words: Transducer, lexicon: Lexicon, parts: Sequence[Fsa] = ()) -> tuple[Transducer, list[int]]:
    """All phone sequences of a graph of words as an epsilon-free acceptor over phone ids, start state 0.

    Arguments as for `numerator_of_words`. Silence is optional at the start, at the end and between any two items; an
    arc with label 0 is no item. A path weighs as its words, pronunciations, parts and choices of silence do together.

    Returns beside the acceptor the arc of `words` that each of its arcs belongs to (-1: silence). For one sequence of
    words `transcript_acceptor` does the same faster.
    """
    _check(words, lexicon, parts)
    graph, tags = remove_epsilons(*_Speller(words, lexicon, parts).run())
    if not (graph.final_log_prob > -math.inf).any():
        raise GraphError("the graph of words accepts nothing")
    return graph, tags


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
        self.inserted: dict[tuple[int, int], int] = {}  # part and state behind it -> where the copy begins

    def run(self) -> tuple[Transducer, list[int]]:
        silence, no_silence = self.lexicon.silence_log_probs()
        for state in range(self.words.num_states):
            self.arcs.append((2 * state, 2 * state + 1, 0, no_silence, NO_WORD))
            if self.lexicon.silence_phone is not None:
                self.arcs.append((2 * state, 2 * state + 1, self.lexicon.silence_phone, silence, NO_WORD))
        columns = (self.words.src, self.words.dst, self.words.ilabel, self.words.log_prob)
        for tag, arc in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            src, dst, label, log_prob = arc
            self.add(src, dst, label, log_prob, tag)
        final = np.full(self.num_states, -math.inf)
        final[1 : 2 * self.words.num_states : 2] = self.words.final_log_prob
        return _acceptor(self.arcs, final, 2 * self.words.start)

    def add(self, src: int, dst: int, label: int, log_prob: float, tag: int) -> None:
        if label == 0:
            self.arcs.append((2 * src + 1, 2 * dst + 1, 0, log_prob, tag))
            return
        if label > len(self.lexicon.words):
            number = label - len(self.lexicon.words) - 1
            if (number, dst) not in self.inserted:
                self.inserted[number, dst] = self.insert(self.parts[number], dst, tag)
            self.arcs.append((2 * src + 1, self.inserted[number, dst], 0, log_prob, tag))
            return
        for phones, prob in self.lexicon.pronunciations[label - 1]:
            inner = range(self.num_states, self.num_states + len(phones) - 1)
            self.num_states += len(inner)
            stops = [2 * src + 1, *inner, 2 * dst]
            weights = [log_prob + math.log(prob), *[0.0] * len(inner)]
            self.arcs += zip(stops, stops[1:], phones, weights, [tag] * len(phones), strict=False)

    def insert(self, part: Fsa, dst: int, tag: int) -> int:
        """A copy of `part` that ends in a state of the words; returns where it begins. Arcs that lead there share it."""
        offset, self.num_states = self.num_states, self.num_states + part.num_states
        columns = (part.src + offset, part.dst + offset, part.pdf + 1, part.log_prob)
        self.arcs += [(*arc, tag) for arc in zip(*(column.tolist() for column in columns), strict=True)]
        for state, weight in enumerate(part.final_log_prob.tolist()):
            if weight > -math.inf:
                self.arcs.append((offset + state, 2 * dst, 0, weight, tag))
        return offset + part.start


def phone_loop(phones: Sequence[int], *, stop_prob: float = 0.1) -> Fsa:
    """Any sequence of one phone or more: n of them have probability stop_prob (1 - stop_prob)^(n - 1) / K^n.

    Args:
        phones: the K phone ids that the loop knows. Silence is optional around the loop anyway; a loop that stands for
            several words, or for anything, needs it among them.
        stop_prob: one over the mean number of phones.

    Raises:
        ConfigError: a probability outside (0, 1).
        GraphError: no phones, a phone below 1, or one twice.
    """
    if not 0 < stop_prob < 1:
        raise ConfigError(f"stop_prob = {stop_prob}: expected one in (0, 1)")
    ids = np.array(phones, dtype=np.int64)
    if ids.ndim != 1 or not ids.size or ids.min() < 1 or len(np.unique(ids)) < len(ids):
        raise GraphError(f"phones = {list(phones)}: expected distinct phone ids of at least 1")
    first, more = -math.log(len(ids)), math.log1p(-stop_prob) - math.log(len(ids))
    src = np.repeat([0, 1], len(ids))
    weights = np.repeat([first, more], len(ids))
    pdf = np.tile(ids - 1, 2)
    final = np.array([-math.inf, math.log(stop_prob)])
    return Fsa(2, src, np.ones(len(src), dtype=np.int64), pdf, weights, final)


def any_phones(lexicon: Lexicon, star: Star = "mean") -> Fsa:
    """Phones, one or more, with an optional silence between any two; as many on average as `WORDS_PER_STAR` words have.

    "mean": n of the K phones but silence have probability q (1 - q)^(n - 1) / K^n; "sum": each sequence weighs K^n times as
    much. Silences have the lexicon's probability.
    """
    spoken = [phone for phone in range(1, len(lexicon.phones) + 1) if phone != lexicon.silence_phone]
    lengths = [len(ways.phones) for all_ways in lexicon.pronunciations for ways in all_ways]
    stop = min(0.5, len(lengths) / sum(lengths) / WORDS_PER_STAR)
    each = -math.log(len(spoken)) if star == "mean" else 0.0
    silence, no_silence = lexicon.silence_log_probs()
    more = math.log1p(-stop)
    # 0 at the start, 1 behind a phone, 2 behind a silence
    arcs = [
        (src, 1, phone, each + before)
        for src, before in ((0, 0.0), (1, more + no_silence))
        for phone in spoken
    ]
    if lexicon.silence_phone is not None:
        arcs.append((1, 2, lexicon.silence_phone, more + silence))
        arcs += [(2, 1, phone, each) for phone in spoken]
    src, dst, phones, log_prob = (np.array(column) for column in zip(*arcs, strict=True))
    return Fsa(3, src, dst, phones - 1, log_prob, np.array([-math.inf, math.log(stop), -math.inf]))
