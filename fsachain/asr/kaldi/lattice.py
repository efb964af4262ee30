"""Kaldi's lattices, plain and compact, binary and text, read with bounds.

Formats: Kaldi's lat/kaldi-lattice.cc and fstext/lattice-weight.h.
"""

from __future__ import annotations

import math
import re
import struct
from array import array
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fsachain.asr.kaldi.model import TransitionModel
from fsachain.errors import ConfigError, DataError, GraphError, brief, check_finite, counted
from fsachain.fsa import Fsa, arcs_from, input_fsa
from fsachain.graph.supervision import PhoneLattice
from fsachain.graph.transducer import Numbers, remove_epsilons
from fsachain.notebook import MOST_ROWS, html_table
from fsachain.opaque import opaque
from fsachain.openfst import MAGIC, Transducer, named_states, read_header, rows
from fsachain.stream import LONGEST_LINE, Cursor

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.floating]

# A plain lattice is an FST over transition ids and words whose weights are two costs, of the graph (language model,
# pronunciations, transitions) and of the acoustics. A compact one has words on its arcs and a string of transition ids in
# each weight. With each string written out as a chain of arcs both have the form of `Lattice`, in several times the memory.

PLAIN, COMPACT = ("lattice4", "lattice8"), ("compactlattice44", "compactlattice84")
_NOT_FINAL = (math.inf, math.inf)
# The last group is the string.
_TEXT_LINE = re.compile(rb"([^\n,]*)(?:(?<=\S),([^\s,]*)(?:,(\S*))?)?[^\S\n]*")
_End = tuple[int, int, bool]  # of a phone: its id, the state after it, whether the path ends there


@opaque
@dataclass(frozen=True, eq=False)
class Lattice:
    """A lattice of S states and A arcs, with at most one transition id on an arc.

    Attributes:
        num_states: S.
        start: the start state.
        src, dst: int32 [A], state that each arc leaves and enters.
        transition: int32 [A], transition id; 0 spends no frame.
        word: int32 [A], word id; 0: none.
        graph_cost, acoustic_cost: float64 [A], -log as in the file, the second without acoustic scale.
        final_graph_cost, final_acoustic_cost: float64 [S], the same of the ends; both inf: not final.
    """

    num_states: int
    start: int
    src: Ints
    dst: Ints
    transition: Ints
    word: Ints
    graph_cost: Floats
    acoustic_cost: Floats
    final_graph_cost: Floats
    final_acoustic_cost: Floats

    __repr__ = brief

    def _repr_html_(self) -> str:
        """Sizes and the first arcs, for notebooks."""
        return _arc_table(self)

    @property
    def cost(self) -> npt.NDArray[np.float64]:
        """float64 [A], both costs of each arc."""
        return np.add(self.graph_cost, self.acoustic_cost, dtype=np.float64)

    @property
    def final_cost(self) -> npt.NDArray[np.float64]:
        """float64 [S]."""
        return np.add(self.final_graph_cost, self.final_acoustic_cost, dtype=np.float64)


@opaque
@dataclass(frozen=True, eq=False)
class CompactLattice:
    """A lattice as its file has it; in a plain one no string has more than one transition id.

    Weights are those of the A arcs, then the final ones of the S states.

    Attributes:
        num_states: S.
        start: the start state.
        src, dst: int32 [A], state that each arc leaves and enters.
        word: int32 [A], word id; 0: none.
        costs: float64 [A + S, 2], -log, of the graph and of the acoustics as in the file; both inf: not final.
        ends: int64 [A + S], where the string of each weight ends in `transitions`; it begins where the one before ends.
        transitions: int32, transition ids of all strings.
    """

    num_states: int
    start: int
    src: Ints
    dst: Ints
    word: Ints
    costs: Floats
    ends: npt.NDArray[np.int64]
    transitions: Ints

    __repr__ = brief

    def _repr_html_(self) -> str:
        """Sizes and the first arcs of the expanded lattice, for notebooks."""
        return _arc_table(self.expanded(), type(self).__name__)

    def expanded(self) -> Lattice:
        """Each string as a chain of arcs, the first of which has the word and the costs.

        Arcs keep their order; chains of final strings follow. So do, behind the states of the file, those where final
        strings end, and those inside chains.
        """
        num_arcs = len(self.src)
        lengths = np.diff(self.ends, prepend=0)
        ends = np.flatnonzero(lengths[num_arcs:])  # states that are final by a string
        size = self.num_states + len(ends)
        weight = np.append(np.arange(num_arcs), num_arcs + ends)
        count = np.maximum(lengths[weight], 1)
        of = np.repeat(np.arange(len(weight)), count)  # the arc that each new arc is part of
        place = np.arange(len(of)) - np.repeat(np.cumsum(count) - count, count)
        is_first, is_last = place == 0, place + 1 == count[of]
        dst = np.append(self.dst, np.arange(self.num_states, size))[of]
        dst[~is_last] = size + np.arange(len(of) - len(weight))
        src = np.where(is_first, np.append(self.src, ends)[of], np.roll(dst, 1))
        word = np.where(is_first, np.append(self.word, np.zeros_like(ends))[of], 0)
        costs = np.where(is_first[:, None], self.costs[weight][of], 0.0)
        final = np.full((size + len(of) - len(weight), 2), np.inf)
        final[: self.num_states] = self.costs[num_arcs:]
        final[ends] = np.inf
        final[self.num_states : size] = 0.0
        has_id = lengths[weight][of] > 0
        transition = np.zeros(len(of), dtype=np.int32)
        transition[has_id] = self.transitions[(self.ends - lengths)[weight][of][has_id] + place[has_id]]
        columns: list[Any] = [column.astype(np.int32) for column in (src, dst, transition, word)]
        return Lattice(len(final), self.start, *columns, *costs.T.copy(), *final.T.copy())


def _arc_table(lattice: Lattice, name: str = "Lattice") -> str:
    columns = ("src", "dst", "transition", "word", "graph_cost", "acoustic_cost")
    arcs = [getattr(lattice, column)[:MOST_ROWS].tolist() for column in columns]
    num_arcs = len(lattice.src)
    title = (
        f"{name}: {counted(lattice.num_states, 'state')}, {counted(num_arcs, 'arc')}, start {lattice.start}"
    )
    return html_table(columns, zip(*arcs, strict=True), num_rows=num_arcs, title=title)


def read_lattice(cursor: Cursor) -> CompactLattice:
    """One lattice, plain or compact, binary or text; for `read_table("lat.1.gz", read_lattice)`."""
    return _read_binary(cursor) if cursor.peek(len(MAGIC)) == MAGIC else _read_text(cursor)


class _Builder:
    """Collects arcs and final weights; error messages have the offset at which the lattice begins."""

    def __init__(self, cursor: Cursor, begin: int, kind: str) -> None:
        self.cursor, self.begin, self.lowest_cost = cursor, begin, float(np.finfo(kind).min)
        self.arcs = array("i")  # src, dst and word of each
        self.costs, self.ends, self.ids = array("d"), array("q"), array("i")
        self.final: dict[int, tuple[tuple[float, float], bytes]] = {}  # by state: costs, string of int32

    def add(self, src: int, dst: int, word: int, costs: tuple[float, float], ids: bytes) -> None:
        what = f"arc {len(self.ends)} of a lattice"
        if word < 0:
            self.cursor.fail(f"{what} has a negative label", self.begin)
        self.arcs.extend((src, dst, word))
        self._weigh(costs, ids, f"{what} has the cost")

    def _weigh(self, costs: tuple[float, float], ids: bytes, what: str) -> None:
        if not all(cost >= self.lowest_cost for cost in costs):
            self.cursor.fail(f"{what} NaN or -Infinity", self.begin)
        self.costs.extend(costs)
        self.ids.frombytes(ids)
        self.ends.append(len(self.ids))

    def lattice(self, start: int, num_states: int) -> CompactLattice:
        if not 0 <= start < num_states:
            self.cursor.fail(
                f"start state {start} of a lattice of {counted(num_states, 'state')}", self.begin
            )
        for state in range(num_states):
            costs, string = self.final.get(state, (_NOT_FINAL, b""))
            self._weigh(costs, b"" if costs == _NOT_FINAL else string, "a lattice with the final cost")
        src, dst, word = np.frombuffer(self.arcs, dtype=np.int32).reshape(-1, 3).T.copy()
        weights = np.frombuffer(self.costs).reshape(-1, 2), np.frombuffer(self.ends, dtype=np.int64)
        ids = np.frombuffer(self.ids, dtype=np.int32)
        return CompactLattice(num_states, start, src, dst, word, *weights, ids)


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
        cursor.fail(
            f"lattice of {counted(header.num_states, 'state')}, {counted(cursor.left, 'byte', verb='are')} left"
        )
    kind = "f" if header.arc_type in ("lattice4", "compactlattice44") else "d"
    builder, costs_of = _Builder(cursor, begin, kind), struct.Struct(f"<2{kind}")

    def weight() -> tuple[tuple[float, float], bytes]:
        graph_cost, acoustic_cost = costs_of.unpack(cursor.take(costs_of.size, "weight"))
        if is_plain:
            return (graph_cost, acoustic_cost), b""
        size = int.from_bytes(cursor.take(4, "length of a string"), "little", signed=True)
        ids = np.frombuffer(cursor.take(4 * size, "transition ids"), dtype="<i4")
        if ids.min(initial=0) < 0:
            cursor.fail(f"a string of a lattice has the negative transition id {ids.min()}")
        return (graph_cost, acoustic_cost), ids.astype(np.int32).tobytes()

    for state in range(header.num_states):
        builder.final[state] = weight()
        count = int.from_bytes(cursor.take(8, "number of arcs"), "little", signed=True)
        if not 0 <= count * least <= cursor.left:
            cursor.fail(
                f"state {state} has {counted(count, 'arc')}, {counted(cursor.left, 'byte', verb='are')} left"
            )
        for _ in range(count):
            ilabel, olabel = struct.unpack("<ii", cursor.take(8, "arc"))
            costs, ids = weight()
            dst = int.from_bytes(cursor.take(4, "arc"), "little", signed=True)
            if not 0 <= dst < header.num_states:
                cursor.fail(f"an arc leads to state {dst} of {header.num_states}")
            if is_plain:
                builder.add(state, dst, olabel, costs, _one_id(cursor, ilabel))
            else:
                builder.add(state, dst, ilabel, costs, ids)
    return builder.lattice(header.start, header.num_states)


def _one_id(cursor: Cursor, label: int) -> bytes:
    """The transition ids of an arc of a plain lattice: one, or none where the label is 0."""
    if label < 0:
        cursor.fail(f"an arc of a lattice has the negative transition id {label}")
    return array("i", [label]).tobytes() if label else b""


def _read_text(cursor: Cursor) -> CompactLattice:
    """Lines as `fsachain.openfst` reads, with weights `graph,acoustic` or `graph,acoustic,1_2_3`, up to an empty line.

    An arc of a compact lattice has one label, that of a plain one two; which it is, the weights tell.
    """
    builder, start = _Builder(cursor, cursor.position, "f"), -1
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
            fields, commas = found[1].split(), 2 - found.groups().count(None)
            if not fields:
                break
            costs = (float(fields.pop()), float(found[2])) if commas else (0.0, 0.0)
            numbers = array("i", map(int, fields))
            if len(numbers) != 1 and (len(numbers), commas) not in ((3, 0), (3, 2), (4, 0), (4, 1)):
                raise ValueError(counted(len(numbers) + bool(commas), "field"))
            ids = array("i", map(int, found[3].split(b"_"))) if found[3] else array("i")
            if ids and min(ids) < 1:
                raise ValueError("a transition id below 1")
        except OverflowError:
            cursor.fail("a lattice with a state or label beyond 32 bits", begin)
        except ValueError as error:
            cursor.fail(
                "expected `src dst ilabel olabel [weight]`, `src dst word [weight]` or `state [weight]` "
                f"({str(error)[:80]})",
                begin,
            )
        start = numbers[0] if start < 0 else start
        if len(numbers) == 1:
            builder.final[numbers[0]] = (costs, ids.tobytes())
        else:
            string = ids.tobytes() if len(numbers) == 3 else _one_id(cursor, numbers[2])
            builder.add(numbers[0], numbers[1], numbers[-1], costs, string)
    src, dst, _ = np.frombuffer(builder.arcs, dtype=np.int32).reshape(-1, 3).T
    lowest, highest, are_dense = named_states(src, dst, builder.final)
    if not are_dense:
        cursor.fail(
            f"a lattice in text form with states {lowest} to {highest}; expected states numbered densely from 0"
        )
    return builder.lattice(start, highest + 1)


def lattice_pdfs(
    lattice: CompactLattice,
    model: TransitionModel,
    *,
    lm_scale: float = 1.0,
    acoustic_scale: float = 0.0,
    name: str = "lattice",
) -> Fsa:
    """The acceptor over the pdfs of the model that the lattice was made with, every time as decoded.

    `lm_scale` and `acoustic_scale` are factors on graph and acoustic costs, at least 0; the latter is 0 for numerators,
    since the network gives the acoustic scores. `name` is the utterance's, for messages. A transition id that the model
    lacks, a cycle of arcs without one, or no path is a DataError.
    """
    graph = _frames(lattice, model, lm_scale, acoustic_scale, name)
    return input_fsa(replace(graph, ilabel=model.transitions.pdf[graph.ilabel] + 1))


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

    `lm_scale` is the factor on graph costs; with it the weights of all paths are scaled to the sum one. 0: all paths are
    equal. `subsampling` is 3 for chain models, 1 for GMMs. DataError as in `lattice_pdfs`, and where a state stands behind
    different numbers of frames or there is no sequence of whole phones.
    """
    if subsampling < 1:
        raise ConfigError(f"subsampling = {subsampling}: expected at least 1")
    graph = _frames(lattice, model, lm_scale, 0.0, name)
    frame = _frame_of_states(graph, name)
    leaving = graph.leaving(None)
    numbers = Numbers(graph.start)
    arcs, log_probs = [], []  # src, dst (-1: the end), phone, first frame, frame after it
    for index, state in enumerate(numbers.nodes):  # which grows while it is read
        for (phone, end, at_end), log_prob in _phones_from(state, graph, model, leaving, name).items():
            arcs.append((index, -1 if at_end else numbers[end], phone, frame[state], frame[end]))
            log_probs.append(log_prob)
    table = np.array(arcs, dtype=np.int64).reshape(-1, 5)
    src, dst, phones = table[:, 0], table[:, 1] % (len(numbers) + 1), table[:, 2]
    final = np.append(np.full(len(numbers), -np.inf), 0.0)
    whole = Transducer(len(final), 0, src, dst, phones, phones, np.array(log_probs, dtype=np.float64), final)
    found, origin = remove_epsilons(whole, range(len(arcs)))
    if not len(found.src):
        raise DataError(f"{name}: no path of the lattice is a sequence of whole phones")
    spans = subsampling * table[origin, 3:]
    return PhoneLattice(_sum_to_one(found, spans[:, 0]), spans, name)


def _frames(
    compact: CompactLattice, model: TransitionModel, lm_scale: float, acoustic_scale: float, name: str
) -> Transducer:
    """The lattice as a graph with one transition id on each arc, epsilon-free and trimmed."""
    for option, scale in (("lm_scale", lm_scale), ("acoustic_scale", acoustic_scale)):
        check_finite(option, scale, least=0.0)
    lattice = compact.expanded()
    bad = np.flatnonzero(lattice.transition >= len(model.transitions.pdf))
    if bad.size:
        raise DataError(
            f"{name}: arc {bad[0]} has transition id {lattice.transition[bad[0]]}; {model.name} has 1 to "
            f"{len(model.transitions.pdf) - 1}"
        )

    def log_prob(graph: Floats, acoustic: Floats) -> npt.NDArray[np.float64]:
        """An infinite cost is -inf under any scale."""
        possible = np.isfinite(graph) & np.isfinite(acoustic)
        costs = lm_scale * np.where(possible, graph, 0.0) + acoustic_scale * np.where(possible, acoustic, 0.0)
        return np.where(possible, 0.0 - costs, -np.inf)

    ids, states = lattice.transition, (lattice.num_states, lattice.start, lattice.src, lattice.dst)
    weights = log_prob(lattice.graph_cost, lattice.acoustic_cost)
    final = log_prob(lattice.final_graph_cost, lattice.final_acoustic_cost)
    graph = Transducer(*states, ids, ids, weights, final)
    try:
        found, _ = remove_epsilons(graph, range(len(graph.src)))
    except GraphError as error:
        raise DataError(f"{name}: no lattice ({error})") from error
    if not len(found.src):
        raise DataError(f"{name}: the lattice has no path")
    return found


def _frame_of_states(graph: Transducer, name: str) -> npt.NDArray[np.int64]:
    """The frame of each state, which must be the same on all paths to it."""
    frame = arcs_from(graph.start, graph.num_states, graph.src, graph.dst).astype(np.int64)
    wrong = np.flatnonzero(frame[graph.dst] != frame[graph.src] + 1)
    if wrong.size:
        first, other = sorted((int(frame[graph.dst[wrong[0]]]), int(frame[graph.src[wrong[0]]]) + 1))
        raise DataError(
            f"{name}: a state of the lattice stands behind {first} and behind {counted(other, 'frame')}; "
            "expected one time for "
            "each state"
        )
    return frame


def _phones_from(
    state: int, graph: Transducer, model: TransitionModel, leaving: list[list[Any]], name: str
) -> dict[_End, float]:
    """Log-sum of the paths from `state` through one phone; `leaving` is `graph.leaving`."""
    table, final = model.transitions, graph.final_log_prob
    found: dict[_End, float] = {}
    open_phones: dict[_End, float] = {}  # phone, state, last HMM state was left
    for dst, transition, _, log_prob, _ in leaving[state]:
        if not table.is_self_loop[transition]:
            _add(open_phones, (int(table.phone[transition]), dst, bool(table.is_final[transition])), log_prob)
        elif state == graph.start:
            raise DataError(
                f"{name}: a path begins with a self-loop, so transitions are not reordered; expected a lattice made with "
                "Kaldi's --reorder=true"
            )
    while open_phones:
        longer: dict[_End, float] = {}
        for (phone, here, left), weight in open_phones.items():
            if left and final[here] > -math.inf:
                _add(found, (phone, here, True), weight + final[here])
            begins = False
            for dst, transition, _, log_prob, _ in leaving[here]:
                is_loop = table.is_self_loop[transition]
                if left and not is_loop:
                    begins = True
                elif table.phone[transition] == phone:
                    _add(
                        longer,
                        (phone, dst, left if is_loop else bool(table.is_final[transition])),
                        weight + log_prob,
                    )
            if begins:
                _add(found, (phone, here, False), weight)
        open_phones = longer
    return found


def _add(sums: dict[_End, float], key: _End, log_prob: float) -> None:
    sums[key] = float(np.logaddexp(sums.get(key, -math.inf), log_prob))


def _sum_to_one(graph: Transducer, first_frame: npt.NDArray[np.int64]) -> Transducer:
    """Scale the weights of all paths to the sum one, by dividing the arcs that leave the start by the sum."""
    total = graph.final_log_prob.tolist()
    latest_first = np.argsort(-first_frame, kind="stable")  # then all that follows an arc is known
    for src, dst, log_prob in rows(*(x[latest_first] for x in (graph.src, graph.dst, graph.log_prob))):
        total[src] = float(np.logaddexp(total[src], log_prob + total[dst]))
    leaves_start = graph.src == graph.start
    return replace(graph, log_prob=graph.log_prob - np.where(leaves_start, total[graph.start], 0.0))
