"""The host sees what kernels do wrong: each fault is planted and found. What is sound, the tests of our kernels show."""

import re
from pathlib import Path

import numpy as np
import pytest

from fsachain.backends.cuda.device import KernelSpec
from tools.cuda_on_host import HostDevice, HostError, Sanitizer, skip_reason
from tools.cuda_on_host.replay import SanitizerError, record, replay, uninitialised_reads

pytestmark = pytest.mark.skipif(skip_reason() is not None, reason=str(skip_reason()))

FOLDER = Path(__file__).parents[1] / "host_kernels"
EXCHANGE = ("none", "reads early", "awaits more", "not started", "arrives twice", "leaves early")


def host(**options):
    return HostDevice(folder=FOLDER, patience=2.0, **options)


def planted(name):
    """A kernel by its name, or the exchange of a cluster of two with a fault."""
    if name in EXCHANGE:
        return KernelSpec("planted.cu", "exchange_twice", (("FAULT", EXCHANGE.index(name)),), 2)
    return KernelSpec("planted.cu", name, (), 2 if name == "peer_has_gone" else 1, name == "no_fence")


def launch(device, name, *arguments):
    """Blocks of 64 threads with as much shared memory as they need; arrays become memory of the device, in their order."""
    arguments = [device.upload([x])[0] if isinstance(x, np.ndarray) else x for x in arguments]
    kernel = planted(name)
    device.launch(
        kernel, 4 if kernel.cooperative else kernel.cluster, 64, 528 if name in EXCHANGE else 256, arguments
    )
    return arguments[0]


ZEROS = np.zeros(128, np.int32)
LATE = r"no thread returned for 2 s:\n  block \(0, 0\): "


@pytest.mark.parametrize("concurrent", [False, True])
@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("barrier_missed", r"63 of 64 threads in __syncthreads at planted.cu:\d+; 1 of 64 threads in __syncwarp"),
        ("wait_for_ever", LATE + "63 of 64 threads in __syncthreads at"),
        ("shuffle_of_half_a_warp", r"has mask 0xffff; only whole warps can meet"),
        ("write_behind", r"a thread wrote to byte 512 of 512 bytes of argument 0"),
        ("write_behind_shared", r"a thread wrote 0 bytes behind the 256 bytes of shared memory"),
        ("awaits more", LATE + "64 of 64 threads in mbarrier.try_wait at cluster.cuh"),
        ("not started", "an mbarrier that has not been initialised"),
        ("arrives twice", "an arrival at an mbarrier whose phase has all of its arrivals"),
    ],
)  # fmt: skip
def test_a_fault_ends_the_launch_and_the_message_says_where(concurrent, kernel, message):
    with pytest.raises(HostError, match=rf"planted.cu: {planted(kernel).name}: (.|\n)*{message}"):
        launch(host(concurrent=concurrent), kernel, ZEROS, *[128] * (kernel == "write_behind"))


def test_a_block_may_not_end_while_stores_to_it_are_under_way():
    with pytest.raises(HostError, match="ends while stores to the shared memory of its block are under way"):
        launch(host(), "leaves early", ZEROS)


@pytest.mark.parametrize(
    ("kernel", "more", "finding"),
    [
        ("no_barrier", (), "data race"),
        ("no_fence", (np.zeros(1, np.uint32),), "data race"),
        ("reads early", (), "data race"),
        ("read_behind", (np.zeros(1, np.int32), 128), "heap-buffer-overflow"),
        ("read_behind_shared", (), "AddressSanitizer: use-after-poison"),
        ("peer_has_gone", (50,), "use-after-poison"),
        ("misaligned", (), "misaligned address"),
        ("overflow", (2**30,), "signed integer overflow"),
    ],
)
def test_a_sanitizer_finds_what_a_launch_does_not_show(kernel, more, finding):
    device = host()
    with record(device) as recordings:
        launch(device, kernel, ZEROS, *more)
    sanitizer = Sanitizer.THREAD if finding == "data race" else Sanitizer.ADDRESS_AND_UNDEFINED
    with pytest.raises(
        SanitizerError, match=f"{planted(kernel).name} under {sanitizer.name}: (.|\n)*{finding}"
    ):
        replay(recordings[0], sanitizer)


def test_a_value_that_is_read_before_it_has_come_is_another_one():
    right, early = (launch(host(), name, ZEROS).read(np.int32) for name in ("none", "reads early"))
    assert (right != early).any()
    right, early = (launch(host(), "copies", ZEROS, wait).read(np.int32) for wait in (1, 0))
    assert (right == ZEROS).all() and (early != ZEROS).any()


@pytest.mark.parametrize("kernel", ["read_unwritten_shared", "read_unwritten"])
def test_reads_of_unwritten_memory_are_found(kernel):
    def run(device):
        launch(device, kernel, *[device.empty(256) for _ in range(1 + (kernel == "read_unwritten"))])

    (found,) = uninitialised_reads(run, lambda fill: host(fill=fill))
    assert re.match(rf"planted.cu: {kernel}: \d+ bytes of buffer \d, the first at \d", found)
