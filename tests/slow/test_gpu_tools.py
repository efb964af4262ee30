"""The GPU benchmark and report as far as they can be tested without a GPU: arithmetic, tables, files, and how steps end."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from tolerances import OCCUPANCY

from fsachain import compile_table, forward_backward
from fsachain.batch import TableBatch
from tools import gpu_driver
from tools.bench import gpu_report as bench_report
from tools.bench import gpu_tables, gpu_workloads, machine, workloads
from tools.bench.gpu_workloads import GpuSizes

CPU = torch.device("cpu")
TINY_HOST = workloads.Sizes(
    sequences=3, states=10, arcs=40, pdfs=6, numerator_states=8, numerator_pdfs=20, labels=9, label_length=4
)
TINY = GpuSizes(
    long=(3, 10),
    numerators=(2, 12, 9),
    loss=(3, 12),
    ctc=12,
    classes=9,
    bigram=(4, 2, 10),
    transducer=(2, 90, 40, 7),
    copy_bytes=1 << 16,
    product_side=16,
    seconds=0.0,
)


@pytest.fixture(scope="module")
def work():
    return workloads.seeded(TINY_HOST)


def test_the_bigram_denominator_has_every_pair_and_repeats_only_after_a_blank():
    units, frames = 3, 4
    fsa = gpu_workloads.bigram_denominator(units)
    assert fsa.num_arcs == 1 + units + 3 * units + units * (units - 1) + units * units
    leaving = np.bincount(fsa.src, np.exp(fsa.log_prob))
    np.testing.assert_allclose(leaving, 1.0)
    batch = TableBatch.share(compile_table(fsa), 1)
    # A unit, the same again without a blank between, or any other: only self-loops can give 1 1.
    scores = np.full((1, frames, units + 1), -np.inf)
    scores[0, :, 1] = 0.0
    stay = fsa.log_prob[(fsa.src == 1) & (fsa.dst == 1)][0]
    enter = fsa.log_prob[(fsa.src == 0) & (fsa.dst == 1)][0]
    found = forward_backward(batch, scores, backend="reference").log_prob[0]
    assert found == pytest.approx(enter + (frames - 1) * stay)


def test_every_table_is_printed_and_saved_with_its_device(work, capsys, tmp_path):
    names = list(gpu_tables.MAKERS)
    assert bench_report.run(work, TINY, CPU, names, tmp_path / "results") == 0
    assert "FAILED" not in capsys.readouterr().out
    (path,) = (tmp_path / "results").glob("gpu-cpu-*.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    assert list(record["tables"]) == names
    assert record["device"]["torch"] == torch.__version__ and "commit" in record


@pytest.mark.parametrize("script", ["bench_gpu.py", "gpu_report.py"])
def test_without_a_gpu_the_reason_is_printed_and_that_is_no_failure(script, tmp_path):
    command = [sys.executable, str(machine.ROOT / "tools" / script)]
    if bench_report.absent() is None:
        pytest.skip("there is a GPU here")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert bench_report.absent() in done.stdout


def test_the_small_run_for_sanitizers_agrees_with_the_reference():
    found = dict(gpu_driver.errors(CPU))
    assert len(found) == 3 * len(gpu_driver.batches()) + 3
    assert max(found.values()) <= OCCUPANCY
    assert gpu_driver.main("cpu") == 0
