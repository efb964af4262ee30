"""Smoothed n-grams without epsilons, and denominators over units with a blank: each path scores as the model says."""

import itertools
import math
import re

import numpy as np
import pytest
import tolerances
from graph_paths import Scorer, log_add, pdf_sequences

from fsachain.fsa import Fsa
from fsachain.graph.ctc import ctc_graph
from fsachain.graph.denominator import ctc_denominator
from fsachain.graph.grammar import estimate_arpa, ngram_acceptor
from fsachain.graph.phone_lm import estimate_phone_lm

UNITS = ("_a", "b", "_c")
SENTENCES = [["_a", "b", "_c"], ["_c", "b", "b"], ["_a", "_a"], ["b"], ["_c", "b"], ["_a", "b", "_c", "b"]]
TOPOLOGIES = ["standard", "compact", "selfless", "minimal"]
MODEL = estimate_phone_lm([[UNITS.index(unit) + 1 for unit in s] for s in SENTENCES], 2, 0, 2)


def arpa_probability(text):
    """log P(sentence) by the definition of the format, read off its lines."""
    prob, backoff = {}, {}
    for line in text.splitlines():
        fields = re.split(r"\t", line)
        if len(fields) >= 2:
            words = tuple(fields[1].split())
            prob[words] = float(fields[0]) * math.log(10)
            backoff[words] = float(fields[2]) * math.log(10) if len(fields) == 3 else 0.0

    def conditional(history, word):
        if (*history, word) in prob:
            return prob[(*history, word)]
        return backoff.get(history, 0.0) + conditional(history[1:], word)

    def sentence(words, order):
        said, total = ("<s>",), 0.0
        for word in (*words, "</s>"):
            total += conditional(said[-(order - 1) :] if order > 1 else (), word)
            said = (*said, word)
        return total

    return sentence


@pytest.mark.parametrize("order", [1, 2, 3])
def test_every_sentence_has_the_probability_of_the_arpa_file(order, tmp_path):
    text = estimate_arpa(SENTENCES, order, vocabulary=UNITS)
    path = tmp_path / "lm.arpa"
    path.write_text(text)
    fsa = ngram_acceptor(path, UNITS)
    score, expected = Scorer(fsa, log_add), arpa_probability(text)
    for length in range(5):
        for ids in itertools.product(range(3), repeat=length):
            exact = expected(tuple(UNITS[i] for i in ids), order)
            assert score(ids) == pytest.approx(exact, abs=tolerances.FEW_FLOAT32_TERMS)
    assert len(set(zip(fsa.src.tolist(), fsa.pdf.tolist(), strict=True))) == fsa.num_arcs
    mass = np.bincount(fsa.src, np.exp(fsa.log_prob), fsa.num_states) + np.exp(fsa.final_log_prob)
    np.testing.assert_allclose(mass, 1.0, rtol=0, atol=tolerances.FEW_FLOAT32_TERMS)


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
