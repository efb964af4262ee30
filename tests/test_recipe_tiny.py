"""A recipe in small: synthetic digits, a narrow network, two epochs, all stages through to the report."""

import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

for module in ("espeakng_loader", "pywrapfst", "kaldi_decoder", "kaldialign", "click", "yaml", "soundfile"):
    pytest.importorskip(module, reason="the recipes need fsachain[all]")

from fsachain.cli import main
from fsachain.cli.steps.model import AcousticModel
from fsachain.data.kaldi_dir import DataDir
from fsachain.train.log import read_log
from recipes.demo.prepare import VARIANTS, prepare
from recipes.pipeline.main import run_recipe

ROOT = Path(__file__).resolve().parent.parent
STRINGS = {"train": 5, "dev": 2, "test": 1}
OPTIONS = [
    "--workers=1",
    "--set=network.channels=48",
    "--set=network.bottleneck=24",
    "--set=network.prefinal=48",
    "--set=network.time_strides=[1, 1, 1]",
    "--set=train.num_epochs=4",
    "--set=train.average_last=2",
    "--set=train.num_threads=1",
    "--set=decoding.word_insertion_penalties=[0.0]",
    "--set=decoding.lm_weights=[1.0]",
]


def prepare_tiny(corpus: Path | None, out: Path, seed: int) -> None:
    prepare(corpus, out, seed, STRINGS)


@pytest.fixture(scope="module")
def exp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    assert run_recipe(ROOT / "recipes" / "demo", prepare_tiny, [f"--exp={folder}", *OPTIONS]) == 0
    return folder


def test_objective_rises_from_epoch_to_epoch(exp: Path) -> None:
    epochs = [event for event in read_log(exp / "model" / "train.jsonl") if event["event"] == "epoch"]
    objf = [event["train"]["objf"] for event in epochs]
    assert len(objf) == 4
    assert objf[-1] > objf[0]
    assert epochs[-1]["dev"]["objf"] > epochs[0]["dev"]["objf"]


def read_ctm(path: Path) -> dict[str, list[tuple[float, float, str]]]:
    rows = defaultdict(list)
    for line in path.read_text().splitlines():
        utterance, _, start, duration, label = line.split()[:5]
        rows[utterance].append((float(start), float(duration), label))
    return rows


@pytest.mark.parametrize("name", ["words.ctm", "phones.ctm"])
def test_alignment_is_monotonic_and_inside_the_recording(exp: Path, name: str) -> None:
    soundfile = pytest.importorskip("soundfile")
    rows = read_ctm(exp / "align" / name)
    utterances = {utterance.id: utterance for utterance in DataDir.read(exp / "data" / "test")}
    assert set(rows) == set(utterances)
    for utterance, segments in rows.items():
        length = soundfile.info(utterances[utterance].audio).duration
        assert all(duration > 0 for _, duration, _ in segments)
        assert segments[0][0] >= 0.0
        for before, after in pairwise(segments):
            assert after[0] >= before[0] + before[1] - 1e-6
        assert segments[-1][0] + segments[-1][1] <= length + 0.03  # one output frame of rounding


def test_aligned_words_are_the_transcript(exp: Path) -> None:
    rows = read_ctm(exp / "align" / "words.ctm")
    for utterance in DataDir.read(exp / "data" / "test"):
        assert tuple(label for _, _, label in rows[utterance.id]) == utterance.words


def test_report_names_the_results_and_the_files(exp: Path) -> None:
    report = (exp / "report.txt").read_text()
    assert "WER" in report
    for part in ("model", "graphs", "hypotheses", "alignments"):
        (line,) = (line for line in report.splitlines() if line.startswith(part))
        assert Path(line.split()[1]).exists()


def test_later_stage_runs_again_from_the_files_alone(exp: Path, capsys) -> None:
    before = (exp / "decode" / "hyp.txt").read_text()
    options = [f"--exp={exp}", *OPTIONS, "--stage=decode", "--stop-stage=decode"]
    assert run_recipe(ROOT / "recipes" / "demo", prepare_tiny, options) == 0
    assert (exp / "decode" / "hyp.txt").read_text() == before
    assert "test  WER" in capsys.readouterr().out


def test_training_refuses_a_folder_with_other_options(exp: Path, capsys) -> None:
    options = [f"--exp={exp}", *OPTIONS, "--stage=train", "--set=loss.leaky_hmm_coefficient=0.2"]
    assert run_recipe(ROOT / "recipes" / "demo", prepare_tiny, options) == 1
    assert "other options in loss" in capsys.readouterr().err


def run_command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["fsachain", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


def test_commands_decode_and_align_as_the_stages_do(exp: Path, tmp_path: Path, monkeypatch) -> None:
    model, test, lang = exp / "model" / "model.safetensors", exp / "data" / "test", exp / "lang"
    assert run_command(monkeypatch, "decode", model, test, tmp_path, "--lang", lang) == 0
    assert (tmp_path / "hyp.txt").read_text() == (exp / "decode" / "hyp.txt").read_text()
    assert run_command(monkeypatch, "align", model, test, tmp_path, "--lang", lang) == 0
    assert (tmp_path / "words.ctm").read_text() == (exp / "align" / "words.ctm").read_text()
    assert run_command(monkeypatch, "score", test / "text", tmp_path / "hyp.txt") == 0


def test_command_trains_a_model_that_info_describes(exp: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "network: {channels: 16, bottleneck: 8, prefinal: 16, time_strides: [1]}\n"
        "train: {num_epochs: 1, average_last: 1, num_threads: 1}\n"
    )
    data, graphs = exp / "data", exp / "graphs"
    sets = (data / "dev", graphs / "dev.npz")
    options = ("--lang", exp / "lang", "--den", graphs, "--dev", *sets, "--config", config)
    assert run_command(monkeypatch, "train", *sets, tmp_path / "model", *options) == 0
    assert run_command(monkeypatch, "info", tmp_path / "model" / "model.safetensors") == 0
    assert "one frame every 30 ms" in capsys.readouterr().out


def test_saved_model_computes_what_the_trained_one_did(exp: Path) -> None:
    model = AcousticModel.load(exp / "model" / "model.safetensors")
    examples = model.examples(DataDir.read(exp / "data" / "dev"), None, 1)
    together = model.outputs(examples)
    alone = model.outputs(examples[:1])
    name = examples[0].id
    assert together[name].shape == alone[name].shape
    assert abs(together[name] - alone[name]).max() < 1e-4


def test_voices_of_train_dev_and_test_are_disjoint() -> None:
    voices = [set(names) for names in VARIANTS.values()]
    assert sum(map(len, voices)) == len(set.union(*voices))


def test_wrong_option_ends_in_one_line(tmp_path: Path, capsys) -> None:
    status = run_recipe(
        ROOT / "recipes" / "demo", prepare_tiny, [f"--exp={tmp_path}", "--set=train.epochs=3"]
    )
    assert status == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "num_epochs" in error
