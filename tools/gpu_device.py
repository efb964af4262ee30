"""The first steps of the GPU report: what the device and the software are, and all kernels compiled, side by side.

python -m tools.gpu_device [describe | compile]
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib import metadata
from typing import Any

from fsachain.backends.cuda import device as cuda_device
from fsachain.backends.cuda.device import KernelSpec
from tools import parser_of
from tools.cuda_configurations import GPUS, all_kernels
from tools.gpu_results import tell

PACKAGES = "numpy", "scipy", "torch", "cupy-cuda13x", "cupy-cuda12x", "numba", "torchaudio"


@contextmanager
def _device(on_host: bool) -> Iterator[int]:
    """The index of the device, which is current."""
    index, seen = 0, nullcontext()
    if on_host:
        from tools.cuda_on_host import libcuda

        index, seen = libcuda.device_with(GPUS[90], {}), libcuda.visible()
    import cupy

    with seen, cupy.cuda.Device(index):
        yield index


def describe(on_host: bool) -> None:
    facts: dict[str, Any] = {"python": platform.python_version(), "cores": os.cpu_count()}
    for package in PACKAGES:
        try:
            facts[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            facts[package] = None
    with _device(on_host) as index:
        import cupy

        limits = cuda_device._limits(index)
        facts |= {"nvrtc": ".".join(map(str, cupy.cuda.nvrtc.getVersion())), **limits._asdict()}
        if not on_host:
            import torch

            facts["device"] = torch.cuda.get_device_name(0)
            facts["driver"] = cupy.cuda.runtime.driverGetVersion()
            facts["cudnn"] = torch.backends.cudnn.version()
        recursions = {k.cluster: k for k in all_kernels(limits) if k.name == "forward"}
        # A dry run asks for one, since each is compiled.
        for cluster in [4] if on_host else sorted(recursions):
            kernel = recursions[cluster]
            block = int(dict(kernel.defines)["THREADS"])
            at_once = cuda_device._at_once(kernel, index, block, limits.shared_bytes)
            facts[f"clusters of {cluster}"] = at_once
    tell("versions", True, "; ".join(f"{name} {value}" for name, value in facts.items()), facts=facts)


def compile_all(on_host: bool) -> None:
    """Every text of every configuration into CuPy's cache; one process for each core but two."""
    limits = GPUS[90] if on_host else cuda_device._limits(0)
    modules = sorted({(k.text, k.defines, k.cooperative) for k in all_kernels(limits)}, key=repr)
    start = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(max(1, (os.cpu_count() or 4) - 2)) as pool:
        for words in pool.imap_unordered(_compile, [] if on_host else modules):
            if words:
                tell("compile", False, words)
    would = "would be compiled" if on_host else f"in {time.monotonic() - start:.1f} s"
    tell("compile", True, f"{len(modules)} modules {would}")


def _compile(module: tuple[str, Any, bool]) -> str:
    """What went wrong."""
    text, defines, cooperative = module
    try:
        with _device(on_host=False):
            cuda_device._module(text, defines, cooperative, 0).compile()
    except Exception as error:
        return f"{KernelSpec(text, '', defines)}: {error}"
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__)
    jobs = {"describe": describe, "compile": compile_all}
    parser.add_argument("what", choices=jobs)
    parser.add_argument("--on-host", action="store_true")
    options = parser.parse_args(arguments)
    jobs[options.what](options.on_host)
    return 0


if __name__ == "__main__":
    sys.exit(main())
