"""Paths and commands of a table's folder, as text that is kept short and joined without objects of paths."""

from __future__ import annotations

import re

from fsachain.names import Names

_WHOLE = "\0"  # begins a location that is kept as it is; no path has this character
_IDLE = re.compile(
    r"(?:^|(?<=/))(?:\.?/)+|(?:^|(?<=/))\.\Z"
)  # parts of a path that lead nowhere: empty, or a dot


def joined(folder: str, path: str) -> str:
    """The path from a folder, as `str(Path(folder) / path)`, which keeps every part of every path for a while."""
    if path.startswith("/"):
        root = "//" if path.startswith("//") and not path.startswith("///") else "/"
        return (root + _IDLE.sub("", path)).rstrip("/") or root
    begin = "" if folder == "." else folder if folder.endswith("/") else f"{folder}/"
    return (begin + _IDLE.sub("", path)).rstrip("/") or folder


class Locations:
    """Paths and commands; of those in `folder` only what comes after it is kept."""

    def __init__(self, folder: str = "") -> None:
        self._begin = f"{folder}/"
        self._kept = Names()

    def append(self, location: str) -> None:
        """One more, whether it is there or not."""
        self._kept.append(self._abbreviated(location))

    def add(self, location: str) -> int:
        """The place of the location, which is appended if it is new."""
        return self._kept.add(self._abbreviated(location))

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, place: int) -> str:
        kept = self._kept[place]
        return kept[1:] if kept.startswith(_WHOLE) else self._begin + kept

    def _abbreviated(self, location: str) -> str:
        rest = location.removeprefix(self._begin)
        return rest if len(rest) < len(location) and not rest.startswith(_WHOLE) else _WHOLE + location
