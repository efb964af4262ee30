"""Piecewise linear schedules: what they are at, between and beyond their points, how they are written, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import tolerances
from hypothesis import given
from hypothesis import strategies as st

from fsachain.cli.config import Experiment
from fsachain.errors import ConfigError
from fsachain.train.schedule import Schedule, scheduled

KALDI = "0,0@0.20,0.5@0.50,0"

values = st.floats(-1e3, 1e3)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    between = sorted(draw(st.lists(st.floats(0.0, 1.0), max_size=5)))
    return Schedule([(draw(values), progress) for progress in (0.0, *between, 1.0)])


@pytest.mark.parametrize(
    ("progress", "value"),
    [
        (0.0, 0.0),
        (0.1, 0.0),
        (0.2, 0.0),
        (0.35, 0.25),
        (0.5, 0.5),
        (0.75, 0.25),
        (1.0, 0.0),
        (-1.0, 0.0),
        (2.0, 0.0),
    ],
)
def test_kaldis_notation_is_lines_between_the_points(progress: float, value: float) -> None:
    assert Schedule.parse(KALDI).at(progress) == pytest.approx(value, abs=tolerances.ROUNDING)


def test_text_pairs_and_a_number_are_ways_to_write_one_schedule() -> None:
    pairs = [[0, 0], [0, 0.2], [0.5, 0.5], [0, 1]]
    assert Schedule.parse(pairs) == Schedule.parse(KALDI)
    assert Schedule.parse("0.3") == Schedule.parse(0.3) == Schedule.parse("0.3,0.3")
    assert Schedule.parse(0.3).constant == 0.3
    assert Schedule.parse(KALDI).constant is None
    assert scheduled("0.3", "x") == 0.3


@pytest.mark.parametrize(
    ("text", "points"),
    [
        ("0.0,0.3,0.0", [(0, 0), (0.3, 0.5), (0, 1)]),
        ("0.0,0.5@0.25,0.0,0.6@0.75,0.0", [(0, 0), (0.5, 0.25), (0, 0.5), (0.6, 0.75), (0, 1)]),
        ("0.0,0.3,0.0@0.75,1.0", [(0, 0), (0.3, 0.5), (0, 0.75), (1, 1)]),
    ],
)
def test_a_value_between_the_ends_without_progress_is_at_one_half_as_in_kaldi(
    text: str, points: list[tuple[float, float]]
) -> None:
    assert Schedule.parse(text) == Schedule(points)


def test_two_values_at_one_progress_are_a_jump() -> None:
    schedule = Schedule.parse("1,2@0.5,5@0.5,6")
    assert schedule.at(0.25) == 1.5
    assert schedule.at(0.5) == 5.0
    assert schedule.at(0.75) == 5.5


@given(schedules())
def test_its_text_is_the_same_schedule(schedule: Schedule) -> None:
    assert Schedule.parse(str(schedule)) == schedule


@given(schedules(), st.floats(0.0, 1.0))
def test_values_lie_between_those_of_the_points(schedule: Schedule, progress: float) -> None:
    slack = tolerances.ROUNDING * max(map(abs, schedule.values))
    assert min(schedule.values) - slack <= schedule.at(progress) <= max(schedule.values) + slack
    assert schedule.at(0.0) in schedule.values
    assert schedule.at(1.0) == schedule.values[-1]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("0,0.5,0.6,0.7@0.4,0", "progress 0.4 comes after 0.5"),
        ("0,a@0.5,0", "'a' in .* is no number"),
        ("0@0.1,1", r"progress of its points is \[0.1, 1.0\]"),
        ("0,1@0.6,1@0.4,0", "progress 0.4 comes after 0.6"),
        ("0,inf@0.5,0", "not a finite number"),
        ([[0, 0], [0.2, 0], [0.5, 0.5], [1, 0]], "expected .value, progress. from progress 0 to 1"),
        ([[0, 0], [1]], "is no pair"),
        ([], "is no schedule"),
        (True, "is no schedule"),
        ("", "is no number"),
    ],
)
def test_what_is_no_schedule_is_refused_with_the_option(value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"train.dropout: .*{message}"):
        Schedule.parse(value, "train.dropout")


def test_an_experiment_keeps_schedules_and_plain_numbers_through_a_plain_table() -> None:
    sections = {
        "loss": {"leaky_hmm_coefficient": "0.1,0.1@0.5,1e-5", "l2_regularize": "1e-4"},
        "train": {"dropout_schedule": KALDI},
    }
    experiment = Experiment.from_dict(sections)
    table = experiment.to_dict()
    assert table["loss"]["l2_regularize"] == 1e-4
    assert table["loss"]["denominator_scale"] == 1.0
    assert Experiment.from_dict(table) == experiment
    assert experiment.loss.at(0.25)["leaky_hmm_coefficient"] == 0.1
    assert experiment.loss.at(1.0)["leaky_hmm_coefficient"] == 1e-5
    assert list(experiment.loss.schedules) == ["leaky_hmm_coefficient"]


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"loss": {"leaky_hmm_coefficient": "0.1,2"}}, r"loss.leaky_hmm_coefficient = 2.0; .* \[0, 1\]"),
        ({"loss": {"denominator_scale": "1,-1@0.5,1"}}, "loss.denominator_scale = -1.0"),
        ({"train": {"dropout_schedule": "0,1@0.5,0"}}, "dropout_schedule: 1.0 is not in"),
        ({"train": {"dropout_schedule": "0,x"}}, "train.dropout_schedule: 'x'"),
        ({"train": {"combine": "best"}}, "combine: 'best' is not one of mean, best-average, ema, none"),
        ({"train": {"combine": "ema"}}, "needs a decay, train.ema"),
        ({"train": {"ema": 0.9}}, 'ema: 0.9 has no influence with combine "mean"'),
        ({"train": {"ema": 1.0}}, "ema: 1.0 is not in"),
        (
            {"train": {"combine": "best-average", "combine_on": "train", "batch_norm_batches": 0}},
            "batch_norm_batches",
        ),
        ({"train": {"batch_frames": 0}}, "batch_frames: 0 is not a positive number"),
        (
            {"train": {"optimizer": {"factors": {"encoder": "x"}}}},
            "train.optimizer.factors.encoder: expected float",
        ),
        ({"train": {"optimizer": {"factors": 3}}}, "train.optimizer.factors: expected a table, got 3"),
        ({"train": {"optimizer": {"freeze_epochs": {"encoder": -1}}}}, "freeze_epochs: -1.0 for 'encoder'"),
        ({"train": {"optimizer": {"max_change": 0}}}, "max_change: 0.0 is not positive"),
        ({"train": {"optimizer": {"decayed": "bias"}}}, "decayed: 'bias' is not one of all, weights"),
    ],
)
def test_options_out_of_range_are_refused_by_name(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Experiment.from_dict(sections)
