"""What is told about the utterances that take no part in a training, once for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from fsachain.data.faults import Fault
from fsachain.errors import DataError
from fsachain.train.diagnosis import describe_excluded
from fsachain.train.log import JsonLinesLog, NoLog
from fsachain.train.progress import Progress
from fsachain.train.world import World

_PER_EVENT = 200  # utterances: a log is read line by line


def _records(faults: Sequence[Fault]) -> list[list[dict[str, Any]]]:
    """The faults for the log, a few hundred in an event."""
    records = [asdict(fault) for fault in faults]
    return [records[begin : begin + _PER_EVENT] for begin in range(0, len(records), _PER_EVENT)]


class LeftOut:
    """The faults that are known; sources that read while the training runs find more.

    Args:
        world: its processes may find different ones.
        log, progress: are told.
        bad_data: "exclude" or "stop", as in `TrainConfig`.
    """

    def __init__(self, world: World, log: JsonLinesLog | NoLog, progress: Progress, bad_data: str) -> None:
        self._world = world
        self._log = log
        self._progress = progress
        self._bad_data = bad_data
        self._known: dict[Fault, None] = {}  # in order

    @property
    def faults(self) -> tuple[Fault, ...]:
        """All that were told."""
        return tuple(self._known)

    def begin(self, faults: Iterable[Fault], **start: Any) -> None:
        """Tell of what is known when the training begins; `start` is written with it.

        Raises:
            DataError: there is some and `bad_data` is "stop".
        """
        new = self._add(faults)
        first, *others = _records(new) or [[]]
        self._log.write("start", **start, excluded=first)
        self._log_left_out(others)
        self._tell(new)

    def add(self, faults: Iterable[Fault]) -> None:
        """Tell of those that are new; called by all processes, each with what it found.

        Raises:
            DataError: there is some and `bad_data` is "stop".
        """
        new = self._add(faults)
        if new:
            self._log_left_out(_records(new))
            self._tell(new)

    def _log_left_out(self, records: Iterable[list[dict[str, Any]]]) -> None:
        for some in records:
            self._log.write("left_out", excluded=some)

    def _add(self, faults: Iterable[Fault]) -> list[Fault]:
        every = [fault for found in self._world.gather(list(faults)) for fault in found]
        new = [fault for fault in dict.fromkeys(every) if fault not in self._known]
        self._known |= dict.fromkeys(new)
        return new

    def _tell(self, new: list[Fault]) -> None:
        if new:
            self._progress.message(describe_excluded(new))
        if new and self._bad_data == "stop":
            raise DataError(
                f"{len(new)} utterances cannot be trained on and train.bad_data is 'stop'; the first: {new[0]}"
            )
