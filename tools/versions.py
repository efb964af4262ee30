"""`make test-versions`: the library's tests against other versions of Python, torch, numpy, scipy and numba.

    python -m tools.versions [ROW ...] [--suite losses|library] [--all] [--docs] [--keep]

One wheel is built. For each row a new environment gets it with the versions of that row, and the tests run against what was
installed, not against the checkout. An environment is deleted when its tests are done: a torch with CUDA takes 5 GB.

oldest       the lowest version of everything that setup.cfg allows
torch-2.7    torch 2.7, the rest as constraints.txt has it
pinned       what constraints.txt has
newest       the newest of everything that the index has
python-3.12  and so on: constraints.txt under another interpreter, where there is one

Without a row: oldest and pinned, or with --all every row that can run here. Status 1 if a test failed.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tools import ROOT, parser_of
from tools.release import build_distributions, settings

PAGE = ROOT / "docs" / "versions.md"
BEGIN, END = "<!-- rows: make test-versions ARGS=--docs -->\n", "<!-- end of rows -->\n"
SHOWN = ("torch", "numpy", "scipy", "numba")  # versions in the table
TOOLS = ("pytest>=8.0", "hypothesis>=6.100", "packaging")
# What uses an operator of torch, a kernel of numba or a pickle, and runs in a minute or two.
LOSSES = ("test_facade", "test_losses_alike", "test_walkers")
# What the library is without its application.
LIBRARY = (
    *LOSSES,
    "test_platforms",
    *("test_arcs_and_states", "test_backends_agree", "test_context_tree", "test_ctc_graph", "test_ctc_lanes"),
    *("test_ctc_loss", "test_denominator_graph", "test_every_loss", "test_expand", "asr/test_first_steps"),
    *("asr/test_forced_align", "test_forgiving_losses", "test_fsa", "test_grammar", "test_graphs_at_hand"),
    *("test_invariants", "test_jit", "test_lexicon", "test_loss", "test_mbr", "test_memory_budget"),
    *(
        "test_numerator_graph",
        "test_oracle",
        "test_paths",
        "test_phone_lm",
        "test_rnnt_loss",
        "test_rnnt_pruned",
    ),
    *("test_single_sequence", "test_supervision", "test_table", "test_topology", "test_transducer_chunks"),
    *("test_transducer_grid", "test_transducer_variants"),
)
SUITES = {"losses": LOSSES, "library": LIBRARY}


class Row(NamedTuple):
    """An environment: interpreter, what pip is told to install beside the wheel, and whether constraints.txt holds."""

    python: str
    requirements: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()


def lowest() -> tuple[str, ...]:
    """Return what the library needs, each at the lowest version that setup.cfg allows."""
    config = settings()
    lines = config["options"]["install_requires"] + config["options.extras_require"]["graph"]
    needed = [
        re.fullmatch(r"\s*([\w-]+)\s*>=\s*([\w.]+)\s*", line) for line in lines.split("\n") if line.strip()
    ]
    assert all(needed), lines
    return tuple(f"{found[1]}=={found[2]}" for found in needed if found)


def pins(*without: str) -> tuple[str, ...]:
    """Return the lines of constraints.txt but for these packages."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return tuple(line for line in lines if "==" in line and line.partition("==")[0] not in without)


def rows() -> dict[str, Row]:
    """Return the rows that can run here: an interpreter of each minor version may be absent."""
    main = sys.executable
    found = {
        "oldest": Row(main, lowest()),
        "torch-2.7": Row(main, ("torch==2.7.*",), pins("torch", "sympy", "setuptools")),
        "pinned": Row(main, (), pins()),
        "newest": Row(main),
    }
    for minor in range(12, 15):
        python = _interpreter(minor)
        if python and minor != sys.version_info.minor:
            found[f"python-3.{minor}"] = Row(python, (), pins())
    return found


def _interpreter(minor: int) -> str | None:
    """A CPython 3.`minor` on the path, or one of pyenv that is not selected."""
    folders = [*os.environ.get("PATH", "").split(os.pathsep)]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    folders += [str(one / "bin") for one in pyenv.glob(f"3.{minor}.*")]
    for folder in folders:
        python = shutil.which(f"python3.{minor}", path=folder)
        if python and not subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode:
            return python
    return None


def run_row(name: str, row: Row, wheel: Path, folder: Path, suite: str, keep: bool) -> dict[str, str]:
    """Install the wheel with a row's versions, run the tests, and return a line of the table."""
    print(f"{name}: installing", flush=True)
    place = folder / name
    subprocess.run([row.python, "-m", "venv", "--clear", place], check=True)
    python = place / ("Scripts" if os.name == "nt" else "bin") / "python"
    constraints = place / "constraints.txt"
    constraints.write_text("\n".join(row.constraints), encoding="utf-8")
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    wanted = [f"fsachain[graph] @ {wheel.as_uri()}", *row.requirements, *TOOLS]
    # The upper bound of torch that some machines set for all environments stays, since pip adds constraints up.
    subprocess.run([python, *install, "-c", constraints, *wanted], check=True)
    report = place / "report.xml"
    files = [str(ROOT / "tests" / f"{one}.py") for one in SUITES[suite]]
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    environment |= {"OMP_NUM_THREADS": "1", "NUMBA_CACHE_DIR": str(place / "numba")}
    print(f"{name}: testing", flush=True)
    began = time.monotonic()
    # -P: the installed package, not the checkout in the working directory.
    options = ["-q", "-p", "no:cacheprovider", f"--junit-xml={report}", f"--rootdir={ROOT}"]
    subprocess.run([python, "-P", "-m", "pytest", *options, *files], cwd=folder, env=environment, check=False)
    seconds = time.monotonic() - began
    line = _versions(python) | {"suite": suite, "seconds": f"{seconds:.0f}"} | _counts(report)
    if not keep:
        shutil.rmtree(place)
    return {"row": name, **line, "date": datetime.date.today().isoformat()}


def _versions(python: Path) -> dict[str, str]:
    program = (
        "import json, platform, fsachain; from importlib.metadata import version; "
        "assert 'site-packages' in fsachain.__file__, fsachain.__file__; "
        f"print(json.dumps({{'python': platform.python_version()}} | {{n: version(n) for n in {SHOWN!r}}}))"
    )
    done = subprocess.run([python, "-P", "-c", program], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return {name: value.partition("+")[0] for name, value in found.items()}


def _counts(report: Path) -> dict[str, str]:
    """Passed, failed and skipped tests; without a report pytest itself has failed."""
    text = report.read_text(encoding="utf-8") if report.exists() else ""
    found = {name: int(n) for name, n in re.findall(r'\b(errors|failures|skipped|tests)="(\d+)"', text)}
    if not found:
        return {"passed": "0", "failed": "all", "skipped": "0"}
    failed = found["errors"] + found["failures"]
    passed = found["tests"] - failed - found["skipped"]
    return {"passed": str(passed), "failed": str(failed), "skipped": str(found["skipped"])}


COLUMNS = ("row", "python", *SHOWN, "suite", "passed", "failed", "skipped", "date")


def table(lines: Sequence[dict[str, str]]) -> str:
    """Return the lines as a table of Markdown."""
    head = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"
    return head + "".join(f"| {' | '.join(line[name] for name in COLUMNS)} |\n" for line in lines)


def write_page(lines: Sequence[dict[str, str]]) -> None:
    """Put the lines into the table of docs/versions.md, in the place of those of the same row and suite."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    old, after = rest.split(END)
    known = {(line["row"], line["suite"]): line for line in (*_lines_of(old), *lines)}
    PAGE.write_text(before + BEGIN + table(list(known.values())) + END + after, encoding="utf-8")


def _lines_of(text: str) -> Iterator[dict[str, str]]:
    for line in text.splitlines()[2:]:
        yield dict(zip(COLUMNS, (cell.strip() for cell in line.strip("|").split("|")), strict=True))


def main() -> int:
    known = rows()
    parser = parser_of(__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(known)}")
    parser.add_argument("--suite", choices=SUITES, default="library", help="which tests; library by default")
    parser.add_argument("--all", action="store_true", help="every row that can run here")
    parser.add_argument("--docs", action="store_true", help="put the lines into docs/versions.md")
    parser.add_argument("--keep", action="store_true", help="leave the environments in build/versions")
    options = parser.parse_args()
    wanted = list(known) if options.all else options.rows or ["oldest", "pinned"]
    if unknown := [name for name in wanted if name not in known]:
        parser.error(f"{', '.join(unknown)}: no such row here; expected some of {', '.join(known)}")
    folder = ROOT / "build" / "versions"
    shutil.rmtree(folder / "built", ignore_errors=True)
    (folder / "built").mkdir(parents=True)
    _, wheel = build_distributions(folder / "built")
    lines = []
    for name in wanted:
        lines.append(run_row(name, known[name], wheel, folder, options.suite, options.keep))
        print(table(lines), flush=True)
    if options.docs:
        write_page(lines)
    return int(any(line["failed"] != "0" for line in lines))


if __name__ == "__main__":
    sys.exit(main())
