"""The transducer losses that are timed on a device: shapes of LibriSpeech's utterances, our loss and torchaudio's."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fsachain.loss.rnnt import rnnt_loss
from tools.bench.gpu_timing import Call, rotated
from tools.bench.limit import Work
from tools.bench.workloads import GRAPHS

SHAPES = GRAPHS.parent / "librispeech_clean100_shapes.npz"
PASSES = 3  # over the logits: they are read once each way, and the gradient is written
FLOAT = 4  # bytes

Ints = npt.NDArray[np.int64]
Loss = Callable[[torch.Tensor, "Batch"], torch.Tensor]


class Batch(NamedTuple):
    """Utterances that are one batch: frames and labels [N] on the host, targets [N, U] on the device, classes."""

    frames: Ints
    labels: Ints
    targets: torch.Tensor
    classes: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of the logits [N, T, U + 1, V]."""
        return len(self.frames), int(self.frames.max()), int(self.labels.max()) + 1, self.classes

    @property
    def num_bytes(self) -> int:
        """Of the logits, padding included."""
        return FLOAT * int(np.prod(self.shape))

    @property
    def most_gigabytes(self) -> float:
        """What the loss and its gradient may take in all: 1.05 times the logits."""
        return round(1.05e-9 * self.num_bytes, 6)

    @property
    def work(self) -> Work:
        """What loss and gradient must do at least: two arcs a node, and three passes over rows that are no padding."""
        nodes = int((self.frames * (self.labels + 1)).sum())
        return Work(2 * nodes, PASSES * FLOAT * self.classes * nodes)

    def __str__(self) -> str:
        size, frames, labels, _ = self.shape
        return f"B {size}, T {frames}, U {labels - 1}"


def utterances(most: int) -> Ints:
    """Frames and labels [*, 2]: those of LibriSpeech where they stand beside the checkout, else seeded ones like them.

    `most`: the most frames of an utterance; longer ones are left out.
    """
    if SHAPES.is_file():
        with np.load(SHAPES) as archive:
            found = archive["frames_tokens"].astype(np.int64)
    else:
        generator = np.random.default_rng(8)
        frames = np.clip(generator.normal(318.0, 90.0, 4000), 2, 680).astype(np.int64)
        found = np.stack([frames, np.clip(frames * 0.214 + generator.normal(0, 8, 4000), 1, 151)], axis=1)
    found = np.asarray(found, np.int64)
    return found[found[:, 0] <= most]


def random_batch(shapes: Ints, size: int, classes: int, device: torch.device) -> Batch:
    """So many utterances drawn at random, as without sorting."""
    drawn = np.random.default_rng(4).choice(len(shapes), size, replace=len(shapes) < size)
    return _batch(shapes[drawn], classes, device)


def sorted_batch(shapes: Ints, num_frames: int, classes: int, device: torch.device) -> Batch:
    """As many utterances about as long as the mean one as have so many frames together, padding included."""
    ordered = shapes[np.argsort(shapes[:, 0], kind="stable")]
    first = int(np.searchsorted(ordered[:, 0], shapes[:, 0].mean()))
    count = 1
    while first + count < len(ordered) and (count + 1) * ordered[first + count, 0] <= num_frames:
        count += 1
    return _batch(ordered[first : first + count], classes, device)


def _batch(shapes: Ints, classes: int, device: torch.device) -> Batch:
    generator = torch.Generator().manual_seed(4)
    targets = torch.randint(1, classes, (len(shapes), int(shapes[:, 1].max())), generator=generator)
    return Batch(shapes[:, 0].copy(), shapes[:, 1].copy(), targets.to(device), classes)


def ours(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Our loss; the gradient takes the logits' place."""
    return rnnt_loss(
        logits, batch.targets, batch.frames, batch.labels, blank=0, reduction="sum", inplace=True
    )


def _torchaudio(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    from torchaudio.functional import rnnt_loss as theirs

    there = {"dtype": torch.int32, "device": logits.device}
    lengths = [torch.as_tensor(values).to(**there) for values in (batch.frames, batch.labels)]
    loss: Any = theirs(logits, batch.targets.to(torch.int32), *lengths, blank=0, reduction="sum")
    return loss


def peers() -> dict[str, Loss]:
    return {"torchaudio": _torchaudio} if importlib.util.find_spec("torchaudio") else {}


def training_call(loss: Loss, batch: Batch, device: torch.device) -> Call:
    """Loss and gradient of logits that are larger than any cache; a gradient in their place is the next call's logits."""
    logits = torch.randn(batch.shape, device=device).requires_grad_()

    def step() -> torch.Tensor | None:
        logits.grad = None
        loss(logits, batch).backward()
        return logits.grad

    return rotated([step])
