"""From words to phones: transcripts, graphs of words, and acceptors over phones among them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.errors import ConfigError, GraphError, counted
from fsachain.fsa import Fsa
from fsachain.graph.forgive import Forgiveness, Star
from fsachain.graph.lexicon import Lexicon
from fsachain.graph.transducer import check_labels, remove_epsilons
from fsachain.openfst import Transducer, rows

NO_WORD = -1
# A star of frames, which are no phone.
FRAMES = Transducer.of_arcs([(0, 1, 0, 0, 0.0)], np.array([-math.inf, 0.0]))
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


_Arc = tuple[int, int, int, float, int]  # src, dst, phone, log_prob, tag


class Transcript(NamedTuple):
    """All phone sequences that may have been said where words were written, epsilon-free; start state 0.

    tag [A] is that of a `Way`, `NO_WORD` for silence, or -2 - k for a star at place k. place [S] is 2 k for a state at place
    k, and one more in a star or behind it; -1 within a word.
    """

    graph: Transducer
    tag: list[int]
    place: list[int]


def transcript_acceptor(
    words: Sequence[Sequence[Way]],
    lexicon: Lexicon,
    jumps: Callable[[int], Sequence[tuple[int, float]]] = lambda place: ((place, 0.0),),
    forgive: Forgiveness | None = None,
    anything: Transducer | None = None,
) -> Transcript:
    """The acceptor of a transcript.

    Place k is where k words are done with. It has two states: the words so far are done with, and then also an optional
    silence. What follows leaves the first with the probability of no silence, the second with probability one. Where
    `forgive` has stars a copy of `anything` leaves both, with an optional silence behind it, and what follows may leave that
    as well. It may skip words that were not said, at the price of `Forgiveness.between`, which no other arc or final weight
    has. Behind a star and a silence another one may begin where `most_left_out` words are skipped.

    Args:
        words: the ways to say each.
        lexicon: its silence.
        jumps: for word k, or the end if k is the number of words, the places that it may follow, with log-probabilities.
        forgive: what may be wrong, in place of `jumps`.
        anything: what a star of `forgive` stands for, an acceptor over phone ids, or epsilons in place of what is no phone.
    """
    (silence, no_silence), silence_phone = lexicon.silence_log_probs(), lexicon.silence_phone
    most, prices = (0, []) if forgive is None else (forgive.most_left_out, forgive.prices().tolist())
    place_of: list[int] = []  # by state, as in `Transcript`
    arcs: list[list[_Arc]] = [[] for _ in range(len(words) + 1)]  # by place, those behind it
    leaving: list[list[tuple[int, float]]] = []  # by place, what may be left: states and weights

    def states_at(place: int, count: int = 1) -> range:
        place_of.extend([place] * count)
        return range(len(place_of) - count, len(place_of))

    def with_silence(states: list[tuple[int, float]], place: int, star: int = 0) -> list[tuple[int, float]]:
        """What leaves these states, or an optional silence behind them."""
        found = [(here, weight + no_silence) for here, weight in states]
        if silence_phone is not None:
            (ready,) = states_at(2 * place + star)
            arcs[place] += [(here, ready, silence_phone, w + silence, NO_WORD) for here, w in states]
            found.append((ready, 0.0))
        return found

    def star_behind(place: int, part: Transducer) -> list[tuple[int, float]]:
        """What leaves a star at a place of which `leaving` has all else."""
        before, again = list(leaving[place]), place - most
        if again >= 0 and silence_phone is not None and prices[1][most] > -math.inf:
            before.append((leaving[again][-1][0], prices[1][most]))
        copy = states_at(2 * place + 1, part.num_states)
        tag = NO_WORD - 1 - place
        for src, dst, phone, weight in rows(part.src, part.dst, part.ilabel, part.log_prob):
            arcs[place].append((copy[src], copy[dst], phone, weight, tag))
            if src == part.start:
                arcs[place] += [(here, copy[dst], phone, w + weight, tag) for here, w in before]
        ends = [(copy[end], float(part.final_log_prob[end])) for end in np.unique(part.dst).tolist()]
        return with_silence([(end, weight) for end, weight in ends if weight > -math.inf], place, 1)

    behind: list[list[list[int]]] = []  # of each way to say each word, the states behind its phones
    (said,) = states_at(0)
    for place in range(len(words) + 1):
        leaving.append(with_silence([(said, 0.0)], place))
        if forgive is not None and forgive.has_star and anything is not None:
            leaving[place] += star_behind(place, anything)
        if place < len(words):
            (said,) = states_at(2 * place + 2)
            behind.append([[*states_at(-1, len(way.phones) - 1), said] for way in words[place]])

    def before(place: int) -> list[tuple[int, float]]:
        """The states that what follows a place may leave, with their weights."""
        if forgive is None:
            return [(here, w + jump) for other, jump in jumps(place) for here, w in leaving[other]]
        return [
            (here, w + prices[place_of[here] % 2][skipped])
            for skipped in range(min(place, most) + 1)
            for here, w in leaving[place - skipped]
            if prices[place_of[here] % 2][skipped] > -math.inf
        ]

    for place, ways in enumerate(words):
        departures = before(place)
        for (phones, log_prob, first, rest), states in zip(ways, behind[place], strict=True):
            arcs[place] += [(here, states[0], phones[0], w + log_prob, first) for here, w in departures]
            steps = zip(states, states[1:], phones[1:], strict=False)
            arcs[place] += [(src, dst, phone, 0.0, rest) for src, dst, phone in steps]
    final = np.full(len(place_of), -math.inf)
    constant = 0.0 if forgive is None else forgive.constant(len(words))
    for here, weight in before(len(words)):
        final[here] = np.logaddexp(final[here], weight + constant)
    return Transcript(*_acceptor(list(chain.from_iterable(arcs)), final, 0), place_of)


def _acceptor(
    arcs: Sequence[_Arc], final: npt.NDArray[np.float64], start: int
) -> tuple[Transducer, list[int]]:
    graph = Transducer.of_arcs(((src, dst, phone, phone, w) for src, dst, phone, w, _ in arcs), final, start)
    return graph, [arc[4] for arc in arcs]


def spell(words: Transducer, lexicon: Lexicon, parts: Sequence[Fsa] = ()) -> tuple[Transducer, list[int]]:
    """All phone sequences of a graph of words as an epsilon-free acceptor over phone ids, start state 0.

    Arguments as for `numerator_of_words`. Silence is optional at the start, at the end and between any two items; an
    arc with label 0 is no item. A path weighs as its words, pronunciations, parts and choices of silence do together.

    Returns beside the acceptor the arc of `words` that each of its arcs belongs to (-1: silence). For one sequence of
    words `transcript_acceptor` does the same faster.
    """
    _check(words, lexicon, parts)
    silence, no_silence = lexicon.silence_log_probs()
    # State 2q is state q of the words before the choice of silence, 2q + 1 behind it; then the insides of items.
    num_states = 2 * words.num_states
    arcs: list[_Arc] = []
    for state in range(0, 2 * words.num_states, 2):
        arcs.append((state, state + 1, 0, no_silence, NO_WORD))
        if lexicon.silence_phone is not None:
            arcs.append((state, state + 1, lexicon.silence_phone, silence, NO_WORD))
    inserted: dict[
        tuple[int, int], int
    ] = {}  # part and state behind it -> where the copy that arcs share begins
    columns = (words.src, words.dst, words.ilabel, words.log_prob)
    for tag, (src, dst, label, log_prob) in enumerate(rows(*columns)):
        number = label - len(lexicon.words) - 1
        if label == 0:
            arcs.append((2 * src + 1, 2 * dst + 1, 0, log_prob, tag))
        elif number >= 0:
            if (number, dst) not in inserted:
                part, offset = parts[number], num_states
                num_states += part.num_states
                inserted[number, dst] = offset + part.start
                copied = rows(part.src + offset, part.dst + offset, part.pdf + 1, part.log_prob)
                arcs += [(*arc, tag) for arc in copied]
                for state, weight in enumerate(part.final_log_prob.tolist(), offset):
                    if weight > -math.inf:
                        arcs.append((state, 2 * dst, 0, weight, tag))
            arcs.append((2 * src + 1, inserted[number, dst], 0, log_prob, tag))
        else:
            for phones, prob in lexicon.pronunciations[label - 1]:
                inner = range(num_states, num_states + len(phones) - 1)
                num_states += len(inner)
                stops = [2 * src + 1, *inner, 2 * dst]
                weights = [log_prob + math.log(prob), *[0.0] * len(inner)]
                arcs += zip(stops, stops[1:], phones, weights, [tag] * len(phones), strict=False)
    final = np.full(num_states, -math.inf)
    final[1 : 2 * words.num_states : 2] = words.final_log_prob
    graph, tags = remove_epsilons(*_acceptor(arcs, final, 2 * words.start))
    if not (graph.final_log_prob > -math.inf).any():
        raise GraphError("the graph of words accepts nothing")
    return graph, tags


def _check(words: Transducer, lexicon: Lexicon, parts: Sequence[Fsa]) -> None:
    expected = (
        f"0, a word id up to {len(lexicon.words)}, or one of {counted(len(parts), 'part')} behind those"
    )
    check_labels(words, len(lexicon.words) + len(parts), expected, "words: ")
    for number, part in enumerate(parts):
        if part.num_arcs and part.pdf.max() >= len(lexicon.phones):
            raise GraphError(
                f"parts[{number}] has phone {part.pdf.max() + 1}; the lexicon has {len(lexicon.phones)}"
            )


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
