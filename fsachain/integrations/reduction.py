"""One loss of a batch from the losses of its sequences, by the names that the toolkits use."""

from __future__ import annotations

import torch
from torch import Tensor

from fsachain.loss.arguments import check_choice

REDUCTIONS = ("none", "sum", "mean", "mean_batch", "mean_volume")


def check_reduction(reduction: str | None) -> str:
    """Return the name of a reduction; None stands for "none".

    Raises:
        ConfigError: an unknown name.
    """
    name = "none" if reduction is None else reduction
    check_choice(name, "reduction", REDUCTIONS)
    return name


def reduce_losses(losses: Tensor, target_lengths: Tensor, reduction: str | None) -> Tensor:
    """Reduce the losses of the sequences.

    Args:
        losses: [N], of any floating-point type.
        target_lengths: [N], labels of each sequence. A sequence without labels counts as one with a single label.
        reduction: "none" or None: [N]; "sum": over the sequences; "mean_batch": over the sequences, divided by N; "mean":
            each loss over its labels, then the mean; "mean_volume": the sum of the losses over the sum of the labels.

    Returns:
        [N] or a scalar, of the type of the losses.

    Raises:
        ConfigError: an unknown reduction.
    """
    name = check_reduction(reduction)
    if name == "none":
        return losses
    if name == "sum":
        return losses.sum()
    if name == "mean_batch":
        return losses.mean()
    labels = target_lengths.to(losses)
    if name == "mean":
        return (losses / labels.clamp(min=1)).mean()
    return losses.sum() / labels.sum().clamp(min=1)


def without_impossible(losses: Tensor) -> Tensor:
    """Return the losses with 0 for sequences that have no path; their gradient is 0 already. NaN stays NaN."""
    return torch.where(losses == torch.inf, torch.zeros_like(losses), losses)
