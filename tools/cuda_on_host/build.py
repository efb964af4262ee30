"""Compiles kernel texts with the host's g++: a library for each configuration, or a program under a sanitizer.

What has been compiled is kept in the folder build/ of the repository, by a hash of all that it is made from.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from enum import Enum
from functools import cache, lru_cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build" / "cuda_on_host"

Defines = tuple[tuple[str, int | str], ...]

_COMMON = (
    "-std=c++17",
    "-pthread",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unknown-pragmas",
    "-Wno-sign-compare",
    "-Wno-unused-parameter",
)
_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
_NUMBERS = r"\(((?:[^()]|\([^()]*\))*)\)"
_ENTRY = re.compile(
    rf"\bcoh_entry\s+void\s+(?:coh_bounds{_NUMBERS}\s*)?(?:coh_cluster{_NUMBERS}\s*)?(\w+)\s*\("
)
# What the preprocessor leaves of the words that `_ENTRY` looks for.
_MARKS = (
    "-D__global__=coh_entry",
    "-D__launch_bounds__(...)=coh_bounds(__VA_ARGS__)",
    "-D__cluster_dims__(...)=coh_cluster(__VA_ARGS__)",
)
_SHARED = re.compile(r"^.*__shared__.*$", re.MULTILINE)
_DYNAMIC = re.compile(r"^extern __shared__ __align__\(\d+\) unsigned char shared_memory\[\];")


class Sanitizer(Enum):
    """What watches a program while it runs; the value holds the compiler's options."""

    ADDRESS_AND_UNDEFINED = (
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        "-fno-omit-frame-pointer",
    )
    THREAD = ("-fsanitize=thread", "-fno-omit-frame-pointer")


class BuildError(Exception):
    """The text of a kernel does not compile on the host, or breaks a rule that the host relies on."""


@lru_cache(maxsize=1)
def _compiler() -> tuple[str, str]:
    path = shutil.which("g++")
    if path is None:
        raise BuildError("g++ is not installed")
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    return path, version.splitlines()[0]


def _texts_of(folder: Path, name: str) -> list[str]:
    """The text `name` of a folder and all texts beside it that it includes, in the order of their names."""
    found: dict[str, str] = {}
    wanted = [name]
    while wanted:
        current = wanted.pop()
        if current in found or not (folder / current).is_file():
            continue
        found[current] = text = (folder / current).read_text(encoding="utf-8")
        wanted += _INCLUDE.findall(text)
        for line in _SHARED.findall(re.sub(r"//.*", "", text)):
            if not _DYNAMIC.match(line.strip()):
                raise BuildError(
                    f"{current}: {line.strip()!r}: shared memory is declared once, at file scope, as "
                    "'extern __shared__ __align__(16) unsigned char shared_memory[];'"
                )
    if name not in found:
        raise BuildError(f"{folder} has no kernel text {name!r}")
    return [found[name] for name in sorted(found)]


def _source(folder: Path, name: str, options: Sequence[str]) -> str:
    """A text that includes the kernels' and adds, for each of them, how to call it and what it says about its launch."""
    include = f'#include "cuda_on_host.h"\n#include "{(folder / name).resolve()}"\n'
    lines = [include]
    for bounds, cluster, entry in _ENTRY.findall(
        _compile(["-E", "-P", *_MARKS, *options, "-x", "c++", "-"], include)
    ):
        lines.append(
            f'extern "C" void {entry}__launch(const std::uint64_t* slots) {{ cuda_on_host::call(&{entry}, slots); }}\n'
            f'extern "C" const char* {entry}__signature() {{ return cuda_on_host::signature(&{entry}); }}\n'
            f'extern "C" int {entry}__threads() {{ return cuda_on_host::first({bounds or 1024}); }}\n'
            f'extern "C" int {entry}__cluster() {{ return cuda_on_host::first({cluster or 1}); }}\n'
        )
    return "".join(lines)


def _compile(options: Sequence[str], source: str | None) -> str:
    """What the compiler prints, given a text on its standard input."""
    command = [_compiler()[0], *_COMMON, f"-I{HERE / 'include'}", f"-I{HERE}", *options]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


def _make(
    kind: str,
    suffix: str,
    options: Sequence[str],
    inputs: Sequence[str],
    source: Callable[[], str] | None = None,
) -> Path:
    """The result of one run of the compiler, from the cache where it is there.

    Args:
        kind, suffix: parts of the file's name.
        options: of the compiler.
        inputs: all texts that the result depends on beside our headers.
        source: makes the text that the compiler reads from its standard input.
    """
    own = (path.read_text() for path in sorted([*HERE.glob("*.h"), *HERE.glob("include/*.h")]))
    key = "\0".join((_compiler()[1], "".join(own), *inputs, *options))
    target = BUILD / f"{kind}-{hashlib.sha256(key.encode()).hexdigest()[:24]}{suffix}"
    if target.is_file():
        return target
    BUILD.mkdir(parents=True, exist_ok=True)
    # Other processes may make the same file: each writes its own and puts it in place at once.
    mine = target.with_name(f"{target.stem}.{os.getpid()}{suffix}")
    read = [] if source is None else ["-x", "c++", "-"]
    _compile([*options, "-o", str(mine), *read], None if source is None else source())
    mine.replace(target)
    return target


@lru_cache(maxsize=1)
def driver() -> Path:
    """The library libcuda.so.1, which runs kernels in this process."""
    # Kernels reach variables of threads as those of a library that was there from the start.
    options = ["-O2", "-shared", "-fPIC", "-ftls-model=initial-exec", "-Wl,-soname,libcuda.so.1"]
    sources = [HERE / f"{part}.cc" for part in ("runtime", "libcuda")]
    return _make("libcuda", ".so", [*options, *map(str, sources)], [path.read_text() for path in sources])


def _make_of_kernels(suffix: str, options: Sequence[str], folder: Path, name: str, defines: Defines) -> Path:
    own = [f"-I{folder}", *(f"-D{macro}={value}" for macro, value in defines)]
    made = Path(name).stem, suffix, [*options, *own], _texts_of(folder, name)
    return _make(*made, lambda: _source(folder, name, own))


@cache
def library(folder: Path, name: str, defines: Defines) -> Path:
    """A library with the kernels of one text; it finds what runs them in the library `driver()`.

    Args:
        folder: where the text and what it includes lie.
        name: file name of the text.
        defines: macros (name, value) that stand before the text.

    Raises:
        BuildError: the text does not compile, or declares shared memory otherwise than once at file scope.
    """
    options = ["-O1", "-shared", "-fPIC", "-ftls-model=initial-exec"]
    return _make_of_kernels(".so", options, folder, name, defines)


def program(folder: Path, name: str, defines: Defines, sanitizer: Sanitizer) -> Path:
    """A program that replays launches of the kernels of one text under a sanitizer; arguments as for `library`."""
    # Without optimisation no access is left out; the compiler is also twice as fast.
    watched = ["-O0", "-g1", *sanitizer.value]
    sources = [HERE / f"{part}.cc" for part in ("runtime", "runner")]
    parts = [_make(path.stem, ".o", [*watched, "-c", str(path)], [path.read_text()]) for path in sources]
    return _make_of_kernels(".exe", [*watched, "-rdynamic", *map(str, parts)], folder, name, defines)
