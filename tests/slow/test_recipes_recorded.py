"""The recipes of recordings in small: a few recordings, a narrow network, one epoch, all stages."""

from pathlib import Path

import pytest

from fsachain.decode.wer import read_text
from fsachain.report.collect import read_stages
from recipes.digits.prepare import prepare as prepare_digits
from recipes.pipeline.corpus import read_data_dirs, write_data_dir
from recipes.pipeline.main import DONE, run_recipe
from recipes.prompts.prepare import prepare as prepare_prompts

ROOT = Path(__file__).resolve().parents[2]
STAGES = ["lang", "features", "graphs", "train", "decode", "align", "report"]
KEPT = {"train": 40, "dev": 3, "test": 4}
OPTIONS = [
    "phone_lm.ngram_order=2",  # so little text has few of the longer sequences
    "phone_lm.no_prune_ngram_order=2",
    "phone_lm.num_extra_lm_states=0",
    "network.channels=16",
    "network.prefinal=16",
    "network.time_strides=[1]",
    "perturbation.speeds=[1.0]",
    "train.num_epochs=1",
    "train.average_last=1",
    "train.num_threads=1",
    "decoding.word_insertion_penalties=[0.0]",
    "decoding.lm_weights=[1.0]",
]
RECIPES = {"digits": ("digits", prepare_digits), "prompts": ("prompts_en", prepare_prompts)}


def few_of(prepare):
    """Prepares the corpus and keeps a few recordings of each set, from all parts of it."""

    def prepare_few(corpus, out, seed):
        prepare(corpus, out, seed)
        for split, count in KEPT.items():
            recordings = read_data_dirs([out / split])
            write_data_dir(out / split, recordings[:: len(recordings) // count][:count])

    return prepare_few


@pytest.mark.parametrize("name", RECIPES)
def test_every_stage_of_a_recipe_of_recordings_runs(name, shared, tmp_path):
    folder, prepare = RECIPES[name]
    corpus = shared / "data" / folder
    if not corpus.is_dir():
        pytest.skip(f"the recordings data/{folder} are not in ../shared")
    arguments = [f"--corpus={corpus}", f"--exp={tmp_path}", "--workers=1"]
    options = [f"--set={change}" for change in OPTIONS]
    assert run_recipe(ROOT / "recipes" / name, few_of(prepare), [*arguments, *options]) in DONE
    assert [stage.name for stage in read_stages(tmp_path / "stages.jsonl").stages] == STAGES
    assert len(read_text(tmp_path / "decode" / "hyp.txt")) == KEPT["test"]
    assert "WER" in (tmp_path / "report.txt").read_text()
