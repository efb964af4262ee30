"""From phones to pdfs: left context, topology and self-loops, for any phone graph.

A node of the result is a state of the phone graph, the class of the left phone where the tree needs it, and
the HMM state of the phone that is being spent. Epsilon arcs of the phone graph are kept; they spend no frame
and keep the left phone. Self-loops sit only where a phone was just spent, so that no pdf sequence gets a
second path through an epsilon. Trees that look further than one phone to the left are unrolled to units first
(`UnitGraph`), which then need no context.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.errors import ConfigError, GraphError
from fsachain.fsa import Fsa
from fsachain.graph.context import ContextTree
from fsachain.graph.topology import HmmState, Topology
from fsachain.graph.transducer import Numbers, remove_epsilons
from fsachain.openfst import Transducer

# A phone graph unrolled to units, phones in a wide context, for trees that look beyond the left phone.
#
# A window of N phones with the centre at place P waits for N - 1 - P phones behind the centre. A state of the
# result is a state of the phone graph and the last N - 1 phones; reading a phone spends the unit of the phone
# that now stands at place P. The first phones that are read spend nothing; at the end of a path the phones that
# still wait are spent with nothing behind them. This is Kaldi's context transducer C, composed on the left.

NO_PHONE = (0, -1)  # phone id and tag where there is no phone
HmmPdfs = tuple[tuple[int, int], ...]
_Arc = tuple[int, int, int, int, float, int]  # src, dst, unit, olabel, log_prob, tag


class UnitGraph:
    """The unrolled graph, and in place of a tree what `_Expander` asks, with units for phones.

    Input labels of `graph` are units, from 1, or epsilon where nothing is spent yet; `tags` has for each arc the tag of
    the phone that it spends, -1 on epsilon arcs; `phone_of` the phone id of each unit, 0 for unit 0.
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
        number = self._units.get((phone, pdfs))
        if number is None:
            number = self._units[phone, pdfs] = len(self.phone_of)
            self.phone_of.append(phone)
            self._pdfs.append(pdfs)
        return number

    def hmm_pdfs(self, phone: int, left: int = 0) -> HmmPdfs:
        return self._pdfs[phone]

    def left_class(self, phone: int) -> int:
        return 0


class _Window(NamedTuple):
    """State of the phone graph (-1: beyond its end), the last N - 1 (phone, tag) pairs, phones still to add."""

    state: int
    history: tuple[tuple[int, int], ...]
    to_flush: int


class _Unroller:
    """Unrolls a phone graph (ilabel = phone id or 0) with tags [A] on its arcs to the units of a wide tree."""

    def __init__(self, phones: Transducer, tree: ContextTree, tags: Sequence[int] | None) -> None:
        self.tree = tree
        self.centre = tree.central_position
        self.waiting = tree.context_width - 1 - tree.central_position
        self.final = phones.final_log_prob.tolist()
        self.units = UnitGraph(tree.topology)
        self.leaving = phones.leaving(tags)
        self.numbers = Numbers(_Window(phones.start, (NO_PHONE,) * (tree.context_width - 1), 0))
        self.arcs: list[_Arc] = []

    def run(self) -> UnitGraph:
        final: list[float] = []
        for index, node in enumerate(self.numbers.nodes):  # which grows while it is read
            if node.state < 0:
                final.append(0.0 if not node.to_flush else -np.inf)
                if node.to_flush:
                    self.add_nothing(index, node.history, node.to_flush, 0.0)
                continue
            for dst, phone, olabel, log_prob, tag in self.leaving[node.state]:
                if not phone:
                    after = self.numbers[_Window(dst, node.history, 0)]
                    self.arcs.append((index, after, 0, olabel, log_prob, -1))
                    continue
                window = (*node.history, (phone, tag))
                after = self.numbers[_Window(dst, self.shift(window), 0)]
                self.arcs.append(
                    (index, after, *self.spend(window, olabel), log_prob, window[self.centre][1])
                )
            is_end = not any(phone for phone, _ in node.history[self.centre :])
            final.append(self.final[node.state] if is_end else -np.inf)
            if not is_end and self.final[node.state] > -np.inf:
                self.add_nothing(index, node.history, self.waiting, self.final[node.state])
        self.units.graph = Transducer.of_arcs(self.arcs, np.array(final))
        self.units.tags = [arc[5] for arc in self.arcs]
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
                after = self.numbers[_Window(-1, history, to_flush)]
                self.arcs.append((index, after, *self.spend(window, 0), log_prob, window[self.centre][1]))
                return


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
    _check_phones(phones, tree)
    if tree.is_narrow:
        return _Expander(phones, tree, self_loop_scale, transition_scale, tags).run()
    units = _Unroller(phones, tree, tags).run()
    if epsilon_free:  # the epsilon arcs out of the start go into the first arcs that spend a unit
        units.graph, units.tags = remove_epsilons(units.graph, units.tags)
    expansion = _Expander(units.graph, units, self_loop_scale, transition_scale, units.tags).run()
    return expansion._replace(arc_phone=[units.phone_of[unit] for unit in expansion.arc_phone])


def _check_phones(phones: Transducer, tree: ContextTree) -> None:
    bad = np.flatnonzero((phones.ilabel < 0) | (phones.ilabel > tree.num_phones))
    if bad.size:
        arc = int(bad[0])
        raise GraphError(
            f"arc {arc} (state {phones.src[arc]} -> {phones.dst[arc]}) has phone {phones.ilabel[arc]}: "
            f"expected a phone id in [1, {tree.num_phones}], or 0 for epsilon"
        )


class _Expander:
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
        self.numbers = Numbers(_Node(phones.start, 0, START))
        self.arcs: list[tuple[int, int, int, int, float, int, int, bool]] = []

    def run(self) -> Expansion:
        for index, node in enumerate(self.numbers.nodes):  # which grows while it is read
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
        final = np.array([self.final_log_prob(node) for node in self.numbers.nodes])
        phones, tags, starts = ([arc[field] for arc in self.arcs] for field in (5, 6, 7))
        return Expansion(Transducer.of_arcs(self.arcs, final), phones, tags, starts)  # type: ignore[arg-type]

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
            self.arcs.append((index, self.numbers[after], pdf + 1, 0, log_prob, node.phone, node.tag, False))

    def leave(self, index: int, node: _Node, paid: float) -> None:
        """From the end of a phone, the start or a blank into whatever may follow."""
        left, arcs = node.left, self.arcs
        if self.has_blank and (node.hmm_state == START or node.hmm_state >= 0):
            blank = self.numbers[_Node(node.state, 0, BLANK)]
            arcs.append((index, blank, 1, 0, paid, 0, -1, False))
        for dst, phone, olabel, log_prob, tag in self.leaving[node.state]:
            if phone == 0:
                after = self.numbers[_Node(dst, left, BETWEEN)]
                arcs.append((index, after, 0, olabel, log_prob + paid, 0, tag, False))
                continue
            phone_class = self.tree.left_class(phone) if self.keeps_left else 0
            if self.must_separate and phone_class == left:
                continue  # two equal phones in a row need a blank between them
            pdfs = self.tree.hmm_pdfs(phone, left)
            waits = (
                _Node(dst, 0, BLANK) if self.ends_in_blank else _Node(dst, phone_class, 0, phone, pdfs, tag)
            )
            after = self.numbers[waits]
            arcs.append((index, after, pdfs[0][0] + 1, olabel, log_prob + paid, phone, tag, True))


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


class Unrolled(NamedTuple):
    """Paths of exactly T arcs: acyclic and trimmed, arcs in order of their frames.

    state_frame [S], ascending, is the frames spent before a state; origin [A] the arc of the expansion that each arc is.
    """

    fsa: Fsa
    state_frame: npt.NDArray[np.int32]
    origin: Ints


def unroll(expansion: Expansion, first: Ints, end: Ints, num_frames: int) -> Unrolled | None:
    """Paths of exactly `num_frames` arcs on which arcs of tag k keep to frames [first[k], end[k]); None without any.

    Blanks (tag -1) may stand at any frame.
    """
    graph = expansion.graph
    # The tag -1 finds the entry behind all others.
    earliest, latest = np.append(first, 0).tolist(), np.append(end, num_frames).tolist()
    spans = [(earliest[tag], latest[tag]) for tag in expansion.arc_tag]
    leaving = graph.leaving(range(len(spans)))
    layer, layers = {graph.start: 0}, [1]
    num_states = 1
    arcs: list[tuple[int, int, int]] = []  # src, dst, arc of the expansion
    for frame in range(num_frames):
        following: dict[int, int] = {}
        for state, number in layer.items():
            for dst, _, _, _, arc in leaving[state]:
                if spans[arc][0] <= frame < spans[arc][1]:
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
