"""Deltas, splicing and stretching of features, on recordings and on stored features alike."""

import dataclasses

import numpy as np
import pytest
import soundfile
from tolerances import FEW_FLOAT32_TERMS

from fsachain.asr.data.audio import Perturbation
from fsachain.asr.data.augment import AugmentConfig, augment
from fsachain.asr.data.cmvn import Cmvn, CmvnConfig, SlidingCmvn
from fsachain.asr.data.dataset import Example
from fsachain.asr.data.features import (
    FeatureConfig,
    FeatureStream,
    compute_features,
    frame_counts,
    load_chunk,
    utterance_features,
)
from fsachain.asr.data.frames import ContextStream, add_context, columns_with_context, stretch
from fsachain.asr.data.utterance import Utterance
from fsachain.asr.kaldi.values import write_matrices
from fsachain.asr.train.config import to_compare, to_dict
from fsachain.errors import ConfigError, DataError

CONTEXTS = [(2, (0, 0)), (0, (1, 2)), (2, (2, 1)), (1, (0, 3)), (3, (1, 0))]


def noise(*shape):
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


@pytest.fixture(name="stored")
def stored_utterance(tmp_path):
    """An utterance of 21 frames of 13 columns in an archive."""
    matrix = noise(21, 13)
    write_matrices(tmp_path / "feats.ark", [("one", matrix)])
    address = next(line.split(maxsplit=1)[1] for line in (tmp_path / "feats.scp").read_text().splitlines())
    return Utterance("one", "anna", ("yes",), None, feats=address.strip()), matrix


def test_deltas_are_regressions_over_five_frames_with_repeated_edges():
    features = noise(9, 2)
    found = add_context(features, 2)
    edge = np.pad(features.astype(np.float64), ((4, 4), (0, 0)), mode="edge")
    first = sum(offset * edge[2 + 2 + offset : 2 + 2 + offset + 9] for offset in range(-2, 3)) / 10
    np.testing.assert_allclose(found[:, :2], features, rtol=0, atol=0)
    np.testing.assert_allclose(found[:, 2:4], first, atol=FEW_FLOAT32_TERMS)
    taps = np.convolve(np.arange(-2, 3) / 10, np.arange(-2, 3) / 10)
    second = sum(tap * edge[at : at + 9] for at, tap in enumerate(taps))
    np.testing.assert_allclose(found[:, 4:], second, atol=FEW_FLOAT32_TERMS)


def test_spliced_frames_stand_from_the_earliest_to_the_latest():
    features = np.arange(4, dtype=np.float32)[:, None]
    assert add_context(features, 0, (1, 2)).tolist() == [
        [0, 0, 1, 2],
        [0, 1, 2, 3],
        [1, 2, 3, 3],
        [2, 3, 3, 3],
    ]


@pytest.mark.parametrize(("deltas", "splice"), CONTEXTS)
@pytest.mark.parametrize("frames", [0, 1, 2, 5, 40])
@pytest.mark.parametrize("block", [1, 7])
def test_blocks_of_a_stream_give_the_frames_of_the_whole_bitwise(deltas, splice, frames, block):
    features = noise(frames, 3)
    whole = add_context(features, deltas, splice)
    assert whole.shape == (frames, columns_with_context(3, deltas, splice))
    stream = ContextStream(deltas, splice)
    parts = [stream.accept(features[at : at + block]) for at in range(0, frames, block)] or [
        stream.accept(features)
    ]
    assert np.concatenate([*parts, stream.finish()]).tobytes() == whole.tobytes()


def test_a_stream_of_samples_gives_the_deltas_of_the_whole_recording_bitwise():
    samples = noise(6000) / 10
    config = FeatureConfig(sample_rate=8000, num_mel_bins=20, deltas=2, splice=(1, 0))
    whole = compute_features(samples, config)
    assert whole.shape[1] == config.num_features == 120
    stream = FeatureStream(config)
    parts = [stream.accept(samples[at : at + 700]) for at in range(0, 6000, 700)]
    assert np.concatenate([*parts, stream.finish()]).tobytes() == whole.tobytes()
    plain = dataclasses.replace(config, deltas=0, splice=(0, 0))
    assert add_context(compute_features(samples, plain), 2, (1, 0)).tobytes() == whole.tobytes()


@pytest.mark.parametrize(
    ("options", "named"),
    [({"deltas": -1}, "deltas"), ({"deltas": 9}, "deltas"), ({"splice": (1, -1)}, "splice")],
)
def test_impossible_contexts_are_refused_by_name(options, named):
    with pytest.raises(ConfigError, match=f"^{named} is"):
        FeatureConfig(sample_rate=8000, num_mel_bins=20, **options)


def test_stored_features_have_deltas_and_any_width(stored):
    utterance, matrix = stored
    for kind in ("fbank", "archive"):
        config = FeatureConfig(kind=kind, deltas=2).fitted([utterance])
        assert (config.base_columns, config.num_features) == (13, 39)
        np.testing.assert_array_equal(utterance_features(utterance, config), add_context(matrix, 2))
        assert "13 of feats.scp, 2 deltas" in config.told


def test_stored_features_are_stretched_in_time_and_counted(stored):
    utterance, matrix = stored
    config = FeatureConfig(kind="archive", num_columns=13)
    slow, fast = Perturbation(0.9), Perturbation(1.1)
    (counts, faults) = frame_counts([utterance], config, [slow, Perturbation(), fast])
    assert counts[:, 0].tolist() == [24, 21, 20]
    assert not faults
    for speed, frames in ((0.9, 24), (1.1, 20)):
        found = utterance_features(utterance, config, Perturbation(speed))
        assert found.shape == (frames, 13)
        np.testing.assert_array_equal(found, stretch(matrix, speed))


def test_stretching_moves_a_straight_line_along_itself():
    line = np.arange(50, dtype=np.float32)[:, None]
    found = stretch(line, 0.8)[5:-5, 0]
    np.testing.assert_allclose(np.diff(found), 0.8, atol=FEW_FLOAT32_TERMS)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (Perturbation(noise=(3.0, 25.0)), "perturbation.noise"),
        (Perturbation(volume=(0.5, 2.0)), "perturbation.volume"),
    ],
)
def test_what_needs_a_recording_says_so_by_name(stored, change, named):
    with pytest.raises(DataError, match=f"'one' comes as features, and {named}"):
        utterance_features(stored[0], FeatureConfig(kind="archive", num_columns=13), change)


def test_the_cache_holds_features_for_any_context(tmp_path):
    path = tmp_path / "one.wav"
    soundfile.write(path, noise(4000) / 10, 8000)
    one = Utterance("one", "anna", ("yes",), str(path))
    plain = FeatureConfig(sample_rate=8000, num_mel_bins=20)
    cache = tmp_path / "cache"
    cache.mkdir()
    (first,) = load_chunk((one,), plain, Perturbation(), cache)
    (second,) = load_chunk((one,), dataclasses.replace(plain, deltas=1), Perturbation(), cache)
    assert len(list(cache.iterdir())) == 1
    np.testing.assert_array_equal(second, add_context(first, 1))


def test_bands_are_masked_and_warped_alike_in_features_and_their_deltas():
    features = np.tile(noise(30, 6), 3)
    one = Example("one", "anna", ("yes",), features)
    config = AugmentConfig(frequency_masks=2, frequency_mask_bins=3, frequency_warp=0.1, block_columns=6)
    found = augment(one, config, 0).features
    assert not np.array_equal(found, features)
    np.testing.assert_array_equal(found[:, :6], found[:, 6:12])
    np.testing.assert_array_equal(found[:, :6], found[:, 12:])
    with pytest.raises(ConfigError, match=r"augment.block_columns is 5, and features have 18 columns"):
        augment(one, dataclasses.replace(config, block_columns=5), 0)


def test_statistics_of_a_window_are_those_of_the_frames_around():
    features = noise(50, 3)
    cmvn = Cmvn.estimate(CmvnConfig("window", window=11), [])
    sliding = SlidingCmvn(cmvn.rule, 11)
    expected = np.concatenate([sliding.accept(features), sliding.finish()])
    np.testing.assert_array_equal(cmvn.apply(features, "anyone"), expected)
    assert Cmvn.from_state(cmvn.config, cmvn.state()).apply(features, "") is not None
    centre = features[20 - 5 : 20 + 6]
    np.testing.assert_allclose(
        expected[20], (features[20] - centre.mean(axis=0)) / centre.std(axis=0), atol=FEW_FLOAT32_TERMS
    )


@pytest.mark.parametrize("config", [FeatureConfig(), CmvnConfig(), AugmentConfig()])
def test_options_added_later_leave_digests_of_older_folders_as_they_are(config):
    added = {one.name for one in dataclasses.fields(config) if "neutral" in one.metadata}
    assert added
    assert to_compare(config) == {name: value for name, value in to_dict(config).items() if name not in added}
    assert added.isdisjoint(to_compare(config))
