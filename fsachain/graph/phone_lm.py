"""The phone language model of a denominator: an unsmoothed n-gram with few states, as an acceptor.

A state is a phone history. Nothing is smoothed and no arc backs off: each state has arcs for the phones seen
after it and no others, which keeps the denominator small. Instead whole states are removed. The states that
can be spared (histories of `no_prune_ngram_order` phones or more) are merged, the cheapest in training
log-likelihood first, into the state of the history without its oldest phone, until `num_extra_lm_states` are
left on top of the states that `no_prune_ngram_order` asks for. Phone 0 stands for the start of the sentence
in a history, and for its end as next phone. The method is that of Kaldi's chain recipes (Povey et al.,
Interspeech 2016), down to its order of merging, so that the same sentences give the same acceptor.
"""

from __future__ import annotations

import heapq
import math
import operator
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat

import numpy as np
import numpy.typing as npt

from fsachain.errors import ConfigError, GraphError
from fsachain.fsa import Fsa

_BOUNDARY = 0
_MAX_PHONE = int(np.iinfo(np.int32).max)
_NUM_STAGES = 4
_UNCHANGED = 1e-3


@dataclass(slots=True)
class _State:
    """A history (phones, oldest first; 0 is the start of the sentence) and how often each phone (0: the end) followed.

    `backoff` is the index of the state without the oldest phone, -1 where this one must stay; `total` the sum of
    `counts`, 0 for a state that was merged into its backoff or never seen; `total_below` adds the totals of all states
    whose backoff chain passes here; `may_merge` says that the state is, or was, in the queue. `known_cost` is that of the
    merge after so many changes of the counts of the backoff.
    """

    history: tuple[int, ...]
    backoff: int = -1
    counts: dict[int, int] = field(default_factory=dict)
    total: int = 0
    total_below: int = 0
    may_merge: bool = False
    known_log_likelihood: float | None = None
    known_cost: tuple[int, float] = (-1, 0.0)
    num_changes: int = 0

    def log_likelihood(self) -> float:
        """`_log_likelihood` of the counts, kept until they change."""
        if self.known_log_likelihood is None:
            self.known_log_likelihood = _log_likelihood(self.counts, self.total)
        return self.known_log_likelihood

    def absorb(self, other: _State) -> None:
        for phone, count in other.counts.items():
            self.counts[phone] = self.counts.get(phone, 0) + count
        self.total += other.total
        self.known_log_likelihood, self.known_cost = None, (-1, 0.0)
        self.num_changes += 1
        other.counts, other.total, other.total_below, other.may_merge = {}, 0, 0, False


def estimate_phone_lm(
    sequences: Iterable[Sequence[int]],
    ngram_order: int = 4,
    num_extra_lm_states: int = 1000,
    no_prune_ngram_order: int = 3,
) -> Fsa:
    """Estimate the phone language model that a denominator is built from.

    Args:
        sequences: phone ids >= 1 of each sentence, silence included (see `lm_phones`). An empty sentence
            counts as one end directly after the start.
        ngram_order: longest n-gram; histories have up to `ngram_order - 1` phones. At least 2.
        num_extra_lm_states: states to keep beyond those that cannot be merged. At least 0.
        no_prune_ngram_order: n-grams up to this order keep their states, at least 1; usually the width of the
            phone context or one more. From `ngram_order` on nothing is pruned.

    Returns:
        Acceptor over phones, `pdf` = phone id - 1, deterministic; each state's arcs and final weight sum to
        one. States are numbered in the order in which their histories first appeared, arcs are sorted by
        phone.

    Raises:
        ConfigError: an order or number of states out of range.
        GraphError: no phone at all, or something other than a phone id >= 1 in a sentence.
    """
    if ngram_order < 2:
        raise ConfigError(f"ngram_order = {ngram_order}: expected at least 2 (one phone of history)")
    if no_prune_ngram_order < 1:
        raise ConfigError(f"no_prune_ngram_order = {no_prune_ngram_order}: expected at least 1")
    if num_extra_lm_states < 0:
        raise ConfigError(f"num_extra_lm_states = {num_extra_lm_states}: expected at least 0")
    estimator = _Estimator(ngram_order, no_prune_ngram_order)
    text, starts = array("q"), array("q")
    for number, sequence in enumerate(sequences):
        starts.append(len(text))
        text.extend((_BOUNDARY, *_phones(sequence, number)))
    if len(text) == len(starts):
        raise GraphError("sequences hold no phone: expected at least one sentence with at least one phone")
    estimator.count(np.append(text, _BOUNDARY), np.array(starts))
    estimator.prune(num_extra_lm_states)
    return estimator.acceptor()


def _phones(sequence: Sequence[int], number: int) -> list[int]:
    try:
        phones = [operator.index(phone) for phone in sequence]
    except TypeError as error:
        raise GraphError(
            f"sequences[{number}] = {sequence!r}: expected integer phone ids ({error})"
        ) from None
    if phones and not 1 <= min(phones) <= max(phones) <= _MAX_PHONE:
        position, phone = next((i, p) for i, p in enumerate(phones) if not 1 <= p <= _MAX_PHONE)
        raise GraphError(
            f"sequences[{number}][{position}] = {phone}: expected a phone id in [1, {_MAX_PHONE}]"
        )
    return phones


class _Estimator:
    """States by history, and the queue of merges."""

    def __init__(self, ngram_order: int, no_prune_ngram_order: int) -> None:
        self.longest = ngram_order - 1
        self.no_prune = no_prune_ngram_order
        self.states: list[_State] = []
        self.index: dict[tuple[int, ...], int] = {}

    def count(self, text: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]) -> None:
        """Make the states of all histories in the order in which they appear.

        text: the sentences, a boundary before each and behind the last; starts: where each begins.
        """
        place = np.arange(1, len(text))
        start = starts[np.searchsorted(starts, place - 1, side="right") - 1]
        base = int(text.max()) + 2
        history = np.zeros(len(place), np.int64)
        for back in range(min(self.longest, int((place - start).max())), 0, -1):
            older = np.where(place - back >= start, text[place - back] + 1, 0)
            history = _small(history, base) * base + older
        history = _small(history, base)
        known, first = np.unique(history, return_index=True)
        pairs, counts = np.unique(history * base + text[1:], return_counts=True)
        ends = np.append(np.searchsorted(pairs, known * base), len(pairs)).tolist()
        phones, counts = (pairs % base).tolist(), counts.tolist()
        for number in np.argsort(first).tolist():
            end = int(place[first[number]])
            begin = max(end - self.longest, int(start[first[number]]))
            state = self.states[self.find_or_create(tuple(text[begin:end].tolist()))]
            own = slice(ends[number], ends[number + 1])
            state.counts = dict(zip(phones[own], counts[own], strict=True))
            state.total = sum(counts[own])

    def find_or_create(self, history: tuple[int, ...]) -> int:
        """Index of the state of `history`, made with its chain of backoff states if new."""
        index = self.index.get(history)
        if index is None:
            index = self.index[history] = len(self.states)
            self.states.append(_State(history))
            if len(history) >= self.no_prune:
                self.states[index].backoff = self.find_or_create(history[1:])
        return index

    def prune(self, num_extra: int) -> None:
        """Merge states until `num_extra` are left beyond those of length `no_prune - 1`, or none may go."""
        for state in self.states:
            index = self.index[state.history]
            while index != -1:
                self.states[index].total_below += state.total
                index = self.states[index].backoff
        initial = num_active = sum(state.total > 0 for state in self.states)
        target = sum(len(state.history) == self.no_prune - 1 for state in self.states) + num_extra
        # All merge costs are computed anew in four stages, as merges change those of the states nearby.
        for stage in range(1, _NUM_STAGES + 1):
            stage_target = initial + math.trunc((target - initial) * stage / _NUM_STAGES)
            num_active = self.prune_to(stage_target, num_active)

    def prune_to(self, target: int, num_active: int) -> int:
        """Merge the cheapest states until `target` are active; returns how many are."""
        queue: list[tuple[float, int]] = []
        for index, state in enumerate(self.states):
            state.may_merge = self.merge_allowed(state)
            if state.may_merge:
                queue.append((self.merge_cost(state), -index))
        heapq.heapify(queue)
        while num_active > target and queue:
            queued_cost, negative_index = heapq.heappop(queue)
            state = self.states[-negative_index]
            cost = self.merge_cost(state)
            if abs(cost - queued_cost) > _UNCHANGED * (abs(cost) + abs(queued_cost)):
                heapq.heappush(queue, (cost, negative_index))
                continue
            backoff = self.states[state.backoff]
            num_active -= backoff.total > 0
            was_queued = backoff.may_merge
            backoff.absorb(state)
            backoff.may_merge = self.merge_allowed(backoff)
            if backoff.may_merge and not was_queued:
                heapq.heappush(queue, (self.merge_cost(backoff), -state.backoff))
        return num_active

    def merge_allowed(self, state: _State) -> bool:
        """Whether `state` may go: it is alive, all longer histories are merged, no arc needs its context."""
        if len(state.history) < self.no_prune or not 0 < state.total == state.total_below:
            return False
        if len(state.history) == self.longest:
            return True
        following = ((*state.history, phone) for phone in state.counts if phone != _BOUNDARY)
        indices = (self.index.get(history) for history in following)
        return all(index is None or self.states[index].total_below == 0 for index in indices)

    def merge_cost(self, state: _State) -> float:
        """Loss of training log-likelihood if `state` is merged into its backoff; ties go by the count.

        Rounded to 32 bits: costs that are equal but for rounding errors must tie, as they do in Kaldi.
        """
        backoff = self.states[state.backoff]
        if backoff.total == 0:
            return float(np.float32(1e-15 * state.total))
        if state.known_cost[0] != backoff.num_changes:
            state.known_cost = backoff.num_changes, self._merge_cost(state, backoff)
        return state.known_cost[1]

    def _merge_cost(self, state: _State, backoff: _State) -> float:
        counts = dict(backoff.counts)
        for phone, count in state.counts.items():
            counts[phone] = counts.get(phone, 0) + count
        before = state.log_likelihood() + backoff.log_likelihood()
        after = _log_likelihood(counts, state.total + backoff.total)
        return max(0.0, float(np.float32(before - after)))

    def acceptor(self) -> Fsa:
        """The active states as an `Fsa`; an arc leads to the longest active history ending in its phone."""
        active = [state for state in self.states if state.total > 0]
        number = {state.history: index for index, state in enumerate(active)}
        arcs: list[tuple[int, int, int]] = []
        log_prob: list[float] = []
        final = np.full(len(active), -math.inf)
        for src, state in enumerate(active):
            for phone, count in sorted(state.counts.items()):
                value = math.log(count / state.total)
                if phone == _BOUNDARY:
                    final[src] = value
                else:
                    arcs.append((src, _longest_suffix((*state.history, phone), number), phone - 1))
                    log_prob.append(value)
        src, dst, pdf = np.array(arcs, dtype=np.int32).T
        return Fsa(
            len(active), src, dst, pdf, np.array(log_prob), final, _longest_suffix((_BOUNDARY,), number)
        )


def _small(keys: npt.NDArray[np.int64], base: int) -> npt.NDArray[np.int64]:
    """The keys, or their ranks where a further digit to this base could leave the range of integers."""
    if int(keys.max()) < np.iinfo(np.int64).max // base - 1:
        return keys
    return np.unique(keys, return_inverse=True)[1].astype(np.int64)


def _log_likelihood(counts: dict[int, int], total: int) -> float:
    """Log-likelihood of `counts` under their own relative frequencies."""
    ordered = list(map(counts.__getitem__, sorted(counts)))
    shares = map(operator.truediv, ordered, repeat(total))
    return sum(map(operator.mul, map(math.log, shares), ordered))


def _longest_suffix(history: tuple[int, ...], number: dict[tuple[int, ...], int]) -> int:
    while history not in number:
        history = history[1:]
    return number[history]
