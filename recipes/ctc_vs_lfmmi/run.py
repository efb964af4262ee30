"""One corpus, one network, two objectives: each trained and decoded by the recipe of the corpus, then one table.

CTC is LF-MMI with other graphs: numerators of the CTC topology, and a denominator that accepts every sequence of pdfs. So
both runs share features, network, schedule, lexicon, grammar and decoder, and differ in the options of `ctc.yaml` alone.
`--help` lists what can be chosen.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parents[1]))  # so that the script starts from any folder

from fsachain.asr.train.config import load_yaml
from recipes.digits.prepare import prepare as prepare_digits
from recipes.handwriting.prepare import prepare as prepare_handwriting
from recipes.pipeline.corpus import prepare_data_dirs
from recipes.pipeline.main import Prepare
from recipes.pipeline.results import Result, add_options, publish, read_result, run_with, settings

RECIPES: dict[str, Prepare] = {
    "handwriting": prepare_handwriting,
    "digits": prepare_digits,
    "prompts": prepare_data_dirs,
}
OBJECTIVES: dict[str, dict[str, Any]] = {"LF-MMI": {}, "CTC": load_yaml(FOLDER / "ctc.yaml")}
MOST_SPEAKERS = 20  # that get rows of their own


def main(arguments: Sequence[str] | None = None) -> None:
    """A run that fails ends the program."""
    parser = argparse.ArgumentParser(
        prog="recipes/ctc_vs_lfmmi/run.py", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--digits", type=Path, help="corpus folder of the digits recipe; left out: not run")
    parser.add_argument("--prompts", type=Path, help="corpus folder of the prompts recipe; left out: not run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], help="default: 1 2")
    add_options(parser, "ctc_vs_lfmmi")
    options = parser.parse_args(arguments)
    results = []
    for corpus, prepare in RECIPES.items():
        folder = getattr(options, corpus, None)
        if folder is None and corpus != "handwriting":
            continue
        given = [] if folder is None else [f"--corpus={folder}"]
        for seed in options.seeds:
            for objective, changes in OBJECTIVES.items():
                print(f"=== {corpus}, {objective}, seed {seed}", flush=True)
                exp = options.exp / f"{corpus}-{objective.lower()}-{seed}"
                recipe, every = FOLDER.parent / corpus, [*settings(changes), *options.set]
                run_with(recipe, prepare, exp, every, f"--seed={seed}", *given)
                results.append(read_result(exp, corpus, objective, seed))
    publish(table_of(results), options.exp)


def table_of(results: Sequence[Result]) -> list[list[str]]:
    """A row for each corpus and group, a column for each objective, seeds side by side."""
    rows = [["corpus", "part of test", *OBJECTIVES]]
    for corpus in dict.fromkeys(result.corpus for result in results):
        mine = [result for result in results if result.corpus == corpus]
        parts = [(corpus, "all, WER %", [f"{one.wer:.2f}" for one in mine])]
        speakers = list(dict.fromkeys(name for result in mine for name in result.by_speaker))
        if 1 < len(speakers) <= MOST_SPEAKERS:
            parts += [("", name, [f"{one.by_speaker[name]:.2f}" for one in mine]) for name in speakers]
        parts.append(("", "training, s", [f"{one.seconds:.0f}" for one in mine]))
        for name, part, told in parts:
            pairs = list(zip(mine, told, strict=True))
            cells = [" / ".join(text for one, text in pairs if one.kind == kind) for kind in OBJECTIVES]
            rows.append([name, part, *cells])
    return rows


if __name__ == "__main__":
    main()
