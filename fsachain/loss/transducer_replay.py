"""What it takes to call a joiner twice and get the same: states of random numbers, and the precision of autocast."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import torch
from torch import Tensor


def random_state(like: Tensor) -> tuple[Tensor, ...]:
    """The states of the random numbers of the host and of the device of `like`; nothing waits for the device."""
    states = [torch.get_rng_state()]
    return (*states, torch.cuda.get_rng_state(like.device)) if like.is_cuda else tuple(states)


def set_random_state(like: Tensor, states: tuple[Tensor, ...]) -> None:
    """Go on from states of `random_state`."""
    torch.set_rng_state(states[0])
    if like.is_cuda:
        torch.cuda.set_rng_state(states[1], like.device)


def precision_of(like: Tensor) -> Callable[[], AbstractContextManager[None]]:
    """The autocast of now, of the host and of the device of `like`, to be entered again, in any thread.

    Its cache is left out: weights that were cast where no gradient is made, or for a graph that is gone, would be taken for
    those of a graph that is to have one.
    """
    kinds = dict.fromkeys(("cpu", like.device.type))
    states = [(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)) for kind in kinds]

    @contextlib.contextmanager
    def again() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for kind, dtype, enabled in states:
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=False))
            yield

    return again
