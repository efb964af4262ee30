"""From phones to pdfs: left context, topology and self-loops, for any phone graph.

A node of the result is a state of the phone graph, the class of the left phone where the tree needs it, and
the HMM state of the phone that is being spent. Epsilon arcs of the phone graph are kept; they spend no frame
and keep the left phone. Self-loops sit only where a phone was just spent, so that no pdf sequence gets a
second path through an epsilon. For trees that look further than one phone to the left a graph of phones becomes one
of units first, which need no context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fsachain.graph.context import ContextTree
from fsachain.graph.topology import HmmState, Topology
from fsachain.graph.transducer import Numbers, check_labels, remove_epsilons
from fsachain.openfst import Transducer

# Units: phones in a wide context, for trees that look beyond the left phone.
#
# A window of N phones with the centre at place P waits for N - 1 - P phones behind the centre. A state of the
# result is a state of the phone graph and the last N - 1 phones; reading a phone spends the unit of the phone
# that now stands at place P. The first phones that are read spend nothing; at the end of a path the phones that
# still wait are spent with nothing behind them. This is Kaldi's context transducer C, composed on the left.

NO_PHONE = (0, -1)  # phone id and tag where there is no phone
HmmPdfs = tuple[tuple[int, int], ...]
_Unit = tuple[int, HmmPdfs]  # phone id and its pdfs in a context
_Places = tuple[tuple[int, int], ...]  # phone id and tag of each place of a window
_Arc = tuple[int, int, int, int, float, int]  # src, dst, unit, olabel, log_prob, tag


class _Window(NamedTuple):
    """State of the phone graph (-1: beyond its end), the last N - 1 (phone, tag) pairs, phones still to add."""

    state: int
    history: _Places
    to_flush: int


def _in_units(
    phones: Transducer, tree: ContextTree, tags: Sequence[int] | None
) -> tuple[Transducer, list[int], list[_Unit]]:
    """The phone graph with units as input labels, epsilon where nothing is spent yet; the tag of each arc; the units.

    An arc has the tag [A] of the phone that it spends, -1 if it spends none. Unit 0 is epsilon.
    """
    centre, final = tree.central_position, phones.final_log_prob.tolist()
    leaving = phones.leaving(tags)
    units = Numbers[_Unit]((0, ()))
    numbers = Numbers(_Window(phones.start, (NO_PHONE,) * (tree.context_width - 1), 0))
    arcs: list[_Arc] = []

    def spend(window: _Places, olabel: int) -> tuple[int, int]:
        """Input and output label: the unit of the central phone, or epsilon where there is none yet."""
        phone = window[centre][0]
        if not phone:
            return 0, olabel
        return units[phone, tree.window_pdfs(tuple(phone for phone, _ in window))], olabel

    def shift(window: _Places) -> _Places:
        """The window without its first place; phones that are spent need no tag any more."""
        return (*((phone, -1) for phone, _ in window[1 : centre + 1]), *window[centre + 1 :])

    def add_nothing(index: int, history: _Places, to_flush: int, log_prob: float) -> None:
        """Beyond the end of a path: no phone follows; skip the places that have no phone to spend."""
        while to_flush:
            window = (*history, NO_PHONE)
            history, to_flush = shift(window) if to_flush > 1 else (), to_flush - 1
            if window[centre][0]:
                after = numbers[_Window(-1, history, to_flush)]
                arcs.append((index, after, *spend(window, 0), log_prob, window[centre][1]))
                return

    ends: list[float] = []
    for index, (state, history, to_flush) in enumerate(numbers.nodes):  # which grows while it is read
        if state < 0:
            ends.append(0.0 if not to_flush else -np.inf)
            add_nothing(index, history, to_flush, 0.0)
            continue
        for dst, phone, olabel, log_prob, tag in leaving[state]:
            if not phone:
                arcs.append((index, numbers[_Window(dst, history, 0)], 0, olabel, log_prob, -1))
                continue
            window = (*history, (phone, tag))
            after = numbers[_Window(dst, shift(window), 0)]
            arcs.append((index, after, *spend(window, olabel), log_prob, window[centre][1]))
        is_end = not any(phone for phone, _ in history[centre:])
        ends.append(final[state] if is_end else -np.inf)
        if not is_end and final[state] > -np.inf:
            add_nothing(index, history, tree.context_width - 1 - centre, final[state])
    return Transducer.of_arcs(arcs, np.array(ends)), [arc[5] for arc in arcs], units.nodes


START, BETWEEN, BLANK = -1, -2, -3  # in place of an HMM state: at the start, after an epsilon, in a blank


class Expansion(NamedTuple):
    """An expanded graph and, for each of its arcs, where it comes from.

    ilabel = pdf + 1 (0 on epsilon arcs); the olabel of a phone is on its first frame, which `arc_is_start` marks.
    arc_phone is 0 on blank and epsilon arcs, arc_tag -1 on blank arcs.
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


def expand_arcs(
    phones: Transducer,
    tree: ContextTree,
    *,
    self_loop_scale: float,
    transition_scale: float,
    tags: Sequence[int] | None = None,
    epsilon_free: bool = False,
) -> Expansion:
    """Expand a phone graph (input labels: phone ids or epsilon) to pdfs, with the origin of each arc.

    Output labels, such as words, go to the first frame of their phone; epsilon arcs stay. The scales are factors on the
    log-probabilities of the topology's self-loops and of its other transitions. `tags` has one integer for each arc of
    `phones`, such as a word position; arcs of different tags share no node.

    A tree that looks to the right has the first phones read by epsilon arcs. With `epsilon_free`, for acceptors without
    such arcs, these are joined with the arc of the first frame; output labels may be lost.
    """
    check_labels(phones, tree.num_phones, f"a phone id in [1, {tree.num_phones}], or 0 for epsilon")
    scales = self_loop_scale, transition_scale
    if tree.is_narrow:
        keeps_left = tree.context_width > 1 or tree.topology.blank == "between"
        left_class = tree.left_class if keeps_left else None
        return _expanded(phones, tags, tree.topology, tree.hmm_pdfs, left_class, *scales)
    graph, unit_tags, units = _in_units(phones, tree, tags)
    if epsilon_free:  # the epsilon arcs out of the start go into the first arcs that spend a unit
        graph, unit_tags = remove_epsilons(graph, unit_tags)
    found = _expanded(graph, unit_tags, tree.topology, lambda unit, _: units[unit][1], None, *scales)
    return found._replace(arc_phone=[units[unit][0] for unit in found.arc_phone])


def _expanded(
    phones: Transducer,
    tags: Sequence[int] | None,
    topology: Topology,
    hmm_pdfs: Callable[[int, int], HmmPdfs],
    left_class: Callable[[int], int] | None,
    self_loop_scale: float,
    transition_scale: float,
) -> Expansion:
    """The graph of `expand_arcs`, where `hmm_pdfs` are those of a phone after a left phone.

    Nodes know the `left_class` of the phone before, with None nothing of it.
    """
    states, end = topology.states, len(topology.states)
    has_blank, must_separate = topology.blank != "none", topology.blank == "between"
    # A phone of one frame that no blank need follow is over like a blank: both wait in one node.
    ends_in_blank = topology.blank == "optional" and states == (HmmState(0, None, 0.0, 0.0),)
    moves = [
        {target: transition_scale * log_prob for target, log_prob in topology.moves(index)}
        for index in range(end)
    ]
    leave_log_prob = [ways.pop(end, None) for ways in moves]
    loop_log_prob = [self_loop_scale * state.loop_log_prob for state in states]
    final, leaving = phones.final_log_prob.tolist(), phones.leaving(tags)
    numbers = Numbers(_Node(phones.start, 0, START))
    arcs: list[tuple[int, int, int, int, float, int, int, bool]] = []
    ends: list[float] = []
    for index, node in enumerate(numbers.nodes):  # which grows while it is read
        state, left, hmm_state, phone, pdfs, tag = node
        paid: float | None = 0.0
        if hmm_state >= 0:
            loop = pdfs[hmm_state][1]
            if loop >= 0:
                arcs.append((index, index, loop + 1, 0, loop_log_prob[hmm_state], phone, tag, False))
            for target, log_prob in moves[hmm_state].items():
                after = numbers[node._replace(hmm_state=target)]
                arcs.append((index, after, pdfs[target][0] + 1, 0, log_prob, phone, tag, False))
            paid = leave_log_prob[hmm_state]
        elif hmm_state == BLANK:
            arcs.append((index, index, 1, 0, 0.0, 0, -1, False))
        if paid is None:
            ends.append(-np.inf)
            continue
        ends.append(final[state] + paid)
        # From the end of a phone, the start or a blank into whatever may follow.
        if has_blank and (hmm_state == START or hmm_state >= 0):
            arcs.append((index, numbers[_Node(state, 0, BLANK)], 1, 0, paid, 0, -1, False))
        for dst, following, olabel, log_prob, its_tag in leaving[state]:
            if not following:
                after = numbers[_Node(dst, left, BETWEEN)]
                arcs.append((index, after, 0, olabel, log_prob + paid, 0, its_tag, False))
                continue
            its_class = left_class(following) if left_class else 0
            if must_separate and its_class == left:
                continue  # two equal phones in a row need a blank between them
            its_pdfs = hmm_pdfs(following, left)
            if ends_in_blank:
                after = numbers[_Node(dst, 0, BLANK)]
            else:
                after = numbers[_Node(dst, its_class, 0, following, its_pdfs, its_tag)]
            pdf = its_pdfs[0][0]
            arcs.append((index, after, pdf + 1, olabel, log_prob + paid, following, its_tag, True))
    arc_phone, arc_tag, arc_is_start = ([arc[field] for arc in arcs] for field in (5, 6, 7))
    return Expansion(Transducer.of_arcs(arcs, np.array(ends)), arc_phone, arc_tag, arc_is_start)  # type: ignore[arg-type]
