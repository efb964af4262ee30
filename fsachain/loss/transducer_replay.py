"""What it takes to call a joiner twice and get the same: states of random numbers, and the precision of autocast."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor


def random_state(like: Tensor) -> tuple[Tensor, ...]:
    """The states of the random numbers of the host and of the device of `like`."""
    states = [torch.get_rng_state()]
    return (*states, torch.cuda.get_rng_state(like.device)) if like.is_cuda else tuple(states)


def set_random_state(like: Tensor, states: tuple[Tensor, ...]) -> None:
    """Go on from states of `random_state`."""
    torch.set_rng_state(states[0])
    if like.is_cuda:
        torch.cuda.set_rng_state(states[1], like.device)


def precision_of(kind: str) -> Callable[[], AbstractContextManager[Any]]:
    """The autocast state of now on devices of this kind, to be entered again in backward."""
    enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    return lambda: torch.autocast(kind, dtype=dtype, enabled=enabled)
