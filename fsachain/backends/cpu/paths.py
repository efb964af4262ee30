"""Single paths on the CPU: drawn from the posterior, the n best, and how many states a search of them keeps alive.

beta' is kept as rows of logs; then all samples of a sequence go forward together, frame by frame. Time O(T A) and O(T B) for
each sample, B the arcs that leave a state, and O(log S) for each jump; memory O(T S) and what is drawn.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.backends.cpu.jit import helper, jit, jit_on_views
from fsachain.backends.cpu.log import (
    advance,
    leak_into,
    log_add,
    log_sum,
    log_sums,
    log_table,
    new_work,
    settle,
)
from fsachain.backends.reference.paths import Drawn, no_paths
from fsachain.backends.reference.sums import Scores, active_scores
from fsachain.fsa import Floats, Ints
from fsachain.openfst import Transducer
from fsachain.table import TransitionTable

# The n best pdf sequences of one sequence on the CPU, by exact search in float64, at any magnitude.
#
# The set of all pdf sequences is split again and again. Of the sequences that begin with one prefix the best
# is found by taking, frame by frame, the pdf of the greatest bound (15), which is the score of what is
# searched for and not an estimate. The others of the set are then split into parts by the frame at which they
# first depart from the best one, and by their pdf there. The part of the greatest bound is next. So n
# sequences take n walks of T frames: time O(T A) for what lies ahead of each state, then O(n T B + n T K) for
# B arcs that leave the states of a prefix; memory O(T S + n T). Nothing is given up but parts that n better
# ones make needless.


class _Parts(NamedTuple):
    """Sets of pdf sequences not looked at yet, the best first: row `row` up to frame `frame`, and there `column`."""

    bound: Floats
    row: npt.NDArray[np.int64]
    frame: npt.NDArray[np.int64]
    column: npt.NDArray[np.int64]


class _Search(NamedTuple):
    """delta [S] of the states `alive` that a prefix leads to, the same for the next frame, and arcs [T, S] to them."""

    delta: Floats
    alive: npt.NDArray[np.int64]
    longer: Floats
    reached: npt.NDArray[np.int64]
    back: npt.NDArray[np.uint32]
    best: Floats


def n_best(table: TransitionTable, scores: Scores, n: int) -> tuple[Floats, Ints]:
    """Scores [M] and arcs [M, T] of the M <= n best pdf sequences; see `reference_paths.n_best`."""
    frames = active_scores(table, scores)
    num_frames, num_states = len(scores), table.num_states
    if not frames.legal:
        return np.full(1, np.nan), np.empty((0, num_frames), dtype=np.int32)
    score, columns, arcs = (
        np.empty(n),
        np.empty((n, num_frames), np.int32),
        np.empty((n, num_frames), np.int32),
    )
    parts = _Parts(np.empty(n), *(np.empty(n, np.int64) for _ in range(3)))
    search = _Search(
        delta=np.full(num_states, -np.inf),
        alive=np.empty(num_states, np.int64),
        longer=np.full(num_states, -np.inf),
        reached=np.empty(num_states, np.int64),
        back=np.empty((num_frames, num_states), np.uint32),
        best=np.empty(len(table.active_pdfs)),
    )
    ahead = np.empty((num_frames + 1, num_states))
    rows = log_table(table)
    _viterbi_ahead(rows, frames.scores, ahead)
    count = _fill(rows, frames.scores, ahead, parts, search, columns, arcs, score)
    # Bounds and scores add the same numbers in different orders; equal scores stand in the order of their pdfs.
    order = np.lexsort((*columns[:count].T[::-1], -score[:count]))
    # One after another, as `log.best_path` adds them.
    shift = frames.shift.cumsum()[-1] if num_frames else 0.0
    return score[:count][order] + shift, arcs[:count][order]


@jit
def _viterbi_ahead(table: Any, frames: Any, ahead: Any) -> None:
    """The best score from state i before frame t to the end into ahead [T + 1, S]."""
    arcs = table.out_of
    ahead[len(frames)] = table.final
    for t in range(len(frames) - 1, -1, -1):
        for i in range(len(table.final)):
            best = -np.inf
            for e in range(arcs.offsets[i], arcs.offsets[i + 1]):
                best = max(best, arcs.log_prob[e] + frames[t, arcs.column[e]] + ahead[t + 1, arcs.other[e]])
            ahead[t, i] = best


@jit
def _fill(
    table: Any, frames: Any, ahead: Any, parts: Any, search: Any, columns: Any, arcs: Any, score: Any
) -> int:
    """Fill rows of columns [n, T], arcs [n, T] and score [n] with the best sequences; how many there are."""
    waiting, num_frames = 0, len(frames)
    for row in range(len(score)):
        if row > 0 and waiting == 0:
            return row
        origin, split = (parts.row[0], parts.frame[0]) if row > 0 else (0, -1)
        if row > 0:
            columns[row, :split] = columns[origin, :split]
            columns[row, split] = parts.column[0]
            waiting -= 1
            for k in range(waiting):
                _move(parts, k + 1, k)
        alive = 0
        for i in range(len(table.initial)):
            if table.initial[i] + ahead[0, i] > -np.inf:
                search.delta[i], search.alive[alive] = table.initial[i], i
                alive += 1
        if alive == 0:
            return row
        for t in range(num_frames):
            if t > split:
                columns[row, t] = _bounds(table.out_of, frames[t], ahead[t + 1], search, alive)
                for k in range(len(search.best)):
                    if k != columns[row, t] and search.best[k] > -np.inf:
                        part = (search.best[k], row, t, k)
                        waiting = _insert(parts, waiting, len(score) - row - 1, part, columns)
            alive = _step(table.out_of, frames[t], ahead[t + 1], columns[row, t], search, alive, t)
        score[row] = _finish(table, search, alive, arcs[row])
    return len(score)


@helper
def _bounds(arcs: Any, y: Any, ahead: Any, search: Any, alive: int) -> Any:
    """search.best [K], (15) for the prefix followed by each column; the best column, the first among equals."""
    best = search.best
    best[:] = -np.inf
    for a in range(alive):
        i = search.alive[a]
        for e in range(arcs.offsets[i], arcs.offsets[i + 1]):
            k = arcs.column[e]
            best[k] = max(best[k], search.delta[i] + arcs.log_prob[e] + y[k] + ahead[arcs.other[e]])
    return np.argmax(best)


@helper
def _step(arcs: Any, y: Any, ahead: Any, column: int, search: Any, alive: int, t: int) -> int:
    """Equation (8) for one frame with the arcs of one column; how many states are alive then."""
    count = 0
    for a in range(alive):
        i = search.alive[a]
        for e in range(arcs.offsets[i], arcs.offsets[i + 1]):
            j = arcs.other[e]
            if arcs.column[e] == column and ahead[j] > -np.inf:
                x = search.delta[i] + arcs.log_prob[e] + y[column]
                if x > search.longer[j]:
                    if search.longer[j] == -np.inf:
                        search.reached[count] = j
                        count += 1
                    search.longer[j], search.back[t, j] = x, e
    _forget(search, alive)
    for a in range(count):
        j = search.reached[a]
        search.alive[a], search.delta[j] = j, search.longer[j]
        search.longer[j] = -np.inf
    return count


@helper
def _forget(search: Any, alive: int) -> None:
    for a in range(alive):
        search.delta[search.alive[a]] = -np.inf


@helper
def _finish(table: Any, search: Any, alive: int, path: Any) -> float:
    """The score of the best path that ends in a state alive; its arcs into path [T]; search is left clean."""
    state, score = -1, -np.inf
    for a in range(alive):
        i = search.alive[a]
        x = search.delta[i] + table.final[i]
        if x > score or (x == score and i < state):
            state, score = i, x
    _forget(search, alive)
    for t in range(len(path) - 1, -1, -1):
        e = search.back[t, state]
        path[t] = table.out_of.number[e]
        state = _row_of(table.out_of.offsets, e)
    return score


@helper
def _row_of(offsets: Any, e: int) -> Any:
    return np.searchsorted(offsets, np.int64(e), side="right") - 1


@helper
def _move(parts: Any, source: int, to: int) -> None:
    parts.bound[to], parts.row[to] = parts.bound[source], parts.row[source]
    parts.frame[to], parts.column[to] = parts.frame[source], parts.column[source]


@helper
def _insert(parts: Any, count: int, room: int, part: Any, columns: Any) -> int:
    """Put `part` where it belongs among the best `room` parts; the new number of parts."""
    place = min(count, room)
    while place > 0 and _is_before(part, parts, place - 1, columns):
        place -= 1
    if place >= room:
        return min(count, room)
    count = min(count + 1, room)
    for k in range(count - 1, place, -1):
        _move(parts, k - 1, k)
    parts.bound[place], parts.row[place], parts.frame[place], parts.column[place] = part
    return count


@helper
def _is_before(part: Any, parts: Any, k: int, columns: Any) -> bool:
    """`part` has the greater bound than part k, or the same and the lower pdf where their sequences first differ."""
    bound, row, frame, column = part
    if bound != parts.bound[k]:
        return bound > parts.bound[k]
    for t in range(min(frame, parts.frame[k]) + 1):
        mine = column if t == frame else columns[row, t]
        other = parts.column[k] if t == parts.frame[k] else columns[parts.row[k], t]
        if mine != other:
            return mine < other
    return False


def sample_paths(table: TransitionTable, scores: Scores, leaky: float, uniforms: Floats) -> Drawn:
    """Arcs, states and jumps of paths drawn with these uniform numbers; see `reference_paths.sample_paths`."""
    frames = active_scores(table, scores)
    num_frames, num_states = len(scores), table.num_states
    inner, leaks = np.empty((num_frames + 1, num_states)), np.empty(num_frames + 1)
    rows = log_table(table)
    alive = frames.legal and _backward(rows, leaky, frames.scores, inner, leaks, new_work(table)) > -np.inf
    arcs, states, jumps = no_paths(len(uniforms) if alive else 0, num_frames)
    if alive:
        _sample(rows, frames.scores, inner, leaks, uniforms, arcs, states, jumps)
    return arcs, states, jumps


@jit
def _backward(table: Any, c: float, frames: Any, inner: Any, leaks: Any, work: Any) -> float:
    """beta'(t, i) into inner [T + 1, S] and the leak of (5) into leaks [T + 1], row t both relative to one number.

    Returns log Z of `frames`, -inf where there is no path.
    """
    arcs, num_frames = table.out_of, len(frames)
    log_c = math.log(c) if c > 0.0 else -np.inf
    after, now = table.final.copy(), np.empty(len(table.final))
    inner[num_frames] = after
    leaks[num_frames] = leak_into(arcs, log_c, after)
    log_z = settle(after, work.x)
    for t in range(num_frames - 1, -1, -1):
        if log_z == -np.inf:
            return -np.inf
        log_z += advance(arcs, c, frames[t], after, now, work)
        log_sums(work, inner[t])
        leaks[t] = log_c + log_sum(inner[t], arcs.log_source)
        after, now = now, after
    return log_z + log_sum(after, table.initial) if log_z > -np.inf else -np.inf


@helper
def _cumulate(log_weights: Any, cumulative: Any) -> None:
    """cumulative = running sums of exp(log_weights), relative to the largest; the last is positive."""
    largest, total = -np.inf, 0.0
    for k in range(len(log_weights)):
        largest = max(largest, log_weights[k])
    for k in range(len(log_weights)):
        total += math.exp(log_weights[k] - largest)
        cumulative[k] = total


@helper
def _draw(cumulative: Any, uniform: float) -> int:
    """The first entry whose cumulative share exceeds the uniform number in [0, 1]."""
    total = cumulative[-1]
    k = np.searchsorted(cumulative, uniform * total, side="right")
    # Rounding may reach the total; the entry that reached it first is the last of positive weight.
    return k if k < len(cumulative) else np.searchsorted(cumulative, total, side="left")


@jit
def _sample(
    table: Any, frames: Any, inner: Any, leaks: Any, uniforms: Any, arcs: Any, states: Any, jumps: Any
) -> None:
    """Equations (16)-(18) for all samples, frame by frame."""
    out_of, num_states = table.out_of, len(table.final)
    beta, cumulative = np.empty(num_states), np.empty(num_states)
    onward = np.empty((2, len(out_of.other)))
    _beta(inner[0], leaks[0], beta)
    _cumulate(table.initial + beta, cumulative)
    for m in range(len(states)):
        states[m, 0] = _draw(cumulative, uniforms[m, 0])  # (16)
    for t in range(len(frames) + 1):
        if leaks[t] > -np.inf:
            _cumulate(inner[t] + out_of.log_source, cumulative)
            for m in range(len(states)):
                i = states[m, t]
                stay = math.exp(inner[t, i] - beta[i])
                leak = math.exp(leaks[t] - beta[i])
                jumps[m, t] = uniforms[m, 1 + 2 * t] * (stay + leak) >= stay
                if jumps[m, t]:  # (17)
                    share = (uniforms[m, 1 + 2 * t] * (stay + leak) - stay) / leak
                    states[m, t] = _draw(cumulative, min(share, 1.0))
        if t == len(frames):
            break
        _beta(inner[t + 1], leaks[t + 1], beta)
        for m in range(len(states)):
            first, last = out_of.offsets[states[m, t]], out_of.offsets[states[m, t] + 1]
            for e in range(first, last):
                onward[0, e] = out_of.log_prob[e] + frames[t, out_of.column[e]] + beta[out_of.other[e]]
            _cumulate(onward[0, first:last], onward[1, first:last])
            e = first + _draw(onward[1, first:last], uniforms[m, 2 + 2 * t])  # (18)
            arcs[m, t], states[m, t + 1] = out_of.number[e], out_of.other[e]


@helper
def _beta(inner: Any, leak: float, beta: Any) -> None:
    for i in range(len(beta)):
        beta[i] = log_add(inner[i], leak)


# How many states a beam search keeps alive, in a tenth of the time that a search for a lattice takes.

Float32Array = npt.NDArray[np.float32]


class LiveStates:
    """Counts for one graph, whose input label is pdf + 1 or epsilon; see `fsachain.backends.reference.paths`."""

    def __init__(self, graph: Transducer) -> None:
        size = graph.num_states
        self._heard = _by_source(graph, graph.ilabel > 0)
        self._silent = _by_source(graph, graph.ilabel == 0)
        self._start = graph.start
        # Costs before and after a frame, inf where not alive; states that are; those that wait, and whether one does.
        self._costs = np.full((2, size), np.inf, dtype=np.float32)
        self._states = np.zeros((3, size), dtype=np.int32)
        self._waits = np.zeros(size, dtype=np.bool_)

    def count(self, scores: Float32Array, beam: float, most: int) -> int:
        """Live states of a search of scores [T, P], summed over T + 1 frames; broken off where they are more than `most`."""
        return int(
            _count(
                scores,
                self._heard,
                self._silent,
                self._start,
                np.float32(beam),
                most,
                self._costs,
                self._states,
                self._waits,
            )
        )


def _by_source(graph: Transducer, which: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[Any], ...]:
    """First arc of each state [S + 1], and of each arc its pdf, destination and cost."""
    arcs = np.flatnonzero(which)
    arcs = arcs[np.argsort(graph.src[arcs], kind="stable")]
    first = np.searchsorted(graph.src[arcs], np.arange(graph.num_states + 1)).astype(np.int64)
    pdf, dst = (column[arcs].astype(np.int32) for column in (graph.ilabel - 1, graph.dst))
    return first, pdf, dst, -graph.log_prob[arcs].astype(np.float32)


@helper
def _follow_epsilons(graph: Any, beam: Any, cost: Any, states: Any, waiting: Any, waits: Any, n: int) -> Any:
    """Add what the n live states reach by epsilons; how many live then, and the cost that none of the next may exceed."""
    first, _, dst, arc_cost = graph
    cutoff = np.float32(np.inf)
    for k in range(n):
        cutoff = min(cutoff, cost[states[k]])
        waiting[k] = states[k]
        waits[states[k]] = True
    cutoff += beam
    m = n
    while m:
        m -= 1
        state = waiting[m]
        waits[state] = False
        if cost[state] > cutoff:
            continue
        for arc in range(first[state], first[state + 1]):
            to, value = dst[arc], cost[state] + arc_cost[arc]
            if value < cutoff and value < cost[to]:
                if cost[to] == np.inf:
                    states[n] = to
                    n += 1
                cost[to] = value
                if not waits[to]:
                    waiting[m] = to
                    waits[to] = True
                    m += 1
    return n, cutoff


@jit_on_views
def _count(
    scores: Any,
    heard: Any,
    silent: Any,
    start: int,
    beam: Any,
    most: int,
    costs: Any,
    states: Any,
    waits: Any,
) -> int:
    first, pdf, dst, arc_cost = heard
    now, then = costs[0], costs[1]
    alive, reached, waiting = states[0], states[1], states[2]
    alive[0] = start
    now[start] = 0.0
    n, cutoff = _follow_epsilons(silent, beam, now, alive, waiting, waits, 1)
    total = n
    for t in range(len(scores)):
        if total > most:
            break
        least, m = np.float32(np.inf), 0
        for k in range(n):
            state = alive[k]
            cost = now[state]
            if cost > cutoff:
                continue
            for arc in range(first[state], first[state + 1]):
                value = cost + arc_cost[arc] - scores[t, pdf[arc]]
                if value < least + beam:
                    least = min(least, value)
                    to = dst[arc]
                    if then[to] == np.inf:
                        reached[m] = to
                        m += 1
                    then[to] = min(then[to], value)
        for k in range(n):
            now[alive[k]] = np.inf
        n = 0
        for k in range(m):
            if then[reached[k]] < least + beam:
                alive[n] = reached[k]
                now[alive[n]] = then[reached[k]]
                n += 1
            then[reached[k]] = np.inf
        n, cutoff = _follow_epsilons(silent, beam, now, alive, waiting, waits, n)
        total += n
    for k in range(n):
        now[alive[k]] = np.inf
    return total
