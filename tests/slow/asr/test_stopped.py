"""The command `fsachain train` where it is stopped or killed: alone, and as two processes under torchrun."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fsachain.asr.cli import EXIT_STOPPED
from fsachain.asr.train.checkpoint import Checkpoint, list_checkpoints, load_tensors
from fsachain.asr.train.log import read_log

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 240.0  # seconds that a process may take, on a machine that does other things too
SECONDS = 1  # that each of five recordings takes to be read, one after the other
CONFIG = (
    "features: {sample_rate: 8000, num_mel_bins: 8}\nnetwork: {channels: 8, time_strides: [1]}\n"
    "train: {num_epochs: 50, batch_size: 2, num_threads: 1, process_timeout: 100}\ncmvn: {scope: none}\n"
)
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")},
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
}
TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")


class Run:
    """A program of Python in a process of its own."""

    def __init__(self, *arguments):
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        command = [sys.executable, "-m", *map(str, arguments)]
        self.process = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, **streams)

    def worker(self, rank):
        """The process number of a worker of torchrun."""
        parent = self.process.pid
        for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            if f"LOCAL_RANK={rank}\0" in Path(f"/proc/{child}/environ").read_text():
                return int(child)
        raise AssertionError(f"torchrun has no worker {rank}")

    def wait_for(self, ready):
        until = time.monotonic() + PATIENCE
        while not ready():
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < until, "it takes too long"
            time.sleep(0.005)

    def end(self):
        """Status and output."""
        output = self.process.communicate(timeout=PATIENCE)[0]
        return self.process.returncode, output


@pytest.fixture
def start():
    runs: list[Run] = []

    def begin(*arguments):
        runs.append(Run(*arguments))
        return runs[-1]

    yield begin
    for run in runs:
        run.process.kill()


@pytest.fixture
def training(fsachain, recorded):
    """The command of a training of five utterances, in batches of two, two and one."""
    numerators, graphs = recorded / "num.npz", ("--lang", recorded / "lang", "--den", recorded / "den")
    fsachain.ok("num-graphs", recorded / "data", numerators, *graphs)
    (recorded / "config.yaml").write_text(CONFIG)
    options = (*graphs, "--config", recorded / "config.yaml", "--dev", recorded / "data", numerators)
    return lambda out: ("fsachain", "train", recorded / "data", numerators, out, *options)


def has_epoch(log):
    return log.exists() and '"event": "epoch"' in log.read_text()


def assert_stopped(out):
    """Once, with all that was done on disk."""
    events = list(read_log(out / "train.jsonl"))
    assert [event["event"] for event in events].count("stopped") == 1
    checkpoint = Checkpoint.load(list_checkpoints(out / "checkpoints")[-1])
    assert checkpoint.step == events[-1]["step"] > 0
    assert last_stage(out) == "stopped"
    assert not (out / "model.safetensors").exists()


def last_stage(out):
    return json.loads((out / "stages.jsonl").read_text().splitlines()[-1])["event"]


def assert_same_model(out, whole):
    models = [load_tensors(folder / "model.safetensors")[0] for folder in (out, whole)]
    torch.testing.assert_close(*models, rtol=0, atol=0)


def test_sigterm_in_a_training_saves_and_the_command_goes_on_from_there(training, start, tmp_path):
    out, whole = tmp_path / "stopped", tmp_path / "whole"
    run = start(*training(out))
    run.wait_for(lambda: has_epoch(out / "train.jsonl"))
    run.process.send_signal(signal.SIGTERM)
    status, output = run.end()
    assert status == EXIT_STOPPED, output
    assert output.splitlines()[-1].startswith("error: stopped by SIGTERM; start it again")
    assert "Traceback" not in output
    assert_stopped(out)
    for folder in (out, whole):
        status, output = start(*training(folder)).end()
        assert status == 0, output
    assert_same_model(out, whole)


def test_sigterm_while_recordings_are_read_ends_the_command_with_the_same_status(
    training, start, recorded, tmp_path
):
    """At the latest when the recordings that are being read are there: 64 of them, here five."""
    begun, out = tmp_path / "begun", tmp_path / "model"
    slow = "".join(
        f"u{n} touch {begun}; sleep {SECONDS}; cat {recorded}/data/{n}.wav |\n" for n in range(1, 6)
    )
    (recorded / "data" / "wav.scp").write_text(slow)
    run = start(*training(out), "--allow-commands")
    run.wait_for(begun.exists)
    run.process.send_signal(signal.SIGTERM)
    status, output = run.end()
    assert status == EXIT_STOPPED, output
    assert output.splitlines()[-1].startswith("error: stopped by SIGTERM")
    assert "Traceback" not in output
    assert last_stage(out) == "stopped"
    assert not (out / "train.jsonl").exists()


def test_torchrun_restarts_a_training_whose_process_was_killed_and_no_bit_of_the_result_changes(
    training, start, tmp_path
):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    status, output = start(*TORCHRUN, "-m", *training(whole)).end()
    assert status == 0, output
    run = start(*TORCHRUN, "--max-restarts", "1", "-m", *training(broken))
    run.wait_for(lambda: bool(list_checkpoints(broken / "checkpoints")))  # written after the epoch's line
    os.kill(run.worker(1), signal.SIGKILL)
    status, output = run.end()
    assert status == 0, output
    events = [event["event"] for event in read_log(broken / "train.jsonl")]
    assert events.count("start") == 2
    assert "resume" in events
    assert_same_model(broken, whole)
    assert output.count("model -> ") == 1


def test_sigterm_to_torchrun_saves_once_and_one_process_goes_on(training, start, fsachain, tmp_path):
    """With a corpus that is streamed: each process prepares its own utterances."""
    out = tmp_path / "model"
    run = start(*TORCHRUN, "-m", *training(out), "--stream")
    run.wait_for(lambda: has_epoch(out / "train.jsonl"))
    run.process.send_signal(signal.SIGTERM)
    status, output = run.end()
    assert status != 0
    assert "error: stopped by SIGTERM; start it again" in output
    assert_stopped(out)
    fsachain.ok(*training(out)[1:], "--stream")
    resumed = [event for event in read_log(out / "train.jsonl") if event["event"] == "resume"]
    assert [event["processes"] for event in resumed] == [1]
    assert (out / "model.safetensors").exists()
