"""Checks overnight what is worth more time than `make test` has, and prints one page: `make verify`.

golden       every stored value of other programs: all lines of the tables, and the tests that read such values
invariants   every test that hypothesis drives, with ten times the examples
sanitizers   the CUDA kernels, compiled for the host, under each sanitizer
recipes      every recipe in small, from corpus to word error rate

The page has counts, the comparisons that used most of their tolerance (a ratio of 1 is all of it), what was left out
and why, and seconds. Status 1 if anything failed or a part found nothing to do.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from fsachain.backends.dispatch import BackendName
from tools.cuda_on_host import Sanitizer
from tools.golden import graphs
from tools.golden.table import SHARED, all_cases

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
BACKENDS: tuple[BackendName, ...] = ("cpu", "reference")
SHOWN = 5  # differences of a part
# Patterns in the text of a test file by which each part finds its tests.
GOLDEN, SANITIZED, RECIPES = "golden", r"\bSanitizer\b", r"(from|import) recipes\b"
RUNS = r"run_recipe\(|compare\.main\("


@dataclass(frozen=True)
class Found:
    """One check: a test, or a line of a table."""

    name: str  # of the test or line
    outcome: str  # "passed", "failed" or "skipped"
    why: str = ""  # the first line of the error, or the reason of skipping
    seconds: float = 0.0  # that it took; 0 for a line of a table
    examples: int = 0  # that hypothesis ran
    ratio: float = (
        0.0  # the largest share of a tolerance that was used, where anything was compared within one
    )
    difference: float = 0.0  # that of the same comparison
    text: str = ""  # all that pytest says of a failure


@dataclass
class Part:
    name: str
    found: list[Found] = field(default_factory=list)
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    def count(self, outcome: str) -> int:
        return sum(one.outcome == outcome for one in self.found)

    @property
    def good(self) -> bool:
        """Nothing failed, and something passed."""
        return self.count("failed") == 0 and self.count("passed") > 0


def test_files(pattern: str) -> list[str]:
    """The test files whose text has the pattern: new ones are taken in by themselves."""
    return [
        str(path.relative_to(ROOT))
        for path in sorted(TESTS.rglob("test_*.py"))
        if re.search(pattern, path.read_text(encoding="utf-8"))
    ]


def run_tests(arguments: Sequence[str], workers: int, profile: str = "default") -> Iterator[Found]:
    """Run pytest in a process of its own; a run that ends early is a failure."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.jsonl"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tools.verify_record", f"--record={record}"]
        command += ["-n", str(workers)] if workers > 1 else []
        environment = {**os.environ, "HYPOTHESIS_PROFILE": profile, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*command, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        lines = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
    for test in map(json.loads, lines):
        ratio, difference = test.get("worst", (0.0, 0.0))
        yield Found(
            test["test"].removeprefix("tests/"),
            test["outcome"],
            test["why"],
            test["seconds"],
            test.get("examples", 0),
            ratio,
            difference,
            test.get("text", ""),
        )
    if done.returncode not in (0, 1):  # 1: tests failed, each of which has its line
        told = (done.stdout + done.stderr).strip().splitlines() or [""]
        yield Found("pytest", "failed", f"status {done.returncode}: {told[-1]}")


def table_rows(shared: Path) -> Iterator[Found]:
    """Lines of the tables of stored values, and of graphs."""
    for backend in BACKENDS:
        for case in all_cases(shared):
            for row in case.rows(backend):
                name = f"{case.name}, {row.quantity}, {backend}"
                outcome = "passed" if row.agrees else "failed"
                why = "" if row.agrees else f"differs by {row.difference:.2e}, allowed {row.allowed:.1e}"
                yield Found(name, outcome, why, ratio=row.ratio, difference=row.difference)
    for folder in graphs.cases(shared):
        for line in graphs.rows(folder):
            why = (
                ""
                if line.agrees
                else f"differs by {line.difference:.2e}, states {line.states}, arcs {line.arcs}"
            )
            outcome = "passed" if line.agrees else "failed"
            ratio = line.difference / line.allowed
            yield Found(f"{line.case}, {line.graph}", outcome, why, ratio=ratio, difference=line.difference)


def golden(workers: int) -> Part:
    part = Part("golden")
    part.found = list(table_rows(SHARED))
    part.notes.append(f"{len(part.found)} lines of tables, by {' and '.join(BACKENDS)}, and of graphs")
    if not part.found:
        part.found.append(Found("tables", "skipped", f"the folder {SHARED.name} has no golden values"))
    part.found += run_tests(["-m", "not hypothesis", *test_files(GOLDEN)], workers)
    return part


def invariants(workers: int) -> Part:
    """All tests of hypothesis; the profile is in tests/conftest.py."""
    part = Part("invariants", list(run_tests(["-m", "hypothesis", "tests"], workers, "thorough")))
    driven = [test for test in part.found if test.examples]
    if not driven:
        part.found.append(Found("hypothesis", "failed", "says of no test how many examples it ran"))
    part.notes.append(f"{len(driven)} tests ran {sum(test.examples for test in driven):,} examples")
    return part


def sanitizers(workers: int) -> Part:
    """All tests of kernels under a sanitizer; each has to have been used."""
    part = Part("sanitizers", list(run_tests(test_files(SANITIZED), workers)))
    for sanitizer in Sanitizer:
        name = sanitizer.name.lower()
        mine = re.compile(rf"\[(.*-)?{name}[-\]]")  # among the parameters of a test
        count = sum(bool(mine.search(test.name)) and test.outcome == "passed" for test in part.found)
        part.notes.append(f"{count} tests under {name.replace('_', ' ')}")
        if not count:
            part.found.append(Found(name, "failed", "no test ran under this sanitizer"))
    return part


def recipes(workers: int) -> Part:
    """All tests of recipes; one of them has to run each folder of recipes/."""
    part = Part("recipes", list(run_tests(test_files(RECIPES), workers)))
    part.notes.append(", ".join(_recipe_names()))
    part.found += [Found(name, "failed", "no test runs this recipe") for name in recipes_not_run()]
    return part


def _recipe_names() -> list[str]:
    return sorted({path.parent.name for path in (ROOT / "recipes").glob("*/*.yaml")})


def recipes_not_run() -> list[str]:
    """Names of recipes that no file of those that run recipes speaks of."""
    text = "".join((ROOT / name).read_text(encoding="utf-8") for name in test_files(RUNS))
    return [name for name in _recipe_names() if not re.search(rf"\b{name}\b", text)]


PARTS: dict[str, Callable[[int], Part]] = {
    "golden": golden,
    "invariants": invariants,
    "sanitizers": sanitizers,
    "recipes": recipes,
}


def page(parts: Sequence[Part]) -> str:
    packages = ", ".join(f"{name} {metadata.version(name)}" for name in ("numpy", "torch", "numba"))
    lines = [
        f"fsachain verify, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        f"Python {platform.python_version()}, {packages}, {platform.machine()}, {os.cpu_count()} processors",
        "",
        f"{'part':12}{'passed':>8}{'failed':>8}{'skipped':>9}{'examples':>10}{'worst ratio':>13}{'seconds':>9}",
    ]
    for part in parts:
        worst = max((one.ratio for one in part.found), default=0.0)
        examples = sum(one.examples for one in part.found)
        counts = "".join(f"{part.count(kind):>{width}}" for kind, width in (("passed", 8), ("failed", 8)))
        lines.append(
            f"{part.name:12}{counts}{part.count('skipped'):>9}{examples:>10}{worst:>13.3f}{part.seconds:>9.0f}"
        )
    lines += ["", *(f"{part.name}: {note}" for part in parts for note in part.notes)]
    lines += ["", "worst differences: ratio to what is allowed, difference, where"]
    for part in parts:
        near = sorted(part.found, key=lambda one: one.ratio, reverse=True)[:SHOWN]
        lines += [f"  {one.ratio:6.3f}  {one.difference:9.2e}  {one.name}" for one in near if one.ratio > 0.0]
    lines += _reasons(parts)
    good = all(part.good for part in parts)
    total = sum(part.seconds for part in parts)
    return "\n".join([*lines, "", f"{'all is well' if good else 'NOT WELL'}, {total:.0f} seconds"])


def _reasons(parts: Sequence[Part]) -> list[str]:
    skipped = Counter(one.why for part in parts for one in part.found if one.outcome == "skipped")
    failed = [one for part in parts for one in part.found if one.outcome == "failed"]
    empty = [part.name for part in parts if not part.count("passed")]
    lines = ["", "left out"] if skipped else []
    lines += [f"  {count:4}  {why}" for why, count in skipped.most_common()]
    lines += ["", "FAILED"] if failed or empty else []
    lines += [f"  {one.name}: {one.why}" for one in failed]
    return lines + [f"  {name}: nothing passed" for name in empty]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="tools.verify", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--part", choices=PARTS, action="append", help="only this one; may be given several times"
    )
    parser.add_argument(
        "--workers", type=int, default=2, help="processes that run tests, one part at a time (default 2)"
    )
    parser.add_argument(
        "--failures", type=Path, default=Path("build/verify.txt"), help="file for failures in full"
    )
    options = parser.parse_args(arguments)
    parts = []
    for name in options.part or PARTS:
        started = time.monotonic()
        part = PARTS[name](options.workers)
        part.seconds = time.monotonic() - started
        parts.append(part)
        told = ", ".join(f"{part.count(outcome)} {outcome}" for outcome in ("passed", "failed", "skipped"))
        print(f"{name}: {told}, {part.seconds:.0f} seconds", file=sys.stderr, flush=True)
    print(page(parts))
    texts = [f"{one.name}\n{one.text}\n" for part in parts for one in part.found if one.text]
    if texts:
        options.failures.parent.mkdir(parents=True, exist_ok=True)
        options.failures.write_text("\n".join(texts), encoding="utf-8")
        print(f"in full: {options.failures}")
    return 0 if all(part.good for part in parts) else 1


if __name__ == "__main__":
    sys.exit(main())
