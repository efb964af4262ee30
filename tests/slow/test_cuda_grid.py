"""The grid's kernels, run on the host: the oracle's sums and occupancies, the CPU's paths, and no bit from the batch."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
import tolerances
from device_arrays import on_device, read
from random_grids import TOPOLOGIES, enumerate_grid, make_grids

from fsachain.backends.cpu import grid as grid_cpu
from fsachain.backends.cuda import grid as cuda_grid
from fsachain.backends.cuda.device import DeviceArray
from fsachain.backends.cuda.grid import GridPlan
from fsachain.backends.reference import grid as reference_grid
from fsachain.grid import GridArc, GridBatch, dense_boxes, grid_sizes
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


def by_cpu(batch, values):
    """For grids that take the oracle seconds."""
    given = values.copy()
    return grid_cpu.forward_backward(batch, given), given


def assert_same_bits(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


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
def test_small_grids_are_sums_over_all_paths(topology):
    arcs = TOPOLOGIES[topology]
    batch, values = make_grids(arcs, [4], [3], seed=3, impossible=0.1)
    scores = values.reshape(len(arcs), 5, 4)
    log_z, occupancy, score, path = enumerate_grid(arcs, scores, 4, 3)
    found = run(batch, values)
    np.testing.assert_allclose(found[0], log_z, atol=tolerances.ENUMERATION)
    np.testing.assert_allclose(found[1].reshape(scores.shape), occupancy, atol=tolerances.ENUMERATION)
    scores_of, paths = best(batch, values)
    np.testing.assert_allclose(scores_of, score, atol=tolerances.ENUMERATION)
    assert paths[0].tolist() == [list(arc) for arc in path]


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


@of_every_topology
def test_a_sequence_has_the_same_bits_alone_and_in_any_batch(topology):
    arcs = TOPOLOGIES[topology]
    batch, values = make_grids(arcs, FRAMES, LABELS, 3.0, 1, np.float32)
    together = run(batch, values)
    shape = (len(arcs), len(FRAMES), -1)
    for n in range(len(FRAMES)):
        single = GridBatch(batch.arcs, batch.sizes[n : n + 1], batch.boxes[n : n + 1])
        log_prob, occupancy = run(single, values)
        np.testing.assert_array_equal(log_prob[0], together[0][n])
        np.testing.assert_array_equal(occupancy.reshape(shape)[:, n], together[1].reshape(shape)[:, n])


@pytest.mark.parametrize("filler", [np.nan, np.inf, 1e30])
@of_every_topology
def test_padding_changes_no_bit_and_gets_no_occupancy(topology, filler):
    arcs = TOPOLOGIES[topology]
    frames, labels, shape = [9, 4, 12], [3, 5, 0], (len(arcs), 3, 20, 9)
    batch, values = make_grids(arcs, frames, labels)
    wide = np.full(shape, filler)
    wide[:, :, :13, :6] = values.reshape(len(arcs), 3, 13, 6)
    for n in range(3):
        wide[:, n, frames[n] + 1 :] = wide[:, n, :, labels[n] + 1 :] = filler
    log_prob, occupancy = run(batch._replace(boxes=dense_boxes(3, len(arcs), 20, 9)), wide.reshape(-1))
    expected = run(batch, values)
    np.testing.assert_array_equal(log_prob, expected[0])
    occupancy = occupancy.reshape(shape)
    np.testing.assert_array_equal(occupancy[:, :, :13, :6], expected[1].reshape(len(arcs), 3, 13, 6))
    assert not occupancy[:, :, 13:].any() and not occupancy[..., 6:].any()


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
@pytest.mark.parametrize("place", [(0, 0, 0), (1, 3, 1), (1, 0, 2)])
def test_an_illegal_score_makes_its_sequence_nan_and_no_other(wrong, place):
    """At a node that no path of the modified kind reaches, too."""
    batch, values = make_grids(TOPOLOGIES["modified"], [6, 6], [3, 3])
    clean = run(batch, values)
    kind, t, u = place
    values.reshape(2, 2, 7, 4)[kind, 1, t, u] = wrong
    log_prob, occupancy = run(batch, values)
    occupancy, before = occupancy.reshape(2, 2, -1), clean[1].reshape(2, 2, -1)
    assert np.isnan(log_prob[1]) and log_prob[0] == clean[0][0]
    assert not occupancy[:, 1].any()
    np.testing.assert_array_equal(occupancy[:, 0], before[:, 0])
    score, paths = best(batch, values)
    assert np.isnan(score[1]) and len(paths[1]) == 0 and np.isfinite(score[0])


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


def test_an_arc_that_leads_nowhere_is_named():
    batch, values = make_grids([GridArc(1, 0, 0), GridArc(0, 0, 0)], [3], [1])
    with pytest.raises(ValueError, match=r"arcs\[1\] = \[0, 0, 0\] passes no frame and no label"):
        run(batch, values)


def test_twenty_thousand_frames():
    batch, values = make_grids(TOPOLOGIES["regular"], [20_000], [1], dtype=np.float32)
    assert_close(run(batch, values, GridPlan(32)), by_cpu(batch, values))


class WithFarMemory(HostDevice):
    """Takes pointers to memory that the test has mapped, since filling so much would take minutes."""

    def memory_at(self, pointer):
        return super().memory_at(pointer) or pointer


def test_scores_lie_beyond_31_bits():
    """Frames are 2^29 elements apart."""
    batch, values = make_grids(TOPOLOGIES["regular"], [5], [2], dtype=np.float32)
    log_z, occupancy = run(batch, values)
    far = 1 << 29
    boxes = np.array([[[0, far, 1, 6, 3], [3, far, 1, 6, 3]]])
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    # Pages that nobody touches take no memory.
    memory = np.frombuffer(mmap.mmap(-1, 4 * (5 * far + 6), flags=flags), np.float32)
    views = [
        np.lib.stride_tricks.as_strided(memory[first:], (6, 3), (4 * far, 4)) for first in boxes[0, :, 0]
    ]
    for view, scores in zip(views, values.reshape(2, 6, 3), strict=True):
        view[:] = scores
    device, there = WithFarMemory(), DeviceArray(memory.ctypes.data, "float32", memory.shape, (1,), memory)
    found = cuda_grid.forward_backward(device, batch._replace(boxes=boxes), there).read(np.float64)
    np.testing.assert_array_equal(found, log_z)
    np.testing.assert_array_equal(np.stack(views), occupancy.reshape(2, 6, 3))


def test_a_batch_of_nobody_is_nothing():
    batch = GridBatch(
        np.array(TOPOLOGIES["regular"]), grid_sizes(np.zeros(0), np.zeros(0)), np.zeros((0, 2, 5), np.int64)
    )
    assert run(batch, np.zeros(0))[0].shape == (0,)
    assert best(batch, np.zeros(0))[1] == []
