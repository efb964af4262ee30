"""The border to OpenFst keeps every state, arc and weight, and refuses by name what an `Fsa` cannot hold."""

import math

import numpy as np
import pytest
import pywrapfst
import tolerances

from fsachain.errors import GraphError
from fsachain.fsa import Fsa
from fsachain.openfst import Transducer, write_fst


def small_fsa():
    """Start other than 0, a self-loop on it, parallel arcs, an arc of weight -inf, two finals."""
    return Fsa(
        4,
        src=[2, 2, 2, 0, 0, 1],
        dst=[2, 0, 0, 1, 3, 3],
        pdf=[4, 0, 0, 7, 2, 9],
        log_prob=[-0.5, 1.25, -2.0, 0.0, -math.inf, -3.0],
        final_log_prob=[-math.inf, -0.75, -math.inf, 0.0],
        start=2,
    )


def vector(arcs, *, finals=((1, 0.0),), start=0, states=2):
    """A pywrapfst FST with whatever weights and labels: its own constructors refuse some that files may
    hold."""
    src, ilabel, olabel, cost, dst = (
        (np.array(column) for column in zip(*arcs, strict=True)) if arcs else ((),) * 5
    )
    final = np.full(states, -math.inf)
    for state, final_cost in finals:
        final[state] = -final_cost
    return Transducer(
        states, start, *map(np.int32, (src, dst, ilabel, olabel)), -np.asarray(cost), final
    ).to_openfst()


def arc_set(fsa):
    return sorted(zip(fsa.src, fsa.dst, fsa.pdf, fsa.log_prob, strict=True))


def test_label_is_pdf_plus_one_and_cost_is_minus_log_prob():
    fst = Fsa(2, [0], [1], [6], [-0.5], [-math.inf, -1.5]).to_openfst()
    (arc,) = fst.arcs(0)
    assert (arc.ilabel, arc.olabel, float(arc.weight), arc.nextstate) == (7, 7, 0.5, 1)
    assert float(fst.final(1)) == 1.5
    assert float(fst.final(0)) == math.inf


def test_round_trip_through_memory_and_file_keeps_everything(tmp_path):
    fsa = small_fsa()
    fsa.write(tmp_path / "a.fst")
    for back in (Fsa.from_openfst(fsa.to_openfst()), Fsa.read(tmp_path / "a.fst")):
        assert (back.num_states, back.start) == (4, 2)
        assert arc_set(back) == arc_set(fsa)
        np.testing.assert_array_equal(back.final_log_prob, fsa.final_log_prob)


@pytest.mark.parametrize("arc_type", ["standard", "log", "log64"])
def test_log_semirings_are_read_like_the_tropical_one(arc_type):
    fst = vector([(0, 3, 3, 0.25, 1)])
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
    want = zip(
        golden["den_arc_src"],
        golden["den_arc_dst"],
        golden["den_arc_label"] - 1,
        -golden["den_arc_cost"],
        strict=True,
    )
    assert (fsa.num_states, fsa.start) == (int(golden["den_num_states"]), int(golden["den_start"]))
    np.testing.assert_allclose(arc_set(fsa), sorted(want), rtol=tolerances.PRINTED_WEIGHT)
    np.testing.assert_allclose(fsa.final_log_prob, -golden["den_final_cost"], rtol=tolerances.PRINTED_WEIGHT)


@pytest.mark.parametrize(
    ("arcs", "message"),
    [
        ([(0, 1, 1, 0.5, 1), (0, 0, 0, 0.5, 1)], r"state 0, arc 1 .*0:0.*>= 1"),
        ([(0, 1, 2, 0.5, 1)], r"state 0, arc 0 .*1:2.*equal input and output"),
        ([(1, 1, 1, math.nan, 1)], r"state 1, arc 0 .*nan.*finite"),
        ([(0, 1, 1, 0.5, 1), (1, 1, 1, 0.0, 1), (1, 1, 1, -math.inf, 1)], r"state 1, arc 1 .*-inf.*finite"),
        ([(0, -2, -2, 0.5, 1)], r"state 0, arc 0 .*-2:-2.*>= 1"),
        ([(0, 1, 1, 0.5, 5)], r"state 0, arc 0 .*state 5.*\[0, 2\)"),
    ],
    ids=["epsilon", "transducer", "nan", "minus-inf-cost", "negative-label", "destination"],
)
def test_a_bad_arc_is_refused_by_file_state_and_arc(arcs, message, tmp_path):
    path = tmp_path / "bad.fst"
    write_fst(vector(arcs), path)
    with pytest.raises(GraphError, match=r"bad\.fst: " + message):
        Fsa.read(path)


def test_truncated_and_foreign_files_are_one_graph_error(tmp_path):
    good = tmp_path / "good.fst"
    small_fsa().write(good)
    data = good.read_bytes()
    for name, content in {
        "cut.fst": data[:-20],
        "head.fst": data[:10],
        "empty.fst": b"",
        "text.fst": b"0 1 2 2\n1\n",
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(GraphError, match=rf"{name}: not an OpenFst binary file"):
            Fsa.read(tmp_path / name)
    with pytest.raises(GraphError, match=r"absent\.fst: no such file"):
        Fsa.read(tmp_path / "absent.fst")


def test_a_log_prob_beyond_32_bits_is_refused():
    with pytest.raises(GraphError, match=r"log_prob\[0\] = 1e\+300"):
        Fsa(2, [0], [1], [0], [1e300], [-math.inf, 0.0]).to_openfst()
