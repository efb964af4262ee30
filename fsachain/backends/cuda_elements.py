"""How a caller's array is described to the kernel texts: its type as a macro, its place as an address and strides."""

from __future__ import annotations

import numpy as np

from fsachain.backends.cuda_device import Argument, DeviceArray

C_TYPES = {"float16": "__half", "bfloat16": "__nv_bfloat16", "float32": "float", "float64": "double"}


def element(array: DeviceArray, macro: str = "ELEMENT") -> tuple[str, str]:
    """The define that says of which type the elements are, see `elements.cuh`."""
    return macro, C_TYPES[array.dtype]


def place_of(array: DeviceArray) -> list[Argument]:
    """Address and strides of an array [N, T, P], as the kernels take them."""
    return [np.uint64(array.pointer), *(np.int64(stride) for stride in array.strides)]


def nowhere() -> list[Argument]:
    """In the place of `place_of`, where there is no array."""
    return [np.uint64(0), *[np.int64(0)] * 3]
