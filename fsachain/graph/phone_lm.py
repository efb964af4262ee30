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
from array import array
from collections.abc import Collection, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from fsachain.errors import ConfigError, GraphError
from fsachain.files import without_collector
from fsachain.fsa import Fsa

_BOUNDARY = 0
_MAX_PHONE = int(np.iinfo(np.int32).max)
_NUM_STAGES = 4
_UNCHANGED = 1e-3
_TO_FLOAT32 = float(2**29 + 1)  # x is 24 bits of itself, (f x) - ((f x) - x), and the rest (Veltkamp)


@without_collector()
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
        text.append(_BOUNDARY)
        try:
            text.extend(array("q", list(sequence)))
        except (TypeError, OverflowError) as error:
            raise GraphError(
                f"sequences[{number}] = {sequence!r}: expected integer phone ids ({error})"
            ) from None
    if len(text) == len(starts):
        raise GraphError("sequences hold no phone: expected at least one sentence with at least one phone")
    estimator.count(np.append(text, _BOUNDARY), np.array(starts))
    estimator.prune(num_extra_lm_states)
    return estimator.acceptor()


class _Estimator:
    """States, a number for each history in the order in which they appear, and the queue of merges.

    `histories` are phones, oldest first, 0 the start of the sentence; `backoff` is the state without the oldest phone, -1
    where this one must stay; `items` says how often each phone (0: the end) followed, `total` is their sum, 0 for a state
    that was merged into its backoff or never seen. No state that was seen in the text is a backoff, since it has all the
    phones there are before it: `counts`, of which `items` is a view then, only grow by merges. `below` adds the totals of
    all states whose backoff chain passes here, 0 once merged; `changes` is how often another was merged into this one;
    `known` the last entry of the queue.
    """

    def __init__(self, ngram_order: int, no_prune_ngram_order: int) -> None:
        self.longest = ngram_order - 1
        self.no_prune = no_prune_ngram_order
        self.index: dict[tuple[int, ...], int] = {}
        self.histories: list[tuple[int, ...]] = []
        self.backoff: list[int] = []
        self.counts: list[dict[int, int]] = []
        self.items: list[Collection[tuple[int, int]]] = []
        self.total: list[int] = []
        self.below: list[int] = []
        self.changes: list[int] = []
        self.known: list[tuple[float, int, int]] = []
        self.times_log: list[float] = []

    def count(self, text: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]) -> None:
        """Make the states of all histories.

        text: the sentences, a boundary before each and behind the last; starts: where each begins.
        """
        _check_phones(text, starts)
        place = np.arange(1, len(text))
        age = place - np.repeat(starts, np.diff(starts, append=len(text) - 1))
        base = int(text.max()) + 2
        limit = np.iinfo(np.int64).max // base - 1  # from which on another digit could leave the range
        history = np.zeros(len(place), np.int64)
        for back in range(min(self.longest, int(age.max())), 0, -1):
            older = np.where(age >= back, text[place - back] + 1, 0)
            history = _small(history, limit) * base + older
        history = _small(history, limit)
        ngram = _small(history * base + text[1:], 8 * len(text))
        counts = np.bincount(ngram)
        first = np.empty(len(counts), np.int64)
        first[ngram[::-1]] = place[::-1]  # the last assignment stays
        seen = np.flatnonzero(counts)
        first = first[seen]
        items = list(zip(text[first].tolist(), counts[seen].tolist(), strict=True))
        begins = np.flatnonzero(np.diff(history[first - 1], prepend=-1))
        totals = np.add.reduceat(counts[seen], begins)
        ends = np.append(begins[1:], len(first))
        first = np.minimum.reduceat(first, begins)
        order = np.argsort(first)
        columns = (first - np.minimum(self.longest, age[first - 1]), first, begins, ends, totals)
        for oldest, newest, begin, end, total in zip(
            *(column[order].tolist() for column in columns), strict=True
        ):
            state = self.find_or_create(tuple(text[oldest:newest].tolist()))
            self.items[state] = items[begin:end]
            self.total[state] = total

    def find_or_create(self, history: tuple[int, ...]) -> int:
        """The state of `history`, made with its chain of backoff states if new."""
        state = self.index.get(history)
        if state is None:
            state = self.index[history] = len(self.histories)
            self.histories.append(history)
            self.counts.append({})
            self.items.append(self.counts[state].items())
            self.total.append(0)
            self.backoff.append(-1)
            if len(history) >= self.no_prune:
                self.backoff[state] = self.find_or_create(history[1:])
        return state

    def prune(self, num_extra: int) -> None:
        """Merge states until `num_extra` are left beyond those of length `no_prune - 1`, or none may go."""
        self.below = self.total.copy()
        self.changes = [0] * len(self.total)
        self.known = [(0.0, 0, -1)] * len(self.total)
        self.candidates = [state for state, backoff in enumerate(self.backoff) if backoff >= 0]
        for state in sorted(range(len(self.total)), key=lambda state: -len(self.histories[state])):
            if self.backoff[state] >= 0:
                self.below[self.backoff[state]] += self.below[state]
        most = np.arange(1 + max((self.below[self.backoff[state]] for state in self.candidates), default=0))
        self.times_log = (most * np.log(np.maximum(most, 1))).tolist()
        initial = num_active = len(self.total) - self.total.count(0)
        target = sum(len(history) == self.no_prune - 1 for history in self.histories) + num_extra
        # All merge costs are computed anew in four stages, as merges change those of the states nearby.
        for stage in range(1, _NUM_STAGES + 1):
            stage_target = initial + math.trunc((target - initial) * stage / _NUM_STAGES)
            num_active = self.prune_to(stage_target, num_active)

    def prune_to(self, target: int, num_active: int) -> int:
        """Merge the cheapest states until `target` are active; returns how many are."""
        total, changes = self.total, self.changes
        self.candidates = [state for state in self.candidates if self.below[state]]
        queued = set(filter(self.may_merge, self.candidates))
        # Most entries leave from where they stand; only those whose costs changed need a heap, which stays small.
        entries = sorted(map(self.entry, queued), reverse=True)
        queue: list[tuple[float, int, int]] = []
        while num_active > target and (entries or queue):
            top = heapq.heappop(queue) if queue and (not entries or queue[0] < entries[-1]) else entries.pop()
            state = -top[1]
            backoff = self.backoff[state]
            if top[2] != changes[state] + changes[backoff]:
                entry = self.entry(state)
                if abs(entry[0] - top[0]) > _UNCHANGED * (entry[0] + top[0]):
                    heapq.heappush(queue, entry)
                    continue
            num_active -= total[backoff] > 0
            counts = self.counts[backoff]
            for phone, count in self.items[state]:
                counts[phone] = counts.get(phone, 0) + count
            total[backoff] += total[state]
            total[state] = self.below[state] = 0
            changes[backoff] += 1
            if self.backoff[backoff] >= 0 and backoff not in queued and self.may_merge(backoff):
                queued.add(backoff)
                heapq.heappush(queue, self.entry(backoff))
        return num_active

    def may_merge(self, state: int) -> bool:
        """Whether `state` may go: it is alive, all longer histories are merged, no arc needs its context."""
        if not 0 < self.total[state] == self.below[state]:
            return False
        history = self.histories[state]
        if len(history) == self.longest:
            return True
        following = (
            self.index.get((*history, phone)) for phone, _ in self.items[state] if phone != _BOUNDARY
        )
        return all(index is None or self.below[index] == 0 for index in following)

    def entry(self, state: int) -> tuple[float, int, int]:
        """Of the queue: the loss of training log-likelihood if `state` is merged; ties go by the last; how old that is.

        Rounded to 32 bits: costs that are equal but for rounding errors must tie, as they do in Kaldi.
        """
        backoff = self.backoff[state]
        age = self.changes[state] + self.changes[backoff]
        entry = self.known[state]
        if entry[2] == age:
            return entry
        own, other = self.total[state], self.total[backoff]
        if not other:
            return 1e-15 * own, -state, age
        # The log-likelihood of counts c under their own frequencies is sum c log c - n log n, n = sum c.
        times_log, known = self.times_log, self.counts[backoff]
        cost = times_log[own + other] - times_log[own] - times_log[other]
        for phone, count in self.items[state]:
            if phone in known:
                also = known[phone]
                cost += times_log[count] + times_log[also] - times_log[count + also]
        if cost < 0.0:
            cost = 0.0
        shifted = cost * _TO_FLOAT32
        entry = self.known[state] = shifted - (shifted - cost), -state, age
        return entry

    def acceptor(self) -> Fsa:
        """The active states as an `Fsa`; an arc leads to the longest active history ending in its phone."""
        active = [state for state, total in enumerate(self.total) if total]
        number = {self.histories[state]: index for index, state in enumerate(active)}
        arcs: list[tuple[int, int, int]] = []
        log_prob: list[float] = []
        final = np.full(len(active), -math.inf)
        for src, state in enumerate(active):
            for phone, count in sorted(self.items[state]):
                value = math.log(count / self.total[state])
                if phone == _BOUNDARY:
                    final[src] = value
                else:
                    following = (*self.histories[state], phone)[-self.longest :]
                    arcs.append((src, _longest_suffix(following, number), phone - 1))
                    log_prob.append(value)
        src, dst, pdf = np.array(arcs, dtype=np.int32).T
        return Fsa(
            len(active), src, dst, pdf, np.array(log_prob), final, _longest_suffix((_BOUNDARY,), number)
        )


def _check_phones(text: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]) -> None:
    bad = (text < 1) | (text > _MAX_PHONE)
    bad[starts] = bad[-1] = False
    if bad.any():
        place = int(np.argmax(bad))
        number = int(np.searchsorted(starts, place)) - 1
        raise GraphError(
            f"sequences[{number}][{place - starts[number] - 1}] = {text[place]}: expected a phone id in [1, {_MAX_PHONE}]"
        )


def _small(keys: npt.NDArray[np.int64], limit: int) -> npt.NDArray[np.int64]:
    """The keys, or their ranks where one reaches `limit`."""
    if int(keys.max()) < limit:
        return keys
    return np.unique(keys, return_inverse=True)[1].astype(np.int64)


def _longest_suffix(history: tuple[int, ...], number: dict[tuple[int, ...], int]) -> int:
    while history not in number:
        history = history[1:]
    return number[history]
