"""Losses inside the toolkits that call them, on models with random weights.

The toolkits stand in an environment of their own, which `make test-trainers` and `make test-all` create; elsewhere these
tests are skipped. NeMo's loss registry and ESPnet's model come from wheels that are installed without what they require.
"""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(os.environ.get("FSACHAIN_TRAINERS_PYTHON", ROOT / "build" / "trainers" / "bin" / "python"))
PROGRAMS = Path(__file__).with_name("integration_programs.py")


@pytest.mark.parametrize(
    "program",
    [
        "transformers_ctc",
        "transformers_transducer",
        "transformers_trainer",
        "nemo",
        "espnet",
        "speechbrain",
        "speechbrain_k2",
    ],
)
def test_a_toolkit_trains_with_our_losses_and_gets_the_values_of_its_own(program, tmp_path):
    if not PYTHON.exists():
        pytest.skip(f"no environment of the toolkits ({PYTHON}); make test-trainers creates it")
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "WANDB_DISABLED": "true"}
    done = subprocess.run(
        [PYTHON, PROGRAMS, program],
        capture_output=True,
        encoding="utf-8",
        env=environment,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-1] == "done"
