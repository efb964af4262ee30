"""Rescoring: the best word sequences of each utterance, judged by a second language model.

The second model may be too large for a decoding graph. With the weight w and the penalty v of the search, and w' and v' of
the second model, a sentence of n words scores

    log_prob - w old(words) + w' new(words) - (v' - v) n

where log_prob is that of its best path in the lattice, old the part of it that comes from the grammar of the search, and
new the log-probability under the second model: an n-gram, or the mean of an n-gram's probabilities and a word network's.

What the recording says of the words, log_prob - w old(words) + v n, is a maximum over paths. LF-MMI and CTC train their sum,
and `sums_over_paths` may take its place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from fsachain.asr.data.audio import Perturbation
from fsachain.asr.decode.lattices import as_transducer
from fsachain.asr.decode.tune import TuningPoint, TuningResult, check_grid, grow
from fsachain.asr.decode.wer import score
from fsachain.asr.kaldi.lattice import Lattice
from fsachain.asr.nn.word_network import WordNetwork
from fsachain.batch import TableBatch
from fsachain.errors import brief, brief_of, check_range, require
from fsachain.graph.context import ContextTree
from fsachain.graph.decoding import Weights
from fsachain.graph.grammar import NgramScores
from fsachain.graph.lexicon import Lexicon
from fsachain.graph.numerator import numerator_of_phones
from fsachain.graph.open_vocabulary import Piece, spelt_out, word_ids
from fsachain.graph.spelling import transcript_acceptor, ways_to_say
from fsachain.loss.total import total_log_prob
from fsachain.openfst import Transducer
from fsachain.progress import counter

BEAM_ROUNDING = 1e-3  # costs of a lattice are float32 sums over its frames


@dataclass(frozen=True)
class RescoringConfig:
    """How many word sequences are judged by the second language model, and the weights that are tried.

    Attributes:
        num_hypotheses (word sequences): the most that are kept of an utterance.
        lm_weights (factors): factors on the second model's log-probabilities that are tried on the development set.
        word_insertion_penalties (nats): costs per word that are tried. Where the best stands at an edge, more are.
        network_epochs (epochs): `fsachain run` trains a network of words on the training text for so many passes, see
            `fsachain.asr.nn.word_network`, and the second model is the mean of its probabilities and those of the n-gram,
            that of the search where no other is given; 0: no network.
        network_share (share): the network's weight in that mean.
        speeds (factors): recordings are played at these, and what one says of a word sequence is the mean over them of
            the sum over all its paths; with none, the best path in the lattice. 0.9 is slower, and has more frames.
    """

    num_hypotheses: int = 100
    lm_weights: tuple[float, ...] = (0.5, 0.75, 1.0, 1.25, 1.5)
    word_insertion_penalties: tuple[float, ...] = (-0.5, 0.0, 0.5)
    network_epochs: int = 0
    network_share: float = 0.6
    speeds: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for speed in self.speeds:
            Perturbation(speed=speed)
        check_range(self, "[1, inf)", "num_hypotheses")
        check_range(self, "[0, inf)", "network_epochs")
        check_range(self, "[0, 1]", "network_share")
        axes = {"lm_weights": self.lm_weights, "word_insertion_penalties": self.word_insertion_penalties}
        check_grid("rescoring.", **axes)


@dataclass(frozen=True)
class WordSequence:
    """`log_prob` is that of the best path with these words in the lattice."""

    words: tuple[str, ...]
    log_prob: float

    __repr__ = brief


def best_word_sequences(
    lattice: Lattice, words: Sequence[str | Piece], count: int, beam: float = math.inf
) -> list[WordSequence]:
    """At most `count` different word sequences of a lattice by falling log-probability, `words` those of id 1, 2, ...

    `beam` bounds how far behind the best one a sequence may be.
    """
    paths = replace(as_transducer(lattice), ilabel=lattice.word).to_openfst()
    found = best_of(paths.topsort(), count, beam)
    return [WordSequence(spelt_out(words[word - 1] for word in ids), log_prob) for ids, log_prob in found]


def best_of(paths: Any, count: int, beam: float) -> list[tuple[list[int], float]]:
    """Word ids and log-probability of the best `count` word sequences, by the best partial sequences at each state.

    Keeping `count` partial sequences per state is exact: a sequence whose beginning is worse than `count` others at the same
    state is worse than these with the same end. Determinising the lattice would do too, but takes time and memory that may
    double with each word where the network is unsure. `paths` is an acyclic pywrapfst FST with words on its arcs and its
    states in topological order; sequences worse than the best by more than `beam` are left out.
    """
    distances = require("pywrapfst", extra="graph").shortestdistance(paths, reverse=True)
    to_end = [-float(str(weight)) for weight in distances]
    arcs = Transducer.from_openfst(paths)
    leaving, final = arcs.leaving(None), arcs.final_log_prob.tolist()
    least = to_end[arcs.start] - beam - BEAM_ROUNDING
    # A beginning is a number; of each, the number of what stands before its last word, and that word.
    numbers: dict[tuple[int, int], int] = {(-1, 0): 0}

    def best(beginnings: dict[int, float]) -> list[tuple[int, float]]:
        return sorted(beginnings.items(), key=lambda item: (-item[1], item[0]))[:count]

    def keep(totals: dict[int, float], number: int, total: float) -> None:
        if total > totals.get(number, -math.inf):
            totals[number] = total

    here: list[dict[int, float]] = [{} for _ in range(arcs.num_states)]
    here[arcs.start][0] = 0.0
    ends: dict[int, float] = {}
    for state in range(arcs.num_states):
        beginnings = best(here[state])
        here[state] = {}
        if final[state] > -math.inf:
            for number, total in beginnings:
                keep(ends, number, total + final[state])
        for dst, word, _, log_prob, _ in leaving[state]:
            room = least - to_end[dst] - log_prob
            for number, total in beginnings:
                if total < room:
                    break
                longer = numbers.setdefault((number, word), len(numbers)) if word else number
                keep(here[dst], longer, total + log_prob)
    steps = list(numbers)

    def spelt(number: int) -> list[int]:
        words: list[int] = []
        while number:
            number, word = steps[number]
            words.insert(0, word)
        return words

    return [(spelt(number), total) for number, total in best(ends)]


def sums_over_paths(
    sequences: Sequence[Sequence[str]],
    scores: npt.NDArray[np.floating],
    lexicon: Lexicon,
    tree: ContextTree,
) -> npt.NDArray[np.float64]:
    """log Z of each word sequence, equation (4): over all its paths, pronunciations and silences; float64 [N], nats.

    `scores` are the network outputs [T, P] of the utterance. Transitions cost nothing, as in numerators. -inf where a
    sequence does not fit into the frames; one without words is silence alone.
    """
    found = np.full(len(sequences), -math.inf)
    rows = [row for row, words in enumerate(sequences) if words or lexicon.silence is not None]
    fsas = []
    for words in (sequences[row] for row in rows):
        ways = [ways_to_say(word, place, lexicon) for place, word in enumerate(words)]
        phones, word_of_arc, *_ = transcript_acceptor(ways, lexicon)
        fsas.append(numerator_of_phones(phones, word_of_arc, tuple(words), lexicon, tree).fsa)
    if fsas:
        repeated = torch.as_tensor(scores).expand(len(fsas), -1, -1)
        found[rows] = total_log_prob(TableBatch.pack(fsas), repeated).numpy()
    return found


class SentenceScores(Protocol):
    """A language model of whole sentences: natural log-probabilities of lists of word ids, each with its end."""

    def log_probs(self, sentences: Sequence[Sequence[int]]) -> list[float]: ...


@dataclass(frozen=True)
class NetworkScores:
    """P(w | h) is `share` of the network's and the rest of the n-gram's; `words` are those of id 1, 2, ...

    A word that the n-gram lacks is impossible, as in a search with it.
    """

    network: WordNetwork
    ngram: NgramScores
    words: Sequence[str]
    share: float = 0.6

    __repr__ = brief

    def log_probs(self, sentences: Sequence[Sequence[int]]) -> list[float]:
        spelt = [[self.words[number - 1] for number in ids] for ids in sentences]
        found: list[float] = []
        for ids, network in zip(sentences, self.network.log_probs(spelt), strict=True):
            ngram = np.array(self.ngram.by_word(ids))
            if np.isfinite(ngram).all():
                mean = self.share * np.exp(network) + (1 - self.share) * np.exp(ngram)
                found.append(float(np.log(mean).sum()))
            else:
                found.append(-math.inf)
        return found


class Rescorer:
    """N-best lists with the scores of both language models, so that weights can be tried without scoring again.

    `lists` is what `best_word_sequences` found by utterance, `lexicon` gives the word ids of both grammars. `old` is the
    grammar of the search, with the `weights` of the lists; `new` is the second model. `heard` is what the recordings say of
    each sequence, such as `sums_over_paths`; by default what the lattices do. It has a bar.
    """

    __repr__ = brief_of("names")

    def __init__(
        self,
        lists: Mapping[str, Sequence[WordSequence]],
        lexicon: Lexicon,
        old: NgramScores,
        weights: Weights,
        new: SentenceScores,
        heard: Mapping[str, npt.NDArray[np.float64]] | None = None,
    ) -> None:
        self._lists = lists
        self.names = list(lists)  # of the utterances
        self._rows: dict[str, npt.NDArray[np.float64]] = {}
        with counter("language models") as update:
            for done, (name, sequences) in enumerate(lists.items(), start=1):
                rows = np.empty((len(sequences), 3))
                ids = [word_ids(sequence.words, lexicon) for sequence in sequences]
                said = zip(rows, sequences, ids, new.log_probs(ids), strict=True)
                for row, sequence, its, log_prob in said:
                    count = len(sequence.words)
                    path = sequence.log_prob - weights.lm_weight * old.best_path_log_prob(its)
                    row[:] = path + weights.word_insertion_penalty * count, log_prob, -count
                if heard is not None:
                    rows[:, 0] = heard[name]
                self._rows[name] = rows
                update(done, len(lists))

    def best(self, lm_weight: float, word_insertion_penalty: float) -> dict[str, tuple[str, ...]]:
        """The best words of each utterance; where a model or the recording allows none, those of the search."""
        found: dict[str, tuple[str, ...]] = dict.fromkeys(self._lists, ())
        for name, rows in self._rows.items():
            if len(rows):
                language = lm_weight * rows[:, 1] if lm_weight else 0.0
                totals = rows[:, 0] + language + word_insertion_penalty * rows[:, 2]
                found[name] = self._lists[name][int(np.argmax(totals))].words
        return found

    def tune(self, references: Mapping[str, Sequence[str]], config: RescoringConfig) -> TuningResult:
        """Weight and penalty of fewest errors on a development set; ties and edges of the grid are as `tune` says."""

        def errors_at(points: Sequence[Weights]) -> list[TuningPoint]:
            return [TuningPoint(point, score(references, self.best(*point[:2])).total) for point in points]

        return grow([config.lm_weights, config.word_insertion_penalties, [0.0]], errors_at)
