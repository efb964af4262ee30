"""The benchmark's arithmetic, and that the yardsticks do the work they are compared with; no test looks at a time."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from random_graphs import connected_graph
from tolerances import FEW_FLOAT32_TERMS, OCCUPANCY, PEER_CTC_GRADIENT, ROUNDING, log_prob_tolerance

import fsachain
from fsachain import Fsa, TableBatch, compile_table, forward_backward
from tools.bench import (
    calls,
    limit,
    peers,
    report,
    workloads,
    yardstick,
)
from tools.bench import tables as recursion_tables
from tools.bench.timing import MIN_ROUNDS, Comparison, Job, Row, Spread, Times, take_turns

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
    made = report.MAKERS.keys() - {"memory", "growth", "transducer"}
    return {name: report.MAKERS[name](work, TINY) for name in made}


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


def test_arc_evaluations_are_arcs_times_frames_times_sequences():
    two = Fsa(2, [0, 0, 1], [0, 1, 1], [0, 1, 0], [0.0, -1.0, -np.inf], [0.0, 0.0])
    one = Fsa(1, [0], [0], [0], [0.0], [0.0])
    packed = TableBatch.pack([compile_table(two), compile_table(one)])
    assert limit.work_of(packed, 10, 2).evaluations == (2 + 1) * 10
    shared = limit.work_of(TableBatch.share(compile_table(one), 4), 10, 3)
    assert shared == limit.Work(40, 3 * 4 * 10 * 3 * 4), "scores and gradient; the alphas fit the caches"


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
    assert recursion_tables.Slope(kind, sizes, sizes, times).slope == pytest.approx(power, abs=ROUNDING)


@pytest.mark.parametrize(("leak", "dtype"), [(0.0, np.float64), (0.3, np.float32)])
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
    }
    found = {name: {row.evaluations for row in all_tables[name].rows} for name in expected}
    assert found == expected


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


def test_a_folder_without_graphs_is_refused_by_name(capsys, tmp_path):
    with pytest.raises(SystemExit):
        report.main(["--graphs", str(tmp_path)])
    assert f"{tmp_path}: no den_wsj.npz" in capsys.readouterr().err
