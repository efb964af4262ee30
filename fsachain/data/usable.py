"""Features of a data directory in which some recordings may be broken: those are named, the others are loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fsachain.data.audio import Perturbation
from fsachain.data.cache import CHUNK, load_chunk
from fsachain.data.dataset import Example
from fsachain.data.faults import Fault, UtteranceError
from fsachain.data.features import FeatureConfig
from fsachain.data.kaldi_dir import DataDir, Utterance

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
    """Features of the utterances that have some, for each copy.

    Args:
        data_dir: the utterances.
        config: kind and size of the features.
        copies: changes of speed and volume, one list of examples for each.
        cache_dir, num_workers, executor: as for `fsachain.data.dataset.load_examples`.

    Returns:
        The usable utterances, their examples per copy in the same order, and what is wrong with each of the others:
        a recording or matrix that cannot be read or has another rate or width, no frames, numbers that are not
        finite. An utterance is usable if all its copies are.

    Raises:
        DataError: the options do not fit the data at all, such as a change of speed where there is no audio.
    """
    if cache_dir is not None:
        Path(cache_dir).mkdir(parents=True, exist_ok=True)
    folder = None if cache_dir is None else str(cache_dir)
    chunks = [tuple(data_dir.utterances[i : i + CHUNK]) for i in range(0, len(data_dir), CHUNK)]
    loaded: list[Loaded] = []
    for copy in copies:
        work = partial(_load_chunk, config=config, perturbation=copy, folder=folder)
        with nullcontext(executor) if executor is not None else ThreadPoolExecutor(num_workers) as pool:
            loaded.append([pair for found in pool.map(work, chunks) for pair in found])
    faults: dict[str, Fault] = {}
    for part in loaded:
        for utterance, found in part:
            if isinstance(found, Fault):
                faults.setdefault(utterance.id, found)
    variants = [list(_examples(part, copy.prefix, faults)) for part, copy in zip(loaded, copies, strict=True)]
    return data_dir.select(lambda utterance: utterance.id not in faults), variants, list(faults.values())


def _load_chunk(
    utterances: tuple[Utterance, ...], config: FeatureConfig, perturbation: Perturbation, folder: str | None
) -> Loaded:
    """A chunk by the cache; one after the other, the utterances that keep it from being loaded are left out."""
    found: dict[int, NDArray[np.float32] | Fault] = {}
    left = list(enumerate(utterances))
    while left:
        try:
            matrices = load_chunk(tuple(one for _, one in left), config, perturbation, folder)
        except UtteranceError as error:
            found |= {place: error.fault for place, one in left if one.id == error.fault.id}
            left = [(place, one) for place, one in left if one.id != error.fault.id]
            continue
        for (place, one), matrix in zip(left, matrices, strict=True):
            found[place] = _fault_of(one, matrix) or matrix
        break
    return [(one, found[place]) for place, one in enumerate(utterances)]


def _fault_of(utterance: Utterance, matrix: NDArray[np.float32]) -> Fault | None:
    if not len(matrix):
        where = utterance.feats or utterance.audio
        kind = "empty audio" if utterance.feats is None else "no frames"
        return Fault(utterance.id, f"utterance {utterance.id!r}: {where!r} gives no frame", kind)
    finite = np.isfinite(matrix).all(axis=1)
    if not finite.all():
        frame = int(np.argmin(finite))
        message = (
            f"utterance {utterance.id!r}: features are not finite, first in frame {frame} of {len(matrix)}"
        )
        return Fault(utterance.id, message, "features not finite")
    return None


def _examples(loaded: Loaded, prefix: str, faults: dict[str, Fault]) -> Iterator[Example]:
    for utterance, matrix in loaded:
        if utterance.id not in faults:
            assert not isinstance(matrix, Fault)
            yield Example(prefix + utterance.id, prefix + utterance.speaker, utterance.words, matrix)
