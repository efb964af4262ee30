"""Groups of sequences: which sequences a launch works on, and where each group's rows begin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fsachain.backends.cuda_place import GROUP_FIELDS, VALUE_BYTES, Seat
from fsachain.backends.cuda_plan import frames_of_window
from fsachain.backends.cuda_units import Integers


@dataclass(frozen=True)
class Groups:
    """The sequences of one seat, longest first, in groups.

    Attributes:
        fields: int64 [groups, fields].
        sequences, lengths: int32 [lanes]: the number in the batch, -1 for none, and the frames of each lane.
        sizes: values that probabilities, history, state and work of all groups take; of the first two for each frame.
    """

    fields: Integers
    sequences: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]
    sizes: dict[str, int]


def make_groups(
    seat: Seat, lanes: int, numbers: Integers, rows: Integers | None, lengths: Integers, reach: Integers
) -> Groups:
    """Groups of the sequences `numbers` whose frames are `lengths`.

    `rows` are the numbers of their tables in the seat and `reach` those of each; None: there is one table and one reach.
    """
    width = seat.place.sequences(lanes)
    order = np.argsort(-lengths, kind="stable")
    count = -(-len(order) // width)
    sequences, frames = np.full((2, count * width), -1, dtype=np.int32)
    sequences[: len(order)], frames[: len(order)] = numbers[order], lengths[order]
    fields = np.repeat(seat.fields, count, axis=0) if rows is None else seat.fields[rows[order]]
    fields[:, GROUP_FIELDS["reach"]] = reach if rows is None else reach[order]
    totals = {}
    for name, of_group in _rows(fields).items():
        ends = np.cumsum(of_group * width)
        fields[:, GROUP_FIELDS[name]] = ends - of_group * width
        totals[name] = int(ends[-1])
    return Groups(fields, sequences, frames, totals)


def with_frames(fields: Integers, frames: int) -> Integers:
    """The fields for windows of so many frames: probabilities and history of a group lie frame after frame."""
    result = fields.copy()
    for name in ("probs", "history"):
        result[:, GROUP_FIELDS[name]] *= frames
    return result


def _rows(fields: Integers) -> dict[str, Integers]:
    """Rows of each group: of a frame of probabilities and of history, of states, of work in memory.

    Work is alphas, or pair values and betas, with partial sums and the shares' sums; see `forward.cuh`, `backward.cuh`.
    """

    def of(name: str) -> Integers:
        return fields[:, GROUP_FIELDS[name]]

    forward = 2 * of("states") + of("forward_parts")
    backward = of("pairs") + of("states") + of("backward_parts")
    work = np.maximum(forward, backward) + 2 * of("shares")
    return {"probs": of("columns"), "history": of("pairs"), "state": of("states") + 1, "work": work}


def window_of(kind: int, groups: Groups, num_frames: int, budget: float) -> int:
    """Frames of a window under `budget` bytes for history, probabilities and offsets, and for the states between windows."""
    value, sizes = VALUE_BYTES[kind], groups.sizes
    frame = (sizes["history"] + sizes["probs"]) * value + 8 * len(groups.sequences)
    return frames_of_window(num_frames, frame, sizes["state"] * value, budget)
