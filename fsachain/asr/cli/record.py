"""What ran, with which versions, and what each stage took: lines of JSON in `stages.jsonl`, for `fsachain report`.

Events, each with Unix time: `run` (command line, versions, commit, configuration, seed, stages asked for), and for each
stage `start` and then `end`, `failed` or `stopped` (by a signal). A stage that was killed has a `start` alone.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from fsachain.asr.report.collect import STAGE_LOG
from fsachain.asr.train.log import JsonLinesLog
from fsachain.asr.train.stopping import StoppedError, stoppable

_PROCESS = Path("/proc/self")


def versions() -> dict[str, str]:
    """Of Python, of fsachain, and of every installed package that it can use; tools of its tests apart."""
    found = {"python": platform.python_version()}
    try:
        required = metadata.requires("fsachain") or []
    except metadata.PackageNotFoundError:  # run from a folder of sources
        required = ["filelock", "numpy", "scipy", "numba", "torch"]
    needed = [line for line in required if not re.search(r"extra == .dev\b", line)]
    for name in ["fsachain", *sorted({re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0] for line in needed})]:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit(folder: Path) -> str | None:
    """With "+" behind it where files differ from it; None where it is unknown."""
    asked = ["git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def open_log(folder: Path) -> JsonLinesLog:
    """The stage log of a folder, which is made; a line cut short by a crash is taken out before more are added."""
    log = JsonLinesLog(folder / STAGE_LOG)
    log.rewind(lambda event: True)
    return log


def record_run(log: JsonLinesLog, stages: list[str], **values: Any) -> None:
    """`values` is anything else of the run that JSON can hold, such as its configuration and seed."""
    log.write(
        "run",
        stages=stages,
        command=sys.argv,
        versions=versions(),
        commit=commit(Path(__file__).resolve().parent),
        system=platform.platform(),
        processor=processor(),
        processors=os.cpu_count(),
        **values,
    )


@contextmanager
def recorded_stage(log: JsonLinesLog, name: str) -> Iterator[None]:
    """Note when a stage begins and what it took; SIGTERM ends it with StoppedError.

    `seconds` is wall time; `cpu_seconds` that of all threads and finished child processes; `peak_rss` the largest memory of
    this process in bytes, of this stage alone where Linux allows to begin the count anew, since the process began elsewhere;
    `peak_device` the largest allocation of PyTorch on the GPU, where it uses one.
    """
    log.write("start", stage=name)
    forget_peaks()
    started, worked = time.perf_counter(), _cpu_seconds()
    try:
        with stoppable():
            yield
    except BaseException as error:
        kind = "stopped" if isinstance(error, KeyboardInterrupt | StoppedError) else "failed"
        told = " ".join(str(error).split()) or type(error).__name__
        seconds = time.perf_counter() - started
        log.write(kind, stage=name, seconds=seconds, peak_rss=peak_rss(), error=told)
        raise
    seconds, worked = time.perf_counter() - started, _cpu_seconds() - worked
    cuda = _cuda()
    device = {} if cuda is None else {"peak_device": cuda.max_memory_allocated()}
    log.write("end", stage=name, seconds=seconds, cpu_seconds=worked, peak_rss=peak_rss(), **device)


@contextmanager
def recorded_command(folder: Path, stage: str, **values: Any) -> Iterator[None]:
    """A command that is one stage; `values` as for `record_run`."""
    log = open_log(folder)
    record_run(log, [stage], **values)
    with recorded_stage(log, stage):
        yield


def _cpu_seconds() -> float:
    return sum(os.times()[:4])


def processor() -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or None
    name = re.search(r"^model name.*?:(.*)", text, re.MULTILINE)
    return name and name[1].strip()


def forget_peaks() -> None:
    """Begin the counts of the largest memory anew (5 stands for the peak of the resident set, see proc(5))."""
    with suppress(OSError):
        (_PROCESS / "clear_refs").write_text("5", encoding="ascii")
    cuda = _cuda()
    if cuda is not None:
        cuda.reset_peak_memory_stats()


def peak_rss() -> int | None:
    """Bytes of the largest resident set so far; None where the system does not say."""
    try:
        status = (_PROCESS / "status").read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        status = ""
    peak = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    if peak:
        return int(peak[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _cuda() -> Any:
    """PyTorch's CUDA module where it is in use; nothing is started by asking."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None
