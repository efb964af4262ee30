"""What the transducer losses say to arguments that cannot be used: which one, what came, what was expected."""

import numpy as np
import pytest
import torch

from fsachain import (
    RNNTLoss,
    do_rnnt_pruning,
    get_rnnt_prune_ranges,
    mutual_information_recursion,
    rnnt_loss,
    rnnt_loss_pruned,
    rnnt_loss_simple,
    rnnt_loss_smoothed,
    transducer_loss,
)
from fsachain.errors import BackendUnavailable, ConfigError, ShapeError


def logits(*shape):
    return torch.zeros(*(shape or (2, 4, 3, 5)))


TARGETS, FRAMES, LABELS = [[1, 2], [3, 0]], [4, 3], [2, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": np.zeros((2, 4, 3, 5))}, "logits is a ndarray; expected a torch tensor"),
        ({"logits": logits(2, 4, 3, 5).long()}, r"logits has dtype torch.int64; expected float16"),
        ({"logits": logits(3, 4, 3, 5)}, r"logits has 3 sequences \(shape \[3, 4, 3, 5\]\); expected 2"),
        ({"logits": logits(2, 4, 2, 5)}, r"expected U \+ 1 = 3 or more in its third dimension"),
        ({"logits": logits(17, 5)}, "logits has 17 rows .* expected 18, the sum of logit_lengths x"),
        ({"targets": [[1.0, 2.0], [3.0, 0.0]]}, "targets has dtype torch.float32; expected integers"),
        ({"targets": [[1, 5], [3, 0]]}, r"targets\[0, 1\] = 5; expected a class, 0 to 4"),
        ({"frames": [5, 3]}, r"logit_lengths\[0\] = 5; expected 0 to 4, the frames of logits"),
        ({"frames": [4]}, r"have shapes \[1\] and \[2\]; expected \[N\] both"),
        ({"labels": [3, 1]}, r"target_lengths\[0\] = 3; expected 0 to 2, the labels of targets"),
        (
            {"logits": logits(0, 4, 3, 5), "targets": np.zeros((0, 2), int), "frames": [], "labels": []},
            "the batch is empty; expected at least one sequence",
        ),
    ],
)
def test_shapes_lengths_and_targets(change, message):
    call = {"logits": logits(), "targets": TARGETS, "frames": FRAMES, "labels": LABELS} | change
    with pytest.raises(ShapeError, match=message):
        rnnt_loss(*call.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"blank": 5}, "blank = 5; expected a class of 5, or one counted from the end"),
        ({"reduction": "avg"}, r"reduction = 'avg'; expected one of \['none', 'mean', 'sum'\]"),
        ({"rnnt_type": "strict"}, "rnnt_type = 'strict'; expected one of"),
        ({"fastemit_lambda": -0.1}, "fastemit_lambda = -0.1; expected a number >= 0"),
        ({"delay_penalty": float("inf")}, "delay_penalty = inf; expected a finite number"),
        ({"clamp": float("nan")}, "clamp = nan; expected a number, above 0 where"),
    ],
)
def test_options(options, message):
    with pytest.raises(ConfigError, match=message):
        rnnt_loss(logits(), TARGETS, FRAMES, LABELS, **options)
    if "blank" not in options:  # whose range the module does not know yet
        with pytest.raises(ConfigError, match=message):
            RNNTLoss(**options)


def test_devices():
    with pytest.raises(BackendUnavailable, match="logits is on meta"):
        rnnt_loss(logits().to("meta"), TARGETS, FRAMES, LABELS)
    with pytest.raises(ShapeError, match="targets is on meta; expected cpu"):
        rnnt_loss(logits(), torch.tensor(TARGETS, device="meta"), FRAMES, LABELS)


def test_a_gradient_in_place_needs_a_contiguous_place():
    turned = logits().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    loss = rnnt_loss(turned, TARGETS, FRAMES, LABELS, inplace=True)
    with pytest.raises(ShapeError, match="logits is not contiguous"):
        loss.backward()


def test_the_recursion():
    px, py = torch.zeros(2, 3, 6), torch.zeros(2, 4, 5)
    for wrong in (px[:, :2], torch.zeros(2, 3, 7), px[:1]):
        with pytest.raises(ShapeError, match=r"expected \[B, S, T \+ 1\] or \[B, S, T\]"):
            mutual_information_recursion(wrong, py)
    for spans in ([[0, 0, 4, 5]] * 2, [[0, 0, 3, 6]] * 2, [[2, 0, 1, 5]] * 2, [[0, -1, 3, 5]] * 2):
        with pytest.raises(
            ShapeError, match=r"boundary\[0\] = .*; expected \[s_begin, t_begin, s_end, t_end"
        ):
            mutual_information_recursion(px, py, spans)
    with pytest.raises(ShapeError, match=r"boundary has shape \[1, 4\]; expected \[2, 4\]"):
        mutual_information_recursion(px, py, [[0, 0, 3, 5]])


def test_simple_and_smoothed_losses():
    lm, am = torch.zeros(2, 3, 5), torch.zeros(2, 4, 5)
    with pytest.raises(ShapeError, match=r"expected \[B, S \+ 1, C\] and \[B, T, C\]"):
        rnnt_loss_simple(lm, am[:, :, :4], TARGETS, 0)
    with pytest.raises(ShapeError, match=r"symbols\[1, 0\] = 9; expected a class, 0 to 4"):
        rnnt_loss_simple(lm, am, [[1, 2], [9, 0]], 0)
    with pytest.raises(ConfigError, match="termination_symbol = 5"):
        rnnt_loss_simple(lm, am, TARGETS, 5)
    for scales in ((0.6, 0.5), (-0.1, 0.1), (float("nan"), 0.1)):
        with pytest.raises(ConfigError, match="expected numbers >= 0 whose sum is at most 1"):
            rnnt_loss_smoothed(lm, am, TARGETS, 0, *scales)


def test_pruning():
    ranges = torch.zeros(2, 4, 1, dtype=torch.int64) + torch.arange(2)
    kept = torch.zeros(2, 4, 2, 5)
    for wrong in (ranges + 2, ranges - 1, ranges.flip(2)):
        with pytest.raises(ShapeError, match="ranges is not made of 2 successive labels of 0 to 2"):
            rnnt_loss_pruned(kept, TARGETS, wrong, 0)
    with pytest.raises(ShapeError, match=r"ranges has shape \[2, 3, 2\]; expected \[2, 4, 2\]"):
        rnnt_loss_pruned(kept, TARGETS, ranges[:, :3], 0)
    with pytest.raises(ConfigError, match="s_range = 1; expected 2 or more"):
        get_rnnt_prune_ranges(torch.zeros(2, 2, 5), torch.zeros(2, 3, 4), None, 1)
    with pytest.raises(ShapeError, match=r"expected \[B, T, D\], \[B, S \+ 1, E\] and \[B, T, s_range\]"):
        do_rnnt_pruning(torch.zeros(2, 5, 3), torch.zeros(2, 3, 3), ranges)


def test_chunks():
    encoder, predictor = torch.zeros(2, 4, 5), torch.zeros(2, 3, 5)
    rest = torch.add, TARGETS, FRAMES, LABELS
    assert torch.isfinite(transducer_loss(encoder, predictor, *rest))
    with pytest.raises(ConfigError, match="chunk_frames = 0; expected 1 or more, or None"):
        transducer_loss(encoder, predictor, *rest, chunk_frames=0)
    for given, message in (
        ((encoder, predictor[:1]), r"have shapes \[2, 4, 5\] and \[1, 3, 5\]; expected one N"),
        ((encoder, predictor[:, :2]), r"target_lengths\[0\] = 2; expected 0 to 1, as predictor_out"),
        ((encoder[:, :3], predictor), r"logit_lengths\[0\] = 4; expected 0 to 3, the frames of encoder_out"),
    ):
        with pytest.raises(ShapeError, match=message):
            transducer_loss(*given, *rest)
