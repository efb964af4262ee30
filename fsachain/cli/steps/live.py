"""From a recording to network outputs, block by block: what transcribing and aligning long recordings begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fsachain.cli.steps.model import AcousticModel
from fsachain.data.feature_stream import FeatureStream
from fsachain.data.recording import Recording
from fsachain.data.sliding_cmvn import SlidingCmvn
from fsachain.nn.streaming import StreamingModel

Features = NDArray[np.float32]
CMVN_SECONDS = 30.0


def open_recording(model: AcousticModel, path: Path) -> Recording:
    """A recording at the model's sampling rate.

    Raises:
        DataError: no such file, or none that soundfile reads.
    """
    return Recording(path, model.experiment.features.sample_rate)


def stream_outputs(model: AcousticModel, recording: Recording) -> Iterator[Features]:
    """Network outputs [T', P] of a recording, block by block: together those of the whole, in the memory of a block.

    Where the configuration normalises by utterance or speaker, each frame is normalised by the `CMVN_SECONDS` around it: a
    recording that is no longer than that, as an utterance.

    Raises:
        ConfigError: the model takes features from archives.
        DataError: a damaged recording.
    """
    network = StreamingModel(model.network)
    for features in _normalised(model, _features(model, recording)):
        yield network.accept(features).numpy()
    yield network.finish().numpy()


def _normalised(model: AcousticModel, blocks: Iterator[Features]) -> Iterator[Features]:
    config = model.cmvn.config
    if config.scope in ("none", "global"):
        for features in blocks:
            yield model.cmvn.apply(features, "")
        return
    shift = model.experiment.features.frame_shift_ms / 1000.0
    sliding = SlidingCmvn(config.moments, max(1, round(CMVN_SECONDS / shift)))
    for features in blocks:
        yield sliding.accept(features)
    yield sliding.finish()


def _features(model: AcousticModel, recording: Recording) -> Iterator[Features]:
    stream = FeatureStream(model.experiment.features)
    for samples in recording.blocks():
        yield stream.accept(samples)
    yield stream.finish()
