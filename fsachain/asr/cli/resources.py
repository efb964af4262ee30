"""What a step works with: feature cache, workers, and what happens to utterances that cannot be used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from fsachain.asr.cli.advice import advice
from fsachain.asr.cli.options import COUNT, OUT, Option, option, together, track
from fsachain.asr.data.audio import Perturbation
from fsachain.asr.data.cuts import holds_cuts
from fsachain.asr.data.dataset import Example, load_usable
from fsachain.asr.data.features import FeatureConfig, has_stored
from fsachain.asr.data.kaldi_dir import DataDir
from fsachain.asr.data.utterance import Fault, check_left_out, told_left_out, told_reasons, write_faults
from fsachain.asr.data.workers import Workers
from fsachain.asr.decode.decoder import told_narrowed
from fsachain.asr.decode.wer import read_text
from fsachain.errors import (
    ConfigError,
    DataError,
    FsachainError,
    LeftOutError,
    counted,
    require,
    without_python,
)
from fsachain.progress import counter

FAULTS_FILE = "faults.jsonl"
MOST_LEFT_OUT = 0.5  # share of the utterances
CONNECT_SECONDS = 30
_PIECES_PER_JOB = 20
_MOST_IN_PIECE = 200  # items that travel together to a worker
_PIECES_AHEAD = 200  # that are there at a time
RESOURCE_OPTIONS = {
    "scheduler": option(
        str,
        "Dask scheduler, such as tcp://host:8786, whose workers do the work in place of this machine.",
        "--scheduler",
        metavar="ADDRESS",
    ),
    "cache": option(OUT, "Folder that keeps features between runs.", "--cache"),
    "workers": option(COUNT, "Threads or processes.", "--workers", default=2),
    "jobs": option(COUNT, "Processes that work at once.", "--jobs", default=1),
    "bad_data": option(
        click.Choice(["exclude", "stop"]),
        "exclude: go on without utterances that cannot be used, list them, end with status 3. stop: end at once.",
        "--bad-data",
        default="exclude",
    ),
    "allow_left_out": option(
        click.FloatRange(min=0.0, max=1.0),
        "Largest share of the utterances that may be left out; a step that would leave out more ends with status 1.",
        "--allow-left-out",
        metavar="SHARE",
        default=MOST_LEFT_OUT,
    ),
    "commands": option(
        bool,
        "Run the shell commands that stand in wav.scp or a manifest, with your rights: for data that you trust.",
        "--allow-commands",
    ),
}

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Resources:
    """What a step may use, and what it does about utterances that cannot be used.

    `cache` is a folder that keeps features between runs, `workers` the threads that compute features or the processes that
    search, `jobs` the processes that make graphs; an `executor` does the work of all of them in their place. `bad_data`:
    "exclude" goes on without utterances that cannot be used, which `listing` lists; "stop" ends where there are any.
    `allow_left_out` is the largest share of the utterances that "exclude" may leave out; more are an error.
    `allow_commands` is as for `DataDir.read`.
    """

    cache: Path | None = None
    workers: int = 1
    jobs: int = 1
    executor: Executor | None = None
    bad_data: str = "stop"
    allow_left_out: float = MOST_LEFT_OUT
    allow_commands: bool = False
    faults: list[Fault] = field(default_factory=list)

    def read(self, path: Path) -> DataDir:
        """The utterances of a data set that its tables agree on."""
        try:
            data, faults = DataDir.check(path, allow_commands=self.allow_commands)
        except DataError as error:
            raise DataError(f"{error}{advice(path)}") from error
        self.leave_out(faults, len(data), str(path))
        return data

    def transcripts(self, path: Path) -> Mapping[str, Sequence[str]]:
        """What is said, by utterance, from a file in Kaldi's format (utterance word ...) or a data set.

        Utterances of the data set with a fault are left out. No recording is touched, so no command of wav.scp runs.
        """
        if not (path.is_dir() or holds_cuts(path)):
            return read_text(path)
        return replace(self, allow_commands=True).read(path).transcripts

    def load(
        self, data: DataDir, config: FeatureConfig, copies: Sequence[Perturbation] = (Perturbation(),)
    ) -> tuple[DataDir, list[list[Example]]]:
        """The utterances that have features, and these for each copy; errors as `leave_out`."""
        usable, variants, faults = self.load_usable(data, config, copies)
        self.leave_out(faults, len(usable), "the recordings")
        return usable, variants

    def load_usable(
        self, data: DataDir, config: FeatureConfig, copies: Sequence[Perturbation] = (Perturbation(),)
    ) -> tuple[DataDir, list[list[Example]], list[Fault]]:
        """As `load`, with the faults of the utterances that have no features, whatever `bad_data` says.

        A configuration with a width and no rate was fitted to features that came with the data (`FeatureConfig.fitted`).
        """
        computed = sum(not has_stored(one, config) for one in data)
        if computed and config.kind != "archive" and config.num_mel_bins and not config.sample_rate:
            click.echo(
                f"{computed} of {counted(len(data), 'utterance')} have no features in a feats.scp, as the training set has: "
                f"computed as {config.kind}, which has to be what these are"
            )
        who: dict[str, Any] = {"num_workers": self.workers, "executor": self.executor}
        with counter("features") as update:
            return load_usable(data, config, copies, cache_dir=self.cache, progress=update, **who)

    def leave_out(self, faults: Sequence[Fault], num_left: int, where: str) -> None:
        """Go on without these utterances, or raise a DataError.

        It is raised if none is left, if more are left out than `allow_left_out` says, or if `bad_data` is "stop".
        """
        self.note(faults, where)
        self.check_left(faults, num_left, where)

    def note(self, faults: Sequence[Fault], where: str) -> None:
        """Go on without these utterances, of which `check_left` says later whether they are too many."""
        self.faults.extend(faults)
        if faults and self.bad_data == "stop":
            stops = f"{counted(len(faults), 'fault')}, and --bad-data is stop"
            raise DataError(f"{where}: {stops}; the first: {faults[0].reason}")

    def check_left(self, faults: Sequence[Fault], num_left: int, where: str) -> None:
        """Raise a DataError if no utterance is left, or too many are left out."""
        if not num_left:
            none = "no utterance is left" if self.faults else "there are no utterances"
            reasons = f": {told_reasons(faults)}" if faults else ""
            raise DataError(f"{where}: {none}{reasons}")
        check_left_out(faults, num_left + len(faults), where, self.allow_left_out)

    @contextmanager
    def listing(self, path: Path) -> Iterator[None]:
        """Print the faults that were met in the block and write them to `path`; those of an earlier run go away."""
        path.unlink(missing_ok=True)
        faults: list[Fault] = []
        try:
            yield
        finally:
            # Several stages may meet an utterance: the first tells why.
            faults += list({fault.id: fault for fault in reversed(self.faults)}.values())[::-1]
            if faults:
                click.echo(without_python(told_left_out(faults)))
                write_faults(path, faults)
        end_without(faults, path)

    @contextmanager
    def searching(self, what: str) -> Iterator[dict[str, Any]]:
        """Who searches, as `decode` and `lattices` take it, with a bar, and a line about beams that were narrowed."""
        narrowed: dict[str, float] = {}
        with counter(what) as update:
            yield {
                "num_workers": self.workers,
                "executor": self.executor,
                "progress": update,
                "narrowed": narrowed,
            }
        if narrowed:
            click.echo(f"{what}: {told_narrowed(narrowed)}")

    def collect(
        self, make: Callable[[str, Item], Result], items: Sequence[tuple[str, Item]], what: str
    ) -> tuple[dict[str, Result], list[Fault]]:
        """make(name, item) for each of the items, in order, by `jobs` processes or the executor, with a bar.

        Gives the results by name, and a fault for each item that raised an `FsachainError`. `make` can be
        pickled, unless one job does everything.
        """
        found: dict[str, Result] = {}
        refused: list[Fault] = []
        results = self._results(partial(_attempt, make), list(items))
        for (name, _), (result, refusal) in zip(track(items, what), results, strict=True):
            if refusal is None:
                found[name] = result
            else:
                refused.append(Fault(name, refusal))
        return found, refused

    def _results(self, attempt: Callable[[list[Any]], list[Any]], items: list[Any]) -> Iterator[Any]:
        jobs = min(self.jobs, len(items))
        if self.executor is None and jobs <= 1:
            for item in items:
                yield from attempt([item])
            return
        size = max(1, min(_MOST_IN_PIECE, -(-len(items) // (_PIECES_PER_JOB * max(1, jobs)))))
        pieces = ([items[begin : begin + size]] for begin in range(0, len(items), size))
        pool = ProcessPoolExecutor(jobs) if self.executor is None else nullcontext(self.executor)
        with pool as executor:
            for (results,) in Workers(attempt, executor=executor).ahead(pieces, _PIECES_AHEAD):
                yield from results


def end_without(faults: Sequence[Fault], path: Path) -> None:
    """End with a LeftOutError that names the file of the faults, if there are any."""
    if faults:
        raise LeftOutError(f"done, but {counted(len(faults), 'utterance')} left out; all are in {path}")


def _attempt(make: Callable[..., Any], items: list[tuple[str, Any]]) -> list[tuple[Any, str | None]]:
    """For each item what is made of it, or why nothing is."""
    found: list[tuple[Any, str | None]] = []
    for name, item in items:
        try:
            found.append((make(name, item), None))
        except FsachainError as error:
            found.append((None, str(error)))
    return found


def with_resources(
    *names: str, beside: bool = False, files: tuple[str, ...] = (), as_written: bool = False
) -> Any:
    """The default of a command's parameter `resources`: gives it the options of these names, and what they say.

    Names are those of `RESOURCE_OPTIONS`, in the order of `--help`; "bad_data" brings "allow_left_out". With "bad_data" the
    command gets the data sets `data` and `dev` and the transcripts `text` read. At its end the faults are printed and
    written to `faults.jsonl`, and `LeftOutError` is raised. That file lies in the folder of the argument `out`, or next to
    `out` if that is a file (`beside`). For a command without `out` it lies next to the first of the arguments `files` that
    is set, else in the working directory. Marks at the edges of words that the lexicon of the argument `lang` lacks are
    taken off, unless `as_written`.
    """
    if "bad_data" in names:
        place = names.index("bad_data") + 1
        names = (*names[:place], "allow_left_out", *names[place:])

    def prepare(arguments: dict[str, Any], stack: ExitStack) -> None:
        given = {name: arguments.pop(name) for name in (*names, "allow_commands") if name in arguments}
        executor = stack.enter_context(executor_at(given.pop("scheduler", None)))
        resources = arguments["resources"] = Resources(executor=executor, **given)
        if "bad_data" not in names:
            return
        given_files = [arguments[name] for name in files if arguments[name]]
        command = Path(str(click.get_current_context().info_name))
        out: Path = [*given_files, command][0] if files else arguments["out"]
        is_file = beside or files
        faults = out.with_name(f"{out.stem}.{FAULTS_FILE}") if is_file else out / FAULTS_FILE
        stack.enter_context(resources.listing(faults))
        lexicon = None if as_written else getattr(arguments.get("lang"), "lexicon", None)
        for name in ("dev", "data"):
            if arguments.get(name) is not None:
                read = resources.read(arguments[name])
                arguments[name] = read if lexicon is None else read.without_marks(lexicon)
        if arguments.get("text") is not None:
            said = resources.transcripts(arguments["text"])
            if lexicon is not None:
                said = {name: lexicon.without_marks(words) for name, words in said.items()}
            arguments["text"] = said

    options = together(*(RESOURCE_OPTIONS[name] for name in names))
    return Option(lambda _: options.declare(""), prepare=prepare)


@contextmanager
def executor_at(address: str | None) -> Iterator[Executor | None]:
    """The executor of the Dask cluster whose scheduler has this address, such as `tcp://host:8786`; None for None.

    The workers need fsachain, in the same version, and the files under the same paths.
    """
    if address is None:
        yield None
        return
    distributed = require("distributed", extra="cluster")
    try:
        client = distributed.Client(address, timeout=CONNECT_SECONDS)
    except (OSError, ValueError, TypeError) as error:  # a timeout is an OSError
        raise ConfigError(f"scheduler {address!r}: cannot be reached ({error})") from error
    with client:
        if not client.nthreads():
            click.echo(f"scheduler {address!r}: has no worker yet; waiting for one", err=True)
        executor: Executor = client.get_executor()
        yield executor
