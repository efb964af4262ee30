"""OpenFst's graphs as plain arrays: their files, read with bounds, and the way in and out of pywrapfst.

OpenFst's own reader reserves what a header claims and ends the process where it cannot, so files are read here: vector,
const and compact acceptor, and text as in Kaldi's archives. Layout: OpenFst's fst.cc, vector-fst.h, const-fst.h,
compact-fst.h. Weights are one float32 (arc types "standard" and "log"), in vector FSTs also one float64 ("log64").
pywrapfst visits arcs one Python call at a time; a whole graph crosses in one piece through the binary form instead.
Labels stay OpenFst's (0 = epsilon), weights become natural log-probabilities: log_prob = -cost.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.errors import DataError, GraphError, brief, counted, listed, refuse_text, require
from fsachain.opaque import opaque
from fsachain.stream import Cursor, open_file

MAGIC = (2125659606).to_bytes(4, "little")
_EXPANDED_AND_MUTABLE = 3
ARC = np.dtype([("ilabel", "<i4"), ("olabel", "<i4"), ("cost", "<f4"), ("dst", "<i4")])
# Of a lattice of Kaldi: costs of the graph and of the acoustics.
LATTICE_ARC = np.dtype([("ilabel", "<i4"), ("olabel", "<i4"), ("cost", "<f4", (2,)), ("dst", "<i4")])
_COUNT = struct.Struct("<q")


def rows(*columns: npt.NDArray[Any]) -> Iterator[tuple[Any, ...]]:
    """The rows of arrays of one length, as Python's own numbers."""
    return zip(*(column.tolist() for column in columns), strict=True)


@opaque
@dataclass(frozen=True, eq=False)
class Transducer:
    """States, one start, arcs with two labels and a log-probability. Arcs may have any order.

    Attributes:
        num_states, start: number of states S and the start state.
        src, dst, ilabel, olabel: int [A]; label 0 is epsilon.
        log_prob: float64 [A]; final_log_prob: float64 [S], -inf = not final.
    """

    num_states: int
    start: int
    src: npt.NDArray[np.integer]
    dst: npt.NDArray[np.integer]
    ilabel: npt.NDArray[np.integer]
    olabel: npt.NDArray[np.integer]
    log_prob: npt.NDArray[np.float64]
    final_log_prob: npt.NDArray[np.float64]

    __repr__ = brief

    def leaving(self, tags: Sequence[int] | None) -> list[list[tuple[int, int, int, float, int]]]:
        """The arcs that leave each state: dst, ilabel, olabel, log_prob, and the arc's tag, -1 where there are no tags."""
        result: list[list[tuple[int, int, int, float, int]]] = [[] for _ in range(self.num_states)]
        own = [-1] * len(self.src) if tags is None else tags
        arcs = rows(self.src, self.dst, self.ilabel, self.olabel, self.log_prob)
        for (src, *arc), tag in zip(arcs, own, strict=True):
            result[src].append((arc[0], arc[1], arc[2], arc[3], tag))
        return result

    @classmethod
    def from_openfst(cls, fst: Any) -> Transducer:
        """Arrays of a pywrapfst FST over the tropical semiring, arcs in its order; the empty FST is a GraphError."""
        if fst.arc_type() != "standard":
            raise GraphError(f"arc type {fst.arc_type()!r}: expected 'standard' (tropical, 32 bits)")
        if fst.start() < 0:
            raise GraphError("the FST has no start state: it accepts nothing")
        vector = require("pywrapfst", extra="graph").convert(fst, "vector")
        vector.set_input_symbols(None)
        vector.set_output_symbols(None)
        return read_arcs(Cursor(vector.write_to_string(), "the FST"))

    @classmethod
    def of_arcs(
        cls, arcs: Iterable[tuple[Any, ...]], final_log_prob: npt.NDArray[np.float64], start: int = 0
    ) -> Transducer:
        """From src, dst, ilabel, olabel and log_prob of each arc; what follows these in a tuple is passed over."""
        columns = list(zip(*arcs, strict=True)) or [()] * 5
        src, dst, ilabel, olabel = (np.array(column, dtype=np.int32) for column in columns[:4])
        log_prob = np.array(columns[4], dtype=np.float64)
        return cls(len(final_log_prob), start, src, dst, ilabel, olabel, log_prob, final_log_prob)

    def to_openfst(self) -> Any:
        """A pywrapfst `VectorFst` (tropical); arcs of one state keep their order."""
        pywrapfst = require("pywrapfst", extra="graph")
        return pywrapfst.VectorFst.read_from_string(self.to_bytes())

    def to_bytes(self) -> bytes:
        """OpenFst's binary form, a vector FST (tropical); arcs of one state keep their order."""
        columns = (self.ilabel, self.olabel, -self.log_prob, self.dst)
        return pack_vector(ARC, self.start, -self.final_log_prob, self.src, *columns)


def pack_vector(
    arc: np.dtype[Any], start: int, finals: npt.NDArray[Any], src: npt.NDArray[np.integer], *columns: Any
) -> bytes:
    """A vector FST in OpenFst's binary form; `columns` are those of `arc`, arcs of one state keep their order."""
    order = np.argsort(src, kind="stable")
    arcs = np.empty(len(order), dtype=arc)
    for name, column in zip(arc.names or (), columns, strict=True):
        arcs[name] = column[order]
    body, size, final = arcs.tobytes(), arc.itemsize, arc["cost"]
    heads = finals.astype(final.base).tobytes()
    ends = np.searchsorted(src[order], np.arange(len(finals)), side="right").tolist()
    kind = b"standard" if arc == ARC else b"lattice4"
    pieces = [MAGIC, struct.pack("<i6si8sii", 6, b"vector", 8, kind, 2, 0)]
    pieces.append(struct.pack("<Qqqq", _EXPANDED_AND_MUTABLE, start, len(finals), len(arcs)))
    first = 0
    for state, end in enumerate(ends):
        pieces.append(heads[final.itemsize * state : final.itemsize * (state + 1)])
        pieces += (_COUNT.pack(end - first), body[size * first : size * end])
        first = end
    return b"".join(pieces)


_SPARE_STATES = 1000  # that no line names


def named_states(
    src: npt.NDArray[np.int32], dst: npt.NDArray[np.int32], final: Mapping[int, Any]
) -> tuple[int, int, bool]:
    """Lowest and highest state that the lines of a text name, and whether states are numbered densely from 0.

    Arrays by state have an entry for every number up to the highest, so a short file that names state two billion must
    not have them made. In a sound file each new state is named by a line of its own.
    """
    named = np.concatenate([src, dst, np.array(list(final), dtype=np.int32)])
    lowest, highest = int(named.min(initial=0)), int(named.max(initial=-1))
    return lowest, highest, lowest >= 0 and highest < _SPARE_STATES + len(src) + len(final)


def read_text(cursor: Cursor) -> Transducer:
    """An FST as text: lines `src dst ilabel olabel [cost]` and `state [cost]` up to an empty line.

    Arcs are sorted by source state; the first line names the start. States far beyond those that lines name are a
    DataError.
    """
    start, arcs, costs = -1, array("i"), array("d")  # src, dst, ilabel, olabel of each arc
    final: dict[int, float] = {}
    if cursor.peek(1) == b"\n":
        cursor.position += 1
    while cursor.left:
        begin = cursor.position
        fields = cursor.line().split()
        if not fields:
            break
        try:
            if len(fields) not in (1, 2, 4, 5):
                raise ValueError(counted(len(fields), "field"))
            # OpenFst keeps costs in 32 bits.
            cost = array("f", [float(fields.pop())])[0] if len(fields) in (2, 5) else 0.0
            numbers = array("i", map(int, fields))
        except OverflowError:
            cursor.fail("an FST in text form with a state or label beyond 32 bits", begin)
        except ValueError as error:
            cursor.fail(
                f"expected `src dst ilabel olabel [cost]` or `state [cost]` ({str(error)[:80]})", begin
            )
        start = numbers[0] if start < 0 else start
        if len(numbers) == 1:
            final[numbers[0]] = cost
        else:
            arcs.extend(numbers)
            costs.append(cost)
    columns = np.frombuffer(arcs, dtype=np.int32).reshape(-1, 4).T
    lowest, highest, are_dense = named_states(columns[0], columns[1], final)
    if start < 0 or not are_dense:
        cursor.fail(f"an FST in text form with states {lowest} to {highest}, of {counted(len(costs), 'arc')}")
    order = np.argsort(columns[0], kind="stable")
    src, dst, ilabel, olabel = columns[:, order]
    final_log_prob = np.full(highest + 1, -np.inf)
    final_log_prob[list(final)] = 0.0 - np.array(list(final.values()), dtype=np.float64)
    log_prob = 0.0 - np.frombuffer(costs)[order]
    for kept in (src, dst, ilabel, olabel, log_prob, final_log_prob):
        kept.setflags(write=False)
    return Transducer(highest + 1, start, src, dst, ilabel, olabel, log_prob, final_log_prob)


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
_MOST_ARCS = 2**31 - 1  # of a state
_COMPACT = np.dtype([("label", "<i4"), ("cost", "<f4"), ("dst", "<i4")])


class Header(NamedTuple):
    """What an OpenFst file says of itself; none of it is to be trusted."""

    kind: str
    arc_type: str
    flags: int
    start: int
    num_states: int
    num_arcs: int
    input_symbols: tuple[str, ...]  # of keys 0, 1, ...; none where there is no such table


def read_fst(cursor: Cursor) -> Transducer:
    """An FST, binary or text, labels as in the file, log_prob = -cost, arcs sorted by source state.

    States, labels and weights are checked; a DataError names the place in the file.
    """
    begin = cursor.position
    arcs = read_arcs(cursor)
    if what := fault(arcs):
        cursor.fail(f"an FST with {what}", begin)
    return arcs


def read_arcs(cursor: Cursor) -> Transducer:
    """`read_fst` without the checks of states, labels and weights."""
    begin = cursor.position
    if cursor.peek(4) != MAGIC:
        return read_text(cursor)
    header = read_header(cursor)
    if header.arc_type not in _KINDS.get(header.kind, ()):
        cursor.fail(
            f"FST of type {header.kind!r} over {header.arc_type!r} arcs; expected one of {', '.join(_KINDS)} over "
            "standard or log arcs, or vector over log64 (convert it with fstconvert; lattices are read by read_lattice)",
            begin,
        )
    if header.kind == "vector":
        return _transducer(
            header, *read_body(cursor, header, _WIDE_ARC if header.arc_type == "log64" else ARC)
        )
    return (_read_const if header.kind == "const" else _read_compact_acceptor)(cursor, header)


def _string(cursor: Cursor, what: str) -> str:
    (size,) = struct.unpack("<i", cursor.take(4, what))
    return bytes(cursor.take(size, what)).decode("latin-1")


def read_header(cursor: Cursor) -> Header:
    """The header of an OpenFst file with its input symbols."""
    cursor.take(4, "magic number")
    kind, arc_type = _string(cursor, "FST type"), _string(cursor, "arc type")
    _, flags, _ = struct.unpack("<iiQ", cursor.take(16, "FST header"))
    start, num_states, num_arcs = struct.unpack("<qqq", cursor.take(24, "FST header"))
    symbols = _symbols(cursor) if flags & _HAS_INPUT_SYMBOLS else ()
    if flags & _HAS_OUTPUT_SYMBOLS:
        _symbols(cursor)
    return Header(kind, arc_type, flags, start, num_states, num_arcs, symbols)


def _symbols(cursor: Cursor) -> tuple[str, ...]:
    """The names of a symbol table, or none if their keys are not 0, 1, ... in order."""
    begin = cursor.position
    (magic,) = struct.unpack("<i", cursor.take(4, "symbol table"))
    if magic != _SYMBOLS_MAGIC:
        cursor.fail("expected a symbol table", begin)
    _string(cursor, "name of a symbol table")
    _, size = struct.unpack("<qq", cursor.take(16, "symbol table"))
    if not 0 <= 12 * size <= cursor.left:
        cursor.fail(
            f"a symbol table of {counted(size, 'symbol')}, {counted(cursor.left, 'byte', verb='are')} left",
            begin,
        )
    names: list[str] = []
    keys: list[int] = []
    for _ in range(size):
        names.append(_string(cursor, "symbol").encode("latin-1").decode("utf-8", "replace"))
        keys += struct.unpack("<q", cursor.take(8, "key of a symbol"))
    return tuple(names) if keys == list(range(size)) else ()


def read_input_symbols(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Names of the labels 0, 1, ... that an OpenFst file holds; none where it has no such table, or is text."""
    cursor = open_file(os.fspath(path))
    return read_header(cursor).input_symbols if cursor.peek(len(MAGIC)) == MAGIC else ()


def write_named(fst: Any, path: str | os.PathLike[str], names: Sequence[str]) -> None:
    """As `write_fst`, with the names of the labels 1, 2, ... as the file's symbols."""
    table = require("pywrapfst", extra="graph").SymbolTable()
    for key, name in enumerate(("<eps>", *names)):
        table.add_symbol(name, key)
    if names:
        fst.set_input_symbols(table)
    write_fst(fst, path)


def _check_size(cursor: Cursor, header: Header, bytes_per_state: int) -> None:
    if not 0 <= header.num_states * bytes_per_state <= cursor.left:
        cursor.fail(
            f"FST of {counted(header.num_states, 'state')}, {counted(cursor.left, 'byte', verb='are')} left"
        )


def read_body(
    cursor: Cursor, header: Header, arc: np.dtype[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int32], npt.NDArray[Any]]:
    """Of a vector FST behind its header: final costs, of the type of those in `arc`, owners of arcs, and arcs."""
    cost = arc["cost"]
    size = cost.itemsize + _COUNT.size
    _check_size(cursor, header, size)
    counts = np.empty(header.num_states, dtype=np.int64)
    finals, pieces, data, offset = [], [], cursor.data, cursor.position
    for number in range(header.num_states):
        body = offset + size
        (count,) = _COUNT.unpack_from(data, body - _COUNT.size) if body <= len(data) else (-1,)
        finals.append(data[offset : offset + cost.itemsize])
        offset = body + arc.itemsize * count
        if not 0 <= count <= _MOST_ARCS or offset > len(data):
            cursor.fail(
                f"state {number} of {header.num_states}: the file ends before its {counted(max(count, 0), 'arc')}"
            )
        counts[number] = count
        pieces.append(data[body:offset])
    cursor.position = offset
    costs = np.frombuffer(b"".join(finals), dtype=cost.base).reshape(-1, *cost.shape)
    return costs, _owners(counts), np.frombuffer(b"".join(pieces), dtype=arc)


def _read_const(cursor: Cursor, header: Header) -> Transducer:
    _align(cursor, header)
    _check_size(cursor, header, _CONST_STATE.itemsize)
    states = cursor.array(_CONST_STATE, header.num_states, "states of a const FST")
    _align(cursor, header)
    arcs = cursor.array(ARC, header.num_arcs, "arcs of a const FST")
    ends = np.cumsum(states["num_arcs"], dtype=np.int64)
    if not np.array_equal(states["first"], ends - states["num_arcs"]) or ends[-1:].sum() != len(arcs):
        cursor.fail(f"a const FST whose states do not share out its {counted(len(arcs), 'arc')} in order")
    return _transducer(header, states["final"], _owners(states["num_arcs"]), arcs)


def _read_compact_acceptor(cursor: Cursor, header: Header) -> Transducer:
    """A final weight is an element without label and destination, before the arcs of its state."""
    _align(cursor, header)
    _check_size(cursor, header, 4)
    offsets = cursor.array("<u4", header.num_states + 1, "states of a compact FST")
    if offsets[0] or np.any(offsets[1:] < offsets[:-1]):
        cursor.fail("a compact FST whose states are not in order")
    _align(cursor, header)
    elements = cursor.array(_COMPACT, int(offsets[-1]), "arcs of a compact FST")
    owner = _owners(offsets[1:] - offsets[:-1])
    is_final = elements["label"] == -1
    finals = np.full(header.num_states, np.inf, dtype=np.float32)
    finals[owner[is_final]] = elements["cost"][is_final]
    arcs = np.empty(int((~is_final).sum()), dtype=ARC)
    for field, column in (("ilabel", "label"), ("olabel", "label"), ("cost", "cost"), ("dst", "dst")):
        arcs[field] = elements[column][~is_final]
    return _transducer(header, finals, owner[~is_final], arcs)


def _owners(counts: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int32]:
    """int32 [A]: the state of each arc, from the number of arcs of each state."""
    return np.repeat(np.arange(len(counts), dtype=np.int32), counts)


def _align(cursor: Cursor, header: Header) -> None:
    if header.flags & _IS_ALIGNED:
        cursor.take(-cursor.position % _ALIGNMENT, "padding of an aligned FST")


def _transducer(
    header: Header, finals: npt.NDArray[np.floating], src: npt.NDArray[np.int32], arcs: npt.NDArray[Any]
) -> Transducer:
    with np.errstate(invalid="ignore"):  # signalling NaNs, which are refused later
        log_prob, final_log_prob = (np.subtract(0.0, x, dtype=np.float64) for x in (arcs["cost"], finals))
    for kept in (src, log_prob, final_log_prob):
        kept.setflags(write=False)
    ilabel, olabel = arcs["ilabel"], arcs["olabel"]
    return Transducer(
        header.num_states, header.start, src, arcs["dst"], ilabel, olabel, log_prob, final_log_prob
    )


def fault(graph: Transducer, *, is_acceptor: bool = False) -> str | None:
    """What is wrong with the first state, label or weight that is; arcs are numbered within their state, as in OpenFst."""
    if not 0 <= graph.start < graph.num_states:
        return f"the start state {graph.start}, of {graph.num_states}; expected at least a start state"
    cost, final_cost = 0.0 - graph.log_prob, 0.0 - graph.final_log_prob
    same, least = "expected an acceptor: equal input and output labels", "expected labels >= 0"
    if is_acceptor:
        least = "expected labels >= 1 (pdf + 1); remove epsilons (label 0) first"
    outside = (graph.dst < 0) | (graph.dst >= graph.num_states)
    for is_bad, expected in (
        ((graph.ilabel != graph.olabel) & is_acceptor, same),
        (np.minimum(graph.ilabel, graph.olabel) < is_acceptor, least),
        (np.isnan(cost) | (cost == -np.inf), "expected a finite cost or Infinity"),
        (outside, f"expected a destination in [0, {graph.num_states})"),
    ):
        if is_bad.any():
            arc = int(np.argmax(is_bad))
            src, labels = int(graph.src[arc]), f"{graph.ilabel[arc]}:{graph.olabel[arc]}"
            number = arc - int(np.searchsorted(graph.src, src))
            came = f"labels {labels}, cost {cost[arc]:g}, to state {graph.dst[arc]}"
            return f"state {src}, arc {number} of {came}; {expected}"
    bad = np.flatnonzero(np.isnan(final_cost) | (final_cost == -np.inf))
    if bad.size:
        return f"state {bad[0]} of final cost {final_cost[bad[0]]:g}; expected a finite cost or Infinity"
    return None


def read_transducer(path: str | os.PathLike[str]) -> Transducer:
    """Read an OpenFst binary file; states, labels and weights are not checked. Errors are a GraphError."""
    name = os.fspath(path)
    if not Path(name).is_file():
        raise GraphError(f"{name}: no such file; expected an OpenFst binary file")
    try:
        cursor = open_file(name)
        if cursor.peek(len(MAGIC)) != MAGIC:
            raise GraphError(f"{name}: not an OpenFst binary file (it does not begin as one)")
        return read_arcs(cursor)
    except DataError as error:
        raise GraphError(f"{name}: not an OpenFst binary file, or cut short ({error})") from error


def write_fst(fst: Any, path: str | os.PathLike[str]) -> None:
    """Write a pywrapfst FST in OpenFst binary form, in a folder that is made if need be; errors are a GraphError."""
    pywrapfst = require("pywrapfst", extra="graph")
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        fst.write(os.fspath(path))
    except (pywrapfst.FstError, OSError) as error:
        raise GraphError(f"{os.fspath(path)}: cannot be written ({error})") from error


# Symbol tables, words.txt and phones.txt: lines of a name and its id; and grammars over the ids of a `Lexicon`.

BACK_OFF = "#0"  # label of back-off arcs in a grammar
_MOST_DIGITS = 9  # of an id, which Kaldi keeps in 32 bits


def read_symbols(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Names in id order, from id 1 on, disambiguation symbols included; id 0 (epsilon) is left out.

    Ids must have no gaps; ids and names occur once.
    """
    cursor = open_file(path)
    names: dict[int, str] = {}
    repeated: list[str] = []
    number = 0
    while cursor.left:
        number += 1
        fields = cursor.line().split()
        if not fields:
            continue
        if len(fields) != 2 or not (fields[1].isdecimal() and len(fields[1]) <= _MOST_DIGITS):
            came = " ".join(fields[:3])[:80]
            raise DataError(
                f"{path}:{number}: {came!r}, expected a name and its id of at most {_MOST_DIGITS} digits"
            )
        name, label = fields[0], int(fields[1])
        if label in names:
            repeated.append(f"{path}:{number}: id {label} belongs to {names[label][:80]!r} and {name[:80]!r}")
        names[label] = name
    if repeated:
        raise DataError(f"{listed(repeated)}; expected each id once")
    names.pop(0, None)
    if names and max(names) > len(names):
        came = f"{counted(len(names), 'id')} from {min(names)} to {max(names)}"
        raise DataError(f"{path}: {came}: expected 1, 2, ... without gaps")
    if twice := [name for name, count in Counter(names.values()).items() if count > 1]:
        raise DataError(f"{path}: a name occurs twice, {listed([repr(name[:80]) for name in twice], ', ')}")
    return tuple(names[label] for label in range(1, len(names) + 1))


def grammar_over(grammar: Transducer, symbols: Sequence[str], words: Sequence[str]) -> Transducer:
    """G.fst with the word ids of a lexicon in place of those of words.txt, and epsilon for `#0`.

    `symbols` is `read_symbols("words.txt")`, `words` is `lexicon.words`; a word that the lexicon lacks is a DataError.
    `grammar_over(...).to_openfst()` is the argument `grammar` of `build_decoding_graph`.
    """
    for argument, names in (("symbols", symbols), ("words", words)):
        refuse_text(argument, names, DataError, "a sequence of words")
    ids = {word: number for number, word in enumerate(words, 1)}
    used = np.union1d(grammar.ilabel, grammar.olabel)
    if used.size and (used[0] < 0 or used[-1] > len(symbols)):
        raise DataError(
            f"the grammar has labels {used[0]} to {used[-1]}; words.txt has ids 1 to {len(symbols)}"
        )
    table = np.zeros(len(symbols) + 1, dtype=np.int32)
    for label in used[used > 0].tolist():
        name = symbols[label - 1]
        if name in ids:
            table[label] = ids[name]
        elif name != BACK_OFF:
            raise DataError(
                f"the grammar has the word {name!r}, which is not among the {counted(len(ids), 'word')} of the lexicon"
            )
    return replace(grammar, ilabel=table[grammar.ilabel], olabel=table[grammar.olabel])
