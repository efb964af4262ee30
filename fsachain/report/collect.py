"""Everything that a report says, gathered from whatever files are there.

A file that is absent, cut short or damaged costs its own part of the report only: the reason stands in `Findings.notes`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from fsachain.data.kaldi_dir import DataDir
from fsachain.decode.wer import ErrorCounts, WerReport
from fsachain.errors import FsachainError
from fsachain.report.layout import Layout
from fsachain.report.media import Picture, drawing, picture_file
from fsachain.report.scores import Tuned, read_table, read_totals, read_tuned, score_decoding
from fsachain.report.sizes import DataSize, GraphSize, data_size, graph_size, numerator_size
from fsachain.report.stages import StageLog, read_stages
from fsachain.report.training import Training, read_training

MOST_PICTURES = 20
# What reading a damaged file or drawing strange numbers may end in. A report without that part is worth more than none.
FAULTS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)

P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class Findings:
    """What was found; None and empty for what is not there.

    Attributes:
        layout: where it was looked for.
        made: Unix time of the report.
        training: epochs and what else the training's log tells.
        stages: what ran and what it took.
        data: the data directory that was decoded.
        sizes: of all data directories.
        graphs: of the graph folder.
        numerators: of the training set, in one line.
        wer: the decoding, scored.
        total: its counts; from wer.json where it cannot be scored again.
        tuned: what was chosen on the development set.
        config: the configuration, by section.
        curves, error_picture: figures, once they are drawn.
        pictures: that lay in the folder `pictures`.
        notes: by section, what is not there yet or cannot be read.
    """

    layout: Layout
    made: float = field(default_factory=time.time)
    training: Training | None = None
    stages: StageLog | None = None
    data: DataDir | None = None
    sizes: list[DataSize] = field(default_factory=list)
    graphs: list[GraphSize] = field(default_factory=list)
    numerators: str = ""
    wer: WerReport | None = None
    total: ErrorCounts | None = None
    tuned: Tuned | None = None
    config: dict[str, Any] = field(default_factory=dict)
    curves: Picture | None = None
    error_picture: Picture | None = None
    pictures: list[Picture] = field(default_factory=list)
    notes: dict[str, list[str]] = field(default_factory=dict)

    def note(self, section: str, text: str) -> None:
        """Add a line to what the section lacks; the same one once."""
        lines = self.notes.setdefault(section, [])
        if text not in lines:
            lines.append(text)

    def attempt(self, section: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """What the function returns; where it fails, None, and the reason becomes a note."""
        try:
            return function(*args, **kwargs)
        except (FsachainError, OSError) as error:
            self.note(section, " ".join(str(error).split()))
        except FAULTS as error:
            self.note(
                section, f"This part cannot be made: {type(error).__name__}: {' '.join(str(error).split())}"
            )
        return None

    def expect(self, section: str, path: Path, maker: str) -> bool:
        """Whether the file is there; where not, a note that says who makes it."""
        if path.exists():
            return True
        self.note(section, f"Not there yet: {self.shown(path)}. {maker} writes it.")
        return False

    def shown(self, path: Path) -> str:
        """The path as the report names it: below the experiment where it lies there."""
        return str(path.relative_to(self.layout.exp)) if path.is_relative_to(self.layout.exp) else str(path)

    @property
    def sample_rate(self) -> int | None:
        """Of the features, as the configuration has it."""
        features = self.config.get("features")
        rate = features.get("sample_rate") if isinstance(features, dict) else None
        return rate if isinstance(rate, int) and rate > 0 else None


def collect(layout: Layout) -> Findings:
    """Read everything that is there."""
    found = Findings(layout)
    _read_stages(found)
    _read_training(found)
    _read_data(found)
    _read_graphs(found)
    _read_scores(found)
    for path in _picture_files(found):
        picture = found.attempt("pictures", picture_file, path)
        found.pictures += [] if picture is None else [picture]
    return found


def draw(found: Findings) -> None:
    """Draw the curves of the training and the error rates, where there are any."""
    if found.training is not None and found.training.epochs:
        found.curves = found.attempt("training", _draw_curves, found.training)
    if found.wer is not None:
        found.error_picture = found.attempt("errors", _draw_errors, found.wer)


def _read_stages(found: Findings) -> None:
    path = found.layout.stage_log
    if not found.expect("stages", path, "A recipe"):
        return
    found.stages = found.attempt("stages", read_stages, path)
    if found.stages is None:
        return
    if found.stages.num_unreadable:
        found.note("stages", f"{path.name}: {found.stages.num_unreadable} lines cannot be read.")
    run = found.stages.trained_by
    found.config = {} if run is None else run.config


def _read_training(found: Findings) -> None:
    path = found.layout.model / "train.jsonl"
    if found.expect("training", path, "Training"):
        found.training = found.attempt("training", read_training, path)
    if found.training is None:
        return
    if found.training.log.num_unreadable:
        found.note(
            "training", f"{found.shown(path)}: {found.training.log.num_unreadable} lines cannot be read."
        )
    if not found.config:
        options = found.layout.model / "experiment.json"
        known = found.attempt("run", read_table, options) if options.exists() else None
        found.config = {
            **(known or {}),
            **({"train": found.training.config} if found.training.config else {}),
        }
    if not found.training.epochs:
        found.note("training", "Not there yet: an epoch that is finished.")


def _draw_curves(training: Training) -> Picture:
    from fsachain.plot import plot_training

    last = training.epochs[-1]
    alt = f"Curves over {len(training.epochs)} epochs; the last objective is {last.objf}. The table has the numbers."
    return drawing(plot_training(list(training.log.events)), alt)


def _read_data(found: Findings) -> None:
    for name, folder in found.layout.data.items():
        if not found.expect("data", folder, "The preparation"):
            continue
        # Commands in wav.scp are read here and not run.
        read = found.attempt("data", DataDir.check, folder, allow_commands=True)
        if read is None:
            continue
        data, _ = read
        found.sizes.append(data_size(name, data))
        if name == "test":
            found.data = data


def _read_graphs(found: Findings) -> None:
    folder = found.layout.graphs
    if not found.expect("graphs", folder, "The graph stage"):
        return
    for path in sorted(folder.glob("*.fst")):
        size = found.attempt("graphs", graph_size, path)
        found.graphs += [] if size is None else [size]
    numerators = folder / "train.npz"
    if numerators.exists():
        found.numerators = found.attempt("graphs", numerator_size, numerators) or ""


def _read_scores(found: Findings) -> None:
    folder = found.layout.decoded
    if (folder / "tuning.json").exists():
        found.tuned = found.attempt("errors", read_tuned, folder / "tuning.json")
    hypotheses = folder / "hyp.txt"
    if not found.expect("errors", hypotheses, "Decoding"):
        return
    if found.data is not None:
        found.wer = found.attempt("errors", score_decoding, found.data, hypotheses)
    if found.wer is not None:
        found.total = found.wer.total
    elif (folder / "wer.json").exists():
        found.total = found.attempt("errors", read_totals, folder / "wer.json")


def _draw_errors(report: WerReport) -> Picture:
    from fsachain.plot import plot_wer

    alt = f"Word error rates by speaker and by length; over all {report.total}. The table has the numbers."
    return drawing(plot_wer(report), alt)


def _picture_files(found: Findings) -> list[Path]:
    folder = found.layout.pictures
    files = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    if len(files) > MOST_PICTURES:
        found.note("pictures", f"{len(files) - MOST_PICTURES} more pictures are not shown.")
    return files[:MOST_PICTURES]
