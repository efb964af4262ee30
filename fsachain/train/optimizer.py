"""Optimisers by name, over groups of parameters with learning rates of their own."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import nn

from fsachain.errors import ConfigError
from fsachain.train.config import OptimizerConfig

Value = TypeVar("Value")
_KINDS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adamax": torch.optim.Adamax,
    "sgd": torch.optim.SGD,
}
_FUSED = ("adam", "adamw", "sgd")  # one call per step; for the others torch has calls over lists of tensors


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """The optimiser of `config` over all parameters that are to move, in torch's fastest form.

    Parameters with one factor on the learning rate and one weight decay are a group; a group's `factor` is used by
    `set_learning_rate`.

    Raises:
        ConfigError: a prefix in `factors` or `freeze_epochs` that fits no parameter, or all parameters are frozen.
    """
    named = {name: value for name, value in model.named_parameters() if value.requires_grad}
    check_prefixes(named, config.factors, "train.optimizer.factors")
    frozen = frozen_epochs(named, config)
    if named and min(frozen.values()) > 0:
        raise ConfigError(
            f"train.optimizer.freeze_epochs: {config.freeze_epochs} freezes every parameter in the first epoch"
        )
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in named.items():
        decays = config.decayed == "all" or parameter.dim() > 1
        key = (longest_prefix(name, config.factors, 1.0), config.weight_decay if decays else 0.0)
        groups.setdefault(key, []).append(parameter)
    return _KINDS[config.name](
        [
            {"params": parameters, "factor": factor, "weight_decay": decay}
            for (factor, decay), parameters in groups.items()
        ],
        lr=0.0,
        **_constants(config),
    )


def _constants(config: OptimizerConfig) -> dict[str, Any]:
    # torch's fused SGD fails where some parameters have no momentum yet because they were frozen until now.
    late = config.name == "sgd" and bool(config.freeze_epochs)
    form = {"fused": True} if config.name in _FUSED and not late else {"foreach": True}
    if config.name == "sgd":
        return {"momentum": config.momentum, **form}
    return {"betas": config.betas, "eps": config.epsilon, **form}


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use `rate`, times the group's factor, from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("factor", 1.0)  # checkpoints of older versions have no factor


def longest_prefix(name: str, values: Mapping[str, Value], default: Value) -> Value:
    """The value of the longest prefix of a dotted name; "encoder" is one of `encoder.linear.weight`, "enc" is not."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        prefix = ".".join(parts[:length])
        if prefix in values:
            return values[prefix]
    return default


def frozen_epochs(names: Iterable[str], config: OptimizerConfig) -> dict[str, float]:
    """Epochs at the start in which each parameter does not move.

    Raises:
        ConfigError: a prefix in `freeze_epochs` that fits none of the names.
    """
    names = list(names)
    check_prefixes(names, config.freeze_epochs, "train.optimizer.freeze_epochs")
    return {name: longest_prefix(name, config.freeze_epochs, 0.0) for name in names}


def check_prefixes(names: Iterable[str], prefixes: Iterable[str], where: str) -> None:
    """Refuse prefixes that fit none of the parameter names.

    Raises:
        ConfigError: naming the prefix and what there is.
    """
    known: dict[str, None] = {}  # in order
    for name in names:
        parts = name.split(".")
        known |= dict.fromkeys(".".join(parts[:length]) for length in range(1, len(parts) + 1))
    for prefix in prefixes:
        if prefix not in known:
            near = difflib.get_close_matches(prefix, known, n=1)
            tops = [name for name in known if "." not in name]
            hint = f"did you mean {near[0]!r}?" if near else f"they begin with {', '.join(tops)}"
            raise ConfigError(f"{where}: {prefix!r} begins no parameter's name; {hint}")
