"""The CUDA route from the public calls to the kernels and back: kinds of arrays, launches, and what the host reads.

The losses by this route: test_cuda_every_loss.py.
"""

import math
from contextlib import nullcontext

import numpy as np
import pytest
import tolerances
import torch
from device_arrays import WAITING, needs_host_compiler
from loss_inputs import WIDTH, make_denominator, make_loss
from random_graphs import left_to_right_graph

from fsachain import TableBatch, best_path, compile_table, forward_backward, total_log_prob
from fsachain.backends import arrays as kinds
from fsachain.backends.cuda.device import Limits
from tools.cuda_on_host import libcuda, pretended

pytestmark = needs_host_compiler

LENGTHS = [7, 4, 8]
SIZE, FRAMES = len(LENGTHS), 8
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.fixture
def device():
    """What torch tensors live on in this test; nothing else is a device."""
    with pretended() as device:
        yield device


def make_scores(seed=0, dtype=torch.float32, scale=1.0, shape=(SIZE, FRAMES, WIDTH)):
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)


def is_padding():
    return torch.arange(FRAMES) >= torch.tensor(LENGTHS).view(-1, 1)


def make_graphs():
    return [left_to_right_graph(n, 3, WIDTH) for n in range(SIZE)]


def make_batch(kind):
    if kind == "shared":
        return make_denominator().batch(SIZE)
    return TableBatch.pack([compile_table(graph, WIDTH) for graph in make_graphs()], ["a", "b", "c"])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("kind", "leaky"), [("shared", 0.1), ("shared", 0.0), ("packed", 0.0)])
def test_forward_backward_of_a_device_tensor_runs_its_kernels_and_equals_the_oracle(
    device, kind, leaky, dtype
):
    batch, scores = make_batch(kind), make_scores(dtype=dtype)
    exact = forward_backward(
        batch, scores.double().numpy(), LENGTHS, leaky_hmm_coefficient=leaky, backend="reference"
    )
    found = forward_backward(batch, scores, LENGTHS, leaky_hmm_coefficient=leaky)
    assert found.ok.tolist() == exact.ok.tolist()
    for ours, oracle in zip(found.log_prob.tolist(), exact.log_prob.tolist(), strict=True):
        assert ours == pytest.approx(oracle, abs=tolerances.log_prob_tolerance(oracle), nan_ok=True)
    assert found.occupancy.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    np.testing.assert_allclose(found.occupancy, exact.occupancy, rtol=0, atol=tolerances.OCCUPANCY)
    names = {launch.kernel.text for launch in device.launches}
    assert names == {"frames.cu", "forward_backward.cu", "dense_rows.cu"}


@pytest.fixture
def cupy():
    """The real one, whose current device is the host; what arrays it has live there."""
    index = libcuda.device_with(Limits((9, 0), 4, 232_448, 8), {})
    import cupy

    with libcuda.visible(), cupy.cuda.Device(index), libcuda.calls() as calls:
        yield cupy
    assert {"forward", "backward"} <= {name for name, *_ in calls}


def test_cupy_arrays_give_cupy_arrays(cupy):
    batch, scores = make_batch("shared"), make_scores()
    exact = forward_backward(batch, scores, LENGTHS, leaky_hmm_coefficient=0.1, backend="reference")
    there = cupy.asarray(scores.numpy())
    found = forward_backward(batch, there, LENGTHS, leaky_hmm_coefficient=0.1)
    results = found.log_prob, found.ok, found.occupancy, found.arc_occupancy(1)
    assert {kinds.kind_of(result) for result in results} == {"cupy"}
    for ours, oracle in zip(
        results, (exact.log_prob, exact.ok, exact.occupancy, exact.arc_occupancy(1)), strict=True
    ):
        np.testing.assert_allclose(ours.get(), oracle.numpy(), rtol=0, atol=tolerances.OCCUPANCY)
    best, expected = (
        best_path(batch, x, LENGTHS, backend=y) for x, y in ((there, "auto"), (scores, "reference"))
    )
    assert kinds.kind_of(best.score) == "cupy"
    for ours, oracle in zip(best.arcs, expected.arcs, strict=True):
        np.testing.assert_array_equal(ours, oracle)


@pytest.mark.parametrize("convert", [torch.Tensor.numpy, torch.Tensor.clone], ids=["numpy", "torch"])
def test_arrays_of_the_host_travel_to_the_device_and_results_back_when_cuda_is_asked_for(cupy, convert):
    batch, scores = make_batch("packed"), make_scores()
    exact = forward_backward(batch, scores, LENGTHS, backend="reference")
    found = forward_backward(batch, convert(scores), LENGTHS, backend="cuda")
    assert {type(value) for value in (found.log_prob, found.ok, found.occupancy)} == {type(convert(scores))}
    np.testing.assert_allclose(found.occupancy, exact.occupancy, rtol=0, atol=tolerances.OCCUPANCY)
    np.testing.assert_allclose(found.log_prob, exact.log_prob, rtol=tolerances.LOG_PROB_RELATIVE)


def test_log_z_of_numerators_and_its_gradient_take_no_pass_that_clears_or_scales():
    """Occupancies stay packed until their factor is known: nothing is cleared, and nothing scaled by a pass of its own."""
    scores = make_scores().requires_grad_()
    with pretended() as device:
        (-total_log_prob(make_batch("packed"), scores, LENGTHS)).mean().backward()
    names = [launch.kernel.name for launch in device.launches]
    assert not {"clear_rows", "scale_rows"} & set(names)
    assert names.count("spread_rows") == 1 and names.count("read_frames") == names.count("write_occupancies")


def test_the_loss_reads_nothing_on_the_host_of_what_lives_on_the_device(device, monkeypatch):
    """Only integers (keys, lengths, which denominator) and the weights, which are the caller's on the host, are read."""
    read, weights = [], torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64)
    denominators = {"one": make_denominator(0), "two": make_denominator(3)}
    loss = make_loss("LF-MMI", denominators, l2_regularize=0.1, xent_regularize=0.1)
    scores, graphs = make_scores().requires_grad_(), make_graphs()
    arguments = {
        "weights": weights,
        "frame_weights": torch.ones(SIZE, FRAMES),
        "xent_log_probs": make_scores(1).log_softmax(2),
        "denominator_of": ["one", "two", "one"],
    }

    def spying(name):
        original = getattr(torch.Tensor, name)

        def spy(tensor, *rest, **options):
            read.append((name, tensor.dtype, tensor.data_ptr()))
            return original(tensor, *rest, **options)

        return spy

    with monkeypatch.context() as patch:
        for name in WAITING:
            patch.setattr(torch.Tensor, name, spying(name))
        for value in (
            loss(scores, LENGTHS, graphs, **arguments),
            total_log_prob(make_batch("packed"), scores, LENGTHS).sum(),
        ):
            value.backward()
    assert read
    for name, dtype, pointer in read:
        assert dtype == torch.int64 or pointer == weights.data_ptr(), f"{name} of a tensor of {dtype}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_lf_mmi_adds_penalties_weighs_frames_scales_and_casts_its_gradient_in_one_pass(dtype):
    """Twice, since the graph is kept: the second time in the gradient's own memory where types agree."""
    weights, graphs = torch.rand(SIZE, FRAMES, generator=torch.Generator().manual_seed(1)), make_graphs()
    weights[is_padding()] = math.nan
    given = make_scores(dtype=dtype, scale=30.0)
    given[is_padding()] = math.nan
    given[1, 2] = math.nan
    penalties, found = {"l2_regularize": 0.01, "out_of_range_regularize": 0.02}, []
    for home in (pretended(), nullcontext()):
        loss, scores = make_loss(**penalties), given.clone().requires_grad_()
        with home as device:
            value = loss(scores, LENGTHS, graphs, weights=[1.0, 2.0, 0.5], frame_weights=weights)
            first = torch.autograd.grad(value, scores, 3.0 * torch.ones_like(value), retain_graph=True)[0]
            (3.0 * value).backward()
        names = [launch.kernel.name for launch in device.launches] if device else ["finish_gradient"] * 2
        assert names.count("finish_gradient") == 2 and "scale_rows" not in names
        found.append((value.detach(), first, scores.grad))
    rounding = max(tolerances.LOG_PROB_RELATIVE, torch.finfo(dtype).eps)
    torch.testing.assert_close(*found, rtol=rounding, atol=tolerances.OCCUPANCY)
    assert torch.equal(found[0][1], found[0][2])


@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 0.5]])
def test_a_step_of_lf_mmi_leaves_torch_nothing_to_add_up(weights):
    """Each operation of torch would be a launch; the objective, penalties, weights and frames are one launch of ours."""
    scores, graphs = make_scores().requires_grad_(), make_batch("packed")
    loss = make_loss(l2_regularize=0.01)
    with pretended() as device, torch.autograd.profiler.profile() as profile:
        loss(scores, LENGTHS, graphs, weights).backward()
    names = [launch.kernel.name for launch in device.launches]
    assert names[-3:] == ["penalties", "loss_terms", "finish_gradient"]
    arithmetic = "add sub mul div neg sum where isfinite clone copy_ lt gt eq ne bitwise_and logical_not"
    assert not {f"aten::{name}" for name in arithmetic.split()} & {
        event.name for event in profile.function_events
    }
