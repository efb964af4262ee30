"""The reference backend against every path written out (tests/enumeration.py)."""

import itertools
import math
import shutil
import subprocess

import numpy as np
import pytest
import tolerances
from enumeration import all_paths, enumerate_paths
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import graphs, leaking_tables, score_matrices

from fsachain import DenominatorGraph, Fsa, TableBatch, best_path, compile_table, forward_backward, kernels
from fsachain.recursion import log_add, log_sum, log_sum_rows

NUM_PDFS = 3
THOROUGH = settings(max_examples=80)


def check_against_paths(table, fsa, scores, leaky):
    ends = {"initial": table.initial_log_prob, "final": table.final_log_prob}
    expected = enumerate_paths(fsa, scores, NUM_PDFS, init=table.leaky_log_prob, leaky=leaky, **ends)
    batch = TableBatch.pack([table])
    result = forward_backward(batch, scores[None], leaky_hmm_coefficient=leaky, backend="reference")
    assert result.log_prob[0] == pytest.approx(expected.log_prob, abs=tolerances.ENUMERATION)
    assert bool(result.ok[0]) == math.isfinite(expected.log_prob)
    for found, right in (
        (result.occupancy[0], expected.occupancy),
        (result.arc_occupancy(0), expected.arc_occupancy),
        (result.state_occupancy(0), expected.state_occupancy),
    ):
        np.testing.assert_allclose(found, right, rtol=0.0, atol=tolerances.ENUMERATION)
    return expected


@THOROUGH
@given(st.data(), graphs(), st.integers(0, 4))
def test_reference_equals_path_enumeration(data, fsa, num_frames):
    scores = data.draw(score_matrices(num_frames))
    table = compile_table(fsa, NUM_PDFS)
    expected = check_against_paths(table, fsa, scores, 0.0)
    path = best_path(TableBatch.pack([table]), scores[None], backend="reference")
    assert path.score[0] == pytest.approx(expected.best_score, abs=tolerances.ENUMERATION)


@THOROUGH
@given(st.data(), graphs(max_states=3, max_arcs=5), st.integers(0, 3), st.sampled_from([1e-5, 0.1, 1.0]))
def test_leaks_equal_explicit_extra_transitions(data, fsa, num_frames, leaky):
    scores = data.draw(score_matrices(num_frames))
    check_against_paths(data.draw(leaking_tables(fsa)), fsa, scores, leaky)


@pytest.mark.parametrize("leaky", [0.0, 1e-5, 0.1, 1.0])
@pytest.mark.parametrize("start_final", [("stationary", "one"), ("start", "fsa"), ("stationary", "fsa")])
def test_denominators_equal_path_enumeration(leaky, start_final):
    initial, final = start_final
    fsa = Fsa(3, [0, 0, 1, 2, 2], [0, 1, 2, 0, 1], [0, 1, 2, 0, 1], np.log([0.5, 0.4, 0.7, 0.3, 0.6]),
              np.log([0.1, 0.3, 0.1]))  # fmt: skip
    graph = DenominatorGraph(fsa, NUM_PDFS, initial=initial, final=final)
    scores = np.random.default_rng(0).normal(size=(4, NUM_PDFS))
    check_against_paths(graph.table, fsa, scores, leaky)


def test_the_enumerator_counts_paths():
    """All scores 0 on a complete graph of 2 states with 2 pdfs: 4 paths leave each state in each frame."""
    fsa = Fsa(2, *zip(*itertools.product(range(2), repeat=3), strict=True), [0.0] * 8, [0.0, 0.0])
    assert len(all_paths(fsa, np.zeros((3, 2)))) == 4**3


# The one (+) of the equations, and log-sums, over {log-zero, finite, equal, far apart}; in the text of the kernels too.


INF = math.inf
CASES = [
    (-INF, -INF, -INF), (-INF, 3.0, 3.0), (3.0, -INF, 3.0), (-2.0, -2.0, -2.0 + math.log(2.0)),
    (1e6, 1e6, 1e6 + math.log(2.0)), (0.0, 1e4, 1e4), (-1e4, 0.0, 0.0),
    (1.0, 2.0, 2.0 + math.log1p(math.exp(-1.0))), (-1e300, 1e300, 1e300),
]  # fmt: skip
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
