"""Single paths on the CPU: paths drawn from the posterior, and the n best of `cpu_nbest`.

beta' is kept as rows of logs; then all samples of a sequence go forward together, frame by frame. Time O(T A) and O(T B) for
each sample, B the arcs that leave a state, and O(log S) for each jump; memory O(T S) and what is drawn.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fsachain.backends.cpu_log import _log_add, _log_sum
from fsachain.backends.cpu_nbest import n_best as n_best
from fsachain.backends.cpu_rows import advance, leak_into, log_sums, new_work, row_table, settle, to_probs
from fsachain.backends.jit import jit
from fsachain.backends.reference import Scores, _frames
from fsachain.backends.reference_paths import Drawn, no_paths
from fsachain.fsa import Floats
from fsachain.table import TransitionTable


def sample_paths(table: TransitionTable, scores: Scores, leaky: float, uniforms: Floats) -> Drawn:
    """Arcs, states and jumps of paths drawn with these uniform numbers; see `reference_paths.sample_paths`."""
    frames = _frames(table, scores)
    num_frames, num_states = len(scores), table.num_states
    inner, leaks = np.empty((num_frames + 1, num_states)), np.empty(num_frames + 1)
    rows = row_table(table)
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
    p, after, now = np.empty(frames.shape[1]), table.final.copy(), np.empty(len(table.final))
    inner[num_frames] = after
    leaks[num_frames] = leak_into(arcs, log_c, after)
    log_z = settle(after, work.x)
    for t in range(num_frames - 1, -1, -1):
        if log_z == -np.inf:
            return -np.inf
        to_probs(frames[t], p)
        log_z += advance(arcs, c, frames[t], p, after, now, work)
        log_sums(work, inner[t])
        leaks[t] = log_c + _log_sum(inner[t], arcs.log_source)
        after, now = now, after
    return log_z + _log_sum(after, table.initial) if log_z > -np.inf else -np.inf


@jit
def _cumulate(log_weights: Any, cumulative: Any) -> None:
    """cumulative = running sums of exp(log_weights), relative to the largest; the last is positive."""
    largest, total = -np.inf, 0.0
    for k in range(len(log_weights)):
        largest = max(largest, log_weights[k])
    for k in range(len(log_weights)):
        total += math.exp(log_weights[k] - largest)
        cumulative[k] = total


@jit
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


@jit
def _beta(inner: Any, leak: float, beta: Any) -> None:
    for i in range(len(beta)):
        beta[i] = _log_add(inner[i], leak)
