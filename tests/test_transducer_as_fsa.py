"""The lattice of a transducer is an acceptor: one state for each node, and every path has T + U arcs."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fsachain import Fsa, TableBatch, compile_table, rnnt_lattice, rnnt_loss, total_log_prob
from tests import tolerances


def lattice(frames, targets, blank):
    """The acceptor of one sequence, whose pdfs count its arcs, and (frame, labels so far, class) of each arc."""
    rows = len(targets) + 1
    src, dst, arcs = [], [], []
    for t in range(frames):
        for u in range(rows):
            src.append(t * rows + u)
            # The last arc of a path is the blank that leaves the last frame.
            dst.append((t + 1) * rows + u)
            arcs.append((t, u, blank))
            if u < len(targets):
                src.append(t * rows + u)
                dst.append(t * rows + u + 1)
                arcs.append((t, u, targets[u]))
    final = np.full((frames + 1) * rows, -np.inf)
    final[frames * rows + len(targets)] = 0.0
    return Fsa(len(final), src, dst, range(len(arcs)), np.zeros(len(arcs)), final), arcs


def scores_of(log_probs, arcs, num_labels):
    """[1, T + U, arcs]: an arc from (t, u) is the arc number t + u of its path."""
    t, u, v = (torch.tensor(column) for column in zip(*arcs, strict=True))
    steps = torch.arange(len(log_probs) + num_labels).unsqueeze(1)
    return torch.where(steps == t + u, log_probs[t, u, v], -torch.inf).unsqueeze(0)


@settings(max_examples=25)
@given(
    frames=st.integers(1, 6),
    targets=st.lists(st.integers(1, 4), max_size=5),
    blank=st.sampled_from([0, 5]),
    scale=st.sampled_from([1.0, 30.0, 1000.0]),
    seed=st.integers(0, 1000),
)
def test_the_loss_is_that_of_the_lattice_as_an_fsa(frames, targets, blank, scale, seed):
    generator = torch.manual_seed(seed)
    shape = (1, frames, len(targets) + 1, 6)
    logits = (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).requires_grad_()
    labels = torch.tensor([targets], dtype=torch.int32).reshape(1, -1)
    loss = rnnt_loss(logits, labels, [frames], [len(targets)], blank=blank, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, logits)
    fsa, arcs = lattice(frames, targets, blank)
    log_probs = logits.log_softmax(-1)[0]
    batch = TableBatch.pack([compile_table(fsa, fsa.num_arcs)])
    same = -total_log_prob(batch, scores_of(log_probs, arcs, len(targets))).sum()
    (expected,) = torch.autograd.grad(same, logits)
    assert loss.item() == pytest.approx(same.item(), rel=tolerances.FLOAT64, abs=tolerances.FLOAT64)
    torch.testing.assert_close(gradient, expected, rtol=0.0, atol=tolerances.FLOAT64 * max(1.0, scale))


def test_occupancies_of_labels_and_blanks_are_those_of_the_fsa():
    targets, frames = [3, 1, 1], 5
    logits = torch.randn((1, frames, 4, 6), generator=torch.manual_seed(5), dtype=torch.float64)
    found = rnnt_lattice(logits, torch.tensor([targets]), [frames], [3], blank=0).occupancy()
    fsa, arcs = lattice(frames, targets, 0)
    scores = scores_of(logits.log_softmax(-1)[0], arcs, 3).requires_grad_()
    total_log_prob(TableBatch.pack([compile_table(fsa, fsa.num_arcs)]), scores).sum().backward()
    occupied = scores.grad[0].sum(0)
    for k, (t, u, v) in enumerate(arcs):
        of_kind = found.blank if v == 0 else found.label
        assert float(of_kind[0, t, u]) == pytest.approx(float(occupied[k]), abs=tolerances.FLOAT64)
