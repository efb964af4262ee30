"""How the processes of a training that torchrun has started find each other."""

from __future__ import annotations

import os
import secrets
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from fsachain.errors import ConfigError

_RETRY = timedelta(seconds=1)


def number(name: str, default: int | None = None) -> int:
    """A number in the environment.

    Raises:
        ConfigError: it is no number, or absent and there is no default.
    """
    text = os.environ.get(name, "" if default is None else str(default))
    try:
        return int(text)
    except ValueError:
        raise ConfigError(
            f"{name} is {text!r} in the environment; expected a number, as torchrun sets it"
        ) from None


def choose_device(local_rank: int) -> torch.device | None:
    """The GPU of a process of this machine, made the current one; None where there are no GPUs.

    Raises:
        ConfigError: there are fewer GPUs than processes.
    """
    if not torch.cuda.is_available():
        return None
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise ConfigError(f"LOCAL_RANK is {local_rank}; expected one process for each of the {count} GPUs")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def meet(rank: int, size: int, backend: str, timeout: timedelta) -> None:
    """Begin torch's process group.

    torchrun keeps one store for all its restarts, in which a new process would find the addresses of dead ones: every
    attempt takes names of its own.

    Raises:
        RuntimeError: by torch, the others do not come.
    """
    store, _, _ = next(iter(rendezvous("env://", rank, size, timeout=timeout)))
    own = dist.PrefixStore(_agree(store, rank, size, timeout), store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=timeout)


def _agree(store: Any, rank: int, size: int, timeout: timedelta) -> str:
    """A name that the processes of this attempt alone know.

    The first process writes a new one down and answers all who call it by that name; whoever reads the name of a dead
    first process gets no answer, and looks again.
    """
    own = secrets.token_hex(8)
    if rank == 0:
        store.set("fsachain", own)
        for other in range(1, size):
            store.wait([f"{own}/{other}"], timeout)
            store.set(f"{own}/{other}/{store.get(f'{own}/{other}').decode()}", "yes")
        return own
    until = time.monotonic() + timeout.total_seconds()
    while True:
        store.wait(["fsachain"], timeout)
        first = store.get("fsachain").decode()
        store.set(f"{first}/{rank}", own)
        try:
            store.wait([f"{first}/{rank}/{own}"], _RETRY)
        except RuntimeError:  # no answer in time
            if time.monotonic() > until:
                raise
        else:
            return first
