"""The random numbers of a training's processes: each draws its own, and takes them up again where it stood."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fsachain.data.audio import seeded_generator
from fsachain.train.checkpoint import Tensors


def begin_random(seed: int, rank: int) -> None:
    """Seed this process at the start of a training; the first one as if it worked alone."""
    torch.manual_seed(fresh_seed(seed, 0, rank) if rank else seed)


def fresh_seed(seed: int, step: int, rank: int) -> int:
    """A seed for one process from some step on."""
    return int(seeded_generator(seed, step, f"process {rank}").integers(2**63))


def random_states(device: torch.device) -> Tensors:
    """The states of torch's generators in this process."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def name_states(states: Sequence[Tensors]) -> Tensors:
    """The states of all processes under one set of names; those of the first are named as if it worked alone."""
    return {
        name if rank == 0 else f"{name}.{rank}": state
        for rank, one in enumerate(states)
        for name, state in one.items()
    }


def restore_random(named: Tensors, rank: int, device: torch.device) -> None:
    """Put this process's generators in the states that `name_states` named.

    Raises:
        KeyError: there is none for this process.
    """
    suffix = f".{rank}" if rank else ""
    torch.set_rng_state(named["cpu" + suffix])
    if device.type == "cuda" and "cuda" + suffix in named:
        torch.cuda.set_rng_state(named["cuda" + suffix], device)
