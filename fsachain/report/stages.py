"""What ran, with which versions, and what each stage took: from `stages.jsonl`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsachain.report.events import EventLog, number, read_events, strings, text

_STATES = {"start": "begun", "end": "done", "failed": "failed", "stopped": "stopped"}


@dataclass(frozen=True)
class Stage:
    """The newest attempt at one stage.

    Attributes:
        name: of the stage.
        state: "done", "failed", "stopped", "begun" (it runs, or was killed) or "to come".
        started: Unix time; None for a stage to come.
        seconds: wall time.
        cpu_seconds: of all threads and finished child processes.
        peak_rss: largest memory of the process in bytes.
        peak_device: largest allocation on the GPU in bytes, where one was used.
        error: why it failed.
    """

    name: str
    state: str
    started: float | None = None
    seconds: float | None = None
    cpu_seconds: float | None = None
    peak_rss: float | None = None
    peak_device: float | None = None
    error: str = ""


@dataclass(frozen=True)
class Run:
    """One call of the recipe: its command line, versions by package, configuration and what else it noted."""

    time: float | None
    command: tuple[str, ...]
    stages: tuple[str, ...]
    versions: dict[str, str]
    config: dict[str, Any]
    facts: dict[str, str]


@dataclass(frozen=True)
class StageLog:
    """The runs in order, and the stages in the order in which they belong."""

    runs: tuple[Run, ...]
    stages: tuple[Stage, ...]
    num_unreadable: int

    @property
    def seconds(self) -> float:
        """Wall time of the newest attempt at every stage."""
        return sum(stage.seconds or 0.0 for stage in self.stages)

    @property
    def trained_by(self) -> Run | None:
        """The newest run that was to train; the newest of all where none was."""
        runs = [run for run in self.runs if "train" in run.stages] or self.runs
        return runs[-1] if runs else None


def read_stages(path: Path) -> StageLog:
    """Read `stages.jsonl`, whole or cut short.

    Raises:
        DataError: there is no such file, or it cannot be read.
    """
    log = read_events(path)
    runs = tuple(_run(event) for event in log.of("run"))
    order = list(dict.fromkeys([*(name for run in runs for name in run.stages), *_begun(log)]))
    found = {name: Stage(name, "to come") for name in order}
    for event in log.events:
        name = text(event, "stage")
        if name and text(event, "event") in _STATES:
            found[name] = _stage(event, found.get(name))
    return StageLog(runs, tuple(found.values()), log.num_unreadable)


def _begun(log: EventLog) -> list[str]:
    return [text(event, "stage") for event in log.events if text(event, "stage")]


def _stage(event: dict[str, Any], before: Stage | None) -> Stage:
    kind, name = event["event"], text(event, "stage")
    if kind == "start" or before is None:
        started = number(event, "time")
    else:
        started = before.started
    return Stage(
        name,
        _STATES[kind],
        started,
        number(event, "seconds"),
        number(event, "cpu_seconds"),
        number(event, "peak_rss"),
        number(event, "peak_device"),
        text(event, "error"),
    )


def _run(event: dict[str, Any]) -> Run:
    versions, config = event.get("versions"), event.get("config")
    known = {"event", "time", "command", "stages", "versions", "config"}
    facts = {name: value for name, value in event.items() if name not in known and value is not None}
    return Run(
        number(event, "time"),
        strings(event.get("command")),
        strings(event.get("stages")),
        {str(k): str(v) for k, v in versions.items()} if isinstance(versions, dict) else {},
        config if isinstance(config, dict) else {},
        {str(name): str(value) for name, value in facts.items()},
    )
