"""The benchmark's arithmetic, and that the yardsticks do the work they are compared with; no test looks at a time."""

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from random_graphs import connected_graph
from tolerances import FEW_FLOAT32_TERMS, OCCUPANCY, PEER_CTC_GRADIENT, ROUNDING, log_prob_tolerance

import fsachain
from fsachain import Fsa, TableBatch, compile_table, forward_backward
from fsachain.fsa import arcs_from
from tools.bench import (
    calls,
    digits,
    growth,
    limit,
    loss_tables,
    machine,
    peak,
    peers,
    report,
    workloads,
    yardstick,
)
from tools.bench import tables as recursion_tables
from tools.bench.row import Comparison, Row
from tools.bench.timing import MAX_ROUNDS, MIN_ROUNDS, Job, Spread, Times, take_turns

TINY = workloads.Sizes(
    batch_sizes=(1, 3),
    sequences=3,
    frames=12,
    long=(4, 20),
    packed=5,
    large=(10, 40, 6, 3, 30),
    transducer=(2, 6, 3, 20),
    growth=((5, 20), (30, 60), (2, 8)),
    states=10,
    arcs=40,
    pdfs=6,
    numerator_states=8,
    numerator_pdfs=20,
    labels=9,
    label_length=4,
    seconds=0.0,
)


@pytest.fixture(scope="module")
def work():
    return workloads.seeded(TINY)


@pytest.fixture(scope="module")
def all_tables(work):
    return {name: make(work, TINY) for name, make in report.MAKERS.items()}


class FakeClock:
    """Time passes only while a job runs."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def job(self, *seconds):
        """A job that takes so long in the first call, the second, and so on; the last figure repeats."""
        left = list(seconds)

        def run():
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return Job(run)


def test_ratios_pair_the_times_of_one_round():
    clock = FakeClock()
    # The first round is not counted; in the third the machine is ten times slower for both.
    jobs = {"ours": clock.job(9.0, 2.0, 20.0, 2.0), "theirs": clock.job(9.0, 4.0, 40.0, 1.0)}
    times = take_turns(jobs, seconds=0.0, clock=clock)
    assert times["ours"].seconds == (2.0, 20.0, 2.0)
    assert times["ours"].over(times["theirs"]) == Spread(0.5, 0.5, 2.0)
    assert times["ours"].over(times["theirs"], 4.0) == Spread(0.125, 0.125, 0.5)


@pytest.mark.parametrize(
    ("seconds", "rounds"), [(0.0, MIN_ROUNDS), (10.0, 10), (1e9, MAX_ROUNDS)], ids=["least", "fits", "most"]
)
def test_as_many_rounds_are_run_as_the_time_allows(seconds, rounds):
    clock = FakeClock()
    assert len(take_turns({"a": clock.job(1.0)}, seconds, clock)["a"].seconds) == rounds


def test_jobs_run_with_their_threads_and_the_number_from_before_comes_back():
    before, seen = (fsachain.get_num_threads(), torch.get_num_threads()), []

    def look():
        seen.append((fsachain.get_num_threads(), torch.get_num_threads()))

    def fail():
        raise ArithmeticError

    take_turns({n: Job(look, n) for n in (1, 3)}, 0.0)
    assert seen == [(1, 1), (3, 3)] * (1 + MIN_ROUNDS)
    assert (fsachain.get_num_threads(), torch.get_num_threads()) == before
    with pytest.raises(ArithmeticError):
        take_turns({0: Job(fail, 3)}, 0.0)
    assert (fsachain.get_num_threads(), torch.get_num_threads()) == before


def test_a_row_divides_its_time_by_the_arc_evaluations():
    row = Row("r", 1, 500, Times((2e-6, 1e-6, 4e-6)), (Comparison("plain loop", Spread(0.5, 0.25, 1.0)),))
    assert row.nanoseconds == Spread(pytest.approx(4.0), pytest.approx(2.0), pytest.approx(8.0))
    assert "0.50 [0.25-1.00] plain loop" in str(row)
    record = row.record()
    assert record["ratios"]["plain loop"] == {"median": 0.5, "least": 0.25, "most": 1.0}
    assert record["milliseconds"]["median"] == pytest.approx(2e-3)


def test_a_row_without_arcs_has_no_figure_per_arc():
    row = Row("pack", 1, 0, Times((1e-3,)))
    assert row.nanoseconds is None and row.record()["nanoseconds_per_arc_evaluation"] is None
    assert str(row).split() == ["pack", "1", "1.00", "[1.00-1.00]"]


def test_arc_evaluations_are_arcs_times_frames_times_sequences():
    two = Fsa(2, [0, 0, 1], [0, 1, 1], [0, 1, 0], [0.0, -1.0, -np.inf], [0.0, 0.0])
    one = Fsa(1, [0], [0], [0], [0.0], [0.0])
    packed = TableBatch.pack([compile_table(two), compile_table(one)])
    assert limit.work_of(packed, 10, 2).evaluations == (2 + 1) * 10
    shared = limit.work_of(TableBatch.share(compile_table(one), 4), 10, 3)
    assert shared == limit.Work(40, 3 * 4 * 10 * 3 * 4), "scores and gradient; the alphas fit the caches"


def test_alphas_beyond_the_caches_go_to_memory_and_back():
    batch = TableBatch.share(compile_table(connected_graph(0), 9), 64)
    frames = limit.CACHE_BYTES // (4 * 12 * 64) + 1
    expected = 4 * frames * 64 * (3 * 9 + 2 * 12)
    assert limit.work_of(batch, frames, 9).bytes == expected


def test_the_limit_is_the_slower_of_arithmetic_and_memory_round_by_round():
    # One second for the yardsticks' own amounts of work, then a round with slow memory.
    times = {
        limit.MULTIPLY_ADDS: Times((1.0, 1.0)),
        limit.MEMORY: Times((1.0, 50.0)),
        ("r", 2): Times((8.0, 50.0)),
    }
    work = limit.Work(2 * yardstick.MULTIPLY_ADDS, yardstick.STREAM_BYTES)
    assert limit.limit(times, work, 1).seconds == (4.0, 50.0)
    assert limit.limit(times, work, 2).seconds == (2.0, 25.0)
    assert limit.against_limit(times, ("r", 2), work).ratio == Spread(3.0, 2.0, 4.0)


@pytest.mark.parametrize(("power", "kind"), [(1.0, "linear"), (2.0, "quadratic"), (0.0, "constant")])
def test_the_slope_is_the_power_of_growth(power, kind):
    sizes = (10, 100, 1000)
    times = tuple(Times((3e-6 * size**power, 100.0)).scaled(1.0) for size in sizes)
    assert growth.Slope(kind, sizes, sizes, times).slope == pytest.approx(power, abs=ROUNDING)


def test_sizes_of_a_slope_span_what_was_asked_for_at_equal_ratios():
    assert growth._between(15, 1500) == (15, 47, 150, 474, 1500)


def test_shares_of_the_loss_sum_to_one_in_every_round():
    whole, num, den = Times((10.0, 20.0)), Times((2.0, 1.0)), Times((5.0, 16.0))
    shares = {part.name: part.ratio for part in loss_tables.shares(whole, num, den)}
    assert shares["rest"] == Spread(pytest.approx(0.225), pytest.approx(0.15), pytest.approx(0.3))
    assert sum(share.median for share in shares.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("leak", [0.0, 1e-5, 0.3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_plain_loop_computes_what_the_backends_compute(work, leak, dtype):
    batch = work.denominator.batch(5)
    scores = calls.random_scores(5, 12, TINY.pdfs)
    columns = yardstick.plain_scores(batch.table(0), scores, dtype)
    occupancy = np.full_like(columns, np.nan)
    graph = yardstick.plain_graph(batch.table(0), dtype)
    log_z = yardstick.plain_forward_backward(graph, columns.dtype.type(leak), columns, occupancy)
    expected = forward_backward(batch, scores, leaky_hmm_coefficient=leak, backend="reference")
    np.testing.assert_allclose(log_z, expected.log_prob, rtol=0, atol=log_prob_tolerance(log_z.max()))
    ours = expected.occupancy[:, :, batch.table(0).active_pdfs].transpose(1, 2, 0)
    np.testing.assert_allclose(occupancy, ours, rtol=0, atol=OCCUPANCY)


def test_the_plain_loop_runs_each_numerator_through_its_own_graph(work):
    batch = recursion_tables.pack_numerators(work, TINY.numerator_pdfs)
    scores = calls.random_scores(batch.size, TINY.frames, TINY.numerator_pdfs)
    log_z = np.concatenate(calls.plain_call(batch, scores, 0.0, np.float64)())
    expected = forward_backward(batch, scores, backend="reference").log_prob
    np.testing.assert_allclose(log_z, expected, rtol=0, atol=log_prob_tolerance(abs(log_z).max()))


def test_the_yardsticks_of_the_limit_do_what_they_are_counted_for():
    x, w, out = yardstick.multiply_add_arrays()
    yardstick.multiply_add(x, w, out, 3)
    np.testing.assert_allclose(out, 3 * (w @ x), rtol=FEW_FLOAT32_TERMS)
    assert yardstick.PASSES * x.size == yardstick.MULTIPLY_ADDS
    x, y, z = (array[:1000].copy() for array in yardstick.stream_arrays())
    yardstick.stream(x, y, z)
    np.testing.assert_allclose(z, x * y, rtol=FEW_FLOAT32_TERMS)
    assert 4 * 4 * len(yardstick.stream_arrays()[0]) == yardstick.STREAM_BYTES


def test_all_ctc_losses_give_one_gradient(work):
    batch = TableBatch.pack([compile_table(graph, TINY.labels) for graph in work.ctc])
    scores = calls.random_scores(batch.size, TINY.frames, TINY.labels)
    theirs = calls.ctc_through_torch(work.targets, scores)().grad.clone()
    assert theirs.abs().max() > 0.1
    for ours in (
        calls.ctc_through_graphs(batch, scores),
        calls.ctc_through_loss(work.targets, scores, "logits"),
        calls.ctc_through_loss(work.targets, scores, "log_probs"),
    ):
        torch.testing.assert_close(ours().grad, theirs, rtol=0, atol=PEER_CTC_GRADIENT)


def test_seeded_graphs_have_the_sizes_asked_for_and_are_the_same_each_time(work):
    graph = work.denominator.fsa
    assert (graph.num_states, graph.num_arcs, work.denominator.num_pdfs) == (10, 40, 6)
    for src, dst in ((graph.src, graph.dst), (graph.dst, graph.src)):
        assert np.isfinite(arcs_from(0, graph.num_states, src, dst)).all()
    again = workloads.seeded(TINY)
    np.testing.assert_array_equal(again.denominator.fsa.log_prob, graph.log_prob)
    np.testing.assert_array_equal(again.numerators[0].pdf, work.numerators[0].pdf)
    np.testing.assert_array_equal(again.targets, work.targets)


def test_ctc_graphs_from_targets_are_those_of_the_shared_folder(shared):
    folder = shared / "data" / "graphs"
    work = workloads.from_folder(folder, workloads.Sizes())
    for n, graph in enumerate(work.ctc):
        with np.load(folder / f"ctc_{n:02}.npz") as archive:
            stored = zip(
                archive["src"].tolist(), archive["dst"].tolist(), archive["pdf"].tolist(), strict=True
            )
            made = zip(graph.src.tolist(), graph.dst.tolist(), graph.pdf.tolist(), strict=True)
            assert sorted(made) == sorted(stored)
            np.testing.assert_array_equal(graph.final_log_prob, archive["final"])


def test_every_table_counts_the_work_of_its_graphs(work, all_tables):
    den = work.denominator.fsa.num_arcs * TINY.frames
    num = sum(graph.num_arcs for graph in work.numerators) * TINY.frames
    expected = {
        "denominator": {den, 3 * den},
        "long": {4 * 20 * work.denominator.fsa.num_arcs},
        "exact": {3 * den},
        "numerators": {num},
        "loss": {num + 3 * den},
        "ctc": {sum(graph.num_arcs for graph in work.ctc) * TINY.frames},
        "packing": {0},
        "step": {0},
        "memory": {40 * 3 * 30},
    }
    found = {name: {row.evaluations for row in all_tables[name].rows} for name in expected}
    assert found == expected


def test_every_row_of_ours_is_repeated_and_compared_within_its_rounds(all_tables):
    for name in ("denominator", "long", "exact", "numerators", "ctc", "loss", "step"):
        for row in all_tables[name].rows:
            assert len(row.times.seconds) >= MIN_ROUNDS
            assert row.comparisons or row.name.endswith("torch ctc_loss")
            for comparison in row.comparisons:
                assert np.isfinite(comparison.ratio.median)


def test_slopes_are_taken_over_frames_arcs_and_sequences(all_tables):
    slopes = all_tables["growth"].rows
    assert [(slope.sizes[0], slope.sizes[-1]) for slope in slopes] == [(5, 20), (30, 60), (2, 8), (5, 20)]
    arcs = slopes[1]
    assert arcs.evaluations == tuple(size * TINY.frames * growth.LANES for size in arcs.sizes)
    assert all(np.isfinite(slope.slope) for slope in slopes)


@pytest.mark.skipif(
    not peak.RESET.exists(), reason="this system does not tell how much memory a process held"
)
def test_the_mark_of_the_most_memory_follows_an_array_that_came_and_went():
    peak.RESET.write_text("5", encoding="ascii")
    before = peak.held("VmRSS")
    np.ones(8 << 20)
    assert 60e6 < peak.held("VmHWM") - before < 90e6


@pytest.mark.skipif(
    not peak.RESET.exists(), reason="this system does not tell how much memory a process held"
)
def test_memory_is_measured_in_a_process_of_its_own(all_tables):
    (row,) = all_tables["memory"].rows
    assert row.name == "random, B 3, T 30" and row.alphas == 4 * 31 * 10 * 3
    assert 0 <= row.peak < 100e6


def test_a_training_step_moves_the_network_and_the_loss_alone_does_not():
    step = digits.make_step(None)
    values = [step.whole().item() for _ in range(6)]
    assert values[-1] < values[0] and np.isfinite(values).all()
    assert step.loss_alone().item() == step.loss_alone().item()


def test_the_report_is_printed_and_saved_with_its_machine(work, capsys, tmp_path):
    report.run(work, TINY, ["denominator", "peers"], tmp_path / "results")
    text = capsys.readouterr().out
    assert f"torch {torch.__version__}" in text
    assert "10 states, 40 arcs, 6 pdfs" in text
    (path,) = (tmp_path / "results").glob("cpu-*.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["device"]["cores"] >= 1
    assert record["device"]["graphs"] == "seeded random graphs"
    assert path.name == f"cpu-{record['date']}.json"
    rows = record["tables"]["denominator, leak 1e-05"]
    assert [(row["name"], row["threads"]) for row in rows] == [
        (f"random, B {size}", threads) for size in (1, 3) for threads in (1, 2)
    ]
    assert len(record["tables"]) == 2


def test_peers_that_are_not_installed_are_named_with_the_reason(work, monkeypatch):
    def refuse(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(peers, "import_module", refuse)
    lines = [str(line) for line in peers.compared(work, TINY).rows]
    assert lines == [f"  {name} is not timed: No module named {name!r}" for name in ("pychain", "k2", "gtn")]


def test_a_peer_that_is_installed_is_timed_next_to_ours_on_the_same_graphs(work, monkeypatch):
    seen = []

    def make(module, graphs, scores):
        seen.append((module, len(graphs), scores.shape))
        return lambda: None

    stub = SimpleNamespace()
    monkeypatch.setattr(peers, "ADAPTERS", (peers.Adapter("Stub, exact", "stub", "ctc", make),))
    monkeypatch.setattr(peers, "import_module", {"stub": stub}.__getitem__)
    ours, theirs = peers.compared(work, TINY).rows
    assert seen == [(stub, 3, (3, TINY.frames, TINY.labels))]
    assert (ours.name, theirs.name) == ("fsachain, ctc, B 3", "Stub, exact")
    assert [comparison.name for comparison in ours.comparisons] == ["Stub, exact"]
    assert ours.evaluations == theirs.evaluations == sum(fsa.num_arcs for fsa in work.ctc) * TINY.frames


def test_the_arcs_for_k2_spell_the_same_acceptor():
    """Read back by k2's rules: state 0 starts, the last state alone is final, label -1 leads there."""
    graph = connected_graph(0)
    fsa = Fsa(12, graph.src, graph.dst, graph.pdf, graph.log_prob, graph.final_log_prob, start=5)
    rows = peers.k2_arcs(fsa)
    assert rows.dtype == np.int32 and (np.diff(rows[:, 0]) >= 0).all()
    score = rows[:, 3].copy().view(np.float32)
    into_end = rows[:, 2] == -1
    np.testing.assert_array_equal(into_end, rows[:, 1] == 12)
    final = np.full(12, -np.inf)
    final[rows[into_end, 0]] = score[into_end]
    own = rows[~into_end]
    back = Fsa(12, own[:, 0], own[:, 1], own[:, 2], score[~into_end].astype(float), final)
    scores = calls.random_scores(2, 9, 9)
    expected, found = (
        forward_backward(TableBatch.share(compile_table(one, 9), 2), scores, backend="reference").log_prob
        for one in (fsa, back)
    )
    np.testing.assert_allclose(found, expected, rtol=FEW_FLOAT32_TERMS)


class RecordedGraph:
    """What was asked of a GTN graph."""

    def __init__(self, calc_grad):
        self.calls = [("Graph", calc_grad)]

    def __getattr__(self, name):
        return lambda *arguments: self.calls.append((name, *arguments))


def test_a_graph_for_gtn_has_nodes_then_arcs_and_is_sorted_by_the_label_that_meets_the_scores():
    fsa = Fsa(2, [0, 1], [1, 1], [3, 4], [-0.5, -1.0], [-np.inf, 0.0])
    made = peers.gtn_graph(SimpleNamespace(Graph=RecordedGraph), fsa)
    assert made.calls == [
        ("Graph", False),
        ("add_node", True, False),
        ("add_node", False, True),
        ("add_arc", 0, 1, 3, 3, -0.5),
        ("add_arc", 1, 1, 4, 4, -1.0),
        ("arc_sort", True),
    ]
    with pytest.raises(ValueError, match="final_log_prob holds other values than 0"):
        peers.gtn_graph(SimpleNamespace(Graph=RecordedGraph), connected_graph(0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "denominator,nothing"], "'nothing'; expected some of denominator,long"),
        (["--threads", "1,0"], "'1,0'; expected counts of at least 1"),
    ],
)
def test_malformed_options_are_refused_by_name(arguments, message, capsys):
    with pytest.raises(SystemExit):
        report.main(arguments)
    assert message in capsys.readouterr().err


def test_the_script_runs_from_any_folder(tmp_path):
    script = machine.ROOT / "tools" / "bench_forward_backward.py"
    done = subprocess.run(
        [sys.executable, str(script), "--help"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "--only" in done.stdout and "arc-evaluation" in done.stdout


def test_a_folder_without_graphs_is_refused_by_name(capsys, tmp_path):
    with pytest.raises(SystemExit):
        report.main(["--graphs", str(tmp_path)])
    assert f"{tmp_path}: no den_wsj.npz" in capsys.readouterr().err


def test_a_checkout_without_git_has_no_commit(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    assert machine.commit() is None
