"""Benchmarks: yardsticks do the work that they are compared with; those of a GPU as far as that goes without one.

Values, tables, and how steps end; no test looks at a time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tolerances
import torch
from device_arrays import needs_host_compiler

from fsachain import forward_backward
from tools import ROOT, gpu_driver, gpu_pack
from tools import gpu_report as whole_report
from tools.bench import gpu_report, host_time, tables, workloads, yardstick
from tools.bench.gpu_cases import MAKERS
from tools.bench.workloads import TINY
from tools.gpu_results import told

CPU = torch.device("cpu")
BLOCKED = ("numba", "llvmlite", "hypothesis", "__editable__", "__wt_finder")


@pytest.fixture(scope="module")
def values(tmp_path_factory):
    folder = tmp_path_factory.mktemp("values")
    gpu_pack.write(workloads.seeded(TINY), TINY, folder)
    return folder


@needs_host_compiler
def test_a_call_launches_and_computes_as_little_as_is_known_to_do():
    """Launches, and functions of Python that are entered: they, not a clock of a busy machine, say what the host does."""
    with host_time.empty_driver(33) as cupy:
        for name, call in host_time.cases(cupy).items():
            for _ in range(2):
                call()
            launches, functions = host_time.work(call)
            most = {"denominator": (16, 270), "numerators": (11, 213), "CTC": (15, 272)}[name]
            assert launches <= most[0] and functions <= most[1], (
                f"{name}: {launches} launches, {functions} functions"
            )


@pytest.mark.parametrize("table", MAKERS)
def test_a_result_that_differs_from_the_carried_values_is_told_and_not_timed(values, table, capsys):
    case, bench = MAKERS[table](workloads.seeded(TINY), TINY)[0], gpu_report.Bench(TINY, CPU, values)
    assert case.compare(values / case.file, CPU)[0] <= 1.0
    wrong = replace(case, loss=lambda scores: 1.001 * case.loss(scores))
    assert not bench.rows(wrong)
    lines = [told(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["ok"] for line in lines] == [False, False] and "not timed" in lines[1]["detail"]


def test_a_row_that_fails_takes_no_other_with_it(values, monkeypatch, capsys):
    case, bench = MAKERS["transducer"](workloads.seeded(TINY), TINY)[0], gpu_report.Bench(TINY, CPU, values)
    monkeypatch.setattr(bench, "_peak", lambda call: 1 / 0)
    assert not bench.rows(case)
    lines = {line["item"]: line["ok"] for line in map(told, capsys.readouterr().out.splitlines()) if line}
    assert [lines[f"{case.name}{what}"] for what in ("", ": memory", ": host")] == [True, False, True]


def test_kernels_of_a_call_are_added_up_by_name_and_those_that_take_most_are_told():
    taken = [("forward", 3000.0), ("void at::fill", 2.0), ("backward", 4000.0), ("forward", 1.0)]
    taken += [(f"small {n}", 0.5) for n in range(8)]
    figures = gpu_report.kernel_figures(taken)
    assert list(figures)[:4] == ["ms", "launches", "ms backward", "ms forward"]
    assert figures["ms forward"] == pytest.approx(3.001) and figures["launches"] == 12
    assert figures["ms"] == pytest.approx(7.007) and len(figures) == 2 + gpu_report.MOST_KERNELS


@pytest.mark.parametrize(("leak", "dtype"), [(0.0, np.float64), (0.3, np.float32)])
def test_the_plain_loop_computes_what_the_backends_compute(leak, dtype):
    batch = workloads.seeded(TINY).denominator.batch(5)
    scores = workloads.random_scores(5, 12, TINY.pdfs)
    columns = yardstick.plain_scores(batch.table(0), scores, dtype)
    occupancy = np.full_like(columns, np.nan)
    graph = yardstick.plain_graph(batch.table(0), dtype)
    log_z = yardstick.plain_forward_backward(graph, columns.dtype.type(leak), columns, occupancy)
    expected = forward_backward(batch, scores, leaky_hmm_coefficient=leak, backend="reference")
    limit = tolerances.log_prob_tolerance(log_z.max())
    np.testing.assert_allclose(log_z, expected.log_prob, rtol=0, atol=limit)
    ours = expected.occupancy[:, :, batch.table(0).active_pdfs].transpose(1, 2, 0)
    np.testing.assert_allclose(occupancy, ours, rtol=0, atol=tolerances.OCCUPANCY)


def test_all_ctc_losses_of_the_host_give_one_gradient():
    work = workloads.seeded(TINY)
    batch = workloads.packed(work.ctc, TINY.labels)
    scores = workloads.random_scores(batch.size, TINY.frames, TINY.labels)
    *ours, theirs = (call().grad.clone() for call in tables.ctc_calls(batch, work.targets, scores).values())
    assert theirs.abs().max() > 0.1
    for gradient in ours:
        torch.testing.assert_close(gradient, theirs, rtol=0, atol=tolerances.PEER_CTC_GRADIENT)


def test_peers_in_plain_torch_have_our_losses_and_gradients():
    cases = [case for table in ("loss", "ctc") for case in MAKERS[table](workloads.seeded(TINY), TINY)]
    for case in cases:
        scores = case.scores(CPU)
        ours, right = case.step(scores).detach(), scores.grad
        for name, peer in case.peers.items():
            theirs = replace(case, loss=peer).step(scores).detach()
            assert np.allclose(ours, theirs, rtol=tolerances.FEW_FLOAT32_TERMS, atol=0), name
            assert np.allclose(right, scores.grad, rtol=0, atol=tolerances.PEER_CTC_GRADIENT), name


def test_a_step_that_hangs_keeps_what_it_told_and_the_next_one_runs(tmp_path):
    said = "from tools.gpu_results import tell; import time; tell('first', True, 'fine');"
    steps = [
        whole_report.Step("hangs", [sys.executable, "-c", f"{said} time.sleep(60)"], 5.0),
        whole_report.Step("dies", [sys.executable, "-c", f"{said} import os; os.abort()"], 30.0),
        whole_report.Step("is silent", [sys.executable, "-c", "print('done')"], 30.0),
        whole_report.Step("is not there", ["no-such-program"], 30.0),
        whole_report.Step("is well", [sys.executable, "-c", said], 30.0),
    ]
    outcomes = whole_report.Report(tmp_path).run(steps, 1)
    assert [outcome.ok for outcome in outcomes] == [False, False, False, False, True]
    assert "not done after 5 s" in outcomes[0].detail and "told nothing" in outcomes[2].detail
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line.get("item") == "first"] == ["hangs", "dies", "is well"]
    assert whole_report.table(outcomes)[-1].startswith("FAILED is not there")


def test_every_family_and_every_test_has_its_step():
    steps = whole_report.phases(on_host=False)
    assert {name for names in whole_report.FAMILIES for name in names} == set(gpu_driver.FAMILIES)
    assert len(steps["tests"][1]) > 20 and len(steps["families"][1]) == len(gpu_driver.FAMILIES)


def bare_python(folder: Path) -> Path:
    """An interpreter with the packages of this one, but for numba, hypothesis and this package."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for path in Path(np.__file__).parents[1].iterdir():
        if (
            not path.name.lstrip("_").startswith(tuple(name.lstrip("_") for name in BLOCKED))
            and path.suffix != ".pth"
        ):
            (packages / path.name).symlink_to(path)
    return folder / "bin" / "python"


@needs_host_compiler
def test_a_dry_run_from_a_bare_clone_without_numba_and_hypothesis_finds_nothing_missing(values, tmp_path):
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
    (clone / "build" / "gpu").mkdir(parents=True)
    (clone / "build" / "gpu" / "tiny").symlink_to(values)
    (clone / "build" / "cuda_on_host").symlink_to(ROOT / "build" / "cuda_on_host")
    python = bare_python(tmp_path / "python")
    for package in ("numba", "hypothesis", "fsachain"):
        assert subprocess.run(
            [python, "-c", f"import {package}"], cwd=tmp_path, capture_output=True
        ).returncode
    only = "device,compile,families,bench,tests"
    command = [python, "tools/gpu_report.py", "--on-host", "--only", only, "--out", tmp_path / "out"]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    steps = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    assert {line["step"].partition(":")[0] for line in steps} == {
        "device",
        "compile",
        "family",
        "bench",
        "test",
    }


def test_a_family_that_does_not_reach_its_kernels_has_failed(monkeypatch, capsys):
    family = gpu_driver.FAMILIES["penalties"]
    monkeypatch.setitem(
        gpu_driver.FAMILIES, "penalties", replace(family, launched=(("penalties.cu", {"CLUSTER": 4}),))
    )
    assert not gpu_driver.run("penalties", on_host=True)
    assert "with {'CLUSTER': 4} was launched" in capsys.readouterr().out
