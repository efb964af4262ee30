"""What launches move: sectors of memory that kernels read and write, each once for a launch, as if its cache held them all.

with counted(device) as traffic:
    ...                                             # anything that launches kernels on the device
traffic.of(array.ctypes.data, array.nbytes)         # {("frames.cu", "read_frames", "read"): bytes, ...}
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from fsachain.backends.cuda import device as cuda_device
from tools.cuda_on_host import libcuda
from tools.cuda_on_host.device import HostDevice, Launch, Observer

SECTOR = 32


class Traffic(Observer):
    """The launches of a context, by number, and what they have touched; until the next context begins."""

    def __init__(self) -> None:
        self._names: list[tuple[str, str]] = []

    def before(self, launch: Launch) -> None:
        libcuda.load().cuda_on_host_count_launch(1)
        self._names.append((launch.kernel.text, launch.kernel.name))

    def of(self, pointer: int, num_bytes: int) -> dict[tuple[str, str, str], int]:
        """Bytes of the sectors of so much memory that kernels have read and written."""
        found: dict[tuple[str, str, str], int] = {}
        sectors = libcuda.load().cuda_on_host_sectors
        sectors.restype = ctypes.c_uint64
        for number, (text, name) in enumerate(self._names):
            place = [ctypes.c_uint64(x) for x in (number, pointer, pointer + num_bytes)]
            for how, bit in (("read", 1), ("written", 2)):
                key = text, name, how
                found[key] = found.get(key, 0) + SECTOR * int(sectors(*place, ctypes.c_uint(bit)))
        return {key: count for key, count in found.items() if count}


@contextmanager
def counted(device: HostDevice) -> Iterator[Traffic]:
    """Kernels that count run on this device while the context lasts; they take several times as long."""
    traffic = Traffic()
    libcuda.load().cuda_on_host_count_launch(0)
    device.observers.append(traffic)
    libcuda.counts = True
    cuda_device._function.cache_clear()
    try:
        yield traffic
    finally:
        libcuda.counts = False
        cuda_device._function.cache_clear()
        device.observers.remove(traffic)
