"""Confidences of words: posteriors of the lattice, counted over all paths; the words said where others were written."""

import itertools
import math

import numpy as np
import pytest
import test_decoder
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses
from tolerances import ENUMERATION, LATTICE_POSTERIOR

from fsachain.asr.decode.decoder import Decoder, DecoderConfig
from fsachain.asr.decode.suspicious import BEAM, likely_paths, mend, mended
from fsachain.asr.decode.transcribe import PauseCutter, silence_pdfs, word_posteriors
from fsachain.asr.kaldi.lattice import Lattice
from fsachain.errors import ConfigError, DataError
from fsachain.graph.context import ContextTree
from fsachain.graph.forgive import Forgiveness
from fsachain.graph.lexicon import Lexicon
from fsachain.graph.topology import Topology

YES, NO = 1, 2


def lattice(arcs, num_states):
    """From (src, dst, transition, word, probability); the last state is final."""
    src, dst, transition, word, probability = zip(*arcs, strict=True)
    ints = [np.array(column, dtype=np.int32) for column in (src, dst, transition, word)]
    final = np.full(num_states, np.inf)
    final[-1] = 0.0
    cost = -np.log(np.array(probability))
    return Lattice(num_states, 0, *ints, 0.25 * cost, 0.75 * cost, final, np.where(final == 0, 0.0, np.inf))


def test_a_word_said_once_or_twice_is_sure_once():
    """Twice with 0.6, at frames 0 and 3; once, at frame 0, with 0.4: the second is as sure as its paths."""
    arcs = [(0, 1, 1, YES, 1.0), (1, 2, 1, 0, 1.0), (2, 3, 1, 0, 1.0), (3, 4, 1, YES, 0.6), (3, 4, 1, 0, 0.4)]
    first, second = word_posteriors(lattice(arcs, 5))
    assert (first.frame, second.frame) == (0, 3)
    assert first.confidence == pytest.approx(1.0)
    assert second.confidence == pytest.approx(0.6)


def test_words_on_arcs_that_spend_no_frame_count_too():
    arcs = [(0, 1, 1, 0, 1.0), (1, 2, 0, YES, 0.9), (1, 2, 0, NO, 0.1), (2, 3, 1, 0, 1.0)]
    (found,) = word_posteriors(lattice(arcs, 4))
    assert (found.word, found.frame) == (YES, 1)
    assert found.confidence == pytest.approx(0.9)


def test_a_lattice_without_words_has_none_and_a_broken_one_is_refused():
    assert word_posteriors(lattice([(0, 1, 1, 0, 1.0)], 2)) == []
    with pytest.raises(DataError, match=r"the states \[(0, 1, 0|1, 0, 1)\] are a cycle"):
        word_posteriors(lattice([(0, 1, 1, 0, 1.0), (1, 0, 1, 0, 1.0)], 2))
    refuses(DataError, "total -inf", word_posteriors, lattice([(0, 1, 1, 0, 1.0)], 3))


@given(seed=st.integers(0, 10_000))
def test_confidences_are_those_of_all_paths_of_the_decoding_graph(seed):
    """With beams that drop nothing: every path of the graph, one by one."""
    graph, num_frames = test_decoder.word_loop((0.7, 0.3, 1.1)), 6
    scores = np.random.default_rng(seed).normal(scale=2.0, size=(num_frames, 7)).astype(np.float32)
    config = DecoderConfig(beam=200.0, lattice_beam=150.0, first_beam=200.0)
    decoder = Decoder(graph, test_decoder.WORDS, config)
    found = word_posteriors(decoder.lattice(scores))
    paths = list(_paths(graph, scores))
    best = max(paths)[1]
    assert [(posterior.word, posterior.frame) for posterior in found] == best
    assert [decoder.words[posterior.word - 1] for posterior in found] == list(decoder.decode(scores).words)
    total = np.logaddexp.reduce([log_prob for log_prob, _ in paths])
    middles = [0.5 * (a[1] + b[1]) for a, b in itertools.pairwise(best)]
    expected = np.zeros(len(best))
    for log_prob, words in paths:
        for word, frame in words:
            place = sum(frame >= middle for middle in middles)
            expected[place] += math.exp(log_prob - total) * (word == best[place][0])
    np.testing.assert_allclose([w.confidence for w in found], np.minimum(expected, 1), atol=LATTICE_POSTERIOR)


def _paths(graph, scores):
    """(log-probability, [(word, frame)]) of every complete path."""

    def walk(state, frame, log_prob, words):
        if frame == len(scores) and float(graph.final(state)) < np.inf:
            yield log_prob - float(graph.final(state)), words
        for arc in graph.arcs(state):
            if arc.ilabel and frame == len(scores):
                continue
            gain = float(scores[frame, arc.ilabel - 1]) if arc.ilabel else 0.0
            said = [*words, (arc.olabel, frame)] if arc.olabel else words
            yield from walk(
                arc.nextstate, frame + bool(arc.ilabel), log_prob + gain - float(arc.weight), said
            )

    yield from walk(graph.start(), 0, 0.0, [])


@given(blocks=st.lists(st.integers(0, 300), min_size=1, max_size=6), max_frames=st.integers(2, 120))
def test_pieces_are_the_whole_in_order_and_none_is_too_long(blocks, max_frames):
    scores = np.random.default_rng(0).normal(size=(sum(blocks), 4)).astype(np.float32)
    cutter = PauseCutter([0], max_frames)
    pieces = []
    for block in np.split(scores, np.cumsum(blocks)[:-1]):
        pieces += cutter.accept(block)
    pieces += cutter.finish()
    lengths = [len(piece.scores) for piece in pieces]
    assert all(0 < length <= max_frames for length in lengths)
    assert [piece.first_frame for piece in pieces] == [sum(lengths[:n]) for n in range(len(pieces))]
    whole = np.concatenate([scores[:0], *(piece.scores for piece in pieces)])
    np.testing.assert_array_equal(whole, scores)


def test_a_long_recording_is_cut_where_silence_is_likeliest():
    scores = np.zeros((100, 3), np.float32)
    scores[:, 1] = 1.0
    scores[70:85, 2] = 4.0  # a pause of fifteen frames
    scores[55:57, 2] = 9.0  # too short for one
    pieces = list(PauseCutter([2], 90).accept(scores))
    assert len(pieces) == 1
    assert 70 <= len(pieces[0].scores) <= 85
    assert len(next(PauseCutter([], 90).accept(scores)).scores) == 90
    refuses(ConfigError, "max_frames is 1", PauseCutter, [2], 1)


def test_silence_is_what_the_silence_phone_alone_has_or_the_blank():
    entries = [("yes", 1.0, ["Y", "EH"]), ("no", 1.0, ["N"])]
    for silence, topology, expected in (
        ("SIL", Topology.chain(), [0, 1]),
        (None, Topology.chain(), []),
        (None, Topology.ctc(), [0]),
    ):
        lexicon = Lexicon.from_entries(entries, silence=silence)
        assert silence_pdfs(lexicon, ContextTree.monophone(lexicon.phones, topology)) == expected


def test_mending_says_what_was_said_and_leaves_a_transcript_where_nothing_can_be_found():
    outputs = {"u1": test_decoder.spell(("yes", "maybe")), "u2": np.zeros((0, 7))}
    written = dict.fromkeys(outputs, ("yes", "no"))
    given = test_decoder.word_loop(), test_decoder.WORDS, Forgiveness(1.0, 1.0, 1.0)
    found = mend(outputs, written, *given, num_workers=1)
    assert {name: [one.words for one in best] for name, best in found.items()} == {
        "u1": [("yes", "maybe")], "u2": [("yes", "no")]
    }  # fmt: skip


PENALTIES = st.one_of(st.just(math.inf), st.floats(0.0, 4.0))
CASES = {
    "seed": st.integers(0, 2**32 - 1),
    "written": st.lists(st.sampled_from([-1, 1, 2, 3]), max_size=4),
    "forgive": st.builds(Forgiveness, PENALTIES, PENALTIES, st.just(math.inf) | st.floats(-2.0, 3.0)),
}


def small_lattice(seed):
    """States in order, the first leads to the second; words 1 to 3."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 6))
    ends = [sorted(rng.choice(size, 2, replace=False)) for _ in range(7)] + [(0, 1)]
    return lattice([(a, b, 1, int(rng.integers(0, 4)), 0.01 + 0.99 * rng.random()) for a, b in ends], size)


@settings(max_examples=300)
@given(count=st.integers(1, 4), **CASES)
def test_mended_transcripts_are_those_of_the_cheapest_paths_and_scripts(seed, written, forgive, count):
    """All paths of a small lattice are written down, each with the cheapest script by the recursion of Levenshtein."""
    one = small_lattice(seed)

    def paths(state, words, cost):
        yield words, cost + one.final_cost[state]
        for arc in np.flatnonzero(one.src == state):
            more = (int(one.word[arc]),) if one.word[arc] else ()
            yield from paths(one.dst[arc], words + more, cost + one.cost[arc])

    def script(words):
        costs = np.full((len(words) + 1, len(written) + 1), np.inf)
        costs[0, 0] = 0.0
        for i, u in itertools.product(range(len(words) + 1), range(len(written) + 1)):
            if i and u:
                other = 0.0 if words[i - 1] == written[u - 1] else forgive.substitution
                costs[i, u] = min(costs[i, u], costs[i - 1, u - 1] + other)
            if i:
                costs[i, u] = min(costs[i, u], costs[i - 1, u] + forgive.deletion)
            if u:
                costs[i, u] = min(costs[i, u], costs[i, u - 1] + forgive.insertion)
        return costs[-1, -1]

    totals = {}
    for words, cost in paths(0, (), 0.0):
        totals[words] = min(totals.get(words, np.inf), cost + script(words))
    best = sorted(cost for cost in totals.values() if cost <= min(totals.values()) + BEAM and cost < math.inf)
    found = mended(one, written, forgive, count)
    assert [-log_prob for _, log_prob in found] == pytest.approx(best[:count], abs=1e-5)
    assert [totals[tuple(words)] for words, _ in found] == pytest.approx(best[:count], abs=1e-5)


@settings(max_examples=300)
@given(beam=st.floats(0.001, 6.0), **CASES)
def test_no_pair_of_lattice_and_transcript_is_kept_that_lies_on_no_path_within_the_beam(
    seed, written, forgive, beam
):
    """Costs before and behind every pair, where words may be inserted anywhere."""
    one = small_lattice(seed)
    pairs = list(itertools.product(range(one.num_states), range(len(written) + 1)))

    def steps(state, done):
        more = done < len(written)
        if more:
            yield (state, done + 1), forgive.insertion
        for arc in np.flatnonzero(one.src == state):
            dst, word = int(one.dst[arc]), one.word[arc]
            yield (dst, done), one.cost[arc] + (forgive.deletion if word else 0.0)
            if word and more:
                other = 0.0 if written[done] == word else forgive.substitution
                yield (dst, done + 1), one.cost[arc] + other

    before, behind = dict.fromkeys(pairs, math.inf), {}
    before[0, 0] = 0.0
    for pair in pairs:
        for to, cost in steps(*pair):
            before[to] = min(before[to], before[pair] + cost)
    for state, done in reversed(pairs):
        end = one.final_cost[state] if done == len(written) else math.inf
        behind[state, done] = min([end, *(cost + behind[to] for to, cost in steps(state, done))])
    least = behind[0, 0]
    found = likely_paths(one, np.array(written, dtype=np.int64), forgive, beam)
    if least == math.inf:
        assert found is None
    else:
        within = sum(before[pair] + behind[pair] <= least + beam + ENUMERATION for pair in pairs)
        assert 0 < found.num_states <= within
