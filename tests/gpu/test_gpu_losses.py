"""On a GPU: every loss is that of the host, also captured, scaled, of views, and in the same bits from run to run."""

from __future__ import annotations

import gc
from functools import cache, partial

import numpy as np
import pytest
import tolerances
import torch
from gpu_inputs import (  # noqa: F401
    WIDTH,
    make_denominator,
    make_loss,
    needs_gpu,
    nobody_waits,
    the_host_is_the_reference,
)

from fsachain import Forgiveness, MBRLoss, best_path, forward_backward
from fsachain.loss.ctc import ctc_loss
from fsachain.loss.pruned import rnnt_loss_simple
from fsachain.loss.rnnt import rnnt_loss
from fsachain.loss.total import total_log_prob
from tools.bench.workloads import left_to_right, packed

pytestmark = needs_gpu

GPU = torch.device("cuda")
SIZE, FRAMES, LABELS = 6, 21, 5
LENGTHS = torch.tensor([21, 20, 13, 21, 17, 11])
COUNTS = torch.tensor([5, 4, 2, 5, 0, 3])
FORGIVE = Forgiveness(1.0, 0.5, 0.7)
# The same label again and again: where derivatives of one class come from several places.
TARGETS = torch.tensor(
    [[1, 1, 2, 1, 1], [3, 1, 3, 1, 0], [2, 2, 0, 0, 0], [1, 2, 1, 2, 1], [0] * 5, [4, 4, 4, 0, 0]]
)


def make_numerators(width=WIDTH):
    """Of `width` pdfs, the last of which comes up in each."""
    graphs = []
    for n in range(SIZE):
        pdfs = np.append(np.random.default_rng(n).integers(0, width, 3 + n), width - 1)
        graphs.append(left_to_right(pdfs, np.arange(4 + n) % 3 == 1, -1.0, 1))
    return packed(graphs, width)


numerators = cache(make_numerators)


def make_scores(seed=0, dtype=torch.float32, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn((SIZE, FRAMES, WIDTH), generator=generator, dtype=torch.float64)).to(dtype)


def lfmmi(loss, width=WIDTH, has_xent=False):
    def of(scores):
        log_probs = scores.log_softmax(2) if has_xent else None
        return loss(scores, LENGTHS, numerators(width), xent_log_probs=log_probs)

    return of


def starred(**options):
    return make_loss(make_denominator().with_star(), **options)


def ctc(scores, targets=TARGETS, **options):
    return ctc_loss(scores.transpose(0, 1), targets, LENGTHS, COUNTS, **{"inputs": "logits", **options})


def ctc_of_log_probs(scores):
    return ctc(scores.log_softmax(2), inputs="log_probs", unnormalized="ignore")


def rnnt(scores, **options):
    places = torch.arange(LABELS + 1.0, dtype=scores.dtype, device=scores.device)
    logits = (scores[:, :, None, :] * (1.0 + 0.1 * places[:, None])).contiguous()
    return rnnt_loss(logits, TARGETS, LENGTHS, COUNTS, blank=0, **options)


def simple(scores):
    bounds = torch.stack([0 * COUNTS, 0 * COUNTS, COUNTS, LENGTHS], dim=1)
    return rnnt_loss_simple(scores[:, : LABELS + 1], scores, TARGETS, 0, bounds)


def total(scores):
    return total_log_prob(numerators(), scores, LENGTHS).sum()


LOSSES = {
    "LF-MMI": lambda: lfmmi(make_loss(l2_regularize=0.01)),
    "star of frames": lambda: lfmmi(starred(l2_regularize=0.01), WIDTH + 1),
    "star of frames, with cross-entropy": lambda: lfmmi(starred(xent_regularize=0.1), WIDTH + 1, True),
    "MBR": lambda: lfmmi(MBRLoss(make_denominator())),
    "total": lambda: total,
    "CTC": lambda: ctc,
    "CTC of log-probs": lambda: ctc_of_log_probs,
    "CTC, forgiving": lambda: partial(ctc, forgive=FORGIVE),
    "transducer": lambda: partial(
        rnnt, fastemit_lambda=0.1
    ),  # else so small a one is not the reference's on the host
    "transducer in place": lambda: partial(rnnt, inplace=True),
    "transducer, forgiving": lambda: partial(rnnt, forgive=FORGIVE),
    "simple": lambda: simple,
}
# For the device: the first is computed on the host, the second makes graphs of labels.
WAITS = "MBR", "CTC, forgiving"
# Whose scores no operation of torch has seen before the loss.
DIRECT = "LF-MMI", "MBR", "total", "CTC"
ALL_TYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def value_and_gradient(loss, scores, factor=1.0):
    leaf = scores.detach().requires_grad_()
    value = loss(leaf)
    (value * factor).backward()
    return value.detach(), leaf.grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradient_are_those_of_the_host(name, dtype):
    scores = make_scores(dtype=dtype)
    expected = value_and_gradient(LOSSES[name](), scores.double())
    found = value_and_gradient(LOSSES[name](), scores.to(GPU))
    assert all(value.device.type == GPU.type for value in found) and found[1].dtype == dtype
    # What torch does to scores before and behind the loss, it does in their type.
    rounding = torch.finfo(dtype).eps
    atol = max(tolerances.OCCUPANCY, 4 * rounding) * max(1.0, float(expected[1].abs().max()))
    rtol = max(tolerances.LOG_PROB_RELATIVE, rounding)
    torch.testing.assert_close(found[0].double().cpu(), expected[0], rtol=rtol, atol=FRAMES * atol)
    torch.testing.assert_close(found[1].double().cpu(), expected[1], rtol=0, atol=atol)


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in WAITS])
def test_nobody_waits_for_the_device(name):
    loss, scores = LOSSES[name](), make_scores().to(GPU)
    value_and_gradient(loss, scores)
    with nobody_waits():
        value_and_gradient(loss, scores)


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in WAITS])
def test_a_captured_step_is_replayed_on_other_scores_with_the_bits_of_a_fresh_one(name):
    """The last scores need other kinds of numbers than those with which it was captured."""
    loss, scores = LOSSES[name](), make_scores().to(GPU).requires_grad_()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            loss(scores).backward()
    torch.cuda.current_stream().wait_stream(side)
    scores.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = loss(scores)
        value.backward()
    replayed = []
    for seed in (1, 2, 300):
        with torch.no_grad():
            scores.copy_(make_scores(seed, scale=float(seed)))
        graph.replay()
        replayed.append((scores.detach().clone(), value.detach().clone(), scores.grad.clone()))
        torch.randn(1 << 20, device=GPU)  # of another pool than the graph's
    for given, *found in replayed:
        torch.testing.assert_close(found, [*value_and_gradient(loss, given)], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_a_gradient_is_scaled_as_the_loss_is_again_and_again(name, dtype):
    """As by a GradScaler; it lies in the memory of what the loss has kept where nobody asks for it again. Infinity stays."""
    if "in place" in name:
        pytest.skip("its logits are gone")
    loss, scores = LOSSES[name](), make_scores(dtype=dtype).to(GPU)
    once = value_and_gradient(loss, scores)[1]
    leaf = scores.detach().requires_grad_()
    scaler = torch.amp.GradScaler(GPU.type, init_scale=128.0)
    scaled = scaler.scale(loss(leaf))
    gradients = [torch.autograd.grad(scaled, leaf, retain_graph=n < 2)[0].clone() for n in range(3)]
    assert all(torch.equal(gradient, gradients[0]) for gradient in gradients)
    rtol = 0.0 if dtype == torch.float32 and name in DIRECT else 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(gradients[0], 128.0 * once, rtol=rtol, atol=128 * rtol * 1e-3)
    infinite = value_and_gradient(loss, scores, float("inf"))[1]
    assert not torch.isfinite(infinite).all()


@pytest.mark.parametrize("name", LOSSES)
def test_the_same_bits_from_run_to_run_and_where_torch_must_be_deterministic(name, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    loss, scores = LOSSES[name](), make_scores(scale=0.1).to(GPU)
    first = value_and_gradient(loss, scores)
    before = torch.are_deterministic_algorithms_enabled()
    for strict in (False, False, False, True):
        torch.use_deterministic_algorithms(strict)
        try:
            again = value_and_gradient(loss, scores)
        finally:
            torch.use_deterministic_algorithms(before)
        if not (strict and name == "simple"):  # whose product of matrices may then be another one
            assert all(torch.equal(one, other) for one, other in zip(again, first, strict=True))


def views(scores):
    """Of the same values in other places: at odd addresses, with strides and widths that no vector of elements divides."""
    size, frames, width = scores.shape
    room = scores.new_full((2 * size + 1, frames + 3, 2 * width + 1), float("nan"))
    for view in (room[1 : size + 1, 3:, 1 : width + 1], room[1::2, 1 : frames + 1, 1::2]):
        view.copy_(scores)
        yield view
    for dims in ((0, 1), (1, 2)):
        yield scores.transpose(*dims).contiguous().transpose(*dims)
    yield scores[:1].expand(size, -1, -1)


@pytest.mark.parametrize("dtype", ALL_TYPES, ids=str)
@pytest.mark.parametrize("name", DIRECT)
def test_views_have_the_bits_of_what_they_show(name, dtype):
    loss = LOSSES[name]()
    for view in views(make_scores(dtype=dtype).to(GPU)):
        found, expected = (value_and_gradient(loss, scores) for scores in (view, view.contiguous()))
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in DIRECT])
def test_views_that_operations_of_torch_read_too_give_what_they_show(name):
    loss = LOSSES[name]()
    for view in views(make_scores().to(GPU)):
        found, expected = (value_and_gradient(loss, scores) for scores in (view, view.contiguous()))
        limit = tolerances.FEW_FLOAT32_TERMS
        torch.testing.assert_close(found, expected, rtol=limit, atol=limit)


def test_views_of_cupy_have_the_bits_of_what_they_show():
    import cupy

    room = cupy.full((2 * SIZE, FRAMES + 2, 2 * WIDTH + 1), np.nan, np.float32)
    scores, lengths = cupy.asarray(make_scores().numpy()), LENGTHS.numpy()
    for view in (
        room[:SIZE, 2:, 1 : WIDTH + 1],
        room[::2, 1:-1, 1::2],
        room[::-2, -2:0:-1, ::-2][:, :, :WIDTH],
        room.transpose(2, 1, 0)[:SIZE, :FRAMES, :WIDTH],
    ):
        view[...] = scores
        found, expected = (forward_backward(numerators(), array, lengths) for array in (view, scores))
        assert (found.occupancy == expected.occupancy).all() and (found.log_prob == expected.log_prob).all()
        paths, others = (best_path(numerators(), array, lengths).arcs for array in (view, scores))
        assert all(np.array_equal(one, other) for one, other in zip(paths, others, strict=True))


def test_what_a_call_gives_may_be_written_to():
    scores = make_scores().to(GPU).requires_grad_()
    values = total_log_prob(numerators(), scores, LENGTHS)
    expected = torch.autograd.grad(2.0 * values.sum(), scores, retain_graph=True)[0]
    values *= 2
    values.sum().backward()
    assert torch.equal(scores.grad, expected)


def test_ctc_of_more_frames_than_the_second_dimension_of_a_grid_holds():
    """The factor of a mean is one number, that of each loss alone one for each sequence: they take other ways."""
    frames = 70_000
    logits = torch.randn((frames, 1, 5), generator=torch.Generator().manual_seed(1)).to(GPU)
    given = torch.tensor([[1, 2, 1]]), [frames], [3]
    found = [
        value_and_gradient(lambda x: 3 * ctc_loss(x, *given, reduction="mean", inputs="logits"), logits),
        value_and_gradient(lambda x: ctc_loss(x, *given, reduction="none", inputs="logits").sum(), logits),
    ]
    torch.testing.assert_close(*found, rtol=tolerances.LOG_PROB_RELATIVE, atol=tolerances.OCCUPANCY)


def test_tables_that_the_default_stream_reads_are_not_given_to_others_meanwhile():
    """Tables of another stream's memory, which that takes again as soon as nobody holds them."""
    side, scores = torch.cuda.Stream(), make_scores().to(GPU)
    expected = forward_backward(make_numerators(), scores, LENGTHS).log_prob.clone()
    for _ in range(5):
        batch = make_numerators()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            forward_backward(batch, scores, LENGTHS)
        torch.cuda.synchronize()
        torch.cuda._sleep(50_000_000)
        found = forward_backward(batch, scores, LENGTHS).log_prob
        del batch
        gc.collect()
        with torch.cuda.stream(side):
            poison = [torch.full((1 << k,), 255, dtype=torch.uint8, device=GPU) for k in range(21)]
        torch.cuda.synchronize()
        del poison
        assert torch.equal(found, expected)
