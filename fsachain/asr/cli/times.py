"""Two alignments of the same recordings: compare-times."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fsachain.asr.cli.options import OUT, PATH, command, option
from fsachain.asr.decode import compare
from fsachain.files import write_text


@command(reference=PATH, hypothesis=PATH)
def compare_times(
    reference: Path,
    hypothesis: Path,
    worst: int = option(
        click.IntRange(min=0), "Differences that are shown for each tier.", default=compare.WORST
    ),
    out: Path | None = option(OUT, "File for the same numbers as JSON, in seconds."),
) -> None:
    """Compare the times of two alignments of the same recordings.

    In: REFERENCE and HYPOTHESIS, each a TextGrid, a CTM file, or a folder of TextGrids in any tree or of CTM files. Words
    and phones are paired in their order, by label; if labels differ, by the alignment with the fewest edits.
    Out: for each tier that both have, how far boundaries are apart (mean, median, bias of starts and ends, share within 10,
    20 and 50 ms), how many entries were matched, and the largest differences with recording and time, printed.
    Example: fsachain compare-times by_hand aligned
    """
    report = compare.compare_times(reference, hypothesis)
    if out is not None:
        write_text(out, json.dumps(report.to_dict(worst), indent=1, ensure_ascii=False) + "\n")
    click.echo(report.to_text(worst), nl=False)
