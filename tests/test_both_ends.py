"""Equation (19): what (13) cannot vouch for stays in plain numbers if log Z is the same from both ends, and only then."""

from dataclasses import replace

import numpy as np
import pytest
import tolerances
from random_graphs import left_to_right_graph, two_lobes
from test_backends_agree import assert_agrees, spies

from fsachain import TableBatch, compile_table, forward_backward
from fsachain.backends.cpu import backend as cpu

PLAIN, WIDE = "float64 plain", "float64 wide"


def pack(table, size=1):
    return TableBatch.pack([table] * size)


def fall_of_the_last(fsa, scores):
    """How far, in nats and at most, the least alpha of a left-to-right graph is behind the greatest of its time."""
    alpha = np.full(fsa.num_states, -np.inf)
    alpha[0], most = 0.0, 0.0
    for y in scores:
        after = np.full(fsa.num_states, -np.inf)
        np.logaddexp.at(after, fsa.dst, alpha[fsa.src] + fsa.log_prob + y[fsa.pdf])
        alpha, alive = after, after[after > -np.inf]
        most = max(most, alive.max() - alive.min())
    return most


@pytest.mark.parametrize(("scale", "frames"), [(10.0, 150), (30.0, 150), (2.0, 1500)])
def test_numerators_whose_slow_paths_fade_need_no_wide_numbers(scale, frames, monkeypatch):
    """Paths that stay behind fall below the least float; they have no part in Z, which both ends confirm."""
    graph = left_to_right_graph(3, num_states=80)
    scores = scale * np.random.default_rng(1).normal(size=(2, frames, 9))
    assert fall_of_the_last(graph, scores[0]) > -np.log(cpu.SMALLEST[cpu.DOUBLE])
    ran = spies(monkeypatch)
    assert_agrees(pack(compile_table(graph, 9), 2), scores)
    assert set(ran) == {PLAIN}


@pytest.mark.parametrize("gap", [100.0, 650.0, 700.0, 720.0, 745.0, 760.0, 1000.0, 3000.0])
@pytest.mark.parametrize(
    ("middle", "frames", "dtype"),
    [(1.5, 1, np.float32), (2.5, 30, np.float32), (1.5, 30, np.float64), (2.5, 1, np.float64)],
)
def test_a_path_that_is_lost_from_either_end_and_wins_in_the_middle_is_not_lost(gap, middle, frames, dtype):
    """Lobe 1 falls behind by the gap at the beginning and again at the end, and gets `middle` gaps ahead between."""
    scores = np.zeros((1, 200, 3), dtype)
    for start, pdf, fall in ((5, 1, gap), (90, 0, middle * gap), (150, 1, gap)):
        scores[0, start : start + frames, pdf] = -fall / frames
    exact = assert_agrees(pack(compile_table(two_lobes())), scores)
    wins = exact.occupancy[0, 80, 1]
    assert wins == pytest.approx(float(middle > 2.0), abs=tolerances.SURE_OCCUPANCY)


@pytest.mark.parametrize("gap", np.linspace(690.0, 750.0, 16))
@pytest.mark.parametrize("rise", [0.9, 1.0, 1.1])
def test_digits_that_subnormal_numbers_lose_are_noticed(gap, rise):
    """Alphas between the least normal float and the least of all hold few digits, and rounding may enlarge them."""
    scores = np.zeros((1, 60, 3))
    scores[0, 10, 1], scores[0, 40, 0] = -gap, -rise * gap
    assert_agrees(pack(compile_table(two_lobes())), scores)


@pytest.mark.parametrize(("gap", "kinds"), [(600.0, [PLAIN]), (900.0, [PLAIN, WIDE])])
def test_a_path_that_recovers_decides_by_how_far_it_fell(gap, kinds, monkeypatch):
    scores = np.zeros((1, 60, 3))
    scores[0, 10, 1], scores[0, 40, 0] = -gap, -gap
    ran = spies(monkeypatch)
    assert forward_backward(pack(compile_table(two_lobes())), scores).log_prob[0] == pytest.approx(
        np.log(2.0) - gap, rel=tolerances.FLOAT64
    )
    assert ran == kinds


def test_a_path_that_never_recovers_needs_no_wide_numbers(monkeypatch):
    scores = np.zeros((1, 60, 3))
    scores[0, 10, 1] = -2000.0
    ran = spies(monkeypatch)
    assert_agrees(pack(compile_table(two_lobes())), scores)
    assert set(ran) == {PLAIN}


@pytest.mark.parametrize("end", ["arc", "initial", "final"])
def test_weights_that_are_no_normal_floats_are_not_confirmed(end, monkeypatch):
    """Both ends read the same rounded weight and would agree on what is wrong."""
    table = compile_table(two_lobes())
    if end == "arc":
        table = table.with_arc_log_probs(np.array([0.0, -743.0, 0.0, 0.0]))
    elif end == "initial":
        table = replace(table, initial_log_prob=np.array([-np.inf, 0.0, -743.0]))
    else:
        table = replace(table, final_log_prob=np.array([-np.inf, 0.0, -743.0]))
    scores = np.zeros((1, 60, 3))
    scores[0, 30, 0] = -743.0
    ran = spies(monkeypatch)
    assert_agrees(pack(table), scores)
    assert WIDE in ran


@pytest.mark.parametrize("budget", [0.0, 1e9])
def test_the_decision_does_not_depend_on_the_memory(budget, monkeypatch):
    table = compile_table(left_to_right_graph(3, num_states=80), 9)
    scores = 10.0 * np.random.default_rng(1).normal(size=(1, 150, 9)).astype(np.float32)
    ran, out = spies(monkeypatch), np.zeros((1, 150, 9), np.float32)
    cpu.add_occupancy(pack(table), scores, np.array([150]), 0.0, np.ones(1), out, budget)
    assert ran == [PLAIN]
    np.testing.assert_array_equal(forward_backward(pack(table), scores).occupancy, out)


@pytest.mark.parametrize(
    ("dtype", "gap", "first"),
    [
        (np.float32, 40.0, PLAIN),
        (np.float32, 60.0, "float32 wide"),
        (np.float64, 60.0, PLAIN),
        (np.float64, 140.0, WIDE),
    ],
)
def test_plain_numbers_are_not_tried_where_scores_are_far_apart(dtype, gap, first, monkeypatch):
    """By the pdfs that the graph has; others have no say."""
    scores = np.zeros((2, 40, 4), dtype)
    scores[:, :, 0], scores[:, :, 3] = -gap, np.nan
    ran = spies(monkeypatch)
    assert_agrees(pack(compile_table(two_lobes(), 4), 2), scores)
    assert ran[0] == first
