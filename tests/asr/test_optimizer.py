"""The optimiser of a training: groups of parameters, freezing, limits on a step's change, means of models at the end."""

import itertools
import math
from typing import Any

import pytest
import tolerances
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from toy_training import BreakAfter, Interruption, ToyLoss, ToyModel, config, corpus, new_trainer

from fsachain.asr.data.augment import AugmentConfig
from fsachain.asr.train.checkpoint import Checkpoint, list_checkpoints, load_tensors
from fsachain.asr.train.config import OPTIMIZERS, OptimizerConfig, TrainConfig
from fsachain.asr.train.ending import best_average
from fsachain.asr.train.log import read_log
from fsachain.asr.train.optimizer import MaxChange, Schedules, by_prefix, make_optimizer, set_learning_rate
from fsachain.asr.train.schedule import Schedule
from fsachain.asr.train.step import GROW_AFTER, Precision
from fsachain.asr.train.trainer import Trainer
from fsachain.errors import ConfigError

every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)


def copied(model):
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def by_name(model, optimizer, field):
    """A field of the parameter groups, such as "lr", for each parameter."""
    found = {id(p): group[field] for group in optimizer.param_groups for p in group["params"]}
    return {name: found[id(value)] for name, value in model.named_parameters()}


def moved_by_a_step(model, optimizer):
    before = copied(model)
    optimizer.zero_grad(set_to_none=True)
    model(torch.randn(4, 9, 4), torch.full((4,), 9)).nnet_output.square().sum().backward()
    optimizer.step()
    return {name: not torch.equal(value, before[name]) for name, value in model.named_parameters()}


def with_schedules(model, options, num_epochs):
    optimizer = make_optimizer(model, options)
    return optimizer, Schedules(
        model, None, optimizer, TrainConfig(num_epochs=num_epochs, optimizer=options), {}
    )


def test_factors_scale_the_learning_rate_by_the_longest_prefix():
    factors = {"hidden": 0.1, "hidden.bias": 0.0, "norm": 2.0}
    optimizer = make_optimizer(model := ToyModel(), OptimizerConfig(factors=factors))
    set_learning_rate(optimizer, 0.5)
    assert by_name(model, optimizer, "lr") == {
        "hidden.weight": 0.05,
        "hidden.bias": 0.0,
        "norm.weight": 1.0,
        "norm.bias": 1.0,
        "output.weight": 0.5,
        "output.bias": 0.5,
    }
    moved = moved_by_a_step(model, optimizer)
    assert moved["hidden.weight"] and not moved["hidden.bias"]
    names = "encoder.layers.1.weight", "encoder.weight", "encoder2.weight", "enc.weight"
    values = {"encoder": 1.0, "encoder.layers": 2.0, "enc": 3.0}
    assert list(by_prefix(names, values, 0.0, "").values()) == [2.0, 1.0, 0.0, 3.0]


@pytest.mark.parametrize("option", ["factors", "freeze_epochs"])
def test_a_prefix_of_no_parameter_is_refused_by_name(option):
    for prefix, message in {
        "hiden": rf"{option}: 'hiden' begins no parameter's name; did you mean 'hidden'",
        "zzz": "they begin with hidden, norm, output",
    }.items():
        with pytest.raises(ConfigError, match=message):
            with_schedules(ToyModel(), OptimizerConfig(**{option: {prefix: 1.0}}), 1)


def test_freezing_every_parameter_at_the_start_is_refused():
    every = {"hidden": 1.0, "norm": 2.0, "output": 1.0}
    with pytest.raises(ConfigError, match=r"freeze_epochs.*freezes every parameter in the first epoch"):
        with_schedules(ToyModel(), OptimizerConfig(freeze_epochs=every), 4)


def test_weights_alone_decay_where_that_is_asked_for():
    optimizer = make_optimizer(model := ToyModel(), OptimizerConfig(weight_decay=0.1, decayed="weights"))
    assert {name for name, decay in by_name(model, optimizer, "weight_decay").items() if decay == 0.1} == {
        "hidden.weight",
        "output.weight",
    }
    optimizer = make_optimizer(model, OptimizerConfig(weight_decay=0.1))
    assert set(by_name(model, optimizer, "weight_decay").values()) == {0.1}


@every_optimizer
def test_frozen_parameters_stay_to_the_bit_until_their_epoch(name):
    """Weight decay and moments do not move them either."""
    options = OptimizerConfig(name=name, weight_decay=0.1, freeze_epochs={"hidden": 2, "norm.bias": 0.5})
    model = ToyModel()
    optimizer, schedule = with_schedules(model, options, 4)
    moved = []
    for number in range(16):  # four steps an epoch
        schedule.apply(number, 16)
        moved.append(moved_by_a_step(model, optimizer))
    assert [entry["hidden.weight"] for entry in moved] == [number >= 8 for number in range(16)]
    assert [entry["norm.bias"] for entry in moved] == [number >= 2 for number in range(16)]
    assert all(entry["output.weight"] for entry in moved)
    schedule.apply(4, 16)  # a training that goes on freezes by its step alone
    assert not model.hidden.weight.requires_grad and model.hidden.weight.grad is None


def test_the_factor_of_float16_is_halved_by_an_overflow_and_doubled_after_many_steps_without():
    precision = Precision("float16")
    assert precision.note(finite=False) and precision.factor == 0.5
    for _ in range(GROW_AFTER):
        assert precision.factor == 0.5 and not precision.note(finite=True)
    assert precision.factor == 1.0


class Net(nn.Module):
    """Three components: a layer with weight and bias, one within a container, a parameter of the network's own."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.rest = nn.Sequential(nn.ReLU(), nn.Linear(4, 2, bias=False))
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return self.rest(self.first(x)) * self.scale


COMPONENTS = [("scale",), ("first.weight", "first.bias"), ("rest.1.weight",)]


def after_steps(name, rate, steps, per_component, total):
    """The parameters before and after each of some steps; the counts of the limit are those of all steps."""
    torch.manual_seed(3)
    model = Net()
    optimizer = make_optimizer(model, OptimizerConfig(name=name))
    set_learning_rate(optimizer, rate)
    limit = MaxChange(model, per_component=per_component, total=total)
    seen, counts = [copied(model)], [0, 0]
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 3)).square().sum().backward()
        with limit:
            optimizer.step()
        counts = [counts[0] + limit.limited, counts[1] + limit.limited_components]
        seen.append(copied(model))
    limit.limited, limit.limited_components = counts
    return seen, limit


def component_changes(before, after):
    return [
        math.sqrt(sum(float((after[name].double() - before[name].double()).square().sum()) for name in names))
        for names in COMPONENTS
    ]


@given(st.sampled_from(OPTIMIZERS), st.floats(1e-4, 1.0), st.floats(1e-2, 1.0), st.floats(1e-2, 1.0))
def test_one_step_is_the_free_step_scaled_as_the_formula_says(name, rate, per_component, total):
    free, _ = after_steps(name, rate, 1, None, None)
    bound, limit = after_steps(name, rate, 1, per_component, total)
    changes = component_changes(*free)
    factors = [min(1.0, per_component / change) if change else 1.0 for change in changes]
    whole = math.sqrt(sum((factor * change) ** 2 for factor, change in zip(factors, changes, strict=True)))
    overall = min(1.0, total / whole) if whole else 1.0
    for names, factor in zip(COMPONENTS, factors, strict=True):
        for key in names:
            expected = free[0][key] + overall * factor * (free[1][key] - free[0][key])
            torch.testing.assert_close(bound[1][key], expected, atol=tolerances.FLOAT32_ROUNDING * 10, rtol=0)
    assert limit.norm == pytest.approx(overall * whole, rel=tolerances.FEW_FLOAT32_TERMS)
    edge = tolerances.FEW_FLOAT32_TERMS  # a change as large as its limit may count or not
    least = sum(change * (1.0 - edge) > per_component for change in changes)
    most = sum(change > per_component * (1.0 - edge) for change in changes)
    assert least <= limit.limited_components <= most


numbers = st.floats(-2.0, 2.0)


def state(value):
    return {"weight": torch.tensor([value, 1.0]), "count": torch.tensor(int(10 * value))}


@given(st.lists(numbers, min_size=1, max_size=6), numbers)
def test_the_final_model_is_the_best_of_all_prefix_means(newest_first, target):
    def nearness(tensors):
        return -abs(float(tensors["weight"][0]) - target)

    states = [state(value) for value in newest_first]
    found = best_average(iter(states), nearness)
    weights = [torch.stack([one["weight"] for one in states[: k + 1]]) for k in range(len(states))]
    means = [{"weight": some.mean(dim=0)} for some in weights]
    objectives = [nearness(candidate) for candidate in means]
    close = tolerances.FLOAT32_ROUNDING * 10
    assert list(found.objf.values()) == pytest.approx(objectives, abs=close)
    assert max(objectives) == pytest.approx(found.objf[str(found.num_models)], abs=close)
    chosen = means[found.num_models - 1]
    assert float(found.state["weight"][0]) == pytest.approx(float(chosen["weight"][0]), abs=close)
    assert torch.equal(found.state["count"], states[0]["count"])  # integers are the newest model's


# Schedules, limits and combination within whole trainings: what they do, and that they resume.


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
    "combine": "best-average",
    "average_last": 3,
    "checkpoint_every": 2,
}


def end_of(directory):
    return [event for event in read_log(directory / "train.jsonl") if event["event"] == "end"][-1]


def assert_equal_models(trainer, other):
    torch.testing.assert_close(trainer.model.state_dict(), other.model.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("broken_after", [5, 9, 17, "it begins to combine"])
def test_a_training_with_everything_resumes_bit_for_bit(broken_after, tmp_path, monkeypatch):
    examples, numerators = corpus()
    augmentation = AugmentConfig(time_masks=1, time_mask_frames=4, frame_shift=2)
    whole = new_trainer(tmp_path / "whole", numerators, **EVERYTHING)
    expected = whole.fit(examples, examples[:4], augmentation=augmentation)
    broken = new_trainer(tmp_path / "broken", numerators, **EVERYTHING)
    if isinstance(broken_after, int):
        broken.progress = BreakAfter(broken_after)
    else:
        calls, evaluate = itertools.count(1), broken._stepper.evaluate

        def breaks(*arguments, **options):
            if not options and next(calls) == broken.config.num_epochs + 2:
                raise Interruption
            return evaluate(*arguments, **options)

        monkeypatch.setattr(broken._stepper, "evaluate", breaks)
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


def test_the_final_model_is_the_candidate_with_the_best_objective(tmp_path):
    examples, numerators = corpus()
    trainer = new_trainer(tmp_path, numerators, combine="best-average", average_last=3)
    result = trainer.fit(examples, examples[:6])
    candidates = end_of(tmp_path)["candidates"]
    assert list(candidates) == ["1", "2", "3"]
    best = max(candidates, key=lambda name: candidates[name])
    assert result.dev["objf"] == pytest.approx(candidates[best], abs=tolerances.SIX_DECIMALS)
    models = [Checkpoint.load(path).model for path in list_checkpoints(tmp_path / "checkpoints")]
    chosen = models[-int(best) :]
    mean = sum(model["output.weight"].double() for model in chosen) / len(chosen)
    final, header = load_tensors(result.model_path)
    torch.testing.assert_close(
        final["output.weight"].double(), mean, atol=tolerances.FLOAT32_ROUNDING, rtol=0
    )
    assert len(header["averaged"]) == int(best)


def test_the_kinds_of_ending_give_the_models_they_name(tmp_path):
    """All of them from one training: how it ends does not change its course."""
    examples, numerators = corpus()
    weights, newest = {}, {}
    for kind in ("mean", "none"):
        trainer = new_trainer(tmp_path / kind, numerators, combine=kind, average_last=2)
        trainer.fit(examples)
        weights[kind] = trainer.model.state_dict()["output.weight"]
        newest[kind] = Checkpoint.load(list_checkpoints(tmp_path / kind / "checkpoints")[-1])
    last = newest["none"].model["output.weight"]
    assert all(torch.equal(checkpoint.model["output.weight"], last) for checkpoint in newest.values())
    assert torch.equal(weights["none"], last)
    averaged = list_checkpoints(tmp_path / "mean" / "checkpoints")[-2:]
    models = torch.stack([Checkpoint.load(path).model["output.weight"] for path in averaged])
    torch.testing.assert_close(weights["mean"], models.mean(dim=0))
    assert not torch.equal(weights["mean"], last)


def test_best_average_without_a_development_set_is_refused_before_the_training(tmp_path):
    examples, numerators = corpus(10)
    with pytest.raises(ConfigError, match="chosen on a development set, and there is none"):
        new_trainer(tmp_path, numerators, combine="best-average").fit(examples)
    assert not list_checkpoints(tmp_path / "checkpoints")
