"""Normalisation of a recording over the frames around each frame, as Kaldi's apply-cmvn-sliding does with centred windows.

Models whose features are normalised by utterance or speaker are used on recordings that are neither: an hour of several
speakers. A window as long as an utterance gives them what they were trained on, in bounded memory and one pass.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fsachain.data.cmvn import VARIANCE_FLOOR
from fsachain.errors import ConfigError, ShapeError


class SlidingCmvn:
    """Features that come in blocks, each frame normalised by the statistics of `window` frames around it.

    The window of frame t begins at t - window // 2; where it would reach beyond an end of the recording it is moved inside.
    A recording of at most `window` frames is normalised as a whole, as CMVN by utterance does.

    Args:
        moments: "mean" or "mean-variance", as in `CmvnConfig`.
        window: frames, at least 1.

    Raises:
        ConfigError: window below 1.
    """

    def __init__(self, moments: str, window: int) -> None:
        if window < 1:
            raise ConfigError(f"window is {window}; expected at least 1")
        self.moments, self.window = moments, window
        self._kept: NDArray[np.float32] | None = None
        self._first = self._returned = 0  # frame at which _kept begins; frames returned

    def accept(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Take the next frames [T, F]; those [T', F] that they settle.

        Raises:
            ShapeError: another width than before.
        """
        if self._kept is not None and features.shape[1:] != self._kept.shape[1:]:
            raise ShapeError(
                f"features have shape {list(features.shape)}, expected [T, {self._kept.shape[1]}]"
            )
        self._kept = features if self._kept is None else np.concatenate([self._kept, features])
        received = self._first + len(self._kept)
        if received < self.window:
            return features[:0]
        found = self._normalised(received - self.window + self.window // 2 + 1)
        keep_from = max(self._first, received - self.window)
        self._kept = self._kept[keep_from - self._first :].copy()
        self._first = keep_from
        return found

    def finish(self) -> NDArray[np.float32]:
        """The frames at the end.

        Raises:
            ShapeError: nothing was accepted, not even [0, F].
        """
        if self._kept is None:
            raise ShapeError("features: finish() before accept(); expected at least one call with [T, F]")
        return self._normalised(self._first + len(self._kept))

    def _normalised(self, end: int) -> NDArray[np.float32]:
        """Frames from the first that was not returned up to `end`."""
        assert self._kept is not None
        received = self._first + len(self._kept)
        frames = np.arange(self._returned, end)
        starts = np.maximum(0, np.minimum(frames - self.window // 2, received - self.window))
        stops = np.minimum(starts + self.window, received)
        count = (stops - starts)[:, None]
        exact = self._kept.astype(np.float64)
        mean = _sums(exact, starts - self._first, stops - self._first) / count
        centred = self._kept[frames - self._first] - mean.astype(np.float32)
        self._returned = end
        if self.moments == "mean":
            return centred
        squares = _sums(exact * exact, starts - self._first, stops - self._first) / count
        variance = np.maximum(squares - mean * mean, VARIANCE_FLOOR)
        return centred * (1.0 / np.sqrt(variance)).astype(np.float32)


def _sums(
    values: NDArray[np.float64], starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Sums over the rows [start, stop)."""
    running = np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(values, axis=0)])
    return running[stops] - running[starts]
