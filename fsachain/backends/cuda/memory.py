"""Memory of a GPU: where it comes from, transfers from pinned buffers, arrays that stay between calls.

Work for torch tensors takes memory from torch's caching allocator, work for cupy arrays from cupy's pool: each caller sees
one pool, and what is captured by torch.cuda.graphs lies in the graph's own pool. Both pools hand memory that is given back
to later work of the stream for which it was taken, so that nothing ever waits for the host.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Hashable, Sequence
from threading import Lock
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from fsachain.errors import BackendUnavailable, counted

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

        room = max(8, -(-num_bytes // 8) * 8)  # for elements of any size
        self._tensor = torch.empty(room, dtype=torch.uint8, device=f"cuda:{device_index}")
        self.pointer = int(self._tensor.data_ptr())

    def array(self, offset: int, dtype: str, shape: tuple[int, ...]) -> Any:
        import torch

        of_type: torch.dtype = getattr(torch, dtype)
        first = offset // of_type.itemsize
        flat = self._tensor.view(of_type).as_strided((math.prod(shape),), (1,), first)
        # `.data` is no view for torch, which lets nobody write to one that a function of autograd returns.
        return (flat if len(shape) == 1 else flat.view(shape)).data

    def hold_for(self, stream: Any) -> None:
        import torch

        here = self._tensor.device
        # The default stream's pointer is 0, of which torch would make a new stream.
        user = torch.cuda.ExternalStream(stream.ptr, here) if stream.ptr else torch.cuda.default_stream(here)
        self._tensor.record_stream(user)


class CupyBlock:
    """Bytes of cupy's pool, of cupy's current stream on that device."""

    def __init__(self, device_index: int, num_bytes: int) -> None:
        import cupy

        self._device = cupy.cuda.Device(device_index)
        with self._device:
            self._home = cupy.cuda.get_current_stream()
            self._memory = cupy.cuda.alloc(max(num_bytes, 1))
        if self._home.is_capturing():  # cupy's pool knows nothing of graphs, torch's does
            _captured.append(self._memory)
        self.pointer = int(self._memory.ptr)
        self._users: list[Any] = []

    def array(self, offset: int, dtype: str, shape: tuple[int, ...]) -> Any:
        import cupy

        return cupy.ndarray(shape, dtype, memptr=self._memory + offset)

    def hold_for(self, stream: Any) -> None:
        self._users.append(stream)

    def __del__(self) -> None:
        # The pool reuses the memory for its home stream, which therefore waits for the others first.
        for stream in getattr(self, "_users", ()):
            with self._device:  # whose events their streams record
                self._home.wait_event(stream.record())


class Memory:
    """Bytes on a device, a part of a block, which is given back when all of its parts are dropped.

    Later work of the stream it was made on may then reuse them. pointer: address of the first byte, a multiple of 256.
    num_bytes: how many were asked for.
    """

    def __init__(self, block: Block, offset: int, num_bytes: int) -> None:
        self._block, self._offset = block, offset
        self.pointer = block.pointer + offset
        self.num_bytes = num_bytes

    def array(self, dtype: str, shape: tuple[int, ...]) -> Any:
        """These bytes as an array of the pool's library, without a copy."""
        return self._block.array(self._offset, dtype, shape)


def pieces(make_block: Callable[[int], Block], sizes: Sequence[int]) -> tuple[Block, list[Memory]]:
    """A block with pieces of these sizes, each at a multiple of `ALIGNMENT`."""
    firsts, total = [], 0
    for size in sizes:
        firsts.append(total)
        total += -(-size // ALIGNMENT) * ALIGNMENT
    block = make_block(total)
    return block, [Memory(block, first, size) for first, size in zip(firsts, sizes, strict=True)]


class _Staging:
    """The pinned buffers of transfers: a buffer must stay as it is until its transfer is done."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._busy: list[tuple[Any, Any]] = []
        self._reserves: list[Any] = []
        self._reserved = 0  # bytes of the last reserve that captures have taken

    def take(self, num_bytes: int) -> Any:
        import cupy

        with self._lock:
            if not self._reserves or 2 * self._reserved > RESERVE_BYTES:
                self._reserves.append(cupy.cuda.alloc_pinned_memory(RESERVE_BYTES))
                self._reserved = 0
        return cupy.cuda.alloc_pinned_memory(max(num_bytes, 1))

    def take_for_capture(self, num_bytes: int) -> Any:
        """A buffer that stays for ever: nobody says when a captured graph, which reads it at each replay, is gone.

        Where no room is left it raises; room comes with the first transfer outside of a capture.
        """
        with self._lock:
            first = self._reserved
            room = RESERVE_BYTES - first if self._reserves else 0
            if num_bytes > room:
                raise BackendUnavailable(
                    f"a CUDA graph is being captured: {counted(num_bytes, 'byte')} from the host, room for "
                    f"{room}; expected the same "
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
    arrays: Sequence[npt.NDArray[Any]], make_block: Callable[[int], Block], stream: Stream, capturing: bool
) -> tuple[Block, list[Memory], Any]:
    """Copies of the arrays by one transfer: their block, its pieces, and an event after the transfer (None in a capture)."""
    import cupy

    block, parts = pieces(make_block, [array.nbytes for array in arrays])
    total = parts[-1].pointer - block.pointer + parts[-1].num_bytes
    buffer = _staging.take_for_capture(total) if capturing else _staging.take(total)
    staged = memoryview(buffer).cast("B")
    for array, part in zip(arrays, parts, strict=True):
        if array.size:
            first = part.pointer - block.pointer
            staged[first : first + part.num_bytes] = np.ascontiguousarray(array).data.cast("B")
    runtime, done = cupy.cuda.runtime, None
    runtime.memcpyAsync(block.pointer, buffer.ptr, total, runtime.memcpyHostToDevice, stream.ptr)
    if not capturing:
        done = cupy.cuda.Event(disable_timing=True)
        done.record(stream)
        _staging.keep(buffer, done)
    return block, parts, done


class _Resident:
    """Arrays that stay on a device, and the streams that may read them."""

    def __init__(self, block: Block, pieces: list[Memory], done: Any, stream: Stream) -> None:
        self._block, self._pieces, self._done = block, pieces, done
        self._streams = {stream.ptr}
        self._is_captured = False

    def on(self, stream: Any, capturing: bool) -> list[Memory]:
        """The arrays, for work that is given to `stream` from now on."""
        # A capture starts when the device has nothing left to do (torch.cuda.graph waits for that), and may neither wait
        # for what was recorded before it nor tell the pool.
        if capturing:
            if not self._is_captured:
                _captured.append(self._block)
                self._is_captured = True
        elif stream.ptr not in self._streams:
            import cupy

            cupy.cuda.runtime.streamWaitEvent(stream.ptr, self._done.ptr)
            self._block.hold_for(stream)
            self._streams.add(stream.ptr)
        return self._pieces


_lock = Lock()
# Tables that a captured graph reads, and memory of cupy's pool: nobody says when a graph is gone, so they stay for ever.
_captured: list[Any] = []
_residents: WeakKeyDictionary[Any, dict[Hashable, _Resident]] = WeakKeyDictionary()
_left_behind: list[Any] = []
_NOTHING: dict[Hashable, _Resident] = {}


def resident(
    owner: Any,
    key: Hashable,
    make: Callable[[], Sequence[npt.NDArray[Any]]],
    make_block: Callable[[int], Block],
    stream: Stream,
    capturing: bool,
) -> list[Memory]:
    """See `device.Device.resident`; `key` names the device too."""
    found = _residents.get(owner, _NOTHING).get(key)
    if found is None:
        if capturing:
            raise BackendUnavailable(
                f"a CUDA graph is being captured and a {type(owner).__name__} is not on the device yet; expected the same "
                "call to have run before the capture, or TableBatch.to"
            )
        fresh = _Resident(*upload(make(), make_block, stream, capturing), stream)
        with _lock:
            found = _residents.setdefault(owner, {}).setdefault(key, fresh)
    return found.on(stream, capturing)


def _after_fork() -> None:
    """A child process cannot use its parent's GPU, not even to give memory back: it leaves everything where it is."""
    global _lock, _captured, _residents, _staging
    _left_behind.extend((list(_residents.items()), _captured, _staging))
    _lock, _captured, _residents, _staging = Lock(), [], WeakKeyDictionary(), _Staging()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
