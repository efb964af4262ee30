"""Silence, digital or quiet, in front of speech, behind it and inside: what counts, and what networks see of it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_use_commands import model as spoken_model  # noqa: F401
from tolerances import NETWORK_FLOAT32, NORMALISED_VARIANCE, PADDED_FEATURES, PADDED_STATISTICS

from fsachain.asr.cli.model import AcousticModel
from fsachain.asr.data import AugmentConfig, Example, FeatureConfig
from fsachain.asr.data.augment import augment
from fsachain.asr.data.cmvn import QUIET, Cmvn, CmvnConfig, Rule, SlidingCmvn, Statistics
from fsachain.asr.data.features import compute_features
from fsachain.asr.data.loudness import NO_SIGNAL, REACH, has_speech, without_signal
from fsachain.asr.nn.export import ExportedModel
from fsachain.asr.train.checkpoint import load_tensors, save_tensors

RATE = 8000
KINDS = {
    kind: FeatureConfig(kind=kind, sample_rate=RATE, num_mel_bins=23, num_ceps=13)
    for kind in ("fbank", "mfcc")
}
EVERY = {
    **KINDS,
    "fbank with deltas": replace(KINDS["fbank"], deltas=1),
    "mfcc, spliced": replace(KINDS["mfcc"], splice=(1, 1)),
}
PLACES = ("before", "behind", "inside")


def speech(seconds=2.0, seed=0):
    """Bursts of 100 ms in a background that lies 50 dB below them."""
    rng = np.random.default_rng(seed)
    count = int(seconds * RATE)
    loud = np.repeat(rng.random(count // (RATE // 10)) < 0.6, RATE // 10)
    loud[: RATE // 10] = True
    return (rng.normal(size=count) * np.where(loud, 0.1, 0.1 * 10 ** (-50 / 20))).astype(np.float32)


def with_silence(samples, place, silence):
    at = {"before": 0, "behind": len(samples), "inside": len(samples) // 2}[place]
    return np.concatenate([samples[:at], silence.astype(np.float32), samples[at:]])


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS.keys())
def test_zeros_and_constant_samples_have_no_signal_and_the_quietest_16_bit_noise_has_one(config):
    steps = np.random.default_rng(1).integers(-1, 2, RATE) / 32768
    for samples, silent in ((np.zeros(RATE), True), (np.full(RATE, 0.3), True), (steps, False)):
        features = compute_features(samples.astype(np.float32), config)
        assert (without_signal(features, config.loudness) == silent).all()


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS.keys())
def test_of_features_that_nobody_described_frames_of_exact_zeros_are_silence(config):
    features = compute_features(np.concatenate([np.zeros(RATE, np.float32), speech()]), config)
    silent = without_signal(features, None)
    assert silent[: 100 - REACH].all() and not silent[100 + REACH :].any()
    images = np.zeros((9, 5), np.float32)  # blank columns of a picture, for instance
    assert not without_signal(images, None).any()


@pytest.mark.parametrize("config", EVERY.values(), ids=EVERY.keys())
@pytest.mark.parametrize("counts", ["speech", "signal"])
@pytest.mark.parametrize("place", PLACES)
def test_statistics_with_zeros_are_those_without(config, counts, place):
    plain = compute_features(speech(), config)
    padded = compute_features(with_silence(speech(), place, np.zeros(3 * RATE)), config)
    has_context = config.deltas or any(config.splice)  # where it comes in, frames of zeros are not all zeros
    for known in (config.loudness,) if has_context else (config.loudness, None):
        rule = Rule("mean-variance", counts, known)
        counted = rule.counted(padded)
        at = {"before": 0, "behind": len(plain), "inside": len(plain) // 2}[place]
        assert not counted[at : at + 300].any()
        # Frames next to the zeros are partly in them, and are left out.
        near = np.zeros(len(plain), dtype=bool)
        near[max(0, at - REACH - 1) : at + REACH + 1] = True
        rest = np.delete(np.arange(len(padded)), np.arange(at, at + 300))
        np.testing.assert_array_equal(counted[rest][~near], rule.counted(plain)[~near])
        expected, found = (Statistics.of(matrix[mask]) for matrix, mask in
                           ((plain, rule.counted(plain)), (padded, counted)))  # fmt: skip
        for one, other in zip(expected.mean_and_scale(), found.mean_and_scale(), strict=True):
            assert np.abs(one - other).max() < PADDED_STATISTICS * np.abs(one).max()


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("place", PLACES)
def test_a_minute_of_quiet_noise_changes_neither_statistics_nor_features_of_speech(config, place):
    noise = np.random.default_rng(3).normal(size=60 * RATE) * 10 ** (-70 / 20)
    plain = compute_features(speech(), config)
    padded = compute_features(with_silence(speech(), place, noise), config)
    rule = Rule("mean-variance", "speech", config.loudness)
    before, after = (rule.statistics(features) for features in (plain, padded))
    assert abs(before.count - after.count) <= 2 * REACH
    counted = rule.counted(plain)
    first, last = before.normalise(plain, rule), after.normalise(padded, rule)
    middle = np.arange(len(plain))
    inside = len(plain) // 2
    moved = middle + {"before": 6000, "behind": 0, "inside": 6000}[place] * (
        (middle >= inside) if place == "inside" else 1
    )
    far = counted & (np.abs(middle - inside) > REACH) & (middle > REACH) & (middle < len(plain) - REACH)
    assert np.abs(first[far] - last[moved[far]]).max() < PADDED_FEATURES
    # Whatever is quiet has the same level for the network.
    mean, scale = after.mean_and_scale()
    lowest = config.loudness.levels(mean - QUIET * config.loudness.tells_level / scale)
    assert config.loudness.levels(last / scale + mean).min() == pytest.approx(lowest, abs=NORMALISED_VARIANCE)


@given(
    blocks=st.lists(st.integers(0, 40), min_size=1, max_size=6),
    window=st.integers(1, 60),
    zeros=st.tuples(st.integers(0, 200), st.integers(0, 70)),
    counts=st.sampled_from(["speech", "signal"]),
    known=st.booleans(),
)
def test_sliding_cmvn_is_cmvn_by_utterance_of_the_window_around_each_frame(
    blocks, window, zeros, counts, known
):
    config = KINDS["fbank"]
    rng = np.random.default_rng(sum(blocks))
    features = rng.normal(12.0, 3.0, (sum(blocks), 1)) + rng.normal(0.0, 1.0, (sum(blocks), 23))
    features = features.astype(np.float32)
    features[zeros[0] : zeros[0] + zeros[1]] = np.log(np.finfo(np.float32).eps)
    rule = Rule("mean-variance", counts, config.loudness if known else None)
    sliding = SlidingCmvn(rule, window)
    parts = [sliding.accept(part) for part in np.split(features, np.cumsum(blocks)[:-1])]
    found = np.concatenate([*parts, sliding.finish()])
    assert found.shape == features.shape
    silent = without_signal(features, rule.loudness)
    whole = np.array([not silent[max(0, t - REACH) : t + REACH + 1].any() for t in range(len(features))])
    for t in range(len(features)):
        start = max(0, min(t - window // 2, len(features) - window))
        around = slice(start, start + window)
        counted = whole[around]
        if counts == "speech" and known:
            levels = features[around].mean(axis=1)
            reached = np.sort(levels[counted])[-10:][:1]
            counted = counted & (levels >= (np.floor(4.0 * reached) / 4.0 - 2.0 * np.log(10.0)).sum())
        expected = Statistics.of(features[around][counted]).normalise(features[t : t + 1], rule)[0]
        np.testing.assert_allclose(found[t], expected, rtol=NORMALISED_VARIANCE, atol=NORMALISED_VARIANCE)


@pytest.mark.parametrize("scope", ["global", "speaker", "utterance"])
@pytest.mark.parametrize("moments", ["mean", "mean-variance"])
@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS.keys())
def test_networks_see_the_same_silence_for_zeros_of_any_length(config, moments, scope):
    training = [("s", compute_features(speech(seed=seed), config)) for seed in range(3)]
    cmvn = Cmvn.estimate(CmvnConfig(scope, moments, counts="speech"), training, config.loudness)
    seen = []
    for seconds in (0.5, 30.0):
        samples = np.concatenate([np.zeros(int(seconds * RATE), np.float32), speech()])
        seen.append(cmvn.apply(compute_features(samples, config), "s")[10])
    np.testing.assert_allclose(*seen, atol=NORMALISED_VARIANCE)
    level = config.loudness.tells_level > 0
    assert (seen[0][level] < -1.0).all()
    np.testing.assert_allclose(seen[0][~level], 0.0, atol=NORMALISED_VARIANCE)
    if moments == "mean-variance":
        np.testing.assert_allclose(seen[0][level], -QUIET, atol=NORMALISED_VARIANCE)


@pytest.mark.parametrize("moments", ["mean", "mean-variance"])
@pytest.mark.parametrize("known", [True, False])
def test_a_recording_of_zeros_is_silence_and_not_average_speech(moments, known):
    config = KINDS["fbank"]
    zeros = compute_features(np.zeros(RATE, np.float32), config)
    cmvn = Cmvn(CmvnConfig("utterance", moments), loudness=config.loudness if known else None)
    found = cmvn.apply(zeros, "s")
    assert (found <= -QUIET).all() and np.isfinite(found).all()
    sliding = SlidingCmvn(cmvn.rule, 30)
    np.testing.assert_array_equal(np.concatenate([sliding.accept(zeros), sliding.finish()]), found)


class Through(torch.nn.Module):
    """A network that returns what it gets."""

    subsampling = 1

    def scores(self, features, lengths):
        return features


@pytest.mark.parametrize("scope", ["global", "utterance"])
@pytest.mark.parametrize("moments", ["mean", "mean-variance"])
@pytest.mark.parametrize("counts", ["speech", "signal"])
@pytest.mark.parametrize("config", [*KINDS.values(), None], ids=[*KINDS, "unknown"])
def test_exported_models_normalise_zeros_and_quiet_frames_as_cmvn_does(scope, moments, counts, config):
    known = None if config is None else config.loudness
    computed = config or KINDS["fbank"]
    training = [("s", compute_features(speech(seed=seed), computed)) for seed in range(3)]
    cmvn = Cmvn.estimate(CmvnConfig(scope, moments, counts=counts), training, known)
    module = ExportedModel(Through().eval(), cmvn).eval()
    samples = [
        speech(),
        np.zeros(RATE, np.float32),
        with_silence(speech(), "inside", np.zeros(RATE)),
        speech(0.1)[:400],
    ]
    matrices = [compute_features(one, computed) for one in samples]
    lengths = torch.tensor([len(one) for one in matrices])
    batch = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(one) for one in matrices], batch_first=True)
    batch = torch.nn.functional.pad(batch, (0, 0, 0, 5), value=99.0)
    with torch.inference_mode():
        found, _ = module(batch, lengths)
    for row, matrix in zip(found.numpy(), matrices, strict=True):
        expected = cmvn.apply(matrix, "s")
        np.testing.assert_allclose(row[: len(matrix)], expected, atol=100 * NETWORK_FLOAT32)


def test_global_statistics_of_digital_silence_alone_are_refused():
    config = KINDS["fbank"]
    zeros = compute_features(np.zeros(RATE, np.float32), config)
    with pytest.raises(ValueError, match="one frame with a signal; all are digital silence"):
        Cmvn.estimate(CmvnConfig("global"), [("s", zeros)], config.loudness)
    by_speaker = Cmvn.estimate(CmvnConfig("speaker"), [("s", zeros)], config.loudness)
    assert (by_speaker.apply(zeros, "s") == -QUIET).all()


def test_models_of_earlier_versions_keep_their_statistics_over_all_frames_with_a_signal(
    spoken_model,  # noqa: F811
    tmp_path,
):
    tensors, header = load_tensors(spoken_model)
    del header["experiment"]["cmvn"]["counts"]
    save_tensors(tmp_path / "old.safetensors", tensors, header)
    old = AcousticModel.load(tmp_path / "old.safetensors").cmvn
    assert old.config.counts == "signal" and old.loudness is not None


def test_a_model_whose_global_statistics_hold_zeros_gets_them_as_they_are():
    """Trained by an earlier version on recordings that are half digital silence: its network knows it."""
    config = KINDS["fbank"]
    sound = compute_features(speech(), config)
    zeros = compute_features(np.zeros(2 * RATE, np.float32), config)
    statistics = {"global": Statistics.of(sound) + Statistics.of(zeros)}
    old = Cmvn(CmvnConfig("global", counts="signal"), statistics, config.loudness)
    mean, scale = statistics["global"].mean_and_scale()
    np.testing.assert_array_equal(old.apply(zeros, "s"), (zeros - mean) * scale)


def test_augmentation_puts_silence_in_front_behind_and_into_the_longest_pause_and_changes_nothing_else():
    config = KINDS["fbank"]
    cmvn = Cmvn(CmvnConfig("utterance"), loudness=config.loudness)
    features = cmvn.apply(compute_features(speech(), config), "s")
    example, change = Example("a", "s", ("word",), features), AugmentConfig(silence=20)
    longer, levels = [], config.loudness.levels
    for epoch in range(30):
        changed = augment(example, change, epoch, loudness=config.loudness).features
        np.testing.assert_array_equal(changed, augment(example, change, epoch, 1, config.loudness).features)
        longer.append(len(changed) - len(features))
        own = {row.tobytes() for row in features}
        kept = np.array([row.tobytes() in own for row in changed])
        np.testing.assert_array_equal(changed[kept], features)
        assert (levels(changed[~kept]) < np.median(levels(features))).all()
    assert min(longer) == 0 and 30 < max(longer) <= 60
    assert augment(example, change, 0) is not example
    np.testing.assert_array_equal(augment(example, change, 0).features, features)  # nobody says what is quiet


def test_speech_is_what_lies_within_20_db_of_the_loud_level_whatever_clicks_there_are():
    config = KINDS["fbank"]
    samples = speech()
    features = compute_features(samples, config)
    clicked = samples.copy()
    clicked[[4000, 9000]] = 1.0
    speaking = has_speech(features, config.loudness)
    assert 0.3 < speaking.mean() < 0.8
    other = has_speech(compute_features(clicked, config), config.loudness)
    assert (speaking != other).sum() <= 2 * (2 * REACH + 1)
    assert features.min() > NO_SIGNAL
