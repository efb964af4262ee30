"""Losses with the calls of SpeechBrain's `speechbrain.nnet.losses`: lengths are shares of the longest."""

from __future__ import annotations

import torch
from torch import Tensor

from fsachain.errors import ShapeError
from fsachain.integrations.reduction import reduce_losses, without_impossible
from fsachain.loss.arguments import check_choice
from fsachain.loss.ctc import ctc_loss as fsachain_ctc_loss
from fsachain.loss.rnnt import rnnt_loss


def transducer_loss(
    logits: Tensor,
    targets: Tensor,
    input_lens: Tensor,
    target_lens: Tensor,
    blank_index: int,
    reduction: str = "mean",
) -> Tensor:
    """Return the transducer loss, on the CPU as well as on a GPU.

    Args:
        logits: [N, T, U + 1, V], before the softmax.
        targets: [N, U]; what lies beyond the lengths is ignored.
        input_lens, target_lens: [N], shares of T and U in [0, 1].
        blank_index: the blank's class.
        reduction: "mean" over the sequences, "sum", "none" or "mean_volume", the sum over all labels.

    Returns:
        A scalar, or [N] for "none"; float32, or float64 for float64 logits. A sequence without an alignment counts as 0.

    Raises:
        ShapeError, ConfigError: an argument that cannot be used.
    """
    check_choice(reduction, "reduction", ("none", "sum", "mean", "mean_batch", "mean_volume"))
    frames = _counts(input_lens, logits.shape[1], "input_lens")
    labels = _counts(target_lens, targets.shape[1], "target_lens")
    losses = rnnt_loss(logits, targets, frames, labels, blank=blank_index, reduction="none")
    losses = without_impossible(losses).to(torch.promote_types(logits.dtype, torch.float32))
    return reduce_losses(losses, labels, "mean_batch" if reduction == "mean" else reduction)


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lens: Tensor,
    target_lens: Tensor,
    blank_index: int,
    reduction: str = "mean",
) -> Tensor:
    """Return the CTC loss.

    Args:
        log_probs: [N, T, C], outputs of a log-softmax.
        targets: [N, S]; what lies beyond the lengths is ignored.
        input_lens, target_lens: [N], shares of T and S in [0, 1].
        blank_index: the blank's class.
        reduction: "mean": each loss over its labels, then the mean; "sum"; "none"; "batch": each loss over its labels, [N];
            "batchmean": the sum over N.

    Returns:
        A scalar, or [N]. A sequence that is too short for its target counts as 0.

    Raises:
        ShapeError, DataError, ConfigError: an argument that cannot be used.
    """
    check_choice(reduction, "reduction", ("none", "sum", "mean", "batch", "batchmean"))
    frames = _counts(input_lens, log_probs.shape[1], "input_lens")
    labels = _counts(target_lens, targets.shape[1], "target_lens")
    losses = fsachain_ctc_loss(
        log_probs.transpose(0, 1),
        targets,
        frames,
        labels,
        blank=blank_index,
        reduction="none",
        zero_infinity=True,
    )
    if reduction == "batch":
        return losses / labels.to(losses).clamp(min=1)
    return reduce_losses(losses, labels, "mean_batch" if reduction == "batchmean" else reduction)


def _counts(shares: Tensor, longest: int, name: str) -> Tensor:
    """Return lengths from shares of the longest."""
    if not bool(((shares >= 0) & (shares <= 1)).all()):
        raise ShapeError(
            f"{name} = {shares.tolist()}; expected shares of the longest in [0, 1], as SpeechBrain's data loader gives them"
        )
    return (shares * longest).round().long()
