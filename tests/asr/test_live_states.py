"""Live states of a beam search: compiled counts are those of the reference, and bound a search for a lattice."""

import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsachain.backends.cpu.paths import LiveStates
from fsachain.backends.reference import paths as reference
from fsachain.openfst import Transducer

PDFS = 3


@st.composite
def graphs(draw):
    """With epsilons and negative costs on them, cycles and parallel arcs; epsilon arcs lead to higher states alone."""
    size = draw(st.integers(1, 6))
    state = st.integers(0, size - 1)
    arcs = draw(st.lists(st.tuples(state, state, st.integers(0, PDFS)), max_size=15))
    arcs = [(src, dst, label) for src, dst, label in arcs if label or src < dst]
    # Costs of sixteenths have no ties with a beam and no rounding.
    costs = [draw(st.integers(0 if label else -8, 40)) / 16 for *_, label in arcs]
    src, dst, label = np.array(arcs, dtype=np.int64).reshape(-1, 3).T
    log_prob = -np.array(costs, dtype=np.float64)
    return Transducer(size, draw(state), src, dst, label, label, log_prob, np.zeros(size))


@settings(max_examples=200, deadline=None)
@given(graph=graphs(), seed=st.integers(0, 2**32 - 1), beam=st.sampled_from([0.53, 1.53, 4.53]))
def test_compiled_counts_are_those_of_the_reference_one_after_the_other(graph, seed, beam):
    rng = np.random.default_rng(seed)
    counter, other = LiveStates(graph), reference.LiveStates(graph)
    for frames in (5, 0, 8):
        scores = (rng.integers(0, 40, size=(frames, PDFS)) / 16).astype(np.float32)
        scores[rng.random(scores.shape) < 0.1] = -np.inf
        whole = other.count(scores, beam, 10**6)
        for most in (10**6, whole // 2):
            assert counter.count(scores, beam, most) == other.count(scores, beam, most)


pytest.importorskip("pywrapfst", reason="the extra 'graph' is not installed")
for module in ("kaldi_decoder", "kaldifst", "kaldilm"):
    pytest.importorskip(module, reason="the extra 'recipes' is not installed")

from fsachain import ContextTree, Lexicon, Topology
from fsachain.asr.decode.decoder import Decoder, DecoderConfig, lattices
from fsachain.asr.decode.lattices import best_words
from fsachain.graph.decoding import DecodingGraph
from fsachain.graph.grammar import word_loop

WORDS = [f"w{number}" for number in range(60)]
MOST = 40  # states, of some hundreds that the graph has
FRAMES = 30


@pytest.fixture(scope="module")
def lexicon():
    rng = np.random.default_rng(0)
    entries = [(word, 1.0, [str(phone) for phone in rng.integers(0, 8, size=5)]) for word in WORDS]
    return Lexicon.from_entries(entries)


@pytest.fixture(scope="module")
def graph(lexicon):
    tree = ContextTree.monophone(lexicon.phones, Topology.left_to_right(1))
    return DecodingGraph.build(lexicon, tree, word_loop(lexicon.words, lexicon))


def outputs_of(lexicon, gain, seed=0):
    """Noise, and `gain` nats for the phones of three words one after the other."""
    tree = ContextTree.monophone(lexicon.phones, Topology.left_to_right(1))
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(FRAMES, tree.num_pdfs))
    said = [p for word in rng.choice(WORDS, 3) for p in lexicon.pronunciations_of(word)[0].phones]
    for t in range(FRAMES):
        scores[t, tree.pdf(said[t * len(said) // FRAMES], 0)] += gain
    return scores.astype(np.float32)


def columns(lattice):
    names = "src", "dst", "transition", "word", "cost", "final_cost"
    return [getattr(lattice, name).tobytes() for name in names]


def decoder_of(graph, lexicon, max_active):
    return Decoder(graph, lexicon.words, DecoderConfig(beam=9.0, first_beam=9.0, max_active=max_active))


def test_where_the_network_is_sure_the_bound_changes_no_bit(graph, lexicon):
    scores = outputs_of(lexicon, gain=20.0)
    bounded, free = (decoder_of(graph, lexicon, most) for most in (MOST, 10**6))
    assert graph.arcs.num_states > MOST
    assert columns(bounded.lattice(scores, "a")) == columns(free.lattice(scores, "a"))
    assert not bounded.narrowed


def test_where_it_is_not_the_widest_beam_within_the_bound_is_taken_with_the_best_path_beside_it(
    graph, lexicon
):
    decoder, counter = decoder_of(graph, lexicon, MOST), reference.LiveStates(graph.arcs)
    for seed in range(4):
        scores = outputs_of(lexicon, gain=0.0, seed=seed)
        found = decoder.lattice(scores, "a")
        (beam,) = decoder.narrowed.values()
        live = [counter.count(scores, b, 10**6) / (FRAMES + 1) for b in (beam, beam + 1)]
        assert live[0] <= MOST < live[1]
        assert 0 < beam < 9
        (ids,) = best_words([found], [(1.0, 0.0)])[0]
        assert tuple(WORDS[number - 1] for number in ids) == decoder.decode(scores).words


def test_a_search_that_no_beam_makes_small_gives_the_best_path_alone(graph, lexicon):
    decoder = decoder_of(graph, lexicon, 2)
    scores = np.zeros_like(outputs_of(lexicon, gain=0.0))
    scores[:, 0] = -20.0  # silence: all words are as likely as each other, and nothing else is likely
    found = decoder.lattice(scores, "a")
    assert decoder.narrowed == {"a": 0.0}
    assert len(found.src) == found.num_states - 1 >= FRAMES
    (ids,) = best_words([found], [(1.0, 0.0)])[0]
    assert tuple(WORDS[number - 1] for number in ids) == decoder.decode(scores).words


def test_what_was_narrowed_is_told_by_name_and_is_the_same_of_processes(graph, lexicon, caplog):
    gains = (0.0, 20.0, 0.0, 0.0)
    outputs = {f"u{seed}": outputs_of(lexicon, gain, seed) for seed, gain in enumerate(gains)}
    config = DecoderConfig(max_active=MOST)
    alone, shared = {}, {}
    with caplog.at_level(logging.WARNING, logger="fsachain"):
        one = lattices(outputs, graph, lexicon.words, config, num_workers=1, narrowed=alone)
        two = lattices(outputs, graph, lexicon.words, config, num_workers=2, narrowed=shared)
        assert "likely paths" not in caplog.text
        lattices(outputs, graph, lexicon.words, config, num_workers=1)
    assert "3 utterances with too many likely paths" in caplog.text
    assert "u0, u2, u3" in caplog.text
    assert [*alone] == [*shared] == ["u0", "u2", "u3"] and alone == shared
    assert all(columns(one[name]) == columns(two[name]) for name in outputs)
