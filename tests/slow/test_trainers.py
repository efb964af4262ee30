"""Batches with graphs in the trainers that people use: Lightning, accelerate, Hugging Face's, and FSDP of torch itself.

Their packages stand in an environment of their own, which `make test-trainers` and `make test-all` create; elsewhere these
tests are skipped. FSDP needs torch alone.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(os.environ.get("FSACHAIN_TRAINERS_PYTHON", ROOT / "build" / "trainers" / "bin" / "python"))
PROGRAMS = Path(__file__).with_name("trainer_programs.py")


def run(python, program, folder):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "WANDB_DISABLED": "true"}
    done = subprocess.run(
        [python, PROGRAMS, program, folder],
        capture_output=True,
        encoding="utf-8",
        env=environment,
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-1] == "done"


@pytest.mark.parametrize("program", ["lightning", "accelerate", "transformers"])
def test_a_trainer_hands_graphs_on_whole_and_trains_as_a_plain_loop_does(program, tmp_path):
    if not PYTHON.exists():
        pytest.skip(f"no environment of the trainers ({PYTHON}); make test-trainers creates it")
    run(PYTHON, program, tmp_path)


def test_fully_sharded_modules_get_graphs_whole(tmp_path):
    run(sys.executable, "fsdp", tmp_path)
