"""Killed at any point, out of disk, or with a damaged checkpoint, a training ends as if nothing had happened.

The normal suite kills at every step of one checkpoint and a few random times; `make test-kills` at every point where
a training touches a file, and at twenty random times.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from kill_server import Server

from fsachain.asr.cli import EXIT_USER_ERROR
from fsachain.asr.train.checkpoint import Checkpoint, list_checkpoints, load_tensors
from fsachain.asr.train.log import read_log
from fsachain.files import PARTIAL
from fsachain.graph.shards import TableShards

ALL = os.environ.get("FSACHAIN_KILLS") == "all"
RANDOM_KILLS = 20 if ALL else 4
SECOND_CHECKPOINT = range(10, 24)  # the points of writing the second checkpoint and deleting the first
TRAINING = range(97) if ALL else SECOND_CHECKPOINT


@pytest.fixture(scope="module")
def server():
    running = Server()
    yield running
    running.close()


@pytest.fixture(scope="module")
def whole(server, tmp_path_factory):
    """A training that nothing happens to."""
    folder = tmp_path_factory.mktemp("whole")
    ended = server.run("train", folder)
    assert ended.status == 0, ended.message
    return folder, ended


def losses(folder):
    """The objectives that were seen after each batch, in hexadecimal."""
    found: dict[tuple[str, str], set[str]] = {}
    for line in (folder / "losses.txt").read_text().splitlines():
        epoch, batch, objf = line.split()
        found.setdefault((epoch, batch), set()).add(objf)
    return found


def assert_same(folder, whole):
    """Losses of all steps, final model, figures of all epochs and the log are those of the whole training."""
    assert losses(folder) == losses(whole)
    model, header = load_tensors(folder / "model" / "final.safetensors")
    expected, expected_header = load_tensors(whole / "model" / "final.safetensors")
    torch.testing.assert_close(model, expected, rtol=0, atol=0)
    assert header["averaged"] == expected_header["averaged"]
    assert header["dev"]["objf"] == expected_header["dev"]["objf"]
    epochs, expected_epochs = (
        [
            (event["epoch"], event["step"], event["train"]["objf"], event["dev"]["objf"])
            for event in read_log(place / "model" / "train.jsonl")
            if event["event"] == "epoch"
        ]
        for place in (folder, whole)
    )
    assert epochs == expected_epochs
    assert [path.name for path in list_checkpoints(folder / "model" / "checkpoints")] == [
        path.name for path in list_checkpoints(whole / "model" / "checkpoints")
    ]
    assert not list(folder.rglob(f"*{PARTIAL}"))


def test_the_points_of_the_normal_suite_are_every_step_of_one_checkpoint(whole):
    points = whole[1].points
    assert points[SECOND_CHECKPOINT.start : SECOND_CHECKPOINT.stop] == [
        "half a line of the log",
        "half written",
        "before fsync",
        "after fsync",
        "before rename",
        "after rename",
        "before fsync of the folder",
        "before fsync",
        "after fsync",
        "after fsync of the folder",
        "before deletion",
        "after deletion",
        "half written",
        "before fsync",
    ]
    assert not ALL or len(points) == len(TRAINING)


@pytest.mark.parametrize("point", TRAINING)
def test_a_training_killed_at_a_point_ends_as_if_it_had_not_been(point, server, whole, tmp_path):
    killed = server.run("train", tmp_path, point=point, kind="kill")
    assert killed.signal == signal.SIGKILL
    assert server.run("train", tmp_path).status == 0
    assert_same(tmp_path, whole[0])


def test_trainings_killed_again_and_again_at_random_times_end_as_if_they_had_not_been(
    server, whole, tmp_path
):
    """A kill that comes after the end counts not; then the next training begins."""
    generator = random.Random(7)
    kills, folder = 0, tmp_path
    for attempt in range(10 * RANDOM_KILLS):
        if kills == RANDOM_KILLS:
            break
        ended = server.run("train", folder, after=generator.uniform(0.0, whole[1].seconds))
        if ended.signal == signal.SIGKILL:
            kills += 1
            continue
        assert ended.status == 0, ended.message
        assert_same(folder, whole[0])
        folder = tmp_path / str(attempt)
        folder.mkdir()
    assert kills == RANDOM_KILLS
    assert server.run("train", folder).status == 0
    assert_same(folder, whole[0])


@pytest.mark.parametrize(
    ("kind", "reason"), [("full", "No space left"), ("read-only", "Read-only file system")]
)
@pytest.mark.parametrize("point", [23, 24, 26, 28] if ALL else [22, 26])
def test_a_disk_that_takes_no_more_is_a_clear_error_and_the_old_checkpoint_stays(
    kind, reason, point, server, whole, tmp_path
):
    failed = server.run("train", tmp_path, point=point, kind=kind)
    assert failed.status == EXIT_USER_ERROR
    assert reason in failed.message
    assert ".safetensors: " in failed.message
    assert "\n" not in failed.message
    folder = tmp_path / "model" / "checkpoints"
    assert [Checkpoint.load(path).epoch for path in list_checkpoints(folder)]
    assert not list(folder.glob(f"*{PARTIAL}"))
    assert server.run("train", tmp_path).status == 0
    assert_same(tmp_path, whole[0])


def damage(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("which", ["newest", "averaged", "spare"])
def test_a_damaged_checkpoint_is_said_loudly_and_an_earlier_one_is_used(which, server, whole, tmp_path):
    """Also one that is not the newest: the final model is an average, which needs it."""
    points = whole[1].points
    last = len(points) - 1 - points[::-1].index("before rename")  # of the final model
    assert server.run("train", tmp_path, point=last, kind="kill").signal == signal.SIGKILL
    paths = list_checkpoints(tmp_path / "model" / "checkpoints")
    broken = dict(zip(("spare", "averaged", "newest"), paths, strict=True))[which]
    damage(broken)
    resumed = server.run("train", tmp_path)
    assert resumed.status == 0, resumed.message
    said = (tmp_path / "messages.txt").read_text()
    assert f"WARNING: damaged checkpoint: {broken}: " in said
    assert ("going on from the earlier checkpoint" in said) == (which != "spare")
    if which != "spare":
        assert_same(tmp_path, whole[0])
    warnings = [
        event for event in read_log(tmp_path / "model" / "train.jsonl") if event["event"] == "warning"
    ]
    assert any(broken.name in event["text"] for event in warnings)


def test_where_no_checkpoint_is_sound_training_does_not_silently_begin_anew(server, tmp_path):
    server.run("train", tmp_path, point=60, kind="kill")
    paths = list_checkpoints(tmp_path / "model" / "checkpoints")
    for path in paths:
        damage(path)
    failed = server.run("train", tmp_path)
    assert failed.status == EXIT_USER_ERROR
    assert "no checkpoint can be gone on from" in failed.message
    assert list_checkpoints(tmp_path / "model" / "checkpoints") == paths


@pytest.fixture
def recordings(tmp_path):
    for n in range(3):
        soundfile.write(tmp_path / f"{n}.wav", np.sin(np.arange(800.0) * (n + 1) / 10), 8000)
    return tmp_path


def cached(folder):
    return {
        path.name: [np.load(path)[name].tobytes() for name in ("frames", "lengths")]
        for path in sorted((folder / "cache").glob("*.npz"))
    }


def test_a_feature_cache_killed_at_each_step_of_a_file_is_filled_by_the_next_run(server, recordings):
    ended = server.run("cache", recordings)
    expected = cached(recordings)
    assert len(expected) == 2
    for point in range(len(ended.points) // 2):
        for path in (recordings / "cache").iterdir():
            path.unlink()
        assert server.run("cache", recordings, point=point, kind="kill").signal == signal.SIGKILL
        assert server.run("cache", recordings).status == 0
        assert cached(recordings) == expected


def test_a_killed_run_of_many_numerators_goes_on_with_what_is_missing(fsachain, built):
    """The process is killed as soon as its first file is there; the second run makes the others, as one run would."""
    rng = np.random.default_rng(0)
    names = [f"u{n:05d}" for n in range(2000)]
    said = [" ".join(rng.choice(["yes", "no"], size=6)) for _ in names]
    (built / "data/text").write_text("".join(f"{n} {s}\n" for n, s in zip(names, said, strict=True)))
    (built / "data/wav.scp").write_text("".join(f"{n} absent.wav\n" for n in names))
    arguments = ["num-tables", built / "data", built / "tables", "--lang", built / "lang", "--shard-size", 20]
    command = [sys.executable, "-c", "from fsachain.asr.cli import main; main()", *map(str, arguments)]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[3])
    try:
        while not list((built / "tables").glob("*.tables")) and process.poll() is None:
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    made = {path: path.stat().st_mtime_ns for path in (built / "tables").glob("*.tables")}
    assert 0 < len(made) < 100, "killed too late"
    text = fsachain.ok(*arguments).out
    assert f"\n2000 numerators in 100 shards, {len(made)} of them were there" in text
    assert all(path.stat().st_mtime_ns == before for path, before in made.items())
    assert len(list((built / "tables").iterdir())) == 100
    assert list(TableShards(built / "tables")) == names
