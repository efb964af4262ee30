"""Whose array it is, where it lives, and how it gets from there to the host and back.

numpy, torch and cupy arrays are recognised without importing torch or cupy. Here and in `dispatch` is all that the library
knows about the kinds of arrays, and in `cuda` about devices.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fsachain.batch import TableBatch
from fsachain.errors import BackendUnavailable, ConfigError, ShapeError, as_number, counted

FLOATS = ("float16", "bfloat16", "float32", "float64")


def check_scores(batch: TableBatch, shape: tuple[int, ...], argument: str) -> None:
    """`argument`: what the caller calls the scores."""
    if len(shape) != 3:
        raise ShapeError(f"{argument} has shape {list(shape)}; expected [N, T, P]")
    if shape[0] != batch.size:
        raise ShapeError(
            f"{argument} has {counted(shape[0], 'sequence')} (shape {list(shape)}); expected {batch.size} as in the batch"
        )
    for n, table in enumerate(batch.tables):
        if table.num_pdfs > shape[2]:
            raise ShapeError(
                f"{argument} has {counted(shape[2], 'pdf')} (shape {list(shape)}); "
                f"expected at least {table.num_pdfs} for {batch.names[n]}"
            )


def check_dtype(name: str, argument: str) -> None:
    if name not in FLOATS:
        raise ShapeError(f"{argument} has dtype {name}; expected {', '.join(FLOATS[:-1])} or {FLOATS[-1]}")


def check_lengths(lengths: Any, batch: TableBatch, num_frames: int, argument: str) -> npt.NDArray[np.int64]:
    """int64 [N] on the host, each in [0, num_frames]; None stands for num_frames everywhere."""
    if lengths is None:
        return np.full(batch.size, num_frames, dtype=np.int64)
    if getattr(getattr(lengths, "device", None), "type", "cpu") != "cpu":
        # Reading them would wait for the device at each call.
        raise ShapeError(
            f"lengths are on {lengths.device}; expected {counted(batch.size, 'integer')} on the host"
        )
    array = np.asarray(lengths)
    if array.shape != (batch.size,) or array.dtype.kind not in "iu":
        raise ShapeError(
            f"lengths has shape {list(array.shape)} and dtype {array.dtype}; expected {counted(batch.size, 'integer')}"
        )
    bad = np.flatnonzero((array < 0) | (array > num_frames))
    if bad.size:
        n = int(bad[0])
        raise ShapeError(
            f"lengths[{n}] = {array[n]} ({batch.names[n]}); expected 0 to {num_frames}, the frames of {argument}"
        )
    return array.astype(np.int64)


def check_budget(memory_budget: float | None) -> None:
    if memory_budget is not None and not as_number("memory_budget", memory_budget) >= 0.0:
        raise ConfigError(
            f"memory_budget = {memory_budget!r}; expected bytes, a number >= 0, or None for a share of the free memory"
        )


def check_leak(batch: TableBatch, coefficient: float) -> None:
    if not 0.0 <= as_number("leaky_hmm_coefficient", coefficient) <= 1.0:
        raise ConfigError(f"leaky_hmm_coefficient = {coefficient}; expected a number in [0, 1]")
    for n, table in enumerate(batch.tables):
        if coefficient > 0.0 and table.leaky_log_prob is None:
            raise ConfigError(
                f"leaky_hmm_coefficient = {coefficient}, but the table of {batch.names[n]} has no leaky_log_prob; "
                "expected tables of a DenominatorGraph, or coefficient 0"
            )


Kind = Literal["numpy", "torch", "cupy"]
Home = Literal["cpu", "cuda"]


def kind_of(array: Any) -> Kind:
    """The library of an array; what is of neither torch nor cupy counts as numpy's."""
    of: Any = type(array)
    return _kind_of_type(of)


@lru_cache(maxsize=64)
def _kind_of_type(of: Any) -> Kind:
    module = of.__module__.split(".")[0]
    if module == "torch" or hasattr(of, "requires_grad_"):  # torch's subclasses have modules of their own
        return "torch"
    return "cupy" if module == "cupy" else "numpy"


def home_of(array: Any) -> Home:
    kind = kind_of(array)
    if kind == "torch":
        if array.is_cpu:
            return "cpu"
        if array.device.type != "cuda":
            raise BackendUnavailable(f"scores are on {array.device}; expected a CPU or CUDA tensor")
        return "cuda"
    return "cuda" if kind == "cupy" else "cpu"


def dtype_name(array: Any) -> str:
    """The name of an array's dtype, as numpy and torch agree on it, without a byte order."""
    return _name_of(array.dtype)


@lru_cache(maxsize=64)
def _name_of(dtype: Any) -> str:
    return str(getattr(dtype, "name", dtype)).removeprefix("torch.")


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
    """Scores of any kind, of a legal dtype, as compiled code reads them: float32 or float64, in order, aligned."""
    array = on_host(scores)
    if kind_of(array) == "torch":
        array = (array if array.element_size() == 8 else array.float()).numpy()
    array = np.asarray(array)
    dtype = np.float64 if array.itemsize == 8 else np.float32
    return np.require(array, dtype, ["C_CONTIGUOUS", "ALIGNED"])


def new_like(array: Any, make: Literal["zeros", "empty"] = "zeros") -> Any:
    """An array of this shape, kind and place for occupancies: float64 for float64 scores, else float32.

    On the host by numpy, which asks the system for large pages: torch's zeros take four times as long, most of it for
    pages. In order, whatever the order of `array`.
    """
    kind, wide = kind_of(array), "float64" if dtype_name(array) == "float64" else "float32"
    if kind == "numpy":
        return getattr(np, make)(array.shape, wide)
    if kind == "torch":
        import torch

        if array.is_cpu:
            return torch.from_numpy(getattr(np, make)(tuple(array.shape), wide))
        return getattr(torch, make)(array.shape, dtype=getattr(torch, wide), device=array.device)
    import cupy

    with array.device:
        return getattr(cupy, make)(array.shape, wide)


@cache
def to_torch() -> Callable[[npt.NDArray[Any]], Any]:
    """`torch.from_numpy`."""
    import torch

    from_numpy: Callable[[npt.NDArray[Any]], Any] = torch.from_numpy
    return from_numpy


def back_to(like: Any) -> Callable[[npt.NDArray[Any]], Any]:
    """What makes of a numpy result an array of the kind of `like`, where that lives."""
    kind = kind_of(like)
    if kind == "numpy":
        return lambda result: result
    if kind == "torch":
        from_numpy, device = to_torch(), like.device
        return from_numpy if like.is_cpu else lambda result: from_numpy(result).to(device)
    import cupy

    index = like.device.id

    def to_cupy(result: npt.NDArray[Any]) -> Any:
        with cupy.cuda.Device(index):
            return cupy.asarray(result)

    return to_cupy
