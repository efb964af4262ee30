"""Logs of one JSON object per line, read while they are written and after a crash."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsachain.errors import DataError


@dataclass(frozen=True)
class EventLog:
    """The events of a log, and how many lines are none: cut short, or damaged."""

    events: tuple[dict[str, Any], ...]
    num_unreadable: int = 0

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The events of one kind, in order."""
        return [event for event in self.events if event.get("event") == kind]


def read_events(path: Path) -> EventLog:
    """The events of a log; lines that are no JSON object are counted and passed over, wherever they stand.

    `fsachain.train.log.read_log` is the strict reader. This one is for looking: a report of a damaged log is worth more
    than none.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot read the log: {error.strerror}") from error
    events, unreadable = [], 0
    for line in content.split(b"\n"):
        if not line.strip():
            continue
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):  # not JSON, not UTF-8, or brackets without end
            event = None
        if isinstance(event, dict):
            events.append(event)
        else:
            unreadable += 1
    return EventLog(tuple(events), unreadable)


def number(table: Any, *path: str) -> float | None:
    """The finite number at a place in nested tables; None where there is none."""
    value = table
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def text(table: Mapping[str, Any], name: str) -> str:
    """The string of that name; empty where there is none."""
    value = table.get(name)
    return value if isinstance(value, str) else ""


def strings(value: Any) -> tuple[str, ...]:
    """The strings of a list; empty where it is no list."""
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()
