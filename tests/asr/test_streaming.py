"""Chunk by chunk equals at once: features, their normalisation, resampling; networks: test_networks.py."""

import itertools
import os

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st
from tolerances import RESAMPLED

from fsachain.asr.data.audio import BLOCK_SECONDS, Recording, Resampler
from fsachain.asr.data.features import FeatureConfig, FeatureStream, compute_features
from fsachain.errors import ConfigError, DataError

CHUNKS = st.lists(st.integers(0, 40), min_size=1, max_size=8)


@pytest.mark.parametrize("kind", ["fbank", "mfcc"])
@pytest.mark.parametrize("snip_edges", [False, True])
def test_features_of_blocks_are_those_of_the_whole_signal(kind, snip_edges):
    samples = (0.1 * np.random.default_rng(0).normal(size=9001)).astype(np.float32)
    config = FeatureConfig(kind=kind, sample_rate=8000, num_mel_bins=40, snip_edges=snip_edges)
    stream = FeatureStream(config)
    cuts = [0, 0, 50, 300, 1111, 9001]
    parts = [stream.accept(samples[a:b]) for a, b in itertools.pairwise(cuts)]
    found = np.concatenate([*parts, stream.finish()])
    np.testing.assert_array_equal(found, compute_features(samples, config))


@given(
    rates=st.sampled_from(
        [(44100, 8000), (16000, 8000), (8000, 16000), (11025, 16000), (8000, 8000), (48000, 44100)]
    ),
    lengths=st.lists(st.integers(0, 3000), min_size=1, max_size=6),
)
def test_resampling_in_blocks_is_that_of_the_whole(rates, lengths):
    from scipy.signal import resample_poly

    samples = np.random.default_rng(1).uniform(-1, 1, sum(lengths)).astype(np.float32)
    resampler = Resampler(*rates)
    parts = [resampler.accept(part) for part in np.split(samples, np.cumsum(lengths)[:-1])]
    found = np.concatenate([*parts, resampler.finish()])
    expected = resample_poly(samples, rates[1], rates[0]) if len(samples) else samples
    np.testing.assert_allclose(found, expected, atol=RESAMPLED)


def test_a_tone_keeps_its_pitch_and_level_whatever_the_rate_and_channels(tmp_path):
    seconds = 1.5 * BLOCK_SECONDS
    for rate, ending in ((44100, "wav"), (16000, "flac"), (8000, "wav"), (48000, "ogg")):
        times = np.arange(int(seconds * rate)) / rate
        tone = 0.5 * np.sin(2 * np.pi * 440 * times)
        path = tmp_path / f"tone{rate}.{ending}"
        with soundfile.SoundFile(path, "w", rate, 2) as file:
            for part in np.array_split(np.stack([1.5 * tone, 0.5 * tone], axis=1), 10):
                file.write(part)
        recording = Recording(path, 8000)
        assert recording.native_rate == rate
        assert recording.seconds == pytest.approx(seconds)
        blocks = list(recording.blocks())
        assert max(map(len, blocks)) <= 8000 * (BLOCK_SECONDS + 1)
        samples = np.concatenate(blocks)
        assert abs(len(samples) - seconds * 8000) <= 1
        expected = 0.5 * np.sin(2 * np.pi * 440 * np.arange(len(samples)) / 8000)
        inner = slice(800, -800)
        level = 0.02 if ending == "ogg" else 1e-3
        assert np.abs(samples - expected)[inner].max() < level


def test_what_is_no_recording_is_named(tmp_path):
    with pytest.raises(DataError, match=r"absent\.wav': no such file"):
        Recording(tmp_path / "absent.wav", 8000)
    with pytest.raises(DataError, match="not a regular file"):
        Recording(tmp_path, 8000)
    (tmp_path / "text.wav").write_text("words")
    with pytest.raises(DataError, match=r"text\.wav': cannot be read"):
        Recording(tmp_path / "text.wav", 8000)
    latin = tmp_path / os.fsdecode(b"caf\xe9.wav")  # a name that is no UTF-8
    latin.write_text("words")
    with pytest.raises(DataError, match=r"caf\\udce9\.wav': cannot be read"):
        Recording(latin, 8000)
    soundfile.write(tmp_path / "nan.wav", np.array([0.0, np.nan], np.float32), 8000, subtype="FLOAT")
    with pytest.raises(DataError, match="NaN or infinite"):
        list(Recording(tmp_path / "nan.wav", 8000).blocks())
    soundfile.write(tmp_path / "fast.wav", np.zeros(8), 2**30)
    with pytest.raises(DataError, match=r"1073741824 Hz; expected 1000 to 768000"):
        Recording(tmp_path / "fast.wav", 8000)
    with pytest.raises(
        ConfigError, match=r"sample_rate is 0; .* trained on features from feats\.scp takes no"
    ):
        Recording(tmp_path / "nan.wav", 0)
