"""Data sets: which recordings there are, who speaks and what is said, as Kaldi data directories say it.

A directory holds `text` and `wav.scp` or `feats.scp`, and may hold `utt2spk` and `segments`. Every line of every table is
`key value...`; keys are unique. Where there is a feats.scp, an utterance that it lacks has a fault: ours computed in place
of Kaldi's would be other features. Relative paths in `wav.scp` and `feats.scp` are tried from the folder of the file that
names them, so that a corpus can be moved, and then from the working directory, as Kaldi does. An entry with a `|` at either
end is a shell command. Commands run with the rights of the reader, hence they are refused unless the caller asks for them
with `allow_commands=True`.

Manifests of lhotse (`fsachain.asr.data.cuts`) give the same utterances. Audio is opened in `fsachain.asr.data.audio`.
"""

from __future__ import annotations

import math
import os
import re
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO, TypeVar

from fsachain.asr.data.cuts import holds_cuts, read_cuts
from fsachain.asr.data.utterance import Fault, Faults, Utterance, UtteranceError, is_command, shortened
from fsachain.errors import DataError, brief, listed
from fsachain.files import LONGEST_LINE, binary_lines, line_text, without_collector
from fsachain.graph.lexicon import Lexicon

__all__ = ["DataDir", "Utterance", "is_command", "read_table"]

LONGEST_KEY = 4096  # letters
_PIECE = 1 << 20  # bytes of a table, read at once
_ARCHIVE = re.compile(r"(?::\d+)?(?:\[[\d:,]*\])?\Z")  # what follows the path of an archive in feats.scp
_OPEN_END = -1.0  # seconds, in segments: the utterance ends where its recording does

Found = TypeVar("Found")
_Parse = Callable[[str, str], Found]  # of a key and a value
_Stretch = tuple[str | None, float, float | None]  # recording, start and end in seconds


def read_table(path: str | Path) -> dict[str, str]:
    """The stripped rest of each line by key, in file order; a DataError lists the keys that occur twice."""
    faults = Faults(stop=False)
    found = _parsed(path, faults, lambda _, rest: rest)
    if wrong := [*faults.nameless, *faults.by_id.values()]:
        raise UtteranceError(wrong[0].kind, wrong[0].id, listed([fault.reason for fault in wrong]))
    return found


def _read_folder(folder: Path, allow_commands: bool, faults: Faults) -> list[Utterance]:
    """The utterances without faults, in the order of segments (or wav.scp) and feats.scp."""
    if not folder.is_dir():
        what = "is a file; expected a folder with text and wav.scp" if folder.is_file() else "does not exist"
        raise DataError(f"data directory {str(folder)!r} {what}")
    if not (folder / "text").is_file():
        raise DataError(
            f"{str(folder / 'text')!r} does not exist; a data directory needs the transcripts, or lines of the utterances' "
            "names alone where they are not known"
        )
    sources = (folder / "wav.scp", folder / "feats.scp")
    if not any(path.is_file() and path.stat().st_size for path in sources):
        raise DataError(
            f"data directory {str(folder)!r} has neither wav.scp nor feats.scp, or they are empty"
        )
    locate = partial(_location, os.path.join(folder, ""), {}, allow_commands)  # noqa: PTH118
    recordings = _table(folder / "wav.scp", faults, locate)
    audio: dict[str, _Stretch] = {name: (place, 0.0, None) for name, place in recordings.items()}
    if (folder / "segments").is_file():
        audio = _table(folder / "segments", faults, partial(_stretch, recordings)) if recordings else {}
    stored = folder / "feats.scp"
    needed = audio if stored.is_file() and stored.stat().st_size else ()
    feats = _table(stored, faults, locate, needed, "no features")
    ids = dict.fromkeys([*audio, *feats])
    texts = _table(folder / "text", faults, partial(_words, ids), ids, "no transcript")
    speakers = _table(folder / "utt2spk", faults, partial(_speaker, ids), ids, "no speaker")
    names = [name for name in ids if name not in faults.by_id]
    stretches = list(map(audio.get, names, repeat((None, 0.0, None))))
    columns = [map(itemgetter(field), stretches) for field in range(3)]
    said = map(speakers.get, names, names), map(texts.__getitem__, names)
    return list(map(Utterance, names, *said, *columns, map(feats.get, names)))


def _table(
    path: Path, faults: Faults, parse: _Parse[Found], needed: Iterable[str] = (), kind: str = ""
) -> dict[str, Found]:
    """What `parse` makes of the key and value of each line, by key; it raises UtteranceError for a fault.

    Utterances of `needed` that the table lacks have a fault of this kind. A table that is not there has no lines.
    """
    if not path.is_file():
        return {}
    found = _parsed(path, faults, parse)
    for name in needed:
        if name not in found:
            faults.report(kind, name, path, 0, f"{kind} for utterance {name!r}")
    return {key: value for key, value in found.items() if key not in faults.by_id} if faults.by_id else found


def _parsed(path: str | Path, faults: Faults, parse: _Parse[Found]) -> dict[str, Found]:
    """As `_table`, of a table that is there.

    Faults are also lines that are not UTF-8, have a byte order mark or zero byte, a key of more than `LONGEST_KEY` letters,
    or one that has come before.
    """
    quick = None if faults.by_id else _parsed_at_once(path, parse)
    if quick is not None:
        return quick
    found, first = dict[str, Found](), dict[str, int]()
    for number, line in binary_lines(path):
        key = ""
        try:
            fields = line_text(line, "").split(None, 1)
            if not fields:
                continue
            if len(fields[0]) > LONGEST_KEY:
                raise DataError(f": no key in its first {LONGEST_KEY} letters")
            key = fields[0]
            if key in faults.by_id:
                continue
            if first.setdefault(key, number) != number:
                message = f"key {key!r} occurs twice, first on line {first[key]}"
                raise UtteranceError("duplicate id", key, message)
            found[key] = parse(key, fields[1].rstrip() if len(fields) > 1 else "")
        except UtteranceError as error:
            faults.report(error.fault.kind, key, path, number, error.fault.reason)
        except DataError as error:
            faults.report("table", key or _key(line), path, number, str(error).removeprefix(": "))
    return found


def _key(line: bytes) -> str:
    """Of a line that is no such text, if that can be read: the utterance is left out once, not once for each table."""
    fields = line.removeprefix(BOM_UTF8).split(None, 1)
    if fields and len(fields[0]) <= LONGEST_KEY and b"\0" not in fields[0]:
        with suppress(UnicodeDecodeError):
            return fields[0].decode()
    return ""


def _parsed_at_once(path: str | Path, parse: _Parse[Found]) -> dict[str, Found] | None:
    """The same, many lines at once, of a table without any fault; None for others, whose faults have to be named."""
    found, count = dict[str, Found](), 0
    try:
        with open(path, "rb") as file:  # noqa: PTH123, as in `binary_lines`
            for text in map(bytes.decode, _pieces(file)):
                if "\0" in text or "\ufeff" in text:
                    return None
                lines = text.split("\n")
                fields = [line.split(None, 1) for line in lines]
                keys = [x[0] for x in fields if x]
                if max(map(len, lines)) > LONGEST_LINE // 4 or max(map(len, keys), default=0) > LONGEST_KEY:
                    return None
                values = [x[1].rstrip() if len(x) > 1 else "" for x in fields if x]
                found.update(zip(keys, map(parse, keys, values), strict=True))
                count += len(keys)
    except (OSError, ValueError):
        return None
    return found if len(found) == count else None


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    """Whole lines, many of them together."""
    rest = b""
    while piece := file.read(_PIECE):
        lines, _, rest = (rest + piece).rpartition(b"\n")
        if len(rest) > LONGEST_LINE:
            raise ValueError
        yield lines
    yield rest


def _place(folder: str, known: dict[str, str], value: str) -> str:
    """A path from the table's folder, which ends in a slash, or from the working directory if it leads to a file only there.

    `known` are the paths of files so far, since many matrices lie in one archive.
    """
    if value[0] == "/":
        return value
    file = _ARCHIVE.sub("", value)
    if file not in known:
        is_elsewhere = not os.path.exists(folder + file) and os.path.exists(file)  # noqa: PTH110
        known[file] = file if is_elsewhere else folder + file  # pathlib takes ten times as long
    return known[file] + value[len(file) :]


def _location(folder: str, known: dict[str, str], allow_commands: bool, key: str, value: str) -> str:
    """A path as `_place` makes it, or a command."""
    if not value:
        raise UtteranceError("no recording", key, f"{key!r} has no path")
    if "|" not in value:
        return _place(folder, known, value)
    if is_command(value) and not allow_commands:
        raise UtteranceError(
            "shell command",
            key,
            f"{key!r} is a shell command ({shortened(value)!r}); if you trust this "
            "directory, --allow-commands (in Python allow_commands) runs it",
        )
    if is_command(value):
        return value
    if is_command(str(Path(value))):  # such as `file|/`
        message = f"the path {shortened(value)!r} of {key!r} would be taken for a command; rename the file"
        raise UtteranceError("shell command", key, message)
    return _place(folder, known, value)


def _stretch(recordings: dict[str, str], key: str, value: str) -> _Stretch:
    """A recording, start and end in seconds; -1 is the recording's end."""
    try:
        recording, first, last = value.split(maxsplit=3)
        start, end = float(first), float(last)
    except ValueError:
        message = f"expected 'utterance recording start end', got '{key} {shortened(value)}'"
        raise UtteranceError("segment", key, message) from None
    if recording not in recordings:
        message = f"recording {shortened(recording)!r} of {key!r} is not in wav.scp"
        raise UtteranceError("no recording", key, message)
    if not (0.0 <= start < math.inf and (end == _OPEN_END or start < end < math.inf)):
        message = f"{key!r} needs 0 <= start < end, got start {start} and end {end}"
        raise UtteranceError("segment", key, message)
    return recordings[recording], start, None if end == _OPEN_END else end


def _words(ids: dict[str, None], key: str, value: str) -> tuple[str, ...]:
    if key not in ids:
        message = f"utterance {key!r} has neither a recording nor features"
        raise UtteranceError("no recording", key, message)
    return tuple(value.split())


def _speaker(ids: dict[str, None], key: str, value: str) -> str:
    """One word; the table may name other utterances, too."""
    if len(value.split(maxsplit=1)) != 1 and key in ids:
        message = f"expected 'utterance speaker', got '{key} {shortened(value)}'"
        raise UtteranceError("no speaker", key, message)
    return value


@dataclass(frozen=True)
class DataDir:
    """A data directory, read: `utterances` with unique ids, in the order of their recordings' table."""

    utterances: Sequence[Utterance]

    __repr__ = brief

    def __post_init__(self) -> None:
        ids = [utterance.id for utterance in self.utterances]
        if len(set(ids)) < len(ids):
            twice = next(name for name, count in Counter(ids).items() if count > 1)
            raise DataError(f"utterance {twice!r} occurs twice; ids are unique within joined directories")

    def __len__(self) -> int:
        return len(self.utterances)

    def __iter__(self) -> Iterator[Utterance]:
        return iter(self.utterances)

    @property
    def transcripts(self) -> dict[str, tuple[str, ...]]:
        """The words of each utterance, by id."""
        return {utterance.id: utterance.words for utterance in self.utterances}

    @classmethod
    def read(cls, path: str | Path, *, allow_commands: bool = False) -> DataDir:
        """Read one Kaldi data directory, lhotse manifest of cuts (`.jsonl`, `.jsonl.gz`) or folder of Shar shards.

        `allow_commands` accepts recordings that are shell commands (or, in manifests, URLs). They are run later, by whoever
        loads the audio; do this only with data whose author you trust. A table that is missing, malformed, or does not fit
        the others is a DataError, whose message names file and line.
        """
        return cls(_read(Path(path), allow_commands, Faults(stop=True)))

    @classmethod
    def check(cls, path: str | Path, *, allow_commands: bool = False) -> tuple[DataDir, list[Fault]]:
        """What `read` reads, without stopping at faults; arguments as for `read`.

        The utterances that the tables agree on, and what is wrong with lines that name none, then with each of the others
        (the first fault). DataError where there is no such directory or file, or it lacks the tables themselves, or hundreds
        of lines are none of such a table.
        """
        faults = Faults(stop=False)
        found = cls(_read(Path(path), allow_commands, faults))
        return found, [*faults.nameless, *faults.by_id.values()]

    @classmethod
    def join(cls, parts: Iterable[DataDir]) -> DataDir:
        """All utterances of several directories, in their order; DataError where an id occurs twice."""
        return cls(tuple(utterance for part in parts for utterance in part))

    def without_marks(self, lexicon: Lexicon) -> DataDir:
        """The same utterances, without marks around their words that the lexicon lacks: `Lexicon.without_marks`."""
        utterances = []
        for one in self.utterances:
            words = tuple(lexicon.without_marks(one.words))
            utterances.append(one if words == one.words else replace(one, words=words))
        return DataDir(tuple(utterances))

    def select(self, keep: Callable[[Utterance], bool]) -> DataDir:
        """The utterances for which `keep` is true, in the same order."""
        return DataDir(tuple(filter(keep, self.utterances)))


@without_collector()
def _read(path: Path, allow_commands: bool, faults: Faults) -> tuple[Utterance, ...]:
    reader = read_cuts if holds_cuts(path) else _read_folder
    return tuple(reader(path, allow_commands, faults))
