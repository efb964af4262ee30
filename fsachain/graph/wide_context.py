"""A phone graph unrolled to units, phones in the context of a wide window, for trees that look beyond the left phone.

A window of N phones with the centre at place P waits for N - 1 - P phones behind the centre. A state of the
result is a state of the phone graph and the last N - 1 phones; reading a phone spends the unit of the phone that
now stands at place P. At the end of a path the phones that still wait are spent with nothing behind them. This
is the context transducer C of Kaldi, composed on the left; the first phones that are read spend nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.graph.context import ContextTree
from fsachain.graph.topology import Topology
from fsachain.graph.transducer import Transducer

NO_PHONE = (0, -1)  # phone id and tag where there is no phone
HmmPdfs = tuple[tuple[int, int], ...]
_Arc = tuple[int, int, int, int, float, int]  # src, dst, unit, olabel, log_prob, tag


class UnitGraph:
    """The unrolled graph, and what `fsachain.graph.expand` asks of a tree whose phones are its units.

    Attributes:
        graph: input label = unit, from 1; epsilon arcs where nothing is spent yet.
        tags: of each arc the tag of the phone that it spends; -1 on epsilon arcs.
        phone_of: phone id of each unit; 0 for unit 0.
    """

    context_width = 1
    blank_pdf = None

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.phone_of = [0]
        self.tags: list[int] = []
        self.graph: Transducer
        self._units: dict[tuple[int, HmmPdfs], int] = {}
        self._pdfs: list[HmmPdfs] = [()]

    def unit(self, phone: int, pdfs: HmmPdfs) -> int:
        """Number of the unit of a phone with these pdfs."""
        number = self._units.get((phone, pdfs))
        if number is None:
            number = self._units[phone, pdfs] = len(self.phone_of)
            self.phone_of.append(phone)
            self._pdfs.append(pdfs)
        return number

    def spend_at_once(self) -> None:
        """Spend with the first arc what is spent after the first, silent phones; output labels of these are lost.

        An acceptor without epsilon becomes one without epsilon again.
        """
        graph = self.graph
        rows = zip(
            *(c.tolist() for c in (graph.src, graph.dst, graph.ilabel, graph.olabel, graph.log_prob)),
            self.tags,
            strict=True,
        )
        silent: dict[int, list[_Arc]] = {}
        spending: dict[int, list[_Arc]] = {}
        for arc in rows:
            (spending if arc[2] else silent).setdefault(arc[0], []).append(arc)
        arcs = [arc for leaving in spending.values() for arc in leaving]
        reached = [(arc[1], arc[4]) for arc in silent.get(0, [])]
        for state, log_prob in reached:  # grows while it is read; at most N - 1 - P silent phones deep
            arcs += [(0, *arc[1:4], log_prob + arc[4], arc[5]) for arc in spending.get(state, [])]
            reached += [(arc[1], log_prob + arc[4]) for arc in silent.get(state, [])]
        self.graph, self.tags = _graph(arcs, graph.final_log_prob)

    def hmm_pdfs(self, phone: int, left: int = 0) -> HmmPdfs:
        """(entry pdf, self-loop pdf or -1) for each HMM state of a unit."""
        return self._pdfs[phone]

    def left_class(self, phone: int) -> int:
        """Units need no left neighbour."""
        return 0


class _Node(NamedTuple):
    """State of the phone graph (-1: beyond its end), the last N - 1 (phone, tag) pairs, phones still to add."""

    state: int
    history: tuple[tuple[int, int], ...]
    to_flush: int


def in_context(phones: Transducer, tree: ContextTree, tags: Sequence[int] | None) -> UnitGraph:
    """Unroll a phone graph to the units of a wide tree.

    Args:
        phones: ilabel = phone id or 0.
        tree: any context.
        tags: one integer for each arc of `phones`; None: -1 everywhere.

    Raises:
        GraphError: a context that the tree has no pdfs for.
    """
    return _Unroller(phones, tree, tags).run()


class _Unroller:
    def __init__(self, phones: Transducer, tree: ContextTree, tags: Sequence[int] | None) -> None:
        self.tree = tree
        self.centre = tree.central_position
        self.waiting = tree.context_width - 1 - tree.central_position
        self.final = phones.final_log_prob.tolist()
        self.units = UnitGraph(tree.topology)
        self.leaving = phones.leaving(tags)
        self.numbers: dict[_Node, int] = {}
        self.nodes: list[_Node] = []
        self.arcs: list[_Arc] = []
        self.number(_Node(phones.start, (NO_PHONE,) * (tree.context_width - 1), 0))

    def number(self, node: _Node) -> int:
        index = self.numbers.get(node)
        if index is None:
            index = self.numbers[node] = len(self.nodes)
            self.nodes.append(node)
        return index

    def run(self) -> UnitGraph:
        final: list[float] = []
        for index, node in enumerate(self.nodes):  # the list grows while it is read
            if node.state < 0:
                final.append(0.0 if not node.to_flush else -np.inf)
                if node.to_flush:
                    self.add_nothing(index, node.history, node.to_flush, 0.0)
                continue
            for dst, phone, olabel, log_prob, tag in self.leaving[node.state]:
                if not phone:
                    after = self.number(_Node(dst, node.history, 0))
                    self.arcs.append((index, after, 0, olabel, log_prob, -1))
                    continue
                window = (*node.history, (phone, tag))
                after = self.number(_Node(dst, self.shift(window), 0))
                self.arcs.append(
                    (index, after, *self.spend(window, olabel), log_prob, window[self.centre][1])
                )
            is_end = not any(phone for phone, _ in node.history[self.centre :])
            final.append(self.final[node.state] if is_end else -np.inf)
            if not is_end and self.final[node.state] > -np.inf:
                self.add_nothing(index, node.history, self.waiting, self.final[node.state])
        self.units.graph, self.units.tags = _graph(self.arcs, np.array(final))
        return self.units

    def shift(self, window: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        """The window without its first place; phones that are spent need no tag any more."""
        return (*((phone, -1) for phone, _ in window[1 : self.centre + 1]), *window[self.centre + 1 :])

    def spend(self, window: tuple[tuple[int, int], ...], olabel: int) -> tuple[int, int]:
        """Input and output label: the unit of the central phone, or epsilon where there is none yet."""
        phone = window[self.centre][0]
        if not phone:
            return 0, olabel
        unit = self.units.unit(phone, self.tree.window_pdfs(tuple(phone for phone, _ in window)))
        return unit, olabel

    def add_nothing(
        self, index: int, history: tuple[tuple[int, int], ...], to_flush: int, log_prob: float
    ) -> None:
        """Beyond the end of a path: no phone follows; skip the places that have no phone to spend."""
        while to_flush:
            window = (*history, NO_PHONE)
            history, to_flush = self.shift(window) if to_flush > 1 else (), to_flush - 1
            if window[self.centre][0]:
                after = self.number(_Node(-1, history, to_flush))
                self.arcs.append((index, after, *self.spend(window, 0), log_prob, window[self.centre][1]))
                return


def _graph(arcs: list[_Arc], final: npt.NDArray[np.float64]) -> tuple[Transducer, list[int]]:
    """The graph, which starts in state 0, and the tags of its arcs."""
    columns = list(zip(*arcs, strict=True)) or [()] * 6
    src, dst, ilabel, olabel = (np.array(column, dtype=np.int32) for column in columns[:4])
    log_prob = np.array(columns[4], dtype=np.float64)
    return Transducer(len(final), 0, src, dst, ilabel, olabel, log_prob, final), list(columns[5])
