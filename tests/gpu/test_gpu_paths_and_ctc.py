"""On a GPU: best paths are the reference's bits, penalties its values, CTC is torch's; at sizes that no host run has."""

from __future__ import annotations

import numpy as np
import pytest
import tolerances
import torch
from gpu_inputs import (  # noqa: F401
    connected_graph,
    left_to_right_graph,
    needs_gpu,
    nobody_waits,
    the_host_is_the_reference,
)

from fsachain import Fsa, TableBatch, best_path, compile_table
from fsachain.backends.cuda import backend as cuda_call
from fsachain.backends.cuda import paths as cuda_paths
from fsachain.loss.ctc import ctc_loss
from tools.bench.workloads import connected

pytestmark = needs_gpu

NUM_PDFS = 9


def assert_same_paths(batch, scores, lengths=None, **options):
    found = best_path(batch, torch.from_numpy(scores).cuda(), lengths, **options)
    expected = best_path(batch, scores, lengths, backend="cpu")
    np.testing.assert_array_equal(found.score.cpu().numpy(), expected.score)
    for one, other in zip(found.arcs, expected.arcs, strict=True):
        np.testing.assert_array_equal(one, other)
    return expected


@pytest.mark.parametrize("scale", [1.0, 80.0, 1000.0])
def test_packed_paths_are_the_same_bits_as_the_references(scale):
    graphs = [left_to_right_graph(n, num_states=200) if n % 2 else connected_graph(n) for n in range(64)]
    batch = TableBatch.pack([compile_table(fsa, NUM_PDFS) for fsa in graphs])
    scores = (scale * np.random.default_rng(1).normal(size=(64, 300, NUM_PDFS))).astype(np.float32)
    lengths = np.random.default_rng(2).integers(0, 301, 64)
    expected = assert_same_paths(batch, np.rint(scores), lengths)
    assert np.isfinite(expected.score).any() and np.isneginf(expected.score).any()


@pytest.mark.parametrize("states", [3000, 40_000])
def test_shared_paths_on_chip_and_in_memory_are_the_same_bits(states):
    """Deltas of 40,000 states fit no multiprocessor."""
    table = compile_table(connected(states, 4 * states, 84))
    scores = np.random.default_rng(1).normal(size=(3, 40, 84)).astype(np.float32)
    assert_same_paths(TableBatch.share(table, 3), scores, [40, 1, 17])


def test_twenty_thousand_frames_in_windows():
    batch = TableBatch.pack([compile_table(left_to_right_graph(0, num_states=500), NUM_PDFS)])
    scores = np.random.default_rng(1).normal(size=(1, 20_000, NUM_PDFS)).astype(np.float32)
    there = torch.from_numpy(scores).cuda()
    lengths = np.array([20_000])
    device = cuda_call.find_device(there)
    found = [
        cuda_paths.best_paths(device, batch, cuda_call.view(there), lengths, budget).arcs.array(
            "int32", (1, 20_000)
        )
        for budget in (None, 1e6)
    ]
    assert torch.equal(*found)
    np.testing.assert_array_equal(found[0][0].cpu().numpy(), best_path(batch, scores, backend="cpu").arcs[0])


def test_scores_beyond_2_to_the_31_elements():
    """The last sequence begins past the range of 32 bits; the first must not be read in its place."""
    classes = 2048
    size, frames = 1025, 1024
    if torch.cuda.mem_get_info()[0] < 3 * 2 * size * frames * classes:
        pytest.skip("less memory is free than the scores take")
    scores = torch.zeros((size, frames, classes), dtype=torch.float16, device="cuda")
    scores[-1, :, classes - 1] = 1.0
    fsa = Fsa(1, [0, 0], [0, 0], [0, classes - 1], [0.0, 0.0], [0.0])
    found = best_path(TableBatch.share(compile_table(fsa), size), scores)
    assert found.score[-1] == frames and (found.arcs[-1] == 1).all()
    assert not found.score[:-1].any() and not found.arcs[0].any()


def ctc_inputs(size=32, frames=150, labels=40, classes=500):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn((frames, size, classes), generator=generator).cuda().requires_grad_()
    targets = torch.randint(1, classes, (size, labels), generator=generator).cuda()
    counts = torch.randint(0, labels + 1, (size,), generator=generator)
    lengths = torch.randint(2 * labels, frames + 1, (size,), generator=generator)
    return logits, targets, lengths, counts


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_ctc_is_that_of_torch(dtype):
    logits, targets, lengths, counts = ctc_inputs()
    ours = logits.detach().to(dtype).requires_grad_()
    theirs = ours.detach().double().requires_grad_()
    loss = ctc_loss(ours, targets, lengths, counts, reduction="none", inputs="logits")
    log_probs = theirs.log_softmax(2)
    expected = torch.nn.functional.ctc_loss(log_probs, targets, lengths, counts, reduction="none")
    loss.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(
        loss.double(), expected, rtol=tolerances.LOG_PROB_RELATIVE, atol=tolerances.log_prob_tolerance(0.0)
    )
    atol = tolerances.OCCUPANCY + torch.finfo(dtype).eps
    torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=0, atol=atol)


def test_ctc_waits_for_nothing():
    logits, targets, lengths, counts = ctc_inputs()
    ctc_loss(logits, targets, lengths, counts, inputs="logits").backward()
    with nobody_waits():
        ctc_loss(logits, targets, lengths, counts, inputs="logits").backward()
