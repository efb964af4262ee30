"""The tree numbers pdfs as Kaldi does, and maps (phone, left, class) to a pdf and back."""

import itertools
from collections import Counter

import numpy as np
import pytest
import tolerances
from context_trees import full_tree, split_triphone
from refusals import refuses

from fsachain.errors import ConfigError, GraphError, ShapeError
from fsachain.graph.context import BiphoneCounts, ContextTree, DecisionTree, Leaf, Split, Table
from fsachain.graph.supervision import AlignedPhone
from fsachain.graph.tied_tree import BiphoneStatistics, build_tied_tree
from fsachain.graph.topology import Topology
from tools.fuzz.reader import within

PHONES = ("SIL", "A", "B", "C")
CHAIN = Topology.chain()


def all_triples(tree):
    lefts = range(tree.num_phones + 1)
    phones = range(1, tree.num_phones + 1)
    return [(p, left, c) for p in phones for left in lefts for c in range(tree.topology.num_pdf_classes)]


TREES = [
    ContextTree.monophone(PHONES, CHAIN),
    ContextTree.monophone(PHONES, Topology.left_to_right(3), shared=[("C", "A")]),
    ContextTree.biphone(PHONES, CHAIN),
    ContextTree.biphone(PHONES, Topology.chain_one_pdf(), context_independent=("SIL",)),
    ContextTree.biphone(PHONES, CHAIN, context_independent=("SIL",), shared=[("B", "C")]),
    ContextTree.monophone(PHONES, Topology.ctc()),
]


@pytest.mark.parametrize("tree", TREES)
def test_a_description_names_exactly_the_contexts_that_share_the_pdf(tree):
    for pdf in range(tree.num_pdfs):
        context = tree.describe(pdf)
        lefts = context.lefts or range(tree.num_phones + 1)
        described = {(p, left, context.pdf_class) for p in context.phones for left in lefts}
        assert described or pdf == tree.blank_pdf
        assert described == {(p, left, c) for p, left, c in all_triples(tree) if tree.pdf(p, c, left) == pdf}


def test_pdfs_are_numbered_by_phone_then_left_then_class():
    """Silence without context has one set of them, phones of one set share theirs as left context too; a blank is pdf 0."""
    tree = TREES[2]
    assert [tree.pdf(p, c, left) for p in (1, 2) for left in range(5) for c in (0, 1)] == list(range(20))
    silence = ContextTree.biphone(PHONES, CHAIN, context_independent=("SIL",))
    assert {silence.pdf(1, 0, left) for left in range(5)} == {0}
    shared = ContextTree.biphone(PHONES, CHAIN, shared=[("C", "B")])
    assert shared.hmm_pdfs(3, 1) == shared.hmm_pdfs(4, 1) and shared.hmm_pdfs(2, 3) == shared.hmm_pdfs(2, 4)
    assert [made.num_pdfs for made in (tree, silence, shared)] == [4 * 5 * 2, 2 + 3 * 5 * 2, 3 * 4 * 2]
    blank = TREES[5]
    assert blank.blank_pdf == 0 and blank.describe(0) == ((), (), 0)
    assert [blank.pdf(phone, 0) for phone in range(1, 5)] == [1, 2, 3, 4]


SEQUENCES = [[1, 2, 3, 2, 3, 1], [2, 3, 4, 1], [1, 2, 3]]


def test_counts_are_of_pairs_and_of_phones():
    counts = BiphoneCounts.of(SEQUENCES)
    assert counts.monophones == {1: 4, 2: 4, 3: 4, 4: 1}
    pairs = Counter(pair for phones in SEQUENCES for pair in itertools.pairwise([0, *phones]))
    assert counts.biphones == pairs and pairs[2, 3] == 4


def test_rare_pairs_share_their_phones_pdfs_and_rare_phones_share_one_set():
    """SIL is context independent and comes first; A after C is frequent; B is a phone of enough frames; C is rare."""
    counts = BiphoneCounts({(4, 2): 5, (2, 3): 1}, {1: 9, 2: 6, 3: 3, 4: 2})
    tree = ContextTree.tied_biphone(
        PHONES, CHAIN, counts, min_biphone_count=5, min_monophone_count=2, context_independent=("SIL",)
    )
    pdfs = [[tree.pdf(phone, 0, left) for left in range(5)] for phone in range(1, 5)]
    assert pdfs == [[0] * 5, [2, 4, 4, 4, 6], [8, 10, 10, 10, 10], [12, 14, 14, 14, 14]]
    assert tree.num_pdfs == 16


def test_rare_phones_of_several_sets_share_their_pdfs():
    """SIL is seen as often as a phone may be that is rare."""
    counts = BiphoneCounts({}, {1: 20})
    tree = ContextTree.tied_biphone(
        PHONES, Topology.chain_one_pdf(), counts, min_biphone_count=1, min_monophone_count=20
    )
    assert [tree.pdf(phone, 0, 0) for phone in range(1, 5)] == [0, 2, 3, 4]
    assert {tree.pdf(phone, 0, left) for phone in range(1, 5) for left in range(1, 5)} == {1}
    context = tree.describe(1)
    assert (context.phones, context.lefts) == ((1, 2, 3, 4), (1, 2, 3, 4))


WIDE = {
    "tied": ContextTree.tied_biphone(PHONES, CHAIN, BiphoneCounts.of(SEQUENCES), min_biphone_count=2),
    "triphone": full_tree(PHONES, CHAIN, 3, 1),
    "split triphone": split_triphone(PHONES, Topology.chain_one_pdf()),
}


@pytest.mark.parametrize("tree", [*TREES, *WIDE.values()])
def test_trees_come_back_from_their_file(tree, tmp_path):
    tree.save(tmp_path / "tree.npz")
    again = ContextTree.load(tmp_path / "tree.npz")
    assert again.equals(tree) and again.num_pdfs == tree.num_pdfs
    assert again.topology == tree.topology and again.phones == tree.phones
    assert again.equals(TREES[2]) == (tree is TREES[2])


@pytest.mark.parametrize("tree", WIDE.values(), ids=WIDE)
def test_every_window_finds_itself_in_the_description_of_its_pdf(tree):
    values = [range(1 if place == tree.central_position else 0, 5) for place in range(tree.context_width)]
    for window in itertools.product(*values):
        for pdf_class in range(tree.topology.num_pdf_classes):
            context = tree.describe(tree.pdf_in(window, pdf_class))
            assert window[tree.central_position] in context.phones
            assert not context.lefts or window[tree.central_position - 1] in context.lefts


ALONE = ((1,), (2,), (3,), (4,))
EMPTY = BiphoneStatistics(2, CHAIN, 3)
FRAMES = np.zeros((4, 3))
ASKS_FOR_2 = DecisionTree((Table(2, (1,)), Leaf(0)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ContextTree.monophone((), CHAIN), "0 names"),
        (lambda: ContextTree.monophone(("A", "A"), CHAIN), "2 names, 1 distinct"),
        (lambda: ContextTree.monophone(PHONES, CHAIN, shared=[("A", "X")]), "shared names the phone 'X'"),
        (lambda: ContextTree.monophone(PHONES, CHAIN, shared=[("A", "B"), ("B",)]), r"\[1, 2, 3, 3, 4\]"),
        (lambda: ContextTree.biphone(PHONES, CHAIN, context_independent=("X",)), "context_independent"),
        (lambda: ContextTree.biphone(PHONES, CHAIN, context_independent="A", shared=["AB"]), "only partly context"),
        (lambda: ContextTree.biphone(PHONES, Topology.ctc()), "blank"),
        (lambda: TREES[0].pdf(5, 0), "phone 5"),
        (lambda: TREES[0].pdf(1, 2), "pdf_class = 2"),
        (lambda: TREES[0].describe(8), "pdf = 8"),
        (lambda: DecisionTree(()), "nodes is empty"),
        (lambda: DecisionTree((Table(0, (0,)),)), r"nodes\[0\] leads to node 0"),
        (lambda: DecisionTree((Leaf(-1),)), "leaf of pdf -1"),
        (lambda: ContextTree(PHONES, CHAIN, 3, ALONE), "or a decision tree"),
        (lambda: ContextTree(PHONES, CHAIN, 2, ALONE, frozenset(), ASKS_FOR_2), "ask for the place 2 of a window of 2"),
        (lambda: WIDE["triphone"].pdf_in((1, 2), 0), "expected 3 phones"),
        (lambda: WIDE["triphone"].pdf_in((1, 0, 2), 0), r"no pdf for class 0 of the phones \(1, 0, 2\)"),
        (lambda: EMPTY.accumulate(FRAMES, [AlignedPhone(3, 0, 1)]), r"phone 3 in the frames \[0, 1\)"),
    ],
)  # fmt: skip
def test_refuses_by_name(make, message):
    refuses(GraphError, message, make)


def test_an_utterance_with_a_phone_out_of_order_is_refused_and_none_of_it_added():
    found, phones = BiphoneStatistics(2, CHAIN, 3), [AlignedPhone(1, 0, 2), AlignedPhone(1, 1, 5)]
    refuses(
        GraphError, r"phone 1 in the frames \[1, 5\) after frame 2 of 4", found.accumulate, FRAMES, phones
    )
    assert not found.count.any()


def test_features_of_another_width_and_too_many_pdfs_are_refused():
    refuses(ShapeError, r"shape \[4, 2\]; expected \[T, 3\]", EMPTY.accumulate, FRAMES[:, :2], [])
    for num_pdfs, count, message in ((9, 0, "num_pdfs = 9, 0 frames"), (7, 3, "expected at least 8 pdfs")):
        refuses(ConfigError, message, build_tied_tree, NAMES, CHAIN, statistics(count), num_pdfs=num_pdfs)


def test_a_tree_of_many_phones_takes_memory_for_each_and_not_for_each_pair(tmp_path):
    """As a table of all pairs these would be 800 MB."""
    names = [f"p{number}" for number in range(10_000)]
    tree = ContextTree.biphone(names, CHAIN, context_independent=names[:1])
    tree.save(tmp_path / "tree.npz")
    with within(20_000_000):
        again = ContextTree.load(tmp_path / "tree.npz")
    assert again.equals(tree)
    assert again.pdf(2, 1, left=3) == 2 + 2 * 3 + 1
    assert again.left_class(17) == 17


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("format", "other", "format 'other'"),
        ("shared", [1, 2, 3, 3], "expected each of 1..4 once"),
        ("shared", [1, 2, 3, 5], "expected each of 1..4 once"),
        ("shared_sizes", [4, 0], "empty set"),
        ("shared_sizes", [3], "do not share out"),
        ("context_independent", [5], "expected ids in"),
        ("topology", "[" * 20_000, "the topology has 20000 letters"),
        ("window", [3, 2], "context_width = 3"),
        ("phones", ["A", "A", "B", "C"], "phones holds 'A' twice"),
    ],
)
def test_arrays_of_a_tree_that_do_not_fit_are_refused(name, value, message, tmp_path):
    path = tmp_path / "tree.npz"
    ContextTree.monophone(PHONES, CHAIN).save(path)
    with np.load(path) as arrays:
        np.savez(path, **{**arrays, name: np.array(value)})
    refuses(GraphError, message, ContextTree.load, path)
    path.write_text("no archive")
    refuses(GraphError, "not a context tree", ContextTree.load, path)


def test_a_tree_answers_comes_back_from_columns_and_walks_every_path():
    tree = DecisionTree((Split(0, frozenset({3, 1}), 1, 2), Table(1, (3, -1)), Leaf(4), Leaf(0)))
    assert [tree.pdf((left, 0), 0) for left in (1, 2, 3)] == [0, 4, 0]
    assert [tree.pdf((1, phone), 0) for phone in (0, 1, 2)] == [0, None, None]
    assert DecisionTree.from_columns(*tree.to_columns()) == tree
    everything = {0: frozenset(range(4)), 1: frozenset(range(3))}
    paths = sorted((pdf, sorted(path[0]), sorted(path[1])) for pdf, path in tree.paths(everything))
    assert paths == [(0, [1, 3], [0]), (4, [0, 2], [0, 1, 2])]


@pytest.mark.parametrize(
    ("heads", "rows", "message"),
    [
        ([-2], [0, 0], r"nodes\[0\] has its row at 1: expected 0"),
        ([-1], [0], r"nodes\[0\] has its row at 0"),
        ([-1], [0, 3, 1], "have 5 numbers: expected 3"),
        ([0], [0], "have 0 numbers: expected 1"),
        ([-1], [0, -3, 1, 1, 5, 5], r"nodes\[0\] is a split whose values do not rise"),
    ],
)
def test_columns_that_are_no_nodes_are_refused(heads, rows, message):
    refuses(GraphError, message, DecisionTree.from_columns, heads, rows)


# A tree tied from alignments finds the contexts that the frames differ in, by the likelihood it claims to raise.


NUM_PHONES, NUM_FEATURES = 8, 3
NAMES = tuple(f"p{n}" for n in range(1, NUM_PHONES + 1))
LOW = frozenset((1, 3, 6, 8))  # phones that sound alike, and colour what follows


def utterances(count=300):
    """Aligned frames whose mean depends on the phone, the pdf class, and whether the left phone is in LOW."""
    rng = np.random.default_rng(3)
    mean = rng.normal(size=(NUM_PHONES + 1, 2, NUM_FEATURES))
    mean[list(LOW)] -= 8.0
    for _ in range(count):
        phones, frames, time, left = [], [], 0, 0
        for phone in rng.integers(1, NUM_PHONES + 1, size=15).tolist():
            length = int(rng.integers(1, 5))
            for k in range(length):
                colour = 2.0 * (left in LOW) - 1.0 * (left == 0)
                frames.append(mean[phone, min(k, 1)] + colour + 0.2 * rng.normal(size=NUM_FEATURES))
            phones.append(AlignedPhone(phone, time, time + length))
            time, left = time + length, phone
        yield np.array(frames), phones


def statistics(count=300):
    found = BiphoneStatistics(NUM_PHONES, CHAIN, NUM_FEATURES)
    for frames, phones in utterances(count):
        found.accumulate(frames, phones)
    return found


def test_the_tree_separates_what_the_frames_separate():
    """Each phone has two classes and three kinds of left context: 8 x 2 x 3 pdfs, and no phone pair beside these."""
    tree = build_tied_tree(NAMES, CHAIN, statistics(), num_pdfs=48, min_frames=5)
    assert tree.num_pdfs == 48
    for phone, pdf_class in itertools.product(range(1, NUM_PHONES + 1), range(2)):
        kinds = {}  # of left contexts: none, those in LOW, the others
        for left in range(NUM_PHONES + 1):
            kinds.setdefault((left == 0, left in LOW), set()).add(tree.pdf(phone, pdf_class, left))
        assert [len(kind) for kind in kinds.values()] == [1, 1, 1] and len(set.union(*kinds.values())) == 3


def log_likelihood(stats, cells):
    count, total, squares = (sum(a[cell] for cell in cells) for a in (stats.count, stats.sum, stats.squares))
    spread = stats.squares.sum(axis=(0, 1, 2)) / stats.count.sum()
    spread = spread - (stats.sum.sum(axis=(0, 1, 2)) / stats.count.sum()) ** 2
    own = squares / count - (total / count) ** 2
    variance = np.maximum(own, 0.01 * spread)
    return -0.5 * count * float(np.sum(np.log(variance) + own / variance))


def leaves(tree):
    """Cells (phone, left, class) of each pdf."""
    found = {}
    for cell in itertools.product(range(1, NUM_PHONES + 1), range(NUM_PHONES + 1), range(2)):
        found.setdefault(tree.pdf(cell[0], cell[2], cell[1]), []).append(cell)
    return found


def test_each_further_pdf_gains_and_the_first_gains_most():
    """Sums of log-likelihoods of the leaves, computed cell by cell; greedy gains of one root cannot grow."""
    stats = statistics()
    totals = []
    for num_pdfs in range(8, 20):
        tree = build_tied_tree(NAMES, CHAIN, stats, num_pdfs=num_pdfs, min_frames=5)
        cells = leaves(tree)
        assert sorted(cells) == list(range(num_pdfs))
        totals.append(sum(log_likelihood(stats, members) for members in cells.values()))
        assert all(sum(stats.count[cell] for cell in members) >= 5 for members in cells.values())
    gains = np.diff(totals)
    assert np.all(gains > 0) and gains[0] == pytest.approx(gains.max(), rel=tolerances.ROUNDING)


def test_limits_and_roots_are_kept():
    stats = statistics(count=60)
    roots = {"shared": [("p1", "p2")], "context_independent": ("p8",)}
    tree = build_tied_tree(NAMES, CHAIN, stats, num_pdfs=60, min_frames=40, **roots)
    assert tree.num_pdfs < 60  # no split leaves 40 frames on both sides any more
    for members in leaves(tree).values():
        phones = {phone for phone, _, _ in members}
        assert len(phones) == 1 or phones == {1, 2}
        if 8 in phones:
            assert {left for _, left, _ in members} == set(range(NUM_PHONES + 1))
    few = build_tied_tree(NAMES, CHAIN, stats, num_pdfs=60, min_gain=1e9)
    assert few.num_pdfs == NUM_PHONES
