"""The phone language model equals Kaldi's, is a proper distribution, and refuses what is not a phone
sequence."""

import heapq
import itertools
import json
import math
import re
from collections import Counter

import numpy as np
import pytest
import tolerances
from graph_paths import Scorer, log_add, pdf_sequences
from hypothesis import example, given
from hypothesis import strategies as st
from refusals import refuses
from test_grammar import parse_arpa, sentence_log_prob

from fsachain.errors import ConfigError, GraphError
from fsachain.fsa import Fsa
from fsachain.graph.ctc import ctc_graph
from fsachain.graph.denominator import ctc_denominator
from fsachain.graph.grammar import estimate_arpa, ngram_acceptor
from fsachain.graph.phone_lm import estimate_phone_lm

GOLDEN = ["lm1_tiny", "lm2_tri_mono", "lm3_4gram_mono", "lm6_biphone_tied", "lm8_onesent"]
SENTENCES = st.lists(st.lists(st.integers(1, 4), max_size=12), min_size=1, max_size=12).filter(any)


def read_golden(shared, case):
    folder = shared / "golden/kaldi/lm"
    command = json.loads((folder / "index.json").read_text())[case]["lm_opts"]
    options = {
        name.replace("-", "_"): int(value) for name, value in re.findall(r"--([a-z-]+)=(\d+)", command)
    }
    lines = (folder / case / "phone_seqs.txt").read_text().splitlines()
    return (
        [[int(phone) for phone in line.split()[1:]] for line in lines],
        options,
        np.load(folder / case / f"{case}.npz"),
    )


@pytest.mark.parametrize("case", GOLDEN)
def test_states_arcs_and_weights_are_those_of_kaldi(shared, case):
    """State for state and arc for arc, in Kaldi's own numbering."""
    sequences, options, golden = read_golden(shared, case)
    fsa = estimate_phone_lm(sequences, **options)
    order = np.lexsort((golden["lm_arc_label"], golden["lm_arc_src"]))
    assert (fsa.num_states, fsa.start) == (int(golden["lm_num_states"]), int(golden["lm_start"]))
    np.testing.assert_array_equal(fsa.src, golden["lm_arc_src"][order])
    np.testing.assert_array_equal(fsa.dst, golden["lm_arc_dst"][order])
    np.testing.assert_array_equal(fsa.pdf + 1, golden["lm_arc_label"][order])
    np.testing.assert_allclose(
        -fsa.log_prob, golden["lm_arc_cost"][order], rtol=0, atol=tolerances.KALDI_PHONE_LM
    )
    np.testing.assert_allclose(
        -fsa.final_log_prob, golden["lm_final_cost"], rtol=0, atol=tolerances.KALDI_PHONE_LM
    )


@given(SENTENCES, st.integers(2, 5), st.integers(0, 6), st.data())
def test_it_is_stochastic_deterministic_trim_and_accepts_what_it_saw(sentences, ngram_order, num_extra, data):
    no_prune = data.draw(st.integers(1, ngram_order))
    fsa = estimate_phone_lm(sentences, ngram_order, num_extra, no_prune)
    mass = np.exp(fsa.final_log_prob) + np.bincount(fsa.src, np.exp(fsa.log_prob), minlength=fsa.num_states)
    np.testing.assert_allclose(mass, 1.0, rtol=0.0, atol=tolerances.ENUMERATION)
    assert len(set(zip(fsa.src.tolist(), fsa.pdf.tolist(), strict=True))) == fsa.num_arcs
    assert fsa.trim().num_states == fsa.num_states
    assert all(score(fsa, sentence) > -math.inf for sentence in sentences)


@given(st.integers(0, 2**32 - 1), st.integers(2, 5), st.integers(0, 60), st.integers(1, 4))
@example(347, 4, 4, 2)  # a state comes into the queue at about its cost
@example(1, 2, 0, 3)  # what is never pruned lies above the order
def test_the_states_left_are_those_of_one_queue_of_merges(seed, ngram_order, num_extra, no_prune):
    rng = np.random.default_rng(seed)
    num_phones = int(rng.integers(2, 12))
    share = np.arange(1, num_phones + 1) ** -float(rng.choice([0, 0.5, 1, 2]))
    share /= share.sum()
    lengths = rng.integers(0, 12, int(rng.integers(1, 200)))
    sentences = [(rng.choice(num_phones, length, p=share) + 1).tolist() for length in (*lengths, 1)]
    fsa = estimate_phone_lm(sentences, ngram_order, num_extra, no_prune)
    left = left_by_a_queue(sentences, ngram_order - 1, num_extra, no_prune)
    number = {history: state for state, history in enumerate(left)}
    arcs = []
    for history, counts in left.items():
        for phone, count in sorted(counts.items()):
            ahead = (*history, phone)[1 - ngram_order :] if phone else None
            while phone and ahead not in number:
                ahead = ahead[1:]
            arcs.append((number[history], number.get(ahead, -1), phone - 1, math.log(count / counts.total())))
    assert fsa.num_states == len(left)
    assert list(zip(fsa.src, fsa.dst, fsa.pdf, fsa.log_prob, strict=True)) == [a for a in arcs if a[1] >= 0]
    final = {state: value for state, value in enumerate(fsa.final_log_prob) if value > -math.inf}
    assert final == {src: value for src, dst, _, value in arcs if dst < 0}


def left_by_a_queue(sentences, longest, num_extra, no_prune):
    """Counts of what follows each history that is left when one after the other was merged, as `prune_by` describes it."""
    counts = {}

    def appears(history):
        if history not in counts:
            counts[history] = Counter()
            if len(history) >= no_prune:
                appears(history[1:])

    for sentence in sentences:
        text = (0, *sentence, 0)
        for place in range(1, len(text)):
            history = text[max(0, place - longest) : place]
            appears(history)
            counts[history][text[place]] += 1

    number = {history: state for state, history in enumerate(counts)}
    histories = list(counts)
    endings: dict = {}
    for history in histories:
        for oldest in range(len(history) + 1):
            endings.setdefault(history[oldest:], []).append(history)
    most = np.arange(1 + sum(len(sentence) + 1 for sentence in sentences))
    times_log = most * np.log(np.maximum(most, 1))

    def alive(history):
        return any(counts[longer] for longer in endings.get(history, ()))

    def may_merge(history):
        living = [longer for longer in endings[history] if counts[longer]]
        if len(history) < no_prune or living != [history]:
            return False
        return len(history) == longest or not any(alive((*history, p)) for p in counts[history] if p)

    def entry(history):
        own, other = counts[history], counts[history[1:]]
        sizes = own.total(), other.total()
        if not other:
            return 1e-15 * sizes[0], -number[history]
        cost = times_log[sum(sizes)] - times_log[sizes[0]] - times_log[sizes[1]]
        for phone, count in own.items():
            cost += times_log[count] + times_log[other[phone]] - times_log[count + other[phone]]
        return float(np.float32(max(cost, 0.0))), -number[history]

    active = initial = sum(map(bool, counts.values()))
    target = sum(len(history) == no_prune - 1 for history in histories) + num_extra
    for stage in range(1, 5):
        queue = [entry(history) for history in histories if may_merge(history)]
        heapq.heapify(queue)
        while active > initial + math.trunc((target - initial) * stage / 4) and queue:
            known, minus = heapq.heappop(queue)
            history = histories[-minus]
            now = entry(history)
            if abs(now[0] - known) > 1e-3 * (now[0] + known):
                heapq.heappush(queue, now)
                continue
            backoff = history[1:]
            active -= bool(counts[backoff])
            counts[backoff].update(counts[history])
            counts[history] = Counter()
            if may_merge(backoff):
                heapq.heappush(queue, entry(backoff))
    return {history: counter for history, counter in counts.items() if counter}


def score(fsa, sentence):
    return Scorer(fsa)([phone - 1 for phone in sentence])


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        ([], "no phone"),
        ([[1, 2], [3, 0]], r"sequences\[1\]\[1\] = 0"),
        ([[2**31]], r"sequences\[0\]\[0\] = 2147483648"),
        ([[1], [1.5]], r"sequences\[1\] = \[1\.5\]: expected integer phone ids"),
        ([1, 2], r"sequences\[0\] = 1"),
    ],
)
def test_bad_sentences_are_refused_by_index(sentences, message):
    with pytest.raises(GraphError, match=message):
        estimate_phone_lm(sentences)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ngram_order": 2.5}, "ngram_order = 2.5; expected an integer"),
        ({"ngram_order": 1, "no_prune_ngram_order": 1}, "ngram_order = 1: expected at least 2"),
        ({"no_prune_ngram_order": 0}, "no_prune_ngram_order = 0"),
        ({"num_extra_lm_states": -1}, "num_extra_lm_states = -1"),
    ],
)
def test_bad_options_are_refused_by_name(options, message):
    with pytest.raises(ConfigError, match=message):
        estimate_phone_lm([[1, 2]], **options)


# Smoothed n-grams without epsilons, and denominators over units with a blank: each path scores as the model says.


UNITS = ("_a", "b", "_c")
SPELLED = [["_a", "b", "_c"], ["_c", "b", "b"], ["_a", "_a"], ["b"], ["_c", "b"], ["_a", "b", "_c", "b"]]  # fmt: skip
TOPOLOGIES = ["standard", "compact", "selfless", "minimal"]
MODEL = estimate_phone_lm([[UNITS.index(unit) + 1 for unit in s] for s in SPELLED], 2, 0, 2)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_every_sentence_has_the_probability_of_the_arpa_file(order, tmp_path):
    text = estimate_arpa(SPELLED, order, vocabulary=UNITS)
    path = tmp_path / "lm.arpa"
    path.write_text(text)
    fsa = ngram_acceptor(path, UNITS)
    score, ngrams = Scorer(fsa, log_add), parse_arpa(text)
    for length in range(5):
        for ids in itertools.product(range(3), repeat=length):
            exact = sentence_log_prob(ngrams, [UNITS[i] for i in ids], order)
            assert score(ids) == pytest.approx(exact, abs=tolerances.FEW_FLOAT32_TERMS)
    assert len(set(zip(fsa.src.tolist(), fsa.pdf.tolist(), strict=True))) == fsa.num_arcs
    mass = np.bincount(fsa.src, np.exp(fsa.log_prob), fsa.num_states) + np.exp(fsa.final_log_prob)
    np.testing.assert_allclose(mass, 1.0, rtol=0, atol=tolerances.FEW_FLOAT32_TERMS)


@pytest.mark.parametrize(
    ("units", "message"),
    [
        ((*UNITS, "b"), "'b' occurs twice among the units"),
        (("<s>", "b"), "'<s>' among the units cannot stand"),
        (("x",), r"lm\.arpa: none of its words is among the 1 units"),
    ],
)
def test_units_that_make_no_acceptor_are_refused_by_name(units, message, tmp_path):
    path = tmp_path / "lm.arpa"
    path.write_text(estimate_arpa(SPELLED, 2))
    refuses(GraphError, message, ngram_acceptor, path, units)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize(
    "model", [MODEL, Fsa(1, [0, 0], [0, 0], [0, 1], [-1.0, -0.5], [-2.0])], ids=["bigram", "one state"]
)
def test_a_frame_sequence_scores_as_the_targets_that_it_spells(model, topology):
    """The log-sum over targets of their model score and of the ways in which their own CTC graph reads the frames."""
    score = Scorer(ctc_denominator(model, topology), log_add)
    model_score = Scorer(model, log_add)
    targets = {
        target: (
            model_score(target),
            Scorer(ctc_graph([label + 1 for label in target], 0, topology), log_add),
        )
        for length in range(5)
        for target in itertools.product(range(int(model.pdf.max()) + 1), repeat=length)
        if model_score(target) > -math.inf
    }
    width = int(model.pdf.max()) + 2
    for frames in itertools.chain(*(pdf_sequences(width, length) for length in range(5))):
        expected = -math.inf
        for weight, spells in targets.values():
            expected = log_add(expected, weight + spells(frames))
        assert score(frames) == pytest.approx(expected, abs=tolerances.ENUMERATION)
