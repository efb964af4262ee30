"""The cache of machine code, as processes meet it: cold, warm, stale, damaged, read-only, several at once.

Each test runs a small package of kernels in processes of its own. Folders that cannot be written are made of files in
their place, because permissions do not stop root.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
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


def test_a_process_that_compiles_says_so_once_and_the_next_one_loads_in_silence(kernels):
    lines, said = kernels.run("float64 float32")
    assert lines == ["20.0 0 1", "20.0 0 2"]
    assert said.count(ANNOUNCED) == said.count("\n") == 1
    assert kernels.run("float64 float32") == (["20.0 1 0", "20.0 2 0"], "")
    assert not kernels.of_user.exists()


@pytest.mark.parametrize(
    ("before", "environment"),
    [
        ("", {"FSACHAIN_QUIET": "1"}),
        ("import logging; logging.getLogger('fsachain').setLevel(logging.ERROR)", {}),
    ],
    ids=["environment", "logger"],
)
def test_the_announcement_can_be_silenced(kernels, before, environment):
    assert kernels.run("float64", before, **environment) == (["20.0 0 1"], "")


def test_a_change_in_a_helper_of_another_file_voids_the_code_that_it_is_part_of(kernels):
    kernels.run()
    before = files(kernels.beside)
    (kernels.sources / "helper.py").write_text(HELPER.replace("2 * x", "3 * x"))
    lines, said = kernels.run()
    assert lines == ["30.0 0 1"] and ANNOUNCED in said
    assert files(kernels.beside) == before, "what the older sources left is replaced, not kept"


def test_the_cache_folder_of_numba_is_respected(kernels, tmp_path):
    chosen = tmp_path / "chosen"
    for lines in (["20.0 0 1"], ["20.0 1 0"]):
        assert kernels.run(NUMBA_CACHE_DIR=str(chosen))[0] == lines
    assert len(files(chosen)) == 2
    assert not kernels.beside.exists() and not kernels.of_user.exists()


def test_a_read_only_install_keeps_its_code_in_the_folder_of_the_user(kernels):
    kernels.forbid_writing_beside_the_source()
    assert kernels.run()[0] == ["20.0 0 1"]
    assert len(files(kernels.of_user)) == 2
    assert kernels.run() == (["20.0 1 0"], "")


def test_where_nothing_can_be_written_each_process_compiles_and_says_what_helps(kernels):
    kernels.forbid_writing_beside_the_source()
    kernels.forbid_writing_at_home()
    for _ in range(2):
        lines, said = kernels.run("float64 float32")
        assert lines == ["20.0 0 1", "20.0 0 2"]
        assert said.count(ANNOUNCED) == said.count(LOST) == said.count("NUMBA_CACHE_DIR") == 1


def test_a_user_without_a_home_can_import_and_compile(kernels):
    kernels.forbid_writing_beside_the_source()
    lines, said = kernels.run(XDG_CACHE_HOME="", HOME="relative/home")
    assert lines == ["20.0 0 1"] and LOST in said


def test_code_in_a_folder_that_cannot_be_written_is_used(kernels):
    """An image that was filled when it was built and is read-only when it runs."""
    kernels.run()
    refuse = """
import pathlib
def refuse(*arguments, **options):
    raise PermissionError("read-only")
pathlib.Path.write_bytes = pathlib.Path.mkdir = pathlib.Path.unlink = refuse
"""
    assert kernels.run("float64", refuse) == (["20.0 1 0"], "")


def test_a_damaged_file_counts_as_absent_and_is_written_anew(kernels):
    kernels.run()
    whole = {path: path.stat().st_size for path in kernels.beside.glob("*.nbk")}
    for path in whole:
        path.write_bytes(path.read_bytes()[:-100])
    assert kernels.run()[0] == ["20.0 0 1"]
    assert {path: path.stat().st_size for path in whole} == whole
    assert kernels.run() == (["20.0 1 0"], "")


def test_kernels_of_one_text_that_differ_in_a_closure_are_kept_apart(kernels):
    show = "print(scaled(2.0)(1.0), scaled(5.0)(1.0))"
    assert kernels.run("float64", show)[0] == ["2.0 5.0", "20.0 0 1"]
    assert kernels.run("float64", show) == (["2.0 5.0", "20.0 1 0"], "")


def test_four_processes_at_once_on_a_cold_cache_all_compute_and_fill_it(kernels):
    """Each compiles the types in another order, so that files named by counting would be mixed up."""
    orders = [
        "float64 float32 int64",
        "float32 int64 float64",
        "int64 float64 float32",
        "int64 float32 float64",
    ]
    started = [kernels.start(order) for order in orders]
    for process, order in zip(started, orders, strict=True):
        values = {"int64": "20", "float32": "20.0", "float64": "20.0"}
        assert [line.split()[0] for line in finished(process)[0]] == [values[name] for name in order.split()]
    assert len(files(kernels.beside)) == 6
    for order in orders:
        lines, said = kernels.run(order)
        assert lines[-1].split()[1:] == ["3", "0"] and not said


def test_the_package_can_be_imported_where_nothing_can_be_written(kernels):
    """The CPU backend of a real copy, whose kernels are all decorated at import."""
    copy = kernels.sources.parent / "fsachain"
    for source in (ROOT / "fsachain").rglob("*.py"):
        target = copy / source.relative_to(ROOT / "fsachain")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
        (target.parent / "__pycache__").touch()
    kernels.forbid_writing_at_home()
    show = "import fsachain.backends.cpu.backend as b; print(b.__file__)"
    kernels.forbid_writing_beside_the_source()
    assert kernels.run("", show)[0] == [str(copy / "backends" / "cpu" / "backend.py")]


def test_every_kernel_of_the_package_is_compiled_by_the_one_decorator():
    with_numba = {
        path.name for path in (ROOT / "fsachain").rglob("*.py") if "numba.njit" in path.read_text("utf-8")
    }
    assert with_numba == {"jit.py"}
