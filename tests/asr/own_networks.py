"""Networks of a user, named by their import path in the tests of `network.kind`; some lack something."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fsachain.asr.nn import NetworkOutput

CALLED: list[str] = []  # what ran because a file asked for it


def record(name: str) -> None:
    """Not a network."""
    CALLED.append(name)


def batch(lengths: list[int], padding: float = 0.0, dtype=torch.float32) -> tuple[Tensor, Tensor]:
    """Features [N, T, 5] whose rows hold `padding` behind their ends, and the lengths."""
    generator = torch.Generator().manual_seed(len(lengths))
    features = torch.randn(len(lengths), max(lengths), 5, generator=generator, dtype=dtype)
    for row, length in zip(features, lengths, strict=True):
        row[length:] = padding
    return features, torch.tensor(lengths)


def as_trained(network: nn.Module) -> nn.Module:
    """The network in evaluation, with weights and running averages as far from those of a new one as training gets."""
    for parameter in network.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=1.5 / parameter[0].numel() ** 0.5)
        else:
            nn.init.normal_(parameter, mean=0.5, std=0.5)
    for name, buffer in network.named_buffers():
        if name.endswith("running_mean"):
            buffer.uniform_(-1, 1)
        if name.endswith("running_var"):
            buffer.uniform_(0.5, 2)
    return network.eval()


class Plain(nn.Module):
    """All that is needed and no more, from keyword arguments."""

    context = (0, 0)
    time_offset = 0

    def __init__(self, num_features: int, num_pdfs: int, width: int = 8, subsampling: int = 3) -> None:
        super().__init__()
        CALLED.append("Plain")
        self.num_features, self.num_pdfs, self.subsampling = num_features, num_pdfs, subsampling
        self.encoder = nn.Linear(num_features, width)
        self.head = nn.Linear(width, num_pdfs)

    def output_lengths(self, lengths: Tensor) -> Tensor:
        return torch.div(lengths + self.subsampling - 1, self.subsampling, rounding_mode="floor")

    def forward(self, features: Tensor, lengths: Tensor) -> NetworkOutput:
        scores = self.head(torch.relu(self.encoder(features[:, :: self.subsampling])))
        return NetworkOutput(scores, self.output_lengths(lengths), None)


@dataclass(frozen=True)
class WidthConfig:
    num_features: int
    num_pdfs: int
    width: int = 8


class Configured(Plain):
    """The same from a dataclass."""

    def __init__(self, config: WidthConfig) -> None:
        super().__init__(config.num_features, config.num_pdfs, config.width)


@dataclass(frozen=True)
class NarrowConfig:
    num_features: int
    width: int = 8


class WithoutPdfs(nn.Module):
    def __init__(self, config: NarrowConfig) -> None:
        super().__init__()


class WithoutFeatures(nn.Module):
    def __init__(self, num_pdfs: int) -> None:
        super().__init__()


class Unthinned(Plain):
    """Says that it thins frames out, and does not."""

    def forward(self, features: Tensor, lengths: Tensor) -> NetworkOutput:
        scores = self.head(torch.relu(self.encoder(features)))
        return NetworkOutput(scores, self.output_lengths(lengths), None)


class Unaware(Unthinned):
    """Keeps each frame, and says so in its lengths, not in its subsampling."""

    def output_lengths(self, lengths: Tensor) -> Tensor:
        return lengths


class Bare(Plain):
    def forward(self, features: Tensor, lengths: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(features, lengths).nnet_output


class Silent(nn.Module):
    """An ordinary module that knows nothing of frames."""

    def __init__(self, **options: int) -> None:
        super().__init__()
        self.num_features, self.num_pdfs = options["num_features"], options["num_pdfs"]

    def forward(self, features: Tensor, lengths: Tensor) -> Tensor:
        return features
