"""A network as a user brings it: plain PyTorch, named in the configuration by its import path.

    network: {kind: "recipes.fine_tune.encoder:DilatedEncoder", channels: 128}

`fsachain.asr.nn.Network` says what is expected of it. Of fsachain it takes the form of the result, and a batch normalisation
that leaves padding out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fsachain.asr.nn import NetworkOutput
from fsachain.asr.nn.layers import MaskedBatchNorm


class DilatedEncoder(nn.Module):
    """Residual layers of dilated convolutions over time, and a linear output layer."""

    def __init__(
        self,
        num_features: int,
        num_pdfs: int,
        channels: int = 128,
        dilations: Sequence[int] = (1, 1, 2, 2, 3),
        dropout: float = 0.1,
    ) -> None:
        """`dilations`: of each layer, how far its neighbouring frames are away, in output frames."""
        super().__init__()
        self.num_features, self.num_pdfs = num_features, num_pdfs
        # The first convolution is centred on the second of three frames.
        self.subsampling, self.time_offset = 3, 1
        around = self.subsampling * sum(dilations) + 1
        self.context = (around, around)
        self.encoder = nn.ModuleList(
            [Layer(num_features, channels, kernel=5, stride=3, padding=1)]
            + [Layer(channels, channels, kernel=3, dilation=step, padding=step) for step in dilations]
        )
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(channels, num_pdfs)

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """ceil(T / 3)."""
        return torch.div(lengths + 2, 3, rounding_mode="floor")

    def forward(self, features: Tensor, lengths: Tensor) -> NetworkOutput:
        """Score features [N, T, F] with `lengths` real frames."""
        counts = lengths.to(features.device)
        padding = torch.arange(features.shape[1], device=features.device)[None] >= counts[:, None]
        scores = self.scores(features.masked_fill(padding[:, :, None], 0.0), counts)
        return NetworkOutput(scores, self.output_lengths(lengths), None)

    def scores(self, features: Tensor, lengths: Tensor) -> Tensor:
        """As `forward`, of features that are 0 on padding; this is what ONNX gets."""
        outputs = (features.shape[1] + 2) // 3
        x = F.pad(features, (0, 0, 0, 2))[:, : 3 * outputs].transpose(1, 2)
        real = torch.arange(outputs, device=x.device)[None] < self.output_lengths(lengths)[:, None]
        mask = real[:, None].to(x.dtype)
        x = self.encoder[0](x, mask)
        for layer in self.encoder[1:]:
            x = 0.66 * x + self.dropout(layer(x, mask))
        result: Tensor = self.head(x.transpose(1, 2))
        return result


class Layer(nn.Module):
    """Convolution, ReLU, batch normalisation over the real frames; padding stays 0."""

    def __init__(
        self, inputs: int, outputs: int, *, kernel: int, padding: int, stride: int = 1, dilation: int = 1
    ) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(
            inputs, outputs, kernel, stride=stride, dilation=dilation, padding=padding
        )
        self.norm = MaskedBatchNorm(outputs)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Map x [N, C, T] -> [N, C', T / stride]; mask [N, 1, T / stride] is 1 on real frames."""
        result: Tensor = self.norm(self.convolution(x), mask)
        return result
