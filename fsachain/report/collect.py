"""Everything that a report says, gathered from whatever files are there.

A file that is absent, cut short or damaged costs its own part of the report only: the reason stands in `Findings.notes`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from fsachain.data.kaldi_dir import DataDir
from fsachain.decode.wer import ErrorCounts, WerReport
from fsachain.errors import DataError, FsachainError
from fsachain.fsa import Fsa
from fsachain.graph.algorithms import GraphFacts, graph_facts
from fsachain.graph.numerator import load_numerators
from fsachain.report.events import EventLog, Layout, number, read_events, strings, text
from fsachain.report.media import Picture, drawing, picture_file, seconds_of
from fsachain.report.scores import Tuned, read_table, read_totals, read_tuned, score_decoding

# How large data sets and graphs are.

MOST_RECORDINGS = 20_000
MOST_NUMERATOR_BYTES = 20_000_000


@dataclass(frozen=True)
class DataSize:
    """One data directory; `seconds` is None where it is not known of every utterance."""

    name: str
    utterances: int
    words: int
    distinct_words: int
    speakers: int
    seconds: float | None


@dataclass(frozen=True)
class GraphSize:
    """One graph file and what it is like."""

    name: str
    num_bytes: int
    facts: GraphFacts


def data_size(name: str, data: DataDir) -> DataSize:
    """Sizes of a data directory; lengths are read from the headers of recordings, of at most 20,000."""
    words = [word for utterance in data for word in utterance.words]
    speakers = {utterance.speaker for utterance in data}
    return DataSize(name, len(data), len(words), len(set(words)), len(speakers), _seconds(data))


def graph_size(path: Path) -> GraphSize:
    """Facts about one OpenFst file.

    Raises:
        GraphError: it is none, or is cut short.
    """
    return GraphSize(path.name, path.stat().st_size, graph_facts(Fsa.read(path)))


def _seconds(data: DataDir) -> float | None:
    if len(data) > MOST_RECORDINGS:
        return None
    try:
        return sum(seconds_of(utterance) for utterance in data)
    except DataError:  # a command, a feature matrix, or a recording that is not there
        return None


def numerator_size(path: Path) -> str:
    """Number and size of the numerators in one file, in a line; of a file beyond 20 MB the bytes alone.

    Raises:
        GraphError: the file holds none, or is cut short.
    """
    num_bytes = path.stat().st_size
    if num_bytes > MOST_NUMERATOR_BYTES:
        return f"{num_bytes / 1e6:,.0f} MB of numerators"
    arcs = [numerator.fsa.num_arcs for numerator in load_numerators(path).values()]
    return f"{len(arcs):,} numerators, {sum(arcs):,} arcs, at most {max(arcs, default=0):,} in one"


# What ran, with which versions, and what each stage took: from `stages.jsonl`.

_STATES = {"start": "begun", "end": "done", "failed": "failed", "stopped": "stopped"}


@dataclass(frozen=True)
class Stage:
    """The newest attempt at one stage.

    Attributes:
        name: of the stage.
        state: "done", "failed", "stopped", "begun" (it runs, or was killed) or "to come".
        started: Unix time; None for a stage to come.
        seconds: wall time.
        cpu_seconds: of all threads and finished child processes.
        peak_rss: largest memory of the process in bytes.
        peak_device: largest allocation on the GPU in bytes, where one was used.
        error: why it failed.
    """

    name: str
    state: str
    started: float | None = None
    seconds: float | None = None
    cpu_seconds: float | None = None
    peak_rss: float | None = None
    peak_device: float | None = None
    error: str = ""


@dataclass(frozen=True)
class Run:
    """One call of the recipe: its command line, versions by package, configuration and what else it noted."""

    time: float | None
    command: tuple[str, ...]
    stages: tuple[str, ...]
    versions: dict[str, str]
    config: dict[str, Any]
    facts: dict[str, str]


@dataclass(frozen=True)
class StageLog:
    """The runs in order, and the stages in the order in which they belong."""

    runs: tuple[Run, ...]
    stages: tuple[Stage, ...]
    num_unreadable: int

    @property
    def seconds(self) -> float:
        """Wall time of the newest attempt at every stage."""
        return sum(stage.seconds or 0.0 for stage in self.stages)

    @property
    def trained_by(self) -> Run | None:
        """The newest run that was to train; the newest of all where none was."""
        runs = [run for run in self.runs if "train" in run.stages] or self.runs
        return runs[-1] if runs else None


def read_stages(path: Path) -> StageLog:
    """Read `stages.jsonl`, whole or cut short.

    Raises:
        DataError: there is no such file, or it cannot be read.
    """
    log = read_events(path)
    runs = tuple(_run(event) for event in log.of("run"))
    order = list(dict.fromkeys([*(name for run in runs for name in run.stages), *_begun(log)]))
    found = {name: Stage(name, "to come") for name in order}
    for event in log.events:
        name = text(event, "stage")
        if name and text(event, "event") in _STATES:
            found[name] = _stage(event, found.get(name))
    return StageLog(runs, tuple(found.values()), log.num_unreadable)


def _begun(log: EventLog) -> list[str]:
    return [text(event, "stage") for event in log.events if text(event, "stage")]


def _stage(event: dict[str, Any], before: Stage | None) -> Stage:
    kind, name = event["event"], text(event, "stage")
    if kind == "start" or before is None:
        started = number(event, "time")
    else:
        started = before.started
    return Stage(
        name,
        _STATES[kind],
        started,
        number(event, "seconds"),
        number(event, "cpu_seconds"),
        number(event, "peak_rss"),
        number(event, "peak_device"),
        text(event, "error"),
    )


def _run(event: dict[str, Any]) -> Run:
    versions, config = event.get("versions"), event.get("config")
    known = {"event", "time", "command", "stages", "versions", "config"}
    facts = {name: value for name, value in event.items() if name not in known and value is not None}
    return Run(
        number(event, "time"),
        strings(event.get("command")),
        strings(event.get("stages")),
        {str(k): str(v) for k, v in versions.items()} if isinstance(versions, dict) else {},
        config if isinstance(config, dict) else {},
        {str(name): str(value) for name, value in facts.items()},
    )


# What a training log says: epochs, how far it is, which utterances took no part.

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Epoch:
    """One epoch; None for what the log does not say. objf, num, den in nats per output frame."""

    number: int
    objf: float | None
    num: float | None
    den: float | None
    dev_objf: float | None
    learning_rate: float | None
    grad_norm: float | None
    seconds: float | None
    frames_per_second: float | None
    loss_share: float | None
    data_share: float | None
    excluded: int
    skipped_batches: int


@dataclass(frozen=True)
class Training:
    """A training as its log tells it.

    Attributes:
        log: the events, for the curves.
        epochs: finished ones by number; of an epoch that was trained twice, after a crash, the later.
        num_epochs: how many there are to be; None where the log does not say.
        utterances, batches, parameters: sizes; None where the log does not say.
        config: the options of section `train`.
        excluded: (utterance, reason) of those that take no part.
        excluded_in_epochs: names that the loss left out.
        skipped: names of each batch that moved no parameter.
        finished: the log has an end.
        resumed: how often the training went on after it had been broken off.
        final_dev_objf: of the final model, nats per output frame.
        last_time: Unix time of the last event.
    """

    log: EventLog
    epochs: tuple[Epoch, ...]
    num_epochs: int | None
    utterances: int | None
    batches: int | None
    parameters: int | None
    config: dict[str, Any]
    excluded: tuple[tuple[str, str], ...]
    excluded_in_epochs: tuple[str, ...]
    skipped: tuple[tuple[str, ...], ...]
    finished: bool
    resumed: int
    final_dev_objf: float | None
    last_time: float | None

    @property
    def state(self) -> str:
        """How far it is, in a few words."""
        if self.finished:
            return "finished"
        of = f" of {self.num_epochs}" if self.num_epochs else ""
        return f"{len(self.epochs)}{of} epochs done"

    @property
    def seconds(self) -> float:
        """Wall time of the finished epochs."""
        return sum(epoch.seconds or 0.0 for epoch in self.epochs)

    @property
    def remaining_seconds(self) -> float | None:
        """What the epochs to come may take, if they are as long as the mean of those behind."""
        if self.finished or not self.epochs or not self.num_epochs:
            return None
        return max(0, self.num_epochs - len(self.epochs)) * self.seconds / len(self.epochs)


def read_training(path: Path) -> Training:
    """Read `train.jsonl`, finished or not.

    Raises:
        DataError: there is no such file, or it cannot be read.
    """
    log = read_events(path)
    epochs: dict[int, Epoch] = {}
    for event in log.of("epoch"):
        epoch = _epoch(event)
        if epoch is not None:
            epochs[epoch.number] = epoch
    starts = log.of("start")
    start = starts[-1] if starts else {}
    ends = log.of("end")
    config = start.get("config") if isinstance(start.get("config"), dict) else {}
    last = log.events[-1] if log.events else {}
    return Training(
        log=log,
        epochs=tuple(epochs[key] for key in sorted(epochs)),
        num_epochs=_whole(config, "num_epochs"),
        utterances=_whole(start, "utterances"),
        batches=_whole(start, "batches"),
        parameters=_whole(start, "parameters"),
        config=dict(config or {}),
        excluded=_distinct(_excluded(log.events)),
        excluded_in_epochs=_distinct(
            name for event in log.of("epoch") for name in strings(event.get("excluded"))
        ),
        skipped=tuple(strings(event.get("utterances")) for event in log.of("skipped")),
        finished=bool(ends) and last.get("event") == "end",
        resumed=len(log.of("resume")),
        final_dev_objf=number(ends[-1], "dev", "objf") if ends else None,
        last_time=number(last, "time"),
    )


def _epoch(event: dict[str, Any]) -> Epoch | None:
    which = _whole(event, "epoch")
    if which is None:
        return None
    train = event.get("train")
    figures = {
        name: number(train, name)
        for name in (
            "objf",
            "num",
            "den",
            "grad_norm",
            "seconds",
            "frames_per_second",
            "loss_share",
            "data_share",
        )
    }
    return Epoch(
        number=which,
        dev_objf=number(event, "dev", "objf"),
        learning_rate=number(event, "learning_rate"),
        excluded=int(number(train, "excluded") or 0),
        skipped_batches=int(number(train, "skipped_batches") or 0),
        **figures,
    )


def _excluded(events: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """(utterance, reason) from the last start on; long lists go on in events of their own."""
    kinds = [event.get("event") for event in events]
    begin = len(kinds) - 1 - kinds[::-1].index("start") if "start" in kinds else len(kinds)
    for event in events[begin:]:
        entries = event.get("excluded") if event.get("event") in ("start", "left_out") else None
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict):
                yield text(entry, "id"), text(entry, "reason")


def _distinct(values: Iterable[_Value]) -> tuple[_Value, ...]:
    return tuple(dict.fromkeys(values))


def _whole(table: Any, name: str) -> int | None:
    value = number(table, name)
    return None if value is None else int(value)


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
