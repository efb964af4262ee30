"""A network is trained on prompts; then it and one with random weights are trained on a part of the digits; one table.

Both trainings on the digits share data, options and number of steps, and differ in `network.init_from` and `TUNING` alone.
`--help` lists what can be chosen.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parents[1]))  # so that the script starts from any folder

from fsachain.asr.cli.model import FINAL_MODEL
from recipes.digits.prepare import prepare as prepare_digits
from recipes.pipeline.corpus import prepare_data_dirs, read_data_dirs, write_data_dir
from recipes.pipeline.main import Prepare
from recipes.pipeline.results import Result, add_options, publish, read_result, run_with

CORPORA: dict[str, Prepare] = {"prompts": prepare_data_dirs, "digits": prepare_digits}
LAST = "--to=decode"  # the table needs no more
AS_GIVEN = "--as-given"  # both corpora with the same options, whatever suits each
RANDOM, TUNED = "random weights", "pretrained"
# The encoder waits until the new output layer has learnt something, then moves more slowly than that.
TUNING = ("train.optimizer.freeze_epochs={encoder: 4}", "train.optimizer.factors={encoder: 0.5}")


def main(arguments: Sequence[str] | None = None) -> None:
    """A run that fails ends the program."""
    parser = argparse.ArgumentParser(
        prog="recipes/fine_tune/run.py", description=(__doc__ or "").split("\n\n")[0]
    )
    add = parser.add_argument
    add("--prompts", default="", help="corpus folder of the prompts recipe: pretraining")
    add("--digits", default="", help="corpus folder of the digits recipe: fine-tuning and test")
    add(
        "--one-in",
        type=int,
        default=64,
        help="train on one in so many of the digits' utterances (default 64)",
    )
    add("--seeds", type=int, nargs="+", default=[1], help="of the trainings on digits (default 1)")
    add_options(parser, "fine_tune")
    options = parser.parse_args(arguments)
    print("=== pretraining", flush=True)
    pretrained = options.exp / "pretrained"
    given = (f"--config={FOLDER / 'pretrain.yaml'}", f"--corpus={options.prompts}", LAST, AS_GIVEN)
    run_with(FOLDER, CORPORA["prompts"], pretrained, options.set, *given)
    starts = {RANDOM: (), TUNED: (f"network.init_from={pretrained / 'model' / FINAL_MODEL}", *TUNING)}
    results = []
    for seed in options.seeds:
        for start, changes in starts.items():
            print(f"=== one utterance in {options.one_in}, {start}, seed {seed}", flush=True)
            exp = options.exp / f"{start.split()[0]}-{seed}"
            part, made_of = partial(prepare_part, options.one_in), {"one_in": options.one_in}
            given = (f"--config={FOLDER / 'digits.yaml'}", f"--corpus={options.digits}", LAST, AS_GIVEN)
            run_with(FOLDER, part, exp, (*changes, *options.set), f"--seed={seed}", *given, made_of=made_of)
            results.append(read_result(exp, "digits", start, seed))
    publish(table_of(results), options.exp)


def prepare_part(one_in: int, corpus: Path | None, out: Path, seed: int) -> None:
    """Prepare the digits, and keep one in `one_in` of their training utterances, evenly spread over the sorted ids.

    Development and test set stay whole. The part is the same for every seed.
    """
    CORPORA["digits"](corpus, out, seed)
    recordings = sorted(read_data_dirs([out / "train"]), key=lambda recording: recording.id)
    write_data_dir(out / "train", recordings[::one_in])


def table_of(results: Sequence[Result]) -> list[list[str]]:
    """A row for each start of the training, seeds side by side."""
    rows = [["training begins with", "test, WER %", "training, s"]]
    for start in dict.fromkeys(result.kind for result in results):
        mine = [result for result in results if result.kind == start]
        cells = [f"{one.wer:.2f}" for one in mine], [f"{one.seconds:.0f}" for one in mine]
        rows.append([start, *map(" / ".join, cells)])
    return rows


if __name__ == "__main__":
    main()
