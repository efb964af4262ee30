"""How far a long piece of work is, in lines: for outputs that are no terminal, where no bar can be drawn."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TextIO

SECONDS = 30.0  # between two lines


class Lines:
    """A line every 30 seconds, to standard error: what is done, and about how long the rest will take.

    Call it with (done, in all); before the first call the line says how long the work has taken.
    """

    def __init__(self, what: str, stream: TextIO | None = None) -> None:
        self._what, self._stream = what, stream
        self._began, self._state = time.monotonic(), (0, 0)
        self._first: int | None = None  # done at the first call: earlier work says nothing of the speed
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tell, daemon=True)
        self._thread.start()

    def __call__(self, done: int, total: int) -> None:
        if self._first is None:
            self._first = max(done - 1, 0)
        self._state = done, total

    def __enter__(self) -> Lines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._over.set()
        self._thread.join()  # a thread that a process ends with may take it down

    def line(self, seconds: float) -> str:
        """What is told after so many seconds."""
        done, total = self._state
        new = done - (self._first or 0)
        if not (total and new):
            return f"{self._what}: {clock(seconds)} so far"
        return f"{self._what}: {done} of {total}, {clock(seconds / new * (total - done))} left"

    def _tell(self) -> None:
        while not self._over.wait(SECONDS):
            print(self.line(time.monotonic() - self._began), file=self._stream or sys.stderr, flush=True)


def clock(seconds: float) -> str:
    """Minutes and seconds, or hours, minutes and seconds: 1:05, 2:00:00."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
