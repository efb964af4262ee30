"""`make test-library`: the library's tests in a copy of the checkout without the application.

The copy, in build/library/checkout, has neither fsachain/asr nor the command, the recipes and the application's tests. All
the library's tests run there but those of tests/slow and tests/gpu. `.ci/run` runs the library's tests here and only here,
so that they cost their time once; `make test` then needs the application's tests alone.

What the command line gives is passed on to pytest.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools import ROOT, SHARED

PLACE = ROOT / "build" / "library"
FOLDERS = ("docs", "fsachain", "kernels", "tests", "tools")
FILES = ("pyproject.toml", "setup.cfg", "constraints.txt", "README.md", "CHANGELOG.md")
APPLICATION = ("fsachain/asr", "fsachain/__main__.py", "tests/asr", "tests/slow", "tests/gpu")
# Fails if Python finds the application, or a library other than the copy's.
CHECK = """
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import fsachain

assert Path(fsachain.__file__).is_relative_to(sys.argv[1]), fsachain.__file__
assert find_spec("fsachain.asr") is None and find_spec("fsachain.__main__") is None
for path in sorted(Path(sys.argv[1], "fsachain").rglob("*.py")):
    parts = path.relative_to(sys.argv[1]).with_suffix("").parts
    import_module(".".join(parts).removesuffix(".__init__"))
"""

# Python runs a module of this name when it starts. .venv has the checkout as an editable package, whose finder would
# find `fsachain.asr` there.
START = """
import sys

sys.meta_path[:] = [finder for finder in sys.meta_path if not getattr(finder, "__module__", "").startswith("__editable__")]
"""


def copy_library(target: Path) -> None:
    """Copy the checkout without the application to `target`.

    Args:
        target: the folder of the copy; what it holds is replaced.
    """
    shutil.rmtree(target, ignore_errors=True)
    left_out = {ROOT / name for name in APPLICATION}

    def ignored(folder: str, names: list[str]) -> set[str]:
        return {name for name in names if name == "__pycache__" or Path(folder, name) in left_out}

    target.mkdir(parents=True)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, target / name, ignore=ignored)
    for name in FILES:
        shutil.copy(ROOT / name, target / name)


def main() -> int:
    """Copy the library, import each of its modules, and run its tests."""
    checkout = PLACE / "checkout"
    copy_library(checkout)
    shared = PLACE / "shared"  # where the tests look for golden values: next to their checkout
    if SHARED.is_dir() and not shared.exists():
        shared.symlink_to(SHARED, target_is_directory=True)
    start = PLACE / "start"
    start.mkdir(exist_ok=True)
    (start / "sitecustomize.py").write_text(START, encoding="utf-8")
    paths = os.pathsep.join([str(start), str(checkout)])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", CHECK, str(checkout)], cwd=checkout, env=environment, check=True)
    tests = [sys.executable, "-m", "pytest", "-q", *sys.argv[1:]]
    return subprocess.run(tests, cwd=checkout, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
