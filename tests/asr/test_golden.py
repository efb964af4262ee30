"""Values and graphs that Kaldi, PyChain, k2, GTN and torch-struct made.

tools/golden/kaldi.py says where Kaldi is not the truth and what is compared instead.
"""

import json
import math
from dataclasses import replace

import kaldi_bytes as kb
import numpy as np
import pytest
import tolerances
from refusals import refuses

from fsachain.asr.kaldi.archive import read_table
from fsachain.asr.kaldi.examples import LoggedObjective, read_objective
from fsachain.asr.kaldi.values import read_matrix, write_matrices
from fsachain.errors import DataError
from tools import SHARED
from tools.golden import graphs, kaldi, peers
from tools.golden.rows import compare

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
    others = "rnnt_", "fastrnnt_", "torch_ctc", "k2_ctc"
    peers_ = [path for path in (shared / "golden/peers").glob("*.npz") if not path.stem.startswith(others)]
    assert len(CASES) == len(peers_) + len(list((shared / "golden/kaldi").glob("[dno]*/*.npz")))


def test_a_row_or_a_graph_agrees_only_within_its_allowance():
    nan, far = math.nan, -math.inf
    pairs = (2.0, 2.2), (0.0, far), (nan, 1.0), (2.0, 2.05), (far, far)
    agree = [compare("case", "quantity", [1.0, ours], [1.0, theirs], 0.1).agrees for ours, theirs in pairs]
    assert agree == [False, False, False, True, True]
    row = graphs.GraphRow("case", "denominator", (102, 100), (102, 100), 0.1, 0.1, graphs.SIZE)
    assert row.agrees
    for change in ({"difference": 0.2}, {"states": (103, 100)}, {"arcs": (103, 100)}):
        assert not replace(row, **change).agrees


# `fsachain kaldi objf` beside a Kaldi log: the values are those that Kaldi's own code computed for the golden cases.


PREFIX = "LOG (nnet3-chain-compute-prob[5.5.1089]:PrintTotalStats():nnet-chain-diagnostics.cc:194) "
TRAIN = "LOG (nnet3-chain-train[5.5.1089]:PrintTotalStats():nnet-training.cc:345) "


def log_text(objf, l2_term, frames):
    """The end of a log, with an output that is not asked for in front."""
    value = f"{objf:.6g}" if not l2_term else f"{objf:.6g} + {l2_term:.6g} = {objf + l2_term:.6g}"
    return (
        f"# Running on host\n{PREFIX}Overall log-probability for 'output-xent' is -4.5 per frame, over {frames:g} frames.\n"
        f"{PREFIX}Overall log-probability for 'output' is {value} per frame, over {frames:g} frames.\n# Ended (code 0)\n"
    )


class Golden:
    """A golden objective as the files that a Kaldi user has: merged examples, outputs, den.fst and log."""

    def __init__(self, shared, case, folder):
        root = shared / "golden/kaldi"
        facts = json.loads((root / "objf/index.json").read_text())[case]
        values = np.load(root / f"objf/{case}.npz")
        size, frames = facts["num_seqs"], facts["frames"]
        scores = values["nnet_output"].reshape(frames, size, -1)
        rows = [(n, t, 0) for t in range(frames) for n in range(size)]
        fsts = b"".join(fst_bytes(values, f"fst{n}_") for n in range(size))
        sizes = {"num_pdfs": scores.shape[2], "weight": facts["sup_weight"]}
        example = kb.chain_example(np.zeros((len(rows), 1)), rows, rows, size, fsts, **sizes)
        (folder / "cegs.ark").write_bytes(b"m \0B" + example)
        write_matrices(folder / "out.ark", {f"m-{n}": scores[:, n] for n in range(size)})
        self.objf, self.weight = facts["objf"] / facts["weight"], facts["weight"]
        (folder / "prob.log").write_text(log_text(self.objf, facts["l2_term"] / self.weight, self.weight))
        options = ("leaky_hmm_coefficient", "l2_regularize")
        self.arguments = [
            *(folder / "cegs.ark", folder / "out.ark", root / facts["den"], "--log", folder / "prob.log"),
            *(part for name in options for part in (f"--{name.replace('_', '-')}", facts[name])),
        ]


def fst_bytes(values, prefix):
    columns = (values[f"{prefix}arc_{name}"] for name in ("src", "dst", "label", "cost"))
    finals = values[prefix + "final_cost"]
    arcs = [[] for _ in finals]
    for src, dst, label, cost in zip(*columns, strict=True):
        arcs[src].append((label, label, cost, dst))
    return kb.const_fst(arcs, finals, int(values[prefix + "start"]))


@pytest.fixture
def objf(fsachain):
    def run(*arguments):
        status, out, err = fsachain("kaldi", "objf", *arguments)
        return status, out.splitlines(), err

    return run


@pytest.mark.parametrize("case", ["o02_l2", "o06_4gram_8seq", "o07b_biphone_tied"])
def test_the_table_agrees_with_what_kaldi_computed(shared, case, tmp_path, objf):
    golden = Golden(shared, case, tmp_path)
    status, lines, err = objf(*golden.arguments)
    assert status == 0 and lines[-1] == "equal", err
    row = next(line for line in lines if line.startswith("objf per frame"))
    ours, theirs = map(float, row.split()[3:5])
    assert theirs == pytest.approx(golden.objf, rel=tolerances.SIX_DIGITS)
    assert ours == pytest.approx(theirs, abs=tolerances.OBJF_PER_FRAME)
    (frames,) = (line.split() for line in lines if line.startswith("weighted frames"))
    assert float(frames[2]) == pytest.approx(golden.weight, rel=tolerances.SIX_DIGITS)
    assert any(
        line.startswith("all: ") and f" over {golden.weight:g} weighted frames" in line for line in lines
    )


def test_another_leak_is_another_objective(shared, tmp_path, objf):
    golden = Golden(shared, "o01_default", tmp_path)
    status, lines, _ = objf(*golden.arguments, "--leaky-hmm-coefficient", 0.2)
    assert status == 1 and lines[-1] == "different"
    assert objf(*golden.arguments, "--leaky-hmm-coefficient", 0.2, "--tolerance", 10)[0] == 0


def test_an_impossible_sequence_is_counted_alone_and_said_so(shared, tmp_path, objf):
    """Kaldi drops its whole minibatch."""
    golden = Golden(shared, "o14_one_impossible", tmp_path)
    status, lines, _ = objf(*golden.arguments)
    assert status == 1 and golden.objf == -10
    assert any(line.startswith("1 impossible: counted with -10 per frame each") for line in lines)
    rows = [line.split("\t") for line in lines if line.startswith("m-")]
    assert [row[-1] for row in rows].count("impossible") == 1
    counted = [-10.0 if row[-1] == "impossible" else float(row[5]) for row in rows]
    (ours,) = (float(line.split()[3]) for line in lines if line.startswith("objf per frame"))
    assert ours == pytest.approx(np.mean(counted), abs=tolerances.OBJF_PER_FRAME)


def test_scores_beyond_30_are_clamped_in_the_denominator_that_kaldi_is_compared_with(shared, tmp_path, objf):
    golden = Golden(shared, "o01_default", tmp_path)
    outputs = {name: 20 * scores for name, scores in read_table(tmp_path / "out.ark", read_matrix)}
    sums = {}
    for kind, clamp in (("hot", np.inf), ("clamped", 30.0)):
        write_matrices(tmp_path / "out.ark", {name: x.clip(-clamp, clamp) for name, x in outputs.items()})
        _, lines, _ = objf(*golden.arguments)
        rows = [line.split("\t") for line in lines if line.startswith("m-")]
        sums[kind] = np.array([[float(row[3]), float(row[4])] for row in rows]).sum(axis=0)
        sums[kind + " table"] = next(float(x.split()[3]) for x in lines if x.startswith("objf per frame"))
    expected = (sums["hot"][0] - sums["clamped"][1]) / golden.weight
    assert sums["hot table"] == pytest.approx(expected, abs=tolerances.OBJF_PER_FRAME)
    assert abs(sums["hot"][1] - sums["clamped"][1]) / golden.weight > 1
    expected = (sums["clamped"][0] - sums["clamped"][1]) / golden.weight
    assert sums["clamped table"] == pytest.approx(expected, abs=tolerances.OBJF_PER_FRAME)


def test_the_last_line_of_the_output_counts(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(
        f"{TRAIN}Average objective function for 'output' for minibatches 0-99 is -9 over 6400 frames.\n"
        f"{TRAIN}Overall average objective function for 'output' is -0.5 + -0.01 = -0.51 over 1.28e+06 frames.\n"
        f"{TRAIN}Overall average objective function for 'output' is -0.25 over 640 frames.\n"
        f"{TRAIN}Overall average objective function for 'output-2' is -nan over 0 frames.\n"
    )
    assert read_objective(path) == LoggedObjective(-0.25, 0.0, 640.0)
    assert np.isnan(read_objective(path, "output-2").objf)
    told = r"train\.log: expected a line .*'x'.*found lines for 'output', 'output-2' alone"
    refuses(DataError, told, read_objective, path, "x")
    path.write_text("nothing\n")
    refuses(DataError, "found no such line", read_objective, path)
