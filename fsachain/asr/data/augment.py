"""Changes made to features while training: SpecAugment, frame shifts and silence.

Every draw depends on (seed, epoch, utterance id) alone, so that a resumed run, another batch order or another
number of workers sees the same features. Speed, volume and noise are changes of the audio:
`fsachain.asr.data.audio.Perturbation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fsachain.asr.data.audio import seeded_generator
from fsachain.asr.data.dataset import Example
from fsachain.asr.data.loudness import Loudness
from fsachain.errors import ConfigError, added_option, check_range, counted

_TEXTURE = 0.25  # of a column's standard deviation: how much the log energies of steady noise vary


@dataclass(frozen=True)
class AugmentConfig:
    """What is changed in training; the default changes nothing.

    SpecAugment (Park et al., Interspeech 2019) blanks bands of frames and of features with the utterance's mean.

    Attributes:
        time_masks (per utterance): blanked stretches of time per utterance.
        time_mask_frames (input frames): each mask has 0 to this many frames, uniformly.
        time_mask_fraction (share): each mask has at most this share of the utterance, so that short words survive.
        frequency_masks (per utterance): blanked bands per utterance.
        frequency_mask_bins (columns): each band has 0 to this many neighbouring features, uniformly; meaningful for
            "fbank".
        frequency_warp (share): the frequency axis is stretched by a factor within 1 +- this much, which imitates other
            vocal tracts (Jaitly and Hinton, 2013); 0.1 is usual, 0 off. Meaningful for "fbank".
        frame_shift (input frames): features are delayed or advanced by up to this many frames, which moves the grid of
            subsampled frames; subsampling - 1 covers every grid.
        block_columns (columns): features are blocks of so many columns, as with deltas or spliced frames, and bands and
            factors of frequency are the same in all. 0: as `features` makes them.
        silence (input frames): 0 to this many frames of silence are put in front of an utterance, behind it, and into its
            longest pause, each in every second utterance, so that networks know silence of any depth there. Chunks and
            features of kind "archive" get none.
        seed (number): seed of all draws.
    """

    time_masks: int = 0
    time_mask_frames: int = 0
    time_mask_fraction: float = 0.2
    frequency_masks: int = 0
    frequency_mask_bins: int = 0
    frequency_warp: float = 0.0
    frame_shift: int = 0
    block_columns: int = added_option(0)
    silence: int = added_option(0)
    seed: int = 0

    def __post_init__(self) -> None:
        counts = (
            "time_masks",
            "time_mask_frames",
            "frequency_masks",
            "frequency_mask_bins",
            "frame_shift",
            "block_columns",
            "silence",
        )
        check_range(self, "[0, inf)", *counts)
        check_range(self, "[0, 1]", "time_mask_fraction")
        check_range(self, "[0, 0.5)", "frequency_warp")


def augment(
    example: Example,
    config: AugmentConfig,
    epoch: int,
    view: int = 0,
    loudness: Loudness | None = None,
) -> Example:
    """A changed copy of the example, of the same shape but for `silence`; the example itself if nothing is to change.

    Features [T, F] may be normalised or not. Epochs count from 0; each draws anew. Views of an example in one epoch share
    the shift of frames and the silence, so that their outputs can be compared frame by frame, and nothing else. `loudness`
    tells which frames are quiet; without it no silence is added.
    """
    idle = AugmentConfig(
        seed=config.seed,
        time_mask_fraction=config.time_mask_fraction,
        block_columns=config.block_columns,
    )
    if config == idle or not example.num_frames:
        return example
    generator = seeded_generator(config.seed, epoch, example.id)
    features = example.features
    num_columns = features.shape[1]
    block = config.block_columns or num_columns
    if num_columns % block:
        raise ConfigError(
            f"augment.block_columns is {block}, and features have {counted(num_columns, 'column')}; expected a divisor"
        )
    if config.frame_shift:
        shift = int(generator.integers(-config.frame_shift, config.frame_shift + 1))
        features = shift_frames(features, shift)
    if config.silence and loudness is not None and example.window is None:
        features = add_silence(features, config.silence, loudness, generator)
    if view:
        generator = seeded_generator(config.seed, epoch, example.id, view)
    if config.frequency_warp:
        factor = float(generator.uniform(1.0 - config.frequency_warp, 1.0 + config.frequency_warp))
        parts = [
            warp_frequencies(features[:, at : at + block], factor) for at in range(0, num_columns, block)
        ]
        features = np.concatenate(parts, axis=1)
    mean, changed = features.mean(axis=0), features.copy()
    num_frames = len(features)
    for _ in range(config.frequency_masks):
        band = _band(generator, config.frequency_mask_bins, block)
        for first in range(0, num_columns, block):
            columns = slice(first + band.start, first + band.stop)
            changed[:, columns] = mean[columns]
    longest = min(config.time_mask_frames, int(config.time_mask_fraction * num_frames))
    for _ in range(config.time_masks):
        changed[_band(generator, longest, num_frames)] = mean
    return replace(example, features=changed)


def augment_all(
    examples: Sequence[Example], config: AugmentConfig, epoch: int, loudness: Loudness | None = None
) -> list[Example]:
    """`augment` for each example."""
    return [augment(example, config, epoch, loudness=loudness) for example in examples]


def add_silence(
    features: NDArray[np.float32], longest: int, loudness: Loudness, generator: np.random.Generator
) -> NDArray[np.float32]:
    """Features [T, F] with silence in front, in the longest pause and behind: in every second case, 1 to `longest` frames.

    Its level lies at that of the quietest frames or below, its spectrum is theirs or flat, with or without noise.
    """
    levels = loudness.levels(features)
    order = np.argsort(levels, kind="stable")
    quietest = features[order[: max(1, len(order) // 20)]].mean(axis=0)
    deviation = float(levels.std())
    pause = _longest_pause(levels <= levels[order[0]] + deviation)
    parts, begin = [], 0
    for place in (0, pause, len(features)):
        parts.append(features[begin:place])
        begin = place
        length = int(generator.integers(1, longest + 1)) if generator.random() < 0.5 else 0
        if not length:
            continue
        depth = generator.uniform(0.0, deviation)
        frame = quietest - depth * loudness.direction
        if generator.random() < 0.5:  # a flat spectrum, that of digital silence, of the same level
            mean = features.mean(axis=0)
            frame = (
                mean + (loudness.levels(frame[None])[0] - loudness.levels(mean[None])[0]) * loudness.direction
            )
        spread = _TEXTURE * features.std(axis=0) * (generator.random() < 0.5)
        noise = generator.standard_normal((length, features.shape[1]))
        parts.append((frame + spread * noise).astype(np.float32))
    return np.concatenate([*parts, features[begin:]])


def _longest_pause(quiet: NDArray[np.bool_]) -> int:
    """The middle of the longest run of quiet frames, of which there is at least one."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], quiet, [False]]).astype(np.int8)))
    begins, ends = edges[::2], edges[1::2]
    longest = int(np.argmax(ends - begins))
    return int(begins[longest] + ends[longest]) // 2


def shift_frames(features: NDArray[np.float32], shift: int) -> NDArray[np.float32]:
    """Delay features [T, F] by `shift` frames (advance if negative); the edge frame is repeated, T stays."""
    return features[np.clip(np.arange(len(features)) - shift, 0, len(features) - 1)]


def warp_frequencies(features: NDArray[np.float32], factor: float) -> NDArray[np.float32]:
    """Move the content of bin f of features [T, F] to bin f * factor by linear interpolation; the last bin is repeated.

    A factor above 1 raises formants, as a shorter vocal tract does.
    """
    last = features.shape[1] - 1
    source = np.minimum(np.arange(last + 1) / factor, last)
    below = np.minimum(source.astype(np.int64), max(0, last - 1))
    weight = (source - below).astype(np.float32)
    return features[:, below] * (1 - weight) + features[:, np.minimum(below + 1, last)] * weight


def _band(generator: np.random.Generator, longest: int, size: int) -> slice:
    """A band of 0 to `longest` positions inside `size`, uniform in width and place."""
    width = int(generator.integers(0, min(longest, size) + 1))
    start = int(generator.integers(0, size - width + 1))
    return slice(start, start + width)
