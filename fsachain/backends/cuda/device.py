"""What the CUDA backend asks of a device: memory, uploads and kernel launches.

The drivers of the kernels are written against `Device` and never learn which one they have: a GPU through CuPy
(`cuda_cupy`), or a host that runs the same kernel text.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt


class Limits(NamedTuple):
    """What a device has.

    Attributes:
        capability: major and minor number of its compute capability.
        multiprocessors: how many blocks of a full multiprocessor's size run at once.
        shared_bytes: dynamic shared memory that one block may have when it asks for it.
        cluster: blocks of a thread-block cluster at most; 1 where there are no clusters (below 9.0).
        memory_bytes: all of its memory, used or not: what a default memory budget is a share of, so that the budget, and
            with it the order of kernels, does not depend on who else is there.
    """

    capability: tuple[int, int]
    multiprocessors: int
    shared_bytes: int
    cluster: int
    memory_bytes: int = 1 << 33


class KernelSpec(NamedTuple):
    """One entry of one kernel text, as it is to be compiled.

    Attributes:
        text: file name in `fsachain.kernels`, such as "forward_backward.cu".
        name: the entry, an extern "C" __global__ function.
        defines: macros (name, value) that stand before the text.
        cluster: blocks of a cluster, which the text sets at compile time; 1: no cluster.
        cooperative: all blocks of the grid run at once, because they wait for one another.
    """

    text: str
    name: str
    defines: tuple[tuple[str, int | str], ...] = ()
    cluster: int = 1
    cooperative: bool = False


class Memory(Protocol):
    """Bytes on a device, given back when dropped; later work of the stream it was made on may then reuse them."""

    @property
    def pointer(self) -> int:
        """Address of the first byte, a multiple of 256."""

    @property
    def num_bytes(self) -> int:
        """How many were asked for."""


Argument = np.generic | Memory


class Device(Protocol):
    """A device and the stream that the current call works on.

    One object serves one call of the library, on the thread that made it. Work is asynchronous and in the order of the
    calls; no method waits for the device.
    """

    @property
    def limits(self) -> Limits:
        """What the device has."""

    def empty(self, num_bytes: int) -> Memory:
        """`num_bytes` >= 0 bytes that hold anything."""

    def upload(self, arrays: Sequence[npt.NDArray[Any]]) -> list[Memory]:
        """Copies of host arrays for this call, made by one transfer; the arrays may change afterwards.

        The pieces lie in one block of memory, which lives as long as any of them. In a CUDA graph the transfer is part of
        what is replayed, so that what kernels have changed is as it was.
        """

    def resident(
        self, owner: Any, key: Hashable, make: Callable[[], Sequence[npt.NDArray[Any]]]
    ) -> list[Memory]:
        """Copies of the arrays that `make` gives, uploaded once for this device and kept as long as `owner` lives.

        Args:
            owner: what the arrays belong to, such as a table or a batch; it must allow weak references.
            key: tells several uploads of one owner apart.
            make: called when they are not on the device yet. It may be called twice where two threads meet.
        """

    def launch(
        self,
        kernel: KernelSpec,
        grid: int | tuple[int, int],
        block: int,
        shared_bytes: int,
        arguments: Sequence[Argument],
    ) -> None:
        """Start a kernel.

        Args:
            kernel: what to run; compiled on first use.
            grid: number of blocks, along x or along x and y.
            block: threads of a block.
            shared_bytes: dynamic shared memory of a block.
            arguments: in the kernel's order: numpy scalars of the exact type, and memory, passed as its address.
        """


class DeviceArray(NamedTuple):
    """An array on the device that belongs to the caller of the library; a dense one may stand for memory.

    Attributes:
        pointer: address of element [0, ..., 0].
        dtype: "float16", "bfloat16", "float32", "float64", "uint8" (also for bool) or "int64".
        shape: its lengths.
        strides: in elements, one for each dimension; 0 and negative numbers are possible.
        owner: what keeps the memory alive.
    """

    pointer: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    owner: Any

    @property
    def num_bytes(self) -> int:
        """Bytes of its elements."""
        sizes = {"uint8": 1, "float16": 2, "bfloat16": 2, "float32": 4}
        return prod(self.shape) * sizes.get(self.dtype, 8)


# How a caller's array is described to the kernel texts: its type as a macro, its place as an address and
# strides.

C_TYPES = {"float16": "__half", "bfloat16": "__nv_bfloat16", "float32": "float", "float64": "double"}


def element(array: DeviceArray, macro: str = "ELEMENT") -> tuple[str, str]:
    """The define that says of which type the elements are, see `elements.cuh`."""
    return macro, C_TYPES[array.dtype]


def place_of(array: DeviceArray) -> list[Argument]:
    """Address and strides of an array [N, T, P], as the kernels take them."""
    return [np.uint64(array.pointer), *(np.int64(stride) for stride in array.strides)]


def nowhere() -> list[Argument]:
    """In the place of `place_of`, where there is no array."""
    return [np.uint64(0), *[np.int64(0)] * 3]
