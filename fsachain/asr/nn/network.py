"""The protocol of networks: the calls and numbers that training, decoding and streaming need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fsachain.errors import DataError, ShapeError, brief, counted


class NetworkOutput(NamedTuple):
    """What the network says about a batch.

    Attributes:
        nnet_output: [N, T', P], any real numbers, not normalised; frames at and past lengths[n] hold nothing
            of meaning.
        lengths: int64 [N] on the host, output frames of each utterance.
        xent_log_probs: [N, T', P], log-softmax of the xent branch; None in evaluation or without that branch.
    """

    nnet_output: Tensor
    lengths: Tensor
    xent_log_probs: Tensor | None

    def __repr__(self) -> str:
        return brief(self)


class Network(Protocol):
    """An `nn.Module` that can be trained and used here: `Tdnnf`, `Conformer`, or one of your own.

    Output frame t *owns* the input frames s t to s t + s - 1, where s is the subsampling. Two members are optional:
    `period`, output frames (1 where it is missing), on whose multiples an utterance may be cut without another result; and
    `scores(features, lengths)`, `nnet_output` alone without a decision that depends on data, which is what ONNX holds.
    `training` is that of every `nn.Module`.
    """

    training: bool

    @property
    def num_features(self) -> int:
        """Columns of the features, F."""

    @property
    def num_pdfs(self) -> int:
        """Columns of the output, P."""

    @property
    def subsampling(self) -> int:
        """s, input frames per output frame."""

    @property
    def time_offset(self) -> int:
        """Output frame t is centred on input frame s t + time_offset; s // 2 where the network is symmetric."""

    @property
    def context(self) -> tuple[int, int] | None:
        """Input frames that an output sees before and after those that it owns; None: the whole utterance."""

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Output frames for so many input frames, int64 [N]: ceil(lengths / s)."""

    def __call__(self, features: Tensor, lengths: Tensor) -> NetworkOutput:
        """Score features [N, T, F] of which lengths [N] frames are real, whatever the others hold."""


class ConfiguredNetwork(nn.Module):
    """The members of a `Network` that follow from its `config` and from `hidden`, what a network of ours defines.

    The configuration has F, P and s: `num_features`, `num_pdfs` and `subsampling`; `time_offset` is s // 2.
    """

    config: Any
    chain_head: nn.Module
    xent_head: nn.Module | None

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.num_features, self.num_pdfs = config.num_features, config.num_pdfs
        self.subsampling, self.time_offset = config.subsampling, config.subsampling // 2

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Output frames for so many input frames: ceil(T / subsampling), int64."""
        return subsampled(lengths, self.subsampling)

    def hidden(self, features: Tensor, lengths: Tensor, *, padded: bool = True) -> tuple[Tensor | None, ...]:
        """All but the heads: what these are called with; arguments as of `scores`, `padded`: lengths[n] < T for some n."""
        raise NotImplementedError

    def forward(self, features: Tensor, lengths: Tensor) -> NetworkOutput:
        """Score features, float [N, T, F]; what frames at and past lengths[n] hold has no influence.

        `lengths` are int64 [N], 0 <= lengths[n] <= T, on the host or the features' device. ShapeError: features or lengths
        do not fit the configuration or each other.
        """
        lengths = check_input(features, lengths, self.num_features)
        counts = lengths.to(features.device)
        padded = bool((lengths < features.shape[1]).any())
        if padded:
            real = frames_below(counts, features.shape[1])
            features = features.masked_fill(~real[:, :, None], 0.0)  # NaN included
        hidden = self.hidden(features, counts, padded=padded)
        xent = None
        if self.xent_head is not None and self.training:
            xent = F.log_softmax(self.xent_head(*hidden), dim=-1)
        return NetworkOutput(self.chain_head(*hidden), self.output_lengths(lengths), xent)

    def scores(self, features: Tensor, lengths: Tensor) -> Tensor:
        """`nnet_output` in evaluation, without a check or a decision that depends on data; see `Network`.

        Features, float [N, T, F], are finite and 0 on padding; lengths, int64 [N], are on their device.
        """
        return cast(Tensor, self.chain_head(*self.hidden(features, lengths)))

    def whole_steps(self, features: Tensor) -> Tensor:
        """Features [N, T, F] with zeros behind, so that T is a multiple of the subsampling."""
        step = self.subsampling
        outputs = (features.shape[1] + step - 1) // step
        return F.pad(features, (0, 0, 0, step - 1))[:, : outputs * step]


def frames_below(lengths: Tensor, num_frames: int) -> Tensor:
    """[N, num_frames], True on the first lengths[n] frames."""
    return torch.arange(num_frames, device=lengths.device)[None] < lengths[:, None]


def check_input(features: Tensor, lengths: Tensor, num_features: int) -> Tensor:
    """The lengths as int64 on the host. ShapeError unless features are [N, T, num_features] and 0 <= lengths[n] <= T."""
    if features.dim() != 3 or features.shape[2] != num_features:
        raise ShapeError(f"features have shape {list(features.shape)}, expected [N, T, {num_features}]")
    lengths = torch.as_tensor(lengths, dtype=torch.int64, device="cpu")
    if lengths.shape != features.shape[:1]:
        raise ShapeError(f"lengths have shape {list(lengths.shape)}, expected [{features.shape[0]}]")
    wrong = ((lengths < 0) | (lengths > features.shape[1])).nonzero()
    if len(wrong):
        n = int(wrong[0])
        raise ShapeError(
            f"lengths[{n}] = {int(lengths[n])} is not within the {counted(features.shape[1], 'frame')} of features"
        )
    return lengths


def check_output(output: Any, network: Network, features: Tensor, lengths: Tensor) -> NetworkOutput:
    """What the network made of features [N, T, F], where it is what `Network` says; else a ShapeError.

    Numbers of frames may differ from `output_lengths` by what convolutions lose at the edges.
    """
    if not all(hasattr(output, name) for name in NetworkOutput._fields):
        raise ShapeError(
            f"the network gave a {type(output).__name__}; expected a fsachain.asr.nn.NetworkOutput"
        )
    shape = list(output.nnet_output.shape)
    if len(shape) == 3:
        for what, found, frames in (
            (f"nnet_output has shape {shape},", shape[1], features.shape[1]),
            ("lengths of the output say", int(output.lengths.max()), int(lengths.max())),
        ):
            expected = int(network.output_lengths(torch.tensor([frames])))
            if not about(found, expected):
                raise ShapeError(
                    f"{what} {counted(found, 'frame')} for {frames} of features; expected {expected}, as output_lengths says"
                )
    return cast(NetworkOutput, output)


def about(frames: int, expected: int) -> bool:
    return abs(frames - expected) <= max(8, 0.1 * expected)


def subsampled(lengths: Tensor, subsampling: int) -> Tensor:
    return torch.div(lengths + subsampling - 1, subsampling, rounding_mode="floor")


def num_parameters(network: nn.Module | Network) -> int:
    """Learnt numbers of a network."""
    return sum(parameter.numel() for parameter in cast(nn.Module, network).parameters())


_MOST_NAMED = 8


@dataclass(frozen=True)
class TakenWeights:
    """Names of parameters and buffers, sorted.

    Attributes:
        taken: given the values of the other network.
        other_shape: of both networks, but of different shapes; as they were.
        fresh: the other network has none of that name; as they were.
        unused: of the other network alone.
    """

    taken: tuple[str, ...]
    other_shape: tuple[str, ...]
    fresh: tuple[str, ...]
    unused: tuple[str, ...]

    __repr__ = brief

    def __str__(self) -> str:
        parts = [f"{counted(len(self.taken), 'weight')} taken"]
        for names, what in (
            (self.other_shape, "of another shape"),
            (self.fresh, "not in the file"),
            (self.unused, "of the file not used"),
        ):
            if names:
                parts.append(f"{len(names)} {what} ({_listed(names)})")
        return "; ".join(parts)


def take_weights(network: nn.Module, weights: Mapping[str, Tensor]) -> TakenWeights:
    """Give a network those weights of another whose names and shapes fit; the others stay as they are.

    Values are rounded to the type that the network has. An output layer for another number of pdfs has another shape, and so
    begins anew.

    Args:
        network: changed in place.
        weights: the other network's `state_dict()`, or a part of it.

    Raises:
        DataError: nothing fits.
    """
    own = network.state_dict()
    shared = own.keys() & weights.keys()
    fitting = sorted(name for name in shared if own[name].shape == weights[name].shape)
    result = TakenWeights(
        tuple(fitting),
        tuple(sorted(shared - set(fitting))),
        tuple(sorted(own.keys() - weights.keys())),
        tuple(sorted(weights.keys() - own.keys())),
    )
    if not fitting:
        raise DataError(
            f"no weight has the name and shape of one of the network's; expected such as {_listed(sorted(own))}, "
            f"got {_listed(sorted(weights)) or 'none'}"
        )
    with torch.no_grad():
        for name in fitting:
            own[name].copy_(weights[name])
    return result


def _listed(names: tuple[str, ...] | list[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
