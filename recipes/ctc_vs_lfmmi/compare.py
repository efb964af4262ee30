"""One corpus, one network, two objectives: each trained and decoded by the recipe of the corpus, then one table.

CTC is LF-MMI with other graphs: numerators of the CTC topology, and a denominator that accepts every sequence of pdfs. So
both runs share features, network, schedule, lexicon, grammar and decoder, and differ in the options of `ctc.yaml` alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fsachain.train.config import load_yaml
from recipes.digits.prepare import prepare as prepare_digits
from recipes.handwriting.prepare import prepare as prepare_handwriting
from recipes.pipeline.corpus import prepare_data_dirs
from recipes.pipeline.main import DONE, REPOSITORY, Prepare, run_recipe
from recipes.pipeline.results import Result, add_options, publish, read_result

RECIPES: dict[str, Prepare] = {
    "handwriting": prepare_handwriting,
    "digits": prepare_digits,
    "prompts": prepare_data_dirs,
}
OBJECTIVES = {"LF-MMI": "lfmmi.yaml", "CTC": "ctc.yaml"}
MOST_SPEAKERS = 20  # that get rows of their own
FOLDER = Path(__file__).resolve().parent


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status of the first run that fails, or 0."""
    options = _parse(arguments)
    corpora = {"handwriting": None, "digits": options.digits, "prompts": options.prompts}
    wanted = [name for name, folder in corpora.items() if folder is not None or name == "handwriting"]
    results = []
    for corpus in wanted:
        for seed in options.seeds:
            for objective in OBJECTIVES:
                print(f"=== {corpus}, {objective}, seed {seed}", flush=True)
                exp = options.exp / f"{corpus}-{objective.lower()}-{seed}"
                status = run_recipe(
                    REPOSITORY / "recipes" / corpus,
                    RECIPES[corpus],
                    _arguments(exp, corpora[corpus], objective, seed, options),
                )
                if status not in DONE:
                    return status
                results.append(read_result(exp, corpus, objective, seed))
    publish(table_lines(results), options.exp)
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="recipes/ctc_vs_lfmmi/run.py", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--digits", type=Path, help="corpus folder of the digits recipe; left out: not run")
    parser.add_argument("--prompts", type=Path, help="corpus folder of the prompts recipe; left out: not run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], help="default: 1 2")
    add_options(parser, "ctc_vs_lfmmi")
    return parser.parse_args(arguments)


def _arguments(
    exp: Path, corpus: Path | None, objective: str, seed: int, options: argparse.Namespace
) -> list[str]:
    """The command line of a recipe; options of the objective come first, so that `--set` can change them."""
    changes = [
        f"{name}={json.dumps(value)}" for name, value in _flat(load_yaml(FOLDER / OBJECTIVES[objective]))
    ]
    given = [] if corpus is None else [f"--corpus={corpus}"]
    return [
        f"--exp={exp}",
        f"--seed={seed}",
        *given,
        *(f"--set={change}" for change in (*changes, *options.set)),
    ]


def _flat(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def table_lines(results: Sequence[Result]) -> list[str]:
    """A Markdown table: a row for each corpus and group, a column for each objective, seeds side by side."""
    lines = [f"| corpus | part of test | {' | '.join(OBJECTIVES)} |", "|---|---|" + "---|" * len(OBJECTIVES)]
    for corpus in dict.fromkeys(result.corpus for result in results):
        mine = [result for result in results if result.corpus == corpus]
        lines.append(_row(corpus, "all, WER %", mine, lambda result: f"{result.wer:.2f}"))
        speakers = list(dict.fromkeys(name for result in mine for name in result.by_speaker))
        if 1 < len(speakers) <= MOST_SPEAKERS:
            lines += [_row("", name, mine, partial(_of_speaker, name)) for name in speakers]
        lines.append(_row("", "training, s", mine, lambda result: f"{result.seconds:.0f}"))
    return lines


def _of_speaker(name: str, result: Result) -> str:
    return f"{result.by_speaker[name]:.2f}"


def _row(corpus: str, part: str, results: Sequence[Result], show: Callable[[Result], str]) -> str:
    cells = [" / ".join(show(result) for result in results if result.kind == name) for name in OBJECTIVES]
    return f"| {corpus} | {part} | {' | '.join(cells)} |"
