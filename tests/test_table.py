"""Compiled tables: three views of one set of arcs, batches of them, and files whose damage does not go unnoticed."""

import struct
import zlib
from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import connected_graph, graphs, left_to_right_graph

from fsachain import (
    DenominatorGraph,
    Forgiveness,
    Fsa,
    LFMMILoss,
    Numerator,
    TableBatch,
    TransitionTable,
    best_path,
    compile_table,
    expected_accuracy,
    forward_backward,
    n_best,
    sample_paths,
    total_log_prob,
)
from fsachain.errors import DataError
from fsachain.graph.context import ContextTree
from fsachain.graph.denominator import build_denominator
from fsachain.graph.lexicon import Lexicon, lm_phones
from fsachain.graph.phone_lm import estimate_phone_lm
from fsachain.graph.shards import NumeratorMaker, TableShards, make_shards
from fsachain.graph.topology import Topology
from fsachain.table import ArcView, TableFile, write_tables

VIEWS = ("by_dst", "by_src", "by_column")


@given(graphs(max_states=5, max_arcs=10))
def test_every_view_holds_every_arc_once_in_rows_by_its_key(fsa):
    table = compile_table(fsa)
    usable = np.flatnonzero(fsa.log_prob > -np.inf)
    assert table.active_pdfs.tolist() == sorted(set(fsa.pdf[usable].tolist()))
    for name in VIEWS:
        view = getattr(table, name)
        assert sorted(view.arc.tolist()) == usable.tolist()
        assert (view.src == fsa.src[view.arc]).all() and (view.dst == fsa.dst[view.arc]).all()
        assert (table.active_pdfs[view.column] == fsa.pdf[view.arc]).all()
        assert (view.log_prob == fsa.log_prob[view.arc]).all()
        key = {"by_dst": view.dst, "by_src": view.src, "by_column": view.column}[name]
        rows = {"by_dst": fsa.num_states, "by_src": fsa.num_states, "by_column": len(table.active_pdfs)}[name]
        assert len(view.offsets) == rows + 1 and view.offsets[0] == 0 and view.offsets[-1] == len(usable)
        assert (np.repeat(np.arange(rows), np.diff(view.offsets)) == key).all()
        for row in range(rows):
            arcs = view.arc[view.offsets[row] : view.offsets[row + 1]]
            assert (np.diff(arcs) > 0).all()  # within a row in the caller's order


def test_a_saved_table_loads_equal(tmp_path):
    for table in (DenominatorGraph(connected_graph(0), 9).table, compile_table(connected_graph(0), 9)):
        table.save(tmp_path / "table.npz")
        assert_equal_tables(TransitionTable.load(tmp_path / "table.npz"), table)


def test_new_arc_weights_take_the_callers_order():
    fsa = connected_graph(0)
    weights = np.random.default_rng(1).normal(size=fsa.num_arcs)
    direct = Fsa(fsa.num_states, fsa.src, fsa.dst, fsa.pdf, weights, fsa.final_log_prob)
    expected, found = compile_table(direct), compile_table(fsa).with_arc_log_probs(weights)
    for name in VIEWS:
        assert (getattr(expected, name).log_prob == getattr(found, name).log_prob).all()


def test_a_table_compiled_for_fewer_pdfs_serves_a_wider_network():
    table = compile_table(connected_graph(0), 9)
    scores = np.random.default_rng(0).normal(size=(1, 20, 14)).astype(np.float32)
    scores[:, :, 9:] = np.nan
    result = forward_backward(TableBatch.pack([table]), scores)
    narrow = forward_backward(TableBatch.pack([table]), scores[:, :, :9])
    assert result.log_prob == narrow.log_prob
    assert result.occupancy.shape == (1, 20, 14) and not result.occupancy[:, :, 9:].any()


SCORES = torch.randn(4, 20, 9, generator=torch.Generator().manual_seed(1))
CALLS = {
    "forward_backward": lambda graphs: forward_backward(graphs, SCORES).log_prob,
    "best_path": lambda graphs: best_path(graphs, SCORES).score,
    "n_best": lambda graphs: n_best(graphs, SCORES, 2).score,
    "sample_paths": lambda graphs: torch.tensor(np.array(sample_paths(graphs, SCORES, 2, seed=1).arcs)),
    "total_log_prob": lambda graphs: total_log_prob(graphs, SCORES),
    "expected_accuracy": lambda graphs: expected_accuracy(graphs, SCORES, SCORES),
    "LFMMILoss": lambda graphs: LFMMILoss(DenominatorGraph(connected_graph(1), 9))(SCORES, [20] * 4, graphs),
}


@pytest.mark.parametrize("name", CALLS)
def test_graphs_of_any_kind_may_come_as_a_list(name):
    """A denominator stands for its table, which begins and ends anywhere."""
    fsa, denominator = left_to_right_graph(0, 5, 9), DenominatorGraph(connected_graph(0), 9)
    arcs = np.zeros(fsa.num_arcs, np.int32)
    given = [fsa, Numerator(fsa, ("a",), arcs, arcs, arcs > 0), compile_table(fsa, 9), denominator]
    expected = CALLS[name](TableBatch.pack([compile_table(fsa)] * 3 + [denominator.table]))
    assert torch.equal(CALLS[name](given), expected)
    assert torch.equal(CALLS[name](iter(given)), expected)


def test_an_acceptor_is_compiled_once_in_its_life():
    fsa = connected_graph(0)
    table = TableBatch.pack([fsa]).tables[0]
    assert TableBatch.share(fsa, 2).tables[0] is TableBatch.pack([fsa, fsa]).tables[1] is table


# Tables in one file, any of them by name; and shards of such files.


def assert_equal_tables(found, expected):
    for field in fields(expected):
        ours, theirs = getattr(found, field.name), getattr(expected, field.name)
        if isinstance(theirs, ArcView):
            assert all(
                np.array_equal(getattr(ours, p.name), getattr(theirs, p.name)) for p in fields(ArcView)
            )
        else:
            assert (ours is None) == (theirs is None) and np.array_equal(ours, theirs), field.name


@given(fsas=st.lists(graphs(), max_size=4), extra=st.integers(0, 3))
def test_tables_come_back_as_they_were(fsas, extra, tmp_path_factory):
    path = tmp_path_factory.mktemp("tables") / "t.tables"
    tables = {f"utterance {n}": compile_table(fsa, 3 + extra) for n, fsa in enumerate(fsas)}
    assert write_tables(path, tables, {"made of": [1, "é"]}) == len(fsas)
    file = TableFile(path)
    assert list(file) == list(tables) and file.facts == {"made of": [1, "é"]}
    for name in reversed(list(tables)):
        assert_equal_tables(file[name], tables[name])
        assert not file[name].by_dst.src.flags.writeable


def test_any_changed_byte_of_a_table_or_of_the_index_is_noticed(tmp_path):
    path = tmp_path / "t.tables"
    write_tables(path, {"a": compile_table(connected_graph(1)), "b": compile_table(connected_graph(2))})
    good = path.read_bytes()
    for place in range(0, len(good), 7):
        if 48 <= place < 64:  # nothing is kept in the end of the header
            continue
        data = bytearray(good)
        data[place] ^= 0x10
        path.write_bytes(bytes(data))
        with pytest.raises(DataError, match=r"t\.tables"):
            dict(TableFile(path))
    for end in range(0, len(good) - 1, 97):
        path.write_bytes(good[:end])
        with pytest.raises(DataError, match=r"t\.tables"):
            TableFile(path)


def test_indices_that_point_out_of_the_table_are_refused_whatever_the_checksum(tmp_path):
    """A kernel would read beyond its arrays."""
    path = tmp_path / "t.tables"
    write_tables(path, {"a": compile_table(Fsa(2, [0], [1], [0], [0.0], [-np.inf, 0.0]))})
    data = bytearray(path.read_bytes())
    # Dst of the one arc, behind offsets and src.
    place = data.index(np.array([0, 0, 1], "<i8").tobytes()) + 24 + 8
    assert data[place] == 1
    data[place] = 2
    index = len(data) - int.from_bytes(data[32:40], "little")
    size = int.from_bytes(data[index + 8 : index + 16], "little")
    data[index + 16 : index + 20] = zlib.crc32(data[64 : 64 + size]).to_bytes(4, "little")
    data[20:24] = zlib.crc32(data[index:]).to_bytes(4, "little")
    path.write_bytes(bytes(data))
    with pytest.raises(DataError, match=r"by_dst\.dst reaches from 2 to 2; expected \[0, 2\)"):
        TableFile(path)["a"]


def test_other_files_and_versions_are_refused(tmp_path):
    path = tmp_path / "t.tables"
    write_tables(path, {})
    data = bytearray(path.read_bytes())
    data[16] = 9
    path.write_bytes(bytes(data))
    with pytest.raises(DataError, match="version 9 of the format; expected 1"):
        TableFile(path)
    path.write_bytes(b"PK" * 100)
    with pytest.raises(DataError, match="no file of compiled tables"):
        TableFile(path)
    with pytest.raises(DataError, match="'a' is given twice"):
        write_tables(path, [("a", compile_table(connected_graph(1)))] * 2)
    assert [p.name for p in tmp_path.iterdir()] == ["t.tables"]  # no half-written file is left


ENTRIES = [("yes", 1.0, ["Y", "EH", "S"]), ("no", 1.0, ["N", "OW"])]
ENTRIES += [("oh", 0.5, ["OW"]), ("oh", 0.5, ["OW", "OW"])]
LEXICON = Lexicon.from_entries(ENTRIES)
TREE = ContextTree.biphone(LEXICON.phones, Topology.chain(), context_independent=("SIL",))


def transcripts(count, seed=5):
    rng = np.random.default_rng(seed)
    words = LEXICON.words
    return [(f"u{n:03d}", tuple(words[i] for i in rng.integers(len(words), size=3))) for n in range(count)]


PHONE_LM = estimate_phone_lm(
    lm_phones([words for _, words in transcripts(300, 6)], LEXICON, seed=1), ngram_order=3
)
DENOMINATOR = DenominatorGraph(build_denominator(PHONE_LM, TREE), TREE.num_pdfs)
MAKER = NumeratorMaker(LEXICON, TREE, DENOMINATOR.normalization_fsa())


@pytest.mark.parametrize("jobs", [1, 2])
def test_shards_hold_every_numerator_whatever_the_workers(jobs, tmp_path):
    said = [*transcripts(11), ("bad", ("what",)), ("silent", ())]
    calls = []
    summary = make_shards(said, MAKER, tmp_path, shard_size=4, jobs=jobs, progress=lambda *c: calls.append(c))
    assert (summary.num_shards, summary.num_reused) == (4, 0)
    assert set(summary.excluded) == {"bad", "silent"} and "'what'" in summary.excluded["bad"]
    assert calls[0] == (0, 13) and calls[-1] == (13, 13) and len(calls) == 5
    shards = TableShards(tmp_path)
    possible = [name for name, _ in said if name not in summary.excluded]
    assert list(shards) == possible and summary.num_tables == len(possible)
    for name, words in said[:11]:
        if name in shards:
            assert_equal_tables(shards[name], MAKER.table(name, words))


def test_a_killed_job_goes_on_with_what_is_missing(tmp_path):
    """One shard is gone, one is cut short as by a full disk, one was half written; the fourth stays as it is."""
    said = transcripts(12)
    make_shards(said, MAKER, tmp_path, shard_size=3)
    paths = sorted(tmp_path.iterdir())
    before = {path: path.read_bytes() for path in paths}
    times = {path: path.stat().st_mtime_ns for path in paths}
    paths[0].unlink()
    paths[1].write_bytes(before[paths[1]][:100])
    (tmp_path / f"{paths[2].name}abc.tmp").write_bytes(b"half")
    calls = []
    summary = make_shards(said, MAKER, tmp_path, shard_size=3, progress=lambda *c: calls.append(c))
    assert summary.num_reused == 2 and calls[0] == (6, 12)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert [path.stat().st_mtime_ns == times[path] for path in paths] == [False, False, True, True]


@pytest.mark.parametrize("change", ["words", "lexicon", "pronunciation", "tree", "normalization", "forgive"])
def test_a_shard_made_of_something_else_is_made_anew(change, tmp_path):
    said = transcripts(4)
    make_shards(said, MAKER, tmp_path, shard_size=2)
    maker = MAKER
    if change == "words":
        said[3] = (said[3][0], ("no",))
    elif change == "lexicon":
        maker = NumeratorMaker(Lexicon.from_entries(ENTRIES, silence_prob=0.4), TREE, MAKER.normalization)
    elif change == "pronunciation":
        entries = [*ENTRIES[:-1], ("oh", 0.25, ["OW", "OW"])]
        maker = NumeratorMaker(Lexicon.from_entries(entries), TREE, MAKER.normalization)
    elif change == "tree":
        maker = NumeratorMaker(LEXICON, ContextTree.biphone(LEXICON.phones, Topology.chain()))
    elif change == "forgive":
        maker = NumeratorMaker(LEXICON, TREE, MAKER.normalization, Forgiveness(insertion=1.0))
    else:
        maker = NumeratorMaker(LEXICON, TREE)
    assert make_shards(said, maker, tmp_path, shard_size=2).num_reused == (1 if change == "words" else 0)
    assert_equal_tables(TableShards(tmp_path)[said[3][0]], maker.table(*said[3]))


def test_fewer_utterances_leave_no_old_shard_behind(tmp_path):
    make_shards(transcripts(8), MAKER, tmp_path, shard_size=2)
    make_shards(transcripts(4), MAKER, tmp_path, shard_size=2)
    assert list(TableShards(tmp_path)) == [name for name, _ in transcripts(4)]


def damage_last_table(folder, shard):
    """One bit inside the body of the last table of a shard; its index stays sound."""
    path = folder / shard
    content = bytearray(path.read_bytes())
    (place,) = struct.unpack_from("<Q", content, 24)  # of the index
    content[place - 1] ^= 1
    path.write_bytes(content)


def test_a_damaged_body_is_found_before_it_is_used_and_named(tmp_path):
    make_shards(transcripts(8), MAKER, tmp_path, shard_size=4)
    TableShards(tmp_path).check_bodies()
    damage_last_table(tmp_path, "00001.tables")
    with pytest.raises(DataError, match=r"00001\.tables.*is damaged.*num-tables"):
        TableShards(tmp_path).check_bodies()
    shards = TableShards(tmp_path)
    *sound, damaged = shards
    assert shards[sound[-1]].num_arcs
    with pytest.raises(DataError, match="is damaged"):
        shards[damaged]
