"""A log of one JSON object per line: easy to read by eye, by `jq` and by pandas."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fsachain.errors import DataError
from fsachain.files import write_text


class JsonLinesLog:
    """Appends events to a file; each line is on disk when `write` returns to the system.

    Args:
        path: The file; its folder is made. An existing log is continued.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, event: str, **values: Any) -> None:
        """Append one line: `event`, Unix time and values. NaN and infinities become null."""
        line = {"event": event, "time": round(time.time(), 3), **json_ready(values)}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")

    def rewind(self, keep: Callable[[dict[str, Any]], bool]) -> int:
        """Take back the events for which `keep` is false, and what a kill or a full disk has cut short.

        Returns:
            The number of lines that were no JSON. The file is replaced, all or nothing, if it changes.
        """
        if not self.path.is_file():
            return 0
        before = self.path.read_text(encoding="utf-8", errors="replace")
        kept, torn = [], 0
        for line in before.splitlines():
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                event = None
            if not isinstance(event, dict):
                torn += 1
            elif keep(event):
                kept.append(line + "\n")
        after = "".join(kept)
        if after != before:
            write_text(self.path, after)
        return torn


def read_log(path: str | Path) -> Iterator[dict[str, Any]]:
    """The events of a log in order; a last line cut short by a crash is left out.

    Raises:
        DataError: another line is not JSON.
    """
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            yield json.loads(line)
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise DataError(f"{path}:{number}: not a line of JSON: {error}") from error


def json_ready(value: Any) -> Any:
    """The value with six decimals and null for NaN and infinities, which JSON lacks."""
    if isinstance(value, dict):
        return {name: json_ready(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(inner) for inner in value]
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value
