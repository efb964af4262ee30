"""Window by window equals at once, in bounded memory."""

import math
from dataclasses import replace

import numpy as np
import pytest
from graph_paths import scores_along
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses
from tolerances import OBJF_PER_FRAME_FLOAT64

from fsachain.asr.decode.align import STRICT, FrameTiming, LongAligner, Tolerance, alignment_numerator
from fsachain.backends.dispatch import best_path
from fsachain.errors import ConfigError, DataError, GraphError, ShapeError
from fsachain.graph.context import ContextTree
from fsachain.graph.lexicon import Lexicon
from fsachain.graph.numerator import build_numerator
from fsachain.graph.topology import Topology

LEXICON = Lexicon.from_entries(
    [("yes", 1.0, ("y", "e", "s")), ("no", 1.0, ("n", "o")), ("oh", 1.0, ("o",)), ("em", 1.0, ("e", "m"))],
    silence="SIL",
    silence_prob=0.5,
)


def numerator_of(words, tree):
    return build_numerator(words, LEXICON, tree)


def tree_of(kind):
    if kind == "biphone":
        return ContextTree.biphone(LEXICON.phones, Topology.chain())
    return ContextTree.monophone(LEXICON.phones, Topology.ctc() if kind == "ctc" else Topology.chain())


def spoken(numerator, num_pdfs, num_frames, seed):
    """Scores of a reading of the text: noise, and a gain along a random path of that many frames."""
    flat = np.random.default_rng(seed).normal(size=(num_frames, num_pdfs)).astype(np.float32)
    flat[np.arange(num_frames), best_path([numerator], 4.0 * flat[None]).pdfs[0]] += 6.0
    return flat


@pytest.mark.parametrize("kind", ["monophone", "biphone", "ctc"])
@given(
    words=st.lists(st.sampled_from(["yes", "no", "oh"]), min_size=5, max_size=60),
    pace=st.floats(1.5, 5.0),
    block=st.integers(1, 90),
    seed=st.integers(0, 1000),
)
def test_windows_give_the_best_path_of_the_whole(kind, words, pace, block, seed):
    tree = tree_of(kind)
    numerator = numerator_of(words, tree)
    num_frames = int(pace * numerator.required_frames) + 5
    scores = spoken(numerator, tree.num_pdfs, num_frames, seed)
    whole = best_path([numerator], scores[None])
    aligner = LongAligner(numerator, tree.num_pdfs, window=60, lookahead=40)
    for first in range(0, num_frames, block):
        aligner.accept(scores[first : first + block])
    arcs, log_prob = aligner.finish()
    assert log_prob == pytest.approx(whole.score[0], abs=OBJF_PER_FRAME_FLOAT64 * num_frames)
    np.testing.assert_array_equal(numerator.fsa.pdf[arcs], whole.pdfs[0])
    segments = numerator.phone_segments(arcs)
    assert segments == numerator.phone_segments(whole.arcs[0])
    assert sum(segment.num_frames for segment in segments) == num_frames
    margins = aligner.margins()
    np.testing.assert_array_equal(margins, scores[np.arange(num_frames), whole.pdfs[0]] - scores.max(axis=1))


def test_a_frame_that_misleads_at_the_end_of_a_window_is_decided_by_what_comes_behind_it():
    """It sounds like the next phone, which begins three frames later: without them the path would be there already."""
    tree = tree_of("monophone")
    phones = ["y", "e", "s", "n", "o", "o", "e", "m"]
    pdfs = [tree.pdf(LEXICON.phone_id(phone), frame) for phone in phones for frame in (0, *[1] * 7)]
    scores = scores_along(pdfs, tree.num_pdfs, -5.0)
    scores[29, pdfs[32]] = 6.0
    numerator = numerator_of(["yes", "no", "oh", "em"], tree)
    aligner = LongAligner(numerator, tree.num_pdfs, window=30, lookahead=15)
    aligner.accept(scores)
    assert numerator.fsa.pdf[aligner.finish()[0]].tolist() == pdfs


@pytest.mark.parametrize("kind", ["monophone", "biphone", "ctc"])
def test_what_the_text_lacks_goes_to_the_filler_and_other_words_keep_their_times(kind):
    """Forty words, and after the twentieth eighty frames of a phone that the text has not."""
    tree = tree_of(kind)
    words = ["yes", "no", "oh", "no"] * 10
    numerator = numerator_of(words, tree)
    parts = [numerator_of(half, tree) for half in (words[:20], words[20:])]
    noise = np.random.default_rng(3).normal(size=(80, tree.num_pdfs)).astype(np.float32)
    noise[:, tree.pdf(LEXICON.phone_id("m"), 0)] += 6.0
    readings = [spoken(part, tree.num_pdfs, 200, seed) for seed, part in enumerate(parts)]
    expected = word_starts(numerator, np.concatenate(readings))
    expected[20:] += len(noise)
    scores = np.concatenate([readings[0], noise, readings[1]])
    loose = alignment_numerator(words, LEXICON, tree, STRICT._replace(other=1.0))
    assert np.abs(word_starts(loose, scores) - expected).max() <= 3
    assert np.abs(word_starts(numerator, scores) - expected).max() > 10


def word_starts(numerator, scores):
    """First frames of the words."""
    aligner = LongAligner(numerator, scores.shape[1], window=150, lookahead=100)
    aligner.accept(scores)
    segments = aligner.numerator.phone_segments(aligner.finish()[0])
    first = {s.word: s.first_frame for s in reversed(segments)}
    return np.array([first[n] for n in range(len(numerator.words))])


def test_text_and_recording_that_do_not_fit_are_named():
    tree = tree_of("monophone")
    numerator = numerator_of(["yes", "no", "yes", "yes"] * 10, tree)

    def reader(**options):
        return LongAligner(
            numerator, tree.num_pdfs, **{"window": 30, "lookahead": 10, "name": "speech"} | options
        )

    few = reader()
    few.accept(np.zeros((25, tree.num_pdfs), np.float32))
    told = r"'speech': no path through the 25 frames from 0 on, at word 0 of 40 \(\.\.\. yes no yes"
    refuses(DataError, told, few.finish)
    refuses(DataError, "no path", reader().finish)
    nan = np.full((35, tree.num_pdfs), np.nan, np.float32)
    refuses(DataError, r"NaN or \+inf among frames 0", reader().accept, nan)
    for shape in ((4,), (4, 1)):
        told = r"expected \[T, P\] with P at least \d+, got shape \[4"
        refuses(ShapeError, told, reader().accept, np.zeros(shape, np.float32))
    for lookahead in (10, 0):
        refuses(ConfigError, "expected 1 <= lookahead < window", reader, window=10, lookahead=lookahead)
    for cost in (-1.0, np.nan):
        given = ["yes"], LEXICON, tree, STRICT._replace(other=cost)
        refuses(ConfigError, "tolerance: other = .*; expected at least 0", alignment_numerator, *given)
    refuses(GraphError, "the transcript is empty", alignment_numerator, [], LEXICON, tree)


SAID = {"SIL": "SIL", "yes": "y e s", "no": "n o", "oh": "o", "em": "e m", "hum": "m s m s", "drone": "o"}


def heard(said, text, tolerance, lexicon=LEXICON, longest=math.inf, shortest=1):
    """The alignment of `text` with scores that spell `said`, eight frames a phone, a hundred a drone."""
    tree = ContextTree.monophone(lexicon.phones, Topology.chain())
    phones = [(phone, 99 if word == "drone" else 7) for word in said for phone in SAID[word].split()]
    pdfs = [
        tree.pdf(lexicon.phone_id(phone), frame) for phone, loops in phones for frame in (0, *[1] * loops)
    ]
    numerator = alignment_numerator(text, lexicon, tree, tolerance, shortest_other=shortest)
    aligner = LongAligner(numerator, tree.num_pdfs, window=160, lookahead=120, longest=longest)
    aligner.accept(scores_along(pdfs, tree.num_pdfs, -5.0))
    return aligner.alignment(lexicon.phones, FrameTiming(1, 0, 1 / 4))


def times(found):
    """Label, start and end; a phone lasts two seconds."""
    return [(entry.label, round(entry.start, 3), round(entry.start + entry.duration, 3)) for entry in found]


WRONG = {
    "nothing": ("SIL yes no oh", "yes no oh", "yes 2 8 no 8 12 oh 12 14", [], []),
    "a word was left out": ("yes oh", "yes no oh", "yes 0 6 oh 6 8", [1], []),
    "the first and the last": ("no no", "yes no no em", "no 0 4 no 4 8", [0, 3], []),
    "a word was said twice": ("oh yes yes no", "oh yes no", "oh 0 2 yes 2 8 yes 8 14 no 14 18", [], []),
    "a restart": ("yes no yes no oh", "yes no oh", "yes 0 6 no 6 10 yes 10 16 no 16 20 oh 20 22", [], []),
    "another word": ("yes hum oh", "yes no oh", "yes 0 6 oh 14 16", [1], [(6, 14)]),
    "more was said": ("yes hum oh", "yes oh", "yes 0 6 oh 14 16", [], [(6, 14)]),
    "six words were left out": (
        *("yes SIL SIL oh yes", "yes no em no em no em oh yes", "yes 0 6 oh 10 12 yes 12 18"),
        *([1, 2, 3, 4, 5, 6], None),
    ),
}


@pytest.mark.parametrize(("said", "text", "expected", "skipped", "other"), WRONG.values(), ids=WRONG)
def test_a_wrong_text_is_aligned_where_it_is_right_and_the_rest_is_named(
    said, text, expected, skipped, other
):
    found = heard(said.split(), text.split(), Tolerance(skip=2.0))
    assert " ".join(f"{word} {start:g} {end:g}" for word, start, end in times(found.words)) == expected
    assert list(found.skipped) == skipped
    if other is not None:
        assert [stretch[1:] for stretch in times(found.other)] == other
        assert not any(
            start <= one.start < end for _, start, end in times(found.other) for one in found.phones
        )
        assert all(word.confidence > 0.99 for word in found.words)


@pytest.mark.parametrize("unknown", [1, 2, 5])
def test_unknown_words_that_nobody_said_are_skipped_and_take_nothing_from_their_neighbours(unknown):
    for said in ("yes no oh", "yes SIL SIL no oh"):
        expected = times(heard(said.split(), ["yes", "no", "oh"], STRICT).words)
        found = heard(said.split(), ["yes", *["humm"] * unknown, "no", "oh"], Tolerance())
        known = [word for word in times(found.words) if word[0] != "humm"]
        assert known == expected
        assert {*found.skipped} <= {*range(1, 1 + unknown)} and len(found.skipped) >= unknown - unknown // 4
    found = heard(["yes", "hum", "no"], ["yes", "humm", "no"], Tolerance())
    assert times(found.words) == [("yes", 0, 6), ("humm", 6, 14), ("no", 14, 18)] and not found.skipped


def test_no_phone_or_unknown_word_lasts_as_long_as_noise_does():
    said, expected = ["yes", "no", "drone", "yes"], [("yes", 0), ("no", 6), ("yes", 35)]
    loose = STRICT._replace(other=0.7)
    for tolerance in (loose, Tolerance()):
        for text in (["yes", "no", "yes"], ["yes", "no", "humm", "yes"])[: 1 + (tolerance != loose)]:
            found = heard(said, text, tolerance, longest=12)
            assert [word[:2] for word in times(found.words) if word[0] != "humm"] == expected
            assert all(word.duration <= 24 / 4 for word in found.words)
    assert times(heard(said, ["yes", "no", "yes"], loose).words)[1] == ("no", 6, 35)


@pytest.mark.parametrize("kind", ["monophone", "biphone", "ctc", "three states"])
@given(seed=st.integers(0, 999), shortest=st.integers(1, 6))
def test_something_else_lasts_as_long_as_it_has_to_whatever_the_scores(kind, seed, shortest):
    three = ContextTree.monophone(LEXICON.phones, Topology.left_to_right(3))
    tree = three if kind == "three states" else tree_of(kind)
    tolerance = Tolerance(skip=2.0, replace=1.0, other=0.3)
    numerator = alignment_numerator(["no", "yes", "no"], LEXICON, tree, tolerance, shortest_other=shortest)
    scores = np.random.default_rng(seed).normal(size=(40, tree.num_pdfs))
    best = scores.max(axis=1, keepdims=True)
    path = best_path([numerator], np.concatenate([scores, best, best], axis=1)[None])
    is_other = numerator.fsa.pdf[path.arcs[0]] == tree.num_pdfs
    edges = np.flatnonzero(np.diff(np.concatenate([[0], is_other, [0]])))
    assert not len(edges) or np.diff(edges)[::2].min() >= shortest
    # The filler is no phone, and what stands around it is not one stretch with it.
    segments = numerator.phone_segments(path.arcs[0])
    assert all((segment.phone < 0) == is_other[segment.first_frame] for segment in segments)


def test_what_is_shorter_than_something_else_may_be_belongs_to_its_neighbours():
    said = ["yes", "hum", "oh"]
    found = heard(said, ["yes", "oh"], Tolerance(), shortest=32)
    assert times(found.words) == [("yes", 0, 6), ("oh", 14, 16)] and times(found.other) == [
        ("<other>", 6, 14)
    ]
    found = heard(said, ["yes", "oh"], Tolerance(), shortest=36)
    assert found.other[0].duration >= 36 / 4
    found = heard(["yes", "oh"], ["yes", "oh"], Tolerance(), shortest=5)
    assert not found.other and not found.skipped


def test_another_word_may_stand_in_a_place_that_may_not_be_skipped():
    found = heard(["yes", "hum", "oh"], ["yes", "no", "oh"], STRICT._replace(replace=2.0, other=0.7))
    assert times(found.words) == [("yes", 0, 6), ("oh", 14, 16)] and found.skipped == (1,)


def test_unknown_words_are_spelled_where_the_lexicon_spells_and_match_anything_where_it_does_not():
    found = heard(["yes", "hum", "no"], ["Yes,", "humm", "NO"], STRICT)
    assert times(found.words) == [("Yes,", 0, 6), ("humm", 6, 14), ("NO", 14, 18)] and not found.skipped
    found = heard(["yes", "em", "no"], ["yes", "humm", "no"], STRICT, replace(LEXICON, oov="em"))
    assert [entry.label for entry in found.phones[3:5]] == ["e", "m"]
    spelling = Lexicon.characters(["yes no oh em"], silence="SIL")
    found = heard(["yes", "hum", "no"], ["yes", "Ms-ms", "no"], STRICT, spelling)
    assert [entry.label for entry in found.phones[3:7]] == ["m", "s", "m", "s"]
    assert times(found.words)[1] == ("Ms-ms", 6, 14)
    assert LEXICON.spelled("no") is None and spelling.spelled("\N{SNOWMAN}") is None


@given(words=st.lists(st.sampled_from(["yes", "no", "oh"]), min_size=1, max_size=8), seed=st.integers(0, 99))
def test_costs_without_bound_leave_the_numerator(words, seed):
    for kind in ("monophone", "biphone", "ctc"):
        tree = tree_of(kind)
        strict, plain = alignment_numerator(words, LEXICON, tree), numerator_of(words, tree)
        scores = np.random.default_rng(seed).normal(size=(1, 40, tree.num_pdfs))
        left, right = (best_path([numerator], scores) for numerator in (strict, plain))
        assert left.score[0] == right.score[0] and (left.arcs[0] == right.arcs[0]).all()
