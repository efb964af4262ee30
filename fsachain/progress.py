"""How far a long piece of work is: a bar on a terminal, elsewhere a line every 30 seconds; what the work waits for."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol, TextIO

from fsachain.errors import require

SECONDS = 30.0  # between two lines
_bars: list[Any] = []  # the one display of bars that a terminal has, while a bar is open
_logs: list[TextIO] = []  # where messages go that else stand above a bar, innermost last
_waiting: list[tuple[str, Any]] = []  # what the work waits for, innermost last, and its bar if there is one


class Update(Protocol):
    """What moves a bar or line: `total` is None where it is not known, `text` stands behind it."""

    def __call__(self, done: int, total: int | None, text: str = "") -> None: ...


class Lines:
    """A line every 30 seconds: what is done, and about how long the rest will take.

    Call it with (done, in all); before the first call the line says how long the work has taken.
    """

    def __init__(self, what: str, stream: TextIO) -> None:
        self._what, self._stream = what, stream
        self._began = time.monotonic()
        self._state: tuple[int, int | None, str] = 0, None, ""
        self._first: int | None = None  # done at the first call: earlier work says nothing of the speed
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tell, daemon=True)
        self._thread.start()

    def __call__(self, done: int, total: int | None, text: str = "") -> None:
        if self._first is None:
            self._first = max(done - 1, 0)
        self._state = done, total, text

    def __enter__(self) -> Lines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()  # a thread that a process ends with may take it down

    def line(self, seconds: float) -> str:
        """What is told after so many seconds."""
        done, total, text = self._state
        new = done - (self._first or 0)
        told = f"{done} in {clock(seconds)}" if done else f"{clock(seconds)} so far"
        if total and new:
            told = f"{done} of {total}, {clock(seconds / new * (total - done))} left"
        behind = [text, *(what for what, _ in _waiting[-1:])]
        return "; ".join([f"{self._what}: {told}", *filter(None, behind)])

    def _tell(self) -> None:
        while not self._over.wait(SECONDS):
            print(self.line(time.monotonic() - self._began), file=self._stream, flush=True)


def message(text: str, stream: TextIO | None = None) -> None:
    """A line about the work that goes on: on standard error if no stream is given, or in the log of `messages_to`."""
    print(text, file=_logs[-1] if _logs else stream or sys.stderr, flush=True)


@contextmanager
def messages_to(log: TextIO) -> Iterator[None]:
    """What `message` tells in the block goes to this file; bars stay where they are."""
    _logs.append(log)
    try:
        yield
    finally:
        _logs.pop()


@contextmanager
def counter(what: str, stream: TextIO | None = None) -> Iterator[Update]:
    """A bar with the time that is left, or lines, moved by update(done, in all); on standard error, if nothing is given."""
    stream = sys.stderr if stream is None else stream
    if not (_bars or stream.isatty()):
        with Lines(what, stream) as lines:
            yield lines
        return
    outer = not _bars
    if outer:
        _bars.append(_display(stream))
        _bars[0].start()
    bar = _bars[0]
    task = bar.add_task(what, total=None, text="")
    try:
        yield lambda done, total, text="": bar.update(task, completed=done, total=total, text=text)
    finally:
        bar.remove_task(task)
        if outer:
            _bars.pop().stop()


def _display(stream: TextIO) -> Any:
    rich = require("rich.progress", extra="recipes")
    names = ("MofNCompleteColumn", "TimeElapsedColumn", "TimeRemainingColumn")
    columns = [
        rich.TextColumn("{task.description}", markup=False),
        rich.BarColumn(bar_width=20),
        *(getattr(rich, name)() for name in names),
        rich.TextColumn("{task.fields[text]}", markup=False),
    ]
    console = require("rich.console", extra="recipes").Console(file=stream)
    # What is printed goes above the bar, but to its file where it goes to one.
    return rich.Progress(
        *columns, console=console, refresh_per_second=4, transient=True, redirect_stdout=sys.stdout.isatty()
    )


def wait_for(what: str) -> None:
    """Work that is shown goes on after something else: its line says so, and a bar of its own appears, until `go_on`."""
    _waiting.append((what, _bars[0].add_task(what, total=None, text="") if _bars else None))


def go_on() -> None:
    _, task = _waiting.pop()
    if _bars and task is not None:
        _bars[0].remove_task(task)


def clock(seconds: float) -> str:
    """Minutes and seconds, or hours, minutes and seconds: 1:05, 2:00:00."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
