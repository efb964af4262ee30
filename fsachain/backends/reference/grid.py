"""Equations (20)-(29) of `fsachain.grid` in float64, one sequence at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from fsachain.grid import GridBatch, Ints, Rows, usable_extent
from fsachain.recursion import Array, log_add

Reals = npt.NDArray[np.floating]


def _views(batch: GridBatch, n: int, values: Reals) -> list[Reals]:
    """The box of each kind of arc of sequence n, as a view [frames, labels] of `values` that may be written to."""
    views = []
    for position, *steps in batch.boxes[n].tolist():
        strides = [step * values.itemsize for step in steps[:2]]
        views.append(np.lib.stride_tricks.as_strided(values[position:], steps[2:], strides, writeable=True))
    return views


def _scores(batch: GridBatch, n: int, values: Reals) -> list[Array]:
    """s_k(t, u), float64 [T + 1, U + 1] for each kind, -inf where there is no arc."""
    result, size = [], batch.sizes[n]
    for arc, box, view in zip(batch.arcs, batch.boxes[n], _views(batch, n, values), strict=True):
        frames, labels = usable_extent(arc, box, size)
        scores = np.full((size[2] + 1, size[3] + 1), -np.inf)
        scores[:frames, :labels] = view[size[0] :, size[1] :][:frames, :labels]
        result.append(scores)
    return result


def _alphas(arcs: Ints, scores: list[Array]) -> Array:
    num_frames, num_labels = scores[0].shape
    alpha = np.full((num_frames, num_labels), -np.inf)
    for t, u in np.ndindex(num_frames, num_labels):
        if t == u == 0:
            alpha[t, u] = 0.0
        for (d, label, _), s in zip(arcs, scores, strict=True):
            if t >= d and u >= label:
                alpha[t, u] = log_add(alpha[t, u], alpha[t - d, u - label] + s[t - d, u - label])  # (20)
    return alpha


def _betas(arcs: Ints, scores: list[Array]) -> Array:
    num_frames, num_labels = scores[0].shape
    beta = np.full((num_frames, num_labels), -np.inf)
    beta[-1, -1] = 0.0
    for t, u in reversed(list(np.ndindex(num_frames, num_labels))):
        for (d, label, _), s in zip(arcs, scores, strict=True):
            if t + d < num_frames and u + label < num_labels:
                beta[t, u] = log_add(beta[t, u], s[t, u] + beta[t + d, u + label])
    return beta


def _is_legal(scores: list[Array]) -> bool:
    return not any((np.isnan(s) | (s == np.inf)).any() for s in scores)


def log_probs(batch: GridBatch, values: Reals) -> Array:
    """log Z [N] of (21): -inf where there is no path, NaN for scores that hold NaN or +inf."""
    result = np.empty(len(batch.sizes))
    for n in range(len(result)):
        scores = _scores(batch, n, values)
        result[n] = _alphas(batch.arcs, scores)[-1, -1] if _is_legal(scores) else np.nan
    return result


def forward_backward(batch: GridBatch, values: Reals) -> Array:
    """log Z [N]; the scores in `values`, float32 or float64 [*], give way to their occupancies g of (22).

    Padding, and a sequence whose log Z is not finite, get 0.
    """
    result = log_probs(batch, values)
    for n in range(len(result)):
        scores = _scores(batch, n, values)
        ok = bool(np.isfinite(result[n]))
        alpha, beta = (
            (_alphas(batch.arcs, scores), _betas(batch.arcs, scores)) if ok else (scores[0], scores[0])
        )
        size = batch.sizes[n]
        for arc, box, s, view in zip(
            batch.arcs, batch.boxes[n], scores, _views(batch, n, values), strict=True
        ):
            view[:] = 0.0
            frames, labels = usable_extent(arc, box, size)
            if not ok or not frames or not labels:
                continue
            ahead = beta[arc[0] :, arc[1] :][:frames, :labels]
            g = np.exp(alpha[:frames, :labels] + s[:frames, :labels] + ahead - result[n])  # (22)
            view[size[0] :, size[1] :][:frames, :labels] = g
    return result


def best_paths(batch: GridBatch, values: Reals) -> tuple[Array, list[Ints]]:
    """The best path (23) of each sequence: its score [N], and rows (k, t, u) of its arcs; no rows where there is none."""
    score, paths = np.empty(len(batch.sizes)), []
    for n in range(len(score)):
        scores = _scores(batch, n, values)
        rows: list[tuple[int, int, int]] = []
        score[n] = np.nan
        if _is_legal(scores):
            best, back = _best_arcs(batch.arcs, scores)
            score[n] = best[-1, -1]
            t, u = int(batch.sizes[n, 2]), int(batch.sizes[n, 3])
            while np.isfinite(score[n]) and (t, u) != (0, 0):
                k = int(back[t, u])
                t, u = t - int(batch.arcs[k, 0]), u - int(batch.arcs[k, 1])
                rows.append((k, t, u))
        paths.append(np.array(rows[::-1], np.int64).reshape(-1, 3))
    return score, paths


def _best_arcs(arcs: Ints, scores: list[Array]) -> tuple[Array, Ints]:
    num_frames, num_labels = scores[0].shape
    best = np.full((num_frames, num_labels), -np.inf)
    back = np.full((num_frames, num_labels), -1)
    best[0, 0] = 0.0
    for t, u in np.ndindex(num_frames, num_labels):
        for k, (d, label, _) in enumerate(arcs):
            if t >= d and u >= label:
                candidate = best[t - d, u - label] + scores[k][t - d, u - label]
                if candidate > best[t, u]:
                    best[t, u], back[t, u] = candidate, k
    return best, back


def _nodes(rows: Rows, n: int) -> Iterator[tuple[int, int, int, int]]:
    """t, u, row and cell of every node of sequence n that has a row."""
    base, step, _, per_frame, frames, labels, cell_base, cell_step = rows.sequences[n].tolist()
    for t in range(frames):
        for j in range(per_frame):
            u = int(rows.first[n, t]) + j
            if u <= labels:
                yield t, u, base + t * step + j, cell_base + t * cell_step + u


def _classes(rows: Rows, n: int, u: int) -> list[int]:
    """The class of each kind of arc at label u; -1 where there is none."""
    target = int(rows.targets[n, u]) if u < rows.sequences[n, 5] else -1
    return [int(c) if c >= 0 else target for c in rows.classes]


def _log_softmax(logits: Reals) -> Array:
    x = np.asarray(logits, np.float64)
    largest = x.max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):  # rows of +inf or NaN; rows of -inf
        shifted = x - np.where(np.isneginf(largest), 0.0, largest)
        total = np.exp(shifted).sum(axis=1, keepdims=True)
        return np.where(total == 0, -np.inf, shifted - np.log(total))


def _log_factors(rows: Rows, logits: Reals) -> Array:
    """The log-prob of each entry in the softmax or sigmoid that it belongs to, [R, V]."""
    classes, alone = rows.heads.tolist()
    result = np.array(logits, np.float64)
    tokens = [v for v in range(classes) if v != alone]
    result[:, tokens] = _log_softmax(result[:, tokens])
    if classes < result.shape[1]:
        result[:, classes:] = _log_softmax(result[:, classes:])
    if alone >= 0:
        result[:, alone] = _log_sigma(result[:, alone], 1.0)
    return result


def _log_sigma(x: Array, sign: float) -> Array:
    return np.where(x == np.inf, np.nan, -np.logaddexp(0.0, -sign * x))


def _log_no_blank(rows: Rows, logits: Reals) -> Array:
    """What (28) adds to labels, [R]; 0 where the blank has no sigmoid."""
    alone = int(rows.heads[1])
    return _log_sigma(np.asarray(logits[:, alone], np.float64), -1.0) if alone >= 0 else np.zeros(len(logits))


def _factors(rows: Rows, k: int, entry: int) -> list[int]:
    """The entries whose log-probs make up the score of kind k."""
    return [entry] if rows.durations[k] < 0 else [entry, int(rows.durations[k])]


def row_scores(rows: Rows, logits: Reals, is_normalized: bool, values: Array) -> Reals:
    """Scores (24) of logits [R, V], or of rows that are log-probs already, into values [K, cells].

    Returns what `row_gradient` needs: without rows for log-probs, otherwise with rows of nothing.
    """
    log_probs, no_blank = np.asarray(logits, np.float64), np.zeros(len(logits))
    if not is_normalized:
        log_probs, no_blank = _log_factors(rows, logits), _log_no_blank(rows, logits)
    for n in range(len(rows.sequences)):
        for t, u, row, cell in _nodes(rows, n):
            delay, sigma = rows.charges
            late = 0.5 * (rows.sequences[n, 4] - 1) - t
            for k, entry in enumerate(_classes(rows, n, u)):
                if entry >= 0:
                    score = log_probs[row, _factors(rows, k, entry)].sum()
                    if entry != rows.heads[1]:
                        score += no_blank[row]
                    values[k, cell] = score + delay[k] * late - sigma[k]
    return np.empty((0 if is_normalized else 2, 0), logits.dtype)


def row_gradient(
    rows: Rows,
    logits: Reals,
    stats: Reals,
    occupancy: Array,
    weights: Sequence[float],
    limit: float,
    out: Reals,
) -> None:
    """Equation (25) times weights [N] into out [R, V], which may be the logits; occupancy [K, cells] is g.

    Entries are kept within +-limit before they are weighted. Rows of padding become 0.
    """
    shares = np.exp(_log_factors(rows, logits)) if len(stats) else np.zeros(logits.shape)
    classes, alone = rows.heads.tolist()
    out[:] = 0.0
    for n in range(len(rows.sequences)):
        for _, u, row, cell in _nodes(rows, n):
            g = occupancy[:, cell]
            used = [(k, entry) for k, entry in enumerate(_classes(rows, n, u)) if entry >= 0]
            total = sum(g[k] for k, _ in used)
            if total == 0:
                continue
            # The g of the kinds that have a factor in the softmax of classes, that of durations, the sigmoid.
            of_classes = sum(g[k] for k, entry in used if entry != alone)
            weight = np.full(out.shape[1], of_classes, np.float64)
            weight[classes:] = total
            if alone >= 0:
                weight[alone] = total
            gradient = np.where(weight == 0, 0.0, shares[row]) * weight
            for k, entry in used:
                gradient[_factors(rows, k, entry)] -= g[k]
            out[row] = weights[n] * np.clip(gradient, -limit, limit)
