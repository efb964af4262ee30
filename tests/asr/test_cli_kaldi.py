"""Commands on Kaldi's alignments, lattices, examples and values: what they write the other commands take."""

import json
import math
import re

import kaldi_bytes as kb
import numpy as np
import pytest
import tolerances
from cli_fixtures import assert_one_line
from graph_paths import Scorer, sample_paths
from test_lattices import spoken, two_ways

from fsachain import DenominatorGraph, Fsa, equivalent, estimate_phone_lm
from fsachain.asr.cli.graphs import load_normalization
from fsachain.asr.cli.lang import load_lang
from fsachain.asr.data.kaldi_examples import read_examples
from fsachain.asr.kaldi.archive import read_table, read_value
from fsachain.asr.kaldi.lattice import phone_lattice, read_lattice
from fsachain.asr.kaldi.model import read_transition_model
from fsachain.asr.kaldi.values import read_alignment, read_matrix, read_posterior, read_vector, write_matrices
from fsachain.graph.supervision import load_chunks
from fsachain.openfst import read_fst

OPTIONS = "--lang lang --den den --config config.yaml"
FRAMES = 15  # of the recordings of the lattices, in input frames


@pytest.fixture
def case(shared):
    return shared / "golden/kaldi/lm/lm1_tiny"


@pytest.fixture
def taken_over(fsachain, case, tmp_path):
    """The language of a golden case, a denominator in which any phone may follow any, a data directory of features."""
    fsachain.ok(f"kaldi lang {case}/lexiconp.txt {case} lang")
    pairs = [[a, b] for a in range(1, 10) for b in range(1, 10)]
    estimate_phone_lm(pairs, 2, 0, 2).write(tmp_path / "phone_lm.fst")
    fsachain.ok("den-graph phone_lm.fst den --lang lang")
    data = tmp_path / "data"
    data.mkdir()
    rng = np.random.default_rng(0)
    write_matrices(data / "feats.ark", {name: rng.normal(size=(FRAMES, 3)) for name in ("a", "b")})
    (data / "text").write_text("a\nb\n")
    (tmp_path / "config.yaml").write_text(
        "features: {kind: archive, num_columns: 3}\nnetwork: {channels: 8, time_strides: [1]}\n"
        "train: {num_epochs: 1, num_threads: 1}\ncmvn: {scope: none}\nsupervision: {chunk_frames: null}\n"
    )
    return tmp_path


@pytest.fixture
def lattices(case, tmp_path):
    """lat.1 has `a`, phones 2 3 or 2 4 in five frames."""
    model = read_transition_model(case / "0.trans_mdl")
    path = tmp_path / "lat.1"
    path.write_bytes(b"a " + kb.lattice(*two_ways(model)))
    return path


def test_lattices_become_weighted_numerators_and_what_has_none_is_left_out(
    fsachain, taken_over, lattices, case
):
    """Utterance b has no alignment, c no features."""
    model, out = case / "0.trans_mdl", taken_over / "num.npz"
    (taken_over / "data" / "text").write_text("a\nb\nc\n")
    command = f"kaldi supervise data {model} num.npz lat.1 {OPTIONS} --lm-scale 0.3"
    assert "--bad-data is stop" in fsachain.ends(1, f"{command} --bad-data stop").err and not out.exists()
    _, text, err = fsachain.ends(3, command)
    assert "2 utterances left out" in err
    supervised = "1 utterance supervised, 1 chunk"
    for told in (supervised, "no recording", "no alignment", "b: is not in the alignment"):
        assert told in text
    listed = (taken_over / "num.faults.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in listed] == ["c", "b"]
    ((chunk,),) = load_chunks(out)["a"]
    assert (chunk.start, chunk.end, chunk.of_frames, chunk.frame_weights.tolist()) == (0, 5, 5, [1.0] * 5)
    language = load_lang(taken_over / "lang")
    lattice = read_value(f"{lattices}:2", read_lattice)
    expected = phone_lattice(lattice, read_transition_model(model), lm_scale=0.3).numerator(
        FRAMES, language.tree, time_offset=1, normalization=load_normalization(language, taken_over / "den")
    )
    np.testing.assert_array_equal(chunk.fsa.pdf, expected.pdf)
    np.testing.assert_array_equal(chunk.fsa.log_prob, expected.log_prob)


def test_lattices_become_chunks_that_train(fsachain, taken_over, lattices, case):
    options = f"{OPTIONS} --set supervision.chunk_frames=9 --set supervision.overlap_frames=3"
    names = taken_over / "names.txt"  # phones of the model by name
    names.write_text((case / "phones.txt").read_text())
    command = f"kaldi supervise data {case}/0.trans_mdl chunks.npz lat.1 {options}"
    assert_one_line(fsachain(f"{command} --lm-scale 0.5"), "weights need whole utterances")
    assert "2 chunks" in fsachain.ends(3, f"{command} --phones names.txt").out
    fsachain.ends(3, f"train data chunks.npz exp {options}")
    # A phone that the language folder lacks matters if a lattice has it: that of `a` has phones 2 to 4.
    listed = names.read_text()
    names.write_text(re.sub(r"^\S+ 9$", "noise 9", listed, flags=re.MULTILINE))
    assert "2 chunks" in fsachain.ends(3, f"{command} --phones names.txt").out
    names.write_text(re.sub(r"^\S+ 2$", "noise 2", listed, flags=re.MULTILINE))
    told = "its lattice has the phone 'noise', which lang lacks"
    assert told in fsachain.ends(1, f"{command} --phones names.txt").out
    assert_one_line(fsachain(f"{command} lat.1"), "the lattice of 'a' is in another table too")


def test_alignments_become_times_of_phones_that_supervise(fsachain, taken_over, case):
    model = read_transition_model(case / "0.trans_mdl")
    said = {"a": [(1, 4), (2, 5), (3, 6)], "b": [(1, 8), (4, 7)]}
    for number, (name, spans) in enumerate(said.items(), start=1):
        ids = " ".join(str(i) for phone, frames in spans for i in spoken(model, phone, frames))
        (taken_over / f"ali.{number}").write_text(f"{name} {ids}\n")
    command = f"kaldi ctm {case}/0.trans_mdl {case}/phones.txt phones.ctm ali.1"
    assert fsachain.ok(f"{command} ali.2").out.startswith("2 utterances")
    sil, second, third, fourth, *_ = load_lang(taken_over / "lang").lexicon.phones
    assert (taken_over / "phones.ctm").read_text() == (
        f"a 1 0.000 0.040 {sil}\na 1 0.040 0.050 {second}\na 1 0.090 0.060 {third}\n"
        f"b 1 0.000 0.080 {sil}\nb 1 0.080 0.070 {fourth}\n"
    )
    assert "utterances supervised" in fsachain.ok(f"supervise data phones.ctm chunks.npz {OPTIONS}").out
    (taken_over / "ali.2").write_text("c 1 999\n")
    assert_one_line(fsachain(f"{command} ali.2"), "utterance 'c': frame 1 has 999: expected a transition id")
    assert_one_line(fsachain(f"{command} ali.1"), "the alignment of 'a' is in another table too")
    assert_one_line(fsachain(f"{command} --frame-shift 0"), "--frame-shift 0: expected seconds above 0")


def test_examples_of_kaldi_train_a_network(fsachain, taken_over, case):
    """Features and chunks are those of the examples, graph for graph, and `train` takes them."""
    archive, out = case / "egs/cegs.ark", taken_over / "egs"
    text = fsachain.ok(f"kaldi egs egs {archive}").out
    assert text.startswith("3 examples of 3 features and 18 pdfs, an output for every 3 frames")
    features = dict(read_table(out / "data/feats.scp", read_matrix))
    chunks = load_chunks(out / "chunks.npz")
    for found in read_examples(archive):
        example, ((chunk,),) = found.example, chunks[found.example.id]
        np.testing.assert_array_equal(features[example.id], example.features)
        np.testing.assert_array_equal(chunk.fsa.log_prob, found.numerator.log_prob)
        first = example.window.first
        assert (chunk.start, chunk.end) == (first, first + example.window.length)
    fsachain.ok(f"train egs/data egs/chunks.npz exp {OPTIONS}")
    twice = fsachain(f"kaldi egs egs {archive} {archive}")
    assert_one_line(twice, "the example 't0' is in another table too")


def test_weights_of_examples_become_factors(fsachain, tmp_path):
    rows, outputs = ([(0, t, 0) for t in times] for times in (range(-1, 8), (0, 3, 6)))
    graph = kb.const_fst([[(1, 1, 0.0, 0)]], [0.0])
    example = kb.chain_example(np.arange(9.0).reshape(9, 1), rows, outputs, 1, graph)
    (tmp_path / "cegs.ark").write_bytes(b"a \0B" + example)
    fsachain.ok("kaldi egs egs cegs.ark")
    ((chunk,),) = load_chunks(tmp_path / "egs/chunks.npz")["a"]
    assert chunk.frame_weights.tolist() == [0.5] * 3


VALUES = {
    "matrix": (read_matrix, b"a \0B" + kb.matrix(np.array([[1.5, -2.0], [0.125, 1e-7]]))),
    "vector": (read_vector, b"a  [ 1 2.5 ]\nb  [ 3 ]\n"),
    "alignment": (read_alignment, b"a 1 2 3\nb 4\n"),
    "posterior": (read_posterior, b"a [ 1 0.5 2 0.5 ] [ ]\n"),
    "fst": (read_fst, b"a\n1 0 3 4 0.5\n1 2.5\n0 1\n\n"),
    "lattice": (
        lambda cursor: read_lattice(cursor).expanded(),
        b"a " + kb.lattice([[(7, [1], 0.5, 2.0, 1)], []], [None, (0.25, 1.0, ())]),
    ),
}


@pytest.mark.parametrize("kind", VALUES)
def test_what_is_shown_can_be_read_again(fsachain, tmp_path, kind):
    read, content = VALUES[kind]
    source, shown = tmp_path / "values.ark", tmp_path / "shown.ark"
    source.write_bytes(content)
    shown.write_text(fsachain.ok(f"kaldi show {kind} values.ark").out)
    before, after = dict(read_table(source, read)), dict(read_table(shown, read))
    assert list(before) == list(after)
    for key, value in before.items():
        if kind == "posterior":
            assert value == after[key]
            continue
        arrays = vars(value).values() if hasattr(value, "__dict__") else [value]
        others = vars(after[key]).values() if hasattr(value, "__dict__") else [after[key]]
        for one, other in zip(arrays, others, strict=True):
            np.testing.assert_allclose(one, other, rtol=tolerances.PRINTED_WEIGHT)


def test_one_value_that_is_no_archive_is_shown(fsachain, tmp_path):
    expected = "  [\n  1.5 -2\n  0.125 1 ]\n"
    binary = b"\0B" + kb.matrix(np.array([[1.5, -2.0], [0.125, 1.0]]))
    for content in (binary, b" [\n  1.5 -2\n  0.125 1 ]\n"):
        (tmp_path / "final.mat").write_bytes(content)
        assert fsachain.ok("kaldi show matrix final.mat").out == expected
    (tmp_path / "means").write_bytes(b" [ 1 2.5 ]\n")
    assert fsachain.ok("kaldi show vector means").out == "  [ 1 2.5 ]\n"
    write_matrices(tmp_path / "feats.ark", {"a": np.ones((1, 2)), "b": np.array([[1.5, -2.0], [0.125, 1.0]])})
    address = (tmp_path / "feats.scp").read_text().split()[-1]
    assert fsachain.ok(f"kaldi show matrix {address}").out == expected
    Fsa.from_text("0 1 1\n1\n").write(tmp_path / "graph.fst")
    assert fsachain.ok("kaldi show fst graph.fst").out == "0\t1\t1\t1\t0\n1\t0\n"


def test_models_trees_and_examples_are_shown(fsachain, case):
    text = fsachain.ok(f"kaldi show model {case}/0.trans_mdl").out
    rows = [line.split("\t") for line in text.splitlines()[2:]]
    lines = (line.split() for line in (case / "pdf_map.txt").read_text().splitlines())
    expected = [fields[1:] for fields in lines if fields[0] == "T"]
    assert [row[:4] for row in rows] == [row[:4] for row in expected]
    assert [row[4] == "yes" for row in rows] == [row[4] == "1" for row in expected]
    assert all(float(row[6]) == pytest.approx(math.log(0.5), abs=tolerances.FOUR_DECIMALS) for row in rows)
    text = fsachain(f"kaldi show tree {case}/tree").out
    assert text.splitlines() == ["context-width 1", "central-position 0", "num-pdfs 18"]
    text = fsachain(f"kaldi show topo {case}/topo").out
    assert "phone 1, state 0: pdf classes 0 and 1, to 0 (0.5), 1 (0.5)" in text
    text = fsachain(f"kaldi show example {case}/egs/cegs.ark")[1]
    assert "t0 input input: 152 rows of 3, times -1 to 150" in text
    assert "t0 output output: 1 sequence of 50 frames, 18 pdfs, weight 1, end-to-end, 1 graph" in text
    text = fsachain(f"kaldi show fst-file {case}/den.fst")[1]
    den = read_value(case / "den.fst", read_fst)
    assert len(text.splitlines()) == len(den.src) + np.isfinite(den.final_log_prob).sum()
    assert text.startswith(f"{den.start}\t")
    assert_one_line(fsachain(f"kaldi show matrix {case}/egs/cegs.ark"), "expected a matrix")


@pytest.mark.parametrize(
    ("name", "options"),
    [("lm1_tiny", ["--ngram-order", 2, "--no-prune-ngram-order", 2, "--num-extra-lm-states", 0]), ("lm8_onesent", None)],
)  # fmt: skip
def test_phone_sequences_become_the_phone_language_model_of_kaldi(fsachain, shared, tmp_path, name, options):
    folder = shared / "golden/kaldi/lm"
    if options is None:
        options = json.loads((folder / "index.json").read_text())[name]["lm_opts"].replace("=", " ").split()
    text = fsachain.ok(f"kaldi phone-lm {folder}/{name}/phone_seqs.txt lm.fst", *options).out
    theirs = Fsa.read(folder / name / "phone_lm.fst")
    assert f"{theirs.num_states} states, {theirs.num_arcs} arcs" in text
    assert equivalent(Fsa.read(tmp_path / "lm.fst"), theirs, semiring="log", tolerance=tolerances.GRAPH_COST)
    (tmp_path / "empty").write_text("")
    assert_one_line(fsachain("kaldi phone-lm empty no.fst"), "no sequence of phones")


def test_the_normalization_of_kaldi_is_made_on_request(fsachain, case, tmp_path):
    """Kaldi keeps the best of like arcs out of the start; exact sums are the default."""
    fsachain.ok(f"kaldi lang {case}/lexiconp.txt {case} lang")
    lang, theirs = "--lang lang", Fsa.read(case / "normalization.fst")
    alike = {}
    for merge in ("sum", "min"):
        den = tmp_path / merge
        fsachain.ok(f"kaldi den {case}/den.fst {den} {lang} --merge {merge}")
        score, expected = Scorer(Fsa.read(den / "normalization.fst")), Scorer(theirs)
        sampled = [theirs.pdf[path] for path in sample_paths(theirs, 60, seed=5, max_frames=30) if path]
        differences = [abs(score(pdfs) - expected(pdfs)) for pdfs in sampled]
        alike[merge] = max(differences) <= tolerances.KALDI_SUPERVISION_PATH
    assert alike == {"sum": False, "min": True}
    made = tmp_path / "made"
    fsachain.ok(f"den-graph {case}/phone_lm.fst {made} {lang} --merge min")
    den = DenominatorGraph(Fsa.read(made / "den.fst"), 18)
    found, expected = Fsa.read(made / "normalization.fst"), den.normalization_fsa("min")
    assert equivalent(found, expected, semiring="log", tolerance=tolerances.GRAPH_COST)
