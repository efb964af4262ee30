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


def sound_exchange(asynchronous, cluster=4):
    return KernelSpec("sound.cu", "exchange", (("CLUSTER", cluster), ("ASYNC_STORES", asynchronous)), cluster)


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
        (sound_exchange(1), 8, lambda device: [device.empty(8 * 64 * 4), 3]),
    ],
)
def test_sanitizers_find_nothing_in_sound_kernels(sanitizer, kernel, grid, arguments):
    replay(recorded(kernel, grid, 16 + 2 * 4 * 64 * 4, arguments), sanitizer)


def one_buffer(device):
    return [upload(device, np.zeros(64, np.int32))]


FAULTS = "none,reads early,wrong phase,no exchange between,awaits more,not started,arrives twice,leaves early"


def exchange_with(fault):
    number = FAULTS.split(",").index(fault)
    return KernelSpec("planted.cu", "exchange_twice", (("FAULT", number),), 2)


EXCHANGE_BYTES = 16 + 2 * 64 * 4


@both_threads
@pytest.mark.parametrize("asynchronous", [0, 1])
def test_an_exchange_hands_every_value_to_every_block(threads, asynchronous):
    device, rounds, cluster = host(threads), 5, 4
    out = device.empty(8 * 64 * 4)
    device.launch(sound_exchange(asynchronous), 8, 64, 16 + 2 * cluster * 64 * 4, [out, rounds])
    blocks = np.arange(8)
    blocks = blocks // cluster * cluster + (blocks + rounds) % cluster
    np.testing.assert_array_equal(
        out.read(np.int32, (8, 64)), 64 * blocks[:, None] + (np.arange(64) + rounds) % 64
    )


@both_threads
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            "awaits more",
            r"returned for 2 s:\n  block \(0, 0\): 64 of 64 threads in mbarrier.try_wait at cluster.cuh",
        ),
        ("not started", "an mbarrier that has not been initialised"),
        ("arrives twice", "an arrival at an mbarrier whose phase has all of its arrivals"),
    ],
)
def test_an_exchange_that_goes_wrong_ends_the_launch(threads, fault, message):
    device = host(threads)
    with pytest.raises(HostError, match=rf"planted.cu: exchange_twice: (.|\n)*{message}"):
        device.launch(exchange_with(fault), 2, 64, EXCHANGE_BYTES, [device.empty(2 * 64 * 4)])


def test_a_block_may_not_end_while_stores_to_it_are_under_way():
    device = host()
    with pytest.raises(HostError, match="ends while stores to the shared memory of its block are under way"):
        device.launch(exchange_with("leaves early"), 2, 64, EXCHANGE_BYTES, [device.empty(2 * 64 * 4)])


@pytest.mark.parametrize("fault", ["reads early", "wrong phase", "no exchange between"])
def test_values_of_an_exchange_that_are_read_too_early_or_written_too_early_are_wrong_and_a_race(fault):
    results = []
    for kernel in (exchange_with("none"), exchange_with(fault)):
        device = host()
        out = device.empty(2 * 64 * 4)
        device.launch(kernel, 2, 64, EXCHANGE_BYTES, [out])
        results.append(out.read(np.int32))
    assert (results[0] != results[1]).any()
    arguments = lambda device: [device.empty(2 * 64 * 4)]  # noqa: E731
    with pytest.raises(SanitizerError, match=r"THREAD: exit 66\n=*\nWARNING: .*data race"):
        replay(recorded(exchange_with(fault), 2, EXCHANGE_BYTES, arguments), Sanitizer.THREAD)
    replay(recorded(exchange_with("none"), 2, EXCHANGE_BYTES, arguments), Sanitizer.THREAD)


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
