"""The kernels of pair normalizers, run on the host: log-sums and derivatives are those of float64."""

from contextlib import nullcontext

import numpy as np
import pytest
import tolerances
import torch
from device_arrays import WAITING, assert_same_bits, needs_host_compiler, on_device, read

from fsachain.backends.cuda import grid as cuda_grid
from fsachain.loss.pruned import PairGradientCall, pair_gradient, pair_scores
from tools.cuda_on_host import HostDevice, pretended

pytestmark = needs_host_compiler

LEAST = {np.float32: 1e-25, np.float64: 1e-280}
SHAPE = 3, 11, 7, 45  # N, T, S and classes, of which lanes have one or two


def random_scores(dtype=np.float32, scale=1.0, seed=0):
    """am and lm, with classes and a whole position that cannot happen."""
    rng = np.random.default_rng(seed)
    size, frames, positions, width = SHAPE
    am, lm = (scale * rng.normal(size=(size, count, width)) for count in (frames, positions))
    am[:, :, 3] = -np.inf
    lm[1, 2] = -np.inf
    return am.astype(dtype), lm.astype(dtype)


def largest(x):
    top = x.max(axis=2, keepdims=True)
    return np.where(np.isinf(top), 0, top)


def products(am, lm):
    """Sums and normalizers as the product of matrices gives them."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):  # of illegal scores too
        sums = np.exp(lm - largest(lm)) @ np.exp(am - largest(am)).transpose(0, 2, 1)
        return sums, np.log(sums) + largest(lm) + largest(am).transpose(0, 2, 1)


def make_factors(dtype):
    factors = np.random.default_rng(5).normal(size=(SHAPE[0], SHAPE[2], SHAPE[1])).astype(dtype)
    factors[1, 2] = 0  # a position of -inf has no derivative
    factors[2] = 0
    return factors


def run(device, am, lm, threads=64):
    """Normalizers and what is added to ones in the place of derivatives."""
    factors = make_factors(am.dtype)
    sums, started = (on_device(device, x) for x in products(am, lm))
    given = on_device(device, am), on_device(device, lm), sums, LEAST[am.dtype.type]
    cuda_grid.pair_log_sums(device, *given, started, threads)
    into = on_device(device, np.ones_like(am)), on_device(device, np.ones_like(lm))
    cuda_grid.add_pair_gradient(device, *given, started, on_device(device, factors), *into, threads)
    return read(started), *(read(x) for x in into)


def test_no_bit_depends_on_blocks_or_on_the_batch():
    am, lm = random_scores(scale=80.0)
    first = run(HostDevice(), am, lm, threads=32)
    assert_same_bits(run(HostDevice(), am, lm, threads=256), first)
    alone = [x[:1] for x in (am, lm)]
    device = HostDevice()
    sums, started = (on_device(device, x[:1]) for x in products(am, lm))
    cuda_grid.pair_log_sums(device, *(on_device(device, x) for x in alone), sums, LEAST[np.float32], started)
    np.testing.assert_array_equal(read(started), first[0][:1])


@pytest.mark.parametrize("scale", [1.0, 80.0, 1000.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_lost_pairs_are_summed_again_on_a_device_as_on_the_host(dtype, scale):
    am, lm = (torch.from_numpy(x).requires_grad_() for x in random_scores(dtype, scale))
    size, frames, _ = am.shape
    weights = torch.cat(
        [torch.from_numpy(make_factors(dtype)), torch.ones(size, 3, frames, dtype=am.dtype)], dim=1
    )
    symbols, boundary = torch.tensor([[2, 0]] * size), torch.tensor([[0, 0, 2, frames]] * size)
    found = []
    for on_device_too in (True, False):
        with pretended() if on_device_too else nullcontext() as device:
            result, sums = pair_scores(am, lm, symbols, boundary, 1)
            gradients = torch.autograd.grad(result, (am, lm), weights)
        if device:
            assert {launch.kernel.text for launch in device.launches} == {"pairs.cu"}
        found.append((result.detach(), *gradients))
    lost = (sums <= LEAST[dtype]).double().mean()
    assert lost > (0.5 if dtype == np.float32 and scale > 1.0 else 0.0)
    # Logits of float32 are rounded by 6e-8 of themselves.
    limit = tolerances.OCCUPANCY * max(1.0, scale / 30.0) if dtype == np.float32 else tolerances.FLOAT64
    relative = min(limit, tolerances.LOG_PROB_RELATIVE)
    torch.testing.assert_close(*found, rtol=relative, atol=limit)


def test_nothing_on_the_way_asks_the_device_for_a_size_or_a_number(monkeypatch):
    am, lm = (torch.from_numpy(x) for x in random_scores(scale=200.0))

    def refuse(*_, **__):
        raise AssertionError("the host would wait for the device")

    with pretended(), monkeypatch.context() as patch:
        for name in (*WAITING, "to"):  # the second copies what the host has, see `beside`
            patch.setattr(torch.Tensor, name, refuse)
        patch.setattr(torch, "nonzero", refuse)
        symbols, boundary = [[2, 0]] * len(am), [[0, 0, 2, am.shape[1]]] * len(am)
        given = am, lm, torch.tensor(symbols), torch.tensor(boundary), 1
        rows, sums = pair_scores.kernel(given)
        pair_gradient.kernel(PairGradientCall(*given, rows, sums, torch.ones_like(rows)))
