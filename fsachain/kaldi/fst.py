"""OpenFst files and archives as Kaldi writes them, read with bounds: vector, const and compact acceptor, and text.

OpenFst's own reader reserves what the header claims and ends the process where it cannot, so files from
elsewhere are read here. Layout: OpenFst's fst.cc, vector-fst.h, const-fst.h, compact-fst.h. Weights are one
float32 (arc types "standard" and "log"), in vector FSTs also one float64 ("log64"); labels are left as they are in
the file.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.errors import GraphError
from fsachain.fsa import Fsa
from fsachain.graph.transducer import ARC, Transducer
from fsachain.kaldi.stream import Cursor

MAGIC = (2125659606).to_bytes(4, "little")
_SYMBOLS_MAGIC = 2125658996
_HAS_INPUT_SYMBOLS, _HAS_OUTPUT_SYMBOLS, _IS_ALIGNED = 1, 2, 4
_ALIGNMENT = 16
_KINDS = {
    "vector": ("standard", "log", "log64"),
    "const": ("standard", "log"),
    "compact_acceptor": ("standard", "log"),
}
_WIDE_ARC = np.dtype([("ilabel", "<i4"), ("olabel", "<i4"), ("cost", "<f8"), ("dst", "<i4")])
_CONST_STATE = np.dtype([("final", "<f4"), ("first", "<u4"), ("num_arcs", "<u4"), ("epsilons", "<u4", 2)])
_SPARE_STATES = 1000  # that no line of a text form names
_COMPACT = np.dtype([("label", "<i4"), ("cost", "<f4"), ("dst", "<i4")])


class Header(NamedTuple):
    """What an OpenFst file says of itself; none of it is to be trusted."""

    kind: str
    arc_type: str
    flags: int
    start: int
    num_states: int
    num_arcs: int


def read_fst(cursor: Cursor) -> Transducer:
    """An FST, binary or text, labels as in the file, log_prob = -cost, arcs sorted by source state.

    Raises:
        DataError: no FST of a known kind, cut short, without a start state, or with a state, label or weight
            that cannot be.
    """
    begin = cursor.position
    return _checked(cursor, begin, read_arcs(cursor))


def read_arcs(cursor: Cursor) -> Transducer:
    """`read_fst` without a look at the states, labels and weights that it found."""
    begin = cursor.position
    if cursor.peek(4) != MAGIC:
        return _read_text(cursor)
    header = read_header(cursor)
    if header.arc_type not in _KINDS.get(header.kind, ()):
        cursor.fail(
            f"FST of type {header.kind!r} over {header.arc_type!r} arcs; expected one of {', '.join(_KINDS)} over "
            "standard or log arcs, or vector over log64 (convert it with fstconvert; lattices are read by read_lattice)",
            begin,
        )
    readers = {"vector": _read_vector, "const": _read_const, "compact_acceptor": _read_compact_acceptor}
    return readers[header.kind](cursor, header)


def read_fsa(cursor: Cursor) -> Fsa:
    """An acceptor over pdfs: labels pdf + 1 on both sides, no epsilon, such as den.fst or a supervision.

    Raises:
        DataError: as `read_fst`, or no such acceptor.
    """
    begin = cursor.position
    arcs = read_fst(cursor)
    try:
        return arcs.acceptor(cursor.name)
    except GraphError as error:
        cursor.fail(f"no acceptor over pdfs ({error})", begin)


def _string(cursor: Cursor, what: str) -> str:
    (size,) = struct.unpack("<i", cursor.take(4, what))
    return bytes(cursor.take(size, what)).decode("latin-1")


def read_header(cursor: Cursor) -> Header:
    """The header of an OpenFst file; symbol tables behind it are passed over."""
    cursor.take(4, "magic number")
    kind, arc_type = _string(cursor, "FST type"), _string(cursor, "arc type")
    _, flags, _ = struct.unpack("<iiQ", cursor.take(16, "FST header"))
    start, num_states, num_arcs = struct.unpack("<qqq", cursor.take(24, "FST header"))
    for flag in (_HAS_INPUT_SYMBOLS, _HAS_OUTPUT_SYMBOLS):
        if flags & flag:
            _skip_symbols(cursor)
    return Header(kind, arc_type, flags, start, num_states, num_arcs)


def _skip_symbols(cursor: Cursor) -> None:
    begin = cursor.position
    (magic,) = struct.unpack("<i", cursor.take(4, "symbol table"))
    if magic != _SYMBOLS_MAGIC:
        cursor.fail("expected a symbol table", begin)
    _string(cursor, "name of a symbol table")
    _, size = struct.unpack("<qq", cursor.take(16, "symbol table"))
    if not 0 <= 12 * size <= cursor.left:
        cursor.fail(f"a symbol table of {size} symbols, {cursor.left} bytes are left", begin)
    for _ in range(size):
        _string(cursor, "symbol")
        cursor.take(8, "key of a symbol")


def _check_size(cursor: Cursor, header: Header, bytes_per_state: int) -> None:
    if not 0 <= header.num_states * bytes_per_state <= cursor.left:
        cursor.fail(f"FST of {header.num_states} states, {cursor.left} bytes are left")


def _read_vector(cursor: Cursor, header: Header) -> Transducer:
    state, arc = (
        (struct.Struct("<dq"), _WIDE_ARC) if header.arc_type == "log64" else (struct.Struct("<fq"), ARC)
    )
    _check_size(cursor, header, state.size)
    finals = np.empty(header.num_states)
    counts = np.empty(header.num_states, dtype=np.int64)
    data, offset, end = cursor.data, cursor.position, len(cursor.data)
    for number in range(header.num_states):
        body = offset + state.size
        finals[number], count = state.unpack_from(data, offset) if body <= end else (math.nan, -1)
        offset = body + arc.itemsize * count
        if count < 0 or offset > end:
            cursor.fail(
                f"state {number} of {header.num_states}: the file ends before its {max(count, 0)} arcs"
            )
        counts[number] = count
    packed, filled, place = bytearray(arc.itemsize * int(counts.sum())), 0, cursor.position
    for size in (arc.itemsize * counts).tolist():
        place += state.size
        packed[filled : filled + size] = data[place : place + size]
        filled, place = filled + size, place + size
    cursor.position = offset
    return _transducer(header, finals, counts, np.frombuffer(packed, dtype=arc))


def _read_const(cursor: Cursor, header: Header) -> Transducer:
    _align(cursor, header)
    _check_size(cursor, header, _CONST_STATE.itemsize)
    states = cursor.array(_CONST_STATE, header.num_states, "states of a const FST")
    _align(cursor, header)
    arcs = cursor.array(ARC, header.num_arcs, "arcs of a const FST")
    counts = states["num_arcs"].astype(np.int64)
    if not np.array_equal(states["first"], np.cumsum(counts) - counts) or counts.sum() != len(arcs):
        cursor.fail(f"a const FST whose states do not share out its {len(arcs)} arcs in order")
    return _transducer(header, states["final"], counts, arcs)


def _read_compact_acceptor(cursor: Cursor, header: Header) -> Transducer:
    """A final weight is an element without label and destination, before the arcs of its state."""
    _align(cursor, header)
    _check_size(cursor, header, 4)
    offsets = cursor.array("<u4", header.num_states + 1, "states of a compact FST").astype(np.int64)
    if offsets[0] or np.any(np.diff(offsets) < 0):
        cursor.fail("a compact FST whose states are not in order")
    _align(cursor, header)
    elements = cursor.array(_COMPACT, int(offsets[-1]), "arcs of a compact FST")
    owner = np.repeat(np.arange(header.num_states), np.diff(offsets))
    is_final = elements["label"] == -1
    finals = np.full(header.num_states, np.inf)
    finals[owner[is_final]] = elements["cost"][is_final]
    kept = elements[~is_final]
    arcs = np.empty(len(kept), dtype=ARC)
    arcs["ilabel"], arcs["olabel"], arcs["cost"], arcs["dst"] = (
        kept["label"],
        kept["label"],
        kept["cost"],
        kept["dst"],
    )
    return _transducer(header, finals, np.bincount(owner[~is_final], minlength=header.num_states), arcs)


def _align(cursor: Cursor, header: Header) -> None:
    if header.flags & _IS_ALIGNED:
        cursor.take(-cursor.position % _ALIGNMENT, "padding of an aligned FST")


def _transducer(
    header: Header,
    finals: npt.NDArray[np.floating],
    counts: npt.NDArray[np.int64],
    arcs: npt.NDArray[Any],
) -> Transducer:
    src = np.repeat(np.arange(header.num_states, dtype=np.int32), counts)
    with np.errstate(invalid="ignore"):  # signalling NaNs, which are refused later
        log_prob = arcs["cost"].astype(np.float64)
        np.subtract(0.0, log_prob, out=log_prob)
        final_log_prob = 0.0 - finals.astype(np.float64)
    ilabel, olabel = arcs["ilabel"], arcs["olabel"]
    return Transducer(
        header.num_states, header.start, src, arcs["dst"], ilabel, olabel, log_prob, final_log_prob
    )


def _read_text(cursor: Cursor) -> Transducer:
    """Lines `src dst ilabel [olabel] [cost]` and `state [cost]` up to an empty line; the first names the start."""
    if cursor.peek(1) == b"\n":
        cursor.position += 1
    arcs = tuple(array("i") for _ in range(4))  # src, dst, ilabel, olabel
    costs, final_states, final_costs = array("d"), array("i"), array("d")
    start = -1
    while cursor.left:
        begin = cursor.position
        fields = cursor.line().split()
        if not fields:
            break
        try:
            if len(fields) <= 2:
                final_states.append(int(fields[0]))
                final_costs.append(float(fields[1]) if len(fields) == 2 else 0.0)
            elif len(fields) in (4, 5):
                numbers = [int(field) for field in fields[:4]]
                costs.append(float(fields[4]) if len(fields) == 5 else 0.0)
                for column, number in zip(arcs, numbers, strict=True):
                    column.append(number)
            else:
                raise ValueError(f"{len(fields)} fields")
        except OverflowError:
            cursor.fail("an FST in text form with a state or label beyond 32 bits", begin)
        except ValueError as error:
            cursor.fail(f"expected `src dst ilabel olabel [cost]` or `state [cost]` ({error})", begin)
        start = int(fields[0]) if start < 0 else start
    columns = [np.frombuffer(column, dtype=np.int32) for column in arcs]
    finals = np.frombuffer(final_states, dtype=np.int32), np.frombuffer(final_costs, dtype=np.float64)
    return _of_columns(columns, np.frombuffer(costs, dtype=np.float64), finals, start, cursor)


def _of_columns(
    columns: Sequence[npt.NDArray[np.int32]],
    costs: npt.NDArray[np.float64],
    finals: tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]],
    start: int,
    cursor: Cursor,
) -> Transducer:
    src, dst, ilabel, olabel = columns
    lowest, highest = (
        int(find([start, *(find(states) for states in (src, dst, finals[0]) if states.size)]))
        for find in (np.min, np.max)
    )
    num_states = highest + 1
    if lowest < 0 or num_states > _SPARE_STATES + 2 * len(src) + len(finals[0]):
        cursor.fail(f"an FST in text form with states {lowest} to {highest}, of {len(src)} arcs")
    order = np.argsort(src, kind="stable")
    arcs = np.empty(len(src), dtype=ARC)
    for field, column in (("dst", dst), ("ilabel", ilabel), ("olabel", olabel), ("cost", costs)):
        arcs[field] = column[order]
    final = np.full(num_states, np.inf)
    final[finals[0]] = finals[1]
    counts = np.bincount(src, minlength=num_states).astype(np.int64)
    return _transducer(Header("text", "standard", 0, start, num_states, len(src)), final, counts, arcs)


def _checked(cursor: Cursor, begin: int, arcs: Transducer) -> Transducer:
    if not 0 <= arcs.start < arcs.num_states:
        cursor.fail(f"start state {arcs.start} of an FST of {arcs.num_states} states", begin)
    for is_bad, what in (
        ((arcs.dst < 0) | (arcs.dst >= arcs.num_states), f"leads beyond the {arcs.num_states} states"),
        ((arcs.ilabel < 0) | (arcs.olabel < 0), "has a negative label"),
        (np.isnan(arcs.log_prob) | (arcs.log_prob == np.inf), "has the cost NaN or -Infinity"),
    ):
        if is_bad.any():
            cursor.fail(f"arc {int(np.argmax(is_bad))} of an FST {what}", begin)
    if np.any(np.isnan(arcs.final_log_prob) | (arcs.final_log_prob == np.inf)):
        cursor.fail("an FST with the final cost NaN or -Infinity", begin)
    return arcs
