"""LM weight and word insertion penalty, chosen on a development set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from fsachain.decode.decoder import DecoderConfig, Graph, decode
from fsachain.decode.wer import ErrorCounts, score
from fsachain.errors import ConfigError

GraphBuilder = Callable[[float, float], Graph]


@dataclass(frozen=True)
class TuningPoint:
    """Errors on the development set at one LM weight and word insertion penalty."""

    lm_weight: float
    word_insertion_penalty: float
    counts: ErrorCounts

    def to_dict(self) -> dict[str, Any]:
        pair = {"lm_weight": self.lm_weight, "word_insertion_penalty": self.word_insertion_penalty}
        return pair | self.counts.to_dict()


@dataclass(frozen=True)
class TuningResult:
    """All points of a scan and the one chosen."""

    best: TuningPoint
    points: tuple[TuningPoint, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"best": self.best.to_dict(), "points": [point.to_dict() for point in self.points]}

    def to_text(self) -> str:
        """A table with a row per LM weight and a column per penalty; `*` marks the choice."""
        penalties = sorted({point.word_insertion_penalty for point in self.points})
        rows: dict[float, str] = {}
        for point in sorted(self.points, key=lambda point: (point.lm_weight, point.word_insertion_penalty)):
            mark = "*" if point == self.best else " "
            row = rows.get(point.lm_weight, f"{point.lm_weight:>8.2f}")
            rows[point.lm_weight] = f"{row}{point.counts.wer:>8.2f}{mark}"
        head = " " * 8 + "".join(f"{penalty:>9.2f}" for penalty in penalties)
        lines = [
            "WER %, LM weight down, word insertion penalty across",
            head,
            *map(str.rstrip, rows.values()),
        ]
        return "\n".join(lines) + "\n"


def tune(
    nnet_outputs: Mapping[str, npt.ArrayLike],
    references: Mapping[str, Sequence[str]],
    build_graph: GraphBuilder,
    words: Sequence[str],
    *,
    lm_weights: Sequence[float] = (0.5, 0.75, 1.0, 1.25, 1.5),
    word_insertion_penalties: Sequence[float] = (-0.5, 0.0, 0.5),
    config: DecoderConfig | None = None,
    num_workers: int | None = None,
    executor: Executor | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> TuningResult:
    """Decode the development set at every pair of weight and penalty and choose one.

    Development sets are small, so the fewest errors often stand at several points. Among them the point wins whose
    neighbours on the grid have the fewest errors too (the middle of a plateau rather than its edge), then the one nearest to
    weight 1 and penalty 0.

    `references` are words by utterance id. `build_graph` makes the decoding graph from (LM weight, cost per word).
    `progress` is called with (points done, points in all); other arguments are as for `decode`.
    """
    check_grid("", lm_weights, word_insertion_penalties)
    grid = list(product(sorted(lm_weights), sorted(word_insertion_penalties)))
    points: list[TuningPoint] = []
    for weight, penalty in grid:
        graph = build_graph(weight, penalty)
        found = decode(nnet_outputs, graph, words, config, num_workers=num_workers, executor=executor)
        report = score(references, {name: hypothesis.words for name, hypothesis in found.items()})
        points.append(TuningPoint(weight, penalty, report.total))
        if progress is not None:
            progress(len(points), len(grid))
    return choose(points)


def check_grid(prefix: str, lm_weights: Sequence[float], word_insertion_penalties: Sequence[float]) -> None:
    """Refuse weights or penalties that are none or have a number twice; names in messages begin with `prefix`."""
    for name, values in (("lm_weights", lm_weights), ("word_insertion_penalties", word_insertion_penalties)):
        if not values or len(set(values)) != len(values):
            raise ConfigError(f"{prefix}{name}: expected one or more different numbers, got {values}")


def choose(points: Sequence[TuningPoint]) -> TuningResult:
    """`points` are a full grid, weights rising and for each of them penalties rising. Ties are broken as `tune` says."""
    shape = (-1, len({point.word_insertion_penalty for point in points}))
    errors = np.reshape([point.counts.errors for point in points], shape)
    padded = np.pad(errors.astype(np.float64), 1, constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3))
    neighbourhood = np.nanmean(windows, axis=(2, 3)).ravel()

    distance = [abs(point.lm_weight - 1.0) + abs(point.word_insertion_penalty) for point in points]
    ranked = zip(errors.ravel(), neighbourhood, distance, range(len(points)), strict=True)
    return TuningResult(points[min(ranked)[-1]], tuple(points))
