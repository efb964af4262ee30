"""Numerators of alternatives, gaps, loops and graphs of words accept what is written down here word by word."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import tolerances
from enumeration import all_paths, log_sum
from graph_paths import Scorer, join, log_add, pdf_sequences, sample_paths
from hypothesis import example, given
from hypothesis import strategies as st
from refusals import refuses

from fsachain.asr.decode.keyword import false_reject_rate, keyword_scores
from fsachain.asr.kaldi.archive import read_value
from fsachain.denominator import DenominatorGraph
from fsachain.errors import ConfigError, DataError, GraphError
from fsachain.fsa import Fsa, input_fsa
from fsachain.graph import transducer as epsilons
from fsachain.graph.context import ContextTree
from fsachain.graph.denominator import build_denominator
from fsachain.graph.lexicon import Lexicon
from fsachain.graph.numerator import build_numerator
from fsachain.graph.patterns import (
    OneOf,
    alternatives_as_text,
    build_pattern_numerator,
    numerator_of_words,
    optional,
    parse_pattern,
    pattern_graph,
    phone_model_of_words,
)
from fsachain.graph.phone_lm import estimate_phone_lm
from fsachain.graph.spelling import phone_loop, spell
from fsachain.graph.topology import Topology
from fsachain.graph.transducer import product, remove_epsilons
from fsachain.openfst import Transducer, read_fst

ENTRIES = [("a", 1.0, ["A"]), ("ab", 0.6, ["A", "B"]), ("ab", 0.4, ["B"]), ("b", 1.0, ["B"])]
LEXICON = Lexicon.from_entries(ENTRIES, silence_prob=0.3)
SILENT = Lexicon.from_entries(ENTRIES, silence=None)
WITHOUT_SILENCE = dataclasses.replace(LEXICON, silence=None)  # the same ids of phones
TREE = ContextTree.monophone(LEXICON.phones, Topology.chain())
SIL, A, B = (LEXICON.phone_id(name) for name in ("SIL", "A", "B"))
LOOP = phone_loop([A, B], stop_prob=0.25)
LONGEST = 4


def strings_of(fsa):
    """Phone strings of up to `LONGEST` phones of an acceptor over phones, with their probabilities."""
    score = Scorer(fsa, log_add)
    found = {}
    for length in range(LONGEST + 1):
        for string in itertools.product(range(len(LEXICON.phones)), repeat=length):
            if score(string) > -math.inf:
                found[tuple(label + 1 for label in string)] = math.exp(score(string))
    return found


def choices(pattern):
    """(probability, flat items) of each way to take the alternatives of a pattern."""
    if not pattern:
        return [(1.0, ())]
    item, rest = pattern[0], choices(pattern[1:])
    if isinstance(item, OneOf):
        heads = [(prob * p, items) for prob, inner in item.alternatives for p, items in choices(inner)]
    else:
        heads = [(1.0, (item,))]
    return [(p * q, head + tail) for p, head in heads for q, tail in rest]


def language(pattern, lexicon=LEXICON):
    """Phone strings of a pattern with their probabilities, silence at all places, written down without any graph."""
    place = {(): 1.0}
    if lexicon.silence is not None:
        place = {(): 1 - lexicon.silence_prob, (lexicon.silence_phone,): lexicon.silence_prob}
    total = {}
    for prob, items in choices(pattern):
        strings = dict(place)
        for item in items:
            if isinstance(item, Fsa):
                said = strings_of(item)
            else:
                said = dict(lexicon.pronunciations_of(item))
            strings = join(join(strings, said, LONGEST), place, LONGEST)
        for string, p in strings.items():
            total[string] = total.get(string, 0.0) + prob * p
    return total


PATTERNS = {
    "words": ["a", "ab"],
    "transcripts with weights": [OneOf([(0.7, ["ab"]), (0.3, ["a", "b"])])],
    "a gap inside": ["a", optional([LOOP], 0.4), "b"],
    "partial: anything before and after": [optional([LOOP]), "ab", optional([LOOP])],
    "a word nobody knows": ["a", LOOP],
    "nested": [OneOf([(0.5, []), (0.5, ["a", OneOf([(0.2, ["b"]), (0.8, [])])])]), "ab"],
    "two empty ways": [optional(["a"]), optional(["b"]), "a"],
}


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_phone_strings_and_their_weights_are_those_written_down(pattern):
    graph, parts = pattern_graph(pattern, LEXICON)
    for lexicon in (LEXICON, WITHOUT_SILENCE):
        phones, _ = spell(graph, lexicon, parts)
        assert (phones.ilabel > 0).all()
        found, expected = strings_of(input_fsa(phones)), language(pattern, lexicon)
        assert found == pytest.approx(expected, abs=tolerances.ENUMERATION)


def test_a_plain_pattern_is_the_transcripts_numerator():
    words = ["ab", "a", "b"]
    ours, theirs = build_pattern_numerator(words, LEXICON, TREE), build_numerator(words, LEXICON, TREE)
    assert ours.words == theirs.words
    score, expected = Scorer(ours.fsa, log_add), Scorer(theirs.fsa, log_add)
    for fsa in (ours.fsa, theirs.fsa):
        for path in sample_paths(fsa, 40, seed=1):
            assert score(fsa.pdf[path]) == pytest.approx(expected(fsa.pdf[path]), abs=tolerances.ENUMERATION)


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_with_the_normalization_no_sequence_outweighs_the_denominator(pattern):
    """So that objf is at most 0."""
    model = estimate_phone_lm([[SIL, A, B, A, SIL], [A, A, B, B, SIL, B], [B, A], [SIL, B]], 2, 0, 2)
    normalization = DenominatorGraph(build_denominator(model, TREE), TREE.num_pdfs).normalization_fsa()
    fsa = build_pattern_numerator(pattern, LEXICON, TREE, normalization=normalization).fsa
    score, inside = Scorer(fsa, log_add), Scorer(normalization, log_add)
    seen = 0
    for pdfs in pdf_sequences(TREE.num_pdfs, 4):
        assert score(pdfs) <= inside(pdfs) + tolerances.ENUMERATION
        seen += score(pdfs) > -math.inf
    assert seen


@pytest.mark.parametrize("name", ["words.fst", "words.txt"])
def test_a_graph_of_words_from_openfst_or_text_is_a_numerator(name, tmp_path):
    """`a` or `ab`, then any number of `b`: a cycle too."""
    costs = {1: 0.2, 2: 1.5, 3: 0.7}
    text = f"0 1 1 1 {costs[1]}\n0 1 2 2 {costs[2]}\n1 1 3 3 {costs[3]}\n1 0.25\n"
    path = tmp_path / name
    path.write_text(text)
    if name.endswith(".fst"):
        Fsa.from_text(text).write(path)
    words = read_value(path, read_fst)
    numerator = numerator_of_words(words, LEXICON, TREE)
    assert numerator.words == ("a", "ab", "b")
    score = Scorer(numerator.fsa, log_add)
    singles = []
    for first, repeats in itertools.product((1, 2), range(4)):
        weight = -costs[first] - repeats * costs[3] - 0.25
        said = [LEXICON.words[first - 1], *["b"] * repeats]
        singles.append((weight, Scorer(build_numerator(said, LEXICON, TREE).fsa, log_add)))
    for path in sample_paths(numerator.fsa, 60, seed=4, max_frames=4):
        pdfs = numerator.fsa.pdf[path]
        expected = -math.inf
        for weight, single in singles:
            expected = log_add(expected, weight + single(pdfs))
        assert score(pdfs) == pytest.approx(expected, abs=tolerances.FEW_FLOAT32_TERMS)


def test_a_word_model_becomes_a_phone_model_of_the_same_weights():
    """Every phone string has the sum over the word sequences, silences and pronunciations that give it."""
    words = estimate_phone_lm([[1, 2], [2, 3], [3]], 2, 0, 2)
    found = strings_of(phone_model_of_words(words, LEXICON))
    expected = {}
    word_score = Scorer(words, log_add)
    for length in range(1, LONGEST + 1):
        for ids in itertools.product(range(3), repeat=length):
            if word_score(ids) == -math.inf:
                continue
            for string, prob in language([LEXICON.words[i] for i in ids]).items():
                expected[string] = expected.get(string, 0.0) + math.exp(word_score(ids)) * prob
    assert found == pytest.approx(expected, abs=tolerances.ENUMERATION)


@st.composite
def graphs_with_epsilons(draw):
    """Epsilon arcs lead to states later in some order, others anywhere."""
    size = draw(st.integers(1, 5))
    states, weight = st.integers(0, size - 1), st.sampled_from([0.0, -0.5, -2.0, -math.inf])
    arcs = draw(st.lists(st.tuples(states, states, st.integers(1, 2), weight), max_size=6))
    pairs = draw(st.lists(st.tuples(states, states, weight), max_size=8))
    order = draw(st.permutations(range(size)))
    arcs += [(order[min(a, b)], order[max(a, b)], 0, w) for a, b, w in pairs if a != b]
    finals = draw(st.lists(weight, min_size=size, max_size=size))
    columns = list(zip(*arcs, strict=True)) or [()] * 4
    src, dst, label = (np.array(column, dtype=np.int64) for column in columns[:3])
    weights = np.array(columns[3], dtype=np.float64)
    return Transducer(size, draw(states), src, dst, label, label, weights, np.array(finals))


def total_of(graph, labels, state, done=0):
    """Log-sum over all paths from `state` that read labels[done:]; epsilons taken one by one."""
    total = graph.final_log_prob[state] if done == len(labels) else -math.inf
    for arc in np.flatnonzero((graph.src == state) & (graph.log_prob > -math.inf)):
        label = graph.ilabel[arc]
        if label == 0 or (done < len(labels) and label == labels[done]):
            rest = total_of(graph, labels, int(graph.dst[arc]), done + (label > 0))
            total = np.logaddexp(total, graph.log_prob[arc] + rest)
    return total


# Two ways to state 1 by epsilons, one through a state of a higher number.
DIAMOND = Transducer.of_arcs(
    [(src, dst, 0, 0, -0.5) for src, dst in ((0, 1), (0, 2), (2, 1))], np.array([-math.inf, 0.0, -math.inf])
)


@example(DIAMOND)
@given(graphs_with_epsilons())
def test_removing_epsilons_changes_no_score(graph):
    without, tags = remove_epsilons(graph, range(len(graph.src)))
    assert (without.ilabel > 0).all()
    np.testing.assert_array_equal(without.ilabel, graph.ilabel[tags])
    score = Scorer(input_fsa(without), log_add)
    for length in range(4):
        for labels in itertools.product((1, 2), repeat=length):
            expected = total_of(graph, labels, graph.start)
            assert score([label - 1 for label in labels]) == pytest.approx(
                expected, abs=tolerances.ENUMERATION
            )


def test_a_product_that_accepts_nothing_has_no_arcs():
    loop, endless = (Fsa(1, [0], [0], [0], [-0.5], [final]) for final in (0.0, -math.inf))
    assert product(loop, loop)[0].num_arcs == 1 and product(loop, endless)[0].num_arcs == 0


def test_a_cycle_of_epsilons_is_refused():
    none = np.array([0, 0])
    graph = Transducer(2, 0, np.array([0, 1]), np.array([1, 0]), none, none, np.zeros(2), np.zeros(2))
    with pytest.raises(GraphError, match="cycle of epsilon arcs"):
        remove_epsilons(graph, [0, 1])


def test_epsilons_that_would_multiply_the_arcs_are_refused(monkeypatch):
    """A small file could ask for any memory."""
    monkeypatch.setattr(epsilons, "FREE_STEPS", 1_000)
    size = 200
    here = np.arange(size - 1)
    src, dst = np.concatenate([here, here]), np.concatenate([here + 1, here + 1])
    labels = np.repeat([0, 1], size - 1)
    final = np.full(size, -math.inf)
    final[-1] = 0.0
    chain = Transducer(size, 0, src, dst, labels, labels, np.zeros(len(src)), final)
    with pytest.raises(
        GraphError, match="a graph of 200 states and 398 arcs takes more than 6980 steps and arcs"
    ):
        epsilons.remove_epsilons(chain, range(len(src)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: build_pattern_numerator("a b", LEXICON, TREE), "expected a sequence of items"),
        (lambda: build_pattern_numerator(["x"], LEXICON, TREE, name="u1"), "utterance 'u1': word 'x'"),
        (lambda: build_pattern_numerator([3], LEXICON, TREE), "item 3: expected a word"),
        (lambda: build_pattern_numerator([], LEXICON, TREE, name="u1"), None),
        (lambda: build_pattern_numerator([phone_loop([9])], LEXICON, TREE, name="u1"), "'u1': parts.0. has phone 9"),
        (lambda: OneOf([]), "no alternatives"),
        (lambda: OneOf([(0.0, ["a"])]), "probability 0.0"),
        (lambda: phone_loop([A, A]), "distinct phone ids"),
        (lambda: build_pattern_numerator(["a"], SILENT, TREE), "expected the same phones"),
    ],
)  # fmt: skip
def test_wrong_patterns_are_refused_by_name(make, message):
    if message is None:  # only silence is left, which is a phone
        assert make().words == ()
        return
    with pytest.raises(GraphError, match=message):
        make()


# Patterns written as text are the patterns they say, and what is no pattern is refused with its place.


SPELL = phone_loop([1])
PARTS = {"<loop>": LOOP, "<spell>": SPELL}


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("", []),
        ("a b a", ["a", "b", "a"]),
        ("ask <loop> now", ["ask", LOOP, "now"]),
        ("* hey robin *", [optional([LOOP]), "hey", "robin", optional([LOOP])]),
        ("a [ b c ] d", ["a", optional(["b", "c"]), "d"]),
        ("( 0.7 a b | 0.3 c ) d", [OneOf([(0.7, ["a", "b"]), (0.3, ["c"])]), "d"]),
        ("( 0.5 <spell> | 5e-1 )", [OneOf([(0.5, [SPELL]), (0.5, [])])]),
        ("( 1 a [ ( 0.2 b | 0.8 ) ] )", [OneOf([(1.0, ["a", optional([OneOf([(0.2, ["b"]), (0.8, [])])])])])]),
        (r"\* \( \<loop> \x 0.7", ["*", "(", "<loop>", r"\x", "0.7"]),
    ],
)  # fmt: skip
def test_a_line_is_the_pattern_that_it_says(text, pattern):
    assert parse_pattern(text, PARTS) == pattern
    assert parse_pattern(text.split(), PARTS) == pattern


def test_alternatives_as_text_are_read_as_they_were():
    alternatives = [(0.7, ["a", "*", "<loop>"]), (0.3, ["|", "b"])]
    text = alternatives_as_text(alternatives)
    assert parse_pattern(text, PARTS) == [OneOf(alternatives)]
    assert parse_pattern(alternatives_as_text(alternatives[:1]), PARTS) == ["a", "*", "<loop>"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a )", r"no bracket is open at '\)' \(field 2 of 2\)"),
        ("a | b", r"no bracket is open at '\|'"),
        ("( 0.5 a", r"expected \| or \) at the end \(field 4 of 3\)"),
        ("[ a", "expected ] at the end"),
        ("[ a | b ]", r"expected ] at '\|'"),
        ("( 0.5 a ]", r"expected \| or \) at '\]'"),
        ("( a | b )", "expected the probability of an alternative at 'a'"),
        ("(", "expected the probability of an alternative at the end"),
        ("( -1 a )", "probability -1"),
        ("( nan a )", "probability nan"),
    ],
)
def test_what_is_no_pattern_is_refused_with_its_place(text, message):
    with pytest.raises(GraphError, match=message):
        parse_pattern(text, PARTS)


def test_a_gap_needs_a_loop():
    with pytest.raises(GraphError, match=r"a gap needs the part <loop> at '\*' \(field 2 of 2\)"):
        parse_pattern("a *", {})


items = st.deferred(
    lambda: st.one_of(
        st.sampled_from(["a", "b", LOOP]),
        st.lists(items, max_size=3).map(optional),
        st.lists(
            st.tuples(st.sampled_from([0.25, 0.5, 1.0]), st.lists(items, max_size=3)), min_size=1, max_size=3
        ).map(OneOf),
    )
)


def written(pattern):
    fields = []
    for item in pattern:
        if isinstance(item, OneOf):
            ways = [" ".join([repr(prob), *written(alternative)]) for prob, alternative in item.alternatives]
            fields += ["(", *" | ".join(ways).split(), ")"]
        else:
            fields.append("<loop>" if item is LOOP else item)
    return fields


@given(st.lists(items, max_size=5))
def test_every_pattern_can_be_written_down(pattern):
    assert parse_pattern(" ".join(written(pattern)), PARTS) == pattern


@given(st.lists(st.sampled_from(["(", ")", "[", "]", "|", "*", "0.5", "a", "<loop>"]), max_size=12))
def test_any_line_is_a_pattern_or_a_graph_error(fields):
    try:
        assert isinstance(parse_pattern(fields, PARTS), list)
    except GraphError as error:
        assert "field" in str(error) or "OneOf" in str(error)


# Keyword scores are differences of path sums, and the false-reject rate is the count at the threshold.


HEY = Lexicon.from_entries([("hey", 1.0, ["A", "B"])], silence=None)
HEY_TREE = ContextTree.monophone(HEY.phones, Topology.chain_one_pdf())
ANYTHING = phone_loop([1, 2])
KEYWORD = build_pattern_numerator([optional([ANYTHING]), "hey", optional([ANYTHING])], HEY, HEY_TREE).fsa
FILLER = build_pattern_numerator([ANYTHING], HEY, HEY_TREE).fsa
SCORES = st.lists(st.floats(-5, 5), min_size=1, max_size=30)


def test_the_score_is_the_difference_of_the_sums_over_paths_per_frame():
    outputs = np.random.default_rng(0).normal(size=(2, 4, HEY_TREE.num_pdfs))
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


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (([1.0], [0.0], 0.0, 1.0), "hours_without = 0.0"),
        (([1.0], [0.0], 1.0, -1.0), "false_alarms_per_hour = -1.0"),
        (([], [0.0], 1.0, 1.0), "with_keyword has 0 scores"),
        (([math.nan], [0.0], 1.0, 1.0), "no NaN anywhere"),
        (([1.0], [math.nan], 1.0, 1.0), "no NaN anywhere"),
    ],
)
def test_what_has_no_operating_point_is_refused(given, message):
    *scores, rate = given
    refuses(ConfigError, message, false_reject_rate, *scores, false_alarms_per_hour=rate)


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
