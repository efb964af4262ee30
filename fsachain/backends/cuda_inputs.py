"""What the launches of a call read: tables, lanes and scores on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fsachain.backends.cuda_device import Device, DeviceArray, Memory


@dataclass(frozen=True)
class Tables:
    """What a seat's layout looks like on the device, in one kind of number.

    Attributes:
        exponents: the arcs have them.
        forward, backward: fields, slices, units, arcs and entries of `layout.cuh`.
        vectors, pairs, pdfs, pairs_by_column, column_ends: as in `Layout`.
    """

    exponents: bool
    forward: list[Memory]
    backward: list[Memory]
    vectors: Memory
    pairs: Memory
    pdfs: Memory
    pairs_by_column: Memory
    column_ends: Memory


@dataclass(frozen=True)
class Call:
    """What all kinds of a call share. leaky: c. kinds: int32 [N] on the device. log_prob, ok: the results."""

    device: Device
    scores: DeviceArray
    leaky: float
    kinds: Memory
    log_prob: Memory
    ok: Memory


class LaneMemory(NamedTuple):
    """`Groups` on the device, its fields for windows of `Run.frames`."""

    directory: Memory
    sequences: Memory
    lengths: Memory
