"""Occupancies of arcs and states, and gradients of arc weights: against all paths; test_backends_agree.py has the oracle."""

from dataclasses import replace

import numpy as np
import pytest
import tolerances
import torch
from random_graphs import connected_graph, left_to_right_graph, two_lobes
from test_backends_agree import assert_agrees

from fsachain import DenominatorGraph, Fsa, TableBatch, compile_table, forward_backward, total_log_prob
from fsachain.backends.cpu import log as cpu_log
from fsachain.backends.reference import sums as reference
from tools.fuzz.reader import within

NUM_PDFS = 9
BACKENDS = ["cpu", "reference"]
SCALES = [1.0, 30.0, 80.0, 1000.0]


def table_and_leak(kind, seed=0):
    if kind == "leaky":
        return DenominatorGraph(connected_graph(seed), NUM_PDFS).table, 0.1
    graph = connected_graph(seed) if kind == "exact" else left_to_right_graph(seed)
    return compile_table(graph, NUM_PDFS), 0.0


def occupancies(table, scores, leaky, backend):
    batch = TableBatch.pack([table])
    result = forward_backward(batch, scores[None], leaky_hmm_coefficient=leaky, backend=backend)
    return result.arc_occupancy(0), result.state_occupancy(0)


def test_what_is_nearly_lost_keeps_its_proportions():
    """Beside a lobe at exp(-630) two are at the least float there is, in which 0.4 nats cannot be told; they win."""
    rings = [1, 2, 3]
    fsa = Fsa(4, [0, 0, 0, *rings, 0], [*rings, *rings, 0], [3, 3, 3, 0, 1, 2, 4], np.zeros(7), np.zeros(4))
    scores = np.zeros((6, 5))
    scores[0, 4] = -np.inf
    scores[1, :3] = -630.0, -744.4, -744.0
    scores[2, 0] = -2000.0
    exact = assert_agrees(TableBatch.pack([compile_table(fsa)]), scores[None])
    share = 1.0 / (1.0 + np.exp(-0.4))
    np.testing.assert_allclose(exact.state_occupancy(0)[3:, 3], share, rtol=0.0, atol=tolerances.FLOAT64)


@pytest.mark.parametrize("gap", [600.0, 660.0, 740.0, 5000.0])
@pytest.mark.parametrize("leaky", [1e-5, 1.0])
def test_a_leak_that_collects_next_to_nothing_is_not_lost(gap, leaky):
    """All the leak lands in one lobe, whose scores then fall: what leaks from there is below any float."""
    table = replace(compile_table(two_lobes()), leaky_log_prob=np.array([-np.inf, 0.0, -np.inf]))
    scores = np.zeros((12, 3))
    scores[3, 0] = scores[7, 1] = -gap
    other = scores.copy()
    other[3, 0], other[3, 2] = -2 * gap, gap
    assert_agrees(TableBatch.share(table, 2), np.stack([scores, other]), leaky=leaky)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spoiled", [np.nan, np.inf, "frame of -inf", "too short"])
def test_impossible_sequences_have_no_occupancy(backend, spoiled):
    table, _ = table_and_leak("numerator")
    scores = np.random.default_rng(3).normal(size=(20, NUM_PDFS))
    if isinstance(spoiled, float):
        scores[4] = spoiled
    elif spoiled == "too short":
        scores = scores[:2]
    else:
        scores[4] = -np.inf
    arcs, states = occupancies(table, scores, 0.0, backend)
    assert not arcs.any() and not states.any()
    counts = np.zeros(table.num_arcs)
    module = {"cpu": cpu_log, "reference": reference}[backend]
    module.add_arc_occupancy(TableBatch.pack([table]), scores[None], np.array([len(scores)]), 0.0, [counts])
    assert not counts.any()


def counted(batch, scores, lengths, leaky):
    counts = [np.zeros(batch.table(n).num_arcs) for n in range(batch.size)]
    cpu_log.add_arc_occupancy(batch, scores, lengths, leaky, counts)
    return counts


@pytest.mark.parametrize("kind", ["leaky", "exact"])
def test_counts_of_arcs_are_sums_over_frames_and_add_to_what_is_there(kind):
    table, leaky = table_and_leak(kind)
    scores = np.random.default_rng(4).normal(size=(3, 30, NUM_PDFS)).astype(np.float32)
    lengths, before = np.array([30, 12, 0]), np.arange(table.num_arcs, dtype=np.float64)
    counts = [before.copy() for _ in range(3)]
    cpu_log.add_arc_occupancy(TableBatch.share(table, 3), scores, lengths, leaky, counts)
    for n, length in enumerate(lengths):
        arcs, _ = occupancies(table, scores[n, :length], leaky, "reference")
        np.testing.assert_allclose(counts[n], before + arcs.sum(axis=0), rtol=0.0, atol=tolerances.FLOAT64)


def test_counts_of_arcs_have_the_same_bits_alone_in_any_batch_and_with_any_number_of_threads(use_threads):
    scores = 50 * np.random.default_rng(5).normal(size=(5, 30, NUM_PDFS))
    lengths = np.array([30, 7, 21, 30, 1])
    tables = [table_and_leak("leaky", n)[0] for n in range(5)]
    one_by_one = ((TableBatch.pack([tables[n]]), scores[[n]], lengths[[n]]) for n in range(5))
    alone = [counted(*one, 0.1)[0] for one in one_by_one]
    for count in (1, 3):
        use_threads(count)
        together = counted(TableBatch.pack(tables), scores, lengths, 0.1)
        assert [row.tobytes() for row in together] == [row.tobytes() for row in alone]


def test_counts_of_arcs_need_no_array_of_frames_by_arcs():
    fsa = connected_graph(6, num_states=20, num_arcs=4000, num_pdfs=NUM_PDFS)
    batch, scores = TableBatch.pack([compile_table(fsa, NUM_PDFS)]), np.zeros((1, 400, NUM_PDFS))
    counted(batch, scores, np.array([400]), 0.0)
    with within(400 * fsa.num_arcs * 8 / 10):
        counted(batch, scores, np.array([400]), 0.0)


def weighted_problem(scale=1.0):
    fsas = [connected_graph(n, num_states=4, num_arcs=9, num_pdfs=5) for n in range(3)]
    batch = TableBatch.pack([DenominatorGraph(fsa, 5).table for fsa in fsas])
    weights = torch.cat([torch.from_numpy(fsa.log_prob.copy()) for fsa in fsas])
    generator = torch.Generator().manual_seed(0)
    scores = scale * torch.randn(3, 6, 5, generator=generator, dtype=torch.float64)
    return batch, scores, weights


@pytest.mark.parametrize("wanted", ["weights", "scores", "both", "neither"])
def test_gradients_come_to_those_who_want_them_and_are_right(wanted):
    batch, scores, weights = weighted_problem()
    weights.requires_grad_(wanted in ("weights", "both"))
    scores.requires_grad_(wanted in ("scores", "both"))

    def function(y, w):
        return total_log_prob(batch, y, [6, 3, 5], arc_log_probs=w, leaky_hmm_coefficient=0.1)

    plain = total_log_prob(batch, scores.detach(), [6, 3, 5], leaky_hmm_coefficient=0.1)
    value = function(scores, weights)
    torch.testing.assert_close(value.detach(), plain, rtol=tolerances.ROUNDING, atol=0.0)
    assert value.requires_grad == (wanted != "neither")
    if wanted != "neither":
        assert torch.autograd.gradcheck(function, (scores, weights))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("leaky", [0.0, 0.1])
def test_gradients_are_expected_counts_times_what_comes_in_at_every_scale(scale, leaky):
    batch, scores, weights = weighted_problem(scale)
    weights.requires_grad_(), scores.requires_grad_()
    factors = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    value = total_log_prob(batch, scores, [6, 3, 5], arc_log_probs=weights, leaky_hmm_coefficient=leaky)
    (value * factors).sum().backward()
    result = forward_backward(batch, scores, [6, 3, 5], leaky_hmm_coefficient=leaky, backend="reference")
    expected = torch.cat([factors[n] * result.arc_occupancy(n).sum(dim=0) for n in range(3)])
    torch.testing.assert_close(weights.grad, expected, rtol=0.0, atol=tolerances.FLOAT64)
    expected = factors.view(-1, 1, 1) * result.occupancy
    torch.testing.assert_close(scores.grad, expected, rtol=0.0, atol=tolerances.FLOAT64)


def test_an_arc_of_weight_zero_has_no_gradient():
    """Both ways: an arc whose new weight is -inf, and graphs of which all arcs are."""
    batch, scores, weights = weighted_problem()
    weights[[2, 9, 10]] = -torch.inf
    weights[18:] = -torch.inf
    weights.requires_grad_()
    value = total_log_prob(batch, scores, [6, 3, 5], arc_log_probs=weights)
    value.sum().backward()
    assert value[2] == -torch.inf and not weights.grad[18:].any()
    assert not weights.grad[[2, 9, 10]].any()
    torch.testing.assert_close(weights.grad[:9].sum(), torch.tensor(6.0, dtype=torch.float64))


def test_sequences_without_frames_have_zero_gradients():
    batch, _, weights = weighted_problem()
    scores = torch.zeros(3, 0, 5, dtype=torch.float64, requires_grad=True)
    weights.requires_grad_()
    total_log_prob(batch, scores, arc_log_probs=weights).sum().backward()
    assert scores.grad.shape == scores.shape and not weights.grad.any()
