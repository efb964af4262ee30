"""The device that kernels run on, a GPU through CuPy.

The drivers of the kernels never learn which device they have: tools/cuda_on_host has one whose kernels run on the host, from
the same text. CuPy compiles a kernel (adding -ftz=true, and its own and NVIDIA's include folders), keeps what it
compiled in a folder of the user ($CUPY_CACHE_DIR), and loads it on each device. A kernel text reaches it with all of our
headers in their places, so that its cache notices a change in any of them. Arguments are packed here, eight bytes each: a
call launches a dozen kernels of twenty arguments, and all that it does for each of them counts.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from functools import cached_property, lru_cache, partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.backends.cuda.memory import Block, CupyBlock, Memory, TorchBlock, pieces, resident, upload
from fsachain.errors import BackendUnavailable, counted
from fsachain.kernels import read_unit

C_TYPES = {
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "float32": "float",
    "float64": "double",
    "int32": "int",
    "int64": "long long",
}
ITEM_BYTES = {"uint8": 1, "float16": 2, "bfloat16": 2, "float32": 4, "int32": 4}  # 8 for all others

Macros = tuple[tuple[str, int | str], ...]
Argument = int | float | np.float32


class Limits(NamedTuple):
    """What a device has.

    capability: major and minor number of its compute capability. multiprocessors: how many. shared_bytes: dynamic shared
    memory that a block may ask for. cluster: the most blocks of a thread-block cluster, 1 where there are none (below 9.0).
    memory_bytes: all of its memory, used or not, so that default budgets, and with them the order of kernels, do not depend
    on who else is there.
    """

    capability: tuple[int, int]
    multiprocessors: int
    shared_bytes: int
    cluster: int
    memory_bytes: int = 1 << 33


class KernelSpec(NamedTuple):
    """One entry of one kernel text, as it is compiled and launched.

    text: file name in `fsachain.kernels`. name: an extern "C" __global__ function in it. defines: see `macros`. cluster:
    blocks of a cluster, which the text sets at compile time; 1: none. cooperative: all blocks of the grid run at once,
    because they wait for one another.
    """

    text: str
    name: str
    defines: Macros = ()
    cluster: int = 1
    cooperative: bool = False


class DeviceArray(NamedTuple):
    """An array on the device that belongs to the caller of the library; a dense one may be passed as a kernel's argument.

    pointer: address of element [0, ..., 0]. dtype: a key of `C_TYPES`, or "uint8" (also for bool). strides: in elements, 0
    and negative numbers are possible. owner: what keeps the memory alive.
    """

    pointer: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    owner: Any

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES.get(self.dtype, 8)


def macros(**values: DeviceArray | str | int) -> Macros:
    """The macros that stand before a kernel's text; an array or the name of its dtype gives the C type of its elements."""
    return _macros(*((name, getattr(value, "dtype", value)) for name, value in values.items()))


@lru_cache(maxsize=1024)
def _macros(*values: tuple[str, str | int]) -> Macros:
    return tuple((name, C_TYPES.get(x, x) if isinstance(x, str) else int(x)) for name, x in values)


def strided(array: DeviceArray | None, dimensions: int = 3) -> list[int]:
    """Address and strides of an array as kernels take them, zeros for None."""
    return [0] * (1 + dimensions) if array is None else [array.pointer, *array.strides]


def address(array: Memory | DeviceArray | None) -> int:
    return 0 if array is None else array.pointer


# The texts say where a product and a sum are fused, so that bits do not depend on what a compiler finds.
OPTIONS = ("--std=c++17", "--fmad=false")
LEAST_CAPABILITY = {13: (7, 5), 12: (7, 0)}  # what NVRTC of that CUDA version compiles for; 12 is untested
CLUSTERS_FROM, CLUSTER = (9, 0), 8  # eight blocks are what every such device takes

_usable: set[int] = set()  # indices of devices that have been checked
_forked = False  # from a process that used one


class _TorchStream:
    """torch's current stream as cupy and `memory` use it."""

    def __init__(self, pointer: int) -> None:
        self.ptr = pointer

    def is_capturing(self) -> bool:
        import torch

        return bool(torch.cuda.is_current_stream_capturing())


MOST_ARGUMENTS = 64


class _Room(threading.local):
    """Where a thread puts the arguments of a launch, eight bytes for each, and their addresses for the driver."""

    def __init__(self) -> None:
        self.bytes = bytearray(8 * MOST_ARGUMENTS)
        first = np.frombuffer(self.bytes, np.uint8).ctypes.data
        self._addresses = np.arange(first, first + len(self.bytes), 8, dtype=np.uint64)
        self.pointer = int(self._addresses.ctypes.data)


_room = _Room()


def _packing(arguments: Sequence[Argument]) -> Callable[..., None]:
    """Puts arguments of these types, in the order of bytes that every GPU's host has, where a kernel of any width reads."""
    letters = [{np.float32: "f4x", float: "d"}.get(type(value), "q") for value in arguments]
    return struct.Struct("<" + "".join(letters)).pack_into


class Device:
    """A GPU and the stream that the current call works on; made by `device_of_tensor` and `device_of_array`.

    One object serves one call of the library, on the thread that made it. Work is asynchronous and in the order of the
    calls; no method waits for the device.

    Attributes:
        index: its number: what is kept for a device is kept for that.
    """

    def __init__(self, index: int, stream: Any, make_block: Callable[[int], Block]) -> None:
        from cupy import cuda

        self.index, self._stream, self._make_block = index, stream, make_block
        self._driver = cuda.driver
        self._here: Any = cuda.Device(index)
        if cuda.runtime.getDevice() == index:
            cuda.runtime.setDevice(index)  # which gives a new thread the context that launches need
            self._here = nullcontext()  # entered for each launch

    @property
    def limits(self) -> Limits:
        return _limits(self.index)

    @property
    def stream(self) -> Hashable | None:
        """What tells the stream from others of this device; None in a capture, for which nothing may be kept."""
        return None if self._is_capturing else self._stream.ptr

    @cached_property
    def _is_capturing(self) -> bool:
        return bool(self._stream.is_capturing())

    def empty(self, num_bytes: int) -> Memory:
        """`num_bytes` >= 0 bytes that hold anything."""
        return Memory(self._make_block(num_bytes), 0, num_bytes)

    def pieces(self, sizes: Sequence[int]) -> list[Memory]:
        """As `empty` for each of the sizes, by one request of the pool; the memory is given back when all are dropped."""
        return pieces(self._make_block, sizes)[1]

    def upload(self, arrays: Sequence[npt.NDArray[Any]]) -> list[Memory]:
        """Copies of host arrays for this call, by one transfer into one block; the arrays may change afterwards.

        In a CUDA graph the transfer is part of what is replayed, so that what kernels have changed is as it was.
        """
        with self._here:
            return upload(arrays, self._make_block, self._stream, self._is_capturing)[1]

    def resident(
        self, owner: Any, key: Hashable, make: Callable[[], Sequence[npt.NDArray[Any]]]
    ) -> list[Memory]:
        """Copies of the arrays that `make` gives, uploaded once for this device and kept as long as `owner` lives.

        `key` tells several uploads of one owner, which must allow weak references, apart. `make` may be called twice where
        two threads meet.
        """
        with self._here:
            stream = self._stream
            return resident(owner, (self.index, key), make, self._make_block, stream, self._is_capturing)

    def at_once(self, kernel: KernelSpec, block: int, shared_bytes: int) -> int:
        """How many of a kernel's clusters (blocks, where it has none) run at the same time; at least 1.

        Fewer than multiprocessors may suggest: those of a cluster must be neighbours on the chip.
        """
        with self._here:
            return max(1, _at_once(kernel, self.index, block, shared_bytes))

    def launch(
        self,
        kernel: KernelSpec,
        grid: int | tuple[int, int],
        block: int,
        shared_bytes: int,
        arguments: Sequence[Argument],
    ) -> None:
        """Start a kernel, compiled on first use.

        grid: blocks along x, or along x and y. block: threads of a block. shared_bytes: its dynamic shared memory.
        arguments: in the kernel's order; addresses and integers of any size as int, doubles as float, floats as np.float32.
        """
        x, y = grid if isinstance(grid, tuple) else (grid, 1)
        with self._here:
            function = _function(kernel, self.index)
            if function.pack_into is None:
                function.pack_into = _packing(arguments)
            function.pack_into(_room.bytes, 0, *arguments)
            launch = x, y, 1, block, 1, 1, shared_bytes, self._stream.ptr, _room.pointer
            if not kernel.cooperative:
                self._driver.launchKernel(function.pointer, *launch, 0)
                return
            most = _at_once(kernel, self.index, block, shared_bytes)
            if x * y > most:
                raise BackendUnavailable(
                    f"kernel {kernel.name} needs {counted(x * y, 'block')} of {counted(block, 'thread')} at once; "
                    f"device {self.index} runs at most {most}"
                )
            self._driver.launchCooperativeKernel(function.pointer, *launch)


def device_of_tensor(tensor: Any) -> Device:
    """The device of a torch CUDA tensor with torch's current stream there."""
    import torch

    index = int(tensor.device.index)
    check_device(index)
    stream = _TorchStream(torch.cuda.current_stream(index).cuda_stream)
    return Device(index, stream, partial(TorchBlock, index))


def device_of_array(array: Any) -> Device:
    """The device of a cupy array with cupy's current stream there."""
    import cupy

    index = int(array.device.id)
    check_device(index)
    return Device(index, cupy.cuda.get_current_stream(index), partial(CupyBlock, index))


def device_of_index(index: int | None) -> Device:
    """The device of this index, None: the one that is current, for torch if torch can use it, else for cupy."""
    check_any() if index is None else check_device(index)
    import cupy

    torch = sys.modules.get("torch")
    number = cupy.cuda.Device().id if index is None else index
    if torch is not None and torch.cuda.is_available():
        return device_of_tensor(torch.empty(0, device=f"cuda:{number}"))
    return Device(number, cupy.cuda.get_current_stream(number), partial(CupyBlock, number))


def reason_unavailable(index: int | None = None) -> str | None:
    """Why kernels cannot run on the device of this index, None: the current one, in one line; None where they can.

    Nothing here makes a context, which would take memory of a device that belongs to another process.
    """
    if _forked:
        return "CUDA was in use when this process was forked; expected processes started by 'spawn' or before"
    try:
        import cupy
    except ImportError as error:
        line = str(error).strip().splitlines() or [type(error).__name__]
        return f"cupy cannot be imported ({line[0]}); pip install 'fsachain[cuda13]' (or [cuda12]) brings it"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"no CUDA device can be used ({error})"
    if count == 0:
        return "there is no CUDA device"
    index = cupy.cuda.Device().id if index is None else index
    if not 0 <= index < count:
        return f"there are {count} devices"
    least = LEAST_CAPABILITY[12 if cupy.cuda.nvrtc.getVersion()[0] < 13 else 13]
    major, minor = capability = _capability(index)
    if capability < least:
        return f"compute capability {major}.{minor}; expected at least {least[0]}.{least[1]}"
    return None


def check_device(index: int) -> None:
    if _forked or index not in _usable:
        if reason := reason_unavailable(index):
            raise BackendUnavailable(f"backend 'cuda' on device {index}: {reason}")
        _usable.add(index)


def check_any() -> None:
    if reason := reason_unavailable():
        raise BackendUnavailable(f"backend 'cuda': {reason}; available: reference, cpu")


def _after_fork() -> None:
    global _forked
    _forked = bool(_usable)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@lru_cache(maxsize=64)
def _capability(index: int) -> tuple[int, int]:
    import cupy

    text = cupy.cuda.Device(index).compute_capability
    return int(text[:-1]), int(text[-1])


@lru_cache(maxsize=64)
def _limits(index: int) -> Limits:
    import cupy

    device = cupy.cuda.Device(index)
    attributes, capability = device.attributes, _capability(index)
    with device:
        memory = cupy.cuda.runtime.memGetInfo()[1]
    return Limits(
        capability,
        attributes["MultiProcessorCount"],
        attributes["MaxSharedMemoryPerBlockOptin"],
        CLUSTER if capability >= CLUSTERS_FROM else 1,
        memory,
    )


class _Function:
    """A kernel that is loaded. pack_into: from its first launch on, whose arguments have the types of all others."""

    def __init__(self, kernel: Any) -> None:
        self._kernel, self.pointer = kernel, int(kernel.ptr)
        self.pack_into: Callable[..., None] | None = None


@lru_cache(maxsize=1024)
def _function(kernel: KernelSpec, index: int) -> _Function:
    """The kernel on the device that is current, `index`; it may use all of a block's shared memory there."""
    function = _module(kernel.text, kernel.defines, kernel.cooperative, index).get_function(kernel.name)
    function.max_dynamic_shared_size_bytes = _limits(index).shared_bytes
    return _Function(function.kernel)


@lru_cache(maxsize=256)
def _module(text: str, defines: Macros, cooperative: bool, index: int) -> Any:
    """The text as compiled for the device that is current, `index`."""
    import cupy

    options = (*OPTIONS, *(f"-D{name}={value}" for name, value in defines))
    return cupy.RawModule(code=read_unit(text), options=options, enable_cooperative_groups=cooperative)


@lru_cache(maxsize=256)
def _at_once(kernel: KernelSpec, index: int, block: int, shared_bytes: int) -> int:
    from cupy.cuda import driver

    pointer = _function(kernel, index).pointer
    if kernel.cluster > 1:
        return _clusters_at_once(pointer, kernel.cluster, block, shared_bytes)
    each = driver.occupancyMaxActiveBlocksPerMultiprocessor(pointer, block, shared_bytes)
    return int(each) * _limits(index).multiprocessors


class _LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute with the dimensions of a cluster."""

    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_uint * 16)]


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_LaunchAttribute)),
        ("num_attributes", ctypes.c_uint),
    ]


_CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION


def _clusters_at_once(function: int, cluster: int, block: int, shared_bytes: int) -> int:
    """cuOccupancyMaxActiveClusters, which cupy has not."""
    attribute = _LaunchAttribute(_CLUSTER_DIMENSION, b"", (ctypes.c_uint * 16)(cluster, 1, 1))
    config = _LaunchConfig((cluster, 1, 1), (block, 1, 1), shared_bytes, None, ctypes.pointer(attribute), 1)
    count = ctypes.c_int(0)
    status = _driver().cuOccupancyMaxActiveClusters(
        ctypes.byref(count), ctypes.c_void_p(function), ctypes.byref(config)
    )
    if status:
        raise BackendUnavailable(
            f"cuOccupancyMaxActiveClusters gives CUDA error {status} for clusters of "
            f"{counted(cluster, 'block')} of {counted(block, 'thread')} "
            f"with {counted(shared_bytes, 'byte')} of shared memory"
        )
    return count.value


@lru_cache(maxsize=1)
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
