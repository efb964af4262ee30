"""Losses in the shape of other toolkits, without these toolkits: arguments, values, reductions and messages."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from tolerances import FEW_FLOAT32_TERMS, FLOAT32_GRADIENT, FLOAT64, ROUNDING

from fsachain import LFMMILoss, ctc_numerator, rnnt_loss, tdt_loss
from fsachain.errors import ConfigError, ShapeError
from fsachain.integrations import warprnnt
from fsachain.integrations.reduction import REDUCTIONS, reduce_losses
from fsachain.integrations.transformers import CTC, LFMMI, RNNT, TDT, left_aligned

DURATIONS = [0, 1, 2, 4]
CLASSES = 6


def ctc_batch(blank):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(3, 9, CLASSES, generator=generator, dtype=torch.float64)
    classes = [label for label in range(CLASSES) if label != blank]
    rows = [[classes[0], classes[0], classes[3]], [classes[4]], [classes[1], classes[2]]]
    labels = torch.full((3, 4), -100)
    for n, row in enumerate(rows):
        labels[n, : len(row)] = torch.tensor(row)
    return logits.requires_grad_(), labels, torch.tensor([9, 7, 8]), rows


def grid_batch(width):
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(3, 7, 4, width, generator=generator).requires_grad_()
    labels = torch.randint(1, CLASSES, (3, 3), generator=generator)
    return logits, labels, torch.tensor([7, 5, 6]), torch.tensor([3, 1, 2])


def gradient_of(loss, logits):
    (gradient,) = torch.autograd.grad(loss.sum(), logits, retain_graph=True)
    return gradient


@pytest.mark.parametrize("blank", [0, 2, CLASSES - 1])
@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
def test_ctc_equals_that_of_torch_with_its_gradient_for_any_blank(blank, reduction):
    logits, labels, lengths, rows = ctc_batch(blank)
    counts = torch.tensor([len(row) for row in rows])
    flat = torch.tensor([label for row in rows for label in row])
    log_probs = logits.log_softmax(-1).transpose(0, 1)
    expected = torch.nn.functional.ctc_loss(log_probs, flat, lengths, counts, blank, reduction)
    loss = CTC()(logits, labels, lengths, blank_token_id=blank, reduction=reduction)
    torch.testing.assert_close(loss, expected, rtol=FLOAT64, atol=FLOAT64)
    torch.testing.assert_close(gradient_of(loss, logits), gradient_of(expected, logits), rtol=0, atol=FLOAT64)


def test_an_impossible_sequence_is_infinite_or_0_as_the_model_says_and_has_no_gradient():
    logits, labels, _, _ = ctc_batch(0)
    short = torch.tensor([1, 7, 8])
    losses = CTC()(logits, labels, short, 0, "none")
    assert math.isinf(losses[0].item())
    assert CTC()(logits, labels, short, 0, "none", zero_infinity=True)[0] == 0
    finite = CTC(zero_infinity=True)(logits, labels, short, 0, "mean")
    assert math.isfinite(finite.item())
    assert not gradient_of(finite, logits)[0].any()


def test_labels_to_ignore_may_stand_anywhere():
    labels = torch.tensor([[-100, 3, 0, 2], [1, -100, -100, -100]])
    aligned, counts = left_aligned(labels, -100, 0)
    assert counts.tolist() == [2, 1]
    assert aligned[0, :2].tolist() == [3, 2]
    assert aligned[1, :1].tolist() == [1]


def test_reductions_are_those_of_their_formulas():
    losses, labels = torch.tensor([2.0, 6.0, 1.0]), torch.tensor([2, 3, 0])
    expected = {"sum": 9.0, "mean": (1.0 + 2.0 + 1.0) / 3, "mean_batch": 3.0, "mean_volume": 9.0 / 5}
    assert set(expected) | {"none"} == set(REDUCTIONS)
    for name, value in expected.items():
        assert reduce_losses(losses, labels, name).item() == pytest.approx(value)
    assert reduce_losses(losses, labels, None).tolist() == losses.tolist()


@pytest.mark.parametrize("reduction", ["sum", "mean", "mean_batch", "mean_volume", "none"])
def test_transducers_reduce_the_losses_of_the_library(reduction):
    logits, labels, frames, counts = grid_batch(CLASSES)
    losses = rnnt_loss(logits, labels, frames, counts, blank=0, reduction="none")
    expected = reduce_losses(losses, counts, reduction)
    loss = RNNT()(logits, labels, frames, counts, blank_token_id=0, reduction=reduction)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), expected, rtol=FEW_FLOAT32_TERMS, atol=0)
    torch.testing.assert_close(
        gradient_of(loss, logits), gradient_of(expected, logits), rtol=0, atol=FLOAT32_GRADIENT
    )
    logits, labels, frames, counts = grid_batch(CLASSES + len(DURATIONS))
    losses = tdt_loss(logits, labels, frames, counts, DURATIONS, blank=0, reduction="none", sigma=0.05)
    expected = reduce_losses(losses, counts, reduction)
    parts = logits[..., :CLASSES], logits[..., CLASSES:]
    loss = TDT(sigma=0.05)(*parts, labels, frames, counts, 0, DURATIONS, reduction=reduction)
    torch.testing.assert_close(loss.double(), expected, rtol=FEW_FLOAT32_TERMS, atol=0)
    torch.testing.assert_close(
        gradient_of(loss, logits), gradient_of(expected, logits), rtol=0, atol=FLOAT32_GRADIENT
    )


def test_logits_of_tokens_and_durations_may_be_slices_of_one_tensor_or_tensors_of_their_own():
    logits, labels, frames, counts = grid_batch(CLASSES + len(DURATIONS))
    slices = logits[..., :CLASSES], logits[..., CLASSES:]
    copies = tuple(part.detach().clone().requires_grad_() for part in slices)
    swapped = torch.cat([logits[..., len(slices[0]) :], logits], dim=-1)  # a base with more in it
    within = swapped[..., -logits.shape[-1] :]
    others = within[..., :CLASSES], within[..., CLASSES:]
    given = labels, frames, counts, 0, DURATIONS
    expected = TDT()(*slices, *given)
    whole = gradient_of(expected, logits)
    apart = TDT()(*copies, *given)
    assert torch.equal(apart, expected)
    assert torch.equal(TDT()(*others, *given), expected)
    for part, gradient in zip(copies, (whole[..., :CLASSES], whole[..., CLASSES:]), strict=True):
        assert torch.equal(gradient_of(apart, part), gradient)


@pytest.mark.parametrize("loss", [RNNT, TDT])
def test_a_transducer_leaves_out_what_is_impossible(loss):
    durations = DURATIONS[1:] if loss is TDT else []  # without 0 a label takes a frame
    logits, labels, _, counts = grid_batch(CLASSES + len(durations))
    frames = torch.tensor([1, 5, 6])
    logits = logits.detach().clone()
    if loss is RNNT:
        logits[0] = -torch.inf
    logits.requires_grad_()
    parts = (logits[..., :CLASSES], logits[..., CLASSES:]) if durations else (logits,)
    given = (*parts, labels, frames, counts, 0, *([durations] if durations else []))
    total = loss()(*given, reduction="sum")
    losses = loss(zero_infinity=False)(*given, reduction="none")
    assert math.isinf(losses[0].item())
    assert math.isfinite(total.item())
    torch.testing.assert_close(total, losses[1:].sum())
    gradient = gradient_of(total, logits)
    assert not gradient[0].any()
    assert gradient[1].any()


@pytest.mark.parametrize("blank", [0, 2, CLASSES - 1])
@pytest.mark.parametrize("reduction", ["frame", "sum", "mean_batch"])
def test_lfmmi_equals_the_loss_of_the_same_graphs_for_any_blank(blank, reduction):
    logits, labels, lengths, rows = ctc_batch(blank)
    loss = LFMMI.from_labels(rows, CLASSES, blank, reduction=reduction)
    value = loss(logits, labels, lengths, blank_token_id=blank, reduction="sum", num_items_in_batch=6)
    order = [blank, *(label for label in range(CLASSES) if label != blank)]
    numerators = [ctc_numerator([order.index(label) for label in row], loss.denominator) for row in rows]
    expected = LFMMILoss(loss.denominator)(logits[..., order], lengths, numerators)
    factor = {"frame": 1, "sum": 24, "mean_batch": 8}[reduction]
    assert value.item() == pytest.approx(expected.item() * factor, rel=ROUNDING)
    torch.testing.assert_close(
        gradient_of(value, logits),
        gradient_of(expected, logits) * factor,
        rtol=FEW_FLOAT32_TERMS,
        atol=FLOAT32_GRADIENT,
    )
    assert loss.last_record.excluded == ()


def test_lfmmi_leaves_out_and_names_what_is_impossible():
    logits, labels, lengths, rows = ctc_batch(0)
    loss = LFMMI.from_labels(rows, CLASSES, 0)
    value = loss(logits, labels, torch.tensor([1, 7, 8]), blank_token_id=0)
    assert math.isfinite(value.item())
    assert loss.last_record.ok.tolist() == [False, True, True]
    own = LFMMI(loss.denominator, lambda pdfs: ctc_numerator(pdfs, loss.denominator))
    assert torch.equal(own(logits, labels, lengths, blank_token_id=0), loss(logits, labels, lengths, 0))


@pytest.mark.parametrize("reduction", ["sum", "mean", "mean_batch", "mean_volume", None])
def test_warprnnt_has_the_arguments_shape_and_mean_of_its_model(reduction):
    logits, labels, frames, counts = grid_batch(CLASSES)
    losses = rnnt_loss(logits, labels, frames, counts, blank=0, reduction="none")
    name = "mean_batch" if reduction == "mean" else reduction
    expected = reduce_losses(losses, counts, name).reshape(-1).float()
    loss = warprnnt.RNNTLoss(blank=0, reduction=reduction)
    value = loss(acts=logits, labels=labels.int(), act_lens=frames.int(), label_lens=counts.int())
    assert value.shape == expected.shape
    torch.testing.assert_close(value, expected)
    value.sum().backward()
    assert logits.grad.any()


def test_warprnnt_knows_durations_and_big_blanks():
    logits, labels, frames, counts = grid_batch(CLASSES + len(DURATIONS))
    expected = tdt_loss(logits, labels, frames, counts, DURATIONS, blank=0, sigma=0.1)
    loss = warprnnt.TDTLoss(0, DURATIONS, sigma=0.1)
    torch.testing.assert_close(loss(logits, labels, frames, counts).double()[0], expected)
    logits, _, _, _ = grid_batch(CLASSES + 2)
    small = labels.clamp(max=CLASSES - 2)
    loss = warprnnt.MultiblankRNNTLoss(CLASSES + 1, [2, 4], "none")
    assert loss.big_blanks == {CLASSES: 2, CLASSES - 1: 4}
    assert loss(logits, small, frames, counts).isfinite().all()
    with pytest.raises(
        ConfigError, match="big_blank_durations has 2 entries and blank = 1; expected at most 1"
    ):
        warprnnt.MultiblankRNNTLoss(1, [2, 4])


def test_install_gives_the_module_its_name_unless_another_has_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "warprnnt_pytorch", raising=False)
    warprnnt.install()
    from warprnnt_pytorch import RNNTLoss

    assert RNNTLoss is warprnnt.RNNTLoss
    warprnnt.install()
    monkeypatch.setitem(sys.modules, "warprnnt_pytorch", np)
    with pytest.raises(
        ConfigError, match=r"has been imported from .*numpy.*; expected install\(\) to be called"
    ):
        warprnnt.install()


def test_messages_say_what_came_and_what_is_expected():
    logits, labels, lengths, rows = ctc_batch(0)
    with pytest.raises(
        ShapeError,
        match=r"labels has shape \[2, 4\]; expected a row of labels for each sequence, as logits has shape \[3, 9, 6\]",
    ):
        CTC()(logits, labels[:2], lengths, 0)
    with pytest.raises(ShapeError, match=r"logits has shape \[9, 6\]; expected \[N, T, C\]"):
        CTC()(logits[0], labels, lengths, 0)
    with pytest.raises(ConfigError, match="reduction = 'median'"):
        CTC()(logits, labels, lengths, 0, "median")
    with pytest.raises(ConfigError, match=r"reduction = 'mean'; expected one of .*frame"):
        LFMMI.from_labels(rows, CLASSES, 0, reduction="mean")
    with pytest.raises(
        ConfigError, match="logits have 5 classes; expected one for each pdf of the denominator, 6 in all"
    ):
        LFMMI.from_labels(rows, CLASSES, 0)(logits[..., :5], labels.clamp(max=4), lengths, 0)
    with pytest.raises(
        ShapeError, match=r"labels\[1\] = 9; expected classes from 0 to 5 other than the blank, 0"
    ):
        LFMMI.from_labels([[1, 9]], CLASSES, 0)
    grid, targets, frames, counts = grid_batch(CLASSES + len(DURATIONS))
    parts = grid[..., :CLASSES], grid[..., CLASSES:-1]
    with pytest.raises(
        ShapeError, match=r"duration_logits has shape .* 3\]; expected .* 4\], a score for each"
    ):
        TDT()(*parts, targets, frames, counts, 0, DURATIONS)
    with pytest.raises(ShapeError, match=r"logits has shape .*; expected \[N, T, U \+ 1, V\]"):
        RNNT()(grid[0], targets, frames, counts, 0)


def test_no_toolkit_is_imported():
    program = (
        "import sys, fsachain.integrations.transformers, fsachain.integrations.warprnnt\n"
        "names = {'transformers', 'nemo', 'espnet2', 'speechbrain', 'huggingface_hub', 'fsachain.asr'}\n"
        "assert not names & set(sys.modules), names & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
