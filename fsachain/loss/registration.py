"""How the operators of this package come to torch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor  # noqa: F401 (torch looks here for the types in the operators' signatures)
from torch.autograd import forward_ad


def operator(name: str, mutates_args: tuple[str, ...] = ()) -> Callable[[Callable[..., Any]], Any]:
    """`torch.library.custom_op` for an operator that has derivatives in reverse mode only, and says so.

    Torch takes an operator without a forward derivative for a constant, in silence: `torch.func.jvp`, `jacfwd` and
    `hessian` would give 0.
    """

    def register(kernel: Callable[..., Any]) -> Any:
        @functools.wraps(kernel)
        def reverse_only(*arguments: Any, **named: Any) -> Any:
            refuse_forward_mode()
            return kernel(*arguments, **named)

        return torch.library.custom_op(name, reverse_only, mutates_args=mutates_args)

    return register


def refuse_forward_mode() -> None:
    """Raise if anybody differentiates in forward mode around this call.

    Torch has no public name for the level; where it lacks the private one, nothing is refused.
    """
    if getattr(forward_ad, "_current_level", -1) >= 0:
        raise RuntimeError(
            "fsachain has derivatives in reverse mode only; expected its losses outside of torch.func.jvp, jacfwd, hessian "
            "and torch.autograd.forward_ad"
        )
