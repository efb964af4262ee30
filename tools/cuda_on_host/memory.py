"""Memory of the pretended device: bytes of the host with guards around them."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNMENT = 256
GUARD_BYTES = 256
GUARD = 0xA5


class HostMemory:
    """Bytes between two guards, by which writes out of bounds are found.

    Attributes:
        pointer: address of the first byte, a multiple of 256.
        num_bytes: how many there are.
        bytes: the bytes themselves, as uint8.
    """

    def __init__(self, num_bytes: int, fill: int) -> None:
        whole = np.empty(num_bytes + 2 * GUARD_BYTES + ALIGNMENT, np.uint8)
        start = GUARD_BYTES + -(whole.ctypes.data + GUARD_BYTES) % ALIGNMENT
        self._before = whole[start - GUARD_BYTES : start]
        self._behind = whole[start + num_bytes : start + num_bytes + GUARD_BYTES]
        self._before[:] = self._behind[:] = GUARD
        self.bytes = whole[start : start + num_bytes]
        self.bytes[:] = fill
        self.pointer = int(whole.ctypes.data) + start
        self.num_bytes = num_bytes

    def read(self, dtype: npt.DTypeLike, shape: int | tuple[int, ...] = -1) -> npt.NDArray[Any]:
        """A copy of the bytes as an array."""
        return self.bytes.copy().view(dtype).reshape(shape)

    def array(self, dtype: str, shape: tuple[int, ...]) -> Any:
        """The bytes themselves as a tensor of torch, as results of the recursions are."""
        import torch

        of_type = getattr(torch, dtype)
        return torch.from_numpy(self.bytes)[: prod(shape) * of_type.itemsize].view(of_type).view(shape)

    def damage(self) -> str | None:
        """What was written outside the bytes; None if nothing was."""
        if (self._behind != GUARD).any():
            return f"byte {self.num_bytes + int(np.argmax(self._behind != GUARD))} of {self.num_bytes}"
        if (self._before != GUARD).any():
            return f"byte {int(np.argmax(self._before != GUARD)) - GUARD_BYTES} of {self.num_bytes}"
        return None
