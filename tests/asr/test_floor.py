"""Numerators of development sets whose n-grams the phone language model never saw: counted, with a floor, not left out."""

import json
import math

import numpy as np
import pytest
import tolerances
from cli_fixtures import assert_one_line
from graph_paths import Scorer, assert_same_columns, log_add
from hypothesis import given
from hypothesis import strategies as st

from fsachain import (
    ContextTree,
    DenominatorGraph,
    Lexicon,
    Topology,
    build_denominator,
    build_numerator,
    estimate_phone_lm,
    forward_backward,
    lm_phones,
)
from fsachain.asr.train.log import read_log
from fsachain.batch import TableBatch
from fsachain.errors import ConfigError, GraphError
from fsachain.fsa import Fsa
from fsachain.graph.numerator import load_numerators, save_numerators
from fsachain.graph.transducer import product
from fsachain.table import compile_table

FLOOR = 1e-3
WORDS = {"one": "w a n", "two": "t u", "ten": "t e n", "new": "n u", "zoo": "z u"}
ENTRIES = [(word, 1.0, phones.split()) for word, phones in WORDS.items()]
LEXICON = Lexicon.from_entries(ENTRIES)
SEEN = [["one", "two"], ["two", "ten"], ["ten"], ["new", "one"]]  # nobody says z


def normalised(tree, lexicon=LEXICON):
    phones = lm_phones(SEEN, lexicon, seed=1)
    model = estimate_phone_lm(phones, ngram_order=3, num_extra_lm_states=0, no_prune_ngram_order=2)
    denominator = DenominatorGraph(build_denominator(model, tree), tree.num_pdfs)
    return denominator, denominator.normalization_fsa()


TREES = {
    "monophone": ContextTree.monophone(LEXICON.phones, Topology.chain()),
    "biphone": ContextTree.biphone(LEXICON.phones, Topology.chain(), context_independent=["SIL"]),
    "three states": ContextTree.monophone(LEXICON.phones, Topology.left_to_right(3)),
}
GRAPHS = {name: (tree, *normalised(tree)) for name, tree in TREES.items()}
TRANSCRIPTS = st.lists(st.sampled_from(list(WORDS)), min_size=1, max_size=5)


@given(words=TRANSCRIPTS, name=st.sampled_from(list(GRAPHS)))
def test_every_transcript_has_a_numerator_and_those_with_one_keep_it(words, name):
    tree, _, normalization = GRAPHS[name]
    floored = build_numerator(words, LEXICON, tree, normalization=normalization, floor=FLOOR)
    assert math.isfinite(floored.required_frames)
    try:
        plain = build_numerator(words, LEXICON, tree, normalization=normalization)
    except GraphError:
        assert floored.floored
        said = {floored.words[word] for word in floored.arc_word.tolist() if word >= 0}
        assert said == set(words)
        return
    assert not floored.floored
    assert_same_columns(floored.fsa, plain.fsa)


def test_a_floor_lets_no_more_through_than_a_path_needs():
    """Of "2 1" and "0 2 2" the model has "1" alone: the first needs one step through the floor, the other more."""
    model = Fsa(3, [0, 0], [1, 2], [0, 1], [-0.5, -1.0], [-math.inf, -math.inf, 0.0])
    ways = Fsa.from_text("0 1 3\n1 2 2\n0 3 1\n3 4 3\n4 2 3\n2\n")
    found, origin = product(ways, model, -3.0)
    assert origin.tolist() == [0, 1] and found.log_prob.tolist() == [-3.0, -1.0]


@given(words=TRANSCRIPTS, seed=st.integers(0, 99))
def test_the_denominator_outweighs_a_floor_that_is_no_more_than_its_leak(words, seed):
    """So the objective of a development set stays below zero; phones that nobody says are no part of any denominator."""
    tree, denominator, normalization = GRAPHS["monophone"]
    words = [word for word in words if word != "zoo"] or ["new"]
    numerator = build_numerator(words, LEXICON, tree, normalization=normalization, floor=FLOOR)
    frames = int(numerator.required_frames) + 7
    scores = np.random.default_rng(seed).normal(scale=3.0, size=(1, frames, tree.num_pdfs))
    batch = TableBatch.pack([compile_table(numerator.fsa, tree.num_pdfs)])
    num = forward_backward(batch, scores).log_prob[0]
    den = forward_backward(denominator.batch(1), scores, leaky_hmm_coefficient=FLOOR).log_prob[0]
    assert num <= den + tolerances.GRAPH_COST * frames


def test_an_unseen_pair_costs_the_floor_and_begins_anew():
    """`new` after `two` is new: u -> n. Of the frames t u n u, the third is an entry of n after any history."""
    lexicon = Lexicon.from_entries(ENTRIES, silence=None)
    tree = ContextTree.monophone(lexicon.phones, Topology.chain())
    _, normalization = normalised(tree, lexicon=lexicon)
    numerator = build_numerator(["two", "new"], lexicon, tree, normalization=normalization, floor=FLOOR)
    assert numerator.floored
    pdfs = [tree.pdf(lexicon.phone_id(phone), 0) for phone in ("t", "u", "n", "u")]

    plain = build_numerator(["two", "new"], lexicon, tree).fsa
    score, whole, inside = (Scorer(fsa, log_add) for fsa in (numerator.fsa, plain, normalization))
    assert inside(pdfs) == -math.inf
    expected = whole(pdfs) + inside(pdfs[:2]) + math.log(FLOOR) + inside(pdfs[2:])
    assert score(pdfs) == pytest.approx(expected, abs=tolerances.GRAPH_COST)


def test_floors_are_probabilities_and_files_keep_who_needed_one(tmp_path):
    tree, _, normalization = GRAPHS["monophone"]
    with pytest.raises(ConfigError, match=r"floor = 1.0: expected a probability in \[0, 1\)"):
        build_numerator(["one"], LEXICON, tree, normalization=normalization, floor=1.0)
    made = {
        name: build_numerator(words, LEXICON, tree, normalization=normalization, floor=FLOOR)
        for name, words in (("a", ["one"]), ("b", ["zoo"]))
    }
    save_numerators(tmp_path / "n.npz", made)
    found = {name: one.floored for name, one in load_numerators(tmp_path / "n.npz").items()}
    assert found == {"a": False, "b": True}


@pytest.fixture
def corpus(fsachain, recorded):
    """A phone language model that never saw a transcript end in `no`, of which u3, u4 and u5 have none."""
    (recorded / "said").write_text("a yes\nb yes yes\nc yes\n")
    fsachain.ok("phone-lm said lm.fst --lang lang")
    fsachain.ok("den-graph lm.fst den --lang lang")
    return recorded


def test_a_development_set_keeps_what_the_phone_model_never_saw_and_a_training_set_does_not(fsachain, corpus):
    graphs = "--lang lang --den den"
    out = fsachain.ok(f"num-graphs data num.npz {graphs}").out
    told = ", 4 with n-grams that the phone language model never saw"
    assert (
        "5 numerators, " in out
        and f"{told}: a training leaves these out, a development set keeps them" in out
    )
    assert told in fsachain.ok(f"num-tables data tables {graphs}").out
    without = f"num-graphs data none.npz {graphs} --floor 0"
    assert_one_line(fsachain(without), "4 of 5 utterances (80 %)", "expected --floor (for a development set)")
    assert "4  no path" in fsachain.ends(3, f"{without} --allow-left-out 0.8").out
    config = f"{graphs} --config small.yaml --set train.batch_size=1"
    for name, made, options in (
        ("graphs", "num.npz", ""),
        ("tables", "tables", ""),
        ("streamed", "tables", "--stream"),
        ("compiled", "-", "--stream --jobs 1"),
    ):
        step = f"--dev data {made} {config} {options}"
        stopped = fsachain.ends(1, f"train data {made} {name}-stopped {step}").err
        assert "training set: 4 of 5 utterances (80 %) would be left out" in stopped
        assert "lower phone_lm.ngram_order" in stopped
        step = f"train data {made} {name} {step} --allow-left-out 0.8"
        assert f"development set: 5 utterances{told}" in fsachain.ends(3, step).err
        log = list(read_log(corpus / name / "train.jsonl"))
        assert [event["dev_floored"] for event in log if event["event"] == "start"] == [4]
        (epoch,) = (event for event in log if event["event"] == "epoch")
        assert epoch["dev"]["output_frames"] == 5 * epoch["train"]["output_frames"]
        assert epoch["dev"]["objf"] < 0
        faults = [json.loads(line) for line in (corpus / name / "faults.jsonl").read_text().splitlines()]
        assert sorted(fault["id"] for fault in faults) == ["u1", "u2", "u3", "u4"]
