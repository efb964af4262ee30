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

from fsachain.errors import ConfigError
from fsachain.nn.conformer_layers import STRIDES, ConformerBlock, ConvSubsampling, rotation, visible
from fsachain.nn.network import ConfiguredNetwork, NetworkOutput, check_input

MAX_LAYERS = 1000  # more than anyone means, so that no file can ask for a million


@dataclass(frozen=True)
class ConformerConfig:
    """Sizes of the network. The defaults give about 850 k parameters for 40 features and 80 pdfs.

    Attributes:
        num_features: F.
        num_pdfs: P; `ContextTree.num_pdfs`.
        channels: width of all blocks, C; a multiple of twice `num_heads`.
        num_layers: blocks.
        num_heads: of the attention.
        feed_forward: width inside the feed-forward steps.
        kernel: output frames that the convolution of a block sees, an odd number.
        norm: of the convolution: "layer"; or "batch", ReLU and the masked batch normalisation of the TDNN-F.
        filters: of the two convolutions that thin out.
        subsampling: input frames per output frame: 1, 2, 3, 4 or 6.
        chunk: output frames of a chunk; 0: every frame sees the whole utterance, and convolutions see as much after a frame
            as before it. With chunks they see what is before it.
        left_chunks: chunks before its own that a frame sees in each block.
        dropout: probability with which activations are dropped in training.
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
        least = {
            "chunk": 0,
            "left_chunks": 0,
            "num_layers": 1,
            "num_heads": 1,
            "feed_forward": 1,
            "kernel": 1,
        }
        for name, minimum in {**least, "num_features": 1, "num_pdfs": 1, "channels": 1, "filters": 1}.items():
            if getattr(self, name) < minimum:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected at least {minimum}")
        if self.num_layers > MAX_LAYERS:
            raise ConfigError(f"num_layers is {self.num_layers}; expected at most {MAX_LAYERS}")
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
        if not 0.0 <= self.dropout < 1.0:
            raise ConfigError(f"dropout is {self.dropout}; expected 0 or more and less than 1")
        for name, known in (("norm", ("layer", "batch")), ("xent", ("none", "branch"))):
            if getattr(self, name) not in known:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; expected {known[0]!r} or {known[1]!r}")


class Conformer(ConfiguredNetwork[ConformerConfig]):
    """A Conformer. In evaluation the result for an utterance does not depend on its batch."""

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__(config)
        self.thinning = ConvSubsampling(
            config.num_features, config.channels, filters=config.filters, subsampling=config.subsampling
        )
        self.layers = nn.ModuleList(
            ConformerBlock(
                config.channels,
                num_heads=config.num_heads,
                feed_forward=config.feed_forward,
                kernel=config.kernel,
                norm=config.norm,
                lookahead=0 if config.chunk else config.kernel // 2,
                dropout=config.dropout,
            )
            for _ in range(config.num_layers)
        )
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
        """The first output frame that one of chunk 0 sees through all blocks, counted from that chunk's start."""
        for _ in range(self.config.num_layers):
            frame -= self.config.kernel - 1
            frame = (frame // self.config.chunk - self.config.left_chunks) * self.config.chunk
        return frame

    def forward(self, features: Tensor, lengths: Tensor) -> NetworkOutput:
        """Score a batch.

        Args:
            features: float [N, T, F]; what frames at and past lengths[n] hold has no influence.
            lengths: int64 [N], 0 <= lengths[n] <= T, on the host or the features' device.

        Raises:
            ShapeError: features or lengths do not fit the configuration or each other.
        """
        lengths = check_input(features, lengths, self.config.num_features)
        counts = lengths.to(features.device)
        padding = torch.arange(features.shape[1], device=features.device)[None] >= counts[:, None]
        hidden = self.hidden(features.masked_fill(padding[:, :, None], 0.0), counts)
        xent = None
        if self.xent_head is not None and self.training:
            xent = F.log_softmax(self.xent_head(hidden), dim=-1)
        return NetworkOutput(self.chain_head(hidden), self.output_lengths(lengths), xent)

    def scores(self, features: Tensor, lengths: Tensor) -> Tensor:
        """`nnet_output` without a check or a decision that depends on data; see `Network`.

        Args:
            features: float [N, T, F], finite and 0 on padding.
            lengths: int64 [N] on the features' device.
        """
        return cast(Tensor, self.chain_head(self.hidden(features, lengths)))

    def hidden(self, features: Tensor, lengths: Tensor) -> Tensor:
        """The blocks without the heads: activations [N, T', C], 0 on padding; arguments as of `scores`."""
        step = self.subsampling
        outputs = (features.shape[1] + step - 1) // step
        padded = F.pad(features, (0, 0, 0, step - 1))[:, : outputs * step]
        x, real = self.thinning(padded, lengths)
        mask = visible(real, self.config.chunk, self.config.left_chunks)
        angles = rotation(x.shape[1], self.config.channels // self.config.num_heads, x.device)
        for layer in self.layers:
            x = layer(x, real, mask, angles)
        return x
