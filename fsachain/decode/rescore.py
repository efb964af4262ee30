"""Rescoring: the best word sequences of each utterance, judged by a second language model.

The second model may be too large for a decoding graph. With the weight w and the penalty v of the search, and w' and v' of
the second model, a sentence of n words scores

    log_prob - w old(words) + w' new(words) - (v' - v) n

where log_prob is that of its best path in the lattice, old the part of it that comes from the grammar of the search, and
new the log-probability under the second model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from fsachain.decode.decoder import Decoder, DecoderConfig, Graph, Search, Source, portable, search_all
from fsachain.decode.tune import TuningPoint, TuningResult, choose
from fsachain.decode.wer import score
from fsachain.errors import ConfigError, require
from fsachain.graph.grammar import NgramScores
from fsachain.graph.lexicon import Lexicon
from fsachain.openfst import Transducer

BEAM_ROUNDING = 1e-3  # costs of a lattice are float32 sums over its frames


@dataclass(frozen=True)
class RescoringConfig:
    """How many word sequences are judged by the second language model, and the weights that are tried.

    Attributes:
        num_hypotheses: the most that are kept of an utterance.
        lm_weights: factors on the second model's log-probabilities that are tried on the development set.
        word_insertion_penalties: costs per word that are tried.
    """

    num_hypotheses: int = 100
    lm_weights: tuple[float, ...] = (0.5, 0.75, 1.0, 1.25, 1.5)
    word_insertion_penalties: tuple[float, ...] = (-0.5, 0.0, 0.5)

    def __post_init__(self) -> None:
        if self.num_hypotheses < 1:
            raise ConfigError(
                f"rescoring.num_hypotheses: expected a positive number, got {self.num_hypotheses}"
            )
        for name in ("lm_weights", "word_insertion_penalties"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise ConfigError(f"rescoring.{name}: expected one or more different numbers, got {values}")


@dataclass(frozen=True)
class WordSequence:
    """`log_prob` is that of the best path with these words in the lattice."""

    words: tuple[str, ...]
    log_prob: float


def best_word_sequences(
    decoder: Decoder, nnet_output: npt.ArrayLike, name: str = "", *, count: int
) -> list[WordSequence]:
    """At most `count` different word sequences of one utterance [T, P] by falling log-probability.

    The decoder's `lattice_beam` bounds how far behind the best one a sequence may be. Empty where no path survived.
    """
    lattice = decoder.lattice(nnet_output, name)
    if lattice is None:
        return []
    costs = lattice.graph_cost + lattice.acoustic_cost
    finals = lattice.final_graph_cost + lattice.final_acoustic_cost
    paths = Transducer(
        lattice.num_states,
        lattice.start,
        lattice.src,
        lattice.dst,
        lattice.word,
        lattice.word,
        -costs,
        -finals,
    ).to_openfst()
    beginnings = _Beginnings(paths.topsort(), count, decoder.config.lattice_beam)
    return [
        WordSequence(tuple(decoder.words[word_id - 1] for word_id in word_ids), log_prob)
        for word_ids, log_prob in beginnings.run()
    ]


class _Beginnings:
    """The best `count` word sequences of an acyclic graph, by the best partial sequences at each state.

    Keeping `count` partial sequences per state is exact: a sequence whose beginning is worse than `count` others at the same
    state is worse than these with the same end. Determinising the lattice would do too, but takes time and memory that may
    double with each word where the network is unsure. `paths` is a pywrapfst FST with words on its arcs and its states in
    topological order; sequences worse than the best by more than `beam` are left out.
    """

    def __init__(self, paths: Any, count: int, beam: float) -> None:
        self._arcs = Transducer.from_openfst(paths)
        distances = require("pywrapfst", extra="graph").shortestdistance(paths, reverse=True)
        self._to_end = [-float(str(weight)) for weight in distances]
        self._count = count
        self._least = self._to_end[self._arcs.start] - beam - BEAM_ROUNDING
        # A beginning is a number; of each, the number of what stands before its last word, and that word.
        self._steps: list[tuple[int, int]] = [(-1, 0)]
        self._number: dict[tuple[int, int], int] = {}

    def run(self) -> list[tuple[list[int], float]]:
        """Word ids and log-probability of each sequence, best first."""
        arcs, leaving = self._arcs, self._arcs.leaving(None)
        here: list[dict[int, float]] = [{} for _ in range(arcs.num_states)]
        here[arcs.start][0] = 0.0
        ends: dict[int, float] = {}
        for state in range(arcs.num_states):
            best = self._best(here[state])
            here[state] = {}
            if arcs.final_log_prob[state] > -math.inf:
                for number, total in best:
                    _keep_best(ends, number, total + float(arcs.final_log_prob[state]))
            for dst, word, _, log_prob, _ in leaving[state]:
                room = self._least - self._to_end[dst] - log_prob
                for number, total in best:
                    if total < room:
                        break
                    _keep_best(here[dst], self._extend(number, word) if word else number, total + log_prob)
        return [(self._spell(number), total) for number, total in self._best(ends)]

    def _best(self, beginnings: dict[int, float]) -> list[tuple[int, float]]:
        ranked = sorted(beginnings.items(), key=lambda item: (-item[1], item[0]))
        return ranked[: self._count]

    def _extend(self, number: int, word: int) -> int:
        found = self._number.get((number, word))
        if found is None:
            found = self._number[number, word] = len(self._steps)
            self._steps.append((number, word))
        return found

    def _spell(self, number: int) -> list[int]:
        words: list[int] = []
        while number:
            number, word = self._steps[number]
            words.append(word)
        return words[::-1]


def _keep_best(totals: dict[int, float], number: int, total: float) -> None:
    if total > totals.get(number, -math.inf):
        totals[number] = total


def n_best_lists(
    nnet_outputs: Mapping[str, npt.ArrayLike],
    graph: Graph,
    words: Sequence[str],
    count: int,
    config: DecoderConfig | None = None,
    *,
    num_workers: int | None = None,
    executor: Executor | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, list[WordSequence]]:
    """`best_word_sequences` of every utterance; other arguments and errors as `decode`."""
    make = partial(_search, portable(graph), tuple(words), config, count)
    return search_all(nnet_outputs, make, num_workers=num_workers, executor=executor, progress=progress)


def _search(
    source: Source, words: tuple[str, ...], config: DecoderConfig | None, count: int
) -> Search[list[WordSequence]]:
    return partial(best_word_sequences, Decoder(source, words, config), count=count)


class Rescorer:
    """N-best lists with the scores of both language models, so that weights can be tried without scoring again.

    Args:
        lists: of each utterance, what `n_best_lists` found.
        lexicon: gives the word ids of both grammars.
        old: grammar of the search.
        lm_weight: its weight in the search.
        word_insertion_penalty: that of the search.
        new: the second model.
    """

    def __init__(
        self,
        lists: Mapping[str, Sequence[WordSequence]],
        lexicon: Lexicon,
        old: NgramScores,
        lm_weight: float,
        word_insertion_penalty: float,
        new: NgramScores,
    ) -> None:
        self._lists = lists
        self.names = list(lists)  # of the utterances
        self._rows: dict[str, npt.NDArray[np.float64]] = {}
        for name, sequences in lists.items():
            rows = np.empty((len(sequences), 3))
            for row, sequence in zip(rows, sequences, strict=True):
                ids = [lexicon.word_id(word) for word in sequence.words]
                heard = sequence.log_prob - lm_weight * old.best_path_log_prob(ids)
                row[:] = heard + word_insertion_penalty * len(ids), new.log_prob(ids), -len(ids)
            self._rows[name] = rows

    def best(self, lm_weight: float, word_insertion_penalty: float) -> dict[str, tuple[str, ...]]:
        """The best words of each utterance; where the second model allows none, those of the search."""
        found: dict[str, tuple[str, ...]] = {}
        for name, sequences in self._lists.items():
            rows = self._rows[name]
            if not len(rows):
                found[name] = ()
                continue
            language = lm_weight * rows[:, 1] if lm_weight else 0.0
            totals = rows[:, 0] + language + word_insertion_penalty * rows[:, 2]
            found[name] = sequences[int(np.argmax(totals))].words
        return found

    def tune(self, references: Mapping[str, Sequence[str]], config: RescoringConfig) -> TuningResult:
        """Weight and penalty of fewest errors on a development set; ties are broken as `tune` says."""
        grid = product(sorted(config.lm_weights), sorted(config.word_insertion_penalties))
        return choose([TuningPoint(*pair, score(references, self.best(*pair)).total) for pair in grid])
