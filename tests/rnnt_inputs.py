"""Logits and targets for the tests of the transducer losses, and the loss written as plain loops in torch."""

import tolerances
import torch

TYPES = ["regular", "modified", "constrained"]
FRAMES, LABELS, WIDTH, BLANK = [9, 5, 7, 4], [3, 5, 0, 1], 11, 4


def close(left, right, limit=tolerances.FLOAT64):
    torch.testing.assert_close(
        torch.as_tensor(left).double(), torch.as_tensor(right).double(), rtol=limit, atol=limit
    )


def close_with_gradients(losses, expected, inputs):
    """Losses and their gradients by the inputs, of a sum that weighs each sequence by another factor."""
    close(losses, expected)
    weights = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)[: losses.numel()].view(losses.shape)
    ours, theirs = (torch.autograd.grad((weights * x).sum(), inputs) for x in (losses, expected))
    for mine, yours in zip(ours, theirs, strict=True):
        close(mine, yours)


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


def log_prob_by_loops(arcs, num_frames, num_labels):
    """log Z over nodes (t, u), one by one. arcs: frames, labels, how many frames before the end they end at the latest, and
    scores [T, U + 1] by the node that they leave."""
    alpha = {(0, 0): torch.zeros((), dtype=torch.float64)}
    for t in range(num_frames + 1):
        for u in range(num_labels + 1):
            into = [
                alpha[t - frames, u - labels] + scores[t - frames, u - labels]
                for frames, labels, gap, scores in arcs
                if (t - frames, u - labels) in alpha and t <= num_frames - gap
            ]
            if into:
                alpha[t, u] = torch.logsumexp(torch.stack(into), 0)
    return alpha.get((num_frames, num_labels), torch.tensor(-torch.inf, dtype=torch.float64))


def label_scores(log_probs, targets, num_labels):
    """[T, U] of one sequence's log-probs [T, U + 1, V]."""
    index = targets[:num_labels].view(1, -1, 1).expand(len(log_probs), num_labels, 1)
    return log_probs[:, :num_labels].gather(2, index).squeeze(2)


def losses_by_loops(logits, targets, frames=FRAMES, labels=LABELS, rnnt_type="regular", delay_penalty=0.0):
    """[N], differentiable by torch alone."""
    losses = []
    for n, (num_frames, num_labels) in enumerate(zip(frames, labels, strict=True)):
        log_probs = logits[n, :num_frames].log_softmax(2)
        blank, label = log_probs[..., BLANK], label_scores(log_probs, targets[n], num_labels)
        times = torch.arange(num_frames, dtype=log_probs.dtype).view(-1, 1)
        label = label + delay_penalty * (0.5 * (num_frames - 1) - times)
        if rnnt_type == "constrained":
            label = label + blank[:, 1 : num_labels + 1]
        of_label = (0, 1, 1, label) if rnnt_type == "regular" else (1, 1, 0, label)
        losses.append(-log_prob_by_loops([(1, 0, 0, blank), of_label], num_frames, num_labels))
    return torch.stack(losses)
