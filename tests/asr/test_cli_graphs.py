"""Commands on graphs and on Kaldi's files: they do what their functions do, and their files fit together."""

import json
from pathlib import Path

import numpy as np
import pytest
import tolerances
import torch
from cli_fixtures import TEXT, assert_one_line
from graph_paths import sample_paths, scores_along
from random_graphs import connected_graph, left_to_right_graph

from fsachain import DenominatorGraph, Fsa, LFMMILoss, TableBatch, best_path, forward_backward
from fsachain.asr.cli.graphs import told_stars
from fsachain.asr.cli.lang import load_lang
from fsachain.asr.kaldi.archive import read_table
from fsachain.asr.kaldi.model import read_context_tree
from fsachain.asr.kaldi.values import read_matrix, write_matrices
from fsachain.graph.forgive import Forgiveness
from fsachain.graph.lexicon import Lexicon, read_phones
from fsachain.graph.numerator import build_numerator
from fsachain.graph.shards import TableShards
from fsachain.openfst import read_fst


def test_a_tied_language_is_made_by_counts(fsachain, built):
    options = "context: tied-biphone, min_biphone_count: 3, min_monophone_count: 2"
    (built / "tied.yaml").write_text(f"lang: {{{options}}}\n")
    arguments = "lang lexicon.txt tied --config tied.yaml"
    assert_one_line(fsachain(arguments), "--text")
    fsachain.ok(f"{arguments} --text data/text")
    tree = load_lang(built / "tied").tree
    ids = {phone: n + 1 for n, phone in enumerate(tree.phones)}
    after = [tree.pdf(ids["OW"], 0, left) for left in range(len(ids) + 1)]
    assert len(set(after)) == 3  # none; N, which stands before every OW; all others
    assert tree.pdf(ids["OW"], 0, ids["N"]) not in {after[ids["Y"]], after[0]}


def test_equal_and_different_graphs_have_their_own_exit_status(fsachain, built):
    same = "equivalent den/den.fst den/den.fst"
    assert fsachain.ok(f"{same} --semiring log").out.startswith("no difference found: 200 sequences")
    status, out, _ = fsachain("equivalent den/den.fst den/normalization.fst --semiring log --count 20")
    assert status == 1 and out.startswith("different: 40 sequences")
    assert fsachain(same).status == 2  # the semiring is named


def test_stars_of_a_large_phone_model_are_said_to_be_dear():
    dear, cheap = (connected_graph(1, 100, arcs) for arcs in (2400, 400))
    forgiving = Forgiveness(substitution=5.0)
    assert "phone_lm.ngram_order: 2" in told_stars(dear, forgiving)
    silent = (cheap, forgiving), (dear, None), (None, forgiving), (dear, Forgiveness(insertion=3.0))
    assert [told_stars(*pair) for pair in silent] == [""] * 4


def test_small_graphs_are_drawn_walked_and_made_smaller(fsachain, tmp_path):
    fsa = Fsa(4, [0, 0, 1, 2], [1, 2, 3, 3], [0, 0, 1, 1], np.log([0.5, 0.5, 1, 1]), [-np.inf] * 3 + [0.0])
    fsa.write(tmp_path / "graph.fst")
    assert fsachain("dot graph.fst").out.count("->") == 5
    out = fsachain.ok("random-paths graph.fst --count 3").out
    assert [line.split("\t")[1] for line in out.splitlines()] == ["0 1"] * 3
    assert float(out.split()[0]) == pytest.approx(0.0, abs=tolerances.GRAPH_COST)
    fsachain.ok("determinize graph.fst det.fst --semiring log")
    out = fsachain.ok("minimize det.fst small/min.fst --semiring log").out
    assert out.startswith("3 states, 2 arcs")
    fsachain.ok("equivalent graph.fst small/min.fst --semiring log")
    assert_one_line(fsachain("minimize graph.fst no.fst --semiring log"), "determinize it first")
    out = fsachain.ok("info graph.fst").out
    assert "not deterministic" in out and "shortest path 2 frames" in out


def test_compiled_numerators_go_on_where_they_were(fsachain, built):
    command = "num-tables data tables --lang lang --den den --shard-size 2"
    assert "\n5 numerators in 3 shards -> " in fsachain.ok(f"{command} --jobs 2").out
    (built / "tables/00001.tables").unlink()
    assert "3 shards, 2 of them were there" in fsachain(command).out
    assert list(TableShards(built / "tables")) == [f"u{n}" for n in range(1, 6)]
    for path in ("tables", "tables/00000.tables"):
        assert fsachain.ok(f"info {path}").out.startswith("compiled tables: ")


def test_shards_train_a_model_whose_alignment_ties_a_tree(fsachain, recorded):
    """num-tables, train, align, tie-tree; and a tree of another language is refused by name."""
    graphs, config = "--lang lang --den den", "--config small.yaml"
    fsachain.ok(f"num-tables data tables {graphs}")
    fsachain.ok(f"train data tables exp {graphs} {config}")
    fsachain.ok(f"align exp/model.safetensors data ali {graphs}")
    tie = f"tie-tree data ali/phones.ctm tied --lang lang {config} --num-pdfs 9 --min-frames 2"
    out = fsachain.ok(tie).out
    tied = load_lang(recorded / "tied")
    assert tied.tree.num_pdfs == 9 and tied.tree.context_width == 2
    assert "9 pdfs, tied from" in out and "5 utterances" in out
    assert tied.lexicon.words == load_lang(recorded / "lang").lexicon.words
    (recorded / "data/text").write_text(TEXT.replace("u2 no", "u2 yes"))
    outcome = fsachain(f"train data tables new {graphs} {config}")
    assert_one_line(outcome, "the transcript of 'u2' has changed")
    fsachain.ok("kaldi outputs exp/model.safetensors data kaldi/out.ark")
    found = dict(read_table("kaldi/out.scp", read_matrix))
    assert {name: matrix.shape for name, matrix in found.items()} == {f"u{n}": (34, 12) for n in range(1, 6)}


def test_a_training_is_not_mixed_with_another(fsachain, recorded):
    """What differs is named, old and new: an option, the graphs, the development set, epochs that the schedule forbids."""
    fsachain.ok("num-graphs data num.npz --lang lang --den den")
    step = "train data num.npz exp --lang lang --config small.yaml"
    first = f"{step} --den den"
    fsachain.ok(first)
    fsachain.ok("word-lm data words.fst --lang lang")
    fsachain.ok("den-graph words.fst other --lang lang")
    for command, told in (
        (f"{first} --set network.channels=4", "network.channels was 8, is 4;"),
        (f"{step} --den other", "graphs.denominator was '"),
        (f"{first} --dev data num.npz", "development set was 'none', is '5 utterances, "),
        (f"{first} --num-epochs 3", "train.num_epochs was 1, is 3, but of the next step learning_rate was "),
    ):
        err = fsachain.ends(1, command).err
        assert "exp: holds a training with other options" in err and told in err
    (recorded / "dev").mkdir()
    (recorded / "dev/text").write_text("u1 no\n")
    (recorded / "dev/wav.scp").write_text("u1 ../data/1.wav\n")
    fsachain.ok("num-graphs dev dev.npz --lang lang --den den")
    told = "utterance 'u1' is in the training and the development set with different words"
    assert_one_line(fsachain(f"{first.replace('exp', 'new')} --dev dev dev.npz"), told)
    fsachain.ok(first)
    again = f"{first.replace('exp', 'new')} --set 'train.schedule={{decay: constant, warmup: 0}}'"
    fsachain.ok(again)
    err = fsachain.ok(f"{again} --num-epochs 2").err
    assert "epoch   2/2" in err and "epoch   1/" not in err


@pytest.fixture
def case(shared) -> Path:
    return shared / "golden/kaldi/lm/lm1_tiny"


def test_directory_and_denominator_of_kaldi_become_folders_of_ours(fsachain, case, tmp_path):
    out = fsachain.ok(f"kaldi lang {case}/lexiconp.txt {case} lang").out
    theirs = read_context_tree(case / "tree", case / "0.trans_mdl", read_phones(case / "phones.txt"))
    assert load_lang(Path("lang")).tree.equals(theirs) and "18 pdfs" in out
    fsachain.ok(f"kaldi den {case}/den.fst den --lang lang")
    fsachain.ok(f"equivalent den/den.fst {case}/den.fst --semiring log")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/text").write_text((case / "test_text.txt").read_text())
    (tmp_path / "data/wav.scp").write_text("".join(f"t{n} absent.wav\n" for n in range(4)))
    assert "\n4 numerators" in fsachain.ok("num-graphs data num.npz --lang lang --den den").out
    told = "no tree; expected tree, phones.txt and 0.trans_mdl or final.mdl"
    assert_one_line(fsachain(f"kaldi lang {case}/lexiconp.txt . lang"), told)


def test_outputs_are_decoded_with_a_graph_of_kaldi(fsachain, case, tmp_path):
    lexicon = Lexicon.read(case / "lexiconp.txt", phones=case / "phones.txt")
    tree = read_context_tree(case / "tree", case / "0.trans_mdl", lexicon.phones)
    said = dict(line.split(" ", 1) for line in (case / "test_text.txt").read_text().splitlines())
    (name, graph), *_ = read_table(case / "graphs.ark", read_fst)
    graph.to_openfst().write(str(tmp_path / "HCLG.fst"))
    numerator = build_numerator(said[name].split(), lexicon, tree)
    (path,) = sample_paths(numerator.fsa, 1, seed=1)
    write_matrices(tmp_path / "out.ark", {name: scores_along(numerator.fsa.pdf[path], tree.num_pdfs)})
    fsachain.ok(f"kaldi decode out.scp HCLG.fst {case}/0.trans_mdl {case}/words.txt hyp")
    assert (tmp_path / "hyp/hyp.txt").read_text().split() == [name, *said[name].split()]
    write_matrices(tmp_path / "other.ark", {name: np.zeros((30, tree.num_pdfs + 1), np.float32)})
    other = fsachain(f"kaldi decode other.scp HCLG.fst {case}/0.trans_mdl {case}/words.txt hyp")
    assert_one_line(other, f"'{name}' have 19 columns", "0.trans_mdl has 18 pdfs")


def test_graphs_as_text_and_other_fsts_are_described(fsachain, tmp_path):
    (tmp_path / "graph.txt").write_text("0 1 1 1 0.5\n1 1 2 2 0.7\n1 0.2\n")
    text = fsachain.ok("info graph.txt").out
    assert text.startswith("acceptor: 2 states, 1 of them final, 2 arcs, 2 pdfs, the largest 1")
    fsachain.ok("equivalent graph.txt graph.txt --semiring log")
    (tmp_path / "lexicon.txt").write_text("0 1 0 0 0.5\n0 1 3 0\n1 1 4 7 0.7\n1 1 5 0\n1\n")
    assert fsachain.ok("info lexicon.txt").out == (
        "transducer: 2 states, 1 of them final, 4 arcs\n3 input labels, 1 output label\n"
        "1 arc without input label, 3 without output label, 1 without both; 2 self-loops\n"
    )
    (tmp_path / "tree").write_text("ContextDependency")
    assert_one_line(fsachain("info tree"), "fsachain kaldi show")


# The commands objf and sum give what the losses and recursions give, for files that anybody may have made.


WIDTH, LENGTHS = 9, [24, 2, 17]
NUMERATORS = [left_to_right_graph(n, 5, WIDTH) for n in range(3)]
DENOMINATOR = connected_graph(0)


@pytest.fixture
def files(tmp_path):
    """The second utterance is too short; the last has no numerator."""
    rng, frames = np.random.default_rng(1), [*LENGTHS, 5]
    scores = {"abcd"[n]: rng.normal(size=(frames[n], WIDTH)).astype(np.float32) for n in range(4)}
    write_matrices(tmp_path / "out.ark", scores)
    graphs = [f"{name}\n{graph.to_text()}\n" for name, graph in zip("abc", NUMERATORS, strict=True)]
    (tmp_path / "num.ark").write_text("".join(graphs))
    (tmp_path / "den.txt").write_text(DENOMINATOR.to_text())
    return scores


def rows(out):
    return {line.split("\t")[0]: line.split("\t")[1:] for line in out.splitlines() if "\t" in line}


@pytest.mark.parametrize("suffix", [".ark", ".npz"])
def test_the_objective_of_files_and_its_derivatives_are_those_of_the_loss(fsachain, files, suffix):
    scores = files
    padded = torch.zeros(3, 24, WIDTH)
    for n, name in enumerate("abc"):
        padded[n, : LENGTHS[n]] = torch.from_numpy(scores[name])
    padded.requires_grad_()
    denominator = DenominatorGraph(DENOMINATOR, WIDTH)
    loss = LFMMILoss(denominator, leaky_hmm_coefficient=0.1, out_of_range_regularize=0.0)
    loss(padded, LENGTHS, NUMERATORS).backward()
    record, deriv = loss.last_record, f"new/deriv{suffix}"
    given = "out.scp ark:num.ark den.txt"
    status, out, err = fsachain(f"objf {given} --leaky-hmm-coefficient 0.1 --deriv ark:{deriv}")
    found = rows(out)
    assert status == 3 and "2 utterances are left out" in out and "deriv.faults.jsonl" in err
    assert "d: has scores and no graph" in out and "b: no path of 2 frames" in out
    faults = Path("new/deriv.faults.jsonl").read_text().splitlines()
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


def test_faults_of_sums_stop_them_where_asked_and_are_all_there_is_where_nothing_is_left(fsachain, files):
    scores = files
    for step in ("objf out.scp ark:num.ark den.txt", "sum ark:num.ark out.scp"):
        status, out, err = fsachain(step)
        listed = Path(f"{step.split()[0]}.faults.jsonl")
        assert status == 3 and listed.name in err and len(rows(out)) > 2
        assert [json.loads(line)["id"] for line in listed.read_text().splitlines()] == ["d", "b"]
        outcome = fsachain(f"{step} --bad-data stop")
        assert_one_line(outcome, "1 fault, and --bad-data is stop; the first: has scores and no graph")
    np.savez("none.npz", x=scores["a"])
    for step in ("objf none.npz ark:num.ark den.txt", "sum ark:num.ark none.npz"):
        assert_one_line(fsachain(step), "none.npz: no utterance is left")
        assert "has scores and no graph" in Path(f"{step.split()[0]}.faults.jsonl").read_text()


@pytest.mark.parametrize("begins", ["start", "anywhere"])
def test_sums_over_any_graph_are_those_of_the_recursions(fsachain, files, begins):
    scores = files
    np.save("matrix.npy", scores["a"])
    step = f"sum den.txt matrix.npy --begins {begins} --leaky-hmm-coefficient 0.1"
    out = fsachain.ok(f"{step} --best-path best.txt --occupancy occupancy.npz").out
    graph, leak = (DENOMINATOR, 0.0) if begins == "start" else (DenominatorGraph(DENOMINATOR, WIDTH), 0.1)
    shared = TableBatch.share(graph, 1)
    expected = forward_backward(shared, scores["a"][None], leaky_hmm_coefficient=leak)
    path = best_path(shared, scores["a"][None])
    numbers = list(map(float, rows(out)["matrix"]))
    assert numbers == pytest.approx([24, expected.log_prob[0], path.score[0]], rel=tolerances.SIX_DIGITS)
    assert Path("best.txt").read_text() == f"matrix {' '.join(map(str, path.pdfs[0]))}\n"
    assert (np.load("occupancy.npz")["matrix"] == expected.occupancy[0]).all()


def test_graphs_of_an_archive_meet_their_own_scores_and_others_are_named(fsachain, files):
    scores = files
    np.savez("some.npz", a=scores["a"], c=scores["c"])
    out = fsachain.ok("sum num.ark some.npz").out
    alone = ((NUMERATORS[n], scores[name][None]) for n, name in ((0, "a"), (2, "c")))
    expected = [float(forward_backward([graph], own).log_prob[0]) for graph, own in alone]
    assert [float(rows(out)[name][1]) for name in "ac"] == pytest.approx(expected, rel=tolerances.SIX_DIGITS)
    for d, what in ((scores["d"][0], "float32 [9]"), (scores["d"].astype(int), "int64 [5, 9]")):
        np.savez("wrong.npz", a=scores["a"], c=scores["c"][:, :5], d=d)
        wanted = f"scores of 'd' are {what}; expected floating-point numbers [frames, pdfs]"
        assert_one_line(fsachain("sum num.ark wrong.npz"), wanted)
    np.savez("wrong.npz", a=scores["a"], c=scores["c"][:, :5])
    outcome = fsachain("sum num.ark wrong.npz")
    assert_one_line(outcome, "scores of 'c' have 5 columns; expected 9 as those of 'a'")


def test_features_that_come_with_the_data_are_told_by_their_width(fsachain, built):
    write_matrices(built / "data/feats.ark", {f"u{n}": np.zeros((30, 7)) for n in range(1, 6)})
    assert "features, as they come with the data: 7 columns\n" in fsachain("validate", built / "data").out


def test_phones_that_the_transcripts_lack_are_named_and_their_pdfs_missed(fsachain, built):
    (built / "few").write_text("u1 no no\nu2 no\n")
    told = fsachain.ok("phone-lm few few.fst --lang lang").out
    lacking = told.split("; it lacks ")[1].split(", for which nothing will be trained")[0].split(", ")
    lexicon = dict(line.split(maxsplit=1) for line in (built / "lexicon.txt").read_text().splitlines())
    assert set(lacking) == set(lexicon["yes"].split()) - set(lexicon["no"].split())
    assert "lacks" not in fsachain.ok("phone-lm data/text all.fst --lang lang").out
    assert ", 6 of 12 pdfs" in fsachain.ok("den-graph few.fst den-few --lang lang").out
    assert "arcs, 12 pdfs" in fsachain.ok("den-graph all.fst every --lang lang").out
