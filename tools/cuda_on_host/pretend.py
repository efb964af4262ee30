"""The whole CUDA route on the host: tensors of the host count as tensors of a device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from fsachain.backends import arrays as kinds
from fsachain.backends.cuda import backend as cuda_call
from tools.cuda_on_host.device import HostDevice


@contextmanager
def pretended(**limits: Any) -> Iterator[HostDevice]:
    """Torch tensors live on a device of the kind "cuda", a `HostDevice` with these limits."""
    device, real = HostDevice(**limits, knows_all=False), kinds.home_of

    def home_of(array: Any) -> str:
        return "cuda" if kinds.kind_of(array) == "torch" else real(array)

    with (
        patch.object(kinds, "home_of", home_of),
        patch.object(cuda_call, "find_device", lambda array: device),
    ):
        yield device
