"""The CUDA backend: equations (1)-(7) and (12) and the sums of a loss for a batch on a device, without waiting for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.backends import Lengths, LogProbs, Paths
from fsachain.backends import arrays as kinds
from fsachain.backends.cuda import device as cuda_device
from fsachain.backends.cuda import paths as cuda_paths
from fsachain.backends.cuda.device import (
    ITEM_BYTES,
    Argument,
    Device,
    DeviceArray,
    KernelSpec,
    address,
    macros,
    strided,
)
from fsachain.backends.cuda.launch import Occupancies, run_all
from fsachain.backends.cuda.memory import Memory
from fsachain.batch import TableBatch

ROW_THREADS = 256
ROWS = 32  # frames of a block; blocks for sequences, of which there may be more than 65,535, come first in a grid
ROW_TILE = 512  # pdfs of a row in shared memory


def log_probs(
    device: Device, batch: TableBatch, scores: DeviceArray, lengths: Lengths, leaky: float
) -> tuple[Memory, Memory]:
    """log Z, equation (4), float64 [N], -inf where no path exists and NaN where a score is illegal; and ok, uint8 [N].

    Arguments as for `launch.run_all`.
    """
    call = run_all(device, batch, scores, lengths, leaky, None, None)
    return call.log_prob, call.ok


def add_occupancy(
    device: Device,
    batch: TableBatch,
    scores: DeviceArray,
    lengths: Lengths,
    leaky: float,
    weights: Memory | DeviceArray | None,
    out: DeviceArray,
    memory_budget: float | None = None,
    is_new: bool = False,
    lists: DeviceArray | None = None,
) -> tuple[Memory, Memory]:
    """Add weights[n] x occupancy to `out`; log Z and ok as `log_probs`.

    Rows of `out` [N, T, P], float32 or float64 with any strides, other than those of the ok sequences stay as they are.
    weights: float64 [N], None: ones. is_new: `out` holds anything and all of it is written, once. lists: int32 [N, 2 + P],
    where a row of `out` shall begin with the values of its sequence's active pdfs, and the rest may hold anything:
    `spread_rows` makes the gradient of it. The others: see `launch.run_all`.
    """
    occupancies = Occupancies(out, weights, is_new, lists)
    call = run_all(device, batch, scores, lengths, leaky, occupancies, memory_budget)
    if is_new and lists is None:
        clear_rows(device, out, call.ok, call.lengths, weights)
    return call.log_prob, call.ok


def _over_rows(
    device: Device, name: str, given: DeviceArray, arguments: Sequence[Argument], out: DeviceArray
) -> None:
    """Launch a kernel of dense_rows.cu for all rows of `given` [N, T, P]."""
    size, num_frames, num_pdfs = given.shape
    if 0 in given.shape:
        return
    shared = ROW_THREADS // 32 * ROW_TILE * ITEM_BYTES.get(given.dtype, 8) if name == "spread_rows" else 0
    device.launch(
        KernelSpec("dense_rows.cu", name, macros(ELEMENT=given, OUT=out, ROWS=ROWS, TILE=ROW_TILE)),
        (size, -(-num_frames // ROWS)),
        ROW_THREADS,
        shared,
        [*strided(given), num_frames, num_pdfs, *arguments],
    )


def clear_rows(
    device: Device,
    out: DeviceArray,
    ok: Memory | DeviceArray,
    lengths: Memory | None = None,
    weights: Memory | DeviceArray | None = None,
) -> None:
    """Zeros in `out` [N, T, P] where a sequence is not ok (uint8 [N]), or has the weight 0, and behind its length."""
    _over_rows(device, "clear_rows", out, [address(lengths), address(ok), address(weights)], out)


class LossTerms(NamedTuple):
    """What `loss_terms` writes: float64 values [N], uint8 ok [N], float64 sums (`SUMS` of loss/base.py) and total."""

    values: DeviceArray
    ok: DeviceArray
    sums: DeviceArray
    total: DeviceArray


def loss_terms(
    device: Device,
    scores: DeviceArray,
    longest: int,
    numbers: DeviceArray,
    log_probs: tuple[DeviceArray, DeviceArray],
    scale: float,
    excluded_objf: float,
    factors: tuple[float, float, float],
    consistency: DeviceArray | None,
    is_divided: bool,
    out: LossTerms,
    threads: int = ROW_THREADS,
    rounding: tuple[float, float] = (0.0, 0.0),
) -> None:
    """What LF-MMI adds up over the N sequences of scores [N, T, P], penalties on large scores included.

    numbers: float64, in its first rows [N] the weights and the lengths, the largest of which is `longest`. log_probs:
    float64 [N], log Z of numerators and denominators, of which `scale` multiplies the latter. excluded_objf: for each
    frame of a sequence that is not ok. factors: see `reference.sums.add_penalties`. is_divided: whether the total is
    divided already. threads: of a block, a multiple of 32, at most 256; the order of the sums depends on it. rounding: how
    far it may take a value above 0, as a share of frames and magnitudes of log Z, and for each frame; (0, 0): not at all.
    """
    size, _, num_pdfs = scores.shape
    l2, out_of_range, limit = map(float, factors)
    blocks, sums = max(1, -(-longest // ROWS)), None
    weights, lengths = numbers.pointer, numbers.pointer + 8 * size
    defines, shared = macros(ELEMENT=scores, ROWS=ROWS), threads // 32 * 8
    if l2 or out_of_range:
        sums = device.empty(16 * size * blocks)
        device.launch(
            KernelSpec("penalties.cu", "penalties", defines),
            (size, blocks),
            threads,
            shared,
            [*strided(scores), num_pdfs, lengths, l2, out_of_range, limit, sums.pointer],
        )
    device.launch(
        KernelSpec("penalties.cu", "loss_terms", defines),
        1,
        threads,
        shared,
        [
            *(log_probs[0].pointer, log_probs[1].pointer, weights, lengths, size, float(scale)),
            *(float(excluded_objf), address(sums), blocks, l2, out_of_range, address(consistency)),
            *(int(is_divided), *map(float, rounding)),
            *(array.pointer for array in out),
        ],
    )


def finish_gradient(
    device: Device,
    gradient: DeviceArray,
    scores: DeviceArray,
    numbers: DeviceArray,
    ok: DeviceArray,
    factors: tuple[float, float, float],
    frame_weights: DeviceArray | None,
    factor: DeviceArray,
    divisor: DeviceArray | None,
    out: DeviceArray,
) -> None:
    """out = factor / divisor x frame_weights [N, T] x (gradient + the penalties' derivatives), all [N, T, P], in one pass.

    0 behind a length, and where a sequence is not ok, uint8 [N]. numbers, factors: as of `loss_terms`; factor, divisor [1]
    (None: 1) and frame weights, float64 on the device; gradient is float32, for scores in float64 float64; `out` has the
    scores' type, and may be the same array as the gradient.
    """
    size, num_frames, num_pdfs = scores.shape
    if 0 in scores.shape:
        return
    device.launch(
        KernelSpec("penalties.cu", "finish_gradient", macros(ELEMENT=scores, ROWS=ROWS)),
        (size, -(-num_frames // ROWS)),
        ROW_THREADS,
        0,
        [
            *(*strided(scores), num_frames, num_pdfs, *strided(gradient), numbers.pointer + 8 * size),
            *(numbers.pointer, ok.pointer, *map(float, factors), address(frame_weights), factor.pointer),
            *(address(divisor), *strided(out)),
        ],
    )


class Reduced(NamedTuple):
    """What becomes of losses [N]: each of them, or their total in which each has its share, of one type.

    zero_infinity: a loss of +inf counts as 0.
    """

    zero_infinity: bool
    each: DeviceArray | None
    total: DeviceArray | None


def reduce_losses(
    device: Device,
    found: Memory | DeviceArray,
    is_log_prob: bool,
    size: int,
    shares: Memory | DeviceArray | float,
    reduced: Reduced,
    rounding: float = 0.0,
) -> None:
    """The losses of log Z or of costs, float64 [N], by one launch.

    shares: float64 [N] on the device, or that of all. rounding: a loss below 0 by at most as much is 0.
    """
    zero_infinity, each, total = reduced
    kernel = KernelSpec("losses.cu", "reduce_losses", macros(OUT=each or total or "float64"))
    of_each = (0, shares) if isinstance(shares, float) else (shares.pointer, 1.0)
    arguments = [
        found.pointer,
        int(is_log_prob),
        size,
        *of_each,
        *(int(zero_infinity), float(rounding)),
        *map(address, (each, total)),
    ]
    device.launch(kernel, 1, ROW_THREADS, ROW_THREADS // 32 * 8, arguments)


def scale_rows(device: Device, values: DeviceArray, factors: DeviceArray, out: DeviceArray) -> None:
    """out = values [N, T, P] (float32 or 64) times factors [N] (float64), 0 where they are; out of any type, or values."""
    _over_rows(device, "scale_rows", values, [*strided(factors), *strided(out)], out)


def spread_rows(
    device: Device,
    values: DeviceArray,
    lists: DeviceArray,
    factors: DeviceArray,
    out: DeviceArray,
) -> None:
    """As `scale_rows` for values that `add_occupancy` has packed; all of `out` is written."""
    _over_rows(device, "spread_rows", values, [lists.pointer, *strided(factors), *strided(out)], out)


def find_device(array: Any) -> Device:
    """The device of a torch or cupy array, with the stream that is current there."""
    if kinds.kind_of(array) == "torch":
        return cuda_device.device_of_tensor(array)
    return cuda_device.device_of_array(array)


@lru_cache(maxsize=64)
def _dtype(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    return "uint8" if name == "bool" else name


def view(array: Any) -> DeviceArray:
    dtype = _dtype(array.dtype)
    if kinds.kind_of(array) == "torch":
        return DeviceArray(array.data_ptr(), dtype, tuple(array.shape), tuple(array.stride()), array)
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return DeviceArray(array.data.ptr, dtype, tuple(array.shape), strides, array)


class OnDevice:
    """`fsachain.backends.Recursion` for torch and cupy arrays of a device.

    Each method works on the stream that is current when it is called; nothing but `best_paths` waits for the device.
    """

    def log_probs(self, batch: TableBatch, scores: Any, lengths: Lengths, leaky: float) -> LogProbs:
        return _results(log_probs(find_device(scores), batch, view(scores), lengths, leaky), lengths)

    def add_occupancy(
        self,
        batch: TableBatch,
        scores: Any,
        lengths: Lengths,
        leaky: float,
        weights: Any,
        out: Any,
        memory_budget: float | None,
        is_new: bool = False,
        lists: Any = None,
    ) -> LogProbs:
        """is_new, lists: see the function of this name."""
        factors, packed = (None if array is None else view(array) for array in (weights, lists))
        inputs = find_device(scores), batch, view(scores), lengths, leaky, factors, view(out)
        return _results(add_occupancy(*inputs, memory_budget, is_new, packed), lengths)

    def best_paths(
        self, batch: TableBatch, scores: Any, lengths: Lengths, memory_budget: float | None
    ) -> Paths:
        found = cuda_paths.best_paths(find_device(scores), batch, view(scores), lengths, memory_budget)
        score = found.score.array("float64", lengths.shape)
        arcs = kinds.as_numpy(kinds.on_host(found.arcs.array("int32", tuple(scores.shape[:2]))))
        is_path = np.isfinite(kinds.as_numpy(kinds.on_host(score)))
        return Paths(score, [arcs[n, : lengths[n] if is_path[n] else 0] for n in range(len(lengths))])


def _results(found: tuple[Memory, Memory], lengths: Lengths) -> LogProbs:
    log_prob, ok = found  # in memory of the pool of the scores' library
    return LogProbs(log_prob.array("float64", lengths.shape), ok.array("bool", lengths.shape))


def place(like: Any, values: npt.NDArray[Any]) -> Any:
    (memory,) = find_device(like).upload([values])
    return memory.array(str(values.dtype), values.shape)


def copies() -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Functions that copy arrays of the host to the device that is current for cupy, and arrays of it to numpy."""
    cuda_device.check_any()
    import cupy

    return (lambda array: cupy.asarray(kinds.as_numpy(array))), cupy.asnumpy


def place_tables(batch: TableBatch, index: int | None) -> None:
    """Copy the tables of a batch to the device of this index, None: the one that is current."""
    device = cuda_device.device_of_index(index)
    leaks = all(table.leaky_log_prob is not None for table in batch.tables)
    nothing = DeviceArray(0, "float32", (batch.size, 0, batch.tables[0].num_pdfs), (1, 1, 1), None)
    for leaky in (0.0, 1.0) if leaks else (0.0,):
        # A call without frames takes all its tables along.
        log_probs(device, batch, nothing, np.zeros(batch.size, np.int64), leaky)
