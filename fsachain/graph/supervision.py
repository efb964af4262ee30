"""Numerators whose times come from an alignment, and their chunks: supervision of a second training pass.

A first model, trained flat-start, says when each phone is spoken. The supervision of the next training is the
set of all ways to say this phone sequence in which every phone stays near its place: it may spend an output
frame only if the input frame at that frame's centre lies in its aligned span, widened by a tolerance. The
graph is acyclic, with one set of states per output frame, so it can be cut at any frame. (Kaldi asks less: that
some phone of this name has a span near the frame, be it this occurrence or another.)

Alternatives are not kept. The phones are those of the alignment, as in Kaldi's supervisions made from
alignments: it has chosen a pronunciation, and where silence stands, and it has no times for what it did not
choose. Where nothing is left to choose, lexicon and silence costs would add the same constant to every path;
they are left out. Transition and self-loop scale are 0, as in `fsachain.graph.numerator`. So every path has
weight one, and a supervision is a set of paths.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.errors import ConfigError, DataError, GraphError, brief, counted
from fsachain.files import read_npz, replacing
from fsachain.fsa import Fsa
from fsachain.graph.archive import (
    Arrays,
    join,
    join_fsas,
    numbers,
    offsets,
    origin_array,
    read_archive,
    split_fsas,
    texts,
    unique_names,
)
from fsachain.graph.context import ContextTree
from fsachain.graph.expand import expand_arcs
from fsachain.graph.forgive import linear
from fsachain.graph.transducer import normalized, told_unseen
from fsachain.opaque import opaque
from fsachain.openfst import Transducer

Ints = npt.NDArray[np.int64]
DEFAULT_TOLERANCE = 5  # input frames on either side, as in Kaldi


class FrameTimes(NamedTuple):
    """The options of `build_supervision` that relate input to output frames."""

    left_tolerance: int = DEFAULT_TOLERANCE
    right_tolerance: int = DEFAULT_TOLERANCE
    subsampling: int = 3
    time_offset: int = 0

    def check(self, name: str) -> None:
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


class AlignedPhone(NamedTuple):
    """A phone id and the input frames [start, end) that it is spoken in."""

    phone: int
    start: int
    end: int


@opaque
@dataclass(frozen=True, eq=False)
class Supervision:
    """The time-constrained numerator of one utterance.

    Attributes:
        fsa: acyclic and trimmed; every path has `num_frames` arcs, and every weight is one (log 0).
        state_frame: int32 [S], ascending: how many output frames lie behind a state.
        arc_phone: int32 [A], phone id of each arc (0: CTC blank). Arcs are in order of their frames.
        arc_is_start: bool [A], True where the arc spends the first frame of a phone.
        num_frames: output frames of the utterance.
        name: utterance id, for messages.
    """

    fsa: Fsa
    state_frame: npt.NDArray[np.int32]
    arc_phone: npt.NDArray[np.int32]
    arc_is_start: npt.NDArray[np.bool_]
    num_frames: int
    name: str

    __repr__ = brief

    @cached_property
    def _leaving(self) -> list[list[tuple[int, int, int, float, int]]]:
        return self.fsa.to_transducer().leaving(None)

    def chunk(self, start: int, end: int, *, normalization: Fsa | None = None) -> Fsa:
        """What output frames [start, end) of the complete paths spell, each pdf sequence once.

        A chunk may begin and end in any state that is alive at the cut. Two paths that differ only in where
        the utterance stood before the cut would count one pdf sequence twice; the graph is therefore
        deterministic. That is what keeps objf at most 0.

        Args:
            start: first output frame of the chunk.
            end: the frame after its last.
            normalization: `DenominatorGraph.normalization_fsa()`, which may begin anywhere too; every path
                then carries its score there.

        Raises:
            GraphError: the frames do not lie in the utterance, or the normalization accepts no path of them.
        """
        if not 0 <= start < end <= self.num_frames:
            raise GraphError(
                f"utterance {self.name!r}: chunk of the output frames [{start}, {end}): expected "
                f"0 <= start < end <= {self.num_frames}"
            )
        refusal = (
            f"utterance {self.name!r}: the normalization accepts no path of the output frames "
            f"[{start}, {end}); those of `fsachain align --den` have one"
        )
        return normalized(self._determinised(start, end), normalization, refusal)

    def _determinised(self, start: int, end: int) -> Fsa:
        """Subset construction between two frames; trimmed, because every state alive lies on a path."""
        alive = np.flatnonzero(self.state_frame == start).tolist()
        layer: dict[frozenset[int], int] = {frozenset(alive): 0}
        arcs: list[tuple[int, int, int]] = []
        num_states = 1
        for _ in range(start, end):
            following: dict[frozenset[int], int] = {}
            for members, number in layer.items():
                reached: dict[int, list[int]] = {}
                for member in members:
                    for dst, label, *_ in self._leaving[member]:
                        reached.setdefault(label - 1, []).append(dst)
                for pdf, states in sorted(reached.items()):
                    target = following.setdefault(frozenset(states), num_states + len(following))
                    arcs.append((number, target, pdf))
            layer, num_states = following, num_states + len(following)
        final = np.full(num_states, -np.inf)
        final[num_states - len(layer) :] = 0.0
        src, dst, pdfs = np.array(arcs, dtype=np.int32).T
        return Fsa(num_states, src, dst, pdfs, np.zeros(len(arcs)), final, 0)


def build_supervision(
    phones: Sequence[AlignedPhone],
    num_input_frames: int,
    tree: ContextTree,
    *,
    left_tolerance: int = DEFAULT_TOLERANCE,
    right_tolerance: int = DEFAULT_TOLERANCE,
    subsampling: int = 3,
    time_offset: int = 0,
    name: str = "utterance",
) -> Supervision:
    """The supervision of one aligned utterance. Time and size are linear in its frames.

    Output frame t stands for input frame subsampling * t + time_offset, or for the last one where that lies
    past the end; there are ceil(num_input_frames / subsampling) output frames. A blank (CTC topology) may
    stand anywhere.

    Args:
        phones: the phones in order; spans may touch, overlap or leave gaps that the tolerances close. The
            last may end up to an output frame after the utterance does.
        num_input_frames: frames of the utterance, before subsampling.
        tree: context and topology.
        left_tolerance: input frames by which a phone may begin before its span.
        right_tolerance: input frames by which a phone may last beyond its span.
        subsampling: input frames per output frame.
        time_offset: input frame on which output frame 0 is centred, 0 in Kaldi; see `Tdnnf.time_offset`.
        name: utterance id, for messages.

    Raises:
        ConfigError: a negative tolerance or offset, or subsampling below 1.
        GraphError: no phones, unknown phones, phones out of order, an alignment that does not fit the length
            of the utterance, or no path: more phones than the frames around them can hold.
    """
    times = FrameTimes(left_tolerance, right_tolerance, subsampling, time_offset)
    times.check(name)
    _check_alignment(phones, num_input_frames, subsampling, tree, name)
    spans = np.array([(phone.start, phone.end) for phone in phones])
    centres, first, end = times.limits(spans, num_input_frames)
    if tree.blank_pdf is None:
        _check_covered(first, end, centres, phones, name)
    graph = linear([phone.phone - 1 for phone in phones]).to_transducer()
    what = f"utterance {name!r}: the {counted(len(phones), 'aligned phone')}"
    return _unweighted(_unrolled(graph, first, end, len(centres), tree, times, what, name))


def _unweighted(weighted: Supervision) -> Supervision:
    """All weights become one."""
    final = np.where(weighted.state_frame == weighted.num_frames, 0.0, -np.inf)
    log_prob = np.zeros(weighted.fsa.num_arcs)
    return replace(weighted, fsa=replace(weighted.fsa, log_prob=log_prob, final_log_prob=final))


def _unrolled(
    phones: Transducer,
    first: Ints,
    end: Ints,
    num_frames: int,
    tree: ContextTree,
    times: FrameTimes,
    what: str,
    name: str,
) -> Supervision:
    """The paths of `num_frames` arcs, weights as in `phones`, on which that of arc k keeps to frames [first[k], end[k]).

    Blanks may stand at any frame. `what` is for messages.
    """
    scales = {"self_loop_scale": 0.0, "transition_scale": 0.0}
    expansion = expand_arcs(phones, tree, **scales, tags=range(len(phones.src)), epsilon_free=True)
    graph = expansion.graph
    # The tag -1 of blanks finds the entry behind all others.
    earliest, latest = np.append(first, 0).tolist(), np.append(end, num_frames).tolist()
    spans = [(earliest[tag], latest[tag]) for tag in expansion.arc_tag]
    leaving = graph.leaving(range(len(spans)))
    layer, sizes, num_states = {graph.start: 0}, [1], 1
    arcs: list[tuple[int, int, int]] = []  # src, dst, arc of the expansion
    for frame in range(num_frames):
        following: dict[int, int] = {}
        for state, number in layer.items():
            for dst, _, _, _, arc in leaving[state]:
                if spans[arc][0] <= frame < spans[arc][1]:
                    target = following.setdefault(dst, num_states + len(following))
                    arcs.append((number, target, arc))
        layer, num_states = following, num_states + len(following)
        sizes.append(len(layer))
    final = np.full(num_states, -np.inf)
    final[list(layer.values())] = graph.final_log_prob[list(layer)]
    keep = (final > -np.inf).tolist()
    for number, target, _ in reversed(arcs):  # latest first: one pass finds every useful state
        keep[number] = keep[number] or keep[target]
    if not keep[0]:
        raise GraphError(
            f"{what} have no path through {counted(num_frames, 'output frame')} within tolerances of "
            f"{times.left_tolerance} and "
            f"{counted(times.right_tolerance, 'input frame')}; widen them"
        )
    useful, kept = np.array(keep), np.array([arc for arc in arcs if keep[arc[1]]], dtype=np.int64)
    new, origin = np.cumsum(useful) - 1, kept[:, 2]
    columns = new[kept[:, 0]], new[kept[:, 1]], graph.ilabel[origin] - 1, graph.log_prob[origin]
    fsa = Fsa(int(useful.sum()), *columns, final[useful])
    frame = np.repeat(np.arange(num_frames + 1, dtype=np.int32), sizes)[useful]
    phone = np.array(expansion.arc_phone, dtype=np.int32)[origin]
    starts = np.array(expansion.arc_is_start, dtype=np.bool_)[origin]
    return Supervision(fsa, frame, phone, starts, num_frames, name)


def _check_alignment(
    phones: Sequence[AlignedPhone], num_input_frames: int, subsampling: int, tree: ContextTree, name: str
) -> None:
    if num_input_frames < 1:
        raise GraphError(f"utterance {name!r}: num_input_frames = {num_input_frames}: expected at least 1")
    if not phones:
        raise GraphError(f"utterance {name!r}: the alignment is empty: expected at least one phone")
    before = AlignedPhone(0, 0, 0)
    for position, phone in enumerate(phones):
        where = f"utterance {name!r}: aligned phone {position}"
        if not 1 <= phone.phone <= tree.num_phones:
            raise GraphError(f"{where} has id {phone.phone}: expected one in [1, {tree.num_phones}]")
        if not 0 <= phone.start < phone.end:
            raise GraphError(f"{where} has the span [{phone.start}, {phone.end}): expected 0 <= start < end")
        if phone.start < before.start or phone.end < before.end:
            raise GraphError(
                f"{where} has the span [{phone.start}, {phone.end}) after [{before.start}, {before.end}): "
                "expected phones in order of time"
            )
        before = phone
    if before.end >= num_input_frames + subsampling:
        raise GraphError(
            f"utterance {name!r}: the alignment ends at input frame {before.end}, the utterance at "
            f"{num_input_frames}: expected less than an output frame ({subsampling}) between them"
        )


def _check_covered(first: Ints, end: Ints, centres: Ints, phones: Sequence[AlignedPhone], name: str) -> None:
    """Some phone may stand at every output frame."""
    allowed = np.zeros(len(centres) + 1, dtype=np.int64)
    np.add.at(allowed, first, 1)
    np.add.at(allowed, end, -1)
    bare = np.flatnonzero(np.cumsum(allowed[:-1]) == 0)
    if bare.size:
        frame = int(bare[0])
        raise GraphError(
            f"utterance {name!r}: no aligned phone lies near input frame {centres[frame]} (output frame "
            f"{frame}); the alignment spans [{phones[0].start}, {phones[-1].end}) of {counted(centres[-1] + 1, 'frame')}"
        )


# Numerators of lattices of phones with times, for audio without a transcript.
#
# A first model decodes; its lattice has phones with times and probabilities. The numerator is the set of all paths of
# the lattice's phone sequences on which each phone stays within a tolerance of its span (semi-supervised training:
# Manohar et al., ICASSP 2018). Acoustic scores decide only what is in the lattice; the network gives its own.


@opaque
@dataclass(frozen=True, eq=False)
class PhoneLattice:
    """Phones and their times.

    Attributes:
        phones: acceptor over phone ids, epsilon-free, acyclic and trimmed. The weights of all its paths sum
            to one, so that no numerator made of it gives a phone sequence more.
        spans: int [A, 2], input frames [start, end) that each arc's phone is spoken in.
        name: utterance id, for messages.
    """

    phones: Transducer
    spans: npt.NDArray[np.int64]
    name: str

    __repr__ = brief

    def supervision(self, num_input_frames: int, tree: ContextTree, **times: int) -> Supervision:
        """The set of all paths within the tolerances, each of weight one, which can be cut into chunks.

        Arguments and errors are those of `build_supervision`.
        """
        return _unweighted(self._within(num_input_frames, tree, FrameTimes(**times)))

    def numerator(
        self, num_input_frames: int, tree: ContextTree, *, normalization: Fsa | None = None, **times: int
    ) -> Fsa:
        """The paths within the tolerances with the lattice's weights, for the whole utterance.

        Arguments and errors are those of `build_supervision`, and `normalization` that of `build_numerator`.
        """
        paths = self._within(num_input_frames, tree, FrameTimes(**times)).fsa
        refusal = (
            f"utterance {self.name!r}: the normalization accepts no path of the lattice: {told_unseen()}"
        )
        return normalized(paths, normalization, refusal)

    def _within(self, num_input_frames: int, tree: ContextTree, times: FrameTimes) -> Supervision:
        times.check(self.name)
        last = int(self.spans[:, 1].max(initial=0))
        if (
            not 0 < num_input_frames <= last + times.subsampling
            or last >= num_input_frames + times.subsampling
        ):
            raise GraphError(
                f"utterance {self.name!r}: the lattice ends at input frame {last}, the utterance at {num_input_frames}: "
                f"expected at most an output frame ({times.subsampling}) between them"
            )
        centres, first, end = times.limits(self.spans, num_input_frames)
        what = f"utterance {self.name!r}: the phones of the lattice"
        return _unrolled(self.phones, first, end, len(centres), tree, times, what, self.name)


# Chunks: utterances cut into pieces of one width.

NPZ_FORMAT = "fsachain-chunks-1"
_NUMBERS = ("start", "end", "of_frames")


@opaque
@dataclass(frozen=True, eq=False)
class Chunk:
    """The output frames [start, end) of an utterance (or of its copy at another speed) of `of_frames` frames.

    `fsa` is their numerator; frame_weights, float32 [end - start], is one over the number of chunks each frame lies in.
    """

    utterance: str
    start: int
    end: int
    of_frames: int
    fsa: Fsa
    frame_weights: npt.NDArray[np.float32]

    __repr__ = brief

    @property
    def id(self) -> str:
        return f"{self.utterance}-{self.start:06d}-{self.end:06d}"


def num_chunks(num_frames: int, width: int, overlap: int = 0) -> int:
    """How many chunks of `width` output frames cover `num_frames`, if neighbours share at least `overlap`."""
    if width < 1:
        raise ConfigError(f"width = {width}: expected at least one output frame per chunk")
    if not 0 <= overlap < width:
        raise ConfigError(f"overlap = {overlap}: expected 0 to less than the chunks' width {width}")
    return max(1, -(-(num_frames - overlap) // (width - overlap)))


def chunk_windows(num_frames: int, width: int, count: int) -> list[tuple[int, int]]:
    """`count` windows of `width` frames, spread evenly over an utterance of `num_frames`.

    The same count for copies of an utterance at several speeds puts the k-th chunk of each on the same
    words. Where the utterance is no longer than the width, every window is the whole of it.
    """
    if num_frames < 1 or count * width < num_frames:
        raise GraphError(
            f"{counted(count, 'chunk')} of {counted(width, 'frame')} cannot cover an utterance of "
            f"{counted(num_frames, 'frame')}"
        )
    if num_frames <= width:
        return [(0, num_frames)] * count
    last = num_frames - width
    starts = [index * last // (count - 1) for index in range(count)]
    return [(start, start + width) for start in starts]


def make_chunks(
    supervision: Supervision, windows: Sequence[tuple[int, int]], *, normalization: Fsa | None = None
) -> list[Chunk]:
    """The chunks of one utterance at `windows`, output frames [start, end), with weights that count each frame once.

    `normalization` is `DenominatorGraph.normalization_fsa()`; a window of which it accepts no path is a GraphError.
    """
    counts = np.zeros(supervision.num_frames, dtype=np.float32)
    graphs = {window: supervision.chunk(*window, normalization=normalization) for window in windows}
    for start, end in windows:
        counts[start:end] += 1
    name, length = supervision.name, supervision.num_frames
    return [
        Chunk(name, start, end, length, graphs[start, end], 1.0 / counts[start:end]) for start, end in windows
    ]


def save_chunks(
    path: str | os.PathLike[str],
    copies: Mapping[str, Iterable[Sequence[Chunk]]],
    origin: Mapping[str, Any] | None = None,
) -> None:
    """Write the chunks of a data set to one npz file; `origin` as for `save_numerators`.

    `copies` has for each utterance one list of chunks per copy, all of one length: the k-th chunks of the copies stand
    for each other.
    """
    utterances = {name: list(lists) for name, lists in copies.items()}
    chunks = [chunk for lists in utterances.values() for one in lists for chunk in one]
    arrays: dict[str, Any] = {
        "format": np.array(NPZ_FORMAT),
        "utterances": np.array(list(utterances), dtype=np.str_),
        "num_copies": np.array([len(lists) for lists in utterances.values()], dtype=np.int64),
        "num_chunks": np.array([len(lists[0]) if lists else 0 for lists in utterances.values()], np.int64),
        "names": np.array([chunk.utterance for chunk in chunks], dtype=np.str_),
        "frame_weights": join([chunk.frame_weights for chunk in chunks], np.float32),
    }
    arrays |= origin_array(origin)
    # "start" is also an array of the acceptors, which all start in state 0.
    arrays |= {f"chunk_{name}": np.array([getattr(c, name) for c in chunks], np.int64) for name in _NUMBERS}
    arrays |= join_fsas([chunk.fsa for chunk in chunks])
    with replacing(path) as file:
        np.savez_compressed(file, **arrays)


def load_chunks(path: str | os.PathLike[str]) -> dict[str, list[list[Chunk]]]:
    """Read what `save_chunks` wrote, in its order; another file is a GraphError."""
    return read_archive(path, NPZ_FORMAT, _of_arrays, "no archive of chunks written by fsachain")


def _of_arrays(arrays: Arrays) -> dict[str, list[list[Chunk]]]:
    fsas, _ = split_fsas(arrays)
    utterances, names = unique_names(arrays, "utterances"), texts(arrays, "names").tolist()
    if len(names) != len(fsas):
        raise ValueError(f"names has {counted(len(names), 'row')}, num_states {len(fsas)}")
    start, end, of_frames = (numbers(arrays, f"chunk_{name}", np.int64, len(names)) for name in _NUMBERS)
    if start.min(initial=0) < 0 or (end < start).any():
        raise ValueError("chunk_start and chunk_end are no spans of frames")
    weights = numbers(arrays, "frame_weights", np.float32)
    first_frame = offsets(end - start, len(weights), "chunk_start and chunk_end").tolist()
    num_copies = numbers(arrays, "num_copies", np.int64, len(utterances))
    num_chunks = numbers(arrays, "num_chunks", np.int64, len(utterances))
    what = "num_copies and num_chunks"
    if min(num_chunks.min(initial=0), num_copies.min(initial=0)) < 0:
        raise ValueError(f"{what} do not share out the chunks: one is negative")
    # In float64: int64 would wrap around.
    if np.multiply(num_copies, num_chunks, dtype=np.float64).max(initial=0) > len(names):
        raise ValueError(f"{what} do not share out the {counted(len(names), 'chunk')}")
    first_chunk = offsets(num_copies * num_chunks, len(names), what).tolist()
    spans = zip(
        names, start.tolist(), end.tolist(), of_frames.tolist(), fsas, pairwise(first_frame), strict=True
    )
    chunks = [
        Chunk(name, begin, stop, length, fsa, weights[slice(*frames)])
        for name, begin, stop, length, fsa, frames in spans
    ]
    return {
        name: [chunks[place : place + count] for place in range(first, last, max(1, count))]
        for name, count, (first, last) in zip(
            utterances, num_chunks.tolist(), pairwise(first_chunk), strict=True
        )
    }


def holds_chunks(path: str | os.PathLike[str]) -> bool:
    """Whether `load_chunks` is the function for this file; False for what is no npz file at all."""
    try:
        return bool(read_npz(path, ("format",))["format"].item() == NPZ_FORMAT)
    except (DataError, KeyError, ValueError):
        return False
