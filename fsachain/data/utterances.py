"""The utterances of a corpus in columns: a few bytes beside the letters for each, and objects made on access."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from fsachain.data.columns import Column, SharedColumn, Spans, TextColumn
from fsachain.data.locations import Locations
from fsachain.data.utterance import Cut, Member, Part, Utterance
from fsachain.names import Names, Strings
from fsachain.on_access import OnAccess

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
