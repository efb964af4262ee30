"""Single paths: the best, the n best pdf sequences, samples; against the oracle, and the oracle against all paths."""

import math
from collections import Counter

import numpy as np
import pytest
import tolerances
import torch
from enumeration import all_walks, log_sum, ranked_pdf_sequences
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import connected_graph, graphs, left_to_right_graph, score_matrices

from fsachain import (
    DenominatorGraph,
    Fsa,
    TableBatch,
    best_path,
    compile_table,
    forward_backward,
    n_best,
    sample_paths,
)

NUM_PDFS = 9
BACKENDS = ["cpu", "reference"]


def pack(*fsas):
    return TableBatch.pack([compile_table(fsa, NUM_PDFS) for fsa in fsas])


def scores_of(kind, size, seed=0):
    """Normal scores at a scale, one-hot ones, or with a few of them -inf."""
    rng = np.random.default_rng(seed)
    if isinstance(kind, float):
        return kind * rng.normal(size=size)
    if kind == "one-hot":
        hot = rng.integers(size[-1], size=(*size[:-1], 1))
        return np.where(np.arange(size[-1]) == hot, 30.0, -30.0)
    return np.where(rng.random(size) < 0.02, -np.inf, rng.normal(size=size))


SCORE_KINDS = [1.0, 1000.0, "one-hot", "some -inf"]


def path_score(fsa, scores, arcs, states):
    assert (fsa.src[arcs] == states[:-1]).all() and (fsa.dst[arcs] == states[1:]).all()
    assert states[0] == fsa.start
    steps = scores[np.arange(len(arcs)), fsa.pdf[arcs]].astype(np.float64)
    return float((fsa.log_prob[arcs] + steps).sum() + fsa.final_log_prob[states[-1]])


@pytest.mark.parametrize("kind", SCORE_KINDS)
def test_best_paths_are_paths_of_the_best_score_at_every_magnitude(kind):
    fsas = [left_to_right_graph(n) if n % 2 else connected_graph(n) for n in range(6)]
    scores, lengths = scores_of(kind, (6, 40, NUM_PDFS)), [40, 23, 40, 1, 0, 40]
    ours, exact = (best_path(pack(*fsas), scores, lengths, backend=backend) for backend in BACKENDS)
    np.testing.assert_allclose(ours.score, exact.score, rtol=tolerances.ROUNDING)
    assert np.isfinite(ours.score[0])
    for n in np.flatnonzero(np.isfinite(ours.score)):
        score = path_score(fsas[n], scores[n], ours.arcs[n], ours.states[n])
        assert ours.score[n] == pytest.approx(score, rel=tolerances.ROUNDING, abs=tolerances.ROUNDING)
        assert len(ours.arcs[n]) == lengths[n] and (ours.pdfs[n] == fsas[n].pdf[ours.arcs[n]]).all()


@settings(max_examples=50)
@given(st.data(), st.lists(graphs(), min_size=1, max_size=3), st.booleans(), st.sampled_from(BACKENDS))
def test_pdfs_and_states_are_those_of_the_arcs_in_the_callers_fsa(data, fsas, is_shared, backend):
    """In arrays that are the caller's own: what is written there is not in what the next call returns."""
    size = data.draw(st.integers(1, 3)) if is_shared else len(fsas)
    batch = TableBatch.share(fsas[0], size) if is_shared else TableBatch.pack(fsas)
    scores = np.stack([data.draw(score_matrices(4)) for _ in range(size)])
    lengths = data.draw(st.lists(st.integers(0, 4), min_size=size, max_size=size))
    for _ in range(2):
        best = best_path(batch, scores, lengths, backend=backend)
        several = n_best(batch, scores, 3, lengths, backend=backend)
        for n, num_frames in enumerate(lengths):
            fsa = fsas[0 if is_shared else n]
            is_path = bool(np.isfinite(best.score[n]))
            shapes = [array.shape for array in (best.pdfs[n], best.states[n], several.states[n])]
            several_shape = len(several.arcs[n]), num_frames + 1
            assert shapes == [(is_path * num_frames,), (is_path * (num_frames + 1),), several_shape]
            ways = [(best.pdfs[n], best.states[n], best.arcs[n])] if is_path else []
            ways += zip(several.pdfs[n], several.states[n], several.arcs[n], strict=True)
            for pdfs, states, arcs in ways:
                assert pdfs.tolist() == fsa.pdf[arcs].tolist()
                assert states.tolist() == [fsa.start, *fsa.dst[arcs]]
                assert states[:-1].tolist() == fsa.src[arcs].tolist()
            for array in (best.pdfs[n], best.states[n], several.pdfs[n], several.states[n]):
                assert array.dtype == np.int32
                array[...] = -1


@settings(max_examples=50)
@given(st.data(), graphs(), st.integers(0, 4), st.integers(1, 12), st.sampled_from(BACKENDS))
def test_n_best_equals_the_head_of_all_pdf_sequences(data, fsa, num_frames, n, backend):
    scores = data.draw(score_matrices(num_frames))
    ranked = ranked_pdf_sequences(fsa, scores)
    found = n_best(TableBatch.pack([compile_table(fsa, 3)]), scores[None], n, backend=backend)
    count = min(n, len(ranked))
    assert found.pdfs[0].shape == (count, num_frames) and (found.score[0, count:] == -np.inf).all()
    by_pdfs = {pdfs: score for score, pdfs in ranked}
    listed = [tuple(pdfs) for pdfs in found.pdfs[0].tolist()]
    assert len(set(listed)) == count
    for k, pdfs in enumerate(listed):
        # The k-th best score is that of the k-th in the list, which only rounding may have exchanged with its equals.
        assert found.score[0, k] == pytest.approx(ranked[k][0], abs=tolerances.ENUMERATION)
        assert found.score[0, k] == pytest.approx(by_pdfs[pdfs], abs=tolerances.ENUMERATION)
        score = path_score(fsa, scores, found.arcs[0][k], found.states[0][k])
        assert found.score[0, k] == pytest.approx(score, abs=tolerances.ENUMERATION)
        assert (fsa.pdf[found.arcs[0][k]] == pdfs).all()


@settings(max_examples=40)
@given(st.data(), graphs(), st.integers(0, 4), st.integers(1, 12), st.sampled_from(BACKENDS))
def test_equal_scores_come_in_the_order_of_their_pdfs(data, fsa, num_frames, n, backend):
    """Weights and scores are small integers, which add up without rounding."""
    whole = [float(np.clip(np.round(w), -3, 3)) if w > -np.inf else w for w in fsa.log_prob]
    final = [float(np.round(w)) if w > -np.inf else w for w in fsa.final_log_prob]
    fsa = Fsa(fsa.num_states, fsa.src, fsa.dst, fsa.pdf, whole, final, fsa.start)
    flat = data.draw(st.lists(st.integers(-1, 1), min_size=3 * num_frames, max_size=3 * num_frames))
    scores = np.array(flat, dtype=np.float64).reshape(num_frames, 3)
    found = n_best(TableBatch.pack([compile_table(fsa, 3)]), scores[None], n, backend=backend)
    expected = ranked_pdf_sequences(fsa, scores)[:n]
    assert found.score[0, : len(expected)].tolist() == [score for score, _ in expected]
    assert [tuple(pdfs) for pdfs in found.pdfs[0].tolist()] == [pdfs for _, pdfs in expected]


@pytest.mark.parametrize("kind", SCORE_KINDS)
@pytest.mark.parametrize("make", [connected_graph, left_to_right_graph])
def test_n_best_agrees_with_the_oracle_at_every_magnitude(kind, make):
    batch, scores = pack(*map(make, range(3))), scores_of(kind, (3, 12, NUM_PDFS))
    ours, exact = (n_best(batch, scores, 20, backend=backend) for backend in BACKENDS)
    np.testing.assert_allclose(ours.score, exact.score, rtol=tolerances.ROUNDING)
    assert np.isfinite(ours.score[:, 0]).any()
    for mine, theirs in zip(ours.pdfs, exact.pdfs, strict=True):
        assert mine.tolist() == theirs.tolist()


def test_n_best_among_more_equals_than_can_be_looked_at():
    """9^60 sequences of one score: the search goes straight to the first, then to the next."""
    fsa = Fsa(1, [0] * NUM_PDFS, [0] * NUM_PDFS, np.arange(NUM_PDFS), np.full(NUM_PDFS, -0.1), [0.0])
    found = n_best(pack(fsa), np.full((1, 60, NUM_PDFS), 0.3), 30)
    expected = np.zeros((30, 60), dtype=np.int32)
    expected[:, -1], expected[:, -2] = np.arange(30) % NUM_PDFS, np.arange(30) // NUM_PDFS
    expected[27:, -2] = 3
    assert found.pdfs[0].tolist() == expected.tolist()
    np.testing.assert_allclose(found.score[0], 60 * 0.2, rtol=tolerances.ROUNDING)


@pytest.mark.parametrize("backend", BACKENDS)
def test_n_best_of_impossible_and_of_empty_sequences(backend):
    batch = pack(*[left_to_right_graph(0)] * 4, connected_graph(0))
    scores = np.random.default_rng(0).normal(size=(5, 10, NUM_PDFS))
    scores[1, 3], scores[2, 3] = np.nan, np.inf
    found = n_best(batch, scores, 3, [2, 10, 10, 10, 0], backend=backend)
    assert (found.score[0] == -np.inf).all() and np.isnan(found.score[1:3]).all()
    assert [len(paths) for paths in found.arcs] == [0, 0, 0, 3, 1]
    assert [paths.shape for paths in found.states] == [(0, 3), (0, 11), (0, 11), (3, 11), (1, 1)]
    assert found.score[4, 0] == connected_graph(0).final_log_prob[0] and found.states[4][0, 0] == 0


def samples(batch, scores, size, lengths=None, leaky=0.0, seed=7, backend="cpu"):
    return sample_paths(batch, scores, size, lengths, seed=seed, leaky_hmm_coefficient=leaky, backend=backend)


def as_bytes(drawn, n):
    return [part[n].tobytes() for part in (drawn.pdfs, drawn.states, drawn.arcs, drawn.jumps)]


@pytest.mark.parametrize(("kind", "leaky"), [*((kind, 0.1) for kind in SCORE_KINDS), (1.0, 0.0), (1.0, 1.0)])
def test_samples_are_those_of_the_oracle_at_every_magnitude(kind, leaky):
    tables = [DenominatorGraph(connected_graph(n), NUM_PDFS).table for n in range(3)]
    batch, scores = TableBatch.pack(tables), scores_of(kind, (3, 20, NUM_PDFS))
    ours, exact = (samples(batch, scores, 10, [20, 11, 0], leaky, backend=backend) for backend in BACKENDS)
    assert ours.ok[[0, 2]].all() and (ours.ok == exact.ok).all()
    for n in range(3):
        assert as_bytes(ours, n) == as_bytes(exact, n)


@pytest.mark.parametrize(("kind", "leaky"), [(1.0, 0.0), ("some -inf", 0.1), (1.0, 1.0)])
def test_frequencies_match_the_occupancies(kind, leaky):
    size, frames = 20_000, 15
    batch = DenominatorGraph(connected_graph(0), NUM_PDFS).batch(1)
    table, scores = batch.table(0), scores_of(kind, (1, frames, NUM_PDFS))
    drawn = samples(batch, scores, size, leaky=leaky)
    exact = forward_backward(batch, scores, leaky_hmm_coefficient=leaky, backend="reference")
    for found, expected in (
        (drawn.arcs[0], exact.arc_occupancy(0)),
        (drawn.states[0], exact.state_occupancy(0)),
        (drawn.pdfs[0], exact.occupancy[0]),
    ):
        shares = [np.bincount(column, minlength=expected.shape[1]) / size for column in found.T]
        assert (np.abs(shares - expected) <= tolerances.drawn_share(expected, size)).all()
    view = table.by_src
    src, dst = np.empty((2, table.num_arcs), dtype=np.int64)
    src[view.arc], dst[view.arc] = view.src, view.dst
    arcs, states, jumps = drawn.arcs[0], drawn.states[0], drawn.jumps[0]
    assert (src[arcs] == states[:, :-1]).all()
    assert (jumps[:, 1:] | (dst[arcs] == states[:, 1:])).all()
    assert jumps.any() == (leaky > 0.0)


@pytest.mark.parametrize("leaky", [0.0, 0.3])
def test_whole_paths_are_drawn_by_their_probability(leaky):
    """Jumps included: every path of a small acceptor is written out with its own."""
    fsa, size = connected_graph(1, num_states=3, num_arcs=7, num_pdfs=3), 20_000
    denominator = DenominatorGraph(fsa, 3, initial="start", final="fsa")
    scores = np.random.default_rng(2).normal(size=(3, 3))
    walks = all_walks(fsa, scores, init=denominator.table.leaky_log_prob, leaky=leaky)
    log_z = log_sum([walk[0] for walk in walks])
    expected = Counter()
    for score, arcs, states, jumps in walks:
        expected[arcs, states, jumps] += math.exp(score - log_z)
    drawn = samples(denominator.batch(1), scores[None], size, leaky=leaky)
    found = Counter(
        tuple(tuple(row) for row in rows)
        for rows in zip(
            drawn.arcs[0].tolist(), drawn.states[0].tolist(), drawn.jumps[0].tolist(), strict=True
        )
    )
    assert set(found) <= set(expected) and len(found) > 5
    for path, probability in expected.items():
        assert abs(found[path] / size - probability) <= tolerances.drawn_share(probability, size)


def test_one_seed_gives_one_set_of_paths_whatever_the_batch_and_the_threads(use_threads):
    tables = [DenominatorGraph(connected_graph(n), NUM_PDFS).table for n in range(4)]
    scores, lengths = 3 * np.random.default_rng(4).normal(size=(4, 25, NUM_PDFS)), [25, 3, 14, 25]
    batch = TableBatch.pack(tables)
    alone = [
        as_bytes(samples(TableBatch.pack([tables[n]]), scores[n : n + 1], 50, lengths[n : n + 1], 0.1), 0)
        for n in range(4)
    ]
    for count in (1, 3):
        use_threads(count)
        together = samples(batch, scores, 50, lengths, 0.1)
        assert [as_bytes(together, n) for n in range(4)] == alone
    padded = np.concatenate([scores, np.full((4, 5, NUM_PDFS), np.nan)], axis=1)
    assert as_bytes(samples(batch, padded, 50, lengths, 0.1), 2) == alone[2]
    more = samples(batch, scores, 80, lengths, 0.1)
    assert all((more.arcs[n][:50] == together.arcs[n]).all() for n in range(4))


@pytest.mark.parametrize("backend", BACKENDS)
def test_impossible_sequences_have_no_samples(backend):
    scores = np.random.default_rng(5).normal(size=(4, 10, NUM_PDFS))
    scores[1, 3], scores[2, 3] = np.nan, -np.inf
    batch = pack(*[left_to_right_graph(0)] * 4)
    drawn = samples(batch, torch.from_numpy(scores), 6, [2, 10, 10, 10], backend=backend)
    assert isinstance(drawn.ok, torch.Tensor) and drawn.ok.tolist() == [False, False, False, True]
    assert [paths.shape for paths in drawn.arcs] == [(0, 2), (0, 10), (0, 10), (6, 10)]
    assert [paths.shape for paths in drawn.jumps] == [(0, 3), (0, 11), (0, 11), (6, 11)]
