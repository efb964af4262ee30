"""How loud frames are, and which of them have speech or any signal at all.

One rule serves the statistics of CMVN in all scopes, recordings in blocks and exported models. The level of a frame is the
mean log energy of its mel filters. A recording's loud level is what `LOUD_FRAMES` of its frames reach; silence of any
length in front, behind or inside does not change it. Frames within `SPEECH_RANGE` of the loud level count as speech.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

LOUD_FRAMES = 10  # every word has a vowel of 0.1 s; most clicks are shorter
# Nats of energy, 20 dB: vowels and most consonants, and no quieter background.
SPEECH_RANGE = 2.0 * math.log(10.0)
# Nats to which the loud level is rounded down, so that it rarely changes while a window moves.
LEVEL_STEP = 0.25
# Log energy below which there is no signal. Zeros have log(1.19e-7) = -15.94 in Kaldi, whatever the scale of samples; a
# constant offset leaves up to -15.4 of rounding.
NO_SIGNAL = -15.0
REACH = 2  # frames to each side of digital silence, whose windows of 25 ms every 10 ms are partly in it
ZERO_CEPSTRUM = 0.01


@dataclass(frozen=True)
class Loudness:
    """Which columns of the features tell the level of a frame.

    Attributes:
        num_columns: F.
        cepstral: the first column is the level times `scale`, as in MFCC; else the level is the mean of all columns.
        scale: the square root of the number of mel filters for MFCC, 1 for filter banks.
        base: columns without deltas; 0: all.
        block: columns of one frame with its deltas, where frames are spliced; 0: all.
        own: which of the spliced frames is the frame itself.
    """

    num_columns: int
    cepstral: bool = False
    scale: float = 1.0
    base: int = 0
    block: int = 0
    own: int = 0

    @property
    def weights(self) -> NDArray[np.float32]:
        """float32 [F]: the level of a frame is its product with these."""
        weights = np.zeros(self.num_columns, np.float32)
        first, base = self.own * self.block, self.base or self.num_columns
        if self.cepstral:
            weights[first] = 1.0 / self.scale
        else:
            weights[first : first + base] = 1.0 / base
        return weights

    @property
    def direction(self) -> NDArray[np.float32]:
        """float32 [F]: what a frame gains when its level rises by one."""
        direction = np.zeros(self.num_columns, np.float32)
        width = 1 if self.cepstral else self.base or self.num_columns
        for first in range(0, self.num_columns, self.block or self.num_columns):
            direction[first : first + width] = self.scale
        return direction

    @property
    def tells_level(self) -> NDArray[np.float32]:
        """float32 [F]: 1 for the columns that change with the level, 0 for the others."""
        return (self.direction > 0).astype(np.float32)

    def levels(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """The level of each frame of features [T, F], float32 [T]."""
        # Row by row, so that a frame has the same level to the bit in any block.
        levels: NDArray[np.float32] = (features * self.weights).sum(axis=-1)
        return levels


def without_signal(features: NDArray[np.float32], loudness: Loudness | None) -> NDArray[np.bool_]:
    """Whether each frame of features [T, F] is digital silence.

    Without `loudness`, as for features that somebody else computed, only frames of exact zeros are: Kaldi gives them the
    same lowest log energy in all columns, or a lowest first cepstrum; other cepstra and deltas are zero.
    """
    if loudness is not None:
        return loudness.levels(features) < NO_SIGNAL
    lowest = features[:, 0] <= NO_SIGNAL
    others = features[:, 1:]
    silent: NDArray[np.bool_] = lowest & ((others <= NO_SIGNAL) | (np.abs(others) <= ZERO_CEPSTRUM)).all(
        axis=1
    )
    return silent


def whole_signal(features: NDArray[np.float32], loudness: Loudness | None) -> NDArray[np.bool_]:
    """Whether each frame of features [T, F] is no digital silence and none lies within `REACH` frames."""
    silent = without_signal(features, loudness)
    padded = np.pad(silent, REACH)
    if not len(silent):
        return ~silent
    near = np.asarray(sliding_window_view(padded, 2 * REACH + 1).any(axis=1))
    return ~near


def columns_of_level(features: NDArray[np.float32], loudness: Loudness | None) -> NDArray[np.float32]:
    """1 for columns that change with the level of a frame, 0 for the others: float32 [F], without `loudness` [T, F].

    Then only digital silence in features [T, F] tells: it is as low in all columns, or in the first.
    """
    if loudness is not None:
        return loudness.tells_level
    return np.where(features <= NO_SIGNAL, 1.0, 0.0).astype(np.float32)


def least_level(ranked: Sequence[float] | NDArray[np.float32]) -> float:
    """The level from which on frames count as speech, of the rising levels of all frames with a signal; inf without any."""
    if not len(ranked):
        return math.inf
    loud = ranked[max(0, len(ranked) - LOUD_FRAMES)]
    return math.floor(loud / LEVEL_STEP) * LEVEL_STEP - SPEECH_RANGE


def has_speech(features: NDArray[np.float32], loudness: Loudness | None) -> NDArray[np.bool_]:
    """Whether each frame of features [T, F] counts as speech; without `loudness`, whether it has a signal."""
    signal = whole_signal(features, loudness)
    if loudness is None:
        return signal
    levels = loudness.levels(features)
    return signal & (levels >= least_level(np.sort(levels[signal])))
