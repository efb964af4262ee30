"""The processes of a training: which one this is, and what they tell each other.

A process that works alone is a world of one, and runs the same lines with nothing to wait for. Several are started by
torchrun, which sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and MASTER_*; they talk by gloo on the host and by NCCL
between GPUs. Gradients are added up explicitly, after the backward pass, and not by DistributedDataParallel: that divides
by the number of processes, where the loss divides by the frames of all, and needs a backward pass of every process, where
some may have no utterance. What it would win, reduction during the backward pass, is measured in docs/scale.md.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Any, Protocol

import torch
import torch.distributed as dist

from fsachain.backends.threads import set_num_threads
from fsachain.errors import FsachainError
from fsachain.train.meeting import choose_device, meet, number

TIMEOUT = 600.0  # seconds that a process waits for the others within a training
PATIENCE = timedelta(days=30)  # for work that the first process does alone, which takes what it takes
BUCKET_BYTES = 1 << 25  # gradients that are added up in one message, at most
_LOOK_EVERY = 0.02  # seconds between looks at whether the first process is done


class WorldError(FsachainError, RuntimeError):
    """Another process of the training has ended, or does not answer."""


class Work(Protocol):
    """A message under way."""

    def wait(self) -> Any:
        """Return when it has come."""

    def is_completed(self) -> bool:
        """Whether it has come or failed."""


@dataclass
class World:
    """Every method but `alone` and `from_environment` is called by all processes, in the same order.

    Attributes:
        rank: of this process, from 0; the first one writes all files.
        size: processes in all.
        local_size: processes on this machine.
        device: that this process trains on; None: where the model is.
        timeout: seconds that a process waits for the others.
        seconds: that this process has spent waiting for the others and adding up.

    Raises:
        WorldError: by every method: another process has ended, or did not answer for `timeout` seconds.
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

        Raises:
            ConfigError: the environment is incomplete, or has more processes than the machine has GPUs.
            WorldError: the others do not come.
        """
        size = number("WORLD_SIZE", 0)
        if size < 1:
            return cls()
        device = choose_device(number("LOCAL_RANK", 0))
        if size == 1:
            return cls(device=device)
        rank = number("RANK")
        world = cls(rank, size, number("LOCAL_WORLD_SIZE", 1), device, timeout)
        with world._talk("the other processes to begin"):
            meet(rank, size, "gloo" if device is None else "cpu:gloo,cuda:nccl", timedelta(seconds=timeout))
            world._patient = dist.new_group(backend="gloo", timeout=PATIENCE)
        return world

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and tells what happens."""
        return self.rank == 0

    def __enter__(self) -> World:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """After an error nobody is waited for: the end of this process tells the others."""
        if kind is None:
            self.close()

    def close(self) -> None:
        """Wait for all and take leave."""
        if self.size > 1:
            self.wait("the others to finish")
            dist.destroy_process_group()

    def take_threads(self, num_threads: int | None) -> None:
        """Let torch use so many threads; 0: as it is, None: all processors, shared out among the processes here.

        Where there are several processes here, it is said to the CPU backend too, unless FSACHAIN_NUM_THREADS does.
        """
        if num_threads == 0:
            return
        count = num_threads or max(1, (os.cpu_count() or 1) // self.local_size)
        torch.set_num_threads(count)
        if self.local_size > 1 and "FSACHAIN_NUM_THREADS" not in os.environ:
            set_num_threads(count)

    def wait(self, what: str) -> None:
        """Return when all processes are here."""
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
                _sit_out(dist.barrier(group=self._patient, async_op=True))
            if not self.is_first:
                yield

    def sum_numbers(self, values: Sequence[float]) -> list[float]:
        """The sums over all processes, float64."""
        if self.size == 1:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64)
        with self._talk("the sums of a step"):
            dist.all_reduce(sums)
        return sums.tolist()

    def largest(self, values: Sequence[int]) -> list[int]:
        """The largest of each of the numbers over all processes."""
        if self.size == 1:
            return list(values)
        found = torch.tensor(values, dtype=torch.int64)
        with self._talk("the sizes of a step"):
            dist.all_reduce(found, dist.ReduceOp.MAX)
        return [int(value) for value in found.tolist()]

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
        """The value of the first process; it is pickled. That of the others is not used."""
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
        """Count the time of a message, and say in our words what it was if it does not come."""
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


def _sit_out(work: Work) -> None:
    """Wait for a message so that signals are heard meanwhile, which they are between two looks only."""
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
