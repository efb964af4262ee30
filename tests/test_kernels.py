"""The kernel texts are C++ that a host compiler accepts; what runs here is the text that a GPU gets."""

import math
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tolerances

from fsachain import kernels

INF = math.inf
PROGRAM = r"""
#include <cstdio>
#include "log_add.cuh"
int main() {
  double a, b;
  while (std::scanf("%lf %lf", &a, &b) == 2)
    std::printf("%.17g %.9g\n", fsachain::log_add<double>(a, b),
                fsachain::log_add<float>((float)a, (float)b));
}
"""
OPERANDS = [
    (-INF, -INF),
    (-INF, 0.5),
    (0.5, -INF),
    (-3.25, -3.25),
    (0.0, -1e4),
    (-1e4, 0.0),
    (1e30, 1e30),
    (-1.0, 2.0),
    (700.0, 710.0),
]


@pytest.fixture(scope="module")
def log_add_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("neither g++ nor clang++ is installed")
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "log_add.cuh").write_text(kernels.read("log_add.cuh"))
    (folder / "main.cc").write_text(PROGRAM)
    command = [compiler, "-std=c++11", "-Wall", "-Wextra", "-Werror", "-O2", "main.cc", "-o", "main"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "main"


def test_log_add_text_agrees_with_numpy_at_the_edges(log_add_program: Path) -> None:
    lines = "".join(f"{a!r} {b!r}\n" for a, b in OPERANDS)
    output = subprocess.run([log_add_program], input=lines, text=True, capture_output=True, check=True).stdout
    got = np.array([[float(word) for word in line.split()] for line in output.splitlines()])
    want = np.array([np.logaddexp(a, b) for a, b in OPERANDS])
    assert got.shape == (len(OPERANDS), 2)
    np.testing.assert_allclose(got[:, 0], want, rtol=tolerances.LOG_ADD)
    np.testing.assert_allclose(got[:, 1], want, rtol=tolerances.LOG_ADD_FLOAT32)


def test_unknown_kernel_names_those_there_are() -> None:
    with pytest.raises(FileNotFoundError, match=r"log_add\.cuh"):
        kernels.read("no_such.cuh")
