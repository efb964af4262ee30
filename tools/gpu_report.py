"""Everything that only a GPU can tell, in one run; a table comes last, with what failed at its end.

    python tools/gpu_report.py [--only PHASES] [--seconds S] [--out FOLDER] [--on-host]

It runs with the interpreter that is there, from a bare checkout with build/gpu in it (`python -m tools.gpu_pack` makes that
where the shared folder is), and needs numpy, scipy, torch, cupy and pytest. What is missing is an error. Each step is a
process of its own with a time of its own, and prints into a file of its own in FOLDER, so that one that hangs or dies takes
nothing with it; when it has ended, what it has found goes to results.jsonl. --on-host: a dry run of all phases on a device
that is the host.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools import ROOT, parser_of
from tools.bench.gpu_report import MAKERS, VARIANTS
from tools.bench.timing import some_of
from tools.gpu_results import told

TOTAL_SECONDS = 540.0
DRY_SECONDS = 300.0  # of a step of a dry run, which has ten times as many in all
CUDA_FOLDERS = ("usr/local/cuda/bin", "usr/local/cuda/compute-sanitizer", "opt/nvidia/nsight-compute/*")
BESIDE = {"families": 12, "tests": 12, "sanitizers": 12}  # steps of a phase that run side by side, at most
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
    """Steps in their order, what is right before what is fast, and how many of a phase run side by side."""
    there = ["--on-host"] if on_host else []

    def step(
        name: str, module: str, *words: str, seconds: float, before: Sequence[str] = (), **variables: str
    ) -> Step:
        # A dry run compiles each kernel twice, by NVRTC and by g++.
        command = [*before, sys.executable, "-m", f"tools.{module}", *words, *there]
        return Step(name, command, DRY_SECONDS if on_host else seconds, variables)

    def bench(name: str, *words: str, seconds: float, before: Sequence[str] = ()) -> Step:
        return step(name, "bench.gpu_report", "--only", *words, seconds=seconds, before=before)

    pytest = [sys.executable, "-m", "pytest", "-q", "--tb=short", "--confcutdir=tests/gpu"]
    pytest += ["-p", "no:cacheprovider", "-p", "tools.gpu_results"]
    # In a dry run there is nothing to test but that the tests are found, and no tool watches.
    tests, must = (["tests/gpu"], {}) if on_host else (test_names(), {"FSACHAIN_GPU_REPORT": "1"})
    sanitizer = [tool_path("compute-sanitizer"), "--error-exitcode", "9", "--print-limit", "5", "--tool"]
    ncu = [tool_path("ncu"), "--clock-control", "none", "--set", "full", "--launch-count", "6"]
    ncu += ["-k", "regex:^(forward|backward|write_occupancies)$"]
    watches: dict[str, list[str]] = {tool: [*sanitizer, tool] for tool in SANITIZERS}
    if on_host:
        ncu, watches = [], {"unwatched": []}
    steps = {
        "device": [step("device", "gpu_device", "describe", seconds=60)],
        "compile": [step("compile", "gpu_device", "compile", seconds=90)],
        "families": [
            step(f"family: {name}", "gpu_driver", name, seconds=60, CUDA_LAUNCH_BLOCKING="1")
            for names in FAMILIES
            for name in names
        ],
        "tests": [Step(f"test: {name}", [*pytest, name], 90.0, must) for name in tests],
        "bench": [bench(f"bench: {name}", name, seconds=90) for name in MAKERS],
        "variants": [  # beside the rows of "bench: denominator"
            bench(f"variant: {name}", "denominator", "--variant", name, seconds=60) for name in VARIANTS
        ],
        "sanitizers": [
            step(f"{tool}: {', '.join(names)}", "gpu_driver", *names, seconds=240, before=watch)
            for tool, watch in watches.items()
            for names in FAMILIES
        ],
        "profile": [bench("profile", "denominator", seconds=120, before=ncu)],
    }
    cores = max(2, (os.cpu_count() or 2) - 2)
    return {name: (min(BESIDE.get(name, 1), cores), one) for name, one in steps.items()}


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
    """Runs steps; what they print goes to files of the folder."""

    def __init__(self, folder: Path, seconds: float = TOTAL_SECONDS) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._end = folder, time.monotonic() + seconds
        paths = [
            *(str(ROOT / folder) for folder in (".", "tests", "tests/asr", "tests/gpu")),
            os.environ.get("PYTHONPATH"),
        ]
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONUNBUFFERED": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "FSACHAIN_QUIET": "1",
        }

    def run(self, steps: Sequence[Step], beside: int) -> list[Outcome]:
        with ThreadPoolExecutor(beside) as pool:
            return list(pool.map(self.attempt, steps))

    def attempt(self, step: Step) -> Outcome:
        """One step in a process of its own, none beyond what is left of the time."""
        start = time.monotonic()
        path = self._folder / f"{re.sub(r'[^a-zA-Z0-9]+', '-', step.name)}.txt"
        wrong = self._wrong(step, path, min(step.seconds, self._end - start))
        said = path.read_text(encoding="utf-8", errors="replace").splitlines()
        lines = [line for line in map(told, said) if line is not None]
        last = next((text for text in reversed(said) if told(text) is None and text.strip("= ")), "no output")
        if wrong is None and not lines:
            wrong = "told nothing"
        detail = last.strip("= ") if wrong is None else f"{wrong}; last: {last}"
        outcome = Outcome(step.name, wrong is None, time.monotonic() - start, detail, lines)
        with (self._folder / "results.jsonl").open("a", encoding="utf-8") as file:
            for line in (*lines, outcome._replace(lines=[])._asdict()):
                file.write(json.dumps({"step": step.name, **line}) + "\n")
        print(f"{'ok' if outcome.ok else 'FAILED':7} {outcome.seconds:6.1f} s  {step.name}", flush=True)
        return outcome

    def _wrong(self, step: Step, path: Path, seconds: float) -> str | None:
        """Run the command; how it has ended, None if well."""
        with path.open("w", encoding="utf-8") as file:
            if seconds <= 1.0:
                return "no time was left"
            try:
                process = subprocess.Popen(
                    step.command,
                    cwd=ROOT,
                    env=self._environment | step.environment,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                return str(error)
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return f"not done after {seconds:.0f} s"
        return f"status {code}" if code else None


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """The targets, then how many steps passed, then what failed."""
    lines = ["", f"{'target':60} {'measured':>10}  limit and ratio", "-" * 100]
    for outcome in outcomes:
        kind = outcome.name.partition(":")[0]
        for row in (line["row"] for line in outcome.lines if "row" in line):
            if row["target"] and kind == "bench":  # a profiler's times are its own
                lines.append(f"{row['name'][:60]:60} {row['value']:10.3f}  {row['target']}")
            elif row["target"] and kind == "variant":
                lines.append(f"{outcome.name}: {row['name']}"[:60].ljust(60) + f" {row['value']:10.3f}")
    failed = [outcome for outcome in outcomes if not outcome.ok]
    lines += ["", f"{len(outcomes) - len(failed)} of {len(outcomes)} steps passed"]
    for outcome in failed:
        lines += [f"FAILED {outcome.name}: {outcome.detail}"]
        lines += [f"    {line['item']}: {line['detail'][-300:]}" for line in outcome.lines if not line["ok"]]
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """1 where a step failed."""
    parser = parser_of(__doc__)
    known = ",".join(phases(on_host=True))
    parser.add_argument("--only", type=some_of(known.split(",")), help=f"of {known}; default: all")
    parser.add_argument(
        "--seconds", type=float, default=TOTAL_SECONDS, help="in all; what is left then is not run"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu-report")
    parser.add_argument("--on-host", action="store_true", help="a dry run on a device that is the host")
    options = parser.parse_args(arguments)
    report = Report(options.out, 10 * DRY_SECONDS if options.on_host else options.seconds)
    outcomes, known = [], phases(options.on_host)
    for name in options.only or known:
        beside, steps = known[name]
        outcomes += report.run(steps, beside)
        if name == "device" and not outcomes[-1].ok:
            break  # without a device there is nothing to report
    device = next((line["detail"] for outcome in outcomes for line in outcome.lines if "facts" in line), "")
    print("", device, *table(outcomes), sep="\n")
    return int(not all(outcome.ok for outcome in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
