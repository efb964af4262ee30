"""The tables of a Kaldi data directory, line by line into columns.

A directory holds `text` and `wav.scp` or `feats.scp`, and may hold `utt2spk` and `segments`. Every line of
every table is `key value...`; keys are unique.

Paths inside `wav.scp` and `feats.scp` are relative to the folder of the file that names them, so that a
corpus can be moved. An entry with a `|` at either end is a shell command. Commands run with the rights of the
reader, hence they are refused unless the caller asks for them with `allow_commands=True`.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import filterfalse
from pathlib import Path
from typing import Any

from fsachain.data.columns import ByRow, Column
from fsachain.data.faults import Faults
from fsachain.data.locations import joined
from fsachain.data.tables import table_lines
from fsachain.data.utterance import is_command
from fsachain.data.utterances import OPEN_END, Chosen, Utterances
from fsachain.errors import DataError
from fsachain.names import Names


def read_folder(folder: Path, allow_commands: bool, faults: Faults) -> Chosen:
    """The utterances of a directory, in the order of segments (or wav.scp) and feats.scp.

    Args:
        folder: the directory.
        allow_commands: accept locations that are shell commands.
        faults: told of every utterance that is left out.

    Raises:
        DataError: the directory or a table that it needs is missing; and what `faults` raises.
    """
    _check_files(folder)
    utterances = Utterances(faults.ids, str(folder))  # with rows for recordings, too
    segments = folder / "segments"
    recordings = Column(utterances.audio.values) if segments.is_file() else utterances.audio
    _read_locations(folder / "wav.scp", recordings, allow_commands, faults)
    cuts = array("I")
    if segments.is_file() and any(row in recordings for row in range(len(faults.ids))):
        cuts = _read_segments(segments, recordings, utterances, faults)
    _read_locations(folder / "feats.scp", utterances.feats, allow_commands, faults)

    def rows() -> Iterator[int]:
        """Of utterances, sound or not."""
        every = range(len(faults.ids))
        yield from cuts if segments.is_file() else filter(utterances.audio.__contains__, every)
        yield from (row for row in every if row in utterances.feats and row not in utterances.audio)

    text = folder / "text"
    _read_words(text, utterances, faults)
    _require(rows(), utterances.transcripts, text, "no transcript", faults)
    speakers = folder / "utt2spk"
    if speakers.is_file():
        _read_speakers(speakers, utterances, faults)
        _require(rows(), utterances.speakers, speakers, "no speaker", faults)
    return Chosen(utterances, array("I", filterfalse(faults.holds, rows())))


def _check_files(folder: Path) -> None:
    if not folder.is_dir():
        raise DataError(f"data directory {str(folder)!r} does not exist")
    if not (folder / "text").is_file():
        raise DataError(f"{str(folder / 'text')!r} does not exist; a data directory needs the transcripts")
    sources = (folder / "wav.scp", folder / "feats.scp")
    if not any(path.is_file() and path.stat().st_size for path in sources):
        raise DataError(
            f"data directory {str(folder)!r} has neither wav.scp nor feats.scp, or they are empty"
        )


def _lines(path: Path, column: Column[Any], faults: Faults) -> Iterator[tuple[int, str, int, bytes]]:
    """(number, key, row, rest of the line) of the lines of a table; a key that occurs twice loses what the column has."""
    first = ByRow()  # line
    row = -1
    for number, key, rest in table_lines(path, partial(faults.report, "table", "")):
        row = _row(faults.ids, key, row + 1)
        if faults.holds(row):
            continue
        if first[row]:
            message = "key {name!r} occurs twice, first on line {detail}"
            faults.report("duplicate id", key, path, number, message, first[row])
            column.remove(row)
            continue
        yield number, key, row, rest
        if not faults.holds(row):
            first[row] = number


def _row(ids: Names, key: str, likely: int) -> int:
    """The row of a key, which is added if it is new; tables have the same order, as a rule."""
    return likely if likely < len(ids) and ids[likely] == key else ids.add(key)


def _read_locations(path: Path, locations: Column[str], allow_commands: bool, faults: Faults) -> None:
    """Paths (joined to the table's folder) or commands into a column, if there is such a table."""
    if not path.is_file():
        return
    folder = str(path.parent)
    for number, key, row, rest in _lines(path, locations, faults):
        value = rest.decode("utf-8").strip()
        place = value if is_command(value) else joined(folder, value)
        if not value:
            faults.report("no recording", key, path, number, "{name!r} has no path")
        elif is_command(value) and not allow_commands:
            message = (
                "{name!r} is a shell command ({detail!r}); pass allow_commands=True "
                "(--allow-commands) to run it, if you trust this directory"
            )
            faults.report("shell command", key, path, number, message, value)
        elif is_command(place) and not is_command(value):  # such as `file|/`
            message = "the path {detail!r} of {name!r} would be taken for a command; rename the file"
            faults.report("shell command", key, path, number, message, value)
        else:
            locations.put(row, place)


def _read_segments(path: Path, recordings: Column[str], utterances: Utterances, faults: Faults) -> array[int]:
    """Utterances from lines `utterance recording start end`, in seconds; -1 is the recording's end. Returns their rows."""
    rows = array("I")
    for number, key, row, rest in _lines(path, utterances.audio, faults):
        value = rest.decode("utf-8").strip()
        fields = value.split(maxsplit=3)
        try:
            recording, (start, end) = fields[0], (float(field) for field in fields[1:])
        except (IndexError, ValueError):
            message = "expected 'utterance recording start end', got '{name} {detail}'"
            faults.report("segment", key, path, number, message, value)
            continue
        found = faults.ids.place(recording)
        open_end = end == OPEN_END
        if found is None or found not in recordings:
            message = "recording {detail!r} of {name!r} is not in wav.scp"
            faults.report("no recording", key, path, number, message, recording)
        elif not (0.0 <= start < math.inf and (open_end or start < end < math.inf)):
            message = "{name!r} needs 0 <= start < end, got {detail}"
            faults.report("segment", key, path, number, message, f"start {start} and end {end}")
        else:
            utterances.audio.link(row, recordings.place(found))
            utterances.spans.put(row, (start, end))
            rows.append(row)
    return rows


def _read_words(path: Path, utterances: Utterances, faults: Faults) -> None:
    """Transcripts, each of an utterance that has a recording or features."""
    for number, key, row, rest in _lines(path, utterances.transcripts, faults):
        if row in utterances.audio or row in utterances.feats:
            utterances.transcripts.put_utf8(row, rest)
        else:
            message = "utterance {name!r} has neither a recording nor features"
            faults.report("no recording", key, path, number, message)


def _read_speakers(path: Path, utterances: Utterances, faults: Faults) -> None:
    """Speakers of utterances, one word each; others may be named, too."""
    for number, key, row, rest in _lines(path, utterances.speakers, faults):
        speaker = rest.decode("utf-8").strip()
        if len(speaker.split(maxsplit=1)) == 1:
            utterances.speakers.share(row, speaker)
        elif row in utterances.audio or row in utterances.feats:
            message = "expected 'utterance speaker', got '{name} {detail}'"
            faults.report("no speaker", key, path, number, message, speaker)


def _require(rows: Iterable[int], column: Column[Any], path: Path, kind: str, faults: Faults) -> None:
    """Tell the faults of the utterances that a table should name and does not."""
    for row in rows:
        if row not in column and not faults.holds(row):
            faults.report(kind, faults.ids[row], path, 0, f"{kind} for utterance {{name!r}}")
