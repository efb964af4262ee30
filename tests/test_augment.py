"""Augmentation of features: repeatable, bounded, and what it says."""

import numpy as np
import pytest

from fsachain.data.augment import AugmentConfig, augment, augment_all, shift_frames, warp_frequencies
from fsachain.data.dataset import Example
from fsachain.errors import ConfigError

ALL = AugmentConfig(
    time_masks=2,
    time_mask_frames=20,
    frequency_masks=2,
    frequency_mask_bins=8,
    frequency_warp=0.1,
    frame_shift=2,
    seed=5,
)


def example(num_frames=100, name="u1"):
    features = np.random.default_rng(num_frames).standard_normal((num_frames, 40)).astype(np.float32)
    return Example(name, "s", ("one",), features)


def test_draws_depend_on_seed_epoch_and_utterance_alone():
    """Not on order or number of calls: a resumed run continues with the features it would have seen."""
    batch = [example(80, "a"), example(90, "b")]
    forward = augment_all(batch, ALL, epoch=3)
    backward = augment_all(batch[::-1], ALL, epoch=3)[::-1]
    for one, other in zip(forward, backward, strict=True):
        np.testing.assert_array_equal(one.features, other.features)


@pytest.mark.parametrize(
    ("config", "epoch", "name"),
    [(ALL, 1, "u1"), (ALL, 0, "u2"), (AugmentConfig(2, 20, 0.2, 2, 8, 0.1, 2, seed=6), 0, "u1")],
)
def test_another_seed_epoch_or_utterance_draws_anew(config, epoch, name):
    changed = augment(example(name=name), config, epoch).features
    assert not np.array_equal(changed, augment(example(), ALL, 0).features)


def test_the_original_is_left_alone_and_shape_stays():
    original = example()
    before = original.features.copy()
    changed = augment(original, ALL, 0)
    np.testing.assert_array_equal(original.features, before)
    assert changed.features.shape == before.shape
    assert changed.features.dtype == np.float32
    assert changed.id == original.id
    assert augment(original, AugmentConfig(seed=9), 4) is original  # there is nothing to do


def blanked(changed, mean):
    return changed == mean


def test_masks_hold_the_mean_and_stay_within_their_sizes():
    original = example(200)
    mean = original.features.mean(axis=0)
    widest_time = widest_band = 0
    for epoch in range(60):
        time = augment(original, AugmentConfig(time_masks=1, time_mask_frames=20), epoch).features
        frames = blanked(time, mean).all(axis=1)
        np.testing.assert_array_equal(time[~frames], original.features[~frames])
        widest_time = max(widest_time, int(frames.sum()))
        band = augment(original, AugmentConfig(frequency_masks=1, frequency_mask_bins=8), epoch).features
        bins = blanked(band, mean).all(axis=0)
        np.testing.assert_array_equal(band[:, ~bins], original.features[:, ~bins])
        widest_band = max(widest_band, int(bins.sum()))
    assert (widest_time, widest_band) == (20, 8)


def test_time_masks_spare_short_utterances():
    original = example(20)
    config = AugmentConfig(time_masks=1, time_mask_frames=50, time_mask_fraction=0.2)
    changed = [augment(original, config, epoch).features for epoch in range(40)]
    assert max((features != original.features).any(axis=1).sum() for features in changed) == 4


@pytest.mark.parametrize("num_frames", [0, 1, 2])
def test_tiny_utterances_survive(num_frames):
    assert augment(example(num_frames), ALL, 0).num_frames == num_frames


def test_shift_moves_frames_and_repeats_the_edge():
    features = np.arange(5, dtype=np.float32)[:, None]
    assert shift_frames(features, 2)[:, 0].tolist() == [0, 0, 0, 1, 2]
    assert shift_frames(features, -2)[:, 0].tolist() == [2, 3, 4, 4, 4]
    assert shift_frames(features, 9)[:, 0].tolist() == [0] * 5


def test_frame_shifts_reach_every_offset():
    features = np.tile(np.arange(50, dtype=np.float32)[:, None], (1, 3))
    middles = {
        float(augment(Example("u", "s", (), features), AugmentConfig(frame_shift=1), epoch).features[25, 0])
        for epoch in range(40)
    }
    assert middles == {24.0, 25.0, 26.0}


def test_warp_moves_a_peak_by_its_factor():
    bins = np.arange(40)
    peak = np.exp(-0.5 * ((bins - 20) / 2.0) ** 2).astype(np.float32)[None]
    assert warp_frequencies(peak, 1.2)[0].argmax() == 24
    assert warp_frequencies(peak, 0.8)[0].argmax() == 16
    np.testing.assert_array_equal(warp_frequencies(peak, 1.0), peak)


@pytest.mark.parametrize(
    ("option", "value"),
    [("time_masks", -1), ("frame_shift", -2), ("time_mask_fraction", 1.5), ("frequency_warp", 0.5)],
)
def test_illegal_option_is_refused_by_name(option, value):
    with pytest.raises(ConfigError, match=f"{option} is {value}"):
        AugmentConfig(**{option: value})
