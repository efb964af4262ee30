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
CONTEXT_SECONDS = 15.0  # to each side, of networks that see whole utterances


def open_recording(model: AcousticModel, path: Path) -> Recording:
    """A recording at the model's sampling rate.

    Raises:
        DataError: no such file, or none that soundfile reads.
    """
    return Recording(path, model.experiment.features.sample_rate)


def stream_outputs(model: AcousticModel, recording: Recording) -> Iterator[Features]:
    """Network outputs [T', P] of a recording, block by block: together those of the whole, in the memory of a block.

    Where the configuration normalises by utterance or speaker, each frame is normalised by the `CMVN_SECONDS` around it: a
    recording that is no longer than that, as an utterance. A network that sees whole utterances is given the
    `CONTEXT_SECONDS` before and behind each block: a recording that is no longer than that, as a whole.

    Raises:
        ConfigError: the model takes features from archives.
        DataError: a damaged recording.
    """
    context = model.network.context
    if context is None:
        frames = max(1, round(CONTEXT_SECONDS / _frame_shift(model)))
        context = (frames, frames)
    network = StreamingModel(model.network, context)
    for features in _normalised(model, _features(model, recording)):
        yield network.accept(features).numpy()
    yield network.finish().numpy()


def _normalised(model: AcousticModel, blocks: Iterator[Features]) -> Iterator[Features]:
    config = model.cmvn.config
    if config.scope in ("none", "global"):
        for features in blocks:
            yield model.cmvn.apply(features, "")
        return
    sliding = SlidingCmvn(config.moments, max(1, round(CMVN_SECONDS / _frame_shift(model))))
    for features in blocks:
        yield sliding.accept(features)
    yield sliding.finish()


def _features(model: AcousticModel, recording: Recording) -> Iterator[Features]:
    stream = FeatureStream(model.experiment.features)
    for samples in recording.blocks():
        yield stream.accept(samples)
    yield stream.finish()


def _frame_shift(model: AcousticModel) -> float:
    """Seconds from one frame of the features to the next."""
    return model.experiment.features.frame_shift_ms / 1000.0
