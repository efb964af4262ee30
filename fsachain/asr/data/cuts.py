"""Data sets as lhotse keeps them: a manifest of cuts (`.jsonl` or `.jsonl.gz`), or a folder of Shar shards.

A cut that is a stretch of an audio file becomes an utterance like those of a Kaldi directory, read by soundfile; so
does a member of a Shar tar, which is read in place. Other cuts (transforms, mixtures, stored features) are read by
lhotse.

Manifests can name commands and URLs as recordings, and lhotse runs a shell for some names of files. They are refused
unless the caller allows them, so the JSON is checked here before lhotse gets it. Nothing is ever unpacked from a tar,
and its links are not followed.
"""

from __future__ import annotations

import copy
import gzip
import json
import math
import os
import shlex
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from fsachain.asr.data.utterance import Cut, Faults, Member, Utterance, is_command, shortened
from fsachain.errors import DataError, require
from fsachain.files import binary_lines, parse_json

ENDINGS = (".jsonl", ".jsonl.gz")
# A cut of one utterance has some 50 values and 2,000 bytes; JSON of many values becomes many times its size.
LONGEST_LINE = 1 << 17  # bytes of one cut
MOST_VALUES = 10_000  # of one cut, counted by its punctuation
LONGEST_HEADER = 1 << 14  # bytes of the headers of a member of a tar, long names included
MAX_SECONDS = 7200.0  # of an utterance; a longer one is no utterance, or its header lies
_MATRICES = ("npy", "llc")  # suffixes of members of a tar
_EMPTY = ("json", "nodata", "nometa")
_STORAGES = ("lilcom_chunky", "lilcom_files", "numpy_files")  # that read a file and nothing else
_PLAIN_SUFFIXES = (".wav", ".flac", ".mp3", ".ogg")  # that lhotse reads without a shell
_MOST_UPSAMPLING = 20
_RANGES = {
    "duration": (0.0, MAX_SECONDS),
    "offset": (0.0, MAX_SECONDS),
    "num_samples": (0, MAX_SECONDS * 192_000),
    "num_frames": (0, MAX_SECONDS * 1000),
    "num_features": (0, 100_000),
    "factor": (0.1, 10.0),
    "sampling_rate": (1, 1_000_000),
    "source_sampling_rate": (1, 1_000_000),
    "target_sampling_rate": (1, 1_000_000),
}
_OF_TRANSFORMS = ("factor", "source_sampling_rate", "target_sampling_rate")


class _Refusal(Exception):
    """Why a cut is left out: a kind of `fsachain.asr.data.utterance.KINDS`, and a message."""


def holds_cuts(path: Path) -> bool:
    """Whether the path is a manifest of cuts or a folder of Shar shards, by names of files."""
    if path.is_dir():
        return any(path.glob("cuts*.jsonl*")) and not (path / "text").exists()
    return path.name.endswith(ENDINGS)


def read_cuts(path: Path, allow_commands: bool, faults: Faults) -> list[Utterance]:
    """The utterances of a manifest or of all shards of a folder, in order; `faults` is told of every cut left out.

    `allow_commands` accepts recordings that are made by commands or fetched from URLs.
    """
    manifests = [path]
    if path.is_dir():
        manifests = sorted(one for one in path.glob("cuts*.jsonl*") if one.name.endswith(ENDINGS))
    found: dict[str, Utterance] = {}
    for manifest in manifests:
        members = _shard_members(manifest, faults) if path.is_dir() else {}
        opened = gzip.open if manifest.name.endswith(".gz") else open
        for number, line in binary_lines(manifest, longest=LONGEST_LINE, opened=opened):
            name = ""
            if not line.strip():
                continue
            try:
                content = _parsed(line, f"{manifest}:{number}")
                name = content["id"]
                if name in found:
                    raise _Refusal("duplicate id", "occurs twice")
                if name not in faults.by_id:
                    found[name] = _utterance(content, manifest.parent, allow_commands, members)
            except (_Refusal, RecursionError) as error:
                kind, why = ("table", "nested too deep") if isinstance(error, RecursionError) else error.args
                message = f"{name!r}: {shortened(why)}" if name else shortened(why)
                faults.report(kind, name, manifest, number, message)
    return [utterance for name, utterance in found.items() if name not in faults.by_id]


def _parsed(line: bytes, where: str) -> dict[str, Any]:
    values = sum(map(line.count, (b",", b":", b"[", b"{")))
    if values > MOST_VALUES:
        raise _Refusal(
            "table",
            f"{values} JSON values in a cut, expected at most {MOST_VALUES}; drop its custom fields and alignments",
        )
    try:
        content = parse_json(line, where)
        if any(mark in line for mark in (b"\\ud", b"\\uD", b"\xed")):  # of surrogates, which are no text
            json.dumps(content, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise _Refusal("table", f"text that is no Unicode ({error.reason})") from error
    except DataError as error:
        raise _Refusal("table", str(error).removeprefix(f"{where}: ")) from error
    if not isinstance(content, dict) or not isinstance(content.get("id"), str) or "type" not in content:
        raise _Refusal("table", "no cut; expected a table with 'id' and 'type'")
    if len(content["id"].split()) != 1:
        raise _Refusal("table", f"the id {content['id']!r} is empty or has white space")
    return content


def _utterance(
    content: dict[str, Any], folder: Path, allow_commands: bool, members: dict[str, dict[str, Member]]
) -> Utterance:
    """The utterance of one cut; changes `content`."""
    name = content["id"]
    try:
        text, speaker = _supervision(content)
        utterance = Utterance(name, speaker or name, tuple(text.split()), None)
        for field in ("recording", "features"):
            parts = _dicts(content.get(field))
            if not any("shar" in (part.get("type"), part.get("storage_type")) for part in parts):
                continue
            count = content.pop(field).get("num_frames")
            member = members.get(field, {}).get(name)
            if member is None:
                raise _Refusal("no recording", f"its {field} is in no tar of this shard")
            if field == "recording":
                utterance.audio, utterance.audio_part = member.path, member
            else:
                num_frames = count if isinstance(count, int) and count >= 0 else None
                utterance.feats, utterance.feats_part = member.path, replace(member, num_frames=num_frames)
        _confine(content, folder, allow_commands)
        _check_sizes(content)
        if not 0 <= float(content.get("start", 0.0)) < math.inf:
            raise DataError(f"start = {content['start']!r:.40}; expected seconds from 0")
        utterance.end = float(content["duration"] if "duration" in content else cut_of(content).duration)
        _locate(utterance, content, utterance.end)
    except (DataError, TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
        raise _Refusal("table", f"no cut that can be read ({error})") from error
    if utterance.audio is None and utterance.feats is None:
        raise _Refusal("no recording", "has neither a recording nor features")
    return utterance


def _supervision(content: dict[str, Any]) -> tuple[str, str]:
    """Text and speaker of the one supervision of a cut, in any track; drops supervisions and custom fields from it."""
    found: list[dict[str, Any]] = []
    for cut in [track["cut"] for track in content.get("tracks", [{"cut": content}])]:
        found += cut.get("supervisions") or []
        cut.pop("custom", None)
        cut.pop("supervisions", None)
    if "tracks" not in content:
        content["supervisions"] = []
    if len(found) != 1:
        hint = "; see CutSet.trim_to_supervisions of lhotse" if found else ""
        raise _Refusal("no transcript", f"has {len(found)} supervisions, expected one{hint}")
    text, speaker = found[0].get("text"), found[0].get("speaker")
    if not isinstance(text, str | None) or not isinstance(speaker, str | None):
        raise _Refusal("table", f"text {text!r} of speaker {speaker!r}; expected text")
    return text or "", "_".join((speaker or "").split())


def _locate(utterance: Utterance, content: dict[str, Any], length: float) -> None:
    """Fill in audio and features from the recording and the features that the cut itself has."""
    recording: Any = content.get("recording")
    features: Any = content.get("features")
    plain = (
        content["type"] in ("MonoCut", "Cut") and recording is not None and not recording.get("transforms")
    )
    if plain and len(recording["sources"]) == 1 and recording["sources"][0]["type"] == "file":
        source, start = recording["sources"][0], float(content["start"])
        channels = list(source["channels"])
        utterance.audio, utterance.start, utterance.end = source["source"], start, start + length
        if len(channels) > 1:
            utterance.channel = channels.index(content["channel"])
    elif (recording is not None or "tracks" in content) and cut_of(content).has_recording:
        utterance.audio = f"cut {utterance.id}" + ("" if _from_files(content) else " |")  # a command
        utterance.audio_part = Cut(json.dumps(content))
    if features is not None:
        alone = {name: value for name, value in content.items() if name != "recording"}
        utterance.feats = features["storage_path"]
        utterance.feats_part = Cut(json.dumps(alone), cut_of(alone).num_frames)


def _shard_members(cuts: Path, faults: Faults) -> dict[str, dict[str, Member]]:
    """Members of the tars beside a shard of cuts, by field and cut; `faults` is told of a tar that is left out."""
    number = cuts.name.removeprefix("cuts").partition(".jsonl")[0]
    found: dict[str, dict[str, Member]] = {}
    for field in ("recording", "features"):
        path = cuts.with_name(f"{field}{number}.tar")
        if path.is_file():
            try:
                found[field] = _members(path)
            except _Refusal as error:
                faults.report("table", "", path, 0, shortened(error.args[1]))
    return found


class _Headers:
    """A file for `tarfile`, which may read at most `LONGEST_HEADER` bytes of headers for each member."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.left = file, LONGEST_HEADER
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int) -> bytes:
        self.left -= size
        if self.left < 0:
            raise _Refusal("table", f"a header of more than {LONGEST_HEADER} bytes")
        return self._file.read(size)


def _members(path: Path) -> dict[str, Member]:
    size, place = path.stat().st_size, str(path.absolute())
    found: dict[str, Member] = {}
    try:
        with path.open("rb") as file:
            headers = _Headers(file)
            with tarfile.open(fileobj=cast(BinaryIO, headers), mode="r:") as tar:
                while (info := tar.next()) is not None:
                    headers.left = LONGEST_HEADER
                    stem, _, suffix = info.name.rpartition(".")
                    wrong = ""
                    if tar.pax_headers:
                        wrong = "headers for all members; expected none"
                    elif not info.isreg() or info.issparse():
                        wrong = f"the member {info.name!r} is no plain file; links and folders are refused"
                    elif suffix in _EMPTY:
                        continue
                    elif stem in found or info.offset_data + info.size > size:
                        wrong = f"the member {info.name!r} is there twice, or the file ends before it does"
                    if wrong:
                        raise _Refusal("table", wrong)
                    kind = suffix if suffix in _MATRICES else "audio"
                    found[stem] = Member(place, info.offset_data, info.size, kind)
    except (tarfile.TarError, OSError, EOFError, ValueError, OverflowError, RecursionError) as error:
        raise _Refusal("table", f"no tar archive, or damaged ({error})") from error
    return found


def _confine(content: Any, folder: Path, allow_commands: bool) -> None:
    """Make paths of files in a JSON value absolute, in place; refuse commands, URLs (unless allowed) and other storage."""
    for part in _dicts(content):
        sources = part.get("sources") or []
        if not isinstance(sources, list):
            raise _Refusal("table", f"the sources of audio are {sources!r}; expected a list")
        for source in sources:
            if not isinstance(source, dict):
                raise _Refusal("table", f"a source of audio is {source!r}; expected a table")
            kind, place = source.get("type"), source.get("source")
            if kind == "file":
                source["source"] = _place(folder, place)
            elif kind not in ("command", "url"):
                raise _Refusal("no recording", f"audio of type {kind!r}; expected 'file'")
            elif not allow_commands:
                raise _Refusal(
                    "shell command",
                    f"its audio is a {kind} ({place!r}); if you trust this "
                    "manifest, --allow-commands (in Python allow_commands) uses it",
                )
        if "storage_type" in part:
            storage, key = part["storage_type"], Path(str(part.get("storage_key")))
            if storage not in _STORAGES:
                message = f"features of storage {storage!r}; expected {', '.join(_STORAGES)}"
                raise _Refusal("unreadable features", message)
            if storage != "lilcom_chunky" and (key.is_absolute() or ".." in key.parts):
                raise _Refusal("unreadable features", f"the storage key {str(key)!r} leaves its folder")
            part["storage_path"] = _place(folder, part.get("storage_path"))


def _place(folder: Path, path: Any) -> str:
    """The absolute path of a file beside the manifest or, as lhotse has it, in the working directory."""
    if not isinstance(path, str) or not path or "\0" in path:
        raise _Refusal("no recording", f"the path of a file is {path!r}")
    beside = folder / path
    found = os.fspath((beside if os.path.exists(beside) else Path(path)).absolute())  # noqa: PTH110  no error if too long
    unsafe = not found.lower().endswith(_PLAIN_SUFFIXES) and shlex.quote(found) != found
    if is_command(path) or is_command(found) or unsafe:  # lhotse reads some formats by a shell
        raise _Refusal("shell command", f"the path {path!r} would be taken for a command; rename the file")
    return found


def _check_sizes(content: Any) -> None:
    """Refuse lengths, rates and factors outside `_RANGES`, for which lhotse would allocate memory without bound.

    The length of a cut is stated in several places, each of which lhotse uses somewhere; all are checked.
    """
    for part in _dicts(content):
        # a recording or features, of which a cut is a stretch
        whole = "sources" in part or "storage_type" in part
        for name, (lowest, highest) in _RANGES.items():
            value = part.get(name)
            if value is None or (whole and name not in _OF_TRANSFORMS):
                continue
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not lowest <= value <= highest:
                raise DataError(f"{name} = {value!r:.40}; expected {lowest:g} to {highest:g}")
        rate, wanted = part.get("source_sampling_rate"), part.get("target_sampling_rate")
        if rate is not None and wanted is not None and wanted > _MOST_UPSAMPLING * rate:
            raise DataError(
                f"a transform from {rate} to {wanted} Hz; expected at most {_MOST_UPSAMPLING} times"
            )


def _dicts(content: Any) -> Iterator[dict[str, Any]]:
    """Every JSON object in a value, the outermost first."""
    if isinstance(content, dict):
        yield content
        content = list(content.values())
    if isinstance(content, list):
        for inner in content:
            yield from _dicts(inner)


def _sources(content: Any) -> list[dict[str, Any]]:
    return [source for part in _dicts(content) for source in part.get("sources") or ()]


def _from_files(content: Any) -> bool:
    return all(source.get("type") == "file" for source in _sources(content))


def _files(content: Any) -> list[Path]:
    stored = [part for part in _dicts(content) if "storage_type" in part]
    return [Path(source["source"]) for source in _sources(content) if source["type"] == "file"] + [
        Path(part["storage_path"], "" if part["storage_type"] == "lilcom_chunky" else part["storage_key"])
        for part in stored
    ]


def cut_samples(text: str, sample_rate: int) -> NDArray[np.float32]:
    """Samples, float32 [L], of a cut that only lhotse can read; the mean of the channels where there are several."""
    cut = _checked(text)
    if cut.sampling_rate != sample_rate:
        raise DataError(
            f"has {cut.sampling_rate} Hz, expected {sample_rate} Hz; resample the cuts or change features.sample_rate"
        )
    return _loaded(cut.load_audio).mean(axis=0)


def cut_rate(text: str) -> int:
    """The sample rate in Hz of a cut that only lhotse can read."""
    return int(_checked(text).sampling_rate)


def cut_features(text: str) -> NDArray[np.float32]:
    """Stored features of a cut, float32 [T, F]."""
    return _loaded(_checked(text).load_features)


def cut_identity(text: str) -> str | None:
    """A string that changes when the audio does; None where a command or a URL makes it. OSError: a file is missing."""
    content = json.loads(text)
    if not _from_files(content):
        return None
    status = [path.stat() for path in _files(content)]
    return "|".join([text, *(f"{one.st_size}|{one.st_mtime_ns}" for one in status)])


def _checked(text: str) -> Any:
    """The lhotse cut, after a check that its files are regular: lhotse opens names of pipes and URLs as such."""
    content = json.loads(text)
    for path in _files(content):
        if not path.is_file():
            raise DataError(f"{str(path)!r} is missing or no regular file")
    return cut_of(content)


def cut_of(content: dict[str, Any]) -> Any:
    serialization = require("lhotse.serialization", extra="lhotse")
    try:
        return serialization.deserialize_item(copy.deepcopy(content))  # which changes its argument
    except Exception as error:  # lhotse raises any type of exception
        raise DataError(f"no cut that lhotse reads ({type(error).__name__}: {error})") from error


def _loaded(load: Any) -> NDArray[np.float32]:
    try:
        return np.array(load(), np.float32)  # not a file that is mapped
    except Exception as error:  # as above
        raise DataError(f"lhotse cannot read it ({type(error).__name__}: {error})") from error
