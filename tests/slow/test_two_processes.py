"""Two processes over gloo by Lightning and by accelerate, in the environment that `make test-trainers` creates."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(os.environ.get("FSACHAIN_TRAINERS_PYTHON", ROOT / "build" / "trainers" / "bin" / "python"))
PROGRAMS = Path(__file__).with_name("process_programs.py")


@pytest.mark.parametrize("program", ["lightning", "accelerate"])
def test_two_processes_have_the_gradients_of_one(program, tmp_path):
    if not PYTHON.exists():
        pytest.skip(f"no environment of the trainers ({PYTHON}); make test-trainers creates it")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    done = subprocess.run(
        [PYTHON, PROGRAMS, program, tmp_path],
        capture_output=True,
        encoding="utf-8",
        env=environment,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-1] == "done"
