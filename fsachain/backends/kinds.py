"""Whose array it is, where it lives, and how it gets from there to the host and back.

numpy, torch and cupy arrays are recognised without importing torch or cupy. Here and in `dispatch` is all that the library
knows about the kinds of arrays; the files named cuda_* know about devices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fsachain.backends.arguments import check_dtype
from fsachain.errors import BackendUnavailable

Kind = Literal["numpy", "torch", "cupy"]
Home = Literal["cpu", "cuda"]


def kind_of(array: Any) -> Kind:
    """The library of an array; what is of neither torch nor cupy counts as numpy's."""
    module = type(array).__module__.split(".")[0]
    if module == "torch" or hasattr(array, "requires_grad_"):  # torch's subclasses have modules of their own
        return "torch"
    return "cupy" if module == "cupy" else "numpy"


def home_of(array: Any) -> Home:
    """Where an array lives.

    Raises:
        BackendUnavailable: on a device for which there is no backend.
    """
    kind = kind_of(array)
    if kind == "torch":
        if array.device.type not in ("cpu", "cuda"):
            raise BackendUnavailable(f"scores are on {array.device}; expected a CPU or CUDA tensor")
        return "cuda" if array.device.type == "cuda" else "cpu"
    return "cuda" if kind == "cupy" else "cpu"


def dtype_name(array: Any) -> str:
    """The name of an array's dtype, as numpy and torch agree on it, without a byte order."""
    return str(getattr(array.dtype, "name", array.dtype)).removeprefix("torch.")


def on_host(array: Any) -> Any:
    """The array itself, or a copy on the host, which waits for the device; of its own library, or numpy's for cupy's."""
    kind = kind_of(array)
    if kind == "torch":
        return array.detach().cpu()
    return array.get() if kind == "cupy" else array


def as_numpy(array: Any) -> npt.NDArray[Any]:
    """A host array as numpy sees it, without a copy."""
    result: npt.NDArray[Any] = array if isinstance(array, np.ndarray) else array.numpy()
    return result


def scores_as_numpy(scores: Any) -> npt.NDArray[np.floating]:
    """Scores of any kind as compiled code reads them: float32 or float64, in order, aligned, writable.

    Raises:
        ShapeError: a dtype that is none of the four.
    """
    array = on_host(scores)
    if kind_of(array) == "torch":
        check_dtype(dtype_name(array))
        array = (array if array.element_size() == 8 else array.float()).numpy()
    array = np.asarray(array)
    check_dtype(dtype_name(array))
    # Read-only is another type for compiled code, and so is what is not aligned.
    dtype = np.float64 if array.itemsize == 8 else np.float32
    return np.require(array, dtype, ["C_CONTIGUOUS", "ALIGNED", "WRITEABLE"])


def back_to(like: Any) -> Callable[[npt.NDArray[Any]], Any]:
    """What makes of a numpy result an array of the kind of `like`, where that lives."""
    kind = kind_of(like)
    if kind == "numpy":
        return lambda result: result
    if kind == "torch":
        import torch

        device = like.device
        return lambda result: torch.from_numpy(result).to(device)
    import cupy

    index = like.device.id

    def to_cupy(result: npt.NDArray[Any]) -> Any:
        with cupy.cuda.Device(index):
            return cupy.asarray(result)

    return to_cupy
