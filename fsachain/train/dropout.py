"""Dropout proportions of a network, set while it trains.

What a network drops is found by going down its modules:

- a module with a method `set_dropout(proportion)` is asked, and its children are left to it;
- a dropout module, torch's or one with "Dropout" in the name of its class and a number `p`, gets this p;
- torch's attention and recurrent layers get their `dropout`, which drops attention weights or what passes between layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable

from torch import nn

from fsachain.errors import ConfigError


@runtime_checkable
class HasDropout(Protocol):
    """A module that says itself what a dropout proportion means for it, say for layers that are skipped."""

    def set_dropout(self, proportion: float) -> None:
        """Drop this proportion, in [0, 1), from the next call on."""


class NetworkDropout:
    """All that drops something in a network.

    Raises:
        ConfigError: nothing does.
    """

    def __init__(self, network: nn.Module) -> None:
        self._setters = list(_setters(network))
        if not self._setters:
            raise ConfigError(
                f"train.dropout_schedule: nothing in {type(network).__name__} drops anything; expected a dropout module, "
                "or a module with set_dropout(proportion)"
            )

    def __len__(self) -> int:
        return len(self._setters)

    def set(self, proportion: float) -> None:
        """Drop this proportion from the next call of the network on."""
        for setter in self._setters:
            setter(proportion)


def _setters(module: nn.Module) -> Iterator[Callable[[float], None]]:
    if isinstance(module, HasDropout):
        yield module.set_dropout
        return
    if "Dropout" in type(module).__name__ and isinstance(getattr(module, "p", None), float | int):
        yield _attribute_setter(module, "p")
    elif isinstance(module, nn.MultiheadAttention) or (
        isinstance(module, nn.RNNBase) and module.num_layers > 1
    ):
        yield _attribute_setter(module, "dropout")
    for child in module.children():
        yield from _setters(child)


def _attribute_setter(module: nn.Module, name: str) -> Callable[[float], None]:
    def set_attribute(proportion: float) -> None:
        setattr(module, name, proportion)

    return set_attribute
