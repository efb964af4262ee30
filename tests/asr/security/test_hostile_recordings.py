"""Recordings and data directories: no header is believed, nothing is waited for, no command is run unasked."""

import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import soundfile

from fsachain.asr.data.audio import read_audio
from fsachain.asr.data.cuts import MAX_SECONDS
from fsachain.asr.data.dataset import load_examples
from fsachain.asr.data.features import FeatureConfig, utterance_features
from fsachain.asr.data.kaldi_dir import DataDir, Utterance
from fsachain.asr.data.utterance import UtteranceError
from fsachain.errors import DataError
from tools.fuzz.reader import within

RATE = 8000
SMALL = 30_000_000  # bytes; what headers claim below is gigabytes


def utterance(path, **options):
    return Utterance("u1", "a", (), str(path), **options)


def flac(path, samples, claimed):
    """A FLAC file whose stream header claims another number of samples."""
    soundfile.write(path, np.sin(np.arange(samples) / 9.0) / 2, RATE, format="FLAC", subtype="PCM_16")
    content = bytearray(path.read_bytes())
    assert content[:4] == b"fLaC"
    content[21] = content[21] & 0xF0 | claimed >> 32
    content[22:26] = (claimed & 0xFFFFFFFF).to_bytes(4, "big")
    path.write_bytes(content)


@pytest.mark.parametrize("claimed", [int(MAX_SECONDS * RATE), 2**36 - 1])
def test_a_flac_header_that_claims_hours_takes_no_memory(claimed, tmp_path):
    flac(tmp_path / "a.flac", 800, claimed)
    assert_little(tmp_path / "a.flac", 800)


def assert_little(path, most_samples):
    """So many samples are read at most, or the utterance is refused, in little memory."""
    with within(SMALL):
        try:
            assert len(read_audio(utterance(path), RATE)) <= most_samples
        except UtteranceError as error:
            assert "u1" in str(error)


@pytest.mark.parametrize("size", [2**31 - 2, 2**32 - 2])
def test_a_wav_header_that_claims_gigabytes_gives_what_is_there(size, tmp_path):
    path = tmp_path / "a.wav"
    soundfile.write(path, np.zeros(100), RATE)
    content = bytearray(path.read_bytes())
    place = content.index(b"data") + 4
    content[place : place + 4] = struct.pack("<I", size)
    path.write_bytes(content)
    assert_little(path, 101)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/random", "/dev/stdin", "/proc/self/mem"])
def test_devices_are_no_recordings(device):
    if not Path(device).exists():
        pytest.skip(f"no {device} here")
    with pytest.raises(UtteranceError, match="'u1': cannot read"):
        read_audio(utterance(Path(device)), RATE)


def test_a_pipe_is_not_waited_for_and_links_in_a_circle_are_an_error(tmp_path):
    os.mkfifo(tmp_path / "pipe.wav")
    (tmp_path / "a.wav").symlink_to(tmp_path / "b.wav")
    (tmp_path / "b.wav").symlink_to(tmp_path / "a.wav")
    for name, message in (("pipe", "not a regular file"), ("a", "'u1': cannot read")):
        with pytest.raises(UtteranceError, match=message):
            read_audio(utterance(tmp_path / f"{name}.wav"), RATE)


def data_dir(folder, **tables):
    for name, content in {"text": "u1 yes\n", "wav.scp": "u1 a.wav\n", **tables}.items():
        (folder / name.replace("_", ".")).write_text(content)
    return folder


TOUCH = "touch {ran}"
COMMANDS = [f"{TOUCH} |", f"| {TOUCH}", f"{TOUCH}; cat a.wav|", f"$({TOUCH}) |", f"`{TOUCH}` |"]
NOT_COMMANDS = [f"$({TOUCH})", f"`{TOUCH}`", f"a.wav; {TOUCH}", f"a.wav && {TOUCH}", f"a.wav | {TOUCH}"]


@pytest.mark.parametrize("table", ["wav.scp", "feats.scp"])
@pytest.mark.parametrize("entry", COMMANDS)
def test_a_command_in_a_table_is_refused_and_never_run(entry, table, tmp_path):
    ran = tmp_path / "ran"
    folder = data_dir(tmp_path, **{table: f"u1 {entry.format(ran=ran)}\n"})
    with pytest.raises(DataError, match="is a shell command"):
        DataDir.read(folder)
    found, faults = DataDir.check(folder)
    assert not len(found)
    assert faults[0].kind == "shell command"
    assert not ran.exists()


@pytest.mark.parametrize("allow", [False, True])
@pytest.mark.parametrize("entry", NOT_COMMANDS)
def test_what_only_looks_like_a_command_is_a_path(entry, allow, tmp_path):
    ran = tmp_path / "ran"
    folder = data_dir(tmp_path, **{"wav.scp": f"u1 {entry.format(ran=ran)}\n"})
    (one,) = DataDir.read(folder, allow_commands=allow)
    with pytest.raises(UtteranceError, match="no such file"):
        utterance_features(one, FeatureConfig())
    assert not ran.exists()


def test_a_command_that_fails_is_a_fault_of_its_utterance(tmp_path):
    folder = data_dir(tmp_path, **{"wav.scp": "u1 false |\n"})
    (one,) = DataDir.read(folder, allow_commands=True)
    with pytest.raises(UtteranceError, match="failed with status 1"):
        read_audio(one, RATE)


def test_a_cache_that_somebody_else_filled_is_checked(tmp_path):
    """A wrong file in the cache is computed anew; a pickle in it is never loaded."""
    soundfile.write(tmp_path / "a.wav", np.sin(np.arange(4000.0)), RATE)
    data, folder = DataDir([utterance(tmp_path / "a.wav")]), tmp_path / "cache"
    expected = load_examples(data, FeatureConfig(), cache_dir=folder)[0].features
    (entry,) = folder.glob("*.npz")
    frames, lengths = expected, np.array([len(expected)])
    for hostile in (
        {"frames": np.array([print], dtype=object), "lengths": lengths},
        {"frames": frames, "lengths": np.array([10**12])},
        {"frames": frames, "lengths": np.array([-1])},
        {"frames": frames, "lengths": lengths[:, None]},
        {"frames": frames.reshape(-1), "lengths": lengths},
        {"frames": frames},
        {},
    ):
        np.savez(entry, **hostile)
        found = load_examples(data, FeatureConfig(), cache_dir=folder)[0].features
        np.testing.assert_array_equal(found, expected)


# Manifests of cuts whose numbers lie: nothing that they claim takes memory or time, and nothing escapes the check.


HUGE = 8_000_000_000


def cut(**changes):
    recording = {
        "id": "r",
        "sources": [{"type": "file", "channels": [0], "source": "a.wav"}],
        "sampling_rate": RATE,
        "num_samples": RATE,
        "duration": 1.0,
        "channel_ids": [0],
        **changes.pop("recording", {}),
    }
    supervision = {"id": "s", "recording_id": "r", "start": 0, "duration": 1.0, "channel": 0, "text": "yes"}
    sound = {"id": "c", "start": 0, "duration": 1.0, "channel": 0, "type": "MonoCut", "recording": recording}
    return {**sound, "supervisions": [{**supervision, "speaker": "anna"}], **changes}


def mixed(**second):
    """A cut of a second by its own account, and what is mixed into it."""
    other = {
        "id": "p",
        "sampling_rate": RATE,
        "feat_value": 0.0,
        "type": "PaddingCut",
        "duration": 1.0,
        **second,
    }
    tracks = [
        {"cut": cut(), "offset": 0.0, "type": "MonoCut"},
        {"cut": other, "offset": 0.0, "type": "PaddingCut"},
    ]
    return {"id": "m", "type": "MixedCut", "duration": 1.0, "tracks": tracks}


def transformed(name, **options):
    return cut(recording={"transforms": [{"name": name, "kwargs": options}]})


ATTACKS = {
    "days of padding": mixed(duration=1e6, num_samples=HUGE),
    "samples of padding": mixed(num_samples=HUGE),
    "padding of no number": mixed(duration="1e6", num_samples=HUGE),
    "a track that begins in days": {**mixed(), "tracks": [{"cut": cut(), "offset": 1e6, "type": "MonoCut"}]},
    "a rate of gigahertz": transformed(
        "Resample", source_sampling_rate=RATE, target_sampling_rate=2_000_000_000
    ),
    "a rate of megahertz": transformed("Resample", source_sampling_rate=10, target_sampling_rate=900_000),
    "a speed of nearly zero": transformed("Speed", factor=1e-6),
    "a tempo of nearly zero": transformed("Tempo", factor=1e-6),
    "a transform that is a function": transformed("os.system", command="touch ran"),
    "a duration of years": cut(duration=1e9),
    "a duration that is no number": cut(duration=float("nan")),
    "a duration without end": cut(duration=float("inf")),
    "a start before the recording": cut(start=-5.0),
    "a start that is no number": cut(start=float("nan")),
    "a start without end": cut(start=float("inf")),
    "a start after the recording": cut(start=1e9),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_cut_that_lies_is_a_fault_and_takes_no_memory(attack, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    soundfile.write(tmp_path / "a.wav", np.zeros(RATE), RATE)
    content = json.dumps(cut(id="sound")) + "\n"
    (tmp_path / "cuts.jsonl").write_text(content)
    (sound,) = DataDir.read(tmp_path / "cuts.jsonl")
    assert len(read_audio(sound, RATE)) == RATE
    (tmp_path / "cuts.jsonl").write_text(content + json.dumps(ATTACKS[attack]) + "\n")
    with within(SMALL):
        data, faults = DataDir.check(tmp_path / "cuts.jsonl")
        refused = len(faults)
        for utterance in data:
            try:
                assert len(read_audio(utterance, RATE)) <= RATE
            except UtteranceError as error:
                assert "\n" not in str(error)
                refused += 1
    assert refused == 1
    assert not (tmp_path / "ran").exists()
