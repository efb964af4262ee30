"""Kaldi data directories: what is read, what is refused and with which message."""

import kaldi_native_io
import numpy as np
import pytest
import soundfile
import tolerances
from refusals import refuses

from fsachain.asr.data.audio import read_audio
from fsachain.asr.data.features import FeatureConfig, utterance_features
from fsachain.asr.data.kaldi_dir import DataDir, read_table
from fsachain.asr.kaldi.archive import read_table as read_archives
from fsachain.asr.kaldi.values import read_matrix, write_matrices
from fsachain.errors import DataError

RATE = 8000
RAMP = (np.arange(2 * RATE, dtype=np.float32) / (4 * RATE)).astype(np.float32)


@pytest.fixture
def corpus(tmp_path):
    """Two recordings of 2 s by one speaker, paths relative to the folder."""
    (tmp_path / "audio").mkdir()
    for name in ("a", "b"):
        soundfile.write(tmp_path / "audio" / f"{name}.wav", RAMP, RATE, subtype="FLOAT")
    write(tmp_path, "wav.scp", "a audio/a.wav\nb audio/b.wav\n")
    write(tmp_path, "text", "a one two\nb\n")
    write(tmp_path, "utt2spk", "a anna\nb anna\n")
    return tmp_path


def write(folder, name, content):
    (folder / name).write_text(content, encoding="utf-8")


def test_tables_give_words_speakers_and_paths_beside_the_table(corpus):
    first, second = DataDir.read(corpus)
    assert (first.id, first.speaker, first.words) == ("a", "anna", ("one", "two"))
    assert first.audio == str(corpus / "audio" / "a.wav")
    assert second.words == ()


def test_relative_paths_are_tried_from_the_table_and_then_from_the_working_directory(corpus, monkeypatch):
    """As in a Kaldi recipe, whose wav.scp names data/audio/a.wav from its own folder."""
    data = corpus / "data"
    data.mkdir()
    for name in ("text", "utt2spk"):
        (corpus / name).rename(data / name)
    write(data, "wav.scp", "a audio/a.wav\nb audio/b.wav\n")
    monkeypatch.chdir(corpus)
    assert [one.audio for one in DataDir.read(data)] == ["audio/a.wav", "audio/b.wav"]
    np.testing.assert_array_equal(read_audio(DataDir.read(data).utterances[0], RATE), RAMP)
    (corpus / "audio").rename(data / "audio")
    assert [one.audio for one in DataDir.read(data)] == [f"{data}/audio/a.wav", f"{data}/audio/b.wav"]
    (data / "audio/a.wav").unlink()
    tried = rf"no such file; relative paths are tried from the folder of the table, then from {corpus}"
    refuses(DataError, tried, read_audio, DataDir.read(data).utterances[0], RATE)


def test_addresses_in_feats_scp_are_tried_from_both_places(corpus, monkeypatch):
    matrix = np.ones((7, 40), dtype=np.float32)
    write_matrices(corpus / "f.ark", {"a": matrix, "b": matrix})
    addresses = [line.split()[1].rpartition("/")[2] for line in (corpus / "f.scp").read_text().splitlines()]
    data = corpus / "data"
    data.mkdir()
    (corpus / "text").rename(data / "text")
    write(data, "feats.scp", f"a {addresses[0]}\nb {addresses[1]}[0:3]\n")
    monkeypatch.chdir(corpus)
    first, second = DataDir.read(data)
    assert (first.feats, second.feats) == (addresses[0], f"{addresses[1]}[0:3]")
    assert len(utterance_features(second, FeatureConfig())) == 4
    ((_, found), _) = read_archives(data / "feats.scp", read_matrix)
    np.testing.assert_array_equal(found, matrix)
    (corpus / "f.ark").unlink()
    refuses(DataError, r"relative paths are tried", utterance_features, first, FeatureConfig())
    told = rf"feats.scp:1: cannot be read: no such file: tried {data}/{addresses[0]} and {addresses[0]}"
    refuses(DataError, told, list, read_archives(data / "feats.scp", read_matrix))


def test_segments_cut_exactly_the_samples_between_start_and_end(corpus):
    write(corpus, "segments", "a1 a 0.5 1.25\na2 a 1.5 -1\n")
    write(corpus, "text", "a1 one\na2 two\n")
    write(corpus, "utt2spk", "a1 anna\na2 anna\n")
    first, second = (read_audio(u, RATE) for u in DataDir.read(corpus))
    np.testing.assert_array_equal(first, RAMP[4000:10000])
    np.testing.assert_array_equal(second, RAMP[12000:])


def test_feats_scp_is_read_through_a_kaldi_reader(corpus):
    matrix = np.random.default_rng(1).standard_normal((7, 40)).astype(np.float32)
    with kaldi_native_io.FloatMatrixWriter(f"ark,scp:{corpus}/f.ark,{corpus}/f.scp") as writer:
        writer.write("a", matrix)
        writer.write("b", 2 * matrix)
    addresses = (corpus / "f.scp").read_text().replace(f"{corpus}/", "")
    write(corpus, "feats.scp", addresses)
    (corpus / "wav.scp").unlink()
    first, second = DataDir.read(corpus)
    np.testing.assert_array_equal(utterance_features(first, FeatureConfig()), matrix)
    np.testing.assert_array_equal(utterance_features(second, FeatureConfig()), 2 * matrix)
    narrow = FeatureConfig(num_mel_bins=23)
    refuses(DataError, r"'a'.*shape \(7, 40\), expected \[frames, 23\]", utterance_features, first, narrow)


def test_joined_directories_keep_order_and_refuse_equal_ids(corpus, tmp_path):
    data = DataDir.read(corpus)
    only_a, only_b = data.select(lambda u: u.id == "a"), data.select(lambda u: u.id == "b")
    assert [u.id for u in DataDir.join([only_b, only_a])] == ["b", "a"]
    refuses(DataError, "'a' occurs twice", DataDir.join, [data, only_a])


def test_recorded_corpus_has_the_durations_its_table_says(shared):
    folder = shared / "data" / "digits" / "connected" / "dev"
    durations = dict(line.split() for line in (folder / "utt2dur").read_text().splitlines())
    for utterance in DataDir.read(folder).utterances[::10]:
        seconds = len(read_audio(utterance, RATE)) / RATE
        assert seconds == pytest.approx(float(durations[utterance.id]), abs=tolerances.DURATION_SECONDS)


@pytest.mark.parametrize("value", ["touch ran|/", "x; touch ran|/.", "./touch ran|//"])
def test_a_path_that_becomes_a_command_is_refused_even_if_commands_are_allowed(corpus, value):
    write(corpus, "wav.scp", f"a {value}\nb audio/b.wav\n")
    refuses(DataError, "would be taken for a command", DataDir.read, corpus, allow_commands=True)


def test_the_first_fault_of_each_utterance_is_kept(corpus):
    write(corpus, "wav.scp", "a audio/a.wav\nb\nb audio/b.wav\nc x|\nd d.wav\n")
    write(corpus, "text", "e one\nd two\nd two\na three\n\n")
    data, faults = DataDir.check(corpus)
    assert [one.id for one in data] == ["a"]
    assert [(fault.id, fault.kind) for fault in faults] == [
        ("b", "no recording"),
        ("c", "shell command"),
        ("e", "no recording"),
        ("d", "duplicate id"),
    ]
    assert faults[3].reason == f"{corpus / 'text'}:3: key 'd' occurs twice, first on line 2"


def test_segments_of_a_recording_that_occurs_twice_are_left_out(corpus):
    write(corpus, "wav.scp", "a audio/a.wav\nb audio/b.wav\na audio/b.wav\n")
    write(corpus, "segments", "a1 a 0.5 1.25\nb1 b 0 1\n")
    write(corpus, "text", "a1 one\nb1 two\n")
    write(corpus, "utt2spk", "a1 anna\nb1 anna\n")
    data, faults = DataDir.check(corpus)
    assert [one.id for one in data] == ["b1"]
    assert [fault.id for fault in faults] == ["a", "a1"]


def test_a_file_that_is_no_table_is_given_up_and_one_without_recordings_refused(corpus):
    """What else can be wrong with a line: tests/test_validate.py."""
    (corpus / "text").write_bytes(b"\xff\n" * 1000)
    told = "more than 500 lines are none of such a file; the last: .*text:501: "
    refuses(DataError, told, DataDir.check, corpus)
    write(corpus, "wav.scp", "")
    refuses(DataError, "neither wav", DataDir.read, corpus)


def test_a_table_of_megabytes_has_its_lines_and_the_numbers_of_its_faults(corpus):
    """Many lines are read at once, one by one where there is a fault."""
    lines = [f"\u00fctterance{n:06}\t{'x ' * (n % 20)}\r" for n in range(60_000)]
    write(corpus, "text", "\n".join(lines))
    found = read_table(corpus / "text")
    assert list(found.items()) == [(x.split()[0], " ".join(x.split()[1:])) for x in lines]
    for last, fault in ((lines[2], "occurs twice, first on line 3"), ("a\0b c", "a zero byte")):
        write(corpus, "text", "\n".join([*lines, last]))
        refuses(DataError, f"text:60001: .*{fault}", read_table, corpus / "text")
