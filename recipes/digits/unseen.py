"""Speakers never heard: each one left out of training and dev in turn, and all of that one's strings as the test set."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

RECIPE = Path(__file__).resolve().parent
sys.path.insert(0, str(RECIPE.parents[1]))  # so that the script starts from any folder

from recipes.digits.prepare import prepare
from recipes.pipeline.corpus import SPLITS, read_data_dirs, write_data_dir
from recipes.pipeline.results import Result, add_options, publish, read_result, run_with


def prepare_without(speaker: str, corpus: Path | None, out: Path, seed: int) -> None:
    """The corpus of the recipe, but for one speaker, whose strings of two digits or more in all sets become the test set."""
    prepare(corpus, out, seed)
    sets = {split: read_data_dirs([out / split]) for split in SPLITS}
    own = [one for split in SPLITS for one in sets[split] if one.speaker == speaker and len(one.words) > 1]
    for split in ("train", "dev"):
        write_data_dir(out / split, [one for one in sets[split] if one.speaker != speaker])
    write_data_dir(out / "test", own)


def table_of(results: Sequence[Result]) -> list[list[str]]:
    """A row for each speaker left out, a column for each seed; then means and the worst."""
    seeds = sorted({result.seed for result in results})
    wers = {(result.kind, result.seed): result.wer for result in results}
    speakers = list(dict.fromkeys(result.kind for result in results))
    rows = {speaker: [wers[speaker, seed] for seed in seeds] for speaker in speakers}
    for name, summary in (("mean", mean), ("worst", max)):
        rows[name] = [summary(wers[speaker, seed] for speaker in speakers) for seed in seeds]
    head = ["left out", *(f"seed {seed}" for seed in seeds)]
    return [head, *([name, *(f"{wer:.2f}" for wer in values)] for name, values in rows.items())]


def main(arguments: Sequence[str] | None = None) -> None:
    """A run that fails ends the program."""
    parser = argparse.ArgumentParser(prog="recipes/digits/unseen.py", description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="corpus folder of the digits recipe")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], help="default: 1 2")
    parser.add_argument("--speakers", nargs="+", help="those that are left out in turn; default: all")
    add_options(parser, "digits-unseen")
    options = parser.parse_args(arguments)
    speakers = options.speakers
    if speakers is None:
        with TemporaryDirectory() as folder:
            prepare(options.corpus, Path(folder), 1)
            speakers = sorted({one.speaker for one in read_data_dirs([Path(folder) / "train"])})
    results = []
    for speaker in speakers:
        for seed in options.seeds:
            print(f"=== without {speaker}, seed {seed}", flush=True)
            exp = options.exp / f"{speaker}-{seed}"
            without, given = (
                partial(prepare_without, speaker),
                (f"--seed={seed}", f"--corpus={options.corpus}"),
            )
            run_with(RECIPE, without, exp, options.set, *given, "--to=decode", made_of={"unseen": speaker})
            results.append(read_result(exp, "digits", speaker, seed))
    publish(table_of(results), options.exp)


if __name__ == "__main__":
    main()
