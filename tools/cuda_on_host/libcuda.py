"""The real CuPy on devices that are the host: `libcuda.cc` is its driver, and stands in its runtime's place.

CuPy compiles with NVRTC, loads cubins, packs arguments and launches as it does on a GPU; below it, what g++ has made of the
same text runs (`build`). There are `COUNT` devices, which are seen while `visible` lasts and have the limits that they are
given.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from fsachain import kernels
from fsachain.backends.cuda import device as cuda_device
from fsachain.backends.cuda.device import KernelSpec, Limits
from tools.cuda_on_host import build

COUNT = 64
FOLDER = Path(next(iter(kernels.__path__)))
Call = tuple[Any, ...]
_OBSERVER = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint64))


class Request(ctypes.Structure):
    """The structure CudaOnHostLaunch of runtime.h."""

    _fields_ = [
        ("entry", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        *((name, ctypes.c_uint32) for name in ("grid_x", "grid_y", "block", "shared_bytes", "cluster")),
        *((name, ctypes.c_uint32) for name in ("cooperative", "fill", "together", "fibers")),
        ("patience", ctypes.c_double),
    ]


class Settings(ctypes.Structure):
    """The structure Settings of libcuda.cc; `launch` has what every launch is run with."""

    _fields_ = [
        ("visible", ctypes.c_int),
        ("executes", ctypes.c_int),
        ("finishes", ctypes.c_int),
        ("launch", Request),
        ("observer", _OBSERVER),
    ]


class _Device(ctypes.Structure):
    """The structure Device of libcuda.cc."""

    _fields_ = [
        ("capability", ctypes.c_int * 2),
        ("multiprocessors", ctypes.c_int),
        ("shared_bytes", ctypes.c_int),
        ("clusters", ctypes.c_int * 9),
        ("memory_bytes", ctypes.c_uint64),
    ]


@cache
def skip_reason() -> str | None:
    """Why kernels cannot run on this host; None where they can."""
    if shutil.which("g++") is None:
        return "g++ is not installed"
    if platform.machine() != "x86_64" or os.name != "posix":
        return f"functions of CuPy are replaced on x86-64 alone, this is {platform.machine()}"
    if importlib.util.find_spec("cupy") is None:
        return "cupy is not installed; pip install 'fsachain[cuda13]' brings it and NVRTC"
    return None


@cache
def find_nvrtc() -> None:
    """Load NVRTC from its wheel, wherever Python finds that; CuPy looks beside the interpreter alone."""
    wheels = importlib.util.find_spec("nvidia")
    for root in (wheels.submodule_search_locations or []) if wheels else []:
        for path in sorted(Path(root).glob("*/lib/libnvrtc.so.*")):
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


@lru_cache(maxsize=1)
def load() -> ctypes.CDLL:
    """The driver, in use by CuPy from now on; until `visible` it says that there is no device."""
    # Its name is libcuda.so.1: who asks for that from now on is given this one.
    library = ctypes.CDLL(str(build.driver()), mode=ctypes.RTLD_GLOBAL)
    library.cuda_on_host_bind.restype = ctypes.c_char_p
    find_nvrtc()
    os.environ.setdefault("CUPY_CACHE_DIR", str(build.BUILD / "cubins"))
    from cupy_backends.cuda.api import runtime

    _replace(Path(runtime.__file__).resolve(), library)
    settings(library).executes = settings(library).finishes = 1
    settings(library).launch = Request(fill=0xFF, together=1, fibers=1, patience=20.0)
    cuda_device._function = lru_cache(maxsize=1024)(_bound)  # type: ignore[assignment]
    return library


def _replace(module: Path, library: ctypes.CDLL) -> None:
    """Let the functions of the CUDA runtime inside a module of CuPy begin with a jump to those of our library."""
    base = min(
        int(line.split("-")[0], 16)
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(str(module))
    )
    symbols = subprocess.run(["nm", module], capture_output=True, text=True, check=True).stdout
    system = ctypes.CDLL(None)
    for offset, name in re.findall(r"^(\w+) [tT] (cuda[A-Z]\w+)$", symbols, re.MULTILINE):
        try:
            target = ctypes.cast(getattr(library, f"runtime_{name}"), ctypes.c_void_p).value
        except AttributeError:
            continue
        address = base + int(offset, 16)
        page = address & ~0xFFF
        read_write_execute = 7
        if system.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(2 * 4096), read_write_execute):
            raise OSError(f"{module}: its code cannot be changed")
        # mov r11, target; jmp r11
        ctypes.memmove(address, b"\x49\xbb" + struct.pack("<Q", target) + b"\x41\xff\xe3", 13)


def settings(library: ctypes.CDLL | None = None) -> Settings:
    return Settings.in_dll(library or load(), "cuda_on_host_settings")


_function = cuda_device._function


def _bound(kernel: KernelSpec, index: int) -> Any:
    """`device._function`, whose kernel the driver can run from now on."""
    function = _function.__wrapped__(kernel, index)
    facts = host_kernel(FOLDER, kernel)
    wrong = load().cuda_on_host_bind(
        ctypes.c_void_p(function.pointer),
        facts.entry,
        facts.signature.encode(),
        facts.threads,
        facts.cluster,
    )
    if wrong:
        raise build.BuildError(f"{kernel.text}: {kernel.name}: {wrong.decode()}")
    return function


class HostKernel(NamedTuple):
    """What the library of a text says about one of its kernels.

    Attributes:
        entry: how it is called.
        signature: one letter for each parameter: P for a pointer, else the letter of Python's struct module.
        threads, cluster: its __launch_bounds__ and __cluster_dims__.
    """

    entry: Any
    signature: str
    threads: int
    cluster: int


@cache
def host_kernel(folder: Path, kernel: KernelSpec) -> HostKernel:
    """BuildError: see `build.library`, or the text has no such kernel."""
    load()  # what the library needs
    library, name = ctypes.CDLL(str(build.library(folder, kernel.text, kernel.defines))), kernel.name
    if not hasattr(library, f"{name}__launch"):
        raise build.BuildError(f'{kernel.text} has no extern "C" __global__ void {name}(')
    entry, signature, threads, cluster = (
        getattr(library, f"{name}__{what}") for what in ("launch", "signature", "threads", "cluster")
    )
    signature.restype = ctypes.c_char_p
    return HostKernel(
        ctypes.cast(entry, ctypes.c_void_p), signature().decode(), int(threads()), int(cluster())
    )


_given: list[tuple[Limits, tuple[int, ...]]] = []


def device_with(limits: Limits, clusters: dict[int, int]) -> int:
    """The index of a device with these limits, on which so many clusters run at once, by their size."""
    wanted = limits, tuple(clusters.get(size, 0) for size in range(9))
    if wanted not in _given:
        if len(_given) == COUNT:
            raise ValueError(f"{COUNT} kinds of devices are in use; expected no more in one process")
        devices = (_Device * COUNT).in_dll(load(), "cuda_on_host_devices")
        devices[len(_given)] = _Device(
            limits.capability, limits.multiprocessors, limits.shared_bytes, wanted[1], limits.memory_bytes
        )
        _given.append(wanted)
    return _given.index(wanted)


@contextmanager
def visible() -> Iterator[None]:
    """CuPy sees the devices."""
    settings().visible += 1
    try:
        yield
    finally:
        settings().visible -= 1


@contextmanager
def calls() -> Iterator[list[Call]]:
    """Calls of the driver that move data, order streams or launch, as they come: the name and four numbers.

    Of a launch its kernel's name and the blocks, the device, the stream, and whether it is cooperative.
    """
    seen: list[Call] = []
    observer = _OBSERVER(lambda what, numbers: seen.append((what.decode(), *numbers[:4])))
    now = settings()
    now.observer = observer
    try:
        yield seen
    finally:
        now.observer = _OBSERVER()
