"""`memory_budget`: what is kept depends on it, and no bit of any result; every public function refuses the same values."""

import math

import pytest
import torch
from loss_inputs import LENGTHS, LOSSES, SIZE, make_denominator, make_graphs, make_loss, make_output
from random_graphs import connected_graph

from fsachain import TableBatch, forward_backward, total_log_prob
from fsachain.backends.cpu import backend as cpu
from fsachain.backends.cpu import memory as cpu_memory
from fsachain.errors import ConfigError
from fsachain.loss.mbr import expected_accuracy
from fsachain.table import compile_table

BUDGETS = [None, 0, 1e3, math.inf]


def of_recursion(output, batch, **options):
    result = forward_backward(batch, output, LENGTHS, **options)
    return result.log_prob, result.occupancy


def of_total(output, batch, **options):
    """By scores and by the weights of arcs."""
    graphs = [connected_graph(n) for n in range(len(batch.tables))]
    weights = torch.cat([torch.from_numpy(graph.log_prob.copy()) for graph in graphs]).requires_grad_()
    plain = total_log_prob(batch, output, LENGTHS, **options)
    weighted = total_log_prob(batch, output, LENGTHS, arc_log_probs=weights, **options)
    return plain.detach(), *torch.autograd.grad((plain + weighted).sum(), [output, weights])


def of_accuracy(output, batch, **options):
    accuracy = make_output(seed=1)
    value = expected_accuracy(batch, output, accuracy, LENGTHS, **options)
    return value.detach(), *torch.autograd.grad(value.sum(), [output, accuracy])


def of_loss(kind):
    def evaluate(output, batch, **options):
        names, of = None, None
        if not batch.is_shared:
            names, of = {"a": make_denominator(), "b": make_denominator(5)}, ["a", "b", "b", "a"]
        loss, branch = make_loss(kind, names, xent_regularize=0.1, **options), make_output(seed=1)
        value = loss(output, LENGTHS, make_graphs(), xent_log_probs=branch, denominator_of=of)
        return value.detach(), *torch.autograd.grad(value, [output, branch])

    return evaluate


ENTRIES = {"forward_backward": of_recursion, "total_log_prob": of_total, "expected_accuracy": of_accuracy}
ENTRIES |= {kind: of_loss(kind) for kind in LOSSES}
of_every_entry = pytest.mark.parametrize("entry", ENTRIES)


def evaluate(entry, budget, layout="shared", leaky=0.1, scale=1.0, dtype=torch.float64):
    """A graph shared by all sequences, or graphs of their own; both can leak."""
    tables = [make_denominator(n).table for n in range(SIZE)]
    batch = TableBatch.share(tables[0], SIZE) if layout == "shared" else TableBatch.pack(tables)
    output = make_output(scale=scale, dtype=dtype)
    return ENTRIES[entry](output, batch, leaky_hmm_coefficient=leaky, memory_budget=budget)


@pytest.fixture
def segments(monkeypatch):
    """Into how many segments each group of sequences of a recursion over plain sums was cut."""
    made, plan = [], cpu.make_plan

    def spy(*arguments):
        made.append(len(plan(*arguments).starts))
        return plan(*arguments)

    monkeypatch.setattr(cpu, "make_plan", spy)
    return made


@of_every_entry
@pytest.mark.parametrize(
    ("layout", "leaky", "scale", "dtype"),
    [("shared", 0.0, 1000.0, torch.float64), ("shared", 0.3, 1.0, torch.float32), ("packed", 0.1, 80.0, torch.float64)],
)  # fmt: skip
def test_no_bit_depends_on_the_budget(entry, layout, leaky, scale, dtype, segments):
    """And yet it is heard: at 0 every group of sequences is cut into segments, without a limit none is."""
    results = {}
    for budget in BUDGETS:
        segments.clear()
        results[budget] = evaluate(entry, budget, layout, leaky, scale, dtype)
        if budget == 0:
            assert min(segments) > 1
        elif budget is None or budget == math.inf:
            assert max(segments) == 1
        assert segments
    for found in results.values():
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, results[None], strict=True))
    assert results[None][1].any() and results[None][1].isfinite().all()


def test_no_budget_asked_for_is_a_share_of_the_free_memory(segments, monkeypatch):
    for free, is_whole in ((0, False), (1 << 40, True)):
        monkeypatch.setattr(cpu_memory, "free_bytes", lambda free=free: free)
        segments.clear()
        evaluate("LF-MMI", None)
        assert segments and all((count == 1) == is_whole for count in segments)


@of_every_entry
def test_a_budget_below_zero_is_refused(entry):
    for budget in (-1, -1e-300, math.nan, -math.inf):
        with pytest.raises(
            ConfigError, match=rf"memory_budget = {budget}; expected bytes, a number >= 0, or"
        ):
            evaluate(entry, budget)


def test_sequences_without_frames_need_no_budget():
    """Of no frames at all, and one of them beside others."""
    batch = make_denominator().batch(SIZE)
    for lengths in ([0] * SIZE, [0, 5, 30, 1]):
        results = []
        for budget in (0.0, math.inf):
            output = make_output()
            values = total_log_prob(batch, output, lengths, memory_budget=budget)
            accuracy = expected_accuracy(batch, output, make_output(seed=1), lengths, memory_budget=budget)
            results.append((values.detach(), *torch.autograd.grad((values + accuracy).sum(), output)))
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(*results, strict=True))


@pytest.mark.parametrize("is_shared", [False, True])
def test_segments_may_be_of_one_frame(is_shared, segments):
    """As where pdfs outnumber states by more than there are frames."""
    graph, frames = connected_graph(0, num_states=3, num_arcs=60, num_pdfs=40), 5
    batch = TableBatch.share(compile_table(graph), SIZE) if is_shared else [graph] * SIZE
    scores = torch.randn(SIZE, frames, 40, generator=torch.Generator().manual_seed(0))
    whole = forward_backward(batch, scores, memory_budget=math.inf)
    expected = whole.log_prob, whole.occupancy
    segments.clear()
    result = forward_backward(batch, scores, memory_budget=0)
    for ours, theirs in zip((result.log_prob, result.occupancy), expected, strict=True):
        assert torch.equal(ours, theirs)
    assert set(segments) == {frames}
