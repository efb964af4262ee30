"""The tables of a report, made of what was found."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from fsachain.decode.wer import EPSILON, ErrorCounts
from fsachain.report.collect import Findings
from fsachain.report.scores import confusions, error_rate, worst_first

# Numbers and tables as the page shows them.

NOTHING = "\N{EN DASH}"
_MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True)
class Cell:
    """What a cell says, and the number by which its column sorts; None sorts last."""

    text: str
    key: float | None = None


Row = Sequence[str | Cell]


@dataclass(frozen=True)
class Table:
    """A table that sorts by a click on a column's head.

    Attributes:
        caption: what it shows.
        columns: heads; of numbers those for which `numeric` is true.
        numeric: for each column whether it holds numbers.
        rows: cells; the first of each row is its head.
        total: a last row that stays last; empty for none.
    """

    caption: str
    columns: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[Cell, ...], ...]
    total: tuple[Cell, ...] = ()


def table(
    caption: str,
    columns: Sequence[str],
    rows: Sequence[Row],
    total: Row = (),
) -> Table:
    """A table without the columns that say nothing; one of numbers has a key in every cell of which something is known."""
    given = [_cells(row) for row in rows]
    shown = [k for k in range(len(columns)) if not given or any(row[k].text != NOTHING for row in given)]
    cells = tuple(tuple(row[k] for k in shown) for row in given)
    numeric = tuple(
        any(row[k].key is not None for row in cells)
        and all(row[k].key is not None or row[k].text == NOTHING for row in cells)
        for k in range(len(shown))
    )
    last = _cells(total)
    return Table(
        caption, tuple(columns[k] for k in shown), numeric, cells, tuple(last[k] for k in shown if last)
    )


def _cells(row: Row) -> tuple[Cell, ...]:
    return tuple(cell if isinstance(cell, Cell) else Cell(cell) for cell in row)


def amount(value: float | None, digits: int = 0, unit: str = "") -> Cell:
    """A number with thousands set apart."""
    if value is None or math.isnan(value):
        return Cell(NOTHING)
    if math.isinf(value):
        return Cell("\N{INFINITY}" if value > 0 else f"{_MINUS}\N{INFINITY}", math.copysign(1e308, value))
    return Cell(f"{value:,.{digits}f}".replace("-", _MINUS) + (f" {unit}" if unit else ""), value)


def short(value: float | None) -> Cell:
    """A number of three digits that mean something, however small."""
    return Cell(NOTHING) if value is None else Cell(f"{value:.3g}".replace("-", _MINUS), value)


def share(value: float | None) -> Cell:
    """A share of one as per cent."""
    return Cell(NOTHING) if value is None else Cell(f"{100 * value:.0f} %", value)


def per_cent(value: float | None) -> Cell:
    """An error rate that is in per cent already."""
    return amount(value, 2, "%")


def duration(seconds: float | None) -> Cell:
    """Seconds as people say them."""
    if seconds is None or not math.isfinite(seconds):
        return Cell(NOTHING)
    if seconds < 60:
        return Cell(f"{seconds:.1f} s", seconds)
    whole = round(seconds)
    if whole < 3600:
        return Cell(f"{whole // 60} min {whole % 60:02d} s", seconds)
    return Cell(f"{whole // 3600} h {whole % 3600 // 60:02d} min", seconds)


def memory(num_bytes: float | None) -> Cell:
    """Bytes in the unit that suits them, powers of 1000."""
    if num_bytes is None:
        return Cell(NOTHING)
    for size, unit, digits in ((1e9, "GB", 2), (1e6, "MB", 1), (1e3, "kB", 1)):
        if num_bytes >= size:
            return Cell(f"{num_bytes / size:.{digits}f} {unit}", num_bytes)
    return Cell(f"{num_bytes:.0f} B", num_bytes)


def moment(seconds: float | None) -> Cell:
    """Unix time as date and time, UTC."""
    if seconds is None:
        return Cell(NOTHING)
    try:
        return Cell(f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC", seconds)
    except (OverflowError, OSError, ValueError):
        return Cell(NOTHING)


MOST_CONFUSIONS = 20
MOST_UTTERANCES = 200
MOST_EXCLUDED = 50


def all_tables(found: Findings) -> dict[str, Table]:
    """Every table of the page that there are rows for, by name."""
    made = {
        "epochs": _epochs(found),
        "excluded": _excluded(found),
        "speakers": _speakers(found),
        "lengths": _lengths(found),
        "confusions": _confusions(found),
        "utterances": _utterances(found),
        "graphs": _graphs(found),
        "data": _data(found),
        "stages": _stages(found),
        "versions": _versions(found),
        "config": _config(found),
    }
    return {name: one for name, one in made.items() if one.rows}


def _epochs(found: Findings) -> Table:
    rows: list[Row] = [
        [
            Cell(str(one.number), one.number),
            amount(one.objf, 4),
            amount(one.num, 4),
            amount(one.den, 4),
            amount(one.dev_objf, 4),
            short(one.learning_rate),
            short(one.grad_norm),
            duration(one.seconds),
            amount(one.frames_per_second),
            share(one.loss_share),
            share(one.data_share),
            amount(one.excluded),
            amount(one.skipped_batches),
        ]
        for one in (found.training.epochs if found.training else ())
    ]
    columns = (
        "epoch",
        "objf",
        "num",
        "den",
        "objf, dev",
        "learning rate",
        "gradient norm",
        "time",
        "frames/s",
    )
    caption = (
        "Epochs; objf, numerator and denominator in nats per output frame, share of the time that the loss takes, "
        "and that is spent waiting for data"
    )
    return table(caption, (*columns, "loss share", "data share", "excluded", "batches skipped"), rows)


def _excluded(found: Findings) -> Table:
    training = found.training
    if training is None:
        return table("", (), [])
    given = [[name, reason] for name, reason in training.excluded]
    named = {name for name, _ in training.excluded}
    late = [
        [name, "no path, or a score that is no number"]
        for name in training.excluded_in_epochs
        if name not in named
    ]
    rows = given + late
    caption = f"Utterances left out of the training: {len(rows)}"
    caption += f", the first {MOST_EXCLUDED}" if len(rows) > MOST_EXCLUDED else ""
    return table(caption, ("utterance", "reason"), rows[:MOST_EXCLUDED])


_COUNTS = ("words", "errors", "substitutions", "insertions", "deletions", "WER")


def _counts(counts: ErrorCounts) -> list[Cell]:
    parts = (counts.num_words, counts.errors, counts.substitutions, counts.insertions, counts.deletions)
    return [*(amount(part) for part in parts), per_cent(100.0 * error_rate(counts))]


def _speakers(found: Findings) -> Table:
    """One row for each speaker; where only the totals are known, a row for all."""
    by_speaker = found.wer.by_speaker if found.wer else {"all": found.total} if found.total else {}
    rows: list[Row] = [[name, amount(one.num_utterances), *_counts(one)] for name, one in by_speaker.items()]
    total: Row = (
        ["all", amount(found.total.num_utterances), *_counts(found.total)]
        if found.wer and found.total
        else []
    )
    return table("Word errors by speaker", ("speaker", "utterances", *_COUNTS), rows, total)


def _lengths(found: Findings) -> Table:
    """By number of words in the transcript, in classes that double: 0, 1, 2-3, 4-7, ..."""
    classes: dict[int, ErrorCounts] = {}
    for one in found.wer.utterances if found.wer else ():
        size = one.counts.num_words.bit_length()
        classes[size] = classes.get(size, ErrorCounts()) + one.counts
    rows: list[Row] = []
    for size, counts in sorted(classes.items()):
        low, high = (0, 0) if size == 0 else (1 << (size - 1), (1 << size) - 1)
        label = str(low) if low == high else f"{low} to {high}"
        rows.append([Cell(label, low), amount(counts.num_utterances), *_counts(counts)])
    return table("Word errors by length of the transcript", ("words said", "utterances", *_COUNTS), rows)


def _confusions(found: Findings) -> Table:
    most = confusions(found.wer, MOST_CONFUSIONS) if found.wer else ()
    rows: list[Row] = [
        [one.kind, _word(one.reference), _word(one.hypothesis), amount(one.count)] for one in most
    ]
    return table("The most frequent errors", ("kind", "said", "recognised", "times"), rows)


def _word(word: str) -> str:
    return NOTHING if word == EPSILON else word


def _utterances(found: Findings) -> Table:
    if found.wer is None:
        return table("", (), [])
    wrong = [one for one in worst_first(found.wer) if one.counts.errors]
    rows: list[Row] = [[one.id, one.speaker, *_counts(one.counts)] for one in wrong[:MOST_UTTERANCES]]
    caption = f"Utterances with errors: {len(wrong)} of {len(found.wer.utterances)}"
    caption += f", the worst {MOST_UTTERANCES}" if len(wrong) > MOST_UTTERANCES else ""
    return table(caption, ("utterance", "speaker", *_COUNTS), rows)


def _graphs(found: Findings) -> Table:
    rows: list[Row] = []
    for graph in found.graphs:
        facts = graph.facts
        numbers = (facts.num_states, facts.num_arcs, facts.num_finals, facts.num_pdfs, facts.num_self_loops)
        rows.append(
            [
                graph.name,
                *(amount(value) for value in numbers),
                amount(facts.num_states - facts.num_useful_states),
                Cell("yes" if facts.is_deterministic else "no"),
                amount(facts.min_frames),
                Cell(f"{facts.least_sum:.4g} to {facts.largest_sum:.4g}", facts.largest_sum),
                amount(facts.arcs_per_frame),
                memory(facts.table_bytes),
                memory(graph.num_bytes),
            ]
        )
    columns = (
        "graph",
        "states",
        "arcs",
        "final states",
        "labels",
        "self-loops",
        "states on no path",
        "deterministic",
    )
    more = ("shortest path, frames", "sums of states", "arc-evaluations per frame", "compiled", "file")
    return table("Graphs", (*columns, *more), rows)


def _data(found: Findings) -> Table:
    rows: list[Row] = [
        [
            size.name,
            amount(size.utterances),
            amount(size.words),
            amount(size.distinct_words),
            amount(size.speakers),
            duration(size.seconds),
        ]
        for size in found.sizes
    ]
    return table("Data sets", ("set", "utterances", "words", "different words", "speakers", "speech"), rows)


def _stages(found: Findings) -> Table:
    rows: list[Row] = [
        [
            one.name,
            one.state + (f": {one.error}" if one.error else ""),
            moment(one.started),
            duration(one.seconds),
            duration(one.cpu_seconds),
            memory(one.peak_rss),
            memory(one.peak_device),
        ]
        for one in (found.stages.stages if found.stages else ())
    ]
    columns = ("stage", "state", "began", "time", "processor time", "memory, peak", "GPU memory, peak")
    together = duration(found.stages.seconds if found.stages else 0.0).text
    return table(f"Stages, the newest attempt at each; {together} together", columns, rows)


def _versions(found: Findings) -> Table:
    run = found.stages.trained_by if found.stages else None
    return table(
        "Versions", ("package", "version"), [[*pair] for pair in (run.versions.items() if run else ())]
    )


def _config(found: Findings) -> Table:
    return table(
        "Configuration", ("option", "value"), [[name, value] for name, value in _flat("", found.config)]
    )


def _flat(prefix: str, options: Mapping[str, Any]) -> list[tuple[str, str]]:
    lines = []
    for name, value in options.items():
        path = f"{prefix}.{name}" if prefix else str(name)
        if isinstance(value, Mapping) and value:
            lines += _flat(path, value)
        else:
            lines.append((path, str(value)))
    return lines
