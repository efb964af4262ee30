"""Lattices of Kaldi as numerators: over pdfs as they stand, or as phones with times for `PhoneLattice`."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fsachain.errors import ConfigError, DataError, GraphError
from fsachain.fsa import Fsa
from fsachain.graph.epsilons import remove_epsilons
from fsachain.graph.phone_lattice import PhoneLattice
from fsachain.graph.transducer import Transducer
from fsachain.kaldi.lattice_arrays import CompactLattice
from fsachain.kaldi.transitions import TransitionModel

_Arc = tuple[int, int, float]  # transition id, dst, log_prob


def lattice_pdfs(
    lattice: CompactLattice,
    model: TransitionModel,
    *,
    lm_scale: float = 1.0,
    acoustic_scale: float = 0.0,
    name: str = "lattice",
) -> Fsa:
    """The acceptor over the pdfs of the model that the lattice was made with, every time as decoded.

    Args:
        lattice: read with `read_lattice`.
        model: its transition model.
        lm_scale: factor on graph costs, at least 0.
        acoustic_scale: factor on acoustic costs, at least 0. 0 for numerators: the network gives the acoustic scores.
        name: utterance id, for messages.

    Raises:
        ConfigError: a scale below 0 or not finite.
        DataError: a transition id that the model lacks, a cycle of arcs without one, or no path.
    """
    graph = _frames(lattice, model, lm_scale, acoustic_scale, name)
    pdfs = model.transitions.pdf[graph.ilabel]
    return Fsa(
        graph.num_states, graph.src, graph.dst, pdfs, graph.log_prob, graph.final_log_prob, graph.start
    )


def phone_lattice(
    lattice: CompactLattice,
    model: TransitionModel,
    *,
    lm_scale: float = 0.5,
    subsampling: int = 3,
    name: str = "lattice",
) -> PhoneLattice:
    """The lattice's phones with their times, whichever words they belong to.

    A phone begins with a transition that is no self-loop, after one that left the last state of the phone before it: so
    in graphs as Kaldi makes them, with reordered transitions.

    Args:
        lattice: as for `lattice_pdfs`.
        model: as for `lattice_pdfs`.
        lm_scale: factor on graph costs; with it the weights of all paths are scaled to the sum one. 0: all paths are equal.
        subsampling: input frames for each frame of the lattice: 3 for chain models, 1 for GMMs.
        name: utterance id, for messages.

    Raises:
        ConfigError: as `lattice_pdfs`, or subsampling below 1.
        DataError: as `lattice_pdfs`, a state that stands behind different numbers of frames, or no sequence of whole phones.
    """
    if subsampling < 1:
        raise ConfigError(f"subsampling = {subsampling}: expected at least 1")
    return _PhoneCutter(_frames(lattice, model, lm_scale, 0.0, name), model, subsampling, name).run()


def _frames(
    compact: CompactLattice, model: TransitionModel, lm_scale: float, acoustic_scale: float, name: str
) -> Transducer:
    """One transition id on each arc, epsilon-free and trimmed."""
    for option, scale in (("lm_scale", lm_scale), ("acoustic_scale", acoustic_scale)):
        if not 0 <= scale < math.inf:
            raise ConfigError(f"{option} = {scale}: expected a finite number >= 0")
    lattice = compact.expanded()
    bad = np.flatnonzero(lattice.transition >= len(model.transitions.pdf))
    if bad.size:
        raise DataError(
            f"{name}: arc {bad[0]} has transition id {lattice.transition[bad[0]]}; {model.name} has 1 to "
            f"{len(model.transitions.pdf) - 1}"
        )
    graph = Transducer(
        lattice.num_states,
        lattice.start,
        lattice.src,
        lattice.dst,
        lattice.transition,
        lattice.transition,
        _log_prob(lattice.graph_cost, lattice.acoustic_cost, lm_scale, acoustic_scale),
        _log_prob(lattice.final_graph_cost, lattice.final_acoustic_cost, lm_scale, acoustic_scale),
    )
    try:
        found, _ = remove_epsilons(graph, range(len(graph.src)))
    except GraphError as error:
        raise DataError(f"{name}: no lattice ({error})") from error
    if not len(found.src):
        raise DataError(f"{name}: the lattice has no path")
    return found


def _log_prob(
    graph: npt.NDArray[np.float64], acoustic: npt.NDArray[np.float64], lm_scale: float, acoustic_scale: float
) -> npt.NDArray[np.float64]:
    """Weighted sum of costs as log-probabilities; an infinite cost is -inf under any scale."""
    possible = np.isfinite(graph) & np.isfinite(acoustic)
    costs = lm_scale * np.where(possible, graph, 0.0) + acoustic_scale * np.where(possible, acoustic, 0.0)
    return np.where(possible, 0.0 - costs, -np.inf)


class _PhoneCutter:
    """Phones of a graph of frames. A node is a state of it at which a phone begins; node -1 is the end."""

    def __init__(self, graph: Transducer, model: TransitionModel, subsampling: int, name: str) -> None:
        self.graph, self.name, self.subsampling = graph, name, subsampling
        table = model.transitions
        self.phone, self.is_loop = table.phone.tolist(), table.is_self_loop.tolist()
        self.is_final = table.is_final.tolist()
        self.leaving: list[list[_Arc]] = [[] for _ in range(graph.num_states)]
        columns = (graph.src, graph.ilabel, graph.dst, graph.log_prob)
        for src, *arc in zip(*(column.tolist() for column in columns), strict=True):
            self.leaving[src].append((arc[0], arc[1], arc[2]))
        self.final = graph.final_log_prob.tolist()
        self.frame = self._frame_of_states()

    def run(self) -> PhoneLattice:
        nodes, numbers = [self.graph.start], {self.graph.start: 0}
        rows: list[tuple[int, int, int, float, int, int]] = []
        for index, state in enumerate(nodes):  # grows while it is read
            for (spoken, end, at_end), log_prob in self._phones_from(state).items():
                if not at_end and end not in numbers:
                    numbers[end] = len(nodes)
                    nodes.append(end)
                target = -1 if at_end else numbers[end]
                rows.append((index, target, spoken, log_prob, self.frame[state], self.frame[end]))
        table = np.array([(*row[:3], *row[4:]) for row in rows], dtype=np.int64).reshape(-1, 5)
        src, dst, phone, first, last = (table[:, column] for column in range(5))
        weights = np.array([row[3] for row in rows], dtype=np.float64)
        end_state = len(nodes)
        final = np.where(np.arange(end_state + 1) == end_state, 0.0, -np.inf)
        graph, origin = remove_epsilons(
            Transducer(
                end_state + 1, 0, src, np.where(dst < 0, end_state, dst), phone, phone, weights, final
            ),
            range(len(rows)),
        )
        if not len(graph.src):
            raise DataError(f"{self.name}: no path of the lattice is a sequence of whole phones")
        spans = self.subsampling * np.stack([first, last], axis=1)[origin]
        return PhoneLattice(_sum_to_one(graph, spans[:, 0]), spans, self.name)

    def _frame_of_states(self) -> list[int]:
        """Frames behind each state, which are the same on all ways to it."""
        frame = [-1] * self.graph.num_states
        frame[self.graph.start] = 0
        states = [self.graph.start]
        for state in states:  # grows while it is read; each state is entered once
            for _, dst, _ in self.leaving[state]:
                if frame[dst] < 0:
                    frame[dst] = frame[state] + 1
                    states.append(dst)
                elif frame[dst] != frame[state] + 1:
                    raise DataError(
                        f"{self.name}: a state of the lattice stands behind {frame[dst]} and behind {frame[state] + 1} "
                        "frames; expected one time for each state"
                    )
        return frame

    def _phones_from(self, state: int) -> dict[tuple[int, int, bool], float]:
        """Log-sum of the ways from `state` through one phone, by (phone, state behind it, whether the path ends there)."""
        found: dict[tuple[int, int, bool], float] = {}
        open_phones: dict[tuple[int, int, bool], float] = {}  # phone, state, last HMM state was left
        for transition, dst, log_prob in self.leaving[state]:
            if self.is_loop[transition]:
                if state == self.graph.start:
                    raise DataError(
                        f"{self.name}: a path begins with a self-loop, so transitions are not reordered; expected a lattice "
                        "made with Kaldi's --reorder=true"
                    )
                continue
            _add(open_phones, (self.phone[transition], dst, self.is_final[transition]), log_prob)
        while open_phones:
            longer: dict[tuple[int, int, bool], float] = {}
            for (phone, here, left), weight in open_phones.items():
                if left and self.final[here] > -math.inf:
                    _add(found, (phone, here, True), weight + self.final[here])
                begins = False
                for transition, dst, log_prob in self.leaving[here]:
                    is_loop = self.is_loop[transition]
                    if left and not is_loop:
                        begins = True
                    elif self.phone[transition] == phone:
                        ended = left if is_loop else self.is_final[transition]
                        _add(longer, (phone, dst, ended), weight + log_prob)
                if begins:
                    _add(found, (phone, here, False), weight)
            open_phones = longer
        return found


def _add(sums: dict[tuple[int, int, bool], float], key: tuple[int, int, bool], log_prob: float) -> None:
    sums[key] = float(np.logaddexp(sums.get(key, -math.inf), log_prob))


def _sum_to_one(graph: Transducer, first_frame: npt.NDArray[np.int64]) -> Transducer:
    """The weights of all paths together become one: their log-sum leaves with the arcs from the start."""
    total = graph.final_log_prob.tolist()
    columns = [column.tolist() for column in (graph.src, graph.dst, graph.log_prob)]
    for arc in np.argsort(
        -first_frame, kind="stable"
    ).tolist():  # latest first: all that follows an arc is known
        src, dst, log_prob = (column[arc] for column in columns)
        total[src] = float(np.logaddexp(total[src], log_prob + total[dst]))
    leaves_start = graph.src == graph.start
    return replace(graph, log_prob=graph.log_prob - np.where(leaves_start, total[graph.start], 0.0))
