"""What must hold for any graph and any scores."""

from dataclasses import replace

import numpy as np
import pytest
import tolerances
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_graphs import connected_graph, graphs, left_to_right_graph, renumbered, score_matrices

from fsachain import DenominatorGraph, LFMMILoss, TableBatch, compile_table, forward_backward

NUM_PDFS = 3
BACKENDS = pytest.mark.parametrize("backend", ["cpu", "reference"])
FEW = settings(max_examples=25)


def run(fsa, scores, num_pdfs=NUM_PDFS, backend="cpu"):
    return forward_backward(TableBatch.pack([compile_table(fsa, num_pdfs)]), scores[None], backend=backend)


@BACKENDS
@FEW
@given(
    data=st.data(),
    fsa=graphs(),
    constants=st.lists(st.floats(-1e6, 1e6), min_size=5, max_size=5),
    leaky=st.sampled_from([0.0, 0.1]),
)
def test_a_constant_on_a_frame_moves_log_z_by_it_and_nothing_else(backend, data, fsa, constants, leaky):
    """Every path spends exactly one arc on each frame. Scores are float64: what adding 1e6 rounds away is below 1e-10."""
    scores = data.draw(score_matrices(5))
    init = np.full(fsa.num_states, -np.log(fsa.num_states))
    batch = TableBatch.pack([replace(compile_table(fsa, NUM_PDFS), leaky_log_prob=init)])
    plain, moved = (
        forward_backward(batch, x[None], leaky_hmm_coefficient=leaky, backend=backend)
        for x in (scores, scores + np.array(constants)[:, None])
    )
    assert plain.ok[0] == moved.ok[0]
    assume(plain.ok[0])
    expected, near = (
        plain.log_prob[0] + sum(constants),
        tolerances.FLOAT64 * max(1.0, np.abs(constants).max()),
    )
    assert moved.log_prob[0] == pytest.approx(expected, abs=near)
    np.testing.assert_allclose(moved.occupancy, plain.occupancy, rtol=0.0, atol=tolerances.SHIFTED_OCCUPANCY)


@BACKENDS
@FEW
@given(data=st.data(), fsa=graphs(max_states=5, max_arcs=10), num_frames=st.integers(0, 6))
def test_renumbering_states_arcs_and_pdfs_changes_nothing(backend, data, fsa, num_frames):
    scores = data.draw(score_matrices(num_frames))
    states = np.array(data.draw(st.permutations(range(fsa.num_states))), dtype=int)
    arcs = np.array(data.draw(st.permutations(range(fsa.num_arcs))), dtype=int)
    pdfs = np.array(data.draw(st.permutations(range(NUM_PDFS))), dtype=int)
    moved_scores = np.empty_like(scores)
    moved_scores[:, pdfs] = scores
    other = renumbered(fsa, states, arcs, pdfs)
    plain, moved = run(fsa, scores, backend=backend), run(other, moved_scores, backend=backend)
    near = {"rtol": 0.0, "atol": tolerances.FLOAT64}
    np.testing.assert_allclose(moved.log_prob, plain.log_prob, **near)
    np.testing.assert_allclose(moved.occupancy[:, :, pdfs], plain.occupancy, **near)
    np.testing.assert_allclose(moved.arc_occupancy(0), plain.arc_occupancy(0)[:, arcs], **near)


def same_bits(left, right):
    left, right = np.ascontiguousarray(left), np.ascontiguousarray(right)
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


SIZE, FRAMES, WIDTH = 37, 30, 9


def many(kind, seed=0):
    """A batch of SIZE sequences of all lengths, scores that need every kernel, and the coefficient."""
    rng = np.random.default_rng(seed)
    scale = rng.choice([1.0, 10.0, 100.0], size=(SIZE, 1, 1))
    scores = (scale * rng.normal(size=(SIZE, FRAMES, WIDTH))).astype(np.float32)
    lengths = rng.integers(0, FRAMES + 1, size=SIZE)
    if kind == "shared":
        return DenominatorGraph(connected_graph(1), WIDTH).batch(SIZE), scores, lengths, 1e-5
    fsas = [connected_graph(n) if n % 3 else left_to_right_graph(n) for n in range(SIZE)]
    return TableBatch.pack([compile_table(fsa, WIDTH) for fsa in fsas]), scores, lengths, 0.0


def evaluate(batch, scores, lengths, leaky):
    result = forward_backward(batch, scores, lengths, leaky_hmm_coefficient=leaky)
    return result.log_prob, result.occupancy


@pytest.mark.parametrize("kind", ["shared", "packed"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bits_do_not_depend_on_the_batch_the_threads_or_the_padding(kind, dtype, use_threads):
    batch, scores, lengths, leaky = many(kind)
    scores, padding = scores.astype(dtype), np.arange(FRAMES) >= lengths[:, None]
    expected = evaluate(batch, scores, lengths, leaky)
    for threads, filling in ((1, np.nan), (2, np.inf), (5, -np.inf), (5, 1e30)):
        use_threads(threads)
        scores[padding] = filling
        found = evaluate(batch, scores, lengths, leaky)
        assert all(map(same_bits, found, expected)) and not found[1][padding].any()
    for n in range(SIZE):
        alone = TableBatch.pack([batch.table(n)]) if kind == "packed" else TableBatch.share(batch.table(0), 1)
        log_prob, occupancy = evaluate(alone, scores[n : n + 1], lengths[n : n + 1], leaky)
        assert same_bits(log_prob, expected[0][n : n + 1]) and same_bits(occupancy[0], expected[1][n])
    order = np.random.default_rng(1).permutation(SIZE)
    shuffled = TableBatch.pack([batch.table(n) for n in order]) if kind == "packed" else batch
    log_prob, occupancy = evaluate(shuffled, scores[order], lengths[order], leaky)
    assert same_bits(log_prob, expected[0][order]) and same_bits(occupancy, expected[1][order])


@pytest.mark.parametrize("scale", [1.0, 1000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(3))
def test_a_denominator_is_its_own_numerator(scale, dtype, seed):
    """The exact normalization FSA has the denominator's log Z at c = 0: num - den = 0 and no gradient."""
    denominator = DenominatorGraph(connected_graph(seed), 9)
    numerator = denominator.normalization_fsa()
    loss = LFMMILoss(denominator, leaky_hmm_coefficient=0.0, out_of_range_regularize=0.0)
    generator = torch.Generator().manual_seed(seed)
    scores = scale * torch.randn(3, 40, 9, generator=generator, dtype=torch.float64)
    scores, lengths = scores.to(dtype).requires_grad_(), [40, 1, 25]
    loss(scores, lengths, [numerator] * 3).backward()
    record = loss.last_record
    assert record.ok.all()
    per_frame = (record.num_log_prob - record.den_log_prob).abs() / torch.tensor(lengths)
    is_double = dtype == torch.float64
    assert per_frame.max() <= (tolerances.OBJF_PER_FRAME_FLOAT64 if is_double else tolerances.OBJF_PER_FRAME)
    assert scores.grad.abs().max() * record.weight_ok <= 2 * tolerances.OCCUPANCY


@pytest.mark.parametrize("seed", range(3))
def test_no_numerator_composed_with_the_normalization_exceeds_its_denominator(seed):
    """A subset of the denominator's paths, with the denominator's own weights."""
    denominator = DenominatorGraph(connected_graph(seed), 9)
    whole = denominator.normalization_fsa()
    rng = np.random.default_rng(seed)
    possible = 0
    for _ in range(5):
        part = replace(whole, log_prob=np.where(rng.random(whole.num_arcs) < 0.8, whole.log_prob, -np.inf))
        scores = rng.normal(size=(1, 12, 9))
        num = forward_backward(TableBatch.pack([compile_table(part, 9)]), scores).log_prob[0]
        den = forward_backward(denominator.batch(1), scores).log_prob[0]
        assert num <= den + tolerances.FLOAT64
        possible += bool(np.isfinite(num))
    assert possible


@FEW
@given(data=st.data(), fsa=graphs(max_states=4, max_arcs=8), num_frames=st.integers(1, 6))
def test_trimming_keeps_every_path(data, fsa, num_frames):
    scores = data.draw(score_matrices(num_frames))
    plain, trimmed = run(fsa, scores), run(fsa.trim(), scores)
    np.testing.assert_allclose(trimmed.log_prob, plain.log_prob, rtol=0.0, atol=tolerances.FLOAT64)
    np.testing.assert_allclose(trimmed.occupancy, plain.occupancy, rtol=0.0, atol=tolerances.FLOAT64)
