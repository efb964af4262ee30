"""The word network: probabilities of a text's words and of new ones, and its mean with an n-gram."""

import json

import numpy as np
import pytest
import torch

from fsachain import Lexicon
from fsachain.asr.cli.model import load_word_network, save_word_network
from fsachain.asr.decode.rescore import NetworkScores
from fsachain.asr.nn.word_network import train_word_network
from fsachain.asr.train.checkpoint import load_tensors, save_tensors
from fsachain.errors import ConfigError, DataError, GraphError
from fsachain.graph.grammar import NgramScores, estimate_arpa, grammar_from_arpa

TEXT = [
    *[["de", noun, "slaapt"] for noun in ("katten", "honden", "muizen", "vissen") * 6],
    *[["ik", "zie", "de", noun] for noun in ("katten", "honden", "muizen", "vissen") * 6],
    *[["de", noun, "slaapt"] for noun in ("geiten", "hanen", "uilen", "koeien")],  # once each
]
NEW = ["wolven", "beren", "slakken"]


@pytest.fixture(scope="module")
def network():
    return train_word_network(TEXT, NEW, num_epochs=20, seed=3)


def test_words_that_may_follow_have_probabilities_that_sum_to_one(network):
    words = [*sorted({word for sentence in TEXT for word in sentence}), *NEW]
    for before in ([], ["de"], ["ik", "zie", "de"], ["wolven"]):
        after = [found[len(before)] for found in network.log_probs([[*before, word] for word in words])]
        end = network.log_probs([before])[0][-1]
        assert np.exp([*after, end]).sum() == pytest.approx(1.0, abs=1e-5)  # float32 log-softmax


def test_a_text_is_learnt_and_new_words_come_where_rare_ones_do(network):
    def prob(sentence):
        return np.exp(network.log_probs([sentence.split()])[0])

    assert prob("ik zie de katten")[1] > 0.8, "zie follows ik"
    assert prob("de wolven")[1] > 5 * prob("ik wolven")[1]
    assert prob("de wolven")[1] == pytest.approx(prob("de beren")[1]), "new words share evenly"
    assert prob("de wolven slaapt")[2] > 0.5, "what follows a new word"


def test_the_seed_decides_and_torch_keeps_its_own():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)

    def log_probs(seed):
        return train_word_network(TEXT, NEW, num_epochs=1, seed=seed).log_probs(TEXT[:1])[0]

    one = log_probs(5)
    assert torch.equal(torch.rand(3), expected)
    assert np.array_equal(log_probs(5), one) and not np.array_equal(log_probs(6), one)


@pytest.mark.parametrize(("text", "epochs", "error"), [([], 1, GraphError), (TEXT, 0, ConfigError)])
def test_no_text_and_no_epoch_are_refused(text, epochs, error):
    with pytest.raises(error, match="expected at least"):
        train_word_network(text, NEW, epochs)


def test_a_network_that_was_kept_says_the_same_and_one_without_its_words_is_refused(network, tmp_path):
    path = tmp_path / "words.safetensors"
    save_word_network(network, path)
    said = [*TEXT[:4], ["de", "wolven"], ["nergens"]]
    for kept, before in zip(load_word_network(path).log_probs(said), network.log_probs(said), strict=True):
        assert np.array_equal(kept, before)
    tensors, header = load_tensors(path)
    longer = json.dumps([dict.fromkeys(map(str, range(1000)), 1), []]).encode()
    save_tensors(path, tensors | {"words": torch.frombuffer(bytearray(longer), dtype=torch.uint8)}, header)
    with pytest.raises(DataError, match="vectors for 1003 words"):
        load_word_network(path)


def test_info_describes_a_network_that_was_kept(fsachain, network, tmp_path):
    save_word_network(network, tmp_path / "words.safetensors")
    told = fsachain.ok("info", tmp_path / "words.safetensors").out
    words = [word for sentence in TEXT for word in sentence]
    assert f"{len({*words})} words of a text of {len(words)}, {len({*NEW} - {*words})} that it lacks" in told
    assert told.startswith("word network: ") and "reads 4 words back" in told


def test_the_mean_with_an_n_gram_is_taken_word_by_word(network, tmp_path):
    words = sorted({word for sentence in TEXT for word in sentence})
    (tmp_path / "lexicon.txt").write_text("".join(f"{word} {' '.join(word)}\n" for word in [*words, *NEW]))
    (tmp_path / "grammar.arpa").write_text(estimate_arpa(TEXT, order=2, vocabulary=["wolven"]))
    lexicon = Lexicon.read(tmp_path / "lexicon.txt")
    ngram = NgramScores(grammar_from_arpa(tmp_path / "grammar.arpa", lexicon))
    said = ["de", "wolven", "slaapt"]
    ids = [lexicon.word_id(word) for word in said]
    assert sum(ngram.by_word(ids)) == ngram.log_prob(ids)
    for share in (0.0, 0.3, 1.0):
        scores = NetworkScores(network, ngram, lexicon.words, share)
        mean = share * np.exp(network.log_probs([said])[0]) + (1 - share) * np.exp(ngram.by_word(ids))
        impossible = [lexicon.word_id("beren")]  # for the n-gram
        assert scores.log_probs([ids, impossible]) == [pytest.approx(np.log(mean).sum()), -np.inf]
