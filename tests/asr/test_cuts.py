"""Manifests and Shar shards of lhotse are read like Kaldi directories; nothing in them runs a command unasked."""

import gzip
import io
import json
import tarfile
from pathlib import Path

import lhotse
import numpy as np
import pytest
import soundfile
from refusals import refuses
from tolerances import FLOAT32_ROUNDING

from fsachain.asr.data import DataDir, FeatureConfig, load_examples
from fsachain.asr.data.audio import audio_identity, read_audio
from fsachain.asr.data.features import frame_counts, utterance_features
from fsachain.asr.report.collect import samples_of
from fsachain.errors import DataError

FEATURES = FeatureConfig(num_mel_bins=8)
ARCHIVE = FeatureConfig(kind="archive", num_columns=5)


def cut_of(path, name, start, duration, text="yes  no"):
    supervision = lhotse.SupervisionSegment(name, path.stem, 0.0, duration, text=text, speaker="anna")
    recording = lhotse.Recording.from_file(path, recording_id=path.stem)
    return lhotse.MonoCut(name, start, duration, 0, supervisions=[supervision], recording=recording)


@pytest.fixture
def corpus(tmp_path):
    """Two recordings, three utterances in them, as a Kaldi directory; the second has two channels."""
    rng = np.random.default_rng(1)
    soundfile.write(tmp_path / "a.wav", 0.1 * rng.normal(size=16000), 8000)
    soundfile.write(tmp_path / "b.flac", 0.1 * rng.normal(size=(12000, 2)), 8000)
    (tmp_path / "kaldi").mkdir()
    (tmp_path / "kaldi/wav.scp").write_text("a ../a.wav\n")
    (tmp_path / "kaldi/segments").write_text("a-1 a 0.25 1.5\na-2 a 1.0 2.0\n")
    (tmp_path / "kaldi/text").write_text("a-1 yes no\na-2 no\n")
    (tmp_path / "kaldi/utt2spk").write_text("a-1 anna\na-2 anna\n")
    return tmp_path


@pytest.fixture
def cuts(corpus):
    first = cut_of(corpus / "a.wav", "a-1", 0.25, 1.25)
    return lhotse.CutSet.from_cuts([first, cut_of(corpus / "a.wav", "a-2", 1.0, 1.0, "no")])


def write_lines(path, *contents):
    path.write_text("".join(json.dumps(content) + "\n" for content in contents))
    return path


def assert_same_speech(one, other, atol=0.0):
    assert [(u.id, u.speaker, u.words) for u in one] == [(u.id, u.speaker, u.words) for u in other]
    for first, second in zip(load_examples(one, FEATURES), load_examples(other, FEATURES), strict=True):
        np.testing.assert_allclose(first.features, second.features, atol=atol, rtol=0)


@pytest.mark.parametrize("name", ["cuts.jsonl", "cuts.jsonl.gz"])
def test_a_manifest_gives_the_utterances_of_the_kaldi_directory(corpus, cuts, name, fsachain):
    cuts.to_file(corpus / name)
    data = DataDir.read(corpus / name)
    assert_same_speech(data, DataDir.read(corpus / "kaldi"))
    assert [one.audio_part for one in data] == [None, None]  # read by soundfile, without lhotse
    assert "cuts of lhotse: 2 utterances, 3 words, 1 speaker" in fsachain.ok(f"info {name}").out
    assert "2 words, 5 characters" in fsachain.ok(f"spell {name} spelled.txt").out


def test_relative_paths_are_beside_the_manifest_or_in_the_working_directory(corpus, cuts, monkeypatch):
    contents = [cut.to_dict() for cut in cuts]
    for content in contents:
        content["recording"]["sources"][0]["source"] = "a.wav"
    (corpus / "elsewhere").mkdir()
    expected = DataDir.read(corpus / "kaldi")
    assert_same_speech(DataDir.read(write_lines(corpus / "cuts.jsonl", *contents)), expected)
    monkeypatch.chdir(corpus)
    assert_same_speech(DataDir.read(write_lines(Path("elsewhere/cuts.jsonl"), *contents)), expected)


@pytest.mark.parametrize("shard_size", [1, 2])
def test_shar_shards_are_read_where_they_lie(corpus, cuts, shard_size):
    (corpus / "shar").mkdir()
    cuts.to_shar(corpus / "shar", fields={"recording": "wav"}, shard_size=shard_size)
    data = DataDir.read(corpus / "shar")
    sixteen_bits = 1e-2  # of features, from samples rounded to 16 bits once more
    assert_same_speech(data, DataDir.read(corpus / "kaldi"), atol=sixteen_bits)
    assert len({one.audio_part.path for one in data}) == 2 // shard_size
    counts, faults = frame_counts(data.utterances, FEATURES)
    assert not faults
    assert counts[0].tolist() == [len(one.features) for one in load_examples(data, FEATURES)]


def test_other_cuts_are_read_as_lhotse_reads_them(corpus):
    plain = cut_of(corpus / "a.wav", "plain", 0.0, 1.0)
    noise = cut_of(corpus / "a.wav", "noise", 1.0, 0.5)
    noise.supervisions = []
    changed = [
        plain.perturb_speed(0.9),
        plain.perturb_volume(2.0).with_id("louder"),
        plain.mix(noise, snr=10).with_id("mixed"),
        plain.pad(1.5).with_id("padded"),
    ]
    lhotse.CutSet.from_cuts(changed).to_file(corpus / "cuts.jsonl")
    data = DataDir.read(corpus / "cuts.jsonl")
    counts, faults = frame_counts(data.utterances, FEATURES)
    assert not faults
    for cut, one, count in zip(changed, data, counts[0].tolist(), strict=True):
        expected = cut.load_audio().mean(axis=0)
        np.testing.assert_allclose(read_audio(one, 8000), expected, atol=FLOAT32_ROUNDING)
        assert len(utterance_features(one, FEATURES)) == count
        assert one.words == ("yes", "no")
        assert audio_identity(one) is not None


def test_the_channel_of_a_cut_is_read_and_no_other(corpus):
    cut = cut_of(corpus / "b.flac", "b", 0.5, 1.0)
    cut.channel = 1
    lhotse.CutSet.from_cuts([cut]).to_file(corpus / "cuts.jsonl")
    (one,) = DataDir.read(corpus / "cuts.jsonl")
    expected = soundfile.read(corpus / "b.flac", dtype="float32")[0][4000:12000, 1]
    assert np.array_equal(read_audio(one, 8000), expected)


@pytest.mark.parametrize("storage", ["numpy", "lilcom"])
def test_stored_features_are_taken_for_kind_archive(corpus, storage):
    cut = cut_of(corpus / "a.wav", "a", 0.0, 0.5)
    matrix = np.random.default_rng(0).normal(size=(50, 5)).astype(np.float32)
    writer = lhotse.NumpyFilesWriter if storage == "numpy" else lhotse.LilcomChunkyWriter
    with writer(corpus / "stored") as file:
        key = file.write("a", matrix)
        path = str(file.storage_path)
    cut.features = lhotse.Features("kaldi-fbank", 50, 5, 0.01, 8000, 0.0, 0.5, writer.name, path, key, "a", 0)
    lhotse.CutSet.from_cuts([cut]).to_file(corpus / "cuts.jsonl")
    (corpus / "shar").mkdir()
    fields = {"recording": "flac", "features": storage}
    lhotse.CutSet.from_cuts([cut]).to_shar(corpus / "shar", fields=fields)
    for place in ("cuts.jsonl", "shar"):
        (one,) = DataDir.read(corpus / place)
        counts, faults = frame_counts([one], ARCHIVE)
        assert (counts.tolist(), faults) == ([[50]], [])
        found = utterance_features(one, ARCHIVE)
        np.testing.assert_allclose(found, matrix, atol=0.0 if storage == "numpy" else 0.1)
        computed = utterance_features(one, FEATURES)
        assert computed.shape == (50, 8)  # of the recording, where other features are asked for
    content = cut.to_dict()
    del content["recording"]
    (one,) = DataDir.read(write_lines(corpus / "alone.jsonl", content))
    assert one.audio is None and utterance_features(one, ARCHIVE).shape == matrix.shape


def plain_content(corpus, name="a-1"):
    return cut_of(corpus / "a.wav", name, 0.25, 1.25).to_dict()


def test_a_cut_may_be_of_a_recording_that_is_longer_than_any_utterance(corpus):
    content = plain_content(corpus)
    content["recording"] |= {"duration": 100_000.0, "num_samples": 800_000_000}
    (one,) = DataDir.read(write_lines(corpus / "cuts.jsonl", content))
    assert (one.start, one.end) == (0.25, 1.5)


def with_source(corpus, kind, source):
    content = plain_content(corpus)
    content["recording"]["sources"] = [{"type": kind, "channels": [0], "source": source}]
    return content


@pytest.mark.filterwarnings("ignore:You requested a subset")  # lhotse, of a command
@pytest.mark.parametrize("kind", ["command", "url"])
def test_a_command_or_url_is_refused_unless_it_is_allowed(corpus, kind):
    manifest = write_lines(corpus / "cuts.jsonl", with_source(corpus, kind, f"cat {corpus / 'a.wav'}"))
    refuses(DataError, rf"its audio is a {kind} .*--allow-commands", DataDir.read, manifest)
    (one,) = DataDir.read(manifest, allow_commands=True)
    assert audio_identity(one) is None  # nothing vouches for what a command makes
    with pytest.raises(DataError, match="its recording is made by a command"):  # as a report reads it
        samples_of(one, 8000, allow_commands=False)
    if kind == "command":
        expected = soundfile.read(corpus / "a.wav", dtype="float32")[0][2000:12000]
        assert np.array_equal(read_audio(one, 8000), expected)


def test_a_command_inside_a_mixed_cut_is_refused(corpus):
    mixed = cut_of(corpus / "a.wav", "one", 0.0, 1.0).pad(1.5).to_dict()
    mixed["tracks"][0]["cut"]["recording"]["sources"][0] |= {"type": "command", "source": "true"}
    refuses(DataError, "its audio is a command", DataDir.read, write_lines(corpus / "cuts.jsonl", mixed))


@pytest.mark.parametrize("name", ["touch pwned |", "a'; touch pwned; '.opus", "x; touch pwned .sph"])
def test_a_file_name_never_becomes_a_command(corpus, monkeypatch, name):
    monkeypatch.chdir(corpus)
    (corpus / name).write_bytes((corpus / "a.wav").read_bytes())
    content = with_source(corpus, "file", name)
    for one in (content, content | {"id": "x", "recording": content["recording"] | {"transforms": []}}):
        with pytest.raises(DataError, match="would be taken for a command"):
            DataDir.read(write_lines(corpus / "cuts.jsonl", one))
    assert not (corpus / "pwned").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"storage_type": "kaldiio"}, "storage 'kaldiio'"),
        ({"storage_type": "lilcom_url"}, "storage 'lilcom_url'"),
        ({"storage_path": "pipe:touch pwned"}, "would be taken for a command"),
        ({"storage_type": "numpy_files", "storage_key": "../../secret.npy"}, "leaves its folder"),
    ],
)
def test_stored_features_come_from_files_alone(corpus, monkeypatch, change, message):
    monkeypatch.chdir(corpus)
    content = plain_content(corpus)
    content["features"] = {
        "type": "fbank", "num_frames": 50, "num_features": 5, "frame_shift": 0.01, "sampling_rate": 8000,
        "start": 0.0, "duration": 1.25, "storage_type": "lilcom_chunky", "storage_path": "stored.lca",
        "storage_key": "0", "recording_id": "a", "channels": 0,
    } | change  # fmt: skip
    refuses(DataError, message, DataDir.read, write_lines(corpus / "cuts.jsonl", content))


def shar_of(corpus, info, content=b""):
    """A shard whose tar has this one member."""
    folder = corpus / "shar"
    folder.mkdir()
    cut = with_source(corpus, "shar", "") | {"start": 0.0}
    (folder / "cuts.000000.jsonl.gz").write_bytes(gzip.compress(json.dumps(cut).encode()))
    info.size = len(content)
    with tarfile.open(folder / "recording.000000.tar", "w") as tar:
        tar.addfile(info, io.BytesIO(content))
    return folder


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
def test_a_member_of_a_tar_that_is_no_plain_file_is_refused(corpus, kind):
    info = tarfile.TarInfo("a-1.wav")
    info.type, info.linkname = kind, "/etc/passwd"
    with pytest.raises(DataError, match="no plain file; links and folders are refused"):
        DataDir.read(shar_of(corpus, info))


def test_names_in_a_tar_lead_nowhere(corpus):
    folder = shar_of(corpus, tarfile.TarInfo("../../a-1.wav"), (corpus / "a.wav").read_bytes())
    refuses(DataError, "is in no tar of this shard", DataDir.read, folder)
    assert sorted(path.name for path in corpus.iterdir()) == ["a.wav", "b.flac", "kaldi", "shar"]


def test_a_tar_that_is_cut_short_or_no_tar_is_named(corpus):
    folder = shar_of(corpus, tarfile.TarInfo("a-1.wav"), (corpus / "a.wav").read_bytes())
    tar = folder / "recording.000000.tar"
    with tarfile.open(tar, "a") as archive:
        archive.addfile(tarfile.TarInfo("a-1.flac"))
    refuses(DataError, r"the member 'a-1\.flac' is there twice", DataDir.read, folder)
    for size in (20_000, 700, 100):
        tar.write_bytes(tar.read_bytes()[:size])
        refuses(DataError, r"recording\.000000\.tar", DataDir.read, folder)


def test_every_fault_of_a_manifest_is_named_and_the_others_are_read(corpus):
    names = "good", "without", "several", "silent", "odd", "broken", "twice"
    good, without, several, silent, odd, broken, twice = (plain_content(corpus, name) for name in names)
    without["supervisions"] = []
    several["supervisions"] *= 2
    del silent["recording"], broken["recording"]["sources"][0]["channels"]
    odd["recording"]["sources"] = 5
    cuts = good, without, several, silent, odd, broken, twice, twice, {"id": 3}
    path = write_lines(corpus / "cuts.jsonl", *cuts)
    with path.open("a") as file:
        file.write("{no json\n" + "[" * 100_000 + "\n")
    data, faults = DataDir.check(path)
    assert [one.id for one in data] == ["good"]
    assert [(fault.id, fault.kind) for fault in faults] == [
        *((f"{path}:{line}", "table") for line in (9, 10, 11)),
        ("without", "no transcript"),
        ("several", "no transcript"),
        ("silent", "no recording"),
        ("odd", "table"),
        ("broken", "table"),
        ("twice", "duplicate id"),
    ]


def test_a_file_that_goes_missing_is_named_when_it_is_read(corpus):
    cut = cut_of(corpus / "a.wav", "a", 0.0, 1.0).perturb_volume(2.0)
    lhotse.CutSet.from_cuts([cut]).to_file(corpus / "cuts.jsonl")
    (one,) = DataDir.read(corpus / "cuts.jsonl")
    (corpus / "a.wav").unlink()
    refuses(DataError, r"a\.wav' is missing or no regular file", read_audio, one, 8000)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"custom": [1] * 20_000}, r"20\d\d\d JSON values in a cut, expected at most 10000; drop"),
        ({"custom": "a" * 200_000}, r"cuts\.jsonl:1: a line of more than 131072 bytes"),
        ({"custom": "\ud800"}, "text that is no Unicode"),
    ],
)
def test_a_cut_that_would_take_much_memory_or_is_no_text_is_refused(corpus, change, message):
    path = write_lines(corpus / "cuts.jsonl", plain_content(corpus, "a") | change)
    refuses(DataError, message, DataDir.read, path)


def test_headers_of_a_tar_are_bounded(corpus):
    info = tarfile.TarInfo("a-1.wav")
    info.pax_headers = {"comment": "x" * 100_000}
    refuses(DataError, "a header of more than 16384 bytes", DataDir.read, shar_of(corpus, info))
