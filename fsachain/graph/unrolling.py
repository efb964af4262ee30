"""An expanded graph laid out in time: paths of exactly T arcs on which each arc keeps to its frames."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.errors import ConfigError
from fsachain.fsa import Fsa
from fsachain.graph.expand import Expansion

Ints = npt.NDArray[np.int64]


class FrameTimes(NamedTuple):
    """How input frames, tolerances and output frames belong together.

    Attributes:
        left_tolerance: input frames by which a phone may begin before its span.
        right_tolerance: input frames by which a phone may last beyond its span.
        subsampling: input frames per output frame.
        time_offset: input frame on which output frame 0 is centred.
    """

    left_tolerance: int
    right_tolerance: int
    subsampling: int
    time_offset: int

    def check(self, name: str) -> None:
        """Refuse values out of range with a ConfigError that names the utterance."""
        for option, value in self._asdict().items():
            least = 1 if option == "subsampling" else 0
            if value < least:
                raise ConfigError(f"utterance {name!r}: {option} = {value}: expected at least {least}")

    def limits(self, spans: Ints, num_input_frames: int) -> tuple[Ints, Ints, Ints]:
        """The centre of each output frame, the first output frame of each span [start, end), and the one after its last."""
        num_frames = -(-num_input_frames // self.subsampling)
        centres = self.subsampling * np.arange(num_frames) + self.time_offset
        centres = np.minimum(centres, num_input_frames - 1)
        first = np.searchsorted(centres, spans[:, 0] - self.left_tolerance)
        end = np.searchsorted(centres, spans[:, 1] + self.right_tolerance)
        return centres, first, end


class Unrolled(NamedTuple):
    """Paths of exactly T arcs.

    Attributes:
        fsa: acyclic and trimmed; arcs in order of their frames.
        state_frame: int32 [S], ascending: how many frames lie behind a state.
        origin: [A], arc of the expansion that each arc is.
    """

    fsa: Fsa
    state_frame: npt.NDArray[np.int32]
    origin: Ints


def unroll(expansion: Expansion, first: Ints, end: Ints, num_frames: int) -> Unrolled | None:
    """Paths of exactly `num_frames` arcs that keep the limits, frame by frame; None if there is none.

    Args:
        expansion: the graph without times; the tag of an arc is its place in `first` and `end`, -1 (a blank): any frame.
        first: first frame of each tag.
        end: the frame after its last.
        num_frames: frames of a path.
    """
    graph = expansion.graph
    # The tag -1 finds the entry behind all others.
    earliest, latest = np.append(first, 0).tolist(), np.append(end, num_frames).tolist()
    leaving: list[list[tuple[int, int, int, int]]] = [[] for _ in range(graph.num_states)]
    columns = (graph.src.tolist(), graph.dst.tolist(), expansion.arc_tag)
    for arc, (src, dst, tag) in enumerate(zip(*columns, strict=True)):
        leaving[src].append((arc, dst, earliest[tag], latest[tag]))
    layer, layers = {graph.start: 0}, [1]
    num_states = 1
    arcs: list[tuple[int, int, int]] = []  # src, dst, arc of the expansion
    for frame in range(num_frames):
        following: dict[int, int] = {}
        for state, number in layer.items():
            for arc, dst, begin, stop in leaving[state]:
                if begin <= frame < stop:
                    target = following.get(dst)
                    if target is None:
                        target = following[dst] = num_states
                        num_states += 1
                    arcs.append((number, target, arc))
        layer = following
        layers.append(len(layer))
    final = np.full(num_states, -np.inf)
    final[list(layer.values())] = graph.final_log_prob[list(layer)]
    keep = (final > -np.inf).tolist()
    for src, dst, _ in reversed(arcs):  # in order of time, so one pass backwards finds every useful state
        keep[src] = keep[src] or keep[dst]
    if not keep[0]:
        return None
    kept = np.array([arc for arc in arcs if keep[arc[1]]], dtype=np.int64)
    useful = np.array(keep)
    new = np.cumsum(useful) - 1
    frames = np.repeat(np.arange(num_frames + 1), layers)[useful].astype(np.int32)
    origin = kept[:, 2]
    fsa = Fsa(
        len(frames),
        new[kept[:, 0]],
        new[kept[:, 1]],
        graph.ilabel[origin] - 1,
        graph.log_prob[origin],
        final[useful],
        0,
    )
    return Unrolled(fsa, frames, origin)
