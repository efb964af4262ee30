"""Transducers of targets that may be wrong against every way through the grid, written down one by one."""

import itertools
import math

import pytest
import rnnt_inputs as inputs
import tolerances
import torch

from fsachain import ConfigError, Forgiveness, RNNTLoss, rnnt_loss

OPTIONS = [
    Forgiveness(substitution=1.0),
    Forgiveness(insertion=0.5),
    Forgiveness(deletion=0.7),
    Forgiveness(0.3, 0.5, 0.7, "sum"),
]


def loss_of(logits, forgive, **options):
    lengths = inputs.FRAMES, inputs.LABELS
    return rnnt_loss(
        logits, inputs.make_targets(), *lengths, inputs.BLANK, reduction="none", forgive=forgive, **options
    )


def probability(log_probs, target, options):
    """The sum over all paths of one sequence: at each step a blank, an extra label, a target kept, wrong or left out."""
    frames, width, labels = len(log_probs), log_probs.shape[2], len(target)
    unit = 1.0 / (width - 1) if options.star == "mean" else 1.0
    wrong, left_out, extra = (
        math.exp(-p) for p in (options.substitution, options.insertion, options.deletion)
    )
    total = 0.0
    for at in itertools.combinations_with_replacement(range(frames), labels):  # the frame of each label
        steps = sorted([(t, 1, u) for u, t in enumerate(at)] + [(t, 2, 0) for t in range(frames)])
        weight, u = 1.0, 0
        for t, kind, _ in steps:
            p = log_probs[t, u].exp()
            star = unit * sum(p[v] for v in range(width) if v != inputs.BLANK)
            if kind == 2:
                weight = weight * (p[inputs.BLANK] + extra * star)
            else:
                weight = weight * (p[target[u]] + wrong * star + left_out)
                u += 1
        total = total + weight
    return total / (1 + wrong + left_out + extra) ** (frames + labels)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_a_loss_is_the_sum_over_all_paths_and_never_negative(options, backend):
    logits, targets = inputs.make_logits(), inputs.make_targets()
    found = loss_of(logits, options, backend=backend).detach()
    for n, (frames, labels) in enumerate(zip(inputs.FRAMES, inputs.LABELS, strict=True)):
        log_probs = logits[n, :frames, : labels + 1].detach().log_softmax(dim=2)
        target = targets[n, :labels].tolist()
        wanted = -math.log(probability(log_probs, target, options))
        assert float(found[n]) == pytest.approx(wanted, abs=tolerances.FLOAT64) and wanted >= 0


@pytest.mark.parametrize("options", OPTIONS)
def test_differences_give_the_gradient_also_where_scores_are_large(options):
    for scale in (1.0, 8.0):
        logits = inputs.make_logits(scale)[1:3, :5, :4, :5].detach().requires_grad_()

        def loss(x):
            return rnnt_loss(x, [[0, 3, 0], [1, 0, 0]], [5, 3], [3, 1], 4, reduction="none", forgive=options)

        assert torch.autograd.gradcheck(loss, logits, atol=tolerances.DIFFERENCE)


def test_with_infinite_penalties_loss_and_gradient_are_the_plain_ones_packed_too():
    found = []
    for options in (None, Forgiveness()):
        logits = inputs.make_logits()
        packed = RNNTLoss(inputs.BLANK, forgive=options)(
            inputs.pack(logits), inputs.make_targets(), inputs.FRAMES, inputs.LABELS
        )
        loss_of(logits, options).sum().backward()
        found.append((packed.item(), logits.grad))
    inputs.close(found[0][0], found[1][0])
    inputs.close(found[0][1], found[1][1])


def test_impossible_scores_leave_no_trace_in_the_gradient():
    """Scores of minus infinity and a certain blank: 0 / 0 in a careless derivative."""
    logits = inputs.make_logits(dtype=torch.float32).detach()
    logits[0, 2:4, :, inputs.BLANK] = 1000.0
    logits[1, :, :, :3] = -math.inf
    logits.requires_grad_()
    loss = loss_of(logits, OPTIONS[3])
    loss.sum().backward()
    assert loss.isfinite().all() and logits.grad.isfinite().all()
    assert logits.grad.sum(dim=3).abs().max() < tolerances.GRADIENT_ROW_SUM


@pytest.mark.parametrize(
    "options",
    [
        {"rnnt_type": "modified"},
        {"fused_log_softmax": False},
        {"fastemit_lambda": 0.1},
        {"delay_penalty": 0.1},
    ],
)
def test_options_that_do_not_go_together_are_named(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        loss_of(inputs.make_logits(), OPTIONS[0], **options)
