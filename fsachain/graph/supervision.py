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

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.brief import brief
from fsachain.errors import GraphError
from fsachain.fsa import Fsa
from fsachain.graph.context import ContextTree
from fsachain.graph.expand import DEFAULT_TOLERANCE, Expansion, FrameTimes, Unrolled, expand_arcs, unroll
from fsachain.graph.transducer import normalized
from fsachain.openfst import Transducer

Ints = npt.NDArray[np.int64]


class AlignedPhone(NamedTuple):
    """A phone id and the input frames [start, end) that it is spoken in."""

    phone: int
    start: int
    end: int


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
                    subset = frozenset(states)
                    target = following.get(subset)
                    if target is None:
                        target = following[subset] = num_states
                        num_states += 1
                    arcs.append((number, target, pdf))
            layer = following
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
    graph = _linear([phone.phone for phone in phones])
    return _supervision(
        *_unrolled(
            graph, first, end, centres, tree, times, f"utterance {name!r}: the {len(phones)} aligned phones"
        ),
        name,
    )


def _unrolled(
    phones: Transducer, first: Ints, end: Ints, centres: Ints, tree: ContextTree, times: FrameTimes, what: str
) -> tuple[Expansion, Unrolled]:
    """The paths on which the phone of arc k keeps to the output frames [first[k], end[k]); `what` is for messages."""
    scales = {"self_loop_scale": 0.0, "transition_scale": 0.0}
    expansion = expand_arcs(phones, tree, **scales, tags=range(len(phones.src)), epsilon_free=True)
    found = unroll(expansion, first, end, len(centres))
    if found is None:
        raise GraphError(
            f"{what} have no path through {len(centres)} output frames within tolerances of {times.left_tolerance} and "
            f"{times.right_tolerance} input frames; widen them"
        )
    return expansion, found


def _supervision(expansion: Expansion, unrolled: Unrolled, name: str) -> Supervision:
    """All weights become one."""
    final = np.where(unrolled.state_frame == unrolled.state_frame[-1], 0.0, -np.inf)
    fsa = replace(unrolled.fsa, log_prob=np.zeros(unrolled.fsa.num_arcs), final_log_prob=final)
    phone = np.array(expansion.arc_phone, dtype=np.int32)[unrolled.origin]
    starts = np.array(expansion.arc_is_start, dtype=np.bool_)[unrolled.origin]
    num_frames = int(unrolled.state_frame[-1])
    return Supervision(fsa, unrolled.state_frame, phone, starts, num_frames, name)


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
            f"{frame}); the alignment spans [{phones[0].start}, {phones[-1].end}) of {centres[-1] + 1} frames"
        )


def _linear(phones: list[int]) -> Transducer:
    count = len(phones)
    states = np.arange(count + 1, dtype=np.int32)
    labels = np.array(phones, dtype=np.int32)
    final = np.where(states == count, 0.0, -np.inf)
    return Transducer(count + 1, 0, states[:-1], states[1:], labels, labels, np.zeros(count), final)


# Numerators of lattices of phones with times, for audio without a transcript.
#
# A first model decodes; its lattice has phones with times and probabilities. The numerator is the set of all paths of
# the lattice's phone sequences on which each phone stays within a tolerance of its span (semi-supervised training:
# Manohar et al., ICASSP 2018). Acoustic scores decide only what is in the lattice; the network gives its own.


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
        return _supervision(*self._within(num_input_frames, tree, FrameTimes(**times)), self.name)

    def numerator(
        self, num_input_frames: int, tree: ContextTree, *, normalization: Fsa | None = None, **times: int
    ) -> Fsa:
        """The paths within the tolerances with the lattice's weights, for the whole utterance.

        Arguments and errors are those of `build_supervision`, and `normalization` that of `build_numerator`.
        """
        _, unrolled = self._within(num_input_frames, tree, FrameTimes(**times))
        refusal = f"utterance {self.name!r}: the normalization accepts no path of the lattice"
        return normalized(unrolled.fsa, normalization, refusal)

    def _within(
        self, num_input_frames: int, tree: ContextTree, times: FrameTimes
    ) -> tuple[Expansion, Unrolled]:
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
        return _unrolled(self.phones, first, end, centres, tree, times, what)
