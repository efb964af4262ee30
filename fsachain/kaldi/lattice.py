"""Kaldi's lattices, plain and compact, binary and text, read with bounds.

Formats: Kaldi's lat/kaldi-lattice.cc and fstext/lattice-weight.h.
"""

from __future__ import annotations

import math
import re
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from fsachain.errors import ConfigError, DataError, GraphError
from fsachain.fsa import Fsa, NamedStates
from fsachain.graph.phone_lattice import PhoneLattice
from fsachain.graph.transducer import remove_epsilons
from fsachain.kaldi.transitions import TransitionModel
from fsachain.openfst import MAGIC, Transducer, read_header
from fsachain.stream import LONGEST_LINE, Cursor

# A lattice of Kaldi as arrays: as its file has it, and with one transition id on each arc.
#
# A plain lattice is an FST over transition ids and words whose weights are two costs, of the graph (language
# model, pronunciations, transitions) and of the acoustics. A compact one has words on its arcs and a string
# of transition ids in each weight. With each string written out as a chain of arcs both are of one form,
# which takes several times as much.

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


PLAIN, COMPACT = ("lattice4", "lattice8"), ("compactlattice44", "compactlattice84")
_ARC_HEAD = struct.Struct("<ii")
_NEXT_STATE = struct.Struct("<i")
_TEXT_LINE = re.compile(
    rb"([^\n,]*)(?:(?<=\S),([^\s,]*)(?:,(\S*))?)?[^\S\n]*"
)  # the last group is the string
_LABEL = re.compile(rb"[^_]*_?")

_Costs = tuple[float, float]  # of the graph, of the acoustics
_Ids = Iterable[memoryview]  # the bytes of transition ids, int32, piece by piece


def read_lattice(cursor: Cursor) -> CompactLattice:
    """One lattice, plain or compact, binary or text; for `read_table("lat.1.gz", read_lattice)`.

    Raises:
        DataError: no lattice, cut short, without a start state, or with a state, label or weight that cannot be.
    """
    if cursor.peek(len(MAGIC)) == MAGIC:
        return _read_binary(cursor)
    return _read_text(cursor)


class _Builder:
    """Arcs and final weights as they are met; messages have the offset where the lattice begins."""

    def __init__(self, cursor: Cursor, begin: int, start: int, num_states: int, kind: str) -> None:
        self.cursor, self.begin = cursor, begin
        if not 0 <= start < num_states:
            cursor.fail(f"start state {start} of a lattice of {num_states} states", begin)
        self.start, self.lowest_cost = start, float(np.finfo(kind).min)
        self.arcs = tuple(array("i") for _ in range(4))  # src, dst, word, weight
        self.final = array("i", [NOT_FINAL]) * num_states
        self.costs: array[float] = array(kind)
        self.ends, self.ids = array("I"), array("i")

    def add(self, src: int, dst: int, word: int, costs: _Costs, ids: _Ids) -> None:
        """An arc."""
        what = f"arc {len(self.arcs[0])} of a lattice"
        if word < 0:
            self.cursor.fail(f"{what} has a negative label", self.begin)
        weight = self.weight(costs, ids, f"{what} has the cost")
        for column, number in zip(self.arcs, (src, dst, word, weight), strict=True):
            column.append(number)

    def finish(self, state: int, costs: _Costs, ids: _Ids) -> None:
        """The final weight of a state; of several the last counts."""
        weight = self.weight(costs, ids, "a lattice with the final cost")
        self.final[state] = NOT_FINAL if costs == (math.inf, math.inf) else weight

    def weight(self, costs: _Costs, ids: _Ids, what: str) -> int:
        """What stands for a weight in `CompactLattice.weight`."""
        before = len(self.ids)
        for piece in ids:
            self.ids.frombytes(piece)
        if not any(costs) and len(self.ids) <= before + 1:
            return -self.ids.pop() if len(self.ids) > before else 0
        if not all(cost >= self.lowest_cost for cost in costs):
            self.cursor.fail(f"{what} NaN or -Infinity", self.begin)
        self.costs.extend(costs)
        self.ends.append(len(self.ids))
        return len(self.ends)

    def lattice(self) -> CompactLattice:
        src, dst, word, weight = (np.frombuffer(column, dtype=np.int32) for column in self.arcs)
        return CompactLattice(
            num_states=len(self.final),
            start=self.start,
            src=src,
            dst=dst,
            word=word,
            weight=weight,
            final=np.frombuffer(self.final, dtype=np.int32),
            costs=np.frombuffer(self.costs, dtype=self.costs.typecode).reshape(-1, 2),
            ends=np.frombuffer(self.ends, dtype=np.uint32),
            transitions=np.frombuffer(self.ids, dtype=np.int32),
        )


def _read_binary(cursor: Cursor) -> CompactLattice:
    begin = cursor.position
    header = read_header(cursor)
    if header.kind != "vector" or header.arc_type not in (*PLAIN, *COMPACT):
        cursor.fail(
            f"FST of type {header.kind!r} over {header.arc_type!r} arcs; expected a lattice: 'vector' over one of "
            f"{', '.join((*PLAIN, *COMPACT))}",
            begin,
        )
    is_plain = header.arc_type in PLAIN
    least = 16 if is_plain else 20
    if not 0 <= header.num_states * least <= cursor.left:
        cursor.fail(f"lattice of {header.num_states} states, {cursor.left} bytes are left")
    kind = "f" if header.arc_type in ("lattice4", "compactlattice44") else "d"
    builder = _Builder(cursor, begin, header.start, header.num_states, kind)
    weight = _weight_reader(cursor, kind, is_plain)
    for state in range(header.num_states):
        builder.finish(state, *weight())
        count = int.from_bytes(cursor.take(8, "number of arcs"), "little", signed=True)
        if not 0 <= count * least <= cursor.left:
            cursor.fail(f"state {state} has {count} arcs, {cursor.left} bytes are left")
        for _ in range(count):
            ilabel, olabel = _ARC_HEAD.unpack(cursor.take(_ARC_HEAD.size, "arc"))
            costs, ids = weight()
            (dst,) = _NEXT_STATE.unpack(cursor.take(_NEXT_STATE.size, "arc"))
            if not 0 <= dst < header.num_states:
                cursor.fail(f"an arc leads to state {dst} of {header.num_states}")
            if is_plain:
                builder.add(state, dst, olabel, costs, _one_id(cursor, ilabel))
            else:
                builder.add(state, dst, ilabel, costs, ids)
    return builder.lattice()


def _one_id(cursor: Cursor, label: int) -> _Ids:
    """The string of an arc of a plain lattice; 0 is no transition id."""
    if label < 0:
        cursor.fail(f"an arc of a lattice has the negative transition id {label}")
    return (memoryview(array("i", [label])).cast("B"),) if label else ()


def _weight_reader(cursor: Cursor, kind: str, is_plain: bool) -> Callable[[], tuple[_Costs, _Ids]]:
    """What reads one weight: two floats or doubles; a compact one has a count and 32-bit transition ids behind."""
    costs = struct.Struct(f"<2{kind}")

    def plain() -> tuple[_Costs, _Ids]:
        return costs.unpack(cursor.take(costs.size, "weight")), ()

    def compact() -> tuple[_Costs, _Ids]:
        value, _ = plain()
        (size,) = _NEXT_STATE.unpack(cursor.take(4, "length of a string"))
        ids = np.frombuffer(cursor.take(4 * size, "transition ids"), dtype="<i4")
        if ids.min(initial=0) < 0:
            cursor.fail(f"a string of a lattice has the negative transition id {ids.min()}")
        return value, (ids.astype(np.int32, copy=False).view(np.uint8).data,)

    return plain if is_plain else compact


def _read_text(cursor: Cursor) -> CompactLattice:
    """Lines as `fsachain.openfst` reads, with weights `graph,acoustic` or `graph,acoustic,1_2_3`, up to an empty line.

    They are gone through twice: final weights are kept by state, and how many states there are the last line may tell.
    """
    begin, states = cursor.position, NamedStates()
    for numbers, _, ids in _text_lines(cursor):
        for _ in ids:  # each id is looked at
            pass
        states.add(numbers[:2])
    if not states.are_possible:
        cursor.fail(
            f"a lattice in text form with states {states.lowest} to {states.highest}; expected states numbered densely "
            "from 0"
        )
    cursor.position = begin
    builder = _Builder(cursor, begin, states.start, states.highest + 1, "f")
    for numbers, costs, ids in _text_lines(cursor):
        if len(numbers) == 1:
            builder.finish(numbers[0], costs, ids)
        else:
            src, dst, word = numbers
            builder.add(src, dst, word, costs, ids)
    return builder.lattice()


def _text_lines(cursor: Cursor) -> Iterator[tuple[tuple[int, ...], _Costs, _Ids]]:
    """Of each line the numbers `src dst word` or `state`, the costs, and the transition ids.

    An arc of a compact lattice has one label, that of a plain one two; which it is, the weights tell.
    """
    if cursor.peek(1) == b"\n":
        cursor.position += 1
    while cursor.left:
        begin = cursor.position
        found = _TEXT_LINE.match(cursor.data, begin)
        assert found is not None
        if max(found.end(1), found.end(2)) - begin > LONGEST_LINE:
            cursor.fail(f"a line of more than {LONGEST_LINE} bytes before its transition ids")
        cursor.position = min(found.end() + 1, len(cursor.data))
        try:
            behind = bytes(cursor.data[found.end() : cursor.position])
            if behind.strip():
                raise ValueError(f"{behind!r} behind {found[1][-40:]!r}")
            fields, commas = found[1].split(), (found.lastindex or 1) - 1
            if not fields:
                return
            costs = (float(fields.pop()), float(found[2])) if commas else (0.0, 0.0)
            numbers = array("i", map(int, fields))
            if len(numbers) != 1 and (len(numbers), commas) not in ((3, 0), (3, 2), (4, 0), (4, 1)):
                raise ValueError(f"{len(numbers) + bool(commas)} fields")
        except (ValueError, OverflowError) as error:
            _refuse(cursor, error, begin)
        if len(numbers) == 4:
            yield (numbers[0], numbers[1], numbers[3]), costs, _one_id(cursor, numbers[2])
        else:
            yield tuple(numbers), costs, _string(cursor, *found.span(3), begin)


def _string(cursor: Cursor, begin: int, end: int, line: int) -> Iterator[memoryview]:
    """Transition ids `1_2_3` between two offsets."""
    for piece in cursor.pieces(begin, end, _LABEL):
        begin += len(piece)
        try:
            ids = array("i", map(int, (piece if begin == end else piece[:-1]).split(b"_")))
            if min(ids) < 1:
                raise ValueError("a transition id below 1")
        except (ValueError, OverflowError) as error:
            _refuse(cursor, error, line)
        yield memoryview(ids).cast("B")


def _refuse(cursor: Cursor, error: Exception, begin: int) -> NoReturn:
    if isinstance(error, OverflowError):
        cursor.fail("a lattice with a state or label beyond 32 bits", begin)
    cursor.fail(
        "expected `src dst ilabel olabel [weight]`, `src dst word [weight]` or `state [weight]` "
        f"({str(error)[:80]})",
        begin,
    )


# Lattices of Kaldi as numerators: over pdfs as they stand, or as phones with times for `PhoneLattice`.

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
