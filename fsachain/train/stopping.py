"""SIGTERM, with which schedulers announce the end of a job's time: a training saves its state and ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from fsachain.errors import FsachainError

MESSAGE = "stopped by SIGTERM; start it again with the same arguments to go on"


class StoppedError(FsachainError, RuntimeError):
    """The work was asked to stop; what it had done is saved, and started again it goes on from there."""


class _Terminated(BaseException):
    """No Exception, so that code which goes on after errors does not go on after this."""


@contextmanager
def stoppable() -> Iterator[None]:
    """A block that SIGTERM ends at once: for work whose files are written under their names only when they are whole.

    Inside it a `StopRequest` may take the signal over. In other threads than the main one the block changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise _Terminated

    try:
        previous = signal.signal(signal.SIGTERM, end)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, previous)
    except _Terminated:
        raise StoppedError(MESSAGE) from None


class StopRequest:
    """Whether SIGTERM has come since the block began; the signal itself interrupts nothing.

    Signals reach the main thread alone: elsewhere the block changes nothing, and no request is ever seen.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: Any = None

    def __enter__(self) -> StopRequest:
        self.requested = False
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGTERM, self._previous)
            self._previous = None

    def check(self) -> None:
        """Raise StoppedError if the signal has come."""
        if self.requested:
            raise StoppedError(MESSAGE)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
