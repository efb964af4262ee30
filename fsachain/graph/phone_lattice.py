"""Numerators of lattices of phones with times, for audio whose transcript is a guess.

A first model decodes; its lattice says which phones may have been spoken, when, and how likely. What is trained on is
every way to say one of the lattice's phone sequences in which each phone stays within a tolerance of its place
(semi-supervised training: Manohar et al., ICASSP 2018). Acoustic scores of the lattice only decide what stands in it;
the network gives its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fsachain.errors import GraphError
from fsachain.fsa import Fsa
from fsachain.graph.context import ContextTree
from fsachain.graph.expand import Expansion, FrameTimes, Unrolled, expand_acceptor, unroll
from fsachain.graph.supervision import DEFAULT_TOLERANCE, Supervision, supervision_of
from fsachain.graph.transducer import product
from fsachain.openfst import Transducer


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

    def supervision(
        self,
        num_input_frames: int,
        tree: ContextTree,
        *,
        left_tolerance: int = DEFAULT_TOLERANCE,
        right_tolerance: int = DEFAULT_TOLERANCE,
        subsampling: int = 3,
        time_offset: int = 0,
    ) -> Supervision:
        """The set of all paths within the tolerances, each of weight one, which can be cut into chunks.

        Arguments and errors are those of `fsachain.graph.supervision.build_supervision`.
        """
        times = FrameTimes(left_tolerance, right_tolerance, subsampling, time_offset)
        return supervision_of(*self._unrolled(num_input_frames, tree, times), self.name)

    def numerator(
        self,
        num_input_frames: int,
        tree: ContextTree,
        *,
        left_tolerance: int = DEFAULT_TOLERANCE,
        right_tolerance: int = DEFAULT_TOLERANCE,
        subsampling: int = 3,
        time_offset: int = 0,
        normalization: Fsa | None = None,
    ) -> Fsa:
        """The paths within the tolerances with the lattice's weights, for the whole utterance.

        Arguments and errors are those of `build_supervision`, and `normalization` that of `build_numerator`.
        """
        times = FrameTimes(left_tolerance, right_tolerance, subsampling, time_offset)
        _, unrolled = self._unrolled(num_input_frames, tree, times)
        if normalization is None:
            return unrolled.fsa
        fsa, _ = product(unrolled.fsa, normalization)
        if not fsa.num_arcs:
            raise GraphError(f"utterance {self.name!r}: the normalization accepts no path of the lattice")
        return fsa

    def _unrolled(
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
        expansion = expand_acceptor(
            self.phones, tree, self_loop_scale=0.0, transition_scale=0.0, tags=range(len(self.spans))
        )
        found = unroll(expansion, first, end, len(centres))
        if found is None:
            raise GraphError(
                f"utterance {self.name!r}: no path of the lattice goes through {len(centres)} output frames within "
                f"tolerances of {times.left_tolerance} and {times.right_tolerance} input frames; widen them"
            )
        return expansion, found
