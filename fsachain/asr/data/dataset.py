"""From data directories to batches: examples in memory, zero-padded tensors, chunks."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import pad_sequence

from fsachain.asr.data.audio import Perturbation
from fsachain.asr.data.cmvn import Cmvn, CmvnConfig
from fsachain.asr.data.features import (
    FeatureConfig,
    Progress,
    by_chunk,
    features_fault,
    load_chunk,
    open_cache,
)
from fsachain.asr.data.kaldi_dir import DataDir
from fsachain.asr.data.loudness import Loudness
from fsachain.asr.data.utterance import Fault, Utterance, UtteranceError
from fsachain.errors import DataError, brief, counted


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
        weights, lengths = _padded([window.frame_weights for window in windows])
        return cls(torch.tensor([window.first for window in windows], dtype=torch.int64), lengths, weights)

    def crop(self, outputs: torch.Tensor) -> torch.Tensor:
        """The windows of outputs [N, T, P] as [N, max length, P], padded with zeros; differentiable."""
        rows = zip(outputs, self.first.tolist(), self.lengths.tolist(), strict=True)
        cut = [row[first : first + length] for row, first, length in rows]
        return pad_sequence(cut, batch_first=True)


def _padded(arrays: Sequence[NDArray[np.float32]]) -> tuple[torch.Tensor, torch.Tensor]:
    """The arrays as one float32 tensor, padded with zeros behind, and their lengths."""
    tensors = [torch.as_tensor(array, dtype=torch.float32) for array in arrays]
    return pad_sequence(tensors, batch_first=True), torch.tensor([len(array) for array in arrays])


@dataclass(frozen=True)
class Example:
    """One utterance, or a chunk of one, with its features.

    Attributes:
        id, speaker, words: of the utterance, as in `Utterance`.
        features: float32 [T, F].
        window: which of its network outputs are trained on; None: all.
    """

    id: str
    speaker: str
    words: tuple[str, ...]
    features: NDArray[np.float32]
    window: OutputWindow | None = None

    __repr__ = brief

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
        lengths: int64 [N] on the host: input frames before padding.
        windows: the outputs that count; None: all.
        views: 2: the second half holds other views of the utterances in the first.
    """

    ids: tuple[str, ...]
    speakers: tuple[str, ...]
    words: tuple[tuple[str, ...], ...]
    features: torch.Tensor
    lengths: torch.Tensor
    windows: WindowBatch | None = None
    views: int = 1

    __repr__ = brief


def load_examples(
    data_dir: DataDir,
    feature_config: FeatureConfig,
    *,
    cmvn: Cmvn | None = None,
    perturbation: Perturbation | None = None,
    cache_dir: str | Path | None = None,
    num_workers: int = 1,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> list[Example]:
    """Features of a whole data directory, in memory: one example per utterance, in order.

    With `cmvn` they are normalised. With `perturbation`, ids and speakers of a copy at another speed get its prefix. The
    features are kept in the folder `cache_dir`, and taken from there where it has them. `num_workers` threads compute them,
    or the `executor` (processes, Dask), all of whose workers must see that folder; `progress` is called with (utterances
    done, in all).
    """
    config, copy = feature_config.fitted(data_dir), perturbation or Perturbation()
    open_cache(cache_dir)
    work = partial(load_chunk, config=config, perturbation=copy, folder=cache_dir)
    how: dict[str, Any] = {"num_workers": num_workers, "executor": executor, "progress": progress}
    matrices = chain.from_iterable(by_chunk(work, data_dir.utterances, **how))
    examples = [example_of(one, matrix, copy) for one, matrix in zip(data_dir, matrices, strict=True)]
    return examples if cmvn is None else normalise(examples, cmvn)


def example_of(utterance: Utterance, features: NDArray[np.float32], copy: Perturbation) -> Example:
    return Example(copy.prefix + utterance.id, copy.prefix + utterance.speaker, utterance.words, features)


def load_usable(
    data_dir: DataDir,
    config: FeatureConfig,
    copies: Sequence[Perturbation] = (Perturbation(),),
    *,
    cache_dir: str | Path | None = None,
    num_workers: int = 1,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> tuple[DataDir, list[list[Example]], list[Fault]]:
    """Features of the usable utterances for each of `copies`: (utterances, their examples by copy, faults of the others).

    A fault is a recording or matrix that cannot be read or has another rate or width, no frames, or numbers that are not
    finite. An utterance is usable if all its copies are. Options that fit no utterance, such as a change of speed where
    there is no audio, raise DataError. `progress` is called with (utterances done, in all), those of all copies.
    """
    open_cache(cache_dir)
    config = config.fitted(data_dir)
    matrices: list[dict[str, NDArray[np.float32]]] = []  # of each copy
    faults: dict[str, Fault] = {}
    how: dict[str, Any] = {"num_workers": num_workers, "executor": executor}
    for number, copy in enumerate(copies):
        work = partial(load_sound, config=config, perturbation=copy, folder=cache_dir)
        matrices.append({})
        told = None if progress is None else partial(_of_copies, progress, number, len(copies))
        for found, wrong in by_chunk(work, data_dir.utterances, progress=told, **how):
            matrices[-1] |= found
            faults = {**wrong, **faults}  # the first fault of each utterance counts
    usable = data_dir.select(lambda utterance: utterance.id not in faults)
    variants = [
        [example_of(one, features[one.id], copy) for one in usable]
        for copy, features in zip(copies, matrices, strict=True)
    ]
    return usable, variants, [faults[one.id] for one in data_dir if one.id in faults]


def _of_copies(progress: Progress, number: int, count: int, done: int, total: int) -> None:
    progress(number * total + done, count * total)


def load_sound(
    utterances: tuple[Utterance, ...],
    config: FeatureConfig,
    perturbation: Perturbation,
    folder: str | Path | None,
) -> tuple[dict[str, NDArray[np.float32]], dict[str, Fault]]:
    """Features by id of a chunk of utterances, and faults by id; without a faulty one the others are loaded again."""
    faults = dict[str, Fault]()
    while left := tuple(one for one in utterances if one.id not in faults):
        try:
            matrices = load_chunk(left, config, perturbation, folder)
            break
        except UtteranceError as error:
            faults[error.fault.id] = error.fault
    else:
        return {}, faults
    for one, matrix in zip(left, matrices, strict=True):
        fault = features_fault(one, matrix)
        if fault is not None:
            faults[one.id] = fault
    return {one.id: matrix for one, matrix in zip(left, matrices, strict=True)}, faults


def estimate_cmvn(examples: Sequence[Example], config: CmvnConfig, loudness: Loudness | None = None) -> Cmvn:
    """The normalisation that `config` asks for, with statistics from these examples.

    `loudness` is `FeatureConfig.loudness` of their features: what tells speech from silence.
    """
    return Cmvn.estimate(config, ((example.speaker, example.features) for example in examples), loudness)


def normalise(examples: Sequence[Example], cmvn: Cmvn) -> list[Example]:
    """The examples with normalised features; the originals are left as they were."""
    return [replace(e, features=cmvn.apply(e.features, e.speaker)) for e in examples]


def collate(examples: Sequence[Example], views: int = 1) -> Batch:
    """Pad examples, of which there is at least one, to one batch; their features have one width, all or none a window."""
    if not examples:
        raise DataError("a batch needs at least one example, got none")
    width = examples[0].features.shape[1]
    for example in examples:
        if example.features.shape[1] != width:
            raise DataError(
                f"utterance {example.id!r} has {counted(example.features.shape[1], 'feature')} per frame, others {width}"
            )
    windows = [example.window for example in examples if example.window is not None]
    if windows and len(windows) < len(examples):
        raise DataError(
            f"a batch of {counted(len(examples), 'example')}, {len(windows)} of them chunks; expected all or none"
        )
    ids, speakers, words = zip(*((e.id, e.speaker, e.words) for e in examples), strict=True)
    padded = _padded([example.features for example in examples])
    return Batch(ids, speakers, words, *padded, WindowBatch.collate(windows) if windows else None, views)


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

    `start` is its first output frame, `frame_weights` float32 [output frames]. `context` are the input frames that an output
    sees before and after its own `subsampling` frames (`TdnnfConfig.context`); the left one is rounded up to whole output
    frames. With the network's whole context the outputs in the window are, in evaluation, those of the whole utterance.
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
