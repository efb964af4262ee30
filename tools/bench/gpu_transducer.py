"""The transducer losses that are timed on a device: shapes of LibriSpeech's utterances, our loss and torchaudio's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fsachain.loss.rnnt import rnnt_loss
from tools.bench.gpu_workloads import Case
from tools.bench.workloads import GRAPHS, Work

SHAPES = GRAPHS.parent / "librispeech_clean100_shapes.npz"
PASSES = 3  # over the logits: they are read once each way, and the gradient is written
FLOAT = 4  # bytes

Ints = npt.NDArray[np.int64]


class Batch(NamedTuple):
    """Utterances that are one batch: frames, labels [N], classes, targets [N, U]."""

    frames: Ints
    labels: Ints
    classes: int
    on: Callable[[torch.device], torch.Tensor]  # targets where they are wanted, brought there once

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


def utterances(most: int, seeded: bool = False) -> Ints:
    """Frames and labels [*, 2] of LibriSpeech's utterances, or of seeded ones like them.

    `most`: the most frames of an utterance; longer ones are left out.
    """
    if seeded:
        generator = np.random.default_rng(8)
        frames = np.clip(generator.normal(318.0, 90.0, 4000), 2, 680).astype(np.int64)
        found = np.stack([frames, np.clip(frames * 0.214 + generator.normal(0, 8, 4000), 1, 151)], axis=1)
    else:
        with np.load(SHAPES) as archive:
            found = archive["frames_tokens"]
    found = found.astype(np.int64)
    return found[found[:, 0] <= most]


def random_batch(shapes: Ints, size: int, classes: int) -> Batch:
    """So many utterances drawn at random, as without sorting."""
    drawn = np.random.default_rng(4).choice(len(shapes), size, replace=len(shapes) < size)
    return _batch(shapes[drawn], classes)


def sorted_batch(shapes: Ints, num_frames: int, classes: int) -> Batch:
    """As many utterances about as long as the mean one as have so many frames together, padding included."""
    ordered = shapes[np.argsort(shapes[:, 0], kind="stable")]
    first = int(np.searchsorted(ordered[:, 0], shapes[:, 0].mean()))
    count = 1
    while first + count < len(ordered) and (count + 1) * ordered[first + count, 0] <= num_frames:
        count += 1
    return _batch(ordered[first : first + count], classes)


def _batch(shapes: Ints, classes: int) -> Batch:
    targets = np.random.default_rng(4).integers(1, classes, (len(shapes), int(shapes[:, 1].max())))
    return Batch(shapes[:, 0].copy(), shapes[:, 1].copy(), classes, cache(torch.from_numpy(targets).to))


def ours(batch: Batch, logits: torch.Tensor) -> torch.Tensor:
    """Our losses; the gradient takes the logits' place."""
    given = batch.on(logits.device), batch.frames, batch.labels
    return rnnt_loss(logits, *given, blank=0, reduction="none", inplace=True)


def torchaudio(batch: Batch, logits: torch.Tensor) -> torch.Tensor:
    """torchaudio's losses."""
    from torchaudio.functional import rnnt_loss as theirs

    given = [batch.on(logits.device), *map(torch.from_numpy, (batch.frames, batch.labels))]
    given = [values.to(logits.device, torch.int32) for values in given]
    loss: Any = theirs(logits, *given, blank=0, reduction="none")
    return loss


def case(batch: Batch) -> Case:
    """Logits are sums of what a frame says and what the labels so far say, as before the joiner of a simple network."""
    size, frames, positions, classes = batch.shape

    def arrays() -> list[npt.NDArray[np.float32]]:
        generator = np.random.default_rng(7)
        shapes = (size, frames, classes), (size, positions, classes)
        return [generator.standard_normal(shape, dtype=np.float32) for shape in shapes]

    def combine(of_frames: torch.Tensor, of_labels: torch.Tensor) -> torch.Tensor:
        return of_frames.unsqueeze(2) + of_labels.unsqueeze(1)

    def parts() -> Iterator[Case]:
        of_frames, of_labels = arrays()
        for n, (t, u) in enumerate(zip(batch.frames, batch.labels, strict=True)):
            one, targets = slice(n, n + 1), batch.on(torch.device("cpu"))
            alone = Batch(batch.frames[one], batch.labels[one], classes, cache(targets[one, :u].to))
            own = of_frames[one, :t], of_labels[one, : u + 1]
            yield Case(lambda own=own: own, partial(ours, alone), combine)  # type: ignore[misc]

    return Case(arrays, partial(ours, batch), combine, parts=parts, rotates=False)
