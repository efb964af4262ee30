"""Features while the samples come in: equal to those of the whole signal, in memory that does not grow with it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fsachain.data.features import SAMPLE_SCALE, FeatureConfig, online_extractor
from fsachain.errors import ConfigError, require


class FeatureStream:
    """Filter banks or MFCC of one signal that comes in blocks.

    Args:
        config: kind and size of the features.

    Raises:
        ConfigError: features of kind "archive", which are not computed.
        MissingExtraError: kaldi-native-fbank is not installed.
    """

    def __init__(self, config: FeatureConfig) -> None:
        if config.kind == "archive":
            raise ConfigError(
                "kind is 'archive': the features come from feats.scp; expected 'fbank' or 'mfcc' to use recordings"
            )
        self.config = config
        self._extractor = online_extractor(require("kaldi_native_fbank", extra="recipes"), config)
        self._returned = 0

    def accept(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Take the next samples [L], in [-1, 1); the frames [T, F] that are complete now."""
        if len(samples):
            scaled = (samples * np.float32(SAMPLE_SCALE)).tolist()
            self._extractor.accept_waveform(self.config.sample_rate, scaled)
        return self._frames()

    def finish(self) -> NDArray[np.float32]:
        """The frames [T, F] at the end of the signal."""
        self._extractor.input_finished()
        return self._frames()

    def _frames(self) -> NDArray[np.float32]:
        ready = self._extractor.num_frames_ready
        frames = np.empty((ready - self._returned, self.config.num_features), np.float32)
        for row, t in enumerate(range(self._returned, ready)):
            frames[row] = self._extractor.get_frame(t)
        self._extractor.pop(len(frames))
        self._returned = ready
        return frames
