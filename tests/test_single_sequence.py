"""One sequence alone gives the bits of a batch, in a layout of its own too, rows of the graph side by side."""

import math
from dataclasses import replace

import numpy as np
import pytest
import tolerances
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import connected_graph, graphs
from test_backends_agree import assert_agrees

from fsachain import Fsa, TableBatch, compile_table, forward_backward
from fsachain.backends.cpu import backend as cpu
from fsachain.backends.cpu.backend import FEW, choose_layout
from fsachain.backends.cpu.layouts import ArcGroups, ArcRows, ArcsBothWays, OwnGroups
from fsachain.backends.cpu.structs import Form
from fsachain.backends.cpu.tables import kernel_table
from fsachain.backends.reference import sums as reference

PDFS, FRAMES = 23, 6
LEAKS = ("none", "to all states", "to some states")


def uneven_graph(num_states, seed, *, is_by_state=False):
    """Arcs between any two states; many of them into the first, out of the second, and with one of the pdfs.

    is_by_state: all arcs into a state have one pdf, so that there are few pairs.
    """
    rng = np.random.default_rng(seed)
    count = 8 * num_states
    src, dst = rng.integers(num_states, size=(2, count))
    pdf = rng.integers(PDFS, size=count)
    dst[rng.random(count) < 0.3] = 0
    src[rng.random(count) < 0.3] = min(1, num_states - 1)
    pdf[rng.random(count) < 0.5] = 2
    if is_by_state:
        pdf = dst % PDFS
    final = np.where(rng.random(num_states) < 0.5, rng.normal(size=num_states), -math.inf)
    return Fsa(num_states, src, dst, pdf, rng.normal(size=count) - 2.0, final, 0)


def compiled(fsa, leak, num_pdfs):
    """The table and the leak's coefficient."""
    if leak == "none":
        return compile_table(fsa, num_pdfs), 0.0
    target = np.full(fsa.num_states, -math.log(fsa.num_states))
    if leak == "to some states":
        target[::2] = -math.inf
    return replace(compile_table(fsa, num_pdfs), leaky_log_prob=target), 0.01


def assert_alone_as_in_a_batch(fsa, leak, scores):
    (table, leaky), lengths = compiled(fsa, leak, scores.shape[2]), np.full(len(scores), scores.shape[1])
    options = {"leaky_hmm_coefficient": leaky}
    batch = forward_backward(TableBatch.share(table, len(scores)), scores, lengths, **options)
    for n in range(len(scores)):
        one = slice(n, n + 1)
        alone = forward_backward(TableBatch.share(table, 1), scores[one], lengths[one], **options)
        assert alone.log_prob.tobytes() == batch.log_prob[one].tobytes()
        assert alone.occupancy.tobytes() == batch.occupancy[one].tobytes()


uneven_graphs = st.builds(uneven_graph, st.integers(1, 70), st.integers(0, 1000), is_by_state=st.booleans())


@settings(max_examples=90)
@given(
    leak=st.sampled_from(LEAKS),
    fsa=uneven_graphs | graphs(max_states=40, max_arcs=60),
    seed=st.integers(0, 1000),
    scale=st.sampled_from([1.0, 20.0, 150.0, 1500.0]),
)
def test_a_sequence_alone_has_its_bits_on_any_graph(leak, fsa, seed, scale):
    scores = scale * np.random.default_rng(seed).normal(size=(3, FRAMES, PDFS))
    scores[1, 2, 0] = -math.inf
    assert_alone_as_in_a_batch(fsa, leak, scores.astype(np.float32))


@settings(max_examples=45)
@given(
    leak=st.sampled_from(LEAKS),
    num_states=st.integers(25, 70),
    seed=st.integers(0, 1000),
    scale=st.sampled_from([1.0, 20.0, 150.0]),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_dense_graphs_of_their_own_have_the_sums_of_the_reference(leak, num_states, seed, scale, dtype):
    """Where rows of a component read the same numbers, parallel arcs among them."""
    pair = [compiled(uneven_graph(num_states, seed + n), leak, PDFS) for n in range(2)]
    batch, leaky = TableBatch.pack([table for table, _ in pair]), pair[0][1]
    rows = kernel_table(batch.table(0), np.dtype(np.float64), Form(1), leaky > 0.0, OwnGroups).arcs.many
    assert rows.into.shared.any() and rows.back.shared.any()
    scores = scale * np.random.default_rng(seed).normal(size=(2, FRAMES, PDFS))
    assert_agrees(batch, scores.astype(dtype), leaky=leaky)


@settings(max_examples=15)
@given(leak=st.sampled_from(LEAKS), seed=st.integers(0, 1000), scale=st.sampled_from([1.0, 150.0, 1500.0]))
def test_graphs_without_pairs_have_the_sums_of_the_reference_alone_and_side_by_side(leak, seed, scale):
    fsa = connected_graph(seed, 60, FEW + 1, PDFS)
    table, leaky = compiled(fsa, leak, PDFS)
    assert choose_layout(table, Form(1), is_shared=True) is ArcsBothWays
    scores = (scale * np.random.default_rng(seed).normal(size=(3, FRAMES, PDFS))).astype(np.float32)
    assert_agrees(TableBatch.share(table, len(scores)), scores, leaky=leaky)
    assert_alone_as_in_a_batch(fsa, leak, scores)


@pytest.mark.parametrize("leak", LEAKS)
@pytest.mark.parametrize("is_dense", [False, True])
@pytest.mark.parametrize(("dtype", "scale"), [("float32", 4.0), ("float32", 300.0), ("float64", 300.0)])
def test_frames_in_which_few_states_matter_stand_between_those_in_which_all_do(leak, is_dense, dtype, scale):
    """Equation (34) in a graph of one's own, at once and in segments: scores that say much, and those that say nothing."""
    graphs = [uneven_graph(40, n) if is_dense else connected_graph(n, 40, 90, PDFS) for n in range(3)]
    tables, leaks = zip(*(compiled(fsa, leak, PDFS) for fsa in graphs), strict=True)
    batch, lengths, weights = TableBatch.pack(tables), np.array([80, 61, 1]), np.array([1.0, 2.0, -1.0])
    loud = np.repeat([0.1, scale, 0.1, scale, 0.1], 16)[:, None]
    scores = (loud * np.random.default_rng(1).normal(size=(3, 80, PDFS))).astype(dtype)
    found = {name: np.zeros_like(scores) for name in ("whole", "segments", "reference")}
    whole = cpu.add_occupancy(batch, scores, lengths, leaks[0], weights, found["whole"])
    cpu.add_occupancy(batch, scores, lengths, leaks[0], weights, found["segments"], 0.0)
    wanted = reference.add_occupancy(batch, scores, lengths, leaks[0], weights, found["reference"])
    assert found["segments"].tobytes() == found["whole"].tobytes()
    np.testing.assert_allclose(whole.log_prob, wanted.log_prob, rtol=tolerances.LOG_PROB_RELATIVE)
    most = tolerances.OCCUPANCY if dtype == "float32" else tolerances.FLOAT64
    np.testing.assert_allclose(found["whole"], found["reference"], rtol=0, atol=most)


@pytest.mark.parametrize("width", [1, 16])
def test_pairs_are_summed_where_arcs_share_a_destination_and_a_pdf_and_in_small_graphs(width):
    few, small = uneven_graph(130, 3, is_by_state=True), connected_graph(0, 60, FEW, PDFS)
    for fsa in (few, small):
        layout = choose_layout(compile_table(fsa), Form(width), is_shared=True)
        assert layout is (ArcGroups if width == 1 else ArcRows)


@pytest.mark.parametrize("level", [-3.0, -200.0])
def test_few_pdfs_with_negative_scores_are_normalised_by_their_largest(level):
    """Lanes without a pdf have no say: with a shift of 0 the last sequence would leave the range of float32."""
    fsa = Fsa(1, [0, 0], [0, 0], [0, 1], [0.0, -1.0], [0.0], 0)
    scores = level - np.random.default_rng(1).random((2, FRAMES, 3))
    assert_alone_as_in_a_batch(fsa, "to all states", scores.astype(np.float32))
