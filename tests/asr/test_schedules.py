"""Schedules: learning rate, piecewise linear values, and all that is set before each step of a training."""

import itertools
import math

import pytest
import tolerances
import torch
from hypothesis import given
from hypothesis import strategies as st
from loss_inputs import LENGTHS, make_denominator, make_graphs, make_loss, make_output
from torch import nn
from toy_training import ToyModel

from fsachain.asr.train.config import TrainConfig
from fsachain.asr.train.optimizer import Schedules, dropout_setters, make_optimizer
from fsachain.asr.train.schedule import DECAYS, Schedule, ScheduleConfig, learning_rate
from fsachain.errors import ConfigError
from fsachain.loss.lfmmi import LFMMILoss

STEPS = 101


def rates(**options):
    config = ScheduleConfig(**{"peak": 1.0, "final": 0.01, "start": 0.1, "warmup": 0.2} | options)
    return [learning_rate(config, step, STEPS) for step in range(STEPS)]


@pytest.mark.parametrize("decay", DECAYS)
def test_the_rate_rises_to_its_peak_and_falls_to_its_final_value(decay):
    curve = rates(decay=decay)
    assert curve[0] == pytest.approx(0.1)
    assert curve[20] == pytest.approx(1.0)
    assert max(curve) <= 1.0 + tolerances.ROUNDING
    assert all(earlier < later for earlier, later in itertools.pairwise(curve[:21]))
    if decay != "constant":
        assert curve[-1] == pytest.approx(0.01)
        assert all(earlier > later for earlier, later in itertools.pairwise(curve[20:]))


def test_half_cosines_are_flat_at_both_ends():
    quarter = 0.5 - math.sqrt(0.125)  # of a quarter of the way
    shares = {"linear": (0.25, 0.25), "cosine": (0.25, quarter), "one-cycle": (quarter, quarter)}
    for decay, (up, down) in shares.items():
        curve = rates(decay=decay)
        assert (curve[5], curve[40]) == pytest.approx((0.1 + 0.9 * up, 1.0 - 0.99 * down))


KALDI = "0,0@0.20,0.5@0.50,0"

values = st.floats(-1e3, 1e3)


@st.composite
def schedules(draw):
    between = sorted(draw(st.lists(st.floats(0.0, 1.0), max_size=5)))
    return Schedule(tuple((draw(values), progress) for progress in (0.0, *between, 1.0)))


def test_kaldis_notation_is_lines_between_the_points():
    found = [Schedule.parse(KALDI).at(progress) for progress in (-1, 0, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 2)]
    assert found == pytest.approx([0, 0, 0, 0, 0.25, 0.5, 0.25, 0, 0], abs=tolerances.ROUNDING)


@pytest.mark.parametrize(
    ("text", "points"),
    [
        ("0.0,0.3,0.0", [(0, 0), (0.3, 0.5), (0, 1)]),
        ("0.0,0.5@0.25,0.0,0.6@0.75,0.0", [(0, 0), (0.5, 0.25), (0, 0.5), (0.6, 0.75), (0, 1)]),
        ("0.0,0.3,0.0@0.75,1.0", [(0, 0), (0.3, 0.5), (0, 0.75), (1, 1)]),
    ],
)
def test_a_value_between_the_ends_without_progress_is_at_one_half_as_in_kaldi(text, points):
    assert Schedule.parse(text) == Schedule(points)


@given(schedules())
def test_its_text_is_the_same_schedule(schedule):
    assert Schedule.parse(str(schedule)) == schedule


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("0,0.5,0.6,0.7@0.4,0", "progress 0.4 comes after 0.5"),
        ("0,a@0.5,0", "'0,a@0.5,0' is no schedule .*'a'"),
        ("0@0.1,1", r"progress of its points is \[0.1, 1.0\]"),
        ("0,inf@0.5,0", "not a finite number"),
        ([[0, 0], [0.2, 0], [0.5, 0.5], [1, 0]], "expected .value, progress. from progress 0 to 1"),
        ([], "is no schedule"),
    ],
)
def test_what_is_no_schedule_is_refused_with_the_option(value, message):
    with pytest.raises(ConfigError, match=f"train.dropout: .*{message}"):
        Schedule.parse(value, "train.dropout")


class Skipping(nn.Module):
    """Says itself what dropout means; the module within is its own affair."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Dropout(0.3)
        self.proportion = 0.0

    def set_dropout(self, proportion):
        self.proportion = proportion


def schedules_for(model, loss, options, **training):
    config = TrainConfig(**training)
    return Schedules(model, loss, make_optimizer(model, config.optimizer), config, options)


def test_all_that_drops_in_a_network_is_set():
    attention = nn.MultiheadAttention(4, 2, dropout=0.1)
    network = nn.ModuleList(
        [
            nn.Dropout(0.2),
            nn.Dropout1d(0.2),
            attention,
            nn.LSTM(3, 3, 2),
            nn.LSTM(3, 3, 1),
            Skipping(),
            nn.ReLU(),
        ]
    )
    setters = list(dropout_setters(network))
    assert len(setters) == 5
    for set_dropout in setters:
        set_dropout(0.4)
    assert (network[0].p, network[1].p, attention.dropout, network[3].dropout) == (0.4, 0.4, 0.4, 0.4)
    assert network[4].dropout == 0.0  # nothing to drop between the layers of one layer
    assert (network[5].proportion, network[5].inner.p) == (0.4, 0.3)


def test_a_dropout_schedule_for_a_network_that_drops_nothing_is_refused():
    with pytest.raises(ConfigError, match="nothing in Linear drops anything"):
        schedules_for(nn.Linear(2, 2), make_loss(), {}, dropout_schedule=0.1)


def test_everything_is_set_by_the_step_alone():
    model, loss = ToyModel(), make_loss()
    options = {
        "denominator_scale": Schedule.parse("0.5,1@0.5,1"),
        "leaky_hmm_coefficient": Schedule.parse("0.1,0"),
    }
    schedules = schedules_for(model, loss, options, dropout_schedule=Schedule.parse("0,0.4@0.5,0"))
    for number, dropout, scale in [(50, 0.4, 1.0), (25, 0.2, 0.75), (100, 0.0, 1.0), (0, 0.0, 0.5)]:
        schedules.apply(number, 101)
        assert model.dropout.p == pytest.approx(dropout)
        assert loss.denominator_scale == pytest.approx(scale)
        assert loss.leaky_hmm_coefficient == pytest.approx(0.1 * (1 - number / 100), abs=tolerances.ROUNDING)
    assert schedules.values["denominator_scale"] == 0.5
    assert schedules.values["dropout"] == 0.0
    schedules.apply_final()
    assert loss.denominator_scale == 1.0
    assert schedules.values["denominator_scale"] == 0.5


def test_an_adjusted_loss_is_the_loss_that_was_made_so():
    scores, lengths, numerators, graph = make_output(), LENGTHS, make_graphs(), make_denominator()
    options = {"leaky_hmm_coefficient": 1e-3, "denominator_scale": 0.7, "l2_regularize": 0.01, "boost": 0.1}
    adjusted = LFMMILoss(graph)
    adjusted(scores, lengths, numerators)
    adjusted.adjust(**options)
    results = []
    for loss in (adjusted, LFMMILoss(graph, **options)):
        value = loss(scores, lengths, numerators)
        results.append((value, *torch.autograd.grad(value, scores)))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
