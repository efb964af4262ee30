"""The library on other systems than the one that runs the tests, as far as Linux can act like them.

Windows and macOS themselves are untested. What is known to differ there is taken away in a process of its own: modules
that only POSIX has, a home that can be written, paths of plain letters.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
WORK = Path(__file__).with_name("platform_work.py")
ODD = "Räume mit 空白 и пробелы"


def run(root, folder, mode, **environment):
    """The lines that `platform_work.py` prints, with the package and the tests of this root."""
    path = os.pathsep.join(map(str, (root, root / "tests")))
    done = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", root / "tests" / WORK.name, folder, mode],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": path, "PYTHONUTF8": "1", **environment},
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def test_everything_imports_and_every_loss_works_without_what_only_posix_has(tmp_path):
    imported, _ = run(ROOT, tmp_path, "blocked")
    needed = {"fsachain.files", "fsachain.table", "fsachain.loss.rnnt", "fsachain.backends.cuda.device"}
    assert needed <= set(imported.split())


@pytest.fixture
def odd_checkout(tmp_path):
    """A copy of package and tests under a path of spaces and letters of three scripts."""
    root = tmp_path / ODD / "fsachain"
    for name in ("fsachain", "kernels"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "tests").mkdir()
    for name in (WORK.name, "loss_calls.py"):
        shutil.copy(ROOT / "tests" / name, root / "tests" / name)
    return root


def test_paths_with_spaces_and_any_letters_and_a_home_that_nobody_may_write(odd_checkout, tmp_path):
    """The home is a file, since permissions do not stop root."""
    home = tmp_path / "home"
    home.write_text("no folder", encoding="utf-8")
    work = tmp_path / ODD / "Arbeit"
    work.mkdir()
    environment = {"HOME": str(home), "USERPROFILE": str(home), "XDG_CACHE_HOME": str(home / "cache")}
    *_, package = run(odd_checkout, work, "reference", **environment)
    assert Path(package) == odd_checkout / "fsachain"
