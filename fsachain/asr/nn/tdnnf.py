"""The acoustic model: a factorised time-delay network as in Kaldi's chain recipes.

    features [N, T, F] -> input layer -> time-delay layers -> chain head  -> nnet_output    [N, T', P]
                                                           -> xent head   -> xent_log_probs [N, T', P]

The second head exists for training only. Frames are thinned out by `subsampling` inside the network, so that
the layers after it, the loss and the decoder have a third of the work; T' = ceil(T / subsampling) whatever
the padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fsachain.asr.nn.layers import Head, InputLayer, TimeConstantDropout, TimeDelayLayer
from fsachain.asr.nn.network import ConfiguredNetwork, frames_below
from fsachain.errors import ConfigError, check_choices, check_range, counted

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
        check_range(self, "[1, inf)", "num_features", "num_pdfs", "channels", "subsampling", "input_kernel")
        check_range(self, "[0, inf)", "bottleneck", "prefinal", "bypass")
        check_range(self, "[0, 1)", "dropout")
        check_range(self, f"[0, {len(self.time_strides)}]", "subsampling_layer")
        check_choices(self, dropout_kind=("frame", "utterance"), xent=("none", "branch"))
        if len(self.time_strides) > MAX_LAYERS:
            raise ConfigError(
                f"time_strides has {counted(len(self.time_strides), 'layer')}; expected at most {MAX_LAYERS}"
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


class Tdnnf(ConfiguredNetwork):
    """A TDNN-F. In evaluation the result for an utterance does not depend on its batch.

    Its parts are `input_layer`, `layers`, `chain_head` and `xent_head`, which is None without a branch. Its `context` is
    that of its configuration.
    """

    config: TdnnfConfig

    def __init__(self, config: TdnnfConfig) -> None:
        super().__init__(config)
        self.context = config.context
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
        sizes = config.channels, config.prefinal, config.num_pdfs
        self.chain_head = Head(*sizes)
        self.xent_head = Head(*sizes) if config.xent == "branch" else None

    def hidden(
        self, features: Tensor, lengths: Tensor, *, padded: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """Activations [N, C, T'] and the mask [N, 1, T'] of output frames, None where no utterance is padded."""
        x = self.whole_steps(features).transpose(1, 2)
        full = thinned = None  # of real frames before and after subsampling
        if padded or x.shape[2] > features.shape[1]:
            full = frames_below(lengths, x.shape[2])[:, None].to(torch.float32)
        if padded:
            outputs = self.output_lengths(lengths)
            thinned = frames_below(outputs, x.shape[2] // self.subsampling)[:, None].to(torch.float32)
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
