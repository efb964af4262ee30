"""Data sets as lhotse keeps them: a manifest of cuts (`.jsonl` or `.jsonl.gz`), or a folder of Shar shards.

A cut that is a stretch of an audio file becomes an utterance like those of a Kaldi directory, read by soundfile; so
does a member of a Shar tar, which is read where it lies. Other cuts (transforms, mixtures, stored features) are read by
lhotse.

Manifests can name commands and URLs as recordings. They are refused unless the caller allows them, and so is every
path that lhotse or this package would take for a command. Nothing is ever unpacked from a tar, and its links are not
followed.
"""

from __future__ import annotations

import gzip
import json
import math
import shlex
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fsachain.data.lhotse_cut import check_sizes, cut_of, from_files
from fsachain.data.shar import Members, Refusal, shard_members
from fsachain.data.utterance import Cut, Member, Report, Utterance, is_command
from fsachain.errors import DataError
from fsachain.files import parse_json

ENDINGS = (".jsonl", ".jsonl.gz")
LONGEST_LINE = 1 << 24  # bytes of one cut
_STORAGES = ("lilcom_chunky", "lilcom_files", "numpy_files")  # that read a file and nothing else
_PLAIN_SUFFIXES = (".wav", ".flac", ".mp3", ".ogg")  # that lhotse reads without a shell


def holds_cuts(path: Path) -> bool:
    """Whether the path is a manifest of cuts or a folder of Shar shards, by its name alone."""
    if path.is_dir():
        return any(path.glob("cuts*.jsonl*")) and not (path / "text").exists()
    return path.name.endswith(ENDINGS)


def read_cuts(path: Path, allow_commands: bool, report: Report) -> Iterator[Utterance]:
    """The utterances of a manifest or of all shards of a folder, in order.

    Args:
        path: as for `holds_cuts`.
        allow_commands: accept recordings made by commands or fetched from URLs.
        report: told of every cut that is left out.

    Raises:
        DataError: the file cannot be read; and, unless `report` does otherwise, what it is told of.
    """
    manifests = [path]
    if path.is_dir():
        manifests = sorted(one for one in path.glob("cuts*.jsonl*") if one.name.endswith(ENDINGS))
    seen: set[str] = set()
    for manifest in manifests:
        members = shard_members(manifest, report) if path.is_dir() else {}
        for number, line in _lines(manifest):
            where = f"{manifest}:{number}"
            name = where
            try:
                content = _parsed(line, where)
                name = str(content["id"])
                if name in seen:
                    raise Refusal("duplicate id", f"{where}: cut {name!r} occurs twice")
                seen.add(name)
                yield _utterance(content, manifest.parent, allow_commands, members)
            except RecursionError:
                report("table", name, f"{where}: {name!r}: nested too deep")
            except Refusal as error:
                text = str(error) if name == where or where in str(error) else f"{where}: {name!r}: {error}"
                report(error.kind, name, text)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        with gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb") as file:
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    raise DataError(f"{path}:{number}: a line of more than {LONGEST_LINE} bytes")
                if line.strip():
                    yield number, line
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read after line {number} ({error})") from error


def _parsed(line: bytes, where: str) -> dict[str, Any]:
    try:
        content = parse_json(line, where)
    except DataError as error:
        raise Refusal("table", str(error)) from error
    if not isinstance(content, dict) or not isinstance(content.get("id"), str) or "type" not in content:
        raise Refusal("table", f"{where}: no cut; expected a table with 'id' and 'type'")
    if len(content["id"].split()) != 1:
        raise Refusal("table", f"{where}: the id {content['id']!r} is empty or has white space")
    return content


def _utterance(content: dict[str, Any], folder: Path, allow_commands: bool, members: Members) -> Utterance:
    """The utterance of one cut; changes `content`."""
    words, speaker = _supervision(content)
    if "tracks" not in content:
        content["supervisions"] = []
    name = content["id"]
    found = {field: table[name] for field, table in members.items() if name in table}
    for field in ("recording", "features"):
        if _is_placeholder(content.get(field)):
            held = content.pop(field)
            if field not in found:
                raise Refusal("no recording", f"its {field} is in no tar of this shard")
            if field == "features":
                found[field] = _with_frames(found[field], held.get("num_frames"))
        else:
            found.pop(field, None)
    _confine(content, folder, allow_commands)
    try:
        check_sizes(content)
        if float(content.get("start", 0.0)) < 0 or not math.isfinite(float(content.get("start", 0.0))):
            raise DataError(f"start = {content['start']!r:.40}; expected seconds from 0")
        length = float(content["duration"]) if "duration" in content else float(cut_of(content).duration)
        given: dict[str, Any] = {"start": 0.0, "end": length, "audio": None, "feats": None}
        if "recording" in found:
            given |= {"audio": found["recording"].path, "audio_part": found["recording"]}
        if "features" in found:
            given |= {"feats": found["features"].path, "feats_part": found["features"]}
        given |= _stored(content, length)
    except (DataError, TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
        raise Refusal("table", f"no cut that can be read ({error})") from error
    if given["audio"] is None and given["feats"] is None:
        raise Refusal("no recording", "has neither a recording nor features")
    return Utterance(id=name, speaker=speaker or name, words=words, **given)


def _supervision(content: dict[str, Any]) -> tuple[tuple[str, ...], str]:
    """Words and speaker of the one supervision of a cut, in whichever track it is."""
    tracks = content.get("tracks", [{"cut": content}])
    found: list[dict[str, Any]] = []
    try:
        for track in tracks:
            cut = track["cut"]
            found += cut.get("supervisions") or []
            cut.pop("custom", None)
            cut.pop("supervisions", None)
        texts = [one.get("text") for one in found]
        speaker = found[0].get("speaker") if found else None
    except (AttributeError, KeyError, TypeError) as error:
        raise Refusal("table", f"no cut that can be read ({error})") from error
    if len(found) != 1:
        hint = "; see CutSet.trim_to_supervisions of lhotse" if found else ""
        raise Refusal("no transcript", f"has {len(found)} supervisions, expected one{hint}")
    if not isinstance(texts[0], str | None) or not isinstance(speaker, str | None):
        raise Refusal("table", f"text {texts[0]!r} of speaker {speaker!r}; expected text")
    return tuple(sys.intern(word) for word in (texts[0] or "").split()), "_".join((speaker or "").split())


def _stored(content: dict[str, Any], length: float) -> dict[str, Any]:
    """What the cut itself says of its recording and its features: arguments of `Utterance`."""
    given: dict[str, Any] = {}
    recording: Any = content.get("recording")
    features: Any = content.get("features")
    plain = (
        content["type"] in ("MonoCut", "Cut") and recording is not None and not recording.get("transforms")
    )
    if plain and len(recording["sources"]) == 1 and recording["sources"][0]["type"] == "file":
        source, start = recording["sources"][0], float(content["start"])
        channels = list(source["channels"])
        given |= {"audio": source["source"], "start": start, "end": start + length}
        if len(channels) > 1:
            given["channel"] = channels.index(content["channel"])
    elif recording is not None or "tracks" in content:
        cut = cut_of(content)
        if cut.has_recording:
            name = f"cut {content['id']}" + ("" if from_files(content) else " |")  # so that it is a command
            given |= {"audio": name, "audio_part": Cut(json.dumps(content))}
    if features is not None:
        alone = {name: value for name, value in content.items() if name != "recording"}
        cut = cut_of(alone)
        given |= {"feats": features["storage_path"], "feats_part": Cut(json.dumps(alone), cut.num_frames)}
    return given


def _is_plain(kind: str, recording: dict[str, Any]) -> bool:
    """Whether the recording is one audio file and nothing else."""
    sources = recording["sources"]
    changed = recording.get("transforms") or kind not in ("MonoCut", "Cut")
    return not changed and len(sources) == 1 and sources[0]["type"] == "file"


def _confine(value: Any, folder: Path, allow_commands: bool) -> None:
    """Make the paths of files absolute; refuse what is read in any other way than from a file."""
    if isinstance(value, list):
        for inner in value:
            _confine(inner, folder, allow_commands)
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
        _confine(inner, folder, allow_commands)


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
    beside = folder / path
    found = str((beside if beside.exists() else Path(path)).absolute())
    unsafe = not found.lower().endswith(_PLAIN_SUFFIXES) and shlex.quote(found) != found
    if is_command(path) or is_command(found) or unsafe:  # lhotse reads some formats by a shell
        raise Refusal("shell command", f"the path {path!r} would be taken for a command; rename the file")
    return found


def _is_placeholder(value: Any) -> bool:
    """Whether a recording or features are in the tar beside the cuts."""
    if not isinstance(value, dict):
        return False
    sources = value.get("sources")
    if isinstance(sources, list) and len(sources) == 1 and isinstance(sources[0], dict):
        return bool(sources[0].get("type") == "shar")
    return bool(value.get("storage_type") == "shar")


def _with_frames(member: Member, num_frames: Any) -> Member:
    known = num_frames if isinstance(num_frames, int) and num_frames >= 0 else None
    return Member(member.path, member.offset, member.size, member.kind, known)
