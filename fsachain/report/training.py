"""What a training log says: epochs, how far it is, which utterances took no part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fsachain.report.events import EventLog, number, read_events, strings, text

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Epoch:
    """One epoch; None for what the log does not say. objf, num, den in nats per output frame."""

    number: int
    objf: float | None
    num: float | None
    den: float | None
    dev_objf: float | None
    learning_rate: float | None
    grad_norm: float | None
    seconds: float | None
    frames_per_second: float | None
    loss_share: float | None
    data_share: float | None
    excluded: int
    skipped_batches: int


@dataclass(frozen=True)
class Training:
    """A training as its log tells it.

    Attributes:
        log: the events, for the curves.
        epochs: finished ones by number; of an epoch that was trained twice, after a crash, the later.
        num_epochs: how many there are to be; None where the log does not say.
        utterances, batches, parameters: sizes; None where the log does not say.
        config: the options of section `train`.
        excluded: (utterance, reason) of those that take no part.
        excluded_in_epochs: names that the loss left out.
        skipped: names of each batch that moved no parameter.
        finished: the log has an end.
        resumed: how often the training went on after it had been broken off.
        final_dev_objf: of the final model, nats per output frame.
        last_time: Unix time of the last event.
    """

    log: EventLog
    epochs: tuple[Epoch, ...]
    num_epochs: int | None
    utterances: int | None
    batches: int | None
    parameters: int | None
    config: dict[str, Any]
    excluded: tuple[tuple[str, str], ...]
    excluded_in_epochs: tuple[str, ...]
    skipped: tuple[tuple[str, ...], ...]
    finished: bool
    resumed: int
    final_dev_objf: float | None
    last_time: float | None

    @property
    def state(self) -> str:
        """How far it is, in a few words."""
        if self.finished:
            return "finished"
        of = f" of {self.num_epochs}" if self.num_epochs else ""
        return f"{len(self.epochs)}{of} epochs done"

    @property
    def seconds(self) -> float:
        """Wall time of the finished epochs."""
        return sum(epoch.seconds or 0.0 for epoch in self.epochs)

    @property
    def remaining_seconds(self) -> float | None:
        """What the epochs to come may take, if they are as long as the mean of those behind."""
        if self.finished or not self.epochs or not self.num_epochs:
            return None
        return max(0, self.num_epochs - len(self.epochs)) * self.seconds / len(self.epochs)


def read_training(path: Path) -> Training:
    """Read `train.jsonl`, finished or not.

    Raises:
        DataError: there is no such file, or it cannot be read.
    """
    log = read_events(path)
    epochs: dict[int, Epoch] = {}
    for event in log.of("epoch"):
        epoch = _epoch(event)
        if epoch is not None:
            epochs[epoch.number] = epoch
    starts = log.of("start")
    start = starts[-1] if starts else {}
    ends = log.of("end")
    config = start.get("config") if isinstance(start.get("config"), dict) else {}
    last = log.events[-1] if log.events else {}
    return Training(
        log=log,
        epochs=tuple(epochs[key] for key in sorted(epochs)),
        num_epochs=_whole(config, "num_epochs"),
        utterances=_whole(start, "utterances"),
        batches=_whole(start, "batches"),
        parameters=_whole(start, "parameters"),
        config=dict(config or {}),
        excluded=_distinct(_excluded(log.events)),
        excluded_in_epochs=_distinct(
            name for event in log.of("epoch") for name in strings(event.get("excluded"))
        ),
        skipped=tuple(strings(event.get("utterances")) for event in log.of("skipped")),
        finished=bool(ends) and last.get("event") == "end",
        resumed=len(log.of("resume")),
        final_dev_objf=number(ends[-1], "dev", "objf") if ends else None,
        last_time=number(last, "time"),
    )


def _epoch(event: dict[str, Any]) -> Epoch | None:
    which = _whole(event, "epoch")
    if which is None:
        return None
    train = event.get("train")
    figures = {
        name: number(train, name)
        for name in (
            "objf",
            "num",
            "den",
            "grad_norm",
            "seconds",
            "frames_per_second",
            "loss_share",
            "data_share",
        )
    }
    return Epoch(
        number=which,
        dev_objf=number(event, "dev", "objf"),
        learning_rate=number(event, "learning_rate"),
        excluded=int(number(train, "excluded") or 0),
        skipped_batches=int(number(train, "skipped_batches") or 0),
        **figures,
    )


def _excluded(events: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """(utterance, reason) from the last start on; long lists go on in events of their own."""
    kinds = [event.get("event") for event in events]
    begin = len(kinds) - 1 - kinds[::-1].index("start") if "start" in kinds else len(kinds)
    for event in events[begin:]:
        entries = event.get("excluded") if event.get("event") in ("start", "left_out") else None
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict):
                yield text(entry, "id"), text(entry, "reason")


def _distinct(values: Iterable[_Value]) -> tuple[_Value, ...]:
    return tuple(dict.fromkeys(values))


def _whole(table: Any, name: str) -> int | None:
    value = number(table, name)
    return None if value is None else int(value)
