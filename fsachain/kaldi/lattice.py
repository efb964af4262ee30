"""Kaldi's lattices, plain and compact, binary and text, read with bounds.

Formats: Kaldi's lat/kaldi-lattice.cc and fstext/lattice-weight.h.
"""

from __future__ import annotations

import math
import re
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn

import numpy as np

from fsachain.kaldi.fst import MAGIC, read_header
from fsachain.kaldi.lattice_arrays import NOT_FINAL, CompactLattice
from fsachain.kaldi.stream import LONGEST_LINE, Cursor
from fsachain.named_states import NamedStates

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
    """Lines as `fsachain.kaldi.fst` reads, with weights `graph,acoustic` or `graph,acoustic,1_2_3`, up to an empty line.

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
