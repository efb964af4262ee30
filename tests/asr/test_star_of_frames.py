"""Stars of frames, which have a pdf of their own in numerators and denominators: against scripts, by path, and in LF-MMI."""

import itertools
import math

import numpy as np
import pytest
import tolerances
import torch
from edit_scripts import STAR, spoken_scripts
from graph_paths import Scorer, join, log_add
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import xlogy
from test_forgive import DENOMINATOR, ENTRIES, LEXICON, LM, LONGEST, NORMALIZATION, SIL, TREE

import fsachain
from fsachain import ContextTree, DenominatorGraph, Forgiveness, Lexicon, LFMMILoss, Topology, build_numerator
from fsachain.asr.decode.suspicious import score_of_any_frame
from fsachain.denominator import normalization_with_star
from fsachain.errors import ConfigError
from fsachain.graph.denominator import build_denominator
from fsachain.graph.forgive import forgive
from fsachain.graph.phone_lm import estimate_phone_lm
from fsachain.graph.spelling import phone_loop

STARRED = DENOMINATOR.with_star()
FORGIVING = [
    Forgiveness(substitution=1.0, star="frames"),
    Forgiveness(deletion=-0.7, star="frames"),
    Forgiveness(0.0, 0.0, -1.5, "frames", 2),
    Forgiveness(1.0, 0.5, 0.7, "frames"),
]
WORDS = ["ab", "a", "a"]


def wide(seed, frames, num_pdfs=TREE.num_pdfs, scale=1.0):
    return scale * np.random.default_rng(seed).normal(size=(2, frames, num_pdfs))


def oracle(fsas, num_pdfs, scores, **options):
    batch = fsachain.TableBatch.pack([fsachain.compile_table(fsa, num_pdfs) for fsa in fsas])
    return fsachain.forward_backward(batch, scores, backend="reference", **options)


@pytest.mark.parametrize("options", FORGIVING)
@pytest.mark.parametrize("words", [["a"], WORDS])
def test_a_numerator_accepts_frames_where_the_scripts_have_a_star(options, words):
    """Each phone lasts one frame; a run of frames of the star is one star."""
    place = {(): 1 - LEXICON.silence_prob, (SIL,): LEXICON.silence_prob}
    anything = {(STAR,) * length: 1.0 for length in range(1, LONGEST + 1)}
    wanted = {}
    for spelled, _, weight in spoken_scripts(words, options):
        strings = place
        for symbol, after in itertools.zip_longest(spelled, spelled[1:]):
            said = anything if symbol == STAR else dict(LEXICON.pronunciations_of(symbol))
            strings = join(strings, said, LONGEST)
            strings = join(strings, {(SIL,): place[SIL,]} if symbol == after == STAR else place, LONGEST)
        for string, p in strings.items():
            wanted[string] = wanted.get(string, 0.0) + math.exp(weight) * p
    score = Scorer(build_numerator(words, LEXICON, TREE, forgive=options).fsa, log_add)
    pdfs = {phone: TREE.hmm_pdfs(phone)[0][0] for phone in range(1, TREE.num_phones + 1)}
    pdfs[STAR] = TREE.num_pdfs
    for length in range(1, LONGEST + 1):
        for said in itertools.product(pdfs, repeat=length):
            found = math.exp(score([pdfs[symbol] for symbol in said]))
            assert found == pytest.approx(wanted.get(said, 0.0), abs=tolerances.ENUMERATION)


@pytest.mark.parametrize("topology", [Topology.chain(), Topology.ctc(), Topology.left_to_right(2)])
@pytest.mark.parametrize("options", FORGIVING[1:3])
def test_no_sequence_weighs_more_than_in_the_denominator_that_has_a_star(topology, options):
    tree = ContextTree.monophone(LEXICON.phones, topology)
    graph = DenominatorGraph(build_denominator(LM, tree), tree.num_pdfs)
    normalization = graph.normalization_fsa()
    star = Scorer(graph.with_star().normalization_fsa(), log_add)
    same = Scorer(normalization_with_star(normalization, tree.num_pdfs), log_add)
    how = {"normalization": normalization, "forgive": options}
    numerator = Scorer(build_numerator(["a", "ab"], LEXICON, tree, **how).fsa, log_add)
    for pdfs in itertools.product(range(tree.num_pdfs + 1), repeat=3):
        assert same(pdfs) == pytest.approx(star(pdfs), abs=tolerances.ENUMERATION)
        assert numerator(pdfs) <= star(pdfs) + tolerances.ENUMERATION


@given(
    seed=st.integers(0, 2**32 - 1),
    options=st.sampled_from(FORGIVING),
    frames=st.integers(2, 7),
    scale=st.sampled_from([1.0, 30.0]),
)
def test_objf_stays_at_most_0_and_at_least_what_the_plain_numerator_leaves(seed, options, frames, scale):
    scores = torch.from_numpy(wide(seed, frames, scale=scale))
    loss = LFMMILoss(STARRED, leaky_hmm_coefficient=0.0)
    plain, forgiving = (
        build_numerator(["a", "ab"], LEXICON, TREE, normalization=NORMALIZATION, forgive=way).fsa
        for way in (None, options)
    )
    found = loss.objective(scores, [frames] * 2, [forgiving] * 2)
    least = oracle([plain] * 2, TREE.num_pdfs, scores.numpy()).log_prob + options.constant(2)
    assert (found.num_log_prob <= found.den_log_prob + tolerances.FLOAT64 * scale).all()
    assert (found.num_log_prob.numpy() >= least - tolerances.FLOAT64 * scale).all()


@pytest.mark.parametrize("leak", [0.0, 0.1])
def test_the_star_scores_what_the_denominators_paths_do_and_its_derivative_is_their_occupancy(leak):
    lengths, scores = [6, 4], wide(5, 6)
    scores[1, 4:] = np.nan
    numerator = build_numerator(WORDS, LEXICON, TREE, normalization=NORMALIZATION, forgive=FORGIVING[2])
    options = {"lengths": lengths, "leaky_hmm_coefficient": leak, "backend": "reference"}
    plain = fsachain.forward_backward(DENOMINATOR.batch(2), scores, **options)
    leaf = torch.from_numpy(scores).requires_grad_()
    loss = LFMMILoss(STARRED, leaky_hmm_coefficient=leak, out_of_range_regularize=0.0)
    found = loss.with_star(leaf, lengths).numpy()
    loss(leaf, lengths, [numerator] * 2).backward()
    for n, count in enumerate(lengths):
        said = plain.occupancy[n, :count]
        expected = (said * scores[n, :count]).sum(axis=1)
        column = expected + (plain.log_prob[n] - expected.sum()) / count
        assert found[n, :count, -1] == pytest.approx(column, abs=tolerances.FLOAT64)
        assert column.sum() == pytest.approx(plain.log_prob[n])
        given = found[n : n + 1, :count]
        num = oracle([numerator.fsa], TREE.num_pdfs + 1, given).occupancy[0]
        den = fsachain.forward_backward(
            STARRED.batch(1), given, leaky_hmm_coefficient=leak, backend="reference"
        )
        each = num - den.occupancy[0]
        wanted = -(each[:, :-1] + each[:, -1:] * said) / sum(lengths)
        assert leaf.grad[n, :count].numpy() == pytest.approx(wanted, abs=tolerances.FLOAT64)
        assert not leaf.grad[n, count:].any()


@given(seed=st.integers(0, 2**32 - 1), frames=st.integers(0, 40), more=st.integers(0, 40))
def test_nothing_beside_a_sequence_changes_a_bit_of_what_the_star_scores(seed, frames, more):
    scores = torch.from_numpy(wide(seed, frames + more).astype(np.float32))
    loss = LFMMILoss(STARRED, leaky_hmm_coefficient=0.1)
    together = loss.with_star(scores, [frames + more, frames])
    alone = loss.with_star(scores[1:, :frames], [frames])
    assert torch.equal(together[1:, :frames], alone)


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_a_frame_of_anything_scores_its_arcs_and_their_entropy_given_all_before(scale):
    """By all paths of four frames, written down."""
    graph, scores = NORMALIZATION, wide(9, 4, scale=scale)[0]
    paths = [((), graph.start, 0.0)]
    for frame in scores:
        paths = [
            ((*arcs, arc), graph.dst[arc], weight + graph.log_prob[arc] + frame[graph.pdf[arc]])
            for arcs, state, weight in paths
            for arc in np.flatnonzero(graph.src == state)
        ]
    weights = np.array([weight + graph.final_log_prob[state] for _, state, weight in paths])
    log_z = np.logaddexp.reduce(weights)
    prob = np.exp(weights - log_z)
    arcs = np.array([said for said, *_ in paths])
    entropy = [0.0]
    for t in range(1, 5):
        _, group = np.unique(arcs[:, :t], axis=0, return_inverse=True)
        together = np.bincount(group.ravel(), prob)
        entropy.append(-xlogy(together, together).sum())
    each = graph.log_prob[arcs] + scores[np.arange(4), graph.pdf[arcs]]
    occupancy = oracle([graph], TREE.num_pdfs, scores[None]).arc_occupancy(0)
    found = score_of_any_frame(scores, occupancy, graph)
    near = tolerances.FLOAT64 * scale
    assert found == pytest.approx(prob @ each + np.diff(entropy), abs=near)
    assert found.sum() == pytest.approx(log_z, abs=near)


def test_without_a_star_numerators_and_losses_are_the_plain_ones_to_the_bit():
    plain, same = (
        build_numerator(WORDS, LEXICON, TREE, normalization=NORMALIZATION, forgive=way).fsa
        for way in (Forgiveness(insertion=1.0), Forgiveness(insertion=1.0, star="frames"))
    )
    for name in ("src", "dst", "pdf", "log_prob", "final_log_prob"):
        assert np.array_equal(getattr(plain, name), getattr(same, name))
    found = []
    for graph in (DENOMINATOR, STARRED):
        leaf = torch.from_numpy(wide(2, 8).astype(np.float32)).requires_grad_()
        loss = LFMMILoss(graph, leaky_hmm_coefficient=0.1)
        value = loss(leaf, [8, 7], [plain] * 2)
        value.backward()
        found.append((value.detach(), leaf.grad))
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_penalties_and_counts_are_those_of_other_stars():
    first, wanted = (
        build_numerator(WORDS, LEXICON, TREE, normalization=NORMALIZATION, forgive=way)
        for way in (FORGIVING[2], Forgiveness(2.5, 0.2, -1.1, "frames", 2))
    )
    assert first.priced(wanted.forgive).log_prob == pytest.approx(wanted.fsa.log_prob)
    scores, step = wide(8, 8, TREE.num_pdfs + 1, 3.0)[:1], 1e-4
    penalties = np.array([2.5, 0.2, -1.1])

    def log_z(penalties):
        options = Forgiveness(*penalties, "frames", 2)
        return oracle([wanted.priced(options)], TREE.num_pdfs + 1, scores).log_prob[0] - options.constant(3)

    slopes = [
        (log_z(penalties - step * one) - log_z(penalties + step * one)) / (2 * step) for one in np.eye(3)
    ]
    found = oracle([wanted.fsa], TREE.num_pdfs + 1, scores)
    edits = wanted.edits(found.arc_occupancy(0))
    assert edits == pytest.approx(slopes, abs=tolerances.DIFFERENCE)
    assert wanted.said(found.arc_occupancy(0)).sum() == pytest.approx(3 - edits[:2].sum())


def test_a_cross_entropy_branch_learns_frames_that_are_no_star():
    numerator = build_numerator(WORDS, LEXICON, TREE, normalization=NORMALIZATION, forgive=FORGIVING[2])
    loss = LFMMILoss(STARRED, leaky_hmm_coefficient=0.1, xent_regularize=0.5)
    scores = torch.from_numpy(wide(4, 8)).requires_grad_()
    log_probs = torch.from_numpy(wide(6, 8)).log_softmax(2).requires_grad_()
    loss(scores, [8, 7], [numerator] * 2, xent_log_probs=log_probs).backward()
    occupancy = oracle(
        [numerator.fsa] * 2, TREE.num_pdfs + 1, loss.with_star(scores, [8, 7]).numpy(), lengths=[8, 7]
    ).occupancy
    assert log_probs.grad.numpy() == pytest.approx(-0.5 * occupancy[..., :-1] / 15, abs=tolerances.FLOAT64)


def test_where_no_star_of_frames_can_be_is_told():
    options, how = FORGIVING[0], (["a"], LEXICON)
    with pytest.raises(ConfigError, match="star is 'frames', with anything"):
        build_numerator(*how, TREE, forgive=options, anything=phone_loop([1]))
    triphone = ContextTree.biphone(LEXICON.phones, Topology.chain())
    assert build_numerator(*how, triphone, forgive=options).fsa.pdf.max() == triphone.num_pdfs
    with pytest.raises(ConfigError, match="star = 'frames': expected one of mean, sum here"):
        fsachain.ctc_loss(torch.zeros(4, 1, 3), torch.tensor([[1]]), [4], [1], forgive=options)
    with pytest.raises(ConfigError, match="star = 'frames': expected one of mean, sum here"):
        forgive([1], [1, 2], substitution=1.0, star="frames")
    with pytest.raises(ConfigError, match="the denominator has a star; expected one without"):
        STARRED.with_star()
    with pytest.raises(ConfigError, match="the denominator has no star; expected that of"):
        LFMMILoss(DENOMINATOR).with_star(torch.zeros(1, 2, TREE.num_pdfs), [2])


@pytest.mark.parametrize(
    ("words", "silence", "options"),
    [(["a"], "SIL", FORGIVING[2]), (["a", "ab"], "SIL", FORGIVING[2]), (["a"], None, FORGIVING[0])],
)
def test_with_a_large_n_gram_one_history_stays_around_a_star_and_no_path_weighs_more(
    words, silence, options, monkeypatch
):
    lexicon = Lexicon.from_entries(ENTRIES, silence=silence, silence_prob=0.3)
    tree = ContextTree.monophone(lexicon.phones, Topology.chain())
    generator = np.random.default_rng(3)
    said = [generator.integers(1, tree.num_phones + 1, 8).tolist() for _ in range(40)]
    graph = DenominatorGraph(build_denominator(estimate_phone_lm(said, 4, 100, 3), tree), tree.num_pdfs)
    how = {"lexicon": lexicon, "tree": tree, "normalization": graph.normalization_fsa()}
    few = build_numerator(words, forgive=options, **how).fsa
    plain = Scorer(build_numerator(words, **how).fsa, log_add)
    monkeypatch.setattr("fsachain.graph.numerator._best_around_stars", lambda fsa, origin, *_: (fsa, origin))
    every = build_numerator(words, forgive=options, **how).fsa
    assert few.num_arcs < every.num_arcs or silence is None
    kept, whole, constant = Scorer(few, log_add), Scorer(every, log_add), options.constant(len(words))
    for pdfs in itertools.product(range(tree.num_pdfs + 1), repeat=4):
        least = plain(pdfs) + constant if tree.num_pdfs not in pdfs else -math.inf
        assert least - tolerances.ENUMERATION <= kept(pdfs) <= whole(pdfs) + tolerances.ENUMERATION
