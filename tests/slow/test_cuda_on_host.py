"""The host runs kernels as a GPU would, and sees what they do wrong: each fault is planted and found."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from fsachain.backends.cuda.device import KernelSpec
from tools.cuda_on_host import BuildError, HostDevice, HostError, Sanitizer, Threads, build
from tools.cuda_on_host.replay import SanitizerError, record, replay, uninitialised_reads

pytestmark = pytest.mark.skipif(build.skip_reason() is not None, reason=str(build.skip_reason()))

FOLDER = Path(__file__).parents[1] / "host_kernels"
PATIENCE = 2.0
both_threads = pytest.mark.parametrize("threads", list(Threads))


def host(threads: Threads = Threads.IN_TURN, **options) -> HostDevice:
    return HostDevice(folder=FOLDER, threads=threads, patience=PATIENCE, **options)


def sound(name: str, cluster: int = 1, cooperative: bool = False) -> KernelSpec:
    return KernelSpec("sound.cu", name, (("CLUSTER", cluster),), cluster, cooperative)


def planted(name: str, cluster: int = 1, cooperative: bool = False) -> KernelSpec:
    return KernelSpec("planted.cu", name, (), cluster, cooperative)


def upload(device: HostDevice, array) -> object:
    (memory,) = device.upload([np.asarray(array)])
    return memory


@both_threads
@pytest.mark.parametrize("together", [1, 3])
def test_every_thread_of_a_grid_runs_once_and_knows_its_place(threads, together):
    device = host(threads, together=together)
    out = device.empty(5 * 3 * 64 * 5 * 4)
    device.launch(sound("built_in_variables"), (5, 3), 64, 0, [out])
    places = out.read(np.int32, (3, 5, 64, 5))
    y, x, thread = np.indices((3, 5, 64))
    assert np.array_equal(places[..., 0], thread)
    assert np.array_equal(places[..., 1], x)
    assert np.array_equal(places[..., 2], y)
    assert (places[..., 3] == 64).all()
    assert (places[..., 4] == 5003).all()


def test_arguments_of_every_type_arrive():
    device = host()
    out = device.empty(8)
    scalars = [
        np.int8(-1),
        np.uint8(255),
        np.int16(-300),
        np.uint16(60000),
        np.int32(-(2**31)),
        np.uint32(2**32 - 1),
    ]
    scalars += [np.int64(-(2**40)), np.uint64(2**41), np.float32(0.25), np.float64(0.5)]
    expected = sum(float(s) * (i + 1) for i, s in enumerate(scalars[:8])) + 0.75
    device.launch(sound("every_argument"), 1, 32, 0, [*scalars, upload(device, [8.0, 3.0]), out])
    assert out.read(np.float64)[0] == expected + 8.0
    device.launch(sound("every_argument"), 1, 32, 0, [*scalars, np.uint64(0), out])
    assert out.read(np.float64)[0] == expected - 1.0


@both_threads
def test_votes_and_shuffles_give_what_cuda_defines(threads):
    values = np.where(np.arange(64) % 3 == 0, -1, 1) * np.arange(1, 65)
    values[:32] = np.abs(values[:32])
    device = host(threads)
    out = device.empty(64 * 10 * 4)
    device.launch(sound("votes"), 1, 64, 0, [upload(device, values.astype(np.int32)), out])
    got = out.read(np.int32, (2, 32, 10))
    warps, lanes = values.reshape(2, 32), np.arange(32)
    ballots = [sum(1 << lane for lane in lanes if warp[lane] > 0) for warp in warps]
    for w, warp in enumerate(warps):
        assert (got[w, :, 0].view(np.uint32) == ballots[w]).all()
        assert (got[w, :, 1] == 1).all()
        assert (got[w, :, 2] == (w == 0)).all()
        assert (got[w, :, 3] == warp[5]).all()
        assert np.array_equal(got[w, :, 4], warp[np.where(lanes + 3 < 32, lanes + 3, lanes)])
        assert np.array_equal(got[w, :, 5], warp[np.where(lanes >= 3, lanes - 3, lanes)])
        assert np.array_equal(got[w, :, 6], warp[lanes ^ 9])
        assert (got[w, :, 9] == 2 * warp[31] + 1).all()
    assert (got[..., 7] == 1).all()
    assert (got[..., 8] == 0).all()


@both_threads
def test_barriers_do_not_wait_for_threads_that_have_returned(threads):
    device = host(threads)
    out = device.empty(50 * 4)
    device.launch(sound("return_early"), 1, 96, 4 * 96, [out, np.int32(50)])
    assert np.array_equal(out.read(np.int32), np.arange(50)[::-1])


@both_threads
@pytest.mark.parametrize("cluster", [1, 2, 8])
def test_blocks_of_a_cluster_write_into_their_peers_shared_memory(threads, cluster):
    device = host(threads)
    out = device.empty(2 * cluster * 32 * 4)
    device.launch(sound("hand_round", cluster), 2 * cluster, 32, 256, [out, np.int32(3)])
    block = np.arange(2 * cluster)
    sender = block // cluster * cluster + (block - 3) % cluster
    assert np.array_equal(out.read(np.int32, (2 * cluster, 32)), np.repeat(sender[:, None], 32, 1))


@both_threads
@pytest.mark.parametrize("kernel", ["pass_on", "pass_on_by_grid"])
def test_blocks_of_a_cooperative_launch_run_at_once(threads, kernel):
    device = host(threads)
    blocks, size, rounds = 4, 32, 5
    start = np.arange(blocks * size, dtype=np.int32)
    values = upload(device, np.concatenate([start, np.zeros_like(start)]))
    counter = [upload(device, np.zeros(1, np.uint32))] if kernel == "pass_on" else []
    device.launch(sound(kernel, cooperative=True), blocks, size, 0, [values, *counter, np.int32(rounds)])
    expected = np.roll(start.reshape(blocks, size), (-rounds, -rounds), (0, 1)) + rounds
    assert np.array_equal(values.read(np.int32, (2, blocks, size))[rounds % 2], expected)


@both_threads
def test_atomic_operations_lose_nothing(threads):
    device = host(threads, together=2)
    counter, largest, last = device.upload([np.zeros(1, np.int32) for _ in range(3)])
    device.launch(sound("count"), 6, 96, 0, [counter, largest, last])
    assert [int(m.read(np.int32)[0]) for m in (counter, largest, last)] == [576, 575, 7]


def test_half_precision_numbers_widen_as_numpy_widens_them():
    device = host()
    bits = np.arange(65536, dtype=np.uint16)
    out = device.empty(2 * 65536 * 4)
    given = upload(device, bits)
    device.launch(sound("widen"), 1, 32, 0, [given, given, out, np.int32(65536)])
    halves, brains = out.read(np.float32, (2, 65536))
    np.testing.assert_array_equal(halves, bits.view(np.float16).astype(np.float32))
    np.testing.assert_array_equal(brains, (bits.astype(np.uint32) << 16).view(np.float32))


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
    count = [np.int32(64)] if kernel == "write_behind" else []
    with pytest.raises(HostError, match=rf"planted.cu: {kernel}: (.|\n)*{message}"):
        device.launch(planted(kernel), 1, 64, 256, [out, *count])
    # What has failed leaves nothing behind that disturbs the next launch.
    fresh = host(threads)
    good = fresh.empty(50 * 4)
    fresh.launch(sound("return_early"), 1, 96, 4 * 96, [good, np.int32(50)])
    assert good.read(np.int32)[0] == 49


@pytest.mark.parametrize(
    ("kernel", "grid", "block", "shared", "message"),
    [
        (sound("built_in_variables"), 1, 48, 0, "a block of 48 threads; a multiple of 32"),
        (sound("built_in_variables"), 1, 2048, 0, "a block of 2048 threads"),
        (sound("built_in_variables"), 0, 32, 0, r"a grid of \(0, 1\) blocks"),
        (sound("built_in_variables"), (1, 65536), 32, 0, r"a grid of \(1, 65536\) blocks"),
        (sound("built_in_variables"), 1, 32, 65536, "65536 bytes of shared memory; the device has 49152"),
        (
            sound("built_in_variables", 2),
            2,
            32,
            0,
            "clusters of 2 blocks in a grid of 2; the device has up to 1",
        ),
        (sound("built_in_variables", 1, True), 9, 1024, 0, "a cooperative launch of 9 blocks; 8 run at once"),
    ],
)
def test_a_launch_that_a_gpu_refuses_is_refused(kernel, grid, block, shared, message):
    device = host(capability=(8, 0), shared_bytes=49152)
    with pytest.raises(HostError, match=rf"sound.cu: built_in_variables: {message}"):
        device.launch(kernel, grid, block, shared, [device.empty(1 << 20)])


def test_a_launch_against_what_the_text_says_is_refused():
    out = host().empty(4)
    with pytest.raises(HostError, match=r"a block of 288 threads; its __launch_bounds__ are 256"):
        host().launch(sound("built_in_variables"), 1, 288, 0, [out])
    wrong = KernelSpec("sound.cu", "hand_round", (("CLUSTER", 4),), 2)
    with pytest.raises(HostError, match="clusters of 2 blocks; its __cluster_dims__ are 4"):
        host().launch(wrong, 4, 32, 0, [out, np.int32(1)])


def test_wrong_arguments_are_refused():
    device = host()
    out = device.empty(4)
    spec = sound("return_early")
    with pytest.raises(HostError, match=r"1 arguments; the kernel has 2 \(Pi\)"):
        device.launch(spec, 1, 32, 0, [out])
    with pytest.raises(HostError, match=r"argument 1 has kind 'q', the kernel's parameter 'i'"):
        device.launch(spec, 1, 32, 0, [out, np.int64(1)])
    with pytest.raises(HostError, match=r"argument 0 has kind 'f', the kernel's parameter 'P'"):
        device.launch(spec, 1, 32, 0, [np.float32(1), np.int32(1)])
    gone = device.empty(4).pointer
    with pytest.raises(HostError, match="argument 0 points to no memory of this device that is still held"):
        device.launch(spec, 1, 32, 0, [np.uint64(gone), np.int32(1)])
    with pytest.raises(HostError, match=r'sound.cu has no extern "C" __global__ void nothing\('):
        device.launch(sound("nothing"), 1, 32, 0, [])


def test_texts_that_do_not_compile_are_refused(tmp_path):
    with pytest.raises(BuildError, match="shared memory is declared once, at file scope"):
        host().launch(KernelSpec("static_shared.cu", "static_shared"), 1, 32, 0, [])
    with pytest.raises(BuildError, match=r"has no kernel text 'absent\.cu'"):
        host().launch(KernelSpec("absent.cu", "absent"), 1, 32, 0, [])
    (tmp_path / "wrong.cu").write_text('extern "C" __global__ void wrong(int* out) { out[0] = nothing; }\n')
    with pytest.raises(BuildError, match="nothing"):
        HostDevice(folder=tmp_path).launch(KernelSpec("wrong.cu", "wrong"), 1, 32, 0, [])


# Faults that a sanitizer finds in a replay.


def recorded(kernel: KernelSpec, grid: int, shared: int, arguments) -> object:
    """The recording of one launch with blocks of 64 threads; `arguments` makes them on the device."""
    device = host()
    with record(device) as recordings:
        device.launch(kernel, grid, 64, shared, arguments(device))
    (recording,) = recordings
    return recording


def sum_arguments(device):
    return [upload(device, np.ones((3, 100), np.float32)), device.empty(12), np.int32(100)]


def pass_on_arguments(device):
    return [
        upload(device, np.zeros(2 * 4 * 64, np.int32)),
        upload(device, np.zeros(1, np.uint32)),
        np.int32(3),
    ]


@pytest.mark.parametrize("sanitizer", list(Sanitizer))
@pytest.mark.parametrize(
    ("kernel", "grid", "arguments"),
    [
        (sound("sum_rows"), 3, sum_arguments),
        (sound("sum_rows_by_warps"), 3, sum_arguments),
        (sound("hand_round", 2), 4, lambda device: [device.empty(4 * 64 * 4), np.int32(3)]),
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
    return [*device.upload([np.zeros(64, np.int32), np.zeros(1, np.int32)]), np.int32(64)]


@pytest.mark.parametrize(
    ("kernel", "grid", "arguments", "finding"),
    [
        (planted("read_behind"), 1, read_arguments, "heap-buffer-overflow"),
        (planted("read_behind_shared"), 1, one_buffer, "AddressSanitizer: use-after-poison"),
        (
            planted("peer_has_gone", 2),
            2,
            lambda device: [*one_buffer(device), np.int32(50)],
            "use-after-poison",
        ),
        (planted("misaligned"), 1, one_buffer, "misaligned address"),
        (
            planted("overflow"),
            1,
            lambda device: [*one_buffer(device), np.int32(2**30)],
            "signed integer overflow",
        ),
    ],
)
def test_wrong_accesses_and_undefined_behaviour_are_found(kernel, grid, arguments, finding):
    with pytest.raises(SanitizerError, match=finding):
        replay(recorded(kernel, grid, 256, arguments), Sanitizer.ADDRESS_AND_UNDEFINED)


def test_a_replay_notices_that_results_change():
    recording = recorded(sound("sum_rows"), 3, 256, sum_arguments)
    wrong = recording._replace(after=tuple(buffer + 1 for buffer in recording.after))
    with pytest.raises(
        SanitizerError, match=r"bytes of buffer 0 .* differ from the recorded run, the first at 0"
    ):
        replay(wrong, Sanitizer.THREAD)


@pytest.mark.parametrize(
    ("kernel", "arguments"),
    [
        (planted("read_unwritten_shared"), lambda device: [device.empty(256)]),
        (planted("read_unwritten"), lambda device: [device.empty(256), device.empty(256)]),
    ],
)
def test_reads_of_unwritten_memory_are_found(kernel, arguments):
    def run(device: HostDevice) -> None:
        device.launch(kernel, 1, 64, 256, arguments(device))

    (found,) = uninitialised_reads(run, lambda fill: host(fill=fill))
    assert re.match(rf"planted.cu: {kernel.name}: \d+ bytes of buffer \d, the first at \d", found)
