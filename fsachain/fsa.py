"""The acceptor that everything else works on: states, one start, arcs with a pdf and a log-probability, final weights.

No epsilon arcs exist here: each arc spends exactly one frame. Weights are natural logs, pdfs count from 0; the OpenFst
convention (label = pdf + 1, cost = -log_prob) is that of the text and binary files alone.
"""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse import csgraph

from fsachain.errors import GraphError, counted, integer, require
from fsachain.files import text_lines
from fsachain.opaque import opaque
from fsachain.openfst import Transducer, fault, named_states, read_arcs, read_transducer, write_fst
from fsachain.stream import Cursor

Indices = npt.NDArray[np.integer]
# By name, since pictures are of the application, which stands on this file.
_PICTURES = "fsachain.asr.plot.graph"


def arcs_from(start: int, num_states: int, src: Indices, dst: Indices) -> npt.NDArray[np.float64]:
    """float64 [S]: the fewest arcs on a path from `start` to each state; inf where there is no path."""
    return np.asarray(csgraph.dijkstra(_adjacency(num_states, src, dst), indices=start, unweighted=True))


def on_a_path(start: int, final: npt.NDArray[np.bool_], src: Indices, dst: Indices) -> npt.NDArray[np.bool_]:
    """bool [S]: the state lies on a path from `start` to a state marked in `final` [S]."""
    num_states = len(final)
    # One extra state collects the final states, so that one search over reversed arcs answers for all of them.
    sink_src = np.flatnonzero(final)
    sink_dst = np.full(len(sink_src), num_states)
    backward = _reachable(num_states, num_states + 1, np.append(dst, sink_dst), np.append(src, sink_src))
    return _reachable(start, num_states, src, dst) & backward[:num_states]


def _reachable(start: int, num_states: int, src: Indices, dst: Indices) -> npt.NDArray[np.bool_]:
    order = csgraph.breadth_first_order(_adjacency(num_states, src, dst), start, return_predecessors=False)
    found = np.zeros(num_states, dtype=bool)
    found[order] = True
    return found


def _adjacency(num_states: int, src: Indices, dst: Indices) -> sparse.csr_array:
    # float64: parallel arcs are summed, and a narrower type could wrap around to zero. int32: of indices scipy before 1.15
    # searches no others.
    ends = src.astype(np.int32), dst.astype(np.int32)
    return sparse.csr_array((np.ones(len(src)), ends), shape=(num_states, num_states))


Ints = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.float64]


@opaque
@dataclass(frozen=True, eq=False)
class Fsa:
    """Epsilon-free weighted acceptor, immutable and validated.

    Read-only arrays of the right type are taken without a copy.

    Self-loops, cycles (through the start state too), parallel arcs, several final states, weights of any size and sign
    are legal. So is a graph without arcs or without final states: no sequence is possible through it as a numerator.

    Attributes:
        num_states: number of states S, at least 1.
        src, dst: int32 [A], state that arc a leaves and enters.
        pdf: int32 [A], column of the network output that arc a consumes, counted from 0.
        log_prob: float64 [A], natural log weight; -inf means that the arc cannot be taken.
        final_log_prob: float64 [S], natural log final weight; -inf means not final.
        start: the start state.

    Raises:
        GraphError: no states, an index out of range, a negative pdf (label 0 in OpenFst is epsilon), NaN or +inf weight.
    """

    num_states: int
    src: Ints
    dst: Ints
    pdf: Ints
    log_prob: Floats
    final_log_prob: Floats
    start: int = 0

    def __post_init__(self) -> None:
        for name in ("num_states", "start"):
            object.__setattr__(self, name, integer(name, getattr(self, name), GraphError))
        if self.num_states < 1:
            raise GraphError(f"num_states = {self.num_states}: an acceptor needs at least one state")
        if not 0 <= self.start < self.num_states:
            raise GraphError(f"start = {self.start}: expected a state in [0, {self.num_states})")
        num_arcs = len(np.atleast_1d(np.asarray(self.src)))
        for name in ("src", "dst", "pdf"):
            self._freeze(name, _integers(getattr(self, name), name, num_arcs))
        self._freeze("log_prob", _weights(self.log_prob, "log_prob", num_arcs, "arc"))
        self._freeze(
            "final_log_prob", _weights(self.final_log_prob, "final_log_prob", self.num_states, "state")
        )
        _check_range(self.src, "src", self.num_states)
        _check_range(self.dst, "dst", self.num_states)
        if self.pdf.min(initial=0) < 0:
            arc = int(np.argmax(self.pdf < 0))
            raise GraphError(
                f"pdf[{arc}] = {self.pdf[arc]} (arc {arc}, state {self.src[arc]} -> {self.dst[arc]}): expected a pdf >= 0; "
                "an epsilon (OpenFst label 0) spends no frame and must be removed first"
            )

    def _freeze(self, name: str, values: npt.NDArray[Any]) -> None:
        values.setflags(write=False)
        object.__setattr__(self, name, values)

    @property
    def num_arcs(self) -> int:
        """Number of arcs A, arcs of weight -inf included."""
        return len(self.src)

    @property
    def labels(self) -> Ints:
        """int32 [A]: the same array as `pdf`."""
        return self.pdf

    def __repr__(self) -> str:
        return (
            f"Fsa({counted(self.num_states, 'state')}, {counted(self.num_arcs, 'arc')}, start {self.start})"
        )

    def _repr_svg_(self) -> str | None:
        """SVG for notebooks, of a large graph a part; None without the `plot` extra, where the text is shown."""
        try:
            pictures = import_module(_PICTURES)
        except ModuleNotFoundError:  # in an installation of the library alone
            return None
        drawing: str | None = pictures.graph_svg(self)
        return drawing

    def min_frames(self) -> float:
        """Arcs on the shortest path from the start to a final state; `math.inf` where there is none."""
        usable = self.log_prob > -math.inf
        distance = arcs_from(self.start, self.num_states, self.src[usable], self.dst[usable])
        final = self.final_log_prob > -math.inf
        return float(distance[final].min()) if final.any() else math.inf

    def trim(self) -> Fsa:
        """The acceptor without states that lie on no path from start to final; states renumbered in order.

        The start state always stays, so that an acceptor of the empty language has one state and no arcs.
        """
        usable = self.log_prob > -math.inf
        final = self.final_log_prob > -math.inf
        keep = on_a_path(self.start, final, self.src[usable], self.dst[usable])
        if not keep[self.start]:
            none = np.zeros(0, np.int32)
            return Fsa(1, none, none, none, np.zeros(0), np.array([-math.inf]))
        return restricted(self, keep, self.final_log_prob, self.start)

    @classmethod
    def from_text(cls, text_or_path: str | PathLike[str]) -> Fsa:
        """Read AT&T text (label = pdf + 1, cost = -log_prob): the text itself, or the path of a file that holds it."""
        if isinstance(text_or_path, os.PathLike):
            return parse_file(text_or_path)
        # os.path and not Path: text is no legal file name on some systems, which Path reports by an exception.
        looks_like_text = any(c.isspace() for c in text_or_path) or text_or_path.isdigit() or not text_or_path
        if looks_like_text and ("\n" in text_or_path or not os.path.isfile(text_or_path)):  # noqa: PTH113
            return parse(text_or_path, source="text")
        return parse_file(text_or_path)

    def to_text(self) -> str:
        """AT&T text with label = pdf + 1 and cost = -log_prob; the first line starts with the start state."""
        return format_fsa(self)

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Fsa:
        """Read an OpenFst binary file.

        Raises:
            GraphError: no such file, or as `from_openfst`.
        """
        return _acceptor(read_transducer(path), os.fspath(path))

    def write(self, path: str | PathLike[str]) -> None:
        """Write an OpenFst binary file, vector and tropical (needs the `graph` extra).

        Raises:
            GraphError: as `to_openfst`, or the file cannot be written.
        """
        write_fst(self.to_openfst(), path)

    @classmethod
    def from_openfst(cls, fst: Any) -> Fsa:
        """The acceptor that a pywrapfst FST holds, arcs in its order (needs the `graph` extra).

        Args:
            fst: over the tropical ("standard") or log semiring ("log", "log64"; the latter is rounded to 32 bits).
                Labels are pdf + 1 on both sides; a cost of Infinity is legal on arcs (log_prob = -inf).

        Raises:
            GraphError: no states, an epsilon or negative label, different labels on the two sides of an arc, a weight
                of NaN or cost -Infinity, another semiring. The message names state and arc.
            MissingExtraError: pywrapfst is not installed.
        """
        if fst.arc_type() in ("log", "log64"):
            fst = require("pywrapfst", extra="graph").arcmap(fst, map_type="to_std")
        return _acceptor(Transducer.from_openfst(fst), "OpenFst acceptor")

    def to_openfst(self) -> Any:
        """The same acceptor as a pywrapfst `VectorFst` (tropical; needs the `graph` extra).

        Arcs are sorted by source state, ties in order. Weights are rounded to 32 bits; a log-probability below what
        these hold becomes -inf.

        Raises:
            GraphError: a log-probability or pdf too large for 32 bits.
            MissingExtraError: pywrapfst is not installed.
        """
        limit = float(np.finfo(np.float32).max)
        for name in ("log_prob", "final_log_prob"):
            too_large = np.flatnonzero(getattr(self, name) > limit)
            if too_large.size:
                index = int(too_large[0])
                raise GraphError(
                    f"{name}[{index}] = {getattr(self, name)[index]}: OpenFst's 32 bits hold at most {limit}"
                )
        if self.pdf.max(initial=0) == np.iinfo(np.int32).max:
            raise GraphError(
                f"pdf {self.pdf.max()}: OpenFst's labels hold at most {np.iinfo(np.int32).max - 1}"
            )
        with np.errstate(over="ignore"):
            return self.to_transducer().to_openfst()

    def to_transducer(self) -> Transducer:
        """The same arcs with labels pdf + 1 on both sides."""
        label = self.pdf + 1
        arcs = self.src, self.dst, label, label, self.log_prob
        return Transducer(self.num_states, self.start, *arcs, self.final_log_prob)


def input_fsa(graph: Transducer) -> Fsa:
    """The acceptor of the input labels, pdf = label - 1; arcs keep their order. An input epsilon is a GraphError."""
    pdf = graph.ilabel - 1
    pdf.setflags(write=False)
    return Fsa(graph.num_states, graph.src, graph.dst, pdf, graph.log_prob, graph.final_log_prob, graph.start)


def read_fsa(cursor: Cursor) -> Fsa:
    """An acceptor over pdfs: labels pdf + 1 on both sides, no epsilon, such as den.fst or a supervision."""
    begin = cursor.position
    try:
        return _acceptor(read_arcs(cursor), cursor.name)
    except GraphError as error:
        cursor.fail(f"no acceptor over pdfs ({error})", begin)


def _acceptor(graph: Transducer, where: str) -> Fsa:
    """The acceptor of a transducer whose labels are pdf + 1 on both sides; the message of an error begins with `where`."""
    if what := fault(graph, is_acceptor=True):
        raise GraphError(f"{where}: {what}")
    return input_fsa(graph)


def restricted(fsa: Fsa, keep: npt.NDArray[np.bool_], final_log_prob: Floats, start: int) -> Fsa:
    """The states to keep [S], renumbered in order, and the arcs among them that can be taken."""
    new = np.cumsum(keep) - 1
    arcs = (fsa.log_prob > -math.inf) & keep[fsa.src] & keep[fsa.dst]
    src, dst, pdf = new[fsa.src[arcs]], new[fsa.dst[arcs]], fsa.pdf[arcs]
    return Fsa(int(keep.sum()), src, dst, pdf, fsa.log_prob[arcs], final_log_prob[keep], int(new[start]))


def _integers(values: npt.ArrayLike, name: str, length: int) -> Ints:
    found = np.asarray(values)
    if found.ndim != 1 or len(found) != length:
        raise GraphError(
            f"{name} has shape {list(found.shape)}: expected [{length}], one entry for each arc of src"
        )
    if found.size and found.dtype.kind not in "iu":
        raise GraphError(f"{name} has dtype {found.dtype}: expected integers")
    if found.size and (found.max() > np.iinfo(np.int32).max or found.min() < np.iinfo(np.int32).min):
        raise GraphError(f"{name} holds {found.max()}: expected values that fit in 32 bits")
    return found.astype(np.int32, order="C", copy=found.flags.writeable)


def _weights(values: npt.ArrayLike, name: str, length: int, kind: str) -> Floats:
    if getattr(values, "requires_grad", False):
        raise GraphError(
            f"{name} wants a gradient, which a graph does not keep: expected {name}.detach(), and the weights of arcs as "
            "arc_log_probs of total_log_prob"
        )
    given = np.asarray(values)
    if given.dtype == np.bool_:
        raise GraphError(
            f"{name} has dtype bool: expected log-probabilities, 0 for a probability of one and -inf for none"
        )
    found = given.astype(np.float64, order="C", copy=given.flags.writeable)
    if found.shape != (length,):
        raise GraphError(
            f"{name} has shape {list(found.shape)}: expected [{length}], one entry for each {kind}"
        )
    if not found.max(initial=-np.inf) < np.inf:  # NaN is the highest too
        bad = int(np.argmax(np.isnan(found) | (found == np.inf)))
        raise GraphError(
            f"{name}[{bad}] = {found[bad]} ({kind} {bad}): expected a finite log-probability or -inf"
        )
    return found


def _check_range(states: Ints, name: str, num_states: int) -> None:
    if states.min(initial=0) < 0 or states.max(initial=0) >= num_states:
        bad = int(np.argmax((states < 0) | (states >= num_states)))
        raise GraphError(f"{name}[{bad}] = {states[bad]} (arc {bad}): expected a state in [0, {num_states})")


# AT&T text: `src dst label [label] [cost]` for an arc, `state [cost]` for a final state, with label = pdf + 1 (0 is
# epsilon, refused) and cost = -log_prob. Numbers are written so that reading them back gives the same float64.

_LONGEST_LINE = 1 << 14  # bytes
_MAX_DIGITS = 10  # of a number of 32 bits; int() of thousands of digits is an error of its own


def parse_file(path: str | PathLike[str]) -> Fsa:
    lines = partial(text_lines, path, GraphError, longest=_LONGEST_LINE)
    if Path(path).is_file():
        return _parse(lines, str(path))
    once = list(lines())  # a pipe
    return _parse(lambda: once, str(path))


def parse(text: str, *, source: str) -> Fsa:
    """The state on the first line is the start. `source` names the text in errors."""
    lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), 1) if line.split()]
    return _parse(lambda: lines, source)


def _parse(lines: Callable[[], Iterable[tuple[int, list[str]]]], source: str) -> Fsa:
    label_columns = _label_columns(fields for _, fields in lines())
    start, arcs, weights = -1, array("i"), array("d")  # src, dst and pdf of each arc
    final: dict[int, float] = {}
    for number, fields in lines():
        where = f"{source}, line {number}"
        if len(fields) > 2:
            arc, weight = _arc(fields, label_columns, where)
            arcs.extend(arc)
            weights.append(weight)
            state = arc[0]
        else:
            state = _integer(fields[0], where, "state")
            final[state] = -_cost(fields[1], where) if len(fields) == 2 else 0.0
        start = state if start < 0 else start
    if start < 0:
        raise GraphError(f"{source}: no states; expected at least one line")
    src, dst, pdf = np.frombuffer(arcs, dtype=np.int32).reshape(-1, 3).T
    _, highest, are_dense = named_states(src, dst, final)
    if not are_dense:
        raise GraphError(
            f"{source}: state {highest} among {counted(len(weights), 'arc')}: expected states numbered densely from 0"
        )
    final_log_prob = np.full(highest + 1, -np.inf)
    final_log_prob[list(final)] = list(final.values())
    return Fsa(highest + 1, src, dst, pdf, np.frombuffer(weights), final_log_prob, start)


def _label_columns(lines: Iterable[list[str]]) -> int:
    """How many label columns the text has: 2 (`src dst in out [cost]`) or 1 (`src dst label [cost]`).

    A line of five fields settles it, so does one of three. Where all arcs have four, the fourth field is a second label
    only if it equals the first on every line.
    """
    sizes, alike = set(), True
    for fields in lines:
        sizes.add(len(fields))
        alike &= len(fields) != 4 or fields[2] == fields[3]
    if 5 in sizes or 3 in sizes:
        return 2 if 5 in sizes else 1
    return 2 if alike else 1


def _arc(fields: list[str], label_columns: int, where: str) -> tuple[tuple[int, int, int], float]:
    allowed = (2 + label_columns, 3 + label_columns)
    if len(fields) not in allowed:
        raise GraphError(
            f"{where}: {counted(len(fields), 'field')}; expected {allowed[0]} or {allowed[1]} as on the other arc lines"
        )
    src, dst = _integer(fields[0], where, "state"), _integer(fields[1], where, "state")
    labels = [_integer(field, where, "label") for field in fields[2 : 2 + label_columns]]
    if labels[0] != labels[-1]:
        raise GraphError(
            f"{where}: input label {labels[0]}, output label {labels[1]}; expected an acceptor (equal labels)"
        )
    if labels[0] == 0:
        raise GraphError(
            f"{where}: label 0 (epsilon) on the arc {src} -> {dst}; expected labels >= 1 (pdf + 1)"
        )
    return (src, dst, labels[0] - 1), -_cost(fields[-1], where) if len(fields) == allowed[1] else 0.0


def _integer(field: str, where: str, kind: str) -> int:
    if not field.isascii() or not field.isdigit():
        raise GraphError(f"{where}: {kind} {field[:40]!r}; expected an integer >= 0")
    digits = field.lstrip("0") or "0"
    if len(digits) > _MAX_DIGITS or int(digits) > np.iinfo(np.int32).max - 1:
        raise GraphError(f"{where}: {kind} {digits[:40]}; expected at most {np.iinfo(np.int32).max - 1}")
    return int(digits)


def _cost(field: str, where: str) -> float:
    try:
        cost = float(field)
    except ValueError:
        raise GraphError(f"{where}: cost {field[:40]!r}; expected a number") from None
    if math.isnan(cost) or cost == -math.inf:
        raise GraphError(f"{where}: cost {field}; expected a finite number or Infinity")
    return cost


def format_fsa(fsa: Fsa) -> str:
    """AT&T text of `fsa`: the start state's lines first, then arcs in order, then final states."""
    arcs = [
        (int(src), f"{src}\t{dst}\t{pdf + 1}\t{pdf + 1}\t{_number(-weight)}")
        for src, dst, pdf, weight in zip(fsa.src, fsa.dst, fsa.pdf, fsa.log_prob, strict=True)
    ]
    finals = {
        int(state): _number(-fsa.final_log_prob[state])
        for state in np.flatnonzero(fsa.final_log_prob > -math.inf)
    }
    mentioned = {int(state) for state in (*fsa.src, *fsa.dst, *finals)}
    # States that no line would mention get a line that says "not final": the start (its line comes first), the last.
    for state in {fsa.start, fsa.num_states - 1} - mentioned:
        finals[state] = "Infinity"
    lines = [line for src, line in arcs if src == fsa.start]
    if not lines:
        lines = [f"{fsa.start}\t{finals.pop(fsa.start, 'Infinity')}"]
    lines += [line for src, line in arcs if src != fsa.start]
    lines += [f"{state}\t{cost}" for state, cost in sorted(finals.items())]
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return "Infinity" if value == math.inf else repr(float(value) + 0.0)
