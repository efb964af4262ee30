"""The cache of machine code where it is silenced, damaged, read-only, or filled by several processes at once."""

import os
import subprocess
import sys

import pytest
import torch
from test_jit import ANNOUNCED, LOST, ROOT, Kernels, files, finished

from fsachain.asr.cli.warmup import JOBS


@pytest.fixture
def kernels(tmp_path):
    return Kernels(tmp_path)


@pytest.mark.parametrize(
    ("before", "environment"),
    [("", {"FSACHAIN_QUIET": "1"}), ("import logging; logging.getLogger('fsachain').setLevel(logging.ERROR)", {})],
    ids=["environment", "logger"],
)  # fmt: skip
def test_the_announcement_can_be_silenced(kernels, before, environment):
    assert kernels.run("float64", before, **environment) == (["20.0 0 1"], "")


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


# `fsachain warmup` leaves nothing to be compiled to the work that it is for.


WORK = """
import torch, fsachain
scores = torch.randn(5, 300, 50, requires_grad=True)
loop = fsachain.Fsa(1, [0] * 50, [0] * 50, list(range(50)), [-4.0] * 50, [0.0])
said = [fsachain.Fsa(3, [0, 1, 1], [1, 1, 2], [n, n, 7], [-0.1] * 3, [-float("inf")] * 2 + [0.0]) for n in range(5)]
loss = fsachain.LFMMILoss(fsachain.DenominatorGraph(loop, 50), leaky_hmm_coefficient=0.2, l2_regularize=1e-3)
for factor in (1, 500):
    loss(scores * factor, [300, 300, 90, 80, 3], said).backward()
"""


def run(folder, *arguments):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    environment.pop("FSACHAIN_QUIET", None)
    return subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )


def test_losses_compile_nothing_after_it(tmp_path):
    run(tmp_path, "-m", "fsachain", "warmup")
    made = sorted(tmp_path.rglob("*.nbk"))
    assert made
    told = run(tmp_path, "-c", WORK).stderr
    assert "compiling" not in told
    assert sorted(tmp_path.rglob("*.nbk")) == made


@pytest.mark.parametrize("job", JOBS)
def test_every_job_runs(job):
    JOBS[job](2, 1.0, torch.float32)
