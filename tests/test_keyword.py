"""Keyword scores are differences of path sums, and the false-reject rate is the count at the threshold."""

import math

import numpy as np
import pytest
import tolerances
from enumeration import all_paths, log_sum
from hypothesis import given
from hypothesis import strategies as st

from fsachain.decode.keyword import false_reject_rate, keyword_scores
from fsachain.errors import DataError
from fsachain.graph.context import ContextTree
from fsachain.graph.lexicon import Lexicon
from fsachain.graph.patterns import build_pattern_numerator, optional
from fsachain.graph.spelling import phone_loop
from fsachain.graph.topology import Topology

LEXICON = Lexicon.from_entries([("hey", 1.0, ["A", "B"])], silence=None)
TREE = ContextTree.monophone(LEXICON.phones, Topology.chain_one_pdf())
LOOP = phone_loop([1, 2])
KEYWORD = build_pattern_numerator([optional([LOOP]), "hey", optional([LOOP])], LEXICON, TREE).fsa
FILLER = build_pattern_numerator([LOOP], LEXICON, TREE).fsa
SCORES = st.lists(st.floats(-5, 5), min_size=1, max_size=30)


def test_the_score_is_the_difference_of_the_sums_over_paths_per_frame():
    outputs = np.random.default_rng(0).normal(size=(2, 4, TREE.num_pdfs))
    found = keyword_scores(KEYWORD, FILLER, outputs, [4, 3])
    for n, length in enumerate([4, 3]):
        sums = [log_sum([s for s, _ in all_paths(fsa, outputs[n, :length])]) for fsa in (KEYWORD, FILLER)]
        assert found[n] == pytest.approx((sums[0] - sums[1]) / length, abs=tolerances.FLOAT64)


def test_the_keyword_raises_the_score():
    """Frames that say A B against frames that say B A B A backwards: B B A A has no A followed by B."""
    said = np.full((2, 4, 2), -8.0)
    for n, pdfs in enumerate([[0, 0, 1, 1], [1, 1, 0, 0]]):
        said[n, np.arange(4), pdfs] = 0.0
    with_keyword, without = keyword_scores(KEYWORD, FILLER, said, [4, 4])
    assert with_keyword > without + 0.5


def test_too_few_frames_for_the_keyword_score_minus_infinity():
    assert keyword_scores(KEYWORD, FILLER, np.zeros((1, 1, 2)), [1])[0] == -math.inf


def test_an_impossible_filler_is_refused():
    with pytest.raises(DataError, match=r"nnet_outputs\[0\]: the filler"):
        keyword_scores(KEYWORD, FILLER, np.full((1, 2, 2), -np.inf), [2])


@given(SCORES, SCORES, st.floats(0.1, 20), st.floats(0, 10))
def test_the_rate_is_that_of_the_lowest_threshold_that_keeps_to_the_alarms(positive, negative, hours, rate):
    point = false_reject_rate(positive, negative, hours, false_alarms_per_hour=rate)

    def alarms(threshold):
        return sum(score > threshold for score in negative) / hours

    assert alarms(point.threshold) == pytest.approx(point.false_alarms_per_hour)
    assert point.false_alarms_per_hour <= rate * (1 + tolerances.ROUNDING)
    assert point.false_reject_rate == sum(s <= point.threshold for s in positive) / len(positive)
    lower = [s for s in (*negative, -math.inf) if s < point.threshold]
    assert not lower or alarms(max(lower)) > rate * (1 - tolerances.ROUNDING)
