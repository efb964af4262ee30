"""The processes of a training: which one this is, and what they tell each other.

A process that works alone is a world of one, and runs the same lines with nothing to wait for. Several are started by
torchrun, which sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and MASTER_*; they talk by gloo on the host and by NCCL
between GPUs. Gradients are added up explicitly, after the backward pass, and not by DistributedDataParallel: that divides
by the number of processes, where the loss divides by the frames of all, and needs a backward pass of every process, where
some may have no utterance. What it would win, reduction during the backward pass, is measured in
docs/developers/performance.md.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from fsachain.backends.cpu.threads import set_num_threads
from fsachain.errors import ConfigError, FsachainError, check_range

TIMEOUT = 600.0  # seconds that a process waits for the others within a training
PATIENCE = timedelta(days=30)  # for work that the first process does alone, of unknown duration
BUCKET_BYTES = 1 << 25  # gradients that are added up in one message, at most
_LOOK_EVERY = 0.02  # seconds between looks at whether the first process is done
_RETRY = timedelta(seconds=1)
Item = TypeVar("Item")


class WorldError(FsachainError, RuntimeError):
    """Another process of the training has ended, or does not answer."""


@dataclass(frozen=True)
class Share:
    """The part of every optimiser step that one of several processes computes.

    Attributes:
        rank: of this process, from 0.
        size: processes in all.
        micro_batch: utterances that go through the network together, at most; their gradients are added up. 0: all at once.
    """

    rank: int = 0
    size: int = 1
    micro_batch: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ConfigError(f"rank is {self.rank}; expected 0 <= rank < size, which is {self.size}")
        check_range(self, "[0, inf)", "micro_batch")

    def parts(self, bucket: Sequence[Item]) -> tuple[list[Item], ...]:
        """This process's micro-batches of a step over all of `bucket`; none if there are fewer items than processes.

        Every item comes to exactly one process; neighbours, which are of similar length, to different ones.
        """
        mine = list(bucket[self.rank :: self.size])
        size = self.micro_batch or max(len(mine), 1)
        return tuple(mine[begin : begin + size] for begin in range(0, len(mine), size))


WHOLE = Share()  # what a process that works alone computes: every step at once


@dataclass
class World:
    """The processes that train together. All call every method but `alone` and `from_environment`, in the same order.

    Attributes:
        rank: of this process, from 0; the first one writes all files.
        size: processes in all.
        local_size: processes on this machine.
        device: that this process trains on; None: where the model is.
        timeout: seconds that a process waits for the others.
        seconds: that this process has spent waiting for the others and adding up.
    """

    rank: int = 0
    size: int = 1
    local_size: int = 1
    device: torch.device | None = None
    timeout: float = TIMEOUT
    seconds: float = 0.0
    _patient: Any = field(default=None, repr=False)

    @classmethod
    def alone(cls) -> World:
        """A world of one process, whatever the environment says."""
        return cls()

    @classmethod
    def from_environment(cls, timeout: float = TIMEOUT) -> World:
        """The world that torchrun has started this process in; a world of one, on no device of its own, where there is none.

        Args:
            timeout: seconds > 0 that a process waits for the others within a training.
        """
        size = _number("WORLD_SIZE", 0)
        if size < 1:
            return cls()
        device = _choose_device(_number("LOCAL_RANK", 0))
        if size == 1:
            return cls(device=device)
        rank = _number("RANK")
        world = cls(rank, size, _number("LOCAL_WORLD_SIZE", 1), device, timeout)
        with world._talk("the other processes to begin"):
            _meet(rank, size, "gloo" if device is None else "cpu:gloo,cuda:nccl", timedelta(seconds=timeout))
            world._patient = dist.new_group(backend="gloo", timeout=PATIENCE)
        return world

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and reports events."""
        return self.rank == 0

    def __enter__(self) -> World:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """After an error it waits for nobody: the end of this process tells the others."""
        if kind is None:
            self.close()

    def close(self) -> None:
        """Wait for all processes, then end the process group."""
        if self.size > 1:
            self.wait("the others to finish")
            dist.destroy_process_group()

    def take_threads(self, num_threads: int | None) -> None:
        """Set torch's number of threads; 0: unchanged, None: all processors, divided among the processes of this machine.

        With several processes on this machine the CPU backend gets the number too, unless FSACHAIN_NUM_THREADS sets it.
        """
        if num_threads == 0:
            return
        count = num_threads or max(1, (os.cpu_count() or 1) // self.local_size)
        torch.set_num_threads(count)
        if self.local_size > 1 and "FSACHAIN_NUM_THREADS" not in os.environ:
            set_num_threads(count)

    def wait(self, what: str) -> None:
        """Return when all processes are here; `what` is for messages."""
        if self.size > 1:
            with self._talk(what):
                dist.all_reduce(torch.zeros(1))

    @contextmanager
    def first(self, what: str) -> Iterator[None]:
        """A block that the first process runs before the others, which wait for it as long as it takes."""
        if self.size == 1 or self.is_first:
            yield
        if self.size > 1:
            with self._talk(what):
                _wait_hearing_signals(dist.barrier(group=self._patient, async_op=True))
            if not self.is_first:
                yield

    def sum_numbers(self, values: Sequence[float]) -> list[float]:
        """The sums over all processes, float64."""
        return self._reduced(values, torch.float64, dist.ReduceOp.SUM, "the sums of a step")

    def largest(self, values: Sequence[int]) -> list[int]:
        """The largest of each of the numbers over all processes."""
        return self._reduced(values, torch.int64, dist.ReduceOp.MAX, "the sizes of a step")

    def _reduced(self, values: Sequence[Any], dtype: torch.dtype, operation: Any, what: str) -> list[Any]:
        if self.size == 1:
            return list(values)
        found = torch.tensor(values, dtype=dtype)
        with self._talk(what):
            dist.all_reduce(found, operation)
        return found.tolist()

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in some process."""
        return bool(self.largest([int(flag)])[0])

    def add_up(self, values: torch.Tensor) -> torch.Tensor:
        """`values`, contiguous, turned into their sum over all processes, on their device; the same tensor."""
        if self.size > 1:
            with self._talk("the statistics of a layer"):
                dist.all_reduce(values)
        return values

    def add_up_many(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The sums over all processes of tensors that have the same shapes everywhere; alone, the tensors.

        They travel in buckets of one type and `BUCKET_BYTES` at most; the results share the buckets' memory.
        """
        if self.size == 1:
            return list(tensors)
        sums: list[torch.Tensor] = []
        with self._talk("the gradients of a step"):
            works = []
            for bucket in _buckets(tensors):
                flat = torch.cat([tensor.detach().reshape(-1) for tensor in bucket])
                works.append(dist.all_reduce(flat, async_op=True))
                parts = flat.split([tensor.numel() for tensor in bucket])
                sums += [part.view_as(tensor) for part, tensor in zip(parts, bucket, strict=True)]
            for work in works:
                work.wait()
        return sums

    def gather(self, value: Any) -> list[Any]:
        """The value of every process, by rank; it is pickled."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        with self._talk("what each process has to say"):
            dist.all_gather_object(found, value)
        return found

    def from_first(self, value: Any) -> Any:
        """The first process's value; it is pickled. Those of the others are ignored."""
        if self.size == 1:
            return value
        box = [value]
        with self._talk("what the first process has to say"):
            dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    @torch.no_grad()
    def copy_first(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Give tensors, such as those of a `state_dict()`, the values that they have in the first process."""
        if self.size == 1:
            return
        for name in sorted(tensors):
            flat = tensors[name].detach().contiguous().reshape(-1)
            with self._talk(f"{name} of the first process"):
                dist.broadcast(flat.view(torch.uint8), src=0)
            if not self.is_first:
                tensors[name].copy_(flat.view_as(tensors[name]))

    @contextmanager
    def _talk(self, what: str) -> Iterator[None]:
        """Adds the time of a message to `seconds`; a failure becomes a WorldError that says what was waited for."""
        started = time.perf_counter()
        try:
            yield
        except RuntimeError as error:  # the base of all that torch.distributed raises
            reason = " ".join(str(error).split())[:200]
            raise WorldError(
                f"process {self.rank} of {self.size} waits for {what}: another process has ended (its message is "
                f"above or in its log) or did not answer for {self.timeout:g} s ({reason})"
            ) from error
        finally:
            self.seconds += time.perf_counter() - started


def _wait_hearing_signals(work: Any) -> None:
    """Polls: Python runs signal handlers only between waits, not within one."""
    while not work.is_completed():
        time.sleep(_LOOK_EVERY)
    work.wait()


def _buckets(tensors: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    bucket: list[torch.Tensor] = []
    size = 0
    for tensor in tensors:
        more = tensor.numel() * tensor.element_size()
        if bucket and (size + more > BUCKET_BYTES or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += more
    if bucket:
        yield bucket


def _number(name: str, default: int | None = None) -> int:
    text = os.environ.get(name, "" if default is None else str(default))
    try:
        return int(text)
    except ValueError:
        raise ConfigError(
            f"{name} is {text!r} in the environment; expected a number, as torchrun sets it"
        ) from None


def _choose_device(local_rank: int) -> torch.device | None:
    """The GPU of a process of this machine, made the current one; None where there are no GPUs."""
    if not torch.cuda.is_available():
        return None
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise ConfigError(f"LOCAL_RANK is {local_rank}; expected one process for each of the {count} GPUs")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def _meet(rank: int, size: int, backend: str, timeout: timedelta) -> None:
    """Begin torch's process group.

    torchrun keeps one store for all its restarts, in which a new process would find the addresses of dead ones: every
    attempt uses names of its own.
    """
    store, _, _ = next(iter(rendezvous("env://", rank, size, timeout=timeout)))
    own = dist.PrefixStore(_agree(store, rank, size, timeout), store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=timeout)


def _agree(store: Any, rank: int, size: int, timeout: timedelta) -> str:
    """A name that only the processes of this attempt know.

    The first process writes a new name and answers all who call it by that name; a process that reads the name of a dead
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
