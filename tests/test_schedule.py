"""Learning-rate schedules: their ends, their shape and what they refuse."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import tolerances

from fsachain.errors import ConfigError
from fsachain.train.schedule import DECAYS, ScheduleConfig, learning_rate

STEPS = 101


def rates(**options: Any) -> list[float]:
    config = ScheduleConfig(**{"peak": 1.0, "final": 0.01, "start": 0.1, "warmup": 0.2} | options)
    return [learning_rate(config, step, STEPS) for step in range(STEPS)]


@pytest.mark.parametrize("decay", DECAYS)
def test_warm_up_starts_low_reaches_the_peak_once_and_never_exceeds_it(decay: str) -> None:
    curve = rates(decay=decay)
    assert curve[0] == pytest.approx(0.1)
    assert curve[20] == pytest.approx(1.0)
    assert max(curve) <= 1.0 + tolerances.ROUNDING
    assert all(earlier < later for earlier, later in itertools.pairwise(curve[:21]))


@pytest.mark.parametrize("decay", [name for name in DECAYS if name != "constant"])
def test_the_rate_falls_strictly_to_its_final_value(decay: str) -> None:
    curve = rates(decay=decay)
    assert curve[-1] == pytest.approx(0.01)
    assert all(earlier > later for earlier, later in itertools.pairwise(curve[20:]))


def test_exponential_decay_loses_the_same_ratio_each_step() -> None:
    curve = rates(decay="exponential", warmup=0.0)
    ratios = [later / earlier for earlier, later in itertools.pairwise(curve)]
    assert ratios == pytest.approx([0.01 ** (1 / (STEPS - 1))] * (STEPS - 1))


def test_a_constant_rate_stays() -> None:
    assert set(rates(decay="constant", warmup=0.0)) == {1.0}


@pytest.mark.parametrize("decay", DECAYS)
def test_a_training_of_one_step_and_steps_beyond_the_end_have_a_rate(decay: str) -> None:
    config = ScheduleConfig(decay=decay)
    assert 0.0 < learning_rate(config, 0, 1) <= config.peak
    assert learning_rate(config, 500, 100) == learning_rate(config, 99, 100)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"decay": "staircase"}, "decay"),
        ({"warmup": 1.0}, "warmup"),
        ({"peak": 0.0}, "peak"),
        ({"final": -1.0}, "final"),
        ({"start": float("nan")}, "start"),
        ({"decay": "exponential", "final": 0.0}, "final"),
    ],
)
def test_illegal_options_are_refused_by_name(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        ScheduleConfig(**options)
