"""The recipes in small: a few recordings, a narrow network, one epoch, all stages; and how their corpora are prepared."""

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from fsachain.asr.data.features import FeatureConfig, utterance_features
from fsachain.asr.data.kaldi_dir import DataDir
from fsachain.asr.decode.wer import read_text
from fsachain.asr.report.collect import read_stages
from fsachain.asr.train.checkpoint import load_tensors
from recipes.ctc_vs_lfmmi import run as compare_objectives
from recipes.demo.prepare import prepare as prepare_demo
from recipes.digits import unseen
from recipes.digits.prepare import DIGITS, SAMPLE_RATE
from recipes.digits.prepare import prepare as prepare_digits
from recipes.fine_tune import run as compare_beginnings
from recipes.handwriting.prepare import NUM_FEATURES
from recipes.handwriting.prepare import prepare as prepare_handwriting
from recipes.pipeline.corpus import prepare_data_dirs, read_data_dirs, write_data_dir
from recipes.pipeline.main import DONE, run_recipe
from recipes.weak_transcripts import run as compare_ways

ROOT = Path(__file__).resolve().parents[3]


def changes(*options):
    common = "train.num_threads=1", "decoding.word_insertion_penalties=[0.0]", "decoding.lm_weights=[1.0]"
    return [f"--set={change}" for change in (*options, *common)]


def test_every_recipe_is_run_by_a_test():
    texts = [path.read_text() for path in Path(__file__).parent.glob("test_*.py")]
    runs = "".join(text for text in texts if "run_recipe(" in text or ".main(" in text)
    recipes = {path.parent.name for path in (ROOT / "recipes").glob("*/*.yaml")}
    assert recipes and not [name for name in recipes if name not in runs]


# Recorded digits and prompts

STAGES = ["lang", "features", "graphs", "train", "decode", "align", "report"]
KEPT = {"train": 40, "dev": 3, "test": 4}
RECORDED = {
    "digits": ("digits", prepare_digits),
    "prompts": ("prompts_en", prepare_data_dirs),
    "dialogue": ("dialogue_nl", prepare_data_dirs),
}
SMALL = changes(
    "phone_lm.ngram_order=2",  # so little text has few of the longer sequences
    "phone_lm.no_prune_ngram_order=2",
    "phone_lm.num_extra_lm_states=0",
    "network.channels=16",
    "network.prefinal=16",
    "network.time_strides=[1]",
    "perturbation.speeds=[1.0]",
    "train.num_epochs=1",
    "train.average_last=1",
)
SETS = [part for change in SMALL for part in change.split("=", 1)]  # the option and its value apart


def few_of(prepare):
    """Prepares the corpus and keeps a few recordings of each set, from all parts of it."""

    def prepare_few(corpus, out, seed):
        prepare(corpus, out, seed)
        for split, count in KEPT.items():
            recordings = read_data_dirs([out / split])
            write_data_dir(out / split, recordings[:: len(recordings) // count][:count])

    return prepare_few


@pytest.mark.parametrize("name", RECORDED)
def test_every_stage_of_a_recipe_of_recordings_runs(name, shared, tmp_path):
    folder, prepare = RECORDED[name]
    corpus = shared / "data" / folder
    if not corpus.is_dir():
        pytest.skip(f"the recordings data/{folder} are not in ../shared")
    arguments = [f"--corpus={corpus}", f"--exp={tmp_path}", "--workers=1", *SMALL]
    assert run_recipe(ROOT / "recipes" / name, few_of(prepare), arguments) in DONE
    done = [stage.name for stage in read_stages(tmp_path / "stages.jsonl").stages]
    assert [stage for stage in done if stage != "rescore"] == STAGES
    assert ("rescore" in done) == (name in ("dialogue", "digits"))
    assert len(read_text(tmp_path / "decode" / "hyp.txt")) == KEPT["test"]
    assert "WER" in (tmp_path / "report.txt").read_text()


NUM_TAKES = 14


@pytest.fixture(scope="module")
def download(tmp_path_factory):
    """A download in small: two speakers, whose recording number n of any digit is a tone of its own."""
    folder = tmp_path_factory.mktemp("fsdd")
    (folder / "recordings").mkdir()
    time = np.arange(SAMPLE_RATE // 5) / SAMPLE_RATE
    for speaker in ("ada", "bob"):
        for digit in range(10):
            for take in range(NUM_TAKES):
                tone = 0.1 * np.sin(2 * np.pi * (200 + 50 * digit + take) * time)
                soundfile.write(folder / "recordings" / f"{digit}_{speaker}_{take}.wav", tone, SAMPLE_RATE)
    return folder


SLOWLY = """
import sys, time
from recipes.pipeline.corpus import prepare_data_dirs
from recipes.pipeline.main import REPOSITORY, run_recipe
def prepare(*given):
    time.sleep(4)  # in which the other process comes here, too
    prepare_data_dirs(*given)
sys.exit(run_recipe(REPOSITORY / "recipes" / "prompts", prepare, sys.argv[1:]))
"""


def test_one_of_two_processes_prepares_and_the_other_waits(recorded):
    (recorded / "slowly.py").write_text(SLOWLY)
    corpus = recorded / "corpus"
    for split in ("train", "dev", "test"):
        shutil.copytree(recorded / "data", corpus / split)
    (corpus / "lang").mkdir()
    shutil.copy(recorded / "lexicon.txt", corpus / "lang")
    program = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options = ["--corpus", corpus, "--exp", recorded / "exp", "--to", "lang"]
    here = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
    command, environment = [*program, recorded / "slowly.py", *options], {**os.environ, **here}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("--- prepare") == done.stdout.count("--- lang") == 1


def test_prepared_download_is_a_corpus(download, tmp_path):
    prepare_digits(download, tmp_path, seed=1)
    assert "seven S EH V AH N" in (tmp_path / "lexicon.txt").read_text()
    sets = {split: DataDir.read(tmp_path / split) for split in ("train", "dev", "test")}
    single = [utterance for utterance in sets["train"] if len(utterance.words) == 1]
    assert len(single) == 2 * 10 * (NUM_TAKES - 10)
    for data in sets.values():
        assert {utterance.speaker for utterance in data} == {"ada", "bob"}
        assert {word for utterance in data for word in utterance.words} <= set(DIGITS)
    longest = max(sets["test"], key=lambda utterance: len(utterance.words))
    info = soundfile.info(longest.audio)
    assert info.samplerate == SAMPLE_RATE
    assert info.duration > 0.2 * len(longest.words)


def test_same_seed_gives_the_same_strings(download, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        prepare_digits(download, tmp_path / name, seed)
    texts = [(tmp_path / name / "dev" / "text").read_text() for name in "abc"]
    assert texts[0] == texts[1] != texts[2]
    audio = [sorted((tmp_path / name / "audio" / "dev").glob("*.flac")) for name in "ab"]
    assert audio[0]
    assert [path.read_bytes() for path in audio[0]] == [path.read_bytes() for path in audio[1]]


def test_a_speaker_never_heard_is_in_no_set_but_the_test_set(download, tmp_path):
    prepare_digits(download, tmp_path / "all", seed=1)
    unseen.prepare_without("bob", download, tmp_path / "without", seed=1)
    every, kept = (
        {split: DataDir.read(tmp_path / name / split) for split in ("train", "dev", "test")}
        for name in ("all", "without")
    )
    assert {one.speaker for split in ("train", "dev") for one in kept[split]} == {"ada"}
    assert {one.id for one in kept["test"]} == {
        one.id for data in every.values() for one in data if one.speaker == "bob" and len(one.words) > 1
    }


def test_each_speaker_is_left_out_in_turn_and_stands_in_one_table(shared, tmp_path, monkeypatch, capsys):
    corpus = shared / "data/digits"
    if not corpus.is_dir():
        pytest.skip("the recordings data/digits are not in ../shared")
    monkeypatch.setattr(unseen, "prepare", few_of(prepare_digits))
    speakers = ["--speakers", "jackson", "theo"]
    unseen.main([f"--corpus={corpus}", f"--exp={tmp_path}", "--seeds", "1", *speakers, *SETS])
    rows = [line.split("|")[1].strip() for line in (tmp_path / "table.md").read_text().splitlines()]
    assert rows == ["left out", "---", "jackson", "theo", "mean", "worst"]
    assert (tmp_path / "table.md").read_text() in capsys.readouterr().out


def test_transcripts_are_mended_by_networks_that_have_not_heard_them(download, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(compare_ways.CORPORA, "digits", few_of(prepare_digits))
    ways = ["plain", "forgiving", "mended", "mended crosswise"]
    kinds = ["--objectives", "LF-MMI", "--errors", "17/17/17", "--seeds", "1", "--ways", *ways]
    arguments = [f"--data={download}", f"--exp={tmp_path}", *kinds, *SETS]
    compare_ways.main(arguments)
    table = (tmp_path / "table.md").read_text()
    assert table in capsys.readouterr().out
    assert table.splitlines()[0].split(" | ")[4:-1] == [*ways, "clean"]
    crosswise = tmp_path / "digits-lf-mmi-17_17_17-mended_crosswise-1"
    written = read_text(tmp_path / "digits-lf-mmi-17_17_17-plain-1" / "data" / "train" / "text")
    unheard = []
    for part in sorted(crosswise.glob("part-*")):
        heard = read_text(part / "data" / "train" / "text")
        mended = read_text(part / "mended" / "text")
        assert not heard.keys() & mended.keys()
        unheard += mended
    assert sorted(unheard) == sorted(written)
    assert read_text(crosswise / "mended" / "text").keys() == written.keys()
    again = []
    monkeypatch.setattr(compare_ways, "call", lambda command: again.append(command[0]) or 0)
    compare_ways.main(arguments)
    assert set(again) == {"suspicious"}  # nothing is mended twice


def test_forgiving_goes_on_from_the_densest_utterances_where_words_are_missing_alone(tmp_path, monkeypatch):
    goes_on = {}

    def run(one, options, exp, to, own, mended=None):
        goes_on[one.errors, one.way] = Path(own.get("network", {}).get("init_from", "")).parts[-3:-2]

    monkeypatch.setattr(compare_ways, "_run", run)
    monkeypatch.setattr(compare_ways, "call", lambda command: 1)
    ways = ["--objectives", "CTC", "--seeds", "1", "--ways", "plain", "dense", "forgiving"]
    monkeypatch.setattr(compare_ways, "read_result", lambda *_: compare_ways.Result("", "", 1, 1.0, {}, 1.0))
    for errors in compare_ways.ERRORS:
        with suppress(SystemExit):
            compare_ways.main([f"--data={tmp_path}", f"--exp={tmp_path}", "--errors", errors, *ways])
    start = "digits-ctc-{}-{}-1"
    assert goes_on == {
        (None, "plain"): (),
        ("17/17/17", "plain"): (),
        ("17/17/17", "forgiving"): (start.format("17_17_17", "plain"),),
        ("0/0/70", "plain"): (),
        ("0/0/70", "dense"): (),
        ("0/0/70", "forgiving"): (start.format("0_0_70", "dense"),),
    }


def test_synthetic_speech_is_the_same_in_every_process(tmp_path):
    program = (
        "import sys; from pathlib import Path; from recipes.demo.prepare import prepare;"
        "prepare(None, Path(sys.argv[1]), 1, {'train': 1, 'dev': 1, 'test': 1})"
    )
    for name in "ab":
        subprocess.run([sys.executable, "-c", program, tmp_path / name], cwd=ROOT, check=True)
    files = [sorted((tmp_path / name / "audio").rglob("*.flac")) for name in "ab"]
    assert len(files[0]) == 36
    assert [path.read_bytes() for path in files[0]] == [path.read_bytes() for path in files[1]]


# handwriting, with both objectives

LINES = {"train": 80, "dev": 3, "test": 4}
NARROW = changes(
    "network.channels=32",
    "network.bottleneck=16",
    "network.prefinal=32",
    "network.time_strides=[1]",
    "train.num_epochs=1",
)


def test_lines_have_their_digits_and_a_column_of_pixels_for_each_frame(tmp_path):
    prepare_handwriting(None, tmp_path, 1, LINES)
    for split, count in LINES.items():
        lines = DataDir.read(tmp_path / split)
        assert len(lines) == count
        for line in lines:
            ink = utterance_features(line, FeatureConfig(kind="archive", num_columns=NUM_FEATURES))
            assert 3 <= len(line.words) <= 8
            assert ink.shape[1] == NUM_FEATURES
            assert ink.min() >= 0.0
            assert 0.5 < ink.max() <= 1.0


def test_the_comparison_trains_with_both_objectives_and_prints_one_table(tmp_path, monkeypatch, capsys):
    def prepare(corpus, out, seed):
        prepare_handwriting(corpus, out, seed, LINES)

    monkeypatch.setitem(compare_objectives.RECIPES, "handwriting", prepare)
    compare_objectives.main([f"--exp={tmp_path}", "--seeds", "1", *NARROW])
    table = (tmp_path / "table.md").read_text().splitlines()
    assert capsys.readouterr().out.endswith("\n".join(table) + "\n")
    assert table[0] == "| corpus | part of test | LF-MMI | CTC |"
    rates = [float(cell) for cell in table[2].strip("|").split("|")[2:]]
    found = [
        compare_objectives.read_result(tmp_path / f"handwriting-{name}-1", "handwriting", name, 1)
        for name in ("lf-mmi", "ctc")
    ]
    assert rates == [round(result.wer, 2) for result in found]


# fine_tune: a network of one's own through all commands

KIND = "recipes.fine_tune.encoder:DilatedEncoder"
STRINGS = {"train": 3, "dev": 1, "test": 1}
TUNED = changes(
    "network.channels=24",
    "network.dilations=[1, 2]",
    "perturbation.speeds=[1.0]",
    "train.num_epochs=2",
    "train.average_last=1",
    "train.optimizer.freeze_epochs={encoder: 1}",
    "decoding.ngram_order=0",
)


def prepare_tiny(corpus, out, seed):
    prepare_demo(corpus, out, seed, STRINGS)


def prepare_with_another_phone(corpus, out, seed):
    """Another lexicon: more pdfs, so that the output layer is another one."""
    prepare_tiny(corpus, out, seed)
    with (out / "lexicon.txt").open("a") as lexicon:
        lexicon.write("unheard XX\n")


@pytest.fixture(scope="module")
def exp(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fine_tune")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(compare_beginnings.CORPORA, "prompts", prepare_with_another_phone)
        patch.setitem(compare_beginnings.CORPORA, "digits", prepare_tiny)
        compare_beginnings.main([f"--exp={folder}", "--one-in=2", *TUNED])
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
    status, _, errors = fsachain("decode", model, test, tmp_path / "no", "--lang", lang)
    assert status == 1 and f"--allow-import {KIND}" in errors
    word = ("--allow-import", KIND)
    fsachain.ok(*word, "decode", model, test, tmp_path / "decoded", "--lang", lang)
    expected = (exp / "pretrained-1" / "decode" / "hyp.txt").read_text()
    assert (tmp_path / "decoded" / "hyp.txt").read_text() == expected
    assert KIND in fsachain.ok(*word, "info", model).out
    recording = next(iter(DataDir.read(test))).audio
    fsachain.ok(*word, "transcribe", model, recording, "--format", "text")
    assert fsachain("info", model)[0] == 1  # the word was for one command
