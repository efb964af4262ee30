"""A network is trained on prompts; then it and one with random weights are trained on a part of the digits; one table.

Both trainings on the digits share data, options and number of steps, and differ in `network.init_from` and `TUNING` alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fsachain.cli.model import FINAL_MODEL
from recipes.digits.prepare import prepare as prepare_digits
from recipes.pipeline.corpus import prepare_data_dirs, read_data_dirs, write_data_dir
from recipes.pipeline.main import DONE, Prepare, run_recipe
from recipes.pipeline.results import Result, add_options, publish, read_result

FOLDER = Path(__file__).resolve().parent
LAST = "--to=decode"  # the table needs no more
RANDOM, TUNED = "random weights", "pretrained"
# The encoder waits until the new output layer has learnt something, then moves more slowly than that.
TUNING = ("train.optimizer.freeze_epochs={encoder: 4}", "train.optimizer.factors={encoder: 0.5}")


@dataclass(frozen=True)
class Corpora:
    pretraining: Prepare = prepare_data_dirs
    tuning: Prepare = prepare_digits


def main(arguments: Sequence[str] | None = None, corpora: Corpora | None = None) -> int:
    """Returns the exit status of the first run that fails, or 0."""
    corpora = corpora or Corpora()
    options = _parse(arguments)
    print("=== pretraining", flush=True)
    pretrained = options.exp / "pretrained"
    status = run_recipe(
        FOLDER,
        corpora.pretraining,
        [
            f"--exp={pretrained}",
            f"--config={FOLDER / 'pretrain.yaml'}",
            f"--corpus={options.prompts or ''}",
            LAST,
            *(f"--set={change}" for change in options.set),
        ],
    )
    results = []
    for seed in options.seeds:
        for start in (RANDOM, TUNED):
            if status not in DONE:
                return status
            print(f"=== one utterance in {options.one_in}, {start}, seed {seed}", flush=True)
            exp = options.exp / f"{start.split()[0]}-{seed}"
            changes = (
                [f"network.init_from={pretrained / 'model' / FINAL_MODEL}", *TUNING] if start == TUNED else []
            )
            status = run_recipe(
                FOLDER,
                partial(prepare_part, corpora.tuning, options.one_in),
                [
                    f"--exp={exp}",
                    f"--config={FOLDER / 'digits.yaml'}",
                    f"--seed={seed}",
                    LAST,
                    f"--corpus={options.digits or ''}",
                    *(f"--set={change}" for change in (*changes, *options.set)),
                ],
                {"one_in": options.one_in},
            )
            if status in DONE:
                results.append(read_result(exp, "digits", start, seed))
    if status not in DONE:
        return status
    publish(table_lines(results), options.exp)
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="recipes/fine_tune/run.py", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--prompts", type=Path, help="corpus folder of the prompts recipe: pretraining")
    parser.add_argument(
        "--digits", type=Path, help="corpus folder of the digits recipe: fine-tuning and test"
    )
    parser.add_argument(
        "--one-in",
        type=int,
        default=64,
        help="train on one in so many of the digits' utterances (default 64)",
    )
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[1], help="of the trainings on digits (default 1)"
    )
    add_options(parser, "fine_tune")
    return parser.parse_args(arguments)


def prepare_part(prepare: Prepare, one_in: int, corpus: Path | None, out: Path, seed: int) -> None:
    """Prepare a corpus, and keep one in `one_in` of its training utterances, evenly spread over the sorted ids.

    Development and test set stay whole. The part is the same for every seed.
    """
    prepare(corpus, out, seed)
    recordings = sorted(read_data_dirs([out / "train"]), key=lambda recording: recording.id)
    write_data_dir(out / "train", recordings[::one_in])


def table_lines(results: Sequence[Result]) -> list[str]:
    """A Markdown table: a row for each start of the training, seeds side by side."""
    lines = ["| training begins with | test, WER % | training, s |", "|---|---|---|"]
    for start in dict.fromkeys(result.kind for result in results):
        mine = [result for result in results if result.kind == start]
        wers, seconds = (
            " / ".join(cells)
            for cells in ([f"{one.wer:.2f}" for one in mine], [f"{one.seconds:.0f}" for one in mine])
        )
        lines.append(f"| {start} | {wers} | {seconds} |")
    return lines
