r"""NIST's files of transcripts: trn, stm and ctm, as sclite reads them.

    she had your dark suit (anna_sa01)                      trn: words, then the utterance in parentheses
    2345 A anna 0.10 2.03 <O,F> uh huh yes i thought        stm: recording, channel, speaker, start, end, labels, words
    2345 A 11.34 0.20 yes 0.98                              ctm: recording, channel, start, duration, word, confidence

Times are seconds. Lines that begin with `;;` are comments. Words may have alternatives and optional words, see
`fsachain.asr.decode.alternatives`; what stands after a semicolon in a word is a note about it and is dropped, and `\;` is a
semicolon.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fsachain.asr.decode.alternatives import CLOSE, OPEN, OR, markup_tokens
from fsachain.asr.decode.equivalence import fold_case
from fsachain.asr.decode.wer import Scoring, read_text
from fsachain.errors import DataError, brief, check_choices, counted
from fsachain.files import text_lines, write_text

Format = Literal["txt", "trn", "stm", "ctm"]
FORMATS = ("txt", "trn", "stm", "ctm")

IGNORED = ("IGNORE_TIME_SEGMENT_IN_SCORING", "IGNORETIMESEGMENTINSCORING")
_COMMENT = ";;"
_TAGS = {"<ALT_BEGIN>": OPEN, "<ALT>": OR, "<ALT_END>": CLOSE}


class StmSegment(NamedTuple):
    """One line of an STM file; times are seconds."""

    recording: str
    channel: str
    speaker: str
    start: float
    end: float
    words: tuple[str, ...]
    label: str = ""  # with its angle brackets, such as "<O,F>"

    def __repr__(self) -> str:
        return brief(self)

    @property
    def is_ignored(self) -> bool:
        """Whether the stretch is left out of scoring, with all that was recognised in it."""
        return any(word in IGNORED for word in self.words)


class CtmWord(NamedTuple):
    """One word of a CTM file, or one of the marks around alternatives, which have no time; times are seconds."""

    recording: str
    channel: str
    start: float
    duration: float
    word: str
    confidence: float | None = None


def _rows(path: str | PathLike[str]) -> Iterator[tuple[str, list[str]]]:
    for number, fields in text_lines(path):
        if not fields[0].startswith(_COMMENT):
            yield f"{path}:{number}", fields


def _plain(words: Iterable[str]) -> tuple[str, ...]:
    """Words without the notes that follow them after a semicolon."""
    return tuple(_without_notes(word) if ";" in word else word for word in words)


def _without_notes(word: str) -> str:
    text = word.replace("\\;", "\0")
    end = text.find(";", 1)
    return (text if end < 0 else text[:end]).replace("\0", ";")


def _escaped(words: Iterable[str]) -> Iterator[str]:
    for word in words:
        yield word.replace(";", "\\;")


def read_trn(path: str | PathLike[str]) -> dict[str, tuple[str, ...]]:
    """Read transcripts with their utterance in parentheses at the end of each line.

    Returns:
        Words by utterance, in the order of the file; braces and slashes of alternatives are words of their own.

    Raises:
        DataError: a line without an utterance, or an utterance that stands in the file twice.
    """
    transcripts: dict[str, tuple[str, ...]] = {}
    for where, fields in _rows(path):
        text = " ".join(fields)
        said, bracket, name = text.removesuffix(")").rpartition("(")
        if not bracket or not text.endswith(")") or name.split() != [name]:
            raise DataError(f"{where}: expected words and an utterance in parentheses, got {text[-100:]!r}")
        if name in transcripts:
            raise DataError(f"{where}: utterance {name!r} stands in the file twice")
        transcripts[name] = _plain(markup_tokens(said))
    return transcripts


def write_trn(path: str | PathLike[str], transcripts: Mapping[str, Sequence[str]]) -> None:
    """Write transcripts as trn, sorted by utterance; folders are made if need be.

    Raises:
        DataError: an utterance with a parenthesis in its name, which no reader could tell from the words.
    """
    for name in transcripts:
        if "(" in name or ")" in name or name.split() != [name]:
            raise DataError(
                f"{path}: utterance {name!r} cannot be written as trn; expected no space and no parenthesis"
            )
    lines = [" ".join((*_escaped(transcripts[name]), f"({name})")) + "\n" for name in sorted(transcripts)]
    write_text(path, "".join(lines))


def read_stm(path: str | PathLike[str]) -> list[StmSegment]:
    """Read the segments of an STM file, in its order.

    Raises:
        DataError: a line without recording, channel, speaker and times, or one that ends before it begins.
    """
    segments = []
    for where, fields in _rows(path):
        if len(fields) < 5:
            raise DataError(
                f"{where}: expected recording, channel, speaker, start, end and words, got {counted(len(fields), 'field')}"
            )
        recording, channel, speaker = fields[:3]
        start, end = (
            _seconds(where, name, text) for name, text in zip(("start", "end"), fields[3:5], strict=True)
        )
        if end < start:
            raise DataError(f"{where}: the segment ends at {end:g} s, before it begins at {start:g} s")
        has_label = len(fields) > 5 and fields[5].startswith("<") and fields[5].endswith(">")
        words = markup_tokens(" ".join(fields[6 if has_label else 5 :]))
        label = fields[5] if has_label else ""
        segments.append(StmSegment(recording, channel, speaker, start, end, _plain(words), label))
    return segments


def write_stm(path: str | PathLike[str], segments: Iterable[StmSegment]) -> None:
    """Write segments as STM, sorted by recording, channel and start as sclite wants them; folders are made if need be."""
    ordered = sorted(segments, key=lambda one: (one.recording, one.channel, one.start))
    lines = []
    for one in ordered:
        fields = (
            one.recording,
            one.channel,
            one.speaker,
            f"{one.start:.3f}",
            f"{one.end:.3f}",
            one.label,
        )
        lines.append(" ".join((*filter(None, fields), *_escaped(one.words))) + "\n")
    write_text(path, "".join(lines))


def read_nist_ctm(path: str | PathLike[str]) -> list[CtmWord]:
    """Read the words of a CTM file with their channels, in its order; marks of alternatives become braces and slashes.

    Raises:
        DataError: a line without recording, channel, times and word.
    """
    words: list[CtmWord] = []
    for where, fields in _rows(path):
        if len(fields) not in (5, 6):
            raise DataError(
                f"{where}: expected recording, channel, start, duration, word and perhaps a confidence, "
                f"got {counted(len(fields), 'field')}"
            )
        recording, channel, start, duration, word = fields[:5]
        if mark := _TAGS.get(word.upper()):
            words.append(CtmWord(recording, channel, math.nan, 0.0, mark))
            continue
        times = _seconds(where, "start", start), _seconds(where, "duration", duration)
        sure = _seconds(where, "confidence", fields[5]) if fields[5:] not in ([], ["NA"]) else None
        words.append(CtmWord(recording, channel, *times, _without_notes(word) if ";" in word else word, sure))
    return words


def _seconds(where: str, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{where}: the {name} is {text[:100]!r}; expected a number")
    return value


def words_by_recording(words: Iterable[CtmWord], *, with_channel: bool = False) -> dict[str, list[CtmWord]]:
    """Group the words of a CTM file by recording, and by channel as well if asked; in order of time.

    Alternatives stay together, at the time of their first word.
    """
    groups: dict[str, list[CtmWord]] = {}
    for word in words:
        key = f"{word.recording}-{word.channel}" if with_channel else word.recording
        groups.setdefault(key, []).append(word)
    return {
        key: [word for unit in sorted(_units(group), key=_start_of) for word in unit]
        for key, group in groups.items()
    }


def _start_of(unit: Sequence[CtmWord]) -> float:
    return min((word.start for word in unit if not math.isnan(word.start)), default=0.0)


def _middle_of(unit: Sequence[CtmWord]) -> float:
    return max((word.start + word.duration / 2 for word in unit if not math.isnan(word.start)), default=0.0)


def words_in_segments(
    words: Iterable[CtmWord], segments: Sequence[StmSegment], *, fold: bool = True
) -> list[list[str]]:
    """Give each segment the recognised words that belong to it, as sclite does.

    A word belongs to the first segment of its recording and channel that ends after the middle of the word; the last one
    takes what is left. What belongs to an ignored segment is dropped there.

    Args:
        fold: whether recordings and channels are the same when they differ in case alone.

    Raises:
        DataError: words of a recording and channel that no segment has.
    """

    def key(one: CtmWord | StmSegment) -> tuple[str, str]:
        names = one.recording, one.channel
        return (names[0].upper(), names[1].upper()) if fold else names

    numbers: dict[tuple[str, str], list[int]] = {}
    for number, segment in enumerate(segments):
        numbers.setdefault(key(segment), []).append(number)
    for group in numbers.values():
        group.sort(key=lambda number: segments[number].start)
    # A segment that lies inside an earlier one ends before words that follow it: sclite goes on from segment to segment.
    ends = {}
    for name, group in numbers.items():
        latest = -math.inf
        ends[name] = [latest := max(latest, segments[number].end) for number in group]
    heard: dict[tuple[str, str], list[CtmWord]] = {}
    for word in words:
        heard.setdefault(key(word), []).append(word)
    unknown = sorted(name for name in heard if name not in numbers)
    if unknown:
        recording, channel = unknown[0]
        raise DataError(
            f"hypotheses: {counted(len(heard[unknown[0]]), 'word')} of recording {recording!r}, channel {channel!r}, "
            "which the references lack"
        )
    taken: list[list[str]] = [[] for _ in segments]
    for name, group in numbers.items():
        earliest = 0
        for unit in sorted(_units(heard.get(name, [])), key=_start_of):
            earliest = min(bisect_right(ends[name], _middle_of(unit), lo=earliest), len(group) - 1)
            taken[group[earliest]] += [word.word for word in unit]
    return taken


def _units(words: Iterable[CtmWord]) -> list[list[CtmWord]]:
    """Words one by one, and alternatives as a whole."""
    units: list[list[CtmWord]] = []
    level = 0
    for word in words:
        if level:
            units[-1].append(word)
        else:
            units.append([word])
        level = max(0, level + (word.word == OPEN) - (word.word == CLOSE))
    return units


class TranscriptPair(NamedTuple):
    """References and hypotheses as `score` takes them, words by utterance."""

    references: dict[str, tuple[str, ...]]
    hypotheses: dict[str, tuple[str, ...]]
    speakers: dict[str, str] | None  # by utterance, where the references name them
    formats: tuple[Format, Format]

    def __repr__(self) -> str:
        return brief(self)

    @property
    def is_nist(self) -> bool:
        """Whether either file is one of NIST's, whose words may be alternatives."""
        return self.formats != ("txt", "txt")

    def scoring(self, **options: Any) -> Scoring:
        """How these files are compared by default: Kaldi's as `score` does, NIST's as sclite -D does.

        Args:
            options: of `Scoring`, in place of the defaults.
        """
        defaults: dict[str, Any] = {"formats": self.formats}
        if self.is_nist:
            defaults |= {"costs": "sclite", "markup": True, "fold_case": True}
        return Scoring(**defaults | options)


def format_of(path: str | PathLike[str]) -> Format:
    """The format that a file's name ends in: "trn", "stm" or "ctm", else "txt" for Kaldi's."""
    suffix = Path(path).suffix.lower().removeprefix(".")
    return suffix if suffix in FORMATS else "txt"  # type: ignore[return-value]


def read_pair(
    reference: str | PathLike[str],
    hypothesis: str | PathLike[str],
    *,
    reference_format: Format | None = None,
    hypothesis_format: Format | None = None,
    fold: bool = True,
) -> TranscriptPair:
    """Read a reference and a hypothesis, and give their utterances the same names.

    An STM reference names its segments `SPEAKER-000`, `SPEAKER-001`, ... as sclite does, and has speakers; a CTM hypothesis
    beside it is cut by time. Of two CTM files each recording and channel is an utterance; beside other references, the
    recordings of a CTM are the utterances.

    Args:
        reference_format, hypothesis_format: by default what the name ends in.
        fold: whether names of utterances, recordings and channels are the same when they differ in case alone.

    Raises:
        DataError: a file that is not of its format, an empty reference, or words that belong to no segment.
    """
    formats = reference_format or format_of(reference), hypothesis_format or format_of(hypothesis)
    for given in formats:
        check_choices(_Formats(given), format=FORMATS)
    speakers = None
    if formats[0] == "stm":
        segments = read_stm(reference)
        names = _segment_names(segments)
        scored = {name: one for name, one in zip(names, segments, strict=True) if not one.is_ignored}
        references = {name: one.words for name, one in scored.items()}
        speakers = {name: one.speaker for name, one in scored.items()}
    else:
        references = _read_side(reference, formats[0], formats == ("ctm", "ctm"))
    if not references:
        raise DataError(f"{reference}: no utterances; expected {_EXPECTED[formats[0]]}")
    if formats == ("stm", "ctm"):
        cut = words_in_segments(read_nist_ctm(hypothesis), segments, fold=fold)
        by_name = dict(zip(names, map(tuple, cut), strict=True))
        hypotheses = {name: by_name[name] for name in scored}
    else:
        hypotheses = _read_side(hypothesis, formats[1], formats == ("ctm", "ctm"))
        if fold:
            hypotheses = _renamed(hypotheses, references)
    return TranscriptPair(references, hypotheses, speakers, formats)


class _Formats(NamedTuple):
    format: str


_EXPECTED = {
    "txt": "lines of an utterance and its words",
    "trn": "lines of words and an utterance in parentheses",
    "stm": "lines of recording, channel, speaker, start, end and words",
    "ctm": "lines of recording, channel, start, duration and word",
}


def _segment_names(segments: Iterable[StmSegment]) -> list[str]:
    """`SPEAKER-000` and so on, counted for each speaker; ignored segments do not count."""
    names = []
    numbers: Counter[str] = Counter()
    for one in segments:
        names.append(f"{one.speaker}-{numbers[one.speaker]:03d}")
        numbers[one.speaker] += not one.is_ignored
    return names


def _read_side(path: str | PathLike[str], kind: str, with_channel: bool) -> dict[str, tuple[str, ...]]:
    if kind == "txt":
        return read_text(Path(path))
    if kind == "trn":
        return read_trn(path)
    if kind == "stm":
        segments = read_stm(path)
        return {
            name: one.words
            for name, one in zip(_segment_names(segments), segments, strict=True)
            if not one.is_ignored
        }
    groups = words_by_recording(read_nist_ctm(path), with_channel=with_channel)
    return {name: tuple(word.word for word in words) for name, words in groups.items()}


def _renamed(
    hypotheses: dict[str, tuple[str, ...]], references: Mapping[str, object]
) -> dict[str, tuple[str, ...]]:
    """Hypotheses under the names of references that differ in case alone, where there is one such reference."""
    by_folded: dict[str, list[str]] = {}
    for name in references:
        by_folded.setdefault(fold_case(name), []).append(name)
    renamed = {}
    for name, words in hypotheses.items():
        others = [] if name in references else by_folded.get(fold_case(name), [])
        is_clear = len(others) == 1 and others[0] not in hypotheses and others[0] not in renamed
        renamed[others[0] if is_clear else name] = words
    return renamed
