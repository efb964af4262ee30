"""Schedules, limits, moving averages and combination within whole trainings: what they do, and that they resume."""

from typing import Any

import pytest
import tolerances
import torch
from broken_off import BreakAfter, Interruption
from toy_training import ToyLoss, ToyModel, config, corpus, new_trainer

from fsachain.data.augment import AugmentConfig
from fsachain.errors import ConfigError
from fsachain.train.checkpoint import Checkpoint, epoch_checkpoints, list_checkpoints, load_tensors
from fsachain.train.config import OptimizerConfig
from fsachain.train.log import read_log
from fsachain.train.schedule import Schedule
from fsachain.train.trainer import Trainer

EVERYTHING: dict[str, Any] = {
    "dropout_schedule": Schedule.parse("0,0@0.2,0.5@0.5,0"),
    "optimizer": OptimizerConfig(
        max_change=0.08,
        max_change_per_component=0.05,
        factors={"hidden": 0.5},
        freeze_epochs={"norm": 2},
        weight_decay=0.01,
        decayed="weights",
    ),
    "ema": 0.9,
    "combine": "best-average",
    "average_last": 3,
    "checkpoint_every": 2,
}


def end_of(directory):
    return [event for event in read_log(directory / "train.jsonl") if event["event"] == "end"][-1]


def assert_equal_models(trainer, other):
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(value, other.model.state_dict()[name]), name


@pytest.mark.parametrize("broken_after", [5, 9, 17])
def test_a_training_with_everything_resumes_bit_for_bit(broken_after, tmp_path):
    examples, numerators = corpus()
    augmentation = AugmentConfig(time_masks=1, time_mask_frames=4, frame_shift=2)
    whole = new_trainer(tmp_path / "whole", numerators, **EVERYTHING)
    expected = whole.fit(examples, examples[:4], augmentation=augmentation)
    broken = new_trainer(tmp_path / "broken", numerators, **EVERYTHING)
    broken.progress = BreakAfter(broken_after)
    with pytest.raises(Interruption):
        broken.fit(examples, examples[:4], augmentation=augmentation)
    torch.manual_seed(77)
    resumed = Trainer(ToyModel(), ToyLoss(), config(**EVERYTHING), tmp_path / "broken", numerators=numerators)
    result = resumed.fit(examples, examples[:4], augmentation=augmentation)
    for part in ("train", "dev"):
        assert [e[part]["objf"] for e in result.epochs] == [e[part]["objf"] for e in expected.epochs]
    assert_equal_models(whole, resumed)
    assert "resume" in [event["event"] for event in read_log(tmp_path / "broken" / "train.jsonl")]
    ends = [end_of(tmp_path / name) for name in ("whole", "broken")]
    assert ends[0]["candidates"] == ends[1]["candidates"]


def test_a_training_broken_off_while_it_combines_makes_the_same_model(tmp_path, monkeypatch):
    examples, numerators = corpus()
    whole = new_trainer(tmp_path / "whole", numerators, **EVERYTHING)
    whole.fit(examples, examples[:4])
    broken = new_trainer(tmp_path / "broken", numerators, **EVERYTHING)
    evaluate, left = broken._stepper.evaluate, [broken.config.num_epochs + 2]

    def breaks(*arguments):
        left[0] -= 1
        if not left[0]:
            raise Interruption
        return evaluate(*arguments)

    monkeypatch.setattr(broken._stepper, "evaluate", breaks)
    with pytest.raises(Interruption):
        broken.fit(examples, examples[:4])
    resumed = new_trainer(tmp_path / "broken", numerators, **EVERYTHING)
    resumed.fit(examples, examples[:4])
    assert_equal_models(whole, resumed)
    assert end_of(tmp_path / "whole")["candidates"] == end_of(tmp_path / "broken")["candidates"]


@pytest.mark.parametrize("combine_on", ["dev", "train"])
def test_the_final_model_is_the_candidate_with_the_best_objective(combine_on, tmp_path):
    examples, numerators = corpus()
    options = {"combine": "best-average", "combine_on": combine_on, "average_last": 3, "ema": 0.9}
    trainer = new_trainer(tmp_path, numerators, **options)
    result = trainer.fit(examples, examples[:6])
    candidates = end_of(tmp_path)["candidates"]
    assert list(candidates) == ["1", "2", "3", "ema"]
    best = max(candidates, key=lambda name: candidates[name])
    if combine_on == "dev":
        assert result.dev["objf"] == pytest.approx(candidates[best], abs=tolerances.SIX_DECIMALS)
    models = [Checkpoint.load(path).model for path in epoch_checkpoints(tmp_path / "checkpoints")]
    newest = Checkpoint.load(epoch_checkpoints(tmp_path / "checkpoints")[-1])
    chosen = [newest.ema] if best == "ema" else models[-int(best) :]
    mean = sum(model["output.weight"].double() for model in chosen) / len(chosen)
    final, header = load_tensors(result.model_path)
    torch.testing.assert_close(
        final["output.weight"].double(), mean, atol=tolerances.FLOAT32_ROUNDING, rtol=0
    )
    assert len(header["averaged"]) == (0 if best == "ema" else int(best))


def test_the_kinds_of_ending_give_the_models_they_name(tmp_path):
    """All of them from one training: how it ends does not change its course."""
    examples, numerators = corpus()
    weights, newest = {}, {}
    for kind, ema in (("mean", 0.0), ("none", 0.0), ("ema", 0.9)):
        trainer = new_trainer(tmp_path / kind, numerators, combine=kind, ema=ema)
        trainer.fit(examples)
        weights[kind] = trainer.model.state_dict()["output.weight"]
        newest[kind] = Checkpoint.load(list_checkpoints(tmp_path / kind / "checkpoints")[-1])
    last = newest["none"].model["output.weight"]
    assert all(torch.equal(checkpoint.model["output.weight"], last) for checkpoint in newest.values())
    assert torch.equal(weights["none"], last)
    assert torch.equal(weights["ema"], newest["ema"].ema["output.weight"])
    assert not torch.equal(weights["ema"], last)
    assert not torch.equal(weights["mean"], last)
    assert end_of(tmp_path / "ema")["averaged"] == 0


def test_best_average_without_a_development_set_is_refused_before_the_training(tmp_path):
    examples, numerators = corpus(10)
    with pytest.raises(ConfigError, match="chosen on a development set, and there is none"):
        new_trainer(tmp_path, numerators, combine="best-average").fit(examples)
    assert not list_checkpoints(tmp_path / "checkpoints")
