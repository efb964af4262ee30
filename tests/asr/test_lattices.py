"""Lattices of Kaldi are read in every form, and become numerators whose paths are those of the lattice."""

import itertools
import math

import kaldi_bytes as kb
import kaldifst
import numpy as np
import pytest
import tolerances
from enumeration import log_sum
from graph_paths import Scorer, assert_same_columns, log_add
from kaldi_bytes import check
from refusals import refuses

from fsachain.asr.kaldi.archive import read_table
from fsachain.asr.kaldi.lattice import lattice_pdfs, phone_lattice, read_lattice
from fsachain.asr.kaldi.model import read_context_tree, read_transition_model
from fsachain.errors import ConfigError, DataError, GraphError
from fsachain.graph.lexicon import read_phones
from fsachain.graph.supervision import AlignedPhone, build_supervision
from fsachain.stream import Cursor


@pytest.fixture(scope="module")
def kaldi(shared):
    """The smallest golden case: its transition model and tree."""
    folder = shared / "golden/kaldi/lm/lm1_tiny"
    model = read_transition_model(folder / "0.trans_mdl")
    tree = read_context_tree(folder / "tree", folder / "0.trans_mdl", read_phones(folder / "phones.txt"))
    return model, tree


def spoken(model, phone, frames):
    """Transition ids of one phone as Kaldi's reordered graphs have them: leave, then self-loops."""
    table = model.transitions
    ids = np.flatnonzero(table.phone == phone)
    leave = next(int(i) for i in ids if not table.is_self_loop[i])
    loop = next(int(i) for i in ids if table.is_self_loop[i])
    return [leave, *[loop] * (frames - 1)]


def two_ways(model):
    """Phones 2 3 or 2 4 in five frames, with a boundary inside the string of an arc, and a final string."""
    strings = [spoken(model, 2, 2), spoken(model, 3, 2) + spoken(model, 2, 1), spoken(model, 4, 3)]
    arcs = [
        [(1, strings[0], 0.5, 10.0, 1)],
        [(2, strings[1][:2], 1.0, 3.0, 2), (3, strings[2], 2.0, 1.0, 3)],
        [],
        [],
    ]
    return arcs, [None, None, (0.25, 0.0, strings[1][2:]), (0.0, 0.0, ())]


def chained(arcs, finals):
    """The same lattice with one transition id on each arc."""
    plain, ends = [[] for _ in arcs], [final and (*final[:2], ()) for final in finals]
    for src, leaving in enumerate(arcs):
        for word, string, graph, acoustic, dst in leaving:
            state = src
            for position, label in enumerate(string):
                last = position == len(string) - 1
                target = dst if last else len(plain)
                if not last:
                    plain.append([])
                    ends.append(None)
                weight = (graph, acoustic) if position == 0 else (0.0, 0.0)
                plain[state].append((word if position == 0 else 0, [label], *weight, target))
                state = target
    for state, final in enumerate(finals):
        if final and final[2]:
            plain[state].append((0, list(final[2]), *final[:2], len(plain)))
            plain.append([])
            ends[state] = None
            ends.append((0.0, 0.0, ()))
    return plain, ends


def paths(lattice):
    """(transition ids, words, graph cost, acoustic cost) of every path, sorted."""
    lattice = lattice.expanded()
    found, partial = [], [(lattice.start, (), (), 0.0, 0.0)]
    while partial:
        state, ids, words, graph, acoustic = partial.pop()
        if lattice.final_graph_cost[state] < math.inf:
            ends = graph + lattice.final_graph_cost[state], acoustic + lattice.final_acoustic_cost[state]
            found.append((ids, words, *ends))
        for arc in np.flatnonzero(lattice.src == state):
            step = tuple(int(i) for i in lattice.transition[arc : arc + 1] if i)
            said = tuple(int(w) for w in lattice.word[arc : arc + 1] if w)
            costs = graph + lattice.graph_cost[arc], acoustic + lattice.acoustic_cost[arc]
            partial.append((int(lattice.dst[arc]), ids + step, words + said, *costs))
    return sorted(found)


def sequences(fsa, num_frames):
    """All sequences of the pdfs that the acceptor knows."""
    return itertools.product(np.unique(fsa.pdf).tolist(), repeat=num_frames)


def forms(model):
    compact, plain = two_ways(model), chained(*two_ways(model))
    return {
        "compact binary": kb.lattice(*compact),
        "compact text": kb.lattice_text(*compact),
        "plain binary": kb.lattice(*plain, compact=False),
        "plain text": kb.lattice_text(*plain, compact=False),
    }


def read_bytes(content):
    return read_lattice(Cursor(content, "lattice"))


@pytest.mark.parametrize("form", ["compact binary", "compact text", "plain binary", "plain text"])
def test_every_form_has_the_same_paths(kaldi, form, tmp_path):
    model, _ = kaldi
    strings = [spoken(model, 2, 2), spoken(model, 3, 2), spoken(model, 2, 1), spoken(model, 4, 3)]
    first = (*strings[0], *strings[1], *strings[2]), (1, 2), 1.75, 13.0
    second = (*strings[0], *strings[3]), (1, 3), 2.5, 11.0
    path = tmp_path / "lat.ark"
    path.write_bytes(b"".join(name + b" " + forms(model)[form] for name in (b"a", b"b")))
    found = dict(read_table(path, read_lattice))
    assert list(found) == ["a", "b"]
    assert [paths(lattice) for lattice in found.values()] == [sorted([first, second])] * 2


def test_a_lattice_that_kaldis_own_classes_wrote_is_read(kaldi, tmp_path):
    model, _ = kaldi
    arcs, finals = chained(*two_ways(model))
    theirs = kaldifst.Lattice()
    for _ in arcs:
        theirs.add_state()
    theirs.start = 0
    for state, (leaving, final) in enumerate(zip(arcs, finals, strict=True)):
        for word, string, graph, acoustic, dst in leaving:
            weight = kaldifst.LatticeWeight(graph, acoustic)
            theirs.add_arc(state, kaldifst.LatticeArc(string[0], word, weight, dst))
        if final:
            theirs.set_final(state, kaldifst.LatticeWeight(*final[:2]))
    theirs.write(str(tmp_path / "lattice"))
    content = (tmp_path / "lattice").read_bytes()
    assert paths(read_bytes(content)) == paths(read_bytes(forms(model)["compact binary"]))


@pytest.mark.parametrize("claim", ["states", "arcs", "string"])
def test_a_claim_of_a_header_allocates_nothing(claim, tmp_path):
    content = bytearray(kb.lattice([[(1, [1], 0.0, 0.0, 1)], []], [None, (0.0, 0.0, ())]))
    header = 4 + 4 + 6 + 4 + 16 + 16
    place = {"states": header + 8, "arcs": header + 24 + 12, "string": header + 24 + 20 + 16}[claim]
    content[place : place + 4] = b"\xff\xff\xff\x7f"
    refuses(DataError, r"byte \d+: .*2147483647|byte \d+: .*8589934588", read_bytes, bytes(content))
    check(tmp_path / "claim.x", b"a " + bytes(content), lambda path: list(read_table(path, read_lattice)))


@pytest.mark.parametrize(("lm_scale", "acoustic_scale"), [(1.0, 0.0), (0.5, 0.1), (0.0, 0.0)])
def test_the_pdf_acceptor_scores_each_path_by_its_scaled_costs(kaldi, lm_scale, acoustic_scale):
    model, _ = kaldi
    lattice = read_bytes(forms(model)["compact binary"])
    fsa = lattice_pdfs(lattice, model, lm_scale=lm_scale, acoustic_scale=acoustic_scale)
    score = Scorer(fsa, log_add)
    total = -math.inf
    for ids, _, graph, acoustic in paths(lattice):
        expected = -lm_scale * graph - acoustic_scale * acoustic
        assert score(model.pdfs(ids)) == pytest.approx(expected, abs=tolerances.ENUMERATION)
        total = log_add(total, expected)
    everything = [score(pdfs) for pdfs in sequences(fsa, 5)]
    assert log_sum(everything) == pytest.approx(total, abs=tolerances.ENUMERATION)


def test_phones_and_times_are_those_of_the_alignment_of_each_path(kaldi):
    """And the weights of all paths are their scaled costs, divided by the sum."""
    model, _ = kaldi
    lattice = read_bytes(forms(model)["compact binary"])
    found = phone_lattice(lattice, model, lm_scale=0.5, subsampling=3)
    graph = found.phones
    rows, partial = [], [(graph.start, (), 0.0)]
    while partial:
        state, said, weight = partial.pop()
        if graph.final_log_prob[state] > -math.inf:
            rows.append((said, weight + graph.final_log_prob[state]))
        for arc in np.flatnonzero(graph.src == state):
            phone = (int(graph.ilabel[arc]), *found.spans[arc].tolist())
            partial.append((int(graph.dst[arc]), (*said, phone), weight + graph.log_prob[arc]))
    expected = {
        tuple((phone, 3 * first, 3 * last) for phone, first, last in model.phones(ids)): -0.5 * cost
        for ids, _, cost, _ in paths(lattice)
    }
    total = log_sum(expected.values())
    assert sorted(said for said, _ in rows) == sorted(expected)
    for said, weight in rows:
        assert weight == pytest.approx(expected[said] - total, abs=tolerances.ENUMERATION)


def test_a_lattice_of_one_path_is_the_supervision_of_its_alignment(kaldi):
    model, tree = kaldi
    ids = spoken(model, 2, 3) + spoken(model, 3, 2) + spoken(model, 3, 2)
    lattice = read_bytes(kb.lattice([[(1, ids, 0.5, 9.0, 1)], []], [None, (0.0, 0.0, ())]))
    ours = phone_lattice(lattice, model).supervision(21, tree, left_tolerance=3, right_tolerance=3)
    aligned = [AlignedPhone(phone, 3 * first, 3 * last) for phone, first, last in model.phones(ids)]
    theirs = build_supervision(aligned, 21, tree, left_tolerance=3, right_tolerance=3)
    assert_same_columns(ours.fsa, theirs.fsa)
    np.testing.assert_array_equal(ours.arc_phone, theirs.arc_phone)
    np.testing.assert_array_equal(ours.state_frame, theirs.state_frame)


@pytest.mark.parametrize("tolerance", [0, 3])
def test_a_numerator_sums_the_paths_of_the_lattice_within_the_tolerance(kaldi, tolerance):
    """Each path of phones by itself is a supervision; the numerator is their weighted sum, sequence by sequence."""
    model, tree = kaldi
    lattice = read_bytes(forms(model)["compact binary"])
    phones = phone_lattice(lattice, model, lm_scale=1.0)
    times = {"left_tolerance": tolerance, "right_tolerance": tolerance}
    numerator = phones.numerator(15, tree, **times)
    score, singles = Scorer(numerator, log_add), []
    everything = log_sum([-graph for _, _, graph, _ in paths(lattice)])
    for ids, _, graph, _ in paths(lattice):
        aligned = [AlignedPhone(phone, 3 * first, 3 * last) for phone, first, last in model.phones(ids)]
        single = Scorer(build_supervision(aligned, 15, tree, **times).fsa, log_add)
        singles.append((-graph - everything, single))
    accepted = 0
    for pdfs in sequences(numerator, 5):
        expected = log_sum([weight + single(pdfs) for weight, single in singles])
        assert score(pdfs) == pytest.approx(expected, abs=tolerances.ENUMERATION)
        accepted += expected > -math.inf
    assert accepted == 2 if tolerance == 0 else accepted > 2


def test_wrong_lattices_are_refused_by_name(kaldi):
    model, tree = kaldi
    good = phone_lattice(read_bytes(forms(model)["plain text"]), model, name="utt7")
    refuses(GraphError, r"'utt7'.*ends at input frame 15, the utterance at 40", good.supervision, 40, tree)
    refuses(ConfigError, "'utt7': left_tolerance = -1", good.supervision, 15, tree, left_tolerance=-1)
    lattice = read_bytes(forms(model)["plain text"])
    refuses(ConfigError, "lm_scale = -1", phone_lattice, lattice, model, lm_scale=-1)
    loop = spoken(model, 2, 2)[1]
    for ids, message in (([10**6], "has transition id 1000000"), ([loop], "begins with a self-loop")):
        lattice = read_bytes(kb.lattice([[(1, ids, 0.0, 0.0, 1)], []], [None, (0.0, 0.0, ())]))
        refuses(DataError, message, phone_lattice, lattice, model)
    uneven = [[(1, spoken(model, 2, 1) * phones, 0.0, 0.0, 1) for phones in (1, 2)], []]
    lattice = read_bytes(kb.lattice(uneven, [None, (0.0, 0.0, ())]))
    refuses(DataError, "behind 1 and behind 2", phone_lattice, lattice, model)
    ends = [None, (0.0, 0.0, ())]
    for arcs, finals, message in (
        ([[(1, [], 0.0, 0.0, 0)], []], ends, "utt7: no lattice"),
        ([[(1, spoken(model, 2, 2), 0.0, 0.0, 1)], []], [None, None], "utt7: the lattice has no path"),
        ([[], []], [(0.0, 0.0, ()), None], "utt7: the lattice has no path"),
        ([[(1, [], 0.0, 0.0, 1)], []], ends, "utt7: the lattice has no path"),
    ):
        lattice = read_bytes(kb.lattice(arcs, finals))
        refuses(DataError, message, phone_lattice, lattice, model, name="utt7")


@pytest.mark.parametrize(
    ("options", "arc", "message"),
    [
        ({"start": 2}, (1, [1], 0.0, 0.0, 1), "start state 2 of a lattice of 2 states"),
        ({"start": -1}, (1, [1], 0.0, 0.0, 1), "start state -1"),
        ({}, (1, [1], 0.0, 0.0, 2), "an arc leads to state 2 of 2"),
        ({}, (1, [1], 0.0, 0.0, -1), "an arc leads to state -1"),
        ({}, (1, [3, -1], 0.0, 0.0, 1), "negative transition id -1"),
        ({}, (-1, [3], 0.0, 0.0, 1), "negative label"),
        ({}, (1, [3], -math.inf, 0.0, 1), "cost NaN or -Infinity"),
        ({"compact": False}, (1, [-3], 0.0, 0.0, 1), "negative transition id -3"),
    ],
)
def test_binary_lattices_with_numbers_that_cannot_be_are_refused(options, arc, message):
    content = kb.lattice([[arc], []], [None, (0.0, 0.0, ())], **options)
    refuses(DataError, rf"lattice, byte \d+: .*{message}", read_bytes, content)


def test_of_several_final_weights_of_a_state_the_last_counts():
    found = read_bytes(b"0 1 7 1,2,3\n1 1,1,4\n1 2,3\n1 5,6\n")
    assert paths(found) == [((3,), (7,), 6.0, 8.0)]
    assert paths(read_bytes(b"0 1 7 1,2,3\n1 1,1\n1 inf,inf\n")) == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"0 1 1 1,1,1__2", "invalid literal"),
        (b"0 1 1 1,1,0", "a transition id below 1"),
        (b"0 1 1 1,1,4294967296", "beyond 32 bits"),
        (b"0 1 1 1 ,1", "behind"),
        (b"0 1 1 1,1", "4 fields"),
        (b"0 1 -1 1,1,", "negative label"),
        (b"0 1 -1 1", "negative transition id"),
        (b"0 1 1 nan,1,", "cost NaN or -Infinity"),
        (b"0 5000 1 1,1,", "states 0 to 5000"),
        (b"0 1 1 1,1," + b"1" * 10_000, "Exceeds the limit"),
        (b"0 1 1 " + b" " * 20_000 + b"1,1,", "a line of more than 16384 bytes"),
    ],
)
def test_lines_that_are_none_of_a_lattice_are_refused(line, message):
    with pytest.raises(DataError, match=rf"lattice, byte \d+: .*{message}") as caught:
        read_bytes(b"0 1 2 1,1,5_6\n" + line + b"\n1\n")
    assert len(str(caught.value)) < 300
