"""Everything that only a GPU can tell, in one run of at most eight minutes; a short table comes last.

    python tools/gpu_report.py [--quick]

Tests, benchmark, sanitizers. Needs nothing but `make setup`. Where there is no GPU it says why and ends without failure.
Each step is a process of its own with a time of its own, so that one that hangs or dies takes nothing with it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Timer
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

TOTAL_SECONDS = 480.0
DETAIL = 76  # characters of the table's last column
CUDA_FOLDERS = (Path("/usr/local/cuda/bin"), Path("/usr/local/cuda/compute-sanitizer"))


class Step(NamedTuple):
    """A command, the most seconds it may take, and what stands in its way (None: nothing)."""

    name: str
    command: Sequence[str]
    seconds: float
    missing: str | None = None


class Outcome(NamedTuple):
    """How a step ended: "ok", "FAILED" or "skipped"; `detail` is the line of its output that says most.

    `targets` are the lines that followed a line "targets": the benchmark's summary.
    """

    name: str
    word: str
    seconds: float
    detail: str
    targets: tuple[str, ...] = ()


Runner = Callable[[Step, float], Outcome]


def main(arguments: Sequence[str] | None = None) -> int:
    """1 where a step failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="without the sanitizers")
    options = parser.parse_args(arguments)
    reason = absent()
    if reason:
        print(f"no GPU report: {reason}")
        return 0
    outcomes = run(steps(with_sanitizers=not options.quick), attempt)
    print("", *table(outcomes), sep="\n")
    return int(any(outcome.word == "FAILED" for outcome in outcomes))


def absent() -> str | None:
    """Why there is nothing to report here; None where there is a GPU."""
    from tools.bench.gpu_report import absent as reason

    return reason()


def steps(with_sanitizers: bool) -> list[Step]:
    """What is run, in this order: what tells most first, so that a machine that is taken away has told it."""
    python = sys.executable
    tests = [python, "-m", "pytest", "-q", "--tb=short", "tests/gpu"]
    bench = [python, "tools/bench_gpu.py", "--save"]
    found = [Step("tests", tests, 180.0), Step("benchmark", bench, 130.0)]
    if not with_sanitizers:
        return found
    sanitizer = sanitizer_path()
    missing = None if sanitizer else "compute-sanitizer is not installed (it comes with the CUDA toolkit)"
    for tool in ("memcheck", "racecheck"):
        options = ["--tool", tool, "--error-exitcode", "9", "--print-limit", "5"]
        command = [sanitizer or "compute-sanitizer", *options, python, "tools/gpu_driver.py"]
        found.append(Step(tool, command, 85.0, missing))
    return found


def sanitizer_path() -> str | None:
    """compute-sanitizer, on the path or where the CUDA toolkit puts it."""
    folders = os.pathsep.join([os.environ.get("PATH", ""), *map(str, CUDA_FOLDERS)])
    return shutil.which("compute-sanitizer", path=folders)


def run(todo: Sequence[Step], attempt: Runner, clock: Callable[[], float] = time.monotonic) -> list[Outcome]:
    """All steps, none beyond what is left of the eight minutes."""
    start, outcomes = clock(), []
    for step in todo:
        left = TOTAL_SECONDS - (clock() - start)
        if step.missing:
            outcome = Outcome(step.name, "skipped", 0.0, step.missing)
        elif left <= 0:
            outcome = Outcome(step.name, "skipped", 0.0, f"{TOTAL_SECONDS:.0f} s are over")
        else:
            outcome = attempt(step, min(step.seconds, left))
        outcomes.append(outcome)
    return outcomes


def attempt(step: Step, seconds: float) -> Outcome:
    """One step in a process of its own; its output is passed on as it comes."""
    print(f"\n== {step.name}: {' '.join(map(str, step.command))}", flush=True)
    start, lines = time.monotonic(), []
    process = subprocess.Popen(
        step.command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    timer = Timer(seconds, os.killpg, (process.pid, signal.SIGKILL))  # what it started ends with it
    timer.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip())
        code = process.wait()
    finally:
        timer.cancel()
    taken = time.monotonic() - start
    if code != 0 and taken >= seconds:
        return Outcome(step.name, "FAILED", taken, f"not done after {seconds:.0f} s; last: {said(lines)}")
    summary = tuple(lines[lines.index("targets") + 1 :]) if "targets" in lines else ()
    detail = "its targets are below" if summary else said(lines)
    return Outcome(step.name, "ok" if code == 0 else "FAILED", taken, detail, summary)


def said(lines: Sequence[str]) -> str:
    """The last line that says something: pytest's and the sanitizer's summaries stand last, ours too."""
    return next((line.strip("= ") for line in reversed(lines) if line.strip("= ")), "no output")


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """The short table: a line for each step, then the benchmark's targets."""
    header = f"{'step':12} {'outcome':8} {'seconds':>7}  detail"
    rows = [
        f"{outcome.name:12} {outcome.word:8} {outcome.seconds:7.1f}  {outcome.detail[:DETAIL]}"
        for outcome in outcomes
    ]
    targets = [line for outcome in outcomes for line in outcome.targets]
    return [header, "-" * len(header), *rows, *targets]


if __name__ == "__main__":
    raise SystemExit(main())
