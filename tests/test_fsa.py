"""`Fsa`: immutable, its text, its shortest path, its trimming."""

import math

import numpy as np
import pytest
import pywrapfst
import tolerances
from graph_paths import assert_same_columns
from hypothesis import given
from random_graphs import connected_graph, graphs
from refusals import refuses

from fsachain import Fsa, GraphError, TableBatch, compile_table, forward_backward
from fsachain.openfst import Transducer, write_fst

INF = math.inf


def assert_same(left, right):
    assert (left.num_states, left.start) == (right.num_states, right.start)
    assert_same_columns(left, right)


def arc_set(fsa):
    return sorted(
        zip(*(column.tolist() for column in (fsa.src, fsa.dst, fsa.pdf, fsa.log_prob)), strict=True)
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
    assert arc_set(again) == arc_set(fsa)
    assert_same(Fsa.from_text(again.to_text()), again)


LABELS_1_AND_7 = Fsa(2, [0, 1], [1, 1], [0, 6], [-0.5, 0.25], [-INF, -1.5])


def test_text_has_labels_from_one_and_costs():
    assert LABELS_1_AND_7.to_text() == "0\t1\t1\t1\t0.5\n1\t1\t7\t7\t-0.25\n1\t1.5\n"


@pytest.mark.parametrize(
    "text",
    [
        "0 1 1 1 0.5\n1 1 7 7 -0.25\n1 1.5\n",
        "0 1 1 0.5\n1 1 7 -0.25\n1 1.5\n",
        "\n0\t1\t1\t1\t0.5\n\n1 1 7 7 -2.5e-1\n1 1.5\n\n",
    ],
)
def test_text_of_acceptors_and_transducers_is_read(text):
    assert_same(Fsa.from_text(text), LABELS_1_AND_7)


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
    empty = Fsa(2, [0, 1], [1, 1], [0, 0], [0.0, 0.0], [-INF, -INF], 1).trim()
    assert (empty.num_states, empty.num_arcs, empty.start) == (1, 0, 0)


@pytest.mark.parametrize("count", [1, 5, 12_000])
def test_states_of_which_each_has_a_line_are_possible_in_any_order(count):
    lines = [f"{state} {state + 1} 1\n" for state in range(count)]
    for order, start in ((lines, 0), (lines[::-1], count - 1)):
        fsa = Fsa.from_text("".join(order))
        assert (fsa.num_states, fsa.start) == (count + 1, start)


@pytest.mark.parametrize(
    ("lines", "far"), [(0, 1_000), (2_000, 3_001), (20_000, 21_001)], ids=["short", "long", "longer"]
)
def test_states_beyond_what_the_lines_pay_for_are_refused(lines, far):
    near = "0 0 1\n" * lines
    assert Fsa.from_text(f"{near}0 {far - 1} 1\n").num_states == far
    refuses(GraphError, "numbered densely from 0", Fsa.from_text, f"{near}0 {far + 1} 1\n")


# The border to OpenFst keeps every state, arc and weight, and refuses by name what an `Fsa` cannot hold.


def small_fsa():
    """Start other than 0, a self-loop on it, parallel arcs, an arc of weight -inf, two finals."""
    arcs = [(2, 2, 4), (2, 0, 0), (2, 0, 0), (0, 1, 7), (0, 3, 2), (1, 3, 9)]
    log_prob = [-0.5, 1.25, -2.0, 0.0, -INF, -3.0]
    return Fsa(4, *zip(*arcs, strict=True), log_prob, [-INF, -0.75, -INF, 0.0], start=2)


def vector(*arcs):
    """A pywrapfst FST of two states, the last final: of (src, dst, ilabel, olabel, log_prob), whatever they are.

    Its own constructors refuse some that files may hold.
    """
    return Transducer.of_arcs(arcs, np.array([-INF, 0.0])).to_openfst()


def test_label_is_pdf_plus_one_and_cost_is_minus_log_prob():
    fst = Fsa(2, [0], [1], [6], [-0.5], [-math.inf, -1.5]).to_openfst()
    (arc,) = fst.arcs(0)
    assert (arc.ilabel, arc.olabel, float(arc.weight), arc.nextstate) == (7, 7, 0.5, 1)
    assert [float(fst.final(state)) for state in (0, 1)] == [INF, 1.5]


def test_round_trip_through_memory_and_file_keeps_everything(tmp_path):
    fsa = small_fsa()
    fsa.write(tmp_path / "a.fst")
    for back in (Fsa.from_openfst(fsa.to_openfst()), Fsa.read(tmp_path / "a.fst")):
        assert (back.num_states, back.start) == (4, 2)
        assert arc_set(back) == arc_set(fsa)
        np.testing.assert_array_equal(back.final_log_prob, fsa.final_log_prob)


@pytest.mark.parametrize("arc_type", ["standard", "log", "log64"])
def test_log_semirings_are_read_like_the_tropical_one(arc_type):
    fst = vector((0, 1, 3, 3, -0.25))
    if arc_type != "standard":
        fst = pywrapfst.arcmap(fst, map_type=f"to_{arc_type}")
    assert fst.arc_type() == arc_type
    fsa = Fsa.from_openfst(fst)
    assert arc_set(fsa) == [(0, 1, 2, -0.25)]
    assert fsa.final_log_prob.tolist() == [-math.inf, 0.0]


def test_golden_denominator_equals_its_arrays(shared):
    case = shared / "golden/kaldi/lm/lm1_tiny"
    fsa = Fsa.read(case / "den.fst")
    golden = np.load(case / "lm1_tiny.npz")
    src, dst, label, cost = (golden[f"den_arc_{name}"] for name in ("src", "dst", "label", "cost"))
    want = zip(src, dst, label - 1, -cost, strict=True)
    assert (fsa.num_states, fsa.start) == (int(golden["den_num_states"]), int(golden["den_start"]))
    np.testing.assert_allclose(arc_set(fsa), sorted(want), rtol=tolerances.PRINTED_WEIGHT)
    np.testing.assert_allclose(fsa.final_log_prob, -golden["den_final_cost"], rtol=tolerances.PRINTED_WEIGHT)


@pytest.mark.parametrize(
    ("arcs", "message"),
    [
        ([(0, 1, 1, 1, -0.5), (0, 1, 0, 0, -0.5)], r"state 0, arc 1 .*0:0.*>= 1"),
        ([(0, 1, 1, 2, -0.5)], r"state 0, arc 0 .*1:2.*equal input and output"),
        ([(1, 1, 1, 1, math.nan)], r"state 1, arc 0 .*nan.*finite"),
        ([(0, 1, 1, 1, -0.5), (1, 1, 1, 1, 0.0), (1, 1, 1, 1, INF)], r"state 1, arc 1 .*-inf.*finite"),
        ([(0, 1, -2, -2, -0.5)], r"state 0, arc 0 .*-2:-2.*>= 1"),
        ([(0, 5, 1, 1, -0.5)], r"state 0, arc 0 .*state 5.*\[0, 2\)"),
    ],
    ids=["epsilon", "transducer", "nan", "minus-inf-cost", "negative-label", "destination"],
)
def test_a_bad_arc_is_refused_by_file_state_and_arc(arcs, message, tmp_path):
    path = tmp_path / "bad.fst"
    write_fst(vector(*arcs), path)
    refuses(GraphError, r"bad\.fst: " + message, Fsa.read, path)


def test_files_and_weights_that_openfst_cannot_hold_are_one_graph_error(tmp_path):
    small_fsa().write(tmp_path / "good.fst")
    data = (tmp_path / "good.fst").read_bytes()
    damaged = {"cut.fst": data[:-20], "head.fst": data[:10], "empty.fst": b"", "text.fst": b"0 1 2 2\n1\n"}
    for name, content in damaged.items():
        (tmp_path / name).write_bytes(content)
        refuses(GraphError, rf"{name}: not an OpenFst binary file", Fsa.read, tmp_path / name)
    refuses(GraphError, r"absent\.fst: no such file", Fsa.read, tmp_path / "absent.fst")
    large = Fsa(2, [0], [1], [0], [1e300], [-INF, 0.0])
    refuses(GraphError, r"log_prob\[0\] = 1e\+300", large.to_openfst)
