"""Kernels of paths, penalties, CTC and transducers under sanitizers: no race, no wrong access, nothing read unwritten."""

import numpy as np
import pytest
import test_cuda_ctc_loss as of_ctc
import test_cuda_grid as of_grid
import test_cuda_grid_rows as of_rows
import test_cuda_losses as of_losses
import test_cuda_pairs as of_pairs
import test_cuda_paths as of_paths
import test_cuda_penalties as of_penalties
from device_arrays import on_device
from random_grids import TOPOLOGIES, make_grids
from random_rows import KINDS, empty_scores, make_logits, make_rows

from fsachain.backends.cuda import backend as cuda
from fsachain.backends.cuda import grid as cuda_grid
from fsachain.backends.cuda.grid import GridPlan
from tools.cuda_on_host import HostDevice, Sanitizer, skip_reason
from tools.cuda_on_host.replay import Recording, one_of_each, record, replay, uninitialised_reads

pytestmark = pytest.mark.skipif(skip_reason() is not None, reason=str(skip_reason()))

OURS = {
    "best_path.cu": {"best_path_whole", "best_path_marks", "best_path_window"},
    "penalties.cu": {"penalties", "loss_terms", "finish_gradient"},
    "dense_rows.cu": {"scale_rows", "clear_rows", "spread_rows"},
    "log_softmax.cu": {"log_softmax"},
    "losses.cu": {"reduce_losses"},
    "pairs.cu": {"pair_log_sums", "pair_gradient"},
    "ctc.cu": {"ctc_links", "ctc_column_rows", "ctc_loss", "ctc_gradient_rows"},
    "grid.cu": {"grid_forward", "grid_backward", "grid_clear", "grid_best_path"},
    "grid_rows.cu": {
        "softmax_scores",
        "softmax_gradient",
        "plain_scores",
        "plain_gradient",
        "grid_constrain",
        "grid_release",
    },
}
KERNELS = [(text, name) for text, names in OURS.items() for name in sorted(names)]


def run_all(device):
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
    of_losses.run(device, of_losses.make_costs(np.inf), shares=of_losses.SHARES)
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


@pytest.fixture(scope="module")
def recordings():
    device = HostDevice()
    with record(device) as all_recordings:
        run_all(device)
    found: dict[tuple[str, str], list[Recording]] = {}
    for recording in one_of_each(all_recordings):
        kernel = recording.launch.kernel
        found.setdefault((kernel.text, kernel.name), []).append(recording)
    return found


@pytest.mark.parametrize("sanitizer", list(Sanitizer), ids=lambda sanitizer: sanitizer.name.lower())
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel[1])
def test_a_sanitizer_finds_nothing_and_concurrent_blocks_give_the_same_bits(recordings, kernel, sanitizer):
    for recording in recordings[kernel]:
        replay(recording, sanitizer)


def test_no_result_depends_on_what_memory_held_before():
    assert uninitialised_reads(run_all, lambda fill: HostDevice(fill=fill)) == []
