"""Derivatives of `total_log_prob` and of the loss: right, scaled by what comes in, repeatable, and once only."""

import gc

import pytest
import tolerances
import torch
from random_graphs import connected_graph, left_to_right_graph

from fsachain import DenominatorGraph, LFMMILoss, TableBatch, compile_table, forward_backward, total_log_prob
from fsachain.backends.cpu import backend as cpu

WIDTH = 5
LENGTHS = [6, 3, 5]


def graph(n):
    return connected_graph(n, num_states=4, num_arcs=9, num_pdfs=WIDTH)


def make_batch(kind):
    if kind == "shared":
        return DenominatorGraph(graph(0), WIDTH).batch(3)
    return TableBatch.pack([compile_table(graph(n), WIDTH) for n in range(3)])


def make_scores(dtype=torch.float64, size=(3, 6, WIDTH), seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def make_loss(**options):
    return LFMMILoss(DenominatorGraph(graph(0), WIDTH), leaky_hmm_coefficient=0.1, **options)


def make_numerators():
    return TableBatch.pack([compile_table(left_to_right_graph(n, 3, WIDTH), WIDTH) for n in range(3)])


def total(y):
    return total_log_prob(make_batch("packed"), y, LENGTHS).sum()


@pytest.fixture
def backward_runs(monkeypatch):
    """A list that grows with every backward recursion: a run of the kernels that is given where to put occupancies."""
    ran, run = [], cpu.run

    def spy(*arguments):
        ran.extend([1] if len(arguments[-1]) else [])
        run(*arguments)

    monkeypatch.setattr(cpu, "run", spy)
    return ran


def test_no_beta_runs_where_no_gradient_is_wanted(backward_runs):
    loss, numerators = make_loss(), make_numerators()
    for call in (total, lambda y: loss(y, LENGTHS, numerators)):
        with torch.no_grad():
            call(make_scores())
        call(make_scores().detach())
    loss.objective(make_scores(), LENGTHS, numerators)
    assert not backward_runs
    total(make_scores())
    assert backward_runs


def test_no_beta_runs_for_log_prob_until_occupancy_is_asked_for(backward_runs):
    result = forward_backward(make_batch("packed"), make_scores(), LENGTHS)
    assert result.ok.all() and not backward_runs
    first = result.occupancy
    runs = len(backward_runs)
    assert runs and result.occupancy is first and len(backward_runs) == runs


def test_a_batch_may_be_forgotten_between_forward_and_backward():
    scores = make_scores()
    weights = torch.cat([torch.from_numpy(graph(n).log_prob.copy()) for n in range(3)]).requires_grad_()
    value = total_log_prob(make_batch("packed"), scores, LENGTHS, arc_log_probs=weights).sum()
    value = value + make_loss()(scores, LENGTHS, make_numerators())
    gc.collect()
    value.backward()
    assert scores.grad.any() and weights.grad.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_gradient_comes_in_the_type_of_the_scores(dtype):
    loss, numerators = make_loss(l2_regularize=0.01), make_numerators()
    for call in (lambda y: loss(y, LENGTHS, numerators), total):
        scores = make_scores(dtype)
        wide = scores.detach().double().requires_grad_()
        call(scores).backward()
        call(wide).backward()
        assert scores.grad.dtype == dtype
        limit = tolerances.OCCUPANCY + torch.finfo(dtype).eps
        torch.testing.assert_close(scores.grad.double(), wide.grad, rtol=0.0, atol=limit)
