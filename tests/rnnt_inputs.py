"""Logits and targets for the tests of the transducer losses, and the loss written as plain loops in torch."""

import tolerances
import torch

TYPES = ["regular", "modified", "constrained"]
FRAMES, LABELS, WIDTH, BLANK = [9, 5, 7, 4], [3, 5, 0, 1], 11, 4


def close(left, right, limit=tolerances.FLOAT64):
    torch.testing.assert_close(
        torch.as_tensor(left).double(), torch.as_tensor(right).double(), rtol=limit, atol=limit
    )


def make_logits(scale=1.0, seed=0, dtype=torch.float64, width=WIDTH):
    generator = torch.Generator().manual_seed(seed)
    shape = len(FRAMES), max(FRAMES), max(LABELS) + 1, width
    return (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype).requires_grad_()


def make_targets(seed=0, width=WIDTH):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, width, (len(LABELS), max(LABELS)), generator=generator)


def pack(logits, frames=FRAMES, labels=LABELS):
    """The rows of padded logits that are real, one sequence after another."""
    pieces = [
        logits[n, :t, : u + 1].flatten(0, 1) for n, (t, u) in enumerate(zip(frames, labels, strict=True))
    ]
    return torch.cat(pieces)


def arc_scores(log_probs, targets, num_labels, rnnt_type="regular", delay_penalty=0.0, blank=BLANK):
    """Blanks' and labels' scores [T, U + 1] and [T, U] of one sequence's log-probs [T, U + 1, V]."""
    blanks = log_probs[:, : num_labels + 1, blank]
    index = targets[:num_labels].view(1, -1, 1).expand(len(log_probs), num_labels, 1)
    labels = log_probs[:, :num_labels].gather(2, index).squeeze(2)
    times = torch.arange(len(log_probs), dtype=log_probs.dtype).view(-1, 1)
    labels = labels + delay_penalty * (0.5 * (len(log_probs) - 1) - times)
    return blanks, labels + blanks[:, 1:] if rnnt_type == "constrained" else labels


def log_prob_by_loops(blanks, labels, rnnt_type="regular"):
    """log Z over nodes (t, u), one by one, from scores of arcs."""
    num_frames, num_labels = labels.shape
    alpha = {(0, 0): torch.zeros((), dtype=blanks.dtype)}
    step = 0 if rnnt_type == "regular" else 1
    for t in range(num_frames + 1):
        for u in range(num_labels + 1):
            into = []
            if (t - 1, u) in alpha:
                into.append(alpha[t - 1, u] + blanks[t - 1, u])
            if (t - step, u - 1) in alpha and t - step < num_frames:
                into.append(alpha[t - step, u - 1] + labels[t - step, u - 1])
            if into:
                alpha[t, u] = torch.logsumexp(torch.stack(into), 0)
    return alpha.get((num_frames, num_labels), torch.tensor(-torch.inf, dtype=blanks.dtype))


def losses_by_loops(logits, targets, frames=FRAMES, labels=LABELS, rnnt_type="regular", delay_penalty=0.0):
    """[N], differentiable by torch alone."""
    losses = []
    for n, (num_frames, num_labels) in enumerate(zip(frames, labels, strict=True)):
        log_probs = logits[n, :num_frames].log_softmax(2)
        scores = arc_scores(log_probs, targets[n], num_labels, rnnt_type, delay_penalty)
        losses.append(-log_prob_by_loops(*scores, rnnt_type))
    return torch.stack(losses)
