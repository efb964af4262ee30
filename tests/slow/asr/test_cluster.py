"""Features, graphs, streamed training and decoding by the workers of a Dask cluster: the results of this machine alone."""

from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import distributed
import numpy as np
import pytest
import torch

from fsachain.asr.cli.resources import executor_at
from fsachain.asr.data.workers import Workers
from fsachain.asr.train.checkpoint import load_tensors
from fsachain.errors import DataError
from fsachain.graph.shards import TableShards


@pytest.fixture(scope="module")
def scheduler():
    """The address of a cluster whose workers are threads of this process."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, protocol="tcp://", dashboard_address=None
    ) as cluster:
        yield cluster.scheduler_address


@pytest.fixture
def graphs(recorded):
    return ("--lang", recorded / "lang", "--den", recorded / "den")


def test_graphs_of_a_cluster_are_those_of_this_machine(fsachain, scheduler, recorded, graphs):
    (recorded / "data/text").write_text("u1 yes no\nu2 what\nu3 no no yes\nu4 yes no no\nu5\n")
    for name, options in (("here", ()), ("there", ("--scheduler", scheduler))):
        for command, place in (("num-graphs", f"{name}.npz"), ("num-tables", name)):
            step = (command, recorded / "data", recorded / place, *graphs, *options)
            assert "2 utterances left out" in fsachain.ends(3, *step).out
    here, there = np.load(recorded / "here.npz"), np.load(recorded / "there.npz")
    assert here.files == there.files
    for name in here.files:
        assert np.array_equal(here[name], there[name]), name
    (recorded / "patterns").write_text("u1 ( 0.7 yes | 0.3 no )\nu2 * no *\n")
    for name, options in (("here", ()), ("there", ("--scheduler", scheduler))):
        place = recorded / f"{name}-patterns.npz"
        fsachain.ok("num-patterns", recorded / "patterns", place, *graphs, *options)
    assert (recorded / "here-patterns.npz").read_bytes() == (recorded / "there-patterns.npz").read_bytes()
    one, other = TableShards(recorded / "here"), TableShards(recorded / "there")
    assert list(one) == list(other) == ["u1", "u3", "u4"]
    for name in one:
        assert np.array_equal(one[name].by_src.log_prob, other[name].by_src.log_prob)


def test_training_and_decoding_with_a_cluster_give_the_results_of_this_machine(
    fsachain, scheduler, recorded, graphs
):
    data = recorded / "data"
    fsachain.ok("num-graphs", data, recorded / "num.npz", *graphs)
    texts = []
    for name, stream, options in (
        ("here", ("--stream",), ()),
        ("there", ("--stream",), ("--scheduler", scheduler)),
    ):
        out = recorded / name
        settings = ("--config", recorded / "small.yaml")
        fsachain.ok("train", data, recorded / "num.npz", out, *graphs, *settings, *stream, *options)
        lang = ("--lang", recorded / "lang", "--workers", 1)
        fsachain.ok("decode", out / "model.safetensors", data, out / "decoded", *lang, *options)
        texts.append((out / "decoded/hyp.txt").read_text())
    models = [load_tensors(recorded / name / "model.safetensors")[0] for name in ("here", "there")]
    torch.testing.assert_close(*models, rtol=0, atol=0)
    assert texts[0] == texts[1]


class Losing(ThreadPoolExecutor):
    """An executor that loses its worker, as Dask tells it."""

    def submit(self, *_):
        future: Future[object] = Future()
        future.set_exception(
            distributed.scheduler.KilledWorker("task", SimpleNamespace(address="tcp://somewhere"), 3)
        )
        return future


def test_a_worker_of_a_cluster_that_dies_is_an_error_in_one_line():
    with Losing(1) as executor, pytest.raises(DataError, match=r"ended from outside \(KilledWorker"):
        list(Workers(str, executor=executor).ahead([[1]], depth=1))


def test_a_cluster_without_workers_is_told(capsys):
    options = {"n_workers": 0, "processes": False, "protocol": "tcp://", "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster:
        with executor_at(cluster.scheduler_address):
            assert "has no worker yet; waiting for one" in capsys.readouterr().err
        cluster.scale(1)
        with distributed.Client(cluster) as client:
            client.wait_for_workers(1)
        with executor_at(cluster.scheduler_address):
            assert capsys.readouterr().err == ""
