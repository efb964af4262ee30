"""The commands that draw, and the TextGrids of `fsachain align`: from the files of an experiment, mistakes in one line."""

import json
import shutil
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import tolerances
from cli_fixtures import run_command as run
from cli_fixtures import save_untrained
from plot_inputs import epoch, lattice_inputs

from fsachain.asr.cli import EXIT_USER_ERROR
from fsachain.asr.cli.model import AcousticModel
from fsachain.asr.cli.report import occupancies
from fsachain.asr.data.kaldi_dir import DataDir
from fsachain.asr.decode.ctm import read_ctm, textgrid_name
from fsachain.asr.plot import save_figure
from fsachain.asr.report.collect import Layout
from fsachain.fsa import Fsa

TEXT = {"u1": "yes no", "u2": "no", "a/../b": "no no yes"}


@pytest.fixture(scope="module")
def exp(stages, tmp_path_factory):
    """An experiment of three utterances of noise and an untrained network."""
    root = shutil.copytree(stages("recorded"), tmp_path_factory.mktemp("exp"), dirs_exist_ok=True)
    for table, row in (("text", "{1}"), ("utt2spk", "s{0}"), ("wav.scp", "{0}.wav")):
        rows = (f"{name} {row.format(k, words)}\n" for k, (name, words) in enumerate(TEXT.items(), 1))
        (root / "data" / table).write_text("".join(rows))
    (root / "den").rename(root / "graphs")
    lang = ("--lang", root / "lang")
    assert run("num-graphs", root / "data", root / "graphs" / "num.npz", *lang) == 0
    sections = {"features": {"sample_rate": 8000, "num_mel_bins": 8}, "network": {"channels": 8}}
    save_untrained(root / "model.safetensors", root / "lang", {**sections, "cmvn": {"scope": "speaker"}})
    aligned = ("align", root / "model.safetensors", root / "data", root / "aligned", *lang)
    assert run(*aligned, "--textgrid", root / "praat") == 0
    return root


@pytest.fixture
def drawn(monkeypatch):
    """Run a command; gives the figure that it wrote."""
    figures = []

    def save(figure, path):
        figures.append(figure)
        save_figure(figure, path)

    monkeypatch.setattr("fsachain.asr.cli.report.save_figure", save)

    def draw(*arguments):
        assert run("plot", *arguments) == 0
        return figures[-1]

    return draw


def test_occupancy_draws_what_the_functions_draw(exp, drawn, tmp_path):
    names = ("logits", "targets", "logit_lengths", "target_lengths")
    for stem, seed in (("random", 1), ("trained", 2)):
        logits, _, *sizes = lattice_inputs(seed=seed)
        inputs = (logits, lattice_inputs(seed=1)[1], *sizes)
        arrays = dict(zip(names, (part.numpy() for part in inputs), strict=True))
        np.savez(tmp_path / f"{stem}.npz", **arrays, symbols=list("abcdef"), names=["u1", "u2"])
    out = tmp_path / "picture.svg"
    figure = drawn("occupancy", tmp_path / "random.npz", tmp_path / "trained.npz", out)
    assert out.read_bytes().startswith(b"<?xml")
    assert [axes.get_title() for axes in figure.axes[:4]] == ["random\nu1", "trained\nu1", "u2", "u2"]
    ticks = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    targets = lattice_inputs(seed=1)[1][0].tolist()
    assert ticks == ["(start)", *("abcdef"[k] for k in targets)]


@pytest.mark.parametrize(("by", "rows"), [("phone", 6), ("pdf", 12)])
def test_trellis_draws_the_rows_asked_for(exp, drawn, tmp_path, by, rows):
    options = ("--utterance", "u1", "--lang", exp / "lang", "--den", exp / "graphs", "--by", by)
    figure = drawn("trellis", exp / "model.safetensors", exp / "data", tmp_path / "t.png", *options)
    heat = np.asarray(figure.axes[1].images[0].get_array())
    names = {tick.get_text().split(" ")[0] for tick in figure.axes[1].get_yticklabels()}
    assert 1 < len(heat) <= rows and names <= {"SIL", "Y", "EH", "S", "N", "OW"}
    assert "u1: yes no" in figure.get_suptitle()


def test_graphs_are_drawn_from_text_as_from_files_of_openfst(exp, drawn, tmp_path):
    (tmp_path / "den.txt").write_text(Fsa.read(exp / "graphs" / "den.fst").to_text())
    pictures = []
    for path in (exp / "graphs" / "den.fst", tmp_path / "den.txt"):
        figure = drawn("graph", path, tmp_path / "g.png", "--lang", exp / "lang")
        pictures.append([text.get_text() for axes in figure.axes for text in axes.texts])
    assert pictures[0] == pictures[1] and len(pictures[0]) > 3


def test_alignment_draws_the_segments_of_the_ctm_files(exp, drawn, tmp_path):
    options = ("--utterance", "u1", "--config", exp / "small.yaml")
    figure = drawn("alignment", exp / "data", exp / "aligned", tmp_path / "a.pdf", *options)
    phones = [entry for entry in read_ctm(exp / "aligned" / "phones.ctm") if entry.utterance == "u1"]
    assert [text.get_text() for text in figure.axes[2].texts] == [entry.label for entry in phones]
    assert figure.axes[0].get_xlim() == (0.0, 1.0)


def test_training_and_wer_draw_the_files_of_a_run(exp, drawn, tmp_path):
    lines = [json.dumps(epoch(number)) for number in (1, 2, 3)]
    (tmp_path / "train.jsonl").write_text("\n".join([*lines, '{"event": "epo']))
    (tmp_path / "hyp").write_text("u1 yes yes\nu2 no\n")
    spk = ("--utt2spk", exp / "data" / "utt2spk")
    figure = drawn("wer", exp / "data" / "text", tmp_path / "hyp", tmp_path / "w.png", *spk)
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == ["s3", "s1", "s2"]
    assert run("score", exp / "data" / "text", tmp_path / "hyp", "--out", tmp_path / "scored") == 0
    figure = drawn("training", tmp_path, tmp_path / "c.png", "--wer", 3, tmp_path / "scored")
    curves = {line.get_label(): line.get_xydata().tolist() for axes in figure.axes for line in axes.lines}
    assert curves["learning rate"] == [[1.0, 0.01], [2.0, 0.02], [3.0, 0.03]]
    assert curves["WER"] == [[3.0, pytest.approx(100 * 4 / 6, abs=1e-4)]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("training", "{exp}/data", "o.png"), "train.jsonl: cannot be read"),
        (("graph", "{exp}/graphs/num.npz", "o.png"), "--utterance is needed"),
        (("graph", "{exp}/graphs/den.fst", "o.gif"), "ends in one of .png, .svg, .pdf, .webp, got '.gif'"),
        (("alignment", "{exp}/data", "{exp}/aligned", "o.png", "--utterance", "x"), "'x' is not among the 3"),
        (("occupancy", "{exp}/graphs/num.npz", "o.png"), "lacks logits, targets, logit_lengths, target_lengths"),
    ],
)  # fmt: skip
def test_mistakes_cost_one_line(exp, capsys, arguments, message):
    assert run("plot", *(part.format(exp=exp) for part in arguments)) == EXIT_USER_ERROR
    error = capsys.readouterr().err
    assert message in error and error.startswith("error: ") and error.count("\n") == 1


# TextGrids


def test_a_textgrid_says_what_the_ctm_files_say(exp):
    from praatio import textgrid

    files = sorted(path.name for path in (exp / "praat").iterdir())
    assert files == ["a%2F..%2Fb.TextGrid", "u1.TextGrid", "u2.TextGrid"]  # nothing beside the folder
    for name in TEXT:
        grid = textgrid.openTextgrid(exp / "praat" / textgrid_name(name), includeEmptyIntervals=True)
        for tier in ("words", "phones"):
            expected = [e for e in read_ctm(exp / "aligned" / f"{tier}.ctm") if e.utterance == name]
            spoken = [entry for entry in grid.getTier(tier).entries if entry.label]
            assert [entry.label for entry in spoken] == [entry.label for entry in expected]
            times = [(entry.start, entry.end) for entry in spoken]
            ends = [(e.start, min(1.0, e.start + e.duration)) for e in expected]
            assert np.allclose(times, ends, atol=2e-3)
            whole = grid.getTier(tier).entries
            assert whole[0].start == 0 and whole[-1].end == grid.maxTimestamp == 1.0
            assert all(a.end == b.start for a, b in pairwise(whole))  # Praat wants no gaps


@pytest.mark.parametrize("name", ["../../etc/passwd", "a:b", "..", "C:\\x", "nul\x00"])
def test_no_utterance_leaves_the_folder(tmp_path, name):
    path = (tmp_path / textgrid_name(name)).resolve()
    assert path.parent == tmp_path.resolve() and path.suffix == ".TextGrid"


def test_a_report_looks_at_an_utterance_beside_all_that_its_speaker_says(exp):
    read = DataDir.read(exp / "data").utterances
    data = DataDir(tuple(replace(one, speaker="s") for one in read))
    layout, model = Layout.find(exp, test=exp / "data"), AcousticModel.load(exp / "model.safetensors")
    seen, _ = occupancies(layout, model, data, data.utterances)
    name = next(iter(seen))
    alone, _ = occupancies(layout, model, data, [one for one in data.utterances if one.id == name])
    assert list(alone) == [name]
    ours, all_of_them = (found[name].occupancies.denominator for found in (alone, seen))
    np.testing.assert_allclose(ours, all_of_them, atol=tolerances.NETWORK_FLOAT32)
