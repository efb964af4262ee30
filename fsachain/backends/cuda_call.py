"""The CUDA backend, called with arrays that live on a device: nothing here waits for it, but for best paths."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fsachain.backends import cuda, cuda_cupy, cuda_paths, cuda_penalty, kinds
from fsachain.backends.cuda_device import Device, DeviceArray
from fsachain.backends.host_call import Ferry
from fsachain.batch import TableBatch
from fsachain.fsa import Ints

Lanes = npt.NDArray[np.int64]


def find_device(array: Any) -> Device:
    """The device of a torch or cupy array, with the stream that is current there.

    Raises:
        BackendUnavailable: kernels cannot run there.
    """
    if kinds.kind_of(array) == "torch":
        return cuda_cupy.device_of_tensor(array)
    return cuda_cupy.device_of_array(array)


def view(array: Any) -> DeviceArray:
    """A torch or cupy array as kernels see it."""
    dtype = "uint8" if "bool" in str(array.dtype) else kinds.dtype_name(array)
    if kinds.kind_of(array) == "torch":
        return DeviceArray(array.data_ptr(), dtype, tuple(array.shape), tuple(array.stride()), array)
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return DeviceArray(array.data.ptr, dtype, tuple(array.shape), strides, array)


def _array(memory: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    """Memory that the device's pool gave, as an array of the library whose pool it is, without a copy."""
    return memory.array(dtype, shape)


class CudaCall:
    """The recursions of the CUDA backend on one batch of scores; see `dispatch.Recursions`.

    Arrays that come and go are torch's or cupy's, as the scores are, on their device. Each method works on the stream that
    is current when it is called.
    """

    def __init__(self, scores: Any, lengths: Lanes, memory_budget: float | None) -> None:
        self._scores = scores.detach() if kinds.kind_of(scores) == "torch" else scores
        self._lengths, self._budget, self._view = lengths, memory_budget, view(self._scores)
        find_device(scores)

    @property
    def lengths(self) -> Lanes:
        """See `dispatch.Recursions`."""
        return self._lengths

    @property
    def _device(self) -> Device:
        return find_device(self._scores)  # with the stream that is current now

    def log_probs(self, batch: TableBatch, leaky: float) -> tuple[Any, Any]:
        """See `dispatch.Recursions`."""
        return self._results(cuda.log_probs(self._device, batch, self._view, self.lengths, leaky))

    def add_occupancy(self, batch: TableBatch, leaky: float, weights: Any, out: Any) -> tuple[Any, Any]:
        """See `dispatch.Recursions`."""
        factors = self.constant(np.ones(batch.size)) if weights is None else weights
        inputs = self._device, batch, self._view, self.lengths, leaky
        return self._results(cuda.add_occupancy(*inputs, view(factors), view(out), self._budget))

    def add_penalties(self, weights: Any, factors: tuple[float, float, float], out: Any) -> Any:
        """See `dispatch.Recursions`."""
        into = view(out) if len(out) else None
        inputs = self._device, self._view, self.lengths
        terms = cuda_penalty.add_penalties(*inputs, view(weights), factors, into)
        return _array(terms, "float64", (2,))

    def best_paths(self, batch: TableBatch) -> tuple[Any, list[Ints]]:
        """See `dispatch.Recursions`; waits for the device."""
        size, num_frames, _ = self._view.shape
        found = cuda_paths.best_paths(self._device, batch, self._view, self.lengths, self._budget)
        score = _array(found.score, "float64", (size,))
        arcs = kinds.as_numpy(kinds.on_host(_array(found.arcs, "int32", (size, num_frames))))
        is_path = np.isfinite(kinds.as_numpy(kinds.on_host(score)))
        return score, [arcs[n, : self.lengths[n] if is_path[n] else 0] for n in range(size)]

    def zeros(self) -> Any:
        """See `dispatch.Recursions`."""
        wide = "float64" if self._view.dtype == "float64" else "float32"
        if kinds.kind_of(self._scores) == "torch":
            import torch

            return torch.zeros(self._view.shape, dtype=getattr(torch, wide), device=self._scores.device)
        import cupy

        with self._scores.device:
            return cupy.zeros(self._view.shape, wide)

    def constant(self, values: npt.NDArray[Any]) -> Any:
        """See `dispatch.Recursions`."""
        (memory,) = self._device.upload([values])
        return _array(memory, str(values.dtype), values.shape)

    def clear(self, buffer: Any, ok: Any) -> None:
        """See `dispatch.Recursions`."""
        buffer.masked_fill_(~ok.view(-1, 1, 1), 0.0)

    def part(self, lanes: Lanes) -> CudaCall:
        """See `dispatch.Recursions`."""
        return CudaCall(self._scores[self.constant(lanes)], self.lengths[lanes], self._budget)

    def with_scores(self, scores: Any) -> CudaCall:
        """See `dispatch.Recursions`."""
        return CudaCall(scores, self.lengths, self._budget)

    def _results(self, results: tuple[Any, Any]) -> tuple[Any, Any]:
        shape = self.lengths.shape
        return _array(results[0], "float64", shape), _array(results[1], "bool", shape)


def from_host(scores: Any, lengths: Lanes, memory_budget: float | None) -> Ferry:
    """The recursions of the CUDA backend for scores of the host, which travel to the device that is current for cupy.

    Raises:
        BackendUnavailable: kernels cannot run here.
    """
    cuda_cupy.check_any()
    import cupy

    def there(array: Any) -> Any:
        return cupy.asarray(kinds.as_numpy(array))

    back = kinds.back_to(scores)
    inner = CudaCall(there(kinds.scores_as_numpy(scores)), lengths, memory_budget)
    return Ferry(inner, there, lambda result: back(cupy.asnumpy(result)))


def place_tables(batch: TableBatch, index: int | None) -> None:
    """Copy the tables of a batch to the device of this index, None: the one that is current.

    Raises:
        BackendUnavailable: kernels cannot run there.
    """
    device = cuda_cupy.device_of_index(index)
    leaks = all(table.leaky_log_prob is not None for table in batch.tables)
    nothing = DeviceArray(0, "float32", (batch.size, 0, batch.tables[0].num_pdfs), (1, 1, 1), None)
    for leaky in (0.0, 1.0) if leaks else (0.0,):
        # A call without frames takes all its tables along.
        cuda.log_probs(device, batch, nothing, np.zeros(batch.size, np.int64), leaky)
