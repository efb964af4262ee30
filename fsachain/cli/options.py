"""Arguments and options that several commands have, and progress bars. Light: what `--help` needs and no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from fsachain.errors import require

INPUT_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
INPUT_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
INPUT_PATH = click.Path(exists=True, path_type=Path)
INPUT_DATA = INPUT_PATH  # a Kaldi data directory, a lhotse manifest of cuts, or a folder of Shar shards
OUTPUT = click.Path(path_type=Path)

den_option = click.option(
    "--den", type=INPUT_FOLDER, required=True, help="Folder made by `fsachain den-graph`."
)
merge_option = click.option(
    "--merge",
    type=click.Choice(["sum", "min"]),
    default="sum",
    show_default=True,
    help="Arcs out of the normalization's start that are alike: added up, or the best kept, as Kaldi does.",
)
seed_option = click.option(
    "--seed", type=int, default=1, show_default=True, help="Of everything that is drawn."
)
grammar_option = click.option(
    "--grammar",
    type=(INPUT_FILE, INPUT_FILE),
    metavar="G WORDS",
    help="The same as G.fst, and its words.txt.",
)
phones_per_loop_option = click.option(
    "--phones-per-loop",
    type=click.FloatRange(min=1, min_open=True),
    default=10.0,
    show_default=True,
    help="Phones that anything, or <loop>, has on average.",
)
workers_option = click.option(
    "--workers", type=click.IntRange(min=1), default=2, show_default=True, help="Threads or processes."
)
jobs_option = click.option(
    "--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Processes that work at once."
)
scheduler_option = click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Dask scheduler, such as tcp://host:8786, whose workers do the work in place of this machine.",
)
cache_option = click.option("--cache", type=OUTPUT, help="Folder that keeps features between runs.")
bad_data_option = click.option(
    "--bad-data",
    type=click.Choice(["exclude", "stop"]),
    default="exclude",
    show_default=True,
    help="exclude: go on without utterances that cannot be used, list them, and end with status 3. stop: end at once.",
)
commands_option = click.option(
    "--allow-commands",
    is_flag=True,
    help="Run the shell commands that stand in wav.scp or a manifest, with your rights: for data that you trust.",
)

Item = TypeVar("Item")


def track(items: Sequence[Item], what: str) -> Iterator[Item]:
    with counter(what) as update:
        for done, item in enumerate(items, start=1):
            yield item
            update(done, len(items))


@contextmanager
def counter(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar moved by update(done, in all); silent where the output is no terminal."""
    progress = require("rich.progress", extra="recipes")
    console = require("rich.console", extra="recipes").Console(stderr=True)
    columns: tuple[Any, ...] = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def reasons(head: str, excluded: Sequence[str]) -> str:
    return "\n  ".join([head, *excluded])
