"""The commands objf and sum give what the losses and recursions give, for files that anybody may have made."""

import json

import numpy as np
import pytest
import tolerances
import torch
from cli_fixtures import assert_one_line
from random_graphs import connected_graph, left_to_right_graph

from fsachain import DenominatorGraph, LFMMILoss, TableBatch, best_path, forward_backward
from fsachain.kaldi.archive import read_table
from fsachain.kaldi.values import read_matrix, write_matrices

WIDTH, LENGTHS = 9, [24, 2, 17]
NUMERATORS = [left_to_right_graph(n, 5, WIDTH) for n in range(3)]
DENOMINATOR = connected_graph(0)


@pytest.fixture
def files(tmp_path):
    """The second utterance is too short; the last has no numerator."""
    names = ["a", "b", "c"]
    rng = np.random.default_rng(1)
    scores = {
        name: rng.normal(size=(frames, WIDTH)).astype(np.float32)
        for name, frames in zip([*names, "d"], [*LENGTHS, 5], strict=True)
    }
    write_matrices(tmp_path / "out.ark", scores)
    graphs = [f"{name}\n{graph.to_text()}\n" for name, graph in zip(names, NUMERATORS, strict=True)]
    (tmp_path / "num.ark").write_text("".join(graphs))
    (tmp_path / "den.txt").write_text(DENOMINATOR.to_text())
    return tmp_path, scores


def rows(out):
    return {line.split("\t")[0]: line.split("\t")[1:] for line in out.splitlines() if "\t" in line}


@pytest.mark.parametrize("suffix", [".ark", ".npz"])
def test_the_objective_of_files_and_its_derivatives_are_those_of_the_loss(fsachain, files, suffix):
    folder, scores = files
    padded = torch.zeros(3, 24, WIDTH)
    for n, name in enumerate("abc"):
        padded[n, : LENGTHS[n]] = torch.from_numpy(scores[name])
    padded.requires_grad_()
    loss = LFMMILoss(
        DenominatorGraph(DENOMINATOR, WIDTH), leaky_hmm_coefficient=0.1, out_of_range_regularize=0.0
    )
    loss(padded, LENGTHS, NUMERATORS).backward()
    record, deriv = loss.last_record, folder / f"new/deriv{suffix}"
    given = folder / "out.scp", f"ark:{folder}/num.ark", folder / "den.txt"
    status, out, err = fsachain("objf", *given, "--leaky-hmm-coefficient", 0.1, "--deriv", f"ark:{deriv}")
    found = rows(out)
    assert status == 3 and "2 utterances are left out" in out and "deriv.faults.jsonl" in err
    assert "d: has scores and no graph" in out and "b: no path of 2 frames" in out
    faults = (folder / "new/deriv.faults.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in faults] == ["d", "b"]
    assert [found[name][-1] for name in "abc"] == ["ok", "impossible", "ok"] and "d" not in found
    for n, name in ((0, "a"), (2, "c")):
        expected = [LENGTHS[n], float(record.num_log_prob[n]), float(record.den_log_prob[n])]
        assert list(map(float, found[name][:3])) == pytest.approx(expected, rel=tolerances.SIX_DIGITS)
    per_frame = float(record.objf_ok / record.weight_ok)
    assert f"all: objf per frame {per_frame:.6g} over 41 frames" in out
    derivatives = dict(np.load(deriv)) if suffix == ".npz" else dict(read_table(deriv, read_matrix))
    assert list(derivatives) == ["a", "b", "c"]
    for n, name in enumerate(derivatives):
        expected = -padded.grad[n, : LENGTHS[n]] * record.weight_ok
        assert derivatives[name] == pytest.approx(expected.numpy(), abs=tolerances.OCCUPANCY)
    assert not derivatives["b"].any() and derivatives["a"].any()


def test_faults_of_sums_stop_them_where_asked_and_are_all_there_is_where_nothing_is_left(
    fsachain, files, monkeypatch
):
    folder, scores = files
    monkeypatch.chdir(folder)
    given = "out.scp", "ark:num.ark"
    for step in (("objf", *given, "den.txt"), ("sum", *given[::-1])):
        status, out, err = fsachain(*step)
        assert status == 3 and f"{step[0]}.faults.jsonl" in err and len(rows(out)) > 2
        outcome = fsachain(*step, "--bad-data", "stop")
        assert_one_line(outcome, "1 fault, and --bad-data is stop; the first: has scores and no graph")
    np.savez("none.npz", x=scores["a"])
    for step in (("objf", "none.npz", "ark:num.ark", "den.txt"), ("sum", "ark:num.ark", "none.npz")):
        assert_one_line(fsachain(*step), "none.npz: no utterance is left")
        assert "has scores and no graph" in (folder / f"{step[0]}.faults.jsonl").read_text()


@pytest.mark.parametrize("begins", ["start", "anywhere"])
def test_sums_over_any_graph_are_those_of_the_recursions(fsachain, files, begins):
    folder, scores = files
    np.save(folder / "matrix.npy", scores["a"])
    best, occupancy = folder / "best.txt", folder / "occupancy.npz"
    status, out, _ = fsachain(
        *(
            "sum",
            folder / "den.txt",
            folder / "matrix.npy",
            "--begins",
            begins,
            "--leaky-hmm-coefficient",
            0.1,
        ),
        *("--best-path", best, "--occupancy", occupancy),
    )
    graph, leak = (DENOMINATOR, 0.0) if begins == "start" else (DenominatorGraph(DENOMINATOR, WIDTH), 0.1)
    shared = TableBatch.share(graph, 1)
    expected = forward_backward(shared, scores["a"][None], leaky_hmm_coefficient=leak)
    path = best_path(shared, scores["a"][None])
    assert status == 0
    numbers = list(map(float, rows(out)["matrix"]))
    assert numbers == pytest.approx([24, expected.log_prob[0], path.score[0]], rel=tolerances.SIX_DIGITS)
    assert best.read_text() == f"matrix {' '.join(map(str, path.pdfs[0]))}\n"
    assert (np.load(occupancy)["matrix"] == expected.occupancy[0]).all()


def test_graphs_of_an_archive_meet_their_own_scores_and_others_are_named(fsachain, files):
    folder, scores = files
    np.savez(folder / "some.npz", a=scores["a"], c=scores["c"])
    status, out, _ = fsachain("sum", folder / "num.ark", folder / "some.npz")
    expected = [
        float(forward_backward([NUMERATORS[n]], scores[k][None]).log_prob[0]) for n, k in ((0, "a"), (2, "c"))
    ]
    assert status == 0
    assert [float(rows(out)[name][1]) for name in "ac"] == pytest.approx(expected, rel=tolerances.SIX_DIGITS)
    np.savez(folder / "wrong.npz", a=scores["a"], c=scores["c"][:, :5], d=scores["d"][0])
    assert_one_line(
        fsachain("sum", folder / "num.ark", folder / "wrong.npz"),
        "scores of 'd' are float32 [9]; expected floating-point numbers [frames, pdfs]",
    )
    np.savez(folder / "wrong.npz", a=scores["a"], c=scores["c"][:, :5])
    assert_one_line(
        fsachain("sum", folder / "num.ark", folder / "wrong.npz"),
        "scores of 'c' have 5 columns; expected 9 as those of 'a'",
    )
