"""The host runs kernels as a GPU would, and sees what they do wrong: each fault is planted and found."""

import re
from pathlib import Path

import numpy as np
import pytest

from fsachain.backends.cuda.device import KernelSpec
from tools.cuda_on_host import HostDevice, HostError, Sanitizer, Threads, skip_reason
from tools.cuda_on_host.replay import SanitizerError, record, replay, uninitialised_reads

pytestmark = pytest.mark.skipif(skip_reason() is not None, reason=str(skip_reason()))

FOLDER = Path(__file__).parents[1] / "host_kernels"
PATIENCE = 2.0
both_threads = pytest.mark.parametrize("threads", list(Threads))


def host(threads=Threads.IN_TURN, **options):
    return HostDevice(folder=FOLDER, threads=threads, patience=PATIENCE, **options)


def sound(name, cluster=1, cooperative=False):
    return KernelSpec("sound.cu", name, (("CLUSTER", cluster),), cluster, cooperative)


def planted(name, cluster=1, cooperative=False):
    return KernelSpec("planted.cu", name, (), cluster, cooperative)


def upload(device, array):
    (memory,) = device.upload([np.asarray(array)])
    return memory


# Faults that no sanitizer is needed for.


@both_threads
@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (
            "barrier_missed",
            r"63 of 64 threads in __syncthreads at planted.cu:\d+; 1 of 64 threads in __syncwarp",
        ),
        (
            "wait_for_ever",
            r"no thread returned for 2 s:\n  block \(0, 0\): 63 of 64 threads in __syncthreads at",
        ),
        (
            "barrier_in_both_branches",
            r"waits in __syncthreads at planted.cu:\d+ while other threads wait in __syncthr",
        ),
        ("shuffle_of_half_a_warp", r"has mask 0xffff; only whole warps can meet"),
        ("cluster_wait_alone", r"barrier_wait at planted.cu:\d+ without an arrival"),
        ("grid_barrier", r"grid_group::sync at planted.cu:\d+ in a launch that is not cooperative"),
        ("write_behind", r"a thread wrote to byte 256 of 256 bytes of argument 0"),
        ("write_before", r"a thread wrote to byte -4 of 256 bytes of argument 0"),
        ("write_behind_shared", r"a thread wrote 0 bytes behind the 256 bytes of shared memory"),
    ],
)
def test_a_fault_ends_the_launch_and_the_message_says_where(threads, kernel, message):
    device = host(threads)
    out = upload(device, np.zeros(64, np.int32))
    count = [64] if kernel == "write_behind" else []
    with pytest.raises(HostError, match=rf"planted.cu: {kernel}: (.|\n)*{message}"):
        device.launch(planted(kernel), 1, 64, 256, [out, *count])
    # What has failed leaves nothing behind that disturbs the next launch.
    fresh = host(threads)
    good = fresh.empty(50 * 4)
    fresh.launch(sound("return_early"), 1, 96, 4 * 96, [good, 50])
    assert good.read(np.int32)[0] == 49


# Faults that a sanitizer finds in a replay.


def recorded(kernel, grid, shared, arguments):
    """The recording of one launch with blocks of 64 threads; `arguments` makes them on the device."""
    device = host()
    with record(device) as recordings:
        device.launch(kernel, grid, 64, shared, arguments(device))
    (recording,) = recordings
    return recording


def sum_arguments(device):
    return [upload(device, np.ones((3, 100), np.float32)), device.empty(12), 100]


def pass_on_arguments(device):
    return [
        upload(device, np.zeros(2 * 4 * 64, np.int32)),
        upload(device, np.zeros(1, np.uint32)),
        3,
    ]


@pytest.mark.parametrize("sanitizer", list(Sanitizer))
@pytest.mark.parametrize(
    ("kernel", "grid", "arguments"),
    [
        (sound("sum_rows"), 3, sum_arguments),
        (sound("sum_rows_by_warps"), 3, sum_arguments),
        (sound("hand_round", 2), 4, lambda device: [device.empty(4 * 64 * 4), 3]),
        (sound("pass_on", cooperative=True), 4, pass_on_arguments),
    ],
)
def test_sanitizers_find_nothing_in_sound_kernels(sanitizer, kernel, grid, arguments):
    replay(recorded(kernel, grid, 512, arguments), sanitizer)


def one_buffer(device):
    return [upload(device, np.zeros(64, np.int32))]


def counted(device):
    return [upload(device, np.zeros(64, np.int32)), upload(device, np.zeros(1, np.uint32))]


@pytest.mark.parametrize(
    ("kernel", "grid", "arguments"),
    [
        (planted("no_barrier"), 1, one_buffer),
        (planted("one_barrier_too_few"), 1, one_buffer),
        (planted("no_barrier_in_the_warp"), 1, one_buffer),
        (planted("blocks_write_one_place"), 2, one_buffer),
        (planted("no_fence", cooperative=True), 4, counted),
    ],
)
def test_races_are_found(kernel, grid, arguments):
    with pytest.raises(
        SanitizerError, match=rf"{kernel.name} under THREAD: exit 66\n=*\nWARNING: .*data race"
    ):
        replay(recorded(kernel, grid, 256, arguments), Sanitizer.THREAD)


def read_arguments(device):
    return [*device.upload([np.zeros(64, np.int32), np.zeros(1, np.int32)]), 64]


@pytest.mark.parametrize(
    ("kernel", "grid", "arguments", "finding"),
    [
        (planted("read_behind"), 1, read_arguments, "heap-buffer-overflow"),
        (planted("read_behind_shared"), 1, one_buffer, "AddressSanitizer: use-after-poison"),
        (
            planted("peer_has_gone", 2),
            2,
            lambda device: [*one_buffer(device), 50],
            "use-after-poison",
        ),
        (planted("misaligned"), 1, one_buffer, "misaligned address"),
        (
            planted("overflow"),
            1,
            lambda device: [*one_buffer(device), 2**30],
            "signed integer overflow",
        ),
    ],
)
def test_wrong_accesses_and_undefined_behaviour_are_found(kernel, grid, arguments, finding):
    with pytest.raises(SanitizerError, match=finding):
        replay(recorded(kernel, grid, 256, arguments), Sanitizer.ADDRESS_AND_UNDEFINED)


@pytest.mark.parametrize(
    ("kernel", "arguments"),
    [
        (planted("read_unwritten_shared"), lambda device: [device.empty(256)]),
        (planted("read_unwritten"), lambda device: [device.empty(256), device.empty(256)]),
    ],
)
def test_reads_of_unwritten_memory_are_found(kernel, arguments):
    def run(device):
        device.launch(kernel, 1, 64, 256, arguments(device))

    (found,) = uninitialised_reads(run, lambda fill: host(fill=fill))
    assert re.match(rf"planted.cu: {kernel.name}: \d+ bytes of buffer \d, the first at \d", found)
