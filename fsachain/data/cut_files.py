"""What a cut of lhotse may read: files, by names that nobody takes for commands."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from fsachain.data.locations import joined
from fsachain.data.shar import Refusal
from fsachain.data.utterance import is_command

_STORAGES = ("lilcom_chunky", "lilcom_files", "numpy_files")  # that read a file and nothing else
_PLAIN_SUFFIXES = (".wav", ".flac", ".mp3", ".ogg")  # that lhotse reads without a shell


def confine(value: Any, folder: Path, allow_commands: bool) -> None:
    """Make the paths of files in a JSON value absolute; refuse what is read in any other way than from a file.

    Args:
        value: of a cut; changed in place.
        folder: of the manifest.
        allow_commands: leave commands and URLs as they are.

    Raises:
        Refusal: that says what is wrong.
    """
    if isinstance(value, list):
        for inner in value:
            confine(inner, folder, allow_commands)
    if not isinstance(value, dict):
        return
    sources = value.get("sources") or []
    if not isinstance(sources, list):
        raise Refusal("table", f"the sources of audio are {sources!r}; expected a list")
    for source in sources:
        _confine_source(source, folder, allow_commands)
    if "storage_type" in value:
        if value["storage_type"] not in _STORAGES:
            message = f"features of storage {value['storage_type']!r}; expected {', '.join(_STORAGES)}"
            raise Refusal("unreadable features", message)
        key = Path(str(value.get("storage_key")))
        if value["storage_type"] != "lilcom_chunky" and (key.is_absolute() or ".." in key.parts):
            raise Refusal("unreadable features", f"the storage key {str(key)!r} leaves its folder")
        value["storage_path"] = _place(folder, value.get("storage_path"))
    for inner in value.values():
        confine(inner, folder, allow_commands)


def _confine_source(source: Any, folder: Path, allow_commands: bool) -> None:
    if not isinstance(source, dict):
        raise Refusal("table", f"a source of audio is {source!r}; expected a table")
    kind, place = source.get("type"), source.get("source")
    if kind == "file":
        source["source"] = _place(folder, place)
    elif kind not in ("command", "url"):
        raise Refusal("no recording", f"audio of type {kind!r}; expected 'file'")
    elif not allow_commands:
        raise Refusal(
            "shell command",
            f"its audio is a {kind} ({place!r}); pass allow_commands=True (--allow-commands) to use it, if you "
            "trust this manifest",
        )


def _place(folder: Path, path: Any) -> str:
    """The absolute path of a file beside the manifest or, as lhotse has it, in the working directory."""
    if not isinstance(path, str) or not path or "\0" in path:
        raise Refusal("no recording", f"the path of a file is {path!r}")
    beside = joined(str(folder), path)
    found = joined(str(Path.cwd()), beside if Path(beside).exists() else path)
    unsafe = not found.lower().endswith(_PLAIN_SUFFIXES) and shlex.quote(found) != found
    if is_command(path) or is_command(found) or unsafe:  # lhotse reads some formats by a shell
        raise Refusal("shell command", f"the path {path!r} would be taken for a command; rename the file")
    return found
