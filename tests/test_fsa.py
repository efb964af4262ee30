"""`Fsa`: immutable, its text, its shortest path, its trimming."""

import math

import numpy as np
import pytest
from hypothesis import given
from random_graphs import connected_graph, graphs

from fsachain import Fsa, GraphError, TableBatch, compile_table, forward_backward

INF = math.inf


def same(left, right):
    return (
        (left.num_states, left.start) == (right.num_states, right.start)
        and all((getattr(left, name) == getattr(right, name)).all() for name in ("src", "dst", "pdf"))
        and (left.log_prob == right.log_prob).all()
        and (left.final_log_prob == right.final_log_prob).all()
    )


def test_arrays_are_typed_copied_and_read_only():
    log_prob = np.array([-1.0, -2.0])
    fsa = Fsa(2, [0, 1], [1, 1], np.array([3, 4], dtype=np.uint8), log_prob, [-INF, 0.0])
    log_prob[0] = 5.0
    assert fsa.log_prob.tolist() == [-1.0, -2.0]
    assert [array.dtype for array in (fsa.src, fsa.dst, fsa.pdf)] == [np.int32] * 3
    assert fsa.log_prob.dtype == fsa.final_log_prob.dtype == np.float64
    assert fsa.labels is fsa.pdf and fsa.num_arcs == 2 and fsa.start == 0
    for array in (fsa.src, fsa.dst, fsa.pdf, fsa.log_prob, fsa.final_log_prob):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(AttributeError):
        fsa.start = 1


def test_arrays_that_nobody_can_write_to_are_not_copied():
    weights = np.array([0.0, -1.0, -2.0, -3.0])
    weights.setflags(write=False)
    ends = np.array([0, 1], dtype=np.int32)
    ends.setflags(write=False)
    fsa = Fsa(2, ends, ends, [0, 1], weights[:2], weights[::2])
    assert fsa.src is ends and np.shares_memory(fsa.log_prob, weights)
    assert fsa.final_log_prob.flags.c_contiguous and fsa.final_log_prob.tolist() == [0.0, -2.0]


def test_repr_says_the_size():
    assert repr(connected_graph(0)) == "Fsa(12 states, 40 arcs, start 0)"


@given(graphs())
def test_text_keeps_start_arcs_and_weights_to_the_bit(fsa):
    """Arcs come back in order too if the start's stand first; else the language is the same."""
    again = Fsa.from_text(fsa.to_text())
    assert (again.num_states, again.start, again.num_arcs) == (fsa.num_states, fsa.start, fsa.num_arcs)
    assert (again.final_log_prob == fsa.final_log_prob).all()
    arcs = [
        sorted(zip(x.src.tolist(), x.dst.tolist(), x.pdf.tolist(), x.log_prob.tolist(), strict=True))
        for x in (fsa, again)
    ]
    assert arcs[0] == arcs[1]
    assert same(Fsa.from_text(again.to_text()), again)


def test_text_has_labels_from_one_and_costs():
    fsa = Fsa(2, [0, 1], [1, 1], [0, 6], [-0.5, 0.25], [-INF, -1.5])
    assert fsa.to_text() == "0\t1\t1\t1\t0.5\n1\t1\t7\t7\t-0.25\n1\t1.5\n"


@pytest.mark.parametrize(
    "text",
    [
        "0 1 1 1 0.5\n1 1 7 7 -0.25\n1 1.5\n",
        "0 1 1 0.5\n1 1 7 -0.25\n1 1.5\n",
        "\n0\t1\t1\t1\t0.5\n\n1 1 7 7 -2.5e-1\n1 1.5\n\n",
    ],
)
def test_text_of_acceptors_and_transducers_is_read(text):
    expected = Fsa(2, [0, 1], [1, 1], [0, 6], [-0.5, 0.25], [-INF, -1.5])
    assert same(Fsa.from_text(text), expected)


def test_missing_costs_are_zero_and_infinity_is_no_weight():
    fsa = Fsa.from_text("2 0 1 1\n0 0 2 2 Infinity\n0\n2 inf\n")
    assert fsa.start == 2 and fsa.num_states == 3
    assert fsa.log_prob.tolist() == [0.0, -INF]
    assert fsa.final_log_prob.tolist() == [0.0, -INF, -INF]


@given(graphs())
def test_min_frames_is_where_paths_begin(fsa):
    batch = TableBatch.pack([compile_table(fsa, 3)])
    ok = [bool(forward_backward(batch, np.zeros((1, t, 3)), backend="reference").ok[0]) for t in range(6)]
    least = fsa.min_frames()
    assert (least if least < 6 else INF) == (ok.index(True) if any(ok) else INF)


def test_trim_leaves_states_on_a_path_and_the_start():
    arcs = np.array([[0, 1], [1, 2], [0, 3], [4, 2], [2, 2]])
    fsa = Fsa(5, arcs[:, 0], arcs[:, 1], np.arange(5), -np.arange(5.0), [-INF, -INF, -2.0, -INF, -INF])
    trimmed = fsa.trim()
    assert trimmed.num_states == 3 and trimmed.pdf.tolist() == [0, 1, 4]
    assert trimmed.src.tolist() == [0, 1, 2] and trimmed.dst.tolist() == [1, 2, 2]
    assert trimmed.final_log_prob.tolist() == [-INF, -INF, -2.0]
    empty = Fsa(2, [0], [1], [0], [0.0], [-INF, -INF], 1).trim()
    assert (empty.num_states, empty.num_arcs, empty.start) == (1, 0, 0)


@pytest.mark.parametrize("count", [1, 5, 12_000])
def test_states_of_which_each_has_a_line_are_possible_in_any_order(count):
    lines = [f"{state} {state + 1} 1" for state in range(count)]
    for order in (lines, lines[::-1]):
        fsa = Fsa.from_text("\n".join(order) + "\n")
        assert (fsa.num_states, fsa.start) == (count + 1, int(order[0].split()[0]))


@pytest.mark.parametrize(
    ("lines", "far"), [(0, 1_000), (2_000, 3_001), (20_000, 21_001)], ids=["short", "long", "longer"]
)
def test_states_beyond_what_the_lines_pay_for_are_refused(lines, far):
    near = "0 0 1\n" * lines
    assert Fsa.from_text(f"{near}0 {far - 1} 1\n").num_states == far
    with pytest.raises(GraphError, match="numbered densely from 0"):
        Fsa.from_text(f"{near}0 {far + 1} 1\n")
