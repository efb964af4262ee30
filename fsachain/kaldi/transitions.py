"""Kaldi's transition model: what a transition id is, and the `Topology` behind it.

Format: Kaldi's hmm/transition-model.cc. A transition id counts from 1 over the
transitions of all (phone, HMM state, pdfs), in the order of the file.
"""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.errors import DataError, GraphError
from fsachain.graph.topology import HmmState, Topology
from fsachain.kaldi.values import read_vector
from fsachain.on_access import OnAccess
from fsachain.stream import Cursor, open_file

# Kaldi's HMM topologies: a `topo` file, or the head of a transition model.
#
# Format: Kaldi's hmm/hmm-topology.cc.

MAX_PHONE = 65_535  # far above what any phone list has; ids are places in an array
_NO_PDF = -1
_NO_ENTRY = -1


class State(NamedTuple):
    """One state of a topology: pdf classes (-1: none, the end), and (next state, probability) pairs."""

    forward_class: int
    self_loop_class: int
    transitions: tuple[tuple[int, float], ...]


class Topologies(Mapping[int, tuple[State, ...]]):
    """The states of each phone id, in rising order of these; equal to any mapping of the same.

    Phones of one entry of the file share its states, which are columns; a `State` is made on access.
    """

    def __init__(self) -> None:
        self._entry_of = array("i")  # by phone id
        self._entry_ends = array("I")  # of each entry, among the states
        self._forward, self._loop, self._state_ends = (
            array("i"),
            array("i"),
            array("I"),
        )  # the last among the arcs
        self._targets, self._probs = array("i"), array("d")

    def add_arc(self, target: int, prob: float) -> None:
        """One more transition of the state that `add_state` completes next."""
        self._targets.append(target)
        self._probs.append(prob)

    def add_state(self, forward_class: int, self_loop_class: int) -> None:
        """One more state of the entry that `add_entry` completes next."""
        self._forward.append(forward_class)
        self._loop.append(self_loop_class)
        self._state_ends.append(len(self._targets))

    def add_entry(self) -> None:
        """The states since the last call are those of some phones."""
        self._entry_ends.append(len(self._forward))

    def give(self, phone: int, entry: int) -> None:
        """A phone has the states of an entry, counted from 0, which may be added later."""
        if phone >= len(self._entry_of):
            self._entry_of.extend(array("i", [_NO_ENTRY]) * (phone + 1 - len(self._entry_of)))
        self._entry_of[phone] = entry

    @property
    def num_entries(self) -> int:
        """Entries that have been added."""
        return len(self._entry_ends)

    @property
    def num_unfinished_states(self) -> int:
        """States since the last entry."""
        return len(self._forward) - (self._entry_ends[-1] if self._entry_ends else 0)

    def entry(self, phone: int) -> int:
        """Which entry a phone has; KeyError for a phone that has none."""
        if phone not in self:
            raise KeyError(phone)
        return self._entry_of[phone]

    def states(self, phone: int) -> range:
        """Numbers of the states of a phone among those of all entries."""
        entry = self.entry(phone)
        return range(self._entry_ends[entry - 1] if entry else 0, self._entry_ends[entry])

    def arcs(self, state: int) -> range:
        """Numbers of the transitions of a state among those of all."""
        return range(self._state_ends[state - 1] if state else 0, self._state_ends[state])

    def size(self, phone: int) -> int:
        """How many states and transitions a phone has."""
        states = self.states(phone)
        return len(states) + sum(len(self.arcs(state)) for state in states)

    def target(self, arc: int) -> int:
        """The state, counted from 0 in its entry, that a transition leads to."""
        return self._targets[arc]

    def __getitem__(self, phone: int) -> tuple[State, ...]:
        return tuple(map(self._state, self.states(phone)))

    def _state(self, number: int) -> State:
        transitions = tuple((self._targets[arc], self._probs[arc]) for arc in self.arcs(number))
        return State(self._forward[number], self._loop[number], transitions)

    def __contains__(self, phone: object) -> bool:
        return (
            isinstance(phone, int) and 0 <= phone < len(self._entry_of) and self._entry_of[phone] != _NO_ENTRY
        )

    def __iter__(self) -> Iterator[int]:
        return (phone for phone, entry in enumerate(self._entry_of) if entry != _NO_ENTRY)

    def __len__(self) -> int:
        return len(self._entry_of) - self._entry_of.count(_NO_ENTRY)

    def ends_well(self, phone: int) -> bool:
        """Whether a phone has an emitting state and then an end without transitions, and all lead to one of its states."""
        states = self.states(phone)
        if len(states) < 2 or self.arcs(states[-1]):
            return False
        arcs = range(self.arcs(states[0]).start, self.arcs(states[-1]).stop)
        return all(0 <= self._targets[arc] < len(states) for arc in arcs)


def read_topology(path: str | os.PathLike[str]) -> Topologies:
    """States of each phone of a `topo` file, binary or text.

    Raises:
        DataError: no topology, cut short, or with a phone id above `MAX_PHONE`.
    """
    cursor = open_file(path)
    cursor.detect_binary()
    return parse_topology(cursor)


def parse_topology(cursor: Cursor) -> Topologies:
    """The topology at the cursor, from its first token to its last; errors as for `read_topology`."""
    begin = cursor.position
    cursor.expect("<Topology>")
    found = _binary_topology(cursor) if cursor.binary else _text_topology(cursor)
    if not found or 0 in found:
        cursor.fail("a topology without phones, or with a phone id below 1", begin)
    checked = bytearray(found.num_entries)  # one entry may be that of many phones
    for phone in found:
        if not checked[found.entry(phone)] and not found.ends_well(phone):
            cursor.fail(
                f"phone {phone}: expected at least one emitting state, then an end without transitions", begin
            )
        checked[found.entry(phone)] = True
    return found


def _binary_topology(cursor: Cursor) -> Topologies:
    begin = cursor.position
    phones, entry_of = cursor.integers("phones"), cursor.integers("topology of each phone")
    if max(len(phones), len(entry_of)) > MAX_PHONE + 1:
        cursor.fail(f"{len(phones)} phones, {len(entry_of)} ids: expected ids of at most {MAX_PHONE}", begin)
    count = cursor.integer("number of topologies", -1)
    has_loop_class = count == -1
    if has_loop_class:
        count = cursor.integer("number of topologies", 0)
    found = Topologies()
    for _ in range(count):
        for _ in range(cursor.integer("number of states", 0)):
            forward = cursor.integer("pdf class", _NO_PDF)
            loop = cursor.integer("pdf class of the self-loop", _NO_PDF) if has_loop_class else forward
            for _ in range(cursor.integer("number of transitions", 0)):
                found.add_arc(cursor.integer("next state", 0), cursor.real("probability"))
            found.add_state(forward, loop)
        found.add_entry()
    cursor.expect("</Topology>")
    for phone in map(int, phones):
        if not 0 <= phone < len(entry_of) or not 0 <= entry_of[phone] < count:
            cursor.fail(f"phone {phone} has none of the {count} topologies")
        found.give(phone, int(entry_of[phone]))
    return found


def _text_topology(cursor: Cursor) -> Topologies:
    found = Topologies()
    while cursor.expect("<TopologyEntry>", "</Topology>") == "<TopologyEntry>":
        cursor.expect("<ForPhones>")
        while cursor.peek_token() not in ("</ForPhones>", ""):
            found.give(cursor.integer("phone", 1, MAX_PHONE), found.num_entries)
        cursor.expect("</ForPhones>")
        while cursor.expect("<State>", "</TopologyEntry>") == "<State>":
            number = found.num_unfinished_states
            cursor.integer("state", number, number)
            _read_text_state(cursor, found)
        found.add_entry()
    return found


def _read_text_state(cursor: Cursor, found: Topologies) -> None:
    forward = loop = _NO_PDF
    names = ("<PdfClass>", "<ForwardPdfClass>", "<SelfLoopPdfClass>", "<Transition>", "</State>")
    while (name := cursor.expect(*names)) != "</State>":
        if name == "<Transition>":
            found.add_arc(cursor.integer("next state", 0), cursor.real("probability"))
            continue
        pdf_class = cursor.integer("pdf class", 0)
        if name != "<SelfLoopPdfClass>":
            forward = pdf_class
        if name != "<ForwardPdfClass>":
            loop = pdf_class
    found.add_state(forward, loop)


LOG_TOLERANCE = 1e-4  # log-probabilities are float32 and may have been text
MAX_TOPOLOGY = 1000  # states and transitions of a phone that become a `Topology`; Kaldi's largest has 23


class Tuple(NamedTuple):
    """What some transitions share: phone id, HMM state, pdf of the first and of further frames."""

    phone: int
    hmm_state: int
    forward_pdf: int
    self_loop_pdf: int


class Tuples(OnAccess[Tuple]):
    """Tuples in order, as columns; a `Tuple` is made on access.

    Attributes:
        phone, hmm_state, forward_pdf, self_loop_pdf: 32-bit integers, one for each tuple.
    """

    def __init__(self) -> None:
        self.phone, self.hmm_state, self.forward_pdf, self.self_loop_pdf = (array("i") for _ in range(4))

    def append(self, entry: Tuple) -> None:
        """One more tuple."""
        self.phone.append(entry.phone)
        self.hmm_state.append(entry.hmm_state)
        self.forward_pdf.append(entry.forward_pdf)
        self.self_loop_pdf.append(entry.self_loop_pdf)

    def __len__(self) -> int:
        return len(self.phone)

    def at(self, place: int) -> Tuple:
        """The tuple at a place in [0, len)."""
        columns = (self.phone, self.hmm_state, self.forward_pdf, self.self_loop_pdf)
        return Tuple(*(column[place] for column in columns))


class Transitions(NamedTuple):
    """By transition id (entry 0 is unused): int32 arrays and booleans; `entry` counts `tuples` from 0."""

    entry: npt.NDArray[np.int32]
    phone: npt.NDArray[np.int32]
    hmm_state: npt.NDArray[np.int32]
    pdf: npt.NDArray[np.int32]
    is_self_loop: npt.NDArray[np.bool_]
    is_final: npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class TransitionModel:
    """Topology, tuples and log-probabilities of a Kaldi model.

    Attributes:
        states: for each phone id of the topology, its states; a mapping that makes them on access.
        tuples: in the order that numbers transition ids; a sequence that makes them on access.
        log_probs: float [1 + transition ids], entry 0 unused.
        name: of the file.
    """

    states: Topologies
    tuples: Tuples
    log_probs: npt.NDArray[np.floating]
    name: str

    @property
    def num_phones(self) -> int:
        """The largest phone id."""
        return max(self.states)

    @property
    def num_pdfs(self) -> int:
        """One more than the largest pdf."""
        return max(max(self.tuples.forward_pdf), max(self.tuples.self_loop_pdf)) + 1

    @cached_property
    def transitions(self) -> Transitions:
        """What each transition id means."""
        tuples = self.tuples
        numbers = array("i", [-1]), array("i", [0]), array("i", [0]), array("i", [-1])
        flags = bytearray(1), bytearray(1)
        for entry, (phone, state) in enumerate(zip(tuples.phone, tuples.hmm_state, strict=True)):
            states = self.states.states(phone)
            for arc in self.states.arcs(states[state]):
                target = self.states.target(arc)
                pdfs = tuples.self_loop_pdf if target == state else tuples.forward_pdf
                for column, number in zip(numbers, (entry, phone, state, pdfs[entry]), strict=True):
                    column.append(number)
                for marks, flag in zip(flags, (target == state, target == len(states) - 1), strict=True):
                    marks.append(flag)
        columns = [np.frombuffer(column, dtype=np.int32) for column in numbers]
        return Transitions._make([*columns, *(np.frombuffer(marks, dtype=np.bool_) for marks in flags)])

    def pdfs(self, alignment: Sequence[int] | npt.NDArray[np.integer]) -> npt.NDArray[np.int32]:
        """Pdf of each frame of an alignment of transition ids.

        Raises:
            DataError: a number that is no transition id.
        """
        return self.transitions.pdf[self._ids(alignment)]

    def phones(self, alignment: Sequence[int] | npt.NDArray[np.integer]) -> list[tuple[int, int, int]]:
        """(phone id, first frame, frame after the last) of each phone of an alignment of transition ids.

        A phone begins where the last ended: with a transition out of its final state, and the self-loops that
        Kaldi's reordered graphs put after it.

        Raises:
            DataError: a number that is no transition id.
        """
        ids = self._ids(alignment)
        if not len(ids):
            return []
        table = self.transitions
        phone, loop, final = table.phone[ids], table.is_self_loop[ids], table.is_final[ids]
        cut = np.zeros(len(ids), dtype=np.bool_)
        cut[0] = True
        if _is_reordered(
            table.entry[ids], loop
        ):  # the transition that leaves comes first, its state's self-loops behind it
            left = np.maximum.accumulate(np.where(~loop, np.arange(len(ids)), -1))
            ended = (left >= 0) & final[np.maximum(left, 0)]
            cut[1:] = ended[:-1] & ~loop[1:]
        else:
            cut[1:] = final[:-1]
        cut[1:] |= phone[1:] != phone[:-1]
        first = np.flatnonzero(cut)
        ends = np.append(first[1:], len(ids))
        return list(zip(phone[first].tolist(), first.tolist(), ends.tolist(), strict=True))

    def _ids(self, alignment: Sequence[int] | npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        ids = np.asarray(alignment, dtype=np.int64)
        bad = np.flatnonzero((ids < 1) | (ids >= len(self.transitions.pdf)))
        if bad.size:
            raise DataError(
                f"frame {bad[0]} has {ids[bad[0]]}: expected a transition id of {self.name}, 1 to "
                f"{len(self.transitions.pdf) - 1}"
            )
        return ids

    def topology(self) -> Topology:
        """The topology of all phones, with the model's transition probabilities.

        Raises:
            GraphError: phones of different topologies, a state without a pdf before the end, or transition
                probabilities that differ from phone to phone: `Topology` has one for all.
        """
        first = self._only_states()
        log_probs = self._log_probs_by_move()
        hmm_states = []
        for number, state in enumerate(first[:-1]):
            targets = [target for target, _ in state.transitions]
            if state.forward_class < 0 or len(set(targets)) < len(targets) or not set(targets) - {number}:
                raise GraphError(
                    f"{self.name}: state {number} has pdf class {state.forward_class} and goes to {targets}; expected a "
                    "class of at least 0, and distinct states, itself not alone"
                )
            values = {target: log_probs.get((number, place), 0.0) for place, target in enumerate(targets)}
            hmm_states.append(
                HmmState(
                    state.forward_class,
                    state.self_loop_class if number in values else None,
                    values.pop(number + 1, -math.inf),
                    values.pop(number, 0.0),
                    tuple(values.items()),
                )
            )
        return Topology(tuple(hmm_states))

    def _only_states(self) -> tuple[State, ...]:
        """The states that all phones have."""
        model = self.tuples[0].phone
        size = self.states.size(model)
        if size > MAX_TOPOLOGY:
            raise GraphError(
                f"{self.name}: phone {model} has {size} states and transitions; expected at most {MAX_TOPOLOGY}"
            )
        first = self.states[model]
        for phone in self.states:
            if self.states.size(phone) != size or self.states[phone] != first:
                raise GraphError(
                    f"{self.name}: phone {phone} has another topology than others; expected one for all"
                )
        return first

    def _log_probs_by_move(self) -> dict[tuple[int, int], float]:
        """Log-probability of each (HMM state, place among its transitions), which all phones share."""
        found: dict[tuple[int, int], tuple[float, float, float]] = {}  # the first, the least and the largest
        values = map(float, self.log_probs[1:])
        for phone, state in zip(self.tuples.phone, self.tuples.hmm_state, strict=True):
            for place in range(len(self.states.arcs(self.states.states(phone)[state]))):
                value = next(values)
                first, least, largest = found.get((state, place), (value, value, value))
                found[state, place] = first, min(least, value), max(largest, value)
        for (state, _), (_, least, largest) in found.items():
            if largest - least > LOG_TOLERANCE:
                raise GraphError(
                    f"{self.name}: transition log-probabilities of state {state} reach from {least:g} to "
                    f"{largest:g}; expected one for all phones (chain models have those of the topology)"
                )
        return {move: min(_double(first), 0.0) for move, (first, _, _) in found.items()}


def _is_reordered(entry: npt.NDArray[np.int32], loop: npt.NDArray[np.bool_]) -> bool:
    """Whether self-loops stand behind the transition that leaves their state; the first change of state tells."""
    changes = np.flatnonzero((entry[1:] != entry[:-1]) & (loop[1:] | loop[:-1]))
    return bool(loop[changes[0]]) if changes.size else not loop[0]


def _double(value: float) -> float:
    """The log-probability that a float32 value stands for: log 0.5 in full precision if it is that."""
    prob = round(math.exp(value), 6)
    exact = math.log(prob) if prob > 0 else value
    return exact if abs(exact - value) <= LOG_TOLERANCE else value


def read_transition_model(path: str | os.PathLike[str]) -> TransitionModel:
    """Read `0.trans_mdl`, or the transition model that `final.mdl` begins with; what follows it is not read.

    Raises:
        DataError: no transition model, cut short, or with counts that do not fit each other.
    """
    cursor = open_file(path)
    cursor.detect_binary()
    cursor.expect("<TransitionModel>")
    states = parse_topology(cursor)
    kind = cursor.expect("<Tuples>", "<Triples>")
    tuples, num_transitions = Tuples(), 0
    for _ in range(cursor.integer("number of tuples", 1)):
        begin = cursor.position
        numbers = [cursor.integer("field of a tuple", 0) for _ in range(4 if kind == "<Tuples>" else 3)]
        entry = Tuple(*numbers, *numbers[2:3]) if kind == "<Triples>" else Tuple(*numbers)
        own = states.states(entry.phone) if entry.phone in states else range(0)
        if entry.hmm_state >= len(own) - 1:
            cursor.fail(f"state {entry.hmm_state} of phone {entry.phone}, which the topology lacks", begin)
        tuples.append(entry)
        num_transitions += len(states.arcs(own[entry.hmm_state]))
    cursor.expect(kind.replace("<", "</"))
    cursor.expect("<LogProbs>")
    begin = cursor.position
    log_probs = read_vector(cursor)
    cursor.expect("</LogProbs>")
    cursor.expect("</TransitionModel>")
    if len(log_probs) != num_transitions + 1:
        cursor.fail(
            f"{len(log_probs)} log-probabilities; expected {num_transitions + 1}, one more than transitions",
            begin,
        )
    return TransitionModel(states, tuples, log_probs, cursor.name)
