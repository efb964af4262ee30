"""The benchmark's arithmetic, and that the yardsticks do the work they are compared with; no test looks at a time."""

import numpy as np
import pytest
import torch
from tolerances import OCCUPANCY, PEER_CTC_GRADIENT, log_prob_tolerance

from fsachain import forward_backward
from tools.bench import tables, workloads, yardstick
from tools.bench.workloads import TINY, packed


@pytest.fixture(scope="module")
def work():
    return workloads.seeded(TINY)


@pytest.mark.parametrize(("leak", "dtype"), [(0.0, np.float64), (0.3, np.float32)])
def test_the_plain_loop_computes_what_the_backends_compute(work, leak, dtype):
    batch = work.denominator.batch(5)
    scores = workloads.random_scores(5, 12, TINY.pdfs)
    columns = yardstick.plain_scores(batch.table(0), scores, dtype)
    occupancy = np.full_like(columns, np.nan)
    graph = yardstick.plain_graph(batch.table(0), dtype)
    log_z = yardstick.plain_forward_backward(graph, columns.dtype.type(leak), columns, occupancy)
    expected = forward_backward(batch, scores, leaky_hmm_coefficient=leak, backend="reference")
    np.testing.assert_allclose(log_z, expected.log_prob, rtol=0, atol=log_prob_tolerance(log_z.max()))
    ours = expected.occupancy[:, :, batch.table(0).active_pdfs].transpose(1, 2, 0)
    np.testing.assert_allclose(occupancy, ours, rtol=0, atol=OCCUPANCY)


def test_all_ctc_losses_give_one_gradient(work):
    batch = packed(work.ctc, TINY.labels)
    scores = workloads.random_scores(batch.size, TINY.frames, TINY.labels)
    *ours, theirs = (call().grad.clone() for call in tables.ctc_calls(batch, work.targets, scores).values())
    assert theirs.abs().max() > 0.1
    for gradient in ours:
        torch.testing.assert_close(gradient, theirs, rtol=0, atol=PEER_CTC_GRADIENT)
