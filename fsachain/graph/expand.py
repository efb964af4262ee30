"""From phones to pdfs: left context, topology and self-loops, for any phone graph.

A node of the result says: state of the phone graph, what the future must know of the past (left phone), and
which HMM state of which phone is being spent. Epsilon arcs of the phone graph are kept; they spend no frame
and keep the left phone. Self-loops sit only where a phone was just spent, so that no pdf sequence gets a
second path through an epsilon. Trees that look further than one phone to the left are unrolled to units first
(`graph/wide_context.py`), which then need no context.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fsachain.errors import GraphError
from fsachain.graph.context import ContextTree
from fsachain.graph.topology import HmmState
from fsachain.graph.transducer import Transducer
from fsachain.graph.wide_context import UnitGraph, in_context

START, BETWEEN, BLANK = -1, -2, -3  # in place of an HMM state: at the start, after an epsilon, in a blank
HmmPdfs = tuple[tuple[int, int], ...]


class Expansion(NamedTuple):
    """An expanded graph and, for each of its arcs, where it comes from.

    Attributes:
        graph: ilabel = pdf + 1 (0 on epsilon arcs), olabel of the phone arc on the first frame of its phone.
        arc_phone: phone id [A]; 0 on blank and epsilon arcs.
        arc_tag: tag of the phone arc [A]; -1 on blank arcs.
        arc_is_start: [A], True where the arc spends the first frame of its phone.
    """

    graph: Transducer
    arc_phone: list[int]
    arc_tag: list[int]
    arc_is_start: list[bool]


class _Node(NamedTuple):
    state: int
    left: int
    hmm_state: int
    phone: int = 0
    pdfs: HmmPdfs = ()
    tag: int = -1


def expand_phones(
    phone_fst: Any, tree: ContextTree, *, self_loop_scale: float, transition_scale: float
) -> Any:
    """Expand a pywrapfst FST over phones to one over pdfs.

    Args:
        phone_fst: input labels are phone ids or epsilon; output labels are anything (words).
        tree: context and topology.
        self_loop_scale: factor on the self-loops' log-probabilities.
        transition_scale: factor on all other transition log-probabilities of the topology.

    Returns:
        A pywrapfst `VectorFst` (tropical): input label pdf + 1, output labels on the first frame of each
        phone, epsilon arcs kept.
    """
    expansion = expand_arcs(
        Transducer.from_openfst(phone_fst),
        tree,
        self_loop_scale=self_loop_scale,
        transition_scale=transition_scale,
    )
    return expansion.graph.to_openfst()


def expand_arcs(
    phones: Transducer,
    tree: ContextTree,
    *,
    self_loop_scale: float,
    transition_scale: float,
    tags: Sequence[int] | None = None,
) -> Expansion:
    """`expand_phones` on arrays, with the origin of each arc.

    Args:
        phones: ilabel = phone id or 0.
        tree: context and topology.
        self_loop_scale: as in `expand_phones`.
        transition_scale: as in `expand_phones`.
        tags: one integer for each arc of `phones`, such as a word position; arcs of different tags share no
            node.

    Raises:
        GraphError: an input label beyond the phones of the tree.
    """
    _check_phones(phones, tree)
    if tree.is_narrow:
        return _Expander(phones, tree, self_loop_scale, transition_scale, tags).run()
    return _expand_units(in_context(phones, tree, tags), self_loop_scale, transition_scale)


def expand_acceptor(
    phones: Transducer,
    tree: ContextTree,
    *,
    self_loop_scale: float,
    transition_scale: float,
    tags: Sequence[int] | None = None,
) -> Expansion:
    """`expand_arcs` of an acceptor without epsilon arcs: the result has none either, and no output labels to keep.

    A tree that looks to the right makes a transducer read its first phones before a frame is spent. An acceptor
    has nothing to say meanwhile, so its first frame stands for all of them.
    """
    _check_phones(phones, tree)
    if tree.is_narrow:
        return _Expander(phones, tree, self_loop_scale, transition_scale, tags).run()
    units = in_context(phones, tree, tags)
    units.spend_at_once()
    return _expand_units(units, self_loop_scale, transition_scale)


def _check_phones(phones: Transducer, tree: ContextTree) -> None:
    bad = np.flatnonzero((phones.ilabel < 0) | (phones.ilabel > tree.num_phones))
    if bad.size:
        arc = int(bad[0])
        raise GraphError(
            f"arc {arc} (state {phones.src[arc]} -> {phones.dst[arc]}) has phone {phones.ilabel[arc]}: "
            f"expected a phone id in [1, {tree.num_phones}], or 0 for epsilon"
        )


def _expand_units(units: UnitGraph, self_loop_scale: float, transition_scale: float) -> Expansion:
    expansion = _Expander(units.graph, units, self_loop_scale, transition_scale, units.tags).run()
    return expansion._replace(arc_phone=[units.phone_of[unit] for unit in expansion.arc_phone])


class _Expander:
    """One expansion under way: nodes numbered as they are met, each left once, and the arcs so far."""

    def __init__(
        self,
        phones: Transducer,
        tree: ContextTree | UnitGraph,
        self_loop_scale: float,
        transition_scale: float,
        tags: Sequence[int] | None,
    ) -> None:
        states = tree.topology.states
        self.tree = tree
        self.final = phones.final_log_prob.tolist()
        self.has_blank = tree.blank_pdf is not None
        self.must_separate = tree.topology.blank == "between"
        self.keeps_left = self.must_separate or tree.context_width > 1
        # A phone of one frame that no blank need follow is over like a blank: both wait in one node.
        self.ends_in_blank = tree.topology.blank == "optional" and states == (HmmState(0, None, 0.0, 0.0),)
        moves = [tree.topology.moves(index) for index in range(len(states))]
        self.inner_moves = [
            [(target, transition_scale * weight) for target, weight in ways if target < len(states)]
            for ways in moves
        ]
        leaving = [dict(ways).get(len(states)) for ways in moves]
        self.leave_log_prob = [None if weight is None else transition_scale * weight for weight in leaving]
        self.loop = [self_loop_scale * state.loop_log_prob for state in states]
        self.leaving = phones.leaving(tags)
        self.numbers: dict[_Node, int] = {}
        self.nodes: list[_Node] = []
        self.arcs: list[tuple[int, int, int, int, float, int, int, bool]] = []
        self.number(_Node(phones.start, 0, START))

    def run(self) -> Expansion:
        for index, node in enumerate(self.nodes):  # the list grows while it is read
            if node.hmm_state >= 0 or node.hmm_state == BLANK:
                self.stay(index, node)
            if node.hmm_state < 0:
                self.leave(index, node, 0.0)
                continue
            if self.inner_moves[node.hmm_state]:
                self.advance(index, node)
            paid = self.leave_log_prob[node.hmm_state]
            if paid is not None:
                self.leave(index, node, paid)
        final = [self.final_log_prob(node) for node in self.nodes]
        columns = list(zip(*self.arcs, strict=True)) or [()] * 8
        src, dst, ilabel, olabel = (np.array(column, dtype=np.int32) for column in columns[:4])
        log_prob = np.array(columns[4], dtype=np.float64)
        graph = Transducer(len(self.nodes), 0, src, dst, ilabel, olabel, log_prob, np.array(final))
        return Expansion(graph, list(columns[5]), list(columns[6]), list(columns[7]))

    def number(self, node: _Node) -> int:
        index = self.numbers.get(node)
        if index is None:
            index = self.numbers[node] = len(self.nodes)
            self.nodes.append(node)
        return index

    def final_log_prob(self, node: _Node) -> float:
        if node.hmm_state < 0:
            return self.final[node.state]
        paid = self.leave_log_prob[node.hmm_state]
        return -np.inf if paid is None else self.final[node.state] + paid

    def stay(self, index: int, node: _Node) -> None:
        """One more frame of the same HMM state, or of the blank."""
        if node.hmm_state == BLANK:
            self.arcs.append((index, index, 1, 0, 0.0, 0, -1, False))
            return
        pdf = node.pdfs[node.hmm_state][1]
        if pdf >= 0:
            self.arcs.append(
                (index, index, pdf + 1, 0, self.loop[node.hmm_state], node.phone, node.tag, False)
            )

    def advance(self, index: int, node: _Node) -> None:
        """From one HMM state of a phone to others."""
        for target, log_prob in self.inner_moves[node.hmm_state]:
            after = node._replace(hmm_state=target)
            pdf = node.pdfs[target][0]
            self.arcs.append((index, self.number(after), pdf + 1, 0, log_prob, node.phone, node.tag, False))

    def leave(self, index: int, node: _Node, paid: float) -> None:
        """From the end of a phone, the start or a blank into whatever may follow."""
        left, arcs = node.left, self.arcs
        if self.has_blank and (node.hmm_state == START or node.hmm_state >= 0):
            blank = self.number(_Node(node.state, 0, BLANK))
            arcs.append((index, blank, 1, 0, paid, 0, -1, False))
        for dst, phone, olabel, log_prob, tag in self.leaving[node.state]:
            if phone == 0:
                after = self.number(_Node(dst, left, BETWEEN))
                arcs.append((index, after, 0, olabel, log_prob + paid, 0, tag, False))
                continue
            phone_class = self.tree.left_class(phone) if self.keeps_left else 0
            if self.must_separate and phone_class == left:
                continue  # two equal phones in a row need a blank between them
            pdfs = self.tree.hmm_pdfs(phone, left)
            waits = (
                _Node(dst, 0, BLANK) if self.ends_in_blank else _Node(dst, phone_class, 0, phone, pdfs, tag)
            )
            after = self.number(waits)
            arcs.append((index, after, pdfs[0][0] + 1, olabel, log_prob + paid, phone, tag, True))
