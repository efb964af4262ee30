"""Numerators with times from an alignment: exactly the paths that keep the limits, and chunks of them."""

import math
from itertools import chain, pairwise

import numpy as np
import pytest
import tolerances
from enumeration import all_paths, log_sum
from hypothesis import assume, given
from hypothesis import strategies as st
from refusals import refuses

from fsachain import (
    ConfigError,
    ContextTree,
    DenominatorGraph,
    GraphError,
    HmmState,
    Lexicon,
    TableBatch,
    Topology,
    build_denominator,
    build_numerator,
    compile_table,
    estimate_phone_lm,
    forward_backward,
)
from fsachain.errors import counted
from fsachain.graph.supervision import (
    AlignedPhone,
    build_supervision,
    chunk_windows,
    holds_chunks,
    load_chunks,
    make_chunks,
    num_chunks,
    save_chunks,
)

PHONES = ("SIL", "A", "B")
TOPOLOGIES = {
    "chain": Topology.chain(),
    "one pdf": Topology.chain_one_pdf(),
    "two states": Topology.left_to_right(2),
    "ctc": Topology.ctc(),
    "ctc-minimal": Topology.ctc("minimal"),
    "skips": Topology((HmmState(0, 0, skips=((2, -1.0),)), HmmState(1, None))),
}
TREES = {name: ContextTree.monophone(PHONES, topology) for name, topology in TOPOLOGIES.items()} | {
    "biphone": ContextTree.biphone(PHONES, Topology.chain(), context_independent=("SIL",))
}
EVERYTHING = 10**6


@st.composite
def alignments(draw, max_phones=4, max_frames=24):
    """Phones that touch and fill [0, T), T input frames, and T."""
    count = draw(st.integers(1, max_phones))
    num_frames = draw(st.integers(count, max_frames))
    inner = st.lists(st.integers(1, num_frames - 1), unique=True, min_size=count - 1, max_size=count - 1)
    edges = [0, *sorted(draw(inner)), num_frames] if num_frames > 1 else [0, 1]
    ids = draw(st.lists(st.integers(1, len(PHONES)), min_size=count, max_size=count))
    return [AlignedPhone(*row) for row in zip(ids, edges[:-1], edges[1:], strict=True)], num_frames


def end_to_end(phones, tree):
    """The numerator of one word that is said so, without silence and without times."""
    names = [PHONES[phone.phone - 1] for phone in phones]
    lexicon = Lexicon.from_entries([("word", 1.0, names)], silence=None, phones=PHONES)
    return build_numerator(["word"], lexicon, tree)


def log_z(fsa, scores, backend="reference"):
    batch = TableBatch.pack([compile_table(fsa, scores.shape[1])])
    return float(forward_backward(batch, scores[None], backend=backend).log_prob[0])


def random_scores(num_frames, tree, seed, scale=1.0):
    return scale * np.random.default_rng(seed).normal(size=(num_frames, tree.num_pdfs))


def supervise(phones, num_frames, tree, **options):
    """The supervision, or None where there is no path."""
    try:
        return build_supervision(phones, num_frames, tree, **options)
    except GraphError as error:
        assert "have no path through" in str(error) or "no aligned phone lies near" in str(error)
        return None


def keeps_times(segments, phones, centres, left, right):
    """The definition: every frame of a phone is centred within its span and the tolerances."""
    spoken = [segment for segment in segments if segment.phone]
    assert [segment.phone for segment in spoken] == [phone.phone for phone in phones]
    for segment, phone in zip(spoken, phones, strict=True):
        frames = centres[segment.first_frame : segment.first_frame + segment.num_frames]
        if not all(phone.start - left <= centre < phone.end + right for centre in frames):
            return False
    return True


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
@given(
    aligned=alignments(max_frames=18),
    tolerance=st.tuples(st.integers(0, 6), st.integers(0, 6)) | st.just((EVERYTHING, EVERYTHING)),
    subsampling=st.integers(1, 4),
    offset=st.integers(0, 2),
    seed=st.integers(0, 99),
)
def test_log_z_is_the_sum_over_the_end_to_end_paths_that_keep_the_times(
    tree, aligned, tolerance, subsampling, offset, seed
):
    phones, num_frames = aligned
    left, right = tolerance
    offset = min(offset, subsampling - 1)
    options = {"left_tolerance": left, "right_tolerance": right, "subsampling": subsampling}
    found = supervise(phones, num_frames, tree, time_offset=offset, **options)
    outputs = math.ceil(num_frames / subsampling)
    scores = random_scores(outputs, tree, seed)
    numerator = end_to_end(phones, tree)
    centres = [min(subsampling * frame + offset, num_frames - 1) for frame in range(outputs)]
    kept = [
        score
        for score, arcs in all_paths(numerator.fsa, scores)
        if keeps_times(numerator.phone_segments(arcs), phones, centres, left, right)
    ]
    if found is None:
        assert not kept
    else:
        expected = log_sum(kept)
        assert log_z(found.fsa, scores) == pytest.approx(expected, abs=tolerances.ENUMERATION)


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
@given(aligned=alignments())
def test_every_state_lies_on_a_path_and_has_one_frame(tree, aligned):
    found = supervise(*aligned, tree)
    assume(found is not None)
    fsa, frame = found.fsa, found.state_frame
    np.testing.assert_array_equal(frame[fsa.dst], frame[fsa.src] + 1)
    assert (np.diff(frame) >= 0).all()
    assert (frame[0], frame[-1]) == (0, found.num_frames)
    trimmed = fsa.trim()
    assert (trimmed.num_states, trimmed.num_arcs) == (fsa.num_states, fsa.num_arcs)
    assert not fsa.log_prob.any()


def digit_like(count, length=7):
    """`count` phones of `length` input frames each."""
    return [AlignedPhone(2 + i % 2, length * i, length * (i + 1)) for i in range(count)], count * length


def language(fsa, num_frames, num_pdfs):
    """pdf sequence -> how many paths spell it."""
    counts = {}
    for _, arcs in all_paths(fsa, np.zeros((num_frames, num_pdfs))):
        spelt = tuple(fsa.pdf[list(arcs)].tolist())
        counts[spelt] = counts.get(spelt, 0) + 1
    return counts


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
@given(aligned=alignments(max_frames=18), cut=st.tuples(st.integers(0, 5), st.integers(1, 6)))
def test_a_chunk_spells_every_cut_path_once_and_nothing_else(tree, aligned, cut):
    found = supervise(*aligned, tree)
    assume(found is not None)
    start, end = min(cut[0], found.num_frames - 1), min(sum(cut), found.num_frames)
    whole = language(found.fsa, found.num_frames, tree.num_pdfs)
    chunk = found.chunk(start, end)
    assert language(chunk, end - start, tree.num_pdfs) == {spelt[start:end]: 1 for spelt in whole}
    assert chunk.trim().num_arcs == chunk.num_arcs


def denominator_of(tree):
    sequences = [[1, 2, 3, 1], [2, 2, 3, 3], [1, 3, 3, 2, 2, 1, 1], [3, 1, 2], [3, 2, 1, 3]]
    model = estimate_phone_lm(sequences, ngram_order=2)
    return DenominatorGraph(build_denominator(model, tree), tree.num_pdfs)


DENOMINATORS = {name: denominator_of(TREES[name]) for name in ("chain", "one pdf", "biphone")}


@pytest.mark.parametrize("name", DENOMINATORS)
@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0])
@given(aligned=alignments(), cut=st.tuples(st.integers(0, 5), st.integers(1, 8)), seed=st.integers(0, 99))
def test_objf_of_a_normalized_chunk_is_at_most_zero(name, scale, aligned, cut, seed):
    """One pdf per phone too: there a pdf sequence has several paths in the denominator, but one in a chunk."""
    tree, denominator = TREES[name], DENOMINATORS[name]
    found = supervise(*aligned, tree)
    assume(found is not None)
    start, end = min(cut[0], found.num_frames - 1), min(sum(cut), found.num_frames)
    chunk = found.chunk(start, end, normalization=denominator.normalization_fsa())
    scores = random_scores(end - start, tree, seed, scale)
    den = float(forward_backward(denominator.batch(1), scores[None], leaky_hmm_coefficient=0.0).log_prob[0])
    assert log_z(chunk, scores) <= den + tolerances.FLOAT64 * max(1.0, abs(den))


def spans(*rows):
    return [AlignedPhone(*row) for row in rows]


@pytest.mark.parametrize(
    ("phones", "options", "error", "message"),
    [
        ([], {}, GraphError, "the alignment is empty"),
        (spans((4, 0, 30)), {}, GraphError, r"phone 0 has id 4: expected one in \[1, 3\]"),
        (spans((2, 10, 30), (3, 0, 30)), {}, GraphError, r"span \[0, 30\) after \[10, 30\)"),
        (spans((2, 0, 30), (3, 10, 20)), {}, GraphError, r"span \[10, 20\) after \[0, 30\)"),
        (spans((2, 0, 34)), {}, GraphError, "ends at input frame 34, the utterance at 30"),
        (spans((2, 0, 12)), {}, GraphError, "no aligned phone lies near input frame 18 "),
        (spans(*((2, i, i + 1) for i in range(30))), {}, GraphError, "the 30 aligned phones have no path through 10"),
        (spans((2, 0, 30)), {"left_tolerance": -1}, ConfigError, "left_tolerance = -1"),
        (spans((2, 0, 30)), {"subsampling": 0}, ConfigError, "subsampling = 0"),
    ],
)  # fmt: skip
def test_an_alignment_that_cannot_be_used_is_refused_with_the_utterance(phones, options, error, message):
    with pytest.raises(error, match=rf"\Autterance 'u7': .*{message}"):
        build_supervision(phones, 30, TREES["chain"], name="u7", **options)


def test_frames_that_an_utterance_has_not_are_refused():
    given = spans((2, 0, 30)), TREES["chain"]
    refuses(GraphError, "'u7': num_input_frames = 0", build_supervision, given[0], 0, given[1], name="u7")
    found = build_supervision(given[0], 30, given[1], name="u7")
    for start, end in ((-1, 5), (5, 5), (5, 11)):
        told = rf"'u7': chunk of the output frames \[{start}, {end}\): expected 0 <= start < end <= 10"
        refuses(GraphError, told, found.chunk, start, end)


def test_a_chunk_that_the_denominator_never_saw_is_refused():
    model = estimate_phone_lm([[1, 2]], ngram_order=2)
    tree = TREES["chain"]
    normalization = DenominatorGraph(build_denominator(model, tree), tree.num_pdfs).normalization_fsa()
    found = build_supervision(spans((3, 0, 30)), 30, tree, name="u7")
    with pytest.raises(GraphError, match=r"'u7': the normalization accepts no path of the .* \[2, 5\)"):
        found.chunk(2, 5, normalization=normalization)


@given(num_frames=st.integers(1, 400), width=st.integers(1, 120), share=st.floats(0.0, 0.9))
def test_windows_have_one_width_cover_every_frame_and_share_the_overlap(num_frames, width, share):
    overlap = int(share * width)
    count = num_chunks(num_frames, width, overlap)
    windows = chunk_windows(num_frames, width, count)
    assert len(windows) == count
    if num_frames <= width:
        assert windows == [(0, num_frames)]
        return
    assert windows[0][0] == 0
    assert windows[-1][1] == num_frames
    assert all(end - start == width for start, end in windows)
    for before, after in pairwise(windows):
        assert before[1] - after[0] >= overlap
    assert (count - 1) * (width - overlap) + overlap < num_frames  # one chunk less would not do


def test_windows_that_cannot_cover_their_utterance_are_refused():
    for num_frames, count in ((0, 1), (21, 2)):
        told = f"{counted(count, 'chunk')} of 10 frames cannot cover an utterance of {num_frames} frames"
        refuses(GraphError, told, chunk_windows, num_frames, 10, count)


@given(aligned=alignments(max_frames=40), width=st.integers(1, 8), extra=st.integers(0, 2))
def test_every_frame_counts_once_over_all_chunks(aligned, width, extra):
    found = supervise(*aligned, TREES["chain"])
    assume(found is not None)
    windows = chunk_windows(found.num_frames, width, num_chunks(found.num_frames, width) + extra)
    total = np.zeros(found.num_frames)
    for chunk in make_chunks(found, windows):
        total[chunk.start : chunk.end] += chunk.frame_weights
    np.testing.assert_allclose(total, 1.0, atol=tolerances.FEW_FLOAT32_TERMS)


def test_chunks_survive_one_file(tmp_path):
    tree = TREES["biphone"]
    normalization = DENOMINATORS["biphone"].normalization_fsa()
    copies = {}
    for name, count in (("u1", 9), ("ü 2", 4)):
        lists = []
        for prefix in ("", "sp0.9-"):
            found = build_supervision(*digit_like(count), tree, name=prefix + name)
            windows = chunk_windows(found.num_frames, 8, 3)
            lists.append(make_chunks(found, windows, normalization=normalization))
        copies[name] = lists
    path = tmp_path / "chunks.npz"
    save_chunks(path, copies)
    loaded = load_chunks(path)
    assert list(loaded) == list(copies)
    assert holds_chunks(path)
    for name, lists in copies.items():
        assert [len(one) for one in loaded[name]] == [3, 3]
        for ours, theirs in zip(chain.from_iterable(lists), chain.from_iterable(loaded[name]), strict=True):
            assert (ours.id, ours.of_frames) == (theirs.id, theirs.of_frames)
            np.testing.assert_array_equal(ours.frame_weights, theirs.frame_weights)
            for part in ("src", "dst", "pdf", "log_prob", "final_log_prob"):
                np.testing.assert_array_equal(getattr(ours.fsa, part), getattr(theirs.fsa, part))
    arrays = dict(np.load(path))
    for name, message in (
        ("chunk_start", "has 11 rows; expected 12"),
        ("names", "has 11 rows, num_states 12"),
    ):
        np.savez(path, **arrays | {name: arrays[name][1:]})
        refuses(GraphError, f"{name} {message}", load_chunks, path)
    save_chunks(path, {})
    assert load_chunks(path) == {}
