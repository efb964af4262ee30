"""Changes of features along time: deltas as Kaldi's add-deltas computes them, splicing, and stretching."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fsachain.errors import ConfigError

Features = NDArray[np.float32]
DELTA_WINDOW = 2  # frames to each side of one derivative; Kaldi's --delta-window
MOST_DELTAS = 4


def delta_kernels(order: int) -> list[NDArray[np.float32]]:
    """Return the filters of the derivatives 0 to `order`; filter i has 2 * DELTA_WINDOW * i + 1 taps.

    A derivative is a regression over five frames, and the next one is that of the derivative before.
    """
    offsets = np.arange(-DELTA_WINDOW, DELTA_WINDOW + 1)
    first = offsets / np.square(offsets).sum()
    kernels = [np.ones(1)]
    for _ in range(order):
        kernels.append(np.convolve(kernels[-1], first))
    return [kernel.astype(np.float32) for kernel in kernels]


class _Stage(Protocol):
    before: int
    after: int

    def work(self, padded: Features) -> Features: ...


class _Deltas:
    """Appends derivatives; `padded` has `before` frames in front and `after` at the end that get no output."""

    def __init__(self, order: int) -> None:
        self.kernels = delta_kernels(order)
        self.before = self.after = DELTA_WINDOW * order

    def work(self, padded: Features) -> Features:
        frames = len(padded) - self.before - self.after
        blocks = []
        for kernel in self.kernels:
            first = self.before - len(kernel) // 2
            block = np.zeros((frames, padded.shape[1]), np.float32)
            for tap, factor in enumerate(kernel):  # one after the other: blocks of a stream get the same sums
                block += factor * padded[first + tap : first + tap + frames]
            blocks.append(block)
        return np.concatenate(blocks, axis=1)


class _Splice:
    """Puts each frame's neighbours next to it, the earliest first."""

    def __init__(self, before: int, after: int) -> None:
        self.before, self.after = before, after

    def work(self, padded: Features) -> Features:
        frames = len(padded) - self.before - self.after
        shifts = range(self.before + 1 + self.after)
        return np.concatenate([padded[shift : shift + frames] for shift in shifts], axis=1)


def check_context(deltas: int, splice: tuple[int, int]) -> None:
    """Raise ConfigError unless both are possible."""
    if not 0 <= deltas <= MOST_DELTAS:
        raise ConfigError(f"deltas is {deltas}; expected 0 to {MOST_DELTAS}, 2 for deltas and delta-deltas")
    if min(splice) < 0:
        raise ConfigError(f"splice is {list(splice)}; expected frames before and after, 0 or more each")


def columns_with_context(columns: int, deltas: int, splice: tuple[int, int]) -> int:
    """Return how many columns features of `columns` columns have with deltas and splicing."""
    return columns * (1 + deltas) * (1 + sum(splice))


def add_context(features: Features, deltas: int, splice: tuple[int, int] = (0, 0)) -> Features:
    """Append deltas to features [T, F], then splice frames; the frames at the edges are repeated.

    Args:
        features: float32 [T, F].
        deltas: derivatives to append: 1 for deltas, 2 for delta-deltas too.
        splice: frames before and after each frame that stand next to it.

    Returns:
        float32 [T, F (1 + deltas) (1 + splice[0] + splice[1])]; `features` themselves if nothing is to be added.
    """
    stream = ContextStream(deltas, splice)
    return np.concatenate([stream.accept(features), stream.finish()]) if stream.stages else features


class ContextStream:
    """`add_context` for features that come in blocks: the same frames, bitwise, each as soon as it is complete."""

    def __init__(self, deltas: int, splice: tuple[int, int] = (0, 0)) -> None:
        check_context(deltas, splice)
        stages: list[_Stage] = []
        if deltas:
            stages.append(_Deltas(deltas))
        if any(splice):
            stages.append(_Splice(*splice))
        self.stages = stages
        self._kept: list[Features | None] = [None] * len(stages)  # input of each stage that is still needed

    def accept(self, features: Features) -> Features:
        """Take the next frames [T, F]; returns the frames [T', F'] that are complete now."""
        for number in range(len(self.stages)):
            features = self._advance(number, features)
        return features

    def finish(self) -> Features:
        """Return the remaining frames, at the end of the signal."""
        left: Features | None = None
        for number, stage in enumerate(self.stages):
            parts = [] if left is None else [self._advance(number, left)]
            kept = self._kept[number]
            if kept is not None:
                parts.append(self._advance(number, np.repeat(kept[-1:], stage.after, axis=0)))
            left = np.concatenate(parts) if parts else None
        return np.zeros((0, 0), np.float32) if left is None else left

    def _advance(self, number: int, features: Features) -> Features:
        stage, kept = self.stages[number], self._kept[number]
        if kept is None or not len(kept):
            kept = np.repeat(features[:1], stage.before, axis=0)
        kept = np.concatenate([kept, features])
        needed = stage.before + stage.after
        if len(kept) <= needed:
            self._kept[number] = kept
            return stage.work(np.zeros((needed, features.shape[1]), np.float32))
        self._kept[number] = kept[len(kept) - needed :]
        return stage.work(kept)


def stretched_frames(num_frames: int, speed: float) -> int:
    """Return how many frames `stretch` makes of so many."""
    return math.ceil(num_frames / Fraction(round(speed * 100), 100))


def stretch(features: Features, speed: float) -> Features:
    """Play features [T, F] faster or slower by linear interpolation between frames.

    Formants and pitch stay as they are, unlike with a change of the recording's speed.

    Args:
        features: float32 [T, F].
        speed: factor, to two decimals; 0.9 is slower and longer.

    Returns:
        float32 [ceil(T / speed), F].
    """
    frames = stretched_frames(len(features), speed)
    if frames == len(features) or not len(features):
        return features
    last = len(features) - 1
    place = np.clip((np.arange(frames) + 0.5) * round(speed, 2) - 0.5, 0, last)
    below = np.minimum(place.astype(np.int64), max(0, last - 1))
    share = (place - below).astype(np.float32)[:, None]
    return features[below] * (1 - share) + features[np.minimum(below + 1, last)] * share
