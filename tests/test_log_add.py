"""The one (+) of the equations, and log-sums, over {log-zero, finite, equal, far apart}; in the text of the kernels too."""

import math
import shutil
import subprocess

import numpy as np
import pytest
import tolerances

from fsachain import kernels
from fsachain.recursion import log_add, log_sum, log_sum_rows

INF = math.inf
CASES = [
    (-INF, -INF, -INF),
    (-INF, 3.0, 3.0),
    (3.0, -INF, 3.0),
    (-2.0, -2.0, -2.0 + math.log(2.0)),
    (1e6, 1e6, 1e6 + math.log(2.0)),
    (0.0, 1e4, 1e4),
    (-1e4, 0.0, 0.0),
    (1.0, 2.0, 2.0 + math.log1p(math.exp(-1.0))),
    (-1e300, 1e300, 1e300),
]
PROGRAM = r"""
#include <cstdio>
#include "log_add.cuh"
int main() {
  double a, b;
  while (std::scanf("%lf %lf", &a, &b) == 2)
    std::printf("%.17g %.9g\n", fsachain::log_add<double>(a, b), fsachain::log_add<float>((float)a, (float)b));
}
"""


@pytest.mark.parametrize("add", [log_add, lambda x, y: log_sum(np.array([x, y]))])
def test_log_add_of_two(add):
    for x, y, expected in CASES:
        assert float(add(x, y)) == pytest.approx(expected, rel=tolerances.LOG_ADD, abs=0.0)


def test_log_sum_rows_keeps_empty_rows_and_rows_of_log_zero():
    values = np.array([-INF, -INF, 0.0, 1.0, -INF])
    rows = log_sum_rows(values, np.array([0, 0, 2, 4, 5, 5]))
    assert rows.tolist() == pytest.approx(
        [-INF, -INF, 1.0 + math.log1p(math.exp(-1.0)), -INF, -INF], rel=tolerances.LOG_ADD, abs=0.0
    )


def test_the_kernels_text_gives_the_same(tmp_path):
    """A host compiler accepts the text that a GPU gets."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("neither g++ nor clang++ is installed")
    (tmp_path / "log_add.cuh").write_text(kernels.read("log_add.cuh"))
    (tmp_path / "main.cc").write_text(PROGRAM)
    command = [compiler, "-std=c++11", "-Wall", "-Wextra", "-Werror", "-O2", "main.cc", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    within_float = [case for case in CASES if max(map(abs, case[:2])) < 1e38 or -INF in case[:2]]
    lines = "".join(f"{x!r} {y!r}\n" for x, y, _ in within_float)
    done = subprocess.run([tmp_path / "main"], input=lines, text=True, capture_output=True, check=True)
    got = np.array([[float(word) for word in line.split()] for line in done.stdout.splitlines()])
    want = np.array([expected for *_, expected in within_float])
    np.testing.assert_allclose(got[:, 0], want, rtol=tolerances.LOG_ADD)
    np.testing.assert_allclose(got[:, 1], want, rtol=tolerances.LOG_ADD_FLOAT32)
