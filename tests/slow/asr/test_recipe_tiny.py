"""A recipe in small: synthetic digits, a narrow network, two epochs, all stages through to the report."""

import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import soundfile
import tolerances
from cli_fixtures import run_command

from fsachain.asr.cli.alignment import align
from fsachain.asr.cli.lang import load_lang
from fsachain.asr.cli.model import AcousticModel
from fsachain.asr.cli.resources import Resources
from fsachain.asr.cli.run import FIRST_PASS
from fsachain.asr.data.kaldi_dir import DataDir
from fsachain.asr.report.collect import read_stages
from fsachain.asr.train.log import read_log
from fsachain.graph.supervision import load_chunks
from recipes.demo.prepare import prepare
from recipes.pipeline.main import DONE, run_recipe

ROOT = Path(__file__).resolve().parents[3]
STRINGS = {"train": 5, "dev": 2, "test": 1}
OPTIONS = [
    "--workers=1", "--set=network.channels=48", "--set=network.bottleneck=24", "--set=network.prefinal=48",
    "--set=network.time_strides=[1, 1, 1]", "--set=train.num_epochs=4", "--set=train.average_last=2",
    "--set=train.num_threads=1", "--set=decoding.word_insertion_penalties=[0.0]",
    "--set=decoding.lm_weights=[1.0]",
]  # fmt: skip


def prepare_tiny(corpus, out, seed):
    prepare(corpus, out, seed, STRINGS)


@pytest.fixture(scope="module")
def exp(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    assert run_recipe(ROOT / "recipes" / "demo", prepare_tiny, [f"--exp={folder}", *OPTIONS]) in DONE
    return folder


def read_ctm(path):
    rows = defaultdict(list)
    for line in path.read_text().splitlines():
        utterance, _, start, duration, label = line.split()[:5]
        rows[utterance].append((float(start), float(duration), label))
    return rows


def test_delaying_the_audio_by_100_ms_delays_the_words_by_as_much(exp, tmp_path):
    """On recordings and through the whole path: features, network, best path, times."""
    source = DataDir.read(exp / "data" / "test")
    rows = []
    for utterance in source:
        samples, rate = soundfile.read(utterance.audio)
        padding = samples[: rate // 10]  # the recording's own noise before the first word
        soundfile.write(tmp_path / f"{utterance.id}.wav", np.concatenate([padding, samples]), rate)
        rows.append(f"{utterance.id} {utterance.id}.wav\n")
    (tmp_path / "wav.scp").write_text("".join(rows))
    for name in ("text", "utt2spk"):
        (tmp_path / name).write_text((exp / "data" / "test" / name).read_text())
    model = AcousticModel.load(exp / "model" / "model.safetensors")
    data, lang = DataDir.read(tmp_path), load_lang(exp / "lang")
    align(model, data, tmp_path / "align", lang, resources=Resources())
    before, after = (read_ctm(folder / "align" / "words.ctm") for folder in (exp, tmp_path))
    shifts = [
        1000 * (late[0] - early[0])
        for name in before
        for early, late in zip(before[name], after[name], strict=True)
    ]
    assert np.mean(shifts) == pytest.approx(100.0, abs=tolerances.DELAY_MS)
    assert np.median(shifts) == pytest.approx(100.0, abs=tolerances.DELAY_MS)


def test_report_shows_utterances_with_recordings_and_lattices_and_what_each_stage_took(exp):
    page = (exp / "report.html").read_text()
    shown = min(10, len(DataDir.read(exp / "data" / "test")))
    assert page.count("<audio") >= shown
    assert page.count("data:audio/flac") == page.count("<audio")
    pictured = page.count('alt="Occupancy of the phones')
    assert pictured >= 1
    # The denominator of so little text lacks some of the phone sequences of the others.
    assert page.count('alt="Spectrogram') == pictured + page.count("Without a lattice")
    # Nothing is missing or could not be made.
    assert page.count('class="note"') == page.count("Without a lattice")
    stages = read_stages(exp / "stages.jsonl").stages
    assert [stage.name for stage in stages] == [*FIRST_PASS, "train", "decode", "align", "report"]
    assert all(stage.peak_rss > 1e7 and stage.seconds > 0 for stage in stages)


def test_commands_decode_and_align_as_the_stages_do(exp, tmp_path):
    model, test, lang = exp / "model" / "model.safetensors", exp / "data" / "test", exp / "lang"
    assert run_command("decode", model, test, tmp_path, "--lang", lang) == 0
    assert (tmp_path / "hyp.txt").read_text() == (exp / "decode" / "hyp.txt").read_text()
    assert run_command("align", model, test, tmp_path, "--lang", lang) == 0
    assert (tmp_path / "words.ctm").read_text() == (exp / "align" / "words.ctm").read_text()
    assert run_command("score", test / "text", tmp_path / "hyp.txt") == 0


CHUNKS = ["--set=supervision.chunk_frames=90", "--set=perturbation.speeds=[0.9, 1.0]"]
CHUNKS += ["--set=train.num_epochs=2"]


@pytest.fixture(scope="module")
def second(exp, tmp_path_factory):
    folder = tmp_path_factory.mktemp("chunks")
    places = [f"--first={exp}", f"--config={ROOT / 'recipes/demo/config.yaml'}", "--seed=1"]
    assert run_command("run", folder, *places, *OPTIONS, *CHUNKS) in DONE
    return folder


def test_second_pass_trains_on_chunks_of_every_utterance(exp, second):
    chunks = load_chunks(second / "chunks.npz")
    train = DataDir.read(exp / "data" / "train")
    assert set(chunks) == {utterance.id for utterance in train}
    every = [chunk for lists in chunks.values() for one in lists for chunk in one]
    assert len(every) > len(chunks)
    assert all(chunk.end - chunk.start <= 30 for chunk in every)
    for name, (slow, plain) in chunks.items():
        assert (slow[0].utterance, plain[0].utterance) == (f"sp0.9-{name}", name)
        assert len(slow) == len(plain)
        assert slow[0].of_frames > plain[0].of_frames
    events = list(read_log(second / "model" / "train.jsonl"))
    (start,) = (event for event in events if event["event"] == "start")
    assert start["utterances"] == sum(len(lists[0]) for lists in chunks.values())
    dev = {utterance.id for utterance in DataDir.read(exp / "data" / "dev")}
    assert {entry["id"] for entry in start["excluded"]} <= dev
    objf = [event["train"]["objf"] for event in events if event["event"] == "epoch"]
    assert objf[-1] > objf[0]
    assert "WER" in (second / "report.txt").read_text()


def test_command_supervises_as_the_stage_does(exp, second, tmp_path, capsys):
    config = tmp_path / "config.yaml"
    config.write_text((second / "config.yaml").read_text())
    out, alignment = tmp_path / "chunks.npz", second / "align-train" / "phones.ctm"
    data, options = exp / "data" / "train", ("--lang", exp / "lang", "--den", exp / "graphs")
    assert run_command("supervise", data, alignment, out, *options, "--config", config) == 0
    assert "supervised" in capsys.readouterr().out
    ours, theirs = load_chunks(out), load_chunks(second / "chunks.npz")
    assert list(ours) == list(theirs)
    for name in ours:
        for one, other in zip(ours[name], theirs[name], strict=True):
            assert [chunk.id for chunk in one] == [chunk.id for chunk in other]
            for a, b in zip(one, other, strict=True):
                np.testing.assert_array_equal(a.fsa.log_prob, b.fsa.log_prob)
    assert run_command("info", out) == 0
    assert " chunks of " in capsys.readouterr().out
    small = (
        "network: {channels: 16, bottleneck: 8, prefinal: 16, time_strides: [1]}\n"
        "train: {num_epochs: 1, average_last: 1, num_threads: 1}\n"
    )
    train = ("train", data, out, tmp_path / "model", *options, "--config", config)
    config.write_text(small)
    assert run_command(*train) == 1
    assert "supervise anew after a change of speeds" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "model")
    config.write_text("perturbation: {speeds: [0.9, 1.0]}\n" + small)
    assert run_command(*train) == 0
