"""The GPU as the library sees it: what the real CuPy asks of a driver that is ours, which writes it down."""

import ctypes
import gc
import os
import sys
import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from random_graphs import left_to_right_graph
from refusals import refuses

from fsachain import BackendUnavailable, available_backends, compile_table, kernels
from fsachain.backends.cuda import backend as cuda
from fsachain.backends.cuda import device as cuda_device
from fsachain.backends.cuda import grid as cuda_grid
from fsachain.backends.cuda import memory as cuda_memory
from fsachain.backends.cuda.device import DeviceArray, KernelSpec, Limits, macros
from tools.cuda_on_host import libcuda, skip_reason

pytestmark = pytest.mark.skipif(skip_reason() is not None, reason=str(skip_reason()))

LIMITS = Limits((9, 0), 4, 232_448, 8, 1 << 33)
CACHES = ("_limits", "_capability", "_function", "_module", "_at_once")
TEXT, DEFINES = "dense_rows.cu", macros(ELEMENT="float32", OUT="float32", ROWS=32)


class World:
    """CuPy, two of its devices, and the calls of the driver; launches do nothing."""

    def __init__(self, cupy, calls):
        self.cupy, self.calls, self.runtime = cupy, calls, cupy.cuda.runtime
        self.indices = [libcuda.device_with(LIMITS._replace(multiprocessors=4 + n), {}) for n in (0, 1)]

    def stream(self, which=1):
        with self.cupy.cuda.Device(self.indices[which]):
            return self.cupy.cuda.Stream(non_blocking=True)

    def device(self, stream=None, which=1):
        index = self.indices[which]
        stream = stream or self.cupy.cuda.Stream.null
        return cuda_device.Device(index, stream, lambda size: cuda_memory.CupyBlock(index, size))

    def of(self, *names):
        return [(name, *numbers) for name, *numbers in self.calls if name in names]


@pytest.fixture
def world(monkeypatch):
    """The library has not used any device yet."""
    libcuda.load()
    import cupy

    monkeypatch.setattr(cuda_device, "_usable", set())
    _forget()
    settings = libcuda.settings()
    settings.executes = 0
    with libcuda.visible(), libcuda.calls() as calls:
        yield World(cupy, calls)
        _forget()
        gc.collect()
    settings.executes = settings.finishes = 1


def _forget():
    for name in CACHES:
        getattr(cuda_device, name).cache_clear()
    cuda_memory._residents.clear()
    cuda_memory._captured.clear()
    cuda_memory._staging = cuda_memory._Staging()


def kernel(**changed):
    return KernelSpec(TEXT, "clear_rows", DEFINES)._replace(**changed)


def contents(memory, dtype):
    return np.frombuffer((ctypes.c_char * memory.num_bytes).from_address(memory.pointer), dtype)


def test_a_launch_is_on_the_devices_index_and_stream_whatever_is_current(world):
    stream = world.stream()
    device = world.device(stream)
    device.launch(kernel(), (3, 2), 32, 1024, [8, 1.5, np.float32(2.5), -1])
    assert world.of("clear_rows") == [("clear_rows", 6, world.indices[1], stream.ptr, 0)]
    assert world.cupy.cuda.Device().id == 0


def test_a_kernel_is_compiled_once_for_a_device_from_one_text_with_its_macros(world, monkeypatch):
    made, real = [], world.cupy.RawModule
    monkeypatch.setattr(world.cupy, "RawModule", lambda **options: made.append(options) or real(**options))
    for which in (0, 1, 1, 0):
        world.device(which=which).launch(kernel(), 1, 32, 0, [])
        world.device(which=which).launch(kernel(name="scale_rows"), 1, 32, 0, [])
    options = ("--std=c++17", "--fmad=false", "-DELEMENT=float", "-DOUT=float", "-DROWS=32")
    text = kernels.read_unit(TEXT)
    assert made == 2 * [{"code": text, "options": options, "enable_cooperative_groups": False}]
    assert '#include "' not in text


def test_a_text_without_the_kernel_and_a_cubin_of_another_device_are_refused(world):
    from cupy.cuda import compiler, driver

    told, absent = "the cubin has no kernel clear_columns", kernel(name="clear_columns")
    refuses(driver.CUDADriverError, told, world.device().launch, absent, 1, 32, 0, [])
    old = libcuda.device_with(LIMITS._replace(capability=(8, 0)), {})
    with world.cupy.cuda.Device(world.indices[1]):
        code = 'extern "C" __global__ void nothing() {}'
        cubin, _ = compiler.compile_using_nvrtc(code)
    with world.cupy.cuda.Device(old), pytest.raises(driver.CUDADriverError, match="the cubin is for sm_90"):
        driver.moduleLoadData(cubin)


def test_rows_of_more_sequences_than_the_second_dimension_of_a_grid_holds_are_launched(world):
    size, device = 70_000, world.device(which=0)
    assert size > cuda_grid.MAX_GRID_Y
    rows = DeviceArray(256, "float32", (size, 40, 5), (200, 5, 1), None)
    each = DeviceArray(256, "float64", (size,), (1,), None)
    cuda.scale_rows(device, rows, each, rows)
    cuda.spread_rows(device, rows, each, each, rows)
    cuda.clear_rows(device, rows, each)
    factors, out = (0.1, 0.1, 30.0), cuda.LossTerms(*[each] * 4)
    cuda.loss_terms(device, rows, 40, each, (each, each), 1.0, -10.0, factors, None, True, out)
    cuda.finish_gradient(device, rows, rows, each, each, factors, None, each, None, rows)
    names = "scale_rows", "spread_rows", "clear_rows", "penalties", "finish_gradient"
    assert [call[:2] for call in world.of(*names)] == [(name, 2 * size) for name in names]


def test_blocks_that_wait_for_one_another_are_launched_together_or_not_at_all(world):
    device, together = world.device(which=0), kernel(cooperative=True)
    device.launch(together, (8, 4), 256, 0, [])
    assert world.of("clear_rows") == [("clear_rows", 32, world.indices[0], 0, 1)]
    told = r"clear_rows needs 33 blocks of 256 threads at once; device .* runs at most 32"
    refuses(BackendUnavailable, told, device.launch, together, 33, 256, 0, [])
    assert len(world.of("clear_rows")) == 1


def test_what_the_driver_says_of_clusters_it_cannot_run_is_named(world):
    assert world.device(which=0).at_once(kernel(), 1024, 0) == 2 * 4
    told = "gives CUDA error 1 for clusters of 2 blocks of 384 threads"
    refuses(BackendUnavailable, told, world.device().at_once, kernel(cluster=2), 384, 0)


def test_limits_are_those_of_the_device(world):
    for capability in ((7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (12, 0)):
        limits = LIMITS._replace(capability=capability, cluster=8 if capability >= (9, 0) else 1)
        device = cuda_device.Device(libcuda.device_with(limits, {}), world.cupy.cuda.Stream.null, None)
        assert device.limits == limits


def test_an_upload_is_one_transfer_of_aligned_pieces_on_the_stream(world):
    arrays = [np.arange(10), np.float32([1.5, 2.5]), np.zeros((0, 3)), np.arange(6).reshape(2, 3).T]
    stream = world.stream()
    pieces = world.device(stream).upload(arrays)
    ((_, _, size, on, _),) = world.of("cudaMemcpyAsync")
    assert on == stream.ptr and size == 2 * 256 + 48
    for array, piece in zip(arrays, pieces, strict=True):
        assert piece.num_bytes == array.nbytes and piece.pointer % 256 == 0
        assert (contents(piece, array.dtype) == array.ravel()).all()


def test_a_pinned_buffer_is_kept_until_its_transfer_is_done(world):
    device = world.device()
    libcuda.settings().finishes = 0
    for _ in range(3):
        device.upload([np.zeros(100)])
    assert len(cuda_memory._staging._busy) == 3
    libcuda.settings().finishes = 1
    device.upload([np.zeros(100)])
    last = world.of("cudaMemcpyAsync")[3][1]
    assert [buffer.ptr for _, buffer in cuda_memory._staging._busy] == [last]


def make_owner():
    return compile_table(left_to_right_graph(0, 5, 9), 9)


def test_resident_arrays_are_uploaded_once_for_each_device_and_live_as_long_as_their_owner(world):
    owner, made = make_owner(), []

    def make():
        made.append(len(made))
        return [np.arange(5), np.arange(3.0)]

    device = world.device()
    pointers = {tuple(piece.pointer for piece in device.resident(owner, "a", make)) for _ in range(3)}
    assert len(pointers) == len(made) == 1
    device.resident(owner, "b", make)
    world.device(which=0).resident(owner, "a", make)
    assert len(made) == 3
    del owner
    gc.collect()
    assert not cuda_memory._residents


def test_another_stream_waits_for_a_resident_upload_and_its_memory_for_that_stream(world):
    owner, other, home = make_owner(), world.stream(), 0
    world.device().resident(owner, "a", lambda: [np.arange(5)])
    ((_, uploaded, *_),) = world.of("cudaEventRecord")
    for _ in range(2):
        world.device(other).resident(owner, "a", list)
    names = "cudaEventRecord", "cudaStreamWaitEvent"
    record, wait = (names[0], uploaded, home), (names[1], other.ptr, uploaded)
    assert [call[:3] for call in world.of(*names)] == [record, wait]
    del owner
    gc.collect()
    (again, event, on), (waited, stream, for_it) = (call[:3] for call in world.of(*names)[2:])
    assert (again, on, waited, stream, event) == (names[0], other.ptr, names[1], home, for_it)
    assert {device for _, device, *_ in world.of("cudaEventCreate")} == {world.indices[1]}


@contextmanager
def captured(world, *streams):
    for stream in streams:
        stream.begin_capture()
    yield
    for stream in streams:
        world.runtime.streamEndCapture(stream.ptr)


def test_a_capture_uses_resident_tables_and_refuses_those_that_are_not_there(world):
    owner, stream = make_owner(), world.stream()
    world.device().resident(owner, "a", lambda: [np.arange(5)])
    before = list(world.calls)
    with captured(world, stream):
        device = world.device(stream)
        assert device.resident(owner, "a", list)[0].num_bytes == 40
        assert world.calls == before
        told = "captured and a TransitionTable is not on the device yet; expected"
        refuses(BackendUnavailable, told, device.resident, owner, "b", list)


def test_tables_and_memory_of_a_captured_graph_outlive_their_owner(world):
    """A replay reads them, and nobody says when a graph is gone."""
    owner, other, stream = make_owner(), make_owner(), world.stream()
    device = world.device(stream)
    with world.cupy.cuda.Device(world.indices[1]), stream:  # the stream that memory is taken for
        tables = (device.resident(one, "a", lambda: [np.arange(5)]) for one in (owner, other))
        blocks = [weakref.ref(memory._block) for (memory,) in tables]
        with captured(world, stream):
            world.device(stream).resident(owner, "a", list)
            world.device(stream).resident(owner, "a", list)
            pointer = world.device(stream).empty(64).pointer
    del owner, other
    gc.collect()
    assert [block() is not None for block in blocks] == [True, False]
    table, work = cuda_memory._captured
    assert table is blocks[0]() and work.ptr == pointer


def test_nobody_asks_for_the_memory_of_a_device_that_is_not_used(world):
    """That would make a context there: every process of a training would have one on device 0."""
    used = world.indices[1]
    with world.cupy.cuda.Device(used):
        assert available_backends()["cuda"] == "available"
        cuda_device.check_any()
        assert not world.of("cudaMemGetInfo")
        cuda_device.check_device(used)
    assert world.device().limits.multiprocessors == 5
    assert [device for _, device, *_ in world.of("cudaMemGetInfo")] == [used]


def test_transfers_of_a_capture_are_from_buffers_that_stay_as_they_are(world):
    """A replay reads them again, whatever was uploaded in between."""
    world.device().upload([np.zeros(1)])
    stream = world.stream()
    made = "cudaHostAlloc", "cudaEventCreate"
    before = world.of(*made)
    with captured(world, stream):
        for value in (7, 8):
            world.device(stream).upload([np.full(50, value)])
        assert world.of(*made) == before  # neither may be made in a capture
    for _ in range(10):
        world.device(stream).upload([np.zeros(50)])
    for value, (_, source, size, *_) in zip((7, 8), world.of("cudaMemcpyAsync")[1:3], strict=True):
        again = np.frombuffer((ctypes.c_char * size).from_address(source), np.int64)
        assert (again[:50] == value).all()


def test_a_capture_that_comes_first_or_is_too_large_is_refused(world):
    stream, size, one = world.stream(), cuda_memory.RESERVE_BYTES, np.zeros(1)
    with captured(world, stream):
        told = "being captured: 8 bytes from the host, room for 0; expected the same"
        refuses(BackendUnavailable, told, world.device(stream).upload, [one])
    world.device().upload([one])
    with captured(world, stream):
        large = [np.zeros(size, np.uint8), one]
        refuses(BackendUnavailable, f"room for {size}", world.device(stream).upload, large)


def test_room_for_captures_is_made_anew_before_it_is_full(world):
    stream = world.stream()
    for _ in range(5):
        world.device(stream).upload([np.zeros(1)])
        with captured(world, stream):
            world.device(stream).upload([np.zeros(cuda_memory.RESERVE_BYTES // 2, np.uint8)])
    assert len(cuda_memory._staging._reserves) == 3


def test_memory_comes_from_the_pool_of_the_callers_library(world, monkeypatch):
    asked, index = [], world.indices[1]
    block = SimpleNamespace(pointer=0)
    monkeypatch.setattr(cuda_device, "TorchBlock", lambda *sizes: asked.append(sizes) or block)
    streams = {index: SimpleNamespace(cuda_stream=1234)}
    monkeypatch.setattr(torch.cuda, "current_stream", streams.__getitem__)
    device = cuda_device.device_of_tensor(SimpleNamespace(device=SimpleNamespace(index=index)))
    device.empty(100)
    device.launch(kernel(), 1, 32, 0, [])
    assert asked == [(index, 100)]

    stream = world.stream(0)
    with world.cupy.cuda.Device(world.indices[0]), stream:
        own = cuda_device.device_of_array(world.cupy.empty(3))
        memory = own.empty(24)
        assert asked == [(index, 100)]
        assert memory.array("float64", (3,)).data.ptr == memory.pointer
        own.launch(kernel(), 1, 32, 0, [])
    where = [call[2:4] for call in world.of("clear_rows")]
    assert where == [(index, 1234), (world.indices[0], stream.ptr)]


@pytest.fixture
def torch_block(monkeypatch):
    """Of 64 bytes, with memory of the host in the place of a device's."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda size, dtype, device: empty(size, dtype=dtype))
    return cuda_memory.TorchBlock(0, 60)


def test_memory_of_torch_is_kept_for_the_stream_that_uses_it_the_default_one_too(torch_block, monkeypatch):
    """Of the default stream's pointer, which is 0, `torch.cuda.ExternalStream` makes a new stream."""
    device, kept = torch.device("cuda", 1), []
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda *given: given)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda of: ("default", of))
    torch_block._tensor = SimpleNamespace(device=device, record_stream=kept.append)
    for pointer in (1234, 0):
        torch_block.hold_for(SimpleNamespace(ptr=pointer))
    assert kept == [(1234, device), ("default", device)]


def test_what_a_function_of_autograd_has_in_memory_of_torch_may_be_written_to(torch_block):
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, values):
            return torch_block.array(16, "float64", (3,)).copy_(values)

        @staticmethod
        def backward(ctx, factor):
            return factor

    values = torch.arange(3.0, dtype=torch.float64).requires_grad_()
    result = Function.apply(values)
    assert result.data_ptr() == torch_block.pointer + 16
    result *= 2
    result.sum().backward()
    assert result.tolist() == [0.0, 2.0, 4.0] and values.grad.tolist() == [2.0] * 3


def test_the_reason_why_there_is_no_cuda_backend_is_named(world, monkeypatch):
    old = libcuda.device_with(LIMITS._replace(capability=(7, 0)), {})
    with world.cupy.cuda.Device(old):
        assert available_backends()["cuda"] == "compute capability 7.0; expected at least 7.5"
        monkeypatch.setattr(world.cupy.cuda.nvrtc, "getVersion", lambda: (12, 9))
        assert available_backends()["cuda"] == "available"
    with monkeypatch.context() as hidden:
        hidden.setattr(libcuda.settings(), "visible", 0)
        assert available_backends()["cuda"].startswith("no CUDA device can be used (cudaErrorNoDevice")
    monkeypatch.setattr(world.runtime, "getDeviceCount", lambda: 0)
    assert available_backends()["cuda"] == "there is no CUDA device"
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert "cupy cannot be imported" in available_backends()["cuda"]
    assert "pip install 'fsachain[cuda13]'" in available_backends()["cuda"]


@pytest.mark.parametrize("index", [libcuda.COUNT, -1])
def test_a_device_that_is_not_there_is_refused(world, index):
    told = f"backend 'cuda' on device {index}: there are {libcuda.COUNT} devices"
    refuses(BackendUnavailable, told, cuda_device.check_device, index)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.parametrize("used", [True, False])
def test_a_child_refuses_a_device_that_its_parent_used_and_leaves_its_memory_alone(world, used):
    owner, index = make_owner(), world.indices[0]
    if used:
        cuda_device.check_device(index)
        world.device(which=0).resident(owner, "a", lambda: [np.arange(5)])
        world.device(world.stream(0), which=0).resident(owner, "a", list)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            del owner
            gc.collect()
            try:
                cuda_device.check_device(index)
                status = 0 if not used else 2
            except BackendUnavailable as error:
                waits = world.of("cudaStreamWaitEvent")
                status = 0 if used and "forked" in str(error) and len(waits) == 1 else 3
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    cuda_device.check_device(index)
