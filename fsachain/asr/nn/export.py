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

from fsachain.asr.data.cmvn import VARIANCE_FLOOR, Cmvn
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
        self.scope, self.moments = cmvn.config.scope, cmvn.config.moments
        if self.scope == "global":
            mean, scale = cmvn.statistics["global"].mean_and_scale(self.moments)
            self.register_buffer("mean", torch.from_numpy(mean))
            self.register_buffer("scale", torch.from_numpy(scale))

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Score features that are not normalised, float32 [N, T, F], T >= 1.

        lengths: int64 [N], 0 <= lengths[n] <= T; frames beyond have no influence. Returns nnet_output, float32
        [N, ceil(T / s), P], undefined at and past nnet_lengths[n], and nnet_lengths, int64 [N].
        """
        blank = ~frames_below(lengths, features.shape[1])[:, :, None]
        x = self._normalised(features.masked_fill(blank, 0.0), lengths).masked_fill(blank, 0.0)
        return self.network.scores(x, lengths), subsampled(lengths, self.network.subsampling)

    def _normalised(self, features: Tensor, lengths: Tensor) -> Tensor:
        """The features after CMVN, 0 on padding."""
        if self.scope == "none":
            return features
        if self.scope == "global":
            return (features - cast(Tensor, self.mean)) * cast(Tensor, self.scale)
        exact = features.double()
        count = lengths.clamp(min=1).double()[:, None]
        mean = exact.sum(dim=1) / count
        centred = features - mean.float()[:, None]
        if self.moments == "mean":
            return centred
        variance = ((exact * exact).sum(dim=1) / count - mean * mean).clamp(min=VARIANCE_FLOOR)
        return centred * variance.rsqrt().float()[:, None]


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
