"""Scores of word sequences under a word grammar, without a search over recordings."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from fsachain.errors import GraphError
from fsachain.graph.transducer import Transducer


class NgramScores:
    """An n-gram (or word loop) as `grammar_from_arpa` and `word_loop` give it, made ready to score word sequences.

    Args:
        grammar: pywrapfst FST over word ids; a state has at most one arc for each word and one epsilon arc, which backs
            off.

    Raises:
        GraphError: two arcs of one state have the same word, or both are epsilons.
    """

    def __init__(self, grammar: Any) -> None:
        arcs = Transducer.from_openfst(grammar)
        self._start = arcs.start
        self._final = arcs.final_log_prob
        self._width = int(arcs.ilabel.max(initial=0)) + 1
        key = arcs.src.astype(np.int64) * self._width + arcs.ilabel
        order = np.argsort(key, kind="stable")
        self._key, self._dst, self._log_prob = key[order], arcs.dst[order], arcs.log_prob[order]
        twice = np.flatnonzero(np.diff(self._key) == 0)
        if twice.size:
            state, label = divmod(int(self._key[twice[0]]), self._width)
            raise GraphError(
                f"grammar: state {state} has two arcs with word id {label}; expected an n-gram, which has one at most"
            )

    def log_prob(self, word_ids: Iterable[int]) -> float:
        """Log-probability of a sentence as an n-gram means it: a shorter history counts only where the longer is unseen.

        Returns:
            Natural log, the end of the sentence included; -inf for a word that the grammar does not have.
        """
        state, total = self._start, 0.0
        for word_id in word_ids:
            arc = self._arc(state, word_id)
            while arc is None:
                backoff = self._arc(state, 0)
                if backoff is None:
                    return -math.inf
                state, total = backoff[0], total + backoff[1]
                arc = self._arc(state, word_id)
            state, total = arc[0], total + arc[1]
        while self._final[state] == -math.inf:
            backoff = self._arc(state, 0)
            if backoff is None:
                return -math.inf
            state, total = backoff[0], total + backoff[1]
        return total + float(self._final[state])

    def best_path_log_prob(self, word_ids: Iterable[int]) -> float:
        """Log-probability of the best path of a sentence, as a decoding graph of this grammar has it.

        There the arc that backs off is open even where the longer history is known, so this is `log_prob` or more.
        """
        reached = self._with_backoff({self._start: 0.0})
        for word_id in word_ids:
            after: dict[int, float] = {}
            for state, total in reached.items():
                arc = self._arc(state, word_id)
                if arc is not None:
                    after[arc[0]] = max(after.get(arc[0], -math.inf), total + arc[1])
            reached = self._with_backoff(after)
        return max((total + float(self._final[state]) for state, total in reached.items()), default=-math.inf)

    def _with_backoff(self, reached: dict[int, float]) -> dict[int, float]:
        """The states of `reached` and those that they back off to, each with the best score."""
        found = dict(reached)
        waiting = list(reached)
        while waiting:
            state = waiting.pop()
            backoff = self._arc(state, 0)
            if backoff is not None and found[state] + backoff[1] > found.get(backoff[0], -math.inf):
                found[backoff[0]] = found[state] + backoff[1]
                waiting.append(backoff[0])
        return found

    def _arc(self, state: int, label: int) -> tuple[int, float] | None:
        """Destination and log-probability of the arc with this label; None if there is none."""
        if label >= self._width:
            return None
        key = state * self._width + label
        place = int(np.searchsorted(self._key, key))
        if place == len(self._key) or self._key[place] != key:
            return None
        return int(self._dst[place]), float(self._log_prob[place])
