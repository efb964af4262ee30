"""The cache of machine code, as processes meet it: cold, warm, stale; tests/slow has the rest.

Each test runs a small package of kernels in processes of its own. Folders that cannot be written are made of files in
their place, because permissions do not stop root.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ANNOUNCED = "fsachain: compiling the CPU kernels"
LOST = "fsachain: compiled kernels are lost with this process"
HELPER = """
from fsachain.backends.cpu.jit import jit

@jit
def weigh(x):
    return 2 * x
"""
KERNEL = """
from fsachain.backends.cpu.jit import jit
from {package}.helper import weigh

@jit
def total(x):
    s = x.dtype.type(0)
    for i in range(len(x)):
        s += weigh(x[i])
    return s

def scaled(factor):
    @jit
    def scale(x):
        return factor * x
    return scale
"""
SHARED = """
from fsachain.backends.cpu.jit import helper, jit

NEVER = False

@helper
def shared(x, i):
    return 2 * x[i]

@helper
def hardly(x, i):
    return shared(x, i) if NEVER else x[i] - x[i]

@helper
def again(x, i):
    return hardly(x, i) + shared(x, i)

@jit
def first(x):
    return shared(x, 0)

@jit
def total(x):
    s = first(x) + hardly(x, 0)
    for i in range(1, len(x)):
        s += again(x, i)
    return s

scaled = None
"""
RUN = """
import sys
import numpy as np
from {package}.kernel import scaled, total
{before}
for dtype in {dtypes!r}.split():
    print(total(np.arange(5, dtype=dtype)), total.stats.cache_hits.total(), total.stats.cache_misses.total())
"""


class Kernels:
    """A package with one kernel that calls a helper of another file, and a home and environment for its processes."""

    def __init__(self, folder):
        self.home, self.sources = folder / "home", folder / "site" / "toykernels"
        self.sources.mkdir(parents=True)
        self.home.mkdir()
        (self.sources / "__init__.py").touch()
        (self.sources / "helper.py").write_text(HELPER)
        (self.sources / "kernel.py").write_text(KERNEL.format(package="toykernels"))

    def start(self, dtypes="float64", before="", **environment):
        kept = {name: value for name, value in os.environ.items() if name != "FSACHAIN_QUIET"}
        paths = os.pathsep.join([str(self.sources.parent), str(ROOT)])
        home = {"HOME": str(self.home), "XDG_CACHE_HOME": str(self.home / "cache"), "PYTHONPATH": paths}
        code = RUN.format(package="toykernels", dtypes=dtypes, before=before)
        return subprocess.Popen(
            [sys.executable, "-B", "-c", code],
            env={**kept, "NUMBA_CACHE_DIR": "", **home, **environment},
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments, **environment):
        """Lines of value, hits and misses, one for each dtype; and what was said."""
        return finished(self.start(*arguments, **environment))

    @property
    def beside(self):
        return self.sources / "__pycache__"

    @property
    def of_user(self):
        return self.home / "cache" / "fsachain"

    def forbid_writing_beside_the_source(self):
        self.beside.touch()

    def forbid_writing_at_home(self):
        (self.home / "cache").touch()


def finished(process):
    output, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    return output.splitlines(), said


def files(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def kernels(tmp_path):
    return Kernels(tmp_path)


def test_code_is_compiled_once_found_by_the_next_process_and_voided_by_a_change_in_a_helper(kernels):
    lines, said = kernels.run("float64 float32")
    assert lines == ["20.0 0 1", "20.0 0 2"]
    assert said.count(ANNOUNCED) == said.count("\n") == 1
    assert kernels.run("float64 float32") == (["20.0 1 0", "20.0 2 0"], "")
    assert not kernels.of_user.exists()
    before = files(kernels.beside)
    (kernels.sources / "helper.py").write_text(HELPER.replace("2 * x", "3 * x"))
    lines, said = kernels.run("float64 float32")
    assert lines == ["30.0 0 1", "30.0 0 2"] and ANNOUNCED in said
    assert files(kernels.beside) == before, "what the older sources left is replaced, not kept"


def test_a_helper_is_linked_that_several_call_one_of_them_another_kernel_one_where_it_never_comes(kernels):
    (kernels.sources / "kernel.py").write_text(SHARED)
    assert kernels.run()[0] == ["20.0 0 1"]
    assert kernels.run() == (["20.0 1 0"], "")
