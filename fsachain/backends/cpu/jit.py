"""`jit`, the one decorator of all numba kernels: how they are compiled, where their machine code is kept, what is said.

Numba's own cache looks at the file of a kernel alone, so a change in a helper of another file leaves stale machine code in
use; it names files by counting, so that two processes that compile at the same time may take each other's; and it raises
where no folder can be written, or ignores a filled one that is read-only. `KernelCache` has none of that: a file holds one
compilation, its name is made of all that the code depends on, it is written at once or not at all, and every folder that
can be read is looked at.
"""

from __future__ import annotations

import gc
import hashlib
import logging
import os
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import numba
from llvmlite.binding import Linkage
from numba.core import typed_passes, untyped_passes
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, CompileResult
from numba.core.compiler_machinery import PassManager
from numba.core.serialize import dumps

from fsachain import progress
from fsachain.backends.cpu.flush import flush_in

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

# For code that makes no arrays: no references are counted.
NO_COUNTS: dict[str, Any] = {"_nrt": False}
# For code that only compiled code calls.
NO_WRAPPERS: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
DIGEST = 32  # bytes of sha256
PASSES = (  # of a helper
    untyped_passes.TranslateByteCode,
    untyped_passes.FixupArgs,
    untyped_passes.IRProcessing,
    untyped_passes.GenericRewrites,
    untyped_passes.ReconstructSSA,
    typed_passes.NopythonTypeInference,
    typed_passes.PreLowerStripPhis,
    typed_passes.IRLegalization,
    typed_passes.NativeLowering,
    typed_passes.NoPythonBackend,
)

_WRAPPERS = ("_ZN7cpython", "cfunc.")  # how names of numba's wrappers begin

_config: Any = numba.config  # its names are made at run time
_logger = logging.getLogger("fsachain")
_said: set[str] = set()


def jit(function: Callable[..., Any]) -> Any:
    """Compile `function` on first use, for each combination of argument types, and keep the machine code.

    Kernels release the GIL and divide as numpy does. Machine code is looked for in NUMBA_CACHE_DIR where that is set, else
    in `__pycache__` beside the source and in the user's cache folder. It is written to the first of these that can be
    written; where none can be, each process compiles anew. A change of any Python file in the kernel's folder voids it.

    The first real compilation of a process is announced once, as a warning of the logger "fsachain"; FSACHAIN_QUIET, set to
    anything, or a higher level of that logger silence it.
    """
    return with_cache(numba.njit(nogil=True, error_model="numpy", pipeline_class=_KernelCompiler)(function))


def jit_on_views(function: Callable[..., Any]) -> Any:
    """`jit` for kernels that make no arrays but views of their arguments, so that no references need be counted.

    Counting all arrays of a tuple in every call would take as long as a frame of a small graph.
    """
    options: dict[str, Any] = {"no_cfunc_wrapper": True, "pipeline_class": _KernelCompiler, **NO_COUNTS}
    return with_cache(numba.njit(nogil=True, error_model="numpy", **options)(function))


def helper(function: Callable[..., Any], **more: Any) -> Any:
    """`jit_on_views` for what only other kernels call: no machine code is made of it, and none is kept, but in these."""
    return numba.njit(
        nogil=True, error_model="numpy", pipeline_class=_HelperCompiler, **NO_COUNTS, **NO_WRAPPERS, **more
    )(function)


def inlined(function: Callable[..., Any]) -> Any:
    """`helper` without a call, for what is called for each row of a loop.

    A call hands over every field of every array, and saves and loads all constants that the loop keeps in registers: 10 ns.
    """
    return helper(function, forceinline=True)


class _HelperLibrary(JITCodeLibrary):
    """Code to be linked into kernels, which are optimised and translated as a whole: nothing is done for it alone."""

    @property
    def codegen(self) -> Any:
        return self  # of which only `set_env` is asked

    def set_env(self, name: str, environment: Any) -> None:
        pass

    def get_pointer_to_function(self, name: str) -> int:
        return 0

    def add_linking_library(self, library: Any) -> None:
        self._linking_libraries.append(library)

    def finalize(self) -> None:
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == Linkage.external:
                function.linkage = "linkonce_odr"
        self._shared_module = self._final_module
        self._finalize_dynamic_globals()
        self._finalized = True


class _KernelLibrary(JITCodeLibrary):
    """Code to which that of all helpers is linked, once each."""

    _linking_libraries: list[Any]

    def add_ir_module(self, ir_module: Any) -> None:
        for function in ir_module.functions:
            # The kernel itself; what Python calls is a function around it, in a module of its own.
            if not function.is_declaration and not function.name.startswith(_WRAPPERS):
                flush_in(function)
        super().add_ir_module(ir_module)

    def finalize(self) -> None:
        # Each after all that call it: LLVM leaves out what nothing calls yet.
        ordered: dict[Any, None] = {}

        def visit(library: Any) -> None:
            if library not in ordered:
                for other in library._linking_libraries if isinstance(library, _HelperLibrary) else ():
                    visit(other)
                ordered[library] = None

        for library in self._linking_libraries:
            visit(library)
        self._linking_libraries = list(reversed(ordered))
        super().finalize()


class _KernelCompiler(Compiler):
    def compile_extra(self, function: Any) -> Any:
        """Without Python's collector: with all that torch and numba hold it takes a seventh of the time.

        What is left then is garbage, which `files.without_collector` would keep.
        """
        self.state.library = library = _KernelLibrary(self.state.targetctx.codegen(), function.__qualname__)
        library.enable_object_caching()
        was_on = gc.isenabled()
        gc.disable()
        try:
            return super().compile_extra(function)
        finally:
            if was_on:
                gc.enable()


class _HelperCompiler(Compiler):
    """Numba's compiler less the passes for what helpers have not: closures, generators, exceptions, expressions of arrays.

    Each of them goes through all of a function and finds anew which variables live.
    """

    def __init__(self, typing: Any, target: Any, library: Any, *rest: Any) -> None:
        super().__init__(typing, target, library or _HelperLibrary(target.codegen(), "helper"), *rest)

    def define_pipelines(self) -> list[PassManager]:
        passes = PassManager("helper")
        for made_of in PASSES:
            passes.add_pass(made_of, made_of.__name__)
        passes.finalize()
        return [passes]


def with_cache(dispatcher: Any) -> Any:
    """The same for what `numba.njit` returned with options of its own."""
    if not _config.DISABLE_JIT:  # else it is the function itself
        dispatcher._cache = KernelCache(dispatcher.py_func)
    return dispatcher


class KernelCache:
    """The compilations of one kernel on disk, behind the interface that numba's dispatchers expect of a cache.

    A file is the digest of the sources, the digest of the rest, and the rest: a pickle of the signature and what
    numba made of it. A file for other sources or one that is damaged counts as absent.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        source = Path(function.__code__.co_filename).absolute()
        self._kernel = f"{source.stem}.{function.__qualname__}-".replace("<", "").replace(">", "")
        self._function = function
        self._stamp = source_stamp(source.parent)
        self._folders = folders(source.parent) if self._stamp else ()

    @property
    def cache_path(self) -> str | None:
        """The folder that is tried first."""
        return str(self._folders[0]) if self._folders else None

    def load_overload(self, signature: Any, target: Any) -> Any:
        """What was compiled for this signature; None, once with a word to the user, if it must be compiled now."""
        target.refresh()
        name = self._name(signature, target.codegen())
        for folder in self._folders:
            with suppress(OSError):
                content = self._content((folder / name).read_bytes())
                if content is not None and content[0] == signature:
                    return CompileResult._rebuild(target, *content[1])
        _say("fsachain: compiling the CPU kernels; this happens once and takes some ten seconds")
        progress.wait_for(f"compiling {self._kernel[:-1]}")
        return None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Keep what was compiled, in the first folder that takes it, and remove what older sources left there."""
        progress.go_on()
        if not self._folders or result.lifted or result.library.has_dynamic_globals:
            return
        body = dumps((signature, result._reduce()))
        name = self._name(signature, result.codegen)
        for folder in self._folders:
            with suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                self._remove_stale(folder)
                _write(folder / name, self._stamp + hashlib.sha256(body).digest() + body)
                return
        places = " nor ".join(str(folder) for folder in self._folders)
        _say(
            f"fsachain: compiled kernels are lost with this process: cannot write {places}; set NUMBA_CACHE_DIR"
        )

    def flush(self) -> None:
        """Remove all that is kept of this kernel, as far as it can be."""
        for folder in self._folders:
            for path in folder.glob(f"{self._kernel}*.nbk"):
                with suppress(OSError):
                    path.unlink()

    def _name(self, signature: Any, codegen: Any) -> str:
        """Everything that tells compilations of one text apart: types, closure, processor, versions."""
        code = self._function.__code__
        cells = tuple(cell.cell_contents for cell in self._function.__closure__ or ())
        versions = sys.implementation.cache_tag, numba.__version__
        key = (str(signature), code.co_firstlineno, codegen.magic_tuple(), versions)
        text = repr(key).encode() + code.co_code + (dumps(cells) if cells else b"")
        return f"{self._kernel}{hashlib.sha256(text).hexdigest()[:24]}.nbk"

    def _content(self, data: bytes) -> Any:
        digest, body = data[DIGEST : 2 * DIGEST], data[2 * DIGEST :]
        if data[:DIGEST] != self._stamp or digest != hashlib.sha256(body).digest():
            return None
        return pickle.loads(body)

    def _remove_stale(self, folder: Path) -> None:
        for path in folder.glob(f"{self._kernel}*.nbk"):
            with suppress(FileNotFoundError):  # another process does the same
                with path.open("rb") as file:
                    is_stale = file.read(DIGEST) != self._stamp
                if is_stale:
                    path.unlink()


@cache
def source_stamp(folder: Path) -> bytes:
    """A digest of all Python files in the folder: kernels call helpers of several of them. Empty if there are none."""
    digest, paths = hashlib.sha256(), sorted(folder.glob("*.py"))
    for path in paths:
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)} ".encode() + content)
    return digest.digest() if paths else b""


def folders(source: Path) -> tuple[Path, ...]:
    """Where machine code of the kernels in the folder `source` may be kept, best first."""
    own = f"{source.name}_{hashlib.sha256(str(source).encode()).hexdigest()[:16]}"
    if _config.CACHE_DIR:
        return (Path(_config.CACHE_DIR).absolute() / own,)
    users = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))  # noqa: PTH111, this one never raises
    return (source / "__pycache__", *([users / "fsachain" / own] if users.is_absolute() else []))


def _write(path: Path, data: bytes) -> None:
    """Write the file at once: another process sees all of it or none."""
    temporary = path.with_name(f"{path.stem}.{uuid4().hex}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _say(message: str) -> None:
    # Threads do not meet here: numba holds its compiler lock around all calls of a cache.
    if message not in _said and not os.environ.get("FSACHAIN_QUIET"):
        _logger.warning(message)
    _said.add(message)
