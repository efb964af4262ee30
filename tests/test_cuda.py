"""Sums over paths on a device that the host stands for, and what the host plans for it; tests/slow has all kernels."""

import pickle
from contextlib import nullcontext
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import tolerances
import torch
from device_arrays import assert_same_bits, macros, on_device, sums_on
from random_graphs import connected_graph, left_to_right_graph, twin_graph

from fsachain import DenominatorGraph, TableBatch, compile_table, kernels, total_log_prob
from fsachain.backends.cuda import backend as cuda
from fsachain.backends.cuda import launch as cuda_launch
from fsachain.backends.cuda import plan as cuda_plan
from fsachain.backends.cuda.layout import LOG, PLAIN, WIDE, Division, lay_out, with_column_sums
from fsachain.backends.reference import sums as reference
from tools import cuda_compile
from tools.bench import gpu_report
from tools.bench.workloads import connected
from tools.cuda_configurations import GPUS, DryDevice, main_kernels
from tools.cuda_on_host import HostDevice, pretended, skip_reason

needs_compiler = pytest.mark.skipif(skip_reason() is not None, reason=str(skip_reason()))
NUM_PDFS, LENGTHS, LEAK = 9, np.array([5, 3, 0]), 1e-3


def random_scores(size=3, num_frames=6, dtype=np.float32):
    scores = np.random.default_rng(0).normal(size=(size, num_frames, NUM_PDFS)).astype(dtype)
    scores[np.arange(num_frames) >= LENGTHS[:, None]] = np.nan
    return scores


def shared_batch(states=30, arcs=150):
    return TableBatch.share(DenominatorGraph(connected_graph(3, states, arcs), NUM_PDFS).table, 3)


def twins_batch():
    return TableBatch.share(DenominatorGraph(twin_graph(3, 16, 320, NUM_PDFS), NUM_PDFS).table, 3)


def own_batch():
    return TableBatch.pack([compile_table(left_to_right_graph(n, 3, NUM_PDFS), NUM_PDFS) for n in range(3)])


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_packed_occupancies_become_the_gradient_in_their_own_memory_or_in_another(monkeypatch, dtype):
    """Rows of several tiles and a rest; infinite factors of sequences that are impossible leave zeros."""
    monkeypatch.setattr(cuda, "ROW_TILE", 4)
    scores = torch.from_numpy(random_scores(dtype=np.float64)).to(dtype)
    factors, found = torch.tensor([2.0, -3.0, np.inf], dtype=torch.float64), []
    for keeps in (None, False, True):
        leaf = scores.clone().requires_grad_()
        with nullcontext() if keeps is None else pretended():
            total_log_prob(own_batch(), leaf, LENGTHS).backward(factors, retain_graph=keeps)
        found.append(leaf.grad)
    assert torch.equal(found[1], found[2]) and found[0][1].abs().max() > 0.1 and not found[0][2].any()
    limit = 3 * max(
        tolerances.FLOAT64 if dtype == torch.float64 else tolerances.OCCUPANCY, torch.finfo(dtype).eps
    )
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=limit)


SMALL = {"shared_bytes": 9500}
# A float32 sequence that needs logs hands its work through all three kinds of number.
RECURSIONS = {
    "a cluster, all kinds of number": (lambda: shared_batch(80, 600), LEAK, np.float32, SMALL),
    "a cluster, twins, sums by column": (twins_batch, LEAK, np.float32, {"shared_bytes": 15_500}),
    "global memory": (lambda: shared_batch(700, 1500), LEAK, np.float64, SMALL),
    "own tables": (own_batch, 0.0, np.float64, {}),
}


@needs_compiler
@pytest.mark.parametrize("name", RECURSIONS)
def test_recursions_in_windows_equal_the_oracle_and_read_no_padding(name):
    """Occupancies added to zeros, and written over whatever a new array holds."""
    make, leaky, dtype, limits = RECURSIONS[name]
    batch, scores, device = make(), random_scores(dtype=dtype), HostDevice(multiprocessors=2, **limits)
    if dtype == np.float32:
        scores[1, :3] *= 1e7
    weights = np.array([2.0, 1.0, 1.0])
    exact, want = np.nan_to_num(scores), np.zeros(scores.shape)
    right, ok = reference.log_probs(batch, exact, LENGTHS, leaky)
    reference.add_occupancy(batch, exact, LENGTHS, leaky, weights, want)
    results = []
    for budget, new in product((np.inf, 0.0), (None, np.nan)):
        log_prob, found_ok, out = sums_on(device, batch, scores, LENGTHS, leaky, budget, weights, new)
        results.append((log_prob, out))
        np.testing.assert_array_equal(found_ok, ok)
    limit = tolerances.FLOAT64 if dtype == np.float64 else tolerances.OCCUPANCY
    allowed = [tolerances.log_prob_tolerance(z) for z in right]
    found = results[0][0]
    assert ((found == right) | (np.abs(found - right) <= allowed)).all()
    np.testing.assert_allclose(results[0][1], want, rtol=0, atol=2 * limit)
    for result in results[1:]:
        assert_same_bits(result, results[0])
    clusters = {launch.kernel.cluster for launch in device.launches if launch.kernel.name == "forward"}
    on_chip = {*macros(device, "forward", "ON_CHIP")}
    assert (max(clusters) > 1) == ("cluster" in name) and (on_chip == {0}) == ("memory" in name)


@needs_compiler
@pytest.mark.parametrize(("name", "value"), gpu_report.VARIANTS.values(), ids=gpu_report.VARIANTS)
def test_a_variant_of_the_plan_launches_other_kernels_or_arcs_and_gives_the_same(monkeypatch, name, value):
    scores, lengths, results, kernels_of = np.tile(random_scores(), (3, 1, 1)), np.tile(LENGTHS, 3), [], []
    for setting in (getattr(cuda_plan, name), value):
        monkeypatch.setattr(cuda_plan, name, setting)
        # With room for four sequences of a thread in a cluster; for metadata.
        states, arcs, room = (80, 600, 26_000) if name == "MAX_LANES" else (100, 3000, 36_000)
        device = HostDevice(multiprocessors=2, shared_bytes=room)
        table = DenominatorGraph(connected_graph(3, states, arcs), NUM_PDFS).table  # plans are kept with it
        batch, leak = TableBatch.share(table, 9), LEAK
        if name in ("AHEAD", "OWN_HELD_CHUNKS"):
            own = own_batch()
            batch, leak = TableBatch.pack([own.table(n % own.size) for n in range(9)]), 0.0
        results.append(sums_on(device, batch, scores, lengths, leak)[::2])
        kernels_of.append([dict(x.kernel.defines) for x in device.launches if x.kernel.name == "forward"])
    assert kernels_of[0] != kernels_of[1]
    for ours, theirs in zip(*results, strict=True):
        near = {
            "rtol": tolerances.LOG_PROB_RELATIVE,
            "atol": tolerances.OCCUPANCY,
        }  # of sums in another order
        np.testing.assert_allclose(ours, theirs, **(near if name == "MAX_LANES" else {"rtol": 0}))


@needs_compiler
def test_a_batch_laid_out_in_a_worker_gives_the_same_bits_and_is_not_laid_out_again(monkeypatch):
    batch, device = own_batch(), HostDevice()
    laid_out = pickle.loads(pickle.dumps(own_batch().lay_out()))
    assert len(laid_out.laid_out.sizes) == 3 and shared_batch().lay_out().laid_out is None

    def occupancy(of, dtype):
        return sums_on(device, of, random_scores(dtype=dtype), LENGTHS)

    expected = {dtype: occupancy(batch, dtype) for dtype in (np.float32, np.float64)}
    with monkeypatch.context() as patch:
        patch.setattr(cuda_launch, "lay_out", None)
        found = {np.float32: occupancy(laid_out, np.float32)}
    found[np.float64] = occupancy(laid_out, np.float64)  # whose weights nobody has laid out
    for dtype, pair in found.items():
        assert_same_bits(pair, expected[dtype])


def test_tables_laid_out_together_have_the_layouts_that_they_have_alone():
    tables = [*own_batch().tables, shared_batch().tables[0]]
    for division in (Division((1,) * 4, 32, 32), Division((2,) * 4, 1, 3)):
        for table, one in zip(tables, lay_out(tables, division), strict=True):
            (alone,) = lay_out([table], division._replace(shards=division.shards[:1]))
            for name in ("pairs", "pdfs", "column_ends", "pairs_by_column", "vectors", "sizes"):
                np.testing.assert_array_equal(getattr(one, name), getattr(alone, name))
            for here, there in ((one.forward, alone.forward), (one.backward, alone.backward)):
                assert_same_bits(here, there)


def shared_memory_reads(direction, quarter=8):
    """How often shared memory is read for rows of 16 bytes in a frame: of one bank once, unless all read the same row.

    Of a table in one shard; a row is read once for two twins.
    """
    reads, (shard,) = 0, direction.shards
    of_twins = range(shard["whole_chunks"] + 1, shard["whole_chunks"] + shard["tile_chunks"], 2)
    for number, (first_arc, length, first_segment, _) in enumerate(direction.chunks):
        if number in of_twins:
            continue
        segments = direction.segments[first_segment : first_segment + 32]
        rows = direction.arc_index[first_arc : first_arc + 32 * length].reshape(length, 32) & (2**31 - 1)
        for step in range(length):
            for at in range(0, 32, quarter):
                some = slice(at, at + quarter)
                different = np.unique(rows[step, some][segments[some, 1] > step])
                reads += np.bincount(different % quarter).max(initial=0)
    return reads


@pytest.mark.parametrize("shards", [1, 2])
def test_twins_stand_side_by_side_with_all_of_their_arcs(shards):
    table = DenominatorGraph(twin_graph(5, 60, 2400), NUM_PDFS).table
    (plain,), (twins,) = (lay_out([table], Division((shards,), 32, 16, True, flag)) for flag in (False, True))
    for before, after in ((plain.forward, twins.forward), (plain.backward, twins.backward)):
        assert not before.shards["tile_chunks"].any() and after.shards["tile_chunks"].all()
        if shards == 1:  # else states are dealt otherwise
            arcs = [
                sorted(str(pieces) for pieces in arcs_of_pairs(one) if pieces[0]) for one in (before, after)
            ]
            assert arcs[0] == arcs[1]
            assert shared_memory_reads(after) <= 0.8 * shared_memory_reads(before)
        for shard in after.shards:
            chunks = after.chunks[shard["first_chunk"] + shard["whole_chunks"] :][: shard["tile_chunks"]]
            for first, second in zip(chunks[::2], chunks[1::2], strict=True):
                assert first[1] == second[1]
                segments = after.segments[shard["first_segment"] :]
                one, other = (segments[c[2] :][:32] for c in (first, second))
                np.testing.assert_array_equal(one[:, 1], other[:, 1])
                assert not (one[:, 0] == other[:, 0])[one[:, 0] >= 0].any()
                arcs = after.arc_index[shard["first_arc"] :]
                one, other = (arcs[c[0] :][: 32 * c[1]] for c in (first, second))
                np.testing.assert_array_equal(one, other)


def arcs_of_pairs(direction):
    """The arcs of each pair of each segment, in any order: sources or pairs, and weights."""
    found = []
    for first_arc, _, first_segment, _ in direction.chunks:
        for slot, (_, count) in enumerate(direction.segments[first_segment : first_segment + 32]):
            at = first_arc + slot + 32 * np.arange(count)
            index, log = direction.arc_index[at], direction.arc_log[at]
            ends = np.flatnonzero(index < 0) + 1
            pieces = np.split(np.stack([index & (2**31 - 1), log], axis=1), ends)
            found.append([sorted(map(tuple, piece)) for piece in pieces])
    return found


@pytest.mark.parametrize(("states", "arcs", "pdfs"), [(300, 8000, 9), (40, 3000, 5), (7, 300, 1), (3, 3, 1)])
def test_arcs_stand_so_that_neighbours_read_different_banks_and_pairs_keep_their_arcs(states, arcs, pdfs):
    """The second has states of more arcs than a segment, the third fewer segments than a quarter of a warp has threads."""
    table = DenominatorGraph(connected(states, arcs, pdfs), pdfs).table
    (plain,), (spread,) = (lay_out([table], Division((1,), 32, 64, flag)) for flag in (False, True))
    for before, after in ((plain.forward, spread.forward), (plain.backward, spread.backward)):
        assert shared_memory_reads(after) <= (0.8 if arcs > 1000 else 1.0) * shared_memory_reads(before)
        assert arcs_of_pairs(before) == arcs_of_pairs(after)
    np.testing.assert_array_equal(plain.pairs, spread.pairs)


@pytest.mark.parametrize("shards", [1, 4])
def test_sums_by_column_take_every_pair_once_and_stand_where_its_shard_has_room(shards):
    table = DenominatorGraph(connected(300, 3000, 9), 9).table
    (layout,) = lay_out([table], Division((shards,), 32, 16))
    summed, fields = with_column_sums(layout), layout.backward.shards
    first, count = summed.column_sums[: shards + 1], summed.column_sums[shards]
    ends, rows = np.split(summed.column_sums[shards + 1 :], [count])
    columns = np.repeat(np.arange(len(layout.pdfs)), np.diff(summed.column_ends, prepend=0))
    column_of = dict(zip(summed.pairs_by_column.tolist(), columns.tolist(), strict=True))
    seen = []
    for shard, (base, room) in enumerate(zip(fields["pair_base"], fields["pair_rows"], strict=True)):
        for number in range(first[shard], first[shard + 1]):
            pairs = base + rows[ends[number - 1] if number else 0 : ends[number]]
            place = base + number - first[shard]
            assert len(pairs) and (layout.pairs[pairs, 0] == column_of.pop(int(place))).all()
            assert place < base + room and (pairs < base + room).all()
            seen += pairs.tolist()
    assert not column_of and sorted(seen) == np.flatnonzero(layout.pairs[:, 0] >= 0).tolist()


def test_windows_fill_the_budget():
    """Of so many frames, by the bytes of one and of a state, and those there are."""
    cases = (100, 10, 5, 1010), (100, 10, 5, 600), (100, 10, 10, 0), (0, 10, 5, 0), (1, 10, 5, 0)
    assert [cuda_plan.frames_of_window(*case) for case in cases] == [100, 50, 10, 1, 1]


def test_a_graph_is_on_chip_where_it_fits():
    """Cluster, lanes and memory of a denominator follow the device's limits, not the batch."""
    table = DenominatorGraph(connected_graph(7, 300, 3000), NUM_PDFS).table
    plans = {
        shared: cuda_plan.plan_shared(table, HostDevice(shared_bytes=shared).limits, PLAIN, 8).plan
        for shared in (232_448, 40_000, 2_000)
    }
    assert plans[232_448].on_chip and plans[232_448].cluster == 1 and plans[232_448].max_lanes == 4
    assert plans[40_000].on_chip and plans[40_000].cluster > 1
    assert not plans[2_000].on_chip


def kinds_launched(batch, dtype, frames, leaky):
    """By a device that only takes notes; and the tables that it was sent."""
    device = DryDevice(GPUS[90])
    scores = device.array(dtype, batch.size, frames, NUM_PDFS)
    cuda.log_probs(device, batch, scores, np.full(batch.size, frames), leaky)
    specs = [dict(kernel.defines) for kernel in device.kernels if kernel.name == "forward"]
    return [(spec["KIND"], spec["LOGS"]) for spec in specs]


def test_kinds_of_number_that_no_sequence_can_need_are_not_launched():
    """Half precision cannot leave wide numbers in 1,000 frames; weights of 1e9 leave them at once."""
    graph, numerator = shared_batch(), left_to_right_graph(0, 5, NUM_PDFS)
    own = TableBatch.pack([compile_table(numerator, NUM_PDFS)])
    assert kinds_launched(graph, "float32", 100, 0.1) == [(PLAIN, 0), (WIDE, 0), (LOG, 0)]
    assert kinds_launched(graph, "float16", 100, 0.1) == [(PLAIN, 0), (WIDE, 0)]
    assert kinds_launched(own, "float16", 1000, 0.0) == [(WIDE, 0)]
    assert kinds_launched(own, "float16", 2000, 0.0) == [(WIDE, 0), (LOG, 0)]
    assert kinds_launched(own, "float64", 10, 0.0) == [(LOG, 1)]
    far = replace(numerator, log_prob=numerator.log_prob - 1e9)
    far = TableBatch.pack([compile_table(far, NUM_PDFS)])
    assert kinds_launched(far, "float32", 10, 0.0) == [(LOG, 1)]


@pytest.mark.parametrize("exponents", [False, True])
def test_logs_read_the_weights_of_wide_numbers_where_scores_leave_these(exponents):
    fsa = left_to_right_graph(3, 5, NUM_PDFS)
    if exponents:
        fsa = replace(fsa, log_prob=60.0 * fsa.log_prob)
    batch, scores = TableBatch.pack([compile_table(fsa, NUM_PDFS)]), np.zeros((1, 9, NUM_PDFS), np.float32)
    scores[0] = 1e8 * np.random.default_rng(1).normal(size=(9, NUM_PDFS))
    device = HostDevice()
    found, _ = cuda.log_probs(device, batch, on_device(device, scores), np.array([9]), 0.0)
    expected = reference.log_probs(batch, scores.astype(np.float64), np.array([9]), 0.0).log_prob
    np.testing.assert_allclose(found.read(np.float64), expected, rtol=tolerances.LOG_PROB_RELATIVE)


# Clusters that run at once: of an H200 as its multiprocessors would have it, and as measured where some of them have no
# neighbours; of a smaller one.
DEVICES = {"33 clusters of 4": {1: 132, 4: 33}, "30 clusters of 4": {1: 132, 4: 30}, "6 of 4": {1: 26, 4: 6}}


@pytest.mark.parametrize("clusters", DEVICES.values(), ids=DEVICES)
@pytest.mark.parametrize("cluster", [1, 4])
def test_sequences_of_a_thread_make_the_time_of_all_groups_least(clusters, cluster):
    plan, at_once = cuda_plan.Plan(True, cluster, 384, True, 4, 32), clusters[cluster]
    found = {}
    for size in range(1, 300):
        lanes = found[size] = cuda_plan.lanes_for(plan, size, lambda _: at_once)
        waves = {n: np.ceil(size / n / at_once) * time for n, time in ((1, 6.5), (2, 8.0), (4, 11.0))}
        groups = -(-size // lanes)
        _, frames = cuda_plan.clusters_of(np.full(groups, cuda_plan.USUAL_FRAMES), at_once)
        time = frames * (5.0 + 1.5 * lanes)
        assert time <= cuda_plan.USUAL_FRAMES * min(waves.values())  # turns never cost more than waves
    assert found[1] == found[at_once] == 1  # nobody waits
    assert found[2 * at_once] == 2 and found.get(4 * at_once, 4) == 4


# A batch of the size of den_wsj takes one wave of 32 clusters, or of 30 that stay for a fifteenth longer.
@pytest.mark.parametrize(
    ("at_once", "size", "lanes", "waves"),
    [(33, 66, 2, 1.0), (30, 60, 2, 1.0), (15, 60, 4, 1.0), (33, 128, 4, 1.0), (30, 128, 4, 1.075)],
)
def test_a_batch_fills_the_device_and_never_waits_for_a_second_wave(at_once, size, lanes, waves):
    """den_wsj's kind of graph, and clusters that run at once as the driver says."""
    fsa = connected(3000, 51_000, 84)
    graph = DenominatorGraph(replace(fsa, pdf=fsa.dst % 84), 84)
    device = HostDevice(multiprocessors=132, clusters={4: at_once})
    limits = GPUS[90]._replace(memory_bytes=80 << 30)
    asked, launches = DryDevice(limits, index=device.index), []
    asked.at_once = device.at_once
    asked.launch = lambda kernel, grid, *rest: launches.append((kernel, grid))
    frames, lengths = 700, np.full(size, 700)
    scores, weights = asked.array("float32", size, frames, 84), asked.array("float64", size)
    cuda.add_occupancy(asked, graph.batch(size), scores, lengths, 1e-5, weights, scores, None, True)
    for name in ("forward", "backward"):
        specs = [(dict(k.defines), grid) for k, grid in launches if k.name == name]
        ((spec, grid),) = (pair for pair in specs if pair[0]["KIND"] == PLAIN)
        assert (spec["CLUSTER"], spec["LANES"]) == (4, lanes) and grid <= 4 * at_once
        groups = np.full(-(-size // lanes), frames)
        assert waves == 1.0 or cuda_plan.clusters_of(groups, at_once)[1] <= waves * frames


@needs_compiler
@pytest.mark.parametrize("at_once", [2, 3, 5])
def test_groups_that_take_turns_give_the_bits_of_groups_that_run_together(at_once):
    """On a cluster of 4, with an empty sequence, one that needs wide numbers and one without a path."""
    batch = TableBatch.share(shared_batch(80, 600).tables[0], 7)
    lengths, rng = np.array([23, 20, 0, 19, 23, 1, 9]), np.random.default_rng(4)
    scores = rng.normal(size=(7, 23, NUM_PDFS)).astype(np.float32)
    scores[3, :5] *= 1e7
    scores[4, 8] = -np.inf
    found = []
    for clusters in (at_once, 64):
        device = HostDevice(multiprocessors=2, clusters=dict.fromkeys((1, 2, 4, 8), clusters), **SMALL)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cuda_launch, "lanes_for", lambda *_: 1)
            weights = np.linspace(0.5, 2.0, 7)
            found.append(sums_on(device, batch, scores, lengths, LEAK, weights=weights, new=np.nan))
        plain = [x for x in device.launches if x.kernel.name in ("forward", "backward")]
        plain = [x for x in plain if dict(x.kernel.defines)["KIND"] == PLAIN]
        assert {x.kernel.cluster for x in plain} == {plain[0].kernel.cluster} != {1}
        assert len(plain) == 2
        assert {x.grid[0] // x.kernel.cluster for x in plain} == {min(clusters, 7)}
    assert_same_bits(*found)
    expected = reference.log_probs(batch, np.where(np.isnan(scores), 0, scores), lengths, LEAK).log_prob
    np.testing.assert_allclose(found[0][0], expected, rtol=tolerances.LOG_PROB_RELATIVE, atol=1e-4)


@pytest.mark.skipif(cuda_compile.skip_reason() is not None, reason=str(cuda_compile.skip_reason()))
def test_every_text_compiles_for_one_generation_of_gpus():
    usual = main_kernels(GPUS[90])
    texts = {kernel.text: kernel for kernel in usual}
    assert set(texts) == {name for name in kernels.names() if name.endswith(".cu")}
    entries = cuda_compile.compile_kernels(list(texts.values()), 90)
    assert not [entry for entry in entries if entry.spill_bytes]
