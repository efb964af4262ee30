"""Lattices of the search: weighed anew they say what a search with these weights says; tuning on them; their files."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pywrapfst = pytest.importorskip("pywrapfst", reason="the extra 'graph' is not installed")
for module in ("kaldi_decoder", "kaldifst", "kaldilm", "kaldialign"):
    pytest.importorskip(module, reason="the extra 'recipes' is not installed")

import tolerances
from graph_paths import linear
from test_rescore import ARPA, WIDE, scores_of

from fsachain import ContextTree, Lexicon, Topology
from fsachain.asr.decode.decoder import Decoder, DecoderConfig, lattices
from fsachain.asr.decode.lattices import WordLattice, best_words, write_kaldi_lattices, write_openfst_lattices
from fsachain.asr.decode.tune import TuningPoint, tune
from fsachain.asr.decode.wer import ErrorCounts
from fsachain.asr.kaldi.archive import read_table
from fsachain.asr.kaldi.lattice import read_lattice
from fsachain.errors import ConfigError, DataError
from fsachain.graph.decoding import DecodingGraph, Weights
from fsachain.graph.grammar import grammar_from_arpa
from fsachain.graph.open_vocabulary import WordIds
from fsachain.openfst import Transducer
from fsachain.stream import open_file

POINTS = [(0.5, 0.0), (1.0, -2.0), (1.7, 0.8), (0.0, 0.4)]


@pytest.fixture(scope="module")
def lexicon():
    """Homophones, a word that begins another, two pronunciations, optional silence."""
    entries = [
        ("ba", 1.0, "BA"),
        ("da", 0.4, "DA"),
        ("da", 0.6, "D"),
        ("bad", 1.0, "BAD"),
        ("bar", 1.0, "BA"),
    ]
    return Lexicon.from_entries(
        [(word, prob, list(phones)) for word, prob, phones in entries], silence_prob=0.3
    )


@pytest.fixture(scope="module", params=["monophone", "biphone"])
def tree(request, lexicon):
    topology = Topology.chain() if request.param == "biphone" else Topology.left_to_right(2)
    return getattr(ContextTree, request.param)(lexicon.phones, topology)


@pytest.fixture(scope="module")
def grammar(lexicon, tmp_path_factory):
    path = tmp_path_factory.mktemp("lm") / "trigram.arpa"
    path.write_text(ARPA.replace("ngram 1=5", "ngram 1=6").replace("-0.8\tbad", "-0.8\tbad\n-0.9\tbar"))
    return grammar_from_arpa(path, lexicon)


def graph_at(lexicon, tree, grammar, point):
    weights = {"lm_weight": point[0], "word_insertion_penalty": point[1]}
    return DecodingGraph.build(lexicon, tree, grammar, **weights)


@settings(max_examples=10, deadline=None)
@given(seeds=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=4), frames=st.integers(4, 14))
def test_a_lattice_weighed_anew_is_that_of_a_search_with_these_weights(lexicon, tree, grammar, seeds, frames):
    """Words and costs; and no path beats the best one of the lattice, by OpenFst's shortest distance."""
    outputs = {f"u{place}": scores_of(tree, frames, seed) for place, seed in enumerate(seeds)}
    found = lattices(
        outputs, graph_at(lexicon, tree, grammar, (0.9, 0.3)), lexicon.words, WIDE, num_workers=1
    )
    ids = best_words(list(found.values()), POINTS)
    for point, column in zip(POINTS, ids, strict=True):
        fresh = Decoder(graph_at(lexicon, tree, grammar, point), lexicon.words, WIDE)
        for (name, scores), best in zip(outputs.items(), column, strict=True):
            expected = fresh.decode(scores)
            lattice = found[name].at(*point)
            assert lattice.graph_cost.dtype == lattice.final_graph_cost.dtype == np.float32
            cost = shortest(lattice)
            total = expected.graph_log_prob + expected.acoustic_log_prob
            assert -cost == pytest.approx(total, abs=tolerances.GRAPH_COST)
            words = tuple(lexicon.words[word - 1] for word in best)
            assert shortest(lattice, best) == pytest.approx(cost, abs=tolerances.GRAPH_COST)
            assert words == expected.words or math.isclose(
                shortest(lattice, map(lexicon.word_id, expected.words)), cost, abs_tol=1e-4
            )


def shortest(lattice, words=None):
    """The cost of the best path, or of that with these word ids."""
    arcs = zip(lattice.src, lattice.dst, lattice.word, lattice.word, -lattice.cost, strict=True)
    fst = Transducer.of_arcs(sorted(arcs), -lattice.final_cost, lattice.start).to_openfst()
    if words is not None:
        fst = pywrapfst.compose(fst.arcsort("olabel"), linear(list(words)))
    return float(pywrapfst.shortestdistance(fst, reverse=True)[fst.start()])


def lattice_of(arcs, num_states, lm_weight=1.0):
    """From (src, dst, word, heard, language cost); the last state is final."""
    src, dst, word, heard, language = (np.array(column) for column in zip(*arcs, strict=True))
    final = np.full(num_states, np.inf, dtype=np.float32)
    final[-1] = 0.0
    ints = [column.astype(np.int32) for column in (src, dst, np.ones(len(src)), word)]
    costs = [heard.astype(np.float32), np.zeros(len(src), np.float32), final, np.where(final == 0, 0, np.inf)]
    costs[0] += np.float32(lm_weight) * language.astype(np.float32)
    ends = np.zeros(num_states, np.float32)
    return WordLattice(
        num_states, 0, *ints, *costs, language.astype(np.float32), ends, Weights(lm_weight), WordIds()
    )


@given(
    arcs=st.lists(
        st.tuples(
            st.integers(0, 5), st.integers(1, 6), st.integers(0, 3), st.integers(0, 9), st.integers(0, 9)
        ),
        min_size=1,
        max_size=25,
    )
)
def test_best_words_are_those_of_all_paths_one_by_one(arcs):
    arcs = [(src, max(dst, src + 1), *rest) for src, dst, *rest in arcs]
    leaving = [[arc for arc in arcs if arc[0] == state] for state in range(7)]

    def paths(state, words, heard, language):
        if state == 6:
            yield words, heard, language
        for _, dst, word, more, lm in leaving[state]:
            yield from paths(dst, words + (word,) * (word > 0), heard + more, language + lm)

    every = list(paths(0, (), 0, 0))
    # A lattice without a path beside it disturbs nothing.
    other = lattice_of([(0, 1, 1, 1.0, 1.0)], 3)
    for point, (best, none) in zip(POINTS, best_words([lattice_of(arcs, 7), other], POINTS), strict=True):
        assert none == ()
        costs = {}
        for words, heard, language in every:
            cost = heard + point[0] * language + point[1] * len(words)
            costs[words] = min(cost, costs.get(words, math.inf))
        assert costs.get(best, 0.0) == pytest.approx(min(costs.values(), default=0.0))
        assert best in costs or not costs


def test_what_cannot_be_weighed_is_refused():
    searched_without = lattice_of([(0, 1, 1, 1.0, 1.0)], 2, lm_weight=0.0)
    for call in (lambda: best_words([searched_without], [(0.5, 0.0)]), lambda: searched_without.at(0.5, 0.0)):
        with pytest.raises(ConfigError, match=r"lm_weight = 0.5.*searched with weight 0"):
            call()
    assert best_words([searched_without], [(0.0, 1.0)]) == [[(1,)]]
    with pytest.raises(ConfigError, match="lm_weight = -1"):
        best_words([lattice_of([(0, 1, 1, 1.0, 1.0)], 2)], [(-1.0, 0.0)])
    with pytest.raises(DataError, match="cycle"):
        best_words([lattice_of([(0, 1, 1, 1.0, 1.0), (1, 0, 1, 1.0, 1.0)], 3)], [(1.0, 0.0)])
    assert best_words([], [(1.0, 0.0)]) == [[]]


def alternatives(*choices):
    """A lattice of one arc for each choice: word, heard cost, language cost."""
    return lattice_of([(0, 1, word, heard, language) for word, heard, language in choices], 2)


RIGHT, WRONG = 1, 2
NAMES = ("right", "wrong")


def tuned(found, **grid):
    return tune(found, dict.fromkeys(found, ("right",)), NAMES, **grid)


def test_tuning_finds_the_only_weight_without_errors_and_the_middle_of_a_plateau():
    below = alternatives((RIGHT, 4.0, 0.0), (WRONG, 0.0, 2.1))  # right above 1.9
    above = alternatives((RIGHT, 0.0, 2.0), (WRONG, 8.2, 0.0))  # right below 4.1
    result = tuned({"a": below, "b": above}, lm_weights=(1, 2, 3, 4, 5), word_insertion_penalties=(0.0,))
    assert [point.counts.errors for point in result.points] == [1, 0, 0, 0, 1]
    assert result.best.weights.lm_weight == 3
    assert result.to_text().count("*") == 1
    assert result.to_text().splitlines()[1].split() == ["0.00"]


def test_a_best_weight_or_penalty_at_an_edge_extends_the_grid_until_it_stands_inside():
    # Each utterance is right from a weight of its own on.
    high = {str(t): alternatives((RIGHT, 0.8 * t, 0.0), (WRONG, 0.0, 0.8)) for t in (0.7, 1.2, 1.7, 2.2)}
    result = tuned(high, lm_weights=(0.5, 1.0), word_insertion_penalties=(0.0,))
    assert [point.weights.lm_weight for point in result.points] == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5]
    assert (result.best.weights.lm_weight, result.best.counts.errors) == (3.0, 0)
    # And up to a weight of its own: weights are halved before they reach 0.
    low = {str(t): alternatives((RIGHT, 0.0, 2.0), (WRONG, 2.0 * t, 0.0)) for t in (0.7, 0.3, 0.15)}
    result = tuned(low, lm_weights=(0.5, 1.0), word_insertion_penalties=(0.0,))
    assert [point.weights.lm_weight for point in result.points] == [0.03125, 0.0625, 0.125, 0.25, 0.5, 1.0]
    assert (result.best.weights.lm_weight, result.best.counts.errors) == (0.0625, 0)
    # And from a penalty on under which one word is cheaper than two.
    arcs = [(0, 1, RIGHT, 0.0, 0.0), (1, 2, WRONG, 0.0, 0.0)]
    twice = {str(t): lattice_of([(0, 2, RIGHT, t, 0.0), *arcs], 3) for t in (0.5, 1.5, 2.5)}
    result = tuned(twice, lm_weights=(1.0,), word_insertion_penalties=(-1.0, 0.0, 1.0))
    assert {point.weights.lm_weight for point in result.points} == {1.0}, "a single weight is not extended"
    assert [point.weights.word_insertion_penalty for point in result.points] == [
        -1.0,
        0.0,
        1.0,
        2.0,
        3.0,
        4.0,
        5.0,
    ]
    assert (result.best.weights.word_insertion_penalty, result.best.counts.errors) == (4.0, 0)


def test_errors_that_are_known_of_a_search_count_in_place_of_those_of_lattices():
    below = alternatives((RIGHT, 4.0, 0.0), (WRONG, 0.0, 2.1))
    grid = {"lm_weights": (1.0, 2.0, 3.0, 4.0), "word_insertion_penalties": (0.0,)}
    best = tuned({"a": below}, **grid).best
    assert best.counts.errors == 0
    known = {best.weights: TuningPoint(best.weights, ErrorCounts(substitutions=1, num_words=1))}
    other = tuned({"a": below}, **grid, known=known)
    assert other.best.weights != best.weights and known[best.weights] in other.points


def test_a_grid_is_not_extended_for_ever_and_lost_utterances_count():
    never = alternatives((WRONG, 0.0, 0.0))
    result = tuned({"a": never, "b": None}, lm_weights=(1.0, 2.0), word_insertion_penalties=(0.0, 1.0))
    assert (result.best.counts.errors, result.best.counts.deletions) == (2, 1)
    always = lattice_of([(0, 1, RIGHT, 500.0, 0.0), (0, 1, WRONG, 0.0, 1.0)], 2)
    result = tuned({"a": always}, lm_weights=(1.0, 2.0), word_insertion_penalties=(0.0,))
    assert len(result.points) <= 20
    with pytest.raises(ConfigError, match="lm_weights"):
        tuned({"a": never}, lm_weights=(), word_insertion_penalties=(0.0,))


def test_the_beam_of_a_lattice_is_widened_until_the_best_path_is_in_it(lexicon, tree, grammar):
    """With a first beam that loses some best paths, and costs of a search that loses none."""
    graph = graph_at(lexicon, tree, grammar, (0.9, 0.3))
    outputs = [scores_of(tree, 20, seed) for seed in range(12)]
    best = [Decoder(graph, lexicon.words, WIDE).decode(scores) for scores in outputs]
    lost = 0
    for beam, is_wide in ((40.0, True), (0.5, False)):
        decoder = Decoder(graph, lexicon.words, DecoderConfig(beam=beam, lattice_beam=0.5, first_beam=0.5))
        for scores, expected in zip(outputs, best, strict=True):
            cost = shortest(decoder.lattice(scores))
            worse = cost + expected.graph_log_prob + expected.acoustic_log_prob > tolerances.GRAPH_COST
            assert not (is_wide and worse)
            lost += worse
    assert lost, "a narrow beam alone would do"


def search(lexicon, tree, grammar, **options):
    outputs = {f"utt{seed}": scores_of(tree, 12, seed) for seed in range(3)}
    config = DecoderConfig(beam=30.0, lattice_beam=8.0)
    return lattices(outputs, graph_at(lexicon, tree, grammar, (0.9, 0.3)), lexicon.words, config, **options)


@pytest.fixture(scope="module")
def searched(lexicon, tree, grammar):
    return search(lexicon, tree, grammar, num_workers=1)


def test_kaldis_programs_read_the_lattices(searched, tmp_path):
    kaldifst = pytest.importorskip("kaldifst")
    path = tmp_path / "lat.ark"
    write_kaldi_lattices(path, searched)
    back = dict(read_table(path, read_lattice))
    assert list(back) == list(searched)
    data = path.read_bytes()
    for name, lattice in searched.items():
        again = back[name].expanded()
        for column in ("src", "dst", "word", "transition", "graph_cost", "acoustic_cost", "final_graph_cost"):
            np.testing.assert_array_equal(getattr(again, column), getattr(lattice, column))
        one = tmp_path / "one"
        one.write_bytes(data[data.index(f"{name} \0B".encode()) + len(name) + 3 :])
        kaldis = kaldifst.Lattice.read(str(one))
        assert (kaldis.num_states, kaldis.start) == (lattice.num_states, lattice.start)
        kaldis.write(str(one))
        rewritten = read_lattice(open_file(one)).expanded()
        for column in ("src", "dst", "word", "transition", "graph_cost", "acoustic_cost", "final_graph_cost"):
            np.testing.assert_array_equal(getattr(rewritten, column), getattr(lattice, column))


def test_openfst_reads_the_lattices_with_their_costs_added_up(searched, tmp_path):
    path = tmp_path / "lat.far"
    write_openfst_lattices(path, searched)
    far, found = pywrapfst.FarReader.open(str(path)), {}
    while not far.done():
        found[far.get_key()] = far.get_fst()
        far.next()
    assert list(found) == sorted(searched)
    for name, lattice in searched.items():
        graph = Transducer.from_openfst(found[name])
        for column, theirs in (("src", "src"), ("dst", "dst"), ("transition", "ilabel"), ("word", "olabel")):
            np.testing.assert_array_equal(getattr(graph, theirs), getattr(lattice, column))
        np.testing.assert_allclose(-graph.log_prob, lattice.cost, rtol=1e-5, atol=1e-4)
        best = Transducer.from_openfst(pywrapfst.shortestpath(found[name]).topsort()).olabel
        assert tuple(best[best > 0]) == best_words([lattice], [lattice.weights])[0][0]


def test_processes_and_this_one_find_the_same_lattices(lexicon, tree, grammar, searched):
    calls = []
    shared = search(lexicon, tree, grammar, num_workers=2, progress=lambda *state: calls.append(state))
    assert calls[-1] == (3, 3)
    assert list(shared) == list(searched)
    for name, lattice in searched.items():
        np.testing.assert_array_equal(shared[name].cost, lattice.cost)
