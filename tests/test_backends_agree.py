"""The CPU backend against the float64 oracle fed the same rounded scores, at every magnitude."""

import math
from dataclasses import replace

import numpy as np
import pytest
import tolerances
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import (
    connected_graph,
    graphs,
    leaking_tables,
    left_to_right_graph,
    score_matrices,
    twin_graph,
    two_lobes,
)

from fsachain import DenominatorGraph, Fsa, TableBatch, best_path, compile_table, forward_backward
from fsachain.backends.cpu import backend as cpu
from fsachain.backends.dispatch import bind

NUM_PDFS = 9
LENGTHS = [23, 40, 1, 17, 40]
SHAPE = (len(LENGTHS), 40, NUM_PDFS)


def assert_agrees(batch, scores, lengths=None, leaky=0.0):
    """log Z, alone and with occupancies, and those of pdfs, arcs and states, by both backends; gives the oracle's result."""
    ours, exact = (
        forward_backward(batch, scores, lengths, leaky_hmm_coefficient=leaky, backend=backend)
        for backend in ("cpu", "reference")
    )
    is_double = str(scores.dtype).endswith("float64")
    log_prob = np.asarray(exact.log_prob)
    assert_log_probs_agree(batch, np.asarray(ours.log_prob), log_prob, is_double)
    found, right = (np.asarray(result.occupancy, dtype=np.float64) for result in (ours, exact))
    np.testing.assert_allclose(found, right, rtol=0.0, atol=tolerances.OCCUPANCY)
    rows = found.sum(axis=2)
    full = [scores.shape[1]] * batch.size if lengths is None else lengths
    for n, ok in enumerate(np.asarray(ours.ok)):
        np.testing.assert_allclose(rows[n, : full[n]], float(ok), rtol=0.0, atol=tolerances.ROW_SUM)
        assert not rows[n, full[n] :].any()
        # Those of arcs and states are float64 whatever the scores are; each frame sums to one, or to nothing if impossible.
        for name in ("arc_occupancy", "state_occupancy"):
            mine, theirs = (np.asarray(getattr(result, name)(n)) for result in (ours, exact))
            np.testing.assert_allclose(mine, theirs, rtol=0.0, atol=tolerances.FLOAT64)
            total = mine.sum(axis=1)
            np.testing.assert_allclose(total, float(theirs.any()), rtol=0.0, atol=tolerances.ROUNDING)
    # log Z as the loss gets it: from the call that computes occupancies, which decides by other numbers.
    ready = bind(batch, scores, lengths, "cpu")
    out = np.zeros(ready.scores.shape, ready.scores.dtype)
    again, _ = cpu.add_occupancy(batch, ready.scores, ready.lengths, leaky, np.ones(batch.size), out)
    assert_log_probs_agree(batch, again, log_prob)
    return exact


def assert_log_probs_agree(batch, ours, exact, is_double=False):
    for name, mine, right in zip(batch.names, ours, exact, strict=True):
        if not math.isfinite(right):
            assert mine == right or (math.isnan(mine) and math.isnan(right)), name
        else:
            near = (
                tolerances.FLOAT64 * max(1.0, abs(right))
                if is_double
                else tolerances.log_prob_tolerance(right)
            )
            assert abs(mine - right) <= near, name


def denominator(graph, **ends):
    return DenominatorGraph(graph, NUM_PDFS, **ends).batch(len(LENGTHS))


def batch_and_leak(kind):
    if kind == "packed":
        graphs_ = [left_to_right_graph(n) if n % 2 else connected_graph(n) for n in range(len(LENGTHS))]
        return TableBatch.pack([compile_table(graph, NUM_PDFS) for graph in graphs_]), 0.0
    return {
        "shared, leaky": lambda: (denominator(connected_graph(0)), 0.1),
        # Two arcs at least share a destination and a pdf.
        "shared pairs, barely leaky": lambda: (denominator(twin_graph(0, 6, 20)), 1e-5),
        "shared, exact": lambda: (denominator(connected_graph(0), initial="start", final="fsa"), 0.0),
    }[kind]()


KINDS = ["shared, leaky", "shared pairs, barely leaky", "shared, exact", "packed"]


def one_hot(offset):
    hot = np.random.default_rng(4).integers(NUM_PDFS, size=SHAPE[:2])
    scores = np.where(np.arange(NUM_PDFS) == hot[:, :, None], 30.0, -30.0)
    return scores.astype(np.float32) + np.float32(offset)


def with_holes():
    """Single scores, whole frames, and frames of which one pdf alone is left."""
    rng = np.random.default_rng(5)
    scores = rng.normal(size=SHAPE).astype(np.float32)
    scores[rng.random(SHAPE) < 0.05] = -np.inf
    scores[1, 9] = -np.inf
    scores[3, 4, 1:] = -np.inf
    return scores


SCORES = {
    f"{dtype} of magnitude {scale}": (scale * np.random.default_rng(3).normal(size=SHAPE)).astype(dtype)
    for scale in (1.0, 30.0, 80.0, 1000.0)
    for dtype in ("float32", "float64")
}
SCORES |= {f"one-hot, by {offset:g}": one_hot(offset) for offset in (0.0, -1e6, 3e4)}
SCORES |= {"minus infinity": with_holes()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SCORES)
def test_agree_at_every_scale_on_one_hot_scores_and_on_minus_infinity(kind, name):
    batch, leaky = batch_and_leak(kind)
    exact = assert_agrees(batch, SCORES[name], LENGTHS, leaky)
    if name == "minus infinity":
        assert exact.log_prob[1] == -np.inf and not exact.ok[1]


@pytest.mark.parametrize("illegal", [np.nan, np.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_agree_on_illegal_scores_which_spoil_their_own_sequence_only(kind, illegal):
    batch, leaky = batch_and_leak(kind)
    scores = np.random.default_rng(8).normal(size=SHAPE).astype(np.float32)
    clean = forward_backward(batch, scores.copy(), LENGTHS, leaky_hmm_coefficient=leaky, backend="reference")
    scores[1, 3, int(batch.table(1).active_pdfs[0])] = illegal
    exact = assert_agrees(batch, scores, LENGTHS, leaky)
    assert math.isnan(exact.log_prob[1]) and not exact.ok[1]
    assert not exact.occupancy[1].any()
    others = np.arange(len(LENGTHS)) != 1
    assert clean.ok[1] and (exact.log_prob[others] == clean.log_prob[others]).all()
    assert (exact.occupancy[others] == clean.occupancy[others]).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_agree_on_every_torch_type(kind, dtype):
    batch, leaky = batch_and_leak(kind)
    scores = (10 * torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))).to(dtype)
    exact = assert_agrees(batch, scores, LENGTHS, leaky)
    options = {"leaky_hmm_coefficient": leaky, "backend": "reference"}
    wide = forward_backward(batch, scores.double().numpy(), LENGTHS, **options)
    np.testing.assert_allclose(exact.log_prob.numpy(), wide.log_prob, rtol=tolerances.ROUNDING)
    assert exact.occupancy.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert exact.log_prob.dtype == torch.float64 and exact.ok.dtype == torch.bool


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_memory_layout_does_not_matter(backend):
    """What compiled code cannot read is copied, the last two among them; what must not be written to is not."""
    batch, leaky = batch_and_leak("shared, leaky")
    scores = np.random.default_rng(11).normal(size=SHAPE).astype(np.float32)
    options = {"lengths": LENGTHS, "leaky_hmm_coefficient": leaky, "backend": backend}
    plain = forward_backward(batch, scores, **options)
    odd = np.empty(scores.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(SHAPE)
    odd[:] = scores
    read_only = scores.copy()
    read_only.flags.writeable = False
    layouts = [
        np.asfortranarray(scores),
        np.repeat(scores, 2, axis=1)[:, ::2],
        torch.from_numpy(scores.transpose(1, 0, 2).copy()).transpose(0, 1),
        torch.from_numpy(np.flip(scores, 0).copy()).flip(0),
        read_only,
        odd,
        scores.astype(">f4"),
    ]
    for layout in layouts:
        result = forward_backward(batch, layout, **options)
        assert (np.asarray(result.log_prob) == plain.log_prob).all()
        assert (np.asarray(result.occupancy) == plain.occupancy).all()
        for found in (result.log_prob, result.occupancy, result.arc_occupancy(0), result.state_occupancy(0)):
            assert isinstance(found, type(layout))
        assert str(result.arc_occupancy(0).dtype).endswith("float64")
    assert np.shares_memory(bind(batch, read_only, LENGTHS, backend).scores, read_only)
    assert not odd.flags.aligned and bind(batch, odd, LENGTHS, backend).scores.flags.aligned


@settings(max_examples=60)
@given(st.data(), st.lists(graphs(), min_size=1, max_size=3), st.sampled_from([1.0, 100.0]))
def test_agree_on_any_graph(data, fsas, scale):
    num_frames = data.draw(st.integers(0, 6))
    scores = np.stack([data.draw(score_matrices(num_frames)) for _ in fsas])
    batch = TableBatch.pack([compile_table(fsa, 3) for fsa in fsas])
    assert_agrees(batch, scale * scores)
    assert_agrees(batch, (scale * scores).astype(np.float32))
    shared = TableBatch.share(batch.tables[0], len(fsas))
    assert_agrees(shared, (scale * scores).astype(np.float32))


@settings(max_examples=30)
@given(st.data(), graphs(), st.sampled_from([1e-5, 0.5, 1.0]))
def test_agree_on_any_leaking_graph(data, fsa, leaky):
    scores = data.draw(score_matrices(data.draw(st.integers(0, 6))))
    batch = TableBatch.share(data.draw(leaking_tables(fsa)), 2)
    assert_agrees(batch, np.stack([scores, 3 * scores]).astype(np.float32), leaky=leaky)


def test_ties_go_to_the_lowest_arc_in_both_backends():
    fsa = Fsa(3, [0, 0, 0, 1, 2], [2, 1, 1, 1, 1], [0, 0, 0, 0, 0], np.zeros(5), np.zeros(3))
    for backend in ("cpu", "reference"):
        path = best_path(TableBatch.pack([compile_table(fsa)]), np.zeros((1, 2, 1)), backend=backend)
        assert path.arcs[0].tolist() == [1, 3] and path.states[0].tolist() == [0, 1, 1]


def chain_through_all_states(num_states):
    """Only one path: 0, S-1, 0, S-1, ...; the states between hang off it and lead nowhere."""
    middle = np.arange(1, num_states - 1)
    src = np.concatenate([[0, num_states - 1], np.zeros(len(middle), int)])
    dst = np.concatenate([[num_states - 1, 0], middle])
    final = np.full(num_states, -np.inf)
    final[-1] = 0.0
    return Fsa(num_states, src, dst, np.arange(len(src)) % 7, np.linspace(-1.0, -2.0, len(src)), final)


@pytest.mark.parametrize("make", [TableBatch.pack, lambda tables: TableBatch.share(tables[0], 1)])
def test_70001_states_with_the_only_path_through_the_last(make):
    batch = make([compile_table(chain_through_all_states(70_001), 7)])
    scores = np.random.default_rng(13).normal(size=(1, 3, 7)).astype(np.float32)
    exact = assert_agrees(batch, scores)
    weights = np.linspace(-1.0, -2.0, 70_001)
    expected = scores[0, 0, 0] + scores[0, 1, 1] + scores[0, 2, 0] + 2 * weights[0] + weights[1]
    assert exact.log_prob[0] == pytest.approx(expected, abs=tolerances.log_prob_tolerance(expected))
    assert best_path(batch, scores).states[0].tolist() == [0, 70_000, 0, 70_000]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [1.0, 80.0])
def test_agree_after_1500_frames(kind, scale):
    batch, leaky = batch_and_leak(kind)
    scores = scale * np.random.default_rng(16).normal(size=(len(LENGTHS), 1500, NUM_PDFS))
    assert_agrees(batch, scores.astype(np.float32), [1500, 1, 700, 1499, 1500], leaky)


# How far the loser of the first half falls behind: within float32, beyond it, beyond float64.
GAPS = [20.0, 60.0, 80.0, 95.0, 150.0, 600.0, 740.0, 921.0, 5000.0, 1e6]


@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize(
    ("kind", "fall", "rise", "dtype"),
    [("shared", 1, 1, "f4"), ("shared", 100, 100, "f8"), ("packed", 1, 100, "f8"), ("packed", 100, 1, "f4")],
)
def test_a_path_that_seemed_dead_and_then_wins_is_not_lost(gap, kind, fall, rise, dtype):
    """One lobe falls behind by exp(-gap) within `fall` frames; later it gets ahead within `rise` frames.

    What was flushed to zero in probabilities must be noticed by equation (13) and computed in a wider range.
    """
    scores = np.zeros((2, 240, 3), dtype)
    early, late = slice(1, 1 + fall), slice(120, 120 + rise)
    scores[:, early, 1] = -gap / (early.stop - early.start)
    scores[0, late, 0] = -2 * gap / (late.stop - late.start)
    scores[1, late, 0] = -0.5 * gap / (late.stop - late.start)
    table = compile_table(two_lobes())
    batch = TableBatch.share(table, 2) if kind == "shared" else TableBatch.pack([table, table])
    exact = assert_agrees(batch, scores)
    assert exact.log_prob[0] == pytest.approx(-gap, rel=tolerances.LOG_PROB_RELATIVE)
    assert exact.occupancy[0, 110, 1] == pytest.approx(1.0, abs=tolerances.SURE_OCCUPANCY)


@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize(
    ("where", "kind", "frames"),
    [
        ("arc", "shared", 1), ("arc", "packed", 40), ("final", "shared", 40), ("final", "packed", 1),
        ("initial", "shared", 40), ("initial", "packed", 1),
    ],
)  # fmt: skip
def test_a_weight_that_is_tiny_beside_the_others_is_not_lost(gap, where, kind, frames):
    table = compile_table(two_lobes())
    if where == "arc":
        table = table.with_arc_log_probs(np.array([0.0, -gap, 0.0, 0.0]))
    else:
        table = replace(table, **{f"{where}_log_prob": np.array([-np.inf, 0.0, -gap])})
    scores = np.zeros((1, 60, 3), np.float32)
    scores[0, 10 : 10 + frames, 0] = -2 * gap / frames
    batch = TableBatch.share(table, 1) if kind == "shared" else TableBatch.pack([table])
    exact = assert_agrees(batch, scores)
    assert exact.log_prob[0] == pytest.approx(-gap, rel=tolerances.LOG_PROB_RELATIVE)


@pytest.mark.parametrize("gap", GAPS)
def test_a_leak_into_a_state_of_tiny_init_is_not_lost(gap):
    table = replace(compile_table(two_lobes()), leaky_log_prob=np.array([-np.inf, 0.0, -gap]))
    table = replace(table, initial_log_prob=np.array([-np.inf, 0.0, -np.inf]))
    scores = np.zeros((1, 60, 3), np.float32)
    scores[0, 30:, 0] = -gap
    assert_agrees(TableBatch.share(table, 1), scores, leaky=0.1)
    assert_agrees(TableBatch.pack([table]), scores, leaky=0.1)


@pytest.fixture
def ran(monkeypatch):
    """Which numbers were computed in, names such as "float32 plain" or "logs", and for which sequences."""
    found = []
    in_numbers, in_logs = cpu._in_numbers, cpu._in_logs

    def spy(graph, job, lanes):
        found.append((f"{graph.shape.dtype} {graph.shape.form.kind}", lanes.tolist()))
        return in_numbers(graph, job, lanes)

    monkeypatch.setattr(cpu, "_in_numbers", spy)
    monkeypatch.setattr(cpu, "_in_logs", lambda *a: (found.append(("logs", [])), in_logs(*a))[1])
    return found


ALL_KINDS = ["float32 plain", "float32 wide", "float64 wide", "logs"]


@pytest.mark.parametrize(("gap", "kinds"), [(12.0, 1), (200.0, 2), (2000.0, 2), (2e6, 3), (2e16, 4)])
def test_the_data_decide_how_wide_the_range_is(gap, kinds, ran):
    scores = np.zeros((1, 60, 3), np.float32)
    scores[0, 10, 1], scores[0, 40, 0] = -gap, -2 * gap
    batch = TableBatch.share(compile_table(two_lobes()), 1)
    result = forward_backward(batch, scores)
    assert result.log_prob[0] == pytest.approx(-gap, rel=tolerances.LOG_PROB_RELATIVE)
    assert [kind for kind, _ in ran] == ALL_KINDS[:kinds]
    ran.clear()
    assert result.occupancy[0, 20, 1] == pytest.approx(1.0, abs=tolerances.OCCUPANCY)
    assert [kind for kind, _ in ran] == ALL_KINDS[:kinds]


@pytest.mark.parametrize(
    ("dtype", "kind", "first"),
    [
        (np.float32, "shared", "float32 plain"),
        (np.float32, "packed", "float64 plain"),
        (np.float64, "shared", "float64 plain"),
        (np.float64, "packed", "float64 plain"),
    ],
)
def test_scores_of_magnitude_one_stay_in_the_first_kind_of_number(dtype, kind, first, ran):
    table = compile_table(connected_graph(5))
    batch = TableBatch.share(table, 3) if kind == "shared" else TableBatch.pack([table])
    forward_backward(batch, np.random.default_rng(1).normal(size=(batch.size, 50, NUM_PDFS)).astype(dtype))
    assert [kind for kind, _ in ran] == [first]


def test_only_the_sequence_that_needs_it_runs_in_a_wider_range(ran):
    scores = np.zeros((8, 60, 3), np.float32)
    scores[5, 10, 1], scores[5, 40, 0] = -200.0, -400.0
    result = forward_backward(TableBatch.share(compile_table(two_lobes()), 8), scores)
    assert result.ok.all()
    assert [lanes for kind, lanes in ran if kind.endswith("wide")] == [[5]]


@pytest.mark.parametrize("width", [1, 2, 7, 15, 16, 17, 33])
def test_every_number_of_pdfs_and_of_sequences_side_by_side_is_right(width):
    """Tiles of 16 pdfs, the last of them cut short or moved back; some pdfs that no arc has between those that one has."""
    for num_pdfs in (5, 15, 16, 17, 40):
        rng = np.random.default_rng(num_pdfs)
        used = np.sort(rng.choice(num_pdfs, size=min(num_pdfs, 12), replace=False))
        graph = connected_graph(num_pdfs, num_pdfs=len(used))
        graph = replace(graph, pdf=used[graph.pdf])
        scores = rng.normal(size=(width, 6, num_pdfs)).astype(np.float32)
        scores[:, :, np.setdiff1d(np.arange(num_pdfs), used)] = np.nan  # nobody looks there
        lengths = [6 - n % 4 for n in range(width)]
        batch = TableBatch.share(compile_table(graph, num_pdfs), width)
        assert_agrees(batch, scores, lengths)


# A graph that one sequence has for itself, float64 in plain numbers: what falls behind, and what is known beforehand.

PLAIN, WIDE = "float64 plain", "float64 wide"


def alone(table, size=1):
    return TableBatch.pack([table] * size)


@pytest.mark.parametrize("gap", [100.0, 650.0, 700.0, 720.0, 745.0, 760.0, 1000.0, 3000.0])
@pytest.mark.parametrize(
    ("middle", "frames", "dtype"),
    [(1.5, 1, np.float32), (2.5, 30, np.float32), (1.5, 30, np.float64), (2.5, 1, np.float64)],
)
def test_a_path_that_is_lost_from_either_end_and_wins_in_the_middle_is_not_lost(gap, middle, frames, dtype):
    """Lobe 1 falls behind by the gap at the beginning and again at the end, and gets `middle` gaps ahead between."""
    scores = np.zeros((1, 200, 3), dtype)
    for start, pdf, fall in ((5, 1, gap), (90, 0, middle * gap), (150, 1, gap)):
        scores[0, start : start + frames, pdf] = -fall / frames
    exact = assert_agrees(alone(compile_table(two_lobes())), scores)
    wins = exact.occupancy[0, 80, 1]
    assert wins == pytest.approx(float(middle > 2.0), abs=tolerances.SURE_OCCUPANCY)


@pytest.mark.parametrize("gap", np.linspace(660.0, 750.0, 19))
@pytest.mark.parametrize("rise", [0.9, 1.0, 1.1])
def test_digits_that_subnormal_numbers_lose_are_noticed(gap, rise):
    """Alphas between the least normal float and the least of all hold few digits, and rounding may enlarge them."""
    scores = np.zeros((1, 60, 3))
    scores[0, 10, 1], scores[0, 40, 0] = -gap, -rise * gap
    assert_agrees(alone(compile_table(two_lobes())), scores)


@pytest.mark.parametrize(
    ("dtype", "gap", "frames", "first"),
    [
        (np.float32, 40.0, 40, PLAIN),
        (np.float32, 60.0, 40, "float32 wide"),
        (np.float32, 20.0, 200, "float32 wide"),
        (np.float64, 60.0, 40, PLAIN),
        (np.float64, 140.0, 15, WIDE),
        (np.float64, 60.0, 60, WIDE),
    ],
)
def test_plain_numbers_are_not_tried_where_scores_are_far_apart(dtype, gap, frames, first, ran):
    """By the pdfs that the graph has; others have no say."""
    scores = np.zeros((2, frames, 4), dtype)
    scores[:, :, 0], scores[:, :, 3] = -gap, np.nan
    assert_agrees(alone(compile_table(two_lobes(), 4), 2), scores)
    assert ran[0][0] == first
