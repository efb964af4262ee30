"""The GPU as the library sees it: what is asked of cupy, with a stand-in that writes it down (see fake_cupy)."""

import gc
import os
import sys
import weakref
from types import SimpleNamespace

import fake_cupy
import numpy as np
import pytest
from random_graphs import left_to_right_graph

from fsachain import BackendUnavailable, available_backends, compile_table, kernels
from fsachain.backends.cuda import device as cuda_device
from fsachain.backends.cuda import memory as cuda_memory
from fsachain.backends.cuda.device import DeviceArray, KernelSpec, Limits

INDEX = 1


@pytest.fixture
def world(monkeypatch):
    with fake_cupy.installed(monkeypatch) as world:
        yield world


def make_device(world, stream=None, index=INDEX):
    stream = stream or world.stream
    return cuda_device.CupyDevice(index, stream, lambda size: cuda_memory.CupyBlock(index, size))


def kernel(**changed):
    return KernelSpec("best_path.cu", "best_path_whole", (("LANES", 4), ("BACK", "unsigned char")))._replace(
        **changed
    )


def contents(memory, dtype):
    return np.frombuffer((fake_cupy.ctypes.c_char * memory.num_bytes).from_address(memory.pointer), dtype)


def test_arguments_reach_the_kernel_in_their_exact_types(world):
    device = make_device(world)
    memory, array = device.empty(64), DeviceArray(4096, "float32", (2, 3), (3, 1), None)
    given = [np.int64(-3), np.float32(0.5), np.uint8(7), memory, array, np.float64(0.1), np.int32(9)]
    device.launch(kernel(), (3, 2), 96, 1024, given)
    (launch,) = world.launches
    assert [type(value) for value in launch.args] == [
        *(np.int64, np.float32, np.uint8, np.uint64, np.uint64, np.float64, np.int32)
    ]
    assert list(launch.args) == [-3, 0.5, 7, memory.pointer, 4096, 0.1, 9]
    assert (launch.grid, launch.block, launch.shared_mem) == ((3, 2), (96,), 1024)


def test_a_launch_is_on_the_devices_index_and_stream_whatever_is_current(world):
    stream = fake_cupy.Stream(world, 42)
    make_device(world, stream).launch(kernel(), 3, 32, 0, [])
    (launch,) = world.launches
    assert launch.device == INDEX and launch.stream is stream and launch.grid == (3, 1)
    assert world.current == 0


def test_a_kernel_is_compiled_once_for_a_device_from_one_text_with_its_macros(world):
    for index in (0, 1, 1, 0):
        make_device(world, index=index).launch(kernel(), 1, 32, 0, [])
        make_device(world, index=index).launch(kernel(name="best_path_marks"), 1, 32, 0, [])
    assert len(world.modules) == 2
    module = world.modules[0]
    assert module.options == ("--std=c++17", "--fmad=false", "-DLANES=4", "-DBACK=unsigned char")
    assert module.code == kernels.read_unit("best_path.cu") and '#include "' not in module.code
    assert not module.cooperative


def test_blocks_that_wait_for_one_another_are_launched_together_or_not_at_all(world):
    device, together = make_device(world), kernel(cooperative=True)
    device.launch(together, (2, 4), 128, 0, [])
    assert world.modules[0].cooperative
    with pytest.raises(
        BackendUnavailable,
        match="best_path_whole needs 9 blocks of 128 threads at once; device 1 runs at most 8",
    ):
        device.launch(together, 9, 128, 0, [])
    assert len(world.launches) == 1


def test_the_driver_says_how_many_clusters_run_at_once(world, monkeypatch):
    asked = []

    def max_active_clusters(count, function, config):
        config, attribute = config._obj, config._obj.attributes[0]
        asked.append(
            (function.value, *config.grid, *config.block, config.shared_bytes, config.num_attributes)
        )
        asked.append((attribute.id, *attribute.value[:3]))
        count._obj.value = 30
        return status

    status = 0
    driver = SimpleNamespace(cuOccupancyMaxActiveClusters=max_active_clusters)
    monkeypatch.setattr(cuda_device, "_driver", lambda: driver)
    assert make_device(world).at_once(kernel(cluster=4), 384, 230_000) == 30
    assert asked == [(77, 4, 1, 1, 384, 1, 1, 230_000, 1), (4, 4, 1, 1)]
    assert (
        make_device(world).at_once(kernel(), 128, 0) == 2 * 4
    )  # blocks, of which a multiprocessor holds two
    status = 1
    with pytest.raises(
        BackendUnavailable, match="gives CUDA error 1 for clusters of 2 blocks of 384 threads"
    ):
        make_device(world).at_once(kernel(cluster=2), 384, 0)


@pytest.mark.parametrize(
    ("capability", "cluster"), [("75", 1), ("80", 1), ("89", 1), ("90", 8), ("100", 8), ("120", 8)]
)
def test_limits_are_those_of_the_device(world, capability, cluster):
    world.capability = capability
    pair = int(capability[:-1]), int(capability[-1])
    assert make_device(world).limits == Limits(pair, 4, fake_cupy.SHARED_BYTES, cluster, 1 << 34)


def test_an_upload_is_one_transfer_of_aligned_pieces_on_the_stream(world):
    arrays = [np.arange(10), np.float32([1.5, 2.5]), np.zeros((0, 3)), np.arange(6).reshape(2, 3).T]
    pieces = make_device(world).upload(arrays)
    ((target, _, _, stream),) = world.copies
    assert target == pieces[0].pointer and stream == world.stream.ptr
    for array, piece in zip(arrays, pieces, strict=True):
        assert piece.num_bytes == array.nbytes and piece.pointer % 256 == 0
        assert (contents(piece, array.dtype) == array.ravel()).all()


def test_a_pinned_buffer_is_kept_until_its_transfer_is_done(world):
    device = make_device(world)
    for _ in range(3):
        device.upload([np.zeros(100)])
    assert len(cuda_memory._staging._busy) == 3
    for event in world.events:
        event.done = True
    device.upload([np.zeros(100)])
    assert [buffer.ptr for _, buffer in cuda_memory._staging._busy] == [world.copies[3][1]]


def make_owner():
    return compile_table(left_to_right_graph(0, 5, 9), 9)


def test_resident_arrays_are_uploaded_once_for_each_device_and_live_as_long_as_their_owner(world):
    owner, made = make_owner(), []

    def make():
        made.append(len(made))
        return [np.arange(5), np.arange(3.0)]

    device = make_device(world)
    pointers = {tuple(piece.pointer for piece in device.resident(owner, "a", make)) for _ in range(3)}
    assert len(pointers) == len(made) == 1
    device.resident(owner, "b", make)
    make_device(world, index=0).resident(owner, "a", make)
    assert len(made) == 3
    del owner
    gc.collect()
    assert not cuda_memory._residents


def test_another_stream_waits_for_a_resident_upload_and_its_memory_for_that_stream(world):
    owner, other = make_owner(), fake_cupy.Stream(world, 42)
    make_device(world).resident(owner, "a", lambda: [np.arange(5)])
    (uploaded,) = world.events
    for _ in range(2):
        make_device(world, other).resident(owner, "a", list)
    assert world.log == [("record", uploaded.ptr, 5), ("wait", 42, uploaded.ptr)]
    del owner
    gc.collect()
    assert world.log[2:] == [("record", 1001, 42), ("wait", 5, 1001)]


def test_a_capture_uses_resident_tables_and_refuses_those_that_are_not_there(world):
    owner, stream = make_owner(), fake_cupy.Stream(world, 42)
    make_device(world).resident(owner, "a", lambda: [np.arange(5)])
    before, stream.capturing = list(world.log), True
    device = make_device(world, stream)
    assert device.resident(owner, "a", list)[0].num_bytes == 40
    assert world.log == before
    with pytest.raises(
        BackendUnavailable, match="captured and a TransitionTable is not on the device yet; expected"
    ):
        device.resident(owner, "b", list)


def test_tables_and_memory_of_a_captured_graph_outlive_their_owner(world):
    """A replay reads them, and nobody says when a graph is gone."""
    owner, other, stream = make_owner(), make_owner(), fake_cupy.Stream(world, 42)
    device = make_device(world, stream)
    blocks = [weakref.ref(device.resident(o, "a", lambda: [np.arange(5)])[0]._block) for o in (owner, other)]
    world.stream.capturing = stream.capturing = True
    device.resident(owner, "a", list)
    device.resident(owner, "a", list)
    work = device.empty(64)._block._memory
    world.stream.capturing = stream.capturing = False
    kept = weakref.ref(work)
    del owner, other, work
    gc.collect()
    assert [block() is not None for block in blocks] == [True, False]
    assert kept() is not None and len(cuda_memory._captured) == 2


def test_nobody_asks_for_the_memory_of_a_device_that_is_not_used(world):
    """That would make a context there: every process of a training would have one on device 0."""
    world.current = 1
    assert available_backends()["cuda"] == "available"
    cuda_device.check_any()
    assert world.contexts == []
    cuda_device.check_device(1)
    assert make_device(world, index=1).limits.multiprocessors == 4
    assert world.contexts == [1]


def test_transfers_of_a_capture_are_from_buffers_that_stay_as_they_are(world):
    """A replay reads them again, whatever was uploaded in between."""
    make_device(world).upload([np.zeros(1)])
    buffers, events, stream = len(world.pinned), len(world.events), fake_cupy.Stream(world, 42)
    stream.capturing = True
    for value in (7, 8):
        make_device(world, stream).upload([np.full(50, value)])
    assert (len(world.pinned), len(world.events)) == (buffers, events)  # neither may be made in a capture
    stream.capturing = False
    for event in world.events:
        event.done = True
    for _ in range(10):
        make_device(world, stream).upload([np.zeros(50)])
    for value, (_, source, size, _) in zip((7, 8), world.copies[1:3], strict=True):
        again = np.frombuffer((fake_cupy.ctypes.c_char * size).from_address(source), np.int64)
        assert (again[:50] == value).all()


def test_a_capture_that_comes_first_or_is_too_large_is_refused(world):
    stream = fake_cupy.Stream(world, 42)
    stream.capturing = True
    with pytest.raises(
        BackendUnavailable, match="being captured: 256 bytes from the host, room for 0; expected the same"
    ):
        make_device(world, stream).upload([np.zeros(1)])
    make_device(world).upload([np.zeros(1)])
    with pytest.raises(BackendUnavailable, match=f"room for {cuda_memory.RESERVE_BYTES}"):
        make_device(world, stream).upload([np.zeros(cuda_memory.RESERVE_BYTES, np.uint8), np.zeros(1)])


def test_room_for_captures_is_made_anew_before_it_is_full(world):
    stream = fake_cupy.Stream(world, 42)
    for _ in range(5):
        stream.capturing = False
        make_device(world, stream).upload([np.zeros(1)])
        stream.capturing = True
        make_device(world, stream).upload([np.zeros(cuda_memory.RESERVE_BYTES // 2, np.uint8)])
    assert len(cuda_memory._staging._reserves) == 3


def test_memory_comes_from_the_pool_of_the_callers_library(world, monkeypatch):
    asked = []
    monkeypatch.setattr(cuda_device, "TorchBlock", lambda *sizes: asked.append(sizes) or fake_cupy_block())
    streams = {1: SimpleNamespace(cuda_stream=1234)}
    monkeypatch.setattr(torch_module().cuda, "current_stream", streams.__getitem__)
    device = cuda_device.device_of_tensor(SimpleNamespace(device=SimpleNamespace(index=1)))
    device.empty(100)
    device.launch(kernel(), 1, 32, 0, [])
    assert asked == [(1, 100)] and world.launches[0].stream.ptr == 1234

    array = world.module.asarray(np.zeros(3))
    own = cuda_device.device_of_array(array)
    memory = own.empty(24)
    assert asked == [(1, 100)]
    assert memory.array("float64", (3,)).data.ptr == memory.pointer
    own.launch(kernel(), 1, 32, 0, [])
    assert world.launches[1].stream is world.stream and world.launches[1].device == 0


def fake_cupy_block():
    return SimpleNamespace(pointer=0)


def torch_module():
    import torch

    return torch


def test_the_reason_why_there_is_no_cuda_backend_is_named(world, monkeypatch):
    assert available_backends()["cuda"] == "available"
    world.capability = "70"
    cuda_device._capability.cache_clear()
    assert available_backends()["cuda"] == "compute capability 7.0; expected at least 7.5"
    world.nvrtc = (12, 9)
    assert available_backends()["cuda"] == "available"
    world.count = 0
    assert available_backends()["cuda"] == "there is no CUDA device"

    def no_driver():
        raise RuntimeError("cudaErrorInsufficientDriver")

    world.module.cuda.runtime.getDeviceCount = no_driver
    assert available_backends()["cuda"] == "no CUDA device can be used (cudaErrorInsufficientDriver)"
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "cupy", None)
        assert "cupy cannot be imported" in available_backends()["cuda"]
        assert "pip install 'fsachain[cuda13]'" in available_backends()["cuda"]


@pytest.mark.parametrize("index", [2, -1])
def test_a_device_that_is_not_there_is_refused(world, index):
    with pytest.raises(BackendUnavailable, match=f"backend 'cuda' on device {index}: there are 2 devices"):
        cuda_device.check_device(index)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.parametrize("used", [True, False])
def test_a_child_refuses_a_device_that_its_parent_used_and_leaves_its_memory_alone(world, used):
    owner = make_owner()
    if used:
        cuda_device.check_device(0)
        make_device(world, index=0).resident(owner, "a", lambda: [np.arange(5)])
        make_device(world, fake_cupy.Stream(world, 42), index=0).resident(owner, "a", list)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            del owner
            gc.collect()
            waits = [entry for entry in world.log if entry[0] == "wait"]
            try:
                cuda_device.check_device(0)
                status = 0 if not used else 2
            except BackendUnavailable as error:
                status = 0 if used and "forked" in str(error) and len(waits) == 1 else 3
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    cuda_device.check_device(0)
