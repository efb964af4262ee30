"""From a folder to a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fsachain.data.kaldi_dir import Utterance
from fsachain.errors import ConfigError
from fsachain.files import write_text
from fsachain.report.collect import collect, draw
from fsachain.report.heard import Look, Seen, add_lattices, add_recordings, add_times, choose
from fsachain.report.layout import Layout
from fsachain.report.page import render


@dataclass(frozen=True)
class ReportOptions:
    """How much of the utterances a report shows; its size is bounded by these.

    Attributes:
        num_utterances: of the worst and of the best, so many each, with their recordings.
        num_pictured: of these so many each with a spectrogram and a lattice.
        allow_commands: run the shell commands in wav.scp that make recordings.
    """

    num_utterances: int = 10
    num_pictured: int = 3
    allow_commands: bool = False

    def __post_init__(self) -> None:
        for name in ("num_utterances", "num_pictured"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}: {getattr(self, name)} is negative")


def look_at_nothing(utterances: Sequence[Utterance]) -> tuple[Mapping[str, Seen], Mapping[str, str]]:
    """No utterance has a lattice: there is no model yet."""
    return {}, {}


def write_report(
    layout: Layout, out: Path, options: ReportOptions | None = None, look: Look = look_at_nothing
) -> None:
    """Write the report of an experiment, however far it is, as one HTML file that makes no request.

    What is not there yet, or is damaged, is said in its section. The file appears whole or not at all.

    Args:
        layout: where the experiment's files are; see `Layout.find`.
        out: the HTML file; its folder is made.
        options: how much is shown.
        look: occupancies of the utterances it is given, by id, and for those that have none the reason.

    Raises:
        MissingExtraError: the extra `report` is not installed.
    """
    chosen = options or ReportOptions()
    found = collect(layout)
    draw(found)
    heard = choose(found, chosen.num_utterances)
    every = [one for group in heard.values() for one in group]
    pictured = {one.id for group in heard.values() for one in group[: chosen.num_pictured]}
    if every:
        add_times(found, every)
        add_recordings(found, every, pictured, allow_commands=chosen.allow_commands)
        add_lattices(found, every, pictured, look)
    page = render(found, heard)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, page)
