"""The acoustic model: a factorised time-delay network as in Kaldi's chain recipes.

    features [N, T, F] -> input layer -> time-delay layers -> chain head  -> nnet_output    [N, T', P]
                                                           -> xent head   -> xent_log_probs [N, T', P]

The second head exists for training only. Frames are thinned out by `subsampling` inside the network, so that
the layers after it, the loss and the decoder have a third of the work; T' = ceil(T / subsampling) whatever
the padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fsachain.errors import ConfigError, check_ranges
from fsachain.nn.layers import Head, InputLayer, TimeConstantDropout, TimeDelayLayer
from fsachain.nn.network import ConfiguredNetwork, NetworkOutput, check_input

MAX_LAYERS = 1000  # so that no file can ask for a million


@dataclass(frozen=True)
class TdnnfConfig:
    """Sizes of the network. The defaults give about 270 k parameters for 40 features and 80 pdfs.

    Attributes:
        num_features: F.
        num_pdfs: P; `ContextTree.num_pdfs`.
        channels (channels): width of all hidden layers, C.
        bottleneck (rows): rows of the semi-orthogonal factor of each layer; 0 for plain time-delay layers.
        time_strides (frames): one time-delay layer each, its distance to the neighbouring frames in frames of its own
            input: 1 is the next frame, which after subsampling by 3 is 30 ms away; 0 is a layer without context.
        input_kernel (input frames): frames seen by the input layer.
        subsampling (input frames): input frames per output frame.
        subsampling_layer (layer): 0 thins out in the input layer, which is quickest; i > 0 in the i-th time-delay layer.
        bypass (share): share of a layer's input added to its output; 0.66 in Kaldi.
        dropout (probability): proportion p; 0 for none.
        dropout_kind: "frame" drops single activations with probability p; "utterance" scales each channel of an utterance
            by a factor in 1 +- 2p, as Kaldi does.
        prefinal (channels): width of the layer before each output; 0 for none.
        xent: "none", or "branch" for a second head whose log-softmax serves as a regulariser in training.
    """

    num_features: int
    num_pdfs: int
    channels: int = 128
    bottleneck: int = 64
    time_strides: tuple[int, ...] = (1, 1, 1, 1, 1, 1)
    input_kernel: int = 5
    subsampling: int = 3
    subsampling_layer: int = 0
    bypass: float = 0.66
    dropout: float = 0.1
    dropout_kind: str = "utterance"
    prefinal: int = 128
    xent: str = "none"

    def __post_init__(self) -> None:
        object.__setattr__(self, "time_strides", tuple(self.time_strides))  # a list when it comes from YAML
        positive, count = "[1, inf)", "[0, inf)"
        check_ranges(
            self,
            num_features=positive,
            num_pdfs=positive,
            channels=positive,
            subsampling=positive,
            input_kernel=positive,
            bottleneck=count,
            prefinal=count,
            bypass=count,
            dropout="[0, 1)",
            dropout_kind=("frame", "utterance"),
            subsampling_layer=f"[0, {len(self.time_strides)}]",
            xent=("none", "branch"),
        )
        if len(self.time_strides) > MAX_LAYERS:
            raise ConfigError(
                f"time_strides has {len(self.time_strides)} layers; expected at most {MAX_LAYERS}"
            )
        if any(stride < 0 for stride in self.time_strides):
            raise ConfigError(f"time_strides is {self.time_strides}; expected numbers of 0 or more")
        if self.input_kernel < self.subsampling and self.subsampling_layer == 0:
            raise ConfigError(
                f"input_kernel is {self.input_kernel}; it skips frames when subsampling by {self.subsampling}"
            )

    @property
    def context(self) -> tuple[int, int]:
        """Input frames that an output sees before and after its own: output t owns s t to s t + s - 1.

        s is the subsampling. A network that is given a part of an utterance with so many frames around it
        computes for the part what it would compute for the whole.
        """
        fast, slow = self.time_strides[: self.subsampling_layer], self.time_strides[self.subsampling_layer :]
        around = sum(fast) + self.subsampling * sum(slow)
        centre = self.subsampling // 2
        before = around + self.input_kernel // 2 - centre
        after = around + (self.input_kernel - 1) // 2 + centre - (self.subsampling - 1)
        return max(0, before), max(0, after)


class Tdnnf(ConfiguredNetwork[TdnnfConfig]):
    """A TDNN-F. In evaluation the result for an utterance does not depend on its batch.

    Attributes:
        config: its sizes, a `TdnnfConfig`.
        input_layer, layers, chain_head, xent_head: the parts, in order; the last is None without a branch.
    """

    def __init__(self, config: TdnnfConfig) -> None:
        super().__init__(config)
        at = config.subsampling_layer
        self.input_layer = InputLayer(
            config.num_features,
            config.channels,
            kernel=config.input_kernel,
            stride=config.subsampling if at == 0 else 1,
        )
        dropout = nn.Dropout if config.dropout_kind == "frame" else TimeConstantDropout
        self.layers = nn.ModuleList(
            TimeDelayLayer(
                config.channels,
                config.bottleneck,
                time_stride=time_stride,
                stride=config.subsampling if at == i else 1,
                bypass=config.bypass,
                dropout=dropout(config.dropout),
            )
            for i, time_stride in enumerate(config.time_strides, start=1)
        )
        self.chain_head = Head(config.channels, config.prefinal, config.num_pdfs)
        self.xent_head = (
            Head(config.channels, config.prefinal, config.num_pdfs) if config.xent == "branch" else None
        )

    @property
    def context(self) -> tuple[int, int]:
        """As `TdnnfConfig.context`."""
        return self.config.context

    def forward(self, features: Tensor, lengths: Tensor) -> NetworkOutput:
        """Score a batch.

        Args:
            features: float [N, T, F]; what frames at and past lengths[n] hold has no influence.
            lengths: int64 [N], 0 <= lengths[n] <= T, on the host or the features' device.

        Raises:
            ShapeError: features or lengths do not fit the configuration or each other.
        """
        lengths = check_input(features, lengths, self.config.num_features)
        outputs = -(-features.shape[1] // self.subsampling)
        frames = outputs * self.subsampling
        # Masks [N, 1, T] of real frames before and after subsampling; None where no utterance is padded.
        full, thinned = (
            None
            if bool((limits == count).all())
            else (torch.arange(count) < limits[:, None])[:, None].to(features.device, torch.float32)
            for count, limits in ((frames, lengths), (outputs, self.output_lengths(lengths)))
        )
        if frames > features.shape[1]:
            features = F.pad(features, (0, 0, 0, frames - features.shape[1]))
        if full is not None:
            features = features.masked_fill(full.transpose(1, 2) == 0, 0.0)  # NaN included
        x, mask = self.hidden(features, full, thinned)
        xent = None
        if self.xent_head is not None and self.training:
            xent = F.log_softmax(self.xent_head(x, mask), dim=-1)
        return NetworkOutput(self.chain_head(x, mask), self.output_lengths(lengths), xent)

    def scores(self, features: Tensor, lengths: Tensor) -> Tensor:
        """`nnet_output` in evaluation, without a check or a decision that depends on data; see `Network`.

        Args:
            features: float [N, T, F], finite and 0 on padding.
            lengths: int64 [N] on the features' device.
        """
        step = self.subsampling
        outputs = (features.shape[1] + step - 1) // step
        frames = torch.arange(outputs * step, device=features.device)
        full, thinned = (
            (frames[:count] < limit[:, None])[:, None].to(features.dtype)
            for count, limit in ((outputs * step, lengths), (outputs, self.output_lengths(lengths)))
        )
        padded = F.pad(features, (0, 0, 0, step - 1))[:, : outputs * step]
        return cast(Tensor, self.chain_head(*self.hidden(padded, full, thinned)))

    def hidden(
        self, features: Tensor, full: Tensor | None, thinned: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """The layers without the heads: activations [N, C, T / s] and `thinned`.

        features: [N, T, F], T a multiple of the subsampling s, 0 on padding. `full` is the mask [N, 1, T] of real frames,
        `thinned` that of output frames, [N, 1, T / s]; both None where no utterance is padded.
        """
        x = features.transpose(1, 2)
        mask = thinned if self.config.subsampling_layer == 0 else full
        x = self.input_layer(x, mask)
        for i, layer in enumerate(self.layers, start=1):
            if self.config.subsampling_layer == i:
                mask = thinned
            x = layer(x, mask)
        return x, mask

    def constrain_orthonormal(self) -> None:
        """Pull the first factor of every layer towards semi-orthogonality; Kaldi does every 4 steps."""
        for layer in self.layers:
            if isinstance(layer, TimeDelayLayer):
                layer.constrain_orthonormal()
