"""What a release needs, checked: `python -m tools.release --check`; `--build DIR` makes the files that are uploaded.

versions     the version stands in `fsachain/__init__.py` alone, and CITATION.cff has the same
changelog    CHANGELOG.md begins with this version, and says nothing of a release that is still to come
classifiers  every CPython from the oldest that is allowed on, and no more
git          nothing that is not committed
links        every link to a file of the repository leads to one
packages     sdist and wheel are built, the wheel from the sdist; each has what it needs, and one version
docs         the documentation builds as a site, without a warning
tests        `make check` and `make test` pass

Each line is "ok" or what is wrong; status 1 if anything is. `--only links,changelog` checks these alone. Uploading to an
index is for a person: `python -m twine upload DIR/*`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from email.parser import HeaderParser
from pathlib import Path

import yaml

from tools import ROOT, parser_of

OLDEST, NEWEST = (3, 11), (3, 14)  # CPython
SKIPPED = ("exp/", "build/")
_LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s#]+)(?:#[^)\s]*)?\)")
_HEADING = re.compile(r"^## (?P<version>\S+)(?P<note>.*)$", re.MULTILINE)
_BUILD = "import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"
NEEDED = {
    "sdist": (
        "setup.cfg",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "CITATION.cff",
        "CONTRIBUTING.md",
    ),
    "wheel": ("fsachain/py.typed", "fsachain/__init__.pyi", "fsachain/kernels/log_add.cuh"),
}


def version() -> str:
    """Return the version, as `fsachain/__init__.py` has it."""
    text = (ROOT / "fsachain" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    assert found is not None
    return found[1]


def settings() -> ConfigParser:
    """Return setup.cfg."""
    config = ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    return config


def tracked() -> list[str]:
    """Return the files of the repository, in which nothing is that git does not know."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name]


def build_distributions(folder: Path) -> tuple[Path, Path]:
    """Build an sdist of the tracked files and a wheel from that sdist, as `python -m build` does, with our setuptools."""
    source = folder / "source"
    for name in tracked():
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    sdist = _build("sdist", source, folder)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    return sdist, _build("wheel", unpacked, folder)


def _build(kind: str, source: Path, folder: Path) -> Path:
    out = folder / kind
    out.mkdir()
    command = [sys.executable, "-c", _BUILD.format(kind=kind), str(out)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{kind} was not built:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    (found,) = out.iterdir()
    return found


def check_versions() -> Iterator[str]:
    stated = settings()["metadata"]["version"]
    if stated != "attr: fsachain.__version__":
        yield f"setup.cfg has version = {stated}; expected attr: fsachain.__version__"
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"]
    if str(cited) != version():
        yield f"CITATION.cff has version {cited}; fsachain/__init__.py has {version()}"


def check_changelog() -> Iterator[str]:
    headings = list(_HEADING.finditer((ROOT / "CHANGELOG.md").read_text(encoding="utf-8")))
    first = headings[0]
    if first["version"] != version():
        yield f"CHANGELOG.md begins with {first[0]!r}; expected the changes of {version()} there"
    for heading in headings:
        if "not released" in heading["note"]:
            yield f"CHANGELOG.md: {heading[0]!r}; expected the day of the release"


def check_classifiers() -> Iterator[str]:
    prefix = "Programming Language :: Python :: 3."
    stated = [line for line in settings()["metadata"]["classifiers"].split("\n") if line.startswith(prefix)]
    expected = [f"{prefix}{minor}" for minor in range(OLDEST[1], NEWEST[1] + 1)]
    if stated != expected:
        yield f"setup.cfg has {stated}; expected {expected}"
    required = settings()["options"]["python_requires"]
    if required != f">={OLDEST[0]}.{OLDEST[1]}":
        yield f"setup.cfg has python_requires {required}; expected >={OLDEST[0]}.{OLDEST[1]}"


def check_git() -> Iterator[str]:
    listed = subprocess.run(
        ["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for line in listed.stdout.splitlines()[:5]:
        yield f"not committed: {line}"


def check_links() -> Iterator[str]:
    for name in tracked():
        if not name.endswith(".md") or name.startswith(SKIPPED):
            continue
        page = ROOT / name
        for target in _LINK.findall(_without_code(page.read_text(encoding="utf-8"))):
            if not (page.parent / target).exists():
                yield f"{name}: no {target}"


def _without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def check_packages() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        sdist, wheel = build_distributions(Path(folder))
        with tarfile.open(sdist) as archive:
            held = {name.partition("/")[2] for name in archive.getnames()}
        yield from (f"{sdist.name} lacks {name}" for name in NEEDED["sdist"] if name not in held)
        with zipfile.ZipFile(wheel) as packed:
            names = set(packed.namelist())
            (place,) = (name for name in names if name.endswith(".dist-info/METADATA"))
            metadata = HeaderParser().parsestr(packed.read(place).decode("utf-8"))
        yield from (f"{wheel.name} lacks {name}" for name in NEEDED["wheel"] if name not in names)
        ours = {name for name in tracked() if name.startswith("fsachain/") and name.endswith(".py")}
        yield from (f"{wheel.name} lacks {name}" for name in sorted(ours - names))
        if metadata["Version"] != version():
            yield f"{wheel.name} has version {metadata['Version']}; expected {version()}"


def check_docs() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        yield from _run(sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", folder)


def check_tests() -> Iterator[str]:
    yield from _run("make", "check")
    yield from _run("make", "test")


def _run(*command: str) -> Iterator[str]:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        yield f"{' '.join(command)} ends with status {done.returncode}: {(done.stdout + done.stderr)[-1500:]}"


CHECKS: dict[str, Callable[[], Iterator[str]]] = {
    name: globals()[f"check_{name}"]
    for name in ("versions", "changelog", "classifiers", "git", "links", "packages", "docs", "tests")
}


def main() -> int:
    parser = parser_of(__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", action="store_true", help="check, and say what is wrong")
    what.add_argument("--build", metavar="DIR", type=Path, help="build sdist and wheel into this folder")
    parser.add_argument("--only", metavar="NAMES", help=f"of {','.join(CHECKS)}; all by default")
    options = parser.parse_args()
    if options.build:
        options.build.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            for file in build_distributions(Path(folder)):
                (options.build / file.name).write_bytes(file.read_bytes())
                print(options.build / file.name)
        return 0
    wanted = options.only.split(",") if options.only else list(CHECKS)
    if unknown := [name for name in wanted if name not in CHECKS]:
        parser.error(f"--only: {', '.join(unknown)}; expected some of {', '.join(CHECKS)}")
    status = 0
    for name in wanted:
        wrong = list(CHECKS[name]())
        print(f"{name:<12} {'ok' if not wrong else wrong[0]}", flush=True)
        for line in wrong[1:]:
            print(f"{'':<12} {line}", flush=True)
        status = 1 if wrong else status
    return status


if __name__ == "__main__":
    sys.exit(main())
