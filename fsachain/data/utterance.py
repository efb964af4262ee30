"""One stretch of speech: where its samples or features are, who speaks, what is said."""

from __future__ import annotations

import os
import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, Protocol, TypeVar

from fsachain.errors import DataError
from fsachain.names import Names, Strings
from fsachain.on_access import OnAccess


@dataclass(frozen=True, slots=True)
class Member:
    """A part of a file that holds a file of its own, such as a member of a tar archive.

    Attributes:
        path: the file.
        offset, size: where the part is, in bytes.
        kind: what it is: "audio" for whatever soundfile reads, "npy" or "llc" for a matrix of features [T, F] by NumPy or
            lilcom.
        num_frames: T of features, as the manifest says; None: not known.
    """

    path: str
    offset: int
    size: int
    kind: str
    num_frames: int | None = None

    def read(self) -> bytes:
        """Its bytes.

        Raises:
            DataError: the file cannot be read or ends before.
        """
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                found = os.pread(descriptor, self.size, self.offset)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read ({error.strerror})") from error
        if len(found) != self.size:
            raise DataError(
                f"{self.path}: ends after {len(found)} of the {self.size} bytes at byte {self.offset}"
            )
        return found


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut that lhotse itself reads, because there is more to it than a stretch of a file.

    Attributes:
        text: the cut as JSON, with absolute paths; see `fsachain.data.lhotse_cut`.
        num_frames: of its stored features, as the manifest says; None for audio.
    """

    text: str
    num_frames: int | None = None


Part = Member | Cut


@dataclass(frozen=True, slots=True)
class Utterance:
    """One stretch of speech by one speaker.

    Attributes:
        id: unique name of the utterance.
        speaker: the speaker's name; the utterance's own id where the directory has no `utt2spk`.
        words: the transcript, split at white space; empty where nothing is said or known.
        audio: path of the recording, or a shell command that ends in `|`; None when only features exist.
        start: first second of the utterance in its recording.
        end: second where it ends, exclusive; None for the end of the recording.
        feats: a Kaldi matrix address `file.ark:offset`, or None when features are computed from the audio.
        channel: of the recording, from 0; None for the mean of all.
        audio_part: how the recording is read where it is no whole file; `audio` names it for messages then, and ends in `|`
            if a command or a URL has a part in it. `start` and `end` count in a member; a cut has applied its own, and `end`
            is its length.
        feats_part: the same for features, and `feats`.
    """

    id: str
    speaker: str
    words: tuple[str, ...]
    audio: str | None
    start: float = 0.0
    end: float | None = None
    feats: str | None = None
    channel: int | None = None
    audio_part: Part | None = None
    feats_part: Part | None = None


def is_command(location: str) -> bool:
    """Whether a `wav.scp` or `feats.scp` value is a shell command rather than a path."""
    return location.endswith("|") or location.startswith("|")


# Paths and commands of a table's folder, as text that is kept short and joined without objects of paths.

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


# Columns of a corpus: what some of its rows have, in a few bytes each.

_T = TypeVar("_T")


class Store(Protocol[_T]):
    """Values that are appended and read by their place."""

    def append(self, value: _T, /) -> None:
        """One more."""

    def __getitem__(self, place: int, /) -> _T: ...

    def __len__(self) -> int: ...


class ByRow:
    """A number of each row, 0 until it is set; rows before the first and after the last that are set take nothing."""

    def __init__(self, typecode: str = "I") -> None:
        self._begin = 0
        self._numbers = array(typecode)

    def __getitem__(self, row: int) -> int:
        place = row - self._begin
        return self._numbers[place] if 0 <= place < len(self._numbers) else 0

    def __setitem__(self, row: int, number: int) -> None:
        if not self._numbers:
            self._begin = row
        if row < self._begin:
            missing = min(self._begin, max(self._begin - row, len(self._numbers)))  # at least twice as many
            self._numbers = array(self._numbers.typecode, [0]) * missing + self._numbers
            self._begin -= missing
        place = row - self._begin
        while len(self._numbers) <= place:
            self._numbers.append(0)
        try:
            self._numbers[place] = number
        except OverflowError:  # from 65,536 on, if they were of 16 bits
            self._numbers = array("I", self._numbers)
            self._numbers[place] = number


class Column(Generic[_T]):
    """Values of rows, which may come in any order; several rows may have one value. Without values it takes nothing.

    Attributes:
        values: in the order in which they came.
    """

    def __init__(self, values: Store[_T]) -> None:
        self.values = values
        self._places = ByRow()  # 1 + the place of the value

    def put(self, row: int, value: _T) -> None:
        """A value of a row's own."""
        self.values.append(value)
        self.link(row, len(self.values) - 1)

    def link(self, row: int, place: int) -> None:
        """A row has the value at this place."""
        self._places[row] = place + 1

    def remove(self, row: int) -> None:
        """The row has no value any more."""
        if row in self:
            self._places[row] = 0

    def __contains__(self, row: int) -> bool:
        return self._places[row] != 0

    def place(self, row: int) -> int:
        """Where the value of a row is that has one."""
        return self._places[row] - 1

    def get(self, row: int) -> _T | None:
        """The value of a row; None if it has none."""
        place = self._places[row]
        return self.values[place - 1] if place else None


class SharedStore(Store[str], Protocol):
    """Values that can be looked up."""

    def add(self, value: str, /) -> int:
        """The place of the value, which is appended if it is new."""
        ...


class SharedColumn(Column[str]):
    """A column of values that recur: `share` keeps each once, `put` does not look."""

    def __init__(self, values: SharedStore) -> None:
        super().__init__(values)
        self._add = values.add

    def share(self, row: int, value: str) -> None:
        """A value of the row, and of others maybe."""
        self.link(row, self._add(value))


class TextColumn(Column[str]):
    """A column of long texts."""

    def __init__(self) -> None:
        self._texts = Strings()
        super().__init__(self._texts)

    def put_utf8(self, row: int, text: bytes) -> None:
        """A text of a row's own, as UTF-8."""
        self._texts.append_utf8(text)
        self.link(row, len(self._texts) - 1)


class Spans:
    """Stretches of time: first second and end, -1 for the end of the recording."""

    def __init__(self) -> None:
        self._seconds = array("d")

    def append(self, span: tuple[float, float]) -> None:
        """One more."""
        self._seconds.extend(span)

    def __len__(self) -> int:
        return len(self._seconds) // 2

    def __getitem__(self, place: int) -> tuple[float, float]:
        return self._seconds[2 * place], self._seconds[2 * place + 1]


# The utterances of a corpus in columns: a few bytes beside the letters for each, and objects made on access.

OPEN_END = -1.0  # seconds: an utterance ends where its recording does
_CUT, _MEMBER = "cut", "member"


class Parts:
    """Members of archives in a folder, and cuts; the path of an archive is kept once."""

    def __init__(self, folder: str) -> None:
        self._texts, self._paths = Strings(), Locations(folder)

    def append(self, part: Part) -> None:
        """One more."""
        frames = "" if part.num_frames is None else part.num_frames
        if isinstance(part, Cut):
            self._texts.append(f"{_CUT} {frames} {part.text}")
        else:
            place = self._paths.add(part.path)
            self._texts.append(f"{_MEMBER} {frames} {place} {part.offset} {part.size} {part.kind}")

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, place: int) -> Part:
        form, frames, rest = self._texts[place].split(" ", 2)
        num_frames = int(frames) if frames else None
        if form == _CUT:
            return Cut(rest, num_frames)
        path, offset, size, kind = rest.split(" ", 3)
        return Member(self._paths[int(path)], int(offset), int(size), kind, num_frames)


class Utterances(OnAccess[Utterance]):
    """Rows of a corpus, each an utterance, by columns; what no row has takes nothing.

    Args:
        ids: of the rows; a row is added with its id.
        folder: whose files the locations are, for the most part; its path is kept once.

    Attributes:
        ids: as given.
        speakers, transcripts, audio, feats, spans, channels, audio_parts, feats_parts: columns; see `Utterance`. A row
            without a speaker has its own id as that.
    """

    def __init__(self, ids: Names, folder: str = "") -> None:
        self.ids = ids
        self.speakers = SharedColumn(Names())
        self.transcripts = TextColumn()
        self.audio = SharedColumn(Locations(folder))
        self.feats = SharedColumn(Locations(folder))
        self.spans = Column[tuple[float, float]](Spans())
        self.channels = Column[int](array("i"))
        self.audio_parts = Column[Part](Parts(folder))
        self.feats_parts = Column[Part](Parts(folder))

    def __len__(self) -> int:
        return len(self.ids)

    def at(self, place: int) -> Utterance:
        """The utterance of a row."""
        name = self.ids[place]
        start, end = self.spans.get(place) or (0.0, OPEN_END)
        return Utterance(
            name,
            self.speakers.get(place) or name,
            tuple((self.transcripts.get(place) or "").split()),
            self.audio.get(place),
            start,
            None if end == OPEN_END else end,
            self.feats.get(place),
            self.channels.get(place),
            self.audio_parts.get(place),
            self.feats_parts.get(place),
        )


class Chosen(OnAccess[Utterance]):
    """Some utterances of a sequence, by their places there."""

    def __init__(self, every: Sequence[Utterance], places: array[int]) -> None:
        self._every, self._places = every, places

    def __len__(self) -> int:
        return len(self._places)

    def at(self, place: int) -> Utterance:
        """The utterance at a place among those chosen."""
        return self._every[self._places[place]]

    def __iter__(self) -> Iterator[Utterance]:
        return map(self._every.__getitem__, self._places)

    def chosen(self, places: Iterable[int]) -> Chosen:
        """Some of these."""
        return Chosen(self._every, array("I", (self._places[place] for place in places)))


class Joined(OnAccess[Utterance]):
    """All utterances of several sequences, one after the other."""

    def __init__(self, parts: Iterable[Sequence[Utterance]]) -> None:
        self._parts = tuple(parts)
        self._ends = tuple(accumulate(map(len, self._parts)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def at(self, place: int) -> Utterance:
        """The utterance at a place in all."""
        which = bisect_right(self._ends, place)
        return self._parts[which][place - (self._ends[which - 1] if which else 0)]

    def __iter__(self) -> Iterator[Utterance]:
        return (one for part in self._parts for one in part)
