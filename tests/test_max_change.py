"""Limits on the change of parameters in a step, whatever optimiser takes it."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import tolerances
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fsachain.train.config import OPTIMIZERS, OptimizerConfig
from fsachain.train.optimizer import MaxChange, make_optimizer, set_learning_rate


class Net(nn.Module):
    """Three components: a layer with weight and bias, one within a container, a parameter of the network's own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.rest = nn.Sequential(nn.ReLU(), nn.Linear(4, 2, bias=False))
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rest(self.first(x)) * self.scale


COMPONENTS = [("scale",), ("first.weight", "first.bias"), ("rest.1.weight",)]


def after_steps(
    name: str, rate: float, steps: int, per_component: float | None, total: float | None
) -> tuple[list[dict[str, torch.Tensor]], MaxChange]:
    """The parameters before and after each of some steps; the counts of the limit are those of all steps."""
    torch.manual_seed(3)
    model = Net()
    optimizer = make_optimizer(model, OptimizerConfig(name=name))
    set_learning_rate(optimizer, rate)
    limit = MaxChange(model, per_component=per_component, total=total)
    seen = [{key: value.detach().clone() for key, value in model.named_parameters()}]
    counts = [0, 0]
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 3)).square().sum().backward()
        with limit:
            optimizer.step()
        counts = [counts[0] + limit.limited, counts[1] + limit.limited_components]
        seen.append({key: value.detach().clone() for key, value in model.named_parameters()})
    limit.limited, limit.limited_components = counts
    return seen, limit


def component_changes(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> list[float]:
    return [
        math.sqrt(sum(float((after[name].double() - before[name].double()).square().sum()) for name in names))
        for names in COMPONENTS
    ]


@given(
    st.sampled_from(OPTIMIZERS),
    st.floats(1e-4, 1.0),
    st.floats(1e-2, 1.0),
    st.floats(1e-2, 1.0),
)
def test_one_step_is_the_free_step_scaled_as_the_formula_says(
    name: str, rate: float, per_component: float, total: float
) -> None:
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
    assert (
        sum(factor < 1.0 - edge for factor in factors)
        <= limit.limited_components
        <= sum(
            factor < 1.0 + edge and change > per_component * (1 - edge)
            for factor, change in zip(factors, changes, strict=True)
        )
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_step_of_a_training_passes_the_limits(name: str) -> None:
    seen, limit = after_steps(name, 0.3, 6, 0.1, 0.15)
    slack = 1.0 + tolerances.FEW_FLOAT32_TERMS
    for before, after in pairwise(seen):
        changes = component_changes(before, after)
        assert max(changes) <= 0.1 * slack
        assert math.hypot(*changes) <= 0.15 * slack
    assert 1 <= limit.limited <= 6
    assert 1 <= limit.limited_components <= 18


def test_limits_that_are_not_reached_change_no_bit() -> None:
    free, _ = after_steps("adam", 1e-3, 3, None, None)
    bound, limit = after_steps("adam", 1e-3, 3, 100.0, 100.0)
    assert all(torch.equal(value, bound[-1][name]) for name, value in free[-1].items())
    assert (limit.limited, limit.limited_components) == (0, 0)


def test_without_limits_nothing_is_copied() -> None:
    _, limit = after_steps("adam", 1e-3, 1, None, None)
    assert not limit.active
    assert math.isnan(limit.norm)


def test_parameters_without_gradient_take_no_part() -> None:
    model = Net()
    optimizer = make_optimizer(model, OptimizerConfig(name="sgd"))
    set_learning_rate(optimizer, 10.0)
    limit = MaxChange(model, per_component=0.01)
    model.first.requires_grad_(False)
    before = model.first.weight.clone()
    model(torch.randn(5, 3)).square().sum().backward()
    with limit:
        optimizer.step()
    assert torch.equal(model.first.weight, before)
    assert limit.limited_components == 2


def test_a_tensor_of_two_modules_is_counted_once() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    limit = MaxChange(model, total=1.0)
    before = model[0].weight.detach().clone()
    model(torch.ones(1, 2)).sum().backward()
    with limit:
        optimizer.step()
    change = float((model[0].weight.detach() - before).norm())
    assert change == pytest.approx(1.0, rel=tolerances.FEW_FLOAT32_TERMS)


def test_an_error_in_the_step_is_passed_on() -> None:
    model = Net()
    limit = MaxChange(model, total=1.0)
    with pytest.raises(RuntimeError, match="broken"), limit:
        raise RuntimeError("broken")
