"""The tables of a report, made of what was found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fsachain.decode.wer import EPSILON, ErrorCounts
from fsachain.report import tables
from fsachain.report.collect import Findings
from fsachain.report.scores import confusions, error_rate, worst_first
from fsachain.report.tables import Cell, Row, Table, table

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
            tables.amount(one.objf, 4),
            tables.amount(one.num, 4),
            tables.amount(one.den, 4),
            tables.amount(one.dev_objf, 4),
            tables.short(one.learning_rate),
            tables.short(one.grad_norm),
            tables.duration(one.seconds),
            tables.amount(one.frames_per_second),
            tables.share(one.loss_share),
            tables.share(one.data_share),
            tables.amount(one.excluded),
            tables.amount(one.skipped_batches),
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
    return [*(tables.amount(part) for part in parts), tables.per_cent(100.0 * error_rate(counts))]


def _speakers(found: Findings) -> Table:
    """One row for each speaker; where only the totals are known, a row for all."""
    by_speaker = found.wer.by_speaker if found.wer else {"all": found.total} if found.total else {}
    rows: list[Row] = [
        [name, tables.amount(one.num_utterances), *_counts(one)] for name, one in by_speaker.items()
    ]
    total: Row = (
        ["all", tables.amount(found.total.num_utterances), *_counts(found.total)]
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
        rows.append([Cell(label, low), tables.amount(counts.num_utterances), *_counts(counts)])
    return table("Word errors by length of the transcript", ("words said", "utterances", *_COUNTS), rows)


def _confusions(found: Findings) -> Table:
    most = confusions(found.wer, MOST_CONFUSIONS) if found.wer else ()
    rows: list[Row] = [
        [one.kind, _word(one.reference), _word(one.hypothesis), tables.amount(one.count)] for one in most
    ]
    return table("The most frequent errors", ("kind", "said", "recognised", "times"), rows)


def _word(word: str) -> str:
    return tables.NOTHING if word == EPSILON else word


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
                *(tables.amount(value) for value in numbers),
                tables.amount(facts.num_states - facts.num_useful_states),
                Cell("yes" if facts.is_deterministic else "no"),
                tables.amount(facts.min_frames),
                Cell(f"{facts.least_sum:.4g} to {facts.largest_sum:.4g}", facts.largest_sum),
                tables.amount(facts.arcs_per_frame),
                tables.memory(facts.table_bytes),
                tables.memory(graph.num_bytes),
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
            tables.amount(size.utterances),
            tables.amount(size.words),
            tables.amount(size.distinct_words),
            tables.amount(size.speakers),
            tables.duration(size.seconds),
        ]
        for size in found.sizes
    ]
    return table("Data sets", ("set", "utterances", "words", "different words", "speakers", "speech"), rows)


def _stages(found: Findings) -> Table:
    rows: list[Row] = [
        [
            one.name,
            one.state + (f": {one.error}" if one.error else ""),
            tables.moment(one.started),
            tables.duration(one.seconds),
            tables.duration(one.cpu_seconds),
            tables.memory(one.peak_rss),
            tables.memory(one.peak_device),
        ]
        for one in (found.stages.stages if found.stages else ())
    ]
    columns = ("stage", "state", "began", "time", "processor time", "memory, peak", "GPU memory, peak")
    together = tables.duration(found.stages.seconds if found.stages else 0.0).text
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
