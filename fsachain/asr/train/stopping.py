"""SIGTERM, with which schedulers announce the end of a job's time: a training saves its state and ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from fsachain.errors import FsachainError

MESSAGE = "stopped by SIGTERM; start it again with the same arguments to go on"


class StoppedError(FsachainError, RuntimeError):
    """SIGTERM came. The state is saved; started again, the work goes on from there."""


class _Terminated(BaseException):
    """Not an Exception, so that handlers of Exception do not catch it."""


@contextmanager
def stoppable() -> Iterator[None]:
    """A block that SIGTERM ends at once: for work whose files appear under their names only when complete.

    A `StopRequest` within it may take the signal over. In threads other than the main one the block has no effect.
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

    Python delivers signals to the main thread alone: elsewhere the block has no effect, and no request is ever seen.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: Any = None

    def __enter__(self) -> StopRequest:
        self.requested = False
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGTERM, self._previous)
            self._previous = None

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
