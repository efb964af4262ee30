"""The grid's kernels, run on the host: the oracle's sums and occupancies, and the CPU's paths."""

import numpy as np
import pytest
import tolerances
from device_arrays import WithFarMemory, assert_same_bits, far_memory, on_device, read
from random_grids import TOPOLOGIES, make_grids

from fsachain.backends.cpu import grid as grid_cpu
from fsachain.backends.cuda import grid as cuda_grid
from fsachain.backends.cuda.device import DeviceArray
from fsachain.backends.cuda.grid import GridPlan
from fsachain.backends.reference import grid as reference_grid
from tools.cuda_on_host import HostDevice, skip_reason

pytestmark = pytest.mark.skipif(skip_reason() is not None, reason=str(skip_reason()))

FRAMES, LABELS = [13, 1, 20, 0, 11, 0, 9], [7, 0, 6, 3, 8, 0, 0]
of_every_topology = pytest.mark.parametrize("topology", TOPOLOGIES)


def run(batch, values, plan=None, device=None):
    """log Z [N] and what becomes of the values."""
    device = device or HostDevice()
    there = on_device(device, values)
    log_prob = cuda_grid.forward_backward(device, batch, there, plan).read(np.float64)
    return log_prob, read(there)


def best(batch, values, plan=None):
    device = HostDevice()
    found = cuda_grid.best_paths(device, batch, on_device(device, values), plan)
    return cuda_grid.read_paths(batch, found.read(np.uint8))


def by_oracle(batch, values):
    exact = values.astype(np.float64)
    return reference_grid.forward_backward(batch, exact), exact


def assert_close(found, expected):
    np.testing.assert_allclose(found[0], expected[0], rtol=tolerances.FLOAT64, atol=tolerances.FLOAT64)
    limit = tolerances.SURE_OCCUPANCY if found[1].dtype == np.float32 else tolerances.SHIFTED_OCCUPANCY
    np.testing.assert_allclose(found[1], expected[1], rtol=0, atol=limit)


def assert_same_paths(found, expected):
    np.testing.assert_array_equal(found[0], expected[0])
    assert_same_bits(found[1], expected[1])


@of_every_topology
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_sums_and_occupancies_are_the_oracles_at_any_magnitude(topology, scale, dtype):
    for seed, impossible in enumerate((0.0, 0.1)):
        batch, values = make_grids(TOPOLOGIES[topology], FRAMES, LABELS, scale, seed, dtype, impossible)
        found = run(batch, values)
        assert_close(found, by_oracle(batch, values))
        device = HostDevice()
        alone = cuda_grid.log_probs(device, batch, on_device(device, values)).read(np.float64)
        np.testing.assert_array_equal(alone, found[0])


@of_every_topology
def test_best_paths_are_the_cpus_bits_ties_too(topology):
    batch, values = make_grids(TOPOLOGIES[topology], FRAMES, LABELS, 1.0, 7, np.float32, 0.2)
    for scores in (values, np.rint(values)):
        found, expected = best(batch, scores), grid_cpu.best_paths(batch, scores)
        assert_same_paths(found, expected)
        assert np.isneginf(expected[0]).any() and np.isfinite(expected[0]).any()


@pytest.mark.parametrize("topology", ["regular", "modified"])
def test_no_bit_depends_on_the_blocks_or_on_where_the_last_steps_lie(topology):
    """Fewer threads than labels; shared memory for none of the steps; for those of one pass and not of the other."""
    batch, values = make_grids(TOPOLOGIES[topology], [30, 9], [44, 70], 5.0)
    expected, paths = run(batch, values), best(batch, values)
    for plan in (GridPlan(32), GridPlan(256), GridPlan(64, shared_bytes=0), GridPlan(64, shared_bytes=2000)):
        assert_same_bits(run(batch, values, plan), expected)
        assert_same_paths(best(batch, values, plan), paths)
    assert_close(expected, by_oracle(batch, values))


def test_scores_lie_anywhere():
    """Boxes whose frames are neighbours, as those of px and py; grids that begin within their boxes."""
    arcs = TOPOLOGIES["free"]
    batch, values = make_grids(arcs, [9, 7], [6, 6])
    inner = batch._replace(sizes=np.array([[2, 1, 5, 3], [0, 3, 7, 2]]))
    expected = run(inner, values)
    assert_close(expected, by_oracle(inner, values))
    turned = values.reshape(2, 2, 10, 7).swapaxes(2, 3)
    boxes = inner.boxes.copy()
    boxes[:, :, 1:3] = 1, 10
    log_prob, occupancy = run(inner._replace(boxes=boxes), np.ascontiguousarray(turned).reshape(-1))
    np.testing.assert_array_equal(log_prob, expected[0])
    np.testing.assert_array_equal(
        occupancy.reshape(turned.shape), expected[1].reshape(2, 2, 10, 7).swapaxes(2, 3)
    )


def test_twenty_thousand_frames():
    """The CPU's values: the oracle would take seconds."""
    batch, values = make_grids(TOPOLOGIES["regular"], [20_000], [1], dtype=np.float32)
    found, expected = run(batch, values, GridPlan(32)), values.copy()
    assert_close(found, (grid_cpu.forward_backward(batch, expected), expected))


def test_scores_lie_beyond_31_bits():
    """Frames are 2^29 elements apart."""
    batch, values = make_grids(TOPOLOGIES["regular"], [5], [2], dtype=np.float32)
    log_z, occupancy = run(batch, values)
    far = 1 << 29
    boxes = np.array([[[0, far, 1, 6, 3], [3, far, 1, 6, 3]]])
    memory = far_memory(5 * far + 6)
    views = [
        np.lib.stride_tricks.as_strided(memory[first:], (6, 3), (4 * far, 4)) for first in boxes[0, :, 0]
    ]
    for view, scores in zip(views, values.reshape(2, 6, 3), strict=True):
        view[:] = scores
    device, there = WithFarMemory(), DeviceArray(memory.ctypes.data, "float32", memory.shape, (1,), memory)
    found = cuda_grid.forward_backward(device, batch._replace(boxes=boxes), there).read(np.float64)
    np.testing.assert_array_equal(found, log_z)
    np.testing.assert_array_equal(np.stack(views), occupancy.reshape(2, 6, 3))
