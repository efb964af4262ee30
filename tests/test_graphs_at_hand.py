"""Looking at graphs, walking them at random, comparing them, and making them smaller by OpenFst."""

import math
from dataclasses import replace

import numpy as np
import pytest
import tolerances
from graph_paths import Scorer, assert_same_scores, log_add, pdf_sequences
from hypothesis import assume, given
from hypothesis import strategies as st
from random_graphs import connected_graph, graphs, left_to_right_graph, renumbered
from refusals import refuses

from fsachain.errors import ConfigError, GraphError
from fsachain.fsa import Fsa
from fsachain.graph.algorithms import (
    SequenceScorer,
    determinize,
    equivalent,
    graph_facts,
    minimize,
    random_paths,
    to_dot,
)  # fmt: skip
from fsachain.table import compile_table

DIAMOND = Fsa(
    5,
    [0, 0, 1, 2, 3, 3],
    [1, 2, 3, 3, 3, 4],
    [0, 0, 1, 1, 5, 2],
    np.log([0.5, 0.5, 1, 1, 0.25, 0.5]),
    [-np.inf, -np.inf, -np.inf, math.log(0.25), 0.0],
)


def test_facts_of_a_graph_counted_by_hand():
    facts = graph_facts(DIAMOND)
    assert (facts.num_states, facts.num_arcs, facts.num_finals) == (5, 6, 2)
    assert (facts.num_pdfs, facts.largest_pdf, facts.num_self_loops) == (4, 5, 1)
    assert (facts.num_cycles, facts.num_cyclic_states, facts.num_useful_states) == (1, 1, 5)
    assert (facts.num_parallel_arcs, facts.is_deterministic, facts.min_frames) == (0, False, 2)
    assert (facts.least_sum, facts.largest_sum) == pytest.approx((1.0, 1.0), abs=tolerances.ROUNDING)
    assert facts.arcs_per_frame == 12
    view = compile_table(DIAMOND).by_dst
    assert facts.table_bytes > 3 * sum(
        part.nbytes for part in (view.src, view.dst, view.column, view.log_prob)
    )


def test_facts_of_two_cycles_a_dead_state_and_parallel_arcs():
    """0 <-> 1 and a loop on 2; 3 leads nowhere; the arc 1 -> 2 is double, once with weight zero."""
    fsa = Fsa(
        4,
        [0, 1, 1, 1, 2, 0, 3],
        [1, 0, 2, 2, 2, 3, 3],
        [0] * 7,
        [0, 0, 0, -np.inf, 0, 0, -np.inf],
        [-np.inf, -np.inf, 0, -np.inf],
    )
    facts = graph_facts(fsa)
    assert (facts.num_cycles, facts.num_cyclic_states, facts.num_useful_states) == (2, 3, 3)
    assert (facts.num_parallel_arcs, facts.num_self_loops, facts.is_deterministic) == (1, 2, False)
    assert "2 self-loops, 3 states on cycles, in groups: 2, 1 state on no path" in str(facts)


@given(fsa=graphs(), seed=st.integers(0, 5))
def test_random_paths_are_accepted_paths(fsa, seed):
    if fsa.min_frames() == math.inf:
        refuses(GraphError, "accepts no sequence", random_paths, fsa, 1)
        return
    for path in random_paths(fsa, 5, seed=seed, mean_frames=4):
        assert len(path) <= 2 * 4 + fsa.num_states
        states = [fsa.start, *fsa.dst[path].tolist()]
        assert fsa.src[path].tolist() == states[:-1]
        assert np.all(fsa.log_prob[path] > -math.inf) and fsa.final_log_prob[states[-1]] > -math.inf


def test_random_paths_reach_every_arc_and_repeat_by_seed():
    fsa = connected_graph(1)
    paths = random_paths(fsa, 200, seed=4, mean_frames=20)
    assert set(np.concatenate(paths).tolist()) == set(range(fsa.num_arcs))
    again = random_paths(fsa, 200, seed=4, mean_frames=20)
    assert all(np.array_equal(a, b) for a, b in zip(paths, again, strict=True))
    assert 10 < np.mean([len(path) for path in paths]) < 45
    refuses(ConfigError, "mean_frames = 0", random_paths, fsa, 1, mean_frames=0)


@pytest.mark.parametrize(("semiring", "combine"), [("log", log_add), ("tropical", max)])
@given(fsa=graphs())
def test_scores_of_sequences_are_those_of_all_their_paths(semiring, combine, fsa):
    ours, oracle = SequenceScorer(fsa, semiring), Scorer(fsa, combine)
    for pdfs in pdf_sequences(3, 3):
        assert ours(pdfs) == pytest.approx(oracle(pdfs), abs=tolerances.ENUMERATION)


def test_the_same_graph_in_another_order_is_equivalent():
    fsa, rng = connected_graph(2), np.random.default_rng(0)
    other = renumbered(fsa, rng.permutation(fsa.num_states), rng.permutation(fsa.num_arcs))
    found = equivalent(fsa, other, count=30, mean_frames=10)
    assert found and found.num_sequences == 60
    assert str(found).startswith("no difference found: 60 sequences")


EXTRA = {"src": 1, "dst": 4, "pdf": 12, "log_prob": 0.0}


@pytest.mark.parametrize("change", ["weight", "pdf", "extra arc", "final"])
def test_a_difference_is_found_and_shown(change):
    fsa = connected_graph(3)
    arc, start = np.arange(fsa.num_arcs) == 5, np.arange(fsa.num_states) == 0
    other = {
        "weight": lambda: replace(fsa, log_prob=fsa.log_prob + 0.1 * arc),
        "pdf": lambda: replace(fsa, pdf=np.where(arc, 11, fsa.pdf)),
        "final": lambda: replace(fsa, final_log_prob=fsa.final_log_prob - 0.5 * start),
        "extra arc": lambda: replace(
            fsa, **{name: np.append(getattr(fsa, name), own) for name, own in EXTRA.items()}
        ),
    }[change]()
    for pair in ((fsa, other), (other, fsa)):
        found = equivalent(*pair, count=100, mean_frames=10)
        assert not found and str(found).startswith("different:")
        scores = [Scorer(one, log_add)(found.worst_sequence) for one in pair]
        assert found.scores == pytest.approx(scores, abs=tolerances.ENUMERATION)
        if change in ("pdf", "extra arc"):
            assert found.worst_difference == math.inf


def test_log_and_tropical_disagree_where_paths_are_parallel():
    once = Fsa(2, [0], [1], [3], [math.log(0.75)], [-np.inf, 0.0])
    twice = Fsa(2, [0, 0], [1, 1], [3, 3], np.log([0.25, 0.5]), [-np.inf, 0.0])
    assert equivalent(once, twice, semiring="log")
    assert not equivalent(once, twice, semiring="tropical")
    with pytest.raises(ConfigError, match="semiring = 'real': expected one of log, tropical"):
        equivalent(once, twice, semiring="real")


def test_dot_text_has_every_arc_and_final_state():
    text = to_dot(DIAMOND, ["a", 'q"', "c", "d", "e", "f\\"])
    assert text.startswith("digraph fsa {") and text.count("->") == 1 + DIAMOND.num_arcs
    assert text.count("doublecircle") == 2
    assert '  1 -> 3 [label = "q\\" / 0"];' in text
    assert '  3 -> 3 [label = "f\\\\ / -1.386"];' in text
    refuses(GraphError, "pdf_names has 2 names; the graph has pdfs up to 5", to_dot, DIAMOND, ["a", "b"])
    refuses(GraphError, "3001 states: expected at most 2000", to_dot, left_to_right_graph(0, 3001))


# Determinisation and minimisation keep the scores of the semiring that is named.


@pytest.mark.parametrize(("semiring", "combine"), [("log", log_add), ("tropical", max)])
@given(fsa=graphs())
def test_small_deterministic_and_minimal_graphs_keep_every_score(semiring, combine, fsa):
    try:
        found = determinize(fsa, semiring=semiring)
        smaller = minimize(found, semiring=semiring)
    except GraphError:
        assume(False)
    assert graph_facts(found).is_deterministic and smaller.num_states <= found.num_states
    sequences = [pdfs for frames in range(4) for pdfs in pdf_sequences(3, frames)]
    for one in (found, smaller):
        assert_same_scores(one, fsa, tolerances.GRAPH_COST, sequences, combine=combine)


@pytest.mark.parametrize(
    ("fsa", "call", "message"),
    [
        (Fsa(2, [0, 0, 0], [0, 1, 1], [0, 0, 1], [0.0] * 3, [-np.inf, 0.0]), determinize, "may not end"),
        (DIAMOND, minimize, "determinize it first"),
        (Fsa(1, [0], [0], [0], [1.0], [0.0]), minimize, "a cycle gains weight"),
        (Fsa(1, [], [], [], [], [-np.inf]), determinize, "accepts no sequence"),
    ],
)
@pytest.mark.parametrize("semiring", ["log", "tropical"])
def test_what_would_not_end_is_refused(fsa, call, message, semiring):
    refuses(GraphError, message, call, fsa, semiring=semiring)


def test_a_deterministic_graph_with_a_cycle_stays_as_it_is():
    loop = Fsa(2, [0, 0], [0, 1], [0, 1], [-0.5, -1.0], [-np.inf, 0.0])
    assert determinize(loop, semiring="log").to_text() == loop.to_text()


def test_a_cycle_of_probability_one_has_no_sum_but_a_best_path():
    loop = Fsa(1, [0], [0], [0], [0.0], [0.0])
    assert minimize(loop, semiring="tropical").num_states == 1
    refuses(GraphError, "in the log semiring", minimize, loop, semiring="log")
