"""`fsachain warmup` leaves nothing to be compiled to the work that it is for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fsachain.cli.warmup import JOBS

ROOT = Path(__file__).resolve().parents[2]
WORK = """
import torch, fsachain
scores = torch.randn(5, 300, 50, requires_grad=True)
loop = fsachain.Fsa(1, [0] * 50, [0] * 50, list(range(50)), [-4.0] * 50, [0.0])
said = [fsachain.Fsa(3, [0, 1, 1], [1, 1, 2], [n, n, 7], [-0.1] * 3, [-float("inf")] * 2 + [0.0]) for n in range(5)]
loss = fsachain.LFMMILoss(fsachain.DenominatorGraph(loop, 50), leaky_hmm_coefficient=0.2, l2_regularize=1e-3)
for factor in (1, 500):
    loss(scores * factor, [300, 300, 90, 80, 3], said).backward()
"""


def run(folder, *arguments):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    environment.pop("FSACHAIN_QUIET", None)
    return subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )


def test_losses_compile_nothing_after_it(tmp_path):
    run(tmp_path, "-m", "fsachain", "warmup")
    made = sorted(tmp_path.rglob("*.nbk"))
    assert made
    told = run(tmp_path, "-c", WORK).stderr
    assert "compiling" not in told
    assert sorted(tmp_path.rglob("*.nbk")) == made


@pytest.mark.parametrize("job", JOBS)
def test_every_job_runs(job):
    JOBS[job](2, 1.0, torch.float32)
