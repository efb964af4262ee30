"""The whole CUDA route on the host: tensors of the host count as tensors of a device whose kernels g++ compiled."""

import contextlib

import fake_cupy
import numpy as np
import pytest
import torch

from fsachain.backends import arrays as kinds
from fsachain.backends.cuda import backend as cuda_call
from tools.cuda_on_host import HostDevice, HostMemory, skip_reason

needs_host_compiler = pytest.mark.skipif(skip_reason() is not None, reason=str(skip_reason()))


class TorchMemory(HostMemory):
    """As memory of torch's pool: the results of the recursions are views of it."""

    def array(self, dtype, shape):
        of_type = getattr(torch, dtype)
        size = int(np.prod(shape)) * of_type.itemsize
        return torch.from_numpy(self.bytes)[:size].view(of_type).view(shape)


class CupyMemory(HostMemory):
    """As memory of cupy's pool."""

    def array(self, dtype, shape):
        return fake_cupy.make_array(shape, dtype, self.bytes)


class PretendDevice(HostDevice):
    """A host device that takes the callers' arrays too, of which it does not know how long they are."""

    memory_type: type[HostMemory] = TorchMemory

    def empty(self, num_bytes):
        memory = self.memory_type(num_bytes, self.fill)
        self._memories.add(memory)
        return memory

    def memory_at(self, pointer):
        return super().memory_at(pointer) or "the caller's"

    def launch(
        self,
        kernel,
        grid,
        block,
        shared_bytes,
        arguments,
    ):
        known = (np.generic, HostMemory)
        packed = [value if isinstance(value, known) else np.uint64(value.pointer) for value in arguments]
        super().launch(kernel, grid, block, shared_bytes, packed)


class PretendCupyDevice(PretendDevice):
    memory_type = CupyMemory


@contextlib.contextmanager
def pretended(monkeypatch, device=None):
    """Torch tensors live on a device of the kind "cuda", which is the host."""
    device = device or PretendDevice()
    real = kinds.home_of
    with monkeypatch.context() as patch:
        patch.setattr(
            kinds, "home_of", lambda array: "cuda" if kinds.kind_of(array) == "torch" else real(array)
        )
        patch.setattr(cuda_call, "find_device", lambda array: device)
        yield device
