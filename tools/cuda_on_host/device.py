"""`HostDevice`: a device whose memory is the host's and whose kernels are threads of the host."""

from __future__ import annotations

import ctypes
import struct
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from fsachain.backends import arrays as kinds
from fsachain.backends.cuda import backend as cuda_call
from fsachain.backends.cuda.device import CLUSTER, Argument, Device, KernelSpec, Limits
from tools.cuda_on_host import libcuda
from tools.cuda_on_host.libcuda import HostKernel, Request

MESSAGE_BYTES = 8192
ALIGNMENT = 256
GUARD_BYTES = 256
GUARD = 0xA5


class HostMemory:
    """Bytes between two guards, by which writes out of bounds are found.

    Attributes:
        pointer: address of the first byte, a multiple of 256.
        num_bytes: how many there are.
        bytes: the bytes themselves, as uint8.
    """

    def __init__(self, num_bytes: int, fill: int) -> None:
        whole = np.empty(num_bytes + 2 * GUARD_BYTES + ALIGNMENT, np.uint8)
        start = GUARD_BYTES + -(whole.ctypes.data + GUARD_BYTES) % ALIGNMENT
        self._before = whole[start - GUARD_BYTES : start]
        self._behind = whole[start + num_bytes : start + num_bytes + GUARD_BYTES]
        self._before[:] = self._behind[:] = GUARD
        self.bytes = whole[start : start + num_bytes]
        self.bytes[:] = fill
        self.pointer = int(whole.ctypes.data) + start
        self.num_bytes = num_bytes

    def read(self, dtype: npt.DTypeLike, shape: int | tuple[int, ...] = -1) -> npt.NDArray[Any]:
        """A copy of the bytes as an array."""
        return self.bytes.copy().view(dtype).reshape(shape)

    def array(self, dtype: str, shape: tuple[int, ...]) -> Any:
        """The bytes themselves as a tensor of torch, as results of the recursions are."""
        import torch

        of_type = getattr(torch, dtype)
        # As a device's, no view for torch.
        return torch.from_numpy(self.bytes)[: prod(shape) * of_type.itemsize].view(of_type).view(shape).data

    def damage(self) -> str | None:
        """What was written outside the bytes; None if nothing was."""
        if (self._behind != GUARD).any():
            return f"byte {self.num_bytes + int(np.argmax(self._behind != GUARD))} of {self.num_bytes}"
        if (self._before != GUARD).any():
            return f"byte {int(np.argmax(self._before != GUARD)) - GUARD_BYTES} of {self.num_bytes}"
        return None


class HostError(Exception):
    """A launch that a GPU would refuse, or a kernel that does what no kernel may do."""


class Launch(NamedTuple):
    """One launch: what `HostDevice.launch` was asked for; of each argument its kind and its eight bytes.

    Kinds are the letters of Python's struct module, P for a pointer: `letter` in cuda_on_host.h.
    """

    kernel: KernelSpec
    grid: tuple[int, int]
    block: int
    shared_bytes: int
    arguments: tuple[tuple[str, int], ...]


class HostDevice(Device):
    """The device of the CUDA backend, through the real CuPy, with the limits of a GPU of your choice and the host below.

    New memory, shared memory too, holds the byte `fill` everywhere; 0xFF makes every float a NaN. Launches run to their
    end at once. A launch that a GPU would refuse, a deadlock, a barrier that some threads miss and a write beside a
    buffer raise `HostError`, which names the kernel.

    Args:
        multiprocessors, shared_bytes: limits that the device, of compute capability 9.0, pretends to have.
        clusters: how many clusters run at once, by their size; None: as many as there are multiprocessors for.
        fill: the byte that memory holds before it is written.
        concurrent: each CUDA thread is a thread of the system, interrupted anywhere; else those that must run at once take
            turns on one: fast, and repeatable.
        patience: seconds without any progress after which a launch is given up.
        folder: where kernel texts lie, which then run without CuPy; the package's own by default.
        knows_all: whether all memory that kernels are given is the device's, none the caller's.

    Attributes:
        fill, folder: see above.
        launches: all launches so far.
        observers: called before each launch, when its arguments are checked; what they return is called after it.
    """

    def __init__(
        self,
        multiprocessors: int = 4,
        shared_bytes: int = 232_448,
        *,
        clusters: dict[int, int] | None = None,
        fill: int = 0xFF,
        concurrent: bool = False,
        patience: float = 20.0,
        folder: Path | None = None,
        knows_all: bool = True,
    ) -> None:
        limits = Limits((9, 0), multiprocessors, shared_bytes, CLUSTER)
        stream: Any = SimpleNamespace(ptr=0, is_capturing=lambda: False)
        super().__init__(libcuda.device_with(limits, clusters or {}), stream, self.empty)
        self.fill = fill
        self.launches: list[Launch] = []
        self.observers: list[Callable[[Launch], Callable[[], None]]] = []
        self._concurrent, self._patience = concurrent, patience
        self.folder = folder or libcuda.FOLDER
        self._knows_all = knows_all
        self._memories: weakref.WeakSet[HostMemory] = weakref.WeakSet()
        self._residents: weakref.WeakKeyDictionary[Any, dict[Hashable, list[HostMemory]]]
        self._residents = weakref.WeakKeyDictionary()

    @property
    def stream(self) -> None:
        """None: devices of the same limits have the same number, and memory of their own."""

    def empty(self, num_bytes: int) -> HostMemory:
        """Memory that holds the byte `fill` everywhere."""
        memory = HostMemory(num_bytes, self.fill)
        self._memories.add(memory)
        return memory

    def pieces(self, sizes: Sequence[int]) -> list[HostMemory]:
        return [self.empty(size) for size in sizes]

    def upload(self, arrays: Sequence[npt.NDArray[Any]]) -> list[HostMemory]:
        """Copies of arrays, each in memory of its own, so that reads beside it can be found."""
        memories = []
        for array in arrays:
            memory = self.empty(array.nbytes)
            memory.bytes[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            memories.append(memory)
        return memories

    def resident(
        self, owner: Any, key: Hashable, make: Callable[[], Sequence[npt.NDArray[Any]]]
    ) -> list[HostMemory]:
        """Copies of what `make` gives, kept as long as `owner` lives."""
        kept = self._residents.setdefault(owner, {})
        if key not in kept:
            kept[key] = self.upload(make())
        return kept[key]

    def at_once(self, kernel: KernelSpec, block: int, shared_bytes: int) -> int:
        """As the driver says."""
        with libcuda.visible():
            return super().at_once(kernel, block, shared_bytes)

    def launch(
        self,
        kernel: KernelSpec,
        grid: int | tuple[int, int],
        block: int,
        shared_bytes: int,
        arguments: Sequence[Argument],
    ) -> None:
        """Run a kernel to its end.

        Raises:
            HostError: see the class.
            BuildError: the text does not compile.
        """
        from cupy.cuda import driver

        given = tuple(getattr(x, "pointer", x) for x in arguments)  # tests have memory among them
        name = f"{kernel.text}: {kernel.name}"
        facts = libcuda.host_kernel(self.folder, kernel)
        if kernel.cluster != facts.cluster:
            raise HostError(
                f"{name}: clusters of {kernel.cluster} blocks; its __cluster_dims__ are {facts.cluster}"
            )
        blocks = grid if isinstance(grid, tuple) else (grid, 1)
        asked = Launch(kernel, blocks, block, shared_bytes, self._checked(name, facts.signature, given))
        self.launches.append(asked)
        ends = [observer(asked) for observer in self.observers]
        request = Request(fill=self.fill, together=1, fibers=not self._concurrent, patience=self._patience)
        if self.folder == libcuda.FOLDER:
            libcuda.settings().launch = request
            try:
                with libcuda.visible():
                    super().launch(kernel, blocks, block, shared_bytes, given)
            except driver.CUDADriverError as error:
                raise HostError(f"{name}: {error}") from None
        else:
            _run(name, request, facts, asked)
        self._check_guards(name, asked)
        for end in ends:
            end()

    def memory_at(self, pointer: int) -> HostMemory | None:
        """The memory in which, or right behind which, an address lies."""
        for memory in self._memories:
            if memory.pointer <= pointer <= memory.pointer + memory.num_bytes:
                return memory
        return None

    def _checked(self, name: str, letters: str, arguments: Sequence[Argument]) -> tuple[tuple[str, int], ...]:
        if len(letters) != len(arguments):
            raise HostError(f"{name}: {len(arguments)} arguments; the kernel has {len(letters)} ({letters})")
        slots = []
        for i, (letter, argument) in enumerate(zip(letters, arguments, strict=True)):
            try:
                if not isinstance(argument, {"f": np.float32, "d": float}.get(letter, int)):
                    raise TypeError
                packed = struct.pack("Q" if letter == "P" else letter, argument)
            except (TypeError, struct.error):
                raise HostError(
                    f"{name}: argument {i} is {argument!r}, the kernel's parameter of kind {letter!r}"
                ) from None
            value = int.from_bytes(packed, "little")
            if letter == "P" and value and self._knows_all and self.memory_at(value) is None:
                raise HostError(f"{name}: argument {i} points to no memory of this device that is still held")
            slots.append((letter, value))
        return tuple(slots)

    def _check_guards(self, name: str, asked: Launch) -> None:
        for memory in self._memories:
            damage = memory.damage()
            if damage is None:
                continue
            where = [i for i, (_, value) in enumerate(asked.arguments) if value == memory.pointer]
            which = f"argument {where[0]}" if where else "memory that is no argument"
            raise HostError(f"{name}: a thread wrote to {damage} bytes of {which}")


def _run(name: str, request: Request, facts: HostKernel, asked: Launch) -> None:
    """What the driver does, for texts that are only the host's."""
    kernel, slots = asked.kernel, np.array([value for _, value in asked.arguments], np.uint64)
    request.entry, request.slots, request.name = facts.entry, slots.ctypes.data, kernel.name.encode()
    (request.grid_x, request.grid_y), request.block = asked.grid, asked.block
    request.shared_bytes, request.cluster = asked.shared_bytes, kernel.cluster
    request.cooperative = kernel.cooperative
    message = ctypes.create_string_buffer(MESSAGE_BYTES)
    if libcuda.load().cuda_on_host_launch(ctypes.byref(request), message, ctypes.c_uint64(MESSAGE_BYTES)):
        raise HostError(f"{name}: {message.value.decode(errors='replace')}")


@contextmanager
def pretended(**limits: Any) -> Iterator[HostDevice]:
    """Torch tensors live on a device of the kind "cuda", a `HostDevice` with these limits."""
    device, real = HostDevice(**limits, knows_all=False), kinds.home_of

    def home_of(array: Any) -> str:
        return "cuda" if kinds.kind_of(array) == "torch" else real(array)

    with (
        patch.object(kinds, "home_of", home_of),
        patch.object(cuda_call, "find_device", lambda array: device),
    ):
        yield device
