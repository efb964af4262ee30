"""Networks as ONNX files: features that are not normalised go in, network outputs come out.

The file holds CMVN, subsampling and the network's weights, and says in its metadata how the features are computed; what
remains to be done elsewhere is Kaldi's fbank or MFCC before it and the decoder behind it.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from fsachain.asr.data.cmvn import QUIET, USUAL_DEVIATION, VARIANCE_FLOOR, Cmvn
from fsachain.asr.data.loudness import LEVEL_STEP, LOUD_FRAMES, NO_SIGNAL, REACH, SPEECH_RANGE, ZERO_CEPSTRUM
from fsachain.asr.nn.network import Network, frames_below, subsampled
from fsachain.errors import ConfigError, FsachainError, require
from fsachain.files import replacing

INPUTS, OUTPUTS = ("features", "lengths"), ("nnet_output", "nnet_lengths")
PARITY = 1e-4  # relative to the largest output: float32, and sums in another order


class ExportedModel(nn.Module):
    """CMVN and network as one module without a decision that depends on data, which ONNX requires.

    CMVN of scope "speaker" takes each utterance for a speaker, since the file has no memory. A network without `scores`, or
    in training mode, is a ConfigError.
    """

    def __init__(self, network: Network, cmvn: Cmvn) -> None:
        super().__init__()
        if not hasattr(network, "scores"):
            raise ConfigError(
                f"network: {type(network).__name__} cannot be exported; expected a method "
                "scores(features [N, T, F], lengths [N]) -> nnet_output, as Tdnnf and Conformer have it"
            )
        if network.training:
            raise ConfigError("network: is in training mode; expected network.eval()")
        self.network: Any = network
        self.scope, self.moments, self.counts = cmvn.config.scope, cmvn.config.moments, cmvn.config.counts
        self.loudness = cmvn.loudness
        if self.loudness is not None:
            for name in ("weights", "direction", "tells_level"):
                self.register_buffer(name, torch.from_numpy(getattr(self.loudness, name)))
        if self.scope == "global":
            mean, scale = cmvn.statistics["global"].mean_and_scale()
            self.register_buffer("mean", torch.from_numpy(mean))
            self.register_buffer("scale", torch.from_numpy(scale))

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Score features that are not normalised, float32 [N, T, F], T >= 1.

        lengths: int64 [N], 0 <= lengths[n] <= T; frames beyond have no influence. Returns nnet_output, float32
        [N, ceil(T / s), P], undefined at and past nnet_lengths[n], and nnet_lengths, int64 [N].
        """
        inside = frames_below(lengths, features.shape[1])
        blank = ~inside[:, :, None]
        x = self._normalised(features.masked_fill(blank, 0.0), inside).masked_fill(blank, 0.0)
        return self.network.scores(x, lengths), subsampled(lengths, self.network.subsampling)

    def _normalised(self, features: Tensor, inside: Tensor) -> Tensor:
        """The features after CMVN, as `Rule` in fsachain.asr.data.cmvn has it; `inside` [N, T] is False on padding."""
        if self.scope == "none":
            return features
        silent = self._without_signal(features)
        if self.scope == "global":
            mean, scale = cast(Tensor, self.mean), cast(Tensor, self.scale)
            return self._scaled(features, silent, mean[None, None], scale[None, None])
        # Padding has a level, so that only silence inside counts as such.
        # Shifted copies and not max_pool1d, which would fix T in the exported file.
        num_frames = features.shape[1]
        reaching = nn.functional.pad(silent, (REACH, REACH))
        near = reaching[:, :num_frames]
        for shift in range(1, 2 * REACH + 1):
            near = near | reaching[:, shift : shift + num_frames]
        counted = inside & ~near
        if self.counts == "speech" and self.loudness is not None:
            counted = counted & self._has_speech(features, counted)
        weight = counted.double()[:, :, None]
        count = weight.sum(dim=1, keepdim=True)
        exact = features.double() * weight
        mean64 = exact.sum(dim=1, keepdim=True) / count.clamp(min=1.0)
        squares = (exact * features.double()).sum(dim=1, keepdim=True) / count.clamp(min=1.0)
        variance = (squares - mean64 * mean64).clamp(min=VARIANCE_FLOOR)
        x = self._scaled(features, silent, mean64.float(), variance.rsqrt().float())
        return torch.where(count > 0, x, self._of_silence(features))

    def _without_signal(self, features: Tensor) -> Tensor:
        """Bool [N, T]: `without_signal` in fsachain.asr.data.loudness."""
        if self.loudness is not None:
            return features @ cast(Tensor, self.weights) < NO_SIGNAL
        others = features[:, :, 1:]
        zeros = ((others <= NO_SIGNAL) | (others.abs() <= ZERO_CEPSTRUM)).all(dim=2)
        return (features[:, :, 0] <= NO_SIGNAL) & zeros

    def _has_speech(self, features: Tensor, signal: Tensor) -> Tensor:
        """Bool [N, T]: within the range of speech; `signal` [N, T] are frames that can be."""
        levels = features @ cast(Tensor, self.weights)
        known = nn.functional.pad(levels.masked_fill(~signal, -torch.inf), (0, LOUD_FRAMES), value=-torch.inf)
        loudest = known.topk(LOUD_FRAMES, dim=1).values
        loud = loudest.masked_fill(loudest == -torch.inf, torch.inf).amin(dim=1, keepdim=True)
        return levels >= (loud / LEVEL_STEP).floor() * LEVEL_STEP - SPEECH_RANGE

    def _scaled(self, features: Tensor, silent: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
        """Features by mean and scale, which broadcast to [N, T, F], with silence raised."""
        if self.loudness is None:
            quiet = mean - QUIET * (features <= NO_SIGNAL) / scale
            raised = torch.where(silent[:, :, None], quiet, features)
        else:
            weights, direction = cast(Tensor, self.weights), cast(Tensor, self.direction)
            deviation = cast(Tensor, self.tells_level) / scale
            quiet = mean - QUIET * deviation
            lacking = (quiet @ weights - features @ weights).clamp(min=0.0)
            raised = features + lacking[:, :, None] * direction
            raised = torch.where(silent[:, :, None], quiet, raised)
            if self.counts != "speech":
                deepest = (mean - 2.0 * QUIET * deviation) @ weights
                raised = torch.where((deepest <= NO_SIGNAL)[:, :, None], features, raised)
        centred = raised - mean
        return centred if self.moments == "mean" else centred * scale

    def _of_silence(self, features: Tensor) -> Tensor:
        """What frames become where nothing counts, float32 [F] or [N, T, F]."""
        depth = QUIET if self.moments == "mean-variance" else QUIET * USUAL_DEVIATION
        if self.loudness is None:
            return -depth * (features <= NO_SIGNAL).float()
        along = self.tells_level if self.moments == "mean-variance" else self.direction
        return -depth * cast(Tensor, along)


def export_onnx(
    path: str | Path, network: Network, cmvn: Cmvn, metadata: Mapping[str, Any] | None = None
) -> float:
    """Write a model as an ONNX file, and compare it with PyTorch before it gets its name.

    Inputs and outputs are those of `ExportedModel.forward`, under the names `features`, `lengths`, `nnet_output` and
    `nnet_lengths`; N and T are free.

    Args:
        path: of the file.
        network: in evaluation mode.
        cmvn: see `ExportedModel`.
        metadata: put into the file's metadata as JSON, key by key.

    Returns:
        The largest difference from PyTorch over some batches, relative to the largest output.

    Raises:
        ConfigError: a network in training mode, or without `scores`.
        FsachainError: the file does not compute what PyTorch computes.
        MissingExtraError: onnx, onnxscript or onnxruntime is not installed.
    """
    module = ExportedModel(network, cmvn).eval()
    for name in ("onnx", "onnxscript"):
        require(name, extra="onnx")
    free = torch.export.Dim.DYNAMIC
    with warnings.catch_warnings(), _only_errors("torch.onnx"):
        # Of packages that the exporter asks for and this model has no use for.
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module,
            _batch(module, [7, 5], 0),
            input_names=INPUTS,
            output_names=OUTPUTS,
            dynamo=True,
            verbose=False,
            dynamic_shapes={"features": {0: free, 1: free}, "lengths": {0: free}},
        )
    assert program is not None
    proto = program.model_proto
    for key, value in (metadata or {}).items():
        proto.metadata_props.add(key=key, value=json.dumps(value, sort_keys=True))
    data = proto.SerializeToString()
    difference = _difference(module, data)
    if not difference <= PARITY:
        raise FsachainError(
            f"{path}: onnxruntime differs from PyTorch by {difference:.2g} of the largest output; "
            f"expected at most {PARITY:g}"
        )
    with replacing(path) as file:
        file.write(data)
    return difference


@contextmanager
def _only_errors(name: str) -> Iterator[None]:
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _batch(module: ExportedModel, lengths: Sequence[int], seed: int) -> tuple[Tensor, Tensor]:
    """Features like log energies: their mean is far from zero."""
    generator = torch.Generator().manual_seed(seed)
    size = (len(lengths), max(lengths), module.network.num_features)
    return 10.0 + 3.0 * torch.randn(size, generator=generator), torch.tensor(lengths)


@torch.inference_mode()
def _difference(module: ExportedModel, data: bytes) -> float:
    """The largest difference between file and module, relative to the largest output, at lengths of all remainders."""
    runtime = require("onnxruntime", extra="onnx")
    session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    worst, largest = 0.0, 1.0
    for seed, lengths in enumerate([[50], [49, 3, 20], [48, 48], [1]]):
        features, counts = _batch(module, lengths, seed)
        feed = dict(zip(INPUTS, (features.numpy(), counts.numpy()), strict=True))
        found, found_lengths = session.run(list(OUTPUTS), feed)
        expected, expected_lengths = (part.numpy() for part in module(features, counts))
        if not np.array_equal(found_lengths, expected_lengths):
            return float("inf")
        for row, other, count in zip(found, expected, expected_lengths, strict=True):
            worst = max(worst, float(np.abs(row[:count] - other[:count]).max(initial=0.0)))
            largest = max(largest, float(np.abs(other[:count]).max(initial=0.0)))
    return worst / largest
