"""A GPU as `cuda_device.Device`, through CuPy: kernels compiled at run time by NVRTC, launched on the caller's stream.

What CuPy does here: it compiles (adding -ftz=true, and its own and NVIDIA's include folders), keeps what it compiled in a
folder of the user ($CUPY_CACHE_DIR), loads it on each device, and packs arguments. A kernel text reaches it as one unit, so
that its cache notices a change in any of our headers.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache, partial
from threading import Lock
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from fsachain.backends.cuda.device import Argument, KernelSpec, Limits, Memory
from fsachain.errors import BackendUnavailable
from fsachain.kernels import read_unit

# Memory of a GPU: where it comes from, transfers from pinned buffers, arrays that stay between calls.
#
# Work for torch tensors takes memory from torch's caching allocator, work for cupy arrays from cupy's pool:
# each caller sees one pool, and what is captured by torch.cuda.graphs lies in the graph's own pool. Both
# pools hand memory that is given back to later work of the stream for which it was taken, so that nothing
# ever waits for the host.

# Pinned bytes set apart for the transfers of captures, in which none can be had: lengths and the like, a few KB a step.
RESERVE_BYTES = 1 << 20
ALIGNMENT = 256  # bytes; what both pools give, and what every piece of an upload has


class Stream(Protocol):
    """A CUDA stream; cupy takes any object with the first attribute in place of its own."""

    ptr: int
    is_capturing: Callable[[], bool]


class Block(Protocol):
    """Memory of a pool, given back when dropped."""

    pointer: int

    def array(self, offset: int, dtype: str, shape: tuple[int, ...]) -> Any:
        """The bytes from `offset` on as an array of the pool's library, without a copy."""

    def hold_for(self, stream: Any) -> None:
        """Not to be reused, once dropped, before the work that `stream` has then been given is done."""


class TorchBlock:
    """Bytes of torch's caching allocator, of torch's current stream on that device."""

    def __init__(self, device_index: int, num_bytes: int) -> None:
        import torch

        self._tensor = torch.empty(max(num_bytes, 1), dtype=torch.uint8, device=f"cuda:{device_index}")
        self.pointer = int(self._tensor.data_ptr())

    def array(self, offset: int, dtype: str, shape: tuple[int, ...]) -> Any:
        """See `Block`."""
        import torch

        of_type: torch.dtype = getattr(torch, dtype)
        size = math.prod(shape) * of_type.itemsize
        return self._tensor[offset : offset + size].view(of_type).view(shape)

    def hold_for(self, stream: Any) -> None:
        """See `Block`."""
        import torch

        self._tensor.record_stream(torch.cuda.ExternalStream(stream.ptr, device=self._tensor.device))


class CupyBlock:
    """Bytes of cupy's pool, of cupy's current stream on that device."""

    def __init__(self, device_index: int, num_bytes: int) -> None:
        import cupy

        with cupy.cuda.Device(device_index):
            self._home = cupy.cuda.get_current_stream()
            self._memory = cupy.cuda.alloc(max(num_bytes, 1))
        self.pointer = int(self._memory.ptr)
        self._users: list[Any] = []

    def array(self, offset: int, dtype: str, shape: tuple[int, ...]) -> Any:
        """See `Block`."""
        import cupy

        return cupy.ndarray(shape, dtype, memptr=self._memory + offset)

    def hold_for(self, stream: Any) -> None:
        """See `Block`."""
        self._users.append(stream)

    def __del__(self) -> None:
        # The pool reuses the memory for its home stream, which therefore waits for the others first.
        for stream in getattr(self, "_users", ()):
            self._home.wait_event(stream.record())


class Piece:
    """A part of a block; the block lives as long as one of its pieces."""

    def __init__(self, block: Block, offset: int, num_bytes: int) -> None:
        self._block, self._offset = block, offset
        self.pointer = block.pointer + offset
        self.num_bytes = num_bytes

    def array(self, dtype: str, shape: tuple[int, ...]) -> Any:
        """These bytes as an array of the pool's library, without a copy."""
        return self._block.array(self._offset, dtype, shape)


class _Staging:
    """The pinned buffers of transfers: a buffer must stay as it is until its transfer is done."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._busy: list[tuple[Any, Any]] = []
        self._reserves: list[Any] = []
        self._reserved = 0  # bytes of the last reserve that captures have taken

    def take(self, num_bytes: int) -> Any:
        """A buffer."""
        import cupy

        with self._lock:
            if not self._reserves or 2 * self._reserved > RESERVE_BYTES:
                self._reserves.append(cupy.cuda.alloc_pinned_memory(RESERVE_BYTES))
                self._reserved = 0
        return cupy.cuda.alloc_pinned_memory(max(num_bytes, 1))

    def take_for_capture(self, num_bytes: int) -> Any:
        """A buffer that stays for ever, since nobody says when a captured graph, which reads it at each replay, is gone.

        Raises:
            BackendUnavailable: there is no room; it comes with the first transfer outside of a capture.
        """
        with self._lock:
            first = self._reserved
            room = RESERVE_BYTES - first if self._reserves else 0
            if num_bytes > room:
                raise BackendUnavailable(
                    f"a CUDA graph is being captured: {num_bytes} bytes from the host, room for {room}; expected the same "
                    "call to have run before the capture, and graphs captured with less"
                )
            self._reserved += -(-num_bytes // ALIGNMENT) * ALIGNMENT
            return self._reserves[-1] + first

    def keep(self, buffer: Any, done: Any) -> None:
        """Keep the buffer until the event `done` has happened; let go of those whose events have."""
        with self._lock:
            self._busy = [entry for entry in self._busy if not entry[0].done]
            self._busy.append((done, buffer))


_staging = _Staging()


def upload(
    arrays: Sequence[npt.NDArray[Any]], make_block: Callable[[int], Block], stream: Stream
) -> tuple[Block, list[Memory], Any]:
    """Copies of the arrays by one transfer: their block, its pieces, and an event after the transfer (None in a capture)."""
    import cupy

    offsets, total = [], 0
    for array in arrays:
        offsets.append(total)
        total += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    capturing = stream.is_capturing()
    block = make_block(total)
    buffer = _staging.take_for_capture(total) if capturing else _staging.take(total)
    staged = np.frombuffer(buffer, np.uint8, count=total)
    for offset, array in zip(offsets, arrays, strict=True):
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        staged[offset : offset + flat.size] = flat
    runtime, done = cupy.cuda.runtime, None
    runtime.memcpyAsync(block.pointer, buffer.ptr, total, runtime.memcpyHostToDevice, stream.ptr)
    if not capturing:
        done = cupy.cuda.Event(disable_timing=True)
        done.record(stream)
        _staging.keep(buffer, done)
    pieces: list[Memory] = [
        Piece(block, offset, array.nbytes) for offset, array in zip(offsets, arrays, strict=True)
    ]
    return block, pieces, done


class _Resident:
    """Arrays that stay on a device, and the streams that may read them."""

    def __init__(self, block: Block, pieces: list[Memory], done: Any, stream: Stream) -> None:
        self._block, self._pieces, self._done = block, pieces, done
        self._streams = {stream.ptr}

    def on(self, stream: Any) -> list[Memory]:
        """The arrays, for work that is given to `stream` from now on."""
        # A capture starts when the device has nothing left to do (torch.cuda.graph waits for that), and may neither wait
        # for what was recorded before it nor tell the pool.
        if stream.ptr not in self._streams and not stream.is_capturing():
            import cupy

            cupy.cuda.runtime.streamWaitEvent(stream.ptr, self._done.ptr)
            self._block.hold_for(stream)
            self._streams.add(stream.ptr)
        return self._pieces


_lock = Lock()
_residents: WeakKeyDictionary[Any, dict[Hashable, _Resident]] = WeakKeyDictionary()
_left_behind: list[Any] = []


def resident(
    owner: Any,
    key: Hashable,
    make: Callable[[], Sequence[npt.NDArray[Any]]],
    make_block: Callable[[int], Block],
    stream: Stream,
) -> list[Memory]:
    """See `cuda_device.Device.resident`; `key` names the device too."""
    with _lock:
        found = _residents.setdefault(owner, {}).get(key)
    if found is None:
        if stream.is_capturing():
            raise BackendUnavailable(
                f"a CUDA graph is being captured and a {type(owner).__name__} is not on the device yet; expected the same "
                "call to have run before the capture, or TableBatch.to"
            )
        fresh = _Resident(*upload(make(), make_block, stream), stream)
        with _lock:
            found = _residents.setdefault(owner, {}).setdefault(key, fresh)
    return found.on(stream)


def _after_fork_cuda_memory() -> None:
    """A child process cannot use its parent's GPU, not even to give memory back: it leaves everything where it is."""
    global _lock, _residents, _staging
    _left_behind.extend((list(_residents.items()), _staging))
    _lock, _residents, _staging = Lock(), WeakKeyDictionary(), _Staging()


os.register_at_fork(after_in_child=_after_fork_cuda_memory)


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
            return upload(arrays, self._make_block, self._stream)[1]

    def resident(
        self, owner: Any, key: Hashable, make: Callable[[], Sequence[npt.NDArray[Any]]]
    ) -> list[Memory]:
        """See `cuda_device.Device`."""
        with _current(self._index):
            return resident(owner, (self._index, key), make, self._make_block, self._stream)

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
