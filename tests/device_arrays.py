"""Arrays on a pretended device, as the CUDA drivers are given them."""

import mmap

import numpy as np
import pytest

from fsachain.backends.cuda.device import DeviceArray
from tools.cuda_on_host import HostDevice, skip_reason

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
