"""`HostDevice`: a device whose memory is the host's and whose kernels are threads of the host."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Hashable, Sequence
from enum import Enum
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain import kernels
from fsachain.backends.cuda.device import KernelSpec, Limits
from tools.cuda_on_host import build
from tools.cuda_on_host.memory import HostMemory

MAX_BLOCK = 1024
MAX_GRID_Y = 65_535
THREADS_PER_MULTIPROCESSOR = 2048
MESSAGE_BYTES = 8192


class Threads(Enum):
    """What a CUDA thread is on the host."""

    IN_TURN = "fibers"  # the threads that must run at once take turns on one thread of the system: fast, and repeatable
    CONCURRENT = "threads"  # each is a thread of the system, interrupted anywhere


class HostError(Exception):
    """A launch that a GPU would refuse, or a kernel that does what no kernel may do."""


class Launch(NamedTuple):
    """One launch: what `HostDevice.launch` was asked for."""

    kernel: KernelSpec
    grid: tuple[int, int]
    block: int
    shared_bytes: int
    arguments: tuple[np.generic | HostMemory, ...]


class _Request(ctypes.Structure):
    """The structure CudaOnHostLaunch of runtime.h."""

    _fields_ = [
        ("entry", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("grid_x", ctypes.c_uint32),
        ("grid_y", ctypes.c_uint32),
        ("block", ctypes.c_uint32),
        ("shared_bytes", ctypes.c_uint32),
        ("cluster", ctypes.c_uint32),
        ("cooperative", ctypes.c_uint32),
        ("fill", ctypes.c_uint32),
        ("together", ctypes.c_uint32),
        ("fibers", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
        ("patience", ctypes.c_double),
    ]


@lru_cache(maxsize=1)
def _runtime() -> ctypes.CDLL:
    return ctypes.CDLL(str(build.runtime()), mode=ctypes.RTLD_GLOBAL)


@cache
def _library(path: Path) -> ctypes.CDLL:
    _runtime()
    return ctypes.CDLL(str(path))


class HostDevice:
    """A `fsachain.backends.cuda.device.Device` made of threads of the host, with the limits of a GPU of your choice.

    New memory, shared memory too, holds the byte `fill` everywhere; 0xFF makes every float a NaN. Launches run to their
    end at once. A launch that a GPU would refuse, a deadlock, a barrier that some threads miss and a write beside a
    buffer raise `HostError`, which names the kernel.

    Args:
        capability, multiprocessors, shared_bytes, cluster, memory_bytes: the limits that the device pretends to have.
        clusters: how many clusters run at once, by their size; None: as many as there are multiprocessors for.
        fill: the byte that memory holds before it is written.
        threads: what a CUDA thread is.
        together: how many blocks, or clusters, of a launch that is not cooperative run at once.
        patience: seconds without any progress after which a launch is given up.
        folder: where kernel texts lie; the package's own by default.

    Attributes:
        fill, folder: see above.
        launches: all launches so far, without their arguments.
        observers: told of each launch before and after it.
    """

    def __init__(
        self,
        capability: tuple[int, int] = (9, 0),
        multiprocessors: int = 4,
        shared_bytes: int = 232_448,
        cluster: int | None = None,
        memory_bytes: int = 1 << 33,
        *,
        clusters: dict[int, int] | None = None,
        fill: int = 0xFF,
        threads: Threads = Threads.IN_TURN,
        together: int = 1,
        patience: float = 20.0,
        folder: Path | None = None,
    ) -> None:
        largest = 8 if capability >= (9, 0) else 1
        cluster = largest if cluster is None else cluster
        self._limits = Limits(capability, multiprocessors, shared_bytes, cluster, memory_bytes)
        self._clusters = clusters or {}
        self.fill = fill
        self.launches: list[Launch] = []
        self.observers: list[Observer] = []
        self._threads = threads
        self._together = together
        self._patience = patience
        self.folder = folder or Path(next(iter(kernels.__path__)))
        self._memories: weakref.WeakSet[HostMemory] = weakref.WeakSet()
        self._residents: weakref.WeakKeyDictionary[Any, dict[Hashable, list[HostMemory]]]
        self._residents = weakref.WeakKeyDictionary()

    @property
    def limits(self) -> Limits:
        """What the device pretends to have."""
        return self._limits

    def empty(self, num_bytes: int) -> HostMemory:
        """Memory that holds the byte `fill` everywhere."""
        memory = HostMemory(num_bytes, self.fill)
        self._memories.add(memory)
        return memory

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
        """Of a kernel's clusters, or of its blocks where it has none."""
        if kernel.cluster in self._clusters:
            return self._clusters[kernel.cluster]
        fit = THREADS_PER_MULTIPROCESSOR // block
        if shared_bytes:
            fit = min(fit, max(1, self._limits.shared_bytes // shared_bytes))
        return max(1, fit * self._limits.multiprocessors // kernel.cluster)

    def launch(
        self,
        kernel: KernelSpec,
        grid: int | tuple[int, int],
        block: int,
        shared_bytes: int,
        arguments: Sequence[np.generic | HostMemory],
    ) -> None:
        """Run a kernel to its end.

        Raises:
            HostError: see the class.
            BuildError: the text does not compile.
        """
        asked = Launch(
            kernel, grid if isinstance(grid, tuple) else (grid, 1), block, shared_bytes, tuple(arguments)
        )
        name = f"{kernel.text}: {kernel.name}"
        self._check_size(name, asked)
        self._check_text(name, asked)
        library = _library(build.library(self.folder, kernel.text, kernel.defines))
        slots = self._slots(name, self.signature(kernel), arguments)
        self.launches.append(asked._replace(arguments=()))  # which would keep their memory alive
        for observer in self.observers:
            observer.before(asked)
        self._run(name, library, asked, slots)
        self._check_guards(name, asked)
        for observer in self.observers:
            observer.after(asked)

    def signature(self, kernel: KernelSpec) -> str:
        """One letter for each parameter of a kernel: P for a pointer, else the letter of Python's struct module."""
        return str(self._ask(kernel, "signature", ctypes.c_char_p).decode())

    def _ask(self, kernel: KernelSpec, what: str, answer: Any) -> Any:
        """What the text says about a kernel."""
        library = _library(build.library(self.folder, kernel.text, kernel.defines))
        try:
            function = getattr(library, f"{kernel.name}__{what}")
        except AttributeError:
            raise HostError(f'{kernel.text} has no extern "C" __global__ void {kernel.name}(') from None
        function.restype = answer
        return function()

    def memory_at(self, pointer: int) -> HostMemory | None:
        """The memory in which, or right behind which, an address lies."""
        for memory in self._memories:
            if memory.pointer <= pointer <= memory.pointer + memory.num_bytes:
                return memory
        return None

    def _check_size(self, name: str, asked: Launch) -> None:
        kernel, (x, y), block, shared, _ = asked
        limits = self._limits
        wrong = None
        if not (1 <= block <= MAX_BLOCK and block % 32 == 0):
            wrong = f"a block of {block} threads; a multiple of 32 up to {MAX_BLOCK} is expected"
        elif not (1 <= x < 2**31 and 1 <= y <= MAX_GRID_Y):
            wrong = f"a grid of ({x}, {y}) blocks"
        elif shared > limits.shared_bytes:
            wrong = f"{shared} bytes of shared memory; the device has {limits.shared_bytes} for a block"
        elif kernel.cluster > limits.cluster or x % kernel.cluster:
            wrong = (
                f"clusters of {kernel.cluster} blocks in a grid of {x}; the device has up to {limits.cluster}"
            )
        elif kernel.cooperative:
            most = self.at_once(kernel, block, shared)
            if x * y > most:
                wrong = f"a cooperative launch of {x * y} blocks; {most} run at once"
        if wrong:
            raise HostError(f"{name}: {wrong}")

    def _check_text(self, name: str, asked: Launch) -> None:
        """What the text of a kernel says about its launches."""
        threads, cluster = (self._ask(asked.kernel, what, ctypes.c_int) for what in ("threads", "cluster"))
        if asked.block > threads:
            raise HostError(f"{name}: a block of {asked.block} threads; its __launch_bounds__ are {threads}")
        if asked.kernel.cluster != cluster:
            raise HostError(
                f"{name}: clusters of {asked.kernel.cluster} blocks; its __cluster_dims__ are {cluster}"
            )

    def _slots(
        self, name: str, letters: str, arguments: Sequence[np.generic | HostMemory]
    ) -> npt.NDArray[np.uint64]:
        if len(letters) != len(arguments):
            raise HostError(f"{name}: {len(arguments)} arguments; the kernel has {len(letters)} ({letters})")
        slots = np.zeros(max(1, len(letters)), np.uint64)
        for i, (letter, argument) in enumerate(zip(letters, arguments, strict=True)):
            if isinstance(argument, HostMemory):
                given, pointer = "P", argument.pointer
            else:
                given, pointer = _letter(argument), int(argument) if letter == "P" else 0
            if letter == "P" and given in "PQ":
                if pointer and self.memory_at(pointer) is None:
                    raise HostError(
                        f"{name}: argument {i} points to no memory of this device that is still held"
                    )
                slots[i] = pointer
            elif letter != given:
                raise HostError(f"{name}: argument {i} has kind {given!r}, the kernel's parameter {letter!r}")
            else:
                slots[i : i + 1].view(np.uint8)[: argument.nbytes] = np.frombuffer(
                    argument.tobytes(), np.uint8
                )
        return slots

    def _run(self, name: str, library: ctypes.CDLL, asked: Launch, slots: npt.NDArray[np.uint64]) -> None:
        kernel = asked.kernel
        entry = ctypes.cast(getattr(library, f"{kernel.name}__launch"), ctypes.c_void_p)
        request = _Request(
            entry, slots.ctypes.data, name.encode(), *asked.grid, asked.block, asked.shared_bytes, kernel.cluster,
            kernel.cooperative, self.fill, self._together, self._threads is Threads.IN_TURN, 0, self._patience,
        )  # fmt: skip
        message = ctypes.create_string_buffer(MESSAGE_BYTES)
        if _runtime().cuda_on_host_launch(ctypes.byref(request), message, ctypes.c_uint64(MESSAGE_BYTES)):
            raise HostError(f"{name}: {message.value.decode(errors='replace')}")

    def _check_guards(self, name: str, asked: Launch) -> None:
        for memory in self._memories:
            damage = memory.damage()
            if damage is None:
                continue
            where = [i for i, a in enumerate(asked.arguments) if _pointer(a) == memory.pointer]
            which = f"argument {where[0]}" if where else "memory that is no argument"
            raise HostError(f"{name}: a thread wrote to {damage} bytes of {which}")


class Observer:
    """Sees each launch of a device before and after it runs."""

    def before(self, launch: Launch) -> None:
        """Called when the arguments are checked and nothing has run."""

    def after(self, launch: Launch) -> None:
        """Called when all threads have returned."""


def _pointer(argument: np.generic | HostMemory) -> int:
    return argument.pointer if isinstance(argument, HostMemory) else int(argument)


def _letter(scalar: np.generic) -> str:
    """The kind of a numpy scalar in the letters of `Letter` in cuda_on_host.h."""
    kind, size = scalar.dtype.kind, scalar.dtype.itemsize
    letters = {
        "i": {1: "b", 2: "h", 4: "i", 8: "q"},
        "u": {1: "B", 2: "H", 4: "I", 8: "Q"},
        "f": {4: "f", 8: "d"},
    }
    return letters.get(kind, {}).get(size, f"{scalar.dtype}")
