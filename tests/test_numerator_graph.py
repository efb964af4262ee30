"""Numerators score every way to say a transcript as Kaldi's do, and remember phones and words."""

import itertools
import math

import numpy as np
import pytest
import tolerances
from graph_paths import Scorer, log_add, sample_paths

from fsachain.denominator import DenominatorGraph
from fsachain.errors import GraphError
from fsachain.graph.context import ContextTree
from fsachain.graph.denominator import build_denominator, free_denominator
from fsachain.graph.lexicon import Lexicon, lm_phones
from fsachain.graph.numerator import Segment, build_numerator, load_numerators, save_numerators
from fsachain.graph.phone_lm import estimate_phone_lm
from fsachain.graph.topology import Topology

ENTRIES = [
    ("at", 1.0, ["A", "T"]),
    ("tat", 1.0, ["T", "A", "T"]),
    ("tat", 0.5, ["T", "O", "T"]),
    ("o", 1.0, ["O"]),
    *[("five", prob, phones.split()) for prob, phones in [(1, "A"), (0.7, "O"), (0.5, "T"), (0.3, "A O"), (0.2, "O A T")]],
]  # fmt: skip
LEXICON = Lexicon.from_entries(ENTRIES)
MONOPHONE = ContextTree.monophone(LEXICON.phones, Topology.chain())
BIPHONE = ContextTree.biphone(LEXICON.phones, Topology.chain(), context_independent=("SIL",))
TREES = {"monophone": MONOPHONE, "biphone": BIPHONE}


def test_silence_and_pronunciation_costs_are_kept_and_the_topologys_left_out():
    numerator = build_numerator(["tat"], LEXICON, MONOPHONE)
    score = Scorer(numerator.fsa)
    sil, t, o = (LEXICON.phone_id(name) for name in ("SIL", "T", "O"))
    first, more = MONOPHONE.pdf(t, 0), MONOPHONE.pdf(t, 1)
    no_silence = math.log(0.5)
    plain = [first, more, more, MONOPHONE.pdf(o, 0), first]
    assert score(plain) == pytest.approx(2 * no_silence + math.log(0.5), abs=tolerances.ENUMERATION)
    assert score([MONOPHONE.pdf(sil, 0), *plain]) == score(plain)
    assert score(plain[:-1]) == -math.inf


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_five_pronunciations_are_the_log_sum_of_five_single_numerators(tree):
    """So that the training criterion sums over pronunciations instead of choosing one."""
    together = build_numerator(["at", "five", "o"], LEXICON, tree).fsa
    singles = []
    for entry in [entry for entry in ENTRIES if entry[0] == "five"]:
        others = [other for other in ENTRIES if other[0] != "five"]
        lexicon = Lexicon.from_entries([*others, entry], phones=LEXICON.phones)
        singles.append(Scorer(build_numerator(["at", "five", "o"], lexicon, tree).fsa, log_add))
    score = Scorer(together, log_add)
    for path in sample_paths(together, 40, seed=1):
        pdfs = together.pdf[path]
        expected = -math.inf
        for single in singles:
            expected = log_add(expected, single(pdfs))
        assert score(pdfs) == pytest.approx(expected, abs=tolerances.ENUMERATION)


@pytest.fixture(scope="module", params=TREES)
def covered(request):
    """A denominator that has seen every order of phones, and its exact normalization."""
    tree = TREES[request.param]
    text = ["at tat o five", "five o tat at", "o o five five tat at at", "tat tat five at o"] * 10
    phones = lm_phones([sentence.split() for sentence in text], LEXICON, seed=2)
    phone_lm = estimate_phone_lm(phones, ngram_order=2)
    return tree, DenominatorGraph(build_denominator(phone_lm, tree), tree.num_pdfs)


def test_every_path_of_a_numerator_is_a_path_of_the_denominator(covered):
    tree, denominator = covered
    normalization = denominator.normalization_fsa()
    numerator = build_numerator(["tat", "at", "five"], LEXICON, tree, normalization=normalization).fsa
    inside = Scorer(normalization, log_add)
    plain = Scorer(build_numerator(["tat", "at", "five"], LEXICON, tree).fsa, log_add)
    score = Scorer(numerator, log_add)
    for path in sample_paths(numerator, 50, seed=3):
        pdfs = numerator.pdf[path]
        assert inside(pdfs) > -math.inf
        assert score(pdfs) == pytest.approx(plain(pdfs) + inside(pdfs), abs=tolerances.ENUMERATION)


def path_of(numerator, steps):
    """Arc numbers of the path that spends (phone name, word position, is start) frame by frame."""
    state, path = numerator.fsa.start, []
    for phone, word, is_start in steps:
        (arc,) = [
            arc
            for arc in np.flatnonzero(numerator.fsa.src == state)
            if (numerator.arc_phone[arc], numerator.arc_word[arc], numerator.arc_is_start[arc])
            == (LEXICON.phone_id(phone), word, is_start)
        ]
        path.append(arc)
        state = numerator.fsa.dst[arc]
    return path


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_a_phone_repeated_across_a_word_boundary_is_kept_apart(tree):
    lexicon = Lexicon.from_entries(
        [("at", 1.0, ["A", "T"]), ("o", 1.0, ["O"]), ("tat", 1.0, ["T", "A", "T"])], phones=LEXICON.phones
    )
    numerator = build_numerator(["at", "tat", "o", "o"], lexicon, tree)
    said = [
        ("A", 0, 1),
        ("T", 0, 2),
        ("T", 1, 1),
        ("A", 1, 2),
        ("T", 1, 1),
        ("O", 2, 1),
        ("O", 3, 2),
        ("SIL", -1, 2),
    ]
    steps = [(phone, word, frame == 0) for phone, word, count in said for frame in range(count)]
    begin = itertools.accumulate((count for *_, count in said), initial=0)
    assert numerator.phone_segments(path_of(numerator, steps)) == [
        Segment(LEXICON.phone_id(phone), word, first, count)
        for (phone, word, count), first in zip(said, begin, strict=False)
    ]
    assert numerator.phone_segments([]) == []


def test_ctc_blanks_are_segments_of_their_own():
    lexicon = Lexicon.from_entries([("o", 1.0, ["O"])], phones=LEXICON.phones[1:], silence=None)
    tree = ContextTree.monophone(lexicon.phones, Topology.ctc())
    numerator = build_numerator(["o", "o"], lexicon, tree)
    assert numerator.required_frames == 3
    (path,) = [p for p in sample_paths(numerator.fsa, 200, seed=0) if len(p) == 3][:1]
    segments = [(s.phone, s.word, s.num_frames) for s in numerator.phone_segments(path)]
    assert segments == [(lexicon.phone_id("O"), 0, 1), (0, -1, 1), (lexicon.phone_id("O"), 1, 1)]


def test_many_numerators_survive_one_file(tmp_path):
    numerators = {
        "u1": build_numerator(["at"], LEXICON, BIPHONE),
        "ü 2": build_numerator(["tat", "o"], LEXICON, BIPHONE),
    }
    save_numerators(tmp_path / "numerators.npz", numerators)
    loaded = load_numerators(tmp_path / "numerators.npz")
    assert list(loaded) == list(numerators) and "u3" not in loaded
    for name, numerator in numerators.items():
        assert_same(loaded[name], numerator)
    save_numerators(tmp_path / "none.npz", {})
    assert load_numerators(tmp_path / "none.npz") == {}


def assert_same(one, other):
    assert one.words == other.words
    assert (one.fsa.num_states, one.fsa.start) == (other.fsa.num_states, other.fsa.start)
    for name in ("src", "dst", "pdf", "log_prob", "final_log_prob"):
        np.testing.assert_array_equal(getattr(one.fsa, name), getattr(other.fsa, name))
    for name in ("arc_phone", "arc_word", "arc_is_start"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "utterance 'u7': the transcript is empty"),
        (["at", "coffee"], "utterance 'u7': word 'coffee'"),
        ("at o", "expected a sequence of words"),
    ],
)
def test_a_transcript_without_a_graph_is_refused_by_name(words, message):
    with pytest.raises(GraphError, match=message):
        build_numerator(words, LEXICON, MONOPHONE, name="u7")


def test_a_normalization_that_is_no_acceptor_is_named():
    with pytest.raises(
        GraphError, match=r"a DenominatorGraph; expected an Fsa, such as denominator\.normalization"
    ):
        build_numerator(["at"], LEXICON, MONOPHONE, normalization=DenominatorGraph(free_denominator(1), 1))


def test_a_transcript_that_the_denominator_never_saw_is_refused_by_name():
    phone_lm = estimate_phone_lm(
        [[LEXICON.phone_id("A"), LEXICON.phone_id("T")] * 3],
        ngram_order=2,
        num_extra_lm_states=0,
        no_prune_ngram_order=2,
    )
    normalization = DenominatorGraph(
        build_denominator(phone_lm, MONOPHONE), MONOPHONE.num_pdfs
    ).normalization_fsa()
    with pytest.raises(
        GraphError,
        match=r"'u7': the normalization accepts no path.*floor=.*phone_lm.ngram_order, .*more text",
    ):
        build_numerator(["o"], LEXICON, MONOPHONE, normalization=normalization, name="u7")
