"""A lattice of Kaldi as arrays: as its file has it, and with one transition id on each arc.

A plain lattice is an FST over transition ids and words whose weights are two costs, of the graph (language model,
pronunciations, transitions) and of the acoustics. A compact one has words on its arcs and a string of transition ids
in each weight. With each string written out as a chain of arcs both are of one form, which takes several times as much.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

NOT_FINAL = -(2**31)


@dataclass(frozen=True, eq=False)
class Lattice:
    """A lattice with at most one transition id on an arc.

    Attributes:
        num_states, start: number of states S and the start state.
        src, dst: int32 [A].
        transition: int32 [A], transition id; 0 spends no frame.
        word: int32 [A], word id; 0: none.
        graph_cost, acoustic_cost: float64 [A], as in the file: -log, acoustic costs without acoustic scale.
        final_graph_cost, final_acoustic_cost: float64 [S]; inf: not final.
    """

    num_states: int
    start: int
    src: npt.NDArray[np.int32]
    dst: npt.NDArray[np.int32]
    transition: npt.NDArray[np.int32]
    word: npt.NDArray[np.int32]
    graph_cost: npt.NDArray[np.float64]
    acoustic_cost: npt.NDArray[np.float64]
    final_graph_cost: npt.NDArray[np.float64]
    final_acoustic_cost: npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CompactLattice:
    """A lattice as its file has it, in about as many bytes; in a plain one no string has more than one transition id.

    Weights stand in a table. Those without costs and with at most one transition id are many in some files: they stand
    in `weight` and `final` themselves, as 0 minus the id (0: none).

    Attributes:
        num_states, start: number of states S and the start state.
        src, dst: int32 [A].
        word: int32 [A], word id; 0: none.
        weight: int32 [A], row of the table, counted from 1; at most 0: see above.
        final: int32 [S], the same of final weights; NOT_FINAL.
        costs: float [W, 2], of the graph and of the acoustics, as in the file: float64 if they are so there, else float32.
        ends: uint32 [W], where the string ends in `transitions`; it begins where the one before ends.
        transitions: int32, the strings one after another.
    """

    num_states: int
    start: int
    src: npt.NDArray[np.int32]
    dst: npt.NDArray[np.int32]
    word: npt.NDArray[np.int32]
    weight: npt.NDArray[np.int32]
    final: npt.NDArray[np.int32]
    costs: npt.NDArray[np.floating]
    ends: npt.NDArray[np.uint32]
    transitions: npt.NDArray[np.int32]

    def expanded(self) -> Lattice:
        """Each string as a chain of arcs, the first of which has the word and the costs.

        Arcs keep their order; chains of final strings follow. So do, behind the states of the file, those where final
        strings end, and those inside chains.
        """
        ends = np.flatnonzero(self._lengths(self.final))  # states that are final by a string
        size = self.num_states + len(ends)
        weight = np.append(self.weight, self.final[ends])
        count = np.maximum(self._lengths(weight), 1)
        of = np.repeat(np.arange(len(weight)), count)  # the arc that each new arc is part of
        place = np.arange(len(of)) - np.repeat(np.cumsum(count) - count, count)
        is_first, is_last = place == 0, place + 1 == count[of]
        dst = np.append(self.dst, np.arange(self.num_states, size))[of]
        dst[~is_last] = size + np.arange(len(of) - len(weight))
        src = np.where(is_first, np.append(self.src, ends)[of], np.roll(dst, 1))
        word = np.append(self.word, np.zeros_like(ends))[of]
        costs = np.where(is_first[:, None], self._costs(weight)[of], 0.0)
        final = np.full((size + len(of) - len(weight), 2), np.inf)
        final[: self.num_states] = np.where(self.final[:, None] == NOT_FINAL, np.inf, self._costs(self.final))
        final[ends] = np.inf
        final[self.num_states : size] = 0.0
        return Lattice(
            num_states=len(final),
            start=self.start,
            src=src.astype(np.int32),
            dst=dst.astype(np.int32),
            transition=self._transition(weight[of], place).astype(np.int32),
            word=np.where(is_first, word, 0).astype(np.int32),
            graph_cost=costs[:, 0].copy(),
            acoustic_cost=costs[:, 1].copy(),
            final_graph_cost=final[:, 0].copy(),
            final_acoustic_cost=final[:, 1].copy(),
        )

    def _lengths(self, weight: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """Length of the string of each weight."""
        in_table = np.diff(self.ends.astype(np.int64), prepend=0)
        alone = (weight < 0) & (weight != NOT_FINAL)
        return np.where(weight > 0, np.append(0, in_table)[np.maximum(weight, 0)], alone)

    def _costs(self, weight: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
        table = np.zeros((1 + len(self.costs), 2))
        table[1:] = self.costs
        return table[np.maximum(weight, 0)]

    def _transition(
        self, weight: npt.NDArray[np.int32], place: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """The transition id at a place of the string of each weight; 0 where it has none."""
        begins = np.append([0, 0], self.ends[:-1].astype(np.int64))[: len(self.ends) + 1]
        known = (weight > 0) & (self._lengths(weight) > 0)
        found = np.where(weight > 0, 0, -weight.astype(np.int64))
        found[known] = self.transitions[begins[weight[known]] + place[known]]
        return found
