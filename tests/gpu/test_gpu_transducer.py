"""On a GPU: transducer losses and gradients are the reference's, best paths its bits, at sizes that no host run has."""

from __future__ import annotations

import numpy as np
import pytest
import tolerances
import torch
from gpu_inputs import needs_gpu, nobody_waits, the_host_is_the_reference  # noqa: F401
from random_grids import TOPOLOGIES, make_grids

from fsachain.backends.cuda import backend as cuda_call
from fsachain.backends.cuda import grid as cuda_grid
from fsachain.backends.reference import grid as reference_grid
from fsachain.loss.chunks import transducer_loss
from fsachain.loss.pruned import rnnt_loss_simple, rnnt_loss_smoothed
from fsachain.loss.rnnt import rnnt_loss
from fsachain.loss.variants import hat_loss, multi_blank_loss, tdt_loss
from tools.bench import gpu_cases

pytestmark = needs_gpu

SIZE, FRAMES, LABELS, CLASSES = 6, 70, 30, 500
LOSSES = {
    "regular": lambda *call: rnnt_loss(*call, reduction="none"),
    "modified": lambda *call: rnnt_loss(*call, reduction="none", rnnt_type="modified"),
    "constrained": lambda *call: rnnt_loss(*call, reduction="none", rnnt_type="constrained"),
    "FastEmit, clamp": lambda *call: rnnt_loss(*call, clamp=0.1, reduction="none", fastemit_lambda=0.3),
    "delay": lambda *call: rnnt_loss(*call, reduction="none", delay_penalty=0.05),
    "in place": lambda *call: rnnt_loss(*call, reduction="none", inplace=True),
    "HAT": lambda *call: hat_loss(*call, reduction="none"),
    "TDT": lambda *call: tdt_loss(*call, [0, 1, 2, 4], reduction="none"),
    "multi-blank": lambda *call: multi_blank_loss(*call, {0: 2, 1: 4}, reduction="none"),
}


def make_inputs(dtype=torch.float32, scale=1.0):
    generator = torch.Generator().manual_seed(0)
    logits = scale * torch.randn((SIZE, FRAMES, LABELS + 1, CLASSES), generator=generator)
    targets = torch.randint(2, CLASSES - 5, (SIZE, LABELS), generator=generator)
    frames = torch.randint(FRAMES // 2, FRAMES + 1, (SIZE,), generator=generator)
    labels = torch.randint(0, LABELS + 1, (SIZE,), generator=generator)
    return logits.to(dtype), targets, frames, labels


def with_gradient(loss, logits, *rest):
    leaf = logits.clone().requires_grad_()
    value = loss(leaf, *rest)
    value.sum().backward()
    return value.detach(), leaf.grad


@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_gradients_are_the_references(name, scale):
    logits, targets, frames, labels = make_inputs(scale=scale)
    expected = with_gradient(LOSSES[name], logits, targets, frames, labels)
    found = with_gradient(LOSSES[name], logits.cuda(), targets.cuda(), frames, labels)
    assert all(value.is_cuda for value in found)
    limit = tolerances.LOG_PROB_RELATIVE
    torch.testing.assert_close(
        found[0].cpu(), expected[0], rtol=limit, atol=tolerances.log_prob_tolerance(0.0)
    )
    torch.testing.assert_close(found[1].cpu(), expected[1], rtol=0, atol=tolerances.PEER_RNNT_GRADIENT)


def test_nothing_waits_for_the_device():
    logits, targets, frames, labels = make_inputs()
    call = logits.cuda(), targets.cuda(), frames, labels
    with_gradient(LOSSES["regular"], *call)
    with nobody_waits():
        with_gradient(LOSSES["regular"], *call)


def simple_inputs(scale, dtype=torch.float32):
    generator = torch.Generator().manual_seed(4)
    am = scale * torch.randn((SIZE, FRAMES, CLASSES), generator=generator, dtype=torch.float64)
    lm = scale * torch.randn((SIZE, LABELS + 1, CLASSES), generator=generator, dtype=torch.float64)
    return lm.to(dtype), am.to(dtype)


def with_simple_gradients(loss, lm, am, symbols):
    leaves = [x.clone().requires_grad_() for x in (lm, am)]
    value = loss(*leaves, symbols, 0, reduction="none")
    return value.detach(), *torch.autograd.grad(value.sum(), leaves)


@pytest.mark.parametrize("scale", [1.0, 80.0])
@pytest.mark.parametrize("loss", [rnnt_loss_simple, rnnt_loss_smoothed])
def test_simple_losses_are_the_references_at_any_magnitude_and_wait_for_nothing(loss, scale):
    """At scale 80 the product of matrices has lost nearly all pairs; TF32 would lose digits of the others."""
    lm, am = simple_inputs(scale)
    _, symbols, _, _ = make_inputs()
    # The smoothed loss adds the least number of its type to probabilities, which tells at scale 80.
    wide = torch.float32 if loss is rnnt_loss_smoothed else torch.float64
    expected = with_simple_gradients(loss, lm.to(wide), am.to(wide), symbols)
    there = [x.cuda() for x in (lm, am, symbols)]
    with_simple_gradients(loss, *there)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with nobody_waits(), torch.autocast("cuda", dtype=torch.float16):
            found = with_simple_gradients(loss, *there)
    finally:
        torch.set_float32_matmul_precision(before)
    limit = tolerances.LOG_PROB_RELATIVE
    torch.testing.assert_close(
        found[0].cpu(), expected[0], rtol=limit, atol=tolerances.log_prob_tolerance(0.0)
    )
    # Sums am + lm are rounded in float32.
    atol = tolerances.OCCUPANCY * max(1.0, scale / 30.0)
    for ours, theirs in zip(found[1:], expected[1:], strict=True):
        torch.testing.assert_close(ours.double().cpu(), theirs.double(), rtol=0, atol=atol)


class GpuJoiner(torch.nn.Module):
    def __init__(self, dropout):
        super().__init__()
        torch.manual_seed(1)
        self.dropout, self.linear = torch.nn.Dropout(dropout), torch.nn.Linear(16, CLASSES)

    def forward(self, encoder, predictor):
        return self.linear(self.dropout(torch.tanh(encoder + predictor)))


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_joiner_inside_repeats_dropout_and_autocast(dropout, dtype):
    """Backward outside of autocast, as one writes it; frame by frame where there is dropout.

    Without autocast's cache, because all frames would add their gradients in half precision to the copy that is kept.
    """
    _, targets, frames, labels = make_inputs()
    generator = torch.Generator().manual_seed(6)
    shapes = (SIZE, FRAMES, 16), (SIZE, LABELS + 1, 16)
    encoder, predictor = (torch.randn(shape, generator=generator).cuda() for shape in shapes)
    joiner = GpuJoiner(dropout).cuda()
    found = []
    for whole in (False, True):
        leaves = [x.clone().requires_grad_() for x in (encoder, predictor)]
        torch.manual_seed(9)
        casts = {"dtype": dtype or torch.float16, "enabled": dtype is not None, "cache_enabled": False}
        with torch.autocast("cuda", **casts):
            if whole:
                parts = leaves[0].unsqueeze(2).split(1 if dropout else FRAMES, dim=1)
                logits = torch.cat([joiner(part, leaves[1].unsqueeze(1)) for part in parts], dim=1)
                loss = rnnt_loss(logits, targets.cuda(), frames, labels)
            else:
                loss = transducer_loss(*leaves, joiner, targets.cuda(), frames, labels, chunk_frames=16)
        state = torch.cuda.get_rng_state()
        gradients = torch.autograd.grad(loss, [*leaves, *joiner.parameters()])
        assert torch.equal(torch.cuda.get_rng_state(), state)
        found.append((loss.detach(), *gradients))
    limit = tolerances.OCCUPANCY if dtype is None else torch.finfo(dtype).eps
    for ours, theirs in zip(*found, strict=True):
        scale = max(1.0, float(theirs.abs().max()))
        torch.testing.assert_close(ours, theirs, rtol=limit, atol=limit * scale)


def test_the_same_bits_from_run_to_run():
    logits, targets, frames, labels = make_inputs()
    call = LOSSES["regular"], logits.cuda(), targets.cuda(), frames, labels
    first = with_gradient(*call)
    for _ in range(3):
        assert all(torch.equal(one, other) for one, other in zip(with_gradient(*call), first, strict=True))


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("sizes", [([300, 200, 1], [60, 100, 3]), ([40], [1300])], ids=["usual", "long"])
def test_grids_are_the_references_and_best_paths_its_bits(topology, sizes):
    """1,300 labels are more than a block has threads."""
    batch, values = make_grids(TOPOLOGIES[topology], *sizes, scale=5.0, dtype=np.float32)
    there = torch.from_numpy(values.copy()).cuda()
    device = cuda_call.find_device(there)
    size = len(batch.sizes)
    found = cuda_grid.best_paths(device, batch, cuda_call.view(there))
    data = found.array("uint8", (found.num_bytes,)).cpu().numpy()
    for one, other in zip(
        cuda_grid.read_paths(batch, data), reference_grid.best_paths(batch, values), strict=True
    ):
        assert all(np.array_equal(x, y) for x, y in zip(one, other, strict=True))
    log_prob = cuda_grid.forward_backward(device, batch, cuda_call.view(there)).array("float64", (size,))
    expected = reference_grid.forward_backward(batch, values)
    np.testing.assert_allclose(log_prob.cpu().numpy(), expected, rtol=tolerances.FLOAT64)
    np.testing.assert_allclose(there.cpu().numpy(), values, rtol=0, atol=tolerances.SURE_OCCUPANCY)


def test_logits_beyond_2_to_the_31_elements():
    """The last sequence begins past the range of 32 bits: its loss is that of itself alone."""
    size, frames, labels, classes = 9, 500, 99, 5000
    if torch.cuda.mem_get_info()[0] < 5 * size * frames * (labels + 1) * classes:
        pytest.skip("less memory is free than the logits and a copy of some take")
    logits = torch.zeros((size, frames, labels + 1, classes), dtype=torch.float16, device="cuda")
    assert logits[:-1].numel() < 2**31 < logits.numel()
    logits[-1] = torch.randn(logits.shape[1:], dtype=torch.float16, device="cuda")
    targets = torch.randint(1, classes, (size, labels), device="cuda")
    lengths = [frames] * size, [labels] * size
    alone = with_gradient(LOSSES["in place"], logits[-1:], targets[-1:], [frames], [labels])
    logits.requires_grad_()
    losses = rnnt_loss(logits, targets, *lengths, reduction="none", inplace=True)
    losses.sum().backward()
    assert torch.equal(losses[-1].detach(), alone[0][0])
    assert torch.equal(logits.grad[-1], alone[1][0])


def test_memory_beside_the_logits_is_below_five_percent():
    device = torch.device("cuda")
    batch = gpu_cases.random_batch(gpu_cases.utterances(1000), 8, 500)
    logits = torch.randn(batch.shape, device=device).requires_grad_()
    gpu_cases.transducer_loss(batch, logits).sum().backward()
    logits.grad = None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    gpu_cases.transducer_loss(batch, logits).sum().backward()
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - before <= 0.05 * batch.num_bytes
