"""Findings as one HTML page: tables, and the templates filled in.

Everything that comes from a file of the experiment passes through Jinja's escaping. In addition a content security policy
forbids every request, every style and every script but the page's own, so that what slips through does not run.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fsachain.asr.decode.wer import EPSILON, ErrorCounts, error_kind
from fsachain.asr.report.collect import (
    Findings,
    Heard,
    Layout,
    Look,
    add_pictures,
    add_times,
    choose,
    collect,
    draw,
    error_rate,
    worst_first,
)
from fsachain.asr.train.config import flat
from fsachain.asr.train.log import number
from fsachain.errors import counted, require
from fsachain.files import write_text
from fsachain.graph.algorithms import GraphFacts

# What HTML forbids even as a character reference: control characters, halves of surrogate pairs, noncharacters.
_FORBIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef"
    + "".join(chr(plane * 0x10000 + last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
    + "]"
)


def render(found: Findings, heard: Mapping[str, Sequence[Heard]]) -> str:
    return render_page(
        "page.html",
        found=found,
        heard=heard,
        title=found.layout.exp.resolve().name,
        state=state(found),
        tiles=tiles(found),
        tables=all_tables(found),
    )


def render_page(template: str, *, media: str = "data:", **values: Any) -> str:
    """A template of this folder with our style and script; `media` is where its sound may come from."""
    jinja2 = require("jinja2", extra="report")
    loader = jinja2.PackageLoader("fsachain.asr.report")
    environment = jinja2.Environment(
        loader=loader,
        autoescape=True,
        finalize=_allowed,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "duration": lambda value: duration(value).text,
        "amount": lambda value: amount(value).text,
        "moment": lambda value: moment(value).text,
        "counted": counted,
    }
    environment.globals["error_kind"] = error_kind
    style, script = (
        loader.get_source(environment, name)[0].replace("\r\n", "\n") for name in ("style.css", "page.js")
    )
    policy = [
        "default-src 'none'",
        "img-src data:",
        f"media-src {media}",
        f"style-src '{_hash(style)}'",
        f"script-src '{_hash(script)}'",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    page: str = environment.get_template(template).render(
        style=style, script=script, policy="; ".join(policy), **values
    )
    return page


def _allowed(value: Any) -> Any:
    """Text with forbidden characters as escapes; `Markup` stays `Markup`."""
    if not isinstance(value, str) or not _FORBIDDEN.search(value):
        return value
    return type(value)(_FORBIDDEN.sub(lambda found: ascii(found[0])[1:-1], value))


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def state(found: Findings) -> str:
    stages = found.stages.stages if found.stages else ()
    broken = [stage for stage in stages if stage.state in ("failed", "stopped")]
    if broken:
        return f"{broken[-1].name} {broken[-1].state}"
    begun = [stage for stage in stages if stage.state == "begun" and stage.name != "report"]
    if begun and begun[-1].name == "train" and found.training:
        return f"train runs: {found.training.state}"
    if begun:
        return f"{begun[-1].name} runs"
    to_come = [stage.name for stage in stages if stage.state == "to come" and stage.name != "report"]
    if left := dict.fromkeys([*to_come, *found.undone]):
        return f"not complete: {', '.join(left)} to come"
    is_trained = found.training is None or found.training.finished
    if found.total is not None and is_trained:
        missing = found.wer.missing if found.wer else ()
        return f"complete but for {counted(len(missing), 'utterance')}" if missing else "complete"
    return f"training: {found.training.state}" if found.training else "begun"


def tiles(found: Findings) -> list[tuple[str, str, str]]:
    """The main results: (name, number, more)."""
    shown = []
    if found.total is not None:
        total = found.total
        more = f"errors: {total.errors} in {counted(total.num_words, 'word', ',')}"
        shown.append(("WER, test", per_cent(total.wer).text, more))
    if found.tuned is not None:
        weight, wer = number(found.tuned, "lm_weight"), number(found.tuned, "wer")
        chosen = "" if weight is None else f"LM weight {weight:g}"
        shown.append(("WER, dev", per_cent(wer).text, chosen))
    if found.training is not None:
        training = found.training
        dev = training.final_dev_objf
        if dev is None and training.epochs:
            dev = number(list(training.epochs.values())[-1], "dev", "objf")
        shown.append(("objf, dev", amount(dev, 4).text, "nats per output frame"))
        shown.append(("Epochs", str(len(training.epochs)), training.state))
        if training.parameters:
            shown.append(("Parameters", f"{training.parameters:,}", ""))
    train = next((size for size in found.sizes if size.name == "train"), None)
    if train is not None:
        more = counted(train.utterances, "utterance", ",")
        shown.append(("Speech, train", duration(train.seconds).text, more))
    return shown


def write_report(
    layout: Layout,
    out: Path,
    look: Look | None = None,
    *,
    num_utterances: int = 10,
    num_pictured: int = 3,
    allow_commands: bool = False,
) -> None:
    """Write the report of an experiment, finished or not, as one HTML file that makes no request.

    What is missing or damaged is said in its section. The file is written atomically. `look` gives the occupancies of
    utterances by id, and for those that have none the reason; without a model there is none. So many utterances of the worst
    and of the best have their recordings, so many of these a spectrogram and a lattice. `allow_commands`: run the shell
    commands in wav.scp that make recordings.
    """
    found = collect(layout)
    draw(found)
    heard = choose(found, num_utterances)
    every = [one for group in heard.values() for one in group]
    pictured = {one.score.id for group in heard.values() for one in group[:num_pictured]}
    if every:
        add_times(found, every)
        add_pictures(found, every, pictured, look, allow_commands=allow_commands)
    page = render(found, heard)
    write_text(out, page)


# The tables, made of what was found.

# Cells and tables.

NOTHING = "\N{EN DASH}"
_MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True)
class Cell:
    """Text of a cell, and the number by which its column sorts; None sorts last."""

    text: str
    key: float | None = None


Row = Sequence[str | Cell]


@dataclass(frozen=True)
class Table:
    caption: str
    columns: tuple[str, ...]
    numeric: tuple[bool, ...]  # whether a column holds numbers
    rows: tuple[tuple[Cell, ...], ...]  # the first cell of each row is its head
    total: tuple[Cell, ...] = ()  # a last row that stays last; empty for none


def table(caption: str, columns: Sequence[str], rows: Sequence[Row], total: Row = ()) -> Table:
    """A table without its empty columns; a column is numeric if each of its cells has a key or is `NOTHING`."""
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
    if value is None or math.isnan(value):
        return Cell(NOTHING)
    if math.isinf(value):
        return Cell("\N{INFINITY}" if value > 0 else f"{_MINUS}\N{INFINITY}", math.copysign(1e308, value))
    return Cell(f"{value:,.{digits}f}".replace("-", _MINUS) + (f" {unit}" if unit else ""), value)


def short(value: float | None) -> Cell:
    """Three significant digits."""
    return Cell(NOTHING) if value is None else Cell(f"{value:.3g}".replace("-", _MINUS), value)


def share(value: float | None) -> Cell:
    """A fraction of one, in per cent."""
    return Cell(NOTHING) if value is None else Cell(f"{100 * value:.0f} %", value)


def per_cent(value: float | None) -> Cell:
    """A rate that is in per cent already."""
    return amount(value, 2, "%")


def duration(seconds: float | None) -> Cell:
    if seconds is None or not math.isfinite(seconds):
        return Cell(NOTHING)
    if seconds < 60:
        return Cell(f"{seconds:.1f} s", seconds)
    whole = round(seconds)
    if whole < 3600:
        return Cell(f"{whole // 60} min {whole % 60:02d} s", seconds)
    return Cell(f"{whole // 3600} h {whole % 3600 // 60:02d} min", seconds)


def memory(num_bytes: float | None) -> Cell:
    """Units are powers of 1000."""
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
_COUNTS = ("words", "errors", "substitutions", "insertions", "deletions", "WER")


def all_tables(found: Findings) -> dict[str, Table]:
    """The tables that have rows, by name."""
    run = found.stages.trained_by if found.stages else None
    options = [(name, str(one)) for name, one in flat(found.config)]
    columns = ("set", "utterances", "words", "different words", "speakers", "speech")
    sizes: list[Row] = [
        [one.name, *(amount(value) for value in one[1:-1]), duration(one.seconds)] for one in found.sizes
    ]
    made = {
        "epochs": _epochs(found),
        "excluded": _excluded(found),
        **_errors(found),
        "graphs": _graphs(found),
        "data": table("Data sets", columns, sizes),
        "stages": _stages(found),
        "inputs": table(
            "Inputs", ("option", "path"), [[f"--{name}", path] for name, path in found.inputs.items()]
        ),
        "runs": _runs(found),
        "versions": table("Versions", ("package", "version"), list(run.versions.items()) if run else []),
        "config": table("Configuration", ("option", "value"), options),
    }
    return {name: one for name, one in made.items() if one.rows}


def _runs(found: Findings) -> Table:
    """Every call, oldest first: one that goes on where another stood has other stages and another command."""
    rows: list[Row] = [
        [moment(one.time), " ".join(one.stages), " ".join(one.command)]
        for one in (found.stages.runs if found.stages else ())
    ]
    return table("Calls", ("begun", "stages", "command"), rows)


def _epochs(found: Findings) -> Table:
    columns: tuple[tuple[str, Callable[[float | None], Cell], tuple[str, ...]], ...] = (
        ("objf", lambda value: amount(value, 4), ("train", "objf")),
        ("num", lambda value: amount(value, 4), ("train", "num")),
        ("den", lambda value: amount(value, 4), ("train", "den")),
        ("objf, dev", lambda value: amount(value, 4), ("dev", "objf")),
        ("learning rate", short, ("learning_rate",)),
        ("gradient norm", short, ("train", "grad_norm")),
        ("time", duration, ("train", "seconds")),
        ("frames/s", amount, ("train", "frames_per_second")),
        ("loss share", share, ("train", "loss_share")),
        ("data share", share, ("train", "data_share")),
        ("excluded", lambda value: amount(int(value or 0)), ("train", "excluded")),
        ("batches skipped", lambda value: amount(int(value or 0)), ("train", "skipped_batches")),
    )
    rows = [
        [Cell(str(epoch), epoch), *(cell(number(event, *path)) for _, cell, path in columns)]
        for epoch, event in (found.training.epochs.items() if found.training else ())
    ]
    caption = (
        "Epochs; objf, numerator and denominator in nats per output frame, share of the time that the loss takes, "
        "and that is spent waiting for data"
    )
    return table(caption, ("epoch", *(name for name, _, _ in columns)), rows)


def _excluded(found: Findings) -> Table:
    if found.training is None:
        return table("", (), [])
    rows = [[name, reason] for name, reason in found.training.excluded]
    named = {name for name, _ in found.training.excluded}
    late = [name for name in found.training.excluded_in_epochs if name not in named]
    rows += [[name, "no path, or a score that is no number"] for name in late]
    caption = f"Utterances left out of the training: {len(rows)}"
    caption += f", the first {MOST_EXCLUDED}" if len(rows) > MOST_EXCLUDED else ""
    return table(caption, ("utterance", "reason"), rows[:MOST_EXCLUDED])


def _counts(counts: ErrorCounts) -> list[Cell]:
    parts = (counts.num_words, counts.errors, counts.substitutions, counts.insertions, counts.deletions)
    return [*(amount(part) for part in parts), per_cent(100.0 * error_rate(counts))]


def _errors(found: Findings) -> dict[str, Table]:
    """Word errors by speaker, by length of the transcript and by utterance, and the most frequent ones."""

    def row(name: str | Cell, counts: ErrorCounts) -> Row:
        return [name, amount(counts.num_utterances), *_counts(counts)]

    speakers = "Word errors by speaker", ("speaker", "utterances", *_COUNTS)
    if found.wer is None:  # only the totals may be known
        return {"speakers": table(*speakers, [row("all", found.total)] if found.total else [])}
    rows: list[Row] = [row(name, counts) for name, counts in found.wer.by_speaker.items()]
    tables = {"speakers": table(*speakers, rows, row("all", found.wer.total))}

    # By number of words in the transcript, in classes that double: 0, 1, 2-3, 4-7, ...
    classes: dict[int, ErrorCounts] = {}
    pairs: Counter[tuple[str, str]] = Counter()
    for one in found.wer.utterances:
        size = one.counts.num_words.bit_length()
        classes[size] = classes.get(size, ErrorCounts()) + one.counts
        pairs.update(pair for pair in one.alignment if pair[0] != pair[1])
    rows = []
    for size, counts in sorted(classes.items()):
        low, high = (0, 0) if size == 0 else (1 << (size - 1), (1 << size) - 1)
        label = str(low) if low == high else f"{low} to {high}"
        rows.append(row(Cell(label, low), counts))
    tables["lengths"] = table(
        "Word errors by length of the transcript", ("words said", "utterances", *_COUNTS), rows
    )

    most = sorted(pairs.items(), key=lambda item: (-item[1], item[0]))[:MOST_CONFUSIONS]
    rows = [
        [error_kind(*pair), *(NOTHING if word == EPSILON else word for word in pair), amount(times)]
        for pair, times in most
    ]
    tables["confusions"] = table("The most frequent errors", ("kind", "said", "recognised", "times"), rows)

    wrong = [one for one in worst_first(found.wer) if one.counts.errors]
    caption = f"Utterances with errors: {len(wrong)} of {len(found.wer.utterances)}"
    caption += f", the worst {MOST_UTTERANCES}" if len(wrong) > MOST_UTTERANCES else ""
    rows = [[one.id, one.speaker, *_counts(one.counts)] for one in wrong[:MOST_UTTERANCES]]
    tables["utterances"] = table(caption, ("utterance", "speaker", *_COUNTS), rows)
    return tables


def _graphs(found: Findings) -> Table:
    """A column for each graph: there are few of them, and many facts."""
    facts: tuple[tuple[str, Callable[[GraphFacts], Cell]], ...] = (
        ("states", lambda one: amount(one.num_states)),
        ("arcs", lambda one: amount(one.num_arcs)),
        ("final states", lambda one: amount(one.num_finals)),
        ("labels", lambda one: amount(one.num_pdfs)),
        ("self-loops", lambda one: amount(one.num_self_loops)),
        ("states on no path", lambda one: amount(one.num_states - one.num_useful_states)),
        (
            "deterministic",
            lambda one: Cell("yes" if one.is_deterministic else "no", float(one.is_deterministic)),
        ),
        ("shortest path, frames", lambda one: amount(one.min_frames)),
        ("sums of states", lambda one: Cell(one.sums, one.largest_sum)),
        ("arc-evaluations per frame", lambda one: amount(one.arcs_per_frame)),
        ("compiled", lambda one: memory(one.table_bytes)),
    )
    graphs = found.graphs
    rows: list[Row] = [[head, *(cell(one.facts) for one in graphs)] for head, cell in facts] if graphs else []
    if graphs:
        rows.append(["file", *(memory(one.num_bytes) for one in graphs)])
    return table("Graphs", ("graph", *(one.name for one in graphs)), rows)


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
