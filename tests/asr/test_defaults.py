"""Options chosen for the data: what the rules see of a corpus, and what they make of it."""

import dataclasses
import json

import numpy as np
import pytest

from fsachain.asr.cli.config import Experiment, Given
from fsachain.asr.cli.training import OPTIONS, _with_leak_of_before
from fsachain.asr.data.features import FeatureConfig, compute_features
from fsachain.asr.data.frames import add_context
from fsachain.asr.data.kaldi_dir import DataDir
from fsachain.asr.kaldi.values import write_matrices
from fsachain.asr.pipeline.defaults import (
    CEPSTRA,
    FILTERS,
    RECORDINGS,
    DataSummary,
    choose,
    describe_data,
    is_predictable,
)
from fsachain.asr.pipeline.held_out import PhoneLmOrder, phone_lm_orders, word_gain
from fsachain.errors import ConfigError
from fsachain.graph.lexicon import Lexicon

WORDS = ("zulu", "yankee", "quebec", "whiskey", "foxtrot", "lima", "echo", "tango", "kilo", "bravo")


def orders(*held_out, unseen=(0.0, 0.01, 0.02), arcs=(500, 3000, 9000)):
    kinds = ((2, 2, 0), (3, 3, 0), (4, 3, 1000))
    return tuple(PhoneLmOrder(*kind, *one) for kind, *one in zip(kinds, held_out, unseen, arcs, strict=True))


def summary(**changes):
    """45 minutes of 70 speakers, recordings."""
    plain = DataSummary(
        utterances=950,
        hours=0.75,
        seconds_per_utterance=2.8,
        frames_per_utterance=280,
        speakers=70,
        seconds_per_speaker=38.0,
        words=3500,
        vocabulary=110,
        phones=34,
        phones_per_second=7.0,
        crowded={1: 0.0, 2: 0.0, 3: 0.0},
        kind=RECORDINGS,
        columns=0,
        has_deltas=False,
        sample_rate=16000,
        orders=orders(-2.3, -2.4, -4.0),
        word_gain=1.2,
    )
    return dataclasses.replace(plain, **changes)


def chosen(data, given=None, **how):
    return {one.option: one.value for one in choose(data, given or {}, **how)}


def text(rng, sentences, vocabulary, length):
    return [tuple(rng.choice(vocabulary, size=length).tolist()) for _ in range(sentences)]


def test_the_order_of_strings_of_few_words_is_higher_than_that_of_little_text_of_many():
    rng = np.random.default_rng(1)
    letters = list("abcdefghijklmnopqrstuvwxyz")
    many = ["".join(rng.choice(letters, size=6).tolist()) for _ in range(400)]
    for vocabulary, sentences, expected in ((WORDS, 600, 4), (many, 60, 2)):
        said = text(rng, sentences, vocabulary, 5)
        lexicon = Lexicon.characters([list(vocabulary)])
        found = phone_lm_orders(said, lexicon)
        assert [one.order for one in found] == [2, 3, 4]
        data = summary(orders=tuple(found))
        assert chosen(data)["phone_lm.ngram_order"] == expected, found


def test_sentences_said_ten_times_tell_no_more_than_said_once():
    """Held out is a sentence with all its repetitions, or a high order would know it by heart."""
    rng = np.random.default_rng(2)
    vocabulary = ["".join(rng.choice(list("abcdefghij"), size=5).tolist()) for _ in range(200)]
    once = text(rng, 80, vocabulary, 4)
    lexicon = Lexicon.characters([vocabulary])
    repeated = phone_lm_orders(once * 10, lexicon)
    assert max(repeated, key=lambda one: one.held_out).order == 2
    assert repeated[2].unseen > 0.2
    assert phone_lm_orders(once[:3], lexicon) == []


def test_likelihood_of_an_order_is_that_of_its_model_where_all_was_seen():
    lexicon = Lexicon.characters([["ab"], ["ba"]], silence=None)
    said = [("ab",) * n for n in range(1, 21)]
    bigram = phone_lm_orders(said, lexicon)[0]
    # After b, 190 of 210 go on with a, the others end; a is always followed by b. Folds differ by a few sentences.
    exact = (190 * np.log(190 / 210) + 20 * np.log(20 / 210)) / (2 * 210 + 20)
    assert bigram.unseen == 0.0
    assert bigram.held_out == pytest.approx(exact, rel=0.05)


def test_a_bigram_of_words_brings_nothing_where_any_word_may_follow():
    rng = np.random.default_rng(3)
    assert abs(word_gain(text(rng, 400, WORDS, 5), len(WORDS))) < 0.1
    fixed = [tuple(WORDS[(first + n) % 10] for n in range(5)) for first in range(10)] * 5
    assert word_gain([*fixed, *text(rng, 10, WORDS, 5)], len(WORDS)) > 0.5
    assert word_gain([], 10) == 0.0


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "speaker"),
        ({"speakers": 1, "seconds_per_speaker": 900.0}, "global"),
        ({"seconds_per_speaker": 4.0}, "utterance"),
        ({"speakers": 0, "seconds_per_speaker": 0.0}, "utterance"),
        ({"speakers": 0, "seconds_per_utterance": 0.8}, "global"),
    ],
)
def test_the_scope_of_normalisation_follows_speakers_and_their_seconds(changes, expected):
    assert chosen(summary(**changes))["cmvn.scope"] == expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (orders(-2.66, -3.17, -4.96, unseen=(0.02, 0.17, 0.41)), (2, 2, 0)),
        (orders(-2.43, -2.22, -2.51, unseen=(0.0, 0.03, 0.11)), (3, 3, 0)),
        (orders(-2.40, -2.20, -2.00, unseen=(0.0, 0.01, 0.03)), (4, 3, 1000)),
        (orders(-2.40, -2.35, -2.33), (2, 2, 0)),
        (orders(-2.40, -2.00, -1.80, arcs=(500, 70_000, 200_000)), (2, 2, 0)),
        (orders(-2.40, -2.20, -2.00, unseen=(0.0, 0.01, 0.2)), (3, 3, 0)),
    ],
)
def test_the_order_of_the_phone_language_model_has_to_pay(found, expected):
    names = ("ngram_order", "no_prune_ngram_order", "num_extra_lm_states")
    options = chosen(summary(orders=found))
    assert tuple(options[f"phone_lm.{name}"] for name in names) == expected


def test_cepstra_get_deltas_unless_they_bring_them():
    cepstra = summary(kind=CEPSTRA, columns=13, sample_rate=0)
    options = chosen(cepstra)
    assert options["features.deltas"] == 2
    assert "perturbation.noise" not in options
    assert "features.deltas" not in chosen(dataclasses.replace(cepstra, has_deltas=True, columns=39))
    assert "features.deltas" not in chosen(summary(kind=FILTERS, columns=40, sample_rate=0))
    assert chosen(summary(), {"features.kind": "mfcc"})["features.deltas"] == 2


def test_predictable_phones_get_masks_and_views_others_do_not():
    strings = summary(orders=orders(-1.27, -0.90, -0.95))
    assert is_predictable(strings) and not is_predictable(summary())
    options = chosen(strings)
    assert options["augment.time_masks"] and options["perturbation.noise"] and options["loss.consistency"]
    assert {"augment.time_masks", "perturbation.noise", "loss.consistency"}.isdisjoint(chosen(summary()))
    assert "augment.frequency_masks" not in chosen(dataclasses.replace(strings, kind=CEPSTRA))


def test_what_is_given_is_never_chosen_and_others_follow_it():
    every = chosen(summary())
    for option, value in every.items():
        assert option not in chosen(summary(), {option: value})
    assert "loss.xent_regularize" not in chosen(summary(), {"network.xent": "none"})
    assert chosen(summary(), {"decoding.ngram_order": 0})["decoding.lm_weights"] == [1.0]
    assert chosen(summary(), {"phone_lm.ngram_order": 4})["phone_lm.no_prune_ngram_order"] == 3
    assert "phone_lm.no_prune_ngram_order" not in chosen(summary(), {"phone_lm.ngram_order": 6})


@pytest.mark.parametrize("given", [{"lang.topology": "ctc"}, {"phone_lm.ngram_order": 0}])
def test_ctc_has_no_phone_language_model_leak_or_shifts_of_the_search(given):
    options = chosen(summary(), given)
    gone = {"phone_lm.ngram_order", "loss.leaky_hmm_coefficient", "network.xent", "decoding.frame_shift"}
    assert gone.isdisjoint(options)
    assert options["cmvn.scope"] == "speaker"


def test_fast_speech_keeps_more_frames():
    fast = summary(crowded={1: 0.0, 2: 0.01, 3: 0.2})
    assert chosen(fast)["network.subsampling"] == 2
    assert "network.subsampling" not in chosen(summary())


def test_sizes_grow_with_hours():
    widths = [
        chosen(summary(hours=hours, utterances=round(1200 * hours)))["network.channels"]
        for hours in (0.3, 3, 30, 300)
    ]
    assert widths == sorted(set(widths))
    epochs = [
        chosen(summary(hours=hours, utterances=round(1200 * hours)))["train.num_epochs"]
        for hours in (0.3, 3, 300)
    ]
    assert epochs == sorted(set(epochs), reverse=True)


@pytest.mark.parametrize(
    "data",
    [
        summary(),
        summary(orders=orders(-1.27, -0.90, -0.95), word_gain=0.0),
        summary(kind=CEPSTRA, columns=13, sample_rate=0),
        summary(hours=50.0, utterances=30_000, words=300_000),
        summary(crowded={1: 0.0, 2: 0.01, 3: 0.2}),
        summary(crowded={1: 0.1, 2: 0.2, 3: 0.4}),
        summary(orders=(), words=0),
    ],
)
@pytest.mark.parametrize(
    "given", [{}, {"lang.topology": "ctc", "phone_lm.ngram_order": 0}, {"network.kind": "conformer"}]
)
def test_choices_make_a_configuration_that_is_possible(data, given):
    sections = {}
    for option, value in {**chosen(data, given), **given}.items():
        *tables, name = option.split(".")
        table = sections
        for inner in tables:
            table = table.setdefault(inner, {})
        table[name] = value
    experiment = Experiment.from_dict(sections)
    features = (
        {"num_columns": 13, "kind": "archive"}
        if data.kind == CEPSTRA
        else {"num_mel_bins": 40, "sample_rate": 16000}
    )
    experiment = dataclasses.replace(
        experiment, features=dataclasses.replace(experiment.features, **features)
    )
    assert experiment.network_spec(40).sketch.subsampling >= 1
    for one in choose(data, given):
        assert one.reason and json.dumps(one.value)


def test_choices_name_options_that_exist():
    with pytest.raises(ConfigError):
        Experiment.from_dict({"phone_lm": {"order": 3}})


def test_phone_lm_says_that_another_order_is_likelier(fsachain, recorded):
    rng = np.random.default_rng(1)
    words = sorted({"".join(rng.choice(list("abcdefghijklmnopqrstuvwxyz"), size=6)) for _ in range(300)})
    said = text(rng, 60, words, 4)
    (recorded / "said").write_text("".join(f"u{n} {' '.join(one)}\n" for n, one in enumerate(said)))
    fsachain.ok("spell said spelled.txt")
    fsachain.ok("lang spelled.txt letters")
    told = fsachain.ok("phone-lm said four.fst --lang letters --set phone_lm.ngram_order=4").out
    assert "phone_lm.ngram_order is 4, with " in told and "held-out transcripts; 2 has " in told
    assert (
        "held-out" not in fsachain.ok("phone-lm said two.fst --lang letters --set phone_lm.ngram_order=2").out
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, 1e-5), ({"loss": {"leaky_hmm_coefficient": 0.2}}, 0.2), (None, 0.2)],
)
def test_a_training_of_an_earlier_version_goes_on_with_its_leak(tmp_path, given, expected):
    """Its default was another; options that are given count, and a plain call has those of the language folder."""
    experiment = Experiment.from_dict({"loss": {"leaky_hmm_coefficient": 0.2}})
    (tmp_path / OPTIONS).write_text(json.dumps({"loss": {"leaky_hmm_coefficient": 1e-5}}))
    asked = None if given is None else Given(given, "small.yaml", True)
    found = _with_leak_of_before(experiment, tmp_path, asked)
    assert found.loss.leaky_hmm_coefficient == expected
    assert _with_leak_of_before(experiment, tmp_path / "new", asked) == experiment


def write_data(folder, features, speakers=4):
    folder.mkdir(exist_ok=True)
    names = sorted(features)
    write_matrices(folder / "feats.ark", [(name, features[name]) for name in names])
    rng = np.random.default_rng(5)
    (folder / "text").write_text("".join(f"{name} {' '.join(rng.choice(WORDS, size=4))}\n" for name in names))
    (folder / "utt2spk").write_text(
        "".join(f"{name} s{number % speakers}\n" for number, name in enumerate(names))
    )
    return DataDir.read(folder)


def speech_like(number):
    """Coloured noise with slow changes of level, as speech has."""
    rng = np.random.default_rng(number)
    samples = np.convolve(rng.standard_normal(16000), [1, -0.9, 0.5, -0.2], "same")
    level = np.repeat(rng.uniform(0.02, 1.0, size=40), 400)
    return (0.1 * samples * level).astype(np.float32)


@pytest.mark.parametrize(
    ("kind", "deltas", "expected"),
    [("mfcc", 0, (CEPSTRA, 13, False)), ("mfcc", 2, (CEPSTRA, 39, True)), ("fbank", 0, (FILTERS, 23, False))],
)
def test_the_kind_of_stored_features_is_read_from_their_columns(tmp_path, kind, deltas, expected):
    config = FeatureConfig(kind=kind, sample_rate=8000, num_mel_bins=23, num_ceps=13)
    features = {f"u{n:02}": add_context(compute_features(speech_like(n), config), deltas) for n in range(12)}
    data = write_data(tmp_path / "train", features)
    lexicon = Lexicon.characters([list(WORDS)])
    found = describe_data(data.utterances, [data.utterances[:4]], lexicon, FeatureConfig())
    assert (found.kind, found.columns, found.has_deltas) == expected
    assert (found.speakers, found.utterances, found.vocabulary <= 10) == (4, 12, True)
    assert found.seconds_per_utterance == pytest.approx(2.0, abs=0.02)
    assert found.seconds_per_speaker == pytest.approx(2.0, abs=0.05), "of the set where it is least"
    assert "4 speakers" in str(found)


def test_utterances_that_name_no_speaker_have_none(tmp_path):
    features = {
        f"u{n:02}": np.random.default_rng(n).standard_normal((50, 13)).astype(np.float32) for n in range(8)
    }
    data = write_data(tmp_path / "train", features)
    (tmp_path / "train" / "utt2spk").unlink()
    data = DataDir.read(tmp_path / "train")
    found = describe_data(data.utterances, [], Lexicon.characters([list(WORDS)]), FeatureConfig())
    assert found.speakers == 0
    assert chosen(found)["cmvn.scope"] == "global"


def test_statistics_are_those_of_speech_if_features_come_from_recordings():
    assert chosen(summary())["cmvn.counts"] == "speech"
    for kind in (CEPSTRA, FILTERS):  # nobody knows the level of such frames
        assert "cmvn.counts" not in chosen(summary(kind=kind, columns=13, sample_rate=0))
    assert "cmvn.counts" not in chosen(summary(), {"cmvn.counts": "signal"})
