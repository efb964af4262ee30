"""How many frames each utterance will have, without computing its features: from tables, manifests and headers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fsachain.data.audio import (
    MAX_SECONDS,
    Perturbation,
    audio_identity,
    check_file,
    check_rate,
    read_audio,
    unreadable,
)
from fsachain.data.faults import Fault, UtteranceError
from fsachain.data.features import FeatureConfig, has_stored, num_frames_of, utterance_features
from fsachain.data.utterance import Utterance, is_command
from fsachain.errors import DataError, require
from fsachain.files import replacing
from fsachain.kaldi.archive import read_value
from fsachain.kaldi.values import read_num_rows
from fsachain.npz_file import read_npz

UNKNOWN = -1
_CHUNK = 256


def frame_counts(
    utterances: Sequence[Utterance],
    config: FeatureConfig,
    copies: Sequence[Perturbation] = (Perturbation(),),
    *,
    cache_dir: str | Path | None = None,
    num_workers: int = 1,
) -> tuple[NDArray[np.int32], list[Fault]]:
    """Frames of each utterance, for each change of speed.

    What says where the utterance ends (segments, manifests) is believed; otherwise the header of the recording, or of
    the stored matrix, is read. Only a recording that a command makes is made.

    Args:
        utterances: any.
        config: kind and size of the features.
        copies: changes of speed and volume.
        cache_dir: folder that keeps the counts of these utterances; None for none.
        num_workers: threads that read headers.

    Returns:
        int32 [copies, utterances], `UNKNOWN` (-1) where there is a fault, and the faults: a header that cannot be read, or
        another sampling rate.
    """
    path = _cache_path(utterances, config, copies, cache_dir)
    kept = None if path is None else _kept(path, (len(copies), len(utterances)))
    if kept is not None:
        return kept, []
    count = partial(_count_all, config=config, copies=copies)
    chunks = [utterances[begin : begin + _CHUNK] for begin in range(0, len(utterances), _CHUNK)]
    with ThreadPoolExecutor(num_workers) as threads:
        found = [pair for part in threads.map(count, chunks) for pair in part]
    counts = np.array([numbers for numbers, _ in found], np.int32).reshape(len(utterances), len(copies)).T
    faults = [fault for _, fault in found if fault is not None]
    if path is not None and not faults:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            np.savez(file, counts=counts)
    return counts, faults


def _count_all(
    utterances: Sequence[Utterance], config: FeatureConfig, copies: Sequence[Perturbation]
) -> list[tuple[list[int], Fault | None]]:
    found: list[tuple[list[int], Fault | None]] = []
    for utterance in utterances:
        try:
            found.append((_count(utterance, config, copies), None))
        except UtteranceError as error:
            found.append(([UNKNOWN] * len(copies), error.fault))
    return found


def _count(utterance: Utterance, config: FeatureConfig, copies: Sequence[Perturbation]) -> list[int]:
    if has_stored(utterance, config):
        return [_stored_frames(utterance, config)] * len(copies)
    samples = _samples(utterance, config.sample_rate)
    return [num_frames_of(_after(samples, copy.speed), config) for copy in copies]


def _after(samples: int, speed: float) -> int:
    """Samples after a change of speed, as `change_speed` leaves them."""
    ratio = Fraction(round(speed * 100), 100)
    return -(-samples * ratio.denominator // ratio.numerator)


def _stored_frames(utterance: Utterance, config: FeatureConfig) -> int:
    part = utterance.feats_part
    if part is not None and part.num_frames is not None:
        return part.num_frames
    assert utterance.feats is not None
    if part is not None or utterance.feats.rstrip().endswith(("|", "]")):  # a command, or a range of rows
        return len(utterance_features(utterance, config))
    try:
        return read_value(utterance.feats, read_num_rows)
    except (DataError, RuntimeError) as error:
        message = f"utterance {utterance.id!r}: cannot read {utterance.feats!r}: {error}"
        raise UtteranceError("unreadable features", utterance.id, message) from error


def _samples(utterance: Utterance, sample_rate: int) -> int:
    if utterance.audio is None:
        raise UtteranceError("no recording", utterance.id, f"utterance {utterance.id!r} has no recording")
    if utterance.end is not None:
        if utterance.end - utterance.start > MAX_SECONDS:
            raise unreadable(utterance, f"{utterance.end - utterance.start:.0f} s long")
        return max(0, round(utterance.end * sample_rate) - round(utterance.start * sample_rate))
    if is_command(utterance.audio):
        return len(read_audio(utterance, sample_rate))
    soundfile = require("soundfile", extra="recipes")
    check_file(utterance, Path(utterance.audio))
    try:
        header = soundfile.info(utterance.audio)
    except (OSError, RuntimeError) as error:  # soundfile's own error is a RuntimeError
        raise unreadable(utterance, error) from error
    check_rate(utterance, int(header.samplerate), sample_rate)
    if header.frames > MAX_SECONDS * sample_rate:
        raise unreadable(utterance, f"{header.frames / sample_rate:.0f} s long")
    return max(0, int(header.frames) - round(utterance.start * sample_rate))


def _cache_path(
    utterances: Sequence[Utterance],
    config: FeatureConfig,
    copies: Sequence[Perturbation],
    cache_dir: str | Path | None,
) -> Path | None:
    """A file named after all that the counts depend on; None if that is unknown, as for commands and archives."""
    if cache_dir is None or any(has_stored(utterance, config) for utterance in utterances):
        return None
    digest = hashlib.sha256(repr((config.fingerprint(), [copy.speed for copy in copies])).encode())
    for utterance in utterances:
        try:
            identity = audio_identity(utterance)
        except UtteranceError:
            return None
        if identity is None:
            return None
        digest.update(identity.encode())
    return Path(cache_dir) / f"frames-{digest.hexdigest()[:32]}.npz"


def _kept(path: Path, shape: tuple[int, int]) -> NDArray[np.int32] | None:
    """The counts in a file; None if it is absent or damaged."""
    try:
        counts = read_npz(path)["counts"]
    except (DataError, KeyError):
        return None
    return counts if counts.shape == shape and counts.dtype == np.int32 else None
