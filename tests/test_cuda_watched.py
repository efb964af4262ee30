"""Kernels of best paths, penalties and CTC under sanitizers: no race, no access beside a buffer, nothing read unwritten."""

from __future__ import annotations

import numpy as np
import pytest
import test_cuda_ctc as of_ctc
import test_cuda_paths as of_paths
import test_cuda_penalties as of_penalties
from device_arrays import on_device

from tools.cuda_on_host import HostDevice, Sanitizer, skip_reason
from tools.cuda_on_host.replay import Recording, one_of_each, record, replay, uninitialised_reads

pytestmark = pytest.mark.skipif(skip_reason() is not None, reason=str(skip_reason()))

OURS = {
    "best_path.cu": {"best_path_whole", "best_path_marks", "best_path_window"},
    "penalties.cu": {"penalties", "penalty_terms"},
    "log_softmax.cu": {"log_softmax"},
    "ctc.cu": {"ctc_links", "ctc_column_rows", "ctc_loss", "ctc_gradient_rows"},
}
KERNELS = [(text, name) for text, names in OURS.items() for name in sorted(names)]


def run_all(device: HostDevice) -> None:
    """Every kernel once or more, several warps in a block, few frames."""
    batch, lengths = of_paths.mixed_batch()
    scores = on_device(device, of_paths.random_scores(batch, 12))
    of_paths.run(device, batch, scores, lengths, of_paths.changed(batch, lengths, lanes=4, threads=64))
    of_paths.run(device, batch, scores, lengths, of_paths.changed(batch, lengths, every=5, threads=64))
    values = of_penalties.large_scores()[:, :40, :50]
    out = on_device(device, np.zeros_like(values))
    of_penalties.run(device, on_device(device, values), out, np.array([40, 33, 0, 32]))
    of_ctc.run(of_ctc.random_logits(), device=device)


@pytest.fixture(scope="module")
def recordings() -> dict[tuple[str, str], list[Recording]]:
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
