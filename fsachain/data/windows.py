"""Which outputs of a network count: those of a chunk, and not those of the context around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F


@dataclass(frozen=True, eq=False)
class OutputWindow:
    """The output frames of one example that count; the frames around them only give context.

    Attributes:
        first: its first output frame, counted from the first output of the example.
        frame_weights: float32 [length], factors of the derivatives: `frame_weights` of `LFMMILoss`.
    """

    first: int
    frame_weights: NDArray[np.float32]

    @property
    def length(self) -> int:
        """Output frames that count."""
        return len(self.frame_weights)


@dataclass(frozen=True, eq=False)
class WindowBatch:
    """The windows of a batch of N examples.

    Attributes:
        first: int64 [N], as in `OutputWindow`.
        lengths: int64 [N] on the host.
        frame_weights: float32 [N, max length], zero past the end of a window.
    """

    first: torch.Tensor
    lengths: torch.Tensor
    frame_weights: torch.Tensor

    @classmethod
    def collate(cls, windows: Sequence[OutputWindow]) -> WindowBatch:
        """Pad the weights to the longest window."""
        lengths = torch.tensor([window.length for window in windows], dtype=torch.int64)
        weights = torch.zeros(len(windows), int(lengths.max()))
        for row, window in zip(weights, windows, strict=True):
            row[: window.length] = torch.from_numpy(window.frame_weights)
        first = torch.tensor([window.first for window in windows], dtype=torch.int64)
        return cls(first, lengths, weights)

    def crop(self, outputs: torch.Tensor) -> torch.Tensor:
        """The windows of outputs [N, T, P] as [N, max length, P], padded with zeros; differentiable."""
        longest = self.frame_weights.shape[1]
        rows = zip(outputs, self.first.tolist(), self.lengths.tolist(), strict=True)
        cut = [F.pad(row[first : first + length], (0, 0, 0, longest - length)) for row, first, length in rows]
        return torch.stack(cut)
