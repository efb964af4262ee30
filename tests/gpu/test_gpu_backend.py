"""On a GPU: the recursions and the losses equal the oracle, and nobody waits for the device."""

from __future__ import annotations

import gc
import math

import numpy as np
import pytest
import tolerances
import torch
from gpu_inputs import (  # noqa: F401
    WIDTH,
    connected_graph,
    left_to_right_graph,
    make_denominator,
    make_loss,
    needs_gpu,
    nobody_waits,
    the_host_is_the_reference,
)

from fsachain import DenominatorGraph, TableBatch, compile_table, forward_backward, total_log_prob
from tools import SHARED
from tools.bench.workloads import connected
from tools.golden import kaldi, peers

pytestmark = needs_gpu
two_devices = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one device")

SIZE, FRAMES = 24, 60
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def make_scores(seed=0, dtype=torch.float32, scale=1.0, shape=(SIZE, FRAMES, WIDTH)):
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)


def make_lengths(size=SIZE, frames=FRAMES):
    return np.random.default_rng(0).integers(frames // 2, frames + 1, size)


def make_batch(kind, size=SIZE):
    if kind == "shared":
        return make_denominator().batch(size)
    graphs = [left_to_right_graph(n, 5 + n % 7) if n % 3 else connected_graph(n) for n in range(size)]
    return TableBatch.pack([compile_table(graph, WIDTH) for graph in graphs])


def make_step(loss, numerators, lengths, scores):
    """A training step: the loss, and the gradient by the scores in `scores.grad`."""

    def step():
        scores.grad = None
        value = loss(scores, lengths, numerators)
        value.backward()
        return value.detach()

    return step


def assert_like_the_oracle(batch, scores, lengths=None, leaky=0.0, **options):
    """Of scores on the host; returns the result on the device."""
    exact = forward_backward(
        batch, scores.double().numpy(), lengths, leaky_hmm_coefficient=leaky, backend="reference"
    )
    found = forward_backward(batch, scores.cuda(), lengths, leaky_hmm_coefficient=leaky, **options)
    assert found.log_prob.is_cuda and found.ok.is_cuda and found.occupancy.is_cuda
    assert (found.ok.cpu().numpy() == exact.ok).all()
    for ours, oracle in zip(found.log_prob.tolist(), exact.log_prob.tolist(), strict=True):
        assert ours == pytest.approx(oracle, abs=tolerances.log_prob_tolerance(oracle), nan_ok=True)
    difference = np.abs(found.occupancy.double().cpu().numpy() - exact.occupancy)
    assert difference.max(initial=0.0) <= tolerances.OCCUPANCY
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("kind", "leaky"), [("shared", 0.1), ("shared", 0.0), ("packed", 0.0)])
@pytest.mark.parametrize("scale", [1.0, 30.0, 80.0, 1000.0])
def test_the_recursions_equal_the_oracle_at_every_magnitude(kind, leaky, dtype, scale):
    assert_like_the_oracle(make_batch(kind), make_scores(dtype=dtype, scale=scale), make_lengths(), leaky)


@pytest.mark.parametrize("kind", ["shared", "packed"])
def test_impossible_and_illegal_sequences_stay_alone_and_padding_may_hold_anything(kind):
    scores, lengths = make_scores(), make_lengths()
    lengths[:3] = 0, 1, FRAMES
    scores[3, 2], scores[4, 2], scores[5, 2] = math.nan, math.inf, -math.inf
    for n in range(SIZE):
        scores[n, lengths[n] :] = math.nan
    found = assert_like_the_oracle(make_batch(kind), scores, lengths, 0.1 if kind == "shared" else 0.0)
    assert not found.ok[3:6].any() and torch.isfinite(found.occupancy).all()


@pytest.mark.parametrize("kind", ["shared", "packed"])
def test_the_same_bits_alone_in_any_batch_again_and_after_poisoned_memory(kind):
    leaky = 0.1 if kind == "shared" else 0.0
    batch, scores, lengths = make_batch(kind), make_scores().cuda(), make_lengths()
    first = forward_backward(batch, scores, lengths, leaky_hmm_coefficient=leaky)
    poison = [torch.full((1 << 22,), math.nan, device="cuda") for _ in range(16)]
    small = [torch.full((1 << k,), math.nan, device="cuda") for k in range(20) for _ in range(8)]
    occupancy, log_prob = first.occupancy.clone(), first.log_prob.clone()
    del poison, small
    again = forward_backward(batch, scores, lengths, leaky_hmm_coefficient=leaky)
    assert torch.equal(again.log_prob, log_prob) and torch.equal(again.occupancy, occupancy)
    for n in (0, 7, SIZE - 1):
        alone = TableBatch.pack([batch.table(n)]) if kind == "packed" else make_denominator().batch(1)
        result = forward_backward(alone, scores[n : n + 1], lengths[n : n + 1], leaky_hmm_coefficient=leaky)
        assert torch.equal(result.log_prob[0], log_prob[n]) and torch.equal(result.occupancy[0], occupancy[n])


@pytest.mark.parametrize("kind", ["shared", "packed"])
def test_a_small_memory_budget_changes_no_bit(kind):
    batch, scores, leaky = make_batch(kind), make_scores().cuda(), 0.1 if kind == "shared" else 0.0
    results = [
        forward_backward(batch, scores, leaky_hmm_coefficient=leaky, memory_budget=budget).occupancy
        for budget in (0.0, math.inf)
    ]
    assert torch.equal(*results)


LOSSES = {
    "plain": {},
    "everything": {"l2_regularize": 0.01, "out_of_range_regularize": 0.1, "xent_regularize": 0.1, "boost": 0.3},
}  # fmt: skip


@pytest.mark.parametrize("options", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_loss_and_its_gradient_equal_those_of_the_host(options, dtype):
    graphs = {"one": make_denominator(0), "two": make_denominator(3)}
    arguments = {
        "weights": np.linspace(0.5, 2.0, SIZE),
        "frame_weights": make_scores(2)[:, :, 0].abs(),
        "xent_log_probs": make_scores(1, dtype).log_softmax(2),
        "denominator_of": ["one", "two", "two"] * (SIZE // 3),
    }
    results = []
    for device in ("cpu", "cuda"):
        loss, scores = make_loss(graphs, **LOSSES[options]), make_scores(dtype=dtype, scale=20.0)
        scores[2, 3] = math.nan
        leaf = scores.to(device).requires_grad_()
        moved = arguments | {name: arguments[name].to(device) for name in ("frame_weights", "xent_log_probs")}
        value = loss(leaf, make_lengths(), make_batch("packed"), **moved)
        value.backward()
        record = loss.last_record
        results.append((value.cpu(), record.objf.cpu(), record.num_log_prob.cpu(), leaf.grad.cpu()))
        assert "sequence 2" in record.excluded and (leaf.grad[2] == 0).all()
    limits = {"rtol": tolerances.LOG_PROB_RELATIVE, "atol": tolerances.OCCUPANCY}
    torch.testing.assert_close(results[1], results[0], **limits, equal_nan=True)


@pytest.mark.parametrize("kind", ["one denominator", "two denominators"])
def test_a_training_step_does_not_wait_for_the_device(kind):
    graphs = {"one": make_denominator(0), "two": make_denominator(3)}
    loss = make_loss(graphs if kind == "two denominators" else None, l2_regularize=0.01, boost=0.1)
    which = {"denominator_of": ["one", "two"] * (SIZE // 2)} if kind == "two denominators" else {}
    scores = make_scores().cuda().requires_grad_()
    weights = np.ones(SIZE)
    for _ in range(2):
        with nobody_waits():
            numerators = make_batch("packed")
            loss(scores, make_lengths(), numerators, weights, **which).backward()
    with nobody_waits():
        total_log_prob(make_batch("packed"), scores, make_lengths()).sum().backward()
    assert loss.last_record.ok.any()


def test_the_host_is_done_long_before_the_device():
    """The device is kept busy for about a second first; the step returns before it begins."""
    scores = make_scores().cuda().requires_grad_()
    step = make_step(make_loss(), make_batch("packed"), make_lengths(), scores)
    step()
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    torch.cuda._sleep(1_500_000_000)
    step()
    done.record()
    assert not done.query()
    torch.cuda.synchronize()


def test_scores_that_a_delayed_stream_makes_are_waited_for_by_the_device():
    batch, given, lengths = make_batch("packed"), make_scores().cuda(), make_lengths()
    expected = forward_backward(batch, given, lengths)
    log_prob, occupancy = expected.log_prob.clone(), expected.occupancy.clone()
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        late = torch.full_like(given, math.nan)
        torch.cuda._sleep(200_000_000)
        late.copy_(given)
        result = forward_backward(batch, late, lengths)
        found = result.log_prob, result.occupancy
    side.synchronize()
    assert torch.equal(found[0], log_prob) and torch.equal(found[1], occupancy)


def test_two_streams_share_tables_that_one_of_them_uploads_late():
    lengths, given = make_lengths(), make_scores().cuda()
    expected = forward_backward(make_batch("packed"), given, lengths).log_prob.clone()
    for _ in range(20):
        batch = make_batch("packed")
        first, second = torch.cuda.Stream(), torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(first):
            torch.cuda._sleep(20_000_000)
            one = forward_backward(batch, given, lengths).log_prob
        with torch.cuda.stream(second):
            two = forward_backward(batch, given, lengths).log_prob
        del batch  # while both may still be at work
        gc.collect()
        torch.cuda.synchronize()
        assert torch.equal(one, expected) and torch.equal(two, expected)


@two_devices
def test_a_device_that_is_not_the_current_one():
    batch, scores, lengths = make_batch("packed"), make_scores(), make_lengths()
    there = forward_backward(batch, scores.to("cuda:1"), lengths)
    here = forward_backward(batch, scores.to("cuda:0"), lengths)
    assert there.occupancy.device.index == 1 and torch.cuda.current_device() == 0
    assert torch.equal(there.log_prob.cpu(), here.log_prob.cpu())
    assert torch.equal(there.occupancy.cpu(), here.occupancy.cpu())


def test_a_training_step_is_captured_and_replayed_on_new_scores():
    loss, numerators, lengths = make_loss(l2_regularize=0.01), make_batch("packed"), make_lengths()
    scores = make_scores().cuda().requires_grad_()
    step = make_step(loss, numerators, lengths, scores)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = step()
    for seed in (1, 2, 1000):
        with torch.no_grad():
            # The last scores are so large that sequences run in other kinds of numbers than when it was captured.
            scores.copy_(make_scores(seed, scale=float(seed)))
        graph.replay()
        torch.cuda.synchronize()
        replayed, gradient = value.clone(), scores.grad.clone()
        fresh = scores.detach().clone().requires_grad_()
        assert torch.equal(make_step(loss, numerators, lengths, fresh)(), replayed)
        assert torch.equal(fresh.grad, gradient)


def test_network_and_loss_compile_to_one_graph():
    torch._dynamo.reset()
    loss, numerators, net = make_loss(), make_batch("packed"), torch.nn.Linear(WIDTH, WIDTH).cuda()
    lengths = torch.from_numpy(make_lengths())

    def train(x):
        return loss(net(x), lengths, numerators)

    results = []
    for call in (train, torch.compile(train, fullgraph=True)):
        net.zero_grad()
        value = call(make_scores().cuda())
        value.backward()
        results.append((value.detach(), net.weight.grad.clone()))
    torch.testing.assert_close(results[1], results[0], rtol=0.0, atol=tolerances.FEW_FLOAT32_TERMS)


@pytest.mark.parametrize(
    ("states", "arcs"), [(1, 1), (3000, 50_000), (60_000, 250_000), (1_000_000, 2_000_000)]
)
def test_graphs_of_every_size(states, arcs):
    graph = DenominatorGraph(connected(states, arcs, 84), 84)
    scores = make_scores(shape=(2, 6, 84))
    result = forward_backward(graph.batch(2), scores.cuda(), [6, 4], leaky_hmm_coefficient=1e-5)
    exact = forward_backward(graph.batch(2), scores, [6, 4], leaky_hmm_coefficient=1e-5, backend="cpu")
    torch.testing.assert_close(result.occupancy.cpu(), exact.occupancy, rtol=0, atol=tolerances.OCCUPANCY)
    torch.testing.assert_close(
        result.log_prob.cpu(), exact.log_prob, rtol=tolerances.LOG_PROB_RELATIVE, atol=0
    )


@pytest.mark.parametrize(
    ("size", "frames"), [(1, 20_000), (1024, 30)], ids=["20,000 frames", "1,024 sequences"]
)
@pytest.mark.parametrize("kind", ["shared", "packed"])
def test_long_sequences_and_large_batches(kind, size, frames):
    batch, scores = make_batch(kind, size), make_scores(shape=(size, frames, WIDTH))
    leaky, lengths = 0.1 if kind == "shared" else 0.0, make_lengths(size, frames)
    found = forward_backward(batch, scores.cuda(), lengths, leaky_hmm_coefficient=leaky)
    exact = forward_backward(batch, scores, lengths, leaky_hmm_coefficient=leaky, backend="cpu")
    assert torch.equal(found.ok.cpu(), exact.ok)
    torch.testing.assert_close(found.occupancy.cpu(), exact.occupancy, rtol=0, atol=tolerances.OCCUPANCY)


def test_more_elements_than_32_bits_count():
    """The last sequence and the last pdf lie beyond 2^31 elements."""
    size, frames, width = 64, 700, 50_000
    assert size * frames * width > 2**31
    needed = size * frames * width * (2 + 4) * 1.2
    if torch.cuda.mem_get_info()[0] < needed:
        pytest.skip(f"needs {needed / 2**30:.0f} GiB of free memory")
    graph = left_to_right_graph(0)
    high = type(graph)(
        graph.num_states,
        graph.src,
        graph.dst,
        graph.pdf + width - WIDTH,
        graph.log_prob,
        graph.final_log_prob,
    )
    batch = TableBatch.share(compile_table(high, width), size)
    scores = torch.zeros(size, frames, width, dtype=torch.bfloat16, device="cuda")
    scores[-1, :, -WIDTH:] = make_scores(shape=(frames, WIDTH)).to("cuda", torch.bfloat16)
    found = forward_backward(batch, scores)
    alone = forward_backward(
        TableBatch.share(compile_table(graph, WIDTH), 1), scores[-1:, :, -WIDTH:].contiguous(), backend="auto"
    )
    torch.testing.assert_close(
        found.occupancy[-1, :, -WIDTH:], alone.occupancy[0], rtol=0, atol=tolerances.OCCUPANCY
    )
    assert float(found.occupancy[-1].sum()) == pytest.approx(frames, rel=tolerances.ROW_SUM)


def test_cupy_arrays_give_the_results_of_torch_tensors():
    import cupy

    batch, scores, lengths = make_batch("packed"), make_scores(), make_lengths()
    theirs = forward_backward(batch, cupy.asarray(scores.numpy()), lengths)
    ours = forward_backward(batch, scores.cuda(), lengths)
    assert isinstance(theirs.occupancy, cupy.ndarray)
    assert (theirs.occupancy.get() == ours.occupancy.cpu().numpy()).all()
    assert (theirs.log_prob.get() == ours.log_prob.cpu().numpy()).all()


@pytest.mark.parametrize("convert", [torch.Tensor.numpy, torch.Tensor.clone], ids=["numpy", "torch"])
def test_arrays_of_the_host_get_results_on_the_host(convert):
    batch, scores, lengths = make_batch("packed"), make_scores(), make_lengths()
    found = forward_backward(batch, convert(scores), lengths, backend="cuda")
    expected = forward_backward(batch, scores.cuda(), lengths)
    assert type(found.occupancy) is type(convert(scores))
    assert (np.asarray(found.occupancy) == expected.occupancy.cpu().numpy()).all()


GOLDEN = [*kaldi.cases(SHARED), *peers.cases(SHARED)]


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case.name)
def test_values_of_other_programs_are_met(case):
    rows = list(case.rows("cuda"))
    assert rows and not [row for row in rows if not row.agrees]
