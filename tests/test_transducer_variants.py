"""HAT, token-and-duration and multi-blank transducers against their published recursions as plain loops."""

import pytest
import torch
from refusals import refuses
from rnnt_inputs import (
    BLANK,
    close,
    close_with_gradients,
    label_scores,
    log_prob_by_loops,
    make_logits,
    make_targets,
)

from fsachain import hat_lattice, hat_loss, multi_blank_loss, rnnt_loss, tdt_loss
from fsachain.errors import ConfigError

FRAMES, LABELS, WIDTH = [9, 6, 7, 4], [3, 5, 0, 1], 11
BIG_BLANKS = {10: 2, 9: 4}
DURATIONS = [0, 1, 2, 4]


def multi_blank_arcs(logits, targets, num_labels, sigma):
    log_probs = logits.log_softmax(2) - sigma
    blanks = [(frames, 0, 0, log_probs[..., index]) for index, frames in {BLANK: 1, **BIG_BLANKS}.items()]
    return [*blanks, (0, 1, 1, label_scores(log_probs, targets, num_labels))]


def tdt_arcs(logits, targets, num_labels, sigma):
    """The end is reached by a blank; none stays where it is."""
    tokens, times = logits[..., :WIDTH].log_softmax(2) - sigma, logits[..., WIDTH:].log_softmax(2)
    labels, blank = label_scores(tokens, targets, num_labels), tokens[..., BLANK]
    arcs = [(d, 1, 1, labels + times[:, :num_labels, k]) for k, d in enumerate(DURATIONS)]
    return [*arcs, *((d, 0, 0, blank + times[..., k]) for k, d in enumerate(DURATIONS) if d)]


@pytest.mark.parametrize("sigma", [0.0, 0.05])
@pytest.mark.parametrize(
    ("loss", "own", "arcs", "width"),
    [
        (multi_blank_loss, BIG_BLANKS, multi_blank_arcs, WIDTH),
        (tdt_loss, DURATIONS, tdt_arcs, WIDTH + len(DURATIONS)),
    ],
)
def test_losses_with_durations_are_those_of_plain_loops(loss, own, arcs, width, sigma, backend):
    logits, targets = make_logits(2.0, width=width), make_targets()
    options = {"reduction": "none", "sigma": sigma, "backend": backend}
    losses = loss(logits, targets, FRAMES, LABELS, own, BLANK, **options)
    expected = [
        -log_prob_by_loops(arcs(logits[n, :t], targets[n], u, sigma), t, u)
        for n, (t, u) in enumerate(zip(FRAMES, LABELS, strict=True))
    ]
    close_with_gradients(losses, torch.stack(expected), [logits])


@pytest.mark.parametrize("blank", [0, BLANK, WIDTH - 1])
def test_the_factorised_loss_is_that_of_its_distribution(blank, backend):
    logits = make_logits(2.0)
    targets = make_targets()
    targets = torch.where(targets == blank, (blank + 1) % WIDTH, targets)
    losses = hat_loss(logits, targets, FRAMES, LABELS, blank, "none", backend=backend)
    x = logits.transpose(0, 3)
    others = torch.cat([x[:blank], x[blank + 1 :]]).log_softmax(0) + torch.log(1 - torch.sigmoid(x[blank]))
    log_probs = torch.cat([others[:blank], torch.sigmoid(x[blank : blank + 1]).log(), others[blank:]])
    expected = rnnt_loss(
        log_probs.transpose(0, 3), targets, FRAMES, LABELS, blank, -1, "none", fused_log_softmax=False
    )
    close_with_gradients(losses, expected, [logits])


TARGETS = make_targets()
LOSSES = {
    "hat": lambda x, **more: hat_loss(x, TARGETS % BLANK, FRAMES, LABELS, BLANK, "none", **more),
    "tdt": lambda x, **more: tdt_loss(x, TARGETS % 8, FRAMES, LABELS, [0, 1, 2], BLANK, "none", **more),
}


@pytest.mark.parametrize(
    ("loss", "own", "from_end", "width"),
    [
        (hat_loss, (), (), WIDTH),
        (tdt_loss, (DURATIONS,), (DURATIONS,), WIDTH + len(DURATIONS)),
        (multi_blank_loss, ({9: 2, 8: 4},), ({-2: 2, -3: 4},), WIDTH),
    ],
)
def test_the_blank_is_the_last_token_and_classes_are_counted_from_the_end_too(loss, own, from_end, width):
    given = make_logits(width=width).detach(), TARGETS % 8, FRAMES, LABELS
    assert torch.equal(loss(*given, *from_end), loss(*given, *own, WIDTH - 1))
    with pytest.raises(ConfigError, match="reduction = 'avg'"):
        loss(*given, *own, reduction="avg")


@pytest.mark.parametrize("kind", LOSSES)
def test_a_node_without_tokens_has_no_label_arc(kind):
    """All labels -inf at a node: HAT can still pass with its blank, a token-and-duration transducer cannot."""
    x = make_logits().detach()
    x[1, 3, 1, :BLANK] = -torch.inf
    x[1, 3, 1, BLANK + 1 :] = -torch.inf
    if kind == "tdt":
        x[1, 3, 1, BLANK], x[1, 3, 1, 8:] = -torch.inf, 0.0
    x.requires_grad_()
    losses = LOSSES[kind](x)
    losses.sum().backward()
    assert torch.isfinite(losses).all() and torch.isfinite(x.grad).all()
    assert (losses[1] > LOSSES[kind](make_logits())[1]).all()


@pytest.mark.parametrize("kind", LOSSES)
def test_clamp_limits_entries_of_blanks_and_durations_too(kind):
    x, limit = make_logits(2.0), 0.05
    plain, clamped = (
        torch.autograd.grad(LOSSES[kind](x, **more).sum(), x)[0] for more in ({}, {"clamp": limit})
    )
    close(clamped, plain.clamp(-limit, limit))
    assert (plain.abs().amax((0, 1, 2))[[BLANK, 8, 9, 10]] > limit).all()


def test_a_target_that_is_the_blank_has_no_factorised_probability():
    with pytest.raises(ConfigError, match=r"targets\[0, 0\] = 4 is the blank"):
        hat_lattice(make_logits(), torch.full((4, 5), BLANK), FRAMES, LABELS, BLANK)


@pytest.mark.parametrize(
    ("loss", "own", "message"),
    [
        *[
            (
                tdt_loss,
                given,
                r"durations = .*; expected different whole numbers of frames, each 0 or more",
            )
            for given in ([1.5, 4], [1, 1], [-1, 1], [])
        ],
        (
            multi_blank_loss,
            {2: 2.5},
            "big_blanks = 2.5; expected different whole numbers of frames, each 2 or more",
        ),
        (
            multi_blank_loss,
            {0: 2},
            "big_blanks = {0: 2}; expected different classes, none of them the blank, 0",
        ),
        (multi_blank_loss, {4: 2, -1: 3}, "expected different classes"),
        (
            multi_blank_loss,
            [2, 4],
            r"big_blanks = \[2, 4\]; expected the frames of each class, such as {3: 2}",
        ),
    ],
)
def test_durations_and_big_blanks_that_cannot_be_are_named(loss, own, message):
    refuses(ConfigError, message, loss, torch.zeros(1, 3, 2, 5), [[1]], [3], [1], own, blank=0)
