"""What changes while a training goes on: dropout of any network, options of the loss."""

from __future__ import annotations

from typing import Any

import pytest
import tolerances
import torch
from torch import nn
from toy_training import ToyLoss, ToyModel

from fsachain.backends.cpu import tables as cpu_tables
from fsachain.denominator import DenominatorGraph
from fsachain.errors import ConfigError
from fsachain.fsa import Fsa
from fsachain.loss.lfmmi import LFMMILoss
from fsachain.loss.mbr import MBRLoss
from fsachain.nn.tdnnf import Tdnnf, TdnnfConfig
from fsachain.train.config import TrainConfig
from fsachain.train.optimizer import Schedules, dropout_setters, make_optimizer
from fsachain.train.schedule import Schedule, Scheduled


class Skipping(nn.Module):
    """Says itself what dropout means; the module within is its own affair."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Dropout(0.3)
        self.proportion = 0.0

    def set_dropout(self, proportion: float) -> None:
        self.proportion = proportion


def schedules_for(model: nn.Module, loss: Any, options: dict[str, Scheduled], **training: Any) -> Schedules:
    config = TrainConfig(**training)
    return Schedules(model, loss, make_optimizer(model, config.optimizer), config, options)


def denominator(leaky: float = 0.1) -> LFMMILoss:
    """Two states that follow each other, two pdfs."""
    arcs = Fsa(2, [0, 0, 1, 1], [0, 1, 1, 0], [0, 1, 1, 0], [-0.5, -1.0, -0.7, -0.6], [0.0, 0.0])
    return LFMMILoss(DenominatorGraph(arcs, 2), leaky_hmm_coefficient=leaky)


def numerator() -> Fsa:
    return Fsa(2, [0, 0, 1], [0, 1, 1], [0, 1, 1], [0.0, 0.0, 0.0], [-float("inf"), 0.0])


def test_all_that_drops_in_a_network_is_set() -> None:
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


@pytest.mark.parametrize("kind", ["frame", "utterance"])
def test_both_kinds_of_dropout_of_the_tdnnf_are_set(kind: str) -> None:
    network = Tdnnf(
        TdnnfConfig(4, 3, channels=8, bottleneck=4, time_strides=(1, 1, 1), dropout_kind=kind, dropout=0.0)
    )
    setters = list(dropout_setters(network))
    assert len(setters) == 3
    x, lengths = torch.randn(2, 12, 4), torch.tensor([12, 12])
    network.train()
    for proportion in (0.4, 0.0):
        for set_dropout in setters:
            set_dropout(proportion)
        first, second = (network(x, lengths).nnet_output for _ in range(2))
        assert torch.equal(first, second) == (proportion == 0.0)


def test_a_dropout_schedule_for_a_network_that_drops_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing in Linear drops anything"):
        schedules_for(nn.Linear(2, 2), denominator(), {}, dropout_schedule=0.1)


def test_everything_is_set_by_the_step_alone() -> None:
    model, loss = ToyModel(), denominator()
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


def test_options_that_a_loss_does_not_have_are_refused() -> None:
    schedule = {"denominator_scale": Schedule.parse("0,1")}
    with pytest.raises(ConfigError, match="loss_schedules: denominator_scale for a ToyLoss"):
        schedules_for(ToyModel(), ToyLoss(), schedule)
    graph = next(iter(denominator().denominators.values()))
    with pytest.raises(ConfigError, match="'denominator_scale' is no option to adjust of MBRLoss"):
        MBRLoss(graph).adjust(denominator_scale=0.5)
    loss = denominator()
    with pytest.raises(ConfigError, match=r"leaky_hmm_coefficient = 2\.0"):
        loss.adjust(denominator_scale=0.5, leaky_hmm_coefficient=2.0)
    assert loss.denominator_scale == 1.0  # nothing of a refused call is done


def test_an_adjusted_loss_is_the_loss_that_was_made_so() -> None:
    torch.manual_seed(2)
    scores, lengths, numerators = torch.randn(2, 7, 2, requires_grad=True), [7, 5], [numerator(), numerator()]
    graph = next(iter(denominator().denominators.values()))
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


def test_another_leak_needs_no_new_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the step from a leak to none makes a layout, once."""
    made: list[object] = []
    make = cpu_tables._make

    def counted(*arguments: Any) -> Any:
        made.append(arguments)
        return make(*arguments)

    monkeypatch.setattr(cpu_tables, "_make", counted)
    scores, loss, graphs = torch.randn(1, 7, 2), denominator(), [numerator()]
    counts = []
    for leak in (0.1, 0.01, 1e-5, 0.0, 0.1, 0.0):
        loss.adjust(leaky_hmm_coefficient=leak)
        loss(scores, [7], graphs)
        counts.append(len(made))
    assert counts[0] == counts[1] == counts[2]
    assert counts[3:] == [counts[3]] * 3
