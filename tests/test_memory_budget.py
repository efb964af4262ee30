"""`memory_budget`: what is kept depends on it, and no bit of any result; every public function refuses the same values."""

import math

import pytest
import torch
from loss_inputs import LENGTHS, LOSSES, SIZE, WIDTH, make_denominator, make_graphs, make_loss, make_output
from random_graphs import connected_graph

from fsachain import (
    TableBatch,
    compile_table,
    forward_backward,
    get_num_threads,
    set_num_threads,
    total_log_prob,
)
from fsachain.backends.cpu import backend as cpu
from fsachain.backends.cpu import memory as cpu_work
from fsachain.errors import ConfigError
from fsachain.loss.mbr import expected_accuracy

BUDGETS = [None, 0, 0.0, 1e3, math.inf]


def make_batch(layout):
    """A graph shared by all sequences, or graphs of their own; both can leak."""
    tables = [make_denominator(n).table for n in range(SIZE)]
    return TableBatch.share(tables[0], SIZE) if layout == "shared" else TableBatch.pack(tables)


def of_recursion(output, budget, layout, leaky):
    result = forward_backward(
        make_batch(layout), output, LENGTHS, leaky_hmm_coefficient=leaky, memory_budget=budget
    )
    return result.log_prob, result.occupancy


def of_total(output, budget, layout, leaky):
    value = total_log_prob(
        make_batch(layout), output, LENGTHS, leaky_hmm_coefficient=leaky, memory_budget=budget
    )
    return value.detach(), *torch.autograd.grad(value.sum(), output)


def of_arc_weights(output, budget, layout, leaky):
    batch = make_batch(layout)
    weights = torch.cat(
        [torch.from_numpy(connected_graph(n).log_prob.copy()) for n in range(len(batch.tables))]
    )
    value = total_log_prob(
        batch,
        output,
        LENGTHS,
        leaky_hmm_coefficient=leaky,
        arc_log_probs=weights.requires_grad_(),
        memory_budget=budget,
    )
    return value.detach(), *torch.autograd.grad(value.sum(), [output, weights])


def of_accuracy(output, budget, layout, leaky):
    accuracy = make_output(seed=1)
    value = expected_accuracy(
        make_batch(layout), output, accuracy, LENGTHS, leaky_hmm_coefficient=leaky, memory_budget=budget
    )
    return value.detach(), *torch.autograd.grad(value.sum(), [output, accuracy])


def of_loss(kind):
    def evaluate(output, budget, layout, leaky):
        options = {"leaky_hmm_coefficient": leaky, "l2_regularize": 0.01, "xent_regularize": 0.1}
        names, of = None, None
        if layout == "packed":
            names, of = {"a": make_denominator(), "b": make_denominator(5)}, ["a", "b", "b", "a"]
        loss, branch = make_loss(kind, names, memory_budget=budget, **options), make_output(seed=1)
        value = loss(output, LENGTHS, make_graphs(), xent_log_probs=branch, denominator_of=of)
        return value.detach(), *torch.autograd.grad(value, [output, branch])

    return evaluate


ENTRIES = {
    "forward_backward": of_recursion,
    "total_log_prob": of_total,
    "arc weights": of_arc_weights,
    "expected_accuracy": of_accuracy,
    **{kind: of_loss(kind) for kind in LOSSES},
}
of_every_entry = pytest.mark.parametrize("entry", ENTRIES)


@pytest.fixture
def segments(monkeypatch):
    """Into how many segments each group of sequences was cut."""
    made, plan = [], cpu.make_plan

    def spy(*arguments):
        made.append(len(plan(*arguments).starts))
        return plan(*arguments)

    monkeypatch.setattr(cpu, "make_plan", spy)
    return made


@of_every_entry
@pytest.mark.parametrize(
    ("layout", "leaky", "dtype", "scale"),
    [
        ("shared", 0.1, torch.float16, 1.0),
        ("packed", 0.0, torch.float32, 1.0),
        ("shared", 0.0, torch.float32, 1000.0),
        ("packed", 0.1, torch.float64, 80.0),
    ],
    ids=str,
)
def test_no_bit_depends_on_the_budget(entry, layout, leaky, dtype, scale, segments):
    """And yet it is heard: at 0 every group of sequences is cut into segments, without a limit none is."""
    results = {}
    for budget in BUDGETS:
        segments.clear()
        results[budget] = ENTRIES[entry](make_output(scale=scale, dtype=dtype), budget, layout, leaky)
        assert segments
        if budget == 0:
            assert min(segments) > 1
        elif budget is None or budget == math.inf:
            assert max(segments) == 1
    for budget in BUDGETS:
        for ours, theirs in zip(results[budget], results[None], strict=True):
            assert torch.equal(ours, theirs)
    assert results[None][1].any() and results[None][1].isfinite().all()


@of_every_entry
def test_no_budget_asked_for_is_a_share_of_the_free_memory(entry, segments, monkeypatch):
    for free, is_whole in ((0, False), (1 << 40, True)):
        monkeypatch.setattr(cpu_work, "free_bytes", lambda free=free: free)
        segments.clear()
        ENTRIES[entry](make_output(), None, "shared", 0.1)
        assert segments and all((count == 1) == is_whole for count in segments)


@pytest.fixture
def number_of_threads():
    before = get_num_threads()
    yield
    set_num_threads(before)


@pytest.mark.parametrize("entry", ["total_log_prob", "expected_accuracy"])
def test_the_budget_is_that_of_all_threads_together(entry, segments, number_of_threads):
    """Four threads need four times the memory of one to keep all alphas."""
    output, counts = make_output(), {}
    for threads in (1, 4):
        set_num_threads(threads)
        for exponent in range(8, 30):
            segments.clear()
            ENTRIES[entry](output, 2.0**exponent, "packed", 0.1)
            if max(segments) == 1:
                counts[threads] = exponent
                break
    assert counts[4] == counts[1] + 2


@of_every_entry
@pytest.mark.parametrize("budget", [-1, -1.0, -1e-300, math.nan, -math.inf])
def test_a_budget_below_zero_is_refused(entry, budget):
    with pytest.raises(
        ConfigError, match=rf"memory_budget = {budget}; expected bytes, a number >= 0, or None"
    ):
        ENTRIES[entry](make_output(), budget, "shared", 0.1)


@pytest.mark.parametrize("entry", ["forward_backward", "total_log_prob", "expected_accuracy"])
def test_sequences_without_frames_need_no_budget(entry):
    """Of no frames at all, and one of them beside others."""
    for lengths in ([0] * SIZE, [0, 5, 30, 1]):
        results = []
        for budget in (0.0, math.inf):
            output = make_output()
            arguments = make_denominator().batch(SIZE), output
            if entry == "forward_backward":
                result = forward_backward(*arguments, lengths, memory_budget=budget)
                results.append((result.log_prob, result.occupancy))
                continue
            if entry == "total_log_prob":
                value = total_log_prob(*arguments, lengths, memory_budget=budget)
            else:
                value = expected_accuracy(*arguments, make_output(seed=1), lengths, memory_budget=budget)
            results.append((value.detach(), *torch.autograd.grad(value.sum(), output)))
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(*results, strict=True))


def test_the_oracle_takes_the_argument_and_keeps_everything():
    output = make_output()
    for budget in (0.0, None):
        result = forward_backward(
            make_batch("packed"), output, LENGTHS, backend="reference", memory_budget=budget
        )
        assert result.ok.all() and result.occupancy.any()
        value = total_log_prob(
            make_batch("packed"), output, LENGTHS, backend="reference", memory_budget=budget
        )
        (gradient,) = torch.autograd.grad(value.sum(), output)
        assert torch.equal(gradient, result.occupancy)


@pytest.mark.parametrize("kind", [*LOSSES, "total_log_prob"])
@pytest.mark.parametrize("budget", [None, 0, 1e9, math.inf])
def test_torch_compile_keeps_a_function_with_a_budget_whole(kind, budget, segments):
    """fullgraph=True raises at the first graph break."""
    batch, numerators = (
        make_batch("shared"),
        TableBatch.pack([compile_table(g, WIDTH) for g in make_graphs()]),
    )
    loss = make_loss(kind, memory_budget=budget) if kind in LOSSES else None

    def evaluate(y):
        if loss is None:
            return total_log_prob(batch, 2 * y, LENGTHS, memory_budget=budget).sum()
        return loss(2 * y, LENGTHS, numerators)

    torch._dynamo.reset()
    results = []
    for call in (evaluate, torch.compile(evaluate, fullgraph=True, backend="aot_eager")):
        output = make_output()
        value = call(output)
        results.append((value.detach(), *torch.autograd.grad(value, output)))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*results, strict=True))
    assert min(segments) > 1 if budget == 0 else max(segments) == 1
