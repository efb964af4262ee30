"""A Conformer: attention for what is far, convolution for what is near (Gulati et al., Interspeech 2020).

    features [N, T, F] -> subsampling -> blocks -> chain head  -> nnet_output    [N, T', P]
                                                -> xent head   -> xent_log_probs [N, T', P]

As in `tdnnf`, the second head exists for training only and T' = ceil(T / subsampling). With `chunk` the frames of a chunk
see it, some chunks before it and nothing behind it: then outputs can be had while the utterance goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fsachain.asr.nn.layers import MaskedBatchNorm
from fsachain.asr.nn.network import ConfiguredNetwork, frames_below, subsampled
from fsachain.errors import ConfigError, check_choices, check_range

# Activations are [N, T, C]. `real` [N, T] is True on frames of an utterance, False on padding. As in `layers`, blocks
# that get zeros on padding return zeros on padding, and no real frame sees padding, so that results do not depend on the
# other utterances of a batch.

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
        """Map [N, T, F] -> activations [N, T / s, C] and where they are real, bool [N, T / s]; all 0 on padding.

        T is a multiple of s; lengths are int64 [N] on the features' device.
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
    """Kernel size over time: neighbouring outputs overlap whatever the stride."""
    return 5 if stride == 3 else 3


def visible(real: Tensor, chunk: int, left_chunks: int) -> Tensor:
    """Which frames attend to which: bool [N, 1, T, T], query by key; `real` is bool [N, T].

    A frame sees its own chunk of `chunk` frames and `left_chunks` before it; with chunk 0 it sees every real frame.
    """
    frames = torch.arange(real.shape[1], device=real.device)
    seen = real[:, None, :]
    if chunk:
        behind = frames[:, None] // chunk - frames[None] // chunk
        seen = seen & ((behind >= 0) & (behind <= left_chunks))
    # A padding frame attends to itself: the softmax of a row without any key would be NaN.
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
        """x [N, T, C], mask of `visible`, angles of `rotation` -> [N, T, C]."""
        heads = self.inputs(x).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        query, key = (_rotated(part, *angles) for part in (heads[0], heads[1]))
        found = F.scaled_dot_product_attention(query, key, heads[2], attn_mask=mask)
        return cast(Tensor, self.output(found.transpose(1, 2).flatten(2)))


def rotation(num_frames: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine [T, width / 2], float64, of the angle by which frame t turns each pair of a head's numbers.

    In float32 the angles of frame 5,000 would be off by 3e-4, and a frame's scores would depend on its position. No pair
    takes more than 2 pi 1000 frames for a turn: more than an utterance has, few enough to tell neighbours apart.
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

    With `norm` "batch", ReLU and `MaskedBatchNorm` replace normalisation and Swish.
    """

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        channels, kernel = config.channels, config.kernel
        self.after = 0 if config.chunk else kernel // 2  # frames that an output sees after its own
        self.before = kernel - 1 - self.after
        self.gated = nn.Linear(channels, 2 * channels)
        self.depthwise = nn.Conv1d(channels, channels, kernel, groups=channels)
        self.norm = MaskedBatchNorm(channels) if config.norm == "batch" else nn.LayerNorm(channels)
        self.linear = nn.Linear(channels, channels)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        """[N, T, C] -> [N, T, C]; padding is zero to the convolution, as frames beyond the end are."""
        y = F.glu(self.gated(x), dim=-1).masked_fill(~real[:, :, None], 0.0).transpose(1, 2)
        y = self.depthwise(F.pad(y, (self.before, self.after)))
        if isinstance(self.norm, MaskedBatchNorm):
            y = self.norm(y, real[:, None].to(torch.float32)).transpose(1, 2)
        else:
            y = F.silu(self.norm(y.transpose(1, 2)))
        return cast(Tensor, self.linear(y))


class ConformerBlock(nn.Module):
    """Half a feed-forward step, attention, convolution, half a feed-forward step; each residual, on normalised input."""

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        channels, dropout = config.channels, config.dropout
        self.first, self.second = (
            nn.Sequential(
                nn.LayerNorm(channels),
                nn.Linear(channels, config.feed_forward),
                nn.SiLU(),
                nn.Dropout(dropout),
                nn.Linear(config.feed_forward, channels),
                nn.Dropout(dropout),
            )
            for _ in range(2)
        )
        self.attention_norm, self.convolution_norm, self.norm = (nn.LayerNorm(channels) for _ in range(3))
        self.attention = RotaryAttention(channels, config.num_heads)
        self.convolution = ConvolutionModule(config)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, real: Tensor, mask: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        """[N, T, C] -> [N, T, C]; `real` and `mask` as of `visible`, `angles` as of `rotation`."""
        x = x + 0.5 * self.first(x)
        x = x + self.dropout(self.attention(self.attention_norm(x), mask, angles))
        x = x + self.dropout(self.convolution(self.convolution_norm(x), real))
        x = x + 0.5 * self.second(x)
        return cast(Tensor, self.norm(x)).masked_fill(~real[:, :, None], 0.0)


MAX_LAYERS = 1000  # so that no file can ask for a million


@dataclass(frozen=True)
class ConformerConfig:
    """Sizes of the network. The defaults give about 850 k parameters for 40 features and 80 pdfs.

    Attributes:
        num_features: F.
        num_pdfs: P; `ContextTree.num_pdfs`.
        channels (channels): width of all blocks, C; a multiple of twice `num_heads`.
        num_layers (blocks): one after the other.
        num_heads (heads): of the attention.
        feed_forward (channels): width inside the feed-forward steps.
        kernel (output frames): that the convolution of a block sees, an odd number.
        norm: of the convolution: "layer"; or "batch", ReLU and the masked batch normalisation of the TDNN-F.
        filters (filters): of the two convolutions that thin out.
        subsampling (input frames): input frames per output frame: 1, 2, 3, 4 or 6.
        chunk (output frames): of a chunk; 0: every frame sees the whole utterance, and convolutions see as much after a
            frame as before it. With chunks they see what is before it.
        left_chunks (chunks): chunks before its own that a frame sees in each block.
        dropout (probability): probability with which activations are dropped in training.
        xent: "none", or "branch" for a second head whose log-softmax serves as a regulariser in training.
    """

    num_features: int
    num_pdfs: int
    channels: int = 96
    num_layers: int = 4
    num_heads: int = 4
    feed_forward: int = 384
    kernel: int = 15
    norm: str = "layer"
    filters: int = 32
    subsampling: int = 3
    chunk: int = 0
    left_chunks: int = 2
    dropout: float = 0.1
    xent: str = "none"

    def __post_init__(self) -> None:
        check_range(self, "[1, inf)", "num_features", "num_pdfs", "channels", "filters")
        check_range(self, "[1, inf)", "num_heads", "feed_forward", "kernel")
        check_range(self, f"[1, {MAX_LAYERS}]", "num_layers")
        check_range(self, "[0, inf)", "chunk", "left_chunks")
        check_range(self, "[0, 1)", "dropout")
        check_choices(self, norm=("layer", "batch"), xent=("none", "branch"))
        if self.channels % (2 * self.num_heads):
            raise ConfigError(
                f"channels is {self.channels}; expected a multiple of {2 * self.num_heads}, twice num_heads"
            )
        if self.kernel % 2 == 0:
            raise ConfigError(f"kernel is {self.kernel}; expected an odd number")
        if self.subsampling not in STRIDES:
            raise ConfigError(
                f"subsampling is {self.subsampling}; expected one of {', '.join(map(str, STRIDES))}"
            )


class Conformer(ConfiguredNetwork):
    """A Conformer. In evaluation the result for an utterance does not depend on its batch.

    Its parts are `thinning`, `layers`, `chain_head` and `xent_head`, which is None without a branch.
    """

    config: ConformerConfig

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__(config)
        self.thinning = ConvSubsampling(
            config.num_features, config.channels, filters=config.filters, subsampling=config.subsampling
        )
        self.layers = nn.ModuleList(ConformerBlock(config) for _ in range(config.num_layers))
        self.chain_head = nn.Linear(config.channels, config.num_pdfs)
        self.xent_head = nn.Linear(config.channels, config.num_pdfs) if config.xent == "branch" else None

    @property
    def period(self) -> int:
        """Output frames after which the chunks repeat; 1 without chunks."""
        return max(1, self.config.chunk)

    @property
    def context(self) -> tuple[int, int] | None:
        """Input frames that an output sees at most before and after those that it owns; None without chunks."""
        chunk = self.config.chunk
        if not chunk:
            return None
        before, after = self.thinning.context
        # What comes in reach grows by whole chunks; so the farthest is seen from the last place before it does, or of all.
        places = ((self.config.kernel - 2) % chunk, chunk - 1)
        seen = max(place - self._first_seen(place) for place in places)
        return self.subsampling * seen + before, self.subsampling * (chunk - 1) + after

    def _first_seen(self, frame: int) -> int:
        """The first output frame that `frame` of chunk 0 sees through all blocks, counted from that chunk's start."""
        for _ in range(self.config.num_layers):
            frame -= self.config.kernel - 1
            frame = (frame // self.config.chunk - self.config.left_chunks) * self.config.chunk
        return frame

    def hidden(self, features: Tensor, lengths: Tensor, *, padded: bool = True) -> tuple[Tensor]:
        """Activations [N, T', C], 0 on padding; arguments as of `scores`."""
        x, real = self.thinning(self.whole_steps(features), lengths)
        mask = visible(real, self.config.chunk, self.config.left_chunks)
        angles = rotation(x.shape[1], self.config.channels // self.config.num_heads, x.device)
        for layer in self.layers:
            x = layer(x, real, mask, angles)
        return (x,)
