"""The grid's kernels, run on the host: what holds of the CPU's functions, however the kernels run."""

import numpy as np
import pytest
import tolerances
from device_arrays import WithFarMemory, assert_same_bits, far_memory, on_device, read
from random_grids import TOPOLOGIES, make_grids
from test_transducer_grid import (  # noqa: F401
    test_grids_may_begin_within_their_boxes,
    test_padding_changes_no_bit_and_gets_no_occupancy,
    test_scores_that_no_arc_uses_may_be_anything,
    test_sums_occupancies_and_paths_are_the_oracles_at_any_magnitude_ties_too,
)

from fsachain.backends.cpu import grid as grid_cpu
from fsachain.backends.cuda import grid as cuda_grid
from fsachain.backends.cuda.device import DeviceArray
from fsachain.backends.cuda.grid import GridPlan
from fsachain.backends.reference import grid as reference_grid
from tools.cuda_on_host import HostDevice, skip_reason

pytestmark = pytest.mark.skipif(skip_reason() is not None, reason=str(skip_reason()))


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


class Kernels:
    """The grid's functions by a device, as the CPU has them."""

    best_paths = staticmethod(best)

    @staticmethod
    def log_probs(batch, values):
        device = HostDevice()
        return cuda_grid.log_probs(device, batch, on_device(device, values)).read(np.float64)

    @staticmethod
    def forward_backward(batch, values):
        log_prob, values[:] = run(batch, values)
        return log_prob


@pytest.fixture
def grids():
    return Kernels


@pytest.mark.parametrize("topology", ["regular", "modified"])
def test_no_bit_depends_on_the_blocks_or_on_where_the_last_steps_lie(topology):
    """Fewer threads than labels; shared memory for none of the steps; for those of one pass and not of the other."""
    batch, values = make_grids(TOPOLOGIES[topology], [30, 9], [44, 70], 5.0)
    expected, paths = run(batch, values), best(batch, values)
    for plan in (GridPlan(32), GridPlan(256), GridPlan(64, shared_bytes=0), GridPlan(64, shared_bytes=2000)):
        assert_same_bits(run(batch, values, plan), expected)
        found = best(batch, values, plan)
        np.testing.assert_array_equal(found[0], paths[0])
        assert_same_bits(found[1], paths[1])
    log_prob = reference_grid.forward_backward(batch, values)
    np.testing.assert_allclose(expected[0], log_prob, rtol=tolerances.FLOAT64)
    np.testing.assert_allclose(expected[1], values, rtol=0, atol=tolerances.SHIFTED_OCCUPANCY)


def test_scores_lie_anywhere():
    """Boxes whose frames are neighbours, as those of px and py."""
    batch, values = make_grids(TOPOLOGIES["free"], [9, 7], [6, 6])
    expected = run(batch, values)
    turned = values.reshape(2, 2, 10, 7).swapaxes(2, 3)
    boxes = batch.boxes.copy()
    boxes[:, :, 1:3] = 1, 10
    log_prob, occupancy = run(batch._replace(boxes=boxes), np.ascontiguousarray(turned).reshape(-1))
    np.testing.assert_array_equal(log_prob, expected[0])
    occupancy = occupancy.reshape(turned.shape).swapaxes(2, 3)
    np.testing.assert_array_equal(occupancy.reshape(-1), expected[1])


def test_twenty_thousand_frames():
    """The CPU's values: the oracle would take seconds."""
    batch, values = make_grids(TOPOLOGIES["regular"], [20_000], [1], dtype=np.float32)
    found, expected = run(batch, values, GridPlan(32)), values.copy()
    log_prob = grid_cpu.forward_backward(batch, expected)
    np.testing.assert_allclose(found[0], log_prob, rtol=tolerances.FLOAT64)
    np.testing.assert_allclose(found[1], expected, rtol=0, atol=tolerances.SURE_OCCUPANCY)


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
