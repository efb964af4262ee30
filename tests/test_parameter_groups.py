"""Learning rates, weight decay and freezing by parameter, and the optimisers themselves."""

from __future__ import annotations

import pytest
import torch
from toy_training import ToyModel

from fsachain.errors import ConfigError
from fsachain.train.config import OPTIMIZERS, OptimizerConfig, TrainConfig
from fsachain.train.optimizer import Schedules, longest_prefix, make_optimizer, set_learning_rate


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """One step on any loss; how far each parameter moved."""
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer.zero_grad(set_to_none=True)
    output = model(torch.randn(4, 9, 4), torch.full((4,), 9))
    output.nnet_output.square().sum().backward()
    optimizer.step()
    return {name: float((value.detach() - before[name]).norm()) for name, value in model.named_parameters()}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimiser_lowers_a_quadratic_loss(name: str) -> None:
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 2)
    optimizer = make_optimizer(model, OptimizerConfig(name=name))
    set_learning_rate(optimizer, 0.01)
    x = torch.randn(20, 3)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


def test_defaults_are_one_group_so_that_older_checkpoints_fit() -> None:
    model = ToyModel()
    optimizer = make_optimizer(model, OptimizerConfig())
    assert len(optimizer.param_groups) == 1
    assert optimizer.param_groups[0]["params"] == list(model.parameters())
    state = optimizer.state_dict()
    del state["param_groups"][0]["factor"]
    optimizer.load_state_dict(state)
    set_learning_rate(optimizer, 0.25)
    assert optimizer.param_groups[0]["lr"] == 0.25


def test_factors_scale_the_learning_rate_by_the_longest_prefix() -> None:
    optimizer = make_optimizer(
        model := ToyModel(), OptimizerConfig(factors={"hidden": 0.1, "hidden.bias": 0.0, "norm": 2.0})
    )
    set_learning_rate(optimizer, 0.5)
    rates = {
        name: group["lr"]
        for group in optimizer.param_groups
        for parameter in group["params"]
        for name, value in model.named_parameters()
        if value is parameter
    }
    assert rates == {
        "hidden.weight": 0.05,
        "hidden.bias": 0.0,
        "norm.weight": 1.0,
        "norm.bias": 1.0,
        "output.weight": 0.5,
        "output.bias": 0.5,
    }
    moved = step(model, optimizer)
    assert moved["hidden.bias"] == 0.0
    assert moved["hidden.weight"] > 0.0


def test_a_prefix_ends_where_a_part_of_the_name_ends() -> None:
    assert longest_prefix("encoder.layers.1.weight", {"encoder": 1, "encoder.layers": 2}, 0) == 2
    assert longest_prefix("encoder.weight", {"enc": 1}, 0) == 0


@pytest.mark.parametrize("option", ["factors", "freeze_epochs"])
def test_a_prefix_of_no_parameter_is_refused_by_name(option: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"{option}: 'hiden' begins no parameter's name; did you mean 'hidden'"
    ):
        make_optimizer(ToyModel(), OptimizerConfig(**{option: {"hiden": 1.0}}))
    with pytest.raises(ConfigError, match="they begin with hidden, norm, output"):
        make_optimizer(ToyModel(), OptimizerConfig(**{option: {"zzz": 1.0}}))


def test_weights_alone_decay_where_that_is_asked_for() -> None:
    optimizer = make_optimizer(model := ToyModel(), OptimizerConfig(weight_decay=0.1, decayed="weights"))
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert {name: decays[id(value)] for name, value in model.named_parameters()} == {
        "hidden.weight": 0.1,
        "hidden.bias": 0.0,
        "norm.weight": 0.0,
        "norm.bias": 0.0,
        "output.weight": 0.1,
        "output.bias": 0.0,
    }
    everything = make_optimizer(ToyModel(), OptimizerConfig(weight_decay=0.1))
    assert [group["weight_decay"] for group in everything.param_groups] == [0.1]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_frozen_parameters_stay_to_the_bit_until_their_epoch(name: str) -> None:
    """Weight decay and moments do not move them either."""
    options = OptimizerConfig(name=name, weight_decay=0.1, freeze_epochs={"hidden": 2, "norm.bias": 0.5})
    config = TrainConfig(num_epochs=4, optimizer=options)
    optimizer = make_optimizer(model := ToyModel(), options)
    schedules = Schedules(model, None, optimizer, config, {})
    moved = []
    for number in range(16):  # four steps an epoch
        schedules.apply(number, 16)
        moved.append(step(model, optimizer))
    assert [entry["hidden.weight"] > 0.0 for entry in moved] == [number >= 8 for number in range(16)]
    assert [entry["norm.bias"] > 0.0 for entry in moved] == [number >= 2 for number in range(16)]
    assert all(entry["output.weight"] > 0.0 for entry in moved)


def test_a_training_that_goes_on_freezes_by_its_step_alone() -> None:
    options = OptimizerConfig(freeze_epochs={"hidden": 1})
    model = ToyModel()
    schedules = Schedules(model, None, make_optimizer(model, options), TrainConfig(optimizer=options), {})
    schedules.apply(15, 16 * 5)
    assert model.hidden.weight.requires_grad
    schedules.apply(4, 16 * 5)
    assert not model.hidden.weight.requires_grad


def test_what_the_user_froze_stays_frozen() -> None:
    model = ToyModel()
    model.hidden.weight.requires_grad_(False)
    options = OptimizerConfig(freeze_epochs={"norm": 1})
    schedules = Schedules(model, None, make_optimizer(model, options), TrainConfig(optimizer=options), {})
    schedules.apply(79, 80)
    assert not model.hidden.weight.requires_grad
    assert model.norm.weight.requires_grad


def test_freezing_everything_is_refused() -> None:
    frozen = {"hidden": 1.0, "norm": 1.0, "output": 2.0}
    with pytest.raises(ConfigError, match="freezes every parameter"):
        make_optimizer(ToyModel(), OptimizerConfig(freeze_epochs=frozen))
