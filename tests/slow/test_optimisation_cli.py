"""Schedules, groups and the choice of the final model, from a configuration file through the command `train`."""

from cli_fixtures import built, fsachain, recorded

from fsachain.train.log import read_log

__all__ = ["built", "fsachain", "recorded"]


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
  average_last: 2
  dropout_schedule: 0,0.4@0.5,0
  ema: 0.9
  combine: best-average
  combine_on: train
  optimizer: {name: adamw, weight_decay: 0.01, decayed: weights, max_change: 2, factors: {input_layer: 0.5}}
"""


def trained(fsachain, place, text):
    (place / "config.yaml").write_text(text)
    lang, den = ("--lang", place / "lang"), ("--den", place / "den")
    numerators = place / "numerators.npz"
    fsachain.ok("num-graphs", place / "data", numerators, *lang, *den)
    status, _, errors = fsachain(
        "train", place / "data", numerators, place / "model", *lang, *den, "--config", place / "config.yaml"
    )
    return status, errors


def test_a_configuration_with_schedules_trains_as_it_says(fsachain, recorded):
    status, errors = trained(fsachain, recorded, SECTIONS)
    assert status == 0, errors
    events = list(read_log(recorded / "model" / "train.jsonl"))
    last = [event for event in events if event["event"] == "epoch"][-1]
    assert (last["leaky_hmm_coefficient"], last["denominator_scale"]) == (0.01, 1.0)
    assert (last["xent_regularize"], last["dropout"]) == (0.1, 0.0)
    assert "l2_regularize" not in last  # it does not change
    assert list(events[-1]["candidates"]) == ["1", "2", "ema"]
    output = fsachain.ok("info", recorded / "model" / "model.safetensors").out
    assert output
