"""Numerators score every way to say a transcript as Kaldi's do, and remember phones and words."""

import math

import numpy as np
import pytest
import tolerances
from graph_paths import Scorer, log_add, sample_paths

from fsachain.denominator import DenominatorGraph
from fsachain.errors import GraphError
from fsachain.fsa import Fsa
from fsachain.graph.context import ContextTree
from fsachain.graph.denominator import build_denominator
from fsachain.graph.lexicon import Lexicon, lm_phones
from fsachain.graph.numerator import Segment, build_numerator, load_numerators, save_numerators
from fsachain.graph.phone_lm import estimate_phone_lm
from fsachain.graph.topology import Topology
from fsachain.kaldi.tree import read_context_tree

CASES = ["lm1_tiny", "lm2_tri_mono", "lm3_4gram_mono", "lm6_biphone_tied", "lm8_onesent"]
ENTRIES = [
    ("at", 1.0, ["A", "T"]),
    ("tat", 1.0, ["T", "A", "T"]),
    ("tat", 0.5, ["T", "O", "T"]),
    ("o", 1.0, ["O"]),
    *[
        ("five", prob, phones.split())
        for prob, phones in [(1, "A"), (0.7, "O"), (0.5, "T"), (0.3, "A O"), (0.2, "O A T")]
    ],
]
LEXICON = Lexicon.from_entries(ENTRIES)
MONOPHONE = ContextTree.monophone(LEXICON.phones, Topology.chain())
BIPHONE = ContextTree.biphone(LEXICON.phones, Topology.chain(), context_independent=("SIL",))
TREES = {"monophone": MONOPHONE, "biphone": BIPHONE}


def read_case(shared, case):
    folder = shared / "golden/kaldi/lm" / case
    lexicon = Lexicon.read(folder / "lexiconp.txt", phones=folder / "phones.txt")
    lines = [line.split() for line in (folder / "test_text.txt").read_text().splitlines()]
    return folder, lexicon, read_context_tree(folder / "tree", folder / "0.trans_mdl", lexicon.phones), lines


def assert_same_scores(ours: Fsa, theirs: Fsa, count=25):
    """Best path of each pdf sequence: Kaldi's graphs are determinised in the tropical semiring."""
    score, expected = Scorer(ours), Scorer(theirs)
    for graph in (ours, theirs):
        for path in sample_paths(graph, count, seed=5):
            pdfs = graph.pdf[path]
            assert score(pdfs) == pytest.approx(expected(pdfs), abs=tolerances.KALDI_SUPERVISION_PATH)


@pytest.mark.parametrize("case", CASES)
def test_paths_score_as_in_kaldis_supervision(shared, case):
    folder, lexicon, tree, lines = read_case(shared, case)
    for name, *words in lines:
        assert_same_scores(
            build_numerator(words, lexicon, tree, name=name).fsa, Fsa.read(folder / f"sup/{name}.sup.fst")
        )


@pytest.mark.parametrize("case", CASES)
def test_normalized_paths_score_as_in_kaldis_supervision(shared, case):
    folder, lexicon, tree, lines = read_case(shared, case)
    normalization = Fsa.read(folder / "normalization.fst")
    for name, *words in lines:
        numerator = build_numerator(words, lexicon, tree, normalization=normalization, name=name)
        assert_same_scores(numerator.fsa, Fsa.read(folder / f"sup/{name}.supnorm.fst"))


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
    phone_lm = estimate_phone_lm(
        lm_phones(text, LEXICON, seed=2), ngram_order=2, num_extra_lm_states=0, no_prune_ngram_order=2
    )
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


def test_a_path_with_one_wrong_pdf_is_not_a_path_of_the_denominator(covered):
    """A phone's second-frame pdf cannot stand first, and no frame can have another phone's self-loop pdf."""
    tree, denominator = covered
    normalization = denominator.normalization_fsa()
    numerator = build_numerator(["tat", "at", "five"], LEXICON, tree, normalization=normalization)
    inside = Scorer(normalization)
    rng = np.random.default_rng(4)
    changed = 0
    for path in sample_paths(numerator.fsa, 50, seed=4):
        pdfs = numerator.fsa.pdf[path].copy()
        inner = np.flatnonzero(~numerator.arc_is_start[path])
        if not inner.size:
            continue
        frame = rng.choice(inner)
        others = [
            pdf for pdf in range(tree.num_pdfs) if tree.describe(pdf).pdf_class == 1 and pdf != pdfs[frame]
        ]
        pdfs[frame] = rng.choice(others)
        changed += 1
        assert inside(pdfs) == -math.inf
    assert changed > 20


def test_numerator_arcs_grow_linearly_with_the_transcript():
    sizes = [build_numerator(["tat", "at"] * n, LEXICON, BIPHONE).fsa.num_arcs for n in (1, 2, 3, 101)]
    step = sizes[1] - sizes[0]
    assert sizes[2] - sizes[1] == step
    assert sizes[3] == sizes[0] + 100 * step


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
    steps = [("A", 0, True), ("T", 0, True), ("T", 0, False), ("T", 1, True), ("A", 1, True), ("A", 1, False)]
    steps += [
        ("T", 1, True),
        ("O", 2, True),
        ("O", 3, True),
        ("O", 3, False),
        ("SIL", -1, True),
        ("SIL", -1, False),
    ]
    a, t, o, sil = (LEXICON.phone_id(name) for name in ("A", "T", "O", "SIL"))
    assert numerator.phone_segments(path_of(numerator, steps)) == [
        Segment(a, 0, 0, 1),
        Segment(t, 0, 1, 2),
        Segment(t, 1, 3, 1),
        Segment(a, 1, 4, 2),
        Segment(t, 1, 6, 1),
        Segment(o, 2, 7, 1),
        Segment(o, 3, 8, 2),
        Segment(sil, -1, 10, 2),
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


def test_arcs_of_a_normalized_numerator_keep_phone_and_word(covered):
    tree, denominator = covered
    words = ["tat", "at", "five"]
    numerator = build_numerator(words, LEXICON, tree, normalization=denominator.normalization_fsa())
    for arc in range(numerator.fsa.num_arcs):
        assert int(numerator.arc_phone[arc]) in tree.describe(int(numerator.fsa.pdf[arc])).phones
    for path in sample_paths(numerator.fsa, 20, seed=6):
        spoken = [word for word in dict.fromkeys(numerator.arc_word[path].tolist()) if word >= 0]
        assert spoken == [0, 1, 2]


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


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("names", ["u1", "u1"], "names holds 'u1' twice"),
        ("names", ["u1", "x" * 20_000], "strings of up to 20000 letters"),
        ("num_words", [1, 1], "num_words do not share out the 3 entries"),
        ("num_words", np.array([1, 2], np.int8), "expected a column of int64"),
        ("num_arcs", [-1, 9], "num_arcs do not share out"),
        ("arc_word", np.zeros(1, np.int32), "arc_word has 1 rows"),
        ("start", [0, 99], "start = 99: expected a state"),
    ],
)
def test_arrays_that_do_not_fit_each_other_are_refused_when_they_are_read(name, value, message, tmp_path):
    path = tmp_path / "numerators.npz"
    made = {
        name: build_numerator(words, LEXICON, BIPHONE)
        for name, words in (("u1", ["at"]), ("u2", ["o", "at"]))
    }
    save_numerators(path, made)
    with np.load(path) as arrays:
        np.savez(path, **{**arrays, name: np.array(value)})
    with pytest.raises(GraphError, match=message):
        load_numerators(path)


def assert_same(one, other):
    assert one.words == other.words
    assert (one.fsa.num_states, one.fsa.start) == (other.fsa.num_states, other.fsa.start)
    for name in ("src", "dst", "pdf", "log_prob", "final_log_prob"):
        np.testing.assert_array_equal(getattr(one.fsa, name), getattr(other.fsa, name))
    for name in ("arc_phone", "arc_word", "arc_is_start"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_a_file_that_holds_no_numerators_is_refused(tmp_path):
    path = tmp_path / "other.npz"
    np.savez(path, format=np.array("other"))
    with pytest.raises(GraphError, match="format 'other'"):
        load_numerators(path)
    path.write_bytes(b"nothing")
    with pytest.raises(GraphError, match="not a numerator archive"):
        load_numerators(path)


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
    with pytest.raises(GraphError, match="utterance 'u7': the normalization accepts no path"):
        build_numerator(["o"], LEXICON, MONOPHONE, normalization=normalization, name="u7")


def test_a_tree_over_other_phones_is_refused():
    with pytest.raises(GraphError, match="lexicon has 4 phones, the tree 3"):
        build_numerator(["at"], LEXICON, ContextTree.monophone(("SIL", "A", "T"), Topology.chain()))
