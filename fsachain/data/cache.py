"""Features on disk, so that a second run starts training at once.

Utterances are taken in chunks; a chunk is one file, named by a hash of everything its content depends on:
feature configuration, perturbation, and the identity of each recording. A changed recording or option is
therefore another name, and no entry is ever updated. A file is written under a temporary name and renamed,
which is atomic: any number of threads, processes and machines may fill one cache, and the worst that a race
costs is the same work twice. What a killed process left half written has another name, and is deleted after a day.
A damaged file, which its CRC-32 tells, is computed anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fsachain.data.audio import Perturbation, audio_identity
from fsachain.data.features import FeatureConfig, has_stored, utterance_features
from fsachain.data.utterance import Utterance
from fsachain.errors import ConfigError, DataError
from fsachain.files import read_npz, remove_partials, replacing

FORMAT_VERSION = 1  # part of every key; raised when the meaning of features changes
ABANDONED_SECONDS = 86_400.0  # after so long nobody writes to a half-written file any more
CHUNK = 64  # utterances per file: few files, and still enough pieces of work for many processes


def load_features(
    utterances: Sequence[Utterance],
    config: FeatureConfig,
    *,
    perturbation: Perturbation | None = None,
    cache_dir: str | Path | None = None,
    num_workers: int = 1,
    executor: Executor | None = None,
) -> list[NDArray[np.float32]]:
    """Features of many utterances, from the cache where it has them.

    Args:
        utterances: their `id` need not be unique.
        config: the kind and size of the features.
        perturbation: speed and volume; None for the recordings as they are.
        cache_dir: folder of the cache, made if absent; None for none.
        num_workers: threads that compute features. Most of the work is done with the interpreter lock
            released.
        executor: used instead of threads: a ProcessPoolExecutor, a Dask client's executor, ...; cache_dir
            must then be a folder that all its workers see.

    Returns:
        float32 [T, F] per utterance, in order.

    Raises:
        ConfigError: num_workers is not positive.
        DataError: an utterance cannot be read.
    """
    if num_workers < 1:
        raise ConfigError(f"num_workers is {num_workers}; expected at least 1")
    if cache_dir is not None:
        Path(cache_dir).mkdir(parents=True, exist_ok=True)
        remove_partials(cache_dir, older_than=ABANDONED_SECONDS)
    chunks = [tuple(utterances[i : i + CHUNK]) for i in range(0, len(utterances), CHUNK)]
    folder = None if cache_dir is None else str(cache_dir)
    work = partial(load_chunk, config=config, perturbation=perturbation or Perturbation(), folder=folder)
    if executor is not None:
        parts = list(executor.map(work, chunks))
    elif num_workers == 1 or len(chunks) <= 1:
        parts = [work(chunk) for chunk in chunks]
    else:
        with ThreadPoolExecutor(num_workers) as threads:
            parts = list(threads.map(work, chunks))
    return [features for part in parts for features in part]


def load_chunk(
    utterances: tuple[Utterance, ...], config: FeatureConfig, perturbation: Perturbation, folder: str | None
) -> list[NDArray[np.float32]]:
    """Features of one chunk: from its file if that is sound, else computed and, with a folder, written."""
    name = None if folder is None else _key(utterances, config, perturbation)
    path = None if name is None or folder is None else Path(folder) / f"{name}.npz"
    if path is not None:
        cached = _read(path)
        if cached is not None:
            return cached
    features = [utterance_features(utterance, config, perturbation) for utterance in utterances]
    if path is not None:
        _write(path, features)
    return features


def _key(utterances: tuple[Utterance, ...], config: FeatureConfig, perturbation: Perturbation) -> str | None:
    """Hash of all that the features depend on; None if that is unknown or they are an archive anyway."""
    identities = [None if has_stored(u, config) else audio_identity(u) for u in utterances]
    if any(identity is None for identity in identities) or config.dither != 0.0:
        return None
    content = (FORMAT_VERSION, config.fingerprint(), sorted(asdict(perturbation).items()), identities)
    return hashlib.sha256(repr(content).encode()).hexdigest()[:32]


def _read(path: Path) -> list[NDArray[np.float32]] | None:
    """The chunk in this file; None if there is none or it is damaged, for instance by a full disk."""
    try:
        content = read_npz(path)
        frames, lengths = content["frames"], content["lengths"]
    except (DataError, KeyError):
        return None
    if frames.ndim != 2 or lengths.ndim != 1 or lengths.sum() != len(frames) or np.any(lengths < 0):
        return None
    return np.split(frames, np.cumsum(lengths)[:-1])


def _write(path: Path, features: list[NDArray[np.float32]]) -> None:
    """Write a chunk so that readers see all of it or nothing."""
    with replacing(path) as file:
        np.savez(
            file, frames=np.concatenate(features), lengths=np.array([len(f) for f in features], np.int64)
        )
