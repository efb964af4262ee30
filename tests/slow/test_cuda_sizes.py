"""Sizes at which an index of 32 bits, a counter or a barrier would fail, run on the host against the float64 oracle."""

import numpy as np
import pytest
import tolerances
from device_arrays import WithFarMemory, far_memory, on_device, read
from random_graphs import connected_graph

from fsachain import DenominatorGraph, TableBatch
from fsachain.backends.cuda import backend as cuda
from fsachain.backends.cuda.device import DeviceArray
from fsachain.backends.reference import sums as reference
from tools.cuda_on_host import HostDevice, skip_reason

pytestmark = pytest.mark.skipif(skip_reason() is not None, reason=str(skip_reason()))

NUM_PDFS, LEAK = 9, 1e-3
BEYOND_31_BITS = 2**31 + 11  # elements from one sequence to the next


def shared_batch(size):
    table = DenominatorGraph(connected_graph(3, 6, 20), NUM_PDFS).table
    return TableBatch.share(table, size)


def random_scores(size, num_frames):
    return np.random.default_rng(1).normal(size=(size, num_frames, NUM_PDFS)).astype(np.float32)


def run(batch, scores, out, lengths, leaky, device=None):
    device = device or HostDevice(multiprocessors=2)
    (weights,) = device.upload([np.ones(batch.size)])
    log_prob, _ = cuda.add_occupancy(
        device, batch, scores(device), lengths, leaky, weights, out(device), None
    )
    return log_prob.read(np.float64)


def assert_right(batch, scores, lengths, leaky, log_prob, occupancy):
    want, right = np.zeros(scores.shape), reference.log_probs(batch, scores, lengths, leaky)[0]
    reference.add_occupancy(batch, scores, lengths, leaky, np.ones(batch.size), want)
    assert all(
        abs(got - exact) <= tolerances.log_prob_tolerance(exact)
        for got, exact in zip(log_prob, right, strict=True)
    )
    np.testing.assert_allclose(occupancy, want, rtol=0.0, atol=tolerances.OCCUPANCY)


@pytest.mark.parametrize(
    ("size", "num_frames", "leaky"), [(2, 20_000, LEAK), (1, 20_000, 0.0), (1_024, 2, LEAK)]
)
def test_many_frames_and_many_sequences_agree_with_the_oracle(size, num_frames, leaky):
    batch, scores = shared_batch(size), random_scores(size, num_frames)
    lengths, arrays = np.full(size, num_frames, dtype=np.int64), []

    def out(device):
        arrays.append(on_device(device, np.zeros(scores.shape, np.float32)))
        return arrays[0]

    log_prob = run(batch, lambda device: on_device(device, scores), out, lengths, leaky)
    assert_right(batch, scores, lengths, leaky, log_prob, read(arrays[0]))


def test_elements_lie_beyond_31_bits():
    batch, scores = shared_batch(2), random_scores(2, 3)
    strides = BEYOND_31_BITS, NUM_PDFS, 1
    far = []
    for values in (scores, np.zeros_like(scores)):
        memory = far_memory(BEYOND_31_BITS + scores[0].size)
        view = np.lib.stride_tricks.as_strided(memory, scores.shape, [4 * stride for stride in strides])
        view[:] = values
        far.append((DeviceArray(memory.ctypes.data, "float32", scores.shape, strides, memory), view))
    lengths = np.array([3, 2])
    log_prob = run(batch, lambda _: far[0][0], lambda _: far[1][0], lengths, LEAK, WithFarMemory())
    assert_right(batch, scores, lengths, LEAK, log_prob, far[1][1])
