"""Kaldi's lattices, plain and compact, binary and text, as arrays with one transition id for each arc.

A plain lattice is an FST over transition ids and words whose weights are two costs, of the graph (language model,
pronunciations, transitions) and of the acoustics. A compact one has words on its arcs and a string of transition ids
in each weight; here it is written out, each string as a chain of arcs. Formats:
Kaldi's lat/kaldi-lattice.cc and fstext/lattice-weight.h.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fsachain.kaldi.fst import MAGIC, read_header
from fsachain.kaldi.stream import Cursor

PLAIN, COMPACT = ("lattice4", "lattice8"), ("compactlattice44", "compactlattice84")
_ARC_HEAD = struct.Struct("<ii")
_NEXT_STATE = struct.Struct("<i")
_SPARE_STATES = 1000  # that no line of a text form names

_Costs = tuple[float, float]  # of the graph, of the acoustics
_Weight = tuple[_Costs, list[int]]  # and the string of transition ids: empty in a plain lattice


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


def read_lattice(cursor: Cursor) -> Lattice:
    """One lattice, plain or compact, binary or text; for `read_table("lat.1.gz", read_lattice)`.

    Raises:
        DataError: no lattice, cut short, without a start state, or with a state, label or weight that cannot be.
    """
    begin = cursor.position
    builder = _Builder(cursor, begin)
    if cursor.peek(len(MAGIC)) == MAGIC:
        _read_binary(cursor, builder, begin)
    else:
        _read_text(cursor, builder)
    return builder.lattice()


class _Arcs:
    """Arcs as columns: six numbers of an arc take 32 bytes."""

    def __init__(self) -> None:
        self.numbers = tuple(array("i") for _ in range(4))  # src, dst, transition, word
        self.costs = array("d"), array("d")

    def add(self, src: int, dst: int, transition: int, word: int, graph: float, acoustic: float) -> None:
        """One arc; an OverflowError where a number is beyond 32 bits."""
        for column, number in zip(self.numbers, (src, dst, transition, word), strict=True):
            column.append(number)
        self.costs[0].append(graph)
        self.costs[1].append(acoustic)


class _Builder:
    """Arcs and final weights as they are met; strings become chains of arcs, behind those of the file.

    States of chains are -1, -2, ... until all states of the file are known; then they follow these.
    """

    def __init__(self, cursor: Cursor, begin: int) -> None:
        self.cursor, self.begin = cursor, begin
        self.start, self.num_states = -1, 0
        self.arcs, self.chains = _Arcs(), _Arcs()
        self.num_inner = 0
        self.finals = array("q"), array("d"), array("d")  # state, costs

    def add(self, src: int, dst: int, ilabel: int, olabel: int, weight: _Weight) -> None:
        """An arc of the file; the input label of a compact lattice is the word, and its output label the same."""
        costs, string = weight
        if string:
            self.chain(src, dst, ilabel, weight)
        else:
            self.arcs.add(src, dst, ilabel, olabel, *costs)

    def finish(self, state: int, weight: _Weight) -> None:
        """A final weight of the file."""
        costs, string = weight
        if string:
            last = self.inner_state()
            self.chain(state, last, 0, weight)
            state, costs = last, (0.0, 0.0)
        states, *columns = self.finals
        states.append(state)
        for column, cost in zip(columns, costs, strict=True):
            column.append(cost)

    def inner_state(self) -> int:
        """A new state of a chain."""
        self.num_inner += 1
        return -self.num_inner

    def chain(self, src: int, dst: int, word: int, weight: _Weight) -> None:
        """A string as a chain of arcs, the first of which has the word and the costs."""
        costs, string = weight
        for place, label in enumerate(string):
            end = dst if place + 1 == len(string) else self.inner_state()
            self.chains.add(src, end, label, word, *costs)
            src, word, costs = end, 0, (0.0, 0.0)

    def lattice(self) -> Lattice:
        fail, size = self.cursor.fail, self.num_states
        if not 0 <= self.start < size:
            fail(f"start state {self.start} of a lattice of {size} states", self.begin)
        src, dst, transition, word = (
            np.concatenate(
                [np.frombuffer(part.numbers[column], np.int32) for part in (self.arcs, self.chains)]
            )
            for column in range(4)
        )
        graph, acoustic = (
            np.concatenate([np.frombuffer(part.costs[column]) for part in (self.arcs, self.chains)])
            for column in range(2)
        )
        final = np.full((2, size + self.num_inner), np.inf)
        final[:, self.numbered(np.frombuffer(self.finals[0], np.int64))] = self.finals[1:]
        for ends in (src, dst):
            ends[:] = self.numbered(ends)
        for is_bad, what in (
            (src >= size + self.num_inner, "leaves no state of it"),
            (dst >= size + self.num_inner, f"leads beyond its {size} states"),
            ((transition < 0) | (word < 0), "has a negative label"),
            (_impossible(graph) | _impossible(acoustic), "has the cost NaN or -Infinity"),
        ):
            if is_bad.any():
                fail(f"arc {int(np.argmax(is_bad))} of a lattice {what}", self.begin)
        if _impossible(final).any():
            fail("a lattice with the final cost NaN or -Infinity", self.begin)
        return Lattice(
            len(final[0]), self.start, src, dst, transition, word, graph, acoustic, final[0], final[1]
        )

    def numbered(self, states: npt.NDArray[np.signedinteger]) -> npt.NDArray[np.signedinteger]:
        """States of chains behind those of the file."""
        return np.where(states < 0, self.num_states - 1 - states, states)


def _impossible(costs: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    return np.isnan(costs) | (costs == -np.inf)


def _read_binary(cursor: Cursor, builder: _Builder, begin: int) -> None:
    header = read_header(cursor)
    if header.kind != "vector" or header.arc_type not in (*PLAIN, *COMPACT):
        cursor.fail(
            f"FST of type {header.kind!r} over {header.arc_type!r} arcs; expected a lattice: 'vector' over one of "
            f"{', '.join((*PLAIN, *COMPACT))}",
            begin,
        )
    weight = _weight_reader(cursor, header.arc_type)
    least = 16 if header.arc_type in PLAIN else 20
    if not 0 <= header.num_states * least <= cursor.left:
        cursor.fail(f"lattice of {header.num_states} states, {cursor.left} bytes are left")
    builder.start, builder.num_states = header.start, header.num_states
    is_compact = header.arc_type in COMPACT
    for state in range(header.num_states):
        builder.finish(state, weight())
        count = int.from_bytes(cursor.take(8, "number of arcs"), "little", signed=True)
        if not 0 <= count * least <= cursor.left:
            cursor.fail(f"state {state} has {count} arcs, {cursor.left} bytes are left")
        for _ in range(count):
            ilabel, olabel = _ARC_HEAD.unpack(cursor.take(_ARC_HEAD.size, "arc"))
            found = weight()
            (dst,) = _NEXT_STATE.unpack(cursor.take(_NEXT_STATE.size, "arc"))
            if not 0 <= dst < header.num_states:
                cursor.fail(f"an arc leads to state {dst} of {header.num_states}")
            _add(builder, is_compact, (state, dst, ilabel, olabel), found)


def _add(builder: _Builder, is_compact: bool, arc: tuple[int, int, int, int], weight: _Weight) -> None:
    """In a compact lattice an arc without a string spends no frame, whatever its word."""
    src, dst, ilabel, olabel = arc
    if is_compact and not weight[1]:
        builder.add(src, dst, 0, ilabel, weight)
    else:
        builder.add(src, dst, ilabel, olabel, weight)


def _weight_reader(cursor: Cursor, arc_type: str) -> Callable[[], _Weight]:
    """What reads one weight: two floats or doubles; a compact one has a count and 32-bit transition ids behind."""
    costs = struct.Struct("<ff" if arc_type in ("lattice4", "compactlattice44") else "<dd")

    def plain() -> _Weight:
        return costs.unpack(cursor.take(costs.size, "weight")), []

    def compact() -> _Weight:
        value = costs.unpack(cursor.take(costs.size, "weight"))
        (size,) = _NEXT_STATE.unpack(cursor.take(4, "length of a string"))
        return value, cursor.array("<i4", size, "transition ids").tolist()

    return plain if arc_type in PLAIN else compact


def _read_text(cursor: Cursor, builder: _Builder) -> None:
    """Lines as `fsachain.kaldi.fst` reads, with weights `graph,acoustic` or `graph,acoustic,1_2_3`, up to an empty line.

    An arc of a compact lattice has one label, that of a plain one two; which it is, the weights tell.
    """
    if cursor.peek(1) == b"\n":
        cursor.position += 1
    lowest, highest, count = 0, -1, 0
    while cursor.left:
        begin = cursor.position
        fields = cursor.line().split()
        if not fields:
            break
        try:
            weight, commas = _text_weight(fields[-1])
            numbers = [int(field) for field in (fields[:-1] if commas else fields)]
            if len(numbers) == 1:
                builder.finish(numbers[0], weight)
            elif (len(numbers), commas) in ((3, 0), (3, 2), (4, 0), (4, 1)):
                src, dst, label = numbers[:3]
                _add(builder, len(numbers) == 3, (src, dst, label, numbers[-1]), weight)
            else:
                raise ValueError(f"{len(fields)} fields")
        except ValueError as error:
            cursor.fail(
                f"expected `src dst ilabel olabel [weight]`, `src dst word [weight]` or `state [weight]` ({error})",
                begin,
            )
        except OverflowError:
            cursor.fail("a lattice with a state or label beyond 32 bits", begin)
        named = numbers[: 1 if len(numbers) == 1 else 2]
        lowest, highest, count = min(lowest, *named), max(highest, *named), count + len(named)
        builder.start = numbers[0] if builder.start < 0 else builder.start
    builder.num_states = highest + 1
    if lowest < 0 or builder.num_states > _SPARE_STATES + count:
        cursor.fail(
            f"a lattice in text form with states {lowest} to {highest}, at most {count} of them named"
        )


def _text_weight(field: str) -> tuple[_Weight, int]:
    """The weight that a field is, and its commas; no commas: it is a number, and the weight is one."""
    parts = field.split(",")
    if len(parts) == 1:
        return ((0.0, 0.0), []), 0
    if len(parts) not in (2, 3):
        raise ValueError(f"{len(parts) - 1} commas")
    string = [int(part) for part in parts[2].split("_")] if len(parts) == 3 and parts[2] else []
    if any(label < 1 for label in string):
        raise ValueError("a transition id below 1")
    costs = float(parts[0]), float(parts[1])
    return (costs, string), len(parts) - 1
