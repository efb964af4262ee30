"""Comparisons: several runs of recipes, and what they left in their folders, side by side in one table."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fsachain.asr.report.collect import STAGE_LOG, read_stages
from fsachain.asr.train.config import flat
from fsachain.errors import DataError
from recipes.pipeline.main import DONE, REPOSITORY, Prepare, run_recipe


class Result(NamedTuple):
    """One run: `kind` of training, WER on test in %, of all and by speaker, seconds of training."""

    corpus: str
    kind: str
    seed: int
    wer: float
    by_speaker: dict[str, float]
    seconds: float


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """The options that every comparison has; `name` is that of its recipe."""
    parser.add_argument("--exp", type=Path, default=REPOSITORY / "exp" / name, help="folder of all outputs")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.OPTION=VALUE",
        help="for all runs; may be given several times",
    )


def settings(table: Mapping[str, Any]) -> list[str]:
    """The options of a table, and of those within it, as `--set` takes them."""
    return [f"{name}={json.dumps(value)}" for name, value in flat(table)]


def run_with(
    recipe: Path,
    prepare: Prepare,
    exp: Path,
    changes: Iterable[str],
    *arguments: str,
    made_of: Mapping[str, Any] | None = None,
) -> None:
    """`run_recipe` in the folder `exp`, with changed options; what fails ends the program."""
    given = [f"--exp={exp}", *arguments, *(f"--set={change}" for change in changes)]
    finish(run_recipe(recipe, prepare, given, made_of))


def finish(status: int) -> None:
    """End the program with the exit status of a step that failed."""
    if status not in DONE:
        raise SystemExit(status)


def read_result(exp: Path, corpus: str, kind: str, seed: int) -> Result:
    try:
        scored = json.loads((exp / "decode" / "wer.json").read_text(encoding="utf-8"))
        stages = {stage.name: stage.seconds for stage in read_stages(exp / STAGE_LOG).stages}
        speakers = {name: float(counts["wer"]) for name, counts in scored["speakers"].items()}
        return Result(
            corpus, kind, seed, float(scored["total"]["wer"]), speakers, float(stages["train"] or 0.0)
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{exp}: holds no finished run ({error})") from error


def publish(rows: Sequence[Sequence[str]], exp: Path) -> None:
    """Print a table, whose first row is its head, and write it to table.md, in Markdown."""
    head, *others = rows
    table = "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *others))
    (exp / "table.md").write_text(table, encoding="utf-8")
    print(table, end="")
