"""The handwriting recipe and the comparison of objectives, in small."""

import pytest

from fsachain.data.features import FeatureConfig, utterance_features
from fsachain.data.kaldi_dir import DataDir
from recipes.ctc_vs_lfmmi import compare
from recipes.handwriting.prepare import NUM_FEATURES, prepare

LINES = {"train": 80, "dev": 3, "test": 4}
TINY = [
    "network.channels=32",
    "network.bottleneck=16",
    "network.prefinal=32",
    "network.time_strides=[1]",
    "train.num_epochs=1",
    "train.num_threads=1",
    "decoding.word_insertion_penalties=[0.0]",
    "decoding.lm_weights=[1.0]",
]
COLUMNS = FeatureConfig(kind="archive", num_columns=NUM_FEATURES)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    out = tmp_path_factory.mktemp("lines")
    prepare(None, out, 1, LINES)
    return out


def test_lines_have_their_digits_and_a_column_of_pixels_for_each_frame(data):
    for split, count in LINES.items():
        lines = DataDir.read(data / split)
        assert len(lines) == count
        for line in lines:
            ink = utterance_features(line, COLUMNS)
            assert 3 <= len(line.words) <= 8
            assert ink.shape[1] == NUM_FEATURES
            assert ink.min() >= 0.0
            assert 0.5 < ink.max() <= 1.0


def test_the_comparison_trains_with_both_objectives_and_prints_one_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(
        compare.RECIPES, "handwriting", lambda corpus, out, seed: prepare(corpus, out, seed, LINES)
    )
    options = [f"--exp={tmp_path}", "--seeds", "1", *(f"--set={change}" for change in TINY)]
    assert compare.main(options) == 0
    table = (tmp_path / "table.md").read_text().splitlines()
    assert capsys.readouterr().out.endswith("\n".join(table) + "\n")
    assert table[0] == "| corpus | part of test | LF-MMI | CTC |"
    rates = [float(cell) for cell in table[2].strip("|").split("|")[2:]]
    found = [
        compare.read_result(tmp_path / f"handwriting-{name}-1", "handwriting", name, 1)
        for name in ("lf-mmi", "ctc")
    ]
    assert rates == [round(result.wer, 2) for result in found]
