"""Transcripts that may be wrong: graphs against edit scripts that are written down one by one, and LF-MMI at most 0."""

import itertools
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import tolerances
import torch
from edit_scripts import STAR, scripts, spoken_scripts
from graph_paths import Scorer, join, log_add, scores_along
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

import fsachain
from fsachain import ContextTree, DenominatorGraph, Forgiveness, Lexicon, LFMMILoss, Topology, build_numerator
from fsachain.asr.data.utterance import Utterance
from fsachain.asr.decode.suspicious import doubts, with_cheap_star
from fsachain.errors import ConfigError, GraphError
from fsachain.graph.denominator import build_denominator, coarse
from fsachain.graph.forgive import forgive
from fsachain.graph.numerator import load_numerators, numerator_of_phones, save_numerators
from fsachain.graph.phone_lm import estimate_phone_lm
from fsachain.graph.spelling import any_phones, phone_loop, transcript_acceptor, ways_to_say
from recipes.weak_transcripts.corrupt import Rates, corrupt, corrupt_text, densest, precision_at

LONGEST = 4
PENALTIES = st.one_of(st.just(math.inf), st.floats(0.1, 4.0))


def expected(labels, units, options):
    """Log-weight of each sequence of labels."""
    each = math.log(len(units)) if options.star == "mean" else 0.0
    found = {}
    for spelled, weight in scripts(labels, options, LONGEST):
        for said in itertools.product(*(units if symbol == STAR else (symbol,) for symbol in spelled)):
            total = weight - each * spelled.count(STAR)
            found[said] = log_add(found.get(said, -math.inf), total)
    return found


@given(
    labels=st.lists(st.integers(0, 2), max_size=3),
    penalties=st.tuples(PENALTIES, PENALTIES, PENALTIES),
    star=st.sampled_from(["mean", "sum"]),
    most_left_out=st.integers(1, 3),
)
def test_a_sequence_weighs_what_the_scripts_that_it_matches_do_together_and_never_more_than_one(
    labels, penalties, star, most_left_out
):
    units = [0, 2]
    options = Forgiveness(*penalties, star, most_left_out)
    by_name = dict(zip(("substitution", "insertion", "deletion"), penalties, strict=True))
    score = Scorer(forgive(labels, units, star=star, most_left_out=most_left_out, **by_name), log_add)
    wanted = expected(labels, units, options)
    for length in range(LONGEST + 1):
        for said in itertools.product(range(3), repeat=length):
            assert score(said) == pytest.approx(wanted.get(said, -math.inf), abs=tolerances.ENUMERATION)
            assert score(said) <= tolerances.ROUNDING


def test_alternatives_of_an_acceptor_are_forgiven_one_by_one():
    final = [-np.inf, -np.inf, 0.0]
    either = fsachain.Fsa(3, [0, 0, 1], [1, 2, 2], [0, 1, 1], np.log([0.3, 0.7, 1.0]), final)
    penalties = {"substitution": 1.0, "insertion": 2.0}
    both = Scorer(forgive(either, [0, 1], **penalties), log_add)
    apart = [Scorer(forgive(said, [0, 1], **penalties), log_add) for said in ([0, 1], [1])]
    for said in [(), (0,), (1,), (0, 1), (1, 1), (1, 0)]:
        parts = [math.log(p) + score(said) for p, score in zip((0.3, 0.7), apart, strict=True)]
        assert both(said) == pytest.approx(log_add(*parts), abs=tolerances.ENUMERATION)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"substitution": -1.0}, "substitution = -1.0: expected a penalty of at least 0"),
        ({"insertion": math.nan}, "insertion = nan: expected"),
        ({"deletion": -math.inf}, "deletion = -inf: expected a penalty in nats"),
        ({"star": "max"}, "star = 'max': expected one of mean, sum"),
        ({"most_left_out": 0}, "most_left_out = 0: expected an integer of at least 1"),
        ({"most_left_out": 1.5}, "most_left_out = 1.5: expected an integer"),
    ],
)
def test_a_penalty_that_cannot_be_is_named(options, message):
    refuses(ConfigError, re.escape(message), Forgiveness, **options)


def test_labels_and_units_that_cannot_be_are_named():
    refuses(GraphError, r"units = \[1, 1\]: expected distinct labels", forgive, [0], [1, 1])
    refuses(GraphError, r"units = \[-1\]: expected distinct labels", forgive, [0], [-1])
    refuses(GraphError, "units = 3: expected distinct labels, integers", forgive, [0], 3)
    refuses(GraphError, r"units = \['a', 'b'\]: expected distinct labels, integers", forgive, [0], ["a", "b"])
    refuses(GraphError, r"labels has shape \[1\] and dtype float64", forgive, [0.5], [1])
    refuses(ConfigError, r"deletion = 0.0: expected a penalty above 0 where", forgive, [0], [1], deletion=0.0)


ENTRIES = [("a", 1.0, ["A"]), ("ab", 0.6, ["A", "B"]), ("ab", 0.4, ["B"])]
LEXICON = Lexicon.from_entries(ENTRIES, silence_prob=0.3)
TREE = ContextTree.monophone(LEXICON.phones, Topology.chain())
SIL, A, B = (LEXICON.phone_id(name) for name in ("SIL", "A", "B"))
LM = estimate_phone_lm([[SIL, A, B], [A, A, SIL], [B, A], [B, SIL, B]], ngram_order=2, no_prune_ngram_order=2)


def denominator_of(tree):
    return DenominatorGraph(build_denominator(LM, tree), tree.num_pdfs)


def oracle(fsas, scores, num_pdfs):
    batch = fsachain.TableBatch.pack([fsachain.compile_table(fsa, num_pdfs) for fsa in fsas])
    return fsachain.forward_backward(batch, scores, backend="reference")


DENOMINATOR = denominator_of(TREE)
NORMALIZATION = DENOMINATOR.normalization_fsa()
FORGIVING = [
    Forgiveness(substitution=1.0),
    Forgiveness(insertion=0.5),
    Forgiveness(deletion=0.7),
    Forgiveness(0.0, 0.0, -1.5, "sum", 2),
    Forgiveness(1.0, 0.5, 0.7, "mean"),
]


def spoken(words, options):
    """Phone strings of up to `LONGEST` phones that may have been said, with their probabilities."""
    place = {(): 1 - LEXICON.silence_prob, (SIL,): LEXICON.silence_prob}
    star = Scorer(any_phones(LEXICON, options.star), log_add)
    anything = {
        tuple(label + 1 for label in said): math.exp(star(said))
        for length in range(1, LONGEST + 1)
        for said in itertools.product((SIL - 1, A - 1, B - 1), repeat=length)
    }
    total = {}
    for spelled, _, weight in spoken_scripts(words, options):
        strings = place
        for symbol, after in itertools.zip_longest(spelled, spelled[1:]):
            said = anything if symbol == STAR else dict(LEXICON.pronunciations_of(symbol))
            between = {(SIL,): LEXICON.silence_prob} if symbol == after == STAR else place
            for part in (said, between):
                strings = join(strings, part, LONGEST)
        for string, p in strings.items():
            total[string] = total.get(string, 0.0) + math.exp(weight) * p
    return total


@pytest.mark.parametrize("options", FORGIVING)
@pytest.mark.parametrize("words", [["a"], ["ab", "a", "a"]])
def test_a_numerator_accepts_the_phones_of_what_may_have_been_said(words, options):
    score = Scorer(build_numerator(words, LEXICON, TREE, forgive=options).fsa, log_add)
    wanted = spoken(words, options)
    for length in range(1, LONGEST + 1):
        for phones in itertools.product((SIL, A, B), repeat=length):
            pdfs = [TREE.hmm_pdfs(phone)[0][0] for phone in phones]  # each phone lasts one frame
            assert math.exp(score(pdfs)) == pytest.approx(wanted.get(phones, 0.0), abs=tolerances.ENUMERATION)
    assert sum(wanted.values()) <= 1.0 or options.star == "sum"


@pytest.mark.parametrize("star", ["mean", "sum"])
def test_anything_is_phones_with_an_optional_silence_between_any_two(star):
    """Three pronunciations have four phones, so that of three words four phones are expected."""
    score, stop = Scorer(any_phones(LEXICON, star), log_add), 1 / 4
    each = 1 / 2 if star == "mean" else 1.0
    for length in range(1, 5):
        for phones in itertools.product((SIL, A, B), repeat=length):
            gaps = sum(SIL not in pair for pair in itertools.pairwise(phones))
            silences = phones.count(SIL)
            spoken, inside = length - silences, SIL not in (phones[0], phones[-1])
            legal = inside and (SIL, SIL) not in itertools.pairwise(phones)
            said = stop * (1 - stop) ** (spoken - 1) * each**spoken
            silent = LEXICON.silence_prob**silences * (1 - LEXICON.silence_prob) ** gaps
            expected = said * silent if legal else 0.0
            found = math.exp(score([phone - 1 for phone in phones]))
            assert found == pytest.approx(expected, abs=tolerances.ENUMERATION)


def test_without_a_price_that_can_be_paid_a_numerator_is_the_plain_one():
    for normalization in (None, NORMALIZATION):
        plain, same = (
            build_numerator(["ab", "a"], LEXICON, TREE, normalization=normalization, forgive=options)
            for options in (None, Forgiveness())
        )
        scores = np.tile(np.random.default_rng(1).normal(size=(1, 6, TREE.num_pdfs)), (2, 1, 1))
        found = oracle([plain.fsa, same.fsa], scores, TREE.num_pdfs)
        assert found.log_prob[0] == pytest.approx(found.log_prob[1], abs=tolerances.ROUNDING)
        assert found.occupancy[0] == pytest.approx(found.occupancy[1], abs=tolerances.ROUNDING)
        assert same.said(found.arc_occupancy(1)) == pytest.approx([1.0, 1.0])
    assert not Forgiveness(insertion=1.0, star="frames").has_star_of_frames


@given(
    seed=st.integers(0, 2**32 - 1),
    options=st.sampled_from(FORGIVING),
    frames=st.integers(2, 7),
    scale=st.sampled_from([1.0, 30.0]),
)
def test_objf_stays_at_most_0_with_the_exact_denominator_and_loses_at_most_the_constant(
    seed, options, frames, scale
):
    scores = scale * torch.from_numpy(np.random.default_rng(seed).normal(size=(1, frames, TREE.num_pdfs)))
    loss = LFMMILoss(DENOMINATOR, leaky_hmm_coefficient=0.0)

    def objf(normalization, forgive):
        numerator = build_numerator(["a", "ab"], LEXICON, TREE, normalization=normalization, forgive=forgive)
        return float(loss.objective(scores, [frames], [numerator.fsa]).objf)

    plain = objf(coarse(NORMALIZATION) if options.has_star else NORMALIZATION, None)
    near = tolerances.FLOAT64 * scale
    assert plain + options.constant(2) - near <= objf(NORMALIZATION, options) <= near


def test_a_word_is_said_as_often_as_the_paths_that_keep_it():
    """Without silence and normalization: one frame for each phone, scripts that spell three phones, by hand."""
    lexicon = Lexicon.from_entries([("a", 1.0, ["A"]), ("b", 1.0, ["B"])], silence=None)
    tree = ContextTree.monophone(lexicon.phones, Topology.chain())
    options = Forgiveness(1.0, 0.5, 0.7, "sum")
    words = ["a", "b", "a"]
    anything = phone_loop([1, 2], stop_prob=0.4)
    numerator = build_numerator(words, lexicon, tree, forgive=options, anything=anything)
    scores = scores_along([tree.hmm_pdfs(phone)[0][0] for phone in (1, 1, 2)], tree.num_pdfs, -math.inf)
    found = oracle([numerator.fsa], scores[None], tree.num_pdfs)
    total, kept = 0.0, np.zeros(3)
    for probability, is_kept in ways(("a", "a", "b"), words, options, 0.4):
        total += probability
        kept += probability * np.array(is_kept)
    assert math.exp(found.log_prob[0]) == pytest.approx(total)
    assert numerator.said(found.arc_occupancy(0)) == pytest.approx(kept / total)


def ways(said, words, options, stop):
    """(weight, which words are kept) of each script and each way to cut `said` into its symbols."""

    def cuts(said, spelled):
        if not spelled:
            yield 1.0 if not said else 0.0
        elif spelled[0] != STAR:
            yield from cuts(said[1:], spelled[1:]) if said[:1] == (spelled[0],) else ()
        else:  # one phone or more
            for taken in range(1, len(said) + 1):
                for p in cuts(said[taken:], spelled[1:]):
                    yield stop * (1 - stop) ** (taken - 1) / 2**taken * p

    for spelled, kept, weight in spoken_scripts(words, options):
        if (STAR, STAR) not in itertools.pairwise(spelled):  # between them would be a silence
            for p in cuts(said, spelled):
                yield math.exp(weight) * p, kept


@given(seed=st.integers(0, 2**32 - 1))
def test_no_sequence_weighs_more_in_a_coarse_acceptor_and_states_that_differ_little_are_one(seed):
    random = np.random.default_rng(seed)
    copies = 3
    prob = np.repeat(random.dirichlet(np.ones(4), size=2), copies, axis=0)
    prob *= random.uniform(0.9, 1.0, size=prob.shape)
    target = random.integers(0, 2, size=(2, 4))
    src, pdf = np.indices(prob.shape).reshape(2, -1)
    dst = copies * target[src // copies, pdf] + random.integers(copies, size=len(src))
    final = random.uniform(-1.0, 0.0, size=2 * copies)
    fine = fsachain.Fsa(2 * copies, src, dst, pdf, np.log(prob).ravel(), final)
    found = coarse(fine)
    assert found.num_states <= fine.num_states
    wanted, score = Scorer(fine, log_add), Scorer(found, log_add)
    for said in itertools.product(range(4), repeat=3):
        assert score(said) <= wanted(said) + tolerances.ROUNDING


def test_a_place_costs_no_more_arcs_than_a_coarse_normalization_and_a_quarter():
    """Of words that follow each other at random a 4-gram knows what no star needs."""
    random = np.random.default_rng(5)
    words = {"a": ["A", "B", "A"], "b": ["B", "C"], "c": ["C", "A"], "d": ["D"]}
    lexicon = Lexicon.from_entries([(word, 1.0, phones) for word, phones in words.items()])
    tree = ContextTree.monophone(lexicon.phones, Topology.chain())
    texts = [random.choice(list(words), size=6) for _ in range(300)]
    said = [[lexicon.phone_id(phone) for word in text for phone in words[word]] for text in texts]
    graph = build_denominator(estimate_phone_lm(said, ngram_order=4, no_prune_ngram_order=4), tree)
    fine = DenominatorGraph(graph, tree.num_pdfs).normalization_fsa()
    assert coarse(fine).num_arcs < 0.7 * fine.num_arcs
    how = {"normalization": fine, "forgive": FORGIVING[-1]}
    four, five = (build_numerator(["a"] * count, lexicon, tree, **how).fsa.num_arcs for count in (4, 5))
    assert five - four < 1.25 * coarse(fine).num_arcs


@pytest.mark.parametrize("options", FORGIVING)
def test_in_a_star_of_ctc_each_frame_of_a_phone_costs_what_a_further_one_does(options):
    tree = ContextTree.monophone(LEXICON.phones, Topology.ctc())
    words = ("ab", "a")
    ways = [ways_to_say(word, position, LEXICON) for position, word in enumerate(words)]
    star = any_phones(LEXICON, options.star)
    transcript = transcript_acceptor(ways, LEXICON, forgive=options, anything=star.to_transducer()).graph
    apart = numerator_of_phones(transcript, transcript.dst.tolist(), words, LEXICON, tree).fsa
    merged = build_numerator(words, LEXICON, tree, forgive=options).fsa
    assert merged.num_arcs < apart.num_arcs or not options.has_star
    score, fine = Scorer(merged, log_add), Scorer(apart, log_add)
    for length in range(1, LONGEST + 1):
        for pdfs in itertools.product(range(tree.num_pdfs), repeat=length):
            assert score(pdfs) <= fine(pdfs) + tolerances.ROUNDING
            if all(a != b for a, b in itertools.pairwise(pdfs)):
                assert score(pdfs) == pytest.approx(fine(pdfs), abs=tolerances.ENUMERATION)


CHANGED = Forgiveness(2.5, 0.2, -1.1, "sum", 2)


@pytest.mark.parametrize("topology", [Topology.chain(), Topology.ctc(), Topology.left_to_right(2)])
def test_a_numerator_with_other_penalties_is_the_one_that_they_make(topology, tmp_path):
    tree = ContextTree.monophone(LEXICON.phones, topology)
    how = {"normalization": denominator_of(tree).normalization_fsa()}
    words = ["ab", "a", "ab", "a"]
    first, wanted = (
        build_numerator(words, LEXICON, tree, forgive=options, **how) for options in (FORGIVING[3], CHANGED)
    )
    save_numerators(tmp_path / "n.npz", {"u": first})
    for made in (first, load_numerators(tmp_path / "n.npz")["u"]):
        found = made.priced(CHANGED)
        assert found.log_prob == pytest.approx(wanted.fsa.log_prob, abs=tolerances.ENUMERATION)
        assert found.final_log_prob == pytest.approx(wanted.fsa.final_log_prob, abs=tolerances.ENUMERATION)


@pytest.mark.parametrize("topology", [Topology.chain(), Topology.ctc()])
def test_edits_are_the_derivatives_of_log_z_by_the_penalties(topology):
    words, step = ["ab", "a", "a"], 1e-4
    tree = ContextTree.monophone(LEXICON.phones, topology)
    normalization = denominator_of(tree).normalization_fsa()
    made = build_numerator(words, LEXICON, tree, normalization=normalization, forgive=CHANGED)
    scores = 3.0 * np.random.default_rng(8).normal(size=(1, 8, tree.num_pdfs))

    def log_z(penalties):
        options = Forgiveness(*penalties, CHANGED.star, CHANGED.most_left_out)
        found = oracle([made.priced(options)], scores, tree.num_pdfs).log_prob[0]
        return found - options.constant(len(words))

    found = oracle([made.fsa], scores, tree.num_pdfs)
    penalties = np.array([CHANGED.substitution, CHANGED.insertion, CHANGED.deletion])
    steps = step * np.eye(3)
    wanted = [(log_z(penalties - one) - log_z(penalties + one)) / (2 * step) for one in steps]
    edits = made.edits(found.arc_occupancy(0))
    assert edits == pytest.approx(wanted, abs=tolerances.DIFFERENCE)
    assert made.said(found.arc_occupancy(0)).sum() == pytest.approx(len(words) - edits[:2].sum())


def test_penalties_that_cannot_take_the_place_of_others_are_named():
    made = build_numerator(["a"], LEXICON, TREE, forgive=FORGIVING[0])
    others = Forgiveness(1.0, insertion=1.0), Forgiveness(1.0, star="sum"), Forgiveness(1.0, most_left_out=1)
    for options in (FORGIVING[3], *others):
        refuses(ConfigError, "asks for other arcs than", made.priced, options)
    with pytest.raises(ConfigError, match="expected a forgiving one"):
        build_numerator(["a"], LEXICON, TREE).priced(FORGIVING[0])
    made = build_numerator(["a"] * 12, LEXICON, TREE, forgive=FORGIVING[0])
    for places in (0 * made.state_place, made.state_place + 40):
        damaged = replace(made, state_place=places)
        refuses(GraphError, "state_place: no places of these words", damaged.priced, FORGIVING[0])


@pytest.mark.parametrize(
    ("options", "normalization"),
    [
        (Forgiveness(4.0, 4.0, 4.0, "sum"), NORMALIZATION),
        (Forgiveness(4.0, 4.0, 4.0, "frames"), with_cheap_star(NORMALIZATION, TREE.num_pdfs)),
    ],
)
def test_a_planted_word_is_doubted_and_the_others_are_not(options, normalization):
    """Scores that say SIL A B A SIL; the transcript has a word too many, then a wrong one, then misses one."""
    pdfs = [pdf for phone in (SIL, A, B, A, SIL) for pdf in np.repeat(TREE.hmm_pdfs(phone)[0], [1, 3])]
    scores = scores_along(pdfs, TREE.num_pdfs, -8.0)
    how = {"normalization": normalization, "forgive": options}
    transcripts = {
        "right": "ab a",
        "inserted": "ab ab a",
        "substituted": "ab ab",
        "deleted": "a",
        "short": "ab a",
    }
    numerators = {
        name: build_numerator(text.split(), LEXICON, TREE, **how) for name, text in transcripts.items()
    }
    found, failed = doubts(
        dict.fromkeys(transcripts, scores) | {"short": scores[:0]}, numerators, NORMALIZATION
    )
    assert set(failed) == {"short"}
    assert (found["right"].said > 0.9).all() and found["right"].unwritten < 0.1
    assert found["inserted"].wrong == pytest.approx(1.0, abs=0.1)
    assert found["substituted"].said[0] > 0.9 > 0.1 > found["substituted"].said[1]
    assert found["deleted"].said[0] > 0.5 and found["deleted"].unwritten > 0.3


def test_planted_errors_are_of_the_rates_asked_for_and_marked():
    words = ["one", "two", "three"] * 2000
    vocabulary = sorted(set(words))
    rates = Rates(0.2, 0.1, 0.3)
    found, again = (corrupt(words, vocabulary, rates, np.random.default_rng(7)) for _ in range(2))
    assert found == again
    kept, count = sum(found.said) / len(words), len(found.words) / len(words)
    assert kept == pytest.approx(1 - 0.2 - 0.3, abs=tolerances.drawn_share(0.5, len(words)))
    assert count == pytest.approx(1 - 0.3 + 0.1, abs=2 * tolerances.drawn_share(0.3, len(words)))
    plain = corrupt(words, vocabulary, Rates(0.0, 0.0, 0.0), np.random.default_rng(7))
    assert plain.words == words and all(plain.said)


def test_precision_is_that_of_the_words_above_the_one_that_reaches_the_recall(tmp_path):
    (tmp_path / "text").write_text("u1 a b c\nu2 a b\n")
    corrupt_text(tmp_path / "text", Rates(0.0, 0.0, 0.0), seed=1)
    said, listed = tmp_path / "said.json", tmp_path / "words.txt"
    assert json.loads(said.read_text()) == {"u1": [True] * 3, "u2": [True] * 2}
    said.write_text(json.dumps({"u1": [True, False, True], "u2": [False, False]}))
    listed.write_text("0.1 u2 1 a\n0.2 u1 1 a\n0.3 u1 2 b\n0.4 u1 3 c\n0.9 u2 2 b\n")
    assert [precision_at(recall, listed, said) for recall in (0.3, 0.6, 1.0)] == [1.0, 2 / 3, 3 / 5]


def test_the_densest_utterances_are_those_with_most_words_a_second_and_none_is_empty(tmp_path):
    soundfile = pytest.importorskip("soundfile")
    spoken = {"short": (1, 0.5), "long": (2, 4.0), "even": (2, 2.0), "empty": (0, 0.1), "same": (1, 1.0)}
    recordings = []
    for name, (count, seconds) in spoken.items():
        path = tmp_path / f"{name}.wav"
        soundfile.write(path, np.zeros(int(8000 * seconds)), 8000)
        recordings.append(Utterance(name, "s", ("one",) * count, str(path)))
    assert [one.id for one in densest(recordings, 0.5)] == ["short", "even"]
    assert [one.id for one in densest(recordings, 1.0)] == ["short", "even", "same", "long"]
