"""Compiles every kernel as a GPU's user would, without a GPU: registers, shared memory and spills of each, by architecture.

    python -m tools.cuda_compile [--main] [--architectures 75 80 90 100]

NVRTC comes with the extra cuda13 (or cuda12). What has been compiled is remembered in build/cuda_compile.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fsachain.kernels import read_unit

from fsachain.backends.cuda.device import OPTIONS, KernelSpec
from tools import ROOT, parser_of
from tools.cuda_configurations import GPUS, all_kernels, main_kernels
from tools.cuda_on_host.libcuda import find_nvrtc

CACHE = ROOT / "build" / "cuda_compile"
Defines = tuple[tuple[str, int | str], ...]

# What ptxas says of a kernel, in several lines; shared memory only where there is some.
_ENTRY = re.compile(
    r"Compiling entry function '(?P<name>\w+)'"
    r"(?:(?!Compiling entry function).)*?(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads(?:(?!Compiling entry function).)*?Used (?P<registers>\d+) registers"
    r"(?:[^\n]*?(?P<shared>\d+) bytes smem)?",
    re.DOTALL,
)


class CompileError(Exception):
    """NVRTC refuses a text; the message is its log."""


@dataclass(frozen=True)
class Entry:
    """What the compiler says about one kernel in one configuration.

    `architecture` is 90 for sm_90. Registers and `stack_bytes` (spills included) are of a thread, `shared_bytes` the static
    shared memory of a block, `spill_bytes` the stores and loads of registers that did not fit, in the text.
    """

    text: str
    name: str
    defines: Defines
    architecture: int
    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int


def skip_reason() -> str | None:
    """Why nothing can be compiled; None where it can."""
    if importlib.util.find_spec("cupy") is None:
        return "cupy is not installed; pip install 'fsachain[cuda13]' brings it and NVRTC"
    find_nvrtc()
    try:
        from cupy.cuda import nvrtc

        nvrtc.getVersion()
    except Exception as error:  # cupy raises what the missing library makes it raise
        return f"NVRTC cannot be loaded ({str(error).splitlines()[0]})"
    return None


@cache
def include_folders() -> tuple[str, ...]:
    """Where the headers of CUDA and of its C++ library lie in the installed wheels."""
    import cupy

    found = [Path(cupy.__file__).parent / "_core" / "include" / "cupy" / "_cccl" / "libcudacxx"]
    wheels = importlib.util.find_spec("nvidia")
    for root in (wheels.submodule_search_locations or []) if wheels else []:
        for part in ("cu13/include", "cuda_runtime/include"):
            found.append(Path(root) / part)
    return tuple(str(folder) for folder in found if folder.is_dir())


def compile_text(name: str, source: str, defines: Defines, architecture: int) -> list[Entry]:
    """Compile a text with what it includes, with the options that `cuda_device` and CuPy give; an entry for each kernel."""
    from cupy.cuda import nvrtc

    options = [*OPTIONS, "-ftz=true", "--ptxas-options=-v", f"--gpu-architecture=sm_{architecture}"]
    options += [f"-D{key}={value}" for key, value in defines]
    key = "\0".join((str(nvrtc.getVersion()), source, *options))
    kept = CACHE / f"{Path(name).stem}-{hashlib.sha256(key.encode()).hexdigest()[:24]}.log"
    if not kept.is_file():
        program = nvrtc.createProgram(source, name, (), ())
        try:
            nvrtc.compileProgram(program, (*options, *(f"-I{folder}" for folder in include_folders())))
            log = nvrtc.getProgramLog(program)
        except nvrtc.NVRTCError:
            message = f"{name} for sm_{architecture} with {dict(defines)}:\n{nvrtc.getProgramLog(program)}"
            raise CompileError(message) from None
        finally:
            nvrtc.destroyProgram(program)
        CACHE.mkdir(parents=True, exist_ok=True)
        kept.write_text(log)
    log = kept.read_text()
    entries = []
    for found in _ENTRY.finditer(log):
        stack, stores, loads, registers, shared = map(int, found.groups("0")[1:])
        entries.append(
            Entry(name, found["name"], defines, architecture, registers, shared, stack, stores + loads)
        )
    if len(entries) != log.count("Compiling entry function"):
        raise CompileError(f"{name}: the log of the compiler does not tell what each kernel needs:\n{log}")
    return entries


def compile_kernels(kernels: Sequence[KernelSpec], architecture: int) -> list[Entry]:
    """Compile each text once for each of its configurations; entries that are not asked for are left out.

    `CompileError` also where a text has no kernel of the name that is launched.
    """
    modules = sorted({(kernel.text, kernel.defines) for kernel in kernels}, key=repr)
    with ThreadPoolExecutor(max_workers=2) as pool:
        results = pool.map(lambda m: compile_text(m[0], read_unit(m[0]), m[1], architecture), modules)
        found = {(entry.text, entry.name, entry.defines): entry for entries in results for entry in entries}
    wanted = [(kernel.text, kernel.name, kernel.defines) for kernel in kernels]
    for key in wanted:
        if key not in found:
            raise CompileError(f"{key[0]} for sm_{architecture} with {dict(key[2])} has no kernel {key[1]!r}")
    return [found[key] for key in dict.fromkeys(wanted)]


def table(entries: Sequence[Entry]) -> str:
    head = "kernel", "sm", "registers", "shared", "stack", "spills"
    lines = ["{:34} {:>4} {:>9} {:>7} {:>6} {:>6}  configuration".format(*head)]
    for e in entries:
        numbers = f"{e.architecture:4} {e.registers:9} {e.shared_bytes:7} {e.stack_bytes:6} {e.spill_bytes:6}"
        configuration = " ".join(f"{key}={value}" for key, value in e.defines)
        lines.append(f"{f'{Path(e.text).stem}: {e.name}':34} {numbers}  {configuration}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """1 where registers were spilled."""
    parser = parser_of(__doc__)
    parser.add_argument("--main", action="store_true", help="only what float32 scores usually need")
    parser.add_argument("--architectures", type=int, nargs="+", default=list(GPUS), choices=list(GPUS))
    options = parser.parse_args(arguments)
    if reason := skip_reason():
        print(reason)
        return 2
    choose = main_kernels if options.main else all_kernels
    entries = [entry for one in options.architectures for entry in compile_kernels(choose(GPUS[one]), one)]
    print(table(entries))
    spilled = [entry for entry in entries if entry.spill_bytes]
    print(f"{len(entries)} kernels compiled, {len(spilled)} with spilled registers")
    return int(bool(spilled))


if __name__ == "__main__":
    sys.exit(main())
