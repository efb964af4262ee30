"""The CUDA backend: equations (1)-(7) and (12) for a batch on a device, without waiting for it.

Every sequence is tried in the first kind of number that may suit it (`cuda_numbers`); the kernels themselves raise `kinds`
where its data needs another one. The launches of all kinds that may occur are made in order, and a group of which no
sequence is of the kind returns at once, so that the host never asks what the device found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.backends.cuda_device import Device, DeviceArray, Memory
from fsachain.backends.cuda_group import Groups, make_groups, window_of, with_frames
from fsachain.backends.cuda_inputs import Call, LaneMemory
from fsachain.backends.cuda_numbers import first_kinds, kinds_of
from fsachain.backends.cuda_place import arc_bytes
from fsachain.backends.cuda_plan import lanes_for
from fsachain.backends.cuda_run import Run
from fsachain.backends.cuda_seats import Member, facts_of, members_of, on_device, place_tables
from fsachain.batch import TableBatch

__all__ = ["Sums", "add_occupancy", "log_probs", "place_tables", "start"]

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
