"""Cepstral mean and variance normalisation: features with zero mean and, if asked for, unit variance.

The statistics are a count, a sum and a sum of squares per feature; over a whole training set ("global"), per speaker, or
per utterance. Global statistics belong to the model: they are estimated on the training set, saved with it, and used to
decode. Speaker statistics are taken from the set that is normalised, test sets included, as Kaldi does; nothing is saved.

The statistics are those of speech: how much silence surrounds it, and whether that is digital, does not change them.
Whatever lies deeper than `QUIET` standard deviations below the mean level is raised to that depth, so that digital silence
and quiet noise look alike, in training and in use. Which frames are speech: `fsachain.asr.data.loudness`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsachain.asr.data.loudness import (
    NO_SIGNAL,
    REACH,
    Loudness,
    columns_of_level,
    has_speech,
    least_level,
    whole_signal,
    without_signal,
)
from fsachain.errors import (
    ConfigError,
    DataError,
    ShapeError,
    added_option,
    brief_of,
    check_choices,
    check_range,
    counted,
)

VARIANCE_FLOOR = 1e-5  # of the variance: a constant feature, as in digital silence, stays finite
QUIET = 2.0  # standard deviations below the mean level of speech: where silence lies, however deep it is
USUAL_DEVIATION = (
    3.0  # nats, of log mel energies: of recordings without any signal, which have none of their own
)


@dataclass(frozen=True)
class CmvnConfig:
    """What is normalised of the features.

    Attributes:
        scope: "global", "speaker" or "utterance": whose frames the statistics are taken over; "window": the frames around
            each frame; or "none".
        moments: "mean", or "mean-variance" for the standard deviation too.
        window (input frames): frames around each frame, for scope "window"; as Kaldi's apply-cmvn-sliding with --center.
        counts: the frames that the statistics are taken over: "speech", those within 20 dB of the recording's loud level;
            or "signal", all but digital silence, as in models of earlier versions.
    """

    scope: str = "global"
    moments: str = "mean-variance"
    window: int = added_option(600)
    counts: str = added_option("signal")

    def __post_init__(self) -> None:
        check_range(self, "[1, inf)", "window")
        scopes = ("none", "global", "speaker", "utterance", "window")
        check_choices(self, scope=scopes, moments=("mean", "mean-variance"), counts=("speech", "signal"))


@dataclass(frozen=True)
class Rule:
    """What statistics are taken of, and how features are normalised by them.

    Attributes:
        moments, counts: those of `CmvnConfig`.
        loudness: which columns tell the level of a frame; None where nobody knows: then only frames of zeros are silence.
    """

    moments: str
    counts: str
    loudness: Loudness | None

    def counted(self, features: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Which frames of a recording's features [T, F] the statistics are taken over."""
        if self.counts == "speech":
            return has_speech(features, self.loudness)
        return whole_signal(features, self.loudness)

    def statistics(self, features: NDArray[np.float32]) -> Statistics:
        """Those of the frames of a recording that count; of none the count is 0."""
        return Statistics.of(features[self.counted(features)])

    def normalise(
        self, features: NDArray[np.float32], mean: NDArray[np.float32], scale: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Features [T, F] by `Statistics.mean_and_scale`, float32 [F] each, or [T, F] where each frame has its own."""
        centred = self._raised(features, mean, scale) - mean
        return centred if self.moments == "mean" else centred * scale

    def of_silence(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Normalised features for frames [T, F] of a recording in which nothing counts."""
        columns = columns_of_level(features, self.loudness)
        if self.moments == "mean-variance":
            depth = -QUIET * columns
        elif self.loudness is None:
            depth = -QUIET * USUAL_DEVIATION * columns
        else:
            depth = -QUIET * USUAL_DEVIATION * self.loudness.direction
        return np.broadcast_to(depth.astype(np.float32), features.shape).copy()

    def _raised(
        self, features: NDArray[np.float32], mean: NDArray[np.float32], scale: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """The features, none of whose levels is below that of `QUIET` deviations under the mean.

        Quiet noise is shifted, so that it keeps its spectrum; digital silence gets that of average speech.
        """
        silent = without_signal(features, self.loudness)[:, None]
        deviation = columns_of_level(features, self.loudness) / scale
        quiet = mean - np.float32(QUIET) * deviation
        if self.loudness is None:
            return np.where(silent, quiet, features)
        loudness = self.loudness
        lacking = quiet @ loudness.weights - loudness.levels(features)
        raised = features + np.maximum(lacking, 0.0)[:, None] * loudness.direction
        raised = np.where(silent, quiet, raised)
        if self.counts == "speech":
            return raised
        # Statistics of an earlier version that digital silence is part of: their network knows it as it is.
        deepest = (mean - np.float32(2.0 * QUIET) * deviation) @ loudness.weights
        return np.where(np.expand_dims(deepest <= NO_SIGNAL, -1), features, raised)


@dataclass(frozen=True)
class Statistics:
    """Sums over frames: `count` of them, `total` [F] and `squares` [F], float64."""

    count: float
    total: NDArray[np.float64]
    squares: NDArray[np.float64]

    @classmethod
    def of(cls, features: NDArray[np.float32]) -> Statistics:
        """Statistics of features [T, F]."""
        exact = features.astype(np.float64)
        return cls(len(features), exact.sum(axis=0), np.einsum("tf,tf->f", exact, exact))

    def __add__(self, other: Statistics) -> Statistics:
        return Statistics(self.count + other.count, self.total + other.total, self.squares + other.squares)

    def normalise(self, features: NDArray[np.float32], rule: Rule) -> NDArray[np.float32]:
        """Features [T, F] with these statistics' mean and, if the rule says so, standard deviation; float32 [T, F]."""
        if features.shape[1] != len(self.total):
            raise ShapeError(
                f"features have {counted(features.shape[1], 'column')}, the cmvn statistics {len(self.total)}"
            )
        if not self.count:
            return rule.of_silence(features)
        return rule.normalise(features, *self.mean_and_scale())

    def mean_and_scale(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The mean, and one over the standard deviation: float32 [F] each; the count is above 0."""
        mean = self.total / self.count
        return mean.astype(np.float32), _scale(mean, self.squares / self.count)


def _scale(mean: NDArray[np.float64], squares: NDArray[np.float64]) -> NDArray[np.float32]:
    """One over the standard deviation, from the means of values and of their squares."""
    return (1.0 / np.sqrt(np.maximum(squares - mean * mean, VARIANCE_FLOOR))).astype(np.float32)


class Cmvn:
    """A normalisation that is ready to be applied: `config`, and `statistics`, sums over frames by speaker.

    Under "global" they are over all; other scopes may have none.

    Example:
        cmvn = Cmvn.estimate(CmvnConfig("global"), ((e.speaker, e.features) for e in train))
        save_file(cmvn.state(), ...)                         # with the model
        features = cmvn.apply(features, speaker="anyone")
    """

    __repr__ = brief_of("config", "statistics")

    def __init__(
        self,
        config: CmvnConfig,
        statistics: Mapping[str, Statistics] | None = None,
        loudness: Loudness | None = None,
    ) -> None:
        """`statistics` are by speaker for scope "speaker", named "global" for scope "global", else none.

        `loudness` is `FeatureConfig.loudness` of the features; without it all frames but those of zeros count.
        """
        self.config, self.loudness = config, loudness
        self.statistics = dict(statistics or {})
        if config.scope == "global" and set(self.statistics) != {"global"}:
            raise ConfigError(
                "cmvn of scope 'global' needs statistics under the name 'global'; see Cmvn.estimate"
            )

    @property
    def rule(self) -> Rule:
        return Rule(self.config.moments, self.config.counts, self.loudness)

    @classmethod
    def estimate(
        cls,
        config: CmvnConfig,
        speakers_and_features: Iterable[tuple[str, NDArray[np.float32]]],
        loudness: Loudness | None = None,
    ) -> Cmvn:
        """Take the statistics that the configuration needs from pairs (speaker, features [T, F]), one after the other.

        Each pair is a recording, or an utterance of one. Only sums are kept, so the pairs may come from a corpus of any
        size. `loudness` is that of the features, see `FeatureConfig.loudness`.
        """
        if config.scope in ("none", "utterance", "window"):
            return cls(config, loudness=loudness)
        rule, sums = Rule(config.moments, config.counts, loudness), dict[str, Statistics]()
        of_all = config.scope == "global"
        empty = {"global"} if of_all else set()
        for speaker, features in speakers_and_features:
            key = "global" if of_all else speaker
            if len(features):
                own = rule.statistics(features)
                sums[key] = sums[key] + own if key in sums else own
            else:
                empty.add(key)
        for key in sorted(empty - sums.keys()):
            whose = "" if of_all else f" of speaker {key!r}"
            raise DataError(f"cmvn statistics{whose} need at least one frame, got none")
        if of_all and not sums["global"].count:
            raise DataError("cmvn statistics need at least one frame with a signal; all are digital silence")
        return cls(config, sums, loudness)

    def apply(self, features: NDArray[np.float32], speaker: str) -> NDArray[np.float32]:
        """Normalise the features [T, F] of one utterance; a new array unless there is nothing to do.

        DataError where scope is "speaker" and the speaker was not in the estimated set.
        """
        scope = self.config.scope
        if scope == "none" or len(features) == 0:
            return features
        if scope == "utterance":
            return self.rule.statistics(features).normalise(features, self.rule)
        if scope == "window":
            sliding = SlidingCmvn(self.rule, self.config.window)
            return np.concatenate([sliding.accept(features), sliding.finish()])
        key = speaker if scope == "speaker" else "global"
        if key not in self.statistics:
            raise DataError(f"no cmvn statistics for speaker {speaker!r}; estimate them on this data set")
        return self.statistics[key].normalise(features, self.rule)

    def state(self) -> dict[str, NDArray[np.float64]]:
        """The global statistics as arrays for a checkpoint; empty for the other scopes."""
        if self.config.scope != "global":
            return {}
        saved = self.statistics["global"]
        return {"count": np.array([float(saved.count)]), "total": saved.total, "squares": saved.squares}

    @classmethod
    def from_state(
        cls, config: CmvnConfig, state: Mapping[str, Any], loudness: Loudness | None = None
    ) -> Cmvn:
        """The inverse of `state`; values may be arrays, CPU tensors or lists."""
        if config.scope != "global":
            return cls(config, loudness=loudness)
        names = ("count", "total", "squares")
        if missing := set(names) - set(state):
            raise DataError(f"cmvn state lacks {', '.join(sorted(missing))}")
        count, total, squares = (np.asarray(state[name], np.float64) for name in names)
        return cls(config, {"global": Statistics(float(count.reshape(())), total, squares)}, loudness)


class SlidingCmvn:
    """Features that come in blocks, each frame normalised by the statistics of `window` frames around it.

    As Kaldi's apply-cmvn-sliding with centred windows: for long recordings of several speakers, in bounded memory and
    one pass. The window of frame t begins at t - window // 2; where it would reach beyond an end of the recording it is
    moved inside. A recording of at most `window` frames is normalised as a whole, as CMVN by utterance does. The rule says
    which frames of a window count.
    """

    def __init__(self, rule: Rule, window: int) -> None:
        if window < 1:
            raise ConfigError(f"window is {window}; expected at least 1")
        self.rule, self.window = rule, window
        self._kept: NDArray[np.float32] | None = None
        self._first = self._returned = 0  # frame at which _kept begins; frames returned
        self._ranked: list[
            float
        ] = []  # levels of the frames [_begin, _end) that have a signal, in rising order
        self._begin = self._end = 0

    def accept(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Take the next frames [T, F]; returns the frames [T', F] whose window is complete."""
        if self._kept is not None and features.shape[1:] != self._kept.shape[1:]:
            raise ShapeError(
                f"features have shape {list(features.shape)}, expected [T, {self._kept.shape[1]}]"
            )
        self._kept = features if self._kept is None else np.concatenate([self._kept, features])
        # Whether a frame counts depends on those within `REACH` of it.
        known = self._first + len(self._kept) - REACH
        if known < self.window:
            return features[:0]
        normalised = self._normalised(known, known - self.window + self.window // 2 + 1)
        keep_from = max(self._first, known - self.window - REACH)
        self._kept = self._kept[keep_from - self._first :].copy()
        self._first = keep_from
        return normalised

    def finish(self) -> NDArray[np.float32]:
        """The remaining frames, at the end of the recording."""
        if self._kept is None:
            raise ShapeError("features: finish() before accept(); expected at least one call with [T, F]")
        received = self._first + len(self._kept)
        return self._normalised(received, received)

    def _normalised(self, known: int, end: int) -> NDArray[np.float32]:
        """The frames from the first one not yet returned up to `end`; of `known` frames it is known whether they count."""
        assert self._kept is not None
        kept, known = self._kept, known - self._first
        frames = np.arange(self._returned, end) - self._first  # here and below, rows of `kept`
        starts = np.minimum(frames - self.window // 2, known - self.window)
        starts = np.maximum(-self._first, starts)
        stops = np.minimum(starts + self.window, known)
        self._returned = end
        parts = [kept[:0]]
        for rows, counts, first in self._runs(kept, starts, stops):
            parts.append(self._run(kept, frames[rows], counts, first, starts[rows], stops[rows]))
        return np.concatenate(parts)

    def _runs(
        self, kept: NDArray[np.float32], starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> Iterator[tuple[slice, NDArray[np.bool_], int]]:
        """Consecutive frames in whose windows the same levels count.

        Yields which frames these are, which rows of `kept` from the first of their windows on count, and that first row.
        """
        if not len(starts):
            return
        rule, loudness = self.rule, self.rule.loudness
        signal = whole_signal(kept, loudness)
        if loudness is None or rule.counts != "speech":
            yield slice(None), signal[starts[0] : stops[-1]], int(starts[0])
            return
        levels = loudness.levels(kept)
        least = np.array([self._least(levels, signal, *ends) for ends in zip(starts, stops, strict=True)])
        edges = [0, *(np.flatnonzero(least[1:] != least[:-1]) + 1).tolist(), len(least)]
        for begin, end in pairwise(edges):
            rows = slice(int(starts[begin]), int(stops[end - 1]))
            yield slice(begin, end), signal[rows] & (levels[rows] >= least[begin]), rows.start

    def _least(self, levels: NDArray[np.float32], signal: NDArray[np.bool_], start: int, stop: int) -> float:
        """The level from which on the frames of a window [start, stop) count. Windows come in order."""
        while self._end < stop + self._first:
            row = self._end - self._first
            if signal[row]:
                insort(self._ranked, float(levels[row]))
            self._end += 1
        while self._begin < start + self._first:
            row = self._begin - self._first
            if signal[row]:
                del self._ranked[bisect_left(self._ranked, float(levels[row]))]
            self._begin += 1
        return least_level(self._ranked)

    def _run(
        self,
        kept: NDArray[np.float32],
        frames: NDArray[np.int64],
        counted: NDArray[np.bool_],
        first: int,
        starts: NDArray[np.int64],
        stops: NDArray[np.int64],
    ) -> NDArray[np.float32]:
        """The normalised rows `frames` of `kept`; see `_runs`."""

        def sums(values: NDArray[np.float64]) -> NDArray[np.float64]:
            running = np.cumsum(values * counted[:, None], axis=0)
            running = np.concatenate([np.zeros((1, values.shape[1])), running])
            return running[stops - first] - running[starts - first]

        counts = sums(np.ones((len(counted), 1)))
        exact = kept[first : first + len(counted)].astype(np.float64)
        mean = sums(exact) / np.maximum(1.0, counts)
        squares = sums(exact * exact) / np.maximum(1.0, counts)
        normalised = self.rule.normalise(kept[frames], mean.astype(np.float32), _scale(mean, squares))
        return np.where(counts > 0, normalised, self.rule.of_silence(kept[frames]))
