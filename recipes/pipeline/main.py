"""The command line of every recipe: which stages run, where they write, how long each takes."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from fsachain.cli import EXIT_INTERRUPTED, describe, exit_status
from fsachain.cli.config import Experiment, read_experiment
from fsachain.cli.model import permitted_imports
from fsachain.cli.record import open_log, record_run, recorded_stage
from fsachain.cli.report import REPORT
from fsachain.errors import ConfigError, FsachainError
from fsachain.train.stopping import stoppable
from fsachain.train.world import World
from recipes.pipeline.stages import SECOND_PASS, STAGES, Prepare, Run, Stages

TOGETHER = frozenset({"train"})  # the stages in which several processes work
REPOSITORY = Path(__file__).resolve().parents[2]


def _parser(program: str, stages: Stages) -> argparse.ArgumentParser:
    """The options that both passes have."""
    parser = argparse.ArgumentParser(prog=program, description=f"Stages: {', '.join(stages)}.")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is drawn (default 1)")
    parser.add_argument("--stage", choices=stages, default=next(iter(stages)), help="first stage to run")
    parser.add_argument("--stop-stage", choices=stages, default=list(stages)[-1], help="last stage to run")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.OPTION=VALUE",
        help="change one value of the configuration; may be given several times",
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="default: all processors")
    return parser


def run_recipe(
    recipe: Path, prepare: Prepare, arguments: Sequence[str] | None = None, stages: Stages = STAGES
) -> int:
    """Run the stages asked for and print the wall time of each.

    `recipe` is the folder with config.yaml; `prepare` writes the corpus (`recipes.pipeline.corpus`). Returns the exit
    status: 0, 1 after an error that is printed in one line, 75 after SIGTERM (start it again to go on).
    """
    parser = _parser(f"recipes/{recipe.name}/run.py", stages)
    parser.add_argument(
        "--corpus",
        type=lambda text: Path(text) if text else None,
        help="folder of the corpus, see the recipe's README",
    )
    parser.add_argument("--exp", type=Path, help="folder for all outputs (default exp/RECIPE)")
    parser.add_argument("--config", type=Path, default=recipe / "config.yaml", help="YAML configuration")
    parser.add_argument(
        "--shuffle-transcripts",
        action="store_true",
        help="control: train on the transcripts of other utterances; the WER must collapse",
    )
    options = parser.parse_args(arguments)
    exp = options.exp or REPOSITORY / "exp" / recipe.name

    def make_run(config: Experiment) -> Run:
        return Run(
            exp, config, prepare, options.corpus, options.seed, options.shuffle_transcripts, options.workers
        )

    return _run(options, stages, make_run)


def run_second_pass(recipe: Path, prepare: Prepare, arguments: Sequence[str] | None = None) -> int:
    """Align with the model of the first pass and train anew on chunks; returns what `run_recipe` does."""
    parser = _parser(f"recipes/{recipe.name}/chunks.py", SECOND_PASS)
    parser.add_argument("--first", type=Path, help="folder of the first pass (default exp/RECIPE)")
    parser.add_argument("--exp", type=Path, help="folder for all outputs (default exp/RECIPE-chunks)")
    parser.add_argument("--config", type=Path, default=recipe / "chunks.yaml", help="YAML configuration")
    options = parser.parse_args(arguments)
    first = options.first or REPOSITORY / "exp" / recipe.name
    exp = options.exp or REPOSITORY / "exp" / f"{recipe.name}-chunks"

    def make_run(config: Experiment) -> Run:
        if exp.resolve() == first.resolve():
            raise ConfigError(f"--exp {exp}: is the folder of the first pass; expected one of its own")
        return Run(exp, config, prepare, None, options.seed, False, options.workers, first)

    return _run(options, SECOND_PASS, make_run)


def _run(options: argparse.Namespace, stages: Stages, make_run: Callable[[Experiment], Run]) -> int:
    names = list(stages)
    chosen = names[names.index(options.stage) : names.index(options.stop_stage) + 1]
    try:
        if not chosen:
            raise ConfigError(f"--stop-stage {options.stop_stage} comes before --stage {options.stage}")
        run = make_run(read_experiment(options.config, options.set))
        own = run.config.network_spec(num_pdfs=1).import_path  # what the run's configuration names, it trusts
        with (
            permitted_imports([own] if own else []),
            World.from_environment(run.config.train.process_timeout) as world,
        ):
            run = replace(run, world=world)
            seconds = run_stages(run, {name: stages[name] for name in chosen})
    except (FsachainError, OSError) as error:
        print(f"error: {describe(error)}", file=sys.stderr)
        return exit_status(error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    if not run.world.is_first:
        return 0
    print("  ".join(f"{name} {value:.1f} s" for name, value in seconds.items()))
    print(f"all stages {sum(seconds.values()):.1f} s")
    if "report" in seconds:
        print(f"to look at: {run.exp / REPORT}")
    return 0


def run_stages(run: Run, stages: Stages) -> dict[str, float]:
    """Run stages in order and note in stages.jsonl what each takes; returns the wall time of each in seconds.

    Under torchrun all processes run those of `TOGETHER`; the first runs the others, and the rest wait for it.
    """
    if not run.world.is_first:
        for name, stage in stages.items():
            with stoppable(), run.world.first(f"stage {name}") if name not in TOGETHER else nullcontext():
                if name in TOGETHER:
                    stage(run)
        return {}
    log = open_log(run.exp)
    record_run(
        log,
        list(stages),
        seed=run.seed,
        workers=run.num_workers,
        shuffled_transcripts=run.shuffle_transcripts or None,
        first=None if run.first is None else str(run.first.resolve()),
        config=run.seeded.to_dict(),
    )
    seconds = {}
    for name, stage in stages.items():
        print(f"--- {name}", flush=True)
        started = time.perf_counter()
        alone = run.world.first(f"stage {name}") if name not in TOGETHER else nullcontext()
        with recorded_stage(log, name), alone:
            stage(run)
        seconds[name] = time.perf_counter() - started
    return seconds
