"""Batch-normalisation statistics for weights that no batch has seen, such as an average of several models."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch import nn

Item = TypeVar("Item")


@torch.no_grad()
def refresh_batch_norm(model: nn.Module, forward: Callable[[Item], object], batches: Iterable[Item]) -> None:
    """Replace all running statistics by their mean over some batches; the weights stay.

    Modules are recognised by their buffers `running_mean` and `running_var` and a number `momentum`, the
    share of the newest batch in the running value. Dropout is off meanwhile, as it is wherever the statistics
    are used.

    Args:
        model: Left in the mode (training or evaluation) it came in.
        forward: Runs the model on one batch.
        batches: The batches.
    """
    norms = [module for module in model.modules() if _keeps_statistics(module)]
    if not norms:
        return
    modes = {module: module.training for module in model.modules()}
    momenta = [module.momentum for module in norms]
    model.train()
    for module in model.modules():
        if "dropout" in type(module).__name__.lower():
            module.eval()
    try:
        for count, batch in enumerate(batches, start=1):
            for module in norms:
                module.momentum = 1.0 / count  # type: ignore[assignment]
            forward(batch)
    finally:
        for module, momentum in zip(norms, momenta, strict=True):
            module.momentum = momentum
        for module, training in modes.items():
            module.training = training


def _keeps_statistics(module: nn.Module) -> bool:
    buffers = dict(module.named_buffers(recurse=False))
    return {"running_mean", "running_var"} <= set(buffers) and isinstance(
        getattr(module, "momentum", None), float
    )
