"""Best word sequences of a lattice, word sequences scored by an n-gram, and a second language model over both."""

import itertools
import math

import numpy as np
import pytest
import tolerances
from graph_paths import grammar_cost
from hypothesis import given, settings
from hypothesis import strategies as st
from test_grammar import parse_arpa, sentence_log_prob

from fsachain import ContextTree, Lexicon, Topology
from fsachain.asr.decode.decoder import Decoder, DecoderConfig
from fsachain.asr.decode.rescore import (
    Rescorer,
    RescoringConfig,
    WordSequence,
    best_word_sequences,
    sums_over_paths,
)
from fsachain.errors import ConfigError
from fsachain.graph.decoding import Weights, build_decoding_graph
from fsachain.graph.grammar import NgramScores, estimate_arpa, grammar_from_arpa, word_loop

WIDE = DecoderConfig(beam=1000.0, lattice_beam=1000.0, max_active=10**6, first_beam=1000.0)
# A trigram with every kind of back-off: seen, backed off once and twice, and an end that is unseen after "da".
ARPA = """\\data\\
ngram 1=5
ngram 2=4
ngram 3=1

\\1-grams:
-0.9\t</s>
-99\t<s>\t-0.3
-0.5\tba\t-0.2
-0.7\tda\t-0.4
-0.8\tbad

\\2-grams:
-0.25\t<s> ba\t-0.1
-0.35\tba da\t-0.15
-0.45\tda bad
-0.55\tbad </s>

\\3-grams:
-0.15\t<s> ba da

\\end\\
"""


@pytest.fixture(scope="module")
def lexicon(tmp_path_factory):
    path = tmp_path_factory.mktemp("lexicon") / "lexicon.txt"
    path.write_text("ba b a\nda d a\nbad b a d\n")
    return Lexicon.read(path)


@pytest.fixture(scope="module")
def tree(lexicon):
    return ContextTree.monophone(lexicon.phones, Topology.chain_one_pdf())


@pytest.fixture(scope="module")
def trigram(lexicon, tmp_path_factory):
    path = tmp_path_factory.mktemp("lm") / "trigram.arpa"
    path.write_text(ARPA)
    return grammar_from_arpa(path, lexicon)


def scores_of(tree, frames, seed):
    return np.random.default_rng(seed).normal(scale=1.5, size=(frames, tree.num_pdfs)).astype(np.float32)


def test_an_ngram_scores_sentences_as_its_arpa_file_says_and_their_best_paths_as_openfst(lexicon, trigram):
    scores, ngrams = NgramScores(trigram), parse_arpa(ARPA)
    for length in range(4):
        for ids in itertools.product((1, 2, 3), repeat=length):
            exact = sentence_log_prob(ngrams, [lexicon.words[i - 1] for i in ids], 3)
            assert scores.log_prob(ids) == pytest.approx(exact, abs=tolerances.FEW_FLOAT32_TERMS)
            cost = grammar_cost(trigram, ids)
            assert scores.best_path_log_prob(ids) == pytest.approx(-cost, abs=tolerances.FEW_FLOAT32_TERMS)
            assert scores.best_path_log_prob(ids) >= scores.log_prob(ids)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), frames=st.integers(4, 12))
def test_each_sequence_has_the_score_of_decoding_it_alone(lexicon, tree, trigram, seed, frames):
    scores = scores_of(tree, frames, seed)
    decoder = Decoder(build_decoding_graph(lexicon, tree, trigram, lm_weight=0.7), lexicon.words, WIDE)
    sequences = best_word_sequences(decoder.lattice(scores), decoder.words, 12)
    assert 1 <= len(sequences) <= 12
    assert len({one.words for one in sequences}) == len(sequences)
    assert all(a.log_prob >= b.log_prob for a, b in itertools.pairwise(sequences))
    best = decoder.decode(scores)
    assert best.graph_log_prob + best.acoustic_log_prob == pytest.approx(
        sequences[0].log_prob, abs=tolerances.GRAPH_COST
    )
    loop = word_loop(lexicon.words, lexicon)
    free = Decoder(build_decoding_graph(lexicon, tree, loop, lm_weight=0.0), lexicon.words, WIDE)
    heard = {one.words: one.log_prob for one in best_word_sequences(free.lattice(scores), free.words, 10_000)}
    language = NgramScores(trigram)
    for one in sequences:
        ids = [lexicon.word_id(word) for word in one.words]
        expected = heard[one.words] + 0.7 * language.best_path_log_prob(ids)
        assert one.log_prob == pytest.approx(expected, abs=tolerances.GRAPH_COST)


def test_the_lattice_beam_leaves_out_what_is_worse_and_nothing_else(lexicon, tree, trigram):
    graph = build_decoding_graph(lexicon, tree, trigram)
    left_out = 0
    for seed in range(5):
        scores = scores_of(tree, 9, seed)
        every, near = (
            best_word_sequences(
                Decoder(graph, lexicon.words, config).lattice(scores), lexicon.words, 10_000, beam
            )
            for config, beam in (
                (WIDE, math.inf),
                (DecoderConfig(beam=1000.0, lattice_beam=2.0, first_beam=1000.0), 2.0),
            )
        )
        expected = [one for one in every if one.log_prob >= every[0].log_prob - 2.0]
        assert [one.words for one in near] == [one.words for one in expected]
        left_out += len(every) - len(near)
    assert left_out


def make_rescorer(lexicon, tree, old, new, seeds):
    outputs = {f"utt{seed}": scores_of(tree, 9, seed) for seed in seeds}
    decoder = Decoder(
        build_decoding_graph(lexicon, tree, old, lm_weight=0.8, word_insertion_penalty=0.3),
        lexicon.words,
        WIDE,
    )
    lists = {
        name: best_word_sequences(decoder.lattice(scores), lexicon.words, 10_000)
        for name, scores in outputs.items()
    }
    return Rescorer(lists, lexicon, NgramScores(old), Weights(0.8, 0.3), NgramScores(new)), outputs


def test_rescoring_all_sequences_finds_what_a_search_with_the_second_model_finds(lexicon, tree, tmp_path):
    """Where the second model is a bigram that has seen all pairs, so that backing off never pays."""
    path = tmp_path / "bigram.arpa"
    text = [["ba", "da"], ["da", "bad"], ["bad", "ba"], ["ba", "ba"], ["da", "da"], ["bad", "bad"]]
    text += [["ba", "bad"], ["bad", "da"], ["da", "ba"]]
    path.write_text(estimate_arpa(text * 3, order=2))
    new = grammar_from_arpa(path, lexicon)
    rescorer, outputs = make_rescorer(lexicon, tree, word_loop(lexicon.words, lexicon), new, range(8))
    for lm_weight, penalty in ((1.0, 0.0), (3.0, -1.0)):
        graph = build_decoding_graph(lexicon, tree, new, lm_weight=lm_weight, word_insertion_penalty=penalty)
        decoder = Decoder(graph, lexicon.words, WIDE)
        direct = {name: decoder.decode(scores).words for name, scores in outputs.items()}
        assert rescorer.best(lm_weight, penalty) == direct
        assert len(set(direct.values())) > 1


def every_way_to_say(words, lexicon, tree, frames):
    """Log-probability and pdf of each frame, of all silences and all durations."""
    spelt = [lexicon.pronunciations_of(word)[0][0] for word in words]
    silence = lexicon.silence_phone
    for silent in itertools.product((False, True), repeat=len(words) + 1):
        phones = [silence] * silent[0]
        for word, then in zip(spelt, silent[1:], strict=True):
            phones += [*word, *[silence] * then]
        for cuts in itertools.combinations(range(1, frames), len(phones) - 1) if phones else ():
            frames_of = np.diff((0, *cuts, frames))
            pdfs = [
                tree.hmm_pdfs(phone)[0][place > 0]
                for phone, n in zip(phones, frames_of, strict=True)
                for place in range(n)
            ]
            yield len(silent) * math.log(0.5), pdfs


@pytest.mark.parametrize("topology", [Topology.chain(), Topology.chain_one_pdf()])
def test_sums_over_paths_take_all_durations_and_silences(lexicon, topology):
    tree = ContextTree.monophone(lexicon.phones, topology)
    sequences = [(), ("ba",), ("ba", "da"), ("bad", "ba"), ("bad", "bad", "ba")]
    scores = scores_of(tree, 6, 1)
    found = sums_over_paths(sequences, scores, lexicon, tree)
    for words, total in zip(sequences, found, strict=True):
        paths = [
            log_prob + sum(float(scores[t, pdf]) for t, pdf in enumerate(pdfs))
            for log_prob, pdfs in every_way_to_say(words, lexicon, tree, 6)
        ]
        expected = np.logaddexp.reduce(paths) if paths else -math.inf
        assert total == pytest.approx(expected, abs=tolerances.FEW_FLOAT32_TERMS)
    assert found[-1] == -math.inf, "eight letters do not fit into six frames"


def test_without_a_silence_no_words_are_impossible(lexicon, tree):
    silent = Lexicon(lexicon.words, lexicon.phones, lexicon.pronunciations, None)
    assert sums_over_paths([()], scores_of(tree, 4, 1), silent, tree).tolist() == [-math.inf]
    assert sums_over_paths([], scores_of(tree, 4, 1), silent, tree).tolist() == []


def test_sums_over_paths_choose_what_most_paths_say(lexicon, tree, trigram):
    """Not always what the best path says; a sequence that does not fit is never chosen."""
    seeds, changed = range(40), 0
    rescorer, outputs = make_rescorer(lexicon, tree, trigram, trigram, seeds)
    lists = {name: rescorer._lists[name] for name in outputs}
    sums = {
        name: sums_over_paths([one.words for one in lists[name]], scores, lexicon, tree)
        for name, scores in outputs.items()
    }
    language = NgramScores(trigram)
    by_sums = Rescorer(lists, lexicon, language, Weights(0.8, 0.3), language, sums).best(0.7, 0.2)
    for name, sequences in lists.items():
        ids = [[lexicon.word_id(word) for word in one.words] for one in sequences]
        totals = [
            total + 0.7 * language.log_prob(its) - 0.2 * len(its)
            for total, its in zip(sums[name], ids, strict=True)
        ]
        assert by_sums[name] == sequences[int(np.argmax(totals))].words
        changed += by_sums[name] != rescorer.best(0.7, 0.2)[name]
    assert changed
    none = {name: np.full(len(total), -math.inf) for name, total in sums.items()}
    of_search = Rescorer(lists, lexicon, language, Weights(0.8, 0.3), language, none).best(0.7, 0.2)
    assert of_search == {name: sequences[0].words for name, sequences in lists.items()}


def test_the_grid_of_rescoring_grows_where_the_best_stands_at_its_edge(lexicon, trigram):
    """Each utterance is right from a penalty of its own on, under which one word is cheaper than two."""
    heard = {str(t): np.array([0.0, -t]) for t in (0.25, 0.75, 1.25)}
    sequences = [WordSequence(("ba", "da"), 0.0), WordSequence(("bad",), 0.0)]
    language = NgramScores(word_loop(lexicon.words, lexicon))
    lists = dict.fromkeys(heard, sequences)
    rescorer = Rescorer(lists, lexicon, language, Weights(1.0), language, heard)
    config = RescoringConfig(lm_weights=(0.0,), word_insertion_penalties=(-0.5, 0.0, 0.5))
    result = rescorer.tune(dict.fromkeys(heard, ("bad",)), config)
    tried = [point.weights.word_insertion_penalty for point in result.points]
    assert tried == [-0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
    assert (result.best.weights.word_insertion_penalty, result.best.counts.errors) == (2.0, 0)
    assert {point.weights.lm_weight for point in result.points} == {0.0}, "a single weight is not extended"


def test_a_speed_that_no_copy_may_have_is_refused():
    with pytest.raises(ConfigError, match=r"speed is 3\.0; expected 0\.5 to 2"):
        RescoringConfig(speeds=(1.0, 3.0))
