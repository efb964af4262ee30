"""Checks overnight what is worth more time than `make test` has, and prints one page: `make verify`.

golden       every stored value of other programs: all lines of the tables, and the tests that read such values
invariants   every test that hypothesis drives, with ten times the examples
sanitizers   the CUDA kernels, compiled for the host, under each sanitizer
recipes      every recipe in small, from corpus to word error rate

The page has a line for each command: its last words and its seconds. All that they say stands in --out. Status 1 if anything
failed, or if a command found nothing to do.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
Command = list[str]


def test_files(pattern: str) -> list[str]:
    """The test files whose text has the pattern: new ones are taken in by themselves."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(path) for path in paths if re.search(pattern, path.read_text(encoding="utf-8"))]


def commands(workers: int) -> dict[str, list[Command]]:
    """Those of each part, as arguments of the interpreter."""
    pytest = ["-m", "pytest", "-q", *(["-n", str(workers)] if workers > 1 else [])]
    tables = [["-m", "tools.golden.table", "--backend", name] for name in ("cpu", "reference")]
    return {
        "golden": [
            *tables,
            ["-m", "tools.golden.graphs"],
            [*pytest, "-m", "not hypothesis", *test_files("golden")],
        ],
        "invariants": [[*pytest, "-m", "hypothesis", "tests"]],
        "sanitizers": [[*pytest, *test_files(r"\bSanitizer\b")]],
        "recipes": [[*pytest, *test_files(r"(from|import) recipes\b")]],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="tools.verify", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=commands(1), action="append", help="only this one; may be repeated")
    parser.add_argument("--workers", type=int, default=2, help="processes that run tests (default 2)")
    parser.add_argument(
        "--out", type=Path, default=Path("build/verify.txt"), help="file for all that is said"
    )
    options = parser.parse_args(arguments)
    parts = commands(options.workers)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    good = True
    with options.out.open("w", encoding="utf-8") as out:
        for part in options.part or parts:
            profile = "thorough" if part == "invariants" else "default"  # of tests/conftest.py
            environment = {**os.environ, "HYPOTHESIS_PROFILE": profile, "OMP_NUM_THREADS": "1"}
            for command in parts[part]:
                started = time.monotonic()
                done = subprocess.run(
                    [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True
                )
                said = done.stdout + done.stderr
                print(*command, said, sep="\n", file=out, flush=True)
                last = (said.strip().splitlines() or [""])[-1]
                # pytest succeeds where all was skipped, too
                well = done.returncode == 0 and ("pytest" not in command or "passed" in last)
                good &= well
                seconds = time.monotonic() - started
                word = "ok" if well else "NOT WELL"
                print(f"{part:12}{word:10}{last}  ({' '.join(command[1:4])}, {seconds:.0f} s)", flush=True)
    print(f"{'all is well' if good else 'NOT WELL'}; in full: {options.out}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
