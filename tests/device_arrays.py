"""Arrays on a pretended device, as the CUDA drivers are given them."""

import mmap

import numpy as np
import pytest

from fsachain.backends.cuda import backend as cuda
from fsachain.backends.cuda.device import DeviceArray
from tools.cuda_on_host import HostDevice, skip_reason

# What the host waits for the device with: sizes that depend on data, and numbers that come to the host.
WAITING = ["item", "tolist", "numpy", "cpu", "nonzero", "masked_select"]
WAITING += ["__bool__", "__float__", "__int__", "__array__"]
needs_host_compiler = pytest.mark.skipif(skip_reason() is not None, reason=str(skip_reason()))


def on_device(device, array):
    """A contiguous copy of the array; uint16 stands for bfloat16, the upper halves of float32."""
    (memory,) = device.upload([np.ascontiguousarray(array)])
    strides = tuple(step // array.itemsize for step in np.ascontiguousarray(array).strides)
    dtype = "bfloat16" if array.dtype == np.uint16 else str(array.dtype)
    return DeviceArray(memory.pointer, dtype, array.shape, strides, memory)


def strided(device, array):
    """The same values in an array of larger strides, of which the last is negative; what lies between is NaN."""
    spread = np.full([2 * length + 1 for length in array.shape], np.nan, array.dtype)
    view = spread[tuple(slice(1, None, 2) for _ in array.shape)][..., ::-1]
    view[...] = array
    (memory,) = device.upload([spread])
    offset = view.__array_interface__["data"][0] - spread.__array_interface__["data"][0]
    strides = tuple(step // array.itemsize for step in view.strides)
    return DeviceArray(memory.pointer + offset, str(array.dtype), array.shape, strides, memory)


def read(array):
    """What a contiguous array of `on_device` holds now; uint16 for bfloat16."""
    return array.owner.read("uint16" if array.dtype == "bfloat16" else array.dtype, array.shape)


def sums_on(device, batch, scores, lengths, leaky=0.0, budget=None, weights=None, new=None):
    """log Z [N], ok [N] and weights [N] times occupancies [N, T, P], which are added to zeros or written over `new`."""
    array = scores if isinstance(scores, DeviceArray) else on_device(device, scores)
    dtype = np.float64 if array.dtype == "float64" else np.float32
    out = on_device(device, np.full(array.shape, 0.0 if new is None else new, dtype))
    (factors,) = device.upload([np.ones(batch.size) if weights is None else weights])
    lengths = np.asarray(lengths, dtype=np.int64)
    given = device, batch, array, lengths, leaky, factors, out, budget, new is not None
    log_prob, ok = cuda.add_occupancy(*given)
    return log_prob.read(np.float64), ok.read(np.uint8).astype(bool), read(out)


def macros(device, kernel, name):
    """The values of a macro in the launches of a kernel."""
    return [dict(launch.kernel.defines)[name] for launch in device.launches if launch.kernel.name == kernel]


def assert_same_bits(found, expected):
    """Of arrays, one by one."""
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def upper_halves(values):
    """float32 values cut to bfloat16: as uint16, and as float32 again."""
    halves = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return halves, (halves.astype(np.uint32) << 16).view(np.float32)


class WithFarMemory(HostDevice):
    """Takes pointers to memory that the test has mapped, since filling so much would take minutes."""

    def memory_at(self, pointer):
        return super().memory_at(pointer) or pointer


def far_memory(count):
    """So many float32, of which those that nobody touches take no memory."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    return np.frombuffer(mmap.mmap(-1, 4 * count, flags=flags), np.float32)
