"""`compile_table`: three views of one set of arcs; `TableBatch`."""

import numpy as np
import pytest
import torch
from hypothesis import given
from random_graphs import connected_graph, graphs, left_to_right_graph
from test_table_file import assert_equal_tables

from fsachain import (
    DenominatorGraph,
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
