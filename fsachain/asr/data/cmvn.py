"""Cepstral mean and variance normalisation: features with zero mean and, if asked for, unit variance.

The statistics are a count, a sum and a sum of squares per feature; over a whole training set ("global"), per speaker, or
per utterance. Global statistics belong to the model: they are estimated on the training set, saved with it, and used to
decode. Speaker statistics are taken from the set that is normalised, test sets included, as Kaldi does; nothing is saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsachain.errors import (
    ConfigError,
    DataError,
    ShapeError,
    added_option,
    brief_of,
    check_choices,
    check_range,
)

VARIANCE_FLOOR = 1e-5  # of the variance: a constant feature, as in digital silence, stays finite


@dataclass(frozen=True)
class CmvnConfig:
    """What is normalised of the features.

    Attributes:
        scope: "global", "speaker" or "utterance": whose frames the statistics are taken over; "window": the frames around
            each frame; or "none".
        moments: "mean", or "mean-variance" for the standard deviation too.
        window (input frames): frames around each frame, for scope "window"; as Kaldi's apply-cmvn-sliding with --center.
    """

    scope: str = "global"
    moments: str = "mean-variance"
    window: int = added_option(600)

    def __post_init__(self) -> None:
        check_range(self, "[1, inf)", "window")
        scopes = ("none", "global", "speaker", "utterance", "window")
        check_choices(self, scope=scopes, moments=("mean", "mean-variance"))


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

    def normalise(self, features: NDArray[np.float32], moments: str) -> NDArray[np.float32]:
        """(features - mean) or (features - mean) / standard deviation, float32 [T, F]."""
        if features.shape[1] != len(self.total):
            raise ShapeError(
                f"features have {features.shape[1]} columns, the cmvn statistics {len(self.total)}"
            )
        mean, scale = self.mean_and_scale(moments)
        return (features - mean) * scale

    def mean_and_scale(self, moments: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """What is subtracted from features, and what they are multiplied by then: float32 [F] each."""
        mean = self.total / self.count
        if moments == "mean":
            return mean.astype(np.float32), np.ones(len(mean), np.float32)
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

    def __init__(self, config: CmvnConfig, statistics: Mapping[str, Statistics] | None = None) -> None:
        """`statistics` are by speaker for scope "speaker", named "global" for scope "global", else none."""
        self.config = config
        self.statistics = dict(statistics or {})
        if config.scope == "global" and set(self.statistics) != {"global"}:
            raise ConfigError(
                "cmvn of scope 'global' needs statistics under the name 'global'; see Cmvn.estimate"
            )

    @classmethod
    def estimate(
        cls, config: CmvnConfig, speakers_and_features: Iterable[tuple[str, NDArray[np.float32]]]
    ) -> Cmvn:
        """Take the statistics that the configuration needs from pairs (speaker, features [T, F]), one after the other.

        Only sums are kept, so the pairs may come from a corpus of any size.
        """
        if config.scope in ("none", "utterance", "window"):
            return cls(config)
        found: dict[str, Statistics] = {}
        of_all = config.scope == "global"
        empty = {"global"} if of_all else set()
        for speaker, features in speakers_and_features:
            key = "global" if of_all else speaker
            if len(features):
                own = Statistics.of(features)
                found[key] = found[key] + own if key in found else own
            else:
                empty.add(key)
        for key in sorted(empty - found.keys()):
            whose = "" if of_all else f" of speaker {key!r}"
            raise DataError(f"cmvn statistics{whose} need at least one frame, got none")
        return cls(config, found)

    def apply(self, features: NDArray[np.float32], speaker: str) -> NDArray[np.float32]:
        """Normalise the features [T, F] of one utterance; a new array unless there is nothing to do.

        DataError where scope is "speaker" and the speaker was not in the estimated set.
        """
        scope = self.config.scope
        if scope == "none" or len(features) == 0:
            return features
        if scope == "utterance":
            return Statistics.of(features).normalise(features, self.config.moments)
        if scope == "window":
            sliding = SlidingCmvn(self.config.moments, self.config.window)
            return np.concatenate([sliding.accept(features), sliding.finish()])
        key = speaker if scope == "speaker" else "global"
        if key not in self.statistics:
            raise DataError(f"no cmvn statistics for speaker {speaker!r}; estimate them on this data set")
        return self.statistics[key].normalise(features, self.config.moments)

    def state(self) -> dict[str, NDArray[np.float64]]:
        """The global statistics as arrays for a checkpoint; empty for the other scopes."""
        if self.config.scope != "global":
            return {}
        saved = self.statistics["global"]
        return {"count": np.array([float(saved.count)]), "total": saved.total, "squares": saved.squares}

    @classmethod
    def from_state(cls, config: CmvnConfig, state: Mapping[str, Any]) -> Cmvn:
        """The inverse of `state`; values may be arrays, CPU tensors or lists."""
        if config.scope != "global":
            return cls(config)
        names = ("count", "total", "squares")
        if missing := set(names) - set(state):
            raise DataError(f"cmvn state lacks {', '.join(sorted(missing))}")
        count, total, squares = (np.asarray(state[name], np.float64) for name in names)
        return cls(config, {"global": Statistics(float(count.reshape(())), total, squares)})


class SlidingCmvn:
    """Features that come in blocks, each frame normalised by the statistics of `window` frames around it.

    As Kaldi's apply-cmvn-sliding with centred windows: for long recordings of several speakers, in bounded memory and
    one pass. The window of frame t begins at t - window // 2; where it would reach beyond an end of the recording it is
    moved inside. A recording of at most `window` frames is normalised as a whole, as CMVN by utterance does. Digital
    silence does not count: frames that repeat the one before to the bit, which no microphone gives.
    """

    def __init__(self, moments: str, window: int) -> None:
        if window < 1:
            raise ConfigError(f"window is {window}; expected at least 1")
        self.moments, self.window = moments, window
        self._kept: NDArray[np.float32] | None = None
        self._counts = np.zeros((0, 1))  # 0.0 for each of these frames that does not
        self._first = self._returned = 0  # frame at which _kept begins; frames returned

    def accept(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Take the next frames [T, F]; returns the frames [T', F] whose window is complete."""
        if self._kept is not None and features.shape[1:] != self._kept.shape[1:]:
            raise ShapeError(
                f"features have shape {list(features.shape)}, expected [T, {self._kept.shape[1]}]"
            )
        before = features[:0] if self._kept is None else self._kept[-1:]
        longer = np.concatenate([before, features])
        new = np.any(longer[1:] != longer[:-1], axis=1, keepdims=True)
        new = np.concatenate([np.ones((len(features) - len(new), 1)), new])
        self._counts = np.concatenate([self._counts, new])
        self._kept = features if self._kept is None else np.concatenate([self._kept, features])
        received = self._first + len(self._kept)
        if received < self.window:
            return features[:0]
        found = self._normalised(self._kept, received - self.window + self.window // 2 + 1)
        keep_from = max(self._first, received - self.window)
        self._counts = self._counts[keep_from - self._first :]
        self._kept = self._kept[keep_from - self._first :].copy()
        self._first = keep_from
        return found

    def finish(self) -> NDArray[np.float32]:
        """The remaining frames, at the end of the recording."""
        if self._kept is None:
            raise ShapeError("features: finish() before accept(); expected at least one call with [T, F]")
        return self._normalised(self._kept, self._first + len(self._kept))

    def _normalised(self, kept: NDArray[np.float32], end: int) -> NDArray[np.float32]:
        """The frames from the first one not yet returned up to `end`."""
        frames = np.arange(self._returned, end) - self._first  # here and below, rows of `kept`
        starts = np.minimum(frames - self.window // 2, len(kept) - self.window)
        starts = np.maximum(-self._first, starts)
        stops = np.minimum(starts + self.window, len(kept))

        def sums(values: NDArray[np.float64]) -> NDArray[np.float64]:
            running = np.concatenate(
                [np.zeros((1, values.shape[1])), np.cumsum(values * self._counts, axis=0)]
            )
            return running[stops] - running[starts]

        counts = np.maximum(1.0, sums(np.ones((len(kept), 1))))
        exact = kept.astype(np.float64)
        mean = sums(exact) / counts
        centred = kept[frames] - mean.astype(np.float32)
        self._returned = end
        return centred if self.moments == "mean" else centred * _scale(mean, sums(exact * exact) / counts)
