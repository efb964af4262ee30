"""Values and graphs that Kaldi, PyChain, k2, GTN and torch-struct made.

tools/golden/kaldi.py says where Kaldi is not the truth and what is compared instead.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import tolerances
from conftest import SHARED
from enumeration import all_paths, log_sum

from fsachain import GraphError, TableBatch, compile_table, forward_backward
from fsachain.denominator import DenominatorGraph
from tools.golden import graphs, kaldi, peers
from tools.golden.rows import compare, kaldi_fsa

CASES = [*kaldi.cases(SHARED), *peers.cases(SHARED)]
LANGUAGES = graphs.cases(SHARED)
NOTHING = [pytest.param(None, marks=pytest.mark.skip("no ../shared"))]


@pytest.mark.parametrize("case", CASES or NOTHING, ids=lambda case: getattr(case, "name", ""))
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_values_of_other_programs_are_met(case, backend):
    rows = list(case.rows(backend))
    if backend == "reference" and case.name.startswith("kaldi/objf/"):
        pytest.skip("the loss chooses its backend itself")
    assert rows
    assert not [row for row in rows if not row.agrees]


@pytest.mark.parametrize("folder", LANGUAGES or NOTHING, ids=lambda folder: getattr(folder, "name", ""))
def test_phone_models_denominators_normalizations_and_numerators_are_kaldis(folder):
    """In size and score, line by line."""
    rows = list(graphs.rows(folder, num_paths=20))
    assert [row.graph for row in rows][:3] == ["phone LM", "denominator", "normalization"]
    assert len(rows) == 5
    assert not [row for row in rows if not row.agrees]


def test_all_files_of_acceptors_are_compared(shared):
    on_acceptors = [
        path
        for path in (shared / "golden" / "peers").glob("*.npz")
        if not path.stem.startswith(("rnnt_", "fastrnnt_", "torch_ctc", "k2_ctc"))
    ]
    of_kaldi = list((shared / "golden" / "kaldi").glob("[dno]*/*.npz"))
    assert len(CASES) == len(on_acceptors) + len(of_kaldi)


@pytest.mark.parametrize(
    ("ours", "theirs", "agrees"),
    [
        ([1.0, 2.0], [1.0, 2.2], False),
        ([1.0, 2.0], [1.0, 2.05], True),
        ([float("-inf")], [float("-inf")], True),
        ([0.0], [float("-inf")], False),
        ([float("nan")], [1.0], False),
    ],
)
def test_a_row_agrees_only_within_its_allowance(ours, theirs, agrees):
    assert compare("case", "quantity", ours, theirs, 0.1).agrees is agrees


@pytest.mark.parametrize("change", [{"difference": 0.2}, {"states": (103, 100)}, {"arcs": (103, 100)}])
def test_a_graph_agrees_only_within_its_allowance(change):
    row = graphs.GraphRow("case", "denominator", (102, 100), (102, 100), 0.1, 0.1, graphs.SIZE)
    assert row.agrees
    assert not replace(row, **change).agrees


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_revisited_start_state_follows_the_paths_and_not_kaldi(shared, backend):
    """n18 leaves its start state more than once on a path: Kaldi says 3.2418, the paths say 2.4453."""
    values = np.load(shared / "golden/kaldi/num/n18_start_revisited.npz")
    fsa, scores = kaldi_fsa(values, "fst0_"), kaldi.sequences(values, "nnet_output")
    result = forward_backward(TableBatch.pack([compile_table(fsa)]), scores, backend=backend)
    exact = log_sum([score for score, _ in all_paths(fsa, scores[0])])
    assert result.log_prob[0] == pytest.approx(exact, abs=tolerances.FEW_FLOAT32_TERMS)
    assert result.log_prob[0] == pytest.approx(2.4453, abs=tolerances.FOUR_DECIMALS)


@pytest.mark.parametrize("name", ["n07_too_short", "n07c_batch_one_impossible", "n24_parity"])
def test_impossible_numerators_are_minus_infinity_where_kaldi_says_nan(shared, name):
    values = np.load(shared / f"golden/kaldi/num/{name}.npz")
    scores = kaldi.sequences(values, "nnet_output")
    tables = [compile_table(kaldi_fsa(values, f"fst{n}_"), scores.shape[2]) for n in range(len(scores))]
    result = forward_backward(TableBatch.pack(tables), scores)
    assert result.log_prob[-1] == -math.inf and not result.ok[-1]
    assert not result.occupancy[-1].any()
    assert list(result.ok[:-1]) == [True] * (len(scores) - 1)


def test_one_impossible_sequence_does_not_spoil_a_minibatch_as_it_does_in_kaldi(shared):
    values = np.load(shared / "golden/kaldi/objf/o14_one_impossible.npz")
    record, output, _ = kaldi._evaluate(values)
    assert float(values["objf"]) == -10.0 * float(values["weight"])
    possible = [n for n in range(2) if record.ok[n]]
    assert len(possible) == 1 and record.excluded == (f"sequence {1 - possible[0]}",)
    assert output.grad[possible[0]].abs().max() > 0.0
    assert not output.grad[1 - possible[0]].any()


@pytest.mark.parametrize(("name", "num_frames"), [("d03_leaky0", 3), ("d03_leaky1", 1), ("d15_hot", 3)])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_denominators_on_which_kaldi_aborts_equal_their_paths(shared, name, num_frames, backend):
    """As many frames as leave the paths, leaks included, countable."""
    values = np.load(shared / f"golden/kaldi/den/{name}.npz")
    scores, leaky = kaldi.sequences(values, "nnet_output")[:1, :num_frames], float(values["leaky"])
    graph = DenominatorGraph(kaldi_fsa(values, "den_"), scores.shape[2])
    result = forward_backward(graph.batch(1), scores, leaky_hmm_coefficient=leaky, backend=backend)
    ends = {"initial": graph.table.initial_log_prob, "final": graph.table.final_log_prob}
    paths = all_paths(graph.fsa, scores[0], init=graph.table.leaky_log_prob, leaky=leaky, **ends)
    exact = log_sum([score for score, _ in paths])
    assert result.log_prob[0] == pytest.approx(exact, abs=tolerances.log_prob_tolerance(exact))


def test_a_denominator_without_a_cycle_is_refused_by_name(shared):
    values = np.load(shared / "golden/kaldi/den/d16_acyclic.npz")
    with pytest.raises(GraphError, match=r"after 3 arcs.*initial='start'"):
        DenominatorGraph(kaldi_fsa(values, "den_"), 2)
    as_it_stands = DenominatorGraph(kaldi_fsa(values, "den_"), 2, initial="start", final="fsa")
    assert forward_backward(as_it_stands.batch(1), kaldi.sequences(values, "nnet_output")[:, :3]).ok[0]
