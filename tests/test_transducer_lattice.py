"""Occupancies and best alignments, from any of the transducer losses."""

import numpy as np
import pytest
import tolerances
import torch
from conftest import SHARED
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
from fsachain.grid import BLANK as BLANK_ARC
from fsachain.grid import GridArc

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
