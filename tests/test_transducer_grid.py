"""The recursion over the (t, u) grid: the oracle against paths one by one, the CPU against the oracle."""

import numpy as np
import pytest
import tolerances
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_grids import TOPOLOGIES, enumerate_grid, make_grids
from rnnt_inputs import BLANK, TYPES, close, make_logits, make_targets

from fsachain import (
    TransducerLattice,
    get_rnnt_prune_ranges,
    hat_lattice,
    hat_loss,
    rnnt_lattice,
    rnnt_loss,
    rnnt_loss_pruned,
    rnnt_loss_simple,
    tdt_lattice,
    tdt_loss,
)
from fsachain.backends import dispatch
from fsachain.backends.cpu import grid as grid_cpu
from fsachain.backends.reference import grid as reference_grid
from fsachain.grid import BLANK as BLANK_ARC
from fsachain.grid import GridArc, GridBatch, dense_boxes, grid_sizes
from tools import SHARED

of_every_topology = pytest.mark.parametrize("topology", TOPOLOGIES)


@of_every_topology
@given(
    num_frames=st.integers(0, 5),
    num_labels=st.integers(0, 4),
    seed=st.integers(0, 99),
    impossible=st.sampled_from([0.0, 0.3]),
)
def test_the_oracle_is_the_sum_over_all_paths(topology, num_frames, num_labels, seed, impossible):
    arcs = TOPOLOGIES[topology]
    batch, values = make_grids(arcs, [num_frames], [num_labels], seed=seed, impossible=impossible)
    scores = values.reshape(len(arcs), num_frames + 1, num_labels + 1)
    log_z, occupancy, best, path = enumerate_grid(arcs, scores, num_frames, num_labels)
    score, rows = reference_grid.best_paths(batch, values)
    found = reference_grid.forward_backward(batch, values)
    np.testing.assert_allclose(found, log_z, atol=tolerances.ENUMERATION)
    np.testing.assert_allclose(values.reshape(scores.shape), occupancy, atol=tolerances.ENUMERATION)
    np.testing.assert_allclose(score, best, atol=tolerances.ENUMERATION)
    assert rows[0].tolist() == [list(arc) for arc in path]


@pytest.fixture
def grids():
    """The functions of the CPU; tests/slow has those of a device in their place."""
    return grid_cpu


@of_every_topology
@pytest.mark.parametrize(("scale", "dtype"), [(30.0, np.float64), (1000.0, np.float32)])
def test_sums_occupancies_and_paths_are_the_oracles_at_any_magnitude_ties_too(grids, topology, scale, dtype):
    frames, labels = [23, 1, 0, 17, 0, 9], [7, 0, 3, 8, 0, 15]
    for seed, impossible in enumerate((0.0, 0.1)):
        batch, values = make_grids(TOPOLOGIES[topology], frames, labels, scale, seed, dtype, impossible)
        ours, theirs = values.copy(), values.astype(np.float64)
        for scores in (values, np.rint(values)):
            found, best = grids.best_paths(batch, scores), reference_grid.best_paths(batch, scores)
            np.testing.assert_array_equal(found[0], best[0])
            assert all(np.array_equal(x, y) for x, y in zip(found[1], best[1], strict=True))
        without = grids.log_probs(batch, values)
        log_z, expected = grids.forward_backward(batch, ours), reference_grid.forward_backward(batch, theirs)
        np.testing.assert_array_equal(without, log_z)
        np.testing.assert_allclose(log_z, expected, rtol=tolerances.FLOAT64, atol=tolerances.FLOAT64)
        limit = tolerances.SURE_OCCUPANCY if dtype == np.float32 else tolerances.SHIFTED_OCCUPANCY
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=limit)


def _padded(batch, values, filler):
    """The same grids in boxes that hold more than the grids, the rest is `filler`."""
    count, kinds = batch.boxes.shape[:2]
    shape = (kinds, count, batch.boxes[0, 0, 3], batch.boxes[0, 0, 4])
    wide = np.full((kinds, count, shape[2] + 6, shape[3] + 5), filler, values.dtype)
    wide[:, :, : shape[2], : shape[3]] = values.reshape(shape)
    for n, (_, _, last_frame, last_label) in enumerate(batch.sizes):
        wide[:, n, last_frame + 1 :] = filler
        wide[:, n, :, last_label + 1 :] = filler
    return batch._replace(boxes=dense_boxes(count, kinds, *wide.shape[2:])), wide


@of_every_topology
@pytest.mark.parametrize("filler", [np.nan, 1e30])
def test_padding_changes_no_bit_and_gets_no_occupancy(grids, topology, filler):
    batch, values = make_grids(TOPOLOGIES[topology], [9, 4, 12], [3, 5, 0])
    padded, wide = _padded(batch, values, filler)
    exact = _padded(batch, values, 0.0)[1].reshape(-1)
    flat = wide.reshape(-1)
    np.testing.assert_array_equal(grids.forward_backward(padded, flat), grids.forward_backward(batch, values))
    grids.forward_backward(padded, exact)
    np.testing.assert_array_equal(flat, exact)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_an_illegal_score_makes_its_sequence_nan_and_no_other(wrong, backend):
    batch, values = make_grids(TOPOLOGIES["regular"], [6, 6], [2, 2])
    clean = values.copy()
    values.reshape(2, 2, 7, 3)[0, 1, 3, 1] = wrong
    ours = dispatch.grid(torch.from_numpy(values), backend)
    spoilt, whole = (
        ours.forward_backward(batch, torch.from_numpy(scores.reshape(-1))) for scores in (values, clean)
    )
    assert np.isnan(spoilt[1]) and spoilt[0] == whole[0]
    assert not values.reshape(2, 2, 7, 3)[:, 1].any()
    np.testing.assert_array_equal(values.reshape(2, 2, 7, 3)[:, 0], clean.reshape(2, 2, 7, 3)[:, 0])


def test_scores_that_no_arc_uses_may_be_anything(grids):
    """A label at the last label, a blank at the last frame, and a regular label there lead out of the grid."""
    batch, values = make_grids(TOPOLOGIES["regular"], [4], [3])
    clean, scores = values.copy(), values.reshape(2, 5, 4)
    scores[1, :, 3] = np.nan
    scores[:, 4] = np.nan
    assert grids.forward_backward(batch, values) == grids.forward_backward(batch, clean)
    assert np.isfinite(values).all()


def test_grids_may_begin_within_their_boxes(grids):
    arcs = TOPOLOGIES["free"]
    batch, values = make_grids(arcs, [9], [6])
    inner = batch._replace(sizes=np.array([[2, 1, 5, 3]]))
    scores = values.reshape(2, 10, 7)[:, 2:8, 1:5].copy()
    small = GridBatch(batch.arcs, grid_sizes([5], [3]), dense_boxes(1, 2, 6, 4))
    flat = scores.reshape(-1)
    assert grids.forward_backward(inner, values) == grids.forward_backward(small, flat)
    np.testing.assert_array_equal(values.reshape(2, 10, 7)[:, 2:8, 1:5], flat.reshape(scores.shape))
    assert values.sum() == pytest.approx(flat.sum(), abs=tolerances.ROUNDING)


# Occupancies and best alignments, from any of the transducer losses.


FRAMES, LABELS = [9, 6, 7, 4], [3, 5, 0, 1]
SIZES = make_targets(), FRAMES, LABELS
PEERS = SHARED / "golden" / "peers"
LATTICES = {
    **{name: (lambda x, name=name: rnnt_lattice(x, *SIZES, BLANK, rnnt_type=name)) for name in TYPES},
    "hat": lambda x: hat_lattice(x, SIZES[0] % BLANK, *SIZES[1:], BLANK),
    "tdt": lambda x: tdt_lattice(x, SIZES[0] % 7, *SIZES[1:], [0, 1, 2], BLANK),
}
LOSSES = {
    **{
        name: (lambda x, name=name: rnnt_loss(x, *SIZES, BLANK, -1, "none", rnnt_type=name)) for name in TYPES
    },
    "hat": lambda x: hat_loss(x, SIZES[0] % BLANK, *SIZES[1:], BLANK, "none"),
    "tdt": lambda x: tdt_loss(x, SIZES[0] % 7, *SIZES[1:], [0, 1, 2], BLANK, "none"),
}
of_every_lattice = pytest.mark.parametrize("kind", LATTICES)


@of_every_lattice
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_z_is_minus_the_loss(kind, dtype):
    logits = make_logits(2.0, dtype=dtype)
    limit = tolerances.FLOAT64 if dtype == torch.float64 else tolerances.FEW_FLOAT32_TERMS
    close(LATTICES[kind](logits).log_prob(), -LOSSES[kind](logits), limit)


@of_every_lattice
def test_every_label_is_emitted_once_and_every_frame_passed(kind):
    occupancy = LATTICES[kind](make_logits(2.0)).occupancy()
    assert occupancy.ok.all() and occupancy.node.shape == (4, 9, 6)
    for n, (t, u) in enumerate(zip(FRAMES, LABELS, strict=True)):
        close(occupancy.label[n].sum(0)[:u], torch.ones(u))
        assert not occupancy.node[n, t:].any() and not occupancy.node[n, :, u + 1 :].any()
        if kind == "regular" or kind == "hat":
            close(occupancy.blank[n].sum(1)[:t], torch.ones(t))
    close(occupancy.node, occupancy.label + occupancy.blank)


def test_a_sequence_that_is_not_ok_has_no_occupancy():
    logits = make_logits().detach()
    logits[1, 2, 0, 3] = torch.nan
    occupancy = rnnt_lattice(logits, *SIZES, BLANK).occupancy()
    assert occupancy.ok.tolist() == [True, False, True, True]
    assert torch.isnan(occupancy.log_prob[1]) and not occupancy.node[1].any()
    best = rnnt_lattice(logits, *SIZES, BLANK).best_alignment()[1]
    assert np.isnan(best.score) and not len(best.arcs) and not len(best.frames)


@of_every_lattice
def test_the_best_alignment_is_a_path_of_its_score(kind):
    lattice = LATTICES[kind](make_logits(2.0))
    for n, best in enumerate(lattice.best_alignment()):
        scores = lattice.scores[n].detach()
        close(sum(float(scores[k, t, u]) for k, t, u in best.arcs), best.score)
        t = u = 0
        for kind_of, at_t, at_u in best.arcs.tolist():
            assert (at_t, at_u) == (t, u)
            t, u = t + lattice.arcs[kind_of].frames, u + lattice.arcs[kind_of].labels
        assert (t, u) == (FRAMES[n], LABELS[n])
        assert len(best.frames) == LABELS[n] and (np.diff(best.frames) >= 0).all()
        assert best.score <= float(lattice.log_prob()[n].detach())


def test_the_lattice_of_a_pruned_loss():
    generator = torch.Generator().manual_seed(0)
    am, lm = (torch.randn(4, size, 11, generator=generator) for size in (9, 6))
    boundary = [[0, 0, u, t] for t, u in zip(FRAMES, LABELS, strict=True)]
    _, occupancies = rnnt_loss_simple(lm, am, SIZES[0], BLANK, boundary, return_grad=True)
    ranges = get_rnnt_prune_ranges(*occupancies, boundary, 3)
    logits = torch.randn(4, 9, 3, 11, generator=generator)
    lattice = rnnt_lattice(logits, *SIZES, BLANK, ranges=ranges)
    losses = rnnt_loss_pruned(logits, SIZES[0], ranges, BLANK, boundary, reduction="none")
    assert torch.equal(lattice.log_prob(), -losses)
    node = lattice.occupancy().node
    kept = torch.zeros(4, 9, 6, dtype=torch.bool).scatter(2, ranges, True)
    assert not node[~kept].any() and node[kept].any()


@pytest.mark.skipif(not PEERS.is_dir(), reason="no ../shared")
@pytest.mark.parametrize("case", ["A", "B"])
def test_one_symbol_a_frame_that_ends_with_a_blank(case):
    """optimized_transducer's kind: labels take a frame, and none may end at the last."""
    file = np.load(PEERS / f"rnnt_{case}_optimized_transducer_onesym.npz")
    logits = torch.tensor(file["logits"])
    sizes = file["targets"], file["logit_lengths"], file["target_lengths"], int(file["blank"])
    modified = rnnt_lattice(logits, *sizes, rnnt_type="modified")
    arcs = (BLANK_ARC, GridArc(1, 1, 1))
    costs = -TransducerLattice(modified.scores, arcs, modified.sizes).log_prob()
    np.testing.assert_allclose(costs, file["costs"], rtol=tolerances.PEER_COST_RELATIVE)
