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
import tarfile
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from fsachain.data.faults import Faults
from fsachain.data.lhotse_cut import check_sizes, cut_of, from_files
from fsachain.data.utterance import Chosen, Cut, Member, Utterances, is_command, joined
from fsachain.errors import DataError
from fsachain.files import parse_json

# Where the data of Shar shards lie: members of tar archives, found without unpacking anything.

LONGEST_HEADER = 1 << 14  # bytes of a member's headers, long names included
_MATRICES = {"npy": "npy", "llc": "llc"}
_EMPTY = ("json", "nodata", "nometa")
Members = dict[str, dict[str, Member]]  # by field and by cut


class Refusal(Exception):
    """A cut is not used: a kind of fault, and what is wrong."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def shard_members(cuts: Path, faults: Faults) -> Members:
    """Where the members of the tars beside a shard of cuts are; `faults` is told of a tar that is left out."""
    number = cuts.name.removeprefix("cuts").partition(".jsonl")[0]
    found: Members = {}
    for field in ("recording", "features"):
        path = cuts.with_name(f"{field}{number}.tar")
        if path.is_file():
            try:
                found[field] = _members(path)
            except Refusal as error:
                faults.report(error.kind, "", path, 0, "{detail}", error)
    return found


class _Headers:
    """A file of which `tarfile` reads headers and nothing else, few bytes for each member."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._left = file, LONGEST_HEADER

    def read(self, size: int) -> bytes:
        """At most as many bytes as are left for the member."""
        self._left -= size
        if self._left < 0:
            raise Refusal("table", f"a header of more than {LONGEST_HEADER} bytes")
        return self._file.read(size)

    def begin(self) -> None:
        """The next member."""
        self._left = LONGEST_HEADER

    def seek(self, place: int) -> int:
        """As of the file."""
        return self._file.seek(place)

    def tell(self) -> int:
        """As of the file."""
        return self._file.tell()


def _infos(path: Path) -> Iterator[tarfile.TarInfo]:
    """What the headers of an archive say, one at a time."""
    with path.open("rb") as file:
        headers = _Headers(file)
        with tarfile.open(fileobj=cast(BinaryIO, headers), mode="r:") as tar:
            while (info := tar.next()) is not None:
                if tar.pax_headers:
                    raise Refusal("table", "headers for all members; expected none")
                yield info
                tar.members.clear()  # type: ignore[attr-defined]  # a kilobyte for each
                headers.begin()


def _members(path: Path) -> dict[str, Member]:
    size = path.stat().st_size
    place = str(path.absolute())
    found: dict[str, Member] = {}
    try:
        for info in _infos(path):
            stem, _, suffix = info.name.rpartition(".")
            if not info.isreg() or info.issparse():
                raise Refusal(
                    "table", f"the member {info.name!r} is no plain file; links and folders are refused"
                )
            if suffix in _EMPTY:
                continue
            if stem in found or info.offset_data + info.size > size:
                raise Refusal(
                    "table", f"the member {info.name!r} is there twice, or the file ends before it does"
                )
            kind = _MATRICES.get(suffix, "audio")
            found[stem] = Member(place, info.offset_data, info.size, kind)
    except (tarfile.TarError, OSError, EOFError, ValueError, OverflowError, RecursionError) as error:
        raise Refusal("table", f"no tar archive, or damaged ({error})") from error
    return found


# What a cut of lhotse may read: files, by names that nobody takes for commands.

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


ENDINGS = (".jsonl", ".jsonl.gz")
# A cut of one utterance has some 50 values and 2,000 bytes; JSON of many values becomes many times its size.
LONGEST_LINE = 1 << 17  # bytes of one cut
MOST_VALUES = 10_000  # of one cut, as its marks count them
_MARKS = (b",", b":", b"[", b"{")
_OF_SURROGATES = (b"\\ud", b"\\uD", b"\xed")  # which are no text


def holds_cuts(path: Path) -> bool:
    """Whether the path is a manifest of cuts or a folder of Shar shards, by its name alone."""
    if path.is_dir():
        return any(path.glob("cuts*.jsonl*")) and not (path / "text").exists()
    return path.name.endswith(ENDINGS)


def read_cuts(path: Path, allow_commands: bool, faults: Faults) -> Chosen:
    """The utterances of a manifest or of all shards of a folder, in order.

    Args:
        path: as for `holds_cuts`.
        allow_commands: accept recordings made by commands or fetched from URLs.
        faults: told of every cut that is left out.

    Raises:
        DataError: the file cannot be read; and what `faults` raises.
    """
    manifests, folder = [path], path.parent
    if path.is_dir():
        manifests = sorted(one for one in path.glob("cuts*.jsonl*") if one.name.endswith(ENDINGS))
        folder = path
    utterances = Utterances(faults.ids, str(folder.absolute()))
    rows = array("I")
    for manifest in manifests:
        members = shard_members(manifest, faults) if path.is_dir() else {}
        rows.extend(_read_manifest(manifest, utterances, members, allow_commands, faults))
    return Chosen(utterances, array("I", (row for row in rows if not faults.holds(row))))


def _read_manifest(
    path: Path, utterances: Utterances, members: Members, allow_commands: bool, faults: Faults
) -> Iterator[int]:
    """Read the cuts of a file into the columns; gives their rows."""
    for number, line in _lines(path):
        name = ""
        try:
            content = _parsed(line, f"{path}:{number}")
            name, count = content["id"], len(utterances)
            row = utterances.ids.add(name)
            if row < count:
                faults.report("duplicate id", name, path, number, "cut {name!r} occurs twice")
                continue
            _add(utterances, row, content, path.parent, allow_commands, members)
            yield row
        except RecursionError:
            faults.report("table", name, path, number, "{name!r}: nested too deep")
        except Refusal as error:
            faults.report(error.kind, name, path, number, "{name!r}: {detail}" if name else "{detail}", error)


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
    values = sum(map(line.count, _MARKS))
    if values > MOST_VALUES:
        raise Refusal(
            "table",
            f"{values} JSON values in a cut, expected at most {MOST_VALUES}; drop its custom fields and alignments",
        )
    try:
        content = parse_json(line, where)
    except DataError as error:
        raise Refusal("table", str(error).removeprefix(f"{where}: ")) from error
    if not isinstance(content, dict) or not isinstance(content.get("id"), str) or "type" not in content:
        raise Refusal("table", "no cut; expected a table with 'id' and 'type'")
    if any(mark in line for mark in _OF_SURROGATES):
        _check_unicode(content)
    if len(content["id"].split()) != 1:
        raise Refusal("table", f"the id {content['id']!r} is empty or has white space")
    return content


def _check_unicode(content: dict[str, Any]) -> None:
    try:
        json.dumps(content, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise Refusal("table", f"text that is no Unicode ({error.reason})") from error


def _add(
    utterances: Utterances,
    row: int,
    content: dict[str, Any],
    folder: Path,
    allow_commands: bool,
    members: Members,
) -> None:
    """Fill the row of one cut, if there is nothing wrong with it; changes `content`."""
    text, speaker = _supervision(content)
    if "tracks" not in content:
        content["supervisions"] = []
    given = _sources(content, folder, allow_commands, members)
    utterances.transcripts.put(row, text)
    utterances.spans.put(row, (given["start"], given["end"]))
    if speaker:
        utterances.speakers.share(row, speaker)
    for name, column in (("audio", utterances.audio), ("feats", utterances.feats)):
        if name in given:
            column.share(row, given[name])
    if "channel" in given:
        utterances.channels.put(row, given["channel"])
    for name, parts in (("audio_part", utterances.audio_parts), ("feats_part", utterances.feats_parts)):
        if name in given:
            parts.put(row, given[name])


def _sources(content: dict[str, Any], folder: Path, allow_commands: bool, members: Members) -> dict[str, Any]:
    """Where a cut begins and ends and where its data are: attributes of `Utterance`, those that are not None."""
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
    confine(content, folder, allow_commands)
    try:
        check_sizes(content)
        if float(content.get("start", 0.0)) < 0 or not math.isfinite(float(content.get("start", 0.0))):
            raise DataError(f"start = {content['start']!r:.40}; expected seconds from 0")
        length = float(content["duration"]) if "duration" in content else float(cut_of(content).duration)
        given: dict[str, Any] = {"start": 0.0, "end": length}
        if "recording" in found:
            given |= {"audio": found["recording"].path, "audio_part": found["recording"]}
        if "features" in found:
            given |= {"feats": found["features"].path, "feats_part": found["features"]}
        given |= _stored(content, length)
    except (DataError, TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
        raise Refusal("table", f"no cut that can be read ({error})") from error
    if "audio" not in given and "feats" not in given:
        raise Refusal("no recording", "has neither a recording nor features")
    return given


def _supervision(content: dict[str, Any]) -> tuple[str, str]:
    """Text and speaker of the one supervision of a cut, in whichever track it is."""
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
    return texts[0] or "", "_".join((speaker or "").split())


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
