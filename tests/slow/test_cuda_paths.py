"""The kernels of best paths, run on the host: the same bits as the CPU backend, however they run."""

from dataclasses import replace

import numpy as np
import pytest
from device_arrays import on_device
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import connected_graph, graphs, left_to_right_graph, score_matrices

from fsachain import Fsa, TableBatch, best_path, compile_table
from fsachain.backends.cuda.paths import best_paths, make_plan
from tools.cuda_on_host import HostDevice, skip_reason

pytestmark = pytest.mark.skipif(skip_reason() is not None, reason=str(skip_reason()))

NUM_PDFS = 9
SMALL = {"threads": 32}  # a thread of the host stands for each


def pack(*fsas):
    return TableBatch.pack([compile_table(fsa, NUM_PDFS) for fsa in fsas])


def mixed_batch():
    """Acceptors of different sizes, one without a path of its length, one without frames, one of a single state."""
    dead = Fsa(2, [0], [0], [0], [0.0], [-np.inf, 0.0])
    single = Fsa(1, [0, 0], [0, 0], [3, 4], [-1.0, -1.0], [0.5])
    batch = pack(
        left_to_right_graph(1), connected_graph(2), dead, single, connected_graph(3), connected_graph(4)
    )
    return batch, np.array([11, 12, 5, 12, 0, 3])


def random_scores(batch, num_frames, scale=1.0, seed=0):
    normal = np.random.default_rng(seed).normal(size=(batch.size, num_frames, NUM_PDFS))
    return (scale * normal).astype(np.float32)


def run(device, batch, array, lengths, plan=None, budget=None):
    """score [N] and arcs [N, T]."""
    size, num_frames, _ = array.shape
    found = best_paths(device, batch, array, np.asarray(lengths), budget, plan)
    return found.score.read(np.float64), found.arcs.read(np.int32, (size, num_frames))


def changed(batch, lengths, **parts):
    plan = make_plan(HostDevice().limits, batch, np.asarray(lengths))
    return replace(plan, **{**SMALL, **parts})


def assert_as_on_the_cpu(batch, scores, lengths, **parts):
    """Bit by bit what `best_path` returns there, and -1 wherever there is no arc; its scores."""
    device = HostDevice()
    score, arcs = run(device, batch, on_device(device, scores), lengths, changed(batch, lengths, **parts))
    expected = best_path(batch, scores, lengths, backend="cpu")
    np.testing.assert_array_equal(score, expected.score)
    for n, path in enumerate(expected.arcs):
        np.testing.assert_array_equal(arcs[n, : len(path)], path)
        assert (arcs[n, len(path) :] == -1).all()
        assert len(path) in (0, lengths[n])
    return score


@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0])
def test_paths_and_scores_are_the_same_bits_as_on_the_cpu(scale):
    batch, lengths = mixed_batch()
    score = assert_as_on_the_cpu(batch, random_scores(batch, 12, scale), lengths)
    assert np.isfinite(score[:2]).all() and np.isneginf(score[2])


@pytest.mark.parametrize(
    "parts",
    [
        {"lanes": 2},
        {"lanes": 8},
        {"lanes": 32},
        {"threads": 64, "lanes": 4},
        {"threads": 256},
        {"on_chip": False},
        {"back_type": "unsigned int", "back_bytes": 4},
        {"every": 1},
        {"every": 5, "lanes": 4},
        {"every": 4, "on_chip": False},
        {"every": 12},
    ],
    ids=str,
)
def test_no_bit_depends_on_how_the_kernels_run(parts):
    """Scores are whole numbers, so that many paths are equally good and every tie must be decided alike."""
    batch, lengths = mixed_batch()
    assert_as_on_the_cpu(batch, np.rint(random_scores(batch, 12)), lengths, **parts)


@settings(max_examples=25)
@given(st.data(), graphs(), st.integers(0, 5), st.sampled_from([1, 4]), st.sampled_from([2, 64]))
def test_any_acceptor_gives_the_path_of_the_oracle(data, fsa, num_frames, lanes, every):
    """Weights and scores are sums of few binary digits, so that ties happen and are exact in any order of summation."""
    scores = np.rint(data.draw(score_matrices(num_frames)))[None]
    batch = TableBatch.share(compile_table(fsa, 3), 1)
    assert_as_on_the_cpu(batch, scores, [num_frames], lanes=lanes, every=every)


def test_more_active_pdfs_than_threads_hold_in_registers():
    rng = np.random.default_rng(8)
    ring = np.arange(150)
    fsa = Fsa(150, ring, (ring + 1) % 150, rng.permutation(150), rng.normal(size=150), np.zeros(150))
    scores = rng.normal(size=(1, 4, 150)).astype(np.float32)
    assert_as_on_the_cpu(TableBatch.share(compile_table(fsa), 1), scores, [4])


@pytest.mark.parametrize("every", [64, 4])
def test_impossible_and_illegal_sequences_are_data(every):
    """-inf takes paths away; NaN and +inf in an active pdf of a real frame are illegal; padding is not read."""
    batch = pack(*(left_to_right_graph(n) for n in range(6)))
    lengths = np.array([12, 12, 12, 12, 9, 12])
    scores = random_scores(batch, 12)
    scores[1, 7] = -np.inf
    scores[2, 11, batch.table(2).active_pdfs[0]] = np.nan
    scores[3, 0, batch.table(3).active_pdfs[-1]] = np.inf
    scores[4, 9:] = np.nan
    unused = np.setdiff1d(np.arange(NUM_PDFS), batch.table(5).active_pdfs)[0]
    scores[5, :, unused] = np.nan
    score = assert_as_on_the_cpu(batch, scores, lengths, every=every)
    assert np.isneginf(score[1]) and np.isnan(score[2:4]).all() and np.isfinite(score[[0, 4, 5]]).all()


def test_states_with_many_arcs_have_wider_back_pointers():
    fsa = Fsa(1, [0] * 300, [0] * 300, [0] * 300, np.linspace(-3.0, 0.0, 300), [0.0])
    batch, lengths = TableBatch.share(compile_table(fsa), 1), [3]
    assert make_plan(HostDevice().limits, batch, np.array(lengths)).back_bytes == 2
    assert_as_on_the_cpu(batch, np.zeros((1, 3, 1), np.float32), lengths)
