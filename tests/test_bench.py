"""The benchmark's arithmetic, and that the yardsticks do the work they are compared with; no test looks at a time."""

import json

import numpy as np
import pytest
import torch
from tolerances import FEW_FLOAT32_TERMS, OCCUPANCY, PEER_CTC_GRADIENT, log_prob_tolerance

import fsachain
from fsachain import Fsa, TableBatch, compile_table, forward_backward
from fsachain.reachability import arcs_from
from tools.bench import __main__ as bench
from tools.bench import calls, machine, tables, workloads, yardstick
from tools.bench.row import Comparison, Row
from tools.bench.timing import MAX_ROUNDS, MIN_ROUNDS, Job, Spread, Times, take_turns

TINY = workloads.Sizes(
    batch_sizes=(1, 3),
    sequences=3,
    frames=12,
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
    return {make.__name__: make(work, TINY) for make in bench.MAKERS}


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


def test_arc_evaluations_are_arcs_times_frames_times_sequences():
    two = Fsa(2, [0, 0, 1], [0, 1, 1], [0, 1, 0], [0.0, -1.0, -np.inf], [0.0, 0.0])
    one = Fsa(1, [0], [0], [0], [0.0], [0.0])
    packed = TableBatch.pack([compile_table(two), compile_table(one)])
    assert tables.count_evaluations(packed, 10) == (2 + 1) * 10
    assert tables.count_evaluations(TableBatch.share(compile_table(one), 4), 10) == 40


def test_shares_of_the_loss_sum_to_one_in_every_round():
    whole, num, den = Times((10.0, 20.0)), Times((2.0, 1.0)), Times((5.0, 16.0))
    shares = {part.name: part.ratio for part in tables.shares(whole, num, den)}
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
    batch = tables.pack_numerators(work, TINY.numerator_pdfs)
    scores = calls.random_scores(batch.size, TINY.frames, TINY.numerator_pdfs)
    log_z = np.concatenate(calls.plain_call(batch, scores, 0.0, np.float64)())
    expected = forward_backward(batch, scores, backend="reference").log_prob
    np.testing.assert_allclose(log_z, expected, rtol=0, atol=log_prob_tolerance(abs(log_z).max()))


def test_streaming_adds_each_product_once_per_pass():
    x, y, z = yardstick.stream_arrays()
    yardstick.stream(x, y, z, 3)
    np.testing.assert_allclose(z, 3 * x * y, rtol=FEW_FLOAT32_TERMS)
    assert yardstick.stream_lanes() == yardstick.STREAM_PASSES * x.size


def test_both_ctc_losses_give_one_gradient(work):
    batch = TableBatch.pack([compile_table(graph, TINY.labels) for graph in work.ctc])
    scores = calls.random_scores(batch.size, TINY.frames, TINY.labels)
    ours = calls.ctc_through_graphs(batch, scores)().grad
    theirs = calls.ctc_through_torch(work.targets, scores)().grad
    assert ours.abs().max() > 0.1
    torch.testing.assert_close(ours, theirs, rtol=0, atol=PEER_CTC_GRADIENT)


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
        "leaky_denominator": {den, 3 * den},
        "exact_denominator": {3 * den},
        "numerators": {num},
        "whole_loss": {num + 3 * den},
        "ctc": {sum(graph.num_arcs for graph in work.ctc) * TINY.frames},
    }
    found = {name: {row.evaluations for row in table.rows} for name, table in all_tables.items()}
    assert found == expected


def test_every_row_of_ours_has_a_ratio_from_the_same_rounds(all_tables):
    for table in all_tables.values():
        for row in table.rows:
            assert len(row.times.seconds) >= MIN_ROUNDS
            assert row.comparisons or row.name.endswith("torch ctc_loss")
            for comparison in row.comparisons:
                assert np.isfinite(comparison.ratio.median)


def test_the_report_is_printed_and_saved_with_its_machine(work, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "MAKERS", (tables.leaky_denominator,))
    bench.run(work, TINY, tmp_path / "results")
    text = capsys.readouterr().out
    assert f"torch {torch.__version__}" in text
    assert "10 states, 40 arcs, 6 pdfs" in text
    (path,) = (tmp_path / "results").glob("cpu-*.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["device"]["cores"] >= 1
    assert record["device"]["graphs"] == "seeded random graphs"
    assert path.name == f"cpu-{record['date']}.json"
    rows = record["tables"]["Denominator, leak 1e-05"]
    assert [(row["name"], row["threads"]) for row in rows] == [("B 1", 1), ("B 1", 2), ("B 3", 1), ("B 3", 2)]


def test_a_folder_without_graphs_is_refused_by_name(capsys, tmp_path):
    with pytest.raises(SystemExit):
        bench.main(["--graphs", str(tmp_path)])
    assert f"{tmp_path}: no den_wsj.npz" in capsys.readouterr().err


def test_a_checkout_without_git_has_no_commit(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    assert machine.commit() is None
