"""HAT, token-and-duration and multi-blank transducers against their published recursions as plain loops."""

import math

import pytest
import torch
from rnnt_inputs import BLANK, close, make_logits, make_targets

from fsachain import hat_lattice, hat_loss, multi_blank_loss, rnnt_loss, tdt_loss
from fsachain.errors import ConfigError

FRAMES, LABELS, WIDTH = [9, 6, 7, 4], [3, 5, 0, 1], 11
BIG_BLANKS = {10: 2, 9: 4}
DURATIONS = [0, 1, 2, 4]


def log_sum(terms):
    return torch.logsumexp(torch.stack(terms), 0) if terms else torch.tensor(-math.inf)


def multi_blank_by_loops(log_probs, targets, num_frames, num_labels):
    """alpha(t, u) over t < T; at the end each blank may lead from T - d to T."""
    blanks = {1: BLANK, **{frames: index for index, frames in BIG_BLANKS.items()}}
    alpha = {}
    for t in range(num_frames):
        for u in range(num_labels + 1):
            terms = [torch.zeros((), dtype=torch.float64)] if t == u == 0 else []
            if u > 0:
                terms.append(alpha[t, u - 1] + log_probs[t, u - 1, targets[u - 1]])
            for frames, index in blanks.items():
                if t >= frames:
                    terms.append(alpha[t - frames, u] + log_probs[t - frames, u, index])
            alpha[t, u] = log_sum(terms)
    last = [
        alpha[num_frames - frames, num_labels] + log_probs[num_frames - frames, num_labels, index]
        for frames, index in blanks.items()
        if num_frames >= frames
    ]
    return -log_sum(last)


def tdt_by_loops(tokens, times, targets, num_frames, num_labels):
    """The same with a duration for each label too; the end is reached by a blank."""
    alpha = {}
    for t in range(num_frames):
        for u in range(num_labels + 1):
            terms = [torch.zeros((), dtype=torch.float64)] if t == u == 0 else []
            for index, frames in enumerate(DURATIONS):
                if frames <= t and u > 0:
                    source = t - frames, u - 1
                    terms.append(alpha[source] + tokens[source][targets[u - 1]] + times[source][index])
                if 0 < frames <= t:
                    source = t - frames, u
                    terms.append(alpha[source] + tokens[source][BLANK] + times[source][index])
            alpha[t, u] = log_sum(terms)
    last = []
    for index, frames in enumerate(DURATIONS):
        if 0 < frames <= num_frames:
            source = num_frames - frames, num_labels
            last.append(alpha[source] + tokens[source][BLANK] + times[source][index])
    return -log_sum(last)


def compare(losses, expected, inputs):
    close(losses, expected)
    weights = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    ours = torch.autograd.grad((weights * losses).sum(), inputs)
    for mine, yours in zip(ours, torch.autograd.grad((weights * expected).sum(), inputs), strict=True):
        close(mine, yours)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("sigma", [0.0, 0.05])
def test_the_multi_blank_loss(backend, sigma):
    logits, targets = make_logits(2.0), make_targets()
    losses = multi_blank_loss(
        logits, targets, FRAMES, LABELS, BIG_BLANKS, BLANK, reduction="none", sigma=sigma, backend=backend
    )
    log_probs = logits.log_softmax(3) - sigma
    expected = [
        multi_blank_by_loops(log_probs[n], targets[n], *size)
        for n, size in enumerate(zip(FRAMES, LABELS, strict=True))
    ]
    compare(losses, torch.stack(expected), [logits])


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("sigma", [0.0, 0.05])
def test_the_token_and_duration_loss(backend, sigma):
    logits, targets = make_logits(2.0, width=WIDTH + len(DURATIONS)), make_targets()
    losses = tdt_loss(
        logits, targets, FRAMES, LABELS, DURATIONS, BLANK, reduction="none", sigma=sigma, backend=backend
    )
    tokens = logits[..., :WIDTH].log_softmax(3) - sigma
    times = logits[..., WIDTH:].log_softmax(3)
    expected = [
        tdt_by_loops(tokens[n], times[n], targets[n], *size)
        for n, size in enumerate(zip(FRAMES, LABELS, strict=True))
    ]
    compare(losses, torch.stack(expected), [logits])


@pytest.mark.parametrize("blank", [0, BLANK, WIDTH - 1])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
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
    compare(losses, expected, [logits])


TARGETS = make_targets()
LOSSES = {
    "hat": lambda x, frames=FRAMES: hat_loss(x, TARGETS % BLANK, frames, LABELS, BLANK, "none"),
    "tdt": lambda x, frames=FRAMES: tdt_loss(x, TARGETS % 8, frames, LABELS, [0, 1, 2], BLANK, "none"),
    "multi-blank": lambda x, frames=FRAMES: multi_blank_loss(
        x, TARGETS, frames, LABELS, BIG_BLANKS, BLANK, reduction="none"
    ),
}
of_every_loss = pytest.mark.parametrize("kind", LOSSES)


@pytest.mark.parametrize("kind", ["hat", "tdt"])
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


def test_a_target_that_is_the_blank_has_no_factorised_probability():
    with pytest.raises(ConfigError, match=r"targets\[0, 0\] = 4 is the blank"):
        hat_lattice(make_logits(), torch.full((4, 5), BLANK), FRAMES, LABELS, BLANK)
