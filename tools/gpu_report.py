"""Everything that only a GPU can tell, in one run; a table comes last, with what failed at its end.

    python tools/gpu_report.py [--only PHASES] [--out FOLDER] [--on-host]

It runs with the interpreter that is there, from a bare checkout with build/gpu in it (`python -m tools.gpu_pack` makes that
where the shared folder is), and needs numpy, scipy, torch, cupy and pytest. What is missing is an error. Each step is a
process of its own with a time of its own, and what it finds is written to FOLDER/results.jsonl line by line, so that one
that hangs or dies takes nothing with it. --on-host: a dry run of all phases on a device that is the host.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock, Timer
from typing import Any, NamedTuple, TextIO

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.bench.gpu_report import MAKERS, VARIANTS
from tools.gpu_results import told

ROOT = Path(__file__).resolve().parents[1]
TOTAL_SECONDS = 540.0
DRY_SECONDS = 300.0  # of a step of a dry run, which has ten times as many in all
CUDA_FOLDERS = ("usr/local/cuda/bin", "usr/local/cuda/compute-sanitizer", "opt/nvidia/nsight-compute/*")
SANITIZERS = ("memcheck", "racecheck", "synccheck", "initcheck")
# Families of tools.gpu_driver, as they share a process under a sanitizer.
FAMILIES = (
    ("cluster of 1", "cluster of 2", "cluster in turns", "cluster of 4"),
    ("cluster of 8", "cluster with its metadata", "cluster with twins", "teams in memory", "numerators"),
    ("paths", "paths in memory", "penalties", "scaled rows", "CTC", "pairs"),
    ("regular", "constrained", "HAT", "TDT", "multi-blank", "grid in memory"),
)


class Step(NamedTuple):
    """A command and the most seconds that it may take."""

    name: str
    command: Sequence[str]
    seconds: float
    environment: dict[str, str] = {}  # noqa: RUF012


class Outcome(NamedTuple):
    """ok: the command ended well and told something. lines: what it told."""

    name: str
    ok: bool
    seconds: float
    detail: str
    lines: list[dict[str, Any]]


def phases(on_host: bool) -> dict[str, tuple[int, list[Step]]]:
    """Steps in their order, those that tell most first, and how many of a phase run side by side."""
    python = [sys.executable, "-m"]
    there = ["--on-host"] if on_host else []
    blocking = {"CUDA_LAUNCH_BLOCKING": "1"}
    families = [
        Step(f"family: {name}", [*python, "tools.gpu_driver", name, *there], 60.0, blocking)
        for names in FAMILIES
        for name in names
    ]
    tables = [
        Step(f"bench: {name}", [*python, "tools.bench.gpu_report", "--only", name, *there], 90.0)
        for name in MAKERS
    ]
    variants = [
        Step(
            f"variant: {name}",
            [*python, "tools.bench.gpu_report", "--only", "denominator", "--variant", name, *there],
            60.0,
        )
        for name in VARIANTS  # beside the rows of "bench: denominator"
    ]
    pytest = [*python, "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "tools.gpu_results"]
    if on_host:  # which compiles each kernel twice, by NVRTC and by g++
        families, tables, variants = (
            [step._replace(seconds=DRY_SECONDS) for step in steps] for steps in (families, tables, variants)
        )
    # In a dry run there is nothing to test but that the tests are found.
    must = {} if on_host else {"FSACHAIN_GPU_REPORT": "1"}
    names = ["tests/gpu"] if on_host else test_names()
    tests = [Step(f"test: {name}", [*pytest, "--confcutdir=tests/gpu", name], 90.0, must) for name in names]
    sanitized = []
    for tool in SANITIZERS[:1] if on_host else SANITIZERS:
        watch = (
            ["env"] if on_host else [tool_path("compute-sanitizer"), "--tool", tool, "--error-exitcode", "9"]
        )
        watch += [] if on_host else ["--print-limit", "5"]
        for names in FAMILIES:
            command = [*watch, *python, "tools.gpu_driver", *names, *there]
            sanitized.append(Step(f"{tool}: {', '.join(names)}", command, 240.0))
    ncu = [tool_path("ncu"), "--clock-control", "none", "--set", "full", "--launch-count", "6"]
    ncu += ["-k", "regex:^(forward|backward|write_occupancies)$"]
    profiled = [
        *(["env"] if on_host else ncu),
        *python,
        "tools.bench.gpu_report",
        "--only",
        "denominator",
        *there,
    ]
    cores = max(2, (os.cpu_count() or 2) // 2)
    return {
        "device": (1, [Step("device", [*python, "tools.gpu_device", "describe", *there], 60.0)]),
        "compile": (1, [Step("compile", [*python, "tools.gpu_device", "compile", *there], 90.0)]),
        "families": (min(6, cores), families),
        "bench": (1, tables),
        "variants": (1, variants),
        "tests": (min(6, cores), tests),
        "sanitizers": (min(8, cores), sanitized),
        "profile": (1, [Step("profile", profiled, 120.0)]),
    }


def test_names() -> list[str]:
    """Every test function of tests/gpu, as pytest is asked for it."""
    found = []
    for path in sorted((ROOT / "tests" / "gpu").glob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found.append(f"{path.relative_to(ROOT)}::{node.name}")
    return found


def tool_path(name: str) -> str:
    """A tool of the CUDA toolkit, on the path or where the toolkit puts it; its name where it is not."""
    folders = [str(folder) for pattern in CUDA_FOLDERS for folder in sorted(Path("/").glob(pattern))]
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *folders])) or name


class Report:
    """Runs steps; what they tell goes to results.jsonl, all that they print to log.txt."""

    def __init__(self, folder: Path, clock: float = TOTAL_SECONDS) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._results, self._log = (
            (folder / name).open("a", encoding="utf-8") for name in ("results.jsonl", "log.txt")
        )
        self._lock, self._end = Lock(), time.monotonic() + clock

    def _write(self, file: TextIO, text: str) -> None:
        with self._lock:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())

    def run(self, steps: Sequence[Step], beside: int) -> list[Outcome]:
        with ThreadPoolExecutor(beside) as pool:
            return list(pool.map(self.attempt, steps))

    def attempt(self, step: Step) -> Outcome:
        """One step in a process of its own, none beyond what is left of the time."""
        start = time.monotonic()
        seconds = min(step.seconds, self._end - start)
        outcome = (
            self._outcome(step, seconds)
            if seconds > 1.0
            else Outcome(step.name, False, 0.0, "no time was left", [])
        )
        outcome = outcome._replace(seconds=time.monotonic() - start)
        self._write(self._results, json.dumps({"step": step.name, **outcome._replace(lines=[])._asdict()}))
        print(f"{'ok' if outcome.ok else 'FAILED':7} {outcome.seconds:6.1f} s  {step.name}", flush=True)
        return outcome

    def _outcome(self, step: Step, seconds: float) -> Outcome:
        tests = os.pathsep.join(str(ROOT / folder) for folder in (".", "tests", "tests/gpu"))
        paths = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])
        own = {
            "PYTHONPATH": paths,
            "PYTHONUNBUFFERED": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "FSACHAIN_QUIET": "1",
        }
        try:
            process = subprocess.Popen(
                step.command,
                cwd=ROOT,
                env={**os.environ, **own, **step.environment},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            return Outcome(step.name, False, 0.0, str(error), [])
        late: list[bool] = []
        timer = Timer(seconds, lambda: (late.append(True), os.killpg(process.pid, signal.SIGKILL)))
        timer.start()
        lines, last = [], "no output"
        try:
            assert process.stdout is not None
            for text in process.stdout:
                self._write(self._log, f"{step.name} | {text.rstrip()}")
                line = told(text.rstrip())
                if line is not None:
                    lines.append(line)
                    self._write(self._results, json.dumps({"step": step.name, **line}))
                elif text.strip("= \n"):
                    last = text.strip("= \n")
            code = process.wait()
        finally:
            timer.cancel()
        if late:
            return Outcome(step.name, False, 0.0, f"not done after {seconds:.0f} s; last: {last}", lines)
        ok = code == 0 and bool(lines)
        return Outcome(step.name, ok, 0.0, last if lines else f"told nothing; last: {last}", lines)


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """The targets, then how many steps passed, then what failed."""
    lines = ["", f"{'target':60} {'measured':>10}  limit and ratio", "-" * 100]
    timed = [
        outcome for outcome in outcomes if outcome.name.startswith("bench: ")
    ]  # a profiler's times are its own
    rows = [line["row"] for outcome in timed for line in outcome.lines if "row" in line]
    lines += [f"{row['name'][:60]:60} {row['value']:10.3f}  {row['target']}" for row in rows if row["target"]]
    for outcome in outcomes:
        if outcome.name.startswith("variant: "):
            found = [line["row"] for line in outcome.lines if "row" in line and line["row"]["target"]]
            lines += [
                f"{outcome.name}: {row['name']}"[:60].ljust(60) + f" {row['value']:10.3f}" for row in found
            ]
    failed = [outcome for outcome in outcomes if not outcome.ok]
    lines += ["", f"{len(outcomes) - len(failed)} of {len(outcomes)} steps passed"]
    for outcome in failed:
        lines += [f"FAILED {outcome.name}: {outcome.detail}"]
        lines += [f"    {line['item']}: {line['detail'][-300:]}" for line in outcome.lines if not line["ok"]]
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """1 where a step failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="some of the phases, with commas between them; default: all")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu-report")
    parser.add_argument("--on-host", action="store_true", help="a dry run on a device that is the host")
    options = parser.parse_args(arguments)
    known = phases(options.on_host)
    chosen = options.only.split(",") if options.only else list(known)
    for name in chosen:
        if name not in known:
            parser.error(f"--only {name!r}; expected some of {','.join(known)}")
    report = Report(options.out, 10 * DRY_SECONDS if options.on_host else TOTAL_SECONDS)
    outcomes = []
    for name in chosen:
        beside, steps = known[name]
        outcomes += report.run(steps, beside)
        if name == "device" and not outcomes[-1].ok:
            break  # without a device there is nothing to report
    device = next((line["detail"] for outcome in outcomes for line in outcome.lines if "facts" in line), "")
    print("", device, *table(outcomes), sep="\n")
    return int(not all(outcome.ok for outcome in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
