"""Words that a grammar lacks are spelt, at the cost of a lexicon that has every word there can be."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pywrapfst = pytest.importorskip("pywrapfst", reason="the extra 'graph' is not installed")
for module in ("kaldi_decoder", "kaldifst", "kaldilm"):
    pytest.importorskip(module, reason="the extra 'recipes' is not installed")

import tolerances
from test_rescore import WIDE, scores_of

from fsachain import ContextTree, Lexicon, Topology
from fsachain.asr.decode.decoder import Decoder, lattices
from fsachain.asr.decode.lattices import best_words
from fsachain.asr.decode.rescore import Rescorer, best_word_sequences
from fsachain.graph.decoding import DecodingGraph, Weights
from fsachain.graph.grammar import NgramScores
from fsachain.graph.lexicon import Pronunciation
from fsachain.graph.numerator import build_numerator
from fsachain.graph.open_vocabulary import open_grammar, spelling_model, spelt_out, words_and_pieces
from fsachain.openfst import Transducer

FRAMES = 4
LEXICON = Lexicon.characters(["ab b aab"], silence_prob=0.3)
STRINGS = ["".join(letters) for n in range(1, FRAMES + 1) for letters in itertools.product("ab", repeat=n)]
WORDS = words_and_pieces(LEXICON)


@pytest.fixture(scope="module")
def spelling():
    return spelling_model(LEXICON, order=2)


@pytest.fixture(scope="module", params=["monophone", "biphone"])
def tree(request):
    return getattr(ContextTree, request.param)(LEXICON.phones, Topology.chain_one_pdf())


# A bigram: "ab" and the end behind the start, "b" behind "ab", else back off to the empty history, which is state 1.
ROWS = [(0, 2, 1, 1, -0.3), (0, 1, 0, 0, -1.1), (1, 2, 1, 1, -0.7), (1, 1, 2, 2, -1.5), (1, 1, 3, 3, -2.0)]
ROWS += [(2, 1, 2, 2, -0.2), (2, 1, 0, 0, -0.4)]
GRAMMAR = Transducer.of_arcs(ROWS, np.array([-3.0, -1.0, -0.5]))


def log_prob(spelling, text):
    """Of a word under the model of spellings."""
    state, total = spelling.start, 0.0
    for letter in text:
        (arc,) = np.flatnonzero((spelling.src == state) & (spelling.pdf == LEXICON.phone_id(letter) - 1))
        state, total = spelling.dst[arc], total + spelling.log_prob[arc]
    return total + spelling.final_log_prob[state]


def every_word(spelling, weights):
    """The same search without pieces: a lexicon with every word, unknown or not, as a second word of its own."""
    entries = zip(LEXICON.words, LEXICON.pronunciations, strict=True)
    more = [(f"{text}?", (Pronunciation(tuple(map(LEXICON.phone_id, text)), 1.0),)) for text in STRINGS]
    words, ways = zip(*entries, *more, strict=True)
    lexicon = Lexicon(words, LEXICON.phones, ways, silence_prob=0.3)
    price = weights.unknown_word_penalty / weights.lm_weight
    rows = [
        (1, 1, lexicon.word_id(f"{text}?"), lexicon.word_id(f"{text}?"), log_prob(spelling, text) - price)
        for text in STRINGS
    ]
    return lexicon, Transducer.of_arcs([*ROWS, *rows], GRAMMAR.final_log_prob).to_openfst()


def graph_at(tree, spelling, weights):
    return DecodingGraph.build(LEXICON, tree, GRAMMAR.to_openfst(), **weights._asdict(), spelling=spelling)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    weights=st.builds(Weights, st.sampled_from([0.5, 1.2]), st.floats(-1, 1), st.floats(-2, 2)),
)
def test_the_search_spells_what_a_lexicon_of_all_words_would_find(spelling, tree, seed, weights):
    scores = scores_of(tree, FRAMES, seed)
    found = Decoder(graph_at(tree, spelling, weights), WORDS, WIDE).decode(scores)
    lexicon, grammar = every_word(spelling, weights)
    graph = DecodingGraph.build(
        lexicon, tree, grammar, **weights._replace(unknown_word_penalty=0.0)._asdict()
    )
    expected = Decoder(graph, lexicon.words, WIDE).decode(scores)
    assert found.graph_log_prob + found.acoustic_log_prob == pytest.approx(
        expected.graph_log_prob + expected.acoustic_log_prob, abs=tolerances.GRAPH_COST
    )
    assert found.words == tuple(word.rstrip("?") for word in expected.words)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_lattices_weighed_anew_and_rescored_know_spelt_words(spelling, tree, seed):
    at = Weights(0.9, 0.3, 0.0)
    outputs = {"u": scores_of(tree, 6, seed)}
    found = lattices(outputs, graph_at(tree, spelling, at), WORDS, WIDE, num_workers=1)
    points = [Weights(0.5, 0.0, -1.5), Weights(1.3, -1.0, 2.0), Weights(0.9, 0.3, -8.0)]
    spelt = 0
    for point, (ids,) in zip(points, best_words(list(found.values()), points), strict=True):
        expected = Decoder(graph_at(tree, spelling, point), WORDS, WIDE).decode(outputs["u"])
        words = spelt_out(WORDS[number - 1] for number in ids)
        assert words == expected.words
        spelt += any(number > len(LEXICON.words) for number in ids)
    assert spelt, "a reward of 8 nats is enough for some word"
    # The same grammar in the second place changes nothing but for paths that back off where they need not.
    sequences = best_word_sequences(found["u"], WORDS, 10_000)
    scores = NgramScores(open_grammar(GRAMMAR.to_openfst(), LEXICON, spelling))
    scores.log_prob = scores.best_path_log_prob
    rescorer = Rescorer({"u": sequences}, LEXICON, scores, at, scores)
    for point in (Weights(0.9, 0.3), Weights(1.3, -1.0)):
        graph = graph_at(tree, spelling, point)
        assert rescorer.best(*point[:2])["u"] == Decoder(graph, WORDS, WIDE).decode(outputs["u"]).words


def test_spellings_are_a_distribution_and_pieces_read_as_words(spelling):
    for state in range(spelling.num_states):
        mass = np.exp(spelling.log_prob[spelling.src == state]).sum() + np.exp(spelling.final_log_prob[state])
        assert mass == pytest.approx(1.0, abs=tolerances.FEW_FLOAT32_TERMS)
    assert math.exp(log_prob(spelling, "ab")) > math.exp(log_prob(spelling, "ba"))
    begin = {str(piece): piece for piece in WORDS[len(LEXICON.words) :]}
    assert spelt_out(["ab", begin["a+"], begin["+b"], begin["+b"], begin["b+"], "b"]) == (
        "ab",
        "abb",
        "b",
        "b",
    )
    spelt = spelt_out([begin["a+"], begin["+b"], begin["+b"]])
    tree = ContextTree.monophone(LEXICON.phones, Topology.chain())
    numerator = build_numerator(["ab", *spelt], LEXICON, tree)
    assert numerator.words == ("ab", "abb") and numerator.fsa.min_frames() == 5
    phones = Lexicon.from_entries([("two", 1.0, ["T", "UW"]), ("eat", 1.0, ["IY", "T"])])
    begin = {str(piece): piece for piece in words_and_pieces(phones)[2:]}
    assert spelt_out([begin["T+"], begin["+IY"], begin["+T"]]) == ("<T-IY-T>",)
