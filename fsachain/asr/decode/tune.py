"""LM weight and word insertion penalty, chosen on a development set."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from fsachain.asr.decode.lattices import BestWords, WordLattice
from fsachain.asr.decode.wer import ErrorCounts, count_errors
from fsachain.errors import ConfigError, brief
from fsachain.graph.decoding import Weights
from fsachain.graph.open_vocabulary import Piece, spelt_out


@dataclass(frozen=True)
class TuningPoint:
    """Errors on the development set at some weights."""

    weights: Weights
    counts: ErrorCounts

    def to_dict(self) -> dict[str, Any]:
        return self.weights._asdict() | self.counts.to_dict()

    def __str__(self) -> str:
        return f"{self.counts}, {self.weights}"


@dataclass(frozen=True)
class TuningResult:
    """All points of a scan and the one chosen."""

    best: TuningPoint
    points: tuple[TuningPoint, ...]

    __repr__ = brief

    def to_dict(self) -> dict[str, Any]:
        return {"best": self.best.to_dict(), "points": [point.to_dict() for point in self.points]}

    def to_text(self) -> str:
        """A table for each penalty of unknown words, a row per LM weight, a column per penalty; `*` marks the choice."""
        lines = ["WER %, LM weight down, word insertion penalty across"]
        _, penalties, unknown = (
            sorted(set(axis)) for axis in zip(*(p.weights for p in self.points), strict=True)
        )
        for price in unknown:
            if len(unknown) > 1:
                lines.append(f"penalty of unknown words {price:g}")
            lines.append(" " * 8 + "".join(f"{penalty:>9.2f}" for penalty in penalties))
            rows: dict[float, str] = {}
            for point in sorted(self.points, key=lambda point: point.weights):
                weight, _, its = point.weights
                if its == price:
                    mark = "*" if point == self.best else " "
                    rows[weight] = f"{rows.get(weight, f'{weight:>8.2f}')}{point.counts.wer:>8.2f}{mark}"
            lines += map(str.rstrip, rows.values())
        return "\n".join(lines) + "\n"


LOW_WEIGHT = 0.2  # of a language model; 0.5 to 1.25 is usual, since training had a language model of phones with weight 1


def tuning_advice(result: TuningResult, has_grammar: bool = True) -> list[str]:
    """Return warnings about a choice: weights at an edge of the table that could not grow, and what a low LM weight means.

    Args:
        result: the choice and its table.
        has_grammar: whether there is an n-gram of words; False for a loop of all words.
    """
    found = []
    best = result.best.weights
    options = ("decoding.lm_weights", "decoding.word_insertion_penalties", "decoding.unknown_word_penalties")
    axes = [sorted(set(axis)) for axis in zip(*(point.weights for point in result.points), strict=True)]
    for option, value, axis in zip(options, best, axes, strict=True):
        if len(axis) > 1 and value in (axis[0], axis[-1]):
            found.append(
                f"the best of {option} is {value:g}, at the edge of {axis[0]:g} to {axis[-1]:g}: the best may lie beyond"
            )
    if len(axes[0]) > 1 and best.lm_weight < LOW_WEIGHT:
        if has_grammar:
            why = (
                "the search does best almost without its language model. Either the text of that model is unlike the "
                "development set, or the network has learnt sentences by heart: try a lower phone_lm.ngram_order and "
                "loss.leaky_hmm_coefficient 0.1, or another --arpa"
            )
        else:
            why = (
                "a loop of words gives each word the same probability, so the weight only makes words dearer: "
                "decoding.lm_weights [1.0] leaves that to the word insertion penalty"
            )
        found.append(f"LM weight {best.lm_weight:g}: {why}")
    return found


def tune(
    lattices: Mapping[str, WordLattice | None],
    references: Mapping[str, Sequence[str]],
    words: Sequence[str | Piece],
    *,
    lm_weights: Sequence[float] = (0.5, 0.75, 1.0, 1.25, 1.5),
    word_insertion_penalties: Sequence[float] = (-0.5, 0.0, 0.5),
    unknown_word_penalties: Sequence[float] = (0.0,),
    known: Mapping[Weights, TuningPoint] | None = None,
) -> TuningResult:
    """Weigh the lattices of the development set at every combination of weight and penalties, and choose one.

    Development sets are small, so the fewest errors often stand at several points. Among them the point wins whose
    neighbours on the grid have the fewest errors too (the middle of a plateau rather than its edge), then the one nearest to
    weight 1 and penalties 0. Where it stands at an edge of the grid, a row or column is added there, as far from the edge as
    the next one is inside (a weight is at least halved), until it does so no more, but at most 12 of them. A single weight
    or penalty is taken as it is.

    At `known` points the errors are those given, of searches there for instance.

    `lattices` are those of `lattices` (`fsachain.asr.decode.decoder`), `references` words by utterance id, `words` those
    of id 1, 2, ... A path that the search's beams dropped
    cannot be found by another weight. Search with a low weight of the grid:
    paths that only a high one makes good are rarely dropped, the other way round they often are.
    """
    check_grid(
        lm_weights=lm_weights,
        word_insertion_penalties=word_insertion_penalties,
        unknown_word_penalties=unknown_word_penalties,
    )
    found = [lattice for lattice in lattices.values() if lattice is not None]
    names = [name for name, lattice in lattices.items() if lattice is not None]

    @cache
    def errors(name: str, ids: tuple[int, ...]) -> ErrorCounts:
        return count_errors(references[name], spelt_out(words[word - 1] for word in ids))

    lost = sum(
        (count_errors(references[name], ()) for name, one in lattices.items() if one is None), ErrorCounts()
    )
    best = BestWords(found)

    def weighed(new: Sequence[Weights]) -> list[TuningPoint]:
        every = zip(new, best.at(new), strict=True)
        return [TuningPoint(point, sum(map(errors, names, ids), lost)) for point, ids in every]

    return grow([lm_weights, word_insertion_penalties, unknown_word_penalties], weighed, known)


def grow(
    values: Sequence[Sequence[float]],
    errors_at: Callable[[Sequence[Weights]], Sequence[TuningPoint]],
    known: Mapping[Weights, TuningPoint] | None = None,
) -> TuningResult:
    """The choice from a grid of `values`, one list for each of the weights, that grows as `tune` says.

    `errors_at` is asked for each point once, and not for those `known`.
    """
    axes, points = [sorted(axis) for axis in values], dict(known or {})
    for _ in range(_MOST_ADDED + 1):
        grid = [Weights(*point) for point in product(*axes)]
        new = [point for point in grid if point not in points]
        points |= zip(new, errors_at(new), strict=True)
        result = choose([points[point] for point in grid])
        extended = [
            _extended(axis, best, above)
            for axis, best, above in zip(axes, result.best.weights, (0.0, -math.inf, -math.inf), strict=True)
        ]
        if not any(extended):
            break
    return result


_MOST_ADDED = 12


def _extended(values: list[float], best: float, above: float) -> bool:
    """Add a value beyond the edge of the ascending `values`, if `best` is one: larger than `above`."""
    if len(values) > 1 and best == values[-1]:
        values.append(round(2 * best - values[-2], 9))
    elif len(values) > 1 and best == values[0] > above:
        step = 2 * best - values[1]
        values.insert(0, round(step if step > above else (best + above) / 2, 9))
    else:
        return False
    return True


def check_grid(prefix: str = "", **axes: Sequence[float]) -> None:
    """Refuse weights or penalties that are none or have a number twice; names in messages begin with `prefix`."""
    for name, values in axes.items():
        if not values or len(set(values)) != len(values):
            raise ConfigError(f"{prefix}{name}: expected one or more different numbers, got {values}")


def choose(points: Sequence[TuningPoint]) -> TuningResult:
    """`points` are a full grid in rising order of the weights. Ties are broken as `tune` says."""
    shape = [len(set(axis)) for axis in zip(*(point.weights for point in points), strict=True)]
    errors = np.reshape([point.counts.errors for point in points], shape)
    padded = np.pad(errors.astype(np.float64), 1, constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3, 3))
    neighbourhood = np.nanmean(windows, axis=(3, 4, 5)).ravel()

    distance = [sum(map(abs, np.subtract(point.weights, Weights()))) for point in points]
    ranked = zip(errors.ravel(), neighbourhood, distance, range(len(points)), strict=True)
    return TuningResult(points[min(ranked)[-1]], tuple(points))
