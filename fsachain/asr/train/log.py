"""A log of one JSON object per line: easy to read by eye, by `jq` and by pandas."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fsachain.errors import DataError
from fsachain.files import binary_lines, naming, parse_json, replacing

LONGEST_LINE = 1 << 23  # bytes


class JsonLinesLog:
    """Appends events to a file, which is made with its folder or continued. Each line is flushed before `write` returns."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, event: str, **values: Any) -> None:
        """NaN and infinities become null; `time` is Unix time."""
        line = {"event": event, "time": round(time.time(), 3), **json_ready(values)}
        with naming(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")

    def rewind(self, keep: Callable[[dict[str, Any]], bool]) -> int:
        """Remove the events for which `keep` is false, and lines cut short by a kill or a full disk.

        Returns the number of lines that were no events. The file is replaced, all or nothing, if it changes.
        """
        if not self.path.is_file():
            return 0
        lines = [line for _, line in binary_lines(self.path, longest=LONGEST_LINE)]
        torn, kept = 0, list[bytes]()
        for line in lines:
            event = event_of(line)
            torn += event is None
            if event is not None and keep(event):
                kept.append(line.rstrip(b"\r\n") + b"\n")
        if kept != lines:
            with replacing(self.path) as file:
                file.writelines(kept)
        return torn


def event_of(line: bytes) -> dict[str, Any] | None:
    """None where the line is cut short or damaged."""
    try:
        event = parse_json(line, "event")
    except DataError:
        return None
    return event if isinstance(event, dict) else None


def read_log(path: str | Path) -> Iterator[dict[str, Any]]:
    """The events of a log in order; a last line cut short by a crash is left out."""
    broken: DataError | None = None
    for number, line in binary_lines(path, longest=LONGEST_LINE):
        if broken is not None:
            raise broken
        try:
            yield parse_json(line, f"{path}:{number}: not a line of JSON")
        except DataError as error:
            broken = error


def number(table: Any, *path: str) -> float | None:
    """The finite number at a place in nested tables; None where there is none."""
    value = table
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def json_ready(value: Any) -> Any:
    """Rounded to six decimals; null for NaN and infinities, which JSON lacks."""
    if isinstance(value, dict):
        return {name: json_ready(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(inner) for inner in value]
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value
