"""Examples, batches and the order of an epoch."""

from dataclasses import replace

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given
from hypothesis import strategies as st
from kaldi_native_io import CompressedMatrixWriter, CompressionMethod
from refusals import refuses
from tolerances import NORMALISED_VARIANCE, SPEED_FRAMES

from fsachain.asr.cli.model import normalise_set
from fsachain.asr.data import (
    CmvnConfig,
    DataDir,
    Example,
    FeatureConfig,
    Perturbation,
    collate,
    estimate_cmvn,
    load_examples,
    normalise,
)
from fsachain.asr.data.audio import Recording, count_samples, read_audio
from fsachain.asr.data.features import (
    UNKNOWN,
    compute_features,
    frame_counts,
    num_frames_of,
    utterance_features,
)
from fsachain.asr.data.order import EpochOrder, length_buckets
from fsachain.errors import ConfigError, DataError

LENGTHS = np.random.default_rng(4).integers(20, 600, 203).tolist()


def example(name, num_frames, width=3):
    return Example(name, "s", ("one",), np.full((num_frames, width), num_frames, np.float32))


def test_a_set_that_was_just_loaded_is_normalised_where_it_lies():
    rng = np.random.default_rng(3)
    for scope in ("global", "speaker", "utterance", "none"):
        features = [rng.normal(2, 3, (9, 4)).astype(np.float32) for _ in range(4)]
        examples = [Example(f"u{n}", f"s{n % 2}", ("a",), own) for n, own in enumerate(features)]
        cmvn = estimate_cmvn(examples, CmvnConfig(scope))
        expected = [one.features.copy() for one in normalise(examples, cmvn)]
        found = normalise_set(examples, cmvn)
        assert all(one.features is own for one, own in zip(found, features, strict=True))
        for own, other in zip(features, expected, strict=True):
            np.testing.assert_array_equal(own, other)


def test_batch_pads_with_zeros_and_keeps_order():
    batch = collate([example("a", 2), example("b", 4), example("c", 1)])
    assert batch.ids == ("a", "b", "c")
    assert batch.words == (("one",),) * 3
    assert (batch.lengths.tolist(), batch.lengths.dtype) == ([2, 4, 1], torch.int64)
    assert batch.features.dtype == torch.float32
    expected = torch.tensor([[2.0, 2, 0, 0], [4, 4, 4, 4], [1, 0, 0, 0]])
    assert torch.equal(batch.features, expected[:, :, None].expand(3, 4, 3))


def test_batch_of_nothing_or_of_unequal_widths_is_refused():
    refuses(DataError, "at least one", collate, [])
    unequal = [example("a", 2), example("b", 2, width=5)]
    refuses(DataError, "'b' has 5 features per frame, others 3", collate, unequal)


def test_buckets_keep_padding_small_and_batches_mixed():
    """Random batches of 16 would pad these lengths by 80 %."""
    batches = length_buckets(LENGTHS, batch_size=16, seed=1, epoch=0)
    padded = sum(len(batch) * max(LENGTHS[i] for i in batch) for batch in batches)
    assert padded < 1.2 * sum(LENGTHS)
    longest = [max(LENGTHS[i] for i in batch) for batch in batches]
    assert longest != sorted(longest)


def test_frame_limit_holds_for_padded_batches():
    batches = length_buckets([*LENGTHS, 5000], batch_size=16, seed=1, epoch=0, max_batch_frames=2000)
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max([*LENGTHS, 5000][i] for i in batch) <= 2000
    assert [203] in batches


def test_recorded_speech_becomes_normalised_examples(shared, tmp_path):
    data = DataDir.read(shared / "data" / "digits" / "isolated" / "dev").select(lambda u: u.id < "k")
    calls = []
    progress = {"progress": lambda *call: calls.append(call)}
    examples = load_examples(data, FeatureConfig(), cache_dir=tmp_path, num_workers=2, **progress)
    assert calls == sorted(calls) and {of for _, of in calls} == {len(data)} == {calls[-1][0]}
    assert [e.id for e in examples] == [u.id for u in data]
    assert examples[0].words and examples[0].features.shape[1] == 40
    normalised = normalise(examples, estimate_cmvn(examples, CmvnConfig("global")))
    frames = np.concatenate([e.features for e in normalised])
    np.testing.assert_allclose([frames.mean(axis=0), frames.std(axis=0) - 1.0], 0.0, atol=NORMALISED_VARIANCE)


def test_copies_at_another_speed_have_their_own_ids_and_lengths(shared):
    data = DataDir(DataDir.read(shared / "data" / "digits" / "isolated" / "dev").utterances[::50])
    plain = load_examples(data, FeatureConfig())
    slow = load_examples(data, FeatureConfig(), perturbation=Perturbation(speed=0.9))
    for one, other in zip(plain, slow, strict=True):
        assert (other.id, other.speaker) == (f"sp0.9-{one.id}", f"sp0.9-{one.speaker}")
        assert other.num_frames == pytest.approx(one.num_frames / 0.9, abs=SPEED_FRAMES)


# The order of an epoch: frame buckets, shards, and a number of steps that stays.


def order(**options):
    return EpochOrder(lambda epoch: LENGTHS, **({"batch_size": 16, "seed": 1} | options))


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=60),
    st.integers(1, 9),
    st.none() | st.integers(1, 900),
    st.none() | st.integers(1, 7),
    st.integers(0, 50),
)
def test_every_epoch_has_every_utterance_once_in_the_same_number_of_steps(
    lengths, size, frames, shards, epoch
):
    shard_of = None if shards is None else [position % shards for position in range(len(lengths))]
    options = {"batch_frames": frames, "shard_of": shard_of, "shards_at_once": 2}
    found = EpochOrder(lambda _: lengths, batch_size=size, seed=3, **options)
    buckets = found.buckets(epoch)
    assert len(buckets) == found.num_batches
    assert sorted(position for bucket in buckets for position in bucket) == list(range(len(lengths)))
    assert 1 <= min(map(len, buckets)) <= max(map(len, buckets)) <= size


def test_without_a_frame_limit_the_order_is_that_of_length_buckets():
    for epoch in range(3):
        assert order().buckets(epoch) == length_buckets(LENGTHS, batch_size=16, seed=1, epoch=epoch)


def test_padded_steps_keep_to_the_frame_limit_and_fill_it():
    found = order(batch_size=203, batch_frames=4000)
    for epoch in range(8):
        costs = [len(bucket) * max(LENGTHS[i] for i in bucket) for bucket in found.buckets(epoch)]
        assert max(costs) <= 4000
        assert np.mean(costs) > 0.8 * 4000


def test_neighbouring_steps_come_from_few_shards_and_these_change_from_epoch_to_epoch():
    shard_of = [position // 20 for position in range(203)]
    found = order(shard_of=shard_of, shards_at_once=3)
    seen = []
    for epoch in range(2):
        spans = [{shard_of[i] for i in bucket} for bucket in found.buckets(epoch)]
        groups = []  # shards of the steps so far that overlap
        for span in spans:
            if groups and groups[-1] & span:
                groups[-1] |= span
            else:
                groups.append(set(span))
        assert max(map(len, groups)) == 3
        assert sorted(shard for group in groups for shard in group) == list(range(11))
        seen.append(groups)
    assert seen[0] != seen[1]


def test_lengths_that_change_with_the_epoch_do_not_change_the_number_of_steps():
    rng = np.random.default_rng(0)
    drawn = (np.array(LENGTHS) * rng.uniform(0.9, 1.1, (20, 203))).astype(int).tolist()
    found = EpochOrder(drawn.__getitem__, batch_size=203, seed=1, batch_frames=2000)
    assert {len(found.buckets(epoch)) for epoch in range(20)} == {found.num_batches}


@pytest.mark.parametrize(
    ("make", "option", "value"),
    [
        *[(length_buckets, *wrong) for wrong in (("batch_size", 0), ("max_batch_frames", 0), ("noise", 1.0))],
        *[(EpochOrder, option, 0) for option in ("batch_size", "batch_frames", "shards_at_once")],
    ],
)
def test_an_option_out_of_range_is_refused_by_name(make, option, value):
    given, own = (LENGTHS, {"epoch": 0}) if make is length_buckets else (lambda epoch: LENGTHS, {})
    options = {"batch_size": 4, "seed": 1, **own, option: value}
    refuses(ConfigError, f"{option} is {value}", make, given, **options)


# Frames that utterances will have are known beforehand, and are those of their features.


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
    sizes = {"frame_length_ms": window[0], "frame_shift_ms": window[1], "num_mel_bins": 8}
    config = FeatureConfig(sample_rate=rate, snip_edges=snip, **sizes)
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
    kinds = {"gone": "missing file", "fast": "sampling rate", "mute": "no recording"}
    assert [(fault.id, fault.kind) for fault in faults] == list(kinds.items())


@pytest.mark.parametrize(
    "name, subtype",
    [("x.wav", "GSM610"), ("x.wav", "G721_32"), ("x.wav", "ULAW"), ("x.au", "G723_24"), ("x.ogg", "VORBIS"),
     ("x.mp3", "MPEG_LAYER_III"), ("x.w64", "GSM610"), ("x.caf", "PCM_16")],
)  # fmt: skip
def test_every_recording_that_is_transcribed_is_read_by_data_directories_too(tmp_path, name, subtype):
    samples = 0.1 * np.random.default_rng(0).normal(size=16000)
    soundfile.write(tmp_path / name, samples, 8000, subtype=subtype)
    (tmp_path / "wav.scp").write_text(f"r {name}\n")
    (tmp_path / "segments").write_text("a r 0 -1\nb r 0.5 1.25\nc r 1.5 -1\n")
    (tmp_path / "text").write_text("a yes\nb no\nc no\n")
    whole = np.concatenate(list(Recording(tmp_path / name, 8000).blocks()))
    for one in DataDir.read(tmp_path):
        end = len(whole) if one.end is None else round(8000 * one.end)
        heard = read_audio(one, 8000)
        assert count_samples(one, 8000) == len(heard)
        if subtype not in ("VORBIS", "MPEG_LAYER_III"):  # whose decoders start anew where they are put
            np.testing.assert_array_equal(heard, whole[round(8000 * one.start) : end])


def test_rows_of_an_archive_are_counted_by_their_headers(tmp_path):
    rng = np.random.default_rng(0)
    sizes = {"a": 7, "b": 12, "c": 1}
    where, method = f"ark,scp:{tmp_path}/feats.ark,{tmp_path}/feats.scp", CompressionMethod.kAutomaticMethod
    with CompressedMatrixWriter(where) as writer:
        for name, size in sizes.items():
            writer.write(name, rng.normal(size=(size, 4)).astype(np.float32), method)
    (tmp_path / "text").write_text("a one\nb one\nc one\n")
    data = DataDir.read(tmp_path)
    config = FeatureConfig(kind="archive", num_columns=4)
    assert frame_counts(data.utterances, config)[0].tolist() == [[7, 12, 1]]
    part = replace(data.utterances[1], feats=f"{data.utterances[1].feats}[2:5]")
    assert frame_counts([part], config)[0].tolist() == [[4]]
