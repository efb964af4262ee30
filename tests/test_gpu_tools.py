"""The GPU benchmark and report as far as they can be tested without a GPU: arithmetic, tables, files, and how steps end."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from tolerances import OCCUPANCY, PEER_CTC_GRADIENT

from fsachain import compile_table, forward_backward
from fsachain.batch import TableBatch
from tools import gpu_driver, gpu_report
from tools.bench import (
    gpu_calls,
    gpu_limit,
    gpu_tables,
    gpu_timing,
    gpu_transducer,
    gpu_workloads,
    limit,
    machine,
    workloads,
)
from tools.bench import gpu_report as bench_report
from tools.bench.gpu_row import Failure, GpuRow, Target
from tools.bench.gpu_workloads import GpuSizes
from tools.bench.row import Comparison
from tools.bench.timing import Spread, Times

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


class FakeClock:
    """A device on which each job takes as long as it says."""

    def __init__(self):
        self.asked = []

    def seconds(self, run, repeats):
        self.asked.append((run(), repeats))
        return self.asked[-1][0]


def test_jobs_are_timed_in_turns_and_short_ones_are_repeated():
    clock = FakeClock()
    times = gpu_timing.take_turns({"long": lambda: 0.1, "short": lambda: 1e-4}, 0.0, clock)
    assert times["long"] == Times((0.1,) * gpu_timing.MIN_ROUNDS)
    counted = clock.asked[4:]
    assert counted == [(0.1, 1), (1e-4, 20)] * gpu_timing.MIN_ROUNDS


@pytest.mark.parametrize(
    ("seconds", "rounds"), [(0.0, 5), (2.0, 20), (1e9, 50)], ids=["least", "fits", "most"]
)
def test_as_many_rounds_are_run_as_the_time_allows(seconds, rounds):
    assert len(gpu_timing.take_turns({"a": lambda: 0.1}, seconds, FakeClock())["a"].seconds) == rounds


def test_inputs_rotate_and_do_not_fit_the_caches_together():
    seen = []
    call = gpu_timing.rotated([lambda n=n: seen.append(n) for n in range(3)])
    for _ in range(5):
        call()
    assert seen == [0, 1, 2, 0, 1]
    assert [gpu_timing.copies_of(size) for size in (1, 30 << 20, 1 << 30)] == [8, 5, 2]
    scores = gpu_calls.inputs(gpu_calls.Shape(2, 6, 4), CPU)
    assert len({array.data_ptr() for array in scores}) == len(scores) == 8
    assert not torch.equal(scores[0], scores[1]) and all(array.requires_grad for array in scores)


def test_a_row_says_whether_its_target_is_met():
    met = GpuRow("r", 500, Times((2e-3, 1e-3, 4e-3)), Target(8.0, "ms"))
    assert met.verdict == "<= 8 ms: met (0.25 x)" and met.record()["target"] == met.verdict
    missed = GpuRow("m", 0, Times((1e-3,)), Target(4.0, "GB"), peak=5_000_000_000)
    assert missed.verdict == "<= 4 GB: MISSED (1.25 x)" and "5.00 GB" in str(missed)
    assert GpuRow("n", 0, Times((1e-3,))).record()["target"] is None
    assert "4.0000" in str(GpuRow("e", 500_000, Times((2e-3,)))), "ns per arc-evaluation"


def test_the_limit_is_the_larger_of_bytes_and_multiply_adds():
    rates = gpu_limit.Rates(bytes=1e12, multiply_adds=1e13)
    assert rates.limit(limit.Work(10**9, 10**6)) == pytest.approx(2e-4)
    assert rates.limit(limit.Work(10**6, 10**9)) == pytest.approx(1e-3)
    ratio = rates.against(Times((4e-3,)), limit.Work(10**6, 10**9)).ratio
    assert ratio.median == pytest.approx(4.0)
    assert str(rates) == "copy 1.00 TB/s, float32 20.0 TFLOP/s"


def test_rates_are_of_what_was_moved_and_multiplied():
    """Both jobs take a second on this clock."""

    class Second:
        def seconds(self, run, repeats):
            run()
            return 1.0

    rates = gpu_limit.measure_rates(CPU, Second(), 8, 1000, 0.0)
    assert rates == gpu_limit.Rates(2000.0, 512.0)


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


def test_both_ctc_losses_give_one_gradient(work):
    shape = gpu_calls.Shape(3, TINY.ctc, TINY.classes)
    gradients = []
    for loss in (
        gpu_calls.our_ctc(work.targets, TINY.ctc, CPU),
        gpu_calls.torch_ctc(work.targets, TINY.ctc, CPU, torch.int64),
        gpu_calls.torch_ctc(work.targets, TINY.ctc, CPU, torch.int32),
    ):
        gradients.append(gpu_calls.training_calls(loss, shape, CPU)())
    assert gradients[0].abs().max() > OCCUPANCY
    for other in gradients[1:]:
        torch.testing.assert_close(gradients[0], other, rtol=0, atol=PEER_CTC_GRADIENT)


def test_batches_of_a_transducer_have_shapes_of_real_utterances():
    shapes = gpu_transducer.utterances(1000)
    drawn = gpu_transducer.random_batch(shapes, 30, 500, CPU)
    together = gpu_transducer.sorted_batch(shapes, 10_000, 500, CPU)
    assert (
        drawn.shape[0] == 30
        and 350 < drawn.shape[1] <= 680
        and drawn.targets.shape == (30, drawn.shape[2] - 1)
    )
    size, frames, _, _ = together.shape
    assert size * frames <= 10_000 < (size + 2) * frames
    assert together.frames.max() - together.frames.min() <= 5
    nodes = sum(int(t) * (int(u) + 1) for t, u in zip(drawn.frames, drawn.labels, strict=True))
    assert drawn.work == limit.Work(2 * nodes, 12 * 500 * nodes)
    assert drawn.num_bytes > 4 * 500 * nodes


def test_the_transducer_that_is_timed_leaves_its_gradient_in_place_of_the_logits():
    batch = gpu_transducer.random_batch(gpu_transducer.utterances(40), 2, 7, CPU)
    gradient = gpu_transducer.training_call(gpu_transducer.ours, batch, CPU)()
    assert gradient.shape == batch.shape and gradient.abs().max() > OCCUPANCY
    torch.testing.assert_close(gradient.sum(dim=3), torch.zeros(batch.shape[:3]), rtol=0, atol=OCCUPANCY)


def test_numerators_have_the_arcs_of_the_target():
    full = gpu_workloads.numerator_batch(GpuSizes(numerators=(1, 700, 401)), 2000)
    assert full.table(0).num_arcs == 1000


def test_every_table_is_printed_and_saved_with_its_device(work, capsys, tmp_path):
    names = list(gpu_tables.MAKERS)
    assert bench_report.run(work, TINY, CPU, names, tmp_path / "results") == 0
    text = capsys.readouterr().out
    assert "FAILED" not in text
    (path,) = (tmp_path / "results").glob("gpu-cpu-*.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    assert path.name == f"gpu-cpu-{record['date']}.json"
    assert set(record["device"]["rates"]) == {"bytes", "multiply_adds"}
    assert record["device"]["torch"] == torch.__version__ and "commit" in record
    assert list(record["tables"]) == names
    (arcs,) = {row["arc_evaluations"] for row in record["tables"]["denominator"]}
    assert arcs == 40 * 10 * 3
    targets = text[text.index("\ntargets") :]
    size, frames, longest, classes = TINY.transducer
    shapes = gpu_transducer.utterances(longest)
    batches = (
        gpu_transducer.random_batch(shapes, size, classes, CPU),
        gpu_transducer.sorted_batch(shapes, frames, classes, CPU),
    )
    assert [line.split("<= ")[1].split(":")[0] for line in targets.splitlines() if "<=" in line] == [
        "8 ms",
        "3 ms",
        "3 ms",
        "0.4 ms",
        "4 GB",
        "10 ms",
        f"{batches[0].most_gigabytes:g} GB",
        "10 ms",
        f"{batches[1].most_gigabytes:g} GB",
    ]
    ratios = record["tables"]["ctc"][0]["ratios"]
    assert set(ratios) == {"limit", "torch"} and all(value["median"] > 0 for value in ratios.values())


def test_a_table_that_fails_leaves_the_others_and_is_told_at_the_end(work, capsys, monkeypatch):
    def fail(bench):
        raise MemoryError("out of memory")

    monkeypatch.setitem(gpu_tables.MAKERS, "loss", fail)
    assert bench_report.run(work, TINY, CPU, ["loss", "numerators"], None) == 1
    text = capsys.readouterr().out
    assert text.splitlines()[-1].split() == ["loss", "FAILED:", "MemoryError:", "out", "of", "memory"]
    assert "numerators, B 2" in text


def test_the_summary_has_a_line_for_each_target_and_failure():
    rows = [
        GpuRow(
            "a", 0, Times((2e-3,)), Target(1.0, "ms"), comparisons=(Comparison("limit", Spread(2, 1, 3)),)
        ),
        GpuRow("b", 0, Times((2e-3,))),
        Failure("c", "no"),
    ]
    lines = bench_report.summary(rows)
    assert len(lines) == 2 and "MISSED (2.00 x)" in lines[0] and "c" in lines[1]


@pytest.mark.parametrize("script", ["bench_gpu.py", "gpu_report.py"])
def test_without_a_gpu_the_reason_is_printed_and_that_is_no_failure(script, tmp_path):
    command = [sys.executable, str(machine.ROOT / "tools" / script)]
    if bench_report.absent() is None:
        pytest.skip("there is a GPU here")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert bench_report.absent() in done.stdout


def test_unknown_tables_are_refused_by_name(capsys):
    with pytest.raises(SystemExit):
        bench_report.main(["--only", "ctc,nothing"])
    assert "'nothing'; expected some of denominator,numerators" in capsys.readouterr().err


def test_the_small_run_for_sanitizers_agrees_with_the_reference():
    found = dict(gpu_driver.errors(CPU))
    assert len(found) == 3 * len(gpu_driver.batches()) + 3
    assert max(found.values()) <= OCCUPANCY
    assert gpu_driver.main("cpu") == 0


def test_the_small_run_names_what_is_wrong(monkeypatch, capsys):
    monkeypatch.setattr(
        gpu_driver, "errors", lambda device: [("log Z", np.nan), ("path", 1.0), ("loss", 0.0)]
    )
    assert gpu_driver.main("cpu") == 1
    assert capsys.readouterr().out == "wrong: log Z, path\n"


def test_steps_tell_what_is_missing(monkeypatch):
    monkeypatch.setattr(gpu_report, "sanitizer_path", lambda: None)
    steps = gpu_report.steps(with_sanitizers=True)
    assert [step.name for step in steps] == ["tests", "benchmark", "memcheck", "racecheck"]
    assert [step.missing is None for step in steps] == [True, True, False, False]
    assert [step.name for step in gpu_report.steps(with_sanitizers=False)] == ["tests", "benchmark"]


def test_the_sanitizer_is_found_beside_the_toolkit(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(gpu_report, "CUDA_FOLDERS", (tmp_path,))
    assert gpu_report.sanitizer_path() is None
    tool = tmp_path / "compute-sanitizer"
    tool.touch(0o755)
    assert gpu_report.sanitizer_path() == str(tool)


def test_no_step_is_given_more_than_is_left_of_the_eight_minutes():
    now, given = [0.0], []

    def take(step, seconds):
        given.append(seconds)
        now[0] += 300.0
        return gpu_report.Outcome(step.name, "ok", 300.0, "")

    steps = [gpu_report.Step(name, [], 250.0) for name in "abc"] + [gpu_report.Step("d", [], 1.0, "no tool")]
    outcomes = gpu_report.run(steps, take, lambda: now[0])
    assert given == [250.0, 180.0]
    assert [outcome.word for outcome in outcomes] == ["ok", "ok", "skipped", "skipped"]
    assert [outcome.detail for outcome in outcomes[2:]] == ["480 s are over", "no tool"]


@pytest.mark.parametrize(
    ("code", "word", "detail"),
    [
        ("print('one'); print('=== 3 passed ===')", "ok", "3 passed"),
        ("import sys; print('bad'); sys.exit(2)", "FAILED", "bad"),
        ("print('rows\\n\\ntargets\\n  a met')", "ok", "its targets are below"),
    ],
)
def test_a_step_ends_as_its_process_does(code, word, detail):
    outcome = gpu_report.attempt(gpu_report.Step("s", [sys.executable, "-c", code], 60.0), 60.0)
    assert (outcome.word, outcome.detail) == (word, detail)
    assert outcome.targets == (("  a met",) if "targets" in code else ())


def test_a_step_that_hangs_is_ended():
    code = "import time; print('began', flush=True); time.sleep(60)"
    outcome = gpu_report.attempt(gpu_report.Step("s", [sys.executable, "-c", code], 1.0), 1.0)
    assert outcome.word == "FAILED" and outcome.seconds < 30
    assert outcome.detail == "not done after 1 s; last: began"


def test_the_table_has_a_line_for_each_step_and_the_targets_last():
    outcomes = [
        gpu_report.Outcome("tests", "ok", 12.3, "40 passed"),
        gpu_report.Outcome("benchmark", "ok", 100.0, "its targets are below", ("  den 7.0 met",)),
        gpu_report.Outcome("memcheck", "skipped", 0.0, "x" * 200),
    ]
    lines = gpu_report.table(outcomes)
    assert lines[2].split() == ["tests", "ok", "12.3", "40", "passed"]
    assert lines[-1] == "  den 7.0 met" and len(lines[4]) < 120


def test_a_report_fails_where_a_step_does(monkeypatch, capsys):
    monkeypatch.setattr(gpu_report, "absent", lambda: None)
    for word, code in (("ok", 0), ("FAILED", 1), ("skipped", 0)):
        outcome = gpu_report.Outcome("s", word, 0.0, "")
        monkeypatch.setattr(gpu_report, "attempt", lambda step, seconds, outcome=outcome: outcome)
        assert gpu_report.main(["--quick"]) == code
    assert capsys.readouterr().out.count("outcome") == 3
