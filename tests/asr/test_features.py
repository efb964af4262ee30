"""Features against the formulas, normalisation, and the cache on disk."""

import multiprocessing
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import soundfile
import tolerances
from refusals import refuses

from fsachain.asr.data.audio import Perturbation, change_speed
from fsachain.asr.data.augment import AugmentConfig, augment, augment_all, shift_frames, warp_frequencies
from fsachain.asr.data.cmvn import Cmvn, CmvnConfig
from fsachain.asr.data.dataset import Example, load_examples
from fsachain.asr.data.features import FeatureConfig, compute_features
from fsachain.asr.data.kaldi_dir import DataDir, Utterance
from fsachain.errors import ConfigError, DataError, ShapeError


def noise(seconds, rate, seed=1):
    return (0.1 * np.random.default_rng(seed).standard_normal(round(seconds * rate))).astype(np.float32)


def kaldi_fbank_frame(samples, first, config):
    """Log mel energies of one frame from their definition, float64; `first` is the frame's first sample."""
    length = round(config.frame_length_ms * config.sample_rate / 1000)
    frame = samples[first : first + length].astype(np.float64) * 32768.0
    frame -= frame.mean()
    frame -= 0.97 * np.concatenate([frame[:1], frame[:-1]])
    frame *= (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / (length - 1))) ** 0.85
    size = 2 ** int(np.ceil(np.log2(length)))
    power = np.abs(np.fft.rfft(frame, size)) ** 2
    nyquist = config.sample_rate / 2
    high = config.high_freq if config.high_freq > 0 else nyquist + config.high_freq

    def mel(hertz):
        return 1127.0 * np.log1p(np.asarray(hertz) / 700.0)

    edges = np.linspace(mel(config.low_freq), mel(high), config.num_mel_bins + 2)
    bins = mel(np.arange(size // 2) * config.sample_rate / size)
    rising = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    return np.log(np.maximum(np.minimum(rising, falling), 0.0) @ power[: size // 2])


@pytest.mark.parametrize(
    "config",
    [FeatureConfig(sample_rate=8000, num_mel_bins=40), FeatureConfig(sample_rate=16000, num_mel_bins=80, high_freq=-400.0)],
)  # fmt: skip
def test_fbank_is_the_log_of_mel_filtered_power(config):
    """Frame t of `snip_edges` off is centred on sample (t + 1/2) * shift; float32 FFT against float64."""
    samples = noise(0.5, config.sample_rate)
    features = compute_features(samples, config)
    shift, length = config.sample_rate // 100, config.sample_rate // 40
    for t in (5, 20):
        expected = kaldi_fbank_frame(samples, t * shift + shift // 2 - length // 2, config)
        np.testing.assert_allclose(features[t], expected, atol=tolerances.FBANK)


def test_mfcc_keeps_the_asked_number_of_coefficients():
    config = FeatureConfig(kind="mfcc", sample_rate=8000, num_mel_bins=40, num_ceps=13)
    assert compute_features(noise(1, 8000), config).shape == (100, 13)


def test_sizes_are_those_of_most_recordings(tmp_path):
    """Also where the first ones are of another rate or cannot be read; what is given stays."""

    def recordings(*rates):
        for number, rate in enumerate(rates):
            soundfile.write(tmp_path / f"{number}.wav", np.zeros(rate // 10), rate)
        return [Utterance("u", "s", (), str(tmp_path / f"{number}.wav")) for number in range(-1, len(rates))]

    found = FeatureConfig().fitted(recordings(8000, 16000, 16000))
    assert (found.sample_rate, found.num_mel_bins) == (16000, 80)
    found = FeatureConfig().fitted(recordings(8000, 8000, 16000))
    assert (found.sample_rate, found.num_mel_bins) == (8000, 40)
    assert FeatureConfig(num_mel_bins=23).fitted(recordings(44100)).num_mel_bins == 23
    assert FeatureConfig().fitted(recordings()) == FeatureConfig()
    refuses(ConfigError, "sample_rate is 0", compute_features, noise(1, 8000), FeatureConfig())


@pytest.mark.parametrize(
    ("bins", "milliseconds", "low", "high"),
    [
        (40, 25.0, 20.0, 0.0),
        (40, 5.0, 20.0, 0.0),
        (80, 25.0, 300.0, 3400.0),
        (80, 12.0, 0.0, -400.0),
        (200, 25.0, 20.0, 0.0),
    ],
)
def test_filters_that_hear_nothing_are_told_and_counted(bins, milliseconds, low, high):
    options = {"frame_length_ms": milliseconds, "low_freq": low, "high_freq": high}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        config = FeatureConfig(sample_rate=8000, num_mel_bins=bins, **options)
    deaf = np.count_nonzero(np.ptp(compute_features(noise(1, 8000), config), axis=0) == 0.0)
    expected = [f"num_mel_bins is {bins}, {deaf} of which lie between two lines"] if deaf else []
    assert [str(one.message)[: len(text)] for one, text in zip(told, expected, strict=True)] == expected


@pytest.mark.parametrize(
    "edges", [{"high_freq": 7600.0}, {"low_freq": 4000.0}, {"high_freq": -3990.0}, {"low_freq": -1.0}]
)
def test_filters_lie_within_half_the_sample_rate(edges):
    told = r"expected 0 <= low_freq < high_freq <= 4000, half the sample rate"
    refuses(ConfigError, told, FeatureConfig, sample_rate=8000, num_mel_bins=40, **edges)
    refuses(ConfigError, told, replace, FeatureConfig(**edges), sample_rate=8000)


def test_a_shift_of_less_than_a_sample_is_refused():
    """Seconds in the place of milliseconds: the features would never come to an end."""
    told = r"frame_shift_ms is 0\.01; expected a sample of 8000 Hz or more"
    refuses(ConfigError, told, FeatureConfig, sample_rate=8000, frame_shift_ms=0.01)


@pytest.mark.parametrize("speed", [0.9, 1.1])
def test_speed_changes_length_and_pitch_by_its_factor(speed):
    tone = np.sin(2 * np.pi * 500 * np.arange(8000) / 8000).astype(np.float32)
    changed = change_speed(tone, speed)
    assert len(changed) == pytest.approx(8000 / speed, abs=tolerances.SPEED_SAMPLES)
    peak = np.argmax(np.abs(np.fft.rfft(changed * np.hanning(len(changed))))) * 8000 / len(changed)
    assert peak == pytest.approx(500 * speed, abs=tolerances.SPEED_HERTZ)


def test_volume_is_drawn_once_per_utterance_within_its_range():
    samples = noise(0.1, 8000)
    perturbation = Perturbation(volume=(0.5, 2.0), seed=3)
    gains = np.stack([perturbation.apply(samples, f"u{i}") / samples for i in range(50)])
    once = gains[:, :1].repeat(len(samples), axis=1)
    np.testing.assert_allclose(gains, once, rtol=tolerances.FEW_FLOAT32_TERMS)
    gains = gains[:, 0]
    assert 0.5 <= min(gains) < 0.7 and 1.5 < max(gains) <= 2.0
    np.testing.assert_array_equal(perturbation.apply(samples, "u7"), perturbation.apply(samples, "u7"))


def test_noise_has_the_ratio_that_is_drawn_and_a_colour_of_its_own():
    samples = noise(1.0, 8000)
    draws = [Perturbation(noise=(10.0, 20.0), seed=3), Perturbation(noise=(10.0, 20.0))]
    ratios, slopes = [], []
    for added in (draws[0].apply(samples, f"u{i}") - samples for i in range(50)):
        ratios.append(10 * np.log10(np.mean(samples**2) / np.mean(added**2)))
        power = np.abs(np.fft.rfft(added)) ** 2
        octaves = [np.log2(power[low : 2 * low].mean()) for low in (125, 250, 500, 1000, 2000)]
        slopes.append(np.polyfit(range(5), octaves, 1)[0] * 10 * np.log10(2))
    assert 10 - tolerances.NOISE_DECIBELS < min(ratios) < 12
    assert 18 < max(ratios) < 20 + tolerances.NOISE_DECIBELS
    assert -7 < min(slopes) < -4 and 4 < max(slopes) < 7
    first, same, other = (one.apply(samples, "u7") for one in (*draws[:1] * 2, draws[1]))
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(first, other)
    assert draws[0].prefix == "noisy-" and len(draws[0].apply(samples[:0], "none")) == 0
    refuses(ConfigError, r"noise is \(5\.0,\); expected a lowest and a highest", Perturbation, noise=(5.0,))


# Normalisation


def matrices():
    rng = np.random.default_rng(2)
    return [(f"s{i % 2}", rng.normal(5 * i, 1 + i, (30 + i, 4)).astype(np.float32)) for i in range(4)]


@pytest.mark.parametrize("scope", ["global", "speaker", "utterance"])
def test_normalised_features_have_mean_zero_and_variance_one_over_their_scope(scope):
    data = matrices()
    cmvn = Cmvn.estimate(CmvnConfig(scope), data)
    normalised = [(speaker, cmvn.apply(features, speaker)) for speaker, features in data]
    groups = {}
    for i, (speaker, features) in enumerate(normalised):
        groups.setdefault({"global": 0, "speaker": speaker, "utterance": i}[scope], []).append(features)
    for group in groups.values():
        frames = np.concatenate(group)
        np.testing.assert_allclose(frames.mean(axis=0), 0.0, atol=tolerances.NORMALISED_MEAN)
        np.testing.assert_allclose(frames.var(axis=0), 1.0, atol=tolerances.NORMALISED_VARIANCE)


def test_mean_normalisation_keeps_the_variance_and_constant_features_stay_finite():
    speaker, features = matrices()[1]
    normalised = Cmvn(CmvnConfig("utterance", "mean")).apply(features, speaker)
    np.testing.assert_allclose(normalised.mean(axis=0), 0.0, atol=tolerances.NORMALISED_MEAN)
    variance = features.var(axis=0)
    np.testing.assert_allclose(normalised.var(axis=0), variance, rtol=tolerances.NORMALISED_VARIANCE)
    assert np.isfinite(Cmvn(CmvnConfig("utterance")).apply(np.full((10, 4), 7.0, np.float32), "s")).all()


def test_saved_global_statistics_normalise_identically():
    data = matrices()
    config = CmvnConfig("global")
    cmvn = Cmvn.estimate(config, data)
    restored = Cmvn.from_state(config, {name: array.tolist() for name, array in cmvn.state().items()})
    np.testing.assert_array_equal(restored.apply(data[0][1], "x"), cmvn.apply(data[0][1], "y"))


def test_cmvn_errors_name_what_is_wrong():
    cmvn = Cmvn.estimate(CmvnConfig("speaker"), matrices())
    refuses(DataError, "speaker 'stranger'", cmvn.apply, matrices()[0][1], "stranger")
    refuses(ShapeError, "5 columns, the cmvn statistics 4", cmvn.apply, np.zeros((3, 5), np.float32), "s0")
    nothing = np.zeros((0, 4), np.float32)
    for scope in ("none", "utterance"):
        plain = Cmvn.estimate(CmvnConfig(scope), [("s", nothing)])
        with np.errstate(all="raise"):
            assert not plain.statistics and plain.apply(nothing, "s").shape == nothing.shape
    refuses(ConfigError, "'word'", CmvnConfig, "word")
    refuses(ConfigError, "needs statistics under the name 'global'", Cmvn, CmvnConfig("global"))
    refuses(DataError, "at least one frame", Cmvn.estimate, CmvnConfig("global"), [])
    refuses(DataError, "lacks squares, total", Cmvn.from_state, CmvnConfig("global"), {"count": [1.0]})


# The cache


@pytest.fixture
def utterances(tmp_path, monkeypatch):
    """Five utterances in chunks of two."""
    monkeypatch.setattr("fsachain.asr.data.features.CHUNK", 2)
    made = []
    for i in range(5):
        path = tmp_path / f"{i}.wav"
        soundfile.write(path, noise(0.2 + 0.05 * i, 8000, seed=i), 8000)
        made.append(Utterance(f"u{i}", "s", ("one",), str(path)))
    return made


def load_features(utterances, config, **how):
    return [example.features for example in load_examples(DataDir(utterances), config, **how)]


def assert_equal(left, right):
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(a, b)


def test_cached_features_equal_computed_ones_and_are_not_computed_again(utterances, tmp_path, monkeypatch):
    folder, plain = tmp_path / "cache", load_features(utterances, FeatureConfig())
    assert_equal(load_features(utterances, FeatureConfig(), cache_dir=folder), plain)
    again = "fsachain.asr.data.features.utterance_features"
    monkeypatch.setattr(again, lambda *unused: pytest.fail("computed although cached"))
    assert_equal(load_features(utterances, FeatureConfig(), cache_dir=folder, num_workers=2), plain)
    assert sorted(path.suffix for path in folder.iterdir()) == [".npz"] * 3


def test_threads_and_processes_give_the_same_features_and_share_a_cache(utterances, tmp_path):
    folder, plain = tmp_path / "cache", load_features(utterances, FeatureConfig())
    assert_equal(load_features(utterances, FeatureConfig(), num_workers=3), plain)
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as executor:
        made = load_features(utterances, FeatureConfig(), cache_dir=folder, executor=executor)
    assert_equal(made, plain)
    assert_equal(load_features(utterances, FeatureConfig(), cache_dir=folder), plain)


def test_another_configuration_speed_or_recording_is_another_entry(utterances, tmp_path):
    def load(config=None, **options):
        return load_features(utterances, config or FeatureConfig(), cache_dir=tmp_path / "cache", **options)

    before = load()
    assert load(FeatureConfig(num_mel_bins=23))[0].shape[1] == 23
    assert len(load(perturbation=Perturbation(0.9))[0]) > len(before[0])
    soundfile.write(utterances[0].audio, noise(0.6, 8000), 8000)
    assert len(load()[0]) == 60


def test_damaged_cache_file_is_made_again(utterances, tmp_path):
    folder = tmp_path / "cache"
    plain = load_features(utterances, FeatureConfig(), cache_dir=folder)
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes()[:100])
    assert_equal(load_features(utterances, FeatureConfig(), cache_dir=folder), plain)


def test_failure_leaves_no_half_written_file(utterances, tmp_path):
    folder, gone = tmp_path / "cache", replace(utterances[3], audio=str(tmp_path / "gone.wav"))
    broken = [*utterances[:3], gone, utterances[4]]
    refuses(
        DataError, r"'u3': cannot read .*gone\.wav", load_features, broken, FeatureConfig(), cache_dir=folder
    )
    assert len(load_features(utterances, FeatureConfig(), cache_dir=folder)) == 5
    assert not list(folder.glob("*.tmp"))


# Augmentation of features: repeatable, bounded, and what it says.


ALL = AugmentConfig(
    time_masks=2, time_mask_frames=20, frequency_masks=2, frequency_mask_bins=8, frequency_warp=0.1,
    frame_shift=2, seed=5,
)  # fmt: skip


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


def test_another_seed_epoch_or_utterance_draws_anew():
    first = augment(example(), ALL, 0).features
    for config, epoch, name in ((ALL, 1, "u1"), (ALL, 0, "u2"), (replace(ALL, seed=6), 0, "u1")):
        assert not np.array_equal(augment(example(name=name), config, epoch).features, first)


def test_the_original_is_left_alone_and_shape_stays():
    original = example()
    before = original.features.copy()
    changed = augment(original, ALL, 0)
    np.testing.assert_array_equal(original.features, before)
    assert (changed.features.shape, changed.features.dtype) == (before.shape, np.float32)
    assert changed.id == original.id
    assert augment(original, AugmentConfig(seed=9), 4) is original  # there is nothing to do


def test_masks_hold_the_mean_and_stay_within_their_sizes():
    original = example(200)
    mean = original.features.mean(axis=0)
    widest_time = widest_band = 0
    for epoch in range(60):
        time = augment(original, AugmentConfig(time_masks=1, time_mask_frames=20), epoch).features
        frames = (time == mean).all(axis=1)
        np.testing.assert_array_equal(time[~frames], original.features[~frames])
        widest_time = max(widest_time, int(frames.sum()))
        band = augment(original, AugmentConfig(frequency_masks=1, frequency_mask_bins=8), epoch).features
        bins = (band == mean).all(axis=0)
        np.testing.assert_array_equal(band[:, ~bins], original.features[:, ~bins])
        widest_band = max(widest_band, int(bins.sum()))
    assert (widest_time, widest_band) == (20, 8)


def test_time_masks_spare_short_utterances():
    original = example(20)
    config = AugmentConfig(time_masks=1, time_mask_frames=50, time_mask_fraction=0.2)
    changed = [augment(original, config, epoch).features for epoch in range(40)]
    assert max((features != original.features).any(axis=1).sum() for features in changed) == 4


def test_tiny_utterances_survive():
    assert [augment(example(count), ALL, 0).num_frames for count in range(3)] == [0, 1, 2]


def test_shift_moves_frames_and_repeats_the_edge():
    features = np.arange(5, dtype=np.float32)[:, None]
    assert shift_frames(features, 2)[:, 0].tolist() == [0, 0, 0, 1, 2]
    assert shift_frames(features, -2)[:, 0].tolist() == [2, 3, 4, 4, 4]
    assert shift_frames(features, 9)[:, 0].tolist() == [0] * 5


def test_frame_shifts_reach_every_offset():
    one, config = (
        Example("u", "s", (), np.arange(50, dtype=np.float32)[:, None]),
        AugmentConfig(frame_shift=1),
    )
    assert {float(augment(one, config, epoch).features[25, 0]) for epoch in range(40)} == {24.0, 25.0, 26.0}


def test_warp_moves_a_peak_by_its_factor():
    bins = np.arange(40)
    peak = np.exp(-0.5 * ((bins - 20) / 2.0) ** 2).astype(np.float32)[None]
    assert warp_frequencies(peak, 1.2)[0].argmax() == 24
    assert warp_frequencies(peak, 0.8)[0].argmax() == 16
    np.testing.assert_array_equal(warp_frequencies(peak, 1.0), peak)


def test_features_of_lhotse_have_other_edges_and_another_scale_of_samples():
    extractors = pytest.importorskip("lhotse.features.kaldi.extractors")
    samples = np.random.default_rng(0).uniform(-0.1, 0.1, 16_000).astype(np.float32)
    theirs = np.asarray(extractors.Fbank(extractors.FbankConfig(num_filters=80)).extract(samples, 16_000))
    ours = compute_features(samples, FeatureConfig(sample_rate=16_000, num_mel_bins=80, high_freq=-400.0))
    np.testing.assert_allclose(ours - 2 * np.log(32768.0), theirs, rtol=0, atol=tolerances.FBANK)
