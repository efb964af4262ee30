"""Frames that utterances will have are known beforehand, and are those of their features."""

from dataclasses import replace

import kaldi_native_io
import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from fsachain.data import DataDir, FeatureConfig, Perturbation
from fsachain.data.features import UNKNOWN, compute_features, frame_counts, num_frames_of, utterance_features

COPIES = (Perturbation(), Perturbation(speed=0.9), Perturbation(speed=1.1, volume=(0.5, 2.0)))


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(0)
    for name, size in (("a", 8123), ("b", 4000), ("c", 1)):
        soundfile.write(tmp_path / f"{name}.wav", 0.1 * rng.normal(size=size), 8000)
    (tmp_path / "wav.scp").write_text(f"a a.wav\nb b.wav\nc c.wav\nd cat {tmp_path / 'a.wav'} |\n")
    (tmp_path / "text").write_text("a one\nb one\nc one\nd one\n")
    return DataDir.read(tmp_path, allow_commands=True)


@given(
    st.integers(0, 3000),
    st.sampled_from([8000, 11025, 16000]),
    st.booleans(),
    st.sampled_from([(25.0, 10.0), (20.0, 12.5), (21.7, 7.3)]),
)
def test_frames_of_so_many_samples_are_those_that_are_computed(size, rate, snip, window):
    config = FeatureConfig(
        sample_rate=rate, snip_edges=snip, frame_length_ms=window[0], frame_shift_ms=window[1], num_mel_bins=8
    )
    samples = np.random.default_rng(size).normal(size=size).astype(np.float32)
    assert len(compute_features(samples, config)) == num_frames_of(size, config)


def test_counts_are_those_of_the_features_at_every_speed(data):
    config = FeatureConfig(num_mel_bins=8)
    counts, faults = frame_counts(data.utterances, config, COPIES, num_workers=2)
    assert faults == []
    for copy, found in zip(COPIES, counts.tolist(), strict=True):
        assert found == [len(utterance_features(one, config, copy)) for one in data]


def test_a_segment_is_counted_without_opening_its_recording(data):
    cut = replace(data.utterances[0], audio="/nowhere.wav", start=0.25, end=0.75)
    counts, faults = frame_counts([cut], FeatureConfig(sample_rate=8000))
    assert (counts.tolist(), faults) == ([[50]], [])


def test_what_cannot_be_counted_is_named_and_the_others_are_counted(data, tmp_path):
    first, second = data.utterances[:2]
    soundfile.write(tmp_path / "fast.wav", np.zeros(100), 16000)
    broken = [
        replace(first, id="gone", audio="/nowhere.wav"),
        replace(first, id="fast", audio=str(tmp_path / "fast.wav")),
        replace(first, id="mute", audio=None),
    ]
    counts, faults = frame_counts([*broken, second], FeatureConfig(sample_rate=8000))
    assert counts.tolist() == [[UNKNOWN, UNKNOWN, UNKNOWN, 50]]
    assert [(fault.id, fault.kind) for fault in faults] == [
        ("gone", "missing file"),
        ("fast", "sampling rate"),
        ("mute", "no recording"),
    ]


def test_rows_of_an_archive_are_counted_by_their_headers(tmp_path):
    rng = np.random.default_rng(0)
    sizes = {"a": 7, "b": 12, "c": 1}
    where = f"ark,scp:{tmp_path / 'feats.ark'},{tmp_path / 'feats.scp'}"
    with kaldi_native_io.CompressedMatrixWriter(where) as writer:
        for name, size in sizes.items():
            matrix = rng.normal(size=(size, 4)).astype(np.float32)
            writer.write(name, matrix, kaldi_native_io.CompressionMethod.kAutomaticMethod)
    (tmp_path / "text").write_text("a one\nb one\nc one\n")
    data = DataDir.read(tmp_path)
    config = FeatureConfig(kind="archive", num_columns=4)
    assert frame_counts(data.utterances, config)[0].tolist() == [[7, 12, 1]]
    part = replace(data.utterances[1], feats=f"{data.utterances[1].feats}[2:5]")
    assert frame_counts([part], config)[0].tolist() == [[4]]
