"""The CUDA backend: equations (1)-(7) and (12) for a batch on a device, without waiting for it.

Every sequence is tried in the first kind of number that may suit it (`cuda_numbers`); the kernels themselves raise `kinds`
where its data needs another one. The launches of all kinds that may occur are made in order, and a group of which no
sequence is of the kind returns at once, so that the host never asks what the device found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.backends import LogProbs, Paths
from fsachain.backends import arrays as kinds
from fsachain.backends.cuda import cupy_device as cuda_cupy
from fsachain.backends.cuda import paths as cuda_paths
from fsachain.backends.cuda.device import Device, DeviceArray, KernelSpec, Memory, element, nowhere, place_of
from fsachain.backends.cuda.launch import Call, LaneMemory, Member, Run, facts_of, members_of, on_device
from fsachain.backends.cuda.launch import place_tables as place_tables_cuda
from fsachain.backends.cuda.plan import (
    Groups,
    arc_bytes,
    first_kinds,
    kinds_of,
    lanes_for,
    make_groups,
    window_of,
    with_frames,
)
from fsachain.batch import TableBatch

__all__ = ["Sums", "add_occupancy", "log_probs", "place_tables_cuda", "start"]

Lengths = npt.NDArray[np.int64]

# Of a device's memory, what the history of one call may take where no budget is given.
DEFAULT_SHARE = 1.0 / 16.0


@dataclass
class Sums:
    """log Z of a batch, and the way to its derivative; everything is on the device.

    Attributes:
        log_prob: float64 [N], equation (4); -inf where no path exists, NaN where a score is illegal.
        ok: uint8 [N], 1 where log_prob is finite.
    """

    log_prob: Memory
    ok: Memory
    _runs: list[Run]

    def add_occupancy(self, weights: Memory, out: DeviceArray) -> None:
        """Add weights[n] x occupancy to out [N, T, P] once; other rows than those of the ok sequences stay as they are.

        Args:
            weights: float64 [N].
            out: float32 or float64, any strides.
        """
        for number, run in enumerate(self._runs):
            if number > 0 and run.kind != self._runs[0].kind:
                run.forward(keep=True)
            run.backward(weights, out)


def start(
    device: Device,
    batch: TableBatch,
    scores: DeviceArray,
    lengths: Lengths,
    leaky: float,
    memory_budget: float | None = None,
) -> Sums:
    """log Z, with what the derivative needs kept as far as `memory_budget` bytes allow.

    Args:
        device: where the scores are.
        batch: N tables, or one that all share.
        scores: [N, T, P] float16, bfloat16, float32 or float64.
        lengths: int64 [N] on the host.
        leaky: c of equation (3).
        memory_budget: bytes for probabilities and history; None for a 16th of the device's memory. Where they do not fit,
            windows of frames are computed again; no bit of the results depends on it.
    """
    sums = _begin(device, batch, scores, lengths, leaky, memory_budget)
    for run in sums._runs:
        first = run.kind == sums._runs[0].kind
        run.forward(keep=first)
        if not first:
            run.release()
    return sums


def log_probs(
    device: Device, batch: TableBatch, scores: DeviceArray, lengths: Lengths, leaky: float
) -> tuple[Memory, Memory]:
    """log Z float64 [N] and ok uint8 [N]; arguments as for `start`."""
    sums = _begin(device, batch, scores, lengths, leaky, None)
    for run in sums._runs:
        run.forward(keep=False)
        run.release()
    return sums.log_prob, sums.ok


def add_occupancy(
    device: Device,
    batch: TableBatch,
    scores: DeviceArray,
    lengths: Lengths,
    leaky: float,
    weights: Memory,
    out: DeviceArray,
    memory_budget: float | None = None,
) -> tuple[Memory, Memory]:
    """Add weights[n] x occupancy to `out`; log Z and ok as `log_probs`; see `start` and `Sums.add_occupancy`."""
    sums = start(device, batch, scores, lengths, leaky, memory_budget)
    sums.add_occupancy(weights, out)
    return sums.log_prob, sums.ok


class _Part(NamedTuple):
    """One run before its arrays are on the device."""

    kind: int
    member: Member
    lanes: int
    groups: Groups
    frames: int


def _begin(
    device: Device,
    batch: TableBatch,
    scores: DeviceArray,
    lengths: Lengths,
    leaky: float,
    memory_budget: float | None,
) -> Sums:
    """All runs of a call, with one upload of what depends on the lengths."""
    limits, facts = device.limits, facts_of(batch, leaky)
    kinds = kinds_of(scores.dtype == "float64", facts.least_total)
    budget = limits.memory_bytes * DEFAULT_SHARE if memory_budget is None else memory_budget
    longest = int(lengths.max(initial=0))
    parts = []
    for kind in kinds:
        for member in members_of(batch, limits, kind):
            seat, which, rows, _ = member
            lanes = lanes_for(seat.place, len(which), limits) if rows is None else 1
            reach = facts.reach if rows is None else facts.reach[which]
            groups = make_groups(seat, lanes, which, rows, lengths[which], reach)
            parts.append(_Part(kind, member, lanes, groups, window_of(kind, groups, longest, budget)))
    call = Call(device, scores, leaky, *(device.empty(size * batch.size) for size in (4, 8, 1)))
    first = first_kinds(kinds, lengths, facts.reach)
    return Sums(call.log_prob, call.ok, _runs(call, batch, parts, first, longest, facts.least_total))


def _runs(
    call: Call,
    batch: TableBatch,
    parts: list[_Part],
    first: npt.NDArray[np.int32],
    longest: int,
    least_total: float | None,
) -> list[Run]:
    """The runs with their arrays on the device, `kinds` and counters ready."""
    device = call.device
    arrays: list[npt.NDArray[Any]] = [first]
    for part in parts:
        arrays += [with_frames(part.groups.fields, part.frames), part.groups.sequences, part.groups.lengths]
    uploaded = device.upload(arrays)
    counted = np.cumsum([0] + [len(part.groups.fields) for part in parts]).tolist()
    counters = device.empty(4 * counted[-1])
    runs = []
    for number, part in enumerate(parts):
        seat, exponents = part.member.seat, part.member.exponents
        arc = arc_bytes(part.kind, exponents)
        runs.append(
            Run(
                call,
                part.kind,
                seat,
                part.lanes,
                part.groups,
                on_device(device, batch, part.member, part.kind),
                LaneMemory(*uploaded[1 + 3 * number : 4 + 3 * number]),
                (counters, 4 * counted[number]),
                part.frames,
                least_total or 0.0,
                longest,
                seat.shared_bytes(part.kind, arc, part.lanes) if seat.place.on_chip else 0,
            )
        )
    runs[0].prepare(uploaded[0], len(first), counters, counted[-1])
    return runs


# The driver of `penalties.cu`: what large scores cost, and the derivatives, without leaving the device.

DOUBLE = 8  # bytes
THREADS = 256
ROWS = 32  # frames of a block


def add_penalties(
    device: Device,
    scores: DeviceArray,
    lengths: npt.NDArray[np.int64],
    weights: Memory | DeviceArray,
    factors: tuple[float, float, float],
    out: DeviceArray | None,
    threads: int = THREADS,
) -> Memory:
    """Penalties on large scores and their derivatives; see `reference.add_penalties`.

    Args:
        device: where everything happens.
        scores: [N, T, P]; out, of the same shape, float32 or float64, or None where no derivative is wanted.
        lengths: [N] on the host.
        weights: float64 [N] on the device; sequences of weight 0 are not looked at.
        factors: l2, o and the limit L.
        out: see scores.
        threads: of a block, a multiple of 32, at most 256; the order of the sums depends on it.

    Returns:
        float64 [2] on the device: -1/2 l2 sum w y^2 and -1/2 o sum w (|y| - L)_+^2.
    """
    size, _, num_pdfs = scores.shape
    l2, out_of_range, limit = (np.float64(factor) for factor in factors)
    blocks = max(1, -(-int(lengths.max(initial=0)) // ROWS))
    (on_device,) = device.upload([lengths])
    sums, terms = device.empty(2 * DOUBLE * size * blocks), device.empty(2 * DOUBLE)
    into = nowhere() if out is None else place_of(out)
    factor_of = np.uint64(weights.pointer)
    types = element(scores), ("OUT", "float") if out is None else element(out, "OUT")
    read = KernelSpec("penalties.cu", "penalties", (*types, ("ROWS", ROWS)))
    add = KernelSpec("penalties.cu", "penalty_terms", (*types, ("ROWS", ROWS)))
    shared = threads // 32 * DOUBLE
    arguments = [*place_of(scores), np.int64(num_pdfs), on_device, factor_of, l2, out_of_range, limit]
    device.launch(read, (blocks, size), threads, shared, [*arguments, *into, sums])
    counts = np.int64(blocks), np.int64(size)
    device.launch(add, 1, threads, shared, [sums, *counts, on_device, factor_of, l2, out_of_range, terms])
    return terms


# The CUDA backend, called with arrays that live on a device: nothing here waits for it, but for best paths.


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
    ) -> LogProbs:
        inputs = find_device(scores), batch, view(scores), lengths, leaky
        return _results(add_occupancy(*inputs, view(weights), view(out), memory_budget), lengths)

    def add_penalties(
        self, scores: Any, lengths: Lengths, weights: Any, factors: tuple[float, float, float], out: Any
    ) -> Any:
        into = view(out) if len(out) else None
        memory: Any = add_penalties(find_device(scores), view(scores), lengths, view(weights), factors, into)
        return memory.array("float64", (2,))

    def best_paths(
        self, batch: TableBatch, scores: Any, lengths: Lengths, memory_budget: float | None
    ) -> Paths:
        found: Any = cuda_paths.best_paths(find_device(scores), batch, view(scores), lengths, memory_budget)
        score = found.score.array("float64", lengths.shape)
        arcs = kinds.as_numpy(kinds.on_host(found.arcs.array("int32", tuple(scores.shape[:2]))))
        is_path = np.isfinite(kinds.as_numpy(kinds.on_host(score)))
        return Paths(score, [arcs[n, : lengths[n] if is_path[n] else 0] for n in range(len(lengths))])


def _results(found: tuple[Memory, Memory], lengths: Lengths) -> LogProbs:
    log_prob, ok = found  # in memory of the pool of the library whose the scores are
    return LogProbs(log_prob.array("float64", lengths.shape), ok.array("bool", lengths.shape))  # type: ignore[attr-defined]


def place(like: Any, values: npt.NDArray[Any]) -> Any:
    """Values of the host as an array like `like` on its device."""
    memory: Any
    (memory,) = find_device(like).upload([values])
    return memory.array(str(values.dtype), values.shape)


def copies() -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Functions that copy arrays of the host to the device that is current for cupy, and arrays of it to numpy's.

    Raises:
        BackendUnavailable: kernels cannot run there.
    """
    cuda_cupy.check_any()
    import cupy

    return (lambda array: cupy.asarray(kinds.as_numpy(array))), cupy.asnumpy


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
        log_probs(device, batch, nothing, np.zeros(batch.size, np.int64), leaky)
