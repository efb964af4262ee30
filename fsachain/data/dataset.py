"""From data directories to batches: examples in memory, length buckets, zero-padded tensors.

The order of an epoch is a pure function of (seed, epoch) and the lengths, so that a resumed run sees the same
batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from fsachain.data.audio import Perturbation
from fsachain.data.cmvn import Cmvn, CmvnConfig
from fsachain.data.features import CHUNK, FeatureConfig, load_chunk, load_features
from fsachain.data.kaldi_dir import DataDir
from fsachain.data.utterance import Fault, Utterance, UtteranceError
from fsachain.errors import DataError


@dataclass(frozen=True, eq=False)
class OutputWindow:
    """The output frames of an example that are trained on; those around them only give context.

    `first` counts from the example's first output. `frame_weights`, float32 [length], are those of `LFMMILoss`.
    """

    first: int
    frame_weights: NDArray[np.float32]

    @property
    def length(self) -> int:
        return len(self.frame_weights)


@dataclass(frozen=True, eq=False)
class WindowBatch:
    """The windows of N examples.

    `first` and `lengths` are int64 [N], `lengths` on the host; `frame_weights` is float32 [N, max length], zero past
    the end of a window.
    """

    first: torch.Tensor
    lengths: torch.Tensor
    frame_weights: torch.Tensor

    @classmethod
    def collate(cls, windows: Sequence[OutputWindow]) -> WindowBatch:
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


@dataclass(frozen=True)
class Example:
    """One utterance, or a chunk of one, with its features, float32 [T, F].

    `window` says which of its network outputs are trained on; None: all.
    """

    id: str
    speaker: str
    words: tuple[str, ...]
    features: NDArray[np.float32]
    window: OutputWindow | None = None

    @property
    def num_frames(self) -> int:
        """T, in input frames."""
        return len(self.features)


@dataclass(frozen=True)
class Batch:
    """N utterances, padded with zeros to the longest.

    Attributes:
        ids, speakers, words: N each.
        features: float32 [N, T, F].
        lengths: int64 [N] on the host; frames of each utterance before padding.
        windows: the outputs that count; None: all.
    """

    ids: tuple[str, ...]
    speakers: tuple[str, ...]
    words: tuple[tuple[str, ...], ...]
    features: torch.Tensor
    lengths: torch.Tensor
    windows: WindowBatch | None = None


def load_examples(
    data_dir: DataDir,
    feature_config: FeatureConfig,
    *,
    cmvn: Cmvn | None = None,
    perturbation: Perturbation | None = None,
    cache_dir: str | Path | None = None,
    num_workers: int = 1,
    executor: Executor | None = None,
) -> list[Example]:
    """Features of a whole data directory, in memory.

    Args:
        data_dir: the utterances.
        feature_config: kind and size of the features.
        cmvn: normalisation to apply; None leaves the features as they are (see `normalise`).
        perturbation: speed and volume; ids and speakers of a copy at another speed get `perturbation.prefix`.
        cache_dir: folder of the feature cache; None for none.
        num_workers: threads that compute features.
        executor: used instead of threads; see `fsachain.data.features.load_features`.

    Returns:
        One example per utterance, in order.
    """
    features = load_features(
        data_dir.utterances,
        feature_config,
        perturbation=perturbation,
        cache_dir=cache_dir,
        num_workers=num_workers,
        executor=executor,
    )
    prefix = "" if perturbation is None else perturbation.prefix
    examples = [
        Example(prefix + utterance.id, prefix + utterance.speaker, utterance.words, matrix)
        for utterance, matrix in zip(data_dir.utterances, features, strict=True)
    ]
    return examples if cmvn is None else normalise(examples, cmvn)


Loaded = list[tuple[Utterance, NDArray[np.float32] | Fault]]


def load_usable(
    data_dir: DataDir,
    config: FeatureConfig,
    copies: Sequence[Perturbation] = (Perturbation(),),
    *,
    cache_dir: str | Path | None = None,
    num_workers: int = 1,
    executor: Executor | None = None,
) -> tuple[DataDir, list[list[Example]], list[Fault]]:
    """Features of the usable utterances for each of `copies`: (utterances, their examples by copy, faults of the others).

    A fault is a recording or matrix that cannot be read or has another rate or width, no frames, or numbers that are not
    finite. An utterance is usable if all its copies are. Options that fit no utterance, such as a change of speed where
    there is no audio, raise DataError.
    """
    if cache_dir is not None:
        Path(cache_dir).mkdir(parents=True, exist_ok=True)
    folder = None if cache_dir is None else str(cache_dir)
    chunks = [tuple(data_dir.utterances[i : i + CHUNK]) for i in range(0, len(data_dir), CHUNK)]
    matrices: list[dict[str, NDArray[np.float32]]] = []  # of each copy
    faults: dict[str, Fault] = {}
    for copy in copies:
        work = partial(_load_sound, config=config, perturbation=copy, folder=folder)
        matrices.append({})
        with nullcontext(executor) if executor is not None else ThreadPoolExecutor(num_workers) as pool:
            for found, wrong in pool.map(work, chunks):
                matrices[-1] |= found
                faults = {**wrong, **faults}  # the first fault of each utterance counts
    usable = data_dir.select(lambda utterance: utterance.id not in faults)
    variants = [
        [
            Example(copy.prefix + one.id, copy.prefix + one.speaker, one.words, features[one.id])
            for one in usable
        ]
        for copy, features in zip(copies, matrices, strict=True)
    ]
    order = {utterance.id: place for place, utterance in enumerate(data_dir)}
    return usable, variants, [faults[name] for name in sorted(faults, key=order.__getitem__)]


def _load_sound(
    utterances: tuple[Utterance, ...], config: FeatureConfig, perturbation: Perturbation, folder: str | None
) -> tuple[dict[str, NDArray[np.float32]], dict[str, Fault]]:
    """Features by id of a chunk of utterances, and faults by id; without a faulty one the others are loaded again."""
    left, faults = utterances, dict[str, Fault]()
    while left:
        try:
            matrices = load_chunk(left, config, perturbation, folder)
            break
        except UtteranceError as error:
            faults[error.fault.id] = error.fault
            left = tuple(one for one in left if one.id != error.fault.id)
    else:
        return {}, faults
    for one, matrix in zip(left, matrices, strict=True):
        where = f"utterance {one.id!r}"
        finite = np.isfinite(matrix).all(axis=1)
        if not len(matrix):
            kind = "empty audio" if one.feats is None else "no frames"
            faults[one.id] = Fault(one.id, f"{where}: {one.feats or one.audio!r} gives no frame", kind)
        elif not finite.all():
            frame = int(np.argmin(finite))
            message = f"{where}: features are not finite, first in frame {frame} of {len(matrix)}"
            faults[one.id] = Fault(one.id, message, "features not finite")
    return {one.id: matrix for one, matrix in zip(left, matrices, strict=True)}, faults


def estimate_cmvn(examples: Sequence[Example], config: CmvnConfig) -> Cmvn:
    """The normalisation that `config` asks for, with statistics from these examples."""
    return Cmvn.estimate(config, ((example.speaker, example.features) for example in examples))


def normalise(examples: Sequence[Example], cmvn: Cmvn) -> list[Example]:
    """The examples with normalised features; the originals are left as they were."""
    return [replace(e, features=cmvn.apply(e.features, e.speaker)) for e in examples]


def collate(examples: Sequence[Example]) -> Batch:
    """Pad examples to one batch.

    Raises:
        DataError: there are none, their features differ in width, or only some have a window.
    """
    if not examples:
        raise DataError("a batch needs at least one example, got none")
    width = examples[0].features.shape[1]
    for example in examples:
        if example.features.shape[1] != width:
            raise DataError(
                f"utterance {example.id!r} has {example.features.shape[1]} features per frame, others {width}"
            )
    lengths = torch.tensor([example.num_frames for example in examples], dtype=torch.int64)
    features = torch.zeros(len(examples), int(lengths.max()), width)
    for row, example in zip(features, examples, strict=True):
        row[: example.num_frames] = torch.from_numpy(example.features)
    return Batch(
        tuple(e.id for e in examples),
        tuple(e.speaker for e in examples),
        tuple(e.words for e in examples),
        features,
        lengths,
        _collate_windows(examples),
    )


def _collate_windows(examples: Sequence[Example]) -> WindowBatch | None:
    windows = [example.window for example in examples if example.window is not None]
    if windows and len(windows) < len(examples):
        raise DataError(
            f"a batch of {len(examples)} examples, {len(windows)} of them chunks; expected all or none"
        )
    return WindowBatch.collate(windows) if windows else None


def cut_example(
    example: Example,
    start: int,
    frame_weights: NDArray[np.float32],
    *,
    subsampling: int,
    context: tuple[int, int],
    name: str,
) -> Example:
    """A chunk of a whole utterance with the features around it, as far as the utterance has them.

    `start` is its first output frame, `frame_weights` float32 [output frames]. `context` are the input frames that an
    output sees before and after its own `subsampling` frames (`TdnnfConfig.context`); the left one is rounded up to whole
    output frames. With the network's whole context the outputs in the window are those of the whole utterance (in
    evaluation: in training, batch normalisation depends on the batch).
    """
    num_outputs = -(-example.num_frames // subsampling)
    end = start + len(frame_weights)
    if not 0 <= start < end <= num_outputs:
        raise DataError(
            f"chunk {name!r} of the output frames [{start}, {end}): utterance {example.id!r} has {num_outputs}"
        )
    first = max(0, start - -(-context[0] // subsampling))
    features = example.features[subsampling * first : subsampling * end + context[1]]
    return replace(example, id=name, features=features, window=OutputWindow(start - first, frame_weights))
