"""Numerators of drawn lexicons, topologies and transcripts are those that Kaldi's own code compiles; `make test-kaldi`.

The code is in the kaldi-hmm-gmm wheel, which needs an environment of its own; FSACHAIN_KALDI_PYTHON names its interpreter.
"""

import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tolerances
from graph_paths import assert_same_scores

from fsachain.asr.kaldi.model import parse_topology
from fsachain.fsa import input_fsa
from fsachain.graph.context import ContextTree
from fsachain.graph.expand import expand_arcs
from fsachain.graph.lexicon import Lexicon
from fsachain.graph.numerator import build_numerator
from fsachain.graph.spelling import transcript_acceptor, ways_to_say
from fsachain.graph.topology import HmmState, Topology
from fsachain.stream import Cursor
from tools.golden.oracle import Job, lexicon_transducer, topology_text, training_graphs

PYTHON = os.environ.get("FSACHAIN_KALDI_PYTHON", "")
needs_kaldi = pytest.mark.skipif(
    not PYTHON, reason="FSACHAIN_KALDI_PYTHON names no Python with kaldi-hmm-gmm; run make test-kaldi"
)
TOPOLOGIES = {
    "chain": Topology.chain(),
    "one pdf": Topology.chain_one_pdf(),
    "three states": Topology.left_to_right(3),
    "skips": Topology(
        (
            HmmState(0, 0, math.log(0.3), math.log(0.5), ((2, math.log(0.15)), (3, math.log(0.05)))),
            HmmState(1, 1, math.log(0.4), math.log(0.4), ((0, math.log(0.2)),)),
            HmmState(2, 2, math.log(0.25), math.log(0.75)),
        )
    ),
}
PHONES = ("SIL", "A", "B", "C", "D")


def drawn_job(topology, seed, sets):
    """Words of one to four phones, some with two pronunciations, homophones among them."""
    rng = np.random.default_rng(seed)
    entries = []
    for word in range(6):
        sizes = (rng.integers(1, 5) for _ in range(rng.integers(1, 3)))
        ways = {tuple(rng.choice(PHONES[1:], size=size).tolist()) for size in sizes}
        entries += [(f"w{word}", prob, way) for prob, way in zip((1.0, 0.4), sorted(ways), strict=False)]
    lexicon = Lexicon.from_entries(entries, phones=PHONES, silence_prob=float(rng.uniform(0.1, 0.9)))
    transcripts = [rng.choice(lexicon.words, size=size).tolist() for size in (1, 2, 3, 5)]
    return Job(lexicon, topology, sets, transcripts)


def assert_like_kaldis(ours, theirs):
    drawn = {"combine": max, "count": 15, "seed": 6}
    assert_same_scores(ours, theirs, tolerances.KALDI_SUPERVISION_PATH, **drawn)


@needs_kaldi
@pytest.mark.parametrize("topology", TOPOLOGIES.values(), ids=TOPOLOGIES)
@pytest.mark.parametrize(
    "sets", [[[1], [2], [3], [4], [5]], [[1], [2, 3], [4], [5]]], ids=["own pdfs", "shared pdfs"]
)
def test_numerators_score_as_kaldi_compiles_them(topology, sets, tmp_path):
    jobs = [drawn_job(topology, seed, sets) for seed in range(4)]
    for job, graphs in zip(jobs, training_graphs(Path(PYTHON), jobs, tmp_path), strict=True):
        shared = [tuple(PHONES[phone - 1] for phone in phones) for phones in sets if len(phones) > 1]
        tree = ContextTree.monophone(PHONES, topology, shared=shared)
        for words, theirs in zip(job.transcripts, graphs, strict=True):
            assert_like_kaldis(build_numerator(words, job.lexicon, tree).fsa, theirs)


@needs_kaldi
@pytest.mark.parametrize("topology", TOPOLOGIES.values(), ids=TOPOLOGIES)
def test_transition_probabilities_weigh_as_in_kaldi(topology, tmp_path):
    """Both scales 1, as in denominators and decoding graphs; skips and ways back pay what the topology says."""
    job = replace(drawn_job(topology, 4, [[1], [2], [3], [4], [5]]), scales=(1.0, 1.0))
    tree = ContextTree.monophone(PHONES, topology)
    (graphs,) = training_graphs(Path(PYTHON), [job], tmp_path)
    for words, theirs in zip(job.transcripts, graphs, strict=True):
        ways = [ways_to_say(word, n, job.lexicon) for n, word in enumerate(words)]
        phones, *_ = transcript_acceptor(ways, job.lexicon)
        scales = {"self_loop_scale": 1.0, "transition_scale": 1.0}
        ours = input_fsa(expand_arcs(phones, tree, **scales, epsilon_free=True).graph)
        assert_like_kaldis(ours, theirs)


@pytest.mark.parametrize("topology", TOPOLOGIES.values(), ids=TOPOLOGIES)
def test_the_topology_that_kaldi_gets_is_ours(topology):
    states = parse_topology(Cursor(topology_text(topology, 2).encode(), "topo"))
    assert list(states) == [1, 2]
    for state, ours in zip(states[1], topology.states, strict=False):
        assert (state.forward_class, state.self_loop_class) == (ours.entry_class, ours.loop_class)
        number = states[1].index(state)
        expected = dict([(number, ours.loop_log_prob), *topology.moves(number)])
        found = {target: math.log(prob) for target, prob in state.transitions}
        assert found == pytest.approx(expected, rel=tolerances.PRINTED_WEIGHT)


def test_the_lexicon_that_kaldi_gets_is_kaldis(shared):
    """L.fst of a golden case, arc for arc but for the numbers of states."""
    from fsachain.asr.kaldi.archive import read_value
    from fsachain.openfst import read_fst, read_symbols

    folder = shared / "golden/kaldi/lm/lm1_tiny"
    lexicon = Lexicon.read(folder / "lexiconp.txt", phones=folder / "phones.txt")
    words = read_symbols(folder / "words.txt")
    ours, theirs = lexicon_transducer(lexicon), read_value(folder / "L.fst", read_fst)

    def arcs(fst, names):
        return sorted(
            (int(i), names[o - 1] if o else "", round(float(w), 3))
            for i, o, w in zip(fst.ilabel, fst.olabel, fst.log_prob, strict=True)
        )

    assert arcs(ours, lexicon.words) == arcs(theirs, words)
