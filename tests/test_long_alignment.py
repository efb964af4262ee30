"""Window by window equals at once, in bounded memory."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tolerances import OBJF_PER_FRAME_FLOAT64

from fsachain.backends.dispatch import best_path
from fsachain.batch import TableBatch
from fsachain.decode.align import LongAligner
from fsachain.errors import ConfigError, DataError, ShapeError
from fsachain.graph.context import ContextTree
from fsachain.graph.lexicon import Lexicon
from fsachain.graph.numerator import Numerator, build_numerator
from fsachain.graph.topology import Topology
from fsachain.table import compile_table

LEXICON = Lexicon.from_entries(
    [("yes", 1.0, ("y", "e", "s")), ("no", 1.0, ("n", "o")), ("oh", 1.0, ("o",)), ("em", 1.0, ("e", "m"))],
    silence="SIL",
    silence_prob=0.5,
)


def numerator_of(words: list[str], tree: ContextTree) -> Numerator:
    return build_numerator(words, LEXICON, tree)


def tree_of(kind: str) -> ContextTree:
    if kind == "biphone":
        return ContextTree.biphone(LEXICON.phones, Topology.chain())
    return ContextTree.monophone(LEXICON.phones, Topology.ctc() if kind == "ctc" else Topology.chain())


def spoken(numerator: Numerator, num_pdfs: int, num_frames: int, seed: int, gain: float = 6.0) -> np.ndarray:
    """Scores of a reading of the text: noise, and a gain along a random path of that many frames."""
    rng = np.random.default_rng(seed)
    fsa = numerator.fsa
    table = compile_table(fsa, num_pdfs)
    flat = rng.normal(size=(num_frames, num_pdfs)).astype(np.float32)
    path = best_path(TableBatch.pack([table]), 4.0 * flat[None]).arcs[0]
    flat[np.arange(num_frames), fsa.pdf[path]] += gain
    return flat


@pytest.mark.parametrize("kind", ["monophone", "biphone", "ctc"])
@given(
    words=st.lists(st.sampled_from(["yes", "no", "oh"]), min_size=5, max_size=60),
    pace=st.floats(1.5, 5.0),
    block=st.integers(1, 90),
    seed=st.integers(0, 1000),
)
def test_windows_give_the_best_path_of_the_whole(
    kind: str, words: list[str], pace: float, block: int, seed: int
) -> None:
    tree = tree_of(kind)
    numerator = numerator_of(words, tree)
    num_frames = int(pace * numerator.required_frames) + 5
    scores = spoken(numerator, tree.num_pdfs, num_frames, seed)
    whole = best_path(TableBatch.pack([compile_table(numerator.fsa, tree.num_pdfs)]), scores[None])
    aligner = LongAligner(numerator, window=60, lookahead=40)
    for first in range(0, num_frames, block):
        aligner.accept(scores[first : first + block])
    arcs, log_prob = aligner.finish()
    assert log_prob == pytest.approx(whole.score[0], abs=OBJF_PER_FRAME_FLOAT64 * num_frames)
    np.testing.assert_array_equal(numerator.fsa.pdf[arcs], whole.pdfs[0])
    assert numerator.phone_segments(arcs) == numerator.phone_segments(whole.arcs[0])
    margins = aligner.margins()
    np.testing.assert_array_equal(margins, scores[np.arange(num_frames), whole.pdfs[0]] - scores.max(axis=1))


@pytest.mark.parametrize("kind", ["monophone", "biphone", "ctc"])
def test_what_the_text_lacks_goes_to_the_filler_and_other_words_keep_their_times(kind: str) -> None:
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
    found = word_starts(numerator, scores, filler_cost=1.0)
    assert np.abs(found - expected).max() <= 3
    assert np.abs(word_starts(numerator, scores) - expected).max() > 10


def word_starts(numerator: Numerator, scores: np.ndarray, filler_cost: float = math.inf) -> np.ndarray:
    """First frames of the words."""
    aligner = LongAligner(numerator, window=150, lookahead=100, filler_cost=filler_cost)
    aligner.accept(scores)
    segments = aligner.numerator.phone_segments(aligner.finish()[0])
    return np.array(
        [next(s.first_frame for s in segments if s.word == n) for n in range(len(numerator.words))]
    )


def test_text_and_recording_that_do_not_fit_are_named() -> None:
    tree = tree_of("monophone")
    numerator = numerator_of(["yes", "no", "yes", "yes"] * 10, tree)
    aligner = LongAligner(numerator, window=30, lookahead=10, name="speech")
    aligner.accept(np.zeros((25, tree.num_pdfs), np.float32))
    with pytest.raises(
        DataError,
        match=r"'speech': no path through the 25 frames from 0 on, at word 0 of 40 \(\.\.\. yes no yes",
    ):
        aligner.finish()
    with pytest.raises(DataError, match="no path"):
        LongAligner(numerator).finish()
    aligner = LongAligner(numerator, window=30, lookahead=10, name="speech")
    with pytest.raises(DataError, match="NaN or \\+inf among frames 0"):
        aligner.accept(np.full((35, tree.num_pdfs), np.nan, np.float32))
    for shape in ((4,), (4, 1)):
        with pytest.raises(ShapeError, match=r"expected \[T, P\] with P at least \d+, got shape \[4"):
            LongAligner(numerator).accept(np.zeros(shape, np.float32))
    with pytest.raises(ConfigError, match=r"filler_cost is -1\.0; expected at least 0"):
        LongAligner(numerator, filler_cost=-1.0)
    for window, lookahead in ((10, 10), (10, 0)):
        with pytest.raises(ConfigError, match="expected 1 <= lookahead < window"):
            LongAligner(numerator, window=window, lookahead=lookahead)
