"""A recipe in small: synthetic digits, a narrow network, two epochs, all stages through to the report."""

import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

for module in ("espeakng_loader", "pywrapfst", "kaldi_decoder", "kaldialign", "click", "yaml", "soundfile"):
    pytest.importorskip(module, reason="the recipes need fsachain[all]")

from fsachain.cli import main
from fsachain.cli.steps.decoding import align_data
from fsachain.cli.steps.lang import load_lang
from fsachain.cli.steps.model import AcousticModel
from fsachain.data.kaldi_dir import DataDir
from fsachain.train.checkpoint import load_tensors
from fsachain.train.log import read_log
from recipes.demo.prepare import VARIANTS, prepare
from recipes.pipeline.main import run_recipe
from tests import tolerances

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


def test_objective_ends_higher_than_after_the_first_epoch(exp: Path) -> None:
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
            assert after[0] >= before[0] + before[1] - tolerances.TIME_ROUNDING
        assert segments[-1][0] + segments[-1][1] <= length + tolerances.DELAY_MS / 1000


def test_aligned_words_are_the_transcript(exp: Path) -> None:
    rows = read_ctm(exp / "align" / "words.ctm")
    for utterance in DataDir.read(exp / "data" / "test"):
        assert tuple(label for _, _, label in rows[utterance.id]) == utterance.words


def test_delaying_the_audio_by_100_ms_delays_the_words_by_as_much(exp: Path, tmp_path: Path) -> None:
    """On recordings and through the whole path: features, network, best path, times."""
    soundfile = pytest.importorskip("soundfile")
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
    align_data(model, load_lang(exp / "lang"), DataDir.read(tmp_path), tmp_path / "align")
    before, after = (read_ctm(folder / "align" / "words.ctm") for folder in (exp, tmp_path))
    shifts = [
        1000 * (late[0] - early[0])
        for name in before
        for early, late in zip(before[name], after[name], strict=True)
    ]
    assert np.mean(shifts) == pytest.approx(100.0, abs=tolerances.DELAY_MS)
    assert np.median(shifts) == pytest.approx(100.0, abs=tolerances.DELAY_MS)


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


def test_saved_model_holds_the_network_that_training_ended_with(exp: Path) -> None:
    network = AcousticModel.load(exp / "model" / "model.safetensors").network
    trained, _ = load_tensors(exp / "model" / "final.safetensors")
    assert set(network.state_dict()) == set(trained)
    assert all(torch.equal(value, trained[name]) for name, value in network.state_dict().items())
    assert not network.training


def test_outputs_of_an_utterance_do_not_depend_on_the_others_of_its_set(exp: Path) -> None:
    model = AcousticModel.load(exp / "model" / "model.safetensors")
    examples = model.examples(DataDir.read(exp / "data" / "dev"), None, 1)
    together = model.outputs(examples)
    alone = model.outputs(examples[:1])
    name = examples[0].id
    assert together[name].shape == alone[name].shape
    assert abs(together[name] - alone[name]).max() < tolerances.TRAINED_NETWORK


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set=train"], "--set train: expected SECTION.KEY=VALUE"),
        (
            ["--set=features.sample_rate.x=3"],
            "--set features.sample_rate.x=3: sample_rate is 8000, not a section",
        ),
        (["--set=train.num_epochs=["], "--set train.num_epochs=[: '[' is no YAML value"),
        (["--stage=align", "--stop-stage=lang"], "--stop-stage lang comes before --stage align"),
    ],
)
def test_wrong_option_of_a_recipe_is_one_line(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_recipe(ROOT / "recipes" / "demo", prepare_tiny, [f"--exp={tmp_path}", *options]) == 1
    assert capsys.readouterr().err == f"error: {message}\n"
