"""Every kernel under sanitizers, launched by its driver: no race, no access beside a buffer, nothing read unwritten."""

import re
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import test_cuda_ctc_loss as of_ctc
import test_cuda_grid as of_grid
import test_cuda_grid_rows as of_rows
import test_cuda_pairs as of_pairs
import test_cuda_paths as of_paths
import test_cuda_penalties as of_penalties
import tolerances
from device_arrays import on_device, sums_on
from random_graphs import left_to_right_graph, twin_graph
from random_grids import TOPOLOGIES, make_grids
from random_rows import KINDS, empty_scores, make_logits, make_rows

from fsachain import TableBatch, compile_table, forward_backward, kernels
from fsachain.backends.cuda import backend as cuda
from fsachain.backends.cuda import grid as cuda_grid
from fsachain.backends.cuda import launch
from fsachain.backends.cuda.grid import GridPlan
from fsachain.backends.cuda.plan import clusters_of
from fsachain.denominator import DenominatorGraph
from tools.bench.workloads import connected
from tools.cuda_on_host import HostDevice, Sanitizer, skip_reason
from tools.cuda_on_host.replay import one_of_each, record, replay, uninitialised_reads

pytestmark = pytest.mark.skipif(skip_reason() is not None, reason=str(skip_reason()))

NUM_PDFS = 20
LENGTHS = np.array([4, 3, 4, 0, 1])
# The third sequence needs logs, the others plain numbers where there is a leak and wide ones where there is none.
SCALES = np.array([1.0, 200.0, 1e7, 1.0, 1.0])
FRAMES = 4


def shared(states, arcs):
    fsa = connected(states, arcs, NUM_PDFS)
    return DenominatorGraph(replace(fsa, pdf=fsa.dst % NUM_PDFS), NUM_PDFS).batch(len(LENGTHS))


def twins():
    return DenominatorGraph(twin_graph(3, 16, 320, NUM_PDFS), NUM_PDFS).batch(len(LENGTHS))


def own():
    """Numerators of which some fit a block and one does not."""
    large = connected(300, 700, NUM_PDFS)
    graphs = [left_to_right_graph(n, 3, NUM_PDFS) for n in range(1, len(LENGTHS))]
    return TableBatch.pack([compile_table(graph, NUM_PDFS) for graph in (large, *graphs)])


class Case(NamedTuple):
    """A call of the driver and what its kernels have to be."""

    make: Callable[[], TableBatch]
    leaky: float
    limits: dict[str, Any]  # of the device, small, so that small graphs go where large ones do
    used: dict[str, set[int]]  # values of macros which say that
    budget: float | None = None  # bytes for the history
    is_own: bool = False  # each sequence has a table; else several blocks share the work on one
    patched: tuple[tuple[str, Any], ...] = ()  # attributes of plan.py and launch.py


CLUSTER = Case(
    lambda: shared(80, 600),
    0.1,
    {"shared_bytes": 9500, "multiprocessors": 1},
    {"ON_CHIP": {1}, "KIND": {0, 2}, "LEAK": {1}},
)
CASES = {
    "a cluster, with a leak": CLUSTER._replace(budget=1.0),
    "a cluster, whose groups take turns": CLUSTER._replace(
        limits=CLUSTER.limits | {"clusters": dict.fromkeys((1, 2, 4, 8), 2)},
        used=CLUSTER.used | {"LANES": {1}},
        patched=(("launch.lanes_for", lambda *_: 1),),
    ),
    "a cluster, exact": CLUSTER._replace(leaky=0.0, used={"ON_CHIP": {1}, "KIND": {1, 2}, "LEAK": {0}}),
    "a cluster, twins; logs in memory": Case(
        twins,
        0.1,
        {"shared_bytes": 15_500, "multiprocessors": 1},
        {name: {0, 1} for name in ("ON_CHIP", "TILES", "SUM_COLUMNS")} | {"KIND": {0, 2}},
    ),
    "a cluster with its metadata": Case(
        lambda: shared(40, 1500),
        0.1,
        {"shared_bytes": 12_000, "multiprocessors": 1},
        {"ON_CHIP": {1}, "KIND": {0, 2}, "FORWARD_METADATA": {3}, "BACKWARD_METADATA": {4}},
    ),
    "a cluster with its chunks in registers": CLUSTER._replace(
        used=CLUSTER.used | {"HELD_CHUNKS": {2}}, patched=(("plan.HELD_CHUNKS", 2),)
    ),
    "memory, blocks in a team": CLUSTER._replace(
        make=lambda: shared(1600, 4200),
        limits=CLUSTER.limits | {"multiprocessors": 4},
        used=CLUSTER.used | {"ON_CHIP": {0}},
        budget=1.0,
    ),
    "a table for each sequence": Case(
        own,
        0.0,
        {"shared_bytes": 12_000, "multiprocessors": 4},
        {"ON_CHIP": {0, 1}, "KIND": {1, 2}, "LEAK": {0}},
        is_own=True,
    ),
}
# The kernels of all other texts, which `run_others` launches.
_KERNEL = re.compile(r"__global__ void __launch_bounds__\([^\n]*\)\s+(\w+)\(")
OTHERS = [
    name
    for text in kernels.names()
    if text.endswith(".cu") and text not in ("frames.cu", "forward_backward.cu")
    for name in _KERNEL.findall(kernels.read(text))
]


def make_scores():
    normal = np.random.default_rng(11).normal(size=(len(LENGTHS), FRAMES, NUM_PDFS))
    return (normal * SCALES[:, None, None]).astype(np.float32)


def run(device, case):
    """log Z, ok and occupancies."""
    return sums_on(device, case.make(), make_scores(), LENGTHS, case.leaky, case.budget)


@contextmanager
def small_blocks(case):
    """Blocks of 64 threads, since a barrier of 256 threads that a sanitizer watches takes milliseconds."""
    with pytest.MonkeyPatch.context() as patch:
        sizes = dict.fromkeys(("plan.OWN_THREADS", "plan.MEMORY_THREADS", "launch.THREADS"), 64)
        for name, value in (sizes | dict(case.patched)).items():
            patch.setattr(f"fsachain.backends.cuda.{name}", value)
        launch.kernels_of.cache_clear()  # they know how many threads there are
        yield
    launch.kernels_of.cache_clear()


@cache
def recordings_of(name):
    """The launches of a case, of which one of each kernel; its results are right."""
    case = CASES[name]
    device = HostDevice(**case.limits)
    with record(device) as recordings, small_blocks(case):
        log_prob, _, occupancy = run(device, case)
    right = forward_backward(
        case.make(), make_scores(), LENGTHS, leaky_hmm_coefficient=case.leaky, backend="reference"
    )
    np.testing.assert_allclose(log_prob, right.log_prob, rtol=tolerances.LOG_PROB_RELATIVE)
    np.testing.assert_allclose(occupancy, right.occupancy, atol=tolerances.OCCUPANCY)
    # A launch that changes nothing had nothing to do; the sanitizers shall see those that had.
    busy = [r for r in recordings if any((a != b).any() for a, b in zip(r.before, r.after, strict=True))]
    return one_of_each(busy)


def run_others(device):
    """Every kernel once or more, several warps in a block, few frames."""
    batch, lengths = of_paths.mixed_batch()
    scores = on_device(device, of_paths.random_scores(batch, 12))
    of_paths.run(device, batch, scores, lengths, of_paths.changed(batch, lengths, lanes=4, threads=64))
    of_paths.run(device, batch, scores, lengths, of_paths.changed(batch, lengths, every=5, threads=64))
    values = of_penalties.large_scores()[:, :40, :50]
    out = on_device(device, np.zeros_like(values))
    of_penalties.run(device, on_device(device, values), np.array([40, 33, 0, 32]), out=out)
    cuda.scale_rows(device, on_device(device, values), on_device(device, np.arange(4.0)), out)
    ones = on_device(device, np.ones(len(lengths)))
    new = on_device(device, np.full(scores.shape, np.nan, np.float32))
    cuda.add_occupancy(device, batch, scores, lengths, 0.0, ones, new, None, is_new=True)
    lists = on_device(device, np.full((len(lengths), 2 + scores.shape[2]), 7, np.int32))
    cuda.add_occupancy(device, batch, scores, lengths, 0.0, None, new, None, is_new=True, lists=lists)
    cuda.spread_rows(device, new, lists, ones, new)
    of_ctc.run(device, of_ctc.random_logits())
    of_penalties.run_reduction(device, of_penalties.make_costs(np.inf), shares=of_penalties.SHARES)
    of_pairs.run(device, *of_pairs.random_scores(scale=80.0))
    run_grids(device)
    run_rows(device)


def run_grids(device):
    """Arcs that reach back over several steps, more labels than threads, steps on chip and in memory."""
    for labels, shared_bytes in ((40, None), (70, 0)):
        batch, values = make_grids(TOPOLOGIES["durations"], [6, 5], [labels, 9], 3.0, 1, np.float32)
        plan = GridPlan(64, shared_bytes)
        of_grid.run(batch, values, plan, device)
        cuda_grid.best_paths(device, batch, on_device(device, values), plan)


def run_rows(device):
    """Several rows in a warp, rows longer than a warp holds, two softmaxes in a row; gradients in place."""
    for kind, num_classes in (("tdt", 40), ("regular", 600)):
        rows = make_rows("padded", KINDS[kind], num_classes)
        logits = make_logits(rows, padding=0.0).astype(np.float32)
        of_rows.run(rows, logits, of_rows.occupancies(rows), device=device)
    g, values = of_rows.occupancies(rows), on_device(device, empty_scores(rows))
    there = on_device(device, logits)
    work = cuda_grid.LogitRows(device, rows, there, plan=of_rows.SMALL)
    work.scores(values, True)
    work.gradient(None, on_device(device, g), on_device(device, of_rows.WEIGHTS), np.inf)
    for change in (cuda_grid.constrain, cuda_grid.release):
        change(device, rows, values)


@cache
def recordings_of_others():
    device = HostDevice()
    with record(device) as recordings:
        run_others(device)
    return one_of_each(recordings)


@pytest.mark.parametrize("name", CASES)
def test_the_case_is_what_it_is_made_for(name):
    launches = [recording.launch for recording in recordings_of(name)]
    names = {launch.kernel.name for launch in launches}
    assert {"read_frames", "forward", "backward", "finish", "write_occupancies"} <= names
    for macro, values in CASES[name].used.items():
        assert {dict(n.kernel.defines)[macro] for n in launches if n.kernel.name == "backward"} == values
    alone = {n.kernel.cluster == 1 and n.grid[0] == 1 for n in launches if n.kernel.name == "forward"}
    assert CASES[name].is_own or False in alone
    # Five groups of a sequence each, on two clusters; pieces of the row of their frames cut the second.
    if "turns" in name:
        plain = [
            n
            for n in launches
            if n.kernel.name in ("forward", "backward") and dict(n.kernel.defines)["KIND"] == 0
        ]
        assert {n.grid[0] // n.kernel.cluster for n in plain} == {2}
        assert clusters_of(-np.sort(-LENGTHS), 2) == (2, 7)


@pytest.mark.parametrize("name", [*CASES, *OTHERS])
@pytest.mark.parametrize("sanitizer", list(Sanitizer), ids=lambda sanitizer: sanitizer.name.lower())
def test_a_sanitizer_finds_nothing_and_concurrent_threads_give_the_same_bits(name, sanitizer):
    if name in CASES:
        found = recordings_of(name)
    else:
        found = [one for one in recordings_of_others() if one.launch.kernel.name == name]
    assert found
    for recording in found:
        replay(recording, sanitizer)


@pytest.mark.parametrize("name", CASES)
def test_no_result_of_the_recursion_depends_on_what_memory_held_before(name):
    case = CASES[name]
    with small_blocks(case):
        found = uninitialised_reads(lambda d: run(d, case), lambda fill: HostDevice(**case.limits, fill=fill))
    assert found == []


def test_no_result_of_the_others_depends_on_what_memory_held_before():
    assert uninitialised_reads(run_others, lambda fill: HostDevice(fill=fill)) == []
