"""A GPU as `cuda_device.Device`, through CuPy: kernels compiled at run time by NVRTC, launched on the caller's stream.

What CuPy does here: it compiles (adding -ftz=true, and its own and NVIDIA's include folders), keeps what it compiled in a
folder of the user ($CUPY_CACHE_DIR), loads it on each device, and packs arguments. A kernel text reaches it as one unit, so
that its cache notices a change in any of our headers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from fsachain.backends import cuda_memory
from fsachain.backends.cuda_device import Argument, KernelSpec, Limits, Memory
from fsachain.backends.cuda_memory import Block, CupyBlock, Piece, TorchBlock
from fsachain.errors import BackendUnavailable
from fsachain.kernels import read_unit

# The texts say where a product and a sum are fused, so that bits do not depend on what a compiler finds.
OPTIONS = ("--std=c++17", "--fmad=false")
_CAPABILITY = (7, 5)  # the least that NVRTC of CUDA 13 compiles for
_CAPABILITY_OF_CUDA_12 = (7, 0)  # untested
_CLUSTERS_FROM, _CLUSTER = (9, 0), 8  # eight blocks are what every such device takes

_usable: set[int] = set()  # indices of devices that have been checked
_forked = False  # from a process that used one


class _ForeignStream:
    """A stream of torch, as cupy and `cuda_memory` use it."""

    def __init__(self, pointer: int) -> None:
        self.ptr = pointer

    def is_capturing(self) -> bool:
        import torch

        return bool(torch.cuda.is_current_stream_capturing())


class CupyDevice:
    """A GPU and a stream, see `cuda_device.Device`.

    Made by `device_of_tensor` and `device_of_array`.
    """

    def __init__(self, index: int, stream: Any, make_block: Callable[[int], Block]) -> None:
        self._index, self._stream, self._make_block = index, stream, make_block

    @property
    def limits(self) -> Limits:
        """See `cuda_device.Device`."""
        return _limits(self._index)

    def empty(self, num_bytes: int) -> Piece:
        """See `cuda_device.Device`."""
        return Piece(self._make_block(num_bytes), 0, num_bytes)

    def upload(self, arrays: Sequence[npt.NDArray[Any]]) -> list[Memory]:
        """See `cuda_device.Device`."""
        with _current(self._index):
            return cuda_memory.upload(arrays, self._make_block, self._stream)[1]

    def resident(
        self, owner: Any, key: Hashable, make: Callable[[], Sequence[npt.NDArray[Any]]]
    ) -> list[Memory]:
        """See `cuda_device.Device`."""
        with _current(self._index):
            return cuda_memory.resident(owner, (self._index, key), make, self._make_block, self._stream)

    def launch(
        self,
        kernel: KernelSpec,
        grid: int | tuple[int, int],
        block: int,
        shared_bytes: int,
        arguments: Sequence[Argument],
    ) -> None:
        """See `cuda_device.Device`."""
        blocks = grid if isinstance(grid, tuple) else (grid, 1)
        packed = tuple(_packed(argument) for argument in arguments)
        with _current(self._index):
            function = _function(kernel, self._index)
            if kernel.cooperative:
                _check_together(kernel, self._index, blocks, block, shared_bytes)
            function(blocks, (block,), packed, shared_mem=shared_bytes, stream=self._stream)


def device_of_tensor(tensor: Any) -> CupyDevice:
    """The device of a torch CUDA tensor with torch's current stream there.

    Raises:
        BackendUnavailable: there is no cupy, or the device is too old.
    """
    import torch

    index = int(tensor.device.index)
    check_device(index)
    stream = _ForeignStream(torch.cuda.current_stream(index).cuda_stream)
    return CupyDevice(index, stream, partial(TorchBlock, index))


def device_of_array(array: Any) -> CupyDevice:
    """The device of a cupy array with cupy's current stream there.

    Raises:
        BackendUnavailable: the device is too old.
    """
    import cupy

    index = int(array.device.id)
    check_device(index)
    return CupyDevice(index, cupy.cuda.get_current_stream(index), partial(CupyBlock, index))


def device_of_index(index: int | None) -> CupyDevice:
    """The device of this index, None: the one that is current, for torch if torch can use it, else for cupy.

    Raises:
        BackendUnavailable: kernels cannot run there.
    """
    check_any() if index is None else check_device(index)
    import cupy

    torch = sys.modules.get("torch")
    number = cupy.cuda.Device().id if index is None else index
    if torch is not None and torch.cuda.is_available():
        return device_of_tensor(torch.empty(0, device=f"cuda:{number}"))
    return CupyDevice(number, cupy.cuda.get_current_stream(number), partial(CupyBlock, number))


def reason_unavailable() -> str | None:
    """Why no CUDA device can be used, in one line; None where one can."""
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
    return _too_old(0) if count else "there is no CUDA device"


def check_device(index: int) -> None:
    """Raise unless kernels can run on the device of this index.

    Raises:
        BackendUnavailable: they cannot; the message has the reason.
    """
    if _forked or index not in _usable:
        reason = reason_unavailable() or _too_old(index)
        if reason:
            raise BackendUnavailable(f"backend 'cuda' on device {index}: {reason}")
        _usable.add(index)


def check_any() -> None:
    """Raise unless there is a CUDA device.

    Raises:
        BackendUnavailable: there is none; the message has the reason.
    """
    reason = reason_unavailable()
    if reason:
        raise BackendUnavailable(f"backend 'cuda': {reason}; available: reference, cpu")


def _after_fork() -> None:
    global _forked
    _forked = bool(_usable)


os.register_at_fork(after_in_child=_after_fork)


def _too_old(index: int) -> str | None:
    import cupy

    count = cupy.cuda.runtime.getDeviceCount()
    if not 0 <= index < count:
        return f"there are {count} devices"
    cuda_12 = cupy.cuda.nvrtc.getVersion()[0] < 13
    least = _CAPABILITY_OF_CUDA_12 if cuda_12 else _CAPABILITY
    capability = _limits(index).capability
    if capability >= least:
        return None
    return f"compute capability {capability[0]}.{capability[1]}; expected at least {least[0]}.{least[1]}"


def _current(index: int) -> Any:
    import cupy

    return cupy.cuda.Device(index)


def _packed(argument: Argument) -> np.generic:
    """A kernel argument of the exact type: cupy would make a Python integer an int64 and any array a pointer."""
    return argument if isinstance(argument, np.generic) else np.uint64(argument.pointer)


@lru_cache(maxsize=64)
def _limits(index: int) -> Limits:
    import cupy

    device = cupy.cuda.Device(index)
    attributes, text = device.attributes, device.compute_capability
    capability = (int(text[:-1]), int(text[-1]))
    with device:
        memory = cupy.cuda.runtime.memGetInfo()[1]
    return Limits(
        capability,
        attributes["MultiProcessorCount"],
        attributes["MaxSharedMemoryPerBlockOptin"],
        _CLUSTER if capability >= _CLUSTERS_FROM else 1,
        memory,
    )


@lru_cache(maxsize=1024)
def _function(kernel: KernelSpec, index: int) -> Any:
    """The kernel on the device that is current, `index`; it may use all of a block's shared memory there."""
    function = _module(kernel.text, kernel.defines, kernel.cooperative, index).get_function(kernel.name)
    function.max_dynamic_shared_size_bytes = _limits(index).shared_bytes
    return function


@lru_cache(maxsize=256)
def _module(text: str, defines: tuple[tuple[str, int | str], ...], cooperative: bool, index: int) -> Any:
    """The text as compiled for the device that is current, `index`."""
    import cupy

    options = (*OPTIONS, *(f"-D{name}={value}" for name, value in defines))
    return cupy.RawModule(code=read_unit(text), options=options, enable_cooperative_groups=cooperative)


@lru_cache(maxsize=256)
def _blocks_together(kernel: KernelSpec, index: int, block: int, shared_bytes: int) -> int:
    from cupy.cuda import driver

    pointer = _function(kernel, index).kernel.ptr
    each = driver.occupancyMaxActiveBlocksPerMultiprocessor(pointer, block, shared_bytes)
    return int(each) * _limits(index).multiprocessors


def _check_together(
    kernel: KernelSpec, index: int, grid: tuple[int, int], block: int, shared_bytes: int
) -> None:
    """Raise unless all blocks run at once: cupy would start fewer, and they would wait for the others for ever."""
    most = _blocks_together(kernel, index, block, shared_bytes)
    if grid[0] * grid[1] > most:
        raise BackendUnavailable(
            f"kernel {kernel.name} needs {grid[0] * grid[1]} blocks of {block} threads at once; "
            f"device {index} runs at most {most}"
        )
