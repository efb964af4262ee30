"""The whole CUDA route on the host: tensors of the host count as tensors of a device whose kernels g++ compiled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from fsachain.backends import arrays as kinds
from fsachain.backends.cuda import backend as cuda_call
from fsachain.backends.cuda.device import KernelSpec
from tools.cuda_on_host.device import HostDevice
from tools.cuda_on_host.memory import HostMemory


class TorchMemory(HostMemory):
    """As memory of torch's pool: the results of the recursions are views of it."""

    def array(self, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
        of_type = getattr(torch, dtype)
        size = int(np.prod(shape)) * of_type.itemsize
        return torch.from_numpy(self.bytes)[:size].view(of_type).view(shape)


class PretendDevice(HostDevice):
    """A host device that takes the callers' arrays too, of which it does not know how long they are."""

    memory_type: type[HostMemory] = TorchMemory

    def empty(self, num_bytes: int) -> HostMemory:
        """Memory whose pieces are arrays of the caller's kind."""
        memory = self.memory_type(num_bytes, self.fill)
        self._memories.add(memory)
        return memory

    def memory_at(self, pointer: int) -> Any:
        """The memory at an address, which may be the caller's."""
        return super().memory_at(pointer) or "the caller's"

    def launch(
        self,
        kernel: KernelSpec,
        grid: int | tuple[int, int],
        block: int,
        shared_bytes: int,
        arguments: Sequence[Any],
    ) -> None:
        """As `HostDevice.launch`."""
        known = (np.generic, HostMemory)
        packed = [value if isinstance(value, known) else np.uint64(value.pointer) for value in arguments]
        super().launch(kernel, grid, block, shared_bytes, packed)


@contextmanager
def pretended(device: PretendDevice | None = None) -> Iterator[PretendDevice]:
    """Torch tensors live on a device of the kind "cuda", which is the host."""
    device = device or PretendDevice()
    real = kinds.home_of

    def home_of(array: Any) -> str:
        return "cuda" if kinds.kind_of(array) == "torch" else real(array)

    with (
        patch.object(kinds, "home_of", home_of),
        patch.object(cuda_call, "find_device", lambda array: device),
    ):
        yield device
