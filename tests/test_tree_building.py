"""A tree tied from alignments finds the contexts that the frames differ in, by the likelihood it claims to raise."""

import itertools

import numpy as np
import pytest
import tolerances

from fsachain.errors import ConfigError, GraphError, ShapeError
from fsachain.graph.supervision import AlignedPhone
from fsachain.graph.tied_tree import BiphoneStatistics, build_tied_tree
from fsachain.graph.topology import Topology

NUM_PHONES, NUM_FEATURES = 8, 3
PHONES = tuple(f"p{n}" for n in range(1, NUM_PHONES + 1))
LOW = frozenset(range(1, 5))  # phones 1 to 4 sound alike, and colour what follows


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


def statistics(topology=None, count=300):
    found = BiphoneStatistics(NUM_PHONES, topology or Topology.chain(), NUM_FEATURES)
    for frames, phones in utterances(count):
        found.accumulate(frames, phones)
    return found


def test_the_tree_separates_what_the_frames_separate():
    """Each phone has two classes and three kinds of left context: 8 x 2 x 3 pdfs, and no phone pair beside these."""
    tree = build_tied_tree(PHONES, Topology.chain(), statistics(), num_pdfs=48, min_frames=5)
    assert tree.num_pdfs == 48
    for phone in range(1, NUM_PHONES + 1):
        for pdf_class in range(2):
            pdfs = [tree.pdf(phone, pdf_class, left) for left in range(NUM_PHONES + 1)]
            kinds = [
                {pdfs[0]},
                {pdfs[left] for left in LOW},
                {pdfs[left] for left in range(5, NUM_PHONES + 1)},
            ]
            assert [len(kind) for kind in kinds] == [1, 1, 1]
            assert len(set.union(*kinds)) == 3


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
        tree = build_tied_tree(PHONES, Topology.chain(), stats, num_pdfs=num_pdfs, min_frames=5)
        cells = leaves(tree)
        assert sorted(cells) == list(range(num_pdfs))
        totals.append(sum(log_likelihood(stats, members) for members in cells.values()))
        assert all(sum(stats.count[cell] for cell in members) >= 5 for members in cells.values())
    gains = np.diff(totals)
    assert np.all(gains > 0) and gains[0] == pytest.approx(gains.max(), rel=tolerances.ROUNDING)


def test_limits_and_roots_are_kept():
    stats = statistics(count=60)
    tree = build_tied_tree(
        PHONES,
        Topology.chain(),
        stats,
        num_pdfs=60,
        min_frames=40,
        shared=[("p1", "p2")],
        context_independent=("p8",),
    )
    assert tree.num_pdfs < 60  # no split leaves 40 frames on both sides any more
    for members in leaves(tree).values():
        phones = {phone for phone, _, _ in members}
        assert len(phones) == 1 or phones == {1, 2}
        if 8 in phones:
            assert {left for _, left, _ in members} == set(range(NUM_PHONES + 1))
    few = build_tied_tree(PHONES, Topology.chain(), stats, num_pdfs=60, min_gain=1e9)
    assert few.num_pdfs == NUM_PHONES


def test_wrong_input_is_refused_by_name():
    stats = BiphoneStatistics(2, Topology.chain(), 3)
    with pytest.raises(ShapeError, match=r"shape \[4, 2\]; expected \[T, 3\]"):
        stats.accumulate(np.zeros((4, 2)), [])
    with pytest.raises(GraphError, match=r"phone 3 in the frames \[0, 1\)"):
        stats.accumulate(np.zeros((4, 3)), [AlignedPhone(3, 0, 1)])
    with pytest.raises(GraphError, match=r"phone 1 in the frames \[1, 5\) after frame 2 of 4"):
        stats.accumulate(np.zeros((4, 3)), [AlignedPhone(1, 0, 2), AlignedPhone(1, 1, 5)])
    with pytest.raises(ConfigError, match="num_pdfs = 9, 0 frames"):
        build_tied_tree(PHONES, Topology.chain(), BiphoneStatistics(8, Topology.chain(), 3), num_pdfs=9)
