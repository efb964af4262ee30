"""TextGrids read: those of Praat in its three text forms, and JSON as praatio and the Montreal Forced Aligner write it.

Praat's text is free: numbers, texts between quotes and flags such as <exists> count where they stand free between white
space, and all else is for the reader's eye; a `!` begins a comment. praatio, which looks for lines as Praat itself writes
them, drops the end of a file that was cut short and fails on comments and points, so that this form is read here.
"""

from __future__ import annotations

import math
import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fsachain.errors import DataError, counted
from fsachain.files import parse_json

INTERVALS, POINTS = "IntervalTier", "TextTier"
ALIGNED = ("words", "phones")  # tiers that this and other aligners write
_BINARY = b"ooBinaryFile"
_LARGEST = 1 << 26  # bytes
_PIECE = re.compile(
    r"""
    ![^\n]*                           # a comment
    | "(?P<text>[^"]*(?:""[^"]*)*)(?P<quote>"?)
    | (?P<other>[^\s"]+)
    """,
    re.VERBOSE,
)
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


class Interval(NamedTuple):
    """A stretch of a tier and its text; start and end are in seconds."""

    start: float
    end: float
    text: str


class Tier(NamedTuple):
    """A tier of a TextGrid: its name, and its intervals in the order of the file; a tier of points has none."""

    name: str
    intervals: tuple[Interval, ...]
    is_points: bool = False

    @property
    def spoken(self) -> list[Interval]:
        """The intervals with a text."""
        return [one for one in self.intervals if one.text.strip()]

    @property
    def is_aligned(self) -> bool:
        """Whether an aligner writes tiers of this name: `words`, `phones`, or these after a speaker's name."""
        name = self.name.rpartition(" - ")[2]
        return name.strip().lower() in ALIGNED


class _Tokens:
    """The numbers, texts and flags of a TextGrid, one after the other; errors name file, line and what was expected."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.text = path, text
        self._pieces = _PIECE.finditer(text)
        self.place = 0

    def wrong(self, expected: str, came: str) -> DataError:
        line = self.text.count("\n", 0, self.place) + 1
        return DataError(f"{self.path}:{line}: not a TextGrid: expected {expected}, got {came}")

    def _next(self, expected: str) -> tuple[str, str]:
        """("text" | "number" | "flag", its value) of the next piece that counts."""
        for piece in self._pieces:
            self.place = piece.start()
            if piece["text"] is not None:
                if not piece["quote"]:
                    raise self.wrong(f"{expected}, with a quote at its end", f"{piece[0]!r:.40}")
                return "text", piece["text"].replace('""', '"')
            word = piece["other"]
            if word is None:
                continue
            if _NUMBER.fullmatch(word):
                return "number", word
            if word.startswith("<") and word.endswith(">"):
                return "flag", word
        self.place = len(self.text)
        raise self.wrong(expected, "the end of the file")

    def _of(self, kind: str, expected: str) -> str:
        found, value = self._next(expected)
        if found != kind:
            raise self.wrong(expected, f"{value!r:.40}")
        return value

    def string(self, expected: str) -> str:
        return self._of("text", expected)

    def number(self, expected: str) -> float:
        value = float(self._of("number", expected))
        if not math.isfinite(value):
            raise self.wrong(expected, str(value))
        return value

    def count(self, expected: str) -> int:
        value = self.number(expected)
        if value < 0 or value % 1 or value > len(self.text):
            raise self.wrong(expected, f"{value:g}")
        return int(value)

    def flag(self, expected: str) -> str:
        return self._of("flag", expected)


def read_textgrid(path: str | Path) -> list[Tier]:
    """Read the tiers of a TextGrid, in UTF-8 or UTF-16.

    Args:
        path: a file of Praat in its long or short text form, or JSON as praatio writes it.

    Returns:
        The tiers in their order. Tiers of points come without them.

    Raises:
        DataError: the file cannot be read or is damaged, or an interval with a text does not end after it begins; with
            file, line, what came and what was expected.
    """
    path = Path(path)
    text = _text_of(path)
    if text.lstrip().startswith("{"):
        return _from_json(path, parse_json(text, str(path)))
    tokens = _Tokens(path, text)
    head = tokens.string("'ooTextFile'")
    if not head.startswith("ooTextFile"):
        raise tokens.wrong("'ooTextFile'", repr(head))
    kind = tokens.string("'TextGrid'")
    if not kind.startswith("TextGrid"):
        raise tokens.wrong("'TextGrid'", repr(kind))
    tokens.number("the time where the TextGrid begins")
    tokens.number("the time where it ends")
    if tokens.flag("<exists>") != "<exists>":
        return []
    count = tokens.count("the number of tiers")
    return [_tier(tokens, f"tier {n}") for n in range(1, count + 1)]


def _text_of(path: Path) -> str:
    try:
        if path.stat().st_size > _LARGEST:
            raise DataError(
                f"{path}: {counted(path.stat().st_size, 'byte')}; expected at most {_LARGEST} of a TextGrid"
            )
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    if data.startswith(_BINARY):
        raise DataError(f"{path}: a binary TextGrid; save it as text (in Praat: Save as text file)")
    is_utf16 = data.startswith((BOM_UTF16_LE, BOM_UTF16_BE))
    try:
        return data.decode("utf-16") if is_utf16 else data.removeprefix(BOM_UTF8).decode("utf-8")
    except UnicodeError as error:
        raise DataError(f"{path}: neither UTF-8 nor UTF-16 with a byte order mark ({error})") from error


def _tier(tokens: _Tokens, where: str) -> Tier:
    kind = tokens.string(f"the class of {where}")
    if kind not in (INTERVALS, POINTS):
        raise tokens.wrong(f"the class of {where}, {INTERVALS} or {POINTS}", repr(kind))
    name = tokens.string(f"the name of {where}")
    where = f"{where}, {name!r:.40}"
    tokens.number(f"the time where {where} begins")
    tokens.number(f"the time where {where} ends")
    count = tokens.count(f"the number of entries of {where}")
    if kind == POINTS:
        for n in range(1, count + 1):
            tokens.number(f"the time of point {n} of {where}")
            tokens.string(f"the text of point {n} of {where}")
        return Tier(name, (), is_points=True)
    return Tier(name, tuple(_intervals(tokens, count, where)))


def _intervals(tokens: _Tokens, count: int, where: str) -> Iterator[Interval]:
    for n in range(1, count + 1):
        start = tokens.number(f"the start of interval {n} of {where}")
        end = tokens.number(f"the end of interval {n} of {where}")
        text = tokens.string(f"the text of interval {n} of {where}")
        if text.strip() and not end > start:
            raise tokens.wrong(f"interval {n} of {where} to end after {start:g}", f"{end:g}")
        yield Interval(start, end, text)


def _from_json(path: Path, table: Any) -> list[Tier]:
    """Tiers of praatio's two forms: a list of tiers as in a TextGrid, or a mapping of their names."""
    try:
        tiers = table["tiers"]
        if isinstance(tiers, dict):
            rows = [(name, one["type"], one["entries"]) for name, one in tiers.items()]
        else:
            rows = [(one["name"], one["class"], one["entries"]) for one in tiers]
        found = []
        for name, kind, entries in rows:
            if kind == POINTS:
                found.append(Tier(str(name), (), is_points=True))
                continue
            intervals = [Interval(float(start), float(end), str(text)) for start, end, text in entries]
            for one in intervals:
                if one.text.strip() and not -math.inf < one.start < one.end < math.inf:
                    raise ValueError(f"an interval from {one.start:g} to {one.end:g}")
            found.append(Tier(str(name), tuple(intervals)))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path}: not a TextGrid in JSON: expected tiers with name, class and entries ({error!r})"
        ) from error
    return found
