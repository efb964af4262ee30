"""The kernels of sums over paths, run on the host against the float64 oracle: every kind of number, place and division.

The bits of a result must depend on table, kind and place alone: not on the batch, the sequences of a thread, the blocks of a
team, the windows of frames, or on what fresh memory holds.
"""

from contextlib import contextmanager, nullcontext
from dataclasses import replace

import numpy as np
import pytest
import tolerances
from device_arrays import WithFarMemory, assert_same_bits, far_memory, macros, on_device, sums_on
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import connected_graph, graphs, left_to_right_graph, score_matrices

from fsachain import DenominatorGraph, Fsa, TableBatch, compile_table
from fsachain.backends.cuda import backend as cuda
from fsachain.backends.cuda import launch as cuda_launch
from fsachain.backends.cuda.device import DeviceArray
from fsachain.backends.cuda.layout import Division, lay_out, with_column_sums
from fsachain.backends.cuda.plan import LOG, PLAIN, WIDE, Plan, PlannedTables
from fsachain.backends.reference import sums as reference
from tools.cuda_on_host import HostDevice, skip_reason

pytestmark = pytest.mark.skipif(skip_reason() is not None, reason=str(skip_reason()))

NUM_PDFS = 9
LENGTHS = [8, 7, 0, 5, 8, 3]
LEAK = 1e-3


def on_chip(cluster=1, threads=64, lanes=2, longest=32, arcs=True, **variant):
    return Plan(True, cluster, threads, arcs, lanes, 32, **variant), Division((cluster,), 32, longest)


def in_memory(shares=4, longest=3):
    return Plan(False, 1, 64, False, 1, 1), Division((shares,), 1, longest)


PLACES = {
    "one block": on_chip(),
    "one sequence a thread": on_chip(lanes=1),
    "four sequences a thread": on_chip(lanes=4),
    "cluster of two, split states": on_chip(cluster=2, threads=32, longest=3),
    "cluster of four": on_chip(cluster=4, lanes=4),
    "cluster of two, all variants": on_chip(
        cluster=2,
        threads=32,
        longest=3,
        forward_metadata=2,
        backward_metadata=3,
        sum_columns=True,
        held_chunks=2,
    ),
    "one block, sums by column": on_chip(lanes=4, sum_columns=True),
    "256 threads, arcs in memory": on_chip(threads=256, arcs=False, lanes=1),
    "in memory": in_memory(),
}


@contextmanager
def planned(plan, division):
    """Shared graphs are computed in this place, with as many sequences a thread as it allows."""
    with pytest.MonkeyPatch.context() as patch:

        def plan_shared(table, *_):
            (layout,) = lay_out([table], division)
            return PlannedTables(plan, (with_column_sums(layout) if plan.sum_columns else layout,))

        patch.setattr(cuda_launch, "plan_shared", plan_shared)
        patch.setattr(cuda_launch, "lanes_for", lambda plan, *_: plan.max_lanes)
        yield


@pytest.fixture(scope="module")
def device():
    return HostDevice(multiprocessors=2)


def denominator(seed=3, num_states=30, num_arcs=150):
    return DenominatorGraph(connected_graph(seed, num_states, num_arcs), NUM_PDFS).table


def fresh(table):
    """An equal table, of which nothing is kept."""
    return replace(table)


def random_scores(size, num_frames, scale=1.0, seed=0):
    return (scale * np.random.default_rng(seed).normal(size=(size, num_frames, NUM_PDFS))).astype(np.float32)


def expected(batch, scores, lengths, leaky=0.0):
    log_prob, ok = reference.log_probs(batch, scores, np.asarray(lengths), leaky)
    out = np.zeros(scores.shape)
    reference.add_occupancy(batch, scores, np.asarray(lengths), leaky, np.ones(batch.size), out)
    return log_prob, ok, out


def assert_right(found, want, float64=False):
    """The contract; padding and sequences that are not ok are exactly 0."""
    np.testing.assert_array_equal(found[1], want[1])
    for got, right in zip(found[0], want[0], strict=True):
        if np.isfinite(right):
            allowed = (
                tolerances.FLOAT64 * max(1.0, abs(right)) if float64 else tolerances.log_prob_tolerance(right)
            )
            assert abs(got - right) <= allowed
        else:
            assert np.array_equal(got, right, equal_nan=True)
    np.testing.assert_allclose(
        found[2], want[2], rtol=0.0, atol=tolerances.FLOAT64 if float64 else tolerances.OCCUPANCY
    )
    empty = want[2].sum(axis=2) == 0.0
    assert not found[2][empty].any()
    np.testing.assert_allclose(found[2].sum(axis=2)[~empty], 1.0, rtol=0.0, atol=tolerances.ROW_SUM)


def right_sums(device, batch, scores, lengths, leaky=0.0, place=None):
    """log Z, ok and occupancies by the device, which are the oracle's; shared graphs in a place, if one is given."""
    with planned(*place) if place else nullcontext():
        found = sums_on(device, batch, scores, lengths, leaky)
    assert_right(found, expected(batch, scores, lengths, leaky))
    return found


@pytest.mark.parametrize(
    ("name", "leaky"),
    [
        *((name, LEAK) for name in PLACES),
        *((name, 0.0) for name in PLACES if "two" in name or name == "in memory"),
    ],
)
def test_every_place_agrees_with_the_oracle(device, name, leaky):
    batch = TableBatch.share(denominator(), len(LENGTHS))
    right_sums(device, batch, random_scores(batch.size, 8, scale=5.0), LENGTHS, leaky, PLACES[name])


def test_scores_decide_the_kind_of_number_of_each_sequence(device):
    """One-hot frames of +-30 and of +-1e5, a frame that kills all but one pdf, mild ones: each right, in one batch."""
    batch = TableBatch.share(denominator(), 4)
    scores = random_scores(4, 8)
    scores[1] = np.where(np.arange(NUM_PDFS) == np.arange(8)[:, None] % NUM_PDFS, 30.0, -30.0)
    scores[2] = np.where(np.arange(NUM_PDFS) == 4, 1e5, -1e5)
    scores[3, 3] = -np.inf
    scores[3, 3, 2] = 1.0
    right_sums(device, batch, scores, [8] * 4, LEAK, PLACES["one block"])


def test_plain_numbers_that_lose_mass_hand_over_to_wide_ones(device):
    """Two lobes between which only a leak of 1e-30 leads: plain alphas would fall below what (13) allows."""
    ring = Fsa(4, [0, 1, 2, 3], [1, 0, 3, 2], [0, 1, 2, 3], [0.0] * 4, [0.0] * 4)
    table = DenominatorGraph(ring, NUM_PDFS).table
    table = replace(table, leaky_log_prob=np.log([0.25] * 4), initial_log_prob=np.log([0.25] * 4))
    scores = np.full((2, 6, NUM_PDFS), -60.0, dtype=np.float32)
    scores[0, ::2, 0] = scores[0, 1::2, 1] = 0.0
    scores[1, :3, 0] = scores[1, 3:, 2] = 60.0
    right_sums(device, TableBatch.share(table, 2), scores, [6, 6], 1e-30, PLACES["one block"])


def test_illegal_scores_and_impossible_sequences_are_data(device):
    batch = TableBatch.share(denominator(), len(LENGTHS))
    scores = random_scores(batch.size, 8)
    scores[0, 1, 2], scores[3, 0, 1] = np.nan, np.inf
    scores[4, 2] = -np.inf
    scores[1, 7:], scores[5, 3:] = np.nan, np.inf  # padding
    for leaky in (0.0, LEAK):
        with planned(*PLACES["four sequences a thread"]):
            found = sums_on(device, batch, scores, LENGTHS, leaky)
        assert found[1].tolist() == [False, True, leaky > 0 or bool(found[1][2]), False, False, True]
        assert np.isnan(found[0][[0, 3]]).all()
        assert found[0][4] == -np.inf
        clean = np.where(np.isfinite(scores), scores, 0.0).astype(np.float32)
        clean[4, 2] = -np.inf
        want = expected(batch, clean, LENGTHS, leaky)
        for illegal in (0, 3):
            want[0][illegal], want[1][illegal], want[2][illegal] = np.nan, False, 0.0
        assert_right(found, want)


@pytest.mark.parametrize("name", ["four sequences a thread", "cluster of two, split states", "in memory"])
def test_a_sequence_has_the_same_bits_alone_and_in_a_batch(device, name):
    """Also the last one, which needs another kind of number than the others."""
    table = denominator()
    scores = random_scores(len(LENGTHS), 8, scale=3.0)
    scores[5] *= 1e6
    batch = TableBatch.share(table, len(LENGTHS))
    with planned(*PLACES[name]):
        together = sums_on(device, batch, scores, LENGTHS, LEAK)
        for n in (1, 2, 5):
            one, there = TableBatch.share(table, 1), on_device(device, scores[n : n + 1])
            alone = sums_on(device, one, there, LENGTHS[n : n + 1], LEAK)
            assert_same_bits(alone, [part[n : n + 1] for part in together])


def test_blocks_of_a_team_change_no_bit():
    """In memory 2, 3 or 4 blocks, or one, work through the four shares of a table."""
    scores = random_scores(3, 6, scale=3.0)
    results = []
    for most in (1, 2, 3, 4):
        device = HostDevice(multiprocessors=most)
        batch = TableBatch.share(fresh(denominator()), 3)
        with planned(*in_memory()), pytest.MonkeyPatch.context() as patch:
            patch.setattr("fsachain.backends.cuda.launch.RESIDENT_BLOCKS", 1)
            results.append(sums_on(device, batch, scores, [6, 5, 6], LEAK))
        blocks = {launch.grid[0] for launch in device.launches if launch.kernel.name == "forward"}
        assert blocks == {most}
    for result in results[1:]:
        assert_same_bits(result, results[0])


def numerators():
    dead = Fsa(2, [0], [0], [0], [0.0], [-np.inf, 0.0])
    single = Fsa(1, [0, 0], [0, 0], [3, 4], [-1.0, -1.0], [0.5])
    no_arcs = Fsa(2, [], [], [], [], [0.25, -np.inf])
    steep = Fsa(2, [0, 0, 1], [0, 1, 1], [0, 1, 2], [-800.0, 700.0, -1e-3], [-np.inf, 90.0])
    fsas = [
        left_to_right_graph(1),
        connected_graph(2),
        dead,
        single,
        no_arcs,
        steep,
        connected_graph(4, 60, 600),
    ]
    return [compile_table(fsa, NUM_PDFS) for fsa in fsas], [8, 7, 5, 8, 0, 3, 8]


@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_packed_tables_agree_with_the_oracle(device, scale):
    tables, lengths = numerators()
    right_sums(device, TableBatch.pack(tables), random_scores(len(tables), 8, scale), lengths)


def test_packed_tables_too_large_for_a_block_have_the_same_bits_beside_small_ones():
    """With 12 kB of shared memory some of the tables are in memory; where a table is, it is in every batch."""
    device = HostDevice(shared_bytes=12_000, multiprocessors=2)
    tables, lengths = numerators()
    batch = TableBatch.pack(tables)
    scores = random_scores(batch.size, 8)
    together = right_sums(device, batch, scores, lengths)
    assert {*macros(device, "backward", "ON_CHIP")} == {0, 1}
    # One table has weights that need exponents; the others do not pay for it.
    assert {*macros(device, "forward", "EXPONENTS")} == {0, 1}
    for n in (1, 6):
        alone = TableBatch.pack([tables[n]])
        found = sums_on(device, alone, scores[n : n + 1], lengths[n : n + 1])
        assert_same_bits(found, [part[n : n + 1] for part in together])


def test_states_with_many_arcs_and_pdfs_are_split(device):
    """A hub with 300 arcs of each pdf and 90 of one, in units of 16 at most, is summed like any other."""
    rng = np.random.default_rng(5)
    spokes = np.arange(1, 41)
    src = np.concatenate([np.repeat(spokes, 8), np.zeros(40, int)])
    dst = np.concatenate([np.zeros(320, int), spokes])
    pdf = np.concatenate([rng.integers(NUM_PDFS, size=230), np.full(90, 4), rng.integers(NUM_PDFS, size=40)])
    hub = Fsa(41, src, dst, pdf, rng.normal(size=360) - 3.0, np.zeros(41))
    batch = TableBatch.share(DenominatorGraph(hub, NUM_PDFS).table, 3)
    for place in (on_chip(longest=16), on_chip(cluster=2, longest=2), in_memory(longest=16)):
        cuda_launch._kept.pop(batch.tables[0], None)
        right_sums(device, batch, random_scores(3, 7), [7, 7, 2], LEAK, place)


@settings(max_examples=20)
@given(graphs(num_pdfs=NUM_PDFS), st.integers(0, 4), st.data())
def test_any_graph_agrees_with_the_oracle(fsa, num_frames, data):
    device = HostDevice(multiprocessors=2)
    table = compile_table(fsa, NUM_PDFS)
    scores = data.draw(score_matrices(num_frames, NUM_PDFS)).astype(np.float32)[None]
    right_sums(device, TableBatch.pack([table]), scores, [num_frames])
    place = PLACES["cluster of two, all variants"]
    right_sums(device, TableBatch.share(table, 1), scores, [num_frames], place=place)


@pytest.mark.parametrize(
    ("size", "num_frames", "leaky"), [(2, 20_000, LEAK), (1, 20_000, 0.0), (1_024, 2, LEAK)]
)
def test_many_frames_and_many_sequences_agree_with_the_oracle(device, size, num_frames, leaky):
    """More than a counter or a barrier might take."""
    batch = TableBatch.share(denominator(num_states=6, num_arcs=20), size)
    right_sums(device, batch, random_scores(size, num_frames), [num_frames] * size, leaky)


def test_elements_lie_beyond_31_bits():
    batch = TableBatch.share(denominator(num_states=6, num_arcs=20), 2)
    scores, lengths = random_scores(2, 3), [3, 2]
    strides = 2**31 + 11, NUM_PDFS, 1  # elements from one sequence to the next
    far, views = [], []
    for values in (scores, np.zeros_like(scores)):
        memory = far_memory(strides[0] + scores[0].size)
        views.append(
            np.lib.stride_tricks.as_strided(memory, scores.shape, [4 * stride for stride in strides])
        )
        views[-1][:] = values
        far.append(DeviceArray(memory.ctypes.data, "float32", scores.shape, strides, memory))
    device = WithFarMemory()
    (ones,) = device.upload([np.ones(2)])
    log_prob, ok = cuda.add_occupancy(device, batch, far[0], np.array(lengths), LEAK, ones, far[1], None)
    found = log_prob.read(np.float64), ok.read(np.uint8).astype(bool), np.array(views[1])
    assert_right(found, expected(batch, scores, lengths, LEAK))


@pytest.mark.parametrize(
    ("name", "kind"),
    [("four sequences a thread", PLAIN), ("four sequences a thread", WIDE), ("in memory", LOG)],
)
def test_windows_change_no_bit(device, kind, name):
    batch = TableBatch.share(denominator(), len(LENGTHS))
    scores = random_scores(batch.size, 8, scale=3.0)
    leaky = LEAK if kind == PLAIN else 0.0
    array = on_device(device, scores.astype(np.float64) if kind == LOG else scores)
    with planned(*PLACES[name]):
        whole = sums_on(device, batch, array, LENGTHS, leaky, budget=np.inf)
        launches = len(device.launches)
        windows = sums_on(device, batch, array, LENGTHS, leaky, budget=0.0)
        assert len(device.launches) - launches > 30  # three windows at least
    assert_same_bits(windows, whole)
