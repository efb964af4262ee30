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

import math
from array import array
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from fsachain.errors import ConfigError, GraphError, integer
from fsachain.files import without_collector
from fsachain.fsa import Fsa, Ints

_BOUNDARY = 0
_MAX_PHONE = int(np.iinfo(np.int32).max)
_NUM_STAGES = 4
_UNCHANGED = 1e-3
_LAST_STATE = 2**32 - 1
_NEVER = int(np.iinfo(np.int64).max)  # later than any entry


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
    if integer("ngram_order", ngram_order) < 2:
        raise ConfigError(f"ngram_order = {ngram_order}: expected at least 2 (one phone of history)")
    if integer("no_prune_ngram_order", no_prune_ngram_order) < 1:
        raise ConfigError(f"no_prune_ngram_order = {no_prune_ngram_order}: expected at least 1")
    if integer("num_extra_lm_states", num_extra_lm_states) < 0:
        raise ConfigError(f"num_extra_lm_states = {num_extra_lm_states}: expected at least 0")
    estimator = _Estimator(ngram_order, no_prune_ngram_order)
    text, starts = array("q"), array("q")
    for number, sequence in enumerate(sequences):
        starts.append(len(text))
        text.append(_BOUNDARY)
        try:
            text.fromlist(list(sequence))
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
    """States, a number for each history in the order in which they appear, and what followed them.

    A state's history has `length` phones, 0 for the start of the sentence among them; `backoff` is the state without the
    oldest, -1 where this one must stay; `total` is how often any phone or the end followed, 0 for a state that was merged
    into its backoff or never seen; `below` adds the totals of all states whose backoff chain passes here, 0 once merged.

    An item is a phone that followed the state `owner`, 0 for the end, and how often it did, `counts`; `slot` is the same
    phone's item of the backoff, and `follow` the state of the longest history behind it, each -1 if there is none. The
    items of a state are those from `begin` to `end`, sorted by phone. No state that was seen in the text is a backoff,
    since it has all the phones there are before it: the counts of backoffs come from merges. `came` is the order in
    which they did, 0 for items that were seen.
    """

    def __init__(self, ngram_order: int, no_prune_ngram_order: int) -> None:
        self.longest = ngram_order - 1
        self.no_prune = no_prune_ngram_order

    def count(self, text: Ints, starts: Ints) -> None:
        """Make the states of all histories, and their items.

        text: the sentences, a boundary before each and behind the last; starts: where each begins.
        """
        _check_phones(text, starts)
        base = int(text.max()) + 2
        place = np.arange(1, len(text))
        age = place - np.repeat(starts, np.diff(starts, append=len(text) - 1))
        history: Ints = np.zeros(len(place), np.int64)
        for back in range(min(self.longest, int(age.max())), 0, -1):
            history = _longer(history, np.where(age >= back, text[place - back] + 1, 0), base)
        history = _ranks(history)
        ngram = _ranks(_longer(history, text[1:], base))
        self.counts = np.bincount(ngram)
        first = np.empty(len(self.counts), np.int64)
        first[ngram[::-1]] = place[::-1]  # the last assignment stays
        self.owner = history[first - 1]
        self.phone = text[first]
        self.follow = np.where(self.phone == _BOUNDARY, -1, np.append(history, -1)[first])
        self.slot = np.full(len(first), -1)
        begin = _begins(self.owner)
        self.total = np.add.reduceat(self.counts, begin)
        self.backoff = np.full(len(begin), -1)
        first = np.minimum.reduceat(first, begin)
        self.length = np.minimum(self.longest, age[first - 1])
        self.sizes = range(int(self.length.max()), self.no_prune - 1, -1)
        # In the order of their numbers a state is followed by its chain of backoffs, as far as they are new.
        step = len(self.sizes) + 1
        born: Ints = first * step
        for size in self.sizes:
            longer = np.flatnonzero(self.length == size)
            rest: Ints = np.zeros(len(longer), np.int64)
            for back in range(size - 1, 0, -1):
                rest = _longer(rest, text[born[longer] // step - back], base)
            born = self._add_backoffs(longer, _ranks(rest), born, base)
        self._number(np.argsort(born))

    def _add_backoffs(self, longer: Ints, history: Ints, born: Ints, base: int) -> Ints:
        """The states into which `longer`, all of one length, may be merged; `born` with theirs.

        history: a number for each that tells the new states apart.
        """
        known, size = len(born), int(self.length[longer[0]]) - 1
        self.backoff[longer] = known + history
        items = np.flatnonzero(self.length[self.owner] == size + 1)
        owner = self.backoff[self.owner[items]]
        item = _ranks(_longer(owner - known, self.phone[items], base))
        self.slot[items] = len(self.slot) + item
        one = np.empty(int(item.max()) + 1, np.int64)  # of those that share a slot
        one[item] = items
        follow = self.follow[one]
        if size + 1 < self.longest:
            follow = np.where(follow < 0, -1, self.backoff[follow])
        self.owner = np.append(self.owner, self.backoff[self.owner[one]])
        self.phone = np.append(self.phone, self.phone[one])
        self.follow = np.append(self.follow, follow)
        self.slot = np.append(self.slot, np.full(len(one), -1))
        self.counts = np.append(self.counts, np.zeros(len(one), np.int64))
        born_new = np.full(int(history.max()) + 1, np.iinfo(np.int64).max)
        np.minimum.at(born_new, history, born[longer] + 1)
        self.length = np.append(self.length, np.full(len(born_new), size))
        self.backoff = np.append(self.backoff, np.full(len(born_new), -1))
        self.total = np.append(self.total, np.zeros(len(born_new), np.int64))
        return np.append(born, born_new)

    def _number(self, order: Ints) -> None:
        """Give the states their numbers: `order` are those that they have, sorted by the new ones."""
        number = np.full(len(order) + 1, -1)  # the last for -1
        number[order] = np.arange(len(order))
        begin = _begins(self.owner)
        self.begin, self.end = begin[order], np.append(begin[1:], len(self.owner))[order]
        self.length, self.total = self.length[order], self.total[order]
        self.backoff = number[self.backoff[order]]
        self.owner, self.follow = number[self.owner], number[self.follow]

    def prune(self, num_extra: int) -> None:
        """Merge states until `num_extra` are left beyond those of length `no_prune - 1`, or none may go."""
        self.below = self.total.copy()
        for size in self.sizes:
            longer = np.flatnonzero(self.length == size)
            np.add.at(self.below, self.backoff[longer], self.below[longer])
        most = np.arange(1 + int(self.below[self.backoff[self.backoff >= 0]].max(initial=0)))
        self.times_log = most * np.log(np.maximum(most, 1))
        self.came = np.zeros(len(self.owner), np.int64)
        self.num_came = 1
        initial = num_active = int(np.count_nonzero(self.total))
        target = int(np.count_nonzero(self.length == self.no_prune - 1)) + num_extra
        # All merge costs are computed anew in four stages, as merges change those of the states nearby.
        for stage in range(1, _NUM_STAGES + 1):
            stage_target = initial + math.trunc((target - initial) * stage / _NUM_STAGES)
            if num_active > stage_target:
                num_active -= self.prune_by(num_active - stage_target)

    def prune_by(self, spare: int) -> int:
        """Merge the cheapest states until `spare` fewer are active; returns how many fewer are.

        The method is a queue of `entries`, from which the least is taken. If its cost is still about that, the state is
        merged, else it goes back with its cost as it is now. A merge changes the costs of only those states that have the
        same backoff, a group. So each group has a queue of its own, of which the first merge is made in each round; what all
        of them merge, sorted by the entry that was taken, its time, is what one queue merges. What comes after the last that
        is to be merged is undone.
        """
        before = self.counts.copy(), self.total.copy(), self.below.copy()
        # When a state was merged, _NEVER for those that are active, the last for -1; when another was merged into it.
        gone = np.where(np.append(self.below, 0) > 0, _NEVER, -1)
        last = np.full(len(self.total), -1)
        rounds: list[tuple[Ints, Ints, npt.NDArray[np.bool_]]] = []
        # The least times of `spare` merges that each leave one state less, and the greatest of them, if there are so many.
        times, bound = np.empty(0, np.int64), _NEVER - 1
        for size in self.sizes:
            state = self.may_merge(size, gone, last)
            entry = np.where(last[state] < 0, self.entries(state), last[state])
            group = np.unique(self.backoff[state], return_inverse=True)[1]
            while len(state):
                chosen, time = self.first_merges(state, entry, group)
                merged = state[chosen]
                backoff = self.backoff[merged]
                # What was taken is not less than what was taken before: a queue's least entry never falls.
                gone[merged] = last[backoff] = time
                fewer = self.total[backoff] > 0
                rounds.append((merged, time, fewer))
                self.merge(merged)
                times = np.append(times, time[fewer])
                if len(times) >= spare:
                    times = np.partition(times, spare - 1)[:spare]
                    bound = int(times[-1])
                entry[chosen] = _NEVER
                left = np.flatnonzero(entry <= bound)
                state, entry, group = state[left], entry[left], group[left]
        if not rounds:
            return 0
        state, time, fewer = map(np.concatenate, zip(*rounds, strict=True))
        order = np.argsort(time, kind="stable")
        order = order[: 1 + int(np.searchsorted(np.cumsum(fewer[order]), spare))]
        self.counts, self.total, self.below = before
        for size in self.sizes:
            self.merge(state[order][self.length[state[order]] == size])
        return int(np.count_nonzero(fewer[order]))

    def may_merge(self, size: int, gone: Ints, last: Ints) -> Ints:
        """The states of `size` phones that may go: alive, longer ones merged, no arc needs their context."""
        state = np.flatnonzero((self.length == size) & (self.total > 0) & (self.total == self.below))
        if size < self.longest:
            items, which = self.items(state)
            state = np.delete(state, which[gone[self.follow[items]] > last[state][which]])
        return state

    def first_merges(self, state: Ints, entry: Ints, group: Ints) -> tuple[Ints, Ints]:
        """Run each group's queue up to its first merge: the index of the state, and the entry that was taken.

        group: a small number for each state's. `entry` becomes what the queues then hold, at least what was taken.
        """
        time = np.full(int(group.max()) + 1, _NEVER)
        np.minimum.at(time, group, entry)
        # Costs are computed of the first of each queue, then of those that are taken before it is merged.
        first = np.flatnonzero(entry == time[group])
        now, due = self.due(state[first], entry[first])
        time[group[first]] = due
        is_taken = entry < time[group]
        is_taken[first] = False
        others = np.flatnonzero(is_taken)
        now_others, due_others = self.due(state[others], entry[others])
        np.minimum.at(time, group[others], due_others)
        taken, due = np.concatenate([first, others]), np.concatenate([due, due_others])
        now, end = np.concatenate([now, now_others]), time[group[taken]]
        entry[taken] = np.where(entry[taken] < end, now, entry[taken])
        merged = np.flatnonzero(due == end)
        return taken[merged], due[merged]

    def due(self, state: Ints, entry: Ints) -> tuple[Ints, Ints]:
        """The entries of states in the queue as they are now, and when each would be merged."""
        now = self.entries(state)
        cost, known = _costs(now), _costs(entry)
        close = np.abs(cost - known) <= _UNCHANGED * (cost + known)
        # The entry of a state that has just come into the queue is not its own, but the time when it came.
        own = entry & _LAST_STATE == _LAST_STATE - state
        return now, np.where(close & own, entry, np.maximum(entry, now))

    def entries(self, state: Ints) -> Ints:
        """Of the queue: the loss of training log-likelihood if a state is merged; ties go by the last state.

        One integer for both, in this order: the bits of a float32, which are sorted as numbers >= 0 are, and _LAST_STATE -
        state. 32 bits, because costs that are equal but for rounding errors must tie, as they do in Kaldi.
        """
        own, other = self.total[state], self.total[self.backoff[state]]
        items, which = self.items(state)
        count, also = self.counts[items], self.counts[self.slot[items]]
        # The log-likelihood of counts c under their own frequencies is sum c log c - n log n, n = sum c.
        log = self.times_log
        cost = log[own + other] - log[own] - log[other]
        np.add.at(cost, which, log[count] + log[also] - log[count + also])  # one after the other
        cost = np.where(other > 0, np.maximum(cost, 0.0), 1e-15 * own).astype(np.float32)
        return (cost.view(np.int32).astype(np.int64) << 32) + (_LAST_STATE - state)

    def items(self, state: Ints) -> tuple[Ints, Ints]:
        """The items of each state, in the order in which they came, and the index of its state for each."""
        size = self.end[state] - self.begin[state]
        which = np.arange(len(state)).repeat(size)
        items = np.arange(len(which)) + (self.end[state] - size.cumsum()).repeat(size)
        if self.came[items].any():
            items = items[np.lexsort((self.came[items], which))]
        return items, which

    def merge(self, state: Ints) -> None:
        """Merge states of one length into their backoffs."""
        items, _ = self.items(state)
        slot = self.slot[items]
        new = np.flatnonzero(self.counts[slot] == 0)[::-1]  # the last assignment stays
        self.came[slot[new]] = self.num_came + new
        self.num_came += len(items)
        np.add.at(self.counts, slot, self.counts[items])
        np.add.at(self.total, self.backoff[state], self.total[state])
        self.total[state] = self.below[state] = 0

    def acceptor(self) -> Fsa:
        """The active states as an `Fsa`; an arc leads to the longest active history ending in its phone."""
        active = self.total > 0
        number = np.cumsum(active) - 1
        items = np.flatnonzero(active[self.owner] & (self.counts > 0))
        items = items[np.argsort(self.owner[items], kind="stable")]
        share = self.counts[items] / self.total[self.owner[items]]
        log_prob = np.array(list(map(math.log, share.tolist())))
        src, phone = number[self.owner[items]], self.phone[items]
        arcs, ends = phone != _BOUNDARY, phone == _BOUNDARY
        final = np.full(int(number[-1]) + 1, -math.inf)
        final[src[ends]] = log_prob[ends]
        dst = np.append(self.follow[items[arcs]], 0)  # the last for the start: its history appeared first
        while not active[dst].all():
            dst = np.where(active[dst], dst, self.backoff[dst])
        dst = number[dst]
        src, dst, start, pdf = src[arcs], dst[:-1], int(dst[-1]), phone[arcs] - 1
        return Fsa(len(final), src, dst, pdf, log_prob[arcs], final, start)


def _check_phones(text: Ints, starts: Ints) -> None:
    bad = (text < 1) | (text > _MAX_PHONE)
    bad[starts] = bad[-1] = False
    if bad.any():
        place = int(np.argmax(bad))
        number = int(np.searchsorted(starts, place)) - 1
        raise GraphError(
            f"sequences[{number}][{place - starts[number] - 1}] = {text[place]}: expected a phone id in [1, {_MAX_PHONE}]"
        )


def _begins(groups: Ints) -> Ints:
    """Where groups begin that stand together."""
    return np.flatnonzero(np.append(True, groups[1:] != groups[:-1]))


def _costs(entry: Ints) -> npt.NDArray[np.float64]:
    """Those of entries, see `_Estimator.entries`."""
    return (entry >> 32).astype(np.int32).view(np.float32).astype(np.float64)


def _longer(history: Ints, phone: Ints, base: int) -> Ints:
    """Keys of histories, sorted as they are, with another phone: a digit to `base`."""
    if int(history.max()) >= np.iinfo(np.int64).max // base - 1:
        history = _ranks(history)
    return history * base + phone


def _ranks(keys: Ints) -> Ints:
    """The rank of each among those keys that there are."""
    most = int(keys.max())
    if most >= 16 * len(keys):
        return np.unique(keys, return_inverse=True)[1].astype(np.int64)
    there = np.zeros(most + 1, np.bool_)
    there[keys] = True
    distinct, rank = np.flatnonzero(there), np.empty(most + 1, np.int64)
    rank[distinct] = np.arange(len(distinct))
    return rank[keys]
