"""Derivatives in forward mode, which the losses do not have, are refused and not taken for zero."""

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad

from fsachain import (
    DenominatorGraph,
    Fsa,
    LFMMILoss,
    TableBatch,
    compile_table,
    ctc_loss,
    rnnt_loss,
    rnnt_loss_simple,
    total_log_prob,
)

LABELS = torch.tensor([[1, 2], [2, 3]])
FRAMES, COUNTS = torch.tensor([4, 4]), torch.tensor([2, 2])
LOOP = Fsa(1, [0, 0, 0], [0, 0, 0], [0, 1, 2], np.log([0.4, 0.3, 0.3]), [0.0])
NUMERATOR = Fsa(2, [0, 0, 1], [0, 1, 1], [0, 1, 2], [-0.5, -0.5, -0.5], [-np.inf, 0.0])


def total(scores: torch.Tensor) -> torch.Tensor:
    return total_log_prob(TableBatch.pack([compile_table(NUMERATOR, 5)] * 2), scores).sum()


def lfmmi(scores: torch.Tensor) -> torch.Tensor:
    return LFMMILoss(DenominatorGraph(LOOP, num_pdfs=5))(scores, FRAMES, [NUMERATOR] * 2)


def ctc(scores: torch.Tensor) -> torch.Tensor:
    return ctc_loss(scores.log_softmax(-1).transpose(0, 1), LABELS, FRAMES, COUNTS)


def rnnt(scores: torch.Tensor) -> torch.Tensor:
    logits = scores[:, :, None, :].expand(-1, -1, 3, -1)
    return rnnt_loss(logits, LABELS.int(), FRAMES.int(), COUNTS.int(), blank=0)


def simple(scores: torch.Tensor) -> torch.Tensor:
    return rnnt_loss_simple(scores[:, :3], scores, LABELS, termination_symbol=0)


LOSSES = {"total": total, "lfmmi": lfmmi, "ctc": ctc, "rnnt": rnnt, "simple": simple}
SCORES = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("name", LOSSES)
def test_forward_transforms_are_refused(name: str) -> None:
    with pytest.raises(RuntimeError, match="reverse mode only"):
        torch.func.jacfwd(LOSSES[name])(SCORES)


@pytest.mark.parametrize("name", LOSSES)
def test_dual_numbers_are_refused(name: str) -> None:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(SCORES, torch.ones_like(SCORES))
        with pytest.raises(RuntimeError, match="reverse mode only"):
            LOSSES[name](dual)


@pytest.mark.parametrize("name", LOSSES)
def test_reverse_mode_goes_on(name: str) -> None:
    scores = SCORES.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(LOSSES[name](scores), scores)
    assert torch.isfinite(gradient).all() and gradient.any()
