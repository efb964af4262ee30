"""A stand-in for cupy on a machine without a GPU: device memory is the host's, every request is written down.

It shows which calls the library makes, in which order and with which arguments. That the real cupy takes them, only a GPU
can show (tests/gpu).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from fsachain.backends.cuda import device as cuda_device
from fsachain.backends.cuda import memory as cuda_memory

SHARED_BYTES = 232_448


class Stream:
    def __init__(self, world, ptr):
        self.world, self.ptr, self.capturing = world, ptr, False

    def is_capturing(self):
        return self.capturing

    def record(self):
        event = Event(self.world)
        event.record(self)
        return event

    def wait_event(self, event):
        self.world.log.append(("wait", self.ptr, event.ptr))


class Event:
    """Done when the test says so."""

    def __init__(self, world):
        self.world, self.done, self.ptr = world, False, 1000 + len(world.events)
        world.events.append(self)

    def record(self, stream):
        self.world.log.append(("record", self.ptr, stream.ptr))


class Pinned(np.ndarray):
    """Bytes of the host that transfers read."""

    @property
    def ptr(self):
        return self.ctypes.data

    def __add__(self, offset):
        return self[offset:]


class Memory:
    """Bytes of the device, at an address that is a multiple of 512, as pools give them."""

    def __init__(self, size):
        whole = np.full(size + 512, 0xFF, np.uint8)
        start = -whole.ctypes.data % 512
        self.bytes = whole[start : start + size]
        self.ptr = self.bytes.ctypes.data

    def __add__(self, offset):
        return self.bytes[offset:]


class Device:
    """One of the devices, and a context in which it is current."""

    def __init__(self, world, index=None):
        self.world, self.id = world, world.current if index is None else index
        self.attributes = {"MultiProcessorCount": 4, "MaxSharedMemoryPerBlockOptin": SHARED_BYTES}
        self.compute_capability = world.capability

    def __enter__(self):
        self._before, self.world.current = self.world.current, self.id

    def __exit__(self, *_):
        self.world.current = self._before


class Kernel:
    def __init__(self, world, module, name):
        self.world, self.module, self.name = world, module, name
        self.max_dynamic_shared_size_bytes = 0
        self.kernel = SimpleNamespace(ptr=77)

    def __call__(self, grid, block, args, **options):
        entry = SimpleNamespace(kernel=self, grid=grid, block=block, args=args, device=self.world.current)
        entry.shared_mem, entry.stream = options["shared_mem"], options["stream"]
        assert options.keys() == {"shared_mem", "stream"}
        self.world.launches.append(entry)


class Module:
    def __init__(self, world, options):
        self.world, self.code, self.options = world, options["code"], options["options"]
        self.cooperative = options["enable_cooperative_groups"]
        assert options.keys() == {"code", "options", "enable_cooperative_groups"}
        world.modules.append(self)

    def get_function(self, name):
        return Kernel(self.world, self, name)


class ndarray(np.ndarray):
    """An array on the device, which is the host."""

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)

    @property
    def device(self):
        return WORLD[-1].module.cuda.Device()

    def get(self):
        return np.array(self)


def make_array(shape, dtype, memptr):
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return memptr[:size].view(dtype).reshape(shape).view(ndarray)


ndarray.__module__ = "cupy"
WORLD: list[World] = []


class World:
    """What has happened: compilations, launches, transfers; and the module that stands for cupy."""

    def __init__(self):
        self.modules: list[Module] = []
        self.launches: list[SimpleNamespace] = []
        self.copies: list[tuple[int, int, int, int]] = []
        self.pinned: list[Pinned] = []
        self.events: list[Event] = []
        self.contexts: list[int] = []  # devices whose memory was asked for, which makes a context
        self.log: list[tuple[Any, ...]] = []
        self.count, self.current, self.capability, self.nvrtc = 2, 0, "90", (13, 0)
        self.stream = Stream(self, 5)
        self.module = self._make()

    def _make(self):
        cupy: Any = ModuleType("cupy")
        cuda: Any = ModuleType("cupy.cuda")
        runtime = SimpleNamespace(
            CUDARuntimeError=RuntimeError,
            getDeviceCount=lambda: self.count,
            memGetInfo=self._memory_of_current,
            memcpyHostToDevice=1,
            memcpyAsync=self._copy,
            streamWaitEvent=lambda stream, event: self.log.append(("wait", stream, event)),
        )
        cuda.runtime, cuda.Stream = runtime, Stream
        cuda.Device = lambda index=None: Device(self, index)
        cuda.Event = lambda **_: Event(self)
        cuda.get_current_stream = lambda index=None: self.stream
        cuda.alloc = Memory
        cuda.alloc_pinned_memory = self._pin
        cuda.nvrtc = SimpleNamespace(getVersion=lambda: self.nvrtc)
        cuda.driver = SimpleNamespace(occupancyMaxActiveBlocksPerMultiprocessor=lambda f, block, shared: 2)
        cupy.cuda, cupy.ndarray = cuda, make_array
        cupy.RawModule = lambda **options: Module(self, options)
        cupy.asarray = lambda values: np.array(values).view(ndarray)
        cupy.asnumpy = np.array
        cupy.isfinite, cupy.zeros = np.isfinite, lambda shape, dtype: np.zeros(shape, dtype).view(ndarray)
        cupy.empty = lambda shape, dtype: np.full(shape, np.nan, dtype).view(ndarray)
        return cupy

    def _memory_of_current(self):
        self.contexts.append(self.current)
        return 1 << 30, 1 << 34

    def _copy(self, target, source, size, kind, stream):
        ctypes.memmove(target, source, size)
        assert kind == 1
        self.copies.append((target, source, size, stream))

    def _pin(self, size):
        self.pinned.append(np.zeros(size, np.uint8).view(Pinned))
        return self.pinned[-1]


@contextlib.contextmanager
def installed(monkeypatch):
    """Cupy is the stand-in, and the library has not used any device yet."""
    world = World()
    WORLD.append(world)
    gc.freeze()  # collections of what a test leaves need not walk through all of torch
    with monkeypatch.context() as patch:
        patch.setitem(__import__("sys").modules, "cupy", world.module)
        patch.setitem(__import__("sys").modules, "cupy.cuda", world.module.cuda)
        patch.setattr(cuda_device, "_usable", set())
        _forget()
        yield world
        _forget()
    gc.collect()
    gc.unfreeze()
    WORLD.remove(world)


def _forget():
    for function in (
        cuda_device._limits,
        cuda_device._capability,
        cuda_device._function,
        cuda_device._module,
        cuda_device._at_once,
    ):
        function.cache_clear()
    cuda_memory._residents.clear()
    cuda_memory._captured.clear()
    cuda_memory._staging = cuda_memory._Staging()
