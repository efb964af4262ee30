"""The tree numbers pdfs as Kaldi does, and maps (phone, left, class) to a pdf and back."""

import pytest

from fsachain.errors import GraphError
from fsachain.graph.context import ContextTree
from fsachain.graph.lexicon_files import read_phones
from fsachain.graph.topology import Topology

PHONES = ("SIL", "A", "B", "C")
CHAIN = Topology.chain()
MONOPHONE_CASES = ["lm1_tiny", "lm2_tri_mono", "lm3_4gram_mono", "lm8_onesent"]


def all_triples(tree):
    lefts = range(tree.num_phones + 1)
    phones = range(1, tree.num_phones + 1)
    return [(p, left, c) for p in phones for left in lefts for c in range(tree.topology.num_pdf_classes)]


@pytest.mark.parametrize("case", MONOPHONE_CASES)
def test_monophone_pdfs_are_kaldis(shared, case):
    folder = shared / "golden/kaldi/lm" / case
    tree = ContextTree.monophone(read_phones(folder / "phones.txt"), Topology.chain())
    lines = [line.split() for line in (folder / "pdf_map.txt").read_text().splitlines()]
    maps = [tuple(map(int, fields)) for fields in lines if fields[0].isdecimal()]
    assert len(maps) == tree.num_phones
    for phone, forward, self_loop in maps:
        assert (tree.pdf(phone, 0), tree.pdf(phone, 1)) == (forward, self_loop)
    assert tree.num_pdfs == 2 * len(maps)


TREES = [
    ContextTree.monophone(PHONES, Topology.chain()),
    ContextTree.monophone(PHONES, Topology.left_to_right(3), shared=[("C", "A")]),
    ContextTree.biphone(PHONES, Topology.chain()),
    ContextTree.biphone(PHONES, Topology.chain_one_pdf(), context_independent=("SIL",)),
    ContextTree.biphone(PHONES, CHAIN, context_independent=("SIL",), shared=[("B", "C")]),
    ContextTree.monophone(PHONES, Topology.ctc()),
]


@pytest.mark.parametrize("tree", TREES)
def test_describe_is_the_inverse_of_pdf(tree):
    reached = {0} if tree.blank_pdf == 0 else set()
    for phone, left, pdf_class in all_triples(tree):
        pdf = tree.pdf(phone, pdf_class, left)
        reached.add(pdf)
        context = tree.describe(pdf)
        assert phone in context.phones
        assert context.pdf_class == pdf_class
        assert not context.lefts or left in context.lefts
    assert reached == set(range(tree.num_pdfs))


@pytest.mark.parametrize("tree", TREES)
def test_a_description_names_exactly_the_contexts_that_share_the_pdf(tree):
    for pdf in range(tree.num_pdfs):
        context = tree.describe(pdf)
        lefts = context.lefts or range(tree.num_phones + 1)
        described = {(p, left, context.pdf_class) for p in context.phones for left in lefts}
        assert described == {(p, left, c) for p, left, c in all_triples(tree) if tree.pdf(p, c, left) == pdf}


def test_biphones_are_numbered_by_phone_then_left_then_class():
    tree = ContextTree.biphone(PHONES, Topology.chain())
    assert [tree.pdf(p, c, left) for p in (1, 2) for left in range(5) for c in (0, 1)] == list(range(20))
    assert tree.num_pdfs == 4 * 5 * 2


def test_context_independent_silence_has_one_set_of_pdfs():
    tree = ContextTree.biphone(PHONES, CHAIN, context_independent=("SIL",))
    assert {tree.pdf(1, 0, left) for left in range(5)} == {0}
    assert tree.num_pdfs == 2 + 3 * 5 * 2


def test_shared_phones_share_pdfs_also_as_left_context():
    tree = ContextTree.biphone(PHONES, Topology.chain(), shared=[("C", "B")])
    assert tree.hmm_pdfs(3, 1) == tree.hmm_pdfs(4, 1)
    assert tree.hmm_pdfs(2, 3) == tree.hmm_pdfs(2, 4)
    assert tree.num_pdfs == 3 * 4 * 2


def test_a_blank_takes_pdf_zero():
    tree = ContextTree.monophone(PHONES, Topology.ctc())
    assert tree.blank_pdf == 0
    assert [tree.pdf(phone, 0) for phone in range(1, 5)] == [1, 2, 3, 4]
    assert tree.describe(0).phones == ()


@pytest.mark.parametrize("tree", TREES)
def test_survives_save_and_load(tree, tmp_path):
    tree.save(tmp_path / "tree.json")
    loaded = ContextTree.load(tmp_path / "tree.json")
    assert loaded.num_pdfs == tree.num_pdfs
    assert loaded.phones == tree.phones
    assert loaded.topology == tree.topology
    assert all(loaded.pdf(p, c, left) == tree.pdf(p, c, left) for p, left, c in all_triples(tree))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ContextTree.monophone((), Topology.chain()), "0 names"),
        (lambda: ContextTree.monophone(("A", "A"), Topology.chain()), "2 names, 1 distinct"),
        (
            lambda: ContextTree.monophone(PHONES, CHAIN, shared=[("A", "X")]),
            "shared names the phone 'X'",
        ),
        (
            lambda: ContextTree.monophone(PHONES, CHAIN, shared=[("A", "B"), ("B",)]),
            r"\[1, 2, 3, 3, 4\]",
        ),
        (
            lambda: ContextTree.biphone(PHONES, CHAIN, context_independent=("X",)),
            "context_independent",
        ),
        (
            lambda: ContextTree.biphone(
                PHONES, Topology.chain(), context_independent=("A",), shared=[("A", "B")]
            ),
            "only partly context independent",
        ),
        (lambda: ContextTree.biphone(PHONES, Topology.ctc()), "blank"),
        (lambda: TREES[0].pdf(5, 0), "phone 5"),
        (lambda: TREES[0].pdf(1, 2), "pdf_class = 2"),
        (lambda: TREES[0].describe(8), "pdf = 8"),
    ],
)
def test_refuses_by_name(make, message):
    with pytest.raises(GraphError, match=message):
        make()


def test_refuses_a_file_that_is_no_tree(tmp_path):
    path = tmp_path / "tree.json"
    path.write_text('{"format": "other"}')
    with pytest.raises(GraphError, match="format 'other'"):
        ContextTree.load(path)
    path.write_text("not json")
    with pytest.raises(GraphError, match="not a context tree"):
        ContextTree.load(path)
