"""Graphs that Kaldi has strung together come apart into graphs of one sequence each, which score together as before."""

import itertools
import struct

import kaldi_bytes as kb
import numpy as np
import pytest
import tolerances
from graph_paths import Scorer, log_add
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import graphs

from fsachain.asr.data.kaldi_examples import read_examples
from fsachain.asr.kaldi.examples import split_merged
from fsachain.errors import DataError, counted
from fsachain.fsa import Fsa, input_fsa
from fsachain.graph.transducer import remove_epsilons
from fsachain.openfst import Transducer

FRAMES, PDFS = 3, 2


@st.composite
def supervisions(draw):
    """Every path has FRAMES arcs; up to two states for each frame, several final ones with weights of their own."""
    layers = [1, *(draw(st.integers(1, 2)) for _ in range(FRAMES))]
    first = np.concatenate([[0], np.cumsum(layers)])
    weight = st.sampled_from([0.0, -0.25, -1.5])
    arcs = []
    for frame in range(FRAMES):
        for src in range(first[frame], first[frame + 1]):
            for dst in range(first[frame + 1], first[frame + 2]):
                for pdf in draw(st.sets(st.integers(0, PDFS - 1), min_size=1)):
                    arcs.append((src, dst, pdf, draw(weight)))
    final = np.full(first[-1], -np.inf)
    final[first[FRAMES] :] = [draw(weight) for _ in range(layers[-1])]
    src, dst, pdf, log_prob = zip(*arcs, strict=True)
    return Fsa(int(first[-1]), src, dst, pdf, log_prob, final)


def strung_together(parts):
    """Final states of one lead by an epsilon arc to the start of the next, and epsilon arcs are removed."""
    offsets = np.cumsum([0, *(part.num_states for part in parts)])
    rows = []
    for part, offset, following in zip(parts, offsets, offsets[1:], strict=False):
        columns = (part.src + offset, part.dst + offset, part.pdf + 1, part.log_prob)
        rows += zip(*(column.tolist() for column in columns), strict=True)
        if part is not parts[-1]:
            ends = np.flatnonzero(part.final_log_prob > -np.inf)
            rows += [(int(s) + offset, following, 0, float(part.final_log_prob[s])) for s in ends]
    final = np.full(offsets[-1], -np.inf)
    final[offsets[-2] :] = parts[-1].final_log_prob
    src, dst, label, weights = (np.array(column) for column in zip(*rows, strict=True))
    graph = Transducer(int(offsets[-1]), 0, src, dst, label, label, weights, final)
    return input_fsa(remove_epsilons(graph, range(len(src)))[0])


@given(st.lists(supervisions(), min_size=1, max_size=3))
def test_parts_score_together_as_the_whole(parts):
    merged = strung_together(parts)
    found = list(split_merged(merged, len(parts), FRAMES))
    assert len(found) == len(parts)
    whole, scores = Scorer(merged, log_add), [Scorer(one, log_add) for one in found]
    rng = np.random.default_rng(0)
    every = list(itertools.product(range(PDFS), repeat=FRAMES * len(parts)))
    for number in rng.permutation(len(every))[:60]:
        pdfs = every[number]
        pieces = [pdfs[FRAMES * n : FRAMES * (n + 1)] for n in range(len(parts))]
        total = sum(score(piece) for score, piece in zip(scores, pieces, strict=True))
        assert total == pytest.approx(whole(pdfs), abs=tolerances.ENUMERATION)


@pytest.mark.parametrize(
    ("src", "dst", "pdf", "log_prob"),
    [
        ([0, 0, 1, 2], [1, 2, 3, 3], [0, 1, 0, 1], [0.0] * 4),  # the second is 0 behind 0, and 1 behind 1
        (
            [0, 0, 1, 1, 2, 2],
            [1, 2, 3, 3, 3, 3],
            [0, 1, 0, 1, 0, 1],
            [0.0] * 5 + [-1.0],
        ),  # 1 is less likely behind 1
    ],
)
def test_sequences_that_depend_on_each_other_are_refused(src, dst, pdf, log_prob):
    fsa = Fsa(4, src, dst, pdf, log_prob, [-np.inf] * 3 + [0.0])
    with pytest.raises(DataError, match="behind sequence 0, which depend on it"):
        split_merged(fsa, 2, 1)


@pytest.mark.parametrize("sequences", [1, 3])
def test_paths_of_another_length_are_refused(sequences):
    fsa = Fsa(3, [0, 1], [1, 2], [0, 0], np.zeros(2), [-np.inf, -np.inf, 0.0])
    with pytest.raises(DataError, match=f"paths of other lengths; expected {counted(sequences, 'frame')}"):
        split_merged(fsa, sequences, 1)


@given(graphs(max_states=5, max_arcs=8, num_pdfs=2))
def test_any_graph_is_taken_apart_or_a_data_error(fsa):
    """Cycles, dead ends, several lengths: parts score together as the whole, or there are none."""
    try:
        parts = list(split_merged(fsa, 2, 1))
    except DataError:
        return
    whole, scores = Scorer(fsa, log_add), [Scorer(part, log_add) for part in parts]
    for pdfs in itertools.product(range(2), repeat=2):
        total = sum(score([one]) for score, one in zip(scores, pdfs, strict=True))
        assert total == pytest.approx(whole(pdfs), abs=tolerances.ENUMERATION)


def test_merged_examples_from_alignments_become_one_example_for_each_sequence(tmp_path):
    rows = [(n, t, 0) for t in range(-1, 8) for n in range(2)]
    features = np.array([[10.0 * n + t] for n, t, _ in rows])
    outputs = [(n, t, 0) for t in (0, 3, 6) for n in range(2)]
    arcs = [
        [(1, 1, 0.25, 1)],
        [(2, 2, 0.0, 2)],
        [(2, 2, 0.0, 3)],
        [(3, 3, 0.5, 4)],
        [(4, 4, 0.0, 5)],
        [(4, 4, 0.0, 6)],
        [],
    ]
    graph = kb.const_fst(arcs, [np.inf] * 6 + [0.0])
    data = b"a \0B" + kb.chain_example(features, rows, outputs, 2, graph, end_to_end=False)
    pdfs = b"<AlignmentPdfs> \4" + struct.pack("<7i", 6, 0, 1, 1, 2, 3, 3)  # which Kaldi may add
    (tmp_path / "cegs.ark").write_bytes(data.replace(b"</Supervision>", pdfs + b"</Supervision>"))
    first, second = read_examples(tmp_path / "cegs.ark")
    assert (first.example.id, second.example.id) == ("a-0", "a-1")
    assert (first.numerator.pdf.tolist(), second.numerator.pdf.tolist()) == ([0, 1, 1], [2, 3, 3])
    total = sum(float(one.numerator.log_prob.sum()) for one in (first, second))
    assert total == pytest.approx(-0.75, abs=tolerances.ENUMERATION)
    assert second.example.features[second.example.window.first * 3 + 1, 0] == 10
