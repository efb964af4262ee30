"""Building blocks of the Conformer: subsampling, attention with rotary positions, convolution, feed-forward.

Activations are [N, T, C]. `real` [N, T] is True on frames of an utterance, False on padding. Blocks keep the promise of
`layers`: what is zero on padding comes in, what is zero on padding goes out, and no real frame sees padding, so that results
do not depend on the other utterances of a batch.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fsachain.nn.layers import MaskedBatchNorm
from fsachain.nn.network import subsampled

# Subsampling -> the strides of the two convolutions and, for each, the input frame on which its first output is centred.
STRIDES = {
    1: ((1, 0), (1, 0)),
    2: ((2, 1), (1, 0)),
    3: ((3, 1), (1, 0)),
    4: ((2, 0), (2, 1)),
    6: ((3, 0), (2, 1)),
}


class ConvSubsampling(nn.Module):
    """Two convolutions over time and frequency, each with ReLU, then a linear layer: [N, T, F] -> [N, T / s, C].

    Output frame t is centred on input frame s t + s // 2. Both convolutions halve the frequency axis.
    """

    def __init__(self, num_features: int, channels: int, *, filters: int, subsampling: int) -> None:
        super().__init__()
        self.subsampling = subsampling
        self.plan = STRIDES[subsampling]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(inputs, filters, (_kernel(stride), 3), stride=(stride, 2), padding=(0, 1))
            for inputs, (stride, _) in zip((1, filters), self.plan, strict=True)
        )
        bins = (num_features + 3) // 4  # halved twice, rounded up
        self.linear = nn.Linear(filters * bins, channels)

    @property
    def context(self) -> tuple[int, int]:
        """Input frames seen before and after the s that an output owns."""
        first, last = 0, 0  # seen by output frame 0, in the input of the convolution
        for stride, centre in reversed(self.plan):
            left = _kernel(stride) // 2 - centre
            first, last = stride * first - left, stride * last - left + _kernel(stride) - 1
        return max(0, -first), max(0, last - (self.subsampling - 1))

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Thin out.

        Args:
            features: [N, T, F], T a multiple of s, 0 on padding.
            lengths: int64 [N] on the features' device.

        Returns:
            Activations [N, T / s, C], 0 on padding, and where they are real, bool [N, T / s].
        """
        x = features[:, None]
        for (stride, centre), convolution in zip(self.plan, self.convolutions, strict=True):
            kernel = _kernel(stride)
            left = kernel // 2 - centre
            x = F.relu(convolution(F.pad(x, (0, 0, left, kernel - stride - left))))
            lengths = subsampled(lengths, stride)
            real = frames_below(lengths, x.shape[2])
            x = x.masked_fill(~real[:, None, :, None], 0.0)
        x = self.linear(x.transpose(1, 2).flatten(2))
        return x.masked_fill(~real[:, :, None], 0.0), real


def _kernel(stride: int) -> int:
    """Frames that a convolution sees: neighbours overlap whatever the stride."""
    return 5 if stride == 3 else 3


def frames_below(lengths: Tensor, num_frames: int) -> Tensor:
    """Bool [N, num_frames]: True on the first lengths[n] frames."""
    return torch.arange(num_frames, device=lengths.device)[None] < lengths[:, None]


def visible(real: Tensor, chunk: int, left_chunks: int) -> Tensor:
    """Which frames attend to which: bool [N, 1, T, T], query by key.

    Args:
        real: bool [N, T].
        chunk: frames of a chunk; 0: every real frame is seen.
        left_chunks: chunks before its own that a frame sees.
    """
    frames = torch.arange(real.shape[1], device=real.device)
    seen = real[:, None, :]
    if chunk:
        behind = frames[:, None] // chunk - frames[None] // chunk
        seen = seen & ((behind >= 0) & (behind <= left_chunks))
    # A frame of padding sees itself: a row without any key would be NaN.
    return (seen | (frames[:, None] == frames[None]))[:, None]


class RotaryAttention(nn.Module):
    """Self-attention whose scores depend on how far two frames are apart (Su et al., 2021, rotary positions).

    No attention weight is dropped in training: torch's fused kernels for the CPU know no dropout.
    """

    def __init__(self, channels: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.inputs = nn.Linear(channels, 3 * channels)
        self.output = nn.Linear(channels, channels)

    def forward(self, x: Tensor, mask: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        """Attend: x [N, T, C] with the mask of `visible` and the angles of `rotation` -> [N, T, C]."""
        heads = self.inputs(x).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        query, key = (_rotated(part, *angles) for part in (heads[0], heads[1]))
        found = F.scaled_dot_product_attention(query, key, heads[2], attn_mask=mask)
        return cast(Tensor, self.output(found.transpose(1, 2).flatten(2)))


def rotation(num_frames: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine [T, width / 2], float64, of the angle by which frame t turns each pair of a head's numbers.

    In float32 the angles of frame 5,000 would be off by 3e-4, and a frame's scores would depend on when it comes.
    No pair takes more than 2 pi 1000 frames for a turn: more than an utterance has, few enough to tell neighbours apart.
    """
    rates = 1000.0 ** (-torch.arange(0, width, 2, device=device, dtype=torch.float64) / width)
    angles = torch.arange(num_frames, device=device, dtype=torch.float64)[:, None] * rates
    return angles.cos(), angles.sin()


def _rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn the pairs (i, i + width / 2) of x [N, H, T, width], in the precision of x."""
    one, other = x.chunk(2, dim=-1)
    cosine, sine = cosine.to(x.dtype), sine.to(x.dtype)
    return torch.cat([one * cosine - other * sine, one * sine + other * cosine], dim=-1)


class ConvolutionModule(nn.Module):
    """Gated linear unit, convolution of each channel over time, normalisation, Swish, linear (Gulati et al., 2020).

    With `norm` "batch", ReLU and `MaskedBatchNorm` stand for normalisation and Swish.
    """

    def __init__(self, channels: int, kernel: int, *, norm: str, lookahead: int) -> None:
        """`lookahead`: how many of the `kernel` frames that an output sees come after its own."""
        super().__init__()
        self.before, self.after = kernel - 1 - lookahead, lookahead
        self.gated = nn.Linear(channels, 2 * channels)
        self.depthwise = nn.Conv1d(channels, channels, kernel, groups=channels)
        self.norm = MaskedBatchNorm(channels) if norm == "batch" else nn.LayerNorm(channels)
        self.linear = nn.Linear(channels, channels)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        """Map x [N, T, C] -> [N, T, C]; padding counts as silence beyond the end."""
        y = F.glu(self.gated(x), dim=-1).masked_fill(~real[:, :, None], 0.0).transpose(1, 2)
        y = self.depthwise(F.pad(y, (self.before, self.after)))
        if isinstance(self.norm, MaskedBatchNorm):
            y = self.norm(y, real[:, None].to(torch.float32)).transpose(1, 2)
        else:
            y = F.silu(self.norm(y.transpose(1, 2)))
        return cast(Tensor, self.linear(y))


class ConformerBlock(nn.Module):
    """Half a feed-forward step, attention, convolution, the other half; each on a normalised input, added to it."""

    def __init__(
        self,
        channels: int,
        *,
        num_heads: int,
        feed_forward: int,
        kernel: int,
        norm: str,
        lookahead: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.first, self.second = (_feed_forward(channels, feed_forward, dropout) for _ in range(2))
        self.attention_norm, self.convolution_norm, self.norm = (nn.LayerNorm(channels) for _ in range(3))
        self.attention = RotaryAttention(channels, num_heads)
        self.convolution = ConvolutionModule(channels, kernel, norm=norm, lookahead=lookahead)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, real: Tensor, mask: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        """Map x [N, T, C] -> [N, T, C]; `real` and `mask` as of `visible`, `angles` as of `rotation`."""
        x = x + 0.5 * self.first(x)
        x = x + self.dropout(self.attention(self.attention_norm(x), mask, angles))
        x = x + self.dropout(self.convolution(self.convolution_norm(x), real))
        x = x + 0.5 * self.second(x)
        return cast(Tensor, self.norm(x)).masked_fill(~real[:, :, None], 0.0)


def _feed_forward(channels: int, width: int, dropout: float) -> nn.Module:
    return nn.Sequential(
        nn.LayerNorm(channels),
        nn.Linear(channels, width),
        nn.SiLU(),
        nn.Dropout(dropout),
        nn.Linear(width, channels),
        nn.Dropout(dropout),
    )
