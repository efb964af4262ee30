"""The command and the recipes under torchrun: one model by two processes, restarts, SIGTERM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fsachain.train.checkpoint import Checkpoint, list_checkpoints, load_tensors
from fsachain.train.log import read_log

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 240.0  # seconds that torchrun may take, on a machine that does other things too
CONFIG = (
    "features: {sample_rate: 8000, num_mel_bins: 8}\nnetwork: {channels: 8, time_strides: [1]}\n"
    "train: {num_epochs: 50, batch_size: 2, num_threads: 1, process_timeout: 100}\ncmvn: {scope: none}\n"
)
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")},
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
}


@pytest.fixture
def arguments(fsachain, recorded):
    """The arguments of a training of five utterances, in batches of two, two and one."""
    numerators, lang = recorded / "num.npz", ("--lang", recorded / "lang")
    made = fsachain("num-graphs", recorded / "data", numerators, *lang, "--den", recorded / "den")
    assert made[0] == 0, made[2]
    (recorded / "config.yaml").write_text(CONFIG)
    dev = ("--dev", recorded / "data", numerators)
    options = (*lang, "--den", recorded / "den", "--config", recorded / "config.yaml", *dev)
    return lambda out: ["train", *map(str, (recorded / "data", numerators, out, *options))]


class Run2:
    """torchrun with two processes."""

    def __init__(self, arguments, *options):
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        self.process = subprocess.Popen(
            [*start, *options, "-m", "fsachain", *arguments],
            cwd=ROOT,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def worker(self, rank):
        """The process number of a worker that runs."""
        parent = self.process.pid
        for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            if f"LOCAL_RANK={rank}\0" in Path(f"/proc/{child}/environ").read_text():
                return int(child)
        raise AssertionError(f"torchrun has no worker {rank}")

    def wait_for(self, ready):
        until = time.monotonic() + PATIENCE
        while not ready():
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < until, "torchrun takes too long"
            time.sleep(0.01)

    def end(self):
        """Status and output."""
        output = self.process.communicate(timeout=PATIENCE)[0]
        return self.process.returncode, output


@pytest.fixture
def torchrun():
    runs: list[Run2] = []

    def start(arguments, *options):
        runs.append(Run2(arguments, *options))
        return runs[-1]

    yield start
    for run in runs:
        run.process.kill()


def has_epochs(log, count=1):
    return log.exists() and log.read_text().count('"event": "epoch"') >= count


def test_torchrun_restarts_a_training_whose_process_was_killed_and_no_bit_of_the_result_changes(
    arguments, torchrun, tmp_path
):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    status, output = torchrun(arguments(whole)).end()
    assert status == 0, output
    run = torchrun(arguments(broken), "--max-restarts", "1")
    run.wait_for(lambda: bool(list_checkpoints(broken / "checkpoints")))  # written after the epoch's line
    os.kill(run.worker(1), signal.SIGKILL)
    status, output = run.end()
    assert status == 0, output
    events = [event["event"] for event in read_log(broken / "train.jsonl")]
    assert events.count("start") == 2
    assert "resume" in events
    model, expected = (load_tensors(folder / "model.safetensors")[0] for folder in (broken, whole))
    assert all(torch.equal(model[name], value) for name, value in expected.items())
    assert output.count("model -> ") == 1


def test_sigterm_to_torchrun_saves_once_and_one_process_goes_on(arguments, torchrun, fsachain, tmp_path):
    """With a corpus that is streamed: each process prepares its own utterances."""
    out = tmp_path / "model"
    run = torchrun([*arguments(out), "--stream"])
    run.wait_for(lambda: has_epochs(out / "train.jsonl"))
    run.process.send_signal(signal.SIGTERM)
    status, output = run.end()
    assert status != 0
    assert "error: stopped by SIGTERM; start it again" in output
    events = list(read_log(out / "train.jsonl"))
    assert [event["event"] for event in events].count("stopped") == 1
    checkpoint = Checkpoint.load(list_checkpoints(out / "checkpoints")[-1])
    assert checkpoint.step == events[-1]["step"] > 0
    assert json.loads((out / "stages.jsonl").read_text().splitlines()[-1])["event"] == "stopped"
    fsachain.ok(*arguments(out), "--stream")
    resumed = [event for event in read_log(out / "train.jsonl") if event["event"] == "resume"]
    assert [event["processes"] for event in resumed] == [1]
    assert (out / "model.safetensors").exists()
