"""Manifests of cuts whose numbers lie: nothing that they claim takes memory or time, and nothing escapes the check."""

import json
import tracemalloc

import numpy as np
import pytest
import soundfile

from fsachain.data.audio import read_audio
from fsachain.data.kaldi_dir import DataDir
from fsachain.data.utterance import UtteranceError

RATE = 8000
SMALL = 30_000_000  # bytes; what manifests claim below is gigabytes
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
    tracemalloc.start()
    try:
        data, faults = DataDir.check(tmp_path / "cuts.jsonl")
        refused = len(faults)
        for utterance in data:
            try:
                assert len(read_audio(utterance, RATE)) <= RATE
            except UtteranceError as error:
                assert "\n" not in str(error)
                refused += 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert refused == 1
    assert peak < SMALL
    assert not (tmp_path / "ran").exists()
