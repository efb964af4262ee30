"""Everything that a report says, gathered from whatever files are there.

A file that is absent, cut short or damaged costs its own part of the report only: the reason stands in `Findings.notes`.
"""

from __future__ import annotations

import base64
import io
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from fsachain.asr.data.audio import count_samples, read_audio, recorded_rate
from fsachain.asr.data.kaldi_dir import DataDir, Utterance, is_command
from fsachain.asr.decode.ctm import CtmEntry, read_ctm
from fsachain.asr.decode.wer import ErrorCounts, UtteranceScore, WerReport, read_text, score
from fsachain.asr.plot import (
    TrellisPair,
    figure_svg,
    plot_alignment,
    plot_training,
    plot_trellis,
    plot_wer,
    spectrogram,
)
from fsachain.asr.plot.canvas import rendered
from fsachain.asr.train.log import LONGEST_LINE, event_of, number
from fsachain.errors import DataError, FsachainError, counted, require
from fsachain.files import binary_lines, parse_json
from fsachain.fsa import Fsa
from fsachain.graph.algorithms import GraphFacts, graph_facts
from fsachain.graph.lexicon import Lexicon
from fsachain.graph.numerator import load_numerators

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STAGE_LOG = "stages.jsonl"
RUN = "run.json"  # of `fsachain run`: its inputs, among others
MOST_RECORDINGS = 20_000  # whose headers are read for the length of a data set
MOST_NUMERATOR_BYTES = 20_000_000
MOST_PICTURES = 20
# What reading a damaged file or drawing strange numbers may raise; the report is then written without that part.
FAULTS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)

P = ParamSpec("P")
T = TypeVar("T")
Event = Mapping[str, Any]


# Logs of one JSON object per line, read while they are written and after a crash.


@dataclass(frozen=True)
class EventLog:
    """`num_unreadable` counts lines that are no JSON object: cut short, or damaged."""

    events: tuple[dict[str, Any], ...]
    num_unreadable: int = 0

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event.get("event") == kind]


def read_events(path: Path) -> EventLog:
    """Read a log; lines that are no JSON object are counted and passed over. `fsachain.asr.train.log.read_log` is strict."""
    lines = [event_of(line) for _, line in binary_lines(path, longest=LONGEST_LINE) if line.strip()]
    events = tuple(event for event in lines if event is not None)
    return EventLog(events, len(lines) - len(events))


def whole(table: Any, *path: str) -> int | None:
    value = number(table, *path)
    return None if value is None else int(value)


def entry(table: Event, name: str, kind: type[T]) -> T:
    """The entry of this kind, an empty one where there is none."""
    value = table.get(name)
    return value if isinstance(value, kind) else kind()


def strings(table: Event, name: str) -> tuple[str, ...]:
    return tuple(item for item in entry(table, name, list) if isinstance(item, str))


def read_table(path: Path) -> dict[str, Any]:
    try:
        table = parse_json(path.read_bytes(), str(path))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    if not isinstance(table, dict):
        raise DataError(f"{path}: expected a table")
    return table


# Places of the files of an experiment.


@dataclass(frozen=True)
class Layout:
    """The files that a report is made of; none of them need exist yet."""

    exp: Path
    stage_log: Path  # the model's own where a command trained it
    model: Path  # train.jsonl, model.safetensors, experiment.json
    decoded: Path  # hyp.txt, wer.json, tuning.json
    aligned: Path  # words.ctm, phones.ctm
    lang: Path  # lexicon.json, tree.npz
    graphs: Path  # den.fst, normalization.fst, phone_lm.fst, train.npz
    data: dict[str, Path]  # data directories by name; `test` is the one that was decoded
    pictures: Path  # figures that somebody drew, to be shown too

    @classmethod
    def find(cls, exp: Path, *, base: Path | None = None, test: Path | None = None) -> Layout:
        """The files of an experiment, as a recipe leaves them or as in docs/training.md.

        `base` has data, lang and graphs: by default the folder of the first pass, where `exp` is a second one, else `exp`.
        `test` is the data directory that was decoded: by default that of `fsachain run`, or `data/test` or `test` of `base`.
        """
        if not exp.is_dir():
            raise DataError(f"{exp}: no such folder; expected that of an experiment")

        def either(first: Path, second: Path) -> Path:
            return second if second.exists() and not first.exists() else first

        if base is None and (exp / STAGE_LOG).is_file():
            runs = read_events(exp / STAGE_LOG).of("run")
            firsts = (entry(run, "first", str) for run in reversed(runs))
            base = next((Path(first) for first in firsts if first), None)
        base = base or exp
        data = {name: either(base / "data" / name, base / name) for name in ("train", "dev", "test")}
        with suppress(DataError, *FAULTS):
            inputs = read_table(exp / RUN)["inputs"]
            data = {name: Path(inputs[name]) for name in data}
        return cls(
            exp=exp,
            stage_log=either(exp / STAGE_LOG, exp / "model" / STAGE_LOG),
            model=exp / "model",
            decoded=either(exp / "decode", exp / "decoded"),
            aligned=either(exp / "align", exp / "aligned"),
            lang=base / "lang",
            graphs=base / "graphs",
            data=data if test is None else {**data, "test": test},
            pictures=exp / "pictures",
        )


# The log of the stages, `stages.jsonl`.

_STATES = {"start": "begun", "end": "done", "failed": "failed", "stopped": "stopped"}


@dataclass(frozen=True)
class Stage:
    """The newest attempt at one stage: "done", "failed", "stopped", "begun" (it runs, or was killed) or "to come".

    Times in seconds, `started` since 1970; memory in bytes.
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
    """One call of the recipe; `facts` is whatever else it noted."""

    time: float | None
    command: tuple[str, ...]
    stages: tuple[str, ...]
    versions: dict[str, str]
    config: dict[str, Any]
    facts: dict[str, str]


@dataclass(frozen=True)
class StageLog:
    """Runs in order of time, stages in order of the recipe."""

    runs: tuple[Run, ...]
    stages: tuple[Stage, ...]
    num_unreadable: int

    @property
    def seconds(self) -> float:
        """Wall time of the newest attempt at every stage."""
        return sum(stage.seconds or 0.0 for stage in self.stages)

    @property
    def trained_by(self) -> Run | None:
        """The newest run whose stages include training; the newest of all where none does."""
        runs = [run for run in self.runs if "train" in run.stages] or self.runs
        return runs[-1] if runs else None


def read_stages(path: Path) -> StageLog:
    log = read_events(path)
    known = {"event", "time", "command", "stages", "versions", "config"}
    runs = []
    for event in log.of("run"):
        said = strings(event, "command"), strings(event, "stages")
        versions = {name: str(value) for name, value in entry(event, "versions", dict).items()}
        facts = {name: str(value) for name, value in event.items() if name not in known and value is not None}
        runs.append(Run(number(event, "time"), *said, versions, entry(event, "config", dict), facts))
    begun = [entry(event, "stage", str) for event in log.events]
    names = [*(name for run in runs for name in run.stages), *begun]
    stages = {name: Stage(name, "to come") for name in names if name}
    for name, event in zip(begun, log.events, strict=True):
        kind = event.get("event")
        if name and kind in _STATES:
            figures = {
                key: number(event, key) for key in ("seconds", "cpu_seconds", "peak_rss", "peak_device")
            }
            started = number(event, "time") if kind == "start" else stages[name].started
            stages[name] = Stage(name, _STATES[kind], started, **figures, error=entry(event, "error", str))
    return StageLog(tuple(runs), tuple(stages.values()), log.num_unreadable)


# The training log, `train.jsonl`.


class Training:
    """A training as its log tells it; None for what the log does not say."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        starts, ends, epochs = log.of("start"), log.of("end"), log.of("epoch")
        start = starts[-1] if starts else {}
        last = log.events[-1] if log.events else {}
        self.config = entry(start, "config", dict)  # the options of section `train`
        self.num_epochs = whole(self.config, "num_epochs")
        self.utterances, self.batches = whole(start, "utterances"), whole(start, "batches")
        self.parameters = whole(start, "parameters")
        # Finished epochs by number; of one that was trained twice, after a crash, the later.
        by_number: dict[int, Event] = {n: one for one in epochs if (n := whole(one, "epoch")) is not None}
        self.epochs = dict(sorted(by_number.items()))
        excluded = []  # (utterance, why it takes no part) since the last start; long lists go on in "left_out"
        since = max((n for n, event in enumerate(log.events) if event is start), default=len(log.events))
        for event in log.events[since:]:
            listed = entry(event, "excluded", list) if event.get("event") in ("start", "left_out") else []
            for one in listed:
                if isinstance(one, dict):
                    excluded.append((entry(one, "id", str), entry(one, "reason", str)))
        self.excluded = tuple(dict.fromkeys(excluded))
        # The utterances that the loss left out, and those of each batch that moved no parameter.
        self.excluded_in_epochs = tuple(
            dict.fromkeys(name for one in epochs for name in strings(one, "excluded"))
        )
        self.skipped = tuple(strings(event, "utterances") for event in log.of("skipped"))
        self.finished = bool(ends) and last.get("event") == "end"
        self.resumed = len(log.of("resume"))  # how often it went on after it had been broken off
        self.final_dev_objf = number(ends[-1], "dev", "objf") if ends else None  # nats per output frame
        self.last_time = number(last, "time")  # Unix time of the last event

    @property
    def state(self) -> str:
        if self.finished:
            return "finished"
        of = f" of {self.num_epochs}" if self.num_epochs else ""
        return f"{len(self.epochs)}{of} {'epoch' if self.num_epochs == 1 else 'epochs'} done"

    @property
    def remaining_seconds(self) -> float | None:
        """Estimated from the mean duration of the finished epochs."""
        if self.finished or not self.epochs or not self.num_epochs:
            return None
        seconds = sum(number(event, "train", "seconds") or 0.0 for event in self.epochs.values())
        return max(0, self.num_epochs - len(self.epochs)) * seconds / len(self.epochs)


class DataSize(NamedTuple):
    """`seconds` is None where it is not known of every utterance."""

    name: str
    utterances: int
    words: int
    distinct_words: int
    speakers: int
    seconds: float | None


class GraphSize(NamedTuple):
    name: str
    num_bytes: int
    facts: GraphFacts


@dataclass
class Findings:
    """Contents of a report; None and empty for what is not there."""

    layout: Layout
    made: float = field(default_factory=time.time)
    training: Training | None = None
    stages: StageLog | None = None
    data: DataDir | None = None  # that was decoded
    sizes: list[DataSize] = field(default_factory=list)
    graphs: list[GraphSize] = field(default_factory=list)
    numerators: str = ""  # of the training set, in one line
    wer: WerReport | None = None
    inputs: dict[str, str] = field(default_factory=dict)  # paths of the run by option, from run.json
    undone: tuple[str, ...] = ()  # stages of the run that are not done, or not with its options
    total: ErrorCounts | None = None  # from wer.json where the decoding cannot be scored again
    tuned: dict[str, Any] | None = None  # the best point on the development set
    config: dict[str, Any] = field(default_factory=dict)  # by section
    curves: Picture | None = None
    error_picture: Picture | None = None
    pictures: list[Picture] = field(default_factory=list)
    notes: dict[str, list[str]] = field(default_factory=dict)  # by section: what cannot be read, or is absent

    def note(self, section: str, line: str) -> None:
        """Add a line to what the section lacks, unless it is there."""
        lines = self.notes.setdefault(section, [])
        if line not in lines:
            lines.append(line)

    def attempt(self, section: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """The function's result; None, and a note, where it fails."""
        try:
            return function(*args, **kwargs)
        except (FsachainError, OSError) as error:
            self.note(section, " ".join(str(error).split()))
        except FAULTS as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            self.note(section, f"This part cannot be made: {reason}")
        return None

    def expect(self, section: str, path: Path, maker: str) -> bool:
        """Whether the file is there; where not, a note says what makes it or tells where it is."""
        if path.exists():
            return True
        self.note(section, f"Not there yet: {self.shown(path)}. {maker}.")
        return False

    def shown(self, path: Path) -> str:
        """The path relative to the experiment where it lies below it."""
        return str(path.relative_to(self.layout.exp)) if path.is_relative_to(self.layout.exp) else str(path)

    @property
    def sample_rate(self) -> int | None:
        rate = whole(self.config, "features", "sample_rate")
        return rate if rate and rate > 0 else None


def collect(layout: Layout) -> Findings:
    found = Findings(layout)
    _read_logs(found)
    _read_run(found)
    _read_data(found)
    _read_graphs(found)
    _read_scores(found)
    files = sorted(path for path in layout.pictures.glob("*") if path.is_file())
    if len(files) > MOST_PICTURES:
        found.note("pictures", f"{len(files) - MOST_PICTURES} more pictures are not shown.")
    read = [found.attempt("pictures", picture_file, path) for path in files[:MOST_PICTURES]]
    found.pictures = [picture for picture in read if picture is not None]
    return found


def draw(found: Findings) -> None:
    training, report = found.training, found.wer
    if training is not None and training.epochs:
        last = number(list(training.epochs.values())[-1], "train", "objf")
        epochs = counted(len(training.epochs), "epoch")
        curves = f"Curves over {epochs}; the last objective is {last}. The table has the numbers."
        found.curves = found.attempt(
            "training", lambda: drawing(plot_training(list(training.log.events)), curves)
        )
    if report is not None:
        rates = (
            f"Word error rates by speaker and by length; over all {report.total}. The table has the numbers."
        )
        found.error_picture = found.attempt("errors", lambda: drawing(plot_wer(report), rates))


def _read_logs(found: Findings) -> None:
    path = found.layout.stage_log
    if found.expect("stages", path, "`fsachain run` and the recipes write it"):
        found.stages = found.attempt("stages", read_stages, path)
    if stages := found.stages:
        if stages.num_unreadable:
            found.note("stages", f"{path.name}: {counted(stages.num_unreadable, 'line')} cannot be read.")
        found.config = stages.trained_by.config if stages.trained_by else {}

    path = found.layout.model / "train.jsonl"
    if found.expect("training", path, "`fsachain train` writes it"):
        found.training = training = found.attempt("training", lambda: Training(read_events(path)))
        if training is None:
            return
        if training.log.num_unreadable:
            found.note(
                "training",
                f"{found.shown(path)}: {counted(training.log.num_unreadable, 'line')} cannot be read.",
            )
        if not found.config:
            options = found.layout.model / "experiment.json"
            found.config = (found.attempt("run", read_table, options) if options.exists() else None) or {}
            if training.config:
                found.config = {**found.config, "train": training.config}
        if not training.epochs:
            found.note("training", "Not there yet: an epoch that is finished.")


def _read_run(found: Findings) -> None:
    """What `fsachain run` keeps of itself: a call that goes on names no inputs, and need not name all stages."""
    path = found.layout.exp / RUN
    table = found.attempt("run", read_table, path) if path.is_file() else None
    if table is None:
        return
    found.inputs = {name: str(value) for name, value in entry(table, "inputs", dict).items()}
    done = entry(table, "done", dict)
    wanted = entry(table, "stages", dict)  # none in folders of earlier versions
    found.undone = tuple(name for name in wanted if name != "report" and done.get(name) != wanted[name])


def _read_data(found: Findings) -> None:
    for name, folder in found.layout.data.items():
        option = "--test DIR" if name == "test" else "--base DIR, for data, lang and graphs,"
        if not found.expect("data", folder, f"{option} says where it is"):
            continue
        # Commands in wav.scp are read here and not run.
        read = found.attempt("data", DataDir.check, folder, allow_commands=True)
        if read is None:
            continue
        data, _ = read
        words = [word for utterance in data for word in utterance.words]
        speakers = {utterance.speaker for utterance in data}
        seconds = None
        if len(data) <= MOST_RECORDINGS:
            with suppress(DataError):  # a command, a feature matrix, or a recording that is not there
                seconds = sum(seconds_of(utterance) for utterance in data)
        found.sizes.append(DataSize(name, len(data), len(words), len(set(words)), len(speakers), seconds))
        if name == "test":
            lexicon = found.layout.lang / "lexicon.json"
            if lexicon.is_file():  # scored as `decode` does
                known = found.attempt("data", Lexicon.load, lexicon)
                data = data if known is None else data.without_marks(known)
            found.data = data


def _read_graphs(found: Findings) -> None:
    folder = found.layout.graphs
    if not found.expect("graphs", folder, "`fsachain den-graph` writes it; --base DIR says where it is"):
        return
    for path in sorted(folder.glob("*.fst")):
        facts = found.attempt("graphs", lambda path: graph_facts(Fsa.read(path)), path)
        if facts is not None:
            found.graphs.append(GraphSize(path.name, path.stat().st_size, facts))
    if (folder / "train.npz").exists():
        found.numerators = found.attempt("graphs", _numerator_size, folder / "train.npz") or ""


def _numerator_size(path: Path) -> str:
    num_bytes = path.stat().st_size
    if num_bytes > MOST_NUMERATOR_BYTES:
        return f"{num_bytes / 1e6:,.0f} MB of numerators"
    arcs = [numerator.fsa.num_arcs for numerator in load_numerators(path).values()]
    return (
        f"{counted(len(arcs), 'numerator', ',')}, {counted(sum(arcs), 'arc', ',')}, at most "
        f"{max(arcs, default=0):,} in one"
    )


def _read_scores(found: Findings) -> None:
    folder = found.layout.decoded
    tuning, report = folder / "tuning.json", folder / "wer.json"
    if tuning.exists() and (table := found.attempt("errors", read_table, tuning)) is not None:
        if isinstance(table.get("best"), dict):
            found.tuned = table["best"]
        else:
            found.note("errors", f"{tuning}: expected a table 'best'")
    hypotheses, data = folder / "hyp.txt", found.data
    if not found.expect("errors", hypotheses, "`fsachain decode` writes it"):
        return
    if data is not None:
        speakers = {utterance.id: utterance.speaker for utterance in data}
        found.wer = found.attempt(
            "errors", lambda: score(data.transcripts, read_text(hypotheses), speakers=speakers)
        )
    if found.wer is not None:
        found.total = found.wer.total
    elif report.exists():
        found.total = found.attempt(
            "errors", lambda: ErrorCounts.from_dict(read_table(report).get("total"), f"{report}, total")
        )


# Figures and recordings as data URIs, small enough to put dozens of them on one page.

MOST_SECONDS = 30.0
MOST_HERTZ = 16_000
MOST_PICTURE_BYTES = 2_000_000
PICTURE_TYPES = {
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".webp": "image/webp",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
}


@dataclass(frozen=True)
class Picture:
    """An image as data URI; `alt` is its description for those who do not see it."""

    uri: str
    alt: str
    caption: str = ""


@dataclass(frozen=True)
class Clip:
    """A recording as data URI, with the seconds that play and those of the whole utterance."""

    uri: str
    seconds: float
    of_seconds: float


def data_uri(content: bytes, media_type: str) -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode('ascii')}"


def drawing(figure: Figure, alt: str) -> Picture:
    """The figure as SVG, sharp at every size."""
    return Picture(data_uri(figure_svg(figure).encode(), PICTURE_TYPES[".svg"]), alt)


def bitmap(figure: Figure, alt: str, caption: str) -> Picture:
    """The figure as lossy WebP, for heat maps: a fifth of a PNG's bytes."""
    return Picture(data_uri(rendered(figure, "webp", 110), PICTURE_TYPES[".webp"]), alt, caption)


def picture_file(path: Path) -> Picture:
    media_type = PICTURE_TYPES.get(path.suffix.lower())
    if media_type is None:
        raise DataError(f"{path}: expected a picture that ends in {', '.join(PICTURE_TYPES)}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot read the picture: {error.strerror}") from error
    if len(content) > MOST_PICTURE_BYTES:
        raise DataError(
            f"{path}: has {counted(len(content), 'byte')}; pictures of a report have at most {MOST_PICTURE_BYTES}"
        )
    return Picture(data_uri(content, media_type), path.name, path.stem)


def samples_of(
    utterance: Utterance, sample_rate: int | None, *, allow_commands: bool
) -> tuple[NDArray[np.float32], int]:
    """The samples [L] of an utterance, and its sample rate in Hz.

    Recordings must have `sample_rate`; None takes the recording's own. A command in wav.scp runs only with `allow_commands`.
    """
    if utterance.audio is not None and is_command(utterance.audio) and not (allow_commands and sample_rate):
        reason = "; --allow-commands runs it" if sample_rate else ", and no model says its sample rate"
        raise DataError(f"utterance {utterance.id!r}: its recording is made by a command{reason}")
    rate = sample_rate or _recorded_rate(utterance)
    return read_audio(utterance, rate), rate


def seconds_of(utterance: Utterance) -> float:
    """Length of an utterance, from the header of its recording; commands that make recordings are not run."""
    if utterance.end is not None:
        return utterance.end - utterance.start
    rate = _recorded_rate(utterance)
    return count_samples(utterance, rate) / rate


def clip(samples: NDArray[np.float32], rate: int) -> Clip:
    """The first half minute of a recording as FLAC, of at most 16,000 samples a second."""
    soundfile = require("soundfile", extra="recipes")
    whole = len(samples) / rate
    heard = samples[: round(MOST_SECONDS * rate)]
    seconds = len(heard) / rate
    if rate > MOST_HERTZ:
        from scipy.signal import resample_poly  # costs 0.3 s to import

        divisor = int(np.gcd(rate, MOST_HERTZ))
        heard, rate = resample_poly(heard, MOST_HERTZ // divisor, rate // divisor), MOST_HERTZ
    file = io.BytesIO()
    soundfile.write(file, np.clip(heard, -1.0, 1.0), rate, format="FLAC", subtype="PCM_16")
    return Clip(data_uri(file.getvalue(), "audio/flac"), seconds, whole)


def _recorded_rate(utterance: Utterance) -> int:
    if utterance.audio is None or is_command(utterance.audio):
        raise DataError(f"utterance {utterance.id!r}: has no file of a recording")
    return recorded_rate(utterance)


# The utterances that are shown: words against words, the recording, when each word is said, pictures.


@dataclass(frozen=True)
class Seen:
    """Occupancies of one utterance by phone; `frame_seconds` is the length of an output frame."""

    occupancies: TrellisPair
    frame_seconds: float


# From utterances to their occupancies, and to the reason where there are none; both by id.
Look = Callable[[Sequence[Utterance]], tuple[Mapping[str, Seen], Mapping[str, str]]]


@dataclass
class Heard:
    """One utterance on the page."""

    score: UtteranceScore
    clip: Clip | None = None
    words: list[CtmEntry] = field(default_factory=list)
    phones: list[CtmEntry] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)


def error_rate(counts: ErrorCounts) -> float:
    """Errors per reference word; with an empty reference 0 without errors, else infinite."""
    if counts.num_words:
        return counts.errors / counts.num_words
    return math.inf if counts.errors else 0.0


def worst_first(report: WerReport) -> list[UtteranceScore]:
    """Sorted by error rate, then by number of errors, then by id."""
    return sorted(report.utterances, key=lambda one: (-error_rate(one.counts), -one.counts.errors, one.id))


def choose(found: Findings, most: int) -> dict[str, list[Heard]]:
    """At most so many of the worst, with an error each, and of the others the best, the longest first."""
    if found.wer is None:
        return {"worst": [], "best": []}
    worst = [one for one in worst_first(found.wer)[:most] if one.counts.errors]
    taken = {one.id for one in worst}
    others = [one for one in found.wer.utterances if one.id not in taken]
    others.sort(key=lambda one: (error_rate(one.counts), -one.counts.num_words, one.id))
    return {"worst": [Heard(one) for one in worst], "best": [Heard(one) for one in others[:most]]}


def add_times(found: Findings, chosen: Sequence[Heard]) -> None:
    """Times of words and phones, where the utterances were aligned."""
    wanted = {one.score.id: one for one in chosen}
    for tier in ("words", "phones"):
        path = found.layout.aligned / f"{tier}.ctm"
        if not found.expect("utterances", path, "`fsachain align` writes it"):
            continue
        for entry in found.attempt("utterances", read_ctm, path) or ():
            if entry.utterance in wanted:
                getattr(wanted[entry.utterance], tier).append(entry)


def add_pictures(
    found: Findings, chosen: Sequence[Heard], pictured: set[str], look: Look | None, *, allow_commands: bool
) -> None:
    """Recordings of all; of those in `pictured` a spectrogram with words and phones, and what `look` says of them."""
    utterances = {utterance.id: utterance for utterance in found.data or ()}
    wanted = [utterances[name] for name in sorted(pictured) if name in utterances]
    seen, reasons = (found.attempt("utterances", look, wanted) if look and wanted else None) or ({}, {})
    for one in chosen:
        name, pictures = one.score.id, list[Picture | None]()
        given = utterances[name], found.sample_rate
        read = found.attempt("utterances", samples_of, *given, allow_commands=allow_commands)
        if read is not None:
            one.clip = found.attempt("utterances", clip, *read)
        if read is not None and name in pictured:
            pictures.append(found.attempt("utterances", _draw_alignment, one, *read))
        if name in seen:
            pictures.append(found.attempt("utterances", _draw_lattice, name, seen[name]))
        one.pictures = [picture for picture in pictures if picture is not None]
    for reason in reasons.values():
        found.note("utterances", f"Without a lattice: {reason}")


def _draw_alignment(one: Heard, samples: NDArray[np.float32], rate: int) -> Picture:
    tiers = {name: tier for name, tier in (("words", one.words), ("phones", one.phones)) if tier}
    said = " ".join(entry.label for entry in one.words)
    alt = f"Spectrogram of {one.score.id}" + (f"; the words below it: {said}" if said else "")
    caption = "Spectrogram; below it the words and phones of the transcript." if tiers else "Spectrogram."
    return bitmap(plot_alignment(spectrogram(samples, rate), tiers), alt, caption)


def _draw_lattice(name: str, seen: Seen) -> Picture:
    alt = f"Occupancy of the phones over time for {name}, in the numerator and in the denominator, and their difference"
    caption = (
        "Which phone the numerator (the words of the transcript) and the denominator (any words) are in. "
        "Their difference is the gradient."
    )
    return bitmap(plot_trellis(seen.occupancies, frame_seconds=seen.frame_seconds), alt, caption)
