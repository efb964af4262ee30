"""Kaldi's own files are read as Kaldi meant them, binary and text, and ours are read by others."""

import gzip
import json
import math
import struct
from pathlib import Path

import kaldi_bytes as kb
import kaldi_native_io
import numpy as np
import pytest
import pywrapfst
import tolerances
from graph_paths import assert_same_columns
from refusals import refuses

from fsachain import stream
from fsachain.asr.data.kaldi_examples import read_examples
from fsachain.asr.kaldi.archive import read_table, read_value
from fsachain.asr.kaldi.examples import read_example
from fsachain.asr.kaldi.model import read_context_tree, read_topology, read_transition_model, read_tree
from fsachain.asr.kaldi.values import (
    read_alignment,
    read_matrix,
    read_num_rows,
    read_posterior,
    read_vector,
    write_matrices,
)
from fsachain.errors import DataError, GraphError
from fsachain.fsa import Fsa, read_fsa
from fsachain.graph.context import BiphoneCounts, ContextTree
from fsachain.graph.lexicon import read_phones
from fsachain.graph.topology import HmmState, Topology
from fsachain.openfst import read_fst, read_symbols
from fsachain.stream import Cursor, open_file

CASES = ["lm1_tiny", "lm2_tri_mono", "lm3_4gram_mono", "lm6_biphone_tied", "lm8_onesent"]


@pytest.fixture(params=CASES)
def case(request, shared):
    return shared / "golden/kaldi/lm" / request.param


def pdf_map(case):
    """(pdfs by (left or None, phone), rows by transition id) of Kaldi's own print-out."""
    pdfs, rows = {}, {}
    for line in (case / "pdf_map.txt").read_text().splitlines():
        fields = line.split()
        if fields[0] == "T":
            rows[int(fields[1])] = [*map(int, fields[2:6]), float(fields[6])]
        elif fields[0] != "#":
            *context, forward, loop = map(int, fields)
            pdfs[(None, *context)[-2:]] = (forward, loop)
    return pdfs, rows


def our_tree(case, phones):
    """Made by us; the biphones are those that gmm-init-biphone tied with thresholds 50 and 20."""
    if case.name != "lm6_biphone_tied":
        return ContextTree.monophone(phones, Topology.chain())
    rows = [tuple(map(int, line.split())) for line in (case / "phone-stats.txt").read_text().splitlines()]
    pairs = {row[:2]: row[2] for row in rows if len(row) == 3}
    counts = BiphoneCounts(pairs, {row[0]: row[1] for row in rows if len(row) == 2})
    least = {"min_biphone_count": 50, "min_monophone_count": 20}
    return ContextTree.tied_biphone(phones, Topology.chain(), counts, **least)


def test_tree_and_model_and_our_own_tree_give_every_context_kaldis_pdfs(case):
    tree = read_context_tree(case / "tree", case / "0.trans_mdl", read_phones(case / "phones.txt"))
    pdfs, _ = pdf_map(case)
    assert len(pdfs) == tree.num_phones * (1 if tree.context_width == 1 else tree.num_phones + 1)
    info = {
        key: int(value) for key, value in map(str.split, (case / "tree_info.txt").read_text().splitlines())
    }
    assert (tree.context_width, tree.central_position) == (info["context-width"], info["central-position"])
    for one in (tree, our_tree(case, tree.phones)):
        assert one.num_pdfs == info["num-pdfs"]
        for (left, phone), expected in pdfs.items():
            assert (one.pdf(phone, 0, left or 0), one.pdf(phone, 1, left or 0)) == expected


def test_transition_ids_mean_what_kaldi_prints(case):
    model = read_transition_model(case / "0.trans_mdl")
    _, rows = pdf_map(case)
    table = model.transitions
    assert len(table.pdf) == len(rows) + 1
    for number, (phone, state, pdf, loop, log_prob) in rows.items():
        assert (table.phone[number], table.hmm_state[number], table.pdf[number]) == (phone, state, pdf)
        assert table.is_self_loop[number] == bool(loop)
        assert model.log_probs[number] == pytest.approx(log_prob, abs=tolerances.FLOAT32_ROUNDING)
    assert model.topology() == Topology.chain()


def test_text_and_binary_forms_hold_the_same(case):
    phones = read_phones(case / "phones.txt")
    binary = read_context_tree(case / "tree", case / "0.trans_mdl", phones)
    assert read_context_tree(case / "tree.txt", case / "trans_mdl.txt", phones).equals(binary)
    assert read_topology(case / "topo") == read_transition_model(case / "0.trans_mdl").states


def test_tree_and_model_of_different_directories_are_refused(shared):
    folder = shared / "golden/kaldi/lm"
    phones, tiny = read_phones(folder / "lm2_tri_mono/phones.txt"), folder / "lm1_tiny"
    files = folder / "lm8_onesent/tree", folder / "lm2_tri_mono/0.trans_mdl"
    refuses(DataError, "do not belong together", read_context_tree, *files, phones)
    refuses(
        DataError, "9 phones; expected 20", read_context_tree, tiny / "tree", tiny / "0.trans_mdl", phones
    )


@pytest.mark.parametrize(("old", "new"), [("\n2 0 2 3", "\n2 0 16 3"), ("\n2 0 2 3", "\n2 0 2 17")])
def test_a_model_whose_pdfs_are_of_other_phones_than_the_trees_is_refused(old, new, shared, tmp_path):
    """First or further frames of phone 2 have a pdf of phone 9."""
    folder = shared / "golden/kaldi/lm/lm1_tiny"
    (tmp_path / "mdl").write_text((folder / "trans_mdl.txt").read_text().replace(old, new))
    files = folder / "tree", tmp_path / "mdl", read_phones(folder / "phones.txt")
    refuses(
        DataError, "pdf 1[67] belongs to phone 2 in the model and not in the tree", read_context_tree, *files
    )


def test_fst_files_are_what_openfst_reads(case):
    names = ["L", "den", "normalization", "phone_lm", "sup/t0.graph", "sup/t0.supnorm"]
    for path in [case / f"{name}.fst" for name in names if (case / f"{name}.fst").is_file()]:
        found, fst = read_fst(open_file(path)), pywrapfst.Fst.read(str(path))
        assert (found.num_states, found.start) == (fst.num_states(), fst.start())
        rows = (
            (s, a.nextstate, a.ilabel, a.olabel, -float(a.weight)) for s in fst.states() for a in fst.arcs(s)
        )
        columns = np.stack([found.src, found.dst, found.ilabel, found.olabel, found.log_prob], axis=1)
        np.testing.assert_array_equal(columns, np.float32(list(rows)))
        finals = [-float(fst.final(state)) for state in fst.states()]
        np.testing.assert_array_equal(found.final_log_prob, np.float32(finals))


def test_archives_of_fsts_in_all_the_forms_kaldi_writes(case, tmp_path):
    graphs = dict(read_table(case / "graphs.ark", read_fst))
    for key, graph in graphs.items():
        alone = read_fst(open_file(case / f"sup/{key}.graph.fst"))
        assert np.array_equal(graph.dst, alone.dst) and np.array_equal(graph.log_prob, alone.log_prob)
    lines = []
    # Kaldi's text form: the key, then a line for each arc, then an empty line.
    for key, graph in graphs.items():
        lines.append(f"{key} ")
        columns = (graph.src, graph.dst, graph.ilabel, graph.olabel, -graph.log_prob)
        lines += ["\t".join(map(str, row)) for row in zip(*(c.tolist() for c in columns), strict=True)]
        finals = -graph.final_log_prob
        lines += [f"{s}\t{finals[s]}" for s in np.flatnonzero(np.isfinite(finals))] + [""]
    (tmp_path / "text.ark").write_text("\n".join(lines) + "\n")
    text = dict(read_table(f"ark,t:{tmp_path / 'text.ark'}", read_fst))
    assert list(text) == list(graphs)
    for key, graph in graphs.items():
        assert_same_columns(text[key], graph)


@pytest.mark.parametrize("aligned", [False, True], ids=["packed", "aligned"])
def test_const_fsts_are_read_as_vector_fsts(aligned, tmp_path):
    arcs = [[(1, 1, 0.5, 1), (2, 2, 0.25, 0)], [(3, 3, 0.0, 1)]]
    (tmp_path / "const.fst").write_bytes(kb.const_fst(arcs, [np.inf, 1.5], aligned=aligned))
    expected = Fsa(2, [0, 0, 1], [1, 0, 1], [0, 1, 2], [-0.5, -0.25, 0.0], [-np.inf, -1.5])
    assert_same_columns(read_fsa(open_file(tmp_path / "const.fst")), expected)


@pytest.mark.parametrize("name", ["lm1_tiny", "lm3_4gram_mono"])
def test_end_to_end_examples_hold_the_supervision_that_kaldi_extracts(shared, name):
    """Features, graphs and times of cegs.ark against Kaldi's text of the features and FSTs of its copy."""
    folder = shared / "golden/kaldi/lm" / name / "egs"
    features = dict(read_table(folder / "feats.txt", read_matrix))
    facts = {line.split()[0]: line for line in (folder / "info.txt").read_text().splitlines()}
    found = dict(read_table(folder / "cegs.ark", read_example))
    assert set(found) == set(facts)
    for key, example in found.items():
        (part,), (output,) = example.inputs, example.outputs
        assert part.features.shape == (len(part.indexes.t), 3)
        assert f"{part.features.shape[0]} x 3" in facts[key]
        assert f"frames_per_sequence={output.frames_per_sequence} label_dim={output.label_dim}" in facts[key]
        inside = part.indexes.t.clip(0, len(features[key]) - 1)
        assert np.abs(part.features - features[key][inside]).max() <= tolerances.FOUR_DECIMALS * 10
        assert_same_columns(output.fsas[0], Fsa.read(folder / f"{key}.egs.fst"))
    for ours in read_examples(folder / "cegs.ark"):
        output = found[ours.example.id].outputs[0]
        assert (ours.subsampling, ours.num_pdfs) == (3, output.label_dim)
        assert ours.example.window.length == output.frames_per_sequence
        first = ours.example.window.first * ours.subsampling + 1  # where a Tdnnf centres its first output
        expected = features[ours.example.id][0]  # time 0, on which the first output is centred
        assert np.abs(ours.example.features[first] - expected).max() <= tolerances.FOUR_DECIMALS * 10


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (
            [(0, 0), (0, 3), (0, 7)],
            r"sequence 0 of the output: expected 3 even steps, got frames \[0, 3, 7\]",
        ),
        ([(0, 0), (0, 3), (0, 6), (1, 0)], "sequence 0 of the output: expected 2 even steps"),
        ([(0, -6), (0, -3)], "times -6 to -3 lie not in those of the input, -4 to 7"),
        ([(0, 6), (0, 9)], "times 6 to 9 lie not in"),
    ],
)
def test_outputs_that_do_not_lie_evenly_in_the_input_are_refused(outputs, message, tmp_path):
    sequences = 1 + outputs[-1][0]
    indexes = [(n, t, 0) for n in range(sequences) for t in range(-4, 8)]
    graphs = sequences * kb.const_fst([[(1, 1, 0.0, 0)]], [0.0])
    content = np.zeros((len(indexes), 1)), indexes, [(*place, 0) for place in outputs], sequences, graphs
    (tmp_path / "cegs.ark").write_bytes(b"a \0B" + kb.chain_example(*content))
    with pytest.raises(DataError, match=message):
        list(read_examples(tmp_path / "cegs.ark"))


def test_merged_examples_come_apart_into_their_sequences(tmp_path):
    """Rows of two sequences take turns; context of two frames before the first output is kept."""
    times = range(-4, 8)
    indexes = [(n, t, 0) for t in times for n in range(2)]
    features = np.array([[10.0 * n + t] for n, t, _ in indexes])
    outputs = [(n, t, 0) for t in (0, 3, 6) for n in range(2)]
    one = kb.const_fst([[(1, 1, 0.0, 0)]], [0.0])
    two = kb.const_fst([[(4, 4, 0.0, 0)]], [0.5])
    weights = b"<DW> \1" + (6).to_bytes(4, "little") + bytes([255, 0, 255, 51, 255, 255])
    data = b"a \0B" + kb.chain_example(features, indexes, outputs, 2, one + two, weights)
    (tmp_path / "cegs.1.ark.gz").write_bytes(gzip.compress(data))
    first, second = read_examples(tmp_path / "cegs.1.ark.gz", time_offset=0)
    assert (first.example.id, second.example.id) == ("a-0", "a-1")
    assert first.example.features[:, 0].tolist() == list(range(-3, 8))
    ahead, _ = read_examples(tmp_path / "cegs.1.ark.gz", time_offset=5)  # more than the context there is
    assert ahead.example.features[:, 0].tolist() == [-4, *range(-4, 8)]
    assert ahead.example.features[3 * ahead.example.window.first + 5, 0] == 0
    assert second.example.features[:, 0].tolist() == [10 + t for t in range(-3, 8)]
    assert (first.example.window.first, first.weight) == (1, 0.5)
    assert first.example.window.frame_weights.tolist() == [1, 1, 1]
    assert second.example.window.frame_weights == pytest.approx([0, 0.2, 1], abs=tolerances.FLOAT32_ROUNDING)
    assert (first.numerator.pdf.tolist(), second.numerator.pdf.tolist()) == ([0], [3])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            b"<FramesPerSeq> " + kb.i4(2),
            b"<FramesPerSeq> " + kb.i4(3),
            "1 sequence of 3 frames, but 2 indexes",
        ),
        (b"<LabelDim> " + kb.i4(4), b"<LabelDim> " + kb.i4(1), "pdf 1 in a supervision of 1 pdf"),
        (b"<DW> \1\2\0\0\0aa", b"<DW> \1\1\0\0\0a", "1 derivative weight for 2 frames"),
        (b"\x7f" + kb.i4(0) + kb.i4(1) + kb.i4(0), b"\x7d", "step 125 of an index"),
        (b"<NnetIo> input <I1V> " + kb.i4(2), b"<NnetIo> input <I1V> " + kb.i4(1), "found '"),
    ],
)
def test_an_example_that_contradicts_itself_is_refused(old, new, message, tmp_path):
    times, graph = [(0, 0, 0), (0, 1, 0)], kb.const_fst([[(2, 2, 0.0, 0)]], [0.0])
    content = kb.chain_example(np.zeros((2, 1)), times, times, 1, graph, b"<DW> \1\2\0\0\0aa")
    assert old in content
    for name, data in (("sound", content), ("bad", content.replace(old, new, 1))):
        (tmp_path / f"{name}.ark").write_bytes(b"a \0B" + data)
    assert len(list(read_table(tmp_path / "sound.ark", read_example))) == 1
    refuses(DataError, message, list, read_table(tmp_path / "bad.ark", read_example))


def test_compressed_matrices_unpack_as_in_kaldi(tmp_path):
    path, methods = tmp_path / "c.ark", kaldi_native_io.CompressionMethod
    values = np.random.default_rng(1).normal(size=(40, 7)).astype(np.float32)
    with kaldi_native_io.CompressedMatrixWriter(f"ark:{path}") as writer:
        for name in [
            "AutomaticMethod",
            "SpeechFeature",
            "TwoByteAuto",
            "TwoByteSignedInteger",
            "OneByteAuto",
        ]:
            writer.write(name, values, getattr(methods, f"k{name}"))
    found = dict(read_table(path, read_matrix))
    with kaldi_native_io.SequentialFloatMatrixReader(f"ark:{path}") as reader:
        for name, expected in reader:
            assert found[name] == pytest.approx(np.array(expected), abs=tolerances.FEW_FLOAT32_TERMS)
    assert len(found) == 5


WRITERS = {
    "alignment": ("Int32VectorWriter", [3, 1, 4, 1, 5], read_alignment),
    "empty alignment": ("Int32VectorWriter", [], read_alignment),
    "vector": ("FloatVectorWriter", np.array([0.5, -2.0], np.float32), read_vector),
    "double vector": ("DoubleVectorWriter", np.array([0.5, -2.0]), read_vector),
    "double matrix": ("DoubleMatrixWriter", np.array([[0.5, -2.0], [1.0, 4.0]]), read_matrix),
    "posterior": ("PosteriorWriter", [[(1, 0.5), (7, 0.25)], [], [(2, 1.0)]], read_posterior),
}


@pytest.mark.parametrize("form", ["ark", "ark,t"], ids=["binary", "text"])
@pytest.mark.parametrize("kind", WRITERS)
def test_values_that_another_program_wrote_are_read(kind, form, tmp_path):
    writer_name, value, read = WRITERS[kind]
    where = f"{form},scp:{tmp_path / 'v.ark'},{tmp_path / 'v.scp'}"
    with getattr(kaldi_native_io, writer_name)(where) as writer:
        writer.write("first", value)
        writer.write("second", value)
    for table in ("v.ark", "v.scp"):
        found = dict(read_table(tmp_path / table, read))
        assert list(found) == ["first", "second"]
        for got in found.values():
            assert got == value if kind == "posterior" else np.array_equal(got, value)


def test_our_archive_of_outputs_is_read_by_another_program(tmp_path):
    rng = np.random.default_rng(2)
    outputs = {f"utterance-{n}": rng.normal(size=(n + 1, 5)) for n in range(4)}
    assert write_matrices(tmp_path / "out.ark", outputs) == 4
    for kind in ("ark", "scp"):
        with kaldi_native_io.SequentialFloatMatrixReader(f"{kind}:{tmp_path / 'out'}.{kind}") as reader:
            found = {key: np.array(value) for key, value in reader}
        assert list(found) == list(outputs)
        assert all(np.array_equal(found[key], outputs[key].astype(np.float32)) for key in outputs)
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(
    ("name", "key", "values", "message"),
    [
        ("out.scp", "b", np.eye(2), "expected a name that ends in .ark"),
        ("o,t.ark", "b", np.eye(2), "without comma"),
        ("out.ark", "b c", np.eye(2), "key 'b c': expected a name without white space"),
        ("out.ark", "", np.eye(2), "key '': expected a name"),
        ("out.ark", "b", np.zeros((2, 2, 2)), r"'b' has shape \[2, 2, 2\]"),
        ("out.ark", "b", np.zeros((0, 2)), r"'b' has shape \[0, 2\]"),
        ("out.ark", "b", np.array([[0.0, np.nan]]), "'b' has NaN or"),
        ("out.ark", "b", np.array([[0.0, np.inf]]), "'b' has NaN or"),
    ],
)
def test_outputs_that_no_archive_can_hold_are_refused_and_replace_none(name, key, values, message, tmp_path):
    write_matrices(tmp_path / "out.ark", {"a": np.array([[-np.inf, 0.0]])})
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    refuses(DataError, message, write_matrices, tmp_path / name, {"a": np.eye(2), key: values})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == kept


def test_an_archive_that_was_written_by_a_relative_path_is_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train").mkdir()
    write_matrices("train/feats.ark", {"a": np.eye(3)})
    for folder in (tmp_path, tmp_path / "train", Path("/")):
        monkeypatch.chdir(folder)
        ((name, found),) = read_table(tmp_path / "train" / "feats.scp", read_matrix)
        assert name == "a" and np.array_equal(found, np.eye(3))


def test_ranges_of_addresses_include_their_last_row(tmp_path):
    """And may, as in Kaldi, end up to three rows, but no column, beyond it."""
    values = np.arange(12.0).reshape(4, 3)
    write_matrices(tmp_path / "m.ark", {"a": values})
    address = (tmp_path / "m.scp").read_text().split()[1]
    assert np.array_equal(read_value(f"{address}[1:2]", read_matrix), values[1:3])
    assert np.array_equal(read_value(f"{address}[:,0:1]", read_matrix), values[:, :2])
    for last in (4, 6):
        assert np.array_equal(read_value(f"{address}[2:{last}]", read_matrix), values[2:])
    for beyond in ("2:7", "4:6"):
        told = f"range {beyond} lies not in 0:3"
        refuses(DataError, told, read_value, f"{address}[{beyond}]", read_matrix)
    refuses(DataError, r"range 0:3 lies not in 0:2", read_value, f"{address}[:,0:3]", read_matrix)
    (tmp_path / "text").write_text("a [ 1 2 ]\nb 1 2\nc [ 1 0.5 ]\n")
    for place, read in ((2, read_vector), (12, read_alignment), (18, read_posterior)):
        refuses(DataError, "a range of rows, but", read_value, f"{tmp_path / 'text'}:{place}[0:0]", read)
    assert read_value(f"{tmp_path / 'text'}:12", read_alignment).tolist() == [1, 2]
    refuses(DataError, "the file has 28 bytes", read_value, f"{tmp_path / 'text'}:29", read_alignment)


def test_paths_in_an_scp_file_are_relative_to_it_and_commands_are_not_run(tmp_path):
    write_matrices(tmp_path / "m.ark", {"a": np.ones((1, 2))})
    (tmp_path / "moved.scp").write_text("a m.ark:2\n")
    assert dict(read_table(tmp_path / "moved.scp", read_matrix))["a"].shape == (1, 2)
    (tmp_path / "bad.scp").write_text(f"a touch {tmp_path / 'ran'} |\n")
    refuses(DataError, r"bad\.scp:1: .*shell command", list, read_table(tmp_path / "bad.scp", read_matrix))
    assert not (tmp_path / "ran").exists()


def test_alignments_come_apart_into_phones(shared):
    """Two frames of phone 3, one of phone 3 again, three of phone 1; with self-loops after and before leaving."""
    model = read_transition_model(shared / "golden/kaldi/lm/lm1_tiny/0.trans_mdl")
    loop, leave = {p: 2 * p - 1 for p in (1, 3)}, {p: 2 * p for p in (1, 3)}
    reordered = [leave[3], loop[3], leave[3], leave[1], loop[1], loop[1]]
    plain = [loop[3], leave[3], leave[3], loop[1], loop[1], leave[1]]
    assert model.phones(reordered) == model.phones(plain) == [(3, 0, 2), (3, 2, 3), (1, 3, 6)]
    assert model.pdfs(reordered).tolist() == [4, 5, 4, 0, 1, 1]
    assert model.phones([]) == []
    refuses(DataError, r"frame 1 has 19: expected a transition id of .*1 to 18", model.pdfs, [1, 19])


def test_symbols_are_in_id_order_and_refused_with_gaps(shared, tmp_path):
    words = shared / "golden/kaldi/lm/lm1_tiny/words.txt"
    assert ["<eps>", *read_symbols(words)] == [line.split()[0] for line in words.read_text().splitlines()]
    (tmp_path / "words.txt").write_text("b 2\n\n<eps> 0\nc 3\na 1\n")
    assert read_symbols(tmp_path / "words.txt") == ("a", "b", "c")
    for content, message in {
        "<eps> 0\na 1\nb 3\n": "2 ids from 1 to 3: .*without gaps",
        "a 2\nb 2\n": "id 2 belongs to 'a' and 'b'",
        "<eps> 0\n<epsilon> 0\n": "txt:2: id 0 belongs to '<eps>' and '<epsilon>'",
        "a 1\na 2\n": "a name occurs twice, 'a'",
        "a 1 2\n": "txt:1: 'a 1 2', expected a name and its id",
    }.items():
        (tmp_path / "words.txt").write_text(content)
        refuses(DataError, message, read_symbols, tmp_path / "words.txt")


SILENCE_WITH_SKIPS = """<Topology> <TopologyEntry> <ForPhones> 1 </ForPhones>
<State> 0 <PdfClass> 0 <Transition> 0 0.5 <Transition> 2 0.5 </State>
<State> 1 <PdfClass> 1 <Transition> 1 0.75 <Transition> 2 0.25 </State> <State> 2 </State>
</TopologyEntry> </Topology> """


STATES = "<State> 0 <PdfClass> 0 <Transition> 0 0.5 <Transition> 1 0.5 </State> <State> 1 </State>"
ENTRY = f"<TopologyEntry> <ForPhones> 1 2 </ForPhones> {STATES} </TopologyEntry>"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (ENTRY, "", "a topology without phones"),
        (STATES, "<State> 0 </State>", "phone 2: expected at least one emitting state, then an end"),
        ("<State> 1 <", "<State> 1 <PdfClass> 1 <Transition> 0 1.0 <", "then an end without transitions"),
        ("<Transition> 1", "<Transition> 2", "phone 2: expected at least one emitting state, then an end"),
    ],
)
def test_a_topology_whose_phones_have_no_end_is_refused(old, new, message, tmp_path):
    (tmp_path / "topo").write_text(f"<Topology>\n{ENTRY.replace(old, new)}\n</Topology>\n")
    with pytest.raises(DataError, match=message):
        read_topology(tmp_path / "topo")


def test_a_topology_that_skips_states_is_read_with_its_probabilities(tmp_path):
    half, quarter, rest = math.log(0.5), math.log(0.25), math.log(0.75)
    log_probs = f"<LogProbs> [ 0 {half:.6f} {half:.6f} {rest:.6f} {quarter:.6f} ]\n</LogProbs>"
    model = f"{SILENCE_WITH_SKIPS}<Triples> 2 1 0 0 1 1 1 </Triples> {log_probs}"
    (tmp_path / "0.trans_mdl").write_text(f"<TransitionModel> {model} </TransitionModel> ")
    topology = read_transition_model(tmp_path / "0.trans_mdl").topology()
    assert topology.states == (HmmState(0, 0, -math.inf, half, ((2, half),)), HmmState(1, 1, quarter, rest))
    assert Topology.from_dict(json.loads(json.dumps(topology.to_dict()))) == topology


TWO_PHONES = """<TransitionModel> <Topology> <TopologyEntry> <ForPhones> 1 2 </ForPhones>
<State> 0 <PdfClass> 0 <Transition> 0 0.5 <Transition> 1 0.5 </State> <State> 1 </State> </TopologyEntry> </Topology>
<Triples> 2 1 0 0 2 0 1 </Triples> <LogProbs> [ 0 -0.7 -0.7 -0.7 -0.7 ]
</LogProbs> </TransitionModel> """
OTHER_ENTRY = """</TopologyEntry> <TopologyEntry> <ForPhones> 2 </ForPhones>
<State> 0 <PdfClass> 1 <Transition> 0 0.5 <Transition> 1 0.5 </State> <State> 1 </State> </TopologyEntry> """
TWO_WAYS = """ 0.25 <Transition> 1 0.25 </State> <State> 1 </State> </TopologyEntry> </Topology>
<Triples> 1 1 0 0 </Triples> <LogProbs> [ 0 -0.7 -1.4 -1.4 ]
</LogProbs> </TransitionModel> """


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (" -0.7 ]", " -0.9 ]", "state 0 reach from -0.9 to -0.7; expected one for all phones"),
        (" -0.7 ]", " ]", "4 log-probabilities; expected 5"),
        ("<Transition> 1 0.5", "<Transition> 0 0.5", r"state 0 has pdf class 0 and goes to \[0, 0\]"),
        ("<PdfClass> 0", "", "state 0 has pdf class -1"),
        (
            TWO_PHONES[TWO_PHONES.index(" 0.5 </State>") :],
            TWO_WAYS,
            r"state 0 has pdf class 0 and goes to \[0, 1, 1\]",
        ),
        ("</TopologyEntry>", OTHER_ENTRY, "phone 2 has another topology than others"),
        ("2 0 1 <", "2 1 1 <", "state 1 of phone 2, which the topology lacks"),
        ("2 0 1 <", "3 0 1 <", "state 0 of phone 3, which the topology lacks"),
    ],
)
def test_a_model_that_has_no_one_topology_is_refused(old, new, message, tmp_path):
    (tmp_path / "mdl").write_text(TWO_PHONES)
    assert len(read_transition_model(tmp_path / "mdl").topology().states) == 1
    (tmp_path / "mdl").write_text(TWO_PHONES.replace(old, new, 1))
    refuses((DataError, GraphError), message, lambda: read_transition_model(tmp_path / "mdl").topology())


def test_a_split_tree_is_read_in_both_forms(tmp_path):
    """A triphone tree: is the left phone 1 or 2? if so, is the class 0? else by the right phone."""
    text = (
        "ContextDependency 3 1 ToPdf SE 0 [ 1 2 ]\n{ TE -1 2 ( CE 0 CE 1 )\n SE 2 [ 1 ]\n{ CE 2 CE 3 }\n}\n"
        "EndContextDependency "
    )
    binary = (  # vectors of integers have their size in front, and a table has
        b"\0BContextDependency %b%bToPdf SE %b\4\2\0\0\0\1\0\0\0\2\0\0\0{ TE %b\xfc\2\0\0\0( CE %bCE %b) "
        b"SE %b\4\1\0\0\0\1\0\0\0{ CE %bCE %b} } EndContextDependency "
    ) % (*map(kb.i4, (3, 1, 0, -1, 0, 1, 2, 2, 3)),)
    (tmp_path / "text").write_text(text)
    (tmp_path / "binary").write_bytes(binary)
    found = read_tree(tmp_path / "text")
    assert read_tree(tmp_path / "binary") == found
    assert (found.context_width, found.central_position) == (3, 1)
    answers = [
        found.decisions.pdf(window, c)
        for window, c in (((1, 9, 9), 0), ((2, 9, 9), 1), ((0, 9, 1), 0), ((3, 9, 2), 1))
    ]
    assert answers == [0, 1, 2, 3]
    assert found.decisions.pdf((1, 9, 9), 2) is None


# Values of Kaldi's archives: what their arrays hold, and what they cannot.


def test_an_alignment_has_32_bits_a_frame():
    found = read_alignment(Cursor(b"1 2147483647 -3\n", "ali"))
    assert found.dtype == np.int32 and found.tolist() == [1, 2147483647, -3]


def compressed(low, span, rows, columns):
    return b"CM2 " + struct.pack("<ffii", low, span, rows, columns) + bytes(8)


@pytest.mark.parametrize(
    ("read", "content", "message"),
    [
        (read_alignment, b"1 2147483648\n", "byte 0: .*found 2147483648, which is beyond 32 bits"),
        (
            read_alignment,
            b"\0B" + kb.i4(2) + kb.i4(1) + b"\2\1\0\0\0",
            "byte 12: frame 1 .* is no 32-bit integer",
        ),
        (read_posterior, b"[ 1 0.5 ] [ 4294967296 1 ]\n", "byte 0: .*found 4294967296"),
        (read_posterior, b"1 0.5 ] [ 1 0.5 ]\n", r"byte 0: .*expected \[, found '1'"),
        (read_posterior, b"[ 1 0.5 ] [ 1\n", "byte 0: .*the line ends in a frame"),
        (read_vector, b"[ 1 2\n 3 4 ]\n", "found a matrix of 2 rows"),
        (read_vector, b"\0B" + kb.matrix(np.eye(2)), "byte 2: expected a vector .* found 'FM'"),
        (read_matrix, b"[ 1 2\n 3 ]\n", "byte 0: a matrix whose rows have 1 to 2 elements"),
        (read_matrix, b"[ 1 2 ] 3\n", r"byte 7: expected the end of the line after \], found b'3'"),
        (read_matrix, b"\0B" + compressed(np.nan, 1.0, 2, 2), "byte 2: compressed matrix of 2 x 2 from nan"),
        (read_matrix, b"\0B" + compressed(0.0, np.inf, 2, 2), "byte 2: .* from 0.0 over inf"),
        (read_matrix, b"\0B" + compressed(0.0, 1.0, -2, -2), "byte 2: compressed matrix of -2 x -2"),
    ],
)
def test_values_of_another_form_are_refused(read, content, message):
    cursor = Cursor(content, "ali")
    cursor.detect_binary()
    refuses(DataError, f"ali, {message}" if message.startswith("byte") else message, read, cursor)


@pytest.mark.parametrize(
    "content", [b"FM " + kb.i4(5) + kb.i4(0), compressed(0.0, 1.0, 5, 0), b"DM \4\0\0\0\0\4\5\0\0\0"]
)
def test_a_matrix_without_rows_or_columns_has_neither(content):
    for read, expected in ((lambda cursor: read_matrix(cursor).shape, (0, 0)), (read_num_rows, 0)):
        cursor = Cursor(content, "matrix")
        cursor.binary = True
        assert read(cursor) == expected


def test_a_key_may_end_its_line(tmp_path):
    (tmp_path / "ali.ark").write_text("1\n2 3 4\n5 \n6 7\n")
    found = {key: value.tolist() for key, value in read_table(tmp_path / "ali.ark", read_alignment)}
    assert found == {"1": [], "2": [3, 4], "5": [], "6": [7]}


def test_a_long_line_and_a_long_field():
    numbers = [10**digits for digits in range(9)] * 2_000
    text = "  ".join(map(str, numbers)).encode() + b" \r\n7\n"
    cursor = Cursor(text, "ali")
    assert read_alignment(cursor).tolist() == numbers
    assert read_alignment(cursor).tolist() == [7]
    with pytest.raises(DataError, match=r"ali, byte 0: expected a line of integers, found '2{40}'$"):
        read_alignment(Cursor(b"1 " + b"2" * 9_000 + b" 3\n", "ali"))


def test_the_codes_of_a_large_compressed_matrix_lie_between_their_columns_quartiles():
    rows, columns = 3_001, 7
    generator = np.random.default_rng(1)
    quartiles = np.sort(generator.integers(0, 65536, (columns, 4)), axis=1).astype("<u2")
    codes = generator.integers(0, 256, (columns, rows)).astype("u1")
    head = b"CM " + struct.pack("<ffii", -2.0, 5.0, rows, columns)
    cursor = Cursor(head + quartiles.tobytes() + codes.tobytes(), "matrix")
    cursor.binary = True
    found = read_matrix(cursor)
    points = -2.0 + quartiles * (5.0 / 65535)
    for column in range(columns):
        expected = np.interp(codes[column], [0, 64, 192, 255], points[column])
        np.testing.assert_allclose(
            found[:, column], expected, rtol=tolerances.SIX_DIGITS, atol=tolerances.SIX_DIGITS
        )


def test_a_packed_archive_is_read_as_it_is_unpacked(tmp_path, monkeypatch):
    content = b"".join(b"u%d 1 2 3\n" % number for number in range(20_000))
    for name, data in (
        ("a.ark", content),
        ("a.ark.gz", gzip.compress(content)),
        ("b.ark.gz", gzip.compress(b"u1 1 2 3\n")),
        ("e.gz", gzip.compress(b"")),
    ):
        (tmp_path / name).write_bytes(data)

    def keys(name):
        return [key for key, _ in read_table(tmp_path / name, read_alignment)]

    assert keys("a.ark") == keys("a.ark.gz") and len(keys("a.ark")) == 20_000
    assert (keys("b.ark.gz"), keys("e.gz")) == (["u1"], [])
    monkeypatch.setattr(stream, "MAX_UNPACKED_BYTES", 100_000)
    refuses(DataError, r"a\.ark\.gz: unpacks to more than 100000 bytes", keys, "a.ark.gz")
