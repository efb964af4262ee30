"""The fine-tuning recipe in small, and a network of one's own through all commands."""

import pytest
import torch
from cli_fixtures import assert_one_line
from hypothesis import given
from hypothesis import strategies as st
from tolerances import NETWORK_FLOAT64

from fsachain.data.kaldi_dir import DataDir
from fsachain.nn import StreamingModel
from fsachain.train.checkpoint import load_tensors
from recipes.demo.prepare import prepare
from recipes.fine_tune import compare
from recipes.fine_tune.encoder import DilatedEncoder

KIND = "recipes.fine_tune.encoder:DilatedEncoder"
TINY = [
    "network.channels=24",
    "network.dilations=[1, 2]",
    "perturbation.speeds=[1.0]",
    "train.num_epochs=2",
    "train.average_last=1",
    "train.num_threads=1",
    "train.optimizer.freeze_epochs={encoder: 1}",
    "decoding.ngram_order=0",
    "decoding.word_insertion_penalties=[0.0]",
    "decoding.lm_weights=[1.0]",
]
STRINGS = {"train": 3, "dev": 1, "test": 1}


def prepare_tiny(corpus, out, seed):
    prepare(corpus, out, seed, STRINGS)


def prepare_with_another_phone(corpus, out, seed):
    """Another lexicon: more pdfs, so that the output layer is another one."""
    prepare_tiny(corpus, out, seed)
    with (out / "lexicon.txt").open("a") as lexicon:
        lexicon.write("unheard XX\n")


@pytest.fixture(scope="module")
def exp(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fine_tune")
    options = [f"--exp={folder}", "--one-in=2", *(f"--set={change}" for change in TINY)]
    assert compare.main(options, compare.Corpora(prepare_with_another_phone, prepare_tiny)) == 0
    return folder


def test_the_encoder_begins_where_pretraining_ended_and_the_other_does_not(exp):
    """It is frozen in the first epoch, so that the checkpoint at its end has it as it came."""
    first = "checkpoints/epoch-0001-batch-000000.safetensors"
    source, _ = load_tensors(exp / "pretrained" / "model" / "final.safetensors")
    for name, equal in (("pretrained-1", True), ("random-1", False)):
        found, _ = load_tensors(exp / name / "model" / first)
        convolutions = [key for key in source if "convolution" in key]  # statistics of batches go on
        same = [torch.equal(found[f"model.{key}"], source[key]) for key in convolutions]
        assert all(same) if equal else not any(same)
        assert found["model.head.weight"].shape != source["head.weight"].shape
    assert "init_from" in (exp / "pretrained-1" / "model" / "experiment.json").read_text()


def test_commands_use_the_model_on_the_users_word(exp, tmp_path, fsachain):
    model, lang = exp / "pretrained-1" / "model" / "model.safetensors", exp / "pretrained-1" / "lang"
    test = exp / "pretrained-1" / "data" / "test"
    assert_one_line(
        fsachain("decode", model, test, tmp_path / "no", "--lang", lang), f"--allow-import {KIND}"
    )
    word = ("--allow-import", KIND)
    fsachain.ok(*word, "decode", model, test, tmp_path / "decoded", "--lang", lang)
    expected = (exp / "pretrained-1" / "decode" / "hyp.txt").read_text()
    assert (tmp_path / "decoded" / "hyp.txt").read_text() == expected
    output = fsachain.ok(*word, "info", model).out
    assert KIND in output
    recording = next(iter(DataDir.read(test))).audio
    fsachain.ok(*word, "transcribe", model, recording, "--format", "text")
    assert fsachain("info", model)[0] == 1  # the word was for one command


@given(chunks=st.lists(st.integers(0, 40), min_size=1, max_size=6), padding=st.integers(0, 9))
def test_the_encoder_is_what_a_network_should_be(chunks, padding):
    """Alone, padded and in chunks alike."""
    torch.manual_seed(1)
    network = DilatedEncoder(5, 7, channels=8, dilations=(1, 2)).double().eval()
    frames = sum(chunks)
    if not frames:
        return
    features = torch.full((1, frames + padding, 5), torch.nan, dtype=torch.float64)
    features[0, :frames] = torch.randn(frames, 5, dtype=torch.float64)
    lengths = torch.tensor([frames])
    whole = network(features[:, :frames], lengths).nnet_output[0]
    padded = network(features, lengths).nnet_output[0, : len(whole)]
    stream = StreamingModel(network)
    parts = [stream.accept(part) for part in features[0, :frames].split(chunks)]
    for found in (padded, torch.cat([*parts, stream.finish()])):
        torch.testing.assert_close(found, whole, rtol=NETWORK_FLOAT64, atol=NETWORK_FLOAT64)
    before, after = network.context
    assert (before, after) == (10, 10)
