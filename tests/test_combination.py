"""The final model made of several: the best mean of the newest, and the moving average."""

from __future__ import annotations

import math

import pytest
import tolerances
import torch
from hypothesis import given
from hypothesis import strategies as st

from fsachain.errors import DataError
from fsachain.train.checkpoint import average_states
from fsachain.train.ending import Combination, best_average
from fsachain.train.optimizer import ParameterEma

numbers = st.floats(-2.0, 2.0)


def state(value: float) -> dict[str, torch.Tensor]:
    return {"weight": torch.tensor([value, 1.0]), "count": torch.tensor(int(10 * value))}


def nearness(target: float):  # type: ignore[no-untyped-def]
    """An objective that is largest for weights at a target."""
    return lambda tensors: -abs(float(tensors["weight"][0]) - target)


def values(found: Combination) -> float:
    return float(found.state["weight"][0])


@given(st.lists(numbers, min_size=1, max_size=6), numbers, st.none() | numbers)
def test_it_is_the_best_of_all_prefix_means_and_the_moving_average(
    newest_first: list[float], target: float, ema: float | None
) -> None:
    states = [state(value) for value in newest_first]
    found = best_average(iter(states), nearness(target), None if ema is None else state(ema))
    means = [average_states(states[count - 1 :: -1]) for count in range(1, len(states) + 1)]
    candidates = means if ema is None else [*means, state(ema)]
    objectives = [nearness(target)(candidate) for candidate in candidates]
    assert list(found.objf.values()) == pytest.approx(objectives, abs=tolerances.FLOAT32_ROUNDING * 10)
    assert max(objectives) == pytest.approx(found.objf[found.name], abs=tolerances.FLOAT32_ROUNDING * 10)
    chosen = candidates[found.num_models - 1 if found.num_models else -1]
    assert values(found) == pytest.approx(float(chosen["weight"][0]), abs=tolerances.FLOAT32_ROUNDING * 10)
    if found.num_models:
        assert torch.equal(found.state["count"], states[0]["count"])  # integers are the newest model's


def test_equal_objectives_keep_fewer_models_and_nan_never_wins() -> None:
    states = [state(1.0), state(1.0), state(0.0)]
    assert best_average(states, lambda tensors: 0.0, state(1.0)).name == "1"
    objectives = iter([math.nan, math.nan, -5.0, math.nan])
    found = best_average(states, lambda tensors: next(objectives), state(1.0))
    assert found.name == "3"
    assert best_average(states, lambda tensors: math.nan).name == "1"


def test_nothing_and_models_of_other_shapes_are_refused() -> None:
    with pytest.raises(DataError, match="nothing to combine"):
        best_average([], lambda tensors: 0.0)
    with pytest.raises(DataError, match=r"'weight' has shape \[2\] in one and \[3\] in another"):
        best_average([state(1.0), {"weight": torch.zeros(3), "count": torch.tensor(1)}], lambda tensors: 0.0)


def test_the_moving_average_is_its_recursion() -> None:
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 2)
    average = ParameterEma(model, 0.9)
    expected = {name: value.detach().double() for name, value in model.named_parameters()}
    for step in range(1, 40):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        average.update(step)
        decay = min(0.9, (1 + step) / (10 + step))
        expected = {
            name: decay * expected[name] + (1 - decay) * value.detach().double()
            for name, value in model.named_parameters()
        }
    for name, value in average.state().items():
        torch.testing.assert_close(value.double(), expected[name], atol=tolerances.FEW_FLOAT32_TERMS, rtol=0)


def test_a_moving_average_goes_on_from_its_state() -> None:
    model = torch.nn.Linear(3, 2)
    whole = ParameterEma(model, 0.5)
    with torch.no_grad():
        model.weight.add_(1.0)
    whole.update(1)
    kept = {name: value.clone() for name, value in whole.state().items()}
    broken = ParameterEma(model, 0.5)
    broken.load(kept)
    for average in (whole, broken):
        average.update(2)
    assert all(torch.equal(value, broken.state()[name]) for name, value in whole.state().items())
    with pytest.raises(DataError, match=r"moving average of 'bias' has shape None; expected \[2\]"):
        broken.load({"weight": kept["weight"]})
