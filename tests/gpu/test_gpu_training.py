"""On a GPU: a training is that on the host, stopped and gone on with or not, and that of two processes which NCCL joins."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tolerances
import torch
from gpu_inputs import needs_gpu, the_host_is_the_reference  # noqa: F401
from process_group import Group
from shared_work import Ended, Plan, Trained, train
from toy_training import corpus, lfmmi_trainer

from fsachain.asr.data.dataset import collate
from fsachain.asr.train.checkpoint import Checkpoint, list_checkpoints
from fsachain.asr.train.world import World

pytest.importorskip("safetensors")
pytestmark = needs_gpu

DEVICE = torch.device("cuda", 0)
HOST = torch.device("cpu")


@pytest.fixture(autouse=True)
def float32_is_float32(monkeypatch):
    """Convolutions else round their inputs to TF32, which no host does."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def train_on(device, plan):
    found = train(World(device=device), plan)
    assert isinstance(found, Trained), found
    return found


def assert_same(found, expected, tolerance=tolerances.DEVICE_TRAINING):
    torch.testing.assert_close(found.state, expected.state, rtol=0, atol=tolerance)
    for ours, theirs in zip(found.epochs, expected.epochs, strict=True):
        for part in ("train", "dev"):
            assert ours[part]["objf"] == pytest.approx(theirs[part]["objf"], abs=tolerance)
            assert ours[part]["output_frames"] == theirs[part]["output_frames"]


@pytest.mark.parametrize(("kind", "micro_batch"), [("linear", 0), ("tdnnf", 0), ("tdnnf", 2)])
def test_a_training_on_a_gpu_is_that_on_the_host(kind, micro_batch, tmp_path):
    plan = Plan(tmp_path / "gpu", kind, {"num_epochs": 3, "micro_batch": micro_batch})
    found = train_on(DEVICE, plan)
    assert_same(found, train_on(HOST, replace(plan, folder=tmp_path / "host")))
    newest = Checkpoint.load(list_checkpoints(plan.folder / "checkpoints")[-1])
    assert DEVICE.type in newest.rng


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_sixteen_bits_learn_what_float32_learns(precision, tmp_path):
    plan = Plan(tmp_path / "float32", options={"num_epochs": 3})
    exact = train_on(DEVICE, plan)
    options = {**plan.options, "precision": precision}
    found = train_on(DEVICE, replace(plan, folder=tmp_path / precision, options=options))
    assert found.dev["objf"] == pytest.approx(exact.dev["objf"], rel=tolerances.BFLOAT16_LOSS)
    assert all(value.dtype == exact.state[name].dtype for name, value in found.state.items())


def test_a_training_that_is_stopped_goes_on_with_the_same_dropout(tmp_path):
    plan = Plan(tmp_path / "whole", options={"num_epochs": 3}, dropout=0.3)
    whole = train_on(DEVICE, plan)
    plan = replace(plan, folder=tmp_path / "parts")
    assert isinstance(train(World(device=DEVICE), replace(plan, stop_at=1)), Ended)
    assert_same(train_on(DEVICE, plan), whole)


def test_a_network_on_a_gpu_learns_every_utterance(tmp_path):
    examples, numerators = corpus()
    trainer = lfmmi_trainer(tmp_path, numerators, world=World(device=DEVICE), num_epochs=15)
    trainer.fit(examples, examples[:4])
    batch = collate(examples)
    with torch.inference_mode():
        output = trainer.model(batch.features.to(DEVICE), batch.lengths)
    assert output.nnet_output.device == DEVICE
    for example, scores, length in zip(examples, output.nnet_output, output.lengths.tolist(), strict=True):
        (said,) = numerators[example.id].active_pdfs.tolist()
        assert int(scores[:length].sum(dim=0).argmax()) == said, example.id


@pytest.fixture(scope="module")
def pair():
    group = Group(2, on_one_gpu=True)
    yield group
    group.close()


@pytest.mark.parametrize("batch_size", [5, 1])
def test_two_processes_by_nccl_are_one(pair, batch_size, tmp_path):
    """Each takes the same GPU; with batches of one the second never has an utterance."""
    options = {"batch_size": batch_size, "num_epochs": 3 if batch_size > 1 else 1}
    plan = Plan(tmp_path / "alone", options=options)
    alone = train_on(DEVICE, plan)
    first, second = pair.ask(train, [replace(plan, folder=tmp_path / str(rank)) for rank in range(2)])
    assert isinstance(first, Trained), first
    assert isinstance(second, Trained), second
    assert all(torch.equal(second.state[name], value) for name, value in first.state.items())
    assert_same(first, alone)
