"""Progress of long work on the terminal; silent where the output is not one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from fsachain.errors import require

Item = TypeVar("Item")


def track(items: Sequence[Item], what: str) -> Iterator[Item]:
    """The items one by one, with a bar that says how many are done."""
    with counter(what) as update:
        for done, item in enumerate(items, start=1):
            yield item
            update(done, len(items))


@contextmanager
def counter(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar moved by the function that is given: update(done, in all)."""
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
