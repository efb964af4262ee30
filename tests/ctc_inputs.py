"""Batches of CTC targets and scores for tests."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from hypothesis import strategies as st

from fsachain import ctc_loss


@dataclass(frozen=True)
class CtcBatch:
    """scores [T, N, C], float64; targets [N, S], padded with the blank."""

    scores: np.ndarray
    targets: np.ndarray
    input_lengths: list[int]
    target_lengths: list[int]
    blank: int

    @property
    def size(self):
        return len(self.targets)

    def only(self, n):
        """Sequence n alone, without padding."""
        frames, labels = self.input_lengths[n], self.target_lengths[n]
        scores = self.scores[:frames, n : n + 1]
        return CtcBatch(scores, self.targets[n : n + 1, :labels], [frames], [labels], self.blank)

    def with_scores(self, scores):
        return replace(self, scores=scores)

    def leaf(self, dtype=torch.float64):
        return torch.from_numpy(self.scores).to(dtype).requires_grad_()

    def arguments(self):
        """What follows the scores."""
        return torch.from_numpy(self.targets), self.input_lengths, self.target_lengths, self.blank


def random_batch(seed, size=5, frames=24, classes=7, labels=6, scale=1.0):
    """Lengths differ; the first target has equal labels in a row, the last is empty; the blank is in the middle."""
    rng = np.random.default_rng(seed)
    blank = classes // 2
    others = np.delete(np.arange(classes), blank)
    targets = rng.choice(others, (size, labels))
    targets[0, : labels // 2] = targets[0, 0]
    target_lengths = rng.integers(1, labels + 1, size)
    target_lengths[0], target_lengths[-1] = labels, 0
    targets[np.arange(labels) >= target_lengths[:, None]] = blank
    input_lengths = rng.integers(2 * labels, frames + 1, size)
    scores = scale * rng.standard_normal((frames, size, classes))
    return CtcBatch(scores, targets, input_lengths.tolist(), target_lengths.tolist(), blank)


@st.composite
def batches(draw):
    """Any small batch, sequences too short for their target among them."""
    size, frames, classes = draw(st.integers(1, 4)), draw(st.integers(1, 12)), draw(st.integers(2, 40))
    labels = draw(st.integers(0, 6))
    blank = draw(st.integers(0, classes - 1))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    # Few different labels, so that equal ones stand in a row.
    others = np.delete(np.arange(classes), blank)[: draw(st.integers(1, 3))]
    targets = rng.choice(others, (size, labels))
    scores = draw(st.sampled_from([1.0, 10.0])) * rng.standard_normal((frames, size, classes))
    input_lengths = draw(st.lists(st.integers(1, frames), min_size=size, max_size=size))
    target_lengths = draw(st.lists(st.integers(0, labels), min_size=size, max_size=size))
    return CtcBatch(scores, targets, input_lengths, target_lengths, blank)


def losses_and_gradient(batch, dtype=torch.float64, **options):
    """[N] and [T, N, C] of the sum, from logits unless options say otherwise."""
    leaf = batch.leaf(dtype)
    losses = ctc_loss(leaf, *batch.arguments(), "none", **{"inputs": "logits", **options})
    losses.sum().backward()
    gradient = leaf.grad.float() if leaf.grad.element_size() == 2 else leaf.grad
    return losses.detach().numpy(), gradient.numpy()
