"""Optimisers by name."""

from __future__ import annotations

import torch
from torch import nn

from fsachain.train.config import OptimizerConfig


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """The optimiser of `config` over all parameters; torch's fused form, which takes one call per step."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if config.name == "sgd":
        return torch.optim.SGD(
            parameters, lr=0.0, momentum=config.momentum, weight_decay=config.weight_decay, fused=True
        )
    kind = torch.optim.AdamW if config.name == "adamw" else torch.optim.Adam
    return kind(
        parameters,
        lr=0.0,
        betas=config.betas,
        eps=config.epsilon,
        weight_decay=config.weight_decay,
        fused=True,
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use `rate` from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = rate
