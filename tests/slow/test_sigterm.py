"""SIGTERM on the whole command `fsachain train`, in a process of its own."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fsachain.cli import EXIT_STOPPED
from fsachain.train.checkpoint import Checkpoint, list_checkpoints, load_tensors
from fsachain.train.log import read_log

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0  # seconds that a process may take to begin, on a machine that does other things too
SECONDS = 1  # that each of five recordings takes to be read, one after the other
CONFIG = (
    "features: {sample_rate: 8000, num_mel_bins: 8}\nnetwork: {channels: 8, time_strides: [1]}\n"
    "train: {num_epochs: 12, batch_size: 1, num_threads: 1}\ncmvn: {scope: none}\n"
)


@pytest.fixture
def command(fsachain, recorded):
    """The command line of a training whose epochs take a fraction of a second."""
    numerators, lang = recorded / "num.npz", ("--lang", recorded / "lang")
    made = fsachain("num-graphs", recorded / "data", numerators, *lang, "--den", recorded / "den")
    assert made[0] == 0, made[2]
    (recorded / "config.yaml").write_text(CONFIG)

    def line(out, *more):
        start = [sys.executable, "-c", "from fsachain.cli import main; main()", "train"]
        places = [recorded / "data", numerators, out, *lang, "--den", recorded / "den"]
        return [*start, *map(str, places), "--config", str(recorded / "config.yaml"), *more]

    return line


def stop(line, ready):
    """Start it, send SIGTERM once it is `ready`; status and errors."""
    process = subprocess.Popen(line, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        until = time.monotonic() + PATIENCE
        while not ready():
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < until
            time.sleep(0.005)
        process.send_signal(signal.SIGTERM)
        errors = process.communicate(timeout=PATIENCE)[1]
    finally:
        process.kill()
    return process.returncode, errors


def last_line(path):
    return json.loads(path.read_text().splitlines()[-1])


def test_sigterm_in_a_training_saves_and_the_command_goes_on_from_there(command, tmp_path):
    out, whole = tmp_path / "stopped", tmp_path / "whole"
    log = out / "train.jsonl"
    status, errors = stop(command(out), lambda: log.exists() and '"epoch"' in log.read_text())
    assert status == EXIT_STOPPED, errors
    assert errors.splitlines()[-1].startswith("error: stopped by SIGTERM; start it again")
    assert "Traceback" not in errors
    events = list(read_log(log))
    assert events[-1]["event"] == "stopped"
    checkpoint = Checkpoint.load(list_checkpoints(out / "checkpoints")[-1])
    assert checkpoint.step == events[-1]["step"] > 0
    assert last_line(out / "stages.jsonl")["event"] == "stopped"
    assert not (out / "model.safetensors").exists()
    for folder in (out, whole):
        assert subprocess.run(command(folder), cwd=ROOT, capture_output=True, check=False).returncode == 0
    model, expected = (load_tensors(folder / "model.safetensors")[0] for folder in (out, whole))
    assert model.keys() == expected.keys()
    assert all(torch.equal(model[name], value) for name, value in expected.items())


def test_sigterm_while_recordings_are_read_ends_the_command_with_the_same_status(command, recorded, tmp_path):
    """At the latest when the recordings that are being read are there: 64 of them, here five."""
    begun, out = tmp_path / "begun", tmp_path / "model"
    slow = "".join(
        f"u{n} touch {begun}; sleep {SECONDS}; cat {recorded}/data/{n}.wav |\n" for n in range(1, 6)
    )
    (recorded / "data" / "wav.scp").write_text(slow)
    status, errors = stop(command(out, "--allow-commands"), begun.exists)
    assert status == EXIT_STOPPED, errors
    assert errors.splitlines()[-1].startswith("error: stopped by SIGTERM")
    assert "Traceback" not in errors
    assert last_line(out / "stages.jsonl")["event"] == "stopped"
    assert not (out / "train.jsonl").exists()
