"""Warnings of a training and of a tuning: what is wrong, and which option to try."""

import itertools

import pytest

from fsachain.asr.decode.tune import TuningPoint, choose, tuning_advice
from fsachain.asr.decode.wer import ErrorCounts
from fsachain.asr.train.advice import advice, unseen_advice
from fsachain.graph.decoding import Weights


def epochs_of(train, dev):
    return [{"train": {"objf": one}, "dev": {"objf": other}} for one, other in zip(train, dev, strict=True)]


@pytest.mark.parametrize(
    ("train", "dev"),
    [
        (
            [-0.82, -0.64, -0.45, -0.30, -0.21, -0.15, -0.12, -0.10],
            [-0.76, -0.65, -0.5, -0.4, -0.3, -0.26, -0.25, -0.247],
        ),
        (
            [-0.9, -0.7, -0.5, -0.4, -0.35, -0.31, -0.29, -0.285],
            [-0.9, -0.7, -0.6, -0.5, -0.47, -0.45, -0.43, -0.427],
        ),
    ],
)
def test_trainings_that_went_well_are_not_warned_of(train, dev):
    for done in range(1, 9):
        assert advice(epochs_of(train, dev)[:done], 8) == {}


def test_a_training_without_progress_is_told_after_a_quarter_of_its_epochs():
    found = [advice(epochs_of([-0.884, -0.883, -0.882, -0.881][:n], [-0.84] * n), 12) for n in range(1, 5)]
    assert [set(one) for one in found] == [set(), set(), {"progress"}, set()]
    assert "nothing is learnt" in found[2]["progress"] and "fsachain validate" in found[2]["progress"]


def test_a_falling_objective_names_the_learning_rate():
    found = advice(epochs_of([-0.5, -0.2, -0.4], [-0.5, -0.3, -0.4]), 20)
    assert "objf fell to -0.4000 from -0.2000" in found["fall"] and "train.schedule.peak" in found["fall"]
    assert advice(epochs_of([-0.5, -0.2, -0.24], [-0.5, -0.3, -0.3]), 20) == {}


def test_a_development_set_far_behind_names_the_phone_language_model():
    train, dev = [-0.6, -0.4, -0.3, -0.21], [-0.6, -0.5, -0.5, -0.48]
    found = advice(epochs_of(train, dev), 4)
    assert "-0.2100 in training, -0.4800 on the development set" in found["lag"]
    assert "phone_lm.ngram_order" in found["lag"]
    assert "lag" not in advice(epochs_of(train, dev), 20), "too early to tell"


def test_a_development_set_of_unseen_ngrams_is_told():
    assert unseen_advice(6, 55) is None and unseen_advice(0, 0) is None
    assert unseen_advice(50, 55).startswith("50 of 55 utterances")


def table(best, lm_weights=(0.5, 1.0, 1.5), penalties=(0.0, 1.0, 2.0)):
    points = [
        TuningPoint(weights, ErrorCounts(0, 0, 0 if weights == best else 1, 9, 10))
        for weights in (Weights(*one) for one in itertools.product(lm_weights, penalties, [0.0]))
    ]
    result = choose(points)
    assert result.best.weights == best
    return result


def test_weights_inside_their_table_are_not_warned_of():
    assert tuning_advice(table(Weights(1.0, 1.0, 0.0))) == []
    assert tuning_advice(table(Weights(1.0, 0.0, 0.0), (1.0,), (0.0,))) == [], (
        "single values are taken as they are"
    )


def test_weights_at_an_edge_are_named():
    (weight, penalty) = tuning_advice(table(Weights(1.5, 0.0, 0.0)))
    assert "decoding.lm_weights is 1.5, at the edge of 0.5 to 1.5" in weight
    assert "decoding.word_insertion_penalties is 0, at the edge of 0 to 2" in penalty


@pytest.mark.parametrize(
    ("has_grammar", "meaning"), [(True, "without its language model"), (False, "a loop of words")]
)
def test_a_low_weight_is_explained(has_grammar, meaning):
    result = table(Weights(0.015625, 1.0, 0.0), (0.0078125, 0.015625, 0.5))
    (told,) = tuning_advice(result, has_grammar)
    assert told.startswith("LM weight 0.015625: ") and meaning in told
