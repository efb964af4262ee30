"""The command `train`: with --stream it gives the model of a training in memory; with schedules it does as they say."""

import lhotse
import pytest
import torch
from cli_fixtures import graphs_of

from fsachain.asr.train.checkpoint import load_tensors
from fsachain.asr.train.log import read_log

OPTIONS = "train: {num_epochs: 2, batch_size: 4, batch_frames: 250, average_last: 1}\nperturbation: {speeds: [0.9, 1.0]}\n"
BASE = "features: {sample_rate: 8000, num_mel_bins: 8}\nnetwork: {channels: 8, time_strides: [1]}\n"


@pytest.fixture
def ready(fsachain, recorded):
    """The corpus with numerators in both forms, and a configuration."""
    (recorded / "small.yaml").write_text(BASE + OPTIONS + "cmvn: {scope: speaker}\n")
    graphs = graphs_of(recorded)
    fsachain.ok("num-graphs", recorded / "data", recorded / "num.npz", *graphs)
    fsachain.ok("num-tables", recorded / "data", recorded / "tables", *graphs)
    return recorded


@pytest.fixture
def train(fsachain, ready):
    """Train on some numerators; returns status, what was written, and the model's tensors."""

    def run(numerators, out, *options):
        graphs = (*graphs_of(ready), "--config", ready / "small.yaml")
        dev = ("--dev", ready / "data", numerators)
        status, _, told = fsachain("train", ready / "data", numerators, ready / out, *graphs, *dev, *options)
        model = ready / out / "model.safetensors"
        return status, told, load_tensors(model)[0] if model.is_file() else {}

    return run


def assert_same(one, other):
    assert one
    torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("scope", ["global", "speaker"])
def test_a_streamed_training_gives_the_model_of_one_in_memory_bit_for_bit(train, ready, scope):
    (ready / "small.yaml").write_text(BASE + OPTIONS + f"cmvn: {{scope: {scope}}}\n")
    status, told, whole = train(ready / "num.npz", "whole")
    assert status == 0, told
    status, told, streamed = train(ready / "tables", "streamed", "--stream", "--workers", "2")
    assert status == 0, told
    assert_same(whole, streamed)
    status, told, compiled = train("-", "compiled", "--stream", "--cache", ready / "cache")
    assert status == 0, told
    assert_same(whole, compiled)


def test_a_broken_recording_is_named_once_and_the_streamed_training_goes_on(train, ready):
    path = ready / "data/3.wav"
    path.write_bytes(path.read_bytes()[:44] + b"\xff" * 100)  # its header still promises a second
    status, told, model = train(ready / "tables", "out", "--stream")
    assert status == 3, told
    assert model
    assert "u3" in told


def test_chunks_and_options_of_streaming_without_it_are_refused(fsachain, train, ready):
    status, told, _ = train("-", "out")
    assert status == 1
    assert "--stream" in told
    status, told, _ = train(ready / "tables", "out", "--shards-at-once", "2")
    assert status == 2 and "--shards-at-once goes with --stream" in told
    status, told, _ = train(ready / "tables", "other", "--stream", "--shards-at-once", "2")
    assert status == 1 and "several shards" in told


def test_cuts_and_shards_train_the_model_of_the_kaldi_directory(fsachain, ready):
    cuts = []
    for line in (ready / "data/text").read_text().splitlines():
        name, text = line.split(maxsplit=1)
        recording = lhotse.Recording.from_file(ready / f"data/{name[1:]}.wav", recording_id=name)
        said = lhotse.SupervisionSegment(name, name, 0.0, recording.duration, text=text, speaker=name)
        cuts.append(
            lhotse.MonoCut(name, 0.0, recording.duration, 0, supervisions=[said], recording=recording)
        )
    (ready / "shar").mkdir()
    lhotse.CutSet.from_cuts(cuts).to_file(ready / "cuts.jsonl.gz")
    lhotse.CutSet.from_cuts(cuts).to_shar(ready / "shar", fields={"recording": "wav"}, shard_size=2)
    graphs = (*graphs_of(ready), "--config", ready / "small.yaml")
    models = []
    for data, options in (
        ("data", ()),
        ("cuts.jsonl.gz", ("--stream",)),
        ("shar", ("--stream",)),
        ("shar", ("--stream", "--shards-at-once", "1")),
    ):
        folder, out = ready / data, ready / f"out-{len(models)}"
        lm = ("phone-lm", folder / "text" if data == "data" else folder, ready / "lm.fst", *graphs[:2])
        fsachain.ok(*lm)
        assert (ready / "lm.fst").read_bytes() == (ready / "phone_lm.fst").read_bytes()
        numerators = "-" if options else ready / "num.npz"
        fsachain.ok("train", folder, numerators, out, *graphs, *options)
        models.append(load_tensors(out / "model.safetensors")[0])
    assert "cuts of lhotse: 5 utterances, 11 words, 5 speakers" in fsachain("info", ready / "shar")[1]
    for other in models[1:3]:
        assert_same(models[0], other)
    assert any(not torch.equal(models[0][name], models[3][name]) for name in models[0])


# Schedules, groups and the choice of the final model, from a configuration file through the command `train`.


SECTIONS = """features: {sample_rate: 8000, num_mel_bins: 8}
network: {channels: 8, time_strides: [1], xent: branch}
cmvn: {scope: none}
loss:
  leaky_hmm_coefficient: 0.1,0.01
  denominator_scale: [[0.5, 0], [1, 0.5], [1, 1]]
  xent_regularize: 0.3,0.1
train:
  num_epochs: 2
  batch_size: 2
  dropout_schedule: 0,0.4@0.5,0
  optimizer: {name: adamw, weight_decay: 0.01, decayed: weights, max_change: 2, factors: {input_layer: 0.5}}
"""


def test_a_configuration_with_schedules_trains_as_it_says(fsachain, train, ready):
    (ready / "small.yaml").write_text(SECTIONS)
    status, told, _ = train(ready / "num.npz", "model")
    assert status == 0, told
    events = list(read_log(ready / "model" / "train.jsonl"))
    last = [event for event in events if event["event"] == "epoch"][-1]
    assert (last["leaky_hmm_coefficient"], last["denominator_scale"]) == (0.01, 1.0)
    assert (last["xent_regularize"], last["dropout"]) == (0.1, 0.0)
    assert "l2_regularize" not in last  # it does not change
    assert fsachain.ok("info", ready / "model" / "model.safetensors").out
